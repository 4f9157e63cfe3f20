//! The body of a chat request: what is understood, what is refused.
//!
//! Always: a value that asks for nothing (an empty list, a penalty of 0, null) is taken; what this device does not do is
//! refused with the field's name, never ignored. Ranges and defaults are OpenAI's, as the cloud's chat API has them: a
//! temperature of 1, and another answer each time unless a seed is set.

mod wire;

#[cfg(test)]
mod tests;

use super::error::ApiError;
use crate::segments::ChatMessage;
use baton_protocol::{Role, Sampling, check_shape};
use serde_json::{Map, Value};
use uuid::Uuid;
use wire::{Content, Message, Part, Stop, Wire};

/// Tokens of an answer if the client sets no limit.
const TOKENS_DEFAULT: u64 = 512;
/// Most tokens a client may ask for.
pub(crate) const TOKENS_MAX: u64 = 65_536;
/// Most messages.
const MESSAGES_MAX: usize = 1024;
/// Characters of a client's own words that an error repeats.
const WORDS_MAX: usize = 200;

/// A checked request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChatRequest {
    pub(super) model: Option<String>,
    pub(super) messages: Vec<ChatMessage>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) include_progress: bool,
    pub(super) tokens_max: usize,
    pub(super) sampling: Sampling,
    /// A prompt that does not fit is shortened.
    pub(super) shorten: bool,
}

/// Reads and checks a request.
pub(super) fn parse(body: &[u8]) -> Result<ChatRequest, ApiError> {
    // Before anything is built: small values cost many times their length.
    check_shape(body).map_err(|err| ApiError::BadRequest { message: err.to_string(), param: None })?;
    let mut parser = serde_json::Deserializer::from_slice(body);
    let wire: Wire = serde_path_to_error::deserialize(&mut parser)
        .map_err(|err| unreadable(&err.path().to_string(), err.inner()))?;
    parser.end().map_err(|err| unreadable(".", &err))?;
    refuse_unsupported(&wire)?;
    let options = wire.stream_options.as_ref();
    Ok(ChatRequest {
        stream: wire.stream.unwrap_or(false),
        include_usage: options.and_then(|options| options.include_usage).unwrap_or(false),
        include_progress: options.and_then(|options| options.include_progress).unwrap_or(false),
        tokens_max: tokens_max(&wire)?,
        sampling: sampling(&wire)?,
        shorten: wire.truncation.as_deref() == Some("auto"),
        messages: messages(wire.messages)?,
        model: wire.model,
    })
}

/// A body that is no JSON, or a field of the wrong type.
fn unreadable(path: &str, err: &serde_json::Error) -> ApiError {
    let words = short(&err.to_string());
    if err.is_syntax() || err.is_eof() || err.is_io() {
        return ApiError::BadRequest { message: format!("the body is not JSON: {words}"), param: None };
    }
    match path {
        "." | "?" => ApiError::BadRequest { message: format!("bad request body: {words}"), param: None },
        path => ApiError::field(&short(path), words),
    }
}

fn short(words: &str) -> String {
    words.chars().filter(|c| !c.is_control()).take(WORDS_MAX).collect()
}

/// Refuses what would change the answer and is not done here.
fn refuse_unsupported(wire: &Wire) -> Result<(), ApiError> {
    unknown("", &wire.other)?;
    let is_free =
        |value: &Option<Value>| value.as_ref().is_none_or(|value| value == "none" || value == "auto");
    let is_zero = |value: Option<f64>| value.is_none_or(|value| value == 0.0);
    let only_text = wire.modalities.as_ref().is_none_or(|kinds| kinds.iter().all(|kind| kind == "text"));
    let no_penalty = "must be 0 on this device; `repetition_penalty` is supported";
    let no_tools = "tools are not supported on this device; leave it empty";
    let truncation = wire.truncation.as_deref().is_none_or(|word| matches!(word, "auto" | "disabled"));
    let format = wire.response_format.as_ref();
    let rules = [
        ("n", wire.n.is_none_or(|n| n == 1), "only 1 is supported"),
        ("tools", wire.tools.as_ref().is_none_or(Vec::is_empty), no_tools),
        ("tool_choice", is_free(&wire.tool_choice), "must be `none` or `auto`: there are no tools"),
        ("functions", wire.functions.as_ref().is_none_or(Vec::is_empty), no_tools),
        ("function_call", is_free(&wire.function_call), "must be `none` or `auto`: there are no functions"),
        ("frequency_penalty", is_zero(wire.frequency_penalty), no_penalty),
        ("presence_penalty", is_zero(wire.presence_penalty), no_penalty),
        ("logprobs", wire.logprobs != Some(true), "log probabilities are not supported on this device"),
        ("top_logprobs", wire.top_logprobs.is_none_or(|top| top == 0), "must be 0 on this device"),
        ("logit_bias", wire.logit_bias.as_ref().is_none_or(Map::is_empty), "biases are not supported"),
        (
            "response_format",
            format.is_none_or(|format| format.kind == "text"),
            "only `text` is supported on this device: it cannot hold the model to JSON or a schema; the cloud's own \
             chat API can",
        ),
        ("truncation", truncation, "must be `auto` or `disabled`"),
        ("modalities", only_text, "only `text` is supported"),
        ("store", wire.store != Some(true), "answers are never stored"),
        ("stream_options", wire.stream_options.is_none() || wire.stream == Some(true), "needs `stream`"),
    ];
    match rules.into_iter().find(|(_, fine, _)| !fine) {
        Some((field, _, message)) => Err(ApiError::field(field, message)),
        None => Ok(()),
    }
}

/// Refuses a field that is not known, unless it is null.
fn unknown(path: &str, other: &Map<String, Value>) -> Result<(), ApiError> {
    match other.iter().find(|(_, value)| !value.is_null()) {
        Some((name, _)) => {
            Err(ApiError::field(&format!("{path}{}", short(name)), "is not supported on this device"))
        }
        None => Ok(()),
    }
}

/// The smaller of both names of the limit.
fn tokens_max(wire: &Wire) -> Result<usize, ApiError> {
    let limits = [("max_tokens", wire.max_tokens), ("max_completion_tokens", wire.max_completion_tokens)];
    for (field, value) in limits {
        if let Some(value) = value.filter(|value| !(1..=TOKENS_MAX).contains(value)) {
            return Err(ApiError::field(field, format!("is {value}, must be 1 to {TOKENS_MAX}")));
        }
    }
    let tokens = limits.into_iter().filter_map(|(_, value)| value).min().unwrap_or(TOKENS_DEFAULT);
    Ok(usize::try_from(tokens).unwrap_or(usize::MAX))
}

fn within(field: &str, value: Option<f64>, min: f64, max: f64) -> Result<Option<f32>, ApiError> {
    match value {
        Some(value) if !(min..=max).contains(&value) => {
            Err(ApiError::field(field, format!("is {value}, must be {min} to {max}")))
        }
        value => Ok(value.map(|value| value as f32)),
    }
}

/// Numbers in OpenAI's ranges; those of our own fields, and stop strings, as the protocol has them.
fn sampling(wire: &Wire) -> Result<Sampling, ApiError> {
    let sampling = Sampling {
        temperature: within("temperature", wire.temperature, 0.0, 2.0)?.unwrap_or(1.0),
        top_k: wire.top_k,
        top_p: within("top_p", wire.top_p, 0.0, 1.0)?,
        min_p: within("min_p", wire.min_p, 0.0, 1.0)?,
        repetition_penalty: within("repetition_penalty", wire.repetition_penalty, 0.1, 10.0)?.unwrap_or(1.0),
        seed: wire.seed.map_or_else(|| Uuid::new_v4().as_u64_pair().0, |seed| seed as u64),
        stop: match &wire.stop {
            None => Vec::new(),
            Some(Stop::One(stop)) => vec![stop.clone()],
            Some(Stop::Many(stops)) => stops.clone(),
        },
    };
    sampling.check().map_err(|err| {
        let field = err.field().trim_start_matches("sampling.").to_owned();
        ApiError::BadRequest { message: err.to_string().replace("sampling.", ""), param: Some(field) }
    })?;
    Ok(sampling)
}

fn messages(wire: Vec<Message>) -> Result<Vec<ChatMessage>, ApiError> {
    if wire.is_empty() || wire.len() > MESSAGES_MAX {
        let message = format!("has {} messages, must have 1 to {MESSAGES_MAX}", wire.len());
        return Err(ApiError::field("messages", message));
    }
    let messages: Vec<ChatMessage> =
        wire.into_iter().enumerate().map(|(at, body)| message(at, body)).collect::<Result<_, _>>()?;
    match messages.iter().all(|message| message.text.is_empty()) {
        true => Err(ApiError::field("messages", "all messages are empty")),
        false => Ok(messages),
    }
}

fn message(at: usize, body: Message) -> Result<ChatMessage, ApiError> {
    let field = |name: &str| format!("messages[{at}].{name}");
    unknown(&field(""), &body.other)?;
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
    if body.tool_calls.is_some_and(|calls| !calls.is_empty()) {
        return Err(ApiError::field(&field("tool_calls"), "tools are not supported on this device"));
    }
    let text = match body.content {
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => joined(at, parts)?,
        None if role == Role::Assistant => String::new(),
        None => return Err(ApiError::field(&field("content"), "is missing")),
    };
    Ok(ChatMessage { role, text })
}

fn joined(at: usize, parts: Vec<Part>) -> Result<String, ApiError> {
    let mut text = String::new();
    for (part_at, part) in parts.into_iter().enumerate() {
        match (part.kind.as_str(), part.text) {
            ("text", Some(part)) => text.push_str(&part),
            _ => {
                let field = format!("messages[{at}].content[{part_at}]");
                return Err(ApiError::field(&field, "only parts of type `text` are supported"));
            }
        }
    }
    Ok(text)
}
