//! Ollama's paths: answers, what is said about models, pulls and removals.
//!
//! One model is served, so only that one is listed. Models that are pulled here are used by their name when
//! `baton serve` starts the next time. Always: a client that disconnects stops its pull, and what was
//! downloaded stays for the next one.

use super::error::ApiError;
use super::{ApiState, answers, no_embeddings};
use crate::agent::AgentError;
use crate::models::about::About;
use crate::models::pull::{Event, PullOptions, Pulled, REVISION, Report, Stop, pull};
use crate::models::store::{self, Record, StoreError};
use crate::models::{HUB, HUB_ENV, INDEX, INDEX_ENV, PullError, Source, Store, TOKEN_ENV};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use baton_openai::ollama::models::{self, ModelFacts};
use baton_openai::request::MODEL_DEFAULT;
use baton_openai::{Capabilities, ErrorReply, FieldError, ollama};
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// The most lines of a pull that wait for the reader. Progress beyond is left out.
const LINES_MAX: usize = 64;

/// What is said about the model that is served, read from its file when it is first asked for.
#[derive(Debug, Default)]
pub struct ServedModel(OnceLock<ModelFacts>);

/// Where models are kept. One model is pulled at a time.
#[derive(Debug, Clone)]
pub struct ModelStore {
    store: Option<Store>,
    pulls: Arc<Semaphore>,
}

impl ModelStore {
    /// Uses this store, or none.
    pub fn new(store: Option<Store>) -> Self {
        Self { store, pulls: Arc::new(Semaphore::new(1)) }
    }

    /// Returns the store, if there is one.
    pub(super) fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }
}

/// Returns the routes below `/api`.
pub(super) fn routes() -> Router<Arc<ApiState>> {
    Router::new()
        .route("/chat", answers(ollama::read_chat))
        .route("/generate", answers(ollama::read_generate))
        .route("/tags", get(tags))
        .route("/ps", get(loaded))
        .route("/show", post(show))
        .route("/version", get(async || Json(models::version())))
        .route("/pull", post(start_pull))
        .route("/delete", delete(remove))
        .route(
            "/create",
            post(async || not_here("models are not made here: use `baton model import`, or pull one")),
        )
        .route("/copy", post(async || not_here("a model has one name here, so it is not copied")))
        .route("/push", post(async || not_here("models are not published from here")))
        .route("/embed", post(no_embeddings))
        .route("/embeddings", post(no_embeddings))
}

/// Refuses what is done with models elsewhere.
fn not_here(why: &'static str) -> ApiError {
    FieldError::whole(why).into()
}

/// Removes a model that was pulled, unless it is served.
async fn remove(State(state): State<Arc<ApiState>>, body: Body) -> Result<StatusCode, ApiError> {
    let body = state.bodies.read(body).await?;
    let name = models::read_show(body.bytes())?;
    drop(body);
    if name == state.model_name || name == MODEL_DEFAULT {
        return Err(FieldError::new("model", "is served now; end `baton serve` before it is removed").into());
    }
    let kept = state.models.store.clone().filter(|store| store.find(&name).is_some());
    let Some(store) = kept else {
        super::check_model(&state, &name)?;
        return Err(ApiError::NoSuchPath);
    };
    let removed = tokio::task::spawn_blocking(move || store.remove(&name)).await;
    match removed.map_err(AgentError::Prepare)? {
        Ok(_) => Ok(StatusCode::OK),
        Err(StoreError::Busy(_)) => Err(ApiError::Pulling),
        Err(err) => Err(ApiError::Pull(err.into())),
    }
}

async fn tags(State(state): State<Arc<ApiState>>) -> Result<Json<Value>, ApiError> {
    let facts = served(state).await?;
    Ok(Json(models::tags(&[facts])))
}

async fn loaded(State(state): State<Arc<ApiState>>) -> Result<Json<Value>, ApiError> {
    let is_loaded = state.agent.is_loaded();
    let facts = served(state).await?;
    Ok(Json(models::ps(if is_loaded { std::slice::from_ref(&facts) } else { &[] })))
}

async fn show(State(state): State<Arc<ApiState>>, body: Body) -> Result<Json<Value>, ApiError> {
    let body = state.bodies.read(body).await?;
    let name = models::read_show(body.bytes())?;
    drop(body);
    if name != state.model_name && name != MODEL_DEFAULT {
        let kept = state.models.store.as_ref().and_then(|store| Some((store, store.find(&name)?)));
        if let Some((store, record)) = kept {
            return Ok(Json(models::show(&kept_facts(store, &record))));
        }
        super::check_model(&state, &name)?;
    }
    Ok(Json(models::show(&served(state).await?)))
}

/// Returns what is said about the model that is served.
async fn served(state: Arc<ApiState>) -> Result<ModelFacts, ApiError> {
    let read = move || state.served.0.get_or_init(|| served_facts(&state)).clone();
    Ok(tokio::task::spawn_blocking(read).await.map_err(AgentError::Prepare)?)
}

fn served_facts(state: &ApiState) -> ModelFacts {
    let model = state.agent.device.as_ref().map(|device| &device.model);
    let path = model.and_then(|model| model.path());
    // A model that is at work was a model when it was opened.
    let about = path.and_then(|path| About::of(path).ok()).unwrap_or_default();
    let facts = facts(&state.model_name, &about, path);
    let kept = path.and_then(|path| {
        let store = state.models.store.as_ref()?;
        store.list().into_iter().find(|record| store.path(&record.name).is_ok_and(|kept| kept == path))
    });
    ModelFacts {
        context_tokens: state.agent.context_tokens().map(|tokens| tokens as u64),
        sha256: kept.as_ref().and_then(sha256),
        thinks: model.is_some_and(|model| model.template().mentions("<think>")),
        ..facts
    }
}

/// Returns what is said about a model of the store.
fn kept_facts(store: &Store, record: &Record) -> ModelFacts {
    let path = store.path(&record.name).ok();
    let facts = facts(&record.name, &record.about, path.as_deref());
    ModelFacts { bytes: record.bytes(), sha256: sha256(record), ..facts }
}

/// Returns the digest of a model that has one file.
fn sha256(record: &Record) -> Option<String> {
    match &record.files[..] {
        [file] => Some(file.sha256.clone()),
        _ => None,
    }
}

fn facts(name: &str, about: &About, path: Option<&Path>) -> ModelFacts {
    let files = path.and_then(|path| store::files_of(path).ok()).unwrap_or_default();
    let found: Vec<_> = files.iter().filter_map(|file| std::fs::metadata(file).ok()).collect();
    let modified = found.iter().filter_map(|file| file.modified().ok()).max();
    ModelFacts {
        name: name.to_owned(),
        family: about.family.clone(),
        format: about.format.clone(),
        weights: about.weights,
        context_tokens: about.context,
        bytes: found.iter().map(|file| file.len()).sum(),
        sha256: None,
        modified: modified.unwrap_or(UNIX_EPOCH),
        licence: about.licence.clone(),
        thinks: false,
        calls_tools: Capabilities::DEVICE.tools,
    }
}

async fn start_pull(State(state): State<Arc<ApiState>>, body: Body) -> Result<Response, ApiError> {
    let body = state.bodies.read(body).await?;
    let models::PullRequest { source, stream } = models::read_pull(body.bytes())?;
    drop(body);
    let Some(store) = state.models.store.clone() else {
        let message = "this device keeps no models: start it with --models-dir or BATON_MODELS";
        return Err(FieldError::new("model", message).into());
    };
    let source: Source = source.parse().map_err(|err: String| FieldError::new("model", err))?;
    let place = state.models.pulls.clone().try_acquire_owned().map_err(|_| ApiError::Pulling)?;
    let options = options(source);
    if stream {
        return Ok(stream_pull(store, options, place));
    }
    let (_stopper, stop) = Stop::new();
    pull(&store, &options, Arc::new(|_| ()), stop).await.map_err(ApiError::Pull)?;
    Ok(Json(json!({ "status": "success" })).into_response())
}

/// Returns the options of a pull: those of `baton model pull` without further options.
fn options(source: Source) -> PullOptions {
    let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    PullOptions {
        source,
        hub: var(HUB_ENV).unwrap_or_else(|| HUB.to_owned()),
        token: var(TOKEN_ENV),
        revision: REVISION.to_owned(),
        index: var(INDEX_ENV).unwrap_or_else(|| INDEX.to_owned()),
        name: None,
        force: false,
    }
}

/// Pulls in a task of its own, which stops if the reader disconnects.
fn stream_pull(store: Store, options: PullOptions, place: OwnedSemaphorePermit) -> Response {
    let (lines, receiver) = mpsc::channel(LINES_MAX);
    tokio::spawn(async move {
        let _place = place;
        let (stopper, stop) = Stop::new();
        let told = lines.clone();
        let report: Report = Arc::new(move |event| {
            // A reader that does not keep up misses some of the progress.
            let _full = told.try_send(line(&event));
        });
        let mut work = Box::pin(pull(&store, &options, report, stop));
        let done = tokio::select! {
            done = &mut work => done,
            () = lines.closed() => {
                stopper.send_replace(true);
                work.await
            }
        };
        let _gone = lines.send(last_lines(done)).await;
    });
    let lines = futures_util::stream::unfold(receiver, |mut receiver| async {
        let line: String = receiver.recv().await?;
        Some((line, receiver))
    });
    let body = Body::from_stream(lines.map(|line| Ok::<_, Infallible>(Bytes::from(line))));
    ([(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-cache")], body)
        .into_response()
}

fn line(event: &Event) -> String {
    match event {
        Event::Start { name, .. } => models::pull_status(&format!("pulling {name}"), None),
        Event::Progress { done, of } => models::pull_status("pulling", Some((*done, *of))),
        Event::Note { text } => models::pull_status(text, None),
    }
}

fn last_lines(done: Result<Pulled, PullError>) -> String {
    match done {
        Ok(Pulled { record, .. }) => {
            let kept = format!("kept as {0}; use it by `baton serve --model {0}`", record.name);
            models::pull_status(&kept, None) + &models::pull_status("success", None)
        }
        Err(err) => {
            let reply: ErrorReply = ApiError::Pull(err).reply();
            json!({ "error": reply.error.message }).to_string() + "\n"
        }
    }
}
