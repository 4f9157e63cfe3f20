//! What systems do in different ways: reads past the page cache, advice about files and mapped memory, files
//! that are cut short in use, and figures of memory.
//!
//! No other module of the engine asks which system it runs on. `linux.rs` is for Linux and Android,
//! `apple.rs` for macOS, `windows.rs` for Windows, and `unix.rs` is what the first two have in common. If a
//! system has no way, the portable one is taken, and the function's comment says so. Always: advice changes
//! no byte of what is read, and a system that refuses it costs speed only.

#[cfg(unix)]
mod bus_errors;
#[cfg(test)]
mod tests;
#[cfg(unix)]
mod unix;

#[cfg(any(target_os = "linux", target_os = "android"))]
#[path = "platform/linux.rs"]
mod system;
#[cfg(target_vendor = "apple")]
#[path = "platform/apple.rs"]
mod system;
#[cfg(windows)]
#[path = "platform/windows.rs"]
mod system;
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple", windows)))]
compile_error!("the engine knows Linux, Android, macOS and Windows; see shared/engine/src/platform.rs");

use std::fs::File;
use std::io;
use std::ops::Range;

use bytes::BytesMut;
use memmap2::Mmap;

#[cfg(all(test, unix))]
pub(crate) use bus_errors::WATCHED_MAX;
#[cfg(unix)]
pub(crate) use bus_errors::Watched;
#[cfg(any(target_vendor = "apple", windows))]
pub use system::free_bytes;
pub use system::{SKIPS_CACHED_PAGES, make_sparse, open_direct, own_bytes};
#[cfg(windows)]
pub(crate) use system::{Watched, let_go, read_singly};
pub(crate) use system::{expect_huge_pages, forget, major_faults, read_ahead, read_into_cache};
#[cfg(windows)]
pub use system::{read_at, write_at};
#[cfg(unix)]
pub(crate) use unix::{let_go, read_singly};
#[cfg(unix)]
pub use unix::{read_at, write_at};

/// The alignment of direct reads: the largest block of any disk in use.
pub const READ_ALIGNED: usize = 4096;
/// Bytes of a huge page, of most processors with pages of 4 KiB.
const HUGE_PAGE: usize = 2 << 20;

/// Returns `count` buffers of at least `len` bytes for direct reads, at multiples of [`READ_ALIGNED`] and in
/// huge pages, if the system has them. They share one allocation. It is no more than two huge pages larger
/// than they are, and its memory is not used before it is written.
///
/// A disk is told of each piece of memory that a read fills. With pages of 4 KiB a read of 1 MiB is up to
/// 256 pieces. A controller takes only so many in one request: large reads are cut, and each piece costs
/// time. With huge pages the same reads are up to twice as fast (`benches/README.md`, "Offloading").
pub fn read_buffers(count: usize, len: usize) -> Vec<BytesMut> {
    let len = len.next_multiple_of(READ_ALIGNED);
    let all = count * len;
    let (align, room) = match all >= HUGE_PAGE / 2 {
        true => (HUGE_PAGE, all.next_multiple_of(HUGE_PAGE)),
        false => (READ_ALIGNED, all),
    };
    let mut memory = BytesMut::zeroed(room + align);
    let before = memory.as_ptr().align_offset(align).min(align);
    let _ = memory.split_to(before);
    memory.truncate(room);
    system::use_huge_pages(&mut memory);
    (0..count).map(|_| memory.split_to(len)).collect()
}

/// Fills `buffer` with the bytes from `offset` on, whatever the file's own position is.
///
/// # Errors
/// The system's error; `UnexpectedEof` if the file is shorter.
pub fn read_exact_at(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match read_at(file, buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(done) => {
                buffer = &mut buffer[done..];
                offset += done as u64;
            }
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    Ok(())
}

/// Writes all of `bytes` from `offset` on, whatever the file's own position is.
///
/// # Errors
/// The system's error; `WriteZero` if it writes nothing.
pub fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match write_at(file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(done) => {
                bytes = &bytes[done..];
                offset += done as u64;
            }
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    Ok(())
}

/// Reads the pages of `range` now and maps them. `range` lies in the mapping.
pub(crate) fn read_mapped(map: &Mmap, range: Range<usize>) {
    /// No system has smaller pages.
    const PAGE: usize = 4096;
    if system::populate(map, range.clone()) {
        return;
    }
    // The system reads ahead at most: what is touched is there.
    for at in range.step_by(PAGE) {
        std::hint::black_box(map[at]);
    }
}
