//! Linux and Android: `O_DIRECT`, `posix_fadvise`, huge pages, and files of `/proc`.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use memmap2::{Advice as MapAdvice, Mmap};
use rustix::fs::{Advice, OFlags, fadvise};

/// Whether direct reads skip what the page cache holds.
pub const SKIPS_CACHED_PAGES: bool = true;
/// The least bytes that the system reads ahead per request (`read_ahead_kb`, as Linux sets it).
const AHEAD: usize = 128 << 10;

/// Opens the file for reads past the page cache; returns `None` if its file system has none. Some file
/// systems accept the flag and refuse each read.
///
/// # Errors
/// The system's error if it cannot open the file.
pub fn open_direct(path: &Path) -> io::Result<Option<File>> {
    let flag = OFlags::DIRECT.bits() as i32;
    match File::options().read(true).custom_flags(flag).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(err) if err.kind() == io::ErrorKind::InvalidInput => Ok(None),
        Err(err) => Err(err),
    }
}

/// Makes unwritten parts of the file take no room on the disk: files are so here by themselves.
pub fn make_sparse(_file: &File) {}

/// Asks the system to read these bytes into the page cache, without waiting.
pub(crate) fn read_ahead(file: &File, range: Range<usize>) {
    for at in range.clone().step_by(AHEAD) {
        advise(file, at..range.end.min(at + AHEAD), Advice::WillNeed);
    }
}

/// Brings these bytes into the page cache and waits for them. Errors are ignored; a later read reports them.
pub(crate) fn read_into_cache(file: &File, range: Range<usize>) {
    read_ahead(file, range.clone());
    let mut byte = [0];
    for at in range.clone().step_by(AHEAD) {
        let _ = file.read_at(&mut byte, (range.end.min(at + AHEAD) - 1) as u64);
    }
}

/// Allows the system to drop these bytes from the page cache, if nobody has them mapped.
pub(crate) fn forget(file: &File, range: Range<usize>) {
    advise(file, range, Advice::DontNeed);
}

fn advise(file: &File, range: Range<usize>, advice: Advice) {
    if let Some(len) = NonZeroU64::new(range.len() as u64) {
        let _ = fadvise(file, range.start as u64, Some(len), advice);
    }
}

/// Asks the system to read `range` of the mapping as huge pages, if the file system has them.
pub(crate) fn expect_huge_pages(map: &Mmap, range: Range<usize>) {
    #[cfg(target_os = "linux")]
    let _ = map.advise_range(MapAdvice::HugePage, range.start, range.len());
    #[cfg(target_os = "android")]
    let _ = (map, range);
}

/// Asks the system to use huge pages for the memory that lies in whole ones.
pub(super) fn use_huge_pages(memory: &mut [u8]) {
    #[cfg(target_os = "linux")]
    // SAFETY: the range is this slice, and the advice changes none of its bytes. A range that does not begin
    // at a page is refused.
    let _ = unsafe { libc::madvise(memory.as_mut_ptr().cast(), memory.len(), libc::MADV_HUGEPAGE) };
    #[cfg(target_os = "android")]
    let _ = memory;
}

pub(super) fn no_huge_pages(map: &Mmap, range: Range<usize>) {
    #[cfg(target_os = "linux")]
    let _ = map.advise_range(MapAdvice::NoHugePage, range.start, range.len());
    #[cfg(target_os = "android")]
    let _ = (map, range);
}

/// Reads the pages of `range` and maps them. Returns whether that is all that can be done: on Android each
/// page has to be touched.
pub(super) fn populate(map: &Mmap, range: Range<usize>) -> bool {
    #[cfg(target_os = "linux")]
    let advice = MapAdvice::PopulateRead;
    #[cfg(target_os = "android")]
    let advice = MapAdvice::WillNeed;
    let _ = map.advise_range(advice, range.start, range.len());
    cfg!(target_os = "linux")
}

/// Returns the page faults of this process that waited for a disk.
pub(crate) fn major_faults() -> Option<u64> {
    major_faults_in(&std::fs::read_to_string("/proc/self/stat").ok()?)
}

/// Returns the twelfth field of `/proc/PID/stat` (proc_pid_stat(5)). The second field is a name that may hold
/// anything.
fn major_faults_in(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(9)?.parse().ok()
}

/// Returns the bytes of this process's memory that no file backs; `None` if the system does not say it.
pub fn own_bytes() -> Option<u64> {
    anonymous_in(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// Returns the field `RssAnon` of `/proc/PID/status`, in bytes.
fn anonymous_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_the_twelfth_field() {
        let stat = "42 (a (b) c) S 1 2 3 4 5 6 700 8 1234 10 11 12";
        assert_eq!(major_faults_in(stat), Some(1234));
        assert_eq!(major_faults_in("42 (a) S 1 2"), None);
        assert!(major_faults().is_some());
    }

    #[test]
    fn anonymous_memory_is_one_line_of_the_status() {
        let status = "VmRSS:\t  5000 kB\nRssAnon:\t    1234 kB\nRssFile:\t    9 kB\n";
        assert_eq!(anonymous_in(status), Some(1234 * 1024));
        assert_eq!(anonymous_in("VmRSS:\t 5000 kB\n"), None);
        assert_eq!(anonymous_in("RssAnon: x kB\n"), None);
    }
}
