//! A device in host memory that computes every kernel from its documented buffers and numbers.
//!
//! It proves that the cases and the launches of [`crate::ops`] agree with the table of kernels. It also
//! stands for a GPU in tests of what uses one. Each command is done when its call returns. Only the numbers
//! that a launch's workgroups cover are computed, so a grid that is too small shows as a wrong result. Fresh
//! memory holds NaN.

mod attention;
mod experts;
mod joined;
mod launches;
mod packed;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use baton_kernels_cpu::Pool;

use crate::device::{Buffer, Device, Facts, GpuError, Interface, Launch, Tiles};
use crate::fault::FirstFault;

/// What fresh memory holds: a NaN, and an index that no table has.
const UNDEFINED: u8 = 0xff;

/// The generation of memory that could not be allocated.
const NEVER: u64 = u64::MAX;

/// Tile sizes that are no multiples of each other.
const TILES: Tiles = Tiles { matvec_rows: 3, matmul_rows: 8, matmul_tokens: 5, numbers: 16 };

/// A device in host memory.
#[derive(Debug)]
pub struct HostDevice {
    facts: Facts,
    budget: Option<u64>,
    used: Arc<AtomicU64>,
    uploads: AtomicU64,
    fault: FirstFault,
    /// Held while a command runs.
    order: Mutex<()>,
    pool: Pool,
}

/// The memory of a buffer: whole words.
#[derive(Debug)]
struct Memory {
    bytes: RwLock<Vec<u8>>,
    counted: u64,
    used: Arc<AtomicU64>,
    generation: u64,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.used.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

impl HostDevice {
    /// Makes a device that gives out at most `budget` bytes; without a budget, as much as the host has.
    pub fn new(budget: Option<u64>) -> Self {
        let facts = Facts {
            name: "host memory".to_owned(),
            interface: Interface::Vulkan,
            index: 0,
            is_software: true,
            shares_memory: true,
            memory_bytes: budget,
            binding_bytes: 1 << 30,
        };
        Self {
            facts,
            budget,
            used: Arc::default(),
            uploads: AtomicU64::new(0),
            fault: FirstFault::default(),
            order: Mutex::default(),
            pool: Pool::single(),
        }
    }

    /// Returns it as a device that does not say how much memory it has, only how much is free.
    #[must_use]
    pub fn of_unknown_memory(mut self) -> Self {
        self.facts.memory_bytes = None;
        self
    }

    /// Returns it as a device whose kernels can use at most so many bytes of a buffer.
    #[must_use]
    pub fn of_bindings(mut self, binding_bytes: u64) -> Self {
        self.facts.binding_bytes = binding_bytes;
        self
    }

    /// Returns how many tables were uploaded.
    pub fn uploads(&self) -> u64 {
        self.uploads.load(Ordering::Relaxed)
    }

    /// Keeps a fault, as if the device had it. For tests of what follows.
    pub fn fail(&self, fault: GpuError) {
        self.fault.keep(fault);
    }

    /// Waits until this command may run. Returns `None` if the device has a fault.
    fn begin(&self) -> Option<MutexGuard<'_, ()>> {
        let turn = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        (!self.fault.is_set()).then_some(turn)
    }

    /// As [`Self::begin`], also `None` if a buffer is from before a fault that was forgotten.
    fn begin_with(&self, buffers: &[&Buffer]) -> Option<MutexGuard<'_, ()>> {
        let now = self.fault.generation();
        self.begin().filter(|_| buffers.iter().all(|buffer| handle(buffer).generation == now))
    }
}

/// Returns the bytes of a buffer of this device.
///
/// # Panics
/// If the buffer is another device's.
fn memory(buffer: &Buffer) -> &RwLock<Vec<u8>> {
    &handle(buffer).bytes
}

/// As [`memory`], with what is known of it.
fn handle(buffer: &Buffer) -> &Memory {
    buffer.raw::<Memory>().expect("a buffer of this device")
}

/// Returns the range of `len` bytes of a buffer, from `at` on, in its memory.
///
/// # Panics
/// If a number is not a multiple of four.
fn range(buffer: &Buffer, at: u64, len: usize) -> std::ops::Range<usize> {
    assert!(at.is_multiple_of(4) && len.is_multiple_of(4), "{len} bytes at {at} are not whole words");
    let first = (buffer.at() + at) as usize;
    first..first + len
}

impl Device for HostDevice {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn tiles(&self) -> Tiles {
        TILES
    }

    fn joins(&self) -> bool {
        true
    }

    fn alloc(&self, bytes: u64) -> Buffer {
        let whole = bytes.next_multiple_of(4);
        let buffer = |counted, generation| {
            let fresh = RwLock::new(vec![UNDEFINED; if counted > 0 { whole as usize } else { 0 }]);
            let used = Arc::clone(&self.used);
            Buffer::new(Arc::new(Memory { bytes: fresh, counted, used, generation }), bytes)
        };
        let Some(_turn) = self.begin() else { return buffer(0, NEVER) };
        let used = self.used.load(Ordering::Relaxed);
        if self.budget.is_some_and(|budget| used + whole > budget) {
            self.fail(GpuError::OutOfMemory { wanted: bytes, used, budget: self.budget });
            return buffer(0, NEVER);
        }
        self.used.fetch_add(whole, Ordering::Relaxed);
        buffer(whole, self.fault.generation())
    }

    fn upload(&self, bytes: &[u8]) -> Buffer {
        self.uploads.fetch_add(1, Ordering::Relaxed);
        let buffer = self.alloc(bytes.len() as u64);
        if let Some(_turn) = self.begin_with(&[&buffer]) {
            let mut to = memory(&buffer).write().unwrap_or_else(PoisonError::into_inner);
            to[..bytes.len()].copy_from_slice(bytes);
        }
        buffer
    }

    fn write(&self, to: &Buffer, at: u64, bytes: &[u8]) {
        let Some(_turn) = self.begin_with(&[to]) else { return };
        memory(to).write().unwrap_or_else(PoisonError::into_inner)[range(to, at, bytes.len())]
            .copy_from_slice(bytes);
    }

    fn clear(&self, buffer: &Buffer) {
        let Some(_turn) = self.begin_with(&[buffer]) else { return };
        let whole = range(buffer, 0, buffer.bytes().next_multiple_of(4) as usize);
        memory(buffer).write().unwrap_or_else(PoisonError::into_inner)[whole].fill(0);
    }

    fn copy(&self, from: &Buffer, from_at: u64, to: &Buffer, to_at: u64, bytes: u64) {
        let Some(_turn) = self.begin_with(&[from, to]) else { return };
        let (from_range, to_range) = (range(from, from_at, bytes as usize), range(to, to_at, bytes as usize));
        let from = memory(from).read().unwrap_or_else(PoisonError::into_inner);
        let mut to = memory(to).try_write().expect("a copy is between two different buffers");
        to[to_range].copy_from_slice(&from[from_range]);
    }

    fn launch(&self, launch: &Launch<'_>) {
        let Some(_turn) = self.begin_with(launch.buffers) else { return };
        launches::run(&self.pool, launch);
    }

    fn read(&self, from: &Buffer, at: u64, out: &mut [u8]) -> Result<(), GpuError> {
        let Some(_turn) = self.begin() else {
            return Err(self.fault().expect("a device that does nothing has a fault"));
        };
        self.fault.check(handle(from).generation)?;
        let own = range(from, at, out.len());
        let from = memory(from).read().unwrap_or_else(PoisonError::into_inner);
        out.copy_from_slice(&from[own]);
        Ok(())
    }

    fn fault(&self) -> Option<GpuError> {
        self.fault.get()
    }

    fn recover(&self) -> bool {
        self.fault.forget()
    }

    fn generation(&self) -> u64 {
        self.fault.generation()
    }

    fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn free_bytes(&self) -> Option<u64> {
        self.budget.map(|budget| budget.saturating_sub(self.used_bytes()))
    }

    /// Sizes are exact.
    fn rounding_bytes(&self, _: u64) -> u64 {
        0
    }

    /// There is no driver.
    fn headroom_bytes(&self) -> u64 {
        0
    }
}
