//! From the events of an answer to the parts of a chat completion: text, calls, log probabilities, Baton's own field.
//!
//! Always: the parts of a stream, put together, are the whole reply; ids of calls are unique; text of a call is never
//! shown as content.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::response::{IntoResponse, Response};
use baton_engine::Model;
use baton_engine::tokenizer::Tokenizer;
use baton_protocol::{AssistEvent, EndEvent, EndReason, FirstEvent, MaskEvent, Usage};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::sync::Arc;
use uuid::Uuid;

use super::super::chat_request::ChatWork;
use crate::logprobs::{Logprobs, PlaceLogprobs, TokenLogprob};
use crate::tools::{ToolForm, ToolParser, ToolPiece};

/// What is the same in every part of one reply.
#[derive(Debug)]
pub(super) struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    pub(super) fn new(model: &str) -> Head {
        Head {
            id: format!("chatcmpl-{}", Uuid::new_v4().simple()),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            model: model.to_owned(),
        }
    }

    pub(super) fn object(&self, kind: &str, choices: Value) -> Value {
        json!({ "id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices })
    }
}

/// One part of the answer.
#[derive(Debug)]
pub(super) enum Piece {
    Text { text: String, logprobs: Option<Place> },
    Call { index: usize, id: String, name: String },
    Arguments { index: usize, text: String },
}

impl Piece {
    /// The delta of a chunk and the log probabilities beside it.
    pub(super) fn into_delta(self) -> (Value, Value) {
        match self {
            Piece::Text { text, logprobs } => (
                json!({ "content": text }),
                logprobs.map_or(Value::Null, |place| json!(Content::of(&[place]))),
            ),
            Piece::Call { index, id, name } => {
                let function = json!({ "name": name, "arguments": "" });
                let call = json!({ "index": index, "id": id, "type": "function", "function": function });
                (json!({ "tool_calls": [call] }), Value::Null)
            }
            Piece::Arguments { index, text } => {
                let call = json!({ "index": index, "function": { "arguments": text } });
                (json!({ "tool_calls": [call] }), Value::Null)
            }
        }
    }
}

/// Log probabilities of one place, written out when they are sent: as values they take a hundred times as much.
#[derive(Debug, Clone)]
pub(super) struct Place {
    tokenizer: Arc<Tokenizer>,
    logprobs: PlaceLogprobs,
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = |&token: &TokenLogprob| WrittenToken::new(&self.tokenizer, token);
        let mut place = serializer.serialize_struct("Place", 4)?;
        let WrittenToken { token, logprob, bytes } = written(&self.logprobs.chosen);
        place.serialize_field("token", &token)?;
        place.serialize_field("logprob", &logprob)?;
        place.serialize_field("bytes", bytes)?;
        let top: Vec<WrittenToken<'_>> = self.logprobs.top.iter().map(written).collect();
        place.serialize_field("top_logprobs", &top)?;
        place.end()
    }
}

/// A token as OpenAI writes it; JSON has no infinity, for which -9999 is the custom.
#[derive(Debug, Serialize)]
struct WrittenToken<'a> {
    token: Cow<'a, str>,
    logprob: f64,
    bytes: &'a [u8],
}

impl<'a> WrittenToken<'a> {
    fn new(tokenizer: &'a Tokenizer, TokenLogprob { id, logprob }: TokenLogprob) -> WrittenToken<'a> {
        let bytes = tokenizer.token_bytes(id);
        let logprob = if logprob.is_finite() { f64::from(logprob) } else { -9999.0 };
        WrittenToken { token: String::from_utf8_lossy(bytes), logprob, bytes }
    }
}

/// Log probabilities of an answer or a chunk.
#[derive(Debug, Serialize)]
struct Content<'a> {
    content: &'a [Place],
    refusal: (),
}

impl<'a> Content<'a> {
    fn of(places: &'a [Place]) -> Content<'a> {
        Content { content: places, refusal: () }
    }
}

/// The reply in one piece.
#[derive(Debug, Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: [Choice<'a>; 1],
    usage: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    baton: Option<Value>,
}

/// The one answer of it.
#[derive(Debug, Serialize)]
struct Choice<'a> {
    index: u32,
    finish_reason: &'static str,
    logprobs: Option<Content<'a>>,
    message: Value,
}

/// Turns events into parts.
#[derive(Debug)]
pub(super) struct Reply {
    tokenizer: Arc<Tokenizer>,
    parser: Option<ToolParser>,
    logprobs: Option<Logprobs>,
    /// The caller asked for what the assist protocol says; then, what it said.
    baton: Option<Baton>,
}

#[derive(Debug, Default)]
struct Baton {
    mask: Option<MaskEvent>,
    first: Option<Box<FirstEvent>>,
}

impl Reply {
    pub(super) fn new(model: &Model, work: &ChatWork) -> Reply {
        let tokenizer = model.tokenizer().clone();
        match work {
            ChatWork::Assisted(..) => {
                Reply { tokenizer, parser: None, logprobs: None, baton: Some(Baton::default()) }
            }
            ChatWork::Whole(completion) => {
                let parser = completion.tools.as_ref().map(|tools| {
                    let names = tools.tools.iter().map(|tool| tool.name.clone());
                    ToolParser::new(ToolForm::of(model.template()).markup, names)
                });
                Reply { tokenizer, parser, logprobs: completion.logprobs.clone(), baton: None }
            }
        }
    }

    /// Calls that have begun.
    pub(super) fn calls(&self) -> usize {
        self.parser.as_ref().map_or(0, ToolParser::calls)
    }

    /// The parts that an event adds.
    pub(super) fn pieces(&mut self, event: &AssistEvent) -> Vec<Piece> {
        let text = match event {
            AssistEvent::Mask(mask) => {
                if let Some(baton) = &mut self.baton {
                    baton.mask = Some(mask.clone());
                }
                return Vec::new();
            }
            AssistEvent::First(first) => {
                if let Some(baton) = &mut self.baton {
                    baton.first = Some(first.clone());
                }
                &first.text
            }
            AssistEvent::Token(token) => &token.text,
            AssistEvent::End(_) => {
                let held = self.parser.as_mut().map(ToolParser::finish).unwrap_or_default();
                return held.into_iter().map(piece).collect();
            }
            AssistEvent::Progress(_) | AssistEvent::Error(_) => return Vec::new(),
        };
        let place = self.logprobs.as_ref().and_then(Logprobs::take);
        let place = place.map(|logprobs| Place { tokenizer: self.tokenizer.clone(), logprobs });
        let mut pieces: Vec<Piece> = match &mut self.parser {
            Some(parser) => parser.push(text).into_iter().map(piece).collect(),
            None => vec![Piece::Text { text: text.clone(), logprobs: None }],
        };
        if let Some(place) = place {
            // Every token has its entry, also one whose text is held back or part of a call.
            match pieces.iter_mut().find_map(|piece| match piece {
                Piece::Text { logprobs, .. } => Some(logprobs),
                _ => None,
            }) {
                Some(logprobs) => *logprobs = Some(place),
                None => pieces.insert(0, Piece::Text { text: String::new(), logprobs: Some(place) }),
            }
        }
        pieces.retain(|piece| !matches!(piece, Piece::Text { text, logprobs: None } if text.is_empty()));
        pieces
    }

    /// What the assist protocol says of the answer, for callers that asked; with its end, where it is there.
    pub(super) fn baton(&self, end: Option<&EndEvent>) -> Option<Value> {
        let Baton { mask, first } = self.baton.as_ref()?;
        let mut value = match first {
            None => json!({}),
            Some(first) => json!({
                "protocol": first.protocol,
                "scene_version": first.scene_version,
                "assist_tokens": first.assist_tokens,
                "assist_bound_by": first.assist_bound_by,
                "tau_ms": first.tau_ms,
                "corrector": first.corrector,
                "tokenizer_sha256": first.tokenizer_sha256,
                "timing": first.timing,
            }),
        };
        value["mask"] = json!(mask);
        if let Some(handoff) = end.and_then(|end| self.handoff(end)) {
            value["handoff"] = handoff;
        }
        Some(value)
    }

    /// Where the caller goes on, once L is reached.
    pub(super) fn handoff(&self, end: &EndEvent) -> Option<Value> {
        self.baton.as_ref().filter(|_| end.reason == EndReason::Cap)?;
        Some(json!({ "reason": "cap", "next_index": end.usage.completion_tokens }))
    }
}

fn piece(piece: ToolPiece) -> Piece {
    match piece {
        ToolPiece::Text(text) => Piece::Text { text, logprobs: None },
        ToolPiece::Call { index, name } => {
            let id = Uuid::new_v4().simple().to_string();
            Piece::Call { index, id: format!("call_{}", &id[..24]), name }
        }
        ToolPiece::Arguments { index, text } => Piece::Arguments { index, text },
    }
}

/// The parts put together.
#[derive(Debug, Default)]
pub(super) struct Message {
    content: String,
    calls: Vec<(String, String, String)>,
    places: Vec<Place>,
}

impl Message {
    pub(super) fn take(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Text { text, logprobs } => {
                    self.content.push_str(&text);
                    self.places.extend(logprobs);
                }
                Piece::Call { id, name, .. } => self.calls.push((id, name, String::new())),
                Piece::Arguments { text, .. } => {
                    if let Some((_, _, arguments)) = self.calls.last_mut() {
                        arguments.push_str(&text);
                    }
                }
            }
        }
    }

    /// The reply that is this message, after its end.
    pub(super) fn whole(mut self, head: &Head, reply: &Reply, end: &EndEvent) -> Response {
        let places = std::mem::take(&mut self.places);
        let choice = Choice {
            index: 0,
            finish_reason: finish_reason(end.reason, reply.calls()),
            logprobs: (!places.is_empty()).then(|| Content::of(&places)),
            message: self.into_json(),
        };
        let whole = Completion {
            id: &head.id,
            object: "chat.completion",
            created: head.created,
            model: &head.model,
            choices: [choice],
            usage: usage(end.usage),
            baton: reply.baton(Some(end)),
        };
        Json(whole).into_response()
    }

    fn into_json(self) -> Value {
        let content =
            if self.content.is_empty() && !self.calls.is_empty() { Value::Null } else { self.content.into() };
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if !self.calls.is_empty() {
            let call = |(id, name, arguments): (String, String, String)| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
            message["tool_calls"] = self.calls.into_iter().map(call).collect();
        }
        message
    }
}

/// One of OpenAI's reasons: clients break on others.
pub(super) fn finish_reason(reason: EndReason, calls: usize) -> &'static str {
    match reason {
        EndReason::Stop if calls > 0 => "tool_calls",
        EndReason::Stop => "stop",
        EndReason::Cap | EndReason::Cancelled => "length",
    }
}

pub(super) fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_prefix_tokens },
    })
}
