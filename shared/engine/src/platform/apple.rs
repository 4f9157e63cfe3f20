//! macOS: `F_NOCACHE`, `F_RDADVISE`, and what the kernel says of memory.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use memmap2::{Advice, Mmap};

/// Whether direct reads skip what the page cache holds: here they are answered from it.
pub const SKIPS_CACHED_PAGES: bool = false;
/// Bytes of one request to read ahead.
const AHEAD: usize = 128 << 10;

/// Opens the file for reads past the page cache (`F_NOCACHE`); returns `None` if its file system refuses
/// that. What the cache holds already is read from there.
///
/// # Errors
/// The system's error if it cannot open the file.
pub fn open_direct(path: &Path) -> io::Result<Option<File>> {
    let file = File::open(path)?;
    Ok(rustix::fs::fcntl_nocache(&file, true).is_ok().then_some(file))
}

/// Makes unwritten parts of the file take no room on the disk: files of APFS are so by themselves.
pub fn make_sparse(_file: &File) {}

/// Asks the system to read these bytes into the page cache, without waiting (`F_RDADVISE`).
pub(crate) fn read_ahead(file: &File, range: Range<usize>) {
    for at in range.clone().step_by(AHEAD) {
        let len = range.end.min(at + AHEAD) - at;
        let _ = rustix::fs::fcntl_rdadvise(file, at as u64, len as u64);
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

/// Does nothing: no call drops a file's pages. The system takes clean pages first if it needs memory.
pub(crate) fn forget(_file: &File, _range: Range<usize>) {}

/// Does nothing: the system joins pages by itself.
pub(super) fn use_huge_pages(_memory: &mut [u8]) {}

/// Does nothing: files have no huge pages here.
pub(crate) fn expect_huge_pages(_map: &Mmap, _range: Range<usize>) {}

/// Does nothing: files have no huge pages here.
pub(super) fn no_huge_pages(_map: &Mmap, _range: Range<usize>) {}

/// Asks the system to read `range`. Returns false: each page has to be touched.
pub(super) fn populate(map: &Mmap, range: Range<usize>) -> bool {
    let _ = map.advise_range(Advice::WillNeed, range.start, range.len());
    false
}

/// Returns the page faults of this process that waited for a disk.
pub(crate) fn major_faults() -> Option<u64> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a `rusage` of this function.
    let refused = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    // SAFETY: its fields are numbers, for which zero is a value too.
    let usage = unsafe { usage.assume_init() };
    if refused == 0 { u64::try_from(usage.ru_majflt).ok() } else { None }
}

/// Returns the bytes of this process's memory that no file backs (its footprint); `None` if the system does
/// not say it.
pub fn own_bytes() -> Option<u64> {
    let mut usage = MaybeUninit::<libc::rusage_info_v2>::zeroed();
    let own = i32::try_from(std::process::id()).ok()?;
    // SAFETY: the system writes at most a `rusage_info_v2` to the address, whatever the type says.
    let refused = unsafe { libc::proc_pid_rusage(own, libc::RUSAGE_INFO_V2, usage.as_mut_ptr().cast()) };
    // SAFETY: its fields are numbers, for which zero is a value too.
    let usage = unsafe { usage.assume_init() };
    (refused == 0).then_some(usage.ri_phys_footprint)
}

/// Returns the bytes of memory that the system can give without swapping: pages that are free, inactive or
/// purgeable. Free pages include those that were read ahead.
///
/// # Errors
/// The system's error if it does not say it.
pub fn free_bytes() -> io::Result<u64> {
    let mut found = MaybeUninit::<libc::vm_statistics64>::zeroed();
    let mut words = libc::HOST_VM_INFO64_COUNT;
    #[allow(deprecated, reason = "the other crate that has this call has nothing else that is needed")]
    // SAFETY: returns the name of a port; takes nothing.
    let host = unsafe { libc::mach_host_self() };
    // SAFETY: the system writes `words`, and at most so many numbers of 32 bits: the size of `found`.
    let refused = unsafe {
        libc::host_statistics64(host, libc::HOST_VM_INFO64, found.as_mut_ptr().cast(), &raw mut words)
    };
    if refused != libc::KERN_SUCCESS {
        return Err(io::Error::other(format!("host_statistics64 refuses: {refused}")));
    }
    // SAFETY: its fields are numbers, for which zero is a value too.
    let found = unsafe { found.assume_init() };
    let pages = [found.free_count, found.inactive_count, found.purgeable_count];
    let pages: u64 = pages.into_iter().map(u64::from).sum();
    Ok(pages.saturating_mul(rustix::param::page_size() as u64))
}
