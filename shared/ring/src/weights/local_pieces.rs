//! The pieces of a model on this device, for other devices: a whole file, or what a worker has fetched.
//!
//! It reads only pieces that were checked and are on the disk, and it never writes. Pieces that arrive
//! after it was opened are not seen.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::WeightsError;
use super::manifest::{Digest, Manifest, PIECE_BYTES, file_name};
use super::store::named_in;

/// A set of pieces: one bit per piece, the lowest bit of a byte first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PieceSet(Vec<u8>);

impl PieceSet {
    /// Makes the set of the marked pieces.
    pub fn of(has: &[bool]) -> Self {
        let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| (byte << 1) | u8::from(*bit));
        Self(has.chunks(8).map(byte).collect())
    }

    /// Reads the set that another device sent; missing bits count as 0.
    pub fn read(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Returns the bits.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns whether a piece is in the set.
    pub fn has(&self, index: u32) -> bool {
        self.0.get(index as usize / 8).is_some_and(|byte| (byte >> (index % 8)) & 1 == 1)
    }

    /// Returns how many of these pieces are in the set, up to the first that is not.
    pub fn run(&self, pieces: Range<u32>) -> u32 {
        let start = pieces.start;
        pieces.take_while(|index| self.has(*index)).last().map_or(0, |last| last + 1 - start)
    }
}

/// Pieces that other devices may fetch.
#[derive(Debug)]
pub struct LocalPieces {
    manifest: Manifest,
    path: PathBuf,
    file: File,
    available: PieceSet,
}

impl LocalPieces {
    /// Opens the pieces of this model: one of these whole files, or the part in the folder. Returns `None`
    /// if there are none.
    pub fn of(model: Digest, files: &[PathBuf], folder: &Path) -> Option<Self> {
        for path in files {
            let Ok(manifest) = Manifest::of_file(path, PIECE_BYTES) else { continue };
            if manifest.digest() == model {
                let available = PieceSet::of(&vec![true; manifest.count() as usize]);
                return Some(Self { manifest, path: path.clone(), file: File::open(path).ok()?, available });
            }
        }
        let manifest = Manifest::kept(folder, model)?;
        let path = folder.join(file_name(model, "gguf"));
        let file = File::open(&path).ok()?;
        if file.metadata().ok()?.len() != manifest.file_len() {
            return None;
        }
        let log = std::fs::read(folder.join(file_name(model, "have"))).ok()?;
        let (has, _) = named_in(&log, manifest.count());
        Some(Self { available: PieceSet::of(&has), manifest, path, file })
    }

    /// Returns which pieces there are.
    pub fn available(&self) -> &PieceSet {
        &self.available
    }

    /// Reads a piece.
    ///
    /// # Errors
    /// [`WeightsError::NoSuchPiece`] if it is not there, [`WeightsError::File`].
    pub fn piece(&self, index: u32) -> Result<Vec<u8>, WeightsError> {
        if !self.available.has(index) {
            return Err(WeightsError::NoSuchPiece { index, count: self.manifest.count() });
        }
        self.manifest.piece(&self.file, &self.path, index)
    }
}
