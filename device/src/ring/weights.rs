//! Weights on demand: a device of the ring keeps only the parts of the model's file that its layers need, and gets
//! what is missing from others that have it, or from the head.
//!
//! The head's file is a list of pieces with their hashes ([`Manifest`]); a worker keeps a sparse file of the same
//! layout ([`Store`]), so that both read it the same way, and others can be given what is in it ([`Stock`]). Always holds: a piece counts as there only after its hash
//! was checked and its bytes were on the disk; whatever moment the program dies at, the next start goes on from there;
//! bytes that nobody checked are never computed with.

mod manifest;
mod stock;
mod store;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use baton_engine::gguf::{Gguf, GgufError};

pub use manifest::{Digest, Manifest, PIECE_BYTES};
pub use stock::{Stock, Which};
pub use store::Store;

/// Pieces that are asked for at once.
pub(super) const BATCH: u32 = 16;
/// The input and output tables, which stay on the head.
const HEADS_OWN: [&str; 2] = ["token_embd.weight", "output.weight"];

/// Why weights cannot be had.
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
        /// What happened.
        #[source]
        err: std::io::Error,
    },
    /// The disk is full.
    #[error("the disk is full: `{}` lacks {missing} bytes of its part of the model", path.display())]
    DiskFull {
        /// The file.
        path: PathBuf,
        /// Bytes that are still to come.
        missing: u64,
    },
    /// The model's file is no model, or not in one piece.
    #[error("read the model's directory")]
    Gguf(#[from] GgufError),
    /// A model in several files.
    #[error("`{}` is a part of a split model, rings need it in one file", path.display())]
    Split {
        /// Its first file.
        path: PathBuf,
    },
    /// A list of pieces that is none.
    #[error("list of pieces: {0}")]
    Manifest(&'static str),
    /// The list is not the one that was announced.
    #[error("the list of pieces is not that of the model that the head named")]
    OtherModel,
    /// A piece that is not what the list says.
    #[error("piece {index} has other bytes than the list of pieces says")]
    Forged {
        /// Its number.
        index: u32,
    },
    /// A piece that the model does not have.
    #[error("piece {index}, the model has {count}")]
    NoSuchPiece {
        /// Its number.
        index: u32,
        /// Pieces of the model.
        count: u32,
    },
    /// Something else is to be done instead.
    #[error("a newer plan came")]
    Superseded,
    /// Whoever has the weights does not give them.
    #[error("fetch weights: {0}")]
    Source(String),
}

/// Who has the whole file.
pub trait PieceSource {
    /// The list of the file's pieces, as bytes.
    ///
    /// # Errors
    /// [`WeightsError::Source`].
    fn manifest(&mut self) -> Result<Vec<u8>, WeightsError>;

    /// These pieces, in order, each given to `take` as it comes.
    ///
    /// # Errors
    /// [`WeightsError::Source`], or what `take` says.
    fn pieces(&mut self, pieces: Range<u32>, take: Take<'_>) -> Result<(), WeightsError>;
}

/// Takes a piece by its number.
pub type Take<'a> = &'a mut dyn FnMut(u32, &[u8]) -> Result<(), WeightsError>;

/// Bytes of the file that have come, and that are to come in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// A file in `folder` with everything that these layers of the model need; fetches what is not there. With all of it
/// there, nothing is asked of `source`.
///
/// # Errors
/// [`WeightsError`]; what has come stays, and is not fetched again.
pub fn provide(
    folder: &Path,
    model: Digest,
    layers: &[usize],
    source: &mut dyn PieceSource,
    progress: Progress<'_>,
) -> Result<PathBuf, WeightsError> {
    let manifest = match Manifest::kept(folder, model) {
        Some(manifest) => manifest,
        None => {
            let manifest = Manifest::read(&source.manifest()?)?;
            if manifest.digest() != model {
                return Err(WeightsError::OtherModel);
            }
            manifest.keep(folder)?;
            manifest
        }
    };
    let mut store = Store::open(folder, manifest)?;
    let header = store.manifest().pieces_of(0..store.manifest().header_bytes());
    fetch(&mut store, header.collect(), source, progress)?;
    let needed = needed(&Gguf::open(store.path())?, layers);
    let pieces: BTreeSet<u32> =
        needed.into_iter().flat_map(|range| store.manifest().pieces_of(range)).collect();
    fetch(&mut store, pieces, source, progress)?;
    Ok(store.path().to_owned())
}

/// Byte ranges of the file that these layers need: their own, and what is small and belongs to none.
fn needed(gguf: &Gguf, layers: &[usize]) -> Vec<Range<u64>> {
    let wanted = |name: &str| match name.strip_prefix("blk.") {
        Some(rest) => {
            let layer = rest.split('.').next().and_then(|number| number.parse().ok());
            layer.is_some_and(|layer: usize| layers.binary_search(&layer).is_ok())
        }
        None => !HEADS_OWN.contains(&name),
    };
    let tensors = gguf.tensors().filter(|tensor| wanted(tensor.name()));
    tensors
        .map(|tensor| {
            let bytes = tensor.place().range();
            bytes.start as u64..bytes.end as u64
        })
        .collect()
}

/// Fetches those of the pieces that are missing, batch by batch.
fn fetch(
    store: &mut Store,
    pieces: BTreeSet<u32>,
    source: &mut dyn PieceSource,
    progress: Progress<'_>,
) -> Result<(), WeightsError> {
    let missing: Vec<u32> = pieces.into_iter().filter(|piece| !store.has(*piece)).collect();
    let bytes = |pieces: &[u32]| -> u64 { pieces.iter().map(|piece| store.manifest().len_of(*piece)).sum() };
    let (total, mut left) = (bytes(&missing), bytes(&missing));
    for run in runs(&missing) {
        let taken = source.pieces(run, &mut |index, data| {
            store.put(index, data, left)?;
            left -= data.len() as u64;
            progress(total - left, total);
            Ok(())
        });
        // What came before a failure is kept as well.
        store.sync(left)?;
        taken?;
    }
    Ok(())
}

/// Runs of at most [`BATCH`] neighbours.
fn runs(pieces: &[u32]) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for &piece in pieces {
        match runs.last_mut() {
            Some(run) if run.end == piece && run.end - run.start < BATCH => run.end += 1,
            _ => runs.push(piece..piece + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests;
