//! Errors as HTTP replies, in OpenAI's shape.

use crate::agent::AgentError;
use crate::relay::TOO_LONG;
use axum::Json;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use baton_openai::error::status;
use baton_openai::{ErrorReply, FieldError};
use baton_protocol::{ErrorBody, ErrorCode};

/// Time after which a client may retry if there were too many requests, in milliseconds.
const RETRY_AFTER_MS: u64 = 1000;

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error(transparent)]
    BadRequest(#[from] FieldError),
    #[error("this device serves the model `{served}`, not `{asked}`")]
    NoSuchModel { asked: String, served: String },
    #[error("there is no such path")]
    NoSuchPath,
    #[error("this path does not take {0}")]
    NoSuchMethod(Method),
    #[error("the body is larger than {max} bytes")]
    TooLarge { max: usize },
    #[error("the body did not end within {seconds} s")]
    SlowBody { seconds: f64 },
    #[error("too many request bodies are being read")]
    Bodies,
    #[error("a request body must be JSON, and say so: `content-type: application/json`")]
    NotJson,
    #[error("requests from {0} are not served")]
    Forbidden(String),
    #[error("missing or wrong key")]
    Unauthorized,
    #[error("{waiting} answers are running or waiting, at most {max} are allowed")]
    Busy { waiting: usize, max: usize },
    #[error("baton is stopping")]
    Stopping,
    #[error("{message}")]
    Answer { message: String, code: &'static str, written: String },
    #[error(transparent)]
    Agent(#[from] AgentError),
}

impl ApiError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::BadRequest(_)
            | Self::NoSuchPath
            | Self::NoSuchMethod(_)
            | Self::TooLarge { .. }
            | Self::NotJson
            | Self::Agent(AgentError::Request(_) | AgentError::Stop(_) | AgentError::NoDeviceForText) => {
                ErrorCode::InvalidRequest
            }
            Self::NoSuchModel { .. } => ErrorCode::UnknownModel,
            Self::SlowBody { .. } => ErrorCode::Timeout,
            Self::Forbidden(_) => ErrorCode::Forbidden,
            Self::Unauthorized => ErrorCode::Unauthorized,
            Self::Busy { .. } | Self::Bodies => ErrorCode::Overloaded,
            Self::Stopping => ErrorCode::Unavailable,
            Self::Answer { code, .. } if *code == TOO_LONG => ErrorCode::PromptTooLong,
            Self::Answer { .. } | Self::Agent(_) => ErrorCode::Internal,
        }
    }

    /// Returns the HTTP status of the code, or a more precise one.
    fn status(&self) -> StatusCode {
        match self {
            Self::NoSuchPath => StatusCode::NOT_FOUND,
            Self::NoSuchMethod(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Answer { code, .. } if *code != TOO_LONG => StatusCode::BAD_GATEWAY,
            _ => StatusCode::from_u16(status(self.code())).expect("the API's statuses are HTTP codes"),
        }
    }

    /// Returns the body. Its `written` is the text of an answer that failed and was not streamed.
    pub(super) fn reply(&self) -> ErrorReply {
        let mut body = ErrorBody::new(self.code(), self.to_string());
        match self {
            Self::BadRequest(err) => body.error.param = err.param().map(str::to_owned),
            Self::NoSuchModel { .. } => body.error.param = Some("model".to_owned()),
            Self::Busy { .. } | Self::Bodies | Self::Stopping => {
                body.error.retry_after_ms = Some(RETRY_AFTER_MS);
            }
            _ => (),
        }
        let reply = ErrorReply::from(&body);
        match self {
            Self::Answer { code, written, .. } => reply.with_code(*code).with_written(written),
            _ => reply,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let reply = self.reply();
        let retry_after_s = reply.error.retry_after_ms.map(|ms| ms.div_ceil(1000));
        let mut response = (self.status(), Json(reply)).into_response();
        if let Some(seconds) = retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if matches!(self, Self::Unauthorized) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
