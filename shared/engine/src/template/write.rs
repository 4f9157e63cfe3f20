//! Values as text: Python's `str` and `repr`, and `json.dumps`.

use super::budget::{Budget, Outcome, failed};
use super::text::{Origin, Text};
use super::value::{SeqKind, Value};

/// The most bytes of an indent.
const INDENT_MAX: usize = 64;

/// Returns Python's `str(value)`; keeps the origin of texts.
///
/// # Errors
/// If the budget is used up.
pub(super) fn string(value: &Value, budget: &Budget) -> Outcome<Text> {
    if let Value::Text(text) = value {
        budget.charge(text.len())?;
        return Ok(Text::clone(text));
    }
    let mut out = Text::default();
    write(value, &mut out, budget)?;
    Ok(out)
}

/// Appends Python's `str(value)`.
///
/// # Errors
/// If the budget is used up.
pub(super) fn write(value: &Value, out: &mut Text, budget: &Budget) -> Outcome<()> {
    match value {
        Value::Text(text) => {
            budget.charge(text.len())?;
            out.append(text);
            Ok(())
        }
        Value::Undefined(_) => Ok(()),
        other => repr(other, out, budget),
    }
}

/// Appends Python's `repr(value)`.
///
/// # Errors
/// If the budget is used up.
pub(super) fn repr(value: &Value, out: &mut Text, budget: &Budget) -> Outcome<()> {
    budget.step()?;
    budget.charge(8)?;
    match value {
        Value::Undefined(_) => out.push_str("Undefined"),
        Value::None => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Int(number) => out.push_str(&number.to_string()),
        Value::Float(number) => out.push_str(&float(*number)),
        Value::Text(text) => quoted(text, out, budget)?,
        Value::Seq(seq) => {
            let (open, close) = match seq.kind {
                SeqKind::List => ("[", "]"),
                SeqKind::Tuple if seq.items.len() == 1 => ("(", ",)"),
                SeqKind::Tuple => ("(", ")"),
                SeqKind::Range => {
                    let end = |at: Option<&Value>| at.and_then(Value::as_int).unwrap_or_default();
                    let first = end(seq.items.first());
                    let last = end(seq.items.last());
                    out.push_str(&format!(
                        "range({first}, {})",
                        last.saturating_add(i128::from(!seq.items.is_empty()))
                    ));
                    return Ok(());
                }
                SeqKind::View(name) => {
                    out.push_str(name);
                    ("([", "])")
                }
                SeqKind::Generator => {
                    out.push_str("<generator object>");
                    return Ok(());
                }
            };
            out.push_str(open);
            for (at, item) in seq.items.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                repr(item, out, budget)?;
            }
            out.push_str(close);
        }
        Value::Map(map) => {
            out.push_str("{");
            for (at, (key, value)) in map.entries().iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                repr(key, out, budget)?;
                out.push_str(": ");
                repr(value, out, budget)?;
            }
            out.push_str("}");
        }
        other => out.push_str(&format!("<{}>", other.type_name())),
    }
    Ok(())
}

/// Appends a text in Python's quotes.
fn quoted(text: &Text, out: &mut Text, budget: &Budget) -> Outcome<()> {
    budget.charge(text.len().saturating_mul(4))?;
    let is_single = !text.as_str().contains('\'') || text.as_str().contains('"');
    let quote = if is_single { '\'' } else { '"' };
    out.push_str(if is_single { "'" } else { "\"" });
    text.each_char(|c, same, origin| match c {
        '\\' => out.push("\\\\", origin),
        '\n' => out.push("\\n", origin),
        '\r' => out.push("\\r", origin),
        '\t' => out.push("\\t", origin),
        c if c == quote => out.push(&format!("\\{c}"), origin),
        c if !is_printable(c) => out.push(&escaped(c), origin),
        _ => out.push(same, origin),
    });
    out.push_str(if is_single { "'" } else { "\"" });
    Ok(())
}

/// Python's escape of a character that is not printable.
fn escaped(c: char) -> String {
    match u32::from(c) {
        code @ ..=0xff => format!("\\x{code:02x}"),
        code @ ..=0xffff => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}

/// Whether Python prints a character as it is (as far as the standard library knows its class).
pub(super) fn is_printable(c: char) -> bool {
    let is_format = matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{feff}');
    let is_private = matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..);
    c == ' ' || !(c.is_control() || c.is_whitespace() || is_format || is_private)
}

/// Returns Python's `repr` of a float: the shortest digits that give it again.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let written = format!("{number:e}");
    let (mantissa, exponent) = written.split_once('e').unwrap_or((&written, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..16).contains(&exponent) {
        let plain = format!("{number}");
        return if plain.contains('.') { plain } else { format!("{plain}.0") };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// The options of `tojson`, with the meaning of `json.dumps`.
#[derive(Debug)]
pub(super) struct Json {
    /// Whether characters beyond ASCII are escaped.
    pub(super) ensure_ascii: bool,
    /// White space of one level, if the text is broken into lines.
    pub(super) indent: Option<String>,
    /// What stands between items, and between a key and its value.
    pub(super) separators: (String, String),
    /// Whether fields are sorted by their names.
    pub(super) sort_keys: bool,
}

impl Json {
    /// Returns the options with the defaults of `json.dumps`.
    ///
    /// # Errors
    /// If the indent is unreasonably wide.
    pub(super) fn new(indent: Option<String>) -> Outcome<Json> {
        if indent.as_ref().is_some_and(|indent| indent.len() > INDENT_MAX) {
            return failed(format!("tojson indents by at most {INDENT_MAX} spaces"));
        }
        let between = if indent.is_some() { "," } else { ", " };
        let separators = (between.to_owned(), ": ".to_owned());
        Ok(Json { ensure_ascii: false, indent, separators, sort_keys: false })
    }

    /// Returns `json.dumps(value)`; keeps the origin of texts.
    ///
    /// # Errors
    /// If JSON cannot hold the value, or the budget is used up.
    pub(super) fn dumps(&self, value: &Value, budget: &Budget) -> Outcome<Text> {
        let mut out = Text::default();
        self.write(value, 1, &mut out, budget)?;
        Ok(out)
    }

    fn write(&self, value: &Value, depth: usize, out: &mut Text, budget: &Budget) -> Outcome<()> {
        budget.step()?;
        budget.charge(8)?;
        match value {
            Value::None => out.push_str("null"),
            Value::Bool(true) => out.push_str("true"),
            Value::Bool(false) => out.push_str("false"),
            Value::Int(number) => out.push_str(&number.to_string()),
            Value::Float(number) => out.push_str(&json_float(*number)),
            Value::Text(text) => self.string(text, out, budget)?,
            Value::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple) => {
                out.push_str("[");
                for (at, item) in seq.items.iter().enumerate() {
                    self.begin(at, depth, out, budget)?;
                    self.write(item, depth + 1, out, budget)?;
                }
                self.end(seq.items.is_empty(), depth, out, budget)?;
                out.push_str("]");
            }
            Value::Map(map) => self.object(map.entries(), depth, out, budget)?,
            other => return failed(format!("Object of type {} is not JSON serializable", other.type_name())),
        }
        Ok(())
    }

    fn object(
        &self,
        entries: &[(Value, Value)],
        depth: usize,
        out: &mut Text,
        budget: &Budget,
    ) -> Outcome<()> {
        let mut fields: Vec<&(Value, Value)> = entries.iter().collect();
        if self.sort_keys {
            budget.charge(fields.len() * 16)?;
            fields.sort_by(|a, b| a.0.as_str().cmp(&b.0.as_str()));
        }
        out.push_str("{");
        for (at, (key, value)) in fields.iter().enumerate() {
            self.begin(at, depth, out, budget)?;
            match key {
                Value::Text(text) => self.string(text, out, budget)?,
                Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                    out.push_str("\"");
                    self.write(key, depth, out, budget)?;
                    out.push_str("\"");
                }
                other => return failed(format!("keys must be str, not {}", other.type_name())),
            }
            out.push_str(&self.separators.1);
            self.write(value, depth + 1, out, budget)?;
        }
        self.end(entries.is_empty(), depth, out, budget)?;
        out.push_str("}");
        Ok(())
    }

    /// Writes what stands before an item.
    fn begin(&self, at: usize, depth: usize, out: &mut Text, budget: &Budget) -> Outcome<()> {
        if at > 0 {
            budget.charge(self.separators.0.len())?;
            out.push_str(&self.separators.0);
        }
        self.line(depth, out, budget)
    }

    /// Writes what stands before the end of a container.
    fn end(&self, is_empty: bool, depth: usize, out: &mut Text, budget: &Budget) -> Outcome<()> {
        if is_empty { Ok(()) } else { self.line(depth - 1, out, budget) }
    }

    fn line(&self, depth: usize, out: &mut Text, budget: &Budget) -> Outcome<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        budget.charge(indent.len() * depth)?;
        out.push_str("\n");
        out.push_str(&indent.repeat(depth));
        Ok(())
    }

    fn string(&self, text: &Text, out: &mut Text, budget: &Budget) -> Outcome<()> {
        budget.charge(text.len().saturating_mul(2))?;
        out.push_str("\"");
        text.each_char(|c, same, origin| self.character(c, same, origin, out));
        out.push_str("\"");
        Ok(())
    }

    fn character(&self, c: char, same: &str, origin: Origin, out: &mut Text) {
        match c {
            '"' => out.push("\\\"", origin),
            '\\' => out.push("\\\\", origin),
            '\n' => out.push("\\n", origin),
            '\r' => out.push("\\r", origin),
            '\t' => out.push("\\t", origin),
            '\u{8}' => out.push("\\b", origin),
            '\u{c}' => out.push("\\f", origin),
            c if c < ' ' || (self.ensure_ascii && !c.is_ascii()) => {
                let mut units = [0; 2];
                let units = c.encode_utf16(&mut units).iter();
                out.push(&units.map(|unit| format!("\\u{unit:04x}")).collect::<String>(), origin);
            }
            _ => out.push(same, origin),
        }
    }
}

fn json_float(number: f64) -> String {
    match float(number).as_str() {
        "nan" => "NaN".to_owned(),
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        other => other.to_owned(),
    }
}
