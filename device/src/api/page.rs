//! The chat page at `/`, for people: static files without a build step, and the texts of the documents that
//! they attach.
//!
//! The files hold nothing private, so they need no key; whatever the page asks for does. A policy lets it
//! load nothing from elsewhere and run no other script.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use baton_openai::FieldError;
use serde::Deserialize;
use serde_json::{Value, json};

use super::ApiState;
use super::error::ApiError;
use crate::agent::AgentError;
use crate::conversations::ConversationError;
use crate::documents;
use baton_terminal::chain;

/// What the page may load and run.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Returns the routes of the files.
pub(super) fn files() -> Router<Arc<ApiState>> {
    Router::new()
        .route("/", get(async || file("text/html; charset=utf-8", include_str!("../../assets/chat.html"))))
        .route(
            "/chat.css",
            get(async || file("text/css; charset=utf-8", include_str!("../../assets/chat.css"))),
        )
        .route(
            "/chat.js",
            get(async || file("text/javascript; charset=utf-8", include_str!("../../assets/chat.js"))),
        )
}

fn file(media_type: &'static str, text: &'static str) -> Response {
    let mut response = text.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    // Another version of the program has another page.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Returns the record of an answer by its key: its report, and what was sent for it.
pub(super) async fn answer(
    State(state): State<Arc<ApiState>>,
    key: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let (Ok(Path(key)), Some(records)) = (key, state.agent.records()) else { return Err(ApiError::NoRecord) };
    match records.recorded_by_key(&key).await {
        Ok(record) => Ok(Json(json!(record))),
        Err(ConversationError::NoRecord) => Err(ApiError::NoRecord),
        Err(err) => Err(ApiError::Records(chain(&err))),
    }
}

/// Returns the signed receipt of an answer by the key of its record, byte for byte as it was signed.
pub(super) async fn receipt(
    State(state): State<Arc<ApiState>>,
    key: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let (Ok(Path(key)), Some(records)) = (key, state.agent.records()) else { return Err(ApiError::NoRecord) };
    match records.receipt_by_key(&key).await {
        Ok(Some(receipt)) => Ok(([(header::CONTENT_TYPE, "application/json")], receipt).into_response()),
        Ok(None) => Err(ApiError::NoReceipt),
        Err(ConversationError::NoRecord) => Err(ApiError::NoRecord),
        Err(err) => Err(ApiError::Records(chain(&err))),
    }
}

/// A document that a person attached.
#[derive(Debug, Deserialize)]
struct Attached<'a> {
    name: String,
    #[serde(default)]
    media_type: String,
    /// Its bytes in base64. Not copied, because they are many.
    #[serde(borrow)]
    data: Cow<'a, str>,
}

/// Returns the text of a document. It is given up if the client leaves.
pub(super) async fn document(
    State(state): State<Arc<ApiState>>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let body = state.bodies.read(body).await?;
    let decode = move || {
        let Attached { name, media_type, data } = serde_json::from_slice(body.bytes())
            .map_err(|err| FieldError::whole(format!("is not a document: {err}")))?;
        let bytes = STANDARD.decode(data.as_bytes()).map_err(|_| FieldError::new("data", "is not base64"))?;
        drop(data);
        Ok::<_, ApiError>((name, media_type, bytes, body.into_share()))
    };
    let decoded = tokio::task::spawn_blocking(decode).await.map_err(AgentError::Prepare)?;
    let (name, media_type, bytes, _share) = decoded?;
    match documents::read(&bytes[..], &name, Some(&media_type)).await {
        Ok((kind, text)) => Ok(Json(json!({ "name": name, "kind": kind.name(), "text": text }))),
        Err(err) => Err(ApiError::Document { name, err }),
    }
}
