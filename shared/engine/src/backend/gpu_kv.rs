//! Contents of the KV cache's blocks in a GPU's memory.
//!
//! Each layer has one buffer for the keys and one for the values of all blocks, binary16. They are allocated
//! when the engine is made, so that a cache that does not fit is noticed then.

use baton_kernels_gpu::ops::{self, KvBuffers};
use baton_kernels_gpu::{Device, GpuError};

use super::SeqSpan;
use super::cpu_kv::LayerKv;
use crate::eviction::Kept;
use crate::kv::pool::BlockId;
use crate::kv::{BLOCK_TOKENS, BlockCopy};

/// The blocks of one engine, for the layers that a GPU computes.
#[derive(Debug)]
pub(crate) struct GpuKv {
    /// By layer of the model.
    layers: Vec<Option<KvBuffers>>,
    /// For every layer of the model: the layer whose keys and values it uses, and an index. The index is that
    /// of the used layer's first head among the heads with keys and values of their own.
    sources: Vec<(usize, usize)>,
}

impl GpuKv {
    /// Allocates the cache of these layers.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], or [`GpuError::TooLarge`] if a layer's keys do not fit into one binding.
    pub(crate) fn new(
        device: &dyn Device,
        model: &[LayerKv],
        layers: &[usize],
        n_blocks: usize,
    ) -> Result<Self, GpuError> {
        let max = device.facts().binding_bytes;
        let mut own: Vec<Option<KvBuffers>> = vec![None; model.len()];
        for &layer in layers.iter().filter(|layer| model[**layer].source == **layer) {
            let LayerKv { n_kv_heads: heads, d_head: d, .. } = model[layer];
            let bytes = KvBuffers::block_bytes(heads, d) * n_blocks as u64;
            if bytes > max {
                return Err(GpuError::TooLarge { what: "the keys of a layer's KV cache", bytes, max });
            }
            own[layer] = Some(KvBuffers { keys: device.alloc(bytes), values: device.alloc(bytes), heads, d });
        }
        let mut heads = 0;
        let mut first = Vec::with_capacity(model.len());
        for (layer, kv) in model.iter().enumerate() {
            first.push(heads);
            heads += if kv.source == layer { kv.n_kv_heads } else { 0 };
        }
        let sources = model.iter().map(|kv| (kv.source, first[kv.source])).collect();
        device.fault().map_or(Ok(Self { layers: own, sources }), Err)
    }

    /// Returns the bytes of the cache of one layer.
    pub(crate) fn layer_bytes(kv: &LayerKv, n_blocks: usize) -> u64 {
        2 * KvBuffers::block_bytes(kv.n_kv_heads, kv.d_head) * n_blocks as u64
    }

    /// Returns the keys and values that a layer uses.
    pub(crate) fn layer(&self, layer: usize) -> &KvBuffers {
        let (source, _) = self.sources[layer];
        self.layers[source].as_ref().expect("a GPU runs only layers that its cache holds")
    }

    /// Makes the copy.
    pub(crate) fn copy(&mut self, device: &dyn Device, copy: BlockCopy) {
        for kv in self.layers.iter().flatten() {
            ops::copy_block(device, kv, copy.from.0 as usize, copy.to.0 as usize);
        }
    }

    /// Copies the tokens that `kept` names from the blocks `from` into the first slots of the blocks `to`.
    pub(crate) fn keep(&mut self, device: &dyn Device, kept: &Kept, from: &[BlockId], to: &[BlockId]) {
        for (layer, kv) in self.layers.iter().enumerate() {
            let Some(kv) = kv else { continue };
            let first = self.sources[layer].1;
            let mut moves = Vec::new();
            for head in 0..kv.heads {
                for (slot, &position) in kept.positions(first + head).iter().enumerate() {
                    moves.push((head, slot_of(from, position), slot_of(to, slot)));
                }
            }
            ops::keep(device, kv, &moves);
        }
    }

    /// Returns the row and the slot of every new token of a span.
    pub(crate) fn places(span: &SeqSpan) -> impl Iterator<Item = (usize, usize)> {
        span.new_rows().map(|row| (row, slot_of(&span.blocks, span.start + row - span.rows.start)))
    }
}

/// Returns the slot of the token at `position` of a sequence with these blocks.
fn slot_of(blocks: &[BlockId], position: usize) -> usize {
    blocks[position / BLOCK_TOKENS].0 as usize * BLOCK_TOKENS + position % BLOCK_TOKENS
}
