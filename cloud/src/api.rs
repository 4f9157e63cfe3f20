//! The HTTP API: `/v1/scenes`, `/v1/assist`, the OpenAI chat API, health and figures.
//!
//! Never: decides anything about an answer (the service does), blocks a thread of the runtime, or logs a prompt.
//! Always: every error has an OpenAI-shaped body, every reply carries `x-request-id`, and nothing but health answers a
//! caller whose key does not allow it.

mod access;
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

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request};
use axum::http::Method;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use baton_edge::ConflictingLengths;
use baton_protocol::ErrorCode;
use tokio::sync::Semaphore;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::access::{Guarded, guard};
use self::body::BodyPool;
pub(crate) use self::body::HELD_PER_BYTE;
use self::error::{ApiError, Dialect};
use self::kept::{KeptAnswers, KeptLimits};
use crate::access::book::KeyPolicy;
use crate::access::{AccessBook, Gate, Scope};
use crate::desk::Clock;
use crate::http::request_id::with_request_id;
use crate::service::CloudService;
use crate::store::{Store, now_ms};

/// What one request may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ApiLimits {
    /// Bytes of a body as sent.
    pub body_bytes_max: usize,
    /// Bytes of a gzip body, inflated.
    pub inflated_bytes_max: usize,
    /// How many times its size a gzip body may inflate to.
    pub inflate_ratio_max: usize,
    /// Bytes of text that a prompt of the models served here can have; [`router`] sets it.
    pub prompt_bytes_max: usize,
    /// Bytes of all requests that are being read, until they are accepted or refused: bodies as sent and inflated, and
    /// the texts made of them. One tenant holds at most half of it, but for one request alone.
    pub bodies_bytes_max: usize,
    /// How long a client may take to send its body.
    pub body_timeout: Duration,
    /// Bytes a second that it must send in the mean, after [`Self::body_grace`].
    pub body_rate_min: usize,
    /// How long a body may take longer than its rate says.
    pub body_grace: Duration,
    /// How long a stream may be silent before a comment keeps it alive.
    pub keep_alive: Duration,
    /// How often a stream without a token says how far it is.
    pub progress_every: Duration,
}

impl Default for ApiLimits {
    fn default() -> ApiLimits {
        ApiLimits {
            body_bytes_max: 24 << 20,
            inflated_bytes_max: 24 << 20,
            // Text shrinks to a third or a tenth; gzip itself reaches a thousandth.
            inflate_ratio_max: 200,
            prompt_bytes_max: usize::MAX,
            bodies_bytes_max: 128 << 20,
            body_timeout: Duration::from_secs(60),
            body_rate_min: 2048,
            body_grace: Duration::from_secs(5),
            keep_alive: Duration::from_secs(10),
            progress_every: Duration::from_secs(2),
        }
    }
}

/// Who may ask, and how much.
#[derive(Debug, Clone)]
pub struct Access {
    /// Keys and tenants in force.
    pub book: AccessBook,
    /// What tenants use.
    pub gate: Gate,
}

impl Access {
    /// Access by one static key, or none at all: for a service without a database.
    #[must_use]
    pub fn with_static_key(key: Option<&str>) -> Access {
        let book = AccessBook::new(KeyPolicy::OnceThereIsOne, key);
        Access { book, gate: Gate::new(Clock::monotonic(), now_ms) }
    }
}

/// What every handler sees.
#[derive(Debug, Clone)]
struct App {
    service: CloudService,
    access: Access,
    store: Option<Store>,
    limits: ApiLimits,
    bodies: BodyPool,
    /// Requests that are parsed and tokenized at the same time; the others wait as the bytes that they are.
    preparing: Arc<Semaphore>,
    kept: KeptAnswers,
    document: openapi::Document,
}

/// All routes over one service; every request but health must be one that `access` allows. With a store, health says
/// whether the database answers.
pub fn router(service: CloudService, access: Access, store: Option<Store>, limits: ApiLimits) -> Router {
    let (guarded, mut document) = guarded_routes(&access.book).split_for_parts();
    let (open, open_document) = open_routes().split_for_parts();
    document.merge(open_document);
    let limits = ApiLimits { prompt_bytes_max: service.prompt_bytes_max(), ..limits };
    let app = App {
        service,
        access,
        store,
        limits,
        bodies: BodyPool::new(limits.bodies_bytes_max),
        preparing: Arc::new(Semaphore::new(preparing_max())),
        kept: KeptAnswers::new(KeptLimits::default()),
        document: openapi::Document::new(&document),
    };
    guarded
        .merge(open)
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn(refuse_conflicting_lengths))
        .layer(middleware::from_fn(with_request_id))
        .with_state(app)
}

/// Twice the cores: what one of them waits for (a grammar's turn, memory) another one can use.
fn preparing_max() -> usize {
    2 * std::thread::available_parallelism().map_or(2, NonZeroUsize::get)
}

impl App {
    /// Runs what parses and tokenizes a request: milliseconds for a long prompt, so not on a thread of the runtime, and
    /// for only so many requests at the same time.
    async fn prepare<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = self.preparing.clone().acquire_owned().await.expect("the semaphore is never closed");
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        done.await
            .unwrap_or_else(|_| Err(ApiError::new(ErrorCode::Internal, "the request could not be read")))
    }
}

/// The OpenAPI document of all routes.
///
/// # Panics
/// Never: the document has string keys only.
pub fn description() -> serde_json::Value {
    let book = AccessBook::new(KeyPolicy::Required, None);
    let (_, mut document) = guarded_routes(&book).split_for_parts();
    let (_, open_document) = open_routes().split_for_parts();
    document.merge(open_document);
    serde_json::to_value(&document).expect("the document has string keys only")
}

/// Routes that need a key, by the scope that it must have; the lists of models need none.
fn guarded_routes(book: &AccessBook) -> OpenApiRouter<App> {
    let guarded = |scope, dialect, routes: OpenApiRouter<App>| {
        let guarded = Guarded { book: book.clone(), scope, dialect };
        routes.route_layer(middleware::from_fn_with_state(guarded, guard))
    };
    let scenes = OpenApiRouter::default().routes(routes!(scenes::list)).routes(routes!(scenes::show));
    let assist = OpenApiRouter::default().routes(routes!(assist::assist)).routes(routes!(assist::resume));
    let chat = OpenApiRouter::default().routes(routes!(chat::complete));
    let models = OpenApiRouter::default().routes(routes!(status::models)).routes(routes!(status::model));
    let stats = OpenApiRouter::default().routes(routes!(status::stats));
    OpenApiRouter::with_openapi(openapi::frame())
        .merge(guarded(Some(Scope::ScenesRead), Dialect::Baton, scenes))
        .merge(guarded(Some(Scope::Assist), Dialect::Baton, assist))
        .merge(guarded(Some(Scope::Chat), Dialect::OpenAi, chat))
        .merge(guarded(None, Dialect::OpenAi, models))
        .merge(guarded(Some(Scope::Stats), Dialect::Baton, stats))
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

/// Refuses a request whose body two readers may measure differently.
async fn refuse_conflicting_lengths(request: Request, next: Next) -> Response {
    if request.extensions().get::<ConflictingLengths>().is_some() {
        let message = "a request has either content-length or transfer-encoding, not both";
        return ApiError::new(ErrorCode::InvalidRequest, message).into_response();
    }
    next.run(request).await
}
