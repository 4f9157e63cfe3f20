//! `POST /v1/registry/sync`: which models a device should have; `GET /v1/registry/blobs/sha256/{digest}`: the
//! bytes of a registry in a folder, or the way to those in a bucket.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::{Extension, Json};
use baton_openai::{ErrorReply, FieldError};
use baton_protocol::ErrorCode;
use baton_registry::digest::Digest;
use baton_registry::sync::{SyncReply, SyncRequest};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tracing::warn;
use utoipa::ToSchema;

use super::error::ApiError;
use super::{App, PathId, body, path_id};
use crate::access::Caller;
use crate::fleet::reports::STATIC_KEY;
use crate::fleet::source::RegistrySource;
use crate::store::{DeviceReport, now_ms};

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
    if reply.wanted.is_some() {
        note(&app, &caller, &request, now_ms).await;
    }
    Ok(Json(reply))
}

/// Notes what a device reported, if its key has not reported too much. The device is answered from memory,
/// also while the database is away.
async fn note(app: &App, caller: &Caller, request: &SyncRequest, now_ms: i64) {
    let Some(store) = &app.store else { return };
    let without = if app.access.book.is_open() { "" } else { STATIC_KEY };
    let key = caller.key_id.as_deref().unwrap_or(without);
    let fleet = app.service.fleet();
    if !fleet.report_rates.admits(key) {
        return app.service.metrics().device_report("limited");
    }
    let device = format!("{}\0{}", caller.tenant.id, request.device);
    let report = DeviceReport {
        device_hash: Sha256::digest(device.as_bytes()).into(),
        key,
        scene: fleet.targets.scene_of(&request.scene, &request.class),
        class: &request.class,
        active: request.active.as_ref(),
        failed: request.failed.last(),
    };
    match store.note_model_report(&report, now_ms).await {
        Ok(()) => app.service.metrics().device_report("noted"),
        Err(err) => warn!(err = &err as &dyn std::error::Error, "what a device has is not noted"),
    }
}

/// Returns bytes of the registry, if it is in a folder of this service. Takes `range: bytes=N-`. If it is in
/// a bucket, sends the client to a signed address there.
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
    baton_edge::file::reply(&folder.blob(&digest), &digest.to_string(), &headers).await.map_err(|err| {
        match err.kind() {
            std::io::ErrorKind::NotFound => none(),
            _ => {
                warn!(err = &err as &dyn std::error::Error, %digest, "the registry cannot be read");
                ApiError::new(ErrorCode::Internal, "the registry cannot be read")
            }
        }
    })
}
