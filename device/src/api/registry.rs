//! `GET /registry/blobs/sha256/{digest}`: files of models that came from a registry, for other devices of the
//! home (`--peer`). They check every byte by the registry's signature, so this device need not be trusted.

use super::ApiState;
use super::error::ApiError;
use crate::models::registry::version_of;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use baton_registry::digest::Digest;
use std::path::PathBuf;
use std::sync::Arc;
use tracing::warn;

/// Replies with a file, or with the range that was asked for.
pub(super) async fn blob(
    State(state): State<Arc<ApiState>>,
    digest: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Path(hex) = digest.map_err(|_| ApiError::NoSuchPath)?;
    let digest: Digest = format!("sha256:{hex}").parse().map_err(|_| ApiError::NoSuchPath)?;
    let found = tokio::task::spawn_blocking(move || file(&state, &digest.hex())).await;
    let path = found.ok().flatten().ok_or(ApiError::NoSuchPath)?;
    baton_edge::file::reply(&path, &digest.to_string(), &headers).await.map_err(|err| {
        warn!(err = &err as &dyn std::error::Error, %digest, "a file of a model cannot be read");
        ApiError::NoSuchPath
    })
}

/// Returns the file with these bytes, if a model from a registry has it. Models that somebody pulled or made
/// are not given out.
fn file(state: &ApiState, hex: &str) -> Option<PathBuf> {
    let store = state.models.store()?;
    store.list().iter().filter(|record| version_of(record).is_some()).find_map(|record| {
        let kept = record.files.iter().find(|kept| kept.sha256 == hex)?;
        Some(store.folder().join(&record.name).join(&kept.file))
    })
}
