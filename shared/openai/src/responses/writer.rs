//! An answer as a response, in one piece or as events.
//!
//! Always: items are opened and closed one after the other, every event has the next `sequence_number`, and
//! the last event has the whole response. The reply in one piece is what the last event has.

use serde_json::{Value, json};
use uuid::Uuid;

use super::reply::{IncompleteDetails, NoReasoning, ResponseBody, ResponseError};
use super::tools::{CallForm, CallForms, input_of};
use crate::error::ErrorReply;
use crate::reply::{Ending, FinishReason, Message, Piece, now_seconds};
use crate::sse::put_named;
use crate::stream::{HEADERS, PING};
use crate::thinking::ThinkSplitter;
use crate::writer::{AnswerFacts, AnswerWriter, Headers};

const STRING_KEYS: &str = "replies have string keys only";

/// What a response repeats of its request.
#[derive(Debug, Default)]
pub(super) struct Echo {
    pub(super) instructions: Option<String>,
    pub(super) max_output_tokens: Option<u64>,
    pub(super) parallel: bool,
    pub(super) temperature: f64,
    pub(super) text: Value,
    pub(super) tool_choice: Value,
    pub(super) tools: Vec<Value>,
    pub(super) top_p: f64,
    pub(super) truncation: &'static str,
    pub(super) user: Option<String>,
    pub(super) metadata: Value,
    /// How calls of tools that are no plain functions stand in the reply.
    pub(super) forms: CallForms,
}

/// Writes one response.
#[derive(Debug)]
pub(super) struct ResponsesWriter {
    response: ResponseBody,
    forms: CallForms,
    splitter: ThinkSplitter,
    begun: bool,
    sequence: u64,
    open: Option<Open>,
}

/// An item that is not complete.
#[derive(Debug)]
struct Open {
    kind: Kind,
    id: String,
    /// Its text, or the arguments of a call.
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
    Call { call_id: String, name: String, namespace: Option<String> },
    CustomCall { call_id: String, name: String },
}

impl Open {
    fn new(kind: Kind) -> Open {
        let prefix = match kind {
            Kind::Message => "msg",
            Kind::Reasoning => "rs",
            Kind::Call { .. } => "fc",
            Kind::CustomCall { .. } => "ctc",
        };
        Open { kind, id: format!("{prefix}_{}", Uuid::new_v4().simple()), text: String::new() }
    }

    /// The part of the item that has its text; calls have none.
    fn part(&self) -> Option<Value> {
        match self.kind {
            Kind::Message => {
                Some(json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] }))
            }
            Kind::Reasoning => Some(json!({ "type": "reasoning_text", "text": self.text })),
            Kind::Call { .. } | Kind::CustomCall { .. } => None,
        }
    }

    /// The item with this status; before its end without its text.
    fn item(&self, status: &str) -> Value {
        let is_ended = status != "in_progress";
        let content: Vec<Value> = self.part().filter(|_| is_ended).into_iter().collect();
        match &self.kind {
            Kind::Message => json!({ "id": self.id, "type": "message", "status": status,
                "role": "assistant", "content": content }),
            Kind::Reasoning => json!({ "id": self.id, "type": "reasoning", "status": status,
                "summary": [], "content": content }),
            Kind::Call { call_id, name, namespace } => {
                let mut item = json!({ "id": self.id, "type": "function_call", "status": status,
                    "call_id": call_id, "name": name, "arguments": self.text });
                if let Some(namespace) = namespace {
                    item["namespace"] = json!(namespace);
                }
                item
            }
            Kind::CustomCall { call_id, name } => {
                let input = if is_ended { input_of(&self.text) } else { String::new() };
                json!({ "id": self.id, "type": "custom_tool_call", "status": status,
                    "call_id": call_id, "name": name, "input": input })
            }
        }
    }

    /// The beginning of the names of the events that have its text.
    fn events(&self) -> &'static str {
        match self.kind {
            Kind::Message => "response.output_text",
            Kind::Reasoning => "response.reasoning_text",
            Kind::Call { .. } => "response.function_call_arguments",
            Kind::CustomCall { .. } => "response.custom_tool_call_input",
        }
    }
}

impl ResponsesWriter {
    pub(super) fn new(facts: AnswerFacts, echo: Echo) -> ResponsesWriter {
        let response = ResponseBody {
            id: format!("resp_{}", Uuid::new_v4().simple()),
            object: "response",
            created_at: now_seconds(),
            status: "in_progress",
            background: false,
            error: None,
            incomplete_details: None,
            instructions: echo.instructions,
            max_output_tokens: echo.max_output_tokens,
            model: facts.model,
            output: Vec::new(),
            parallel_tool_calls: echo.parallel,
            previous_response_id: (),
            reasoning: NoReasoning::default(),
            store: false,
            temperature: echo.temperature,
            text: echo.text,
            tool_choice: echo.tool_choice,
            tools: echo.tools,
            top_p: echo.top_p,
            truncation: echo.truncation,
            usage: None,
            user: echo.user,
            metadata: echo.metadata,
            baton: None,
        };
        let splitter = ThinkSplitter::new(facts.is_thinking);
        ResponsesWriter { response, forms: echo.forms, splitter, begun: false, sequence: 0, open: None }
    }

    fn event(&mut self, kind: &str, mut fields: Value, out: &mut String) {
        fields["type"] = json!(kind);
        fields["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        put_named(&fields, out);
    }

    /// Appends an event that has the whole response.
    fn tell(&mut self, kind: &str, out: &mut String) {
        let response = serde_json::to_value(&self.response).expect(STRING_KEYS);
        self.event(kind, json!({ "response": response }), out);
    }

    /// Appends an event of an item's only part.
    fn tell_part(&mut self, kind: &str, open: &Open, mut fields: Value, out: &mut String) {
        fields["item_id"] = json!(open.id);
        fields["output_index"] = json!(self.response.output.len());
        if open.part().is_some() {
            fields["content_index"] = json!(0);
        }
        self.event(kind, fields, out);
    }

    /// Adds text to an item of this kind; opens one if another kind is open.
    fn add(&mut self, kind: Kind, text: &str, out: &mut String) {
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            self.close("completed", out);
            let open = Open::new(kind);
            let (at, item) = (self.response.output.len(), open.item("in_progress"));
            self.event("response.output_item.added", json!({ "output_index": at, "item": item }), out);
            if let Some(part) = open.part() {
                self.tell_part("response.content_part.added", &open, json!({ "part": part }), out);
            }
            self.open = Some(open);
        }
        let Some(mut open) = self.open.take() else { return };
        if !text.is_empty() {
            open.text.push_str(text);
            // The text of a custom tool is known once its JSON is complete.
            if !matches!(open.kind, Kind::CustomCall { .. }) {
                self.tell_delta(&open, text, out);
            }
        }
        self.open = Some(open);
    }

    fn tell_delta(&mut self, open: &Open, text: &str, out: &mut String) {
        let mut fields = json!({ "delta": text });
        if open.kind == Kind::Message {
            fields["logprobs"] = json!([]);
        }
        self.tell_part(&format!("{}.delta", open.events()), open, fields, out);
    }

    fn close(&mut self, status: &'static str, out: &mut String) {
        let Some(open) = self.open.take() else { return };
        if let Kind::CustomCall { .. } = &open.kind {
            self.tell_delta(&open, &input_of(&open.text), out);
        }
        let kind = format!("{}.done", open.events());
        let fields = match &open.kind {
            Kind::Message => json!({ "text": open.text, "logprobs": [] }),
            Kind::Reasoning => json!({ "text": open.text }),
            Kind::Call { name, .. } => json!({ "arguments": open.text, "name": name }),
            Kind::CustomCall { .. } => json!({ "input": input_of(&open.text) }),
        };
        self.tell_part(&kind, &open, fields, out);
        if let Some(part) = open.part() {
            self.tell_part("response.content_part.done", &open, json!({ "part": part }), out);
        }
        let (at, item) = (self.response.output.len(), open.item(status));
        self.event("response.output_item.done", json!({ "output_index": at, "item": item }), out);
        self.response.output.push(item);
    }

    /// Returns the item of a call of the function that the model knows by this name.
    fn call(&self, call_id: String, name: String) -> Kind {
        match self.forms.get(&name) {
            None => Kind::Call { call_id, name, namespace: None },
            Some(CallForm::Namespaced { namespace, name }) => {
                Kind::Call { call_id, name: name.clone(), namespace: Some(namespace.clone()) }
            }
            Some(CallForm::Custom) => Kind::CustomCall { call_id, name },
        }
    }

    fn put(&mut self, piece: Piece, out: &mut String) {
        match piece {
            Piece::Text { text, .. } if text.is_empty() => (),
            Piece::Text { text, .. } => self.add(Kind::Message, &text, out),
            Piece::Thinking(text) => self.add(Kind::Reasoning, &text, out),
            Piece::Call { id, name, .. } => {
                let kind = self.call(id, name);
                self.add(kind, "", out);
            }
            Piece::Arguments { text, .. } => {
                if let Some(kind) = self.open.as_ref().map(|open| open.kind.clone()) {
                    self.add(kind, &text, out);
                }
            }
        }
    }
}

impl AnswerWriter for ResponsesWriter {
    fn headers(&self) -> Headers {
        HEADERS
    }

    fn ping(&self) -> String {
        PING.to_owned()
    }

    fn is_begun(&self) -> bool {
        self.begun
    }

    fn begin(&mut self, _: Option<Value>, out: &mut String) {
        if self.begun {
            return;
        }
        self.begun = true;
        self.tell("response.created", out);
        self.tell("response.in_progress", out);
    }

    fn piece(&mut self, piece: Piece, out: &mut String) {
        for piece in self.splitter.split(piece) {
            self.put(piece, out);
        }
    }

    /// Appends a comment, which every client skips.
    fn progress(&mut self, progress: &Value, out: &mut String) {
        out.push_str(": progress ");
        out.push_str(&progress.to_string());
        out.push_str("\n\n");
    }

    fn end(&mut self, ending: Ending, out: &mut String) {
        for piece in self.splitter.finish() {
            self.put(piece, out);
        }
        let is_cut = ending.finish_reason == FinishReason::Length;
        let status = if is_cut { "incomplete" } else { "completed" };
        self.close(status, out);
        self.response.status = status;
        self.response.incomplete_details =
            is_cut.then_some(IncompleteDetails { reason: "max_output_tokens" });
        self.response.usage = Some(ending.usage.into());
        self.response.baton = ending.baton;
        self.tell(&format!("response.{status}"), out);
    }

    fn error(&mut self, error: &ErrorReply, out: &mut String) {
        self.begin(None, out);
        self.close("incomplete", out);
        self.response.status = "failed";
        self.response.error =
            Some(ResponseError { code: error.error.code.clone(), message: error.error.message.clone() });
        self.tell("response.failed", out);
    }

    fn done(&mut self, _: &mut String) {}

    fn whole(mut self: Box<Self>, message: Message, ending: Ending) -> String {
        let mut events = String::new();
        for piece in message.into_pieces() {
            self.piece(piece, &mut events);
        }
        self.end(ending, &mut events);
        serde_json::to_string(&self.response).expect(STRING_KEYS)
    }
}
