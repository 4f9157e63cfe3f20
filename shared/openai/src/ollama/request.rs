//! Requests for answers, translated to the one request of all dialects.
//!
//! Ollama's own defaults: answers are streamed, have as many tokens as fit, and a prompt that does not fit is
//! shortened. A request without a prompt only asks whether the model is there.

use std::collections::VecDeque;

use baton_protocol::Role;
use serde_json::Value;

use super::field;
use super::options::OptionsBody;
use super::wire::{CallBody, ChatBody, GenerateBody, MessageBody};
use super::writer::OllamaWriter;
use crate::capabilities::Capabilities;
use crate::dialect::Dialect;
use crate::error::FieldError;
use crate::ignored::Ignored;
use crate::request::{
    MODEL_DEFAULT, NO_TOOLS, Prompt, Unreadable, checked_messages, is_last_turn, parsed, text_of, translated,
};
use crate::tools::{ChatMessage, PastCall};
use crate::wire::{ChatCompletionRequest, ResponseFormat, ToolBody};
use crate::writer::{Asked, Work};

/// What clients write behind a model's name that has no other tag.
const TAG: &str = ":latest";

/// What both requests have, and how the reply looks.
struct Common {
    model: Option<String>,
    is_chat: bool,
    tools: Option<Vec<ToolBody>>,
    format: Option<Value>,
    options: OptionsBody,
    stream: Option<bool>,
    think: Option<Value>,
    truncate: Option<bool>,
    logprobs: Option<bool>,
    top_logprobs: Option<u64>,
    keep_alive: Option<Value>,
}

/// Reads a request of `/api/chat`.
///
/// # Errors
/// [`FieldError`] with the name of the wrong field.
pub fn read_chat(json: &[u8], can: &Capabilities) -> Result<Work, FieldError> {
    let (body, ignored) = parsed::<ChatBody>(json)?;
    let common = Common {
        model: body.model,
        is_chat: true,
        tools: body.tools,
        format: body.format,
        options: body.options.unwrap_or_default(),
        stream: body.stream,
        think: body.think,
        truncate: body.truncate,
        logprobs: body.logprobs,
        top_logprobs: body.top_logprobs,
        keep_alive: body.keep_alive,
    };
    let bodies = body.messages.unwrap_or_default();
    if bodies.is_empty() {
        return nothing(&common);
    }
    work(common, can, ignored, |ignored| messages(bodies, can, ignored).map(Prompt::Chat))
}

/// Reads a request of `/api/generate`.
///
/// # Errors
/// [`FieldError`] with the name of the wrong field.
pub fn read_generate(json: &[u8], can: &Capabilities) -> Result<Work, FieldError> {
    let (body, ignored) = parsed::<GenerateBody>(json)?;
    let is_empty = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
    let no_values = |list: &Option<Vec<Value>>| list.as_ref().is_none_or(Vec::is_empty);
    let rules = [
        ("template", is_empty(&body.template), "is not supported; the model's own template is used"),
        ("context", no_values(&body.context), "is not supported; use `/api/chat` with all messages"),
        ("images", no_values(&body.images), "images are not supported"),
    ];
    if let Some((name, _, message)) = rules.into_iter().find(|(_, fine, _)| !fine) {
        return Err(FieldError::new(name, message));
    }
    let common = Common {
        model: body.model,
        is_chat: false,
        tools: None,
        format: body.format,
        options: body.options.unwrap_or_default(),
        stream: body.stream,
        think: body.think,
        truncate: body.truncate,
        logprobs: body.logprobs,
        top_logprobs: body.top_logprobs,
        keep_alive: body.keep_alive,
    };
    let Some(prompt) = body.prompt.filter(|prompt| !prompt.is_empty()) else { return nothing(&common) };
    let system = body.system.filter(|system| !system.is_empty());
    if body.raw == Some(true) {
        if system.is_some() {
            return Err(FieldError::new("system", "cannot be used together with `raw`"));
        }
        return work(common, can, ignored, |_| Ok(Prompt::Text { text: prompt, suffix: None, echo: false }));
    }
    if let Some(suffix) = body.suffix.filter(|suffix| !suffix.is_empty()) {
        if system.is_some() {
            return Err(FieldError::new("system", "cannot be used together with `suffix`"));
        }
        let text = Prompt::Text { text: prompt, suffix: Some(suffix), echo: false };
        return work(common, can, ignored, |_| Ok(text));
    }
    let system = system.map(|system| ChatMessage::new(Role::System, system));
    let messages = system.into_iter().chain([ChatMessage::new(Role::User, prompt)]).collect();
    work(common, can, ignored, |_| Ok(Prompt::Chat(messages)))
}

/// Answers a request without a prompt: the model is loaded then, or unloaded if it is to be kept for no time.
fn nothing(common: &Common) -> Result<Work, FieldError> {
    let unloads = common.keep_alive.as_ref().is_some_and(is_no_time);
    let model = model(common.model.clone())?.unwrap_or_else(|| MODEL_DEFAULT.to_owned());
    let reply = OllamaWriter::without_answer(&model, common.is_chat, unloads).to_string();
    Ok(Work::Nothing { model, reply, unloads })
}

/// Whether a time is none: a number of seconds, or a text with a unit.
fn is_no_time(time: &Value) -> bool {
    let is_zero = |number: f64| number == 0.0;
    let text = time.as_str().map(|text| text.trim_end_matches(|c: char| c.is_ascii_alphabetic()));
    time.as_f64().or_else(|| text?.parse().ok()).is_some_and(is_zero)
}

/// Returns the name without its tag; a model is always named.
fn model(name: Option<String>) -> Result<Option<String>, FieldError> {
    match name.filter(|name| !name.is_empty()) {
        Some(name) => Ok(Some(plain_name(&name).to_owned())),
        None => Err(FieldError::new("model", "is missing")),
    }
}

/// Returns a model's name without the tag that stands for no tag.
pub(super) fn plain_name(name: &str) -> &str {
    name.strip_suffix(TAG).unwrap_or(name)
}

fn work(
    common: Common,
    can: &Capabilities,
    mut ignored: Ignored,
    prompt: impl FnOnce(&mut Ignored) -> Result<Prompt, FieldError>,
) -> Result<Work, FieldError> {
    if common.keep_alive.is_some() {
        ignored.add("keep_alive");
    }
    if common.think.as_ref().is_some_and(Value::is_string) {
        // A level shows the thinking; how long a model thinks is its own matter.
        ignored.add("think");
    }
    let shows_thinking = common.think != Some(Value::Bool(false));
    let context_min = common.options.num_ctx.and_then(|tokens| u64::try_from(tokens).ok());
    let shortens = can.truncation && common.truncate != Some(false);
    let mut wire = ChatCompletionRequest {
        model: model(common.model)?,
        stream: Some(common.stream.unwrap_or(true)),
        tools: common.tools,
        response_format: format(common.format)?,
        logprobs: common.logprobs,
        top_logprobs: common.top_logprobs,
        truncation: shortens.then(|| "auto".to_owned()),
        ..ChatCompletionRequest::default()
    };
    common.options.put_into(&mut wire, &mut ignored);
    // No reply of this API has log probabilities here.
    let can = Capabilities { logprobs: false, ..*can };
    let mut request = translated(wire, &can, ignored, field, prompt)?;
    request.continue_last()?;
    let is_chat = common.is_chat;
    let mut asked = Asked::new(request, Dialect::Ollama, move |facts| {
        Box::new(OllamaWriter::new(facts, is_chat, shows_thinking))
    });
    asked.context_min = context_min;
    Ok(asked.into())
}

fn format(format: Option<Value>) -> Result<Option<ResponseFormat>, FieldError> {
    let (kind, schema) = match format {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(word)) if word.is_empty() => return Ok(None),
        Some(Value::String(word)) if word == "json" => ("json_object", None),
        Some(schema @ Value::Object(_)) => ("json_schema", Some(schema)),
        Some(_) => return Err(FieldError::new("format", "must be `json` or a schema")),
    };
    Ok(Some(ResponseFormat::new(kind.to_owned(), schema)))
}

/// Calls that have no result yet, with the names of their functions. Ollama's calls have no ids, so results
/// are matched by name and order.
#[derive(Default)]
struct OpenCalls {
    open: VecDeque<PastCall>,
    count: usize,
}

impl OpenCalls {
    fn add(&mut self, body: CallBody) -> PastCall {
        self.count += 1;
        let id = body.id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("call_{}", self.count));
        let arguments = match body.function.arguments {
            Some(Value::String(text)) => text,
            Some(arguments) => arguments.to_string(),
            None => "{}".to_owned(),
        };
        let call = PastCall { id, name: body.function.name, arguments };
        self.open.push_back(call.clone());
        call
    }

    /// Returns the id of the call that has this result.
    fn answered(&mut self, id: Option<String>, name: Option<&str>) -> Option<String> {
        let is_meant = |call: &PastCall| match (&id, name) {
            (Some(id), _) => call.id == *id,
            (None, Some(name)) => call.name == name,
            (None, None) => true,
        };
        let at = self.open.iter().position(is_meant)?;
        self.open.remove(at).map(|call| call.id)
    }
}

fn messages(
    bodies: Vec<MessageBody>,
    can: &Capabilities,
    ignored: &mut Ignored,
) -> Result<Vec<ChatMessage>, FieldError> {
    let roles: Vec<String> = bodies.iter().map(|body| body.role.clone()).collect();
    let mut open = OpenCalls::default();
    let mut messages = Vec::with_capacity(bodies.len());
    for (at, body) in bodies.into_iter().enumerate() {
        let field = |name: &str| format!("messages[{at}].{name}");
        let calls = body.tool_calls.unwrap_or_default();
        let is_about_tools = !calls.is_empty() || body.role == "tool";
        if is_about_tools && !can.tools {
            return Err(FieldError::new(field("role"), format!("{NO_TOOLS}; leave such messages out")));
        }
        let role = match body.role.as_str() {
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            _ => {
                return Err(FieldError::new(
                    field("role"),
                    "must be `system`, `user`, `assistant` or `tool`",
                ));
            }
        };
        if !calls.is_empty() && role != Role::Assistant {
            return Err(FieldError::new(field("tool_calls"), "only messages of the assistant have calls"));
        }
        let call_id = match role {
            Role::Tool => {
                let name = body.tool_name.or(body.name);
                open.answered(body.tool_call_id.clone(), name.as_deref()).or(body.tool_call_id).or(name)
            }
            _ => None,
        };
        let is_last = role == Role::User && is_last_turn(roles[at + 1..].iter().map(String::as_str));
        let mut text = match body.content {
            Some(content) => text_of(&field("content"), content, is_last, ignored)?,
            None => String::new(),
        };
        if body.images.is_some_and(|images| !images.is_empty()) {
            let image = Unreadable { place: &field("images"), kind: "image", is_last };
            text = [text, image.text(ignored)?].join("\n");
        }
        let calls = calls.into_iter().map(|call| open.add(call)).collect();
        let thinking = body.thinking.filter(|text| role == Role::Assistant && !text.is_empty());
        if thinking.is_some() {
            ignored.add("messages[].thinking");
        }
        messages.push(ChatMessage { calls, call_id, thinking, ..ChatMessage::new(role, text) });
    }
    checked_messages(messages, can, "messages[].tool_call_id", ignored)
}
