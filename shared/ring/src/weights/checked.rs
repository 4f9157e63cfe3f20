//! Records which pieces on the disk were read and found correct, so that damaged bytes are never computed
//! with.
//!
//! A piece is hashed when it is fetched, again before its first use in each run of the program, and once a
//! day. A disk may return other bytes than were written. The result counts only as long as nobody changes
//! the file. Reading costs about a second per gigabyte.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::manifest::Manifest;
use super::{Progress, WeightsError};

/// How long the result of a check counts.
const GOOD_FOR: Duration = Duration::from_secs(24 * 3600);
/// Pieces between two reports of progress.
const PIECES_PER_REPORT: usize = 64;

/// The pieces that were found correct, across all sessions of a worker.
#[derive(Debug, Clone, Default)]
pub struct CheckedPieces(Arc<Mutex<BTreeMap<PathBuf, CheckedFile>>>);

/// The results for one file.
#[derive(Debug, Default)]
struct CheckedFile {
    /// The file's length and time of change at the last check.
    stamp: Option<(u64, SystemTime)>,
    /// When each piece was last found correct.
    right: BTreeMap<u32, Instant>,
}

fn stamp(file: &File) -> Option<(u64, SystemTime)> {
    let about = file.metadata().ok()?;
    Some((about.len(), about.modified().ok()?))
}

impl CheckedPieces {
    fn files(&self) -> MutexGuard<'_, BTreeMap<PathBuf, CheckedFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Discards all results, so that everything is read again before it is used.
    pub fn forget(&self) {
        self.files().clear();
    }

    /// Records pieces that were written just now, after their hashes were checked.
    pub(super) fn wrote(&self, path: &Path, file: &File, pieces: &[u32]) {
        let mut files = self.files();
        let found = files.entry(path.to_owned()).or_default();
        found.stamp = stamp(file);
        let now = Instant::now();
        found.right.extend(pieces.iter().map(|piece| (*piece, now)));
    }

    /// Returns those of the pieces that were not read lately.
    fn unknown(&self, path: &Path, file: &File, pieces: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut files = self.files();
        let found = files.entry(path.to_owned()).or_default();
        let now = stamp(file);
        if found.stamp.is_none() || found.stamp != now {
            *found = CheckedFile { stamp: now, right: BTreeMap::new() };
        }
        let right = |piece: &u32| found.right.get(piece).is_some_and(|since| since.elapsed() < GOOD_FOR);
        pieces.filter(|piece| !right(piece)).collect()
    }

    /// Reads those of the pieces that were not read lately, and returns the ones that do not have the hash
    /// in the list. `go_on` is called between pieces.
    ///
    /// # Errors
    /// [`WeightsError::File`], or the error of `go_on`.
    pub(super) fn rotten(
        &self,
        manifest: &Manifest,
        (path, file): (&Path, &File),
        pieces: impl Iterator<Item = u32>,
        go_on: &mut dyn FnMut() -> Result<(), WeightsError>,
        progress: Progress<'_>,
    ) -> Result<Vec<u32>, WeightsError> {
        let unknown = self.unknown(path, file, pieces);
        let total: u64 = unknown.iter().map(|piece| manifest.len_of(*piece)).sum();
        let (mut done, mut rotten) = (0, Vec::new());
        for (read, piece) in unknown.into_iter().enumerate() {
            go_on()?;
            let bytes = manifest.piece(file, path, piece)?;
            done += bytes.len() as u64;
            match manifest.check(piece, &bytes) {
                Ok(()) => {
                    let mut files = self.files();
                    files.entry(path.to_owned()).or_default().right.insert(piece, Instant::now());
                }
                Err(_) => rotten.push(piece),
            }
            if read.is_multiple_of(PIECES_PER_REPORT) || done == total {
                progress(done, total);
            }
        }
        if !rotten.is_empty() {
            tracing::warn!(path = %path.display(), pieces = rotten.len(), "weights have rotted on the disk");
        }
        Ok(rotten)
    }
}
