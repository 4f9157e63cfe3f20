//! The list of a model file's pieces: its length, where its tensors begin, and the SHA-256 of every piece.
//!
//! The head makes it once, in one pass over the whole file. It is stored beside the file and used as long
//! as the file's length and time of change stay the same. The list's own SHA-256 identifies the model in
//! the ring.

use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use baton_engine::gguf::Gguf;
use baton_engine::platform;
use sha2::{Digest as _, Sha256};

use super::WeightsError;

/// SHA-256 of a list of pieces.
pub type Digest = [u8; 32];

/// Bytes of a piece; the last one may have fewer.
pub const PIECE_BYTES: u32 = 1 << 20;
/// Largest pieces that are accepted from other devices, in bytes.
const PIECE_BYTES_MAX: u32 = 8 << 20;
/// Bytes of the fixed fields: length, header, bytes of a piece.
const FIXED: usize = 8 + 8 + 4;

/// The pieces of one model file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    file_len: u64,
    header_bytes: u64,
    piece_bytes: u32,
    hashes: Vec<[u8; 32]>,
}

/// Returns the name of a file that belongs to this model.
pub(super) fn file_name(model: Digest, ending: &str) -> String {
    format!("{}.{ending}", hex::encode(&model[..16]))
}

impl Manifest {
    /// Returns the list of a model's file: the one stored beside it, or a new one, made in one pass over
    /// the file.
    ///
    /// # Errors
    /// [`WeightsError::File`], [`WeightsError::Gguf`], [`WeightsError::Split`].
    pub fn of_file(path: &Path, piece_bytes: u32) -> Result<Self, WeightsError> {
        let file = |what| move |err| WeightsError::File { what, path: path.to_owned(), err };
        let about = std::fs::metadata(path).map_err(file("look at"))?;
        let changed = about.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let changed = changed.map_or(0, |time| time.as_nanos() as u64);
        let stamp = [about.len().to_le_bytes(), changed.to_le_bytes()].concat();
        let cache = beside(path);
        let known = std::fs::read(&cache).ok().and_then(|bytes| {
            let rest = bytes.strip_prefix(stamp.as_slice())?;
            Self::read(rest).ok().filter(|list| list.piece_bytes == piece_bytes)
        });
        if let Some(known) = known {
            return Ok(known);
        }
        let manifest = Self::make(path, piece_bytes)?;
        // If the folder is not writable, the next start reads the model again.
        if let Err(err) = std::fs::write(&cache, [stamp, manifest.bytes()].concat()) {
            tracing::warn!(path = %cache.display(), %err, "the list of pieces is not kept");
        }
        Ok(manifest)
    }

    fn make(path: &Path, piece_bytes: u32) -> Result<Self, WeightsError> {
        let gguf = Gguf::open(path)?;
        if gguf.parts().count() > 1 {
            return Err(WeightsError::Split { path: path.to_owned() });
        }
        let first = gguf.tensors().map(|tensor| tensor.place().range().start as u64).min();
        let (file_len, header_bytes) = (gguf.file_len(), first.unwrap_or(gguf.file_len()));
        drop(gguf);
        let read = |err| WeightsError::File { what: "read", path: path.to_owned(), err };
        let mut file = File::open(path).map_err(read)?;
        let mut piece = vec![0; piece_bytes as usize];
        let mut hashes = Vec::new();
        let mut left = file_len;
        while left > 0 {
            let len = left.min(u64::from(piece_bytes)) as usize;
            file.read_exact(&mut piece[..len]).map_err(read)?;
            hashes.push(Sha256::digest(&piece[..len]).into());
            left -= len as u64;
        }
        Ok(Self { file_len, header_bytes, piece_bytes, hashes })
    }

    /// Encodes the list as bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = [self.file_len.to_le_bytes(), self.header_bytes.to_le_bytes()].concat();
        bytes.extend_from_slice(&self.piece_bytes.to_le_bytes());
        bytes.extend_from_slice(self.hashes.as_flattened());
        bytes
    }

    /// Decodes a list.
    ///
    /// # Errors
    /// [`WeightsError::Manifest`].
    pub fn read(bytes: &[u8]) -> Result<Self, WeightsError> {
        let (fixed, hashes) = bytes.split_at_checked(FIXED).ok_or(WeightsError::Manifest("too short"))?;
        let number = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().expect("eight bytes"));
        let (file_len, header_bytes) = (number(0), number(8));
        let piece_bytes = u32::from_le_bytes(fixed[16..].try_into().expect("four bytes"));
        let (hashes, rest) = hashes.as_chunks::<32>();
        if !(1..=PIECE_BYTES_MAX).contains(&piece_bytes) {
            return Err(WeightsError::Manifest("pieces of a length out of range"));
        }
        if header_bytes > file_len || i64::try_from(file_len).is_err() {
            return Err(WeightsError::Manifest("lengths out of range"));
        }
        if !rest.is_empty() || file_len.div_ceil(u64::from(piece_bytes)) != hashes.len() as u64 {
            return Err(WeightsError::Manifest("not one hash for each piece"));
        }
        Ok(Self { file_len, header_bytes, piece_bytes, hashes: hashes.to_vec() })
    }

    /// Returns the digest that identifies the model in the ring.
    pub fn digest(&self) -> Digest {
        Sha256::digest(self.bytes()).into()
    }

    /// Loads the list of this model that an earlier run stored in the folder.
    pub(super) fn kept(folder: &Path, model: Digest) -> Option<Self> {
        let bytes = std::fs::read(folder.join(file_name(model, "pieces"))).ok()?;
        Self::read(&bytes).ok().filter(|manifest| manifest.digest() == model)
    }

    pub(super) fn keep(&self, folder: &Path) -> Result<(), WeightsError> {
        let path = folder.join(file_name(self.digest(), "pieces"));
        let write = |err| WeightsError::File { what: "write", path: path.clone(), err };
        std::fs::create_dir_all(folder).map_err(write)?;
        std::fs::write(&path, self.bytes()).map_err(write)
    }

    /// Returns the length of the file in bytes.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }

    /// Returns the bytes before the first tensor.
    pub fn header_bytes(&self) -> u64 {
        self.header_bytes
    }

    /// Returns the number of pieces.
    pub fn count(&self) -> u32 {
        self.hashes.len() as u32
    }

    /// Returns where a piece begins, in bytes.
    pub(super) fn offset_of(&self, index: u32) -> u64 {
        u64::from(index) * u64::from(self.piece_bytes)
    }

    /// Returns the length of a piece in bytes.
    pub(super) fn len_of(&self, index: u32) -> u64 {
        self.file_len.saturating_sub(self.offset_of(index)).min(u64::from(self.piece_bytes))
    }

    /// Returns the pieces that hold this byte range of the file.
    pub(super) fn pieces_of(&self, bytes: Range<u64>) -> Range<u32> {
        let piece = u64::from(self.piece_bytes);
        let end = bytes.end.min(self.file_len).div_ceil(piece);
        ((bytes.start / piece).min(end)) as u32..end as u32
    }

    /// Checks the hash of a piece.
    ///
    /// # Errors
    /// [`WeightsError::NoSuchPiece`], [`WeightsError::Forged`].
    pub fn check(&self, index: u32, bytes: &[u8]) -> Result<(), WeightsError> {
        let missing = WeightsError::NoSuchPiece { index, count: self.count() };
        let hash = self.hashes.get(index as usize).ok_or(missing)?;
        let found: [u8; 32] = Sha256::digest(bytes).into();
        if found == *hash { Ok(()) } else { Err(WeightsError::Forged { index }) }
    }

    /// Reads a piece from the file, without a check of its hash.
    ///
    /// # Errors
    /// [`WeightsError::NoSuchPiece`], [`WeightsError::File`].
    pub fn piece(&self, file: &File, path: &Path, index: u32) -> Result<Vec<u8>, WeightsError> {
        if index >= self.count() {
            return Err(WeightsError::NoSuchPiece { index, count: self.count() });
        }
        let mut bytes = vec![0; self.len_of(index) as usize];
        let read = platform::read_exact_at(file, &mut bytes, self.offset_of(index));
        read.map_err(|err| WeightsError::File { what: "read", path: path.to_owned(), err })?;
        Ok(bytes)
    }
}

/// Returns where the list of a file is stored.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".pieces");
    path.with_file_name(name)
}
