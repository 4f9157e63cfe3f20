//! What Linux, Android and macOS have in common.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use memmap2::{Advice, Mmap, UncheckedAdvice};

/// Reads bytes from `offset` on, at most as many as `buffer` has; 0 at the end of the file.
///
/// # Errors
/// The system's error.
pub fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    file.read_at(buffer, offset)
}

/// Writes some of `bytes` from `offset` on, and returns how many.
///
/// # Errors
/// The system's error.
pub fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    file.write_at(bytes, offset)
}

/// Asks the system to read pages one by one as they are touched, without their neighbours.
pub(crate) fn read_singly(map: &Mmap) {
    let _ = map.advise(Advice::Random);
    super::system::no_huge_pages(map, 0..map.len());
}

/// Unmaps the pages that lie wholly inside `range`, which lies in the mapping. The system may drop them and
/// reads them again when they are touched.
pub(crate) fn let_go(map: &Mmap, range: Range<usize>) {
    let page = rustix::param::page_size();
    let whole = range.start.next_multiple_of(page)..range.end / page * page;
    if whole.start >= whole.end {
        return;
    }
    super::system::no_huge_pages(map, whole.clone());
    // SAFETY: the mapping is of a file, read-only, and nothing was ever written to its pages. Dropped pages
    // come back with the same bytes, so borrowed slices stay valid.
    let dropped = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, whole.start, whole.len()) };
    let _ = dropped; // If refused, the pages stay until the system needs the memory.
}
