//! Errors on the wire, in OpenAI's shape: an HTTP error answer and an `error` event have the same body.

use serde::{Deserialize, Serialize};

/// The body of an error answer: `{"error":{...}}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{error}")]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorDetail,
}

/// What went wrong, for a program (`code`) and a person (`message`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} ({code})")]
pub struct ErrorDetail {
    /// The error code, which programs act on.
    pub code: ErrorCode,
    /// One sentence for a person; never holds user text.
    pub message: String,
    /// OpenAI's coarse class of the error.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// The request field that caused the error, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
    /// How long to wait before asking again, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// Error codes, which programs act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorCode {
    /// A field is missing, unknown, of the wrong type or out of its range.
    InvalidRequest,
    /// The service does not speak this protocol version.
    UnsupportedProtocol,
    /// No such scene.
    UnknownScene,
    /// The scene version asked for is not served any more.
    SceneChanged,
    /// No such model.
    UnknownModel,
    /// The registry does not allow the device's model and adapter; the message says what to do.
    PairNotAllowed,
    /// The prompt does not fit into the model's context.
    PromptTooLong,
    /// The key is missing or wrong.
    Unauthorized,
    /// The key does not allow this.
    Forbidden,
    /// What was asked for is no longer kept.
    Gone,
    /// The service has no room now; ask again after `retry_after_ms`.
    Overloaded,
    /// The service is going down or not ready.
    Unavailable,
    /// The request took longer than allowed.
    Timeout,
    /// The service failed.
    Internal,
    /// A code that this build does not know.
    #[serde(other)]
    Other,
}

impl ErrorCode {
    /// Returns the code as it is written on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::UnsupportedProtocol => "unsupported_protocol",
            Self::UnknownScene => "unknown_scene",
            Self::SceneChanged => "scene_changed",
            Self::UnknownModel => "unknown_model",
            Self::PairNotAllowed => "pair_not_allowed",
            Self::PromptTooLong => "prompt_too_long",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::Gone => "gone",
            Self::Overloaded => "overloaded",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Internal => "internal",
            Self::Other => "other",
        }
    }

    /// Returns OpenAI's coarse class of the error, the `type` of the body.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Unauthorized => "authentication_error",
            Self::Forbidden => "permission_error",
            Self::Overloaded => "rate_limit_error",
            Self::Unavailable | Self::Timeout | Self::Internal | Self::Other => "server_error",
            _ => "invalid_request_error",
        }
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ErrorBody {
    /// Makes a body with the `type` that belongs to the code.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let kind = code.kind().to_owned();
        Self { error: ErrorDetail { code, message: message.into(), kind, param: None, retry_after_ms: None } }
    }

    /// Names the request field that caused the error.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.error.param = Some(param.into());
        self
    }

    /// Says how long to wait before asking again.
    #[must_use]
    pub fn with_retry_after_ms(mut self, retry_after_ms: u64) -> Self {
        self.error.retry_after_ms = Some(retry_after_ms);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_reads_back_and_names_its_wire_form() {
        for code in [
            ErrorCode::InvalidRequest,
            ErrorCode::UnsupportedProtocol,
            ErrorCode::UnknownScene,
            ErrorCode::SceneChanged,
            ErrorCode::UnknownModel,
            ErrorCode::PairNotAllowed,
            ErrorCode::PromptTooLong,
            ErrorCode::Unauthorized,
            ErrorCode::Forbidden,
            ErrorCode::Gone,
            ErrorCode::Overloaded,
            ErrorCode::Unavailable,
            ErrorCode::Timeout,
            ErrorCode::Internal,
            ErrorCode::Other,
        ] {
            let body = ErrorBody::new(code, "why").with_param("ratio").with_retry_after_ms(800);
            let json = serde_json::to_string(&body).unwrap();
            assert!(json.contains(&format!("\"code\":\"{code}\"")), "{json}");
            assert_eq!(serde_json::from_str::<ErrorBody>(&json).unwrap(), body);
        }
    }

    #[test]
    fn an_unknown_code_or_field_is_tolerated() {
        let body: ErrorBody =
            serde_json::from_str(r#"{"error":{"code":"brand_new","message":"m","hint":1},"x":2}"#).unwrap();
        assert_eq!(body.error.code, ErrorCode::Other);
        assert_eq!(body.to_string(), "m (other)");
    }
}
