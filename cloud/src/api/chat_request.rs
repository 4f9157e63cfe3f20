//! A chat completion request as OpenAI's clients send it.
//!
//! Always: what this service does not do is refused with 400 and the field's name, never silently ignored. Fields
//! that ask for nothing (empty lists, penalties of 0, `n` of 1) and those that only describe the caller are taken.

use baton_protocol::{Role, Sampling, Segment};
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::error::ApiError;
use crate::completion::CompletionRequest;

/// A request, translated, and how the answer is to be sent.
#[derive(Debug)]
pub(super) struct ChatRequest {
    pub(super) completion: CompletionRequest,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    model: String,
    messages: Vec<WireMessage>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<u32>,
    min_p: Option<f64>,
    repetition_penalty: Option<f64>,
    seed: Option<i64>,
    stop: Option<Stop>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    n: Option<u64>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    logprobs: Option<bool>,
    top_logprobs: Option<u64>,
    logit_bias: Option<Value>,
    response_format: Option<Value>,
    modalities: Option<Vec<String>>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    functions: Option<Vec<Value>>,
    store: Option<bool>,
    // These describe the caller or the scheduling elsewhere; they change nothing here.
    #[serde(rename = "user")]
    _user: Option<String>,
    #[serde(rename = "metadata")]
    _metadata: Option<Value>,
    #[serde(rename = "service_tier")]
    _service_tier: Option<String>,
    #[serde(rename = "parallel_tool_calls")]
    _parallel_tool_calls: Option<bool>,
    #[serde(rename = "safety_identifier")]
    _safety_identifier: Option<String>,
    #[serde(rename = "prompt_cache_key")]
    _prompt_cache_key: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireMessage {
    role: String,
    content: Option<Content>,
    tool_calls: Option<Vec<Value>>,
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "tool_call_id")]
    _tool_call_id: Option<String>,
    #[serde(rename = "refusal")]
    _refusal: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    include_usage: Option<bool>,
    #[serde(rename = "include_obfuscation")]
    _include_obfuscation: Option<bool>,
}

/// Reads and checks a request.
pub(super) fn parse(json: &[u8]) -> Result<ChatRequest, ApiError> {
    let mut parser = serde_json::Deserializer::from_slice(json);
    let wire: Wire = serde_path_to_error::deserialize(&mut parser)
        .map_err(|err| ApiError::field(&err.path().to_string(), err.inner()))?;
    parser.end().map_err(|err| ApiError::field(".", err))?;
    refuse_unsupported(&wire)?;
    let stream = wire.stream.unwrap_or(false);
    let include_usage =
        wire.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false);
    let sampling = sampling(&wire)?;
    let max_tokens = max_tokens(&wire)?;
    let messages = messages(wire.messages)?;
    let completion = CompletionRequest { model: wire.model, messages, sampling, max_tokens };
    Ok(ChatRequest { completion, stream, include_usage })
}

/// Refuses what would change the answer and is not done here.
fn refuse_unsupported(wire: &Wire) -> Result<(), ApiError> {
    let is_none =
        |value: &Option<Value>| value.as_ref().is_none_or(|value| value == "none" || value == "auto");
    let is_text = |value: &Option<Value>| value.as_ref().is_none_or(|value| value["type"] == "text");
    let is_empty = |value: &Option<Value>| {
        value.as_ref().is_none_or(|value| value.as_object().is_some_and(|map| map.is_empty()))
    };
    let zero = |value: Option<f64>| value.is_none_or(|value| value == 0.0);
    let only_text = wire.modalities.as_ref().is_none_or(|kinds| kinds.iter().all(|kind| kind == "text"));
    let rules = [
        ("n", wire.n.is_none_or(|n| n == 1), "only 1 is supported"),
        ("tools", wire.tools.as_ref().is_none_or(Vec::is_empty), "tools are not supported"),
        ("tool_choice", is_none(&wire.tool_choice), "tools are not supported"),
        ("functions", wire.functions.as_ref().is_none_or(Vec::is_empty), "functions are not supported"),
        ("response_format", is_text(&wire.response_format), "only `text` is supported"),
        ("logprobs", wire.logprobs != Some(true), "log probabilities are not supported"),
        ("top_logprobs", wire.top_logprobs.unwrap_or(0) == 0, "log probabilities are not supported"),
        ("logit_bias", is_empty(&wire.logit_bias), "biases are not supported"),
        ("frequency_penalty", zero(wire.frequency_penalty), "only 0 is supported; see `repetition_penalty`"),
        ("presence_penalty", zero(wire.presence_penalty), "only 0 is supported; see `repetition_penalty`"),
        ("modalities", only_text, "only `text` is supported"),
        ("store", wire.store != Some(true), "answers are never stored"),
        ("stream_options", wire.stream_options.is_none() || wire.stream == Some(true), "needs `stream`"),
    ];
    match rules.into_iter().find(|(_, fine, _)| !fine) {
        Some((field, _, message)) => Err(ApiError::field(field, message)),
        None => Ok(()),
    }
}

/// Numbers in OpenAI's ranges; the wider ones of our own fields are checked by the service.
fn sampling(wire: &Wire) -> Result<Sampling, ApiError> {
    let within = |field: &'static str, value: Option<f64>, default: f64, min: f64, max: f64| match value {
        Some(value) if !(min..=max).contains(&value) => {
            Err(ApiError::field(field, format!("is {value}, must be {min} to {max}")))
        }
        value => Ok(value.unwrap_or(default) as f32),
    };
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
    sampling.check()?;
    Ok(sampling)
}

/// The smaller of both names of the limit.
fn max_tokens(wire: &Wire) -> Result<Option<usize>, ApiError> {
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

fn messages(wire: Vec<WireMessage>) -> Result<Vec<Segment>, ApiError> {
    if wire.is_empty() {
        return Err(ApiError::field("messages", "is empty"));
    }
    wire.into_iter().enumerate().map(|(at, message)| segment(at, message)).collect()
}

fn segment(at: usize, message: WireMessage) -> Result<Segment, ApiError> {
    let role = match message.role.as_str() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        _ => {
            let want = "must be `system`, `developer`, `user`, `assistant` or `tool`";
            return Err(ApiError::field(&format!("messages[{at}].role"), want));
        }
    };
    if message.tool_calls.is_some_and(|calls| !calls.is_empty()) {
        return Err(ApiError::field(&format!("messages[{at}].tool_calls"), "tools are not supported"));
    }
    let text = match message.content {
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => joined(at, parts)?,
        None if role == Role::Assistant => String::new(),
        None => return Err(ApiError::field(&format!("messages[{at}].content"), "is missing")),
    };
    Ok(Segment::fixed(role, text))
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn base(extra: Value) -> Value {
        let mut request = json!({ "model": "m", "messages": [{ "role": "user", "content": "hello" }] });
        for (key, value) in extra.as_object().unwrap() {
            request[key] = value.clone();
        }
        request
    }

    #[track_caller]
    fn taken(extra: Value) -> ChatRequest {
        let request = base(extra);
        parse(request.to_string().as_bytes()).unwrap_or_else(|err| panic!("{request}: {err:?}"))
    }

    #[track_caller]
    fn refused(extra: Value, field: &str) {
        let err = parse(base(extra).to_string().as_bytes()).unwrap_err();
        let shown = format!("{err:?}");
        assert!(shown.contains(&format!("field `{field}")), "want {field}: {shown}");
    }

    #[test]
    fn limits_and_stops_in_both_forms() {
        assert_eq!(taken(json!({})).completion.max_tokens, None);
        assert_eq!(taken(json!({ "max_tokens": 5 })).completion.max_tokens, Some(5));
        assert_eq!(taken(json!({ "max_completion_tokens": 7 })).completion.max_tokens, Some(7));
        let both = json!({ "max_tokens": 5, "max_completion_tokens": 7 });
        assert_eq!(taken(both).completion.max_tokens, Some(5));
        assert_eq!(taken(json!({ "stop": "a" })).completion.sampling.stop, ["a"]);
        assert_eq!(taken(json!({ "stop": ["a", "b"] })).completion.sampling.stop, ["a", "b"]);
        assert!(taken(json!({ "stop": null })).completion.sampling.stop.is_empty());
        assert_eq!(taken(json!({ "seed": -1 })).completion.sampling.seed, u64::MAX);
        assert_eq!(taken(json!({})).completion.sampling.temperature, 1.0);
        let streamed = taken(json!({ "stream": true, "stream_options": { "include_usage": true } }));
        assert!(streamed.stream && streamed.include_usage);
    }

    #[test]
    fn contents_in_parts() {
        let parts = json!([{ "role": "developer", "content": [
            { "type": "text", "text": "a" }, { "type": "text", "text": "b" }] }]);
        let messages = taken(json!({ "messages": parts })).completion.messages;
        assert_eq!(messages, [Segment::fixed(Role::System, "ab")]);
    }

    #[test]
    fn fields_that_ask_for_nothing_are_taken() {
        taken(json!({ "n": 1, "tools": [], "tool_choice": "none", "logprobs": false, "logit_bias": {},
            "frequency_penalty": 0, "presence_penalty": 0.0, "response_format": { "type": "text" },
            "modalities": ["text"], "user": "u", "metadata": { "a": "b" }, "store": false,
            "service_tier": "auto", "parallel_tool_calls": true, "top_k": null, "stream": null }));
    }

    #[test]
    fn what_is_not_done_is_refused() {
        refused(json!({ "n": 2 }), "n");
        refused(json!({ "tools": [{}] }), "tools");
        refused(json!({ "tool_choice": "required" }), "tool_choice");
        refused(json!({ "response_format": { "type": "json_object" } }), "response_format");
        refused(json!({ "logprobs": true }), "logprobs");
        refused(json!({ "logit_bias": { "5": 1 } }), "logit_bias");
        refused(json!({ "frequency_penalty": 0.5 }), "frequency_penalty");
        refused(json!({ "store": true }), "store");
        refused(json!({ "stream_options": { "include_usage": true } }), "stream_options");
        refused(json!({ "audio": {} }), "audio");
        refused(json!({ "messages": [] }), "messages");
        refused(json!({ "messages": [{ "role": "wizard", "content": "x" }] }), "messages[0].role");
        refused(json!({ "messages": [{ "role": "user" }] }), "messages[0].content");
        let image = json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }]);
        refused(json!({ "messages": image }), "messages[0].content[0]");
    }

    #[test]
    fn numbers_have_ranges() {
        refused(json!({ "temperature": 2.5 }), "temperature");
        refused(json!({ "temperature": -1 }), "temperature");
        refused(json!({ "temperature": "hot" }), "temperature");
        refused(json!({ "top_p": 1.5 }), "top_p");
        refused(json!({ "top_k": 0 }), "sampling.top_k");
        refused(json!({ "max_tokens": 0 }), "max_tokens");
        refused(json!({ "max_tokens": -1 }), "max_tokens");
        refused(json!({ "max_tokens": 1.5 }), "max_tokens");
        refused(json!({ "repetition_penalty": 0 }), "repetition_penalty");
        refused(json!({ "stop": [""] }), "sampling.stop[0]");
        let infinite = br#"{"model":"m","messages":[],"temperature":1e400}"#;
        assert!(parse(infinite).is_err());
        assert!(parse(b"{} {}").is_err());
        assert!(parse(b"").is_err());
        assert!(parse(b"\xff").is_err());
    }
}
