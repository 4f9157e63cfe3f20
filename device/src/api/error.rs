//! Errors in OpenAI's shape; the only place of the device that knows HTTP statuses.

use crate::agent::AgentError;
use crate::relay::TOO_LONG;
use axum::Json;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error("{message}")]
    BadRequest { message: String, param: Option<String> },
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
    // The first words are those that clients look for.
    #[error("Incorrect API key provided: missing or wrong key")]
    Unauthorized,
    #[error("{waiting} answers are running or waiting, at most {max} are allowed")]
    Busy { waiting: usize, max: usize },
    #[error("baton is stopping")]
    Stopping,
    #[error("{message}")]
    Answer { message: String, code: &'static str, written: String },
    #[error("cannot answer")]
    Agent(#[from] AgentError),
}

impl ApiError {
    /// An error of one field of a request.
    pub(super) fn field(field: &str, message: impl std::fmt::Display) -> Self {
        Self::BadRequest { message: format!("field `{field}`: {message}"), param: Some(field.to_owned()) }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest { .. } | Self::Agent(AgentError::Request(_) | AgentError::Stop(_)) => {
                StatusCode::BAD_REQUEST
            }
            Self::Answer { code, .. } if *code == TOO_LONG => StatusCode::BAD_REQUEST,
            Self::NoSuchModel { .. } | Self::NoSuchPath => StatusCode::NOT_FOUND,
            Self::NoSuchMethod(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::SlowBody { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Busy { .. } | Self::Bodies => StatusCode::TOO_MANY_REQUESTS,
            Self::Answer { .. } => StatusCode::BAD_GATEWAY,
            Self::Agent(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The body: `{"error":{"message","type","param","code"}}`, and `written`: what there is of an answer that failed and
    /// was not streamed.
    pub(super) fn body(&self) -> serde_json::Value {
        let (kind, code) = match self {
            Self::BadRequest { .. } => ("invalid_request_error", "invalid_request"),
            Self::Agent(AgentError::Request(_) | AgentError::Stop(_)) => {
                ("invalid_request_error", "invalid_request")
            }
            Self::NoSuchModel { .. } => ("invalid_request_error", "model_not_found"),
            Self::NoSuchPath
            | Self::NoSuchMethod(_)
            | Self::TooLarge { .. }
            | Self::SlowBody { .. }
            | Self::NotJson => ("invalid_request_error", "invalid_request"),
            Self::Forbidden(_) => ("invalid_request_error", "insufficient_permissions"),
            Self::Unauthorized => ("invalid_request_error", "invalid_api_key"),
            Self::Busy { .. } | Self::Bodies => ("rate_limit_error", "rate_limit_exceeded"),
            Self::Stopping => ("server_error", "unavailable"),
            Self::Answer { code, .. } if *code == TOO_LONG => ("invalid_request_error", TOO_LONG),
            Self::Answer { code, .. } => ("server_error", *code),
            Self::Agent(_) => ("server_error", "internal"),
        };
        let message = match self {
            Self::Agent(err) => err.to_string(),
            _ => self.to_string(),
        };
        let param = match self {
            Self::BadRequest { param, .. } => param.as_deref(),
            Self::NoSuchModel { .. } => Some("model"),
            Self::Answer { code, .. } if *code == TOO_LONG => Some("messages"),
            _ => None,
        };
        let mut body = json!({ "error": { "message": message, "type": kind, "param": param, "code": code } });
        if let Self::Answer { written, .. } = self
            && !written.is_empty()
        {
            body["error"]["written"] = json!(written);
        }
        body
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.body())).into_response();
        if matches!(self, Self::Busy { .. } | Self::Bodies | Self::Stopping) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if matches!(self, Self::Unauthorized) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
