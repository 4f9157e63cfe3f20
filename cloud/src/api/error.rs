//! Errors as HTTP replies.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use baton_openai::error::status;
use baton_openai::{ErrorReply, FieldError};
use baton_protocol::{ErrorBody, ErrorCode, RequestError};

use crate::service::ServiceError;

/// The longest Retry-After that OpenAI's clients obey, in milliseconds. They ignore a longer one and retry
/// within seconds, unless `x-should-retry` is `false`.
const OPENAI_RETRY_MS_MAX: u64 = 60_000;

/// The header that openai-python and openai-node read before they look at the status.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The API whose names an error uses for its code and type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// The assist protocol's names.
    Baton,
    /// OpenAI's names, which its clients look for.
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
    /// Makes an error with the default status of its code.
    pub(super) fn new(code: ErrorCode, message: impl Into<String>) -> ApiError {
        ApiError::from(ErrorBody::new(code, message))
    }

    /// Sets the time after which the client may retry.
    pub(super) fn with_retry_after_ms(mut self, retry_after_ms: u64) -> ApiError {
        self.body.error.retry_after_ms = Some(retry_after_ms);
        self
    }

    /// Sets the dialect of the reply.
    pub(super) fn told_in(self, dialect: Dialect) -> ApiError {
        ApiError { dialect, ..self }
    }

    /// Sets an HTTP status other than the code's default.
    pub(super) fn with_status(mut self, status: u16) -> ApiError {
        self.status = http_status(status);
        self
    }
}

impl From<ErrorBody> for ApiError {
    fn from(body: ErrorBody) -> ApiError {
        ApiError { status: http_status(status(body.error.code)), body, dialect: Dialect::Baton }
    }
}

impl From<FieldError> for ApiError {
    fn from(err: FieldError) -> ApiError {
        ApiError::from(ErrorBody::from(err))
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

fn http_status(status: u16) -> StatusCode {
    StatusCode::from_u16(status).expect("the callers pass HTTP codes")
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let retry_after_ms = self.body.error.retry_after_ms;
        let retry_after_s = match (self.status, retry_after_ms) {
            (_, Some(ms)) => Some(ms.div_ceil(1000)),
            (StatusCode::SERVICE_UNAVAILABLE, None) => Some(1),
            _ => None,
        };
        let mut response = match self.dialect {
            Dialect::Baton => (self.status, Json(self.body)).into_response(),
            Dialect::OpenAi => (self.status, Json(ErrorReply::from(&self.body))).into_response(),
        };
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
