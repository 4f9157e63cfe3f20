//! `POST /v1/registry/sync`: which models a device should have; `GET /v1/registry/blobs/sha256/{digest}`: the
//! bytes of a registry in a folder, or the way to those in a bucket.

use std::io::SeekFrom;
use std::path::Path as FilePath;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::{Extension, Json};
use baton_openai::{ErrorReply, FieldError};
use baton_protocol::ErrorCode;
use baton_registry::digest::Digest;
use baton_registry::sync::{SyncReply, SyncRequest};
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tracing::warn;
use utoipa::ToSchema;

use super::error::ApiError;
use super::{App, PathId, body, path_id};
use crate::access::Caller;
use crate::fleet::source::RegistrySource;
use crate::store::{DeviceReport, now_ms};

/// Bytes of a file that are read at once.
const READ_BYTES: usize = 256 << 10;

/// What a device says of its models.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SyncBody {
    /// A random name of the device, which it has for this cloud alone.
    #[schema(min_length = 1, max_length = 128)]
    device: String,
    /// Its class, e.g. `phone`.
    #[schema(min_length = 1, max_length = 128)]
    class: String,
    /// The scene that its models are for; `*` for all.
    #[schema(min_length = 1, max_length = 128)]
    scene: String,
    /// The pair that it answers with.
    active: Option<baton_openai::wire::DevicePair>,
    /// The versions that it has whole.
    #[schema(max_items = 64, nullable = false)]
    held: Option<Vec<String>>,
    /// Pairs that it has whole and could not load, the newest last.
    #[schema(max_items = 64, nullable = false)]
    failed: Option<Vec<baton_openai::wire::DevicePair>>,
}

/// Which models a device should have.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SyncReplyBody {
    /// The pair that it should have; null if none is set for its class.
    wanted: Option<baton_openai::wire::DevicePair>,
    /// The pairs that it may ask with.
    leases: Vec<LeaseBody>,
    /// Where the signed manifests of the wanted pair are.
    models: Vec<SyncModelBody>,
    /// Addresses of registries with the bytes, in the order in which to try them.
    locations: Vec<String>,
    /// Whether this service has the bytes too, under `/v1/registry/blobs/sha256/`.
    serves: bool,
    /// When to ask again, in seconds.
    again_s: u64,
}

/// A pair that a device may ask with.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LeaseBody {
    /// The pair.
    pair: baton_openai::wire::DevicePair,
    /// For how many seconds after the request was sent.
    lease_s: u64,
}

/// A version that a device should have.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SyncModelBody {
    /// `NAME@VERSION`.
    model: String,
    /// Digest of its signed manifest, `sha256:HEX`.
    envelope: String,
    /// Bytes of its files.
    bytes: u64,
}

/// Tells a device which models it should have, and with which ones it may ask.
#[utoipa::path(
    post,
    path = "/v1/registry/sync",
    tag = "registry",
    request_body = SyncBody,
    responses(
        (status = 200, description = "the models", body = SyncReplyBody),
        (status = "4XX", description = "refused: the field to blame is in `param`", body = ErrorReply),
        (status = "5XX", description = "the service is stopping or has failed", body = ErrorReply),
    ),
    security(("key" = [])),
)]
pub(super) async fn sync(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<SyncReply>, ApiError> {
    let bytes = body::read(&headers, body, &app, &caller).await?;
    let (request, _held) = bytes.parse(|json| {
        SyncRequest::parse(json).map_err(|err| match err.field() {
            "." => FieldError::whole(err.to_string()),
            field => FieldError::new(field, err.to_string()),
        })
    })?;
    let now_ms = now_ms();
    let reply = app.service.fleet().answer(&request, u64::try_from(now_ms / 1000).unwrap_or(0));
    if let (Some(store), Some(_)) = (&app.store, &reply.wanted) {
        let device = format!("{}\0{}", caller.tenant.id, request.device);
        let report = DeviceReport {
            device_hash: Sha256::digest(device.as_bytes()).into(),
            scene: &request.scene,
            class: &request.class,
            active: request.active.as_ref(),
            failed: request.failed.last(),
        };
        // The device is answered from memory, also while the database is away.
        if let Err(err) = store.note_model_report(&report, now_ms).await {
            warn!(err = &err as &dyn std::error::Error, "what a device has is not noted");
        }
    }
    Ok(Json(reply))
}

/// Returns bytes of the registry, if it is in a folder of this service. Takes `range: bytes=N-`. If it is in a
/// bucket, sends the client to a signed address there.
#[utoipa::path(
    get,
    path = "/v1/registry/blobs/sha256/{digest}",
    tag = "registry",
    params(
        ("digest" = String, Path, description = "64 hex digits"),
        ("range" = Option<String>, Header, description = "`bytes=N-` or `bytes=N-M`"),
    ),
    responses(
        (status = 200, description = "the bytes", content_type = "application/octet-stream", body = String),
        (status = 206, description = "a part of them", content_type = "application/octet-stream", body = String),
        (status = 307, description = "the bytes are at the address in `location`, which holds for minutes"),
        (status = "4XX", description = "refused, or there is none", body = ErrorReply),
        (status = "5XX", description = "the registry cannot be read", body = ErrorReply),
    ),
    security(("key" = [])),
)]
pub(super) async fn blob(
    State(app): State<App>,
    digest: PathId,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let none = || ApiError::new(ErrorCode::InvalidRequest, "the registry has no such bytes").with_status(404);
    let digest: Digest = format!("sha256:{}", path_id(digest)?).parse().map_err(|_| none())?;
    let folder = match &app.service.fleet().registry {
        Some(RegistrySource::Folder(folder)) => folder,
        Some(RegistrySource::Bucket(bucket)) => {
            let mut reply = Redirect::temporary(bucket.blob_url(&digest).as_str()).into_response();
            reply.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            return Ok(reply);
        }
        Some(RegistrySource::Remote(_)) | None => return Err(none()),
    };
    serve_file(&folder.blob(&digest), &digest, &headers).await.map_err(|err| match err.kind() {
        std::io::ErrorKind::NotFound => none(),
        _ => {
            warn!(err = &err as &dyn std::error::Error, %digest, "the registry cannot be read");
            ApiError::new(ErrorCode::Internal, "the registry cannot be read")
        }
    })
}

async fn serve_file(path: &FilePath, digest: &Digest, headers: &HeaderMap) -> std::io::Result<Response> {
    let mut file = File::open(path).await?;
    let bytes = file.metadata().await?.len();
    let tag = format!("\"{digest}\"");
    // Bytes of a digest never change, so every tag that a client knows is right or of another file.
    let same = headers.get(header::IF_RANGE).is_none_or(|value| value.as_bytes() == tag.as_bytes());
    let asked = headers.get(header::RANGE).filter(|_| same).and_then(|value| value.to_str().ok());
    let (status, begin, end) = match asked.and_then(|text| range(text, bytes)) {
        None => (StatusCode::OK, 0, bytes),
        Some(Some((begin, end))) => (StatusCode::PARTIAL_CONTENT, begin, end),
        Some(None) => {
            let mut refused = StatusCode::RANGE_NOT_SATISFIABLE.into_response();
            refused.headers_mut().insert(header::CONTENT_RANGE, text(format!("bytes */{bytes}")));
            return Ok(refused);
        }
    };
    file.seek(SeekFrom::Start(begin)).await?;
    let body = stream::try_unfold((file, end - begin), |(mut file, left)| async move {
        if left == 0 {
            return Ok::<_, std::io::Error>(None);
        }
        let mut part = vec![0; READ_BYTES.min(usize::try_from(left).unwrap_or(READ_BYTES))];
        let read = file.read(&mut part).await?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        part.truncate(read);
        Ok(Some((Bytes::from(part), (file, left - read as u64))))
    });
    let mut reply = (status, Body::from_stream(body)).into_response();
    let set = reply.headers_mut();
    set.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    set.insert(header::CONTENT_LENGTH, HeaderValue::from(end - begin));
    set.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    set.insert(header::ETAG, text(tag));
    set.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=31536000, immutable"));
    if status == StatusCode::PARTIAL_CONTENT {
        set.insert(header::CONTENT_RANGE, text(format!("bytes {begin}-{}/{bytes}", end - 1)));
    }
    Ok(reply)
}

fn text(value: String) -> HeaderValue {
    HeaderValue::from_str(&value).expect("digits, hex digits and plain punctuation are a header value")
}

/// Reads one range of bytes: first and past the last one. `None` if it is of another form, which the standard
/// lets a server ignore; `Some(None)` if the file has no such bytes.
fn range(text: &str, bytes: u64) -> Option<Option<(u64, u64)>> {
    let (begin, last) = text.trim().strip_prefix("bytes=")?.split_once('-')?;
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if begin.is_empty() || !digits(begin) || !digits(last) {
        return None;
    }
    let begin: u64 = begin.parse().ok()?;
    let end = if last.is_empty() { bytes } else { last.parse::<u64>().ok()?.saturating_add(1).min(bytes) };
    Some((begin < end).then_some((begin, end)))
}

#[cfg(test)]
mod tests {
    use super::range;

    #[test]
    fn ranges_are_read() {
        for (text, want) in [
            ("bytes=0-", Some(Some((0, 10)))),
            ("bytes=3-5", Some(Some((3, 6)))),
            ("bytes=3-99", Some(Some((3, 10)))),
            ("bytes=10-", Some(None)),
            ("bytes=5-4", Some(None)),
            ("bytes=-5", None),
            ("bytes=1-2,4-5", None),
            ("bytes=+1-", None),
            ("lines=1-", None),
            ("bytes=99999999999999999999-", None),
        ] {
            assert_eq!(range(text, 10), want, "{text}");
        }
    }
}
