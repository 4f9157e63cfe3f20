//! The cloud client: scenes and assist streams over HTTP.
//!
//! Takes only what the redactor built ([`OutgoingRequest`], [`PublicName`]), and figures ([`Feedback`]).
//! Never retries by itself, follows no redirect, and reads a bounded number of bytes. Every failure is a
//! [`CloudFault`], so that the relay can go on without the cloud.

mod feedback;
mod kv;
mod open;
mod outgoing;
mod roots;
mod sse;

pub use feedback::Feedback;
pub use kv::KvSource;
pub use open::{OpenRequest, Remains};
pub use outgoing::{OutgoingDraft, OutgoingError, OutgoingRequest};
pub use sse::{EVENT_BYTES_MAX, STREAM_BYTES_MAX, assist_events};

use crate::privacy::PublicName;
use crate::relay::CloudFault;
use crate::relay::fault_of;
use baton_protocol::{
    AssistEvent, ErrorBody, ErrorCode, ErrorDetail, SceneInfo, StreamChecksum, VerifyReply,
};
use baton_registry::sync::{SyncReply, SyncRequest};
use futures_util::Stream;
use reqwest::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH, RETRY_AFTER,
};
use reqwest::{Response, StatusCode, Url};
use roots::{ANDROID_ROOTS, roots_in};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use uuid::Uuid;

/// Tells a gateway the scene, because it cannot read compressed bodies. Requests of one scene share a prefix,
/// so a gateway may send them to one replica.
const SCENE_HEADER: &str = "x-baton-scene";
/// Carries the name that this device has for itself.
const DEVICE_HEADER: &str = "x-device-id";
/// Lengths of that name, in bytes.
const DEVICE_ID_BYTES: std::ops::RangeInclusive<usize> = 8..=128;
/// Longest time to have a draft checked.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest time to send the figures of an answer.
const FEEDBACK_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time that a program that ends waits until the cloud was told what it must know.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);
/// Most bytes of a scene or an error body.
const BODY_BYTES_MAX: usize = 256 * 1024;
/// Longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time to fetch a scene.
const SCENE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest `Retry-After` that is accepted, in seconds; a longer one is cut to this.
const RETRY_AFTER_SECS_MAX: u64 = 3600;

/// Why a client cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is not an `http` or `https` URL.
    #[error("cloud address `{url}` is not an http or https URL")]
    BadUrl {
        /// The address that was given.
        url: String,
    },
    /// TLS or the connection pool could not be set up.
    #[error("set up the http client")]
    Setup(#[source] reqwest::Error),
    /// The key cannot be sent in a header.
    #[error("the cloud key holds characters that a header cannot carry")]
    BadKey,
    /// The device's name is too short, too long, or not of visible ASCII characters.
    #[error("the device's name must have 8 to 128 visible ASCII characters")]
    BadDeviceId,
}

/// The cloud's reply to a request for a scene.
#[derive(Debug, Clone, PartialEq)]
pub enum SceneReply {
    /// The device's version is current.
    NotModified,
    /// The scene, and the tag for the next request.
    Scene {
        /// The scene.
        scene: Box<SceneInfo>,
        /// Its entity tag.
        etag: Option<String>,
    },
}

/// A client of one cloud service.
#[derive(Debug, Clone)]
pub struct CloudClient {
    http: reqwest::Client,
    base: Url,
    resumes: bool,
    device_id: Option<HeaderValue>,
    /// Held for reading by each open request and each message that nothing waits for.
    pending: Arc<RwLock<()>>,
}

impl CloudClient {
    /// Makes a client for the service at `url`; `key` is sent as a bearer token.
    ///
    /// # Errors
    /// [`ClientError`] for a bad address, a bad key, or missing TLS roots.
    pub fn new(url: &str, key: Option<&str>) -> Result<Self, ClientError> {
        let bad_url = || ClientError::BadUrl { url: url.to_owned() };
        let mut base = Url::parse(url).map_err(|_| bad_url())?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(bad_url());
        }
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        // A second installation fails and leaves the first provider in place.
        let _already_installed = rustls::crypto::ring::default_provider().install_default();
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            let mut value =
                HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| ClientError::BadKey)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .default_headers(headers)
            .user_agent(concat!("baton/", env!("CARGO_PKG_VERSION")))
            .no_gzip()
            .tcp_nodelay(true);
        if base.scheme() == "http" {
            // Plain HTTP needs no TLS, so a machine without root certificates must not fail here.
            builder = builder.tls_certs_only([]);
        } else if cfg!(target_os = "android") {
            // The system's verifier answers to apps alone.
            builder = builder.tls_certs_only(roots_in(&ANDROID_ROOTS.map(Path::new)));
        }
        let http = builder.build().map_err(ClientError::Setup)?;
        Ok(Self { http, base, resumes: true, device_id: None, pending: Arc::default() })
    }

    /// Makes [`Self::flush`] wait until the result is dropped. Returns none if it waits already.
    fn pending(&self) -> Option<OwnedRwLockReadGuard<()>> {
        Arc::clone(&self.pending).try_read_owned().ok()
    }

    /// Waits until no request is open and the cloud was told all that nothing else waits for, but not long. A
    /// program that ends calls it when its answers have ended.
    pub async fn flush(&self) {
        // What is not sent by then is lost; the cloud ends what has no reader by itself.
        let _late = tokio::time::timeout(FLUSH_TIMEOUT, self.pending.write()).await;
    }

    /// Makes the client not resume streams that are cut.
    #[must_use]
    pub fn without_resume(mut self) -> Self {
        self.resumes = false;
        self
    }

    /// Makes the client name this device in its requests. Experiments of the cloud then give it one arm, and
    /// take the figures of its answers.
    ///
    /// # Errors
    /// [`ClientError::BadDeviceId`] if the cloud would refuse the name.
    pub fn with_device_id(mut self, id: &str) -> Result<Self, ClientError> {
        let is_name = DEVICE_ID_BYTES.contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
        let value = HeaderValue::try_from(id).ok().filter(|_| is_name);
        self.device_id = Some(value.ok_or(ClientError::BadDeviceId)?);
        Ok(self)
    }

    /// Returns whether cut streams are resumed.
    pub fn resumes(&self) -> bool {
        self.resumes
    }

    fn url(&self, path: &str) -> Result<Url, CloudFault> {
        self.base.join(path).map_err(|err| CloudFault::Unreachable { reason: err.to_string() })
    }

    /// Fetches a scene, unless `etag` is still current.
    ///
    /// # Errors
    /// [`CloudFault`] if the cloud cannot be reached, refuses, or sends no valid scene.
    pub async fn scene(&self, id: &PublicName, etag: Option<&str>) -> Result<SceneReply, CloudFault> {
        let mut url = self.url("v1/scenes/")?;
        url.path_segments_mut()
            .map_err(|()| unreachable("the address has no path"))?
            .pop_if_empty()
            .push(id.as_str());
        let mut request = self.http.get(url).timeout(SCENE_TIMEOUT);
        if let Some(etag) = etag {
            request = request.header(IF_NONE_MATCH, etag);
        }
        if let Some(id) = &self.device_id {
            request = request.header(DEVICE_HEADER, id);
        }
        let response = request.send().await.map_err(unreachable)?;
        if response.status() == StatusCode::NOT_MODIFIED {
            return Ok(SceneReply::NotModified);
        }
        let response = accepted(response, "application/json").await?;
        let etag = response.headers().get(ETAG).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let body = bounded_body(response).await?;
        let malformed = |reason: String| CloudFault::Malformed { reason };
        let scene: SceneInfo = serde_json::from_slice(&body).map_err(|err| malformed(err.to_string()))?;
        scene.check().map_err(|err| malformed(err.to_string()))?;
        Ok(SceneReply::Scene { scene: Box::new(scene), etag })
    }

    /// Asks which models this device should have. The request has no text of the user.
    ///
    /// # Errors
    /// [`CloudFault`] if the cloud cannot be reached, refuses, or sends no valid reply.
    pub async fn sync(&self, request: &SyncRequest) -> Result<SyncReply, CloudFault> {
        let post = self.http.post(self.url("v1/registry/sync")?).timeout(SCENE_TIMEOUT).json(request);
        let response = accepted(post.send().await.map_err(unreachable)?, "application/json").await?;
        let body = bounded_body(response).await?;
        serde_json::from_slice(&body).map_err(|err| CloudFault::Malformed { reason: err.to_string() })
    }

    /// Returns where assist requests go: scheme, host, port and path.
    pub fn assist_url(&self) -> String {
        let path = format!("{}v1/assist", self.base.path());
        format!("{}{path}", self.base.origin().ascii_serialization())
    }

    /// Sends an assist request; returns the stream of its events. Dropping the stream closes the connection.
    /// If the request may be resumed, only [`OpenRequest`] frees the cloud's slot then.
    ///
    /// # Errors
    /// [`CloudFault`] if there is no stream.
    pub async fn assist(
        &self,
        request: &OutgoingRequest,
    ) -> Result<impl Stream<Item = Result<AssistEvent, CloudFault>> + use<>, CloudFault> {
        let url = self.url("v1/assist")?;
        let mut post = self
            .http
            .post(url)
            .header(CONTENT_TYPE, "application/json")
            .header("x-request-id", request.request_id().to_string())
            .header("traceparent", traceparent(request.request_id()))
            .header(SCENE_HEADER, request.scene())
            .body(request.body().to_vec());
        if request.gzipped() {
            post = post.header(CONTENT_ENCODING, "gzip");
        }
        if let Some(id) = &self.device_id {
            post = post.header(DEVICE_HEADER, id);
        }
        let response = accepted(post.send().await.map_err(unreachable)?, "text/event-stream").await?;
        Ok(assist_events(response.bytes_stream(), request.checksum()))
    }

    /// Resumes the stream of this request after the token with index `seen`.
    ///
    /// # Errors
    /// [`CloudFault`] if the cloud no longer keeps the stream, or cannot be reached.
    pub async fn resume(
        &self,
        request: &OutgoingRequest,
        seen: u32,
    ) -> Result<impl Stream<Item = Result<AssistEvent, CloudFault>> + use<>, CloudFault> {
        let request_id = request.request_id();
        let url = self.url(&format!("v1/assist/{request_id}"))?;
        let get = self.http.get(url).header("last-event-id", seen.to_string());
        let get = get.header(SCENE_HEADER, request.scene());
        let response = accepted(get.send().await.map_err(unreachable)?, "text/event-stream").await?;
        let checksum = StreamChecksum::of_resumed(request_id, Some(seen));
        Ok(assist_events(response.bytes_stream(), checksum))
    }

    /// Returns where the drafts of this request's answer go: scheme, host, port and path.
    pub fn verify_url(&self, request_id: Uuid) -> String {
        format!("{}/{request_id}/verify", self.assist_url())
    }

    /// Has a draft checked.
    ///
    /// # Errors
    /// [`CloudFault`] if the cloud cannot be reached, refuses, or sends no valid reply.
    pub async fn verify(&self, draft: &OutgoingDraft) -> Result<VerifyReply, CloudFault> {
        let url = self.url(&format!("v1/assist/{}/verify", draft.request_id()))?;
        let post = self.http.post(url).timeout(VERIFY_TIMEOUT).header(SCENE_HEADER, draft.scene());
        let post = post.header(CONTENT_TYPE, "application/json").body(draft.body().to_vec());
        let response = accepted(post.send().await.map_err(unreachable)?, "application/json").await?;
        let body = bounded_body(response).await?;
        serde_json::from_slice(&body).map_err(|err| CloudFault::Malformed { reason: err.to_string() })
    }

    /// Sends the figures of an answer in the background. The answer is whole, whether the cloud takes them or
    /// not.
    pub fn tell_feedback(&self, feedback: Feedback) {
        let client = self.clone();
        let pending = self.pending();
        tokio::spawn(async move {
            let _refused = client.feedback(&feedback).await;
            drop(pending);
        });
    }

    /// Sends the figures of an answer of an experiment. Sends nothing if the device has no name: nobody then
    /// agreed to take part.
    ///
    /// # Errors
    /// [`CloudFault`] if the cloud cannot be reached or refuses them.
    pub async fn feedback(&self, feedback: &Feedback) -> Result<(), CloudFault> {
        if self.device_id.is_none() {
            return Ok(());
        }
        let post = self.http.post(self.url("v1/feedback")?).timeout(FEEDBACK_TIMEOUT);
        let body = serde_json::to_vec(feedback).map_err(unreachable)?;
        let post = post.header(CONTENT_TYPE, "application/json").body(body);
        let response = post.send().await.map_err(unreachable)?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(());
        }
        accepted(response, "application/json").await.map(drop)
    }
}

/// Returns the trace header for the cloud's spans of this request. The trace id is the request's id, so that
/// one can be found by the other. The span id is the low half of a version 4 UUID, which is never zero.
fn traceparent(request_id: uuid::Uuid) -> String {
    format!("00-{}-{:016x}-01", request_id.simple(), request_id.as_u64_pair().1)
}

/// Makes a fault from an error and its causes, without the address, which may hold a name.
fn unreachable(err: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CloudFault {
    let err = err.into();
    let mut reason = match err.downcast_ref::<reqwest::Error>() {
        Some(err) if err.is_timeout() => "timed out".to_owned(),
        Some(err) if err.is_connect() => "no connection".to_owned(),
        Some(_) => "the request failed".to_owned(),
        None => err.to_string(),
    };
    let mut source = err.source();
    while let Some(cause) = source {
        reason = format!("{reason}: {cause}");
        source = cause.source();
    }
    CloudFault::Unreachable { reason }
}

/// Returns the response if its status is a success and its content type is `want`; otherwise the matching
/// fault.
async fn accepted(response: Response, want: &str) -> Result<Response, CloudFault> {
    let status = response.status();
    let content_type = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .unwrap_or("nothing")
        .chars()
        .take(80)
        .collect::<String>();
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if status.is_success() && media_type == want {
        return Ok(response);
    }
    if status.is_success() || status.is_redirection() {
        return Err(CloudFault::NotAnEventStream { content_type });
    }
    let retry_after_ms = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|v| v.to_str().ok()?.trim().parse::<u64>().ok())
        .map(|secs| secs.min(RETRY_AFTER_SECS_MAX) * 1000);
    let body = bounded_body(response).await.unwrap_or_default();
    let mut detail = match serde_json::from_slice::<ErrorBody>(&body) {
        Ok(body) => body.error,
        Err(_) => ErrorDetail {
            code: ErrorCode::Other,
            message: format!("status {}", status.as_u16()),
            kind: String::new(),
            param: None,
            retry_after_ms: None,
        },
    };
    detail.retry_after_ms = detail.retry_after_ms.or(retry_after_ms);
    Err(fault_of(status.as_u16(), &detail))
}

async fn bounded_body(mut response: Response) -> Result<Vec<u8>, CloudFault> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        if body.len() + chunk.len() > BODY_BYTES_MAX {
            return Err(CloudFault::TooLarge { max: BODY_BYTES_MAX as u64 });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

#[cfg(test)]
mod tests;
