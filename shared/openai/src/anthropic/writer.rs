//! An answer as a message, in one piece or as events.
//!
//! Always: blocks are opened and closed one after the other, `message_delta` has the token counts, and
//! `message_stop` is the last event. Thinking is left out unless the request asks for it.

use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::dialect::Dialect;
use crate::error::ErrorReply;
use crate::reply::{Ending, FinishReason, Message, Piece};
use crate::sse::put_named;
use crate::stream::HEADERS;
use crate::thinking::ThinkSplitter;
use crate::usage::Usage;
use crate::writer::{AnswerFacts, AnswerWriter, Headers, SILENCE_MAX_SHORT};

/// Writes one message.
#[derive(Debug)]
pub(super) struct MessagesWriter {
    id: String,
    model: String,
    prompt_tokens: u64,
    shows_thinking: bool,
    /// The stop strings of the request; others end a turn in the model's template.
    stops: Vec<String>,
    splitter: ThinkSplitter,
    begun: bool,
    /// The block that is open.
    open: Option<Kind>,
    /// Number of blocks that were opened.
    blocks: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    Call,
}

impl MessagesWriter {
    pub(super) fn new(facts: AnswerFacts, shows_thinking: bool, stops: Vec<String>) -> MessagesWriter {
        MessagesWriter {
            id: format!("msg_{}", Uuid::new_v4().simple()),
            model: facts.model,
            prompt_tokens: facts.prompt_tokens,
            shows_thinking,
            stops,
            splitter: ThinkSplitter::new(facts.is_thinking),
            begun: false,
            open: None,
            blocks: 0,
        }
    }

    /// Makes a message with these blocks.
    fn message(&self, content: Vec<Value>, usage: Value) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": null, "stop_sequence": null, "usage": usage,
        })
    }

    /// Returns why the message ended, and the stop string that ended it.
    fn reason(&self, ending: &Ending) -> (&'static str, Option<String>) {
        let stop = ending.stop.clone().filter(|stop| self.stops.contains(stop));
        match ending.finish_reason {
            FinishReason::Stop if stop.is_some() => ("stop_sequence", stop),
            FinishReason::Stop => ("end_turn", None),
            FinishReason::Length => ("max_tokens", None),
            FinishReason::ToolCalls => ("tool_use", None),
        }
    }

    fn close(&mut self, out: &mut String) {
        if self.open.take().is_some() {
            put_named(&json!({ "type": "content_block_stop", "index": self.blocks - 1 }), out);
        }
    }

    /// Opens a block, unless one of this kind is open. Every call has a block of its own.
    fn open(&mut self, kind: Kind, block: impl FnOnce() -> Value, out: &mut String) {
        if self.open == Some(kind) && kind != Kind::Call {
            return;
        }
        self.close(out);
        let start = json!({ "type": "content_block_start", "index": self.blocks, "content_block": block() });
        put_named(&start, out);
        self.open = Some(kind);
        self.blocks += 1;
    }

    fn delta(&self, delta: Value, out: &mut String) {
        let index = self.blocks.saturating_sub(1);
        put_named(&json!({ "type": "content_block_delta", "index": index, "delta": delta }), out);
    }

    fn put(&mut self, piece: Piece, out: &mut String) {
        match piece {
            Piece::Text { text, .. } if text.is_empty() => (),
            Piece::Text { text, .. } => {
                self.open(Kind::Text, || json!({ "type": "text", "text": "" }), out);
                self.delta(json!({ "type": "text_delta", "text": text }), out);
            }
            Piece::Thinking(_) if !self.shows_thinking => (),
            Piece::Thinking(text) => {
                let block = || json!({ "type": "thinking", "thinking": "", "signature": "" });
                self.open(Kind::Thinking, block, out);
                self.delta(json!({ "type": "thinking_delta", "thinking": text }), out);
            }
            Piece::Call { id, name, .. } => {
                let block = || json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                self.open(Kind::Call, block, out);
            }
            Piece::Arguments { text, .. } => {
                self.delta(json!({ "type": "input_json_delta", "partial_json": text }), out);
            }
        }
    }
}

impl AnswerWriter for MessagesWriter {
    fn headers(&self) -> Headers {
        HEADERS
    }

    fn ping(&self) -> String {
        let mut out = String::new();
        put_named(&json!({ "type": "ping" }), &mut out);
        out
    }

    fn silence_max(&self) -> Duration {
        SILENCE_MAX_SHORT
    }

    fn is_begun(&self) -> bool {
        self.begun
    }

    fn begin(&mut self, _: Option<Value>, out: &mut String) {
        if self.begun {
            return;
        }
        self.begun = true;
        let usage = json!({ "input_tokens": self.prompt_tokens, "output_tokens": 0,
            "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0 });
        let message = self.message(Vec::new(), usage);
        put_named(&json!({ "type": "message_start", "message": message }), out);
    }

    fn piece(&mut self, piece: Piece, out: &mut String) {
        for piece in self.splitter.split(piece) {
            self.put(piece, out);
        }
    }

    fn progress(&mut self, _: &Value, out: &mut String) {
        out.push_str(&self.ping());
    }

    fn end(&mut self, ending: Ending, out: &mut String) {
        for piece in self.splitter.finish() {
            self.put(piece, out);
        }
        self.close(out);
        let (reason, stop) = self.reason(&ending);
        let mut last = json!({ "type": "message_delta",
            "delta": { "stop_reason": reason, "stop_sequence": stop }, "usage": usage(&ending.usage) });
        if let Some(baton) = ending.baton {
            last["baton"] = baton;
        }
        put_named(&last, out);
        put_named(&json!({ "type": "message_stop" }), out);
    }

    fn error(&mut self, error: &ErrorReply, out: &mut String) {
        // The status was sent long ago; only the body counts.
        put_named(&Dialect::Anthropic.error(500, error).1, out);
    }

    fn done(&mut self, _: &mut String) {}

    fn whole(mut self: Box<Self>, message: Message, ending: Ending) -> String {
        let Message { content, calls, .. } = message;
        let mut pieces = self.splitter.split(Piece::text(content));
        pieces.extend(self.splitter.finish());
        let mut blocks: Vec<(Kind, String)> = Vec::new();
        for piece in pieces {
            let (kind, text) = match piece {
                Piece::Text { text, .. } => (Kind::Text, text),
                Piece::Thinking(text) if self.shows_thinking => (Kind::Thinking, text),
                _ => continue,
            };
            match blocks.last_mut() {
                Some((last, so_far)) if *last == kind => so_far.push_str(&text),
                _ => blocks.push((kind, text)),
            }
        }
        let block = |(kind, text): (Kind, String)| match kind {
            Kind::Thinking => json!({ "type": "thinking", "thinking": text, "signature": "" }),
            Kind::Text | Kind::Call => json!({ "type": "text", "text": text }),
        };
        let call = |call: crate::reply::Call| {
            let input: Value = serde_json::from_str(&call.function.arguments).unwrap_or_else(|_| json!({}));
            json!({ "type": "tool_use", "id": call.id, "name": call.function.name, "input": input })
        };
        let content = blocks.into_iter().map(block).chain(calls.into_iter().map(call)).collect();
        let mut whole = self.message(content, usage(&ending.usage));
        let (reason, stop) = self.reason(&ending);
        (whole["stop_reason"], whole["stop_sequence"]) = (json!(reason), json!(stop));
        if let Some(baton) = ending.baton {
            whole["baton"] = baton;
        }
        whole.to_string()
    }
}

/// Returns the token counts. Anthropic counts tokens that were found in the cache by themselves.
fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached()),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached(),
        "output_tokens": usage.completion_tokens,
    })
}
