//! The only module of the engine that maps files: read-only, whole, for the life of the model.
//!
//! If a file is cut short while it is mapped, or its disk fails, zeros are read for the missing pages, and
//! [`MappedFile::is_cut`] returns true from then on. The caller asks after computing and discards the result.
//! Windows instead refuses to cut a file that is mapped.
//!
//! Never writes, never hands out the mapping itself, only its bytes. Advice to the system about parts of a
//! file (needed repeatedly, not needed) changes no byte; if the system refuses it, only speed is lost.

use std::fs::File;
use std::io;
use std::ops::Range;

use memmap2::Mmap;

use crate::platform::{self, Watched};

/// The largest pages in which Linux usually keeps files.
const HUGE_PAGE: usize = 2 << 20;

/// Returns the huge pages wholly inside these bytes of a file. They are aligned to the file's beginning.
pub(super) fn whole_huge_pages(range: &Range<usize>) -> Range<usize> {
    let first = range.start.next_multiple_of(HUGE_PAGE);
    first..(range.end / HUGE_PAGE * HUGE_PAGE).max(first)
}

/// A model file mapped into memory.
#[derive(Debug)]
pub(super) struct MappedFile {
    map: Mmap,
    watched: Option<&'static Watched>,
}

impl Drop for MappedFile {
    /// Runs before the mapping is removed: its addresses may be reused afterwards.
    fn drop(&mut self) {
        if let Some(watched) = self.watched {
            watched.end();
        }
    }
}

impl MappedFile {
    /// Maps the whole of `file` for reading.
    ///
    /// The file must not change while it is mapped. The model store writes a model under another name and
    /// renames it when it is complete, so a finished file is replaced, never changed in place. If a person
    /// truncates a model in use, zeros are read for the missing bytes, and [`Self::is_cut`] returns true.
    ///
    /// # Errors
    /// The system's error if it cannot map the file.
    pub(super) fn map(file: &File) -> io::Result<MappedFile> {
        // SAFETY: the mapping is private and read-only. Model files are replaced by rename and never changed
        // in place (see above), so the bytes do not change. If a person breaks this rule, numbers change, but
        // no index or length is read from the file after it was opened.
        let map = unsafe { Mmap::map(file) }?;
        // Asks for huge pages, if the file system has them: with pages of 4 KiB, decoding spends a tenth of
        // its time on address translation (measured). Other file systems refuse, which changes nothing.
        platform::expect_huge_pages(&map, 0..map.len());
        let watched = Watched::begin(&map);
        Ok(MappedFile { map, watched })
    }

    /// Whether missing bytes of the file were touched; zeros were read in their place.
    pub(super) fn is_cut(&self) -> bool {
        self.watched.is_some_and(Watched::is_cut)
    }

    /// Returns the bytes of the file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Asks the system to read pages one by one as they are touched, without their neighbours.
    pub(super) fn read_only_what_is_touched(&self) {
        platform::read_singly(&self.map);
    }

    /// Asks the system to read pages that lie wholly inside `range` as huge pages, if the file system has
    /// them.
    pub(super) fn expect_use(&self, range: Range<usize>) {
        if let Some(whole) = self.inside(whole_huge_pages(&range)) {
            platform::expect_huge_pages(&self.map, whole);
        }
    }

    /// Reads the pages of `range` now and maps them.
    pub(super) fn read_ahead(&self, range: Range<usize>) {
        if let Some(range) = self.inside(range) {
            platform::read_mapped(&self.map, range);
        }
    }

    /// Unmaps the pages that lie wholly inside `range`. The system may drop them and reads them again when
    /// they are touched.
    pub(super) fn let_go(&self, range: Range<usize>) {
        if let Some(range) = self.inside(range) {
            platform::let_go(&self.map, range);
        }
    }

    /// Returns the part of `range` that lies in the file, or `None` if that is empty.
    fn inside(&self, range: Range<usize>) -> Option<Range<usize>> {
        let range = range.start..range.end.min(self.map.len());
        (range.start < range.end).then_some(range)
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::platform::WATCHED_MAX;

    fn mapped(len: usize) -> (File, MappedFile) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; len]).unwrap();
        let map = MappedFile::map(&file).unwrap();
        (file, map)
    }

    #[test]
    fn a_file_that_is_cut_short_reads_as_zeros_and_says_so() {
        let len = 5 * HUGE_PAGE + 123;
        let (file, map) = mapped(len);
        let (_, other) = mapped(100);
        let sum = |map: &MappedFile| map.bytes().iter().map(|&byte| u64::from(byte)).sum::<u64>();
        assert_eq!(sum(&map), 7 * len as u64);
        file.set_len(10).unwrap();
        assert!(!map.is_cut(), "nobody has asked for what is gone");
        // From several threads at once, as in a forward pass.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_eq!(sum(&map), 70));
            }
        });
        assert_eq!((map.bytes()[9], map.bytes()[10], map.bytes()[len - 1]), (7, 0, 0));
        assert!(map.is_cut() && !other.is_cut());
        assert_eq!(sum(&other), 700);
    }

    #[test]
    fn a_place_is_free_again_once_its_file_is_closed() {
        for _ in 0..2 * WATCHED_MAX {
            let (_, map) = mapped(1);
            assert!(map.watched.is_some() && !map.is_cut());
        }
    }
}
