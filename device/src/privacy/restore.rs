//! Restores the values behind placeholders at display, as a streaming text transform.
//!
//! Holds back only text that may still become a placeholder (at most 21 bytes). Text that only looks like
//! one, or names a value that was never replaced, passes unchanged.

use super::{EntityKind, PlaceholderTable};
use baton_protocol::Markup;
use regex::Regex;
use std::sync::{Arc, LazyLock};

/// Most digits in a placeholder's number.
const DIGITS_MAX: usize = 9;

/// Returns the pattern of placeholders. Models change the case of letters, and escape the underscore that
/// Markdown would read as emphasis.
pub(super) fn pattern() -> &'static Regex {
    static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
        let labels = EntityKind::ALL.map(EntityKind::label).join("|");
        let pattern = format!(r"(?i-u)\[(?:{labels})\\?_[0-9]{{1,{DIGITS_MAX}}}\]");
        Regex::new(&pattern).expect("a fixed pattern, compiled in the tests")
    });
    &PATTERN
}

/// Restores text piece by piece. However the input is split, all outputs together are the text with every
/// known placeholder replaced by its value.
#[derive(Debug, Clone)]
pub struct Restorer {
    table: Arc<PlaceholderTable>,
    held: String,
    quoting: Quoting,
    /// The end of the text so far, as long as a tag.
    recent: String,
    /// Whether the text is inside JSON.
    in_json: bool,
}

/// Which placeholders stand inside JSON, where their values must be escaped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Quoting {
    /// None.
    #[default]
    Never,
    /// All: the whole answer is JSON.
    Always,
    /// Those in calls of tools.
    Calls(Markup),
}

/// The tags around a call ([`Markup::Tagged`]).
const CALL_TAGS: [&str; 2] = ["<tool_call>", "</tool_call>"];

enum Shape {
    Partial,
    Complete,
    Other,
}

/// Compares `text` with `[LABEL_digits]`. LABEL is the label of a kind in any case; a backslash may come
/// before the underscore.
fn shape(text: &str) -> Shape {
    let Some(rest) = text.strip_prefix('[') else { return Shape::Other };
    for kind in EntityKind::ALL {
        let label = kind.label();
        let shared = rest.len().min(label.len());
        let alike = |head: &str| head.eq_ignore_ascii_case(&label[..shared]);
        if !rest.get(..shared).is_some_and(alike) {
            continue;
        }
        let number = &rest[shared..];
        let number = number.strip_prefix('\\').unwrap_or(number);
        if number.is_empty() {
            return Shape::Partial;
        }
        let Some(number) = number.strip_prefix('_') else { continue };
        let digits = number.bytes().take_while(u8::is_ascii_digit).count();
        if digits > DIGITS_MAX {
            return Shape::Other;
        }
        return match &number[digits..] {
            "" => Shape::Partial,
            "]" if digits > 0 => Shape::Complete,
            _ => Shape::Other,
        };
    }
    Shape::Other
}

impl Restorer {
    /// Makes a restorer over a redactor's table.
    pub fn new(table: Arc<PlaceholderTable>) -> Self {
        let (held, recent) = (String::new(), String::new());
        Self { table, held, quoting: Quoting::Never, recent, in_json: false }
    }

    /// Makes it escape values where they stand inside JSON.
    #[must_use]
    pub fn with_quoting(mut self, quoting: Quoting) -> Self {
        self.quoting = quoting;
        self.in_json = quoting == Quoting::Always;
        self
    }

    /// Follows the text into calls and out of them.
    fn follow(&mut self, c: char) {
        match self.quoting {
            Quoting::Never | Quoting::Always => {}
            // Such an answer is a call if it begins as one.
            Quoting::Calls(Markup::Bare) => {
                if self.recent.is_empty() && !c.is_whitespace() {
                    self.in_json = c == '{';
                    self.recent.push(c);
                }
            }
            Quoting::Calls(Markup::Tagged) => {
                if c == '<' {
                    self.recent.clear();
                }
                if self.recent.len() <= CALL_TAGS[1].len() {
                    self.recent.push(c);
                }
                if let Some(tag) = CALL_TAGS.iter().position(|tag| *tag == self.recent) {
                    self.in_json = tag == 0;
                }
            }
        }
    }

    /// Returns a value as it stands in the text.
    fn written(&self, value: &str) -> String {
        if !self.in_json {
            return value.to_owned();
        }
        let quoted = serde_json::Value::from(value).to_string();
        quoted[1..quoted.len() - 1].to_owned()
    }

    /// Takes the next piece of text; returns what can be shown now.
    pub fn push(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            self.follow(c);
            if c == '[' || self.held.is_empty() {
                out.push_str(&self.held);
                self.held.clear();
                if c == '[' {
                    self.held.push(c);
                } else {
                    out.push(c);
                }
                continue;
            }
            self.held.push(c);
            match shape(&self.held) {
                Shape::Partial => {}
                Shape::Complete => {
                    let held = std::mem::take(&mut self.held);
                    match self.table.value(&held) {
                        Some(value) => out.push_str(&self.written(value)),
                        None => out.push_str(&held),
                    }
                }
                Shape::Other => out.push_str(&std::mem::take(&mut self.held)),
            }
        }
        out
    }

    /// Ends the text; returns what was still held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
