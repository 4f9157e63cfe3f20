//! Looks which pieces of a part of a model are on this device, and reads those that were not read lately.

use std::path::PathBuf;

use baton_terminal::chain;

use super::{CheckedPieces, Manifest, PIECE_BYTES, Part, PieceStore, Progress, WeightsError, check_whole};
use crate::core::Digest;

/// Where a worker keeps models.
#[derive(Debug, Clone)]
pub struct Places {
    /// Whole files, which are used before anything is fetched.
    pub files: Vec<PathBuf>,
    /// Where parts of models are stored.
    pub folder: PathBuf,
    /// What was read and found correct in this run of the program.
    pub checked: CheckedPieces,
}

/// Called between pieces; an error ends the look.
pub type GoOn<'a> = &'a mut dyn FnMut() -> Result<(), WeightsError>;

impl Places {
    /// Returns a whole file of the model in which the header and these layers hash right. A file that does
    /// not is not used, with a warning.
    ///
    /// # Errors
    /// The error of `go_on`.
    pub fn whole(
        &self,
        model: Digest,
        layers: &[usize],
        go_on: GoOn<'_>,
        progress: Progress<'_>,
    ) -> Result<Option<PathBuf>, WeightsError> {
        for path in &self.files {
            let done = match Manifest::of_file(path, PIECE_BYTES) {
                Ok(manifest) if manifest.digest() == model => {
                    let parts = [Part::Header, Part::Layers(layers)];
                    check_whole((path, &manifest), &parts, &self.checked, go_on, progress)
                }
                Ok(_) => continue,
                Err(err) => Err(err),
            };
            match done {
                Ok(()) => return Ok(Some(path.clone())),
                Err(err @ WeightsError::Superseded) => return Err(err),
                // Pieces that it lacks come from other devices.
                Err(err) => tracing::warn!(path = %path.display(), err = %chain(&err), "a model is not used"),
            }
        }
        Ok(None)
    }

    /// Opens the store of a model, if the list of its pieces is here.
    ///
    /// # Errors
    /// [`WeightsError::File`].
    pub fn store(&self, model: Digest) -> Result<Option<PieceStore>, WeightsError> {
        let kept = Manifest::kept(&self.folder, model);
        kept.map(|manifest| PieceStore::open(&self.folder, manifest)).transpose()
    }

    /// Keeps the list of a model's pieces.
    ///
    /// # Errors
    /// [`WeightsError::Manifest`], [`WeightsError::OtherModel`], [`WeightsError::File`].
    pub fn keep(&self, model: Digest, list: &[u8]) -> Result<(), WeightsError> {
        let manifest = Manifest::read(list)?;
        if manifest.digest() != model {
            return Err(WeightsError::OtherModel);
        }
        manifest.keep(&self.folder)
    }

    /// Reads what is here of a part, and returns the pieces that are missing or rotten, with their bytes.
    ///
    /// # Errors
    /// [`WeightsError`], or the error of `go_on`.
    pub fn lacks(
        &self,
        store: &mut PieceStore,
        part: Part<'_>,
        go_on: GoOn<'_>,
        progress: Progress<'_>,
    ) -> Result<Vec<(u32, u64)>, WeightsError> {
        let pieces = part.pieces(store.path(), store.manifest())?;
        store.check(&pieces, &self.checked, go_on, progress)?;
        let missing = pieces.into_iter().filter(|piece| !store.has(*piece));
        Ok(missing.map(|piece| (piece, store.manifest().len_of(piece))).collect())
    }
}
