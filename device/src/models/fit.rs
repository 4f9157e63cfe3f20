//! Whether there is room for a model: on the disk before it comes, and in memory as soon as its header is
//! there. So a model that this program cannot run is refused before its weights are downloaded.

use super::PullError;
use super::part::Part;
use crate::context::TOKENS_MIN;
use crate::machine::profile::this_memory;
use crate::machine::residency::{BUFFER_BYTES, text_bytes};
use crate::machine::shape::{config_of, shape_of};
use baton_engine::engine::KvFormat;
use baton_engine::gguf::{Gguf, GgufError};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Room that is left free beside a model.
const MARGIN_BYTES: u64 = 64 << 20;
/// Bytes that say what a file is: its magic number and version.
const PREAMBLE_BYTES: u64 = 8;
/// Headers that are longer are not looked at early.
const HEADER_BYTES_MAX: u64 = 64 << 20;

/// Returns the free bytes of the folder's disk, for this user.
#[cfg(unix)]
pub(crate) fn free_bytes(folder: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(folder)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Free bytes are not read on this system: a full disk shows when it is written.
#[cfg(not(unix))]
pub(crate) fn free_bytes(_folder: &Path) -> io::Result<u64> {
    Ok(u64::MAX)
}

/// Checks that the folder's disk has room for this many bytes more.
pub(super) fn check_space(folder: &Path, needed: u64) -> Result<(), PullError> {
    let free = free_bytes(folder).map_err(PullError::file("look at the disk of", folder))?;
    has_space(folder, needed, free)
}

fn has_space(folder: &Path, needed: u64, free: u64) -> Result<(), PullError> {
    let needed = needed.saturating_add(MARGIN_BYTES);
    if needed > free {
        return Err(PullError::Space { needed, free, folder: folder.to_owned() });
    }
    Ok(())
}

/// Makes the error of a failed write: a full disk is named as one.
pub(super) fn full_or(err: io::Error, path: &Path) -> PullError {
    let full = matches!(err.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    match path.parent() {
        Some(folder) if full => {
            let free = free_bytes(folder).unwrap_or(0);
            PullError::Space {
                needed: MARGIN_BYTES.max(free.saturating_add(1)),
                free,
                folder: folder.to_owned(),
            }
        }
        _ => PullError::file("write", path)(err),
    }
}

/// Checks that this machine has memory for a model of this length, as far as that is known of it.
pub(super) fn check_length(bytes: u64) -> Result<(), PullError> {
    fits(bytes.saturating_add(BUFFER_BYTES))
}

fn fits(needed: u64) -> Result<(), PullError> {
    // On a system whose memory cannot be measured, nothing is known to be too large.
    match this_memory() {
        Ok((_, memory)) => holds(needed, memory.available_bytes),
        Err(_) => Ok(()),
    }
}

fn holds(needed: u64, available: u64) -> Result<(), PullError> {
    if needed > available { Err(PullError::Memory { needed, available }) } else { Ok(()) }
}

/// Checks that the engine knows a model's family and formats, and that this machine has memory for it and the
/// least context.
pub(super) fn check_model(path: &Path) -> Result<(), PullError> {
    let unsupported =
        |err: &dyn std::error::Error| PullError::Unsupported(baton_terminal::chain(err).to_string());
    let gguf = Gguf::open(path).map_err(|err| unsupported(&err))?;
    for tensor in gguf.tensors() {
        gguf.tensor(tensor.name()).map_err(|err| unsupported(&err))?;
    }
    // The causes alone: the file has a name of no meaning while it is downloaded.
    let cause = |err: crate::machine::shape::ShapeError| match std::error::Error::source(&err) {
        Some(cause) => unsupported(cause),
        None => unsupported(&err),
    };
    config_of(path).map_err(cause)?;
    let shape = shape_of(path, KvFormat::default()).map_err(cause)?;
    let layers = shape.layers as f64;
    let weights = shape.layer_bytes * layers + shape.output_bytes;
    let cache = shape.kv_bytes * layers * TOKENS_MIN as f64;
    fits((weights + cache) as u64 + BUFFER_BYTES + text_bytes(shape.vocab))
}

/// Looks at a model's header as soon as it is there.
#[derive(Debug, Default)]
pub(super) struct HeaderLook {
    done: bool,
}

impl HeaderLook {
    /// Looks at the bytes so far, unless that was done. Returns whether the header was there and is good.
    pub(super) fn look(&mut self, part: &Part, whole_bytes: u64) -> Result<bool, PullError> {
        let got = part.len();
        if self.done || got > HEADER_BYTES_MAX {
            return Ok(false);
        }
        let path = part.path().with_extension("header");
        let looked = header_at(part.path(), &path, got, whole_bytes);
        // The file is sparse, so one that stays takes little room; the store removes it.
        drop(std::fs::remove_file(&path));
        self.done = !matches!(looked, Ok(false));
        looked
    }
}

/// Copies the first `got` bytes of a file, makes the copy as long as the whole file without taking room for
/// that, and checks the model in it. Returns whether its header is complete.
fn header_at(from: &Path, to: &Path, got: u64, whole_bytes: u64) -> Result<bool, PullError> {
    if got < PREAMBLE_BYTES {
        return Ok(false);
    }
    let copy = || -> io::Result<()> {
        let mut out = File::create(to)?;
        io::copy(&mut File::open(from)?.take(got), &mut out)?;
        out.set_len(whole_bytes.max(got))
    };
    copy().map_err(|err| full_or(err, to))?;
    match Gguf::open(to) {
        Ok(gguf) => {
            let start = gguf.tensors().map(|tensor| tensor.place().range().start as u64).min();
            if start.is_none_or(|start| start > got) {
                return Ok(false);
            }
            drop(gguf);
            check_model(to).map(|()| true)
        }
        Err(
            err @ (GgufError::BadMagic { .. } | GgufError::BigEndian | GgufError::UnsupportedVersion { .. }),
        ) => Err(PullError::Unsupported(err.to_string())),
        // The header is not complete, or it is wrong: then the whole file is refused.
        Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::part::Want;
    use baton_kernels_cpu::Format;
    use baton_synthetic::SyntheticModel;

    #[test]
    fn a_disk_or_memory_that_is_too_small_is_refused_with_both_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let said = |result: Result<(), PullError>| result.unwrap_err().to_string();
        assert!(has_space(folder.path(), 1_000, 1_000 + MARGIN_BYTES).is_ok());
        let full = said(has_space(folder.path(), 4_000_000_000, 1_000_000_000));
        assert!(full.contains("4.07 GB are needed in `") && full.contains("1.00 GB are free"), "{full}");
        assert!(check_space(folder.path(), 0).is_ok());
        assert!(matches!(check_space(folder.path(), u64::MAX), Err(PullError::Space { .. })));
        assert!(holds(8_000, 8_000).is_ok());
        let large = said(holds(8_000_000_000, 2_000_000_000));
        assert!(large.contains("takes 8.00 GB of memory, and this machine can give 2.00 GB"), "{large}");
        let written = full_or(io::ErrorKind::StorageFull.into(), &folder.path().join("m"));
        assert!(matches!(written, PullError::Space { .. }), "{written:?}");
        let other = full_or(io::ErrorKind::PermissionDenied.into(), &folder.path().join("m"));
        assert!(matches!(other, PullError::File { .. }), "{other:?}");
    }

    /// Looks at each beginning of a file; returns how long the first one with a complete header was.
    fn looked(bytes: &[u8], step: usize) -> Result<Option<usize>, PullError> {
        let folder = tempfile::tempdir().unwrap();
        for got in (1..=bytes.len()).step_by(step) {
            let path = folder.path().join("m.gguf.part");
            let want = Want { url: String::new(), bytes: None, sha256: None, chunks: None };
            let mut part = Part::open(&path, want, |_| Ok(())).unwrap();
            part.clear().unwrap();
            part.write(&bytes[..got]).unwrap();
            let found = HeaderLook::default().look(&part, bytes.len() as u64)?;
            assert!(!path.with_extension("header").exists());
            if found {
                return Ok(Some(got));
            }
        }
        Ok(None)
    }

    #[test]
    fn a_header_is_judged_as_soon_as_it_is_complete() {
        let bytes = SyntheticModel::small("llama", Format::F32, 1).to_gguf().unwrap();
        let gguf = Gguf::from_bytes(bytes.clone()).unwrap();
        let start = gguf.tensors().map(|tensor| tensor.place().range().start).min().unwrap();
        let found = looked(&bytes, 997).unwrap().unwrap();
        assert!((start..start + 997).contains(&found), "{found} of {start}");
    }

    #[test]
    fn what_the_engine_cannot_run_is_refused_by_its_header() {
        let bytes = SyntheticModel::small("llama", Format::F32, 1).to_gguf().unwrap();
        let at = bytes.windows(5).position(|window| window == b"llama").unwrap();
        let strange = [&bytes[..at], b"lxxma", &bytes[at + 5..]].concat();
        let said = looked(&strange, 9_973).unwrap_err().to_string();
        assert!(said.contains("cannot run the model") && said.contains("lxxma"), "{said}");
        let said = looked(b"<!doctype html> no model", 8).unwrap_err().to_string();
        assert!(said.contains("cannot run the model"), "{said}");
    }
}
