//! Finds calls in the text of an answer while it streams.
//!
//! Pure. Always: the result does not depend on how the text was cut. Text that is not a call stays unchanged,
//! except for white space around calls. A piece of a call is returned only once its function is known to be
//! one of the offered ones.

use serde_json::Value;

use crate::tools::Markup;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// A call with a longer header is read only once it is complete.
const HEADER_BYTES_MAX: usize = 256;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolPiece {
    /// Text for the reader.
    Text(String),
    /// A call begins.
    Call {
        /// Its index among the answer's calls, from 0.
        index: usize,
        /// The function.
        name: String,
    },
    /// More of a call's arguments.
    Arguments {
        /// The call's index.
        index: usize,
        /// The next part of the JSON text.
        text: String,
    },
}

/// Separates an answer into text and calls while it streams.
#[derive(Debug)]
pub struct ToolParser {
    markup: Markup,
    names: Vec<String>,
    /// Text that was not parsed yet.
    pending: String,
    state: State,
    calls: usize,
    /// Whether some text was returned already.
    shown: bool,
}

#[derive(Debug)]
enum State {
    /// Outside of calls.
    Text,
    /// Inside a call.
    Call(Scan),
    /// After a call's object, before its closing tag.
    Close,
    /// The rest of the answer is text.
    Plain,
}

impl ToolParser {
    /// Makes a parser for answers with this markup that may call these functions.
    pub fn new(markup: Markup, names: impl IntoIterator<Item = String>) -> ToolParser {
        let names = names.into_iter().collect();
        ToolParser { markup, names, pending: String::new(), state: State::Text, calls: 0, shown: false }
    }

    /// Returns the number of complete calls so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Takes the next piece of text, and returns the parts that are certain now.
    pub fn push(&mut self, text: &str) -> Vec<ToolPiece> {
        self.pending.push_str(text);
        let mut out = Vec::new();
        while self.advance(&mut out) {}
        out
    }

    /// Ends the answer, and returns the text that was held back.
    pub fn finish(&mut self) -> Vec<ToolPiece> {
        let mut out = Vec::new();
        match std::mem::replace(&mut self.state, State::Plain) {
            State::Call(scan) if !scan.begun => {
                let text = format!("{}{}{}", self.opening(), scan.raw, self.pending);
                self.show(text, &mut out);
            }
            State::Text | State::Plain if self.calls == 0 || !self.pending.trim().is_empty() => {
                let text = std::mem::take(&mut self.pending);
                self.show(text, &mut out);
            }
            _ => (),
        }
        self.pending.clear();
        out
    }

    fn opening(&self) -> &'static str {
        match self.markup {
            Markup::Tagged => OPEN,
            Markup::Bare => "",
        }
    }

    fn show(&mut self, text: String, out: &mut Vec<ToolPiece>) {
        if !text.is_empty() {
            self.shown = true;
            out.push(ToolPiece::Text(text));
        }
    }

    /// Does one step; returns false if more text is needed.
    fn advance(&mut self, out: &mut Vec<ToolPiece>) -> bool {
        match &mut self.state {
            State::Plain => {
                let text = std::mem::take(&mut self.pending);
                self.show(text, out);
                false
            }
            State::Text if self.markup == Markup::Bare => self.find_object(out),
            State::Text => self.find_tag(out),
            State::Call(scan) => {
                let rest = std::mem::take(&mut self.pending);
                let (progress, left) = scan.push(&rest, self.calls, &self.names, self.markup, out);
                self.pending = left;
                match progress {
                    Progress::More => false,
                    Progress::Whole => {
                        self.calls += 1;
                        self.state = State::Close;
                        true
                    }
                    Progress::NoCall => {
                        let raw = std::mem::take(&mut scan.raw);
                        let text = format!("{}{raw}", self.opening());
                        self.state = if self.markup == Markup::Bare { State::Plain } else { State::Text };
                        self.show(text, out);
                        true
                    }
                }
            }
            State::Close => self.close(),
        }
    }

    /// Returns text up to the next opening tag. Holds back text that may be the beginning of a tag, and the
    /// white space before it.
    fn find_tag(&mut self, out: &mut Vec<ToolPiece>) -> bool {
        if let Some(at) = self.pending.find(OPEN) {
            let rest = self.pending.split_off(at + OPEN.len());
            let text = std::mem::replace(&mut self.pending, rest);
            self.show(text[..at].trim_end().to_owned(), out);
            self.state = State::Call(Scan::default());
            return true;
        }
        let held = (1..OPEN.len()).rev().find(|&len| self.pending.ends_with(&OPEN[..len])).unwrap_or(0);
        let certain = self.pending[..self.pending.len() - held].trim_end().len();
        let rest = self.pending.split_off(certain);
        let text = std::mem::replace(&mut self.pending, rest);
        self.show(text, out);
        false
    }

    /// Looks for a bare call at the beginning of the answer, or after another call and `;`.
    fn find_object(&mut self, out: &mut Vec<ToolPiece>) -> bool {
        let text =
            self.pending.trim_start_matches(|c: char| c.is_whitespace() || (self.calls > 0 && c == ';'));
        match text.chars().next() {
            None => false,
            Some('{') if !self.shown => {
                self.pending = text.to_owned();
                self.state = State::Call(Scan::default());
                true
            }
            Some(_) => {
                self.state = State::Plain;
                self.advance(out)
            }
        }
    }

    /// Skips the closing tag. If it is missing, the text after the object is ordinary text.
    fn close(&mut self) -> bool {
        if self.markup == Markup::Bare {
            self.state = State::Text;
            return true;
        }
        let text = self.pending.trim_start();
        if text.len() < CLOSE.len() && CLOSE.starts_with(text) {
            return false;
        }
        self.pending = text.strip_prefix(CLOSE).unwrap_or(text).to_owned();
        self.state = State::Text;
        true
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Progress {
    More,
    Whole,
    NoCall,
}

/// Reads one call's JSON object while it streams.
#[derive(Debug, Default)]
struct Scan {
    /// All of its text so far.
    raw: String,
    object: Depth,
    /// Bracket depth in the arguments, once the name and the arguments were found in this order.
    arguments: Option<Depth>,
    /// Whether the arguments are complete.
    arguments_end: bool,
    /// Whether [`ToolPiece::Call`] was returned.
    begun: bool,
    /// Whether the fields have another order. Then the call is read once its object is complete.
    unusual: bool,
}

impl Scan {
    /// Takes text; returns the progress, and the text after the object.
    fn push(
        &mut self,
        text: &str,
        index: usize,
        names: &[String],
        markup: Markup,
        out: &mut Vec<ToolPiece>,
    ) -> (Progress, String) {
        let mut fresh = String::new();
        for (at, c) in text.char_indices() {
            if self.raw.is_empty() && c.is_whitespace() {
                continue;
            }
            self.raw.push(c);
            if self.raw.len() == c.len_utf8() && c != '{' {
                return (Progress::NoCall, text[at + c.len_utf8()..].to_owned());
            }
            let ended = self.object.push(c);
            if let Some(depth) = self.arguments.as_mut().filter(|_| !self.arguments_end) {
                fresh.push(c);
                self.arguments_end = depth.push(c);
            } else if !self.begun && !self.unusual {
                match header(&self.raw, markup.arguments_field()) {
                    Header::More => self.unusual = self.raw.len() > HEADER_BYTES_MAX,
                    Header::Other => self.unusual = true,
                    Header::Found(name) if !names.contains(&name) => {
                        return (Progress::NoCall, text[at + c.len_utf8()..].to_owned());
                    }
                    Header::Found(name) => {
                        self.begun = true;
                        out.push(ToolPiece::Call { index, name });
                        let mut depth = Depth::default();
                        depth.push(c);
                        fresh.push(c);
                        self.arguments = Some(depth);
                    }
                }
            }
            if ended {
                let left = text[at + c.len_utf8()..].to_owned();
                argue(index, fresh, out);
                let known = self.begun || self.read_whole(index, names, out);
                return (if known { Progress::Whole } else { Progress::NoCall }, left);
            }
        }
        argue(index, fresh, out);
        (Progress::More, String::new())
    }

    /// Reads a complete object whose fields have another order. Returns false if it is not a call of a known
    /// function.
    fn read_whole(&mut self, index: usize, names: &[String], out: &mut Vec<ToolPiece>) -> bool {
        let Ok(Value::Object(fields)) = serde_json::from_str::<Value>(&self.raw) else { return false };
        let name =
            fields.get("name").and_then(Value::as_str).filter(|name| names.iter().any(|known| known == name));
        let arguments = fields.get("arguments").or_else(|| fields.get("parameters"));
        let (Some(name), Some(arguments)) = (name, arguments) else { return false };
        let text = arguments.as_str().map_or_else(|| arguments.to_string(), str::to_owned);
        out.push(ToolPiece::Call { index, name: name.to_owned() });
        argue(index, text, out);
        self.begun = true;
        true
    }
}

fn argue(index: usize, text: String, out: &mut Vec<ToolPiece>) {
    if !text.is_empty() {
        out.push(ToolPiece::Arguments { index, text });
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Header {
    More,
    Found(String),
    Other,
}

/// Reads the header `{"name": "…", "arguments": {`. Called after each character, so a header that is found
/// ends at the end of `raw`.
fn header(raw: &str, field: &str) -> Header {
    let mut rest = raw;
    let mut name = None;
    for expected in ["{", "\"name\"", ":", "NAME", ",", field, ":", "{"] {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Header::More;
        }
        let quoted;
        let literal = match expected {
            "NAME" => {
                let Some(end) = end_of_string(rest) else {
                    return if rest.starts_with('"') { Header::More } else { Header::Other };
                };
                name = serde_json::from_str::<String>(&rest[..end]).ok();
                rest = &rest[end..];
                continue;
            }
            same if same == field => {
                quoted = format!("\"{field}\"");
                quoted.as_str()
            }
            other => other,
        };
        match rest.strip_prefix(literal) {
            Some(after) => rest = after,
            None if literal.starts_with(rest) => return Header::More,
            None => return Header::Other,
        }
    }
    name.map_or(Header::Other, Header::Found)
}

/// Returns the byte index after the closing quote of a JSON string at the beginning of `text`.
fn end_of_string(text: &str) -> Option<usize> {
    let mut escaped = false;
    let mut chars = text.char_indices();
    chars.next().filter(|&(_, c)| c == '"')?;
    for (at, c) in chars {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(at + 1),
            _ => (),
        }
    }
    None
}

/// Tracks the depth of brackets in JSON text.
#[derive(Debug, Default)]
struct Depth {
    open: usize,
    in_string: bool,
    escaped: bool,
}

impl Depth {
    /// Returns true if this character closes the outermost bracket.
    fn push(&mut self, c: char) -> bool {
        match c {
            _ if self.escaped => self.escaped = false,
            '\\' if self.in_string => self.escaped = true,
            '"' => self.in_string = !self.in_string,
            _ if self.in_string => (),
            '{' | '[' => self.open += 1,
            '}' | ']' => {
                self.open = self.open.saturating_sub(1);
                return self.open == 0;
            }
            _ => (),
        }
        false
    }
}

#[cfg(test)]
mod tests;
