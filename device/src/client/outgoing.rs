//! A request as it leaves the device: redacted text only, checked, and compressed if it is large.

use crate::privacy::RedactedRequest;
use baton_protocol::{RequestError, StreamChecksum, VerifyRequest};
use flate2::Compression;
use flate2::write::GzEncoder;
use reqwest::header::HeaderValue;
use std::io::Write;
use uuid::Uuid;

/// Bodies over this many bytes are sent gzipped.
const GZIP_BYTES_MIN: usize = 4096;

/// Why a request cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum OutgoingError {
    /// A field is out of its range.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// It cannot be encoded as JSON or compressed.
    #[error("encode the request")]
    Encode(#[source] std::io::Error),
}

/// A checked request, ready to send. It can only be made from a redacted request.
#[derive(Clone)]
pub struct OutgoingRequest {
    request_id: Uuid,
    scene: HeaderValue,
    resume: bool,
    body: Vec<u8>,
    gzipped: bool,
    checksum: StreamChecksum,
}

impl std::fmt::Debug for OutgoingRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OutgoingRequest({}, {} bytes)", self.request_id, self.body.len())
    }
}

impl OutgoingRequest {
    /// Checks and encodes a request.
    ///
    /// # Errors
    /// [`OutgoingError`] if a field is out of its range, or the request cannot be encoded.
    pub fn new(request: &RedactedRequest) -> Result<Self, OutgoingError> {
        let request = request.as_request();
        request.check()?;
        let json = serde_json::to_vec(request).map_err(|err| OutgoingError::Encode(err.into()))?;
        let checksum = StreamChecksum::new(&json);
        let gzipped = json.len() > GZIP_BYTES_MIN;
        let body = if gzipped { gzip(&json).map_err(OutgoingError::Encode)? } else { json };
        let scene = HeaderValue::from_bytes(request.scene.as_bytes())
            .expect("a checked name holds no control characters");
        Ok(Self { request_id: request.request_id, scene, resume: request.resume, body, gzipped, checksum })
    }

    /// Returns the id of the request.
    pub fn request_id(&self) -> Uuid {
        self.request_id
    }

    /// Returns the scene's name as a header value.
    pub fn scene(&self) -> &HeaderValue {
        &self.scene
    }

    /// Returns whether its stream may be resumed.
    pub fn resumes(&self) -> bool {
        self.resume
    }

    /// Returns the checksum with which the reply's running checksum begins.
    pub fn checksum(&self) -> StreamChecksum {
        self.checksum.clone()
    }

    /// Returns the bytes of the body as sent.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Returns whether the body is gzipped.
    pub fn gzipped(&self) -> bool {
        self.gzipped
    }
}

/// A draft of the answer to a request, ready to send. It has ids of tokens only.
#[derive(Debug, Clone)]
pub struct OutgoingDraft {
    request_id: Uuid,
    scene: HeaderValue,
    body: Vec<u8>,
}

impl OutgoingDraft {
    /// Encodes a draft of the answer to `request`.
    ///
    /// # Errors
    /// [`OutgoingError`] if it cannot be encoded.
    pub fn new(request: &OutgoingRequest, draft: &VerifyRequest) -> Result<Self, OutgoingError> {
        let body = serde_json::to_vec(draft).map_err(|err| OutgoingError::Encode(err.into()))?;
        Ok(Self { request_id: request.request_id, scene: request.scene.clone(), body })
    }

    /// Returns the id of the request.
    pub fn request_id(&self) -> Uuid {
        self.request_id
    }

    /// Returns the scene's name as a header value.
    pub fn scene(&self) -> &HeaderValue {
        &self.scene
    }

    /// Returns the bytes of the body as sent.
    pub fn body(&self) -> &[u8] {
        &self.body
    }
}

fn gzip(json: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(json.len() / 2), Compression::fast());
    encoder.write_all(json)?;
    encoder.finish()
}
