//! A request as it leaves the device: redacted text only, checked, compressed where that pays.

use crate::privacy::Redacted;
use baton_protocol::{
    AssistRequest, DeviceInfo, PROTOCOL_VERSION, RefineOptions, RequestError, Role, Sampling, Segment,
};
use flate2::Compression;
use flate2::write::GzEncoder;
use reqwest::header::HeaderValue;
use std::io::Write;
use uuid::Uuid;

/// Bodies over this many bytes are sent gzipped.
const GZIP_BYTES_MIN: usize = 4096;

/// A segment whose text was redacted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedactedSegment {
    /// Who says it.
    pub role: Role,
    /// The text.
    pub text: Redacted,
    /// Whether the cloud may leave out sentences of it.
    pub refine: bool,
}

impl RedactedSegment {
    /// The segment as the device's own engine uses it.
    pub fn to_segment(&self) -> Segment {
        Segment { role: self.role, text: self.text.as_str().to_owned(), refine: self.refine }
    }
}

/// Everything of a request that is not the user's text.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestHead {
    /// Names the request.
    pub request_id: Uuid,
    /// Scene id.
    pub scene: String,
    /// Scene version the device has.
    pub scene_version: Option<u32>,
    /// Model name, or `default`.
    pub model: String,
    /// Digest of the device's tokenizer.
    pub tokenizer_sha256: Option<String>,
    /// The device as it is now.
    pub device: Option<DeviceInfo>,
    /// How the answer is sampled.
    pub sampling: Sampling,
    /// How the content is refined.
    pub refine: RefineOptions,
    /// Tokens the cloud shall write.
    pub assist_tokens: Option<u32>,
    /// The stream may be taken up again where the line is cut.
    pub resume: bool,
}

/// Why a request cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum OutgoingError {
    /// A field is out of its range.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// It cannot be written as JSON or compressed.
    #[error("encode the request")]
    Encode(#[source] std::io::Error),
}

/// A checked request, ready to send. Can be made from redacted text only.
#[derive(Clone)]
pub struct OutgoingRequest {
    request_id: Uuid,
    scene: HeaderValue,
    resume: bool,
    body: Vec<u8>,
    gzipped: bool,
}

impl std::fmt::Debug for OutgoingRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OutgoingRequest({}, {} bytes)", self.request_id, self.body.len())
    }
}

impl OutgoingRequest {
    /// Checks and encodes a request; `continue_from` is the answer so far when the cloud is to go on.
    ///
    /// # Errors
    /// [`OutgoingError`].
    pub fn new(
        head: RequestHead,
        segments: &[RedactedSegment],
        continue_from: Option<&Redacted>,
    ) -> Result<Self, OutgoingError> {
        let request = AssistRequest {
            protocol: PROTOCOL_VERSION,
            request_id: head.request_id,
            scene: head.scene,
            scene_version: head.scene_version,
            model: head.model,
            tokenizer_sha256: head.tokenizer_sha256,
            segments: segments.iter().map(RedactedSegment::to_segment).collect(),
            continue_from: continue_from.map(|text| text.as_str().to_owned()),
            device: head.device,
            sampling: head.sampling,
            refine: head.refine,
            assist_tokens: head.assist_tokens,
            resume: head.resume,
        };
        request.check()?;
        let json = serde_json::to_vec(&request).map_err(|err| OutgoingError::Encode(err.into()))?;
        let gzipped = json.len() > GZIP_BYTES_MIN;
        let body = if gzipped { gzip(&json).map_err(OutgoingError::Encode)? } else { json };
        let scene = HeaderValue::from_bytes(request.scene.as_bytes())
            .expect("a checked name holds no control characters");
        Ok(Self { request_id: request.request_id, scene, resume: request.resume, body, gzipped })
    }

    /// Names the request.
    pub fn request_id(&self) -> Uuid {
        self.request_id
    }

    /// The scene, as it stands in a header.
    pub fn scene(&self) -> &HeaderValue {
        &self.scene
    }

    /// Whether its stream may be taken up again.
    pub fn resumes(&self) -> bool {
        self.resume
    }

    /// Bytes of the body as sent.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Whether the body is gzipped.
    pub fn gzipped(&self) -> bool {
        self.gzipped
    }
}

fn gzip(json: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(json.len() / 2), Compression::fast());
    encoder.write_all(json)?;
    encoder.finish()
}
