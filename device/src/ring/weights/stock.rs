//! The pieces of a model that lie on this device, to be given to others: a whole file, or what a worker has fetched.
//!
//! Reads only what was checked and forced to the disk, so that what is given is what the list says; never writes. What
//! comes while it is open it does not know of.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::WeightsError;
use super::manifest::{Digest, Manifest, PIECE_BYTES, file_name};
use super::store::named_in;

/// Which pieces there are: a bit for each, the lowest of a byte first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Which(Vec<u8>);

impl Which {
    /// Those that are marked.
    pub fn of(has: &[bool]) -> Self {
        let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| (byte << 1) | u8::from(*bit));
        Self(has.chunks(8).map(byte).collect())
    }

    /// What another device says; bits that are not there say no.
    pub fn read(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bits.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether a piece is there.
    pub fn has(&self, index: u32) -> bool {
        self.0.get(index as usize / 8).is_some_and(|byte| (byte >> (index % 8)) & 1 == 1)
    }

    /// How many of these there are up to the first that is not.
    pub fn run(&self, pieces: Range<u32>) -> u32 {
        let start = pieces.start;
        pieces.take_while(|index| self.has(*index)).last().map_or(0, |last| last + 1 - start)
    }
}

/// Pieces to give.
#[derive(Debug)]
pub struct Stock {
    manifest: Manifest,
    path: PathBuf,
    file: File,
    which: Which,
}

impl Stock {
    /// What there is of this model: one of these whole files, or the part in the folder. None where there is nothing.
    pub fn of(model: Digest, files: &[PathBuf], folder: &Path) -> Option<Self> {
        for path in files {
            let Ok(manifest) = Manifest::of_file(path, PIECE_BYTES) else { continue };
            if manifest.digest() == model {
                let which = Which::of(&vec![true; manifest.count() as usize]);
                return Some(Self { manifest, path: path.clone(), file: File::open(path).ok()?, which });
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
        Some(Self { which: Which::of(&has), manifest, path, file })
    }

    /// Which pieces there are.
    pub fn which(&self) -> &Which {
        &self.which
    }

    /// A piece that is there.
    ///
    /// # Errors
    /// [`WeightsError::NoSuchPiece`] where it is not there, [`WeightsError::File`].
    pub fn piece(&self, index: u32) -> Result<Vec<u8>, WeightsError> {
        if !self.which.has(index) {
            return Err(WeightsError::NoSuchPiece { index, count: self.manifest.count() });
        }
        self.manifest.piece(&self.file, &self.path, index)
    }
}
