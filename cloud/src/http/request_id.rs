//! Gives each request one id, which is in the reply, in the log and in traces.
//!
//! Always: when a route gets a request, it has the header `x-request-id`: the client's own id if that is
//! plain ASCII, else a new one. The reply has the same id.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::{debug, warn};
use uuid::Uuid;

/// The header.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id of a client that is accepted, in bytes.
const BYTES_MAX: usize = 128;

/// Returns the request's id; empty if [`with_request_id`] did not handle the request.
#[must_use]
pub fn request_id(headers: &HeaderMap) -> &str {
    headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Sets the id of the request and of its reply. Logs refusals at `debug`, because anyone can cause them, and
/// failures of the service at `warn`.
pub async fn with_request_id(mut request: Request, next: Next) -> Response {
    let own = request.headers().get(&REQUEST_ID).filter(|value| {
        (1..=BYTES_MAX).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
    });
    let id = own.cloned().unwrap_or_else(|| {
        HeaderValue::from_str(&Uuid::new_v4().to_string()).expect("a UUID prints as visible ASCII")
    });
    // Exactly one header, whatever the client sent.
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = next.run(request).await;
    let status = response.status();
    let request = id.to_str().unwrap_or_default();
    if status.is_server_error() {
        warn!(request, %method, path, status = status.as_u16(), "a request failed");
    } else if status.is_client_error() {
        debug!(request, %method, path, status = status.as_u16(), "a request was refused");
    }
    response.headers_mut().insert(REQUEST_ID, id);
    response
}
