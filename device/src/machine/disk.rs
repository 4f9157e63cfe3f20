//! Measures how fast a file can be read from its disk: in order and in blocks, as the engine reads weights,
//! and at random positions.
//!
//! Reads bypass the page cache if the system allows it ([`platform::open_direct`]). Otherwise they may be
//! answered from memory, and the result says so. The size of blocks is chosen by measurement, with as many
//! threads as the engine has for it.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use baton_engine::{Residency, platform};
use baton_gpu::BlockRate;
use baton_pacing::refit::median;
use bytes::BytesMut;

/// Sizes of blocks that are tried.
const BLOCKS: [usize; 5] = [256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
/// A smaller file does not show how its disk reads large blocks. The engine's usual size is taken then.
const SWEPT_BYTES_MIN: u64 = 64 << 20;
/// Length of one run of a size, and of all of them; each size has one run at least.
const SWEEP_RUN: Duration = Duration::from_millis(50);
const SWEEP: Duration = Duration::from_millis(1200);
/// How many times as fast as the engine's usual size another one must be to be used instead. Disks that
/// others use too, as those of virtual machines, change by more than a tenth from one run to the next.
const CLEARLY: f64 = 1.2;
/// Bytes of a piece for random reads: what the system reads around a missing page.
const PIECE: usize = 64 << 10;
/// Length of one run.
const RUN: Duration = Duration::from_millis(300);
const RUNS: usize = 3;
/// The alignment of direct reads.
const ALIGNED: u64 = platform::READ_ALIGNED as u64;

/// Measured rates of a disk, in bytes per second.
#[derive(Debug, Clone, PartialEq)]
pub struct DiskRates {
    /// Sequential reads, with the engine's threads.
    pub sequential_bytes_per_s: f64,
    /// Random reads.
    pub random_bytes_per_s: f64,
    /// Whether the page cache was bypassed.
    pub direct: bool,
    /// The rate of each size of blocks that was tried, at random positions; none if the file is small.
    pub blocks: Vec<BlockRate>,
}

impl DiskRates {
    /// Returns the bytes of a block with which sequential reads were measured.
    pub fn block_bytes(&self) -> usize {
        block_of(&self.blocks).unwrap_or_else(usual_block)
    }
}

/// Returns the size of reads that the engine should use, or `None` if it was not measured: the usual one, if
/// none is clearly faster.
pub fn block_of(blocks: &[BlockRate]) -> Option<usize> {
    let best = BlockRate::best(blocks).and_then(|bytes| usize::try_from(bytes).ok())?;
    let rate_of = |bytes: usize| {
        let found = blocks.iter().find(|rate| rate.block_bytes == bytes as u64);
        found.map_or(0.0, |rate| rate.bytes_per_s)
    };
    let usual = usual_block();
    Some(if rate_of(best) < CLEARLY * rate_of(usual) { usual } else { best })
}

/// Returns the size of reads that the engine uses if nothing was measured.
pub fn usual_block() -> usize {
    Residency::default().read_bytes
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

/// An open file, and how it is read.
struct Measured<'a> {
    path: &'a Path,
    file: File,
    direct: bool,
    bytes: u64,
}

/// Measures the disk of the file at `path` by reading that file, for about three seconds.
///
/// # Errors
/// [`DiskError`] naming the file.
pub fn measure(path: &Path) -> Result<DiskRates, DiskError> {
    let opened = Measured::open(path)?;
    let blocks = opened.named(opened.sweep())?;
    let block = block_of(&blocks).unwrap_or_else(usual_block);
    let sequential_bytes_per_s = opened.named(opened.sequential(block))?;
    let random = (0..RUNS).map(|run| here_and_there(&opened.file, opened.bytes, run));
    let random = opened.named(random.collect::<Result<Vec<_>, _>>())?;
    Ok(DiskRates {
        sequential_bytes_per_s,
        random_bytes_per_s: median(random).unwrap_or(f64::NAN),
        direct: opened.direct,
        blocks,
    })
}

/// Returns the bytes per second of sequential reads in such blocks, with the engine's threads.
///
/// # Errors
/// [`DiskError`] naming the file.
pub fn sequential(path: &Path, block: usize) -> Result<f64, DiskError> {
    let opened = Measured::open(path)?;
    opened.named(opened.sequential(block))
}

/// Returns the bytes per second of one sequential run in such blocks: a quick check whether a disk is as fast
/// as before.
///
/// # Errors
/// [`DiskError`] naming the file.
pub fn look(path: &Path, block: usize) -> Result<f64, DiskError> {
    let opened = Measured::open(path)?;
    let look = || Readers::new(block).in_order(&opened.file, opened.bytes, opened.bytes / 2, block);
    opened.named(look())
}

/// Returns the bytes per second at which the engine's threads read these ranges of the file, in order.
///
/// # Errors
/// [`DiskError`] naming the file.
pub fn ranges(path: &Path, ranges: &[Range<u64>]) -> Result<f64, DiskError> {
    let opened = Measured::open(path)?;
    opened.named(all_of(&opened.file, ranges))
}

impl<'a> Measured<'a> {
    fn open(path: &'a Path) -> Result<Self, DiskError> {
        let read = |source| DiskError::Read { path: path.to_owned(), source };
        let (file, direct) = open(path).map_err(read)?;
        let bytes = file.metadata().map_err(read)?.len();
        if bytes < PIECE as u64 {
            return Err(DiskError::Small { path: path.to_owned(), bytes });
        }
        Ok(Self { path, file, direct, bytes })
    }

    fn named<T>(&self, result: std::io::Result<T>) -> Result<T, DiskError> {
        result.map_err(|source| DiskError::Read { path: self.path.to_owned(), source })
    }

    /// Tries all sizes in turn, several times, so that a disk that changes meanwhile favours none.
    fn sweep(&self) -> std::io::Result<Vec<BlockRate>> {
        if self.bytes < SWEPT_BYTES_MIN {
            return Ok(Vec::new());
        }
        let mut readers = Readers::new(BLOCKS[BLOCKS.len() - 1]);
        let (begun, mut all, mut run) = (Instant::now(), BLOCKS.map(|_| Vec::new()), 0);
        while begun.elapsed() < SWEEP || run == 0 {
            for (rates, block) in all.iter_mut().zip(BLOCKS) {
                let (blocks, bytes) = (self.bytes / block as u64, block as u64);
                let place = |number: u64| spread(number + (run << 32)) % blocks * bytes;
                rates.push(readers.timed(&self.file, (block, SWEEP_RUN), place)?);
            }
            run += 1;
        }
        let rate = |(rates, block): (Vec<f64>, usize)| BlockRate {
            block_bytes: block as u64,
            bytes_per_s: median(rates).unwrap_or(f64::NAN),
        };
        Ok(all.into_iter().zip(BLOCKS).map(rate).collect())
    }

    fn sequential(&self, block: usize) -> std::io::Result<f64> {
        // The runs are spread over the file: a disk, or what backs a virtual one, may have parts of it
        // cached.
        let begin = |run: usize| self.bytes / RUNS as u64 * run as u64;
        let mut readers = Readers::new(block);
        let rates = (0..RUNS).map(|run| readers.in_order(&self.file, self.bytes, begin(run), block));
        Ok(median(rates.collect::<Result<Vec<_>, _>>()?).unwrap_or(f64::NAN))
    }
}

/// Opens the file, for direct reads if its file system has them. Returns whether these skip the page cache.
fn open(path: &Path) -> std::io::Result<(File, bool)> {
    match platform::open_direct(path) {
        Ok(Some(file)) => Ok((file, platform::SKIPS_CACHED_PAGES)),
        Ok(None) | Err(_) => Ok((File::open(path)?, false)),
    }
}

/// Returns a number that looks random and differs for each argument.
fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20
}

/// The memory of as many threads as the engine has for reading.
struct Readers(Vec<BytesMut>);

impl Readers {
    /// Takes memory for reads of so many bytes. It is touched now, since that takes as long as a fast read.
    fn new(bytes: usize) -> Self {
        let mut buffers = platform::read_buffers(Residency::default().threads, bytes);
        buffers.iter_mut().for_each(|buffer| buffer.fill(1));
        Self(buffers)
    }

    /// Lets each thread work with its memory, and waits for all.
    fn work(&mut self, work: impl Fn(&mut [u8]) -> std::io::Result<()> + Sync) -> std::io::Result<()> {
        let work = &work;
        std::thread::scope(|scope| {
            let threads = self.0.iter_mut().map(|buffer| scope.spawn(move || work(&mut buffer[..])));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a reading thread does not panic"))
        })
    }

    /// Returns the bytes per second of blocks that threads take in turn for a while. `place` gives the
    /// position of each.
    fn timed(
        &mut self,
        file: &File,
        (block, time): (usize, Duration),
        place: impl Fn(u64) -> u64 + Sync,
    ) -> std::io::Result<f64> {
        let (next, done, begun) = (AtomicU64::new(0), AtomicU64::new(0), Instant::now());
        self.work(|buffer| {
            loop {
                let at = place(next.fetch_add(1, Ordering::Relaxed));
                let read = platform::read_at(file, &mut buffer[..block], at)?;
                done.fetch_add(read as u64, Ordering::Relaxed);
                if begun.elapsed() >= time {
                    return Ok(());
                }
            }
        })?;
        Ok(done.into_inner() as f64 / begun.elapsed().as_secs_f64())
    }

    /// Returns the bytes per second of blocks that follow each other, from near `begin` on. At the end of the
    /// file they continue at its beginning.
    fn in_order(&mut self, file: &File, bytes: u64, begin: u64, block: usize) -> std::io::Result<f64> {
        let (blocks, block_bytes) = (bytes.div_ceil(block as u64), block as u64);
        let first = begin / block_bytes;
        self.timed(file, (block, RUN), |number| (first + number) % blocks * block_bytes)
    }
}

/// Returns the aligned range around this one.
fn aligned(range: &Range<u64>) -> Range<u64> {
    range.start / ALIGNED * ALIGNED..range.end.next_multiple_of(ALIGNED)
}

/// Returns the bytes per second of threads that read all these ranges, and no others.
fn all_of(file: &File, ranges: &[Range<u64>]) -> std::io::Result<f64> {
    let len = |range: &Range<u64>| aligned(range).end - aligned(range).start;
    let longest = ranges.iter().map(len).max().unwrap_or(0).max(ALIGNED);
    let (mut readers, next) = (Readers::new(longest as usize), AtomicUsize::new(0));
    let begun = Instant::now();
    readers.work(|buffer| {
        while let Some(range) = ranges.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Range { start, end } = aligned(range);
            let mut done = 0;
            while start + done < range.end {
                let room = &mut buffer[done as usize..(end - start) as usize];
                // A short read continues at an aligned position, unless it has reached the end of the file.
                match platform::read_at(file, room, start + done)? as u64 / ALIGNED * ALIGNED {
                    0 => break,
                    whole => done += whole,
                }
            }
        }
        Ok(())
    })?;
    let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    Ok(bytes as f64 / begun.elapsed().as_secs_f64())
}

/// Returns the bytes per second of one thread that reads pieces at distances of a large odd step.
fn here_and_there(file: &File, bytes: u64, run: usize) -> std::io::Result<f64> {
    let pieces = bytes / PIECE as u64;
    let mut buffers = platform::read_buffers(1, PIECE);
    let (begun, mut done, mut at) = (Instant::now(), 0, run as u64);
    while begun.elapsed() < RUN {
        at = (at + 0x9E37_79B9) % pieces;
        for buffer in &mut buffers {
            done += platform::read_at(file, buffer, at * PIECE as u64)? as u64;
        }
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
        let mut buffer = platform::read_buffers(1, PIECE).remove(0);
        for offset in [0, 65_536, 262_144] {
            let read = platform::read_at(&opened, &mut buffer, offset).unwrap();
            let offset = offset as usize;
            assert_eq!(read, PIECE.min(bytes.len() - offset));
            assert!(buffer[..read] == bytes[offset..offset + read]);
        }
    }

    #[test]
    fn blocks_are_chosen_by_measurement_if_the_file_is_large_enough() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; 1 << 20]).unwrap();
        let small = measure(file.path()).unwrap();
        assert_eq!((&small.blocks[..], small.block_bytes()), (&[][..], usual_block()));
        file.as_file().set_len(SWEPT_BYTES_MIN).unwrap();
        file.as_file().sync_all().unwrap();
        let rates = measure(file.path()).unwrap();
        assert_eq!(rates.blocks.len(), BLOCKS.len());
        assert!(rates.blocks.iter().all(|rate| rate.bytes_per_s > 0.0), "{rates:?}");
        assert!(BLOCKS.contains(&rates.block_bytes()) && rates.sequential_bytes_per_s > 0.0, "{rates:?}");
    }

    #[test]
    fn another_size_of_reads_is_used_only_if_it_is_clearly_faster() {
        let usual = usual_block();
        let rates = |all: &[(usize, f64)]| -> Vec<BlockRate> {
            let rate = |&(bytes, bytes_per_s)| BlockRate { block_bytes: bytes as u64, bytes_per_s };
            all.iter().map(rate).collect()
        };
        assert_eq!(block_of(&[]), None);
        assert_eq!(block_of(&rates(&[(512 << 10, 107.0), (usual, 100.0)])), Some(usual));
        assert_eq!(block_of(&rates(&[(512 << 10, 121.0), (usual, 100.0)])), Some(512 << 10));
        assert_eq!(block_of(&rates(&[(usual, 100.0), (4 << 20, 119.0)])), Some(usual));
        assert_eq!(block_of(&rates(&[(usual, 100.0), (4 << 20, 130.0)])), Some(4 << 20));
        assert_eq!(block_of(&rates(&[(512 << 10, 5.0)])), Some(512 << 10));
    }

    #[test]
    fn ranges_are_read_wherever_they_begin_and_end() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; 300_000]).unwrap();
        file.as_file().sync_all().unwrap();
        for all in [[0..1, 1..2], [5..70_000, 4095..4097], [299_999..300_000, 100..100]] {
            let rate = ranges(file.path(), &all).unwrap();
            assert!(rate >= 0.0 && rate.is_finite(), "{all:?}: {rate}");
        }
    }

    #[test]
    fn a_file_that_is_too_small_or_missing_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(measure(file.path()).unwrap_err().to_string().contains("0 bytes, too few"));
        assert!(matches!(measure(Path::new("missing")), Err(DiskError::Read { .. })));
    }
}
