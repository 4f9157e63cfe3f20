//! Anthropic's Messages API: requests as the one request of all dialects, replies, streams, errors.
//!
//! | module | holds |
//! |---|---|
//! | `wire` | the fields of a request, as clients send them |
//! | `request` | the request, checked and translated |
//! | `writer` | the answer, in one piece and as events |
//!
//! Always: what cannot be translated is refused by name. Thinking of earlier turns is left out of the prompt,
//! as Anthropic does.

mod request;
mod wire;
mod writer;

use serde_json::{Value, json};

pub use self::request::{read_count, read_messages};
use crate::error::ErrorReply;

/// What programs look for to find out that a prompt is too long, and shorten it.
const TOO_LONG: &str = "prompt is too long";
/// Anthropic's status of a service that is overloaded.
const OVERLOADED: u16 = 529;

/// Returns the HTTP status and the body of an error that has this status for OpenAI's clients.
pub(crate) fn error(status: u16, reply: &ErrorReply) -> (u16, Value) {
    let error = &reply.error;
    let message = match error.code.as_str() {
        "context_length_exceeded" => format!("{TOO_LONG}: {}", error.message),
        _ => error.message.clone(),
    };
    let (status, kind) = match (error.code.as_str(), status) {
        ("invalid_api_key", _) => (401, "authentication_error"),
        ("insufficient_permissions", _) => (403, "permission_error"),
        ("rate_limit_exceeded", _) => (429, "rate_limit_error"),
        ("unavailable", _) => (OVERLOADED, "overloaded_error"),
        (_, 404) => (404, "not_found_error"),
        (_, 413) => (413, "request_too_large"),
        (_, 400..500) => (status, "invalid_request_error"),
        _ => (500, "api_error"),
    };
    let mut detail = json!({ "type": kind, "message": message });
    if let Some(written) = &error.written {
        detail["written"] = json!(written);
    }
    (status, json!({ "type": "error", "error": detail }))
}

/// Returns the name that a field of the translated request has in a request of this API.
fn field(name: &str) -> String {
    match name {
        "parallel_tool_calls" => return "tool_choice.disable_parallel_tool_use".to_owned(),
        "tool_choice.function.name" | "tool_choice.function" => return "tool_choice.name".to_owned(),
        "response_format.json_schema.schema" => return "output_config.format.schema".to_owned(),
        _ => (),
    }
    if let Some(rest) = name.strip_prefix("response_format") {
        return format!("output_config.format{rest}");
    }
    if let Some(rest) = name.strip_prefix("stop").filter(|rest| rest.is_empty() || rest.starts_with('[')) {
        return format!("stop_sequences{rest}");
    }
    name.replace(".function.parameters", ".input_schema").replace(".function.", ".")
}

#[cfg(test)]
mod tests;
