//! The OpenAI chat API for programs on this machine.
//!
//! Loopback only, unless a key is set. A request with a `Host` that is not served, from a page of another origin (any
//! other port of this machine is one), or with a body that is not declared as JSON is refused, so that no web page
//! reaches it: not by DNS rebinding, not by a form. What is not supported is refused with 400, never ignored.
//! Always: a client that goes away cancels its answer; answers wait in a bounded queue, and a full one says 429.

mod body;
mod chat;
mod error;
mod guard;
mod request;
mod ring;

pub use body::{BODY_BYTES_MAX, Bodies};
pub(crate) use guard::{listening_host, served_host};
pub(crate) use request::TOKENS_MAX as ANSWER_TOKENS_MAX;
pub use ring::RingView;

use crate::agent::Agent;
use crate::relay::RelayMode;
use axum::Json;
use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Method;
use axum::middleware;
use axum::routing::{get, post};
use baton_pacing::PaceMode;
use baton_protocol::SceneInfo;
use error::ApiError;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Answers that run or wait.
pub const ANSWERS_MAX: usize = 16;

/// What the API serves.
#[derive(Debug)]
pub struct ApiState {
    /// Answers questions.
    pub agent: Agent,
    /// Scene of every question.
    pub scene: SceneInfo,
    /// Who may write.
    pub mode: RelayMode,
    /// Paced for people, instant for programs.
    pub pace: PaceMode,
    /// Name shown to clients.
    pub model_name: String,
    /// Key that clients must send; needed off loopback.
    pub key: Option<String>,
    /// The ring that computes, if one does.
    pub ring: Option<RingView>,
    /// Further hosts that are served, as they stand in `Host`: without a port, IPv6 in brackets.
    pub hosts: Vec<String>,
    /// Places for answers.
    pub places: Arc<Semaphore>,
    /// What bodies may take that are being read and parsed.
    pub bodies: Bodies,
}

/// Why the API is not served at an address.
#[derive(Debug, thiserror::Error)]
#[error("refusing to listen on {address} without a key: it is not a loopback address")]
pub struct NeedsKey {
    /// The address.
    pub address: SocketAddr,
}

/// Checks that an address may be listened on: loopback, or any with a key.
///
/// # Errors
/// [`NeedsKey`].
pub fn check_address(address: SocketAddr, key: Option<&str>) -> Result<(), NeedsKey> {
    match address.ip().is_loopback() || key.is_some_and(|key| !key.is_empty()) {
        true => Ok(()),
        false => Err(NeedsKey { address }),
    }
}

/// The routes.
pub fn router(state: Arc<ApiState>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/models", get(models))
        .route("/v1/models/{id}", get(model))
        .route("/ring", get(ring::page))
        .route("/ring.json", get(ring::json))
        .layer(middleware::from_fn_with_state(state.clone(), guard::key))
        .route("/healthz", get(|| async { "ok" }))
        .fallback(async || ApiError::NoSuchPath)
        .method_not_allowed_fallback(async |method: Method| ApiError::NoSuchMethod(method))
        .layer(middleware::from_fn_with_state(state.clone(), guard::origin))
        .with_state(state)
}

async fn models(State(state): State<Arc<ApiState>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [card(&state)] }))
}

async fn model(
    State(state): State<Arc<ApiState>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id.map_err(|err| ApiError::BadRequest { message: err.body_text(), param: None })?;
    check_model(&state, &id)?;
    Ok(Json(card(&state)))
}

fn card(state: &ApiState) -> Value {
    json!({ "id": state.model_name, "object": "model", "created": 0, "owned_by": "baton" })
}

/// Checks that a model of this name is served; `default` names the only one.
fn check_model(state: &ApiState, asked: &str) -> Result<(), ApiError> {
    if asked == state.model_name || asked == "default" {
        return Ok(());
    }
    let asked = asked.chars().filter(|c| !c.is_control()).take(128).collect();
    Err(ApiError::NoSuchModel { asked, served: state.model_name.clone() })
}

#[cfg(test)]
mod tests;
