//! Contents of the KV cache's blocks in a GPU's memory.
//!
//! Each layer has one buffer for the keys and one for the values of all blocks, binary16. They are allocated
//! when the engine is made, so that a cache that does not fit is noticed then. With offloading some layers
//! have theirs in the host's memory ([`HostKv`]). If those are packed to fewer bits, keys and values of every
//! layer are rounded as packing rounds them. So no bit depends on where a layer is.

use baton_kernels_gpu::ops::{self, KvBuffers};
use baton_kernels_gpu::{Buffer, Device, GpuError, PackedKv};

use super::SeqSpan;
use super::cpu_kv::LayerKv;
use crate::eviction::Kept;
use crate::kv::pool::BlockId;
use crate::kv::{BLOCK_TOKENS, BlockCopy};
use crate::offload::{HostKv, OffloadStats};

/// The blocks of one engine, for the layers that a GPU computes.
#[derive(Debug)]
pub(crate) struct GpuKv {
    /// By layer of the model.
    layers: Vec<Option<KvBuffers>>,
    /// For every layer of the model: the layer whose keys and values it uses, and an index. The index is that
    /// of the used layer's first head among the heads with keys and values of their own.
    sources: Vec<(usize, usize)>,
    /// How they are rounded, if they are.
    packed: Option<PackedKv>,
    /// The layers that are not in the GPU's memory.
    host: Option<HostKv>,
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
        (n_blocks, packed): (usize, Option<PackedKv>),
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
        device.fault().map_or(Ok(Self { layers: own, sources, packed, host: None }), Err)
    }

    /// Adds layers whose keys and values are in the host's memory.
    pub(crate) fn with_host(self, host: HostKv) -> Self {
        Self { host: Some(host), ..self }
    }

    /// Adds what was moved of keys and values so far, and where they are.
    pub(crate) fn add_stats(&self, stats: &mut OffloadStats) {
        let bytes = |kv: &KvBuffers| kv.keys.bytes() + kv.values.bytes();
        stats.kv_resident_bytes = self.layers.iter().flatten().map(bytes).sum();
        if let Some(host) = &self.host {
            host.add_stats(stats);
        }
    }

    /// Returns the bytes of the cache of one layer.
    pub(crate) fn layer_bytes(kv: &LayerKv, n_blocks: usize) -> u64 {
        2 * KvBuffers::block_bytes(kv.n_kv_heads, kv.d_head) * n_blocks as u64
    }

    /// Returns the keys and values that a layer uses. The next kernel may use what the spans' queries see. If
    /// `is_written`, the spans' own rows are among that.
    pub(crate) fn layer(&self, layer: usize, spans: &[SeqSpan], is_written: bool) -> KvBuffers {
        let (source, _) = self.sources[layer];
        let own = self.layers[source].clone();
        let of_host = || {
            let host = self.host.as_ref()?;
            Some(host.enter(host.place(source)?, spans, is_written))
        };
        own.or_else(of_host).expect("a GPU runs only layers that its cache holds")
    }

    /// To be called behind the kernel that writes a layer's new keys and values to the slots of `places`.
    pub(crate) fn written(
        &self,
        device: &dyn Device,
        layer: usize,
        spans: &[SeqSpan],
        places: (&Buffer, usize),
    ) {
        if let (Some(how), Some(kv)) = (self.packed, &self.layers[layer]) {
            ops::round_kv(device, how, kv, places);
        }
        if let Some(host) = &self.host
            && let Some(place) = host.place(layer)
        {
            host.save(place, spans, places);
        }
    }

    /// Makes the copies, and begins to load what a pass over these spans needs first.
    pub(crate) fn prepare(&mut self, device: &dyn Device, copies: &[BlockCopy], spans: &[SeqSpan]) {
        for copy in copies {
            for kv in self.layers.iter().flatten() {
                ops::copy_block(device, kv, copy.from.0 as usize, copy.to.0 as usize);
            }
        }
        if let Some(host) = &self.host {
            host.copy(copies);
            host.begin(spans);
        }
    }

    /// Whether all its layers are in the GPU's memory.
    pub(crate) fn is_resident(&self) -> bool {
        self.host.is_none()
    }

    /// Returns the bytes of a block's contents.
    pub(crate) fn block_bytes(&self) -> usize {
        self.layers.iter().flatten().map(|kv| 2 * KvBuffers::block_bytes(kv.heads, kv.d) as usize).sum()
    }

    /// Appends the contents of a block to `to`.
    ///
    /// # Errors
    /// The device's fault.
    pub(crate) fn append_block(
        &self,
        device: &dyn Device,
        id: BlockId,
        to: &mut Vec<u8>,
    ) -> Result<(), GpuError> {
        for kv in self.layers.iter().flatten() {
            let bytes = KvBuffers::block_bytes(kv.heads, kv.d);
            for buffer in [&kv.keys, &kv.values] {
                let begin = to.len();
                to.resize(begin + bytes as usize, 0);
                device.read(buffer, u64::from(id.0) * bytes, &mut to[begin..])?;
            }
        }
        Ok(())
    }

    /// Takes a block's contents from the front of `from`, as [`Self::append_block`] gave them.
    pub(crate) fn take_block(&self, device: &dyn Device, id: BlockId, from: &mut &[u8]) {
        for kv in self.layers.iter().flatten() {
            let bytes = KvBuffers::block_bytes(kv.heads, kv.d);
            for buffer in [&kv.keys, &kv.values] {
                let (own, rest) = from.split_at(bytes as usize);
                device.write(buffer, u64::from(id.0) * bytes, own);
                *from = rest;
            }
        }
    }

    /// Copies the tokens that `kept` names from the blocks `from` into the first slots of the blocks `to`.
    pub(crate) fn keep(&mut self, device: &dyn Device, kept: &Kept, from: &[BlockId], to: &[BlockId]) {
        let moves = |layer: usize, heads: usize| {
            let first = self.sources[layer].1;
            let mut moves = Vec::new();
            for head in 0..heads {
                for (slot, &position) in kept.positions(first + head).iter().enumerate() {
                    moves.push((head, slot_of(from, position), slot_of(to, slot)));
                }
            }
            moves
        };
        for (layer, kv) in self.layers.iter().enumerate() {
            if let Some(kv) = kv {
                ops::keep(device, kv, &moves(layer, kv.heads));
            }
        }
        if let Some(host) = &self.host {
            host.keep(moves);
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
