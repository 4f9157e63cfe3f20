//! The texts of a turn with tools: those that may have placeholders, and those that must stay as they are.
//!
//! Names of functions and fields, numbers and patterns mean something to grammars and templates, so they
//! cannot be replaced. A turn in which one of them is private is not sent.

use baton_protocol::{AnswerFormat, Segment, Tool, ToolChoice, ToolUse};
use serde_json::Value;

/// The field of a schema whose text is a regular expression. A placeholder would mean something else in it.
const PATTERN: &str = "pattern";

/// What a model is told of a turn.
pub(super) struct Turn {
    pub(super) segments: Vec<Segment>,
    pub(super) tools: Option<ToolUse>,
    pub(super) format: AnswerFormat,
}

/// The texts of a turn, besides those of its segments.
#[derive(Default)]
pub(super) struct TurnTexts {
    /// Texts that cannot be replaced.
    pub(super) fixed: Vec<String>,
    /// Texts that can be, in the order of [`Turn::set_free`].
    pub(super) free: Vec<String>,
}

impl Turn {
    /// Returns its texts.
    pub(super) fn texts(&mut self) -> TurnTexts {
        let mut texts = TurnTexts::default();
        self.visit(&mut |text| match text {
            Part::Fixed(text) => texts.fixed.push(text),
            Part::Free(text) => texts.free.push(text.clone()),
        });
        texts
    }

    /// Replaces the texts that can be replaced.
    pub(super) fn set_free(&mut self, texts: &mut impl Iterator<Item = String>) {
        self.visit(&mut |text| {
            if let Part::Free(text) = text {
                *text = texts.next().expect("as many texts as there were");
            }
        });
    }

    fn visit(&mut self, see: &mut impl FnMut(Part<'_>)) {
        for segment in &mut self.segments {
            for call in &mut segment.calls {
                see(Part::Fixed(call.name.clone()));
                see(Part::Free(&mut call.id));
                call.arguments = plain(&call.arguments);
                see(Part::Free(&mut call.arguments));
            }
            segment.call_id.iter_mut().for_each(|id| see(Part::Free(id)));
        }
        for tool in self.tools.iter_mut().flat_map(|tools| &mut tools.tools) {
            let Tool { name, description, parameters, strict: _ } = tool;
            see(Part::Fixed(name.clone()));
            description.iter_mut().for_each(|text| see(Part::Free(text)));
            visit_json(parameters, see);
        }
        if let Some(ToolUse { choice: ToolChoice::Named(name), .. }) = &self.tools {
            see(Part::Fixed(name.clone()));
        }
        if let AnswerFormat::JsonSchema(schema) = &mut self.format {
            visit_json(schema, see);
        }
    }
}

/// A text of a turn.
enum Part<'a> {
    Fixed(String),
    Free(&'a mut String),
}

fn visit_json(value: &mut Value, see: &mut impl FnMut(Part<'_>)) {
    match value {
        Value::String(text) => see(Part::Free(text)),
        Value::Number(number) => see(Part::Fixed(number.to_string())),
        Value::Array(items) => items.iter_mut().for_each(|item| visit_json(item, see)),
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                see(Part::Fixed(name.clone()));
                match value {
                    Value::String(text) if name == PATTERN => see(Part::Fixed(text.clone())),
                    value => visit_json(value, see),
                }
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

/// Returns arguments without escapes that would hide a value, if they are JSON.
fn plain(arguments: &str) -> String {
    serde_json::from_str::<Value>(arguments).map_or_else(|_| arguments.to_owned(), |value| value.to_string())
}
