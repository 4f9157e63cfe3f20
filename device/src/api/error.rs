//! Errors in OpenAI's shape; the only place of the device that knows HTTP statuses.

use crate::agent::AgentError;
use crate::relay::TOO_LONG;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error("{message}")]
    BadRequest { message: String, param: Option<&'static str> },
    #[error("requests from {0} are not served")]
    Forbidden(String),
    #[error("missing or wrong key")]
    Unauthorized,
    #[error("{waiting} answers are running or waiting, at most {max} are allowed")]
    Busy { waiting: usize, max: usize },
    #[error("{message}")]
    Answer { message: String, code: &'static str, written: String },
    #[error("cannot answer")]
    Agent(#[from] AgentError),
}

impl ApiError {
    pub(super) fn bad(param: &'static str, message: impl Into<String>) -> Self {
        Self::BadRequest { message: message.into(), param: Some(param) }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest { .. } | Self::Agent(AgentError::Request(_) | AgentError::Stop(_)) => {
                StatusCode::BAD_REQUEST
            }
            Self::Answer { code, .. } if *code == TOO_LONG => StatusCode::BAD_REQUEST,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
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
            Self::Forbidden(_) => ("permission_error", "forbidden"),
            Self::Unauthorized => ("authentication_error", "unauthorized"),
            Self::Busy { .. } => ("rate_limit_error", "overloaded"),
            Self::Answer { code, .. } if *code == TOO_LONG => ("invalid_request_error", TOO_LONG),
            Self::Answer { code, .. } => ("server_error", *code),
            Self::Agent(_) => ("server_error", "internal"),
        };
        let message = match self {
            Self::Agent(err) => err.to_string(),
            _ => self.to_string(),
        };
        let param = match self {
            Self::BadRequest { param, .. } => *param,
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
        if matches!(self, Self::Busy { .. }) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
