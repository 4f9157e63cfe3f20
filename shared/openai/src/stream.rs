//! An answer as a stream of server-sent events: the frames, written once for both programs.
//!
//! Always: the first chunk of a chat has the role, the last chunk with a choice has the finish reason, and
//! `data: [DONE]` is the last frame. Comments contain nothing that a client needs. Events have no names,
//! because clients of this API expect none.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::capabilities::Capabilities;
use crate::dialect::Dialect;
use crate::error::{ErrorReply, FieldError};
use crate::logprobs::LogprobsBody;
use crate::reply::{ASSISTANT, Api, Ending, FinishReason, Head, Message, Piece};
use crate::request::{ChatRequest, Prompt, parse, parse_text};
use crate::text_reply::{TextChoice, TextCompletion, TextLogprobs};
use crate::thinking::ThinkSplitter;
use crate::usage::Usage;
use crate::writer::{AnswerFacts, AnswerWriter, Asked, Headers, Work};

/// The HTTP headers of a stream; the last one tells proxies not to buffer it.
pub const HEADERS: Headers =
    &[("content-type", "text/event-stream"), ("cache-control", "no-cache"), ("x-accel-buffering", "no")];

/// A comment that keeps a silent connection open.
pub const PING: &str = ": ping\n\n";

/// What a stream contains besides the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamWishes {
    /// Token counts, in a chunk after the end.
    pub usage: bool,
    /// Progress of the prompt, in chunks without choices.
    pub progress: bool,
}

/// Writes the frames of one answer.
#[derive(Debug)]
pub struct ChunkWriter {
    head: Head,
    wishes: StreamWishes,
    begun: bool,
    /// Separates the thinking of a chat from its answer.
    splitter: Option<ThinkSplitter>,
    /// Bytes of the text so far that are no content: the thinking, its tags, and the white space around it.
    passed_over: usize,
    /// Characters of all tokens with log probabilities so far, for text completions.
    offset: usize,
}

impl ChunkWriter {
    /// Makes a writer for a new answer. `is_thinking` says that it begins inside the model's thinking.
    pub fn new(head: Head, wishes: StreamWishes, is_thinking: bool) -> ChunkWriter {
        let splitter = (head.api == Api::Chat).then(|| ThinkSplitter::new(is_thinking));
        ChunkWriter { head, wishes, begun: false, splitter, passed_over: 0, offset: 0 }
    }

    fn chunk(
        &self,
        delta: Delta,
        logprobs: Option<LogprobsBody>,
        finish_reason: Option<FinishReason>,
    ) -> ChatCompletionChunk {
        let choice = ChunkChoice { index: 0, delta, logprobs, finish_reason };
        ChatCompletionChunk { choices: vec![choice], ..self.bare() }
    }

    fn put_pieces(&mut self, pieces: Vec<Piece>, out: &mut String) {
        for piece in pieces {
            self.passed_over = self.passed_over.saturating_sub(piece.text_bytes());
            let (delta, logprobs) = delta(piece);
            put(&self.chunk(delta, logprobs, None), out);
        }
    }

    fn text_chunk(&self, choice: TextChoice) -> TextCompletion {
        TextCompletion { choices: vec![choice], ..self.bare_text() }
    }

    fn bare_text(&self) -> TextCompletion {
        TextCompletion { usage: self.wishes.usage.then_some(None), ..TextCompletion::bare(&self.head) }
    }

    /// Makes a chunk without choices. If usage is sent at the end, `usage` is null in all earlier chunks.
    fn bare(&self) -> ChatCompletionChunk {
        ChatCompletionChunk {
            id: self.head.id.clone(),
            object: "chat.completion.chunk",
            created: self.head.created,
            model: self.head.model.clone(),
            choices: Vec::new(),
            usage: self.wishes.usage.then_some(None),
            baton: None,
            x_progress: None,
        }
    }
}

impl AnswerWriter for ChunkWriter {
    fn headers(&self) -> Headers {
        HEADERS
    }

    fn ping(&self) -> String {
        PING.to_owned()
    }

    fn is_begun(&self) -> bool {
        self.begun
    }

    /// Appends the first chunk, which has the role and Baton's own field. A text completion has no such
    /// chunk.
    fn begin(&mut self, baton: Option<Value>, out: &mut String) {
        if self.begun {
            return;
        }
        self.begun = true;
        if self.head.api == Api::Text {
            return;
        }
        let delta = Delta {
            role: Some(ASSISTANT),
            content: Some(String::new()),
            reasoning_content: None,
            refusal: Some(()),
            tool_calls: None,
        };
        let mut chunk = self.chunk(delta, None, None);
        chunk.baton = baton;
        put(&chunk, out);
    }

    fn piece(&mut self, piece: Piece, out: &mut String) {
        match &mut self.splitter {
            Some(splitter) => {
                self.passed_over += piece.text_bytes();
                let pieces = splitter.split(piece);
                self.put_pieces(pieces, out);
            }
            None => {
                // Answers of this API call no tools, and their thinking is text.
                let Piece::Text { text, logprobs } = piece else { return };
                let logprobs = TextLogprobs::of(logprobs, &mut self.offset);
                put(&self.text_chunk(TextChoice::new(text, logprobs, None)), out);
            }
        }
    }

    /// Appends the last chunk, and the token counts if they were requested.
    fn end(&mut self, ending: Ending, out: &mut String) {
        if self.head.api == Api::Text {
            let last = self.text_chunk(TextChoice::new(String::new(), None, Some(ending.finish_reason)));
            put(&TextCompletion { baton: ending.baton, ..last }, out);
            if self.wishes.usage {
                put(&TextCompletion { usage: Some(Some(ending.usage)), ..self.bare_text() }, out);
            }
            return;
        }
        let held = self.splitter.as_mut().map(ThinkSplitter::finish).unwrap_or_default();
        self.put_pieces(held, out);
        let mut last = self.chunk(Delta::default(), None, Some(ending.finish_reason));
        last.baton = ending.baton.map(|baton| citing_content(baton, self.passed_over));
        put(&last, out);
        if self.wishes.usage {
            put(&ChatCompletionChunk { usage: Some(Some(ending.usage)), ..self.bare() }, out);
        }
    }

    fn error(&mut self, error: &ErrorReply, out: &mut String) {
        put(error, out);
    }

    /// Appends a comment, which every client skips, and a chunk if it was requested.
    fn progress(&mut self, progress: &Value, out: &mut String) {
        out.push_str(": progress ");
        out.push_str(&progress.to_string());
        out.push_str("\n\n");
        match self.head.api {
            _ if !self.wishes.progress => (),
            Api::Chat => {
                put(&ChatCompletionChunk { x_progress: Some(progress.clone()), ..self.bare() }, out);
            }
            Api::Text => {
                put(&TextCompletion { x_progress: Some(progress.clone()), ..self.bare_text() }, out);
            }
        }
    }

    /// Appends `data: [DONE]`.
    fn done(&mut self, out: &mut String) {
        out.push_str("data: [DONE]\n\n");
    }

    fn whole(self: Box<Self>, mut message: Message, mut ending: Ending) -> String {
        if let Some(splitter) = self.splitter {
            let text_bytes = message.content.len();
            message = message.split(splitter);
            let passed_over = text_bytes - message.content.len();
            ending.baton = ending.baton.map(|baton| citing_content(baton, passed_over));
        }
        serde_json::to_string(&message.into_completion(self.head, ending)).expect(STRING_KEYS)
    }
}

/// Returns the field `baton` with citations that count from the beginning of the content, which follows
/// `passed_over` bytes of the answer. Sentences of the thinking are not cited.
fn citing_content(mut baton: Value, passed_over: usize) -> Value {
    let citations = baton.get_mut("citations").and_then(Value::as_array_mut);
    if let Some(citations) = citations.filter(|_| passed_over > 0) {
        citations.retain_mut(|citation| {
            let ends = citation["answer"].as_array_mut();
            ends.is_some_and(|ends| {
                ends.iter_mut().all(|end| match end.as_u64() {
                    Some(at) if at >= passed_over as u64 => {
                        *end = Value::from(at - passed_over as u64);
                        true
                    }
                    _ => false,
                })
            })
        });
    }
    baton
}

/// Reads a request of the chat API.
///
/// # Errors
/// [`FieldError`] with the name of the wrong field.
pub fn read_chat(json: &[u8], can: &Capabilities) -> Result<Work, FieldError> {
    parse(json, can).map(asked)
}

/// Reads a request of the text completion API.
///
/// # Errors
/// [`FieldError`] with the name of the wrong field.
pub fn read_text(json: &[u8], can: &Capabilities) -> Result<Work, FieldError> {
    parse_text(json, can).map(asked)
}

fn asked(request: ChatRequest) -> Work {
    let wishes = StreamWishes { usage: request.include_usage, progress: request.include_progress };
    let is_chat = matches!(request.prompt, Prompt::Chat(_));
    let make = move |facts: AnswerFacts| -> Box<dyn AnswerWriter> {
        let head = if is_chat { Head::new(facts.model) } else { Head::text(facts.model) };
        Box::new(ChunkWriter::new(head, wishes, facts.is_thinking))
    };
    Asked::new(request, Dialect::OpenAi, make).into()
}

const STRING_KEYS: &str = "replies have string keys only";

fn put(value: &impl Serialize, out: &mut String) {
    out.push_str("data: ");
    out.push_str(&serde_json::to_string(value).expect(STRING_KEYS));
    out.push_str("\n\n");
}

/// Converts a part to the delta of a chunk, and its log probabilities.
fn delta(piece: Piece) -> (Delta, Option<LogprobsBody>) {
    let call = |call: CallDelta| Delta { tool_calls: Some(vec![call]), ..Delta::default() };
    match piece {
        Piece::Text { text, logprobs } => {
            let delta = Delta { content: Some(text), ..Delta::default() };
            (delta, logprobs.and_then(|place| LogprobsBody::of(vec![place])))
        }
        Piece::Thinking(text) => (Delta { reasoning_content: Some(text), ..Delta::default() }, None),
        Piece::Call { index, id, name } => {
            let function = FunctionDelta { name: Some(name), arguments: String::new() };
            (call(CallDelta { index, id: Some(id), kind: Some("function"), function }), None)
        }
        Piece::Arguments { index, text } => {
            let function = FunctionDelta { name: None, arguments: text };
            (call(CallDelta { index, id: None, kind: None, function }), None)
        }
    }
}

/// A part of a streamed answer: the `data:` of an event.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletionChunk {
    /// Id of the answer, the same in every part.
    id: String,
    /// `chat.completion.chunk`.
    #[schema(value_type = String)]
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    /// Name of the model.
    model: String,
    /// One choice; empty in a chunk with token counts or with progress.
    choices: Vec<ChunkChoice>,
    /// Token counts, if they were requested: in the last chunk, and null in all others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    usage: Option<Option<Usage>>,
    /// Baton's own field. If the request had `baton`: in the first chunk, and at the end if L is reached.
    /// From a device agent: notes, at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    baton: Option<Value>,
    /// Progress of the prompt, if `stream_options.include_progress` is set: `stage` (`queue` or `prefill`),
    /// `computed` and `total` prompt tokens, and `eta_ms` if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    x_progress: Option<Value>,
}

/// A part of the answer.
#[derive(Debug, Serialize, ToSchema)]
struct ChunkChoice {
    /// 0.
    index: u32,
    /// What this chunk adds.
    delta: Delta,
    /// Log probabilities, if they were requested.
    logprobs: Option<LogprobsBody>,
    /// Why the answer ended, in the last part.
    finish_reason: Option<FinishReason>,
}

/// What a chunk adds.
#[derive(Debug, Default, Serialize, ToSchema)]
struct Delta {
    /// `assistant`, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    role: Option<&'static str>,
    /// More text.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    /// More of the thinking before the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    /// Null, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    refusal: Option<()>,
    /// A call, or more of its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Vec<CallDelta>>,
}

/// A call, or more of its arguments.
#[derive(Debug, Serialize, ToSchema)]
struct CallDelta {
    /// Its index among the answer's calls, from 0.
    index: usize,
    /// Id of the call, in its first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// `function`, in its first part.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    kind: Option<&'static str>,
    /// The function that is called, and its arguments.
    function: FunctionDelta,
}

/// A function, or more of its arguments.
#[derive(Debug, Serialize, ToSchema)]
struct FunctionDelta {
    /// Its name, in the first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The next part of the arguments, JSON as text.
    arguments: String,
}

#[cfg(test)]
mod tests;
