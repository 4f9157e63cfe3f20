//! What a device and the cloud say to each other about models: `POST /v1/registry/sync`.

use baton_protocol::{ModelPair, ModelVersion};
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::layout::Location;

/// The scene of a pair that is for every scene without one of its own.
pub const ANY_SCENE: &str = "*";
/// Most models and pairs in a list of a request.
pub const LIST_MAX: usize = 64;
/// Longest name of a device, a class or a scene, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// What a device says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyncRequest {
    /// A random name of this device, which it has for this cloud alone.
    pub device: String,
    /// Its class, e.g. `phone`.
    pub class: String,
    /// The scene that its pair is for; [`ANY_SCENE`] for all.
    pub scene: String,
    /// The pair that it answers with.
    #[serde(default)]
    pub active: Option<ModelPair>,
    /// What it has whole.
    #[serde(default)]
    pub held: Vec<ModelVersion>,
    /// Pairs that it has whole and could not load.
    #[serde(default)]
    pub failed: Vec<ModelPair>,
}

/// What the cloud says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncReply {
    /// The pair that the device should have; `None` if none is set for its class and scene.
    pub wanted: Option<ModelPair>,
    /// The pairs that it may ask with, of those that it has and the wanted one.
    #[serde(default)]
    pub leases: Vec<Lease>,
    /// Where the signed manifests of the wanted pair are.
    #[serde(default)]
    pub models: Vec<SyncModel>,
    /// Where bytes are, in the order in which they should be tried.
    #[serde(default)]
    pub locations: Vec<Location>,
    /// Whether the cloud itself has bytes too, under `/v1/registry/blobs/sha256/HEX`.
    #[serde(default)]
    pub serves: bool,
    /// When to ask again, in seconds.
    pub again_s: u64,
}

/// A pair that a device may ask with, and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The pair.
    pub pair: ModelPair,
    /// For how many seconds after the request was sent.
    pub lease_s: u64,
}

/// A version that a device should have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncModel {
    /// The version.
    pub model: ModelVersion,
    /// Digest of its signed manifest.
    pub envelope: Digest,
    /// Bytes of its files.
    pub bytes: u64,
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// It is not the JSON that is wanted.
    #[error("not the JSON that is wanted: {0}")]
    Json(String),
    /// A name is empty, too long or has control characters.
    #[error("field `{0}` must have 1 to {NAME_BYTES_MAX} bytes without control characters")]
    Name(&'static str),
    /// A list is too long.
    #[error("field `{0}` has more than {LIST_MAX} items")]
    TooLong(&'static str),
}

impl SyncError {
    /// Returns the field that is meant; `.` for the whole body.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Json(_) => ".",
            Self::Name(field) | Self::TooLong(field) => field,
        }
    }
}

impl SyncRequest {
    /// Reads and checks a request.
    ///
    /// # Errors
    /// [`SyncError`] names the field.
    pub fn parse(json: &[u8]) -> Result<Self, SyncError> {
        let request: Self = serde_json::from_slice(json).map_err(|err| SyncError::Json(err.to_string()))?;
        for (field, name) in
            [("device", &request.device), ("class", &request.class), ("scene", &request.scene)]
        {
            if !(1..=NAME_BYTES_MAX).contains(&name.len()) || name.chars().any(char::is_control) {
                return Err(SyncError::Name(field));
            }
        }
        for (field, len) in [("held", request.held.len()), ("failed", request.failed.len())] {
            if len > LIST_MAX {
                return Err(SyncError::TooLong(field));
            }
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_checked() {
        let text = r#"{"device":"d","class":"phone","scene":"*","active":{"base":"m@1"},"held":["m@1"]}"#;
        let request = SyncRequest::parse(text.as_bytes()).unwrap();
        assert_eq!(request.active, Some("m@1".parse().unwrap()));
        assert_eq!(
            serde_json::from_slice::<SyncRequest>(&serde_json::to_vec(&request).unwrap()).unwrap(),
            request
        );
        let many =
            format!(r#"{{"device":"d","class":"p","scene":"*","held":[{}]}}"#, vec!["\"m@1\""; 65].join(","));
        for (text, field) in [
            (r#"{"device":"","class":"p","scene":"*"}"#, "device"),
            (r#"{"device":"d","class":"p\n","scene":"*"}"#, "class"),
            (r#"{"device":"d","class":"p"}"#, "."),
            (r#"{"device":"d","class":"p","scene":"*","more":1}"#, "."),
            (r#"{"device":"d","class":"p","scene":"*","held":["m"]}"#, "."),
            (many.as_str(), "held"),
        ] {
            assert_eq!(SyncRequest::parse(text.as_bytes()).unwrap_err().field(), field, "{text}");
        }
    }
}
