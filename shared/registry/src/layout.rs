//! Where the bytes of a registry lie: an OCI image layout.
//!
//! Source: OCI Image Format 1.1 (image-layout.md, manifest.md) and OCI Distribution 1.1. A folder of this
//! layout can be copied to any OCI registry and any bucket by the tools that exist. Each version is one OCI
//! manifest: its config is the signed manifest ([`crate::envelope`]), its layers are the files. Its tag is
//! `NAME-VERSION`, because a tag has no `@`.

use std::fmt;
use std::str::FromStr;

use baton_protocol::ModelVersion;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::manifest::FileEntry;

/// The file that says what the folder is.
pub const LAYOUT_FILE: &str = "oci-layout";
/// What that file holds.
pub const LAYOUT_JSON: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;
/// The file that lists the versions.
pub const INDEX_FILE: &str = "index.json";
/// The artifact type of a version.
pub const ARTIFACT_TYPE: &str = "application/vnd.baton.model.v1";
/// The type of the config, a signed manifest.
pub const ENVELOPE_TYPE: &str = "application/vnd.dsse.envelope.v1+json";
/// The type of the OCI manifest.
pub const OCI_MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const LAYER_TYPE: &str = "application/octet-stream";
/// Longest index or OCI manifest that is read, in bytes.
pub const DOCUMENT_BYTES_MAX: usize = 8 << 20;

/// What points to bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    media_type: String,
    /// Digest of the bytes.
    pub digest: Digest,
    /// Their length.
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    artifact_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    annotations: Option<Annotations>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Annotations {
    #[serde(rename = "org.opencontainers.image.title", default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(rename = "org.opencontainers.image.ref.name", default, skip_serializing_if = "Option::is_none")]
    ref_name: Option<String>,
}

/// The list of all versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    schema_version: u32,
    media_type: String,
    manifests: Vec<Descriptor>,
}

impl Default for Index {
    fn default() -> Self {
        Self { schema_version: 2, media_type: OCI_INDEX_TYPE.to_owned(), manifests: Vec::new() }
    }
}

/// The OCI manifest of a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OciManifest {
    schema_version: u32,
    media_type: String,
    #[serde(default)]
    artifact_type: String,
    /// The signed manifest.
    pub config: Descriptor,
    layers: Vec<Descriptor>,
}

/// A document of a registry that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// It is not the JSON that is wanted.
    #[error("it is not the JSON that is wanted: {0}")]
    Json(String),
    /// It is of something else.
    #[error("it is of another kind: `{0}`")]
    Kind(String),
}

/// Returns the tag of a version.
pub fn tag(model: &ModelVersion) -> String {
    format!("{}-{}", model.name(), model.version())
}

/// Returns the version that a tag names, if it names one.
pub fn of_tag(tag: &str) -> Option<ModelVersion> {
    let (name, version) = tag.rsplit_once('-')?;
    format!("{name}@{version}").parse().ok()
}

impl Index {
    /// Reads an index. What it lists beside models is left out.
    ///
    /// # Errors
    /// [`LayoutError::Json`].
    pub fn parse(json: &[u8]) -> Result<Self, LayoutError> {
        serde_json::from_slice(json).map_err(|err| LayoutError::Json(err.to_string()))
    }

    /// Returns the versions, and the descriptors of their OCI manifests.
    pub fn versions(&self) -> impl Iterator<Item = (ModelVersion, &Descriptor)> {
        self.manifests.iter().filter_map(|descriptor| {
            let tag = descriptor.annotations.as_ref()?.ref_name.as_deref()?;
            let is_model = descriptor.artifact_type.as_deref().is_none_or(|kind| kind == ARTIFACT_TYPE);
            Some((of_tag(tag).filter(|_| is_model)?, descriptor))
        })
    }

    /// Adds a version; one of the same name and number is replaced.
    pub fn add(&mut self, model: &ModelVersion, oci_manifest: &[u8]) {
        let tag = tag(model);
        let has_tag = |d: &Descriptor| {
            d.annotations.as_ref().and_then(|annotations| annotations.ref_name.as_ref()) == Some(&tag)
        };
        self.manifests.retain(|descriptor| !has_tag(descriptor));
        self.manifests.push(Descriptor {
            media_type: OCI_MANIFEST_TYPE.to_owned(),
            digest: Digest::of(oci_manifest),
            size: oci_manifest.len() as u64,
            artifact_type: Some(ARTIFACT_TYPE.to_owned()),
            annotations: Some(Annotations { title: None, ref_name: Some(tag) }),
        });
    }

    /// Returns its JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }
}

impl OciManifest {
    /// Makes the OCI manifest of a version from its signed manifest and its files.
    pub fn new(envelope: &[u8], files: &[FileEntry]) -> Self {
        let layer = |file: &FileEntry| Descriptor {
            media_type: LAYER_TYPE.to_owned(),
            digest: file.digest,
            size: file.bytes,
            artifact_type: None,
            annotations: Some(Annotations { title: Some(file.name.clone()), ref_name: None }),
        };
        Self {
            schema_version: 2,
            media_type: OCI_MANIFEST_TYPE.to_owned(),
            artifact_type: ARTIFACT_TYPE.to_owned(),
            config: Descriptor {
                media_type: ENVELOPE_TYPE.to_owned(),
                digest: Digest::of(envelope),
                size: envelope.len() as u64,
                artifact_type: None,
                annotations: None,
            },
            layers: files.iter().map(layer).collect(),
        }
    }

    /// Returns whether its layers are these files.
    pub fn has_layers(&self, files: &[FileEntry]) -> bool {
        let layers = self.layers.iter().map(|layer| layer.digest);
        layers.eq(files.iter().map(|file| file.digest))
    }

    /// Reads an OCI manifest.
    ///
    /// # Errors
    /// [`LayoutError`] if it is none, or not of a model.
    pub fn parse(json: &[u8]) -> Result<Self, LayoutError> {
        let manifest: Self =
            serde_json::from_slice(json).map_err(|err| LayoutError::Json(err.to_string()))?;
        if manifest.config.media_type != ENVELOPE_TYPE {
            let kind = manifest.config.media_type.chars().filter(|c| !c.is_control()).take(64).collect();
            return Err(LayoutError::Kind(kind));
        }
        Ok(manifest)
    }

    /// Returns its JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// Returns the path of bytes in a layout, below its root.
pub fn blob_path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// Where devices get bytes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Location {
    /// A web server or public bucket that serves the files of a layout: `https://HOST/PATH`.
    Web(String),
    /// A repository of an OCI registry: `oci://HOST/NAME`, or `oci+http://HOST/NAME` without TLS.
    Oci {
        /// `https://HOST` or `http://HOST`.
        origin: String,
        /// The repository's name.
        name: String,
    },
}

/// A text that is no location of a registry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no address of a registry: want https://HOST/PATH or oci://HOST/NAME")]
pub struct BadLocation(String);

impl Location {
    /// Returns the address of the bytes with this digest.
    pub fn blob_url(&self, digest: &Digest) -> String {
        match self {
            Self::Web(base) => format!("{base}/{}", blob_path(digest)),
            Self::Oci { origin, name } => format!("{origin}/v2/{name}/blobs/{digest}"),
        }
    }

    /// Returns the address of the OCI manifest with this digest.
    pub fn manifest_url(&self, digest: &Digest) -> String {
        match self {
            Self::Web(_) => self.blob_url(digest),
            Self::Oci { origin, name } => format!("{origin}/v2/{name}/manifests/{digest}"),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Web(base) => f.write_str(base),
            Self::Oci { origin, name } => match origin.strip_prefix("https://") {
                Some(host) => write!(f, "oci://{host}/{name}"),
                None => write!(f, "oci+{origin}/{name}"),
            },
        }
    }
}

impl FromStr for Location {
    type Err = BadLocation;

    fn from_str(text: &str) -> Result<Self, BadLocation> {
        let bad = || BadLocation(text.chars().filter(|c| !c.is_control()).take(200).collect());
        if text.len() > 2048 || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(bad());
        }
        if let Some(rest) = text.strip_prefix("oci://") {
            return oci("https", rest).ok_or_else(bad);
        }
        if let Some(rest) = text.strip_prefix("oci+http://") {
            return oci("http", rest).ok_or_else(bad);
        }
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).ok_or_else(bad)?;
        // Keys of buckets come by the address alone, so a query would be lost.
        let fits = !rest.is_empty() && !rest.starts_with('/') && !rest.contains(['?', '#', '@']);
        fits.then(|| Self::Web(text.trim_end_matches('/').to_owned())).ok_or_else(bad)
    }
}

fn oci(scheme: &str, rest: &str) -> Option<Location> {
    let (host, name) = rest.split_once('/')?;
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && part.bytes().all(plain);
    let fits = !host.is_empty() && !host.contains(['@', '?', '#']) && name.split('/').all(part);
    fits.then(|| Location::Oci { origin: format!("{scheme}://{host}"), name: name.to_owned() })
}

impl TryFrom<String> for Location {
    type Error = BadLocation;

    fn try_from(text: String) -> Result<Self, BadLocation> {
        text.parse()
    }
}

impl From<Location> for String {
    fn from(location: Location) -> Self {
        location.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Kind, tests::manifest};
    use serde_json::{Value, json};

    const TITLE: &str = "org.opencontainers.image.title";
    const REF_NAME: &str = "org.opencontainers.image.ref.name";

    #[test]
    fn a_version_is_an_oci_artifact() {
        let files = manifest("m@3", Kind::Base).files;
        let oci = OciManifest::new(b"{}", &files);
        let json: Value = serde_json::from_slice(&oci.to_json()).unwrap();
        let want = json!({
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST_TYPE,
            "artifactType": ARTIFACT_TYPE,
            "config": {"mediaType": ENVELOPE_TYPE, "digest": Digest::of(b"{}").to_string(), "size": 2},
            "layers": [{
                "mediaType": "application/octet-stream",
                "digest": files[0].digest.to_string(),
                "size": 3,
                "annotations": {TITLE: "m.gguf"},
            }],
        });
        assert_eq!(json, want);
        assert_eq!(OciManifest::parse(&oci.to_json()), Ok(oci.clone()));
        let mut index = Index::default();
        index.add(&"m@3".parse().unwrap(), b"before");
        index.add(&"m@3".parse().unwrap(), &oci.to_json());
        index.add(&"m-2@1".parse().unwrap(), b"other");
        let json: Value = serde_json::from_slice(&index.to_json()).unwrap();
        assert_eq!(json["manifests"].as_array().unwrap().len(), 2);
        assert_eq!(json["manifests"][0]["annotations"][REF_NAME], "m-3");
        let again = Index::parse(&index.to_json()).unwrap();
        let versions: Vec<_> =
            again.versions().map(|(model, found)| (model.to_string(), found.digest)).collect();
        let digest = Digest::of(&oci.to_json());
        assert_eq!(versions, [("m@3".to_owned(), digest), ("m-2@1".to_owned(), Digest::of(b"other"))]);
    }

    #[test]
    fn what_is_of_another_kind_is_left_out() {
        let index = br#"{"schemaVersion":2,"mediaType":"x","manifests":[
            {"mediaType":"m","digest":"sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad","size":1},
            {"mediaType":"m","digest":"sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad","size":1,
             "artifactType":"image","annotations":{"org.opencontainers.image.ref.name":"m-1"}}]}"#;
        assert_eq!(Index::parse(index).unwrap().versions().count(), 0);
        assert!(Index::parse(b"[]").is_err());
        assert!(matches!(OciManifest::parse(b"{}"), Err(LayoutError::Json(_))));
    }

    #[test]
    fn locations_read_back_and_name_blobs() {
        let digest = Digest::of(b"abc");
        let hex = digest.hex();
        for (text, blob) in [
            ("https://a.example/models", format!("https://a.example/models/blobs/sha256/{hex}")),
            ("http://127.0.0.1:8080", format!("http://127.0.0.1:8080/blobs/sha256/{hex}")),
            ("oci://r.example:5000/team/m", format!("https://r.example:5000/v2/team/m/blobs/sha256:{hex}")),
            ("oci+http://r:5000/m", format!("http://r:5000/v2/m/blobs/sha256:{hex}")),
        ] {
            let location: Location = text.parse().unwrap();
            assert_eq!((location.to_string(), location.blob_url(&digest)), (text.to_owned(), blob));
        }
        let oci: Location = "oci://r/m".parse().unwrap();
        assert_eq!(oci.manifest_url(&digest), format!("https://r/v2/m/manifests/sha256:{hex}"));
        for bad in [
            "",
            "ftp://a",
            "https://",
            "https:///x",
            "https://u@a/x",
            "https://a/x?k=1",
            "oci://r",
            "oci://r/../m",
            "oci://r/M",
            "https://a/ b",
        ] {
            assert!(bad.parse::<Location>().is_err(), "{bad}");
        }
    }
}
