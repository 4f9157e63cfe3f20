//! Weights on demand: a device of the ring keeps only the parts of the model's file that its layers need.
//! It fetches missing parts from other workers that have them, or from the head.
//!
//! The head's file is a list of pieces with their hashes ([`Manifest`]). A worker keeps a sparse file of
//! the same layout ([`PieceStore`]), so both read it the same way, and others can get the pieces that are
//! in it ([`LocalPieces`]).
//!
//! Always holds:
//!
//! - A piece counts as present only after its hash was checked and its bytes were on the disk.
//! - If the program dies at any moment, the next start continues from there.
//! - Bytes that were not checked in this run of the program are never computed with ([`CheckedPieces`]).

mod checked;
mod local_pieces;
mod look;
mod manifest;
mod store;

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use baton_engine::gguf::{Gguf, GgufError, TensorInfo};

pub use checked::CheckedPieces;
pub use local_pieces::{LocalPieces, PieceSet};
pub use look::{GoOn, Places};
pub use manifest::{Digest, Manifest, PIECE_BYTES};
pub use store::PieceStore;

/// The input and output tables, which stay on the head.
const HEADS_OWN: [&str; 2] = ["token_embd.weight", "output.weight"];

/// Why weights cannot be provided.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// A file cannot be read or written.
    #[error("{what} `{}`", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        err: std::io::Error,
    },
    /// The disk is full.
    #[error("the disk is full: `{}` lacks {missing} bytes of its part of the model", path.display())]
    DiskFull {
        /// The file.
        path: PathBuf,
        /// Bytes that are still missing.
        missing: u64,
    },
    /// The model's file is not a valid model.
    #[error("read the model's directory")]
    Gguf(#[from] GgufError),
    /// The model consists of several files.
    #[error("`{}` is a part of a split model, rings need it in one file", path.display())]
    Split {
        /// Its first file.
        path: PathBuf,
    },
    /// A list of pieces is invalid.
    #[error("list of pieces: {0}")]
    Manifest(&'static str),
    /// The list is not the one that was announced.
    #[error("the list of pieces is not that of the model that the head named")]
    OtherModel,
    /// A piece does not have the hash in the list.
    #[error("piece {index} has other bytes than the list of pieces says")]
    Forged {
        /// Its number.
        index: u32,
    },
    /// A file no longer has the hashes in the list.
    #[error("{pieces} pieces of `{}` have other bytes than when the list was made: the file is damaged", path.display())]
    Rotten {
        /// The file.
        path: PathBuf,
        /// How many of the checked pieces differ.
        pieces: usize,
    },
    /// A piece that the model does not have, or that is not here.
    #[error("piece {index}, the model has {count}")]
    NoSuchPiece {
        /// Its number.
        index: u32,
        /// Pieces of the model.
        count: u32,
    },
    /// A newer plan replaced this one.
    #[error("a newer plan came")]
    Superseded,
}

/// Receives the bytes that were read and hashed so far, and how many there are.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// A part of a model's file.
#[derive(Debug, Clone, Copy)]
pub enum Part<'a> {
    /// Names and positions of the tensors; it must be correct before the other parts can be found.
    Header,
    /// What these layers need.
    Layers(&'a [usize]),
    /// The tables of input and output, which only a head needs.
    Tables,
}

impl Part<'_> {
    fn pieces(self, path: &Path, manifest: &Manifest) -> Result<BTreeSet<u32>, WeightsError> {
        let ranges = match self {
            Self::Header => std::iter::once(0..manifest.header_bytes()).collect(),
            Self::Layers(layers) => needed(&Gguf::open(path)?, layers),
            Self::Tables => {
                let gguf = Gguf::open(path)?;
                gguf.tensors().filter(|tensor| HEADS_OWN.contains(&tensor.name())).map(place_of).collect()
            }
        };
        Ok(ranges.into_iter().flat_map(|range| manifest.pieces_of(range)).collect())
    }
}

/// Checks that these parts of a whole model file have the hashes in the list, unless they were checked
/// lately. `go_on` is called between pieces.
///
/// # Errors
/// [`WeightsError::Rotten`]; [`WeightsError::File`], [`WeightsError::Gguf`], or the error of `go_on`.
pub fn check_whole(
    (path, manifest): (&Path, &Manifest),
    parts: &[Part<'_>],
    checked: &CheckedPieces,
    go_on: &mut dyn FnMut() -> Result<(), WeightsError>,
    progress: Progress<'_>,
) -> Result<(), WeightsError> {
    let opened = File::open(path);
    let file = opened.map_err(|err| WeightsError::File { what: "open", path: path.to_owned(), err })?;
    for part in parts {
        let pieces = part.pieces(path, manifest)?;
        let rotten = checked.rotten(manifest, (path, &file), pieces.into_iter(), go_on, progress)?;
        if !rotten.is_empty() {
            return Err(WeightsError::Rotten { path: path.to_owned(), pieces: rotten.len() });
        }
    }
    Ok(())
}

/// Returns the byte ranges that these layers need: their own tensors, and the small ones that belong to no
/// layer.
fn needed(gguf: &Gguf, layers: &[usize]) -> Vec<Range<u64>> {
    let wanted = |name: &str| match name.strip_prefix("blk.") {
        Some(rest) => {
            let layer = rest.split('.').next().and_then(|number| number.parse().ok());
            layer.is_some_and(|layer: usize| layers.binary_search(&layer).is_ok())
        }
        None => !HEADS_OWN.contains(&name),
    };
    let tensors = gguf.tensors().filter(|tensor| wanted(tensor.name()));
    tensors.map(place_of).collect()
}

fn place_of(tensor: &TensorInfo) -> Range<u64> {
    let bytes = tensor.place().range();
    bytes.start as u64..bytes.end as u64
}

#[cfg(test)]
pub(crate) mod tests;
