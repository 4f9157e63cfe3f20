//! Turns the events of an answer into the parts of a chat or text completion: text, calls, log probabilities,
//! and the field `baton`.
//!
//! Always: every token has its log probabilities, even if its text is held back or is part of a call.

use std::sync::Arc;

use baton_constrain::tools::ToolForm;
use baton_engine::Model;
use baton_engine::tokenizer::Tokenizer;
use baton_openai::Prompt;
use baton_openai::ignored::Ignored;
use baton_openai::logprobs::{Place, TokenBytes};
use baton_openai::reply::{Ending, FinishReason, Piece};
use baton_openai::tool_calls::ToolParser;
use baton_protocol::{AssistEvent, EndEvent, EndReason, FirstEvent, MaskEvent};
use serde_json::{Value, json};

use super::work::ChatWork;
use crate::service::citations::Citations;
use crate::service::logprobs::Logprobs;

/// The model's vocabulary, for log probabilities.
#[derive(Debug)]
struct Vocabulary(Arc<Tokenizer>);

impl TokenBytes for Vocabulary {
    fn token_bytes(&self, id: u32) -> &[u8] {
        self.0.token_bytes(id)
    }
}

/// Turns events into parts.
#[derive(Debug)]
pub(super) struct Reply {
    vocabulary: Arc<Vocabulary>,
    parser: Option<ToolParser>,
    logprobs: Option<Logprobs>,
    /// The prompt, until it was sent, if the reply begins with it.
    echo: Option<String>,
    /// Data of the assist protocol, if the request had the field `baton`.
    baton: Option<Baton>,
    citations: Option<Citations>,
    /// Fields of the request without effect.
    ignored: Ignored,
}

#[derive(Debug, Default)]
struct Baton {
    mask: Option<MaskEvent>,
    first: Option<Box<FirstEvent>>,
}

impl Reply {
    pub(super) fn new(model: &Model, work: &ChatWork, ignored: Ignored) -> Reply {
        let vocabulary = Arc::new(Vocabulary(model.tokenizer().clone()));
        match work {
            ChatWork::Assisted(..) => {
                let baton = Some(Baton::default());
                Reply {
                    vocabulary,
                    parser: None,
                    logprobs: None,
                    echo: None,
                    baton,
                    citations: None,
                    ignored,
                }
            }
            ChatWork::Whole(completion) => {
                let parser = completion.tools.as_ref().map(|tools| {
                    let names = tools.tools.iter().map(|tool| tool.name.clone());
                    ToolParser::new(ToolForm::of(model.template()).markup, names)
                });
                let echo = match &completion.prompt {
                    Prompt::Text { text, echo: true, .. } => Some(text.clone()),
                    _ => None,
                };
                let (logprobs, citations) = (completion.logprobs.clone(), completion.citations.clone());
                Reply { vocabulary, parser, logprobs, echo, baton: None, citations, ignored }
            }
        }
    }

    /// Returns how the answer ended, with this content of the field `baton`, or with its citations, and with
    /// the names of fields without effect.
    pub(super) fn ending(&self, end: &EndEvent, baton: Option<Value>) -> Ending {
        let cited = || Some(json!({ "citations": self.citations.as_ref()?.json() }));
        let mut baton = baton.or_else(cited);
        if self.ignored.header().is_some() {
            let names: Value = self.ignored.names().collect();
            baton.get_or_insert_with(|| json!({}))["ignored"] = names;
        }
        let calls = self.parser.as_ref().map_or(0, ToolParser::calls);
        Ending { baton, ..Ending::new(FinishReason::of(end.reason, calls), end.usage) }
    }

    /// Returns the parts that an event adds.
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
                return held.into_iter().map(Piece::from).collect();
            }
            AssistEvent::Progress(_) | AssistEvent::Error(_) => return Vec::new(),
        };
        let place = self.logprobs.as_ref().and_then(Logprobs::take);
        let place = place.map(|logprobs| Place::new(self.vocabulary.clone(), logprobs));
        let mut pieces: Vec<Piece> = match &mut self.parser {
            Some(parser) => parser.push(text).into_iter().map(Piece::from).collect(),
            None => vec![Piece::text(text.as_str())],
        };
        if let Some(place) = place {
            match pieces.iter_mut().find_map(|piece| match piece {
                Piece::Text { logprobs, .. } => Some(logprobs),
                _ => None,
            }) {
                Some(logprobs) => *logprobs = Some(place),
                None => pieces.insert(0, Piece::Text { text: String::new(), logprobs: Some(place) }),
            }
        }
        if let Some(echo) = self.echo.take() {
            pieces.insert(0, Piece::text(echo));
        }
        pieces.retain(|piece| !matches!(piece, Piece::Text { text, logprobs: None } if text.is_empty()));
        pieces
    }

    /// Returns the content of the field `baton`, if the request had one. It includes the handoff if the
    /// answer ended at L.
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
        if let Some(end) = end.filter(|end| end.reason == EndReason::Cap) {
            value["handoff"] = handoff(end);
        }
        Some(value)
    }

    /// Returns the index from which the caller must continue, if the request had `baton` and the answer ended
    /// at L.
    pub(super) fn handoff(&self, end: &EndEvent) -> Option<Value> {
        self.baton.as_ref().filter(|_| end.reason == EndReason::Cap)?;
        Some(json!({ "handoff": handoff(end) }))
    }
}

fn handoff(end: &EndEvent) -> Value {
    json!({ "reason": "cap", "next_index": end.usage.completion_tokens })
}
