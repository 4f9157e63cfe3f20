//! How fast a file can be read from its disk: in order, in large blocks by two threads, and here and there.
//!
//! Reads go past the page cache where the system allows it (`O_DIRECT`), else they may be answered from memory, and the
//! figures say so.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memmap2::MmapMut;

use super::profile::median;

/// Blocks in order (PIPO finds about 8 MB best for disks).
const BLOCK: usize = 8 << 20;
/// Blocks here and there: what the system reads around a page that is missing.
const PIECE: usize = 64 << 10;
/// Threads that read in order, so that the disk always has a next request.
const READERS: u64 = 2;
/// One run.
const RUN: Duration = Duration::from_millis(400);
const RUNS: usize = 3;

/// What a disk gives, in bytes a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskRates {
    /// In order.
    pub sequential_bytes_per_s: f64,
    /// Here and there.
    pub random_bytes_per_s: f64,
    /// Past the page cache.
    pub direct: bool,
}

/// Why a disk cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The file cannot be read.
    #[error("read `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// The file is too small to say anything.
    #[error("`{}` has {bytes} bytes, too few to measure a disk by; {PIECE} are needed", path.display())]
    Small {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
}

/// Measures the disk under `path` by reading that file; for under three seconds.
///
/// # Errors
/// [`DiskError`] naming the file.
pub fn measure(path: &Path) -> Result<DiskRates, DiskError> {
    let read = |source| DiskError::Read { path: path.to_owned(), source };
    let (file, direct) = open(path).map_err(read)?;
    let bytes = file.metadata().map_err(read)?.len();
    if bytes < PIECE as u64 {
        return Err(DiskError::Small { path: path.to_owned(), bytes });
    }
    // All over the file: a disk, or what lies behind a virtual one, may hold some of it ready and the rest not.
    let begin = |run: usize| bytes / RUNS as u64 * run as u64;
    let sequential =
        (0..RUNS).map(|run| in_order(&file, bytes, begin(run))).collect::<Result<_, _>>().map_err(read)?;
    let random =
        (0..RUNS).map(|run| here_and_there(&file, bytes, run)).collect::<Result<_, _>>().map_err(read)?;
    Ok(DiskRates { sequential_bytes_per_s: median(sequential), random_bytes_per_s: median(random), direct })
}

/// Bytes a second in order, of one run: a look at whether a disk is still as it was.
///
/// # Errors
/// [`DiskError`] naming the file.
pub fn look(path: &Path) -> Result<f64, DiskError> {
    let read = |source| DiskError::Read { path: path.to_owned(), source };
    let (file, _) = open(path).map_err(read)?;
    let bytes = file.metadata().map_err(read)?.len();
    in_order(&file, bytes.max(1), bytes / 2).map_err(read)
}

/// The file, for direct reads where its file system has them.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn open(path: &Path) -> std::io::Result<(File, bool)> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let flag = rustix::fs::OFlags::DIRECT.bits() as i32;
    match File::options().read(true).custom_flags(flag).open(path) {
        Ok(file) => Ok((file, true)),
        Err(_) => Ok((File::open(path)?, false)),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn open(path: &Path) -> std::io::Result<(File, bool)> {
    Ok((File::open(path)?, false))
}

/// Bytes a second of two threads that take blocks in turn, from near `begin` on, and from the file's beginning where it
/// ends.
fn in_order(file: &File, bytes: u64, begin: u64) -> std::io::Result<f64> {
    let (next, done) = (AtomicU64::new(begin / BLOCK as u64), AtomicU64::new(0));
    let blocks = bytes.div_ceil(BLOCK as u64);
    let begun = Instant::now();
    let reader = || {
        // Pages of its own: aligned as direct reads need them, and given back at once.
        let mut buffer = MmapMut::map_anon(BLOCK)?;
        while begun.elapsed() < RUN {
            let block = next.fetch_add(1, Ordering::Relaxed) % blocks;
            let read = file.read_at(&mut buffer, block * BLOCK as u64)?;
            done.fetch_add(read as u64, Ordering::Relaxed);
        }
        std::io::Result::Ok(())
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(reader)).collect();
        readers.into_iter().try_for_each(|thread| thread.join().expect("a reading thread does not panic"))
    })?;
    Ok(done.into_inner() as f64 / begun.elapsed().as_secs_f64())
}

/// Bytes a second of one thread that reads pieces in an order of large odd steps.
fn here_and_there(file: &File, bytes: u64, run: usize) -> std::io::Result<f64> {
    let pieces = bytes / PIECE as u64;
    let mut buffer = MmapMut::map_anon(PIECE)?;
    let (begun, mut done, mut at) = (Instant::now(), 0, run as u64);
    while begun.elapsed() < RUN {
        at = (at + 0x9E37_79B9) % pieces;
        done += file.read_at(&mut buffer, at * PIECE as u64)? as u64;
    }
    Ok(done as f64 / begun.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn aligned_reads_give_the_files_bytes() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        file.as_file().sync_all().unwrap();
        let (opened, _) = open(file.path()).unwrap();
        let mut buffer = MmapMut::map_anon(PIECE).unwrap();
        for offset in [0, 65_536, 262_144] {
            let read = opened.read_at(&mut buffer, offset).unwrap();
            let offset = offset as usize;
            assert_eq!(read, PIECE.min(bytes.len() - offset));
            assert!(buffer[..read] == bytes[offset..offset + read]);
        }
    }

    #[test]
    fn a_file_that_is_too_small_or_missing_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(measure(file.path()).unwrap_err().to_string().contains("0 bytes, too few"));
        assert!(matches!(measure(Path::new("missing")), Err(DiskError::Read { .. })));
    }
}
