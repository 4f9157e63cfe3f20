//! `POST /v1/messages/count_tokens`: how many tokens a prompt has, without answering it.

use super::ApiState;
use super::chat::{question, steadied};
use super::error::ApiError;
use crate::agent::AgentError;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use baton_openai::anthropic::read_count;
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn count_tokens(
    State(state): State<Arc<ApiState>>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let body = state.bodies.read(body).await?;
    let count = move || {
        let mut request = read_count(body.bytes(), &super::offered(&state))?;
        drop(body);
        super::check_model(&state, &request.model)?;
        steadied(&state, &mut request);
        let question = question(&state, &request)?;
        Ok::<_, ApiError>(state.agent.prompt_tokens(&question)?)
    };
    let tokens = tokio::task::spawn_blocking(count).await.map_err(AgentError::Prepare)??;
    Ok(Json(json!({ "input_tokens": tokens })))
}
