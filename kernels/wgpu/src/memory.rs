//! Memory of the device: blocks that are reused by size, within a budget.
//!
//! Commands take effect in the order of the calls. So a block that was given back can serve again at once,
//! also before the device has run the commands that used it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use baton_kernels_gpu::GpuError;

use crate::fault::{Fault, lock};
use crate::now::now;

/// Sizes of blocks are multiples of this, and a block has more bytes than asked for: kernels may read (but
/// not use) a word past the last one.
pub(crate) const ALIGN: u64 = 256;

/// Larger blocks are given back to the driver at once: they are weights and caches, not numbers of a step.
const KEPT_MAX: u64 = 64 << 20;

/// The most bytes of unused blocks that are kept for reuse.
const KEPT_TOTAL_MAX: u64 = 256 << 20;

/// Returns the size of a block for so many bytes: one of four per power of two, so that sizes which differ
/// little share blocks. Large blocks are as large as they must be.
fn block_bytes(bytes: u64) -> u64 {
    let needed = (bytes + 4).next_multiple_of(ALIGN);
    if needed > 4 << 20 {
        return needed;
    }
    let step = (needed.next_power_of_two() / 8).max(ALIGN);
    needed.next_multiple_of(step)
}

/// The device's memory, shared with every block.
#[derive(Debug, Clone)]
pub(crate) struct Memory(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    device: wgpu::Device,
    fault: Fault,
    budget: Option<u64>,
    binding_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Unused blocks by their size, the last given back at the end.
    kept: HashMap<u64, Vec<(u64, wgpu::Buffer)>>,
    kept_bytes: u64,
    used_bytes: u64,
    next_id: u64,
    /// Ids of blocks that were given back to the driver since [`Memory::take_dead`].
    dead: Vec<u64>,
}

impl State {
    /// Gives all unused blocks back to the driver.
    fn trim(&mut self) {
        let kept = std::mem::take(&mut self.kept);
        self.dead.extend(kept.into_values().flatten().map(|(id, _)| id));
        self.kept_bytes = 0;
    }
}

/// A block of memory; it is reused when it is dropped.
#[derive(Debug)]
pub(crate) struct Block {
    /// The number of the driver's buffer; no other buffer ever has it.
    pub(crate) id: u64,
    /// The driver's buffer.
    pub(crate) buffer: wgpu::Buffer,
    bytes: u64,
    memory: Arc<Shared>,
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut state = lock(&self.memory.state);
        state.used_bytes -= self.bytes;
        if self.bytes > KEPT_MAX || state.kept_bytes + self.bytes > KEPT_TOTAL_MAX {
            state.dead.push(self.id);
            return;
        }
        state.kept_bytes += self.bytes;
        state.kept.entry(self.bytes).or_default().push((self.id, self.buffer.clone()));
    }
}

impl Memory {
    pub(crate) fn new(device: wgpu::Device, fault: Fault, budget: Option<u64>, binding_bytes: u64) -> Self {
        let state = Mutex::default();
        Self(Arc::new(Shared { device, fault, budget, binding_bytes, state }))
    }

    /// Returns a block of at least so many bytes, reused if there is one; `None` after a fault, which may be
    /// that there is no room.
    pub(crate) fn block(&self, bytes: u64) -> Option<Block> {
        self.take(bytes, true, true)
    }

    /// As [`Self::block`], but it is no fault if the driver has no room.
    pub(crate) fn block_if_room(&self, bytes: u64) -> Option<Block> {
        self.take(bytes, true, false)
    }

    /// As [`Self::block`], but never memory that commands not yet submitted may use.
    pub(crate) fn new_block(&self, bytes: u64) -> Option<Block> {
        self.take(bytes, false, true)
    }

    /// Gives all unused blocks back to the driver.
    pub(crate) fn trim(&self) {
        lock(&self.0.state).trim();
    }

    fn take(&self, wanted: u64, reuse: bool, must: bool) -> Option<Block> {
        let shared = &self.0;
        if shared.fault.is_set() {
            return None;
        }
        let max = shared.binding_bytes;
        let bytes = block_bytes(wanted);
        if bytes > max + ALIGN {
            shared.fault.keep(GpuError::TooLarge { what: "a buffer", bytes: wanted, max });
            return None;
        }
        let mut state = lock(&shared.state);
        let of_size = if reuse { state.kept.get_mut(&bytes).and_then(Vec::pop) } else { None };
        if let Some((id, buffer)) = of_size {
            state.kept_bytes -= bytes;
            state.used_bytes += bytes;
            return Some(Block { id, buffer, bytes, memory: Arc::clone(shared) });
        }
        if let Some(budget) = shared.budget {
            if state.used_bytes + state.kept_bytes + bytes > budget {
                state.trim();
            }
            if state.used_bytes + bytes > budget {
                let (used, budget) = (state.used_bytes, Some(budget));
                shared.fault.keep(GpuError::OutOfMemory { wanted, used, budget });
                return None;
            }
        }
        let Some(buffer) = shared.create(bytes) else {
            if must {
                let used = state.used_bytes;
                shared.fault.keep(GpuError::OutOfMemory { wanted, used, budget: None });
            }
            return None;
        };
        state.used_bytes += bytes;
        state.next_id += 1;
        Some(Block { id: state.next_id, buffer, bytes, memory: Arc::clone(shared) })
    }

    /// Returns the ids of buffers that only the cache of bindings still holds.
    pub(crate) fn take_dead(&self) -> Vec<u64> {
        std::mem::take(&mut lock(&self.0.state).dead)
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        lock(&self.0.state).used_bytes
    }

    pub(crate) fn budget(&self) -> Option<u64> {
        self.0.budget
    }

    /// Returns a handle that does not keep the device.
    pub(crate) fn downgrade(&self) -> Used {
        Used(Arc::downgrade(&self.0))
    }
}

/// Tells how much memory is in use, as long as the device is there.
pub(crate) struct Used(Weak<Shared>);

impl Used {
    pub(crate) fn used_bytes(&self) -> u64 {
        self.0.upgrade().map_or(0, |shared| lock(&shared.state).used_bytes)
    }
}

impl Shared {
    /// Creates a buffer; `None` if the driver has no room.
    fn create(&self, bytes: u64) -> Option<wgpu::Buffer> {
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes,
            usage,
            mapped_at_creation: false,
        });
        match now(scope.pop()) {
            Some(None) => Some(buffer),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_a_word_to_spare_and_few_sizes() {
        assert_eq!([1, 252, 253, 1_020, 1_021].map(block_bytes), [256, 256, 512, 1_024, 1_280]);
        assert_eq!(block_bytes(100_000), 114_688);
        assert_eq!(block_bytes(5 << 20), (5 << 20) + 256);
        for bytes in (0..10_000_000).step_by(997) {
            let block = block_bytes(bytes);
            assert!(block >= bytes + 4 && block.is_multiple_of(ALIGN), "{bytes} in {block}");
            assert!(block <= bytes + bytes / 4 + 2 * ALIGN, "{bytes} in {block}");
        }
    }
}
