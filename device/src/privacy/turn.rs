//! The texts of a turn with tools: those that may have placeholders, and those that must stay as they are.
//!
//! Names of functions and fields, numbers and patterns mean something to grammars and templates, so they
//! cannot be replaced. A turn in which one of them is private is not sent.

use super::{Origin, Redacted};
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
        self.visit(&mut |text, _| match text {
            Part::Fixed(text) => texts.fixed.push(text),
            Part::Free(text) => texts.free.push(text.clone()),
        });
        texts
    }

    /// Replaces the texts that can be replaced. Returns where those come from that are changed by it.
    pub(super) fn set_free(&mut self, texts: &mut impl Iterator<Item = Redacted>) -> Vec<Origin> {
        let mut origins = Vec::new();
        self.visit(&mut |text, place| {
            if let Part::Free(text) = text {
                let (after, origin) = texts.next().expect("as many texts as there were").at(place);
                *text = after;
                origins.extend(Some(origin).filter(|origin| !origin.is_unchanged()));
            }
        });
        origins
    }

    /// Shows each text with its place, a JSON pointer.
    fn visit(&mut self, see: &mut impl FnMut(Part<'_>, &str)) {
        for (index, segment) in self.segments.iter_mut().enumerate() {
            for (call_index, call) in segment.calls.iter_mut().enumerate() {
                let place = format!("/segments/{index}/calls/{call_index}");
                see(Part::Fixed(call.name.clone()), &place);
                see(Part::Free(&mut call.id), &format!("{place}/id"));
                call.arguments = plain(&call.arguments);
                see(Part::Free(&mut call.arguments), &format!("{place}/arguments"));
            }
            if let Some(id) = &mut segment.call_id {
                see(Part::Free(id), &format!("/segments/{index}/call_id"));
            }
        }
        for (index, tool) in self.tools.iter_mut().flat_map(|tools| &mut tools.tools).enumerate() {
            let Tool { name, description, parameters, strict: _ } = tool;
            let place = format!("/tools/functions/{index}");
            see(Part::Fixed(name.clone()), &place);
            if let Some(text) = description {
                see(Part::Free(text), &format!("{place}/description"));
            }
            visit_json(parameters, &mut format!("{place}/parameters"), see);
        }
        if let Some(ToolUse { choice: ToolChoice::Named(name), .. }) = &self.tools {
            see(Part::Fixed(name.clone()), "/tools/choice");
        }
        if let AnswerFormat::JsonSchema(schema) = &mut self.format {
            visit_json(schema, &mut "/format/json_schema".to_owned(), see);
        }
    }
}

/// A text of a turn.
enum Part<'a> {
    Fixed(String),
    Free(&'a mut String),
}

/// Shows the texts of a schema, which stands at `place`.
fn visit_json(value: &mut Value, place: &mut String, see: &mut impl FnMut(Part<'_>, &str)) {
    let len = place.len();
    match value {
        Value::String(text) => see(Part::Free(text), place),
        Value::Number(number) => see(Part::Fixed(number.to_string()), place),
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                place.push_str(&format!("/{index}"));
                visit_json(item, place, see);
                place.truncate(len);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                see(Part::Fixed(name.clone()), place);
                place.push('/');
                place.push_str(&name.replace('~', "~0").replace('/', "~1"));
                match value {
                    Value::String(text) if name == PATTERN => see(Part::Fixed(text.clone()), place),
                    value => visit_json(value, place, see),
                }
                place.truncate(len);
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

/// Returns arguments without escapes that would hide a value, if they are JSON.
fn plain(arguments: &str) -> String {
    serde_json::from_str::<Value>(arguments).map_or_else(|_| arguments.to_owned(), |value| value.to_string())
}
