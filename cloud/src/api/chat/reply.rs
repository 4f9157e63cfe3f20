//! From the events of an answer to the parts of a chat completion: text, calls, log probabilities, Baton's own field.
//!
//! Always: the parts of a stream, put together, are the whole reply; ids of calls are unique; text of a call is never
//! shown as content.

use std::time::{SystemTime, UNIX_EPOCH};

use baton_engine::Model;
use baton_engine::tokenizer::Tokenizer;
use baton_protocol::{AssistEvent, EndEvent, EndReason, FirstEvent, MaskEvent, Usage};
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
    Text { text: String, logprobs: Option<Value> },
    Call { index: usize, id: String, name: String },
    Arguments { index: usize, text: String },
}

impl Piece {
    /// The delta of a chunk and the log probabilities beside it.
    pub(super) fn into_delta(self) -> (Value, Value) {
        match self {
            Piece::Text { text, logprobs } => {
                (json!({ "content": text }), logprobs.map_or(Value::Null, |place| content(vec![place])))
            }
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

fn content(places: Vec<Value>) -> Value {
    json!({ "content": places, "refusal": null })
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
            ChatWork::Assisted(_) => {
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
            AssistEvent::Error(_) => return Vec::new(),
        };
        let place = self.logprobs.as_ref().and_then(Logprobs::take).map(|place| self.place(&place));
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

    fn place(&self, place: &PlaceLogprobs) -> Value {
        let mut value = self.token(place.chosen);
        value["top_logprobs"] = place.top.iter().map(|&token| self.token(token)).collect();
        value
    }

    /// A token as OpenAI writes it; JSON has no infinity, for which -9999 is the custom.
    fn token(&self, TokenLogprob { id, logprob }: TokenLogprob) -> Value {
        let bytes = self.tokenizer.token_bytes(id);
        let logprob = if logprob.is_finite() { f64::from(logprob) } else { -9999.0 };
        json!({ "token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes })
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
    places: Vec<Value>,
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

    pub(super) fn logprobs(&self) -> Value {
        if self.places.is_empty() { Value::Null } else { content(self.places.clone()) }
    }

    pub(super) fn into_json(self) -> Value {
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
