//! An answer in one piece, and the parts that it is made of.
//!
//! Always: the parts of a stream, put together, are the whole answer. Each call has its own id. The text of a
//! call is never shown as content.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use baton_protocol::EndReason;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::logprobs::{LogprobsBody, Place};
use crate::text_reply::{TextChoice, TextCompletion, TextLogprobs};
use crate::thinking::ThinkSplitter;
use crate::tool_calls::ToolPiece;
use crate::usage::Usage;

/// Hexadecimal digits of a call's id.
const CALL_ID_DIGITS: usize = 24;

/// Which of the two APIs a reply belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    /// Chat completions.
    Chat,
    /// Text completions.
    Text,
}

/// The fields that are the same in every part of one reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub(crate) api: Api,
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
}

impl Head {
    /// Makes the head of a new reply from this model, with a new id and the current time.
    pub fn new(model: impl Into<String>) -> Head {
        Head::of(Api::Chat, model.into())
    }

    /// Makes the head of a new text completion.
    pub fn text(model: impl Into<String>) -> Head {
        Head::of(Api::Text, model.into())
    }

    fn of(api: Api, model: String) -> Head {
        let kind = match api {
            Api::Chat => "chatcmpl",
            Api::Text => "cmpl",
        };
        Head { api, id: format!("{kind}-{}", Uuid::new_v4().simple()), created: now_seconds(), model }
    }
}

/// Returns the seconds since 1970.
pub(crate) fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// One part of an answer.
#[derive(Debug, Clone)]
pub enum Piece {
    /// Text for the reader.
    Text {
        /// The text.
        text: String,
        /// Log probabilities of the token that produced it, if they are sent.
        logprobs: Option<Place>,
    },
    /// Thinking before the answer; the writer of the dialect separates it from the text.
    Thinking(String),
    /// A call begins.
    Call {
        /// Its index among the answer's calls, from 0.
        index: usize,
        /// Its id.
        id: String,
        /// Name of the function.
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

impl Piece {
    /// Makes a part of text without log probabilities.
    pub fn text(text: impl Into<String>) -> Piece {
        Piece::Text { text: text.into(), logprobs: None }
    }

    /// Returns where the log probabilities of a part of text stand.
    pub(crate) fn logprobs_mut(&mut self) -> Option<&mut Option<Place>> {
        match self {
            Piece::Text { logprobs, .. } => Some(logprobs),
            _ => None,
        }
    }

    /// Returns the bytes of its text, if it is text for the reader.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Piece::Text { text, .. } => text.len(),
            Piece::Thinking(_) | Piece::Call { .. } | Piece::Arguments { .. } => 0,
        }
    }

    /// Returns whether it adds nothing.
    pub fn is_empty(&self) -> bool {
        match self {
            Piece::Text { text, logprobs } => text.is_empty() && logprobs.is_none(),
            Piece::Thinking(text) | Piece::Arguments { text, .. } => text.is_empty(),
            Piece::Call { .. } => false,
        }
    }
}

/// Converts a part that the parser found, and gives each call its id.
impl From<ToolPiece> for Piece {
    fn from(piece: ToolPiece) -> Piece {
        match piece {
            ToolPiece::Text(text) => Piece::text(text),
            ToolPiece::Call { index, name } => {
                let id = Uuid::new_v4().simple().to_string();
                Piece::Call { index, id: format!("call_{}", &id[..CALL_ID_DIGITS]), name }
            }
            ToolPiece::Arguments { index, text } => Piece::Arguments { index, text },
        }
    }
}

/// Why an answer ended. Only OpenAI's own values, because clients fail on others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// It is complete.
    Stop,
    /// It reached its limit of tokens.
    Length,
    /// It is complete and calls tools.
    ToolCalls,
}

impl FinishReason {
    /// Returns the reason for an answer that has this many calls.
    pub fn of(reason: EndReason, calls: usize) -> FinishReason {
        match reason {
            EndReason::Stop if calls > 0 => FinishReason::ToolCalls,
            EndReason::Stop => FinishReason::Stop,
            EndReason::Cap | EndReason::Cancelled => FinishReason::Length,
        }
    }
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ending {
    /// Why.
    pub finish_reason: FinishReason,
    /// The stop string that ended it, if one did and it is known.
    pub stop: Option<String>,
    /// Number of tokens that it used.
    pub usage: Usage,
    /// How long it took, if that was measured.
    pub times: Times,
    /// Content of Baton's own field `baton`, if any.
    pub baton: Option<Value>,
}

/// How long an answer took; zero if it was not measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// From the request to the end.
    pub total: Duration,
    /// From the beginning of the work to the first token.
    pub prompt: Duration,
    /// From the first token to the last.
    pub answer: Duration,
}

impl Ending {
    /// Makes an end of which no more is known.
    pub fn new(finish_reason: FinishReason, usage: impl Into<Usage>) -> Ending {
        Ending { finish_reason, stop: None, usage: usage.into(), times: Times::default(), baton: None }
    }
}

/// The parts of an answer, put together.
#[derive(Debug, Default)]
pub struct Message {
    pub(crate) content: String,
    pub(crate) calls: Vec<Call>,
    places: Vec<Place>,
    /// The thinking, once it is separated from the content.
    thinking: String,
}

impl Message {
    /// Adds the next parts.
    pub fn take(&mut self, pieces: impl IntoIterator<Item = Piece>) {
        for piece in pieces {
            match piece {
                Piece::Text { text, logprobs } => {
                    self.content.push_str(&text);
                    self.places.extend(logprobs);
                }
                Piece::Thinking(text) => self.content.push_str(&text),
                Piece::Call { id, name, .. } => {
                    let function = CalledFunction { name, arguments: String::new() };
                    self.calls.push(Call { id, kind: "function", function });
                }
                Piece::Arguments { text, .. } => {
                    if let Some(call) = self.calls.last_mut() {
                        call.function.arguments.push_str(&text);
                    }
                }
            }
        }
    }

    /// Separates the thinking from the content.
    pub(crate) fn split(mut self, mut splitter: ThinkSplitter) -> Message {
        let mut pieces = splitter.split(Piece::text(std::mem::take(&mut self.content)));
        pieces.extend(splitter.finish());
        for piece in pieces {
            match piece {
                Piece::Thinking(text) => self.thinking.push_str(&text),
                Piece::Text { text, .. } => self.content.push_str(&text),
                Piece::Call { .. } | Piece::Arguments { .. } => (),
            }
        }
        self
    }

    /// Returns the parts again: the text, then each call.
    pub(crate) fn into_pieces(self) -> impl Iterator<Item = Piece> {
        let call = |(index, call): (usize, Call)| {
            let CalledFunction { name, arguments } = call.function;
            [Piece::Call { index, id: call.id, name }, Piece::Arguments { index, text: arguments }]
        };
        [Piece::text(self.content)].into_iter().chain(self.calls.into_iter().enumerate().flat_map(call))
    }

    /// Makes the reply in one piece.
    pub fn into_completion(self, head: Head, ending: Ending) -> Completion {
        match head.api {
            Api::Chat => Completion::Chat(self.into_chat(head, ending)),
            Api::Text => Completion::Text(self.into_text(&head, ending)),
        }
    }

    fn into_text(self, head: &Head, ending: Ending) -> TextCompletion {
        let logprobs = TextLogprobs::of(self.places, &mut 0);
        TextCompletion {
            choices: vec![TextChoice::new(self.content, logprobs, Some(ending.finish_reason))],
            usage: Some(Some(ending.usage)),
            baton: ending.baton,
            ..TextCompletion::bare(head)
        }
    }

    fn into_chat(self, head: Head, ending: Ending) -> ChatCompletion {
        let Message { content, calls, places, thinking } = self;
        let reasoning_content = Some(thinking).filter(|thinking| !thinking.is_empty());
        let content = Some(content).filter(|content| !content.is_empty() || calls.is_empty());
        let tool_calls = Some(calls).filter(|calls| !calls.is_empty());
        let choice = Choice {
            index: 0,
            message: AnswerMessage { role: ASSISTANT, content, reasoning_content, refusal: (), tool_calls },
            logprobs: LogprobsBody::of(places),
            finish_reason: ending.finish_reason,
        };
        ChatCompletion {
            id: head.id,
            object: "chat.completion",
            created: head.created,
            model: head.model,
            choices: vec![choice],
            usage: ending.usage,
            baton: ending.baton,
        }
    }
}

/// The role of an answer.
pub(crate) const ASSISTANT: &str = "assistant";

/// A whole answer of one of the two APIs.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Completion {
    /// To a conversation.
    Chat(ChatCompletion),
    /// To a text.
    Text(TextCompletion),
}

/// A whole answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    /// Id of the answer, the same in every part.
    id: String,
    /// `chat.completion`.
    #[schema(value_type = String)]
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    /// Name of the model.
    model: String,
    /// Always one.
    choices: Vec<Choice>,
    /// Number of tokens that it used.
    usage: Usage,
    /// Baton's own field: data of the assist protocol if the request had `baton`, or notes from a device
    /// agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    baton: Option<Value>,
}

/// The answer.
#[derive(Debug, Serialize, ToSchema)]
struct Choice {
    /// 0.
    index: u32,
    /// The message.
    message: AnswerMessage,
    /// Log probabilities, if they were requested.
    logprobs: Option<LogprobsBody>,
    /// Why it ended.
    finish_reason: FinishReason,
}

/// The model's message.
#[derive(Debug, Serialize, ToSchema)]
struct AnswerMessage {
    /// `assistant`.
    #[schema(value_type = String)]
    role: &'static str,
    /// The text; null if there are calls and no text.
    content: Option<String>,
    /// The thinking before the text, if there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    /// Always null.
    #[schema(value_type = Option<String>)]
    refusal: (),
    /// The functions that it calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Vec<Call>>,
}

/// A call of a function.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Call {
    /// Id of the call.
    pub(crate) id: String,
    /// `function`.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    kind: &'static str,
    /// The function that is called, and its arguments.
    pub(crate) function: CalledFunction,
}

/// A function and its arguments.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CalledFunction {
    /// Its name.
    pub(crate) name: String,
    /// The arguments, JSON as text.
    pub(crate) arguments: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::logprobs::tests::place;

    fn ending(finish_reason: FinishReason) -> Ending {
        let usage = baton_protocol::Usage { prompt_tokens: 7, cached_prefix_tokens: 4, completion_tokens: 2 };
        Ending::new(finish_reason, usage)
    }

    fn whole(pieces: Vec<Piece>, ending: Ending) -> Value {
        let mut message = Message::default();
        message.take(pieces);
        serde_json::to_value(message.into_completion(Head::new("m"), ending)).unwrap()
    }

    #[test]
    fn a_text_has_every_key_that_clients_read() {
        let reply = whole(vec![Piece::text("Hel"), Piece::text("lo")], ending(FinishReason::Length));
        let choice = json!({ "index": 0, "logprobs": null, "finish_reason": "length",
            "message": { "role": "assistant", "content": "Hello", "refusal": null } });
        assert_eq!(reply["choices"], json!([choice]));
        let usage = json!({ "prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9,
            "prompt_tokens_details": { "cached_tokens": 4 } });
        assert_eq!(
            (&reply["usage"], &reply["object"], &reply["model"]),
            (&usage, &json!("chat.completion"), &json!("m"))
        );
        assert!(reply["id"].as_str().unwrap().starts_with("chatcmpl-") && reply["created"].is_u64());
        assert!(reply.get("baton").is_none());
        let empty = whole(Vec::new(), ending(FinishReason::Stop));
        assert_eq!(empty["choices"][0]["message"]["content"], "", "no text is an empty text");
    }

    #[test]
    fn calls_come_without_content() {
        let pieces = [
            ToolPiece::Call { index: 0, name: "f".into() },
            ToolPiece::Arguments { index: 0, text: "{\"a\"".into() },
            ToolPiece::Arguments { index: 0, text: ":1}".into() },
            ToolPiece::Call { index: 1, name: "g".into() },
        ];
        let pieces: Vec<Piece> = pieces.into_iter().map(Piece::from).collect();
        let reply = whole(pieces, ending(FinishReason::of(EndReason::Stop, 2)));
        let choice = &reply["choices"][0];
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&Value::Null, &json!("tool_calls"))
        );
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls[0]["function"], json!({ "name": "f", "arguments": "{\"a\":1}" }));
        assert_eq!((&calls[1]["type"], calls.len()), (&json!("function"), 2));
        let ids: Vec<&str> = calls.iter().map(|call| call["id"].as_str().unwrap()).collect();
        assert!(ids[0].starts_with("call_") && ids[0].len() == 29 && ids[0] != ids[1]);
    }

    #[test]
    fn log_probabilities_of_all_parts_are_put_together() {
        let piece = |text: &str| Piece::Text { text: text.to_owned(), logprobs: Some(place(&[0])) };
        let reply = whole(vec![piece("a"), piece("")], ending(FinishReason::Stop));
        let logprobs = &reply["choices"][0]["logprobs"];
        assert_eq!((logprobs["content"].as_array().unwrap().len(), &logprobs["refusal"]), (2, &Value::Null));
    }

    #[test]
    fn an_answer_ends_for_one_of_openais_reasons() {
        for (reason, calls, want) in [
            (EndReason::Stop, 0, FinishReason::Stop),
            (EndReason::Stop, 1, FinishReason::ToolCalls),
            (EndReason::Cap, 1, FinishReason::Length),
            (EndReason::Cancelled, 0, FinishReason::Length),
        ] {
            assert_eq!(FinishReason::of(reason, calls), want);
        }
    }
}
