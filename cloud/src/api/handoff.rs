//! `GET /v1/assist/{id}/kv`: keys and values of a prompt, as frames, from any byte on.
//!
//! Never: sends a byte that the engine has not given, or keeps a reader for longer than [`READ_MAX`]. Always:
//! what was read to its end is forgotten, and a handoff that breaks off ends the connection.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use baton_openai::ErrorReply;
use baton_protocol::ErrorCode;
use bytes::Bytes;
use futures_util::{TryStreamExt, stream};

use super::error::ApiError;
use super::kept::Owner;
use super::{App, PathId, request_uuid};

/// The most bytes that are given out at a time.
const PIECE_BYTES: usize = 64 << 10;
/// The longest time that one reader takes.
const READ_MAX: Duration = Duration::from_secs(60);

/// Gives keys and values that the `first` event of an answer offered (`kv`).
///
/// The frames are described in `docs/api.md`. A fetch that was cut goes on with the header `range`, as
/// `bytes=N-`. Each handoff is parked for 30 seconds and can be read to its end once.
#[utoipa::path(
    get,
    path = "/v1/assist/{id}/kv",
    tag = "assist",
    params(
        ("id" = Uuid, Path, description = "the `request_id`"),
        ("range" = Option<String>, Header, description = "`bytes=N-`: go on from this byte"),
    ),
    responses(
        (status = 200, description = "the frames", content_type = "application/octet-stream", body = Vec<u8>),
        (status = 206, description = "the frames from a byte on", content_type = "application/octet-stream",
            body = Vec<u8>),
        (status = "4XX", description = "refused, or not there any more", body = ErrorReply),
        (status = "5XX", description = "the service is stopping or has failed", body = ErrorReply),
    ),
    security(("key" = [])),
)]
pub(super) async fn fetch(
    State(app): State<App>,
    id: PathId,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id = request_uuid(id)?;
    let asker = Owner::of(&headers).digest();
    let Some(handoff) = app.service.handoff(asker, id) else {
        return Err(ApiError::new(ErrorCode::Gone, "no keys and values of this name are kept here"));
    };
    let (from, all) = (first_byte(&headers)?, handoff.bytes());
    let begin = from.unwrap_or(0);
    if begin >= all {
        let message = format!("there are {all} bytes, byte {begin} was asked for");
        return Err(ApiError::new(ErrorCode::InvalidRequest, message).with_status(416));
    }
    let service = app.service.clone();
    let until = tokio::time::Instant::now() + READ_MAX;
    let pieces = stream::try_unfold((begin, Bytes::new()), move |(at, mut held)| {
        let (handoff, service) = (handoff.clone(), service.clone());
        async move {
            if held.is_empty() {
                let next = tokio::time::timeout_at(until, handoff.next(at)).await;
                match next.map_err(std::io::Error::other)?.map_err(std::io::Error::other)? {
                    Some(bytes) => held = bytes,
                    None => return Ok::<_, std::io::Error>(None),
                }
            }
            let piece = held.split_to(held.len().min(PIECE_BYTES));
            service.metrics().kv_handoff_bytes(piece.len() as u64);
            let at = at + piece.len() as u64;
            // Nobody asks for what follows the last piece.
            if at == all {
                service.handoff_read(asker, id);
            }
            Ok(Some((piece, (at, held))))
        }
    });
    let mut response = Response::new(Body::from_stream(pieces.into_stream()));
    let set = |response: &mut Response, name, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    };
    set(&mut response, header::CONTENT_TYPE, "application/octet-stream");
    set(&mut response, header::CACHE_CONTROL, "no-store");
    set(&mut response, header::CONTENT_LENGTH, &(all - begin).to_string());
    set(&mut response, header::ACCEPT_RANGES, "bytes");
    if from.is_some() {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        set(&mut response, header::CONTENT_RANGE, &format!("bytes {begin}-{}/{all}", all - 1));
    }
    Ok(response)
}

/// Returns the byte from which on bytes are asked for, if one is named.
fn first_byte(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let Some(range) = headers.get(header::RANGE) else { return Ok(None) };
    let first = range.to_str().ok().and_then(|range| range.trim().strip_prefix("bytes="));
    let first = first.and_then(|range| range.strip_suffix('-')).and_then(|first| first.parse().ok());
    let wrong = || ApiError::new(ErrorCode::InvalidRequest, "`range` must be `bytes=N-`");
    first.map(Some).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_names_its_first_byte() {
        let check = |value: &'static str, want: Option<u64>| {
            let headers = HeaderMap::from_iter([(header::RANGE, HeaderValue::from_static(value))]);
            assert_eq!(first_byte(&headers).ok().flatten(), want, "{value}");
        };
        check("bytes=0-", Some(0));
        check("bytes=1048624-", Some(1_048_624));
        for wrong in
            ["bytes=5-9", "bytes=-5", "bytes=a-", "items=0-", "bytes=0-,5-", "bytes=99999999999999999999-"]
        {
            check(wrong, None);
        }
        assert_eq!(first_byte(&HeaderMap::new()).unwrap(), None);
    }
}
