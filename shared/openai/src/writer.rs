//! The writer of one answer in a dialect: as a stream, or in one piece.
//!
//! A program reads a request by one of the dialects and gets an [`Asked`]. Its answer is a sequence of
//! [`Piece`]s and an [`Ending`], which are the same in all dialects. Never: knows who computes the answer.
//! Always: a stream, put together by a client of the dialect, is the reply in one piece.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

use crate::capabilities::Capabilities;
use crate::dialect::Dialect;
use crate::error::{ErrorReply, FieldError};
use crate::reply::{Ending, Message, Piece};
use crate::request::ChatRequest;

/// How long a stream may be silent between two pieces, if its dialect says nothing else.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How long a stream may be silent for clients that take a silent stream for one that hangs.
pub(crate) const SILENCE_MAX_SHORT: Duration = Duration::from_secs(2);

/// HTTP headers: names and values.
pub type Headers = &'static [(&'static str, &'static str)];

/// Writes one answer: [`Self::begin`], any number of pieces, then [`Self::end`] or [`Self::error`], then
/// [`Self::done`]; or [`Self::whole`] alone. Each call appends frames of the dialect, or nothing.
pub trait AnswerWriter: fmt::Debug + Send {
    /// Returns the HTTP headers of a stream.
    fn headers(&self) -> Headers;

    /// Returns what keeps a silent stream open.
    fn ping(&self) -> String;

    /// Returns how long a stream may be silent before [`Self::ping`] is sent.
    fn silence_max(&self) -> Duration {
        SILENCE_MAX
    }

    /// Returns whether [`Self::begin`] was called.
    fn is_begun(&self) -> bool;

    /// Appends what comes before the first piece, with Baton's own field if the dialect has it. Does nothing
    /// if it was written before.
    fn begin(&mut self, baton: Option<Value>, out: &mut String);

    /// Appends one part of the answer, after [`Self::begin`].
    fn piece(&mut self, piece: Piece, out: &mut String);

    /// Appends the progress of an answer that has no token yet: an object with `stage`, `computed` and
    /// `total`, and `eta_ms` if it is known.
    fn progress(&mut self, progress: &Value, out: &mut String);

    /// Appends the end of the answer, after [`Self::begin`].
    fn end(&mut self, ending: Ending, out: &mut String);

    /// Appends the error that ends the answer.
    fn error(&mut self, error: &ErrorReply, out: &mut String);

    /// Appends the last frame.
    fn done(&mut self, out: &mut String);

    /// Returns the JSON of the reply in one piece.
    fn whole(self: Box<Self>, message: Message, ending: Ending) -> String;
}

/// What a writer must know of an answer before its first piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerFacts {
    /// Name of the model.
    pub model: String,
    /// Tokens of the prompt; 0 if they were not counted.
    pub prompt_tokens: u64,
    /// Whether the prompt ends inside the model's thinking, so that the answer begins there.
    pub is_thinking: bool,
}

impl AnswerFacts {
    /// Makes the facts of an answer of this model whose prompt was not counted.
    pub fn of(model: impl Into<String>) -> AnswerFacts {
        AnswerFacts { model: model.into(), prompt_tokens: 0, is_thinking: false }
    }
}

/// Makes the writer of one answer, once what it must know is known.
pub struct NewWriter(Box<dyn FnOnce(AnswerFacts) -> Box<dyn AnswerWriter> + Send>);

impl NewWriter {
    /// Makes the writer.
    pub fn with(self, facts: AnswerFacts) -> Box<dyn AnswerWriter> {
        (self.0)(facts)
    }
}

impl fmt::Debug for NewWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewWriter").finish_non_exhaustive()
    }
}

/// Reads a request of one of the dialects.
///
/// # Errors
/// [`FieldError`] with the name of the wrong field.
pub type Read = fn(&[u8], &Capabilities) -> Result<Work, FieldError>;

/// What a request asks for.
#[derive(Debug)]
pub enum Work {
    /// An answer.
    Answer(Box<Asked>),
    /// Nothing but to know that this model is there.
    Nothing {
        /// Name of the model.
        model: String,
        /// The JSON of the reply.
        reply: String,
        /// Whether the model should leave the memory, not come into it.
        unloads: bool,
    },
}

/// A request for an answer, and the form in which the answer is sent.
#[derive(Debug)]
pub struct Asked {
    /// The request, the same in all dialects.
    pub request: ChatRequest,
    /// The dialect of the reply.
    pub dialect: Dialect,
    /// Whether the writer wants to know the number of the prompt's tokens.
    pub counts_prompt: bool,
    /// Tokens of prompt and answer together that the client wants to have room for.
    pub context_min: Option<u64>,
    /// Makes the writer of the answer.
    pub writer: NewWriter,
}

impl Asked {
    /// Makes a request whose answer is written by what `make` returns.
    pub(crate) fn new(
        request: ChatRequest,
        dialect: Dialect,
        make: impl FnOnce(AnswerFacts) -> Box<dyn AnswerWriter> + Send + 'static,
    ) -> Asked {
        let writer = NewWriter(Box::new(make));
        Asked { request, dialect, counts_prompt: false, context_min: None, writer }
    }
}

impl From<Asked> for Work {
    fn from(asked: Asked) -> Work {
        Work::Answer(Box::new(asked))
    }
}
