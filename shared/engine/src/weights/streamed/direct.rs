//! Reads ranges of model files past the page cache.
//!
//! Direct reads must begin, end and be stored at multiples of [`ALIGNED`], so the smallest such range around
//! the wanted bytes is read. If a file system refuses direct reads, pages are read as usual and dropped at
//! once, and [`DirectFile::is_direct`] returns false. Never: writes, or uses more memory than the buffer it
//! is given.

#[cfg(test)]
pub(crate) mod planted;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::BytesMut;

use crate::platform::{self, READ_ALIGNED as ALIGNED};

/// Memory for one read.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// Begins at a multiple of [`ALIGNED`].
    memory: BytesMut,
    /// The range of `memory` with the bytes of the last read.
    held: Range<usize>,
}

impl Buffer {
    /// Makes `count` buffers, each with room for any `len` bytes of a file. The memory is not used before the
    /// first read.
    pub(crate) fn several(count: usize, len: usize) -> Vec<Self> {
        let buffers = platform::read_buffers(count, room_for(len)).into_iter();
        buffers.map(|memory| Self { memory, held: 0..0 }).collect()
    }

    /// Returns a buffer with room for any `len` bytes: the one in `kept`, unless that is too small.
    pub(crate) fn with_room(kept: &mut Option<Self>, len: usize) -> &mut Self {
        if kept.as_ref().is_none_or(|buffer| buffer.memory.len() < room_for(len)) {
            *kept = None;
        }
        kept.get_or_insert_with(|| {
            let memory = platform::read_buffers(1, room_for(len)).pop().unwrap_or_default();
            Self { memory, held: 0..0 }
        })
    }

    /// Returns the bytes of the last read.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.held.clone()]
    }
}

/// Returns the bytes of the aligned range around any `len` bytes of a file.
fn room_for(len: usize) -> usize {
    len.next_multiple_of(ALIGNED) + ALIGNED
}

/// A model file that is read past the page cache.
#[derive(Debug)]
pub(crate) struct DirectFile {
    file: File,
    /// The same file through the page cache.
    cached: File,
    path: PathBuf,
    direct: bool,
}

impl DirectFile {
    /// Opens the file, with direct reads if they work.
    ///
    /// # Errors
    /// The system's error if it cannot open the file.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let direct = platform::open_direct(path)?.filter(reads_directly);
        let is_direct = direct.is_some();
        let cached = File::open(path)?;
        let file = match direct {
            Some(file) => file,
            None => cached.try_clone()?,
        };
        Ok(Self { file, cached, path: path.to_owned(), direct: is_direct })
    }

    /// Whether reads go past the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the bytes `range` into `buffer`, which must have room for them. Returns how many bytes were
    /// read.
    ///
    /// # Errors
    /// The system's error; `UnexpectedEof` if the file is shorter.
    pub(crate) fn read(&self, range: &Range<usize>, buffer: &mut Buffer) -> io::Result<usize> {
        let done = self.fill(&self.file, self.direct, range, buffer)?;
        if !self.direct {
            self.forget(range.clone());
        }
        Ok(done)
    }

    /// As [`Self::read`], but from the page cache, which may drop the bytes afterwards.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn read_cached(&self, range: &Range<usize>, buffer: &mut Buffer) -> io::Result<()> {
        self.fill(&self.cached, false, range, buffer)?;
        self.forget(range.clone());
        Ok(())
    }

    /// Brings these bytes into the page cache and waits for them. Errors are ignored; the read itself will
    /// report them.
    pub(crate) fn cache(&self, range: Range<usize>) {
        platform::read_into_cache(&self.cached, range);
    }

    /// Asks the system to read these bytes into the page cache, without waiting.
    pub(crate) fn read_ahead(&self, range: Range<usize>) {
        platform::read_ahead(&self.cached, range);
    }

    /// Allows the system to drop these bytes from the page cache, if nobody has them mapped.
    pub(crate) fn forget(&self, range: Range<usize>) {
        platform::forget(&self.cached, range);
    }

    /// Reads the aligned superset of `range` from one of the two handles. Returns how many bytes were read.
    fn fill(
        &self,
        file: &File,
        direct: bool,
        range: &Range<usize>,
        buffer: &mut Buffer,
    ) -> io::Result<usize> {
        let first = range.start / ALIGNED * ALIGNED;
        let wanted = range.end - first;
        let room = wanted.next_multiple_of(ALIGNED);
        let memory = &mut buffer.memory[..room];
        let mut done = 0;
        while done < wanted {
            match self.read_at(file, &mut memory[done..], (first + done) as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                // A short read continues at an aligned position, unless it has all wanted bytes.
                Ok(more) if done + more >= wanted => done += more,
                Ok(more) if more >= ALIGNED => done += more / ALIGNED * ALIGNED,
                Ok(_) if direct => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => done += more,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(err),
            }
        }
        let start = range.start - first;
        buffer.held = start..start + range.len();
        Ok(done)
    }

    /// Reads once.
    #[cfg(not(test))]
    fn read_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        platform::read_at(file, buffer, offset)
    }

    /// Reads once, unless a fault is planted.
    #[cfg(test)]
    fn read_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        planted::read_at(&self.path, file, buffer, offset)
    }
}

/// Whether a direct read works: some file systems accept the flag and refuse each read.
fn reads_directly(file: &File) -> bool {
    let mut buffers = platform::read_buffers(1, ALIGNED);
    buffers.iter_mut().all(|buffer| platform::read_at(file, buffer, 0).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn file(len: usize) -> (tempfile::NamedTempFile, Vec<u8>) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..len as u32).map(|at| (at % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        file.as_file().sync_all().unwrap();
        (file, bytes)
    }

    #[test]
    fn any_range_of_a_file_is_read() {
        let (file, bytes) = file(300_001);
        let opened = DirectFile::open(file.path()).unwrap();
        let [plain, again] = [(); 2].map(|()| File::open(file.path()).unwrap());
        let cached = DirectFile { file: plain, cached: again, direct: false, path: PathBuf::new() };
        let mut kept = None;
        let buffer = Buffer::with_room(&mut kept, 100_000);
        for range in [0..1, 0..4096, 4095..4097, 32..100_032, 200_001..300_001, 299_999..300_001, 5..5] {
            for file in [&opened, &cached] {
                let read = file.read(&range, buffer).unwrap();
                assert!(buffer.bytes() == &bytes[range.clone()], "{range:?}, direct: {}", file.direct);
                assert!(read <= range.len() + 2 * ALIGNED, "{range:?}: {read} bytes");
                file.cache(range.clone());
                file.read_cached(&range, buffer).unwrap();
                assert!(buffer.bytes() == &bytes[range.clone()], "{range:?} from the page cache");
            }
        }
    }

    #[test]
    fn a_read_that_is_short_or_interrupted_goes_on_and_one_that_fails_says_why() {
        let (file, bytes) = file(300_001);
        let opened = DirectFile::open(file.path()).unwrap();
        let mut kept = None;
        let buffer = Buffer::with_room(&mut kept, 100_000);
        // Reads of one block and of many, and which of the blocks' reads fails.
        for (range, nth) in
            [(32..100_032, 0), (4095..4097, 0), (200_001..300_001, 0), (7..8, 0), (9..9_000, 1)]
        {
            for fault in planted::ReadFault::ALL {
                planted::plant(file.path(), nth, fault);
                let read = || opened.read(&range, buffer);
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
                let what = format!("{range:?}: {fault:?}");
                // One read has all the bytes, so there is no second one.
                let want = if planted::remove(file.path()) { None } else { fault.error() };
                match (result, want) {
                    (Ok(Ok(_)), None) => {
                        assert!(buffer.bytes() == &bytes[range.clone()], "{what}");
                    }
                    (Ok(Err(err)), Some(want)) => {
                        let both = [&err, &want].map(|err| (err.kind(), err.raw_os_error()));
                        assert_eq!(both[0], both[1], "{what}");
                    }
                    (Err(_), Some(_)) => assert_eq!(fault, planted::ReadFault::Panic, "{what}"),
                    (other, want) => panic!("{what}: {other:?}, must be {want:?}"),
                }
            }
        }
    }

    #[test]
    fn what_is_past_the_end_is_an_error() {
        let (file, _) = file(10_000);
        let opened = DirectFile::open(file.path()).unwrap();
        let mut kept = None;
        let buffer = Buffer::with_room(&mut kept, 8192);
        for range in [9_000..10_001, 12_000..12_001, 40_960..40_970] {
            let err = opened.read(&range, buffer).unwrap_err();
            assert_eq!(err.kind(), io::ErrorKind::UnexpectedEof, "{range:?}");
        }
        let missing = DirectFile::open(Path::new("missing")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
