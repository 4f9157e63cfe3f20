//! The one place of the engine that maps files: read-only, whole, for the life of the model.
//!
//! Never writes, never hands out the mapping itself, only its bytes. What is said to the system about parts of a file
//! (which are needed again and again, which are not) is advice: it changes no byte, and where it is refused nothing is
//! lost but speed.

use std::fs::File;
use std::io;
use std::ops::Range;

use memmap2::{Advice, Mmap};

/// Pages of the largest kind that Linux keeps files in, as a rule.
const HUGE_PAGE: usize = 2 << 20;

/// The huge pages wholly inside these bytes of a file: it is by its place in the file that the system cuts it.
pub(super) fn whole_huge_pages(range: &Range<usize>) -> Range<usize> {
    let first = range.start.next_multiple_of(HUGE_PAGE);
    first..(range.end / HUGE_PAGE * HUGE_PAGE).max(first)
}

/// A model file mapped into memory.
#[derive(Debug)]
pub(super) struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps the whole of `file` for reading.
    ///
    /// The file has to keep still while it is mapped: the model store writes a model under another name
    /// and renames it when it is whole, so a finished file is replaced, never changed in place. A person
    /// who truncates a model in use ends the program with a bus error, as with every mapped loader.
    ///
    /// # Errors
    /// What the system says when it cannot map.
    pub(super) fn map(file: &File) -> io::Result<MappedFile> {
        // SAFETY: the mapping is private and read-only, and model files are replaced by rename, never
        // changed in place (the model store's rule, stated above), so the bytes keep still.
        let map = unsafe { Mmap::map(file) }?;
        // Pages read from now on come in huge ones, where the file system has them: with pages of 4 KiB decoding
        // spends a tenth of its time on looking addresses up (measured). Elsewhere this is refused and changes nothing.
        #[cfg(target_os = "linux")]
        let _ = map.advise(Advice::HugePage);
        Ok(MappedFile { map })
    }

    /// The bytes of the file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Pages are to be read one by one as they are touched, without their neighbours.
    pub(super) fn read_only_what_is_touched(&self) {
        let _ = self.map.advise(Advice::Random);
        #[cfg(target_os = "linux")]
        let _ = self.map.advise(Advice::NoHugePage);
    }

    /// Pages that lie wholly inside `range` are to be read in huge ones, where the file system has them.
    pub(super) fn expect_use(&self, range: Range<usize>) {
        #[cfg(target_os = "linux")]
        if let Some(whole) = self.inside(whole_huge_pages(&range)) {
            let _ = self.map.advise_range(Advice::HugePage, whole.start, whole.len());
        }
        #[cfg(not(target_os = "linux"))]
        let _ = range;
    }

    /// Reads the pages of `range` now and maps them.
    pub(super) fn read_ahead(&self, range: Range<usize>) {
        let Some(range) = self.inside(range) else { return };
        #[cfg(target_os = "linux")]
        let _ = self.map.advise_range(Advice::PopulateRead, range.start, range.len());
        #[cfg(not(target_os = "linux"))]
        let _ = self.map.advise_range(Advice::WillNeed, range.start, range.len());
    }

    /// Unmaps the pages that lie wholly inside `range`: the system may drop them, and reads them again when they are
    /// touched.
    pub(super) fn let_go(&self, range: Range<usize>) {
        let page = rustix::param::page_size();
        let whole = range.start.next_multiple_of(page)..range.end / page * page;
        let Some(range) = self.inside(whole) else { return };
        #[cfg(target_os = "linux")]
        let _ = self.map.advise_range(Advice::NoHugePage, range.start, range.len());
        // SAFETY: the mapping is of a file, read-only, and nothing was ever written to its pages, so those that are
        // dropped come back with the same bytes; borrowed slices stay valid.
        let dropped = unsafe {
            self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
        };
        let _ = dropped; // Refused, the pages stay until the system wants them.
    }

    /// The part of `range` that lies in the file; none where that is empty.
    fn inside(&self, range: Range<usize>) -> Option<Range<usize>> {
        let range = range.start..range.end.min(self.map.len());
        (range.start < range.end).then_some(range)
    }
}
