//! Reading a request body: bounded in bytes and time, gzip or plain.

use std::io::Read;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use baton_protocol::ErrorCode;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::ApiLimits;
use super::error::ApiError;

/// The whole body, inflated where it was compressed.
pub(super) async fn read(headers: &HeaderMap, body: Body, limits: &ApiLimits) -> Result<Bytes, ApiError> {
    let gzip = is_gzip(headers)?;
    let collected =
        tokio::time::timeout(limits.body_timeout, Limited::new(body, limits.body_bytes_max).collect());
    let bytes = match collected.await {
        Err(_) => {
            let message = format!("the body did not arrive within {} s", limits.body_timeout.as_secs());
            return Err(ApiError::new(ErrorCode::Timeout, message));
        }
        Ok(Err(err)) if err.is::<LengthLimitError>() => return Err(too_large(limits.body_bytes_max)),
        Ok(Err(_)) => return Err(ApiError::new(ErrorCode::InvalidRequest, "the body ends early")),
        Ok(Ok(body)) => body.to_bytes(),
    };
    if !gzip {
        return Ok(bytes);
    }
    let limit = limits.inflated_bytes_max;
    let inflated = tokio::task::spawn_blocking(move || inflate(&bytes, limit)).await;
    inflated.unwrap_or_else(|_| Err(ApiError::new(ErrorCode::Internal, "the body could not be read")))
}

fn is_gzip(headers: &HeaderMap) -> Result<bool, ApiError> {
    let Some(encoding) = headers.get(header::CONTENT_ENCODING) else { return Ok(false) };
    match encoding.to_str().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
        "identity" => Ok(false),
        "gzip" | "x-gzip" => Ok(true),
        _ => {
            let message = "content-encoding must be `gzip` or `identity`";
            Err(ApiError::new(ErrorCode::InvalidRequest, message).with_status(415))
        }
    }
}

fn inflate(bytes: &[u8], limit: usize) -> Result<Bytes, ApiError> {
    let mut inflated = Vec::new();
    let read = MultiGzDecoder::new(bytes).take(limit as u64 + 1).read_to_end(&mut inflated);
    if read.is_err() {
        return Err(ApiError::new(ErrorCode::InvalidRequest, "the body is not valid gzip"));
    }
    if inflated.len() > limit {
        return Err(too_large(limit));
    }
    Ok(inflated.into())
}

fn too_large(limit: usize) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, format!("the body is over {limit} bytes")).with_status(413)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn inflated_bodies_are_bounded() {
        assert_eq!(inflate(&gzip(b"hello"), 5).unwrap(), "hello");
        assert!(inflate(&gzip(b"hello!"), 5).is_err());
        let bomb = gzip(&vec![0; 10 << 20]);
        assert!(bomb.len() < 20_000);
        assert!(inflate(&bomb, 1 << 20).is_err());
        assert!(inflate(b"not gzip", 100).is_err());
        assert!(inflate(&gzip(b"hello")[..10], 100).is_err());
    }
}
