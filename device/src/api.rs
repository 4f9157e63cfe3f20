//! The APIs for programs on this machine: OpenAI's chat completions, text completions and responses,
//! Anthropic's messages, and Ollama's API.
//!
//! Loopback only, unless a key is set. A request is refused if its `Host` is not served, or if a browser may
//! have sent it and its body is not declared as JSON. It is also refused if it comes from a page of another
//! origin (another port of this machine is one). So no web page can use the API, neither by DNS rebinding nor
//! by a form. What has no effect is named in the reply; what would make the answer wrong is refused with 400.
//! Always: a client that disconnects cancels its answer. Answers wait in a bounded queue; if it is full, the
//! reply is 429.

mod body;
mod calls;
mod chat;
mod error;
mod guard;
mod messages;
mod ollama;
mod page;
mod registry;
mod ring;
mod steady;

pub(crate) use baton_openai::capabilities::DEVICE_TOKENS_MAX as ANSWER_TOKENS_MAX;
pub use body::{BODY_BYTES_MAX, Bodies};
pub(crate) use guard::{listening_host, served_host};
pub use ollama::{ModelStore, ServedModel};
pub use ring::RingView;

use crate::agent::Agent;
use crate::relay::RelayMode;
use axum::Json;
use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::Method;
use axum::middleware;
use axum::routing::{MethodRouter, get, post};
use baton_openai::models::{ModelCard, ModelList};
use baton_openai::request::MODEL_DEFAULT;
use baton_openai::writer::Read;
use baton_openai::{Capabilities, FieldError, anthropic, embeddings, responses, stream};
use baton_pacing::PaceMode;
use baton_protocol::SceneInfo;
use error::ApiError;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The most answers that run or wait.
pub const ANSWERS_MAX: usize = 16;

/// State of the API.
#[derive(Debug)]
pub struct ApiState {
    /// Answers questions.
    pub agent: Agent,
    /// The scene of every question.
    pub scene: SceneInfo,
    /// Whether the cloud, the device or both may write the answer.
    pub mode: RelayMode,
    /// Paced for people, instant for programs.
    pub pace: PaceMode,
    /// Whether ids and times in system prompts are made equal in all requests.
    pub steadies: bool,
    /// Name of the model shown to clients.
    pub model_name: String,
    /// Key that clients must send; required unless the address is loopback.
    pub key: Option<String>,
    /// Keys of programs whose requests stay on this device.
    pub device_keys: Vec<String>,
    /// The ring that computes answers, if there is one.
    pub ring: Option<RingView>,
    /// Other hosts that are served, in the form of `Host`: without a port, IPv6 in brackets.
    pub hosts: Vec<String>,
    /// Permits for answers that run or wait.
    pub places: Arc<Semaphore>,
    /// Limits of bodies that are being read and parsed.
    pub bodies: Bodies,
    /// What is said about the model.
    pub served: ServedModel,
    /// Where models are kept, if there is a folder for them.
    pub models: ModelStore,
}

/// Why the API is not served at an address.
#[derive(Debug, thiserror::Error)]
#[error("refusing to listen on {address} without a key: it is not a loopback address")]
pub struct NeedsKey {
    /// The address.
    pub address: SocketAddr,
}

/// Checks that the API may listen on an address: loopback, or any address with a key.
///
/// # Errors
/// [`NeedsKey`] if it is not a loopback address and there is no key.
pub fn check_address(address: SocketAddr, key: Option<&str>) -> Result<(), NeedsKey> {
    match address.ip().is_loopback() || key.is_some_and(|key| !key.is_empty()) {
        true => Ok(()),
        false => Err(NeedsKey { address }),
    }
}

/// Returns the routes.
pub fn router(state: Arc<ApiState>) -> Router {
    Router::new()
        .route("/v1/chat/completions", answers(stream::read_chat))
        .route("/v1/completions", answers(stream::read_text))
        .route("/v1/responses", answers(responses::read_responses))
        .route("/v1/messages", answers(anthropic::read_messages))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/embeddings", post(no_embeddings))
        .route("/v1/models", get(models))
        .route("/v1/models/{id}", get(model))
        .nest("/api", ollama::routes())
        .route("/document", post(page::document))
        .route("/answers/{key}", get(page::answer))
        .route("/answers/{key}/receipt", get(page::receipt))
        .route("/registry/blobs/sha256/{digest}", get(registry::blob))
        .route("/ring", get(ring::page))
        .route("/ring.json", get(ring::json))
        .layer(middleware::from_fn_with_state(state.clone(), guard::key))
        .route("/healthz", get(|| async { "ok" }))
        .merge(page::files())
        .fallback(async || ApiError::NoSuchPath)
        .method_not_allowed_fallback(async |method: Method| ApiError::NoSuchMethod(method))
        .layer(middleware::from_fn_with_state(state.clone(), guard::origin))
        .layer(middleware::from_fn(error::in_dialect))
        .with_state(state)
}

/// Answers requests that `read` reads.
fn answers(read: Read) -> MethodRouter<Arc<ApiState>> {
    post(move |State(state): State<Arc<ApiState>>, request: Request| {
        let stays = request.extensions().get::<guard::Stays>().is_some();
        chat::answer(state, request.into_body(), read, stays)
    })
}

async fn no_embeddings() -> ApiError {
    embeddings::refusal().into()
}

async fn models(State(state): State<Arc<ApiState>>) -> Json<ModelList> {
    Json(ModelList::new([card(&state)]))
}

async fn model(
    State(state): State<Arc<ApiState>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelCard>, ApiError> {
    let Path(id) = id.map_err(|_| FieldError::whole("the path is not UTF-8"))?;
    check_model(&state, &id)?;
    Ok(Json(card(&state)))
}

fn card(state: &ApiState) -> ModelCard {
    let device = state.agent.device.as_ref();
    let context_tokens = device.map(|device| device.worker.context_tokens());
    let card = ModelCard::new(&*state.model_name, context_tokens, state.agent.tokenizer().digest_hex());
    card.with_adapters(device.into_iter().flat_map(|device| device.adapters.keys().map(String::as_str)))
}

/// Returns what is offered. Tools and forms of answers need a model on this device, or a cloud that knows
/// them.
fn offered(state: &ApiState) -> Capabilities {
    let has_device = state.agent.device.is_some() && state.mode != RelayMode::CloudOnly;
    match has_device || state.agent.cloud_knows_tools(&state.scene) {
        true => Capabilities::DEVICE,
        false => Capabilities::DEVICE_OF_CLOUD,
    }
}

/// Checks that a model of this name is served; [`MODEL_DEFAULT`] names the only one.
fn check_model(state: &ApiState, asked: &str) -> Result<(), ApiError> {
    if asked == state.model_name || asked == MODEL_DEFAULT {
        return Ok(());
    }
    let asked = asked.chars().filter(|c| !c.is_control()).take(128).collect();
    Err(ApiError::NoSuchModel { asked, served: state.model_name.clone() })
}

#[cfg(test)]
mod tests;
