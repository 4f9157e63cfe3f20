//! A worker's part of a model file: a sparse file with the layout of the whole file, and a log of the
//! pieces in it.
//!
//! Pieces are added to the log only after their bytes are on the disk. A torn write cannot produce a valid
//! record. Pieces that the log does not name are fetched again.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use baton_engine::platform;

use super::checked::CheckedPieces;
use super::manifest::{Manifest, file_name};
use super::{Progress, WeightsError};

/// Bytes of a record: the piece's number, and its bitwise complement.
const RECORD: usize = 8;

/// A sparse model file.
#[derive(Debug)]
pub struct PieceStore {
    manifest: Manifest,
    path: PathBuf,
    file: File,
    log: File,
    has: Vec<bool>,
    /// Pieces that are written, but not yet synchronized to the disk.
    written: Vec<u32>,
}

fn record(index: u32) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    bytes[..4].copy_from_slice(&index.to_le_bytes());
    bytes[4..].copy_from_slice(&(!index).to_le_bytes());
    bytes
}

/// Returns which of `count` pieces a log names, and the length of its valid records up to the first invalid
/// one.
pub(super) fn named_in(log: &[u8], count: u32) -> (Vec<bool>, u64) {
    let mut has = vec![false; count as usize];
    let mut good = 0;
    for bytes in log.as_chunks::<RECORD>().0 {
        let index = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        if *bytes != record(index) || index >= count {
            break;
        }
        has[index as usize] = true;
        good += RECORD as u64;
    }
    (has, good)
}

impl PieceStore {
    /// Opens the store of a model in this folder, or creates it.
    ///
    /// # Errors
    /// [`WeightsError::File`].
    pub fn open(folder: &Path, manifest: Manifest) -> Result<Self, WeightsError> {
        let path = folder.join(file_name(manifest.digest(), "gguf"));
        let log_path = folder.join(file_name(manifest.digest(), "have"));
        let named = |what, path: &Path| {
            let path = path.to_owned();
            move |err| WeightsError::File { what, path, err }
        };
        std::fs::create_dir_all(folder).map_err(named("make the folder of", &path))?;
        let open = |path: &Path| {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
            file.map_err(named("open", path))
        };
        let (file, mut log) = (open(&path)?, open(&log_path)?);
        let len = file.metadata().map_err(named("look at", &path))?.len();
        let mut known = Vec::new();
        if len == manifest.file_len() {
            log.read_to_end(&mut known).map_err(named("read", &log_path))?;
        } else {
            // A file of another length is not the one that the log describes.
            file.set_len(0).map_err(named("empty", &path))?;
            platform::make_sparse(&file);
            file.set_len(manifest.file_len()).map_err(named("make", &path))?;
        }
        let (has, good) = named_in(&known, manifest.count());
        // A torn record at the end would misalign the records after it.
        log.set_len(good).map_err(named("cut", &log_path))?;
        let log = OpenOptions::new().append(true).open(&log_path).map_err(named("open", &log_path))?;
        Ok(Self { manifest, path, file, log, has, written: Vec::new() })
    }

    /// Returns the list of the whole file's pieces.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the path of the sparse file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether a piece is present.
    pub fn has(&self, index: u32) -> bool {
        self.has.get(index as usize).copied().unwrap_or(false)
    }

    /// Checks a piece and writes it. It counts as present after [`Self::sync`]. `missing` is reported if
    /// the disk is full.
    ///
    /// # Errors
    /// [`WeightsError::Forged`], [`WeightsError::NoSuchPiece`], [`WeightsError::DiskFull`],
    /// [`WeightsError::File`].
    pub fn put(&mut self, index: u32, bytes: &[u8], missing: u64) -> Result<(), WeightsError> {
        self.manifest.check(index, bytes)?;
        let written = platform::write_all_at(&self.file, bytes, self.manifest.offset_of(index));
        written.map_err(|err| self.refused(err, missing))?;
        self.written.push(index);
        Ok(())
    }

    /// Synchronizes the written pieces to the disk, and then adds them to the log.
    ///
    /// # Errors
    /// [`WeightsError::DiskFull`], [`WeightsError::File`].
    pub fn sync(&mut self, missing: u64, checked: &CheckedPieces) -> Result<(), WeightsError> {
        if self.written.is_empty() {
            return Ok(());
        }
        self.file.sync_data().map_err(|err| self.refused(err, missing))?;
        let records: Vec<u8> = self.written.iter().flat_map(|index| record(*index)).collect();
        let noted = self.log.write_all(&records).and_then(|()| self.log.sync_data());
        noted.map_err(|err| self.refused(err, missing))?;
        checked.wrote(&self.path, &self.file, &self.written);
        for index in self.written.drain(..) {
            self.has[index as usize] = true;
        }
        Ok(())
    }

    /// Reads those of the pieces that are present and were not read lately. Pieces that do not have the
    /// hash in the list no longer count as present.
    ///
    /// # Errors
    /// [`WeightsError::File`], or the error of `go_on`.
    pub(super) fn check(
        &mut self,
        pieces: &BTreeSet<u32>,
        checked: &CheckedPieces,
        go_on: &mut dyn FnMut() -> Result<(), WeightsError>,
        progress: Progress<'_>,
    ) -> Result<(), WeightsError> {
        let there = pieces.iter().copied().filter(|piece| self.has(*piece));
        let rotten = checked.rotten(&self.manifest, (&self.path, &self.file), there, go_on, progress)?;
        if rotten.is_empty() {
            return Ok(());
        }
        rotten.iter().for_each(|piece| self.has[*piece as usize] = false);
        let has = (0..self.manifest.count()).filter(|piece| self.has(*piece));
        let records: Vec<u8> = has.flat_map(record).collect();
        // Pieces that are lost from the log in a crash are fetched again.
        let noted = self.log.set_len(0).and_then(|()| self.log.write_all(&records));
        noted.and_then(|()| self.log.sync_data()).map_err(|err| self.refused(err, 0))
    }

    pub(super) fn refused(&self, err: std::io::Error, missing: u64) -> WeightsError {
        let path = self.path.clone();
        match err.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => WeightsError::DiskFull { path, missing },
            _ => WeightsError::File { what: "write", path, err },
        }
    }
}
