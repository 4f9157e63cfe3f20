//! Errors as HTTP replies: the only place that knows HTTP codes.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use baton_protocol::{ErrorBody, ErrorCode, RequestError};

use serde_json::{Value, json};

use crate::service::ServiceError;

/// The longest Retry-After that OpenAI's clients follow by themselves; they take a longer one for none and ask again
/// within seconds, unless they are told not to.
const OPENAI_RETRY_MS_MAX: u64 = 60_000;

/// What openai-python and openai-node ask before they look at the status.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Whose names an error's code and type have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// The assist protocol's.
    Baton,
    /// OpenAI's, which its clients look for.
    OpenAi,
}

/// A reply that is an error.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    body: ErrorBody,
    dialect: Dialect,
}

impl ApiError {
    /// An error with its code's own status.
    pub(super) fn new(code: ErrorCode, message: impl Into<String>) -> ApiError {
        ApiError::from(ErrorBody::new(code, message))
    }

    /// An error of one field of a request.
    pub(super) fn field(field: &str, message: impl std::fmt::Display) -> ApiError {
        let message = format!("field `{field}`: {message}");
        ApiError::from(ErrorBody::new(ErrorCode::InvalidRequest, message).with_param(field))
    }

    /// The same error with a time to come back.
    pub(super) fn with_retry_after_ms(mut self, retry_after_ms: u64) -> ApiError {
        self.body.error.retry_after_ms = Some(retry_after_ms);
        self
    }

    /// The same error with the names of `dialect`.
    pub(super) fn told_in(self, dialect: Dialect) -> ApiError {
        ApiError { dialect, ..self }
    }

    /// The field that is to blame.
    #[cfg(test)]
    pub(super) fn param(&self) -> Option<&str> {
        self.body.error.param.as_deref()
    }

    /// The same error with a status that its code does not have.
    pub(super) fn with_status(mut self, status: u16) -> ApiError {
        self.status = StatusCode::from_u16(status).expect("the callers pass HTTP codes");
        self
    }
}

impl From<ErrorBody> for ApiError {
    fn from(body: ErrorBody) -> ApiError {
        ApiError { status: status(body.error.code), body, dialect: Dialect::Baton }
    }
}

impl From<ServiceError> for ApiError {
    fn from(err: ServiceError) -> ApiError {
        ApiError::from(err.to_body())
    }
}

impl From<RequestError> for ApiError {
    fn from(err: RequestError) -> ApiError {
        ApiError::from(err.to_body())
    }
}

/// A body with OpenAI's names of codes, some of which clients act on, and all of its fields. A key that is wrong or may
/// not is an error of the request there, as every other that the client can mend.
pub(super) fn openai_body(body: &ErrorBody) -> Value {
    let (code, kind) = match body.error.code {
        ErrorCode::UnknownModel => ("model_not_found", None),
        ErrorCode::PromptTooLong => ("context_length_exceeded", None),
        ErrorCode::Overloaded => ("rate_limit_exceeded", None),
        ErrorCode::Unauthorized => ("invalid_api_key", Some("invalid_request_error")),
        ErrorCode::Forbidden => ("insufficient_permissions", Some("invalid_request_error")),
        other => (other.as_str(), None),
    };
    let mut value = json!(body);
    value["error"]["code"] = code.into();
    if let Some(kind) = kind {
        value["error"]["type"] = kind.into();
    }
    if body.error.code == ErrorCode::Unauthorized {
        // LiteLLM knows a wrong key by these words alone.
        value["error"]["message"] = format!("Incorrect API key provided: {}", body.error.message).into();
    }
    value["error"]["param"] = json!(body.error.param);
    value
}

fn status(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::InvalidRequest | ErrorCode::UnsupportedProtocol | ErrorCode::PromptTooLong => {
            StatusCode::BAD_REQUEST
        }
        ErrorCode::UnknownScene | ErrorCode::UnknownModel => StatusCode::NOT_FOUND,
        ErrorCode::SceneChanged => StatusCode::CONFLICT,
        ErrorCode::Unauthorized => StatusCode::UNAUTHORIZED,
        ErrorCode::Forbidden => StatusCode::FORBIDDEN,
        ErrorCode::Gone => StatusCode::GONE,
        ErrorCode::Overloaded => StatusCode::TOO_MANY_REQUESTS,
        ErrorCode::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::Timeout => StatusCode::REQUEST_TIMEOUT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let retry_after_ms = self.body.error.retry_after_ms;
        let retry_after_s = match (self.status, retry_after_ms) {
            (_, Some(ms)) => Some(ms.div_ceil(1000)),
            (StatusCode::SERVICE_UNAVAILABLE, None) => Some(1),
            _ => None,
        };
        let body = match self.dialect {
            Dialect::Baton => json!(self.body),
            Dialect::OpenAi => openai_body(&self.body),
        };
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.dialect == Dialect::OpenAi && retry_after_ms.is_some_and(|ms| ms > OPENAI_RETRY_MS_MAX) {
            response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
