//! Windows: `FILE_FLAG_NO_BUFFERING`, advice about mapped memory, and what the kernel says of memory.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::windows::fs::{FileExt as _, OpenOptionsExt as _};
use std::os::windows::io::AsRawHandle as _;
use std::path::Path;
use std::ptr;

use memmap2::Mmap;
use windows_sys::Win32::Storage::FileSystem::FILE_FLAG_NO_BUFFERING;
use windows_sys::Win32::System::IO::DeviceIoControl;
use windows_sys::Win32::System::Ioctl::FSCTL_SET_SPARSE;
use windows_sys::Win32::System::Memory::{PrefetchVirtualMemory, VirtualUnlock, WIN32_MEMORY_RANGE_ENTRY};
use windows_sys::Win32::System::ProcessStatus::{
    K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS, PROCESS_MEMORY_COUNTERS_EX, PROCESS_MEMORY_COUNTERS_EX2,
};
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};
use windows_sys::Win32::System::Threading::GetCurrentProcess;

/// Whether direct reads skip what the page cache holds.
pub const SKIPS_CACHED_PAGES: bool = true;
/// Bytes of a page on every processor that Windows runs on.
const PAGE: usize = 4096;
/// Bytes that are read at once into the page cache.
const AHEAD: usize = 128 << 10;

/// Reads bytes from `offset` on, at most as many as `buffer` has; 0 at the end of the file. Moves the file's
/// own position, which nobody here uses.
///
/// # Errors
/// The system's error.
pub fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    file.seek_read(buffer, offset)
}

/// Writes some of `bytes` from `offset` on, and returns how many. Moves the file's own position.
///
/// # Errors
/// The system's error.
pub fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    file.seek_write(bytes, offset)
}

/// Opens the file for reads past the page cache; returns `None` if its file system has none.
///
/// # Errors
/// The system's error if it cannot open the file.
pub fn open_direct(path: &Path) -> io::Result<Option<File>> {
    match File::options().read(true).custom_flags(FILE_FLAG_NO_BUFFERING).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(err) if err.kind() == io::ErrorKind::InvalidInput => Ok(None),
        Err(err) => Err(err),
    }
}

/// Makes unwritten parts of the file take no room on the disk. A file system that cannot do it, such as FAT,
/// keeps the whole file.
pub fn make_sparse(file: &File) {
    let mut returned = 0;
    // SAFETY: the handle is open; the call takes and returns no bytes, and `returned` is of this function.
    let _refused = unsafe {
        DeviceIoControl(
            file.as_raw_handle(),
            FSCTL_SET_SPARSE,
            ptr::null(),
            0,
            ptr::null_mut(),
            0,
            &raw mut returned,
            ptr::null_mut(),
        )
    };
}

/// Does nothing: no call reads a part of a file ahead.
pub(crate) fn read_ahead(_file: &File, _range: Range<usize>) {}

/// Brings these bytes into the page cache by reading them. Errors are ignored; a later read reports them.
pub(crate) fn read_into_cache(file: &File, range: Range<usize>) {
    let mut piece = vec![0; AHEAD.min(range.len())];
    for at in range.clone().step_by(AHEAD) {
        let len = range.end.min(at + AHEAD) - at;
        let _ = file.seek_read(&mut piece[..len], at as u64);
    }
}

/// Does nothing: no call drops a part of a file. The system takes such pages first if it needs memory.
pub(crate) fn forget(_file: &File, _range: Range<usize>) {}

/// Does nothing: huge pages need a right that programs do not have.
pub(super) fn use_huge_pages(_memory: &mut [u8]) {}

/// Does nothing: files have no huge pages here.
pub(crate) fn expect_huge_pages(_map: &Mmap, _range: Range<usize>) {}

/// Does nothing: no call says so of a mapping.
pub(crate) fn read_singly(_map: &Mmap) {}

/// Asks the system to read `range`. Returns false: each page has to be touched.
pub(super) fn populate(map: &Mmap, range: Range<usize>) -> bool {
    let bytes = &map[range];
    let entry = WIN32_MEMORY_RANGE_ENTRY {
        VirtualAddress: bytes.as_ptr().cast::<c_void>().cast_mut(),
        NumberOfBytes: bytes.len(),
    };
    // SAFETY: returns a constant.
    let own = unsafe { GetCurrentProcess() };
    // SAFETY: one entry, which names bytes of the mapping; reading them ahead changes none.
    let _refused = unsafe { PrefetchVirtualMemory(own, 1, &raw const entry, 0) };
    false
}

/// Takes the pages that lie wholly inside `range`, which lies in the mapping, out of the memory that this
/// process holds. The system reads them again when they are touched.
pub(crate) fn let_go(map: &Mmap, range: Range<usize>) {
    let whole = range.start.next_multiple_of(PAGE)..range.end / PAGE * PAGE;
    if whole.start >= whole.end {
        return;
    }
    let bytes = &map[whole];
    // SAFETY: the pages are of the mapping and stay readable. To unlock pages that are not locked removes
    // them from the working set, and returns an error that says so.
    let _not_locked = unsafe { VirtualUnlock(bytes.as_ptr().cast(), bytes.len()) };
}

/// Returns `None`: the system counts the faults that waited for a disk together with all others.
pub(crate) fn major_faults() -> Option<u64> {
    None
}

/// Returns the bytes of this process's memory that no file backs, as far as they are committed; `None` if the
/// system does not say it. Systems before Windows 11 do not count the memory of the KV cache.
pub fn own_bytes() -> Option<u64> {
    let mut found = PROCESS_MEMORY_COUNTERS_EX2::default();
    // Older systems know the first fields only.
    let sizes = [size_of::<PROCESS_MEMORY_COUNTERS_EX2>(), size_of::<PROCESS_MEMORY_COUNTERS_EX>()];
    let is_told = sizes.into_iter().any(|bytes| {
        // SAFETY: returns a constant.
        let own = unsafe { GetCurrentProcess() };
        let counters = (&raw mut found).cast::<PROCESS_MEMORY_COUNTERS>();
        // SAFETY: the call writes at most `bytes` bytes, which is not more than `counters` points to.
        unsafe { K32GetProcessMemoryInfo(own, counters, bytes as u32) != 0 }
    });
    is_told.then_some((found.PrivateUsage as u64).saturating_add(found.SharedCommitUsage))
}

/// Returns the bytes of memory that the system can give without swapping.
///
/// # Errors
/// The system's error if it does not say it.
pub fn free_bytes() -> io::Result<u64> {
    let mut found = MEMORYSTATUSEX { dwLength: size_of::<MEMORYSTATUSEX>() as u32, ..Default::default() };
    // SAFETY: the pointer is to a value of this function, which names its own size.
    let done = unsafe { GlobalMemoryStatusEx(&raw mut found) };
    if done == 0 { Err(io::Error::last_os_error()) } else { Ok(found.ullAvailPhys) }
}

/// The place of a watched mapping. There is none: the system refuses to cut a file that is mapped. If the
/// disk of a mapped file fails, the system ends the program.
#[derive(Debug)]
pub(crate) enum Watched {}

impl Watched {
    /// Returns `None`: nothing has to be watched.
    pub(crate) fn begin(_bytes: &[u8]) -> Option<&'static Watched> {
        None
    }

    /// Ends watching.
    pub(crate) fn end(&self) {
        match *self {}
    }

    /// Whether missing bytes were touched.
    pub(crate) fn is_cut(&self) -> bool {
        match *self {}
    }
}
