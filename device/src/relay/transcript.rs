//! The answer so far: the accepted tokens in order, and their text as it is shown.
//!
//! Text goes through one transform: it holds back incomplete characters, restores placeholders and watches
//! for stop strings. If tokens are dropped, the others go through it again, so the text never depends on what
//! was dropped.

use super::event::Source;
use crate::privacy::Restorer;
use baton_engine::stop::StopStrings;
use baton_engine::tokenizer::{TokenId, Tokenizer};
use baton_generate::text::{AnswerText, TextFilter};
use std::sync::Arc;

/// The source of a token's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// An id in the device's vocabulary, and in the cloud's if the tokenizers are equal.
    Id(TokenId),
    /// The text as received.
    Text(String),
}

#[derive(Debug, Clone)]
struct Token {
    piece: Piece,
    source: Source,
    /// Model text (redacted) that this token completed.
    model_text: String,
    /// Text to show that this token released.
    display: String,
}

/// The parts of the text transform.
#[derive(Clone)]
pub struct TextRules {
    /// The device's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Puts private values back.
    pub restorer: Restorer,
    /// Strings that end the answer; they are not part of it.
    pub stop: StopStrings,
}

impl TextFilter for Restorer {
    fn push(&mut self, text: &str) -> String {
        Restorer::push(self, text)
    }

    fn finish(&mut self) -> String {
        Restorer::finish(self)
    }
}

pub(super) struct Transcript {
    /// The transform before the first token.
    fresh: AnswerText<Restorer>,
    text: AnswerText<Restorer>,
    tokens: Vec<Token>,
    tail: String,
    /// Model text (redacted) that was held back until the end.
    held: String,
}

impl Transcript {
    pub(super) fn new(rules: TextRules) -> Self {
        Self::from_the_start(AnswerText::new(rules.tokenizer, rules.restorer, rules.stop))
    }

    fn from_the_start(fresh: AnswerText<Restorer>) -> Self {
        let (tail, held) = (String::new(), String::new());
        Self { text: fresh.clone(), fresh, tokens: Vec::new(), tail, held }
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn tokenizer(&self) -> &Tokenizer {
        self.text.tokenizer()
    }

    /// Returns whether a stop string came; then no more tokens are taken.
    pub(super) fn stopped(&self) -> bool {
        self.text.stopped()
    }

    pub(super) fn source(&self, index: usize) -> Source {
        self.tokens[index].source
    }

    pub(super) fn display(&self, index: usize) -> &str {
        &self.tokens[index].display
    }

    /// Returns the token ids of the answer; `None` if a part came as text only.
    pub(super) fn ids(&self) -> Option<Vec<TokenId>> {
        self.tokens
            .iter()
            .map(|t| match t.piece {
                Piece::Id(id) => Some(id),
                Piece::Text(_) => None,
            })
            .collect()
    }

    /// Returns the complete characters of the model's text (redacted).
    pub(super) fn model_text(&self) -> String {
        self.tokens.iter().map(|t| t.model_text.as_str()).collect()
    }

    /// Returns the length of the model text of the first `n` tokens, in bytes.
    pub(super) fn model_bytes(&self, n: usize) -> usize {
        self.tokens[..n].iter().map(|t| t.model_text.len()).sum()
    }

    pub(super) fn push(&mut self, piece: Piece, source: Source) {
        if self.text.stopped() {
            return;
        }
        let pushed = match &piece {
            Piece::Id(id) => self.text.push(*id),
            Piece::Text(text) => self.text.push_text(text),
        };
        self.tokens.push(Token { piece, source, model_text: pushed.model_text, display: pushed.shown });
    }

    /// Drops the start of an incomplete character; it is not part of the text so far.
    pub(super) fn drop_incomplete(&mut self) {
        self.text.drop_incomplete();
    }

    /// Drops all tokens from `len` on; none of them may have been shown.
    pub(super) fn truncate(&mut self, len: usize) {
        let tokens = std::mem::take(&mut self.tokens);
        *self = Self::from_the_start(self.fresh.clone());
        for token in tokens.into_iter().take(len) {
            self.push(token.piece, token.source);
        }
    }

    /// Ends the text; `model_text` is what the engine still held.
    pub(super) fn finish(&mut self, model_text: &str) {
        let last = self.text.finish(model_text);
        (self.tail, self.held) = (last.shown, last.model_text);
    }

    /// Returns the model's text (redacted) up to the token that completed a stop string, if one did.
    pub(super) fn stopped_text(&self) -> Option<String> {
        self.text.stopped().then(|| self.model_text() + &self.held)
    }

    /// Returns the text that was held back at the end, after [`Transcript::finish`].
    pub(super) fn tail(&self) -> &str {
        &self.tail
    }

    /// Returns the text of the first `n` tokens; includes the tail if these are all tokens.
    pub(super) fn text(&self, n: usize) -> String {
        let mut text: String = self.tokens[..n].iter().map(|t| t.display.as_str()).collect();
        if n == self.tokens.len() {
            text.push_str(&self.tail);
        }
        text
    }
}
