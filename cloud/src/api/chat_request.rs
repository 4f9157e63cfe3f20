//! A chat completion request, checked and translated.
//!
//! Always: what this service does not do is refused with 400 and the field's name, never silently ignored. Fields
//! that ask for nothing (empty lists, `n` of 1) and those that only describe the caller are taken.

mod tools;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use baton_protocol::{
    AssistRequest, PROTOCOL_VERSION, RefineOptions, RequestError, Role, Sampling, Segment, check_shape,
};
use serde_json::Value;
use uuid::Uuid;

pub(super) use self::wire::ChatCompletionRequest;
use self::wire::{BatonBody, ChatMessageBody, Content, Part, Stop};
use super::error::ApiError;
use crate::completion::{AnswerFormat, CompletionRequest, Penalties};
use crate::logprobs::Logprobs;
use crate::tools::{ChatMessage, PastCall};

const TOP_LOGPROBS_MAX: u64 = 20;

/// A request, translated, and how the answer is to be sent.
#[derive(Debug)]
pub(super) struct ChatRequest {
    pub(super) work: ChatWork,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) include_progress: bool,
}

/// What is asked for.
#[derive(Debug)]
pub(super) enum ChatWork {
    /// The whole answer.
    Whole(Box<CompletionRequest>),
    /// Its beginning, by a scene; and the most tokens of it that the caller takes, whatever L is.
    Assisted(Box<AssistRequest>, Option<usize>),
}

/// Reads and checks a request.
pub(super) fn parse(json: &[u8]) -> Result<ChatRequest, ApiError> {
    check_shape(json).map_err(|err| ApiError::from(err.to_body()))?;
    let mut parser = serde_json::Deserializer::from_slice(json);
    let wire: ChatCompletionRequest = serde_path_to_error::deserialize(&mut parser)
        .map_err(|err| unreadable(&err.path().to_string(), &err.inner().to_string()))?;
    parser.end().map_err(|err| ApiError::field(".", err))?;
    refuse_unsupported(&wire)?;
    let stream = wire.stream.unwrap_or(false);
    let options = wire.stream_options.as_ref();
    let include_usage = options.and_then(|options| options.include_usage).unwrap_or(false);
    let include_progress = options.and_then(|options| options.include_progress).unwrap_or(false);
    let work = match wire.baton.is_some() {
        true => assisted(wire)?,
        false => ChatWork::Whole(Box::new(completion(wire)?)),
    };
    Ok(ChatRequest { work, stream, include_usage, include_progress })
}

/// The parser names the object around an unknown field; a client wants the field.
fn unreadable(path: &str, message: &str) -> ApiError {
    let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
    let field = match unknown {
        Some(name) if path == "." => name.to_owned(),
        Some(name) if path != name && !path.ends_with(&format!(".{name}")) => format!("{path}.{name}"),
        _ => path.to_owned(),
    };
    ApiError::field(
        &field.chars().take(200).collect::<String>(),
        message.chars().take(400).collect::<String>(),
    )
}

fn completion(wire: ChatCompletionRequest) -> Result<CompletionRequest, ApiError> {
    let sampling = sampling(&wire)?;
    let penalties = penalties(&wire)?;
    let max_tokens = max_tokens(&wire)?;
    let logprobs =
        wire.logprobs.unwrap_or(false).then(|| Logprobs::new(wire.top_logprobs.unwrap_or(0) as usize));
    let tools = tools::tool_use(wire.tools, wire.tool_choice, wire.parallel_tool_calls)?;
    let format = tools::format(wire.response_format)?;
    if tools.is_some() && format != AnswerFormat::Text {
        return Err(ApiError::field("response_format", "cannot be demanded where tools may be called"));
    }
    let messages = messages(wire.messages)?;
    Ok(CompletionRequest {
        sampling,
        penalties,
        max_tokens,
        format,
        tools,
        logprobs,
        ..CompletionRequest::new(wire.model, messages)
    })
}

/// The same as a request of the assist protocol.
fn assisted(mut wire: ChatCompletionRequest) -> Result<ChatWork, ApiError> {
    let baton = wire.baton.take().ok_or_else(|| ApiError::field("baton", "is missing"))?;
    let penalties = penalties(&wire)?;
    let plain = [
        ("tools", wire.tools.as_ref().is_none_or(Vec::is_empty)),
        ("response_format", tools::format(wire.response_format.take())? == AnswerFormat::Text),
        ("logprobs", wire.logprobs != Some(true)),
        ("frequency_penalty", penalties.frequency == 0.0),
        ("presence_penalty", penalties.presence == 0.0),
    ];
    if let Some((field, _)) = plain.into_iter().find(|(_, fine)| !fine) {
        return Err(ApiError::field(field, "a device could not go on with it; leave it or `baton` out"));
    }
    let sampling = sampling(&wire)?;
    let max_tokens = max_tokens(&wire)?;
    let BatonBody { scene, scene_version, refine, ratio, assist_tokens, device } = baton;
    let messages = messages(wire.messages)?;
    if let Some(at) = messages.iter().position(ChatMessage::is_about_tools) {
        return Err(ApiError::field(
            &format!("messages[{at}]"),
            "tools are not supported together with `baton`",
        ));
    }
    if let Some(at) = refine.iter().position(|&message| message >= messages.len()) {
        let want = format!("must be below {}, the number of messages", messages.len());
        return Err(ApiError::field(&format!("baton.refine[{at}]"), want));
    }
    let refine: BTreeSet<usize> = refine.into_iter().collect();
    let segment = |(at, message): (usize, ChatMessage)| Segment {
        role: message.role,
        text: message.text,
        refine: refine.contains(&at),
    };
    let request = AssistRequest {
        protocol: PROTOCOL_VERSION,
        request_id: Uuid::new_v4(),
        scene,
        scene_version,
        model: wire.model,
        tokenizer_sha256: None,
        segments: messages.into_iter().enumerate().map(segment).collect(),
        continue_from: None,
        device,
        sampling,
        refine: RefineOptions { ratio, mode: None },
        assist_tokens,
        resume: false,
    };
    request.check().map_err(|err| field_of_chat(&err))?;
    Ok(ChatWork::Assisted(Box::new(request), max_tokens))
}

/// An error of the assist protocol, by the name that the field has here.
fn field_of_chat(err: &RequestError) -> ApiError {
    let field = err.field();
    let renamed = match field.split(['.', '[']).next().unwrap_or_default() {
        "segments" => field.replacen("segments", "messages", 1),
        "sampling" => field.trim_start_matches("sampling.").to_owned(),
        "scene" | "scene_version" | "assist_tokens" | "device" => format!("baton.{field}"),
        "refine" => field.replacen("refine.", "baton.", 1),
        _ => field.to_owned(),
    };
    ApiError::field(&renamed, err)
}

/// Refuses what would change the answer and is not done here.
fn refuse_unsupported(wire: &ChatCompletionRequest) -> Result<(), ApiError> {
    let is_free =
        |value: &Option<Value>| value.as_ref().is_none_or(|value| value == "none" || value == "auto");
    let is_empty = |value: &Option<Value>| {
        value.as_ref().is_none_or(|value| value.as_object().is_some_and(|map| map.is_empty()))
    };
    let only_text = wire.modalities.as_ref().is_none_or(|kinds| kinds.iter().all(|kind| kind == "text"));
    let top = wire.top_logprobs.unwrap_or(0);
    let rules = [
        ("n", wire.n.is_none_or(|n| n == 1), "only 1 is supported"),
        ("functions", wire.functions.as_ref().is_none_or(Vec::is_empty), "use `tools`"),
        ("function_call", is_free(&wire.function_call), "use `tool_choice`"),
        ("top_logprobs", top <= TOP_LOGPROBS_MAX, "must be 0 to 20"),
        ("top_logprobs", top == 0 || wire.logprobs == Some(true), "needs `logprobs`"),
        ("logit_bias", is_empty(&wire.logit_bias), "biases are not supported"),
        ("modalities", only_text, "only `text` is supported"),
        ("store", wire.store != Some(true), "answers are never stored"),
        ("stream_options", wire.stream_options.is_none() || wire.stream == Some(true), "needs `stream`"),
    ];
    match rules.into_iter().find(|(_, fine, _)| !fine) {
        Some((field, _, message)) => Err(ApiError::field(field, message)),
        None => Ok(()),
    }
}

fn within(
    field: &'static str,
    value: Option<f64>,
    default: f64,
    min: f64,
    max: f64,
) -> Result<f32, ApiError> {
    match value {
        Some(value) if !(min..=max).contains(&value) => {
            Err(ApiError::field(field, format!("is {value}, must be {min} to {max}")))
        }
        value => Ok(value.unwrap_or(default) as f32),
    }
}

fn penalties(wire: &ChatCompletionRequest) -> Result<Penalties, ApiError> {
    Ok(Penalties {
        frequency: within("frequency_penalty", wire.frequency_penalty, 0.0, -2.0, 2.0)?,
        presence: within("presence_penalty", wire.presence_penalty, 0.0, -2.0, 2.0)?,
    })
}

/// Numbers in OpenAI's ranges; the wider ones of our own fields are checked by the protocol.
fn sampling(wire: &ChatCompletionRequest) -> Result<Sampling, ApiError> {
    let stop = match &wire.stop {
        None => Vec::new(),
        Some(Stop::One(stop)) => vec![stop.clone()],
        Some(Stop::Many(stops)) => stops.clone(),
    };
    let unit = |field, value: Option<f64>| value.map(|_| within(field, value, 1.0, 0.0, 1.0)).transpose();
    let sampling = Sampling {
        temperature: within("temperature", wire.temperature, 1.0, 0.0, 2.0)?,
        top_k: wire.top_k,
        top_p: unit("top_p", wire.top_p)?,
        min_p: unit("min_p", wire.min_p)?,
        repetition_penalty: within("repetition_penalty", wire.repetition_penalty, 1.0, 0.1, 10.0)?,
        seed: wire.seed.map_or_else(|| Uuid::new_v4().as_u64_pair().0, |seed| seed as u64),
        stop,
    };
    sampling.check().map_err(|err| field_of_chat(&err))?;
    Ok(sampling)
}

/// The smaller of both names of the limit.
fn max_tokens(wire: &ChatCompletionRequest) -> Result<Option<usize>, ApiError> {
    for (field, value) in
        [("max_tokens", wire.max_tokens), ("max_completion_tokens", wire.max_completion_tokens)]
    {
        if value == Some(0) {
            return Err(ApiError::field(field, "is 0, must be at least 1"));
        }
    }
    let max = wire.max_tokens.into_iter().chain(wire.max_completion_tokens).min();
    Ok(max.map(|max| usize::try_from(max).unwrap_or(usize::MAX)))
}

fn messages(wire: Vec<ChatMessageBody>) -> Result<Vec<ChatMessage>, ApiError> {
    if wire.is_empty() {
        return Err(ApiError::field("messages", "is empty"));
    }
    let mut messages: Vec<ChatMessage> = Vec::with_capacity(wire.len());
    let mut calls: BTreeSet<String> = BTreeSet::new();
    for (at, body) in wire.into_iter().enumerate() {
        let message = message(at, body)?;
        if let Some(id) = &message.call_id
            && !calls.contains(id)
        {
            let field = format!("messages[{at}].tool_call_id");
            return Err(ApiError::field(&field, "no earlier message has a call of this id"));
        }
        calls.extend(message.calls.iter().map(|call| call.id.clone()));
        messages.push(message);
    }
    Ok(messages)
}

fn message(at: usize, body: ChatMessageBody) -> Result<ChatMessage, ApiError> {
    let field = |name: &str| format!("messages[{at}].{name}");
    let role = match body.role.as_str() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        _ => {
            let want = "must be `system`, `developer`, `user`, `assistant` or `tool`";
            return Err(ApiError::field(&field("role"), want));
        }
    };
    for (name, value) in [("function_call", &body.function_call), ("audio", &body.audio)] {
        if value.as_ref().is_some_and(|value| !value.is_null()) {
            return Err(ApiError::field(&field(name), "is not supported"));
        }
    }
    let bodies = body.tool_calls.unwrap_or_default();
    if role != Role::Assistant && !bodies.is_empty() {
        return Err(ApiError::field(&field("tool_calls"), "only messages of the assistant have calls"));
    }
    if let Some(call) =
        bodies.iter().position(|call| call.kind.as_ref().is_some_and(|kind| kind != "function"))
    {
        return Err(ApiError::field(
            &field(&format!("tool_calls[{call}].type")),
            "only `function` is supported",
        ));
    }
    let calls: Vec<PastCall> = bodies
        .into_iter()
        .map(|call| PastCall { id: call.id, name: call.function.name, arguments: call.function.arguments })
        .collect();
    let call_id = body.tool_call_id;
    match (role == Role::Tool, call_id.is_some()) {
        (true, false) => return Err(ApiError::field(&field("tool_call_id"), "is missing")),
        (false, true) => {
            return Err(ApiError::field(
                &field("tool_call_id"),
                "only messages of role `tool` answer a call",
            ));
        }
        _ => (),
    }
    let text = match body.content {
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => joined(at, parts)?,
        None if role == Role::Assistant => String::new(),
        None => return Err(ApiError::field(&field("content"), "is missing")),
    };
    Ok(ChatMessage { role, text, calls, call_id })
}

fn joined(at: usize, parts: Vec<Part>) -> Result<String, ApiError> {
    let mut text = String::new();
    for (part_at, part) in parts.into_iter().enumerate() {
        let known = part.other.iter().all(|(_, value)| value.is_null());
        match (part.kind.as_str(), part.text) {
            ("text", Some(part)) if known => text.push_str(&part),
            ("text", Some(_)) => {
                let name =
                    part.other.iter().find(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str());
                let name: String = name.unwrap_or_default().chars().take(64).collect();
                let field = format!("messages[{at}].content[{part_at}].{name}");
                return Err(ApiError::field(&field, "is not supported"));
            }
            _ => {
                let field = format!("messages[{at}].content[{part_at}]");
                return Err(ApiError::field(&field, "only parts of type `text` are supported"));
            }
        }
    }
    Ok(text)
}
