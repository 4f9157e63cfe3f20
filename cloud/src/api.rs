//! The HTTP API: `/v1/scenes`, `/v1/assist`, `/v1/feedback`, `/v1/registry`, OpenAI's chat, text completion
//! and responses API, health and figures.
//!
//! Never: decides anything about an answer (the service does), blocks a thread of the runtime, or logs a
//! prompt. Always: every error has an OpenAI-shaped body, and every reply carries `x-request-id`. Only
//! health, readiness and the API document are served to a caller whose key does not allow the route.

mod access;
mod assist;
mod body;
mod chat;
mod error;
mod feedback;
mod handoff;
mod kept;
mod openapi;
mod registry;
mod scenes;
mod sse;
mod status;
mod terms;
mod tokenize;
mod verify;

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
use uuid::Uuid;

use self::access::{Guarded, guard};
use self::body::BodyPool;
pub(crate) use self::body::HELD_PER_BYTE;
use self::error::{ApiError, Dialect};
use self::kept::{KeptAnswers, KeptLimits};
use crate::access::book::KeyPolicy;
use crate::access::{AccessBook, Scope};
use crate::gate::Gate;
use crate::http::request_id::with_request_id;
use crate::service::CloudService;
use crate::store::{Store, now_ms};
use baton_generate::clock::Clock;

/// Limits of requests and streams.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ApiLimits {
    /// The most bytes of a body as sent.
    pub body_bytes_max: usize,
    /// The most bytes of a gzip body after it is inflated.
    pub inflated_bytes_max: usize,
    /// How many times its own size a gzip body may have after it is inflated.
    pub inflate_ratio_max: usize,
    /// The most bytes of text that a prompt for the models served here can have. [`router`] sets it.
    pub prompt_bytes_max: usize,
    /// The most bytes of memory for all requests that are being read: bodies as sent, bodies inflated, and
    /// their texts. A request counts until it is accepted or refused. One tenant may hold at most half,
    /// except with a single request.
    pub bodies_bytes_max: usize,
    /// How long a client may take to send its body.
    pub body_timeout: Duration,
    /// The mean rate, in bytes per second, at which a client must send its body after [`Self::body_grace`].
    pub body_rate_min: usize,
    /// Extra time that a body may take beyond the time that [`Self::body_rate_min`] gives.
    pub body_grace: Duration,
    /// How long a stream may be silent before a comment keeps it alive.
    pub keep_alive: Duration,
    /// How often a stream reports its progress before the first token.
    pub progress_every: Duration,
}

impl Default for ApiLimits {
    fn default() -> ApiLimits {
        ApiLimits {
            body_bytes_max: 24 << 20,
            inflated_bytes_max: 24 << 20,
            // Gzip shrinks text 3 to 10 times; the format's limit is about 1000 times.
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

/// Who may use the service, and how much.
#[derive(Debug, Clone)]
pub struct Access {
    /// The current keys and tenants.
    pub book: AccessBook,
    /// Counts what tenants use, and enforces their quotas.
    pub gate: Gate,
}

impl Access {
    /// Makes access by one static key, or without any key, for a service without a database.
    #[must_use]
    pub fn with_static_key(key: Option<&str>) -> Access {
        let book = AccessBook::new(KeyPolicy::OnceThereIsOne, key);
        Access { book, gate: Gate::new(Clock::monotonic(), now_ms) }
    }
}

/// State shared by all handlers.
#[derive(Debug, Clone)]
struct App {
    service: CloudService,
    access: Access,
    store: Option<Store>,
    limits: ApiLimits,
    bodies: BodyPool,
    /// Limits how many requests are parsed and tokenized at the same time. The others wait as raw bytes.
    preparing: Arc<Semaphore>,
    kept: KeptAnswers,
    document: openapi::Document,
}

/// Returns all routes of one service. Guarded routes need a key that `access` allows. With a store,
/// `/healthz` reports whether the database answers.
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

/// Returns twice the number of cores: while one request waits (for a grammar or for memory), another one can
/// use the core.
fn preparing_max() -> usize {
    2 * std::thread::available_parallelism().map_or(2, NonZeroUsize::get)
}

impl App {
    /// Runs `work`, which parses and tokenizes a request. This takes milliseconds for a long prompt. So it
    /// runs on a blocking thread, and for a limited number of requests at the same time.
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

/// Returns the OpenAPI document of all routes.
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

/// Returns the routes that need a key, each with the scope that the key must have. The lists of models accept
/// a key of any scope.
fn guarded_routes(book: &AccessBook) -> OpenApiRouter<App> {
    let guarded = |scope, dialect, routes: OpenApiRouter<App>| {
        let guarded = Guarded { book: book.clone(), scope, dialect };
        routes.route_layer(middleware::from_fn_with_state(guarded, guard))
    };
    let scenes = OpenApiRouter::default().routes(routes!(scenes::list)).routes(routes!(scenes::show));
    let assist = OpenApiRouter::default()
        .routes(routes!(assist::assist))
        .routes(routes!(assist::resume, assist::end))
        .routes(routes!(verify::verify))
        .routes(routes!(handoff::fetch))
        .routes(routes!(feedback::give))
        .routes(routes!(registry::sync))
        .routes(routes!(registry::blob));
    let chat = OpenApiRouter::default()
        .routes(routes!(chat::complete))
        .routes(routes!(chat::continue_text))
        .routes(routes!(chat::respond))
        .routes(routes!(chat::embed))
        .routes(routes!(tokenize::tokenize));
    let models = OpenApiRouter::default().routes(routes!(status::models)).routes(routes!(status::model));
    let stats = OpenApiRouter::default().routes(routes!(status::stats));
    OpenApiRouter::with_openapi(openapi::frame())
        .merge(guarded(Some(Scope::ScenesRead), Dialect::Baton, scenes))
        .merge(guarded(Some(Scope::Assist), Dialect::Baton, assist))
        .merge(guarded(Some(Scope::Chat), Dialect::OpenAi, chat))
        .merge(guarded(None, Dialect::OpenAi, models))
        .merge(guarded(Some(Scope::Stats), Dialect::Baton, stats))
}

/// Returns the routes that need no key.
fn open_routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(status::health))
        .routes(routes!(status::ready))
        .routes(routes!(status::openapi))
        // The name that vLLM and load generators know.
        .route("/health", axum::routing::get(status::health))
}

/// The last part of a path, or an error if it is not UTF-8.
type PathId = Result<Path<String>, PathRejection>;

fn path_id(id: PathId) -> Result<String, ApiError> {
    id.map(|Path(id)| id).map_err(|_| ApiError::new(ErrorCode::InvalidRequest, "the path is not UTF-8"))
}

/// Reads the id of a request, which is a UUID.
fn request_uuid(id: PathId) -> Result<Uuid, ApiError> {
    let no_uuid = || ApiError::new(ErrorCode::InvalidRequest, "a request id is a UUID");
    path_id(id)?.parse().map_err(|_| no_uuid())
}

async fn no_route() -> ApiError {
    let err = ApiError::new(ErrorCode::InvalidRequest, "there is no such path");
    err.with_status(404).told_in(Dialect::OpenAi)
}

async fn no_method(method: Method) -> ApiError {
    let err = ApiError::new(ErrorCode::InvalidRequest, format!("this path does not take {method}"));
    err.with_status(405).told_in(Dialect::OpenAi)
}

/// Refuses a request with both content-length and transfer-encoding, because two readers may find different
/// ends of its body.
async fn refuse_conflicting_lengths(request: Request, next: Next) -> Response {
    if request.extensions().get::<ConflictingLengths>().is_some() {
        let message = "a request has either content-length or transfer-encoding, not both";
        return ApiError::new(ErrorCode::InvalidRequest, message).into_response();
    }
    next.run(request).await
}
