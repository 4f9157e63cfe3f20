//! Calls of tools in the text of an answer.

use baton_openai::reply::Piece;
use baton_openai::tool_calls::ToolParser;
use baton_openai::tools::{Markup, ToolUse};

/// Turns an answer's text into parts: text, and calls if the request offers tools.
#[derive(Debug)]
pub(super) struct Calls(Option<ToolParser>);

impl Calls {
    /// Makes it for these tools. `markup` is how the model writes calls.
    pub(super) fn of(tools: Option<&ToolUse>, markup: Option<Markup>) -> Calls {
        let parser = tools.zip(markup).map(|(tools, markup)| {
            let names = tools.tools.iter().map(|tool| tool.name.clone());
            ToolParser::new(markup, names)
        });
        Calls(parser)
    }

    /// Returns the parts that more text adds.
    pub(super) fn push(&mut self, text: String) -> Vec<Piece> {
        match &mut self.0 {
            Some(parser) => parser.push(&text).into_iter().map(Piece::from).collect(),
            None => vec![Piece::text(text)],
        }
    }

    /// Returns what was held back, because it could have become a call.
    pub(super) fn finish(&mut self) -> Vec<Piece> {
        let held = self.0.as_mut().map(ToolParser::finish).unwrap_or_default();
        held.into_iter().map(Piece::from).collect()
    }

    /// Returns whether there was a call.
    pub(super) fn any(&self) -> bool {
        self.0.as_ref().is_some_and(|parser| parser.calls() > 0)
    }
}
