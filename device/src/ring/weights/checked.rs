//! What was read from the disk and found to be what the list says: bytes that rot there are not computed with.
//!
//! A piece is hashed when it is fetched, and again before the first use in each run of the program, and once a day: a
//! disk may give other bytes than it was given. What was found right is remembered here as long as
//! nobody changes the file. Reading costs about a second for each gigabyte.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::manifest::Manifest;
use super::{Progress, Stage, WeightsError};

/// How long a piece counts as right.
const GOOD_FOR: Duration = Duration::from_secs(24 * 3600);
/// Pieces between two words of how far it is.
const PIECES_TOLD: usize = 64;

/// The pieces that were found right, over all sessions of a worker.
#[derive(Debug, Clone, Default)]
pub struct Checked(Arc<Mutex<BTreeMap<PathBuf, Found>>>);

/// Of one file.
#[derive(Debug, Default)]
struct Found {
    /// Its length and time of change when it was last looked at.
    stamp: Option<(u64, SystemTime)>,
    /// Since when each piece is known to be right.
    right: BTreeMap<u32, Instant>,
}

fn stamp(file: &File) -> Option<(u64, SystemTime)> {
    let about = file.metadata().ok()?;
    Some((about.len(), about.modified().ok()?))
}

impl Checked {
    fn files(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Found>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets everything: whoever computes next reads it all again.
    pub fn forget(&self) {
        self.files().clear();
    }

    /// Notes pieces that were written just now, after their hashes were checked.
    pub(super) fn wrote(&self, path: &Path, file: &File, pieces: &[u32]) {
        let mut files = self.files();
        let found = files.entry(path.to_owned()).or_default();
        found.stamp = stamp(file);
        let now = Instant::now();
        found.right.extend(pieces.iter().map(|piece| (*piece, now)));
    }

    /// Those of the pieces that nobody has read lately.
    fn unknown(&self, path: &Path, file: &File, pieces: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut files = self.files();
        let found = files.entry(path.to_owned()).or_default();
        let now = stamp(file);
        if found.stamp.is_none() || found.stamp != now {
            *found = Found { stamp: now, right: BTreeMap::new() };
        }
        let right = |piece: &u32| found.right.get(piece).is_some_and(|since| since.elapsed() < GOOD_FOR);
        pieces.filter(|piece| !right(piece)).collect()
    }

    /// Reads those of the pieces that nobody has read lately; returns the ones with other bytes than the list says.
    /// `go_on` is asked between pieces.
    ///
    /// # Errors
    /// [`WeightsError::File`], or what `go_on` says.
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
            if read.is_multiple_of(PIECES_TOLD) || done == total {
                progress(Stage::Checking, done, total);
            }
        }
        if !rotten.is_empty() {
            tracing::warn!(path = %path.display(), pieces = rotten.len(), "weights have rotted on the disk");
        }
        Ok(rotten)
    }
}
