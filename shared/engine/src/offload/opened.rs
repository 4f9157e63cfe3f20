//! Packed keys and values of the layer that is computed, opened for attention.
//!
//! One layer at a time has its blocks as binary16, in memory that all layers share: kernels run one after the
//! other. What packing left of new keys and values is what attention sees at once, so an opened block has the
//! same bits whether it was packed in between or not.

use std::collections::HashSet;

use baton_kernels_gpu::ops::{self, KvBuffers};
use baton_kernels_gpu::{Buffer, Device, PackedKv};

/// A layer: its place among those in the host's memory, heads and dimensions.
type LayerAt = (usize, usize, usize);

/// The opened blocks.
pub(super) struct Opened {
    how: PackedKv,
    keys: Buffer,
    values: Buffer,
    /// The place of the layer that they belong to.
    place: Option<usize>,
    blocks: HashSet<u32>,
}

impl Opened {
    /// Allocates memory for the keys, of so many bytes, and for as many values.
    pub(super) fn new(device: &dyn Device, how: PackedKv, bytes: u64) -> Self {
        let [keys, values] = [(); 2].map(|()| device.alloc(bytes));
        Self { how, keys, values, place: None, blocks: HashSet::new() }
    }

    /// Returns the bytes of its memory.
    pub(super) fn bytes(&self) -> u64 {
        self.keys.bytes() + self.values.bytes()
    }

    fn kv(&self, (_, heads, d): LayerAt) -> KvBuffers {
        KvBuffers { keys: self.keys.clone(), values: self.values.clone(), heads, d }
    }

    /// Opens those of the needed blocks that are packed, and returns all of the layer's keys and values.
    pub(super) fn open(
        &mut self,
        device: &dyn Device,
        layer: LayerAt,
        packed: &Buffer,
        mut needed: Vec<u32>,
    ) -> KvBuffers {
        if self.place.replace(layer.0) != Some(layer.0) {
            self.blocks.clear();
        }
        needed.retain(|block| self.blocks.insert(*block));
        let kv = self.kv(layer);
        if !needed.is_empty() {
            needed.sort_unstable();
            ops::unpack_kv(device, self.how, packed, &needed, &kv);
        }
        kv
    }

    /// Packs what a kernel has just written to the slots of `places`. All of that is in these blocks.
    pub(super) fn pack(
        &mut self,
        device: &dyn Device,
        layer: LayerAt,
        places: (&Buffer, usize),
        (packed, blocks): (&Buffer, &[u32]),
    ) {
        assert_eq!(self.place, Some(layer.0), "only the opened layer is written");
        ops::pack_kv(device, self.how, &self.kv(layer), places, packed);
        self.blocks.extend(blocks);
    }

    /// Forgets the blocks: packed ones have changed.
    pub(super) fn close(&mut self) {
        self.place = None;
    }
}
