//! Models split over several files, as llama.cpp's `gguf-split` writes them: `NAME-00001-of-00003.gguf` and
//! so on.
//!
//! The first part holds the model's metadata. Every part holds its own tensors and three keys: `split.no`
//! (from 0), `split.count` and `split.tensors.count` (of all parts together). This module maps no file; it
//! only decides which files belong together. Always holds: parts are in order, complete, and from one set.

use std::path::{Path, PathBuf};

use super::error::GgufError;
use super::metadata::Metadata;

const NO: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
/// The most parts of a model: `gguf-split` writes `split.count` with 16 bits.
const PARTS_MAX: u32 = u16::MAX as u32;

/// A file's own statement about its set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Split {
    /// The part's index, from 0; below `count`.
    pub(super) no: u32,
    /// Number of parts of the set, at least 2.
    count: u32,
    /// Tensors of all parts together, if the file says.
    n_tensors: Option<u64>,
}

impl Split {
    /// Reads the statement from the metadata; returns `None` if the file is a whole model.
    pub(super) fn of(metadata: Metadata<'_>) -> Result<Option<Split>, GgufError> {
        let count = metadata.opt_u32(COUNT)?.unwrap_or(1);
        if count <= 1 {
            return Ok(None);
        }
        let no = metadata.opt_u32(NO)?.unwrap_or(0);
        if count > PARTS_MAX || no >= count {
            return Err(GgufError::BadSplit { no, count, max: PARTS_MAX });
        }
        Ok(Some(Split { no, count, n_tensors: metadata.opt_u64(TENSORS)? }))
    }

    /// Returns the paths of the parts after the first, whose own path is `path`.
    pub(super) fn rest(self, path: Option<&Path>) -> Result<Vec<PathBuf>, GgufError> {
        let Split { no, count, .. } = self;
        let Some(path) = path else { return Err(GgufError::SplitInMemory { part: no + 1, count }) };
        let Some(stem) = stem(path, no, count) else {
            let want = format!("NAME{}", suffix(no, count));
            return Err(GgufError::SplitName { path: path.to_owned(), part: no + 1, count, want });
        };
        let named = |no| path.with_file_name(format!("{stem}{}", suffix(no, count)));
        if no != 0 {
            return Err(GgufError::NotFirstPart { part: no + 1, count, first: named(0) });
        }
        Ok((1..count).map(named).collect())
    }

    /// Checks that the file at `path`, with `metadata`, is part `no` of the set whose first part has the
    /// metadata `first`.
    pub(super) fn check_part(
        self,
        no: u32,
        path: &Path,
        metadata: Metadata<'_>,
        first: Metadata<'_>,
    ) -> Result<(), GgufError> {
        let (part, count) = (no + 1, self.count);
        let found = Split::of(metadata)?.map(|found| (found.no + 1, found.count));
        if found != Some((part, count)) {
            let (found_part, found_count) = found.unwrap_or((1, 1));
            return Err(GgufError::WrongPart { path: path.to_owned(), part, count, found_part, found_count });
        }
        // `gguf-split` gives later parts only its own keys. If other tools repeat more, the values must
        // agree.
        match metadata.keys().find(|key| *key != NO && first.contains(key) && !metadata.agrees(first, key)) {
            Some(key) => {
                Err(GgufError::MixedParts { path: path.to_owned(), part, count, key: key.to_owned() })
            }
            None => Ok(()),
        }
    }

    /// Checks the total number of tensors.
    pub(super) fn check_tensors(self, found: usize) -> Result<(), GgufError> {
        match self.n_tensors {
            Some(want) if want != found as u64 => {
                Err(GgufError::SplitTensorCount { count: self.count, found: found as u64, want })
            }
            _ => Ok(()),
        }
    }
}

/// Returns the end of a part's file name.
fn suffix(no: u32, count: u32) -> String {
    format!("-{:05}-of-{count:05}.gguf", no + 1)
}

/// Returns the name before the suffix.
fn stem(path: &Path, no: u32, count: u32) -> Option<&str> {
    path.file_name()?.to_str()?.strip_suffix(&suffix(no, count))
}
