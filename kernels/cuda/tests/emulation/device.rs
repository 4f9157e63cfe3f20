//! A device whose kernels are those of this crate, compiled for the host.
//!
//! Behind each buffer, filled up to sixteen bytes, is a page that nobody may touch: a kernel that goes there
//! ends the program. Fresh memory holds NaN.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use baton_kernels_cuda::source;
use baton_kernels_gpu::{Buffer, Device, Facts, GpuError, Interface, Launch, Tiles};

use crate::library::Library;

/// Bytes of one or more pages.
const PAGE: usize = 1 << 16;

/// Where buffers begin: at multiples of this, as on a GPU.
const ALIGNMENT: usize = 16;

/// What fresh memory holds.
const UNDEFINED: u8 = 0xff;

/// Memory of a buffer, at the end of its pages.
struct Memory {
    pages: NonNull<c_void>,
    page_bytes: usize,
    start: NonNull<u8>,
    bytes: usize,
    used: Arc<AtomicU64>,
}

// SAFETY: the memory is plain bytes that the device touches under its lock.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(bytes: usize, used: &Arc<AtomicU64>) -> Self {
        assert!(bytes > 0 && bytes.is_multiple_of(4), "a buffer of {bytes} bytes");
        let held = bytes.next_multiple_of(ALIGNMENT).next_multiple_of(PAGE);
        let page_bytes = held + PAGE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping touches no other memory.
        let pages = unsafe { libc::mmap(std::ptr::null_mut(), page_bytes, rights, flags, -1, 0) };
        assert_ne!(pages, libc::MAP_FAILED, "no memory for a buffer of {bytes} bytes");
        // SAFETY: the last page lies in the mapping.
        let last = unsafe { pages.byte_add(held) };
        // SAFETY: the page belongs to the mapping, and nothing has used it.
        let closed = unsafe { libc::mprotect(last, PAGE, libc::PROT_NONE) };
        assert_eq!(closed, 0, "the page behind a buffer cannot be closed");
        let before = held - bytes.next_multiple_of(ALIGNMENT);
        // SAFETY: the start lies in the mapping.
        let start = unsafe { pages.byte_add(before) };
        let start = NonNull::new(start.cast::<u8>()).expect("a mapping is not at address 0");
        let pages = NonNull::new(pages).expect("a mapping is not at address 0");
        used.fetch_add(bytes as u64, Ordering::Relaxed);
        let memory = Self { pages, page_bytes, start, bytes, used: used.clone() };
        memory.bytes().fill(UNDEFINED);
        memory
    }

    /// Returns the bytes; the caller holds the device's lock and no other slice of them.
    #[expect(clippy::mut_from_ref, reason = "the device's lock makes the slice the only one")]
    fn bytes(&self) -> &mut [u8] {
        // SAFETY: the mapping is this long and lives as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes as u64, Ordering::Relaxed);
        // SAFETY: the mapping was made by `new` with this length, and nobody uses it any more.
        unsafe { libc::munmap(self.pages.as_ptr(), self.page_bytes) };
    }
}

/// Bytes of dynamic shared memory, as the header has them.
const SHARED_BYTES: u32 = 256 << 10;

/// The most workgroups of a product that copies its weights.
const GROUPS: u32 = 2;

/// The device.
pub(crate) struct EmulatedDevice {
    facts: Facts,
    /// Whether products with one activation row copy their weights to shared memory.
    copies: bool,
    library: Mutex<Library>,
    used: Arc<AtomicU64>,
}

impl fmt::Debug for EmulatedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmulatedDevice").finish_non_exhaustive()
    }
}

fn memory(buffer: &Buffer) -> &Memory {
    buffer.raw::<Memory>().expect("a buffer of this device")
}

/// Returns the bytes of a buffer, which may be a part of another, from `at` on. As [`Memory::bytes`].
fn bytes(buffer: &Buffer, at: u64) -> &mut [u8] {
    &mut memory(buffer).bytes()[buffer.at() as usize..][at as usize..buffer.bytes() as usize]
}

impl EmulatedDevice {
    pub(crate) fn new(library: Library, copies: bool) -> Self {
        let facts = Facts {
            name: "emulated".to_owned(),
            interface: Interface::Cuda,
            index: 0,
            is_software: true,
            shares_memory: true,
            memory_bytes: None,
            binding_bytes: 1 << 32,
        };
        Self { facts, copies, library: Mutex::new(library), used: Arc::default() }
    }
}

impl Device for EmulatedDevice {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn tiles(&self) -> Tiles {
        source::TILES
    }

    fn joins(&self) -> bool {
        true
    }

    fn alloc(&self, bytes: u64) -> Buffer {
        Buffer::new(Arc::new(Memory::new(bytes as usize, &self.used)), bytes)
    }

    fn upload(&self, bytes: &[u8]) -> Buffer {
        let buffer = self.alloc(bytes.len() as u64);
        self.write(&buffer, 0, bytes);
        buffer
    }

    fn write(&self, to: &Buffer, at: u64, bytes: &[u8]) {
        let _order = self.library.lock().unwrap();
        self::bytes(to, at)[..bytes.len()].copy_from_slice(bytes);
    }

    fn clear(&self, buffer: &Buffer) {
        let _order = self.library.lock().unwrap();
        bytes(buffer, 0).fill(0);
    }

    fn copy(&self, from: &Buffer, from_at: u64, to: &Buffer, to_at: u64, bytes: u64) {
        let _order = self.library.lock().unwrap();
        let from = &self::bytes(from, from_at)[..bytes as usize];
        self::bytes(to, to_at)[..bytes as usize].copy_from_slice(from);
    }

    fn launch(&self, launch: &Launch<'_>) {
        let library = self.library.lock().unwrap();
        let name = launch.kernel.name();
        assert!(launch.groups.iter().all(|n| (1..=65_535).contains(n)), "{name}: {:?} groups", launch.groups);
        let function = library.function(source::function(launch.kernel));
        let mut of = source::arguments(launch.kernel, launch.buffers.len(), launch.params);
        let start = |at: usize| bytes(launch.buffers[at], 0).as_mut_ptr().cast();
        let nothing = std::ptr::null_mut::<c_void>();
        let buffers: Vec<*mut c_void> = of.buffers.iter().map(|at| at.map_or(nothing, start)).collect();
        let mut groups = source::groups(launch.kernel, launch.groups);
        if let Some(needs) = source::Copied::of(launch.kernel, launch.params).filter(|_| self.copies) {
            assert!(needs.bytes <= SHARED_BYTES, "{name}: {} bytes of shared memory", needs.bytes);
            needs.choose(&mut of);
            // A workgroup takes more than one group of slots.
            groups = [(groups[0] * groups[1]).min(GROUPS), 1, 1];
        }
        let params = of.params;
        let threads = source::threads(launch.kernel);
        // SAFETY: the lists are as long as their numbers say, and the buffers live until the call returns.
        // What a kernel touches outside of them is what the tests are for.
        let fits = unsafe {
            function(
                groups.as_ptr(),
                threads,
                buffers.as_ptr(),
                buffers.len() as u32,
                params.as_ptr(),
                params.len() as u32,
            )
        };
        assert_eq!(fits, 1, "{name} does not take {} buffers and {} numbers", buffers.len(), params.len());
    }

    fn read(&self, from: &Buffer, at: u64, out: &mut [u8]) -> Result<(), GpuError> {
        let _order = self.library.lock().unwrap();
        out.copy_from_slice(&bytes(from, at)[..out.len()]);
        Ok(())
    }

    fn fault(&self) -> Option<GpuError> {
        None
    }

    fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }
}
