//! Weights on demand: a device of the ring keeps only the parts of the model's file that its layers need, and gets
//! what is missing from others that have it, or from the head.
//!
//! The head's file is a list of pieces with their hashes ([`Manifest`]); a worker keeps a sparse file of the same
//! layout ([`Store`]), so that both read it the same way, and others can be given what is in it ([`Stock`]). Always holds: a piece counts as there only after its hash
//! was checked and its bytes were on the disk; whatever moment the program dies at, the next start goes on from there;
//! bytes that nobody checked in this run of the program are never computed with ([`Checked`]).

mod checked;
mod manifest;
mod stock;
mod store;

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use baton_engine::gguf::{Gguf, GgufError, TensorInfo};

pub use checked::Checked;
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
    /// A file that is no longer what the list says.
    #[error("{pieces} pieces of `{}` have other bytes than when the list was made: the file is damaged", path.display())]
    Rotten {
        /// The file.
        path: PathBuf,
        /// How many of the pieces that were looked at.
        pieces: usize,
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

    /// Asked again and again while what is on the disk is checked: tells whoever waits that it goes on.
    ///
    /// # Errors
    /// [`WeightsError::Superseded`], [`WeightsError::Source`]: checking ends.
    fn go_on(&mut self) -> Result<(), WeightsError>;
}

/// Takes a piece by its number.
pub type Take<'a> = &'a mut dyn FnMut(u32, &[u8]) -> Result<(), WeightsError>;

/// What is done with the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// What is there is read and hashed.
    Checking,
    /// What is not there comes.
    Fetching,
}

/// Bytes of the file that are done in a stage, of so many.
pub type Progress<'a> = &'a mut dyn FnMut(Stage, u64, u64);

/// Part of a model's file.
#[derive(Debug, Clone, Copy)]
pub enum Part<'a> {
    /// What names and places the tensors: to be right before the others can be found.
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

/// Reads these parts of a whole file of the model, unless that was done lately: they must be as the list says. `go_on`
/// is asked between pieces.
///
/// # Errors
/// [`WeightsError::Rotten`]; [`WeightsError::File`], [`WeightsError::Gguf`], or what `go_on` says.
pub fn check_whole(
    (path, manifest): (&Path, &Manifest),
    parts: &[Part<'_>],
    checked: &Checked,
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

/// A file in `folder` with everything that these layers of the model need, as the list says; fetches what is not there
/// or has rotted. With all of it there, nothing is asked of `source`.
///
/// # Errors
/// [`WeightsError`]; what has come stays, and is not fetched again.
pub fn provide(
    (folder, checked): (&Path, &Checked),
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
    for part in [Part::Header, Part::Layers(layers)] {
        let pieces = part.pieces(store.path(), store.manifest())?;
        store.check(&pieces, checked, &mut || source.go_on(), progress)?;
        fetch(&mut store, pieces, checked, source, progress)?;
    }
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
    tensors.map(place_of).collect()
}

fn place_of(tensor: &TensorInfo) -> Range<u64> {
    let bytes = tensor.place().range();
    bytes.start as u64..bytes.end as u64
}

/// Fetches those of the pieces that are missing, batch by batch.
fn fetch(
    store: &mut Store,
    pieces: BTreeSet<u32>,
    checked: &Checked,
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
            progress(Stage::Fetching, total - left, total);
            Ok(())
        });
        // What came before a failure is kept as well.
        store.sync(left, checked)?;
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
