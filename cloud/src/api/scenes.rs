//! `GET /v1/scenes`: what a device must know before it sends a request. Cached by ETag.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use baton_openai::ErrorReply;
use serde_json::{Value, json};

use super::error::ApiError;
use super::openapi::{SceneBody, SceneList};
use super::{App, PathId, path_id, terms};
use crate::access::Caller;

/// Lists the scenes.
#[utoipa::path(
    get,
    path = "/v1/scenes",
    tag = "assist",
    responses(
        (status = 200, description = "the current version of each", body = SceneList),
        (status = 304, description = "the ETag that was sent is still right"),
        (status = "4XX", description = "refused", body = ErrorReply),
    ),
    security(("key" = [])),
)]
pub(super) async fn list(State(app): State<App>, headers: HeaderMap) -> Response {
    tagged(&headers, json!({ "object": "list", "data": app.service.scenes() }))
}

/// Shows a scene: what a device must know before it sends a request.
#[utoipa::path(
    get,
    path = "/v1/scenes/{id}",
    tag = "assist",
    params(
        ("id" = String, Path, description = "scene id"),
        ("x-device-id" = Option<String>, Header, description = "the device's name: it gets its arm's settings"),
    ),
    responses(
        (status = 200, description = "its current version", body = SceneBody),
        (status = 304, description = "the ETag that was sent is still right"),
        (status = "4XX", description = "refused, or there is none", body = ErrorReply),
    ),
    security(("key" = [])),
)]
pub(super) async fn show(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    id: PathId,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id = path_id(id)?;
    let scene = match terms::device(&headers)? {
        Some(device) => app.service.scene_for(&id, caller.owner(), &device)?,
        None => app.service.scene(&id)?,
    };
    Ok(tagged(&headers, json!(scene)))
}

/// Returns the reply with its ETag, or 304 if the client has it already.
fn tagged(headers: &HeaderMap, body: Value) -> Response {
    let mut hasher = DefaultHasher::new();
    body.to_string().hash(&mut hasher);
    let tag = format!("\"{:016x}\"", hasher.finish());
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let mut response = if known.is_some_and(|known| matches(known, &tag)) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        Json(body).into_response()
    };
    let value = HeaderValue::from_str(&tag).expect("a quoted hex number is a header value");
    response.headers_mut().insert(header::ETAG, value);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Returns whether a list of tags contains this one. Weak tags count too, as RFC 9110 says for
/// `If-None-Match`.
fn matches(known: &str, tag: &str) -> bool {
    known.split(',').map(str::trim).any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn tags_are_found_in_lists() {
        for known in ["\"a\"", "\"b\", \"a\"", "W/\"a\"", "*"] {
            assert!(matches(known, "\"a\""), "{known}");
        }
        for known in ["", "\"b\"", "a", "\"aa\""] {
            assert!(!matches(known, "\"a\""), "{known}");
        }
    }
}
