//! Measures how fast a file can be read from its disk: sequentially, in large blocks by two threads, and at
//! random positions.
//!
//! Reads bypass the page cache if the system allows it ([`platform::open_direct`]). Otherwise they may be
//! answered from memory, and the result says so.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use baton_engine::platform;
use baton_pacing::refit::median;
use memmap2::MmapMut;

/// Bytes of a block for sequential reads (PIPO finds about 8 MB best for disks).
const BLOCK: usize = 8 << 20;
/// Bytes of a piece for random reads: what the system reads around a missing page.
const PIECE: usize = 64 << 10;
/// Threads that read sequentially, so that the disk always has a next request.
const READERS: u64 = 2;
/// Length of one run.
const RUN: Duration = Duration::from_millis(400);
const RUNS: usize = 3;

/// Measured rates of a disk, in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskRates {
    /// Sequential reads.
    pub sequential_bytes_per_s: f64,
    /// Random reads.
    pub random_bytes_per_s: f64,
    /// Whether the page cache was bypassed.
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
        /// The cause.
        source: std::io::Error,
    },
    /// The file is too small for a measurement.
    #[error("`{}` has {bytes} bytes, too few to measure a disk by; {PIECE} are needed", path.display())]
    Small {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        bytes: u64,
    },
}

/// Measures the disk of the file at `path` by reading that file, for less than three seconds.
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
    // The runs are spread over the file: a disk, or what backs a virtual one, may have parts of it cached.
    let begin = |run: usize| bytes / RUNS as u64 * run as u64;
    let sequential: Vec<f64> =
        (0..RUNS).map(|run| in_order(&file, bytes, begin(run))).collect::<Result<_, _>>().map_err(read)?;
    let random: Vec<f64> =
        (0..RUNS).map(|run| here_and_there(&file, bytes, run)).collect::<Result<_, _>>().map_err(read)?;
    let middle = |rates: Vec<f64>| median(rates).unwrap_or(f64::NAN);
    Ok(DiskRates { sequential_bytes_per_s: middle(sequential), random_bytes_per_s: middle(random), direct })
}

/// Returns the bytes per second of one sequential run: a quick check whether a disk is as fast as before.
///
/// # Errors
/// [`DiskError`] naming the file.
pub fn look(path: &Path) -> Result<f64, DiskError> {
    let read = |source| DiskError::Read { path: path.to_owned(), source };
    let (file, _) = open(path).map_err(read)?;
    let bytes = file.metadata().map_err(read)?.len();
    in_order(&file, bytes.max(1), bytes / 2).map_err(read)
}

/// Opens the file, for direct reads if its file system has them. Returns whether these skip the page cache.
fn open(path: &Path) -> std::io::Result<(File, bool)> {
    match platform::open_direct(path) {
        Ok(Some(file)) => Ok((file, platform::SKIPS_CACHED_PAGES)),
        Ok(None) | Err(_) => Ok((File::open(path)?, false)),
    }
}

/// Returns the bytes per second of two threads that take blocks in turn, from near `begin` on. At the end
/// of the file they continue at its beginning.
fn in_order(file: &File, bytes: u64, begin: u64) -> std::io::Result<f64> {
    let (next, done) = (AtomicU64::new(begin / BLOCK as u64), AtomicU64::new(0));
    let blocks = bytes.div_ceil(BLOCK as u64);
    let begun = Instant::now();
    let reader = || {
        // Memory mapped for this buffer: aligned as direct reads need it, and returned to the system at
        // once.
        let mut buffer = MmapMut::map_anon(BLOCK)?;
        while begun.elapsed() < RUN {
            let block = next.fetch_add(1, Ordering::Relaxed) % blocks;
            let read = platform::read_at(file, &mut buffer, block * BLOCK as u64)?;
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

/// Returns the bytes per second of one thread that reads pieces at distances of a large odd step.
fn here_and_there(file: &File, bytes: u64, run: usize) -> std::io::Result<f64> {
    let pieces = bytes / PIECE as u64;
    let mut buffer = MmapMut::map_anon(PIECE)?;
    let (begun, mut done, mut at) = (Instant::now(), 0, run as u64);
    while begun.elapsed() < RUN {
        at = (at + 0x9E37_79B9) % pieces;
        done += platform::read_at(file, &mut buffer, at * PIECE as u64)? as u64;
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
            let read = platform::read_at(&opened, &mut buffer, offset).unwrap();
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
