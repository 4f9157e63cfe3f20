//! The body of a chat request: what is understood, what is refused.

use super::error::ApiError;
use crate::segments::ChatMessage;
use baton_protocol::{Role, Sampling};
use serde::Deserialize;
use serde_json::Value;

/// Tokens of an answer where the client sets no limit.
const TOKENS_DEFAULT: usize = 512;
/// Most tokens a client may ask for.
const TOKENS_MAX: usize = 65_536;
/// Most messages.
const MESSAGES_MAX: usize = 1024;

/// Fields that change nothing here and may be sent.
const HARMLESS: &[&str] = &["user", "metadata", "store", "service_tier", "parallel_tool_calls"];

#[derive(Debug, Deserialize)]
struct Wire {
    #[serde(default)]
    model: Option<String>,
    messages: Vec<WireMessage>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(default)]
    max_tokens: Option<usize>,
    #[serde(default)]
    max_completion_tokens: Option<usize>,
    #[serde(default)]
    temperature: Option<f32>,
    #[serde(default)]
    top_p: Option<f32>,
    #[serde(default)]
    top_k: Option<u32>,
    #[serde(default)]
    min_p: Option<f32>,
    #[serde(default)]
    repetition_penalty: Option<f32>,
    #[serde(default)]
    seed: Option<u64>,
    #[serde(default)]
    stop: Option<Stop>,
    #[serde(default)]
    n: Option<u32>,
    #[serde(default)]
    response_format: Option<ResponseFormat>,
    #[serde(default)]
    truncation: Option<String>,
    #[serde(flatten)]
    other: serde_json::Map<String, Value>,
}

#[derive(Debug, Deserialize)]
struct WireMessage {
    role: String,
    content: Content,
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
    #[serde(default)]
    text: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Debug, Deserialize)]
struct ResponseFormat {
    #[serde(rename = "type")]
    kind: String,
}

/// A checked request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChatRequest {
    pub(super) model: Option<String>,
    pub(super) messages: Vec<ChatMessage>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) tokens_max: usize,
    pub(super) sampling: Sampling,
    /// A prompt that does not fit is shortened.
    pub(super) shorten: bool,
    /// The answer is JSON, so that restored values are escaped.
    pub(super) json: bool,
}

pub(super) fn parse(body: &[u8]) -> Result<ChatRequest, ApiError> {
    let wire: Wire = serde_json::from_slice(body)
        .map_err(|err| ApiError::BadRequest { message: format!("bad request body: {err}"), param: None })?;
    let refused =
        wire.other.iter().find(|(name, value)| !HARMLESS.contains(&name.as_str()) && !value.is_null());
    if let Some((name, _)) = refused {
        let message = format!("`{}` is not supported", name.chars().take(64).collect::<String>());
        return Err(ApiError::BadRequest { message, param: None });
    }
    if wire.n.is_some_and(|n| n != 1) {
        return Err(ApiError::bad("n", "`n` must be 1"));
    }
    let tokens_max = wire.max_completion_tokens.or(wire.max_tokens).unwrap_or(TOKENS_DEFAULT);
    if !(1..=TOKENS_MAX).contains(&tokens_max) {
        return Err(ApiError::bad(
            "max_tokens",
            format!("`max_tokens` is {tokens_max}, must be 1 to {TOKENS_MAX}"),
        ));
    }
    let json = match wire.response_format.as_ref().map(|f| f.kind.as_str()) {
        None | Some("text") => false,
        Some("json_object") => true,
        Some(_) => {
            return Err(ApiError::bad("response_format", "only `text` and `json_object` are supported"));
        }
    };
    let shorten = match wire.truncation.as_deref() {
        None | Some("disabled") => false,
        Some("auto") => true,
        Some(_) => return Err(ApiError::bad("truncation", "`truncation` must be `auto` or `disabled`")),
    };
    Ok(ChatRequest {
        messages: messages(wire.messages)?,
        model: wire.model,
        stream: wire.stream.unwrap_or(false),
        include_usage: wire.stream_options.is_some_and(|o| o.include_usage),
        tokens_max,
        sampling: Sampling {
            temperature: wire.temperature.unwrap_or(0.0),
            top_k: wire.top_k,
            top_p: wire.top_p,
            min_p: wire.min_p,
            repetition_penalty: wire.repetition_penalty.unwrap_or(1.0),
            seed: wire.seed.unwrap_or(0),
            stop: match wire.stop {
                None => Vec::new(),
                Some(Stop::One(stop)) => vec![stop],
                Some(Stop::Many(stops)) => stops,
            },
        },
        shorten,
        json,
    })
}

fn messages(wire: Vec<WireMessage>) -> Result<Vec<ChatMessage>, ApiError> {
    if wire.is_empty() || wire.len() > MESSAGES_MAX {
        let message = format!("{} messages, must be 1 to {MESSAGES_MAX}", wire.len());
        return Err(ApiError::bad("messages", message));
    }
    let messages = wire.into_iter().map(|message| {
        let role = match message.role.as_str() {
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "tool" => Role::Tool,
            _ => return Err(ApiError::bad("messages", "unknown role")),
        };
        let text = match message.content {
            Content::Text(text) => text,
            Content::Parts(parts) => {
                if parts.iter().any(|part| part.kind != "text") {
                    return Err(ApiError::bad("messages", "only text parts are supported"));
                }
                parts.into_iter().map(|part| part.text).collect()
            }
        };
        Ok(ChatMessage { role, text })
    });
    let messages = messages.collect::<Result<Vec<_>, _>>()?;
    match messages.iter().all(|m| m.text.is_empty()) {
        true => Err(ApiError::bad("messages", "all messages are empty")),
        false => Ok(messages),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(body: &str, want: &str) {
        let err = parse(body.as_bytes()).unwrap_err();
        assert!(err.to_string().contains(want), "{body}: {err}");
    }

    #[test]
    fn understood_fields() {
        let body = r#"{"model":"m","messages":[{"role":"developer","content":"s"},{"role":"user","content":
            [{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"stream":true,"stream_options":{"include_usage":true},
            "max_completion_tokens":7,"max_tokens":9,"stop":"x","seed":3,"user":"u","logprobs":null,
            "response_format":{"type":"json_object"}}"#;
        let request = parse(body.as_bytes()).unwrap();
        assert_eq!(request.messages[0], ChatMessage { role: Role::System, text: "s".into() });
        assert_eq!(request.messages[1].text, "ab");
        assert!(request.stream && request.include_usage && request.json);
        assert_eq!((request.tokens_max, request.sampling.seed), (7, 3));
        assert_eq!(request.sampling.stop, ["x"]);
        for (truncation, shorten) in
            [("", false), (r#","truncation":"disabled""#, false), (r#","truncation":"auto""#, true)]
        {
            let body = format!(r#"{{"messages":[{{"role":"user","content":"q"}}]{truncation}}}"#);
            assert_eq!(parse(body.as_bytes()).unwrap().shorten, shorten, "{truncation}");
        }
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        let with = |extra: &str| format!(r#"{{"messages":[{{"role":"user","content":"q"}}],{extra}}}"#);
        refused(&with(r#""tools":[]"#), "tools");
        refused(&with(r#""logprobs":true"#), "logprobs");
        refused(&with(r#""n":2"#), "`n`");
        refused(&with(r#""max_tokens":0"#), "must be 1 to");
        refused(&with(r#""max_tokens":-1"#), "bad request body");
        refused(&with(r#""temperature":"hot""#), "bad request body");
        refused(&with(r#""response_format":{"type":"json_schema"}"#), "only");
        refused(&with(r#""truncation":"middle""#), "`truncation` must be");
        refused(r#"{"messages":[]}"#, "0 messages");
        refused(r#"{"messages":[{"role":"user","content":""}]}"#, "empty");
        refused(r#"{"messages":[{"role":"wizard","content":"q"}]}"#, "role");
        refused(r#"{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}"#, "text parts");
        refused("{", "bad request body");
    }
}
