//! Refusals, and the body of an error as OpenAI's clients expect it.
//!
//! Always: `type`, `param` and `code` have OpenAI's names, because clients act on some of them. `param` is
//! the field's name in a chat request. Never: holds text of the request's messages.

use std::fmt;

use baton_protocol::{ErrorBody, ErrorCode, RequestError};
use serde::Serialize;
use utoipa::ToSchema;

/// Why a request was refused: one sentence, and the name of the wrong field if there is one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct FieldError {
    message: String,
    param: Option<String>,
}

impl FieldError {
    /// Makes a refusal of one field, given its path.
    pub fn new(field: impl Into<String>, message: impl fmt::Display) -> FieldError {
        let field = field.into();
        FieldError { message: format!("field `{field}`: {message}"), param: Some(field) }
    }

    /// Makes a refusal of the request as a whole.
    pub fn whole(message: impl Into<String>) -> FieldError {
        FieldError { message: message.into(), param: None }
    }

    /// Gives the field the name that it has in another dialect.
    pub(crate) fn renamed(mut self, rename: impl FnOnce(&str) -> String) -> FieldError {
        if let Some(param) = self.param.take() {
            let name = rename(&param);
            self.message = self.message.replacen(&format!("`{param}`"), &format!("`{name}`"), 1);
            self.param = Some(name);
        }
        self
    }

    /// Returns the path of the wrong field, or `None` if the request as a whole was refused.
    pub fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }
}

/// Converts an error of the assist protocol. Fields get the names that they have in a chat request.
impl From<RequestError> for FieldError {
    fn from(err: RequestError) -> FieldError {
        let field = chat_field(err.field());
        let message = err.to_string().replacen(err.field(), &field, 1);
        FieldError { message, param: Some(field) }
    }
}

impl From<FieldError> for ErrorBody {
    fn from(err: FieldError) -> ErrorBody {
        let mut body = ErrorBody::new(ErrorCode::InvalidRequest, err.message);
        body.error.param = err.param;
        body
    }
}

/// An error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ErrorReply {
    /// What went wrong.
    pub error: ErrorDetail,
}

/// What went wrong, for a program (`code`) and a person (`message`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ErrorDetail {
    /// One sentence; never holds text of the request's messages.
    pub message: String,
    /// OpenAI's type of the error.
    #[serde(rename = "type")]
    pub kind: String,
    /// The wrong field, or null if the error is not about one field.
    pub param: Option<String>,
    /// Code for programs to act on, e.g. `invalid_request`, `model_not_found`, `rate_limit_exceeded`.
    pub code: String,
    /// Time to wait before a retry, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Text that was written before the answer failed, if the answer was not streamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<String>,
}

impl ErrorReply {
    /// Makes an error with OpenAI's names for this code.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> ErrorReply {
        ErrorReply::from(&ErrorBody::new(code, message))
    }

    /// Sets the wrong field.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> ErrorReply {
        self.error.param = Some(param.into());
        self
    }

    /// Sets a code that OpenAI has no name for.
    #[must_use]
    pub fn with_code(mut self, code: impl Into<String>) -> ErrorReply {
        self.error.code = code.into();
        self
    }

    /// Adds the text that was written before the answer failed, if there is any.
    #[must_use]
    pub fn with_written(mut self, written: &str) -> ErrorReply {
        self.error.written = Some(written.to_owned()).filter(|written| !written.is_empty());
        self
    }
}

/// Converts an error of the assist protocol. Codes, types and fields get OpenAI's names.
impl From<&ErrorBody> for ErrorReply {
    fn from(body: &ErrorBody) -> ErrorReply {
        let detail = &body.error;
        let (code, kind) = names(detail.code);
        let message = match detail.code {
            // LiteLLM recognizes a wrong key by these words alone.
            ErrorCode::Unauthorized => format!("Incorrect API key provided: {}", detail.message),
            _ => detail.message.clone(),
        };
        let param = match (&detail.param, detail.code) {
            (Some(param), _) => Some(chat_field(param)),
            (None, ErrorCode::PromptTooLong) => Some("messages".to_owned()),
            (None, _) => None,
        };
        let error = ErrorDetail {
            message,
            kind: kind.to_owned(),
            param,
            code: code.to_owned(),
            retry_after_ms: detail.retry_after_ms,
            written: None,
        };
        ErrorReply { error }
    }
}

/// Returns OpenAI's code and type. OpenAI counts a wrong or insufficient key as an error of the request, like
/// every other error that the client can correct.
fn names(code: ErrorCode) -> (&'static str, &'static str) {
    match code {
        ErrorCode::UnknownModel => ("model_not_found", code.kind()),
        ErrorCode::PromptTooLong => ("context_length_exceeded", code.kind()),
        ErrorCode::Overloaded => ("rate_limit_exceeded", code.kind()),
        ErrorCode::Unauthorized => ("invalid_api_key", "invalid_request_error"),
        ErrorCode::Forbidden => ("insufficient_permissions", "invalid_request_error"),
        other => (other.as_str(), other.kind()),
    }
}

/// Returns the HTTP status of an error code. A program may use a more precise one.
pub fn status(code: ErrorCode) -> u16 {
    match code {
        ErrorCode::InvalidRequest | ErrorCode::UnsupportedProtocol | ErrorCode::PromptTooLong => 400,
        ErrorCode::Unauthorized => 401,
        ErrorCode::Forbidden => 403,
        ErrorCode::UnknownScene | ErrorCode::UnknownModel => 404,
        ErrorCode::Timeout => 408,
        ErrorCode::SceneChanged | ErrorCode::PairNotAllowed => 409,
        ErrorCode::Gone => 410,
        ErrorCode::Overloaded => 429,
        ErrorCode::Unavailable => 503,
        _ => 500,
    }
}

/// Returns the name that a field of the assist protocol has in a chat request.
fn chat_field(field: &str) -> String {
    match field.split(['.', '[']).next().unwrap_or_default() {
        "segments" => field.replacen("segments", "messages", 1).replace(".text", ".content"),
        "sampling" => field.trim_start_matches("sampling.").to_owned(),
        "scene" | "scene_version" | "assist_tokens" | "device" => format!("baton.{field}"),
        "refine" => field.replacen("refine.", "baton.", 1),
        _ => field.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use baton_protocol::{Sampling, limits};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn codes_and_types_are_openais() {
        for (code, want_code, want_kind, want_status) in [
            (ErrorCode::InvalidRequest, "invalid_request", "invalid_request_error", 400),
            (ErrorCode::UnknownModel, "model_not_found", "invalid_request_error", 404),
            (ErrorCode::PromptTooLong, "context_length_exceeded", "invalid_request_error", 400),
            (ErrorCode::Overloaded, "rate_limit_exceeded", "rate_limit_error", 429),
            (ErrorCode::Unauthorized, "invalid_api_key", "invalid_request_error", 401),
            (ErrorCode::Forbidden, "insufficient_permissions", "invalid_request_error", 403),
            (ErrorCode::Unavailable, "unavailable", "server_error", 503),
            (ErrorCode::Timeout, "timeout", "server_error", 408),
            (ErrorCode::Internal, "internal", "server_error", 500),
        ] {
            let ErrorReply { error } = ErrorReply::new(code, "why");
            assert_eq!((error.code.as_str(), error.kind.as_str()), (want_code, want_kind));
            assert_eq!(status(code), want_status, "{want_code}");
        }
    }

    #[test]
    fn a_body_has_all_of_openais_fields() {
        let body = |reply: ErrorReply| serde_json::to_value(reply).unwrap();
        let error = json!({ "message": "m", "type": "invalid_request_error", "param": null, "code": "invalid_request" });
        assert_eq!(body(ErrorReply::new(ErrorCode::InvalidRequest, "m")), json!({ "error": error }));
        let busy = ErrorBody::new(ErrorCode::Overloaded, "m").with_retry_after_ms(1500);
        assert_eq!(body(ErrorReply::from(&busy))["error"]["retry_after_ms"], 1500);
        let key = body(ErrorReply::new(ErrorCode::Unauthorized, "it is missing"));
        assert_eq!(key["error"]["message"], "Incorrect API key provided: it is missing");
        for (written, want) in [("So far", json!("So far")), ("", Value::Null)] {
            let failed =
                ErrorReply::new(ErrorCode::Internal, "m").with_code("device_failed").with_written(written);
            let failed = body(failed);
            assert_eq!(
                (&failed["error"]["written"], &failed["error"]["code"]),
                (&want, &json!("device_failed"))
            );
        }
    }

    #[test]
    fn a_field_has_the_name_that_it_has_in_a_chat_request() {
        for (field, want) in [
            ("segments[3].text", "messages[3].content"),
            ("segments", "messages"),
            ("sampling.stop[0]", "stop[0]"),
            ("scene", "baton.scene"),
            ("device.class", "baton.device.class"),
            ("refine.ratio", "baton.ratio"),
            ("tools[0].function.parameters", "tools[0].function.parameters"),
            ("response_format.json_schema.schema", "response_format.json_schema.schema"),
            ("model", "model"),
        ] {
            let body = ErrorBody::new(ErrorCode::InvalidRequest, "m").with_param(field);
            assert_eq!(ErrorReply::from(&body).error.param.as_deref(), Some(want));
        }
        let limit = limits::STOPS_MAX;
        let sampling = Sampling { stop: vec!["x".to_owned(); limit + 1], ..Sampling::default() };
        let stops = FieldError::from(sampling.check().unwrap_err());
        assert_eq!(
            (stops.param(), stops.to_string().contains("field `stop`")),
            (Some("stop"), true),
            "{stops}"
        );
        let long = ErrorReply::new(ErrorCode::PromptTooLong, "m");
        assert_eq!(long.error.param.as_deref(), Some("messages"));
    }
}
