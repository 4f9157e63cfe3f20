//! Who may ask: the right `Host`, no foreign `Origin`, and the key where one is set.

use super::ApiState;
use super::error::ApiError;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;

/// The host of an authority, without its port.
fn host_name(authority: &str) -> &str {
    match authority.rfind(':') {
        Some(colon) if !authority[colon..].contains(']') => &authority[..colon],
        _ => authority,
    }
}

fn known(host: &str, state: &ApiState) -> bool {
    ["localhost", "127.0.0.1", "[::1]"]
        .into_iter()
        .chain(state.hosts.iter().map(String::as_str))
        .any(|known| host.eq_ignore_ascii_case(known))
}

fn value<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Result<Option<&'a str>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    match (first.map(|v| v.to_str()), second) {
        (None, _) => Ok(None),
        (Some(Ok(text)), None) => Ok(Some(text)),
        _ => Err(ApiError::Forbidden(format!("an unreadable `{name}`"))),
    }
}

/// Refuses a foreign `Host` (DNS rebinding) or `Origin` (a web page).
pub(super) async fn origin(
    State(state): State<Arc<ApiState>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let host = match request.uri().authority() {
        Some(authority) => authority.as_str(),
        None => value(request.headers(), &header::HOST)?.unwrap_or_default(),
    };
    if !known(host_name(host), &state) {
        return Err(ApiError::Forbidden(format!("host `{}`", host.chars().take(64).collect::<String>())));
    }
    if let Some(origin) = value(request.headers(), &header::ORIGIN)? {
        let authority = origin.split_once("://").map_or("", |(_, rest)| rest);
        if !known(host_name(authority), &state) {
            return Err(ApiError::Forbidden(format!(
                "origin `{}`",
                origin.chars().take(64).collect::<String>()
            )));
        }
    }
    Ok(next.run(request).await)
}

/// Compares without telling by time how much was right.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}

/// Refuses a missing or wrong key, where one is set.
pub(super) async fn key(
    State(state): State<Arc<ApiState>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if let Some(key) = &state.key {
        let given = value(request.headers(), &header::AUTHORIZATION)?.and_then(|v| v.strip_prefix("Bearer "));
        if !given.is_some_and(|given| same(given.as_bytes(), key.as_bytes())) {
            return Err(ApiError::Unauthorized);
        }
    }
    Ok(next.run(request).await)
}

#[cfg(test)]
mod tests {
    use super::host_name;

    #[test]
    fn ports_are_cut() {
        for (authority, want) in [
            ("localhost:80", "localhost"),
            ("127.0.0.1", "127.0.0.1"),
            ("[::1]:8", "[::1]"),
            ("[::1]", "[::1]"),
        ] {
            assert_eq!(host_name(authority), want);
        }
    }
}
