//! An answer as lines of JSON, or as one object.
//!
//! Always: every line has the same shape, and the last one alone is `done` and has the counts and times. A
//! line without text says that the answer is still on its way.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::error;
use crate::clock::rfc3339;
use crate::error::ErrorReply;
use crate::reply::{Ending, FinishReason, Message, Piece};
use crate::thinking::ThinkSplitter;
use crate::writer::{AnswerFacts, AnswerWriter, Headers, SILENCE_MAX_SHORT};

/// The HTTP headers of a stream of lines.
const LINES: Headers =
    &[("content-type", "application/x-ndjson"), ("cache-control", "no-cache"), ("x-accel-buffering", "no")];

/// Writes one answer.
#[derive(Debug)]
pub(super) struct OllamaWriter {
    model: String,
    is_chat: bool,
    shows_thinking: bool,
    splitter: ThinkSplitter,
    begun: bool,
    /// A call whose arguments are not complete: Ollama's calls come in one piece.
    call: Option<(String, String)>,
}

impl OllamaWriter {
    pub(super) fn new(facts: AnswerFacts, is_chat: bool, shows_thinking: bool) -> OllamaWriter {
        OllamaWriter {
            model: facts.model,
            is_chat,
            shows_thinking,
            splitter: ThinkSplitter::new(facts.is_thinking),
            begun: false,
            call: None,
        }
    }

    /// Returns the reply to a request that only asks for the model.
    pub(super) fn without_answer(model: &str, is_chat: bool, unloads: bool) -> Value {
        let writer = OllamaWriter::new(AnswerFacts::of(model), is_chat, true);
        let mut reply = writer.object("", "", Vec::new());
        let reason = if unloads { "unload" } else { "load" };
        (reply["done"], reply["done_reason"]) = (json!(true), json!(reason));
        reply
    }

    /// Makes an object with this text, thinking and these calls.
    fn object(&self, text: &str, thinking: &str, calls: Vec<Value>) -> Value {
        let created_at = rfc3339(SystemTime::now());
        let mut object = json!({ "model": self.model, "created_at": created_at });
        if self.is_chat {
            let mut message = json!({ "role": "assistant", "content": text });
            if !thinking.is_empty() {
                message["thinking"] = json!(thinking);
            }
            if !calls.is_empty() {
                message["tool_calls"] = json!(calls);
            }
            object["message"] = message;
        } else {
            object["response"] = json!(text);
            if !thinking.is_empty() {
                object["thinking"] = json!(thinking);
            }
        }
        object["done"] = json!(false);
        object
    }

    fn put(&mut self, piece: Piece, out: &mut String) {
        match piece {
            Piece::Text { text, .. } if text.is_empty() => (),
            Piece::Text { text, .. } => put_line(&self.object(&text, "", Vec::new()), out),
            Piece::Thinking(_) if !self.shows_thinking => (),
            Piece::Thinking(text) => put_line(&self.object("", &text, Vec::new()), out),
            Piece::Call { name, .. } => {
                self.put_call(out);
                self.call = Some((name, String::new()));
            }
            Piece::Arguments { text, .. } => {
                if let Some((_, arguments)) = &mut self.call {
                    arguments.push_str(&text);
                }
            }
        }
    }

    fn put_call(&mut self, out: &mut String) {
        if let Some((name, arguments)) = self.call.take() {
            put_line(&self.object("", "", vec![call(&name, &arguments)]), out);
        }
    }
}

impl AnswerWriter for OllamaWriter {
    fn headers(&self) -> Headers {
        LINES
    }

    fn ping(&self) -> String {
        let mut out = String::new();
        put_line(&self.object("", "", Vec::new()), &mut out);
        out
    }

    fn silence_max(&self) -> Duration {
        SILENCE_MAX_SHORT
    }

    fn is_begun(&self) -> bool {
        self.begun
    }

    fn begin(&mut self, _: Option<Value>, _: &mut String) {
        self.begun = true;
    }

    fn piece(&mut self, piece: Piece, out: &mut String) {
        for piece in self.splitter.split(piece) {
            self.put(piece, out);
        }
    }

    fn progress(&mut self, progress: &Value, out: &mut String) {
        let mut line = self.object("", "", Vec::new());
        line["x_progress"] = progress.clone();
        put_line(&line, out);
    }

    fn end(&mut self, ending: Ending, out: &mut String) {
        for piece in self.splitter.finish() {
            self.put(piece, out);
        }
        self.put_call(out);
        let mut last = self.object("", "", Vec::new());
        finish(&mut last, ending);
        put_line(&last, out);
    }

    fn error(&mut self, reply: &ErrorReply, out: &mut String) {
        put_line(&error(reply), out);
    }

    fn done(&mut self, _: &mut String) {}

    fn whole(mut self: Box<Self>, message: Message, ending: Ending) -> String {
        let Message { content, calls, .. } = message;
        let mut pieces = self.splitter.split(Piece::text(content));
        pieces.extend(self.splitter.finish());
        let (mut text, mut thinking) = (String::new(), String::new());
        for piece in pieces {
            match piece {
                Piece::Text { text: more, .. } => text.push_str(&more),
                Piece::Thinking(more) if self.shows_thinking => thinking.push_str(&more),
                _ => (),
            }
        }
        let calls = calls.iter().map(|made| call(&made.function.name, &made.function.arguments)).collect();
        let mut whole = self.object(&text, &thinking, calls);
        finish(&mut whole, ending);
        whole.to_string()
    }
}

fn call(name: &str, arguments: &str) -> Value {
    let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
    json!({ "function": { "name": name, "arguments": arguments } })
}

/// Adds why the answer ended, and its counts and times; times are in nanoseconds.
fn finish(object: &mut Value, ending: Ending) {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    object["done"] = json!(true);
    object["done_reason"] = match ending.finish_reason {
        FinishReason::Length => json!("length"),
        FinishReason::Stop | FinishReason::ToolCalls => json!("stop"),
    };
    object["total_duration"] = json!(nanos(ending.times.total));
    // The model is there before the first request.
    object["load_duration"] = json!(0);
    object["prompt_eval_count"] = json!(ending.usage.prompt_tokens);
    object["prompt_eval_duration"] = json!(nanos(ending.times.prompt));
    object["eval_count"] = json!(ending.usage.completion_tokens);
    object["eval_duration"] = json!(nanos(ending.times.answer));
    if let Some(baton) = ending.baton {
        object["baton"] = baton;
    }
}

fn put_line(object: &Value, out: &mut String) {
    out.push_str(&object.to_string());
    out.push('\n');
}
