//! The HTTP API: `/v1/scenes`, `/v1/assist`, the OpenAI chat API, health and figures.
//!
//! Never: decides anything about an answer (the service does), blocks a thread of the runtime, or logs a prompt.
//! Always: every error has an OpenAI-shaped body, and every reply carries `x-request-id`.

mod assist;
mod body;
mod chat;
mod chat_request;
mod error;
mod kept;
mod openapi;
mod scenes;
mod sse;
mod status;
mod terms;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use baton_protocol::ErrorCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use self::body::BodyPool;
use self::error::ApiError;
use self::kept::{KeptAnswers, KeptLimits};
use crate::http::ConflictingLengths;
use crate::service::CloudService;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_BYTES_MAX: usize = 128;

/// What one request may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ApiLimits {
    /// Bytes of a body as sent.
    pub body_bytes_max: usize,
    /// Bytes of a gzip body, inflated.
    pub inflated_bytes_max: usize,
    /// How many times its size a gzip body may inflate to.
    pub inflate_ratio_max: usize,
    /// Bytes of all bodies that are being read, as sent and inflated.
    pub bodies_bytes_max: usize,
    /// How long a client may take to send its body.
    pub body_timeout: Duration,
    /// Bytes a second that it must send in the mean, after [`Self::body_grace`].
    pub body_rate_min: usize,
    /// How long a body may take longer than its rate says.
    pub body_grace: Duration,
    /// How long a stream may be silent before a comment keeps it alive.
    pub keep_alive: Duration,
}

impl Default for ApiLimits {
    fn default() -> ApiLimits {
        ApiLimits {
            body_bytes_max: 24 << 20,
            inflated_bytes_max: 24 << 20,
            // Text shrinks to a third or a tenth; gzip itself reaches a thousandth.
            inflate_ratio_max: 200,
            bodies_bytes_max: 512 << 20,
            body_timeout: Duration::from_secs(60),
            body_rate_min: 2048,
            body_grace: Duration::from_secs(5),
            keep_alive: Duration::from_secs(10),
        }
    }
}

/// What every handler sees.
#[derive(Debug, Clone)]
struct App {
    service: CloudService,
    key: Option<Arc<str>>,
    limits: ApiLimits,
    bodies: BodyPool,
    kept: KeptAnswers,
    document: openapi::Document,
}

/// All routes over one service; with a key, every request but health must carry it as a bearer token.
pub fn router(service: CloudService, key: Option<&str>, limits: ApiLimits) -> Router {
    let (guarded, mut document) = guarded_routes().split_for_parts();
    let (open, open_document) = open_routes().split_for_parts();
    document.merge(open_document);
    let app = App {
        service,
        key: key.map(Arc::from),
        limits,
        bodies: BodyPool::new(limits.bodies_bytes_max),
        kept: KeptAnswers::new(KeptLimits::default()),
        document: openapi::Document::new(&document),
    };
    guarded
        .route_layer(middleware::from_fn_with_state(app.clone(), require_key))
        .merge(open)
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn(refuse_conflicting_lengths))
        .layer(middleware::from_fn(with_request_id))
        .with_state(app)
}

/// Routes that need the key, where there is one.
fn guarded_routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::frame())
        .routes(routes!(scenes::list))
        .routes(routes!(scenes::show))
        .routes(routes!(assist::assist))
        .routes(routes!(assist::resume))
        .routes(routes!(chat::complete))
        .routes(routes!(status::models))
        .routes(routes!(status::model))
        .routes(routes!(status::stats))
}

/// Routes that anybody may ask.
fn open_routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(status::health))
        .routes(routes!(status::ready))
        .routes(routes!(status::openapi))
}

/// The last part of a path, where it is text.
type PathId = Result<Path<String>, PathRejection>;

fn path_id(id: PathId) -> Result<String, ApiError> {
    id.map(|Path(id)| id).map_err(|_| ApiError::new(ErrorCode::InvalidRequest, "the path is not UTF-8"))
}

async fn no_route() -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, "there is no such path").with_status(404)
}

async fn no_method(method: Method) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, format!("this path does not take {method}")).with_status(405)
}

/// Lets a request through only with the key, where there is one.
async fn require_key(State(app): State<App>, request: Request, next: Next) -> Response {
    match &app.key {
        Some(key) if !carries_key(request.headers(), key) => {
            ApiError::new(ErrorCode::Unauthorized, "the API key is missing or wrong").into_response()
        }
        _ => next.run(request).await,
    }
}

fn carries_key(headers: &HeaderMap, key: &str) -> bool {
    let sent = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let Some((scheme, sent)) = sent.split_once(' ') else { return false };
    scheme.eq_ignore_ascii_case("bearer") && equal_in_constant_time(sent.trim().as_bytes(), key.as_bytes())
}

/// Looks at every byte of the key, so that the time says nothing about how much of it was right.
fn equal_in_constant_time(sent: &[u8], key: &[u8]) -> bool {
    let mut difference = u8::from(sent.len() != key.len());
    for (at, byte) in key.iter().enumerate() {
        difference |= byte ^ sent.get(at).copied().unwrap_or_default();
    }
    std::hint::black_box(difference) == 0
}

/// Refuses a request whose body two readers may measure differently.
async fn refuse_conflicting_lengths(request: Request, next: Next) -> Response {
    if request.extensions().get::<ConflictingLengths>().is_some() {
        let message = "a request has either content-length or transfer-encoding, not both";
        return ApiError::new(ErrorCode::InvalidRequest, message).into_response();
    }
    next.run(request).await
}

/// Names the request in the reply: by the client's own name where it sent a plain one.
async fn with_request_id(request: Request, next: Next) -> Response {
    let own = request.headers().get(&REQUEST_ID).filter(|value| {
        (1..=REQUEST_ID_BYTES_MAX).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
    });
    let id = own.cloned().unwrap_or_else(|| {
        HeaderValue::from_str(&Uuid::new_v4().to_string()).expect("a UUID prints as visible ASCII")
    });
    let mut response = next.run(request).await;
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_compared_whole() {
        let check = |value: &str, want: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            assert_eq!(carries_key(&headers, "secret"), want, "{value}");
        };
        check("Bearer secret", true);
        check("bearer secret", true);
        check("Bearer secre", false);
        check("Bearer secrets", false);
        check("Bearer ", false);
        check("Basic secret", false);
        check("secret", false);
        assert!(!carries_key(&HeaderMap::new(), "secret"));
    }
}
