//! Turns the tokens of one answer into the text that its reader sees.
//!
//! Pure. A token's bytes pass a detokenizer, a filter and the stop strings, in this order. Never: shows half
//! a character, or anything behind a stop string. Always: the joined text does not depend on how the answer
//! was cut into pieces.

use std::sync::Arc;

use baton_engine::detokenize::Detokenizer;
use baton_engine::stop::StopStrings;
use baton_engine::tokenizer::{TokenId, Tokenizer};

/// A text transform between detokenizer and stop strings, for example one that puts private values back.
pub trait TextFilter: Send {
    /// Takes the next piece of text; returns the text that is certain by now.
    fn push(&mut self, text: &str) -> String;

    /// Ends the text; returns what was held back.
    fn finish(&mut self) -> String;
}

/// Gives the text unchanged.
impl TextFilter for () {
    fn push(&mut self, text: &str) -> String {
        text.to_owned()
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}

/// What a token or a piece of text brought.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TextPush {
    /// The model's own text that it completed, before the filter.
    pub model_text: String,
    /// Text to show.
    pub shown: String,
    /// Whether a stop string is complete. The answer ends here.
    pub stopped: bool,
}

/// The text of one answer while it is written: whole characters only, and nothing after a stop string.
#[derive(Debug, Clone)]
pub struct AnswerText<F = ()> {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    filter: F,
    stop: StopStrings,
    stopped: bool,
}

impl<F: TextFilter> AnswerText<F> {
    /// Begins an answer.
    pub fn new(tokenizer: Arc<Tokenizer>, filter: F, stop: StopStrings) -> Self {
        Self { detokenizer: Detokenizer::new(tokenizer.clone()), tokenizer, filter, stop, stopped: false }
    }

    /// Returns the tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Takes the next token. After a stop string it changes nothing.
    pub fn push(&mut self, id: TokenId) -> TextPush {
        if self.stopped {
            return TextPush { stopped: true, ..TextPush::default() };
        }
        let model_text = self.detokenizer.push(id);
        self.through(model_text)
    }

    /// Takes the next piece of text, for example of a model with another tokenizer.
    pub fn push_text(&mut self, text: &str) -> TextPush {
        if self.stopped {
            return TextPush { stopped: true, ..TextPush::default() };
        }
        self.through(text.to_owned())
    }

    /// Ends the answer: returns everything that was held back. `more` is text that follows it, for example
    /// what an engine still held.
    pub fn finish(&mut self, more: &str) -> TextPush {
        if self.stopped {
            return TextPush { stopped: true, ..TextPush::default() };
        }
        let mut model_text = self.detokenizer.finish();
        model_text.push_str(more);
        let mut filtered = self.filter.push(&model_text);
        filtered.push_str(&self.filter.finish());
        let mut last = self.stop.push(&filtered);
        self.stopped = last.stopped;
        if !last.stopped {
            last.text.push_str(&self.stop.finish());
        }
        TextPush { model_text, shown: last.text, stopped: last.stopped }
    }

    /// The answer reaches its cap and another device goes on: returns what the stop strings hold. The
    /// beginning of a character stays, because the other device completes it.
    pub fn at_handover(&mut self) -> String {
        if self.stopped { String::new() } else { self.stop.finish() }
    }

    /// Forgets the beginning of a character.
    pub fn drop_incomplete(&mut self) {
        self.detokenizer = Detokenizer::new(self.tokenizer.clone());
    }

    /// Returns whether a stop string is complete.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    fn through(&mut self, model_text: String) -> TextPush {
        let filtered = self.filter.push(&model_text);
        let safe = self.stop.push(&filtered);
        self.stopped = safe.stopped;
        TextPush { model_text, shown: safe.text, stopped: safe.stopped }
    }
}

#[cfg(test)]
mod tests;
