//! What one version of a model is: its kind, its files, and the digest of every chunk of them.

use baton_protocol::ModelVersion;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::digest::Digest;

/// Version of the manifest's form.
pub const SCHEMA: u32 = 1;
/// Bytes of a chunk: what is downloaded again if it is damaged.
pub const CHUNK_BYTES: u64 = 4 << 20;
/// Most files of a version.
const FILES_MAX: usize = 256;
/// Most chunks of a version: 4 TiB.
const CHUNKS_MAX: usize = 1 << 20;
/// Longest text of a manifest, in bytes.
const TEXT_BYTES_MAX: usize = 256;

/// What a version is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A model that writes answers.
    Base,
    /// A LoRA adapter of a base.
    Adapter,
    /// A model that makes masks beside engines that write.
    Scorer,
}

impl Kind {
    /// Returns its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Adapter => "adapter",
            Self::Scorer => "scorer",
        }
    }
}

/// One file of a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its name, without a folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The digest of the whole file, which names it in the registry.
    pub digest: Digest,
    /// Bytes of each chunk but the last one.
    pub chunk_bytes: u64,
    /// The digests of the chunks, in order.
    pub chunks: Vec<Digest>,
}

/// What one version of a model is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Which version this is.
    pub model: ModelVersion,
    /// What it is for.
    pub kind: Kind,
    /// The model family, as the file's `general.architecture` has it.
    pub family: String,
    /// Digest of the tokenizer, 64 hex digits; adapters have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer_sha256: Option<String>,
    /// The licence, an SPDX expression or `LicenseRef-` and a name.
    pub licence: String,
    /// The base that an adapter is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<ModelVersion>,
    /// Its files, the first one is opened.
    pub files: Vec<FileEntry>,
}

/// Why a manifest is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// It is not the JSON that is wanted.
    #[error("the manifest is not the JSON that is wanted: {0}")]
    Json(String),
    /// A newer program wrote it.
    #[error("the manifest has form {0}, this program reads form {SCHEMA}: update it")]
    Schema(u32),
    /// A field does not fit the others.
    #[error("the manifest of {model} is wrong: {what}")]
    Wrong {
        /// The version that it says it is.
        model: ModelVersion,
        /// What is wrong.
        what: &'static str,
    },
}

impl Manifest {
    /// Reads and checks a manifest.
    ///
    /// # Errors
    /// [`ManifestError`] says what is wrong.
    pub fn parse(json: &[u8]) -> Result<Self, ManifestError> {
        /// Only the form, which says whether the rest can be read.
        #[derive(Deserialize)]
        struct Form {
            schema: u32,
        }
        let json_error = |err: serde_json::Error| ManifestError::Json(err.to_string());
        let form: Form = serde_json::from_slice(json).map_err(json_error)?;
        if form.schema != SCHEMA {
            return Err(ManifestError::Schema(form.schema));
        }
        let manifest: Self = serde_json::from_slice(json).map_err(json_error)?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Checks what the types do not ensure.
    ///
    /// # Errors
    /// [`ManifestError`] says what is wrong.
    pub fn check(&self) -> Result<(), ManifestError> {
        let wrong = |what| Err(ManifestError::Wrong { model: self.model.clone(), what });
        if self.schema != SCHEMA {
            return Err(ManifestError::Schema(self.schema));
        }
        if [&self.family, &self.licence].into_iter().any(|text| !is_plain_text(text)) {
            return wrong("family and licence are texts of 1 to 256 bytes without control characters");
        }
        if self.base.is_some() != (self.kind == Kind::Adapter) {
            return wrong("an adapter names its base, and nothing else does");
        }
        if self
            .tokenizer_sha256
            .as_ref()
            .is_some_and(|hex| format!("sha256:{hex}").parse::<Digest>().is_err())
        {
            return wrong("the tokenizer's digest is 64 lower-case hex digits");
        }
        if self.tokenizer_sha256.is_none() != (self.kind == Kind::Adapter) {
            return wrong("bases and scorers have a tokenizer's digest, adapters have none");
        }
        if self.files.is_empty() || self.files.len() > FILES_MAX {
            return wrong("it has 1 to 256 files");
        }
        let chunks: usize = self.files.iter().map(|file| file.chunks.len()).sum();
        if chunks > CHUNKS_MAX {
            return wrong("it has more than 1,048,576 chunks");
        }
        for (at, file) in self.files.iter().enumerate() {
            if !is_file_name(&file.name) || self.files[..at].iter().any(|other| other.name == file.name) {
                return wrong("its files have plain names, each another one");
            }
            if file.bytes == 0 || file.chunk_bytes == 0 {
                return wrong("its files and chunks have bytes");
            }
            if file.bytes.div_ceil(file.chunk_bytes) != file.chunks.len() as u64 {
                return wrong("each file has as many digests as chunks");
            }
        }
        Ok(())
    }

    /// Returns the bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// Returns the JSON that is signed.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

fn is_plain_text(text: &str) -> bool {
    (1..=TEXT_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// Whether this is a plain name of a file, on every system.
fn is_file_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    begins && name.len() <= 128 && name.bytes().all(plain)
}

/// Computes the digests of a file while its bytes pass by.
#[derive(Debug)]
pub struct FileDigests {
    whole: Sha256,
    chunk: Sha256,
    in_chunk: u64,
    bytes: u64,
    chunks: Vec<Digest>,
}

impl Default for FileDigests {
    fn default() -> Self {
        Self { whole: Sha256::new(), chunk: Sha256::new(), in_chunk: 0, bytes: 0, chunks: Vec::new() }
    }
}

impl FileDigests {
    /// Takes the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.whole.update(bytes);
        self.bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let room = usize::try_from(CHUNK_BYTES - self.in_chunk).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.chunk.update(now);
            self.in_chunk += now.len() as u64;
            if self.in_chunk == CHUNK_BYTES {
                self.end_chunk();
            }
            bytes = later;
        }
    }

    fn end_chunk(&mut self) {
        self.chunks.push(Digest::from_bytes(self.chunk.finalize_reset().into()));
        self.in_chunk = 0;
    }

    /// Returns the entry of a file of this name.
    pub fn finish(mut self, name: String) -> FileEntry {
        if self.in_chunk > 0 {
            self.end_chunk();
        }
        FileEntry {
            name,
            bytes: self.bytes,
            digest: Digest::from_bytes(self.whole.finalize().into()),
            chunk_bytes: CHUNK_BYTES,
            chunks: self.chunks,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A manifest of one small file.
    pub(crate) fn manifest(model: &str, kind: Kind) -> Manifest {
        let mut digests = FileDigests::default();
        digests.update(model.as_bytes());
        Manifest {
            schema: SCHEMA,
            model: model.parse().unwrap(),
            kind,
            family: "llama".into(),
            tokenizer_sha256: (kind != Kind::Adapter).then(|| Digest::of(b"tokenizer").hex()),
            licence: "Apache-2.0".into(),
            base: (kind == Kind::Adapter).then(|| "m@1".parse().unwrap()),
            files: vec![digests.finish("m.gguf".into())],
        }
    }

    #[test]
    fn manifests_read_back() {
        for kind in [Kind::Base, Kind::Adapter, Kind::Scorer] {
            let manifest = manifest("m@3", kind);
            assert_eq!(Manifest::parse(&manifest.to_json()), Ok(manifest.clone()));
            assert_eq!(manifest.bytes(), 3);
        }
    }

    #[test]
    fn chunks_are_those_of_the_file_however_its_bytes_come() {
        let bytes: Vec<u8> = (0..2 * CHUNK_BYTES as usize + 5).map(|at| (at * 31 % 251) as u8).collect();
        for step in [1 << 20, 3_000_001, bytes.len()] {
            let mut digests = FileDigests::default();
            bytes.chunks(step).for_each(|part| digests.update(part));
            let entry = digests.finish("a".into());
            let want: Vec<Digest> = bytes.chunks(CHUNK_BYTES as usize).map(Digest::of).collect();
            assert_eq!((entry.bytes, entry.digest), (bytes.len() as u64, Digest::of(&bytes)));
            assert_eq!(entry.chunks, want);
        }
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut Manifest), want: &str) {
        let mut manifest = manifest("m@3", Kind::Base);
        change(&mut manifest);
        let err = Manifest::parse(&manifest.to_json()).unwrap_err().to_string();
        assert!(err.contains(want), "{err}");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        refused(|m| m.schema = 2, "form 2");
        refused(|m| m.files.clear(), "1 to 256 files");
        refused(|m| m.files[0].name = "../x".into(), "plain names");
        refused(|m| m.files.push(m.files[0].clone()), "plain names");
        refused(|m| m.files[0].bytes = 0, "have bytes");
        refused(|m| m.files[0].chunks.clear(), "as many digests");
        refused(|m| m.files[0].chunk_bytes = 1, "as many digests");
        refused(|m| m.kind = Kind::Adapter, "names its base");
        refused(|m| m.base = Some("b@1".parse().unwrap()), "names its base");
        refused(|m| m.tokenizer_sha256 = None, "have a tokenizer");
        refused(|m| m.tokenizer_sha256 = Some("00".into()), "64 lower-case");
        refused(|m| m.licence = "\n".into(), "licence");
        assert!(matches!(Manifest::parse(b"{}"), Err(ManifestError::Json(_))));
        assert!(matches!(Manifest::parse(br#"{"schema":9,"new":1}"#), Err(ManifestError::Schema(9))));
    }
}
