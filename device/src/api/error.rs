//! Errors as HTTP replies: in OpenAI's shape, or in that of the dialect whose path was asked.

use crate::agent::AgentError;
use crate::documents::Unreadable;
use crate::models::PullError;
use crate::relay::{CLOUD_OVERLOADED, INVALID, TOO_LONG};
use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use baton_openai::dialect::Dialect;
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
    #[error("the record of this answer is gone")]
    NoRecord,
    #[error("this answer has no receipt")]
    NoReceipt,
    #[error("read the records: {0}")]
    Records(String),
    #[error("this path does not take {0}")]
    NoSuchMethod(Method),
    #[error("the body is larger than {max} bytes")]
    TooLarge { max: usize },
    #[error("the body did not end within {seconds} s")]
    SlowBody { seconds: f64 },
    #[error("too many request bodies are being read")]
    Bodies,
    #[error("a request body from a browser must be JSON, and say so: `content-type: application/json`")]
    NotJson,
    #[error("requests from {0} are not served")]
    Forbidden(String),
    #[error("field `data`: read `{name}`: {}", baton_terminal::chain(.err))]
    Document { name: String, err: Unreadable },
    #[error("missing or wrong key")]
    Unauthorized,
    #[error("{waiting} answers are running or waiting, at most {max} are allowed")]
    Busy { waiting: usize, max: usize },
    #[error("baton is stopping")]
    Stopping,
    #[error("a model is being pulled; wait until it has ended")]
    Pulling,
    #[error("{}", baton_terminal::chain(.0))]
    Pull(PullError),
    #[error("{message}")]
    Answer { message: String, code: &'static str, written: String, retry_after_ms: Option<u64> },
    #[error(transparent)]
    Agent(#[from] AgentError),
}

impl ApiError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::BadRequest(_)
            | Self::NoSuchPath
            | Self::NoRecord
            | Self::NoReceipt
            | Self::NoSuchMethod(_)
            | Self::TooLarge { .. }
            | Self::NotJson
            | Self::Agent(
                AgentError::Request(_)
                | AgentError::Stop(_)
                | AgentError::Form(_)
                | AgentError::Prompt(_)
                | AgentError::NoDeviceForText
                | AgentError::NoDeviceForTools,
            ) => ErrorCode::InvalidRequest,
            Self::Document { err: Unreadable::NoProcess { .. }, .. } => ErrorCode::Internal,
            Self::Document { .. } => ErrorCode::InvalidRequest,
            Self::Pull(err) => pull_code(err),
            Self::NoSuchModel { .. } => ErrorCode::UnknownModel,
            Self::SlowBody { .. } => ErrorCode::Timeout,
            Self::Forbidden(_) => ErrorCode::Forbidden,
            Self::Unauthorized => ErrorCode::Unauthorized,
            Self::Busy { .. } | Self::Bodies | Self::Pulling => ErrorCode::Overloaded,
            Self::Stopping => ErrorCode::Unavailable,
            Self::Answer { code, .. } if *code == TOO_LONG => ErrorCode::PromptTooLong,
            Self::Answer { code, .. } if *code == CLOUD_OVERLOADED => ErrorCode::Overloaded,
            Self::Answer { code, .. } if *code == INVALID => ErrorCode::InvalidRequest,
            Self::Answer { .. } | Self::Agent(_) | Self::Records(_) => ErrorCode::Internal,
        }
    }

    /// Returns the HTTP status of the code, or a more precise one.
    fn status(&self) -> StatusCode {
        match self {
            Self::NoSuchPath | Self::NoRecord | Self::NoReceipt => StatusCode::NOT_FOUND,
            Self::NoSuchMethod(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Answer { code, .. } if ![TOO_LONG, INVALID, CLOUD_OVERLOADED].contains(code) => {
                StatusCode::BAD_GATEWAY
            }
            _ => http_status(status(self.code())),
        }
    }

    /// Returns the body. Its `written` is the text of an answer that failed and was not streamed.
    pub(super) fn reply(&self) -> ErrorReply {
        let mut body = ErrorBody::new(self.code(), self.to_string());
        match self {
            Self::BadRequest(err) => body.error.param = err.param().map(str::to_owned),
            Self::Agent(AgentError::Form(err)) => body.error.param = Some(err.field.clone()),
            Self::NoSuchModel { .. } => body.error.param = Some("model".to_owned()),
            Self::Document { .. } => body.error.param = Some("data".to_owned()),
            Self::Busy { .. } | Self::Bodies | Self::Stopping | Self::Pulling => {
                body.error.retry_after_ms = Some(RETRY_AFTER_MS);
            }
            Self::Answer { retry_after_ms, .. } => body.error.retry_after_ms = *retry_after_ms,
            _ => (),
        }
        let reply = ErrorReply::from(&body);
        match self {
            Self::Answer { code, written, .. } => reply.with_code(*code).with_written(written),
            _ => reply,
        }
    }
}

/// Returns whether a pull failed for what was asked, or for a reason of this device or a server.
fn pull_code(err: &PullError) -> ErrorCode {
    match err {
        PullError::NoRepository { .. } | PullError::NoRevision { .. } | PullError::NoPackage { .. } => {
            ErrorCode::UnknownModel
        }
        PullError::Invalid(_)
        | PullError::Choice(_)
        | PullError::Gated { .. }
        | PullError::Memory { .. }
        | PullError::Unsupported(_)
        | PullError::NoModel { .. }
        | PullError::NameTaken { .. } => ErrorCode::InvalidRequest,
        _ => ErrorCode::Internal,
    }
}

/// Tells an error in the dialect of the path that was asked.
pub(super) async fn in_dialect(request: Request, next: Next) -> Response {
    let dialect = Dialect::of_path(request.uri().path());
    let mut response = next.run(request).await;
    let told = response.extensions_mut().remove::<ErrorReply>();
    if let Some(reply) = told.filter(|_| dialect != Dialect::OpenAi) {
        let (status, body) = dialect.error(response.status().as_u16(), &reply);
        *response.status_mut() = http_status(status);
        *response.body_mut() = Body::from(body.to_string());
    }
    response
}

fn http_status(status: u16) -> StatusCode {
    StatusCode::from_u16(status).expect("the API's statuses are HTTP codes")
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let reply = self.reply();
        let retry_after_s = reply.error.retry_after_ms.map(|ms| ms.div_ceil(1000));
        let mut response = (self.status(), Json(&reply)).into_response();
        // For `in_dialect`.
        response.extensions_mut().insert(reply);
        if let Some(seconds) = retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if matches!(self, Self::Unauthorized) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
