//! Contents of the KV cache's blocks in main memory.
//!
//! Each block has stores, made when the block is first used, which hold every head of every layer. A block's
//! contents outlive their sequences, for the prefix index.

use std::ops::Range;

use baton_kernels_cpu::{KvBlock, KvMemory, KvStore, Pool};

use super::SeqSpan;
use super::cpu_states::CpuStates;
use crate::eviction::Kept;
use crate::kv::pool::BlockId;
use crate::kv::{BLOCK_TOKENS, BlockCopy};

pub use baton_kernels_cpu::KvFormat;

/// The keys and values of one token in one layer of the model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerKv {
    pub(crate) n_kv_heads: usize,
    pub(crate) d_head: usize,
    /// The layer whose keys and values it uses.
    pub(crate) source: usize,
}

/// Heads of one layer in a block's stores.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Index of the store.
    store: usize,
    /// The first head.
    first: usize,
    heads: usize,
    d: usize,
}

/// A block's stores, one for each width of heads.
type Stores = Vec<KvStore>;

/// The blocks of one engine.
pub(crate) struct CpuKv {
    format: KvFormat,
    /// Every layer of the model.
    model: Vec<LayerKv>,
    /// For every layer of the model, its place in a block; `None` if the blocks do not hold it.
    places: Vec<Option<Place>>,
    /// Width and number of the heads of each store.
    widths: Vec<(usize, usize)>,
    memory: KvMemory,
    /// By block id; `None` if a block was never used.
    blocks: Vec<Option<Stores>>,
    /// The recurrent states of the model's other layers.
    pub(crate) states: CpuStates,
}

impl std::fmt::Debug for CpuKv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { format, widths, .. } = self;
        f.debug_struct("CpuKv").field("format", format).field("widths", widths).finish_non_exhaustive()
    }
}

impl CpuKv {
    /// Makes a cache for these layers of the model, without any block in memory. A layer that uses the keys
    /// and values of another needs that one among them.
    pub(crate) fn new(format: KvFormat, model: Vec<LayerKv>, layers: &[usize]) -> Self {
        let mut widths: Vec<(usize, usize)> = Vec::new();
        let mut places: Vec<Option<Place>> = vec![None; model.len()];
        for &layer in layers {
            let LayerKv { n_kv_heads: heads, d_head: d, source } = model[layer];
            if source != layer {
                places[layer] = places[source];
                continue;
            }
            let store = widths.iter().position(|(width, _)| *width == d).unwrap_or(widths.len());
            widths.resize(widths.len().max(store + 1), (d, 0));
            places[layer] = Some(Place { store, first: widths[store].1, heads, d });
            widths[store].1 += heads;
        }
        let (memory, states) = (KvMemory::default(), CpuStates::default());
        Self { format, model, places, widths, memory, blocks: Vec::new(), states }
    }

    /// Returns a cache of the same kind for these layers, without any block in memory.
    pub(crate) fn emptied(&self, layers: &[usize]) -> Self {
        let states = self.states.emptied();
        Self { states, ..Self::new(self.format, self.model.clone(), layers) }
    }

    /// Returns the number format.
    pub(crate) fn format(&self) -> KvFormat {
        self.format
    }

    /// Returns every layer of the model.
    pub(crate) fn of_model(&self) -> &[LayerKv] {
        &self.model
    }

    fn place(&self, layer: usize) -> Place {
        self.places[layer].expect("an engine runs only layers that its cache holds")
    }

    /// Allocates memory for the block if it has none.
    pub(crate) fn ensure(&mut self, id: BlockId) {
        let at = id.0 as usize;
        if self.blocks.len() <= at {
            self.blocks.resize_with(at + 1, || None);
        }
        let store = |(d, heads): &(usize, usize)| KvStore::new(self.format, *d, *heads, &self.memory);
        self.blocks[at].get_or_insert_with(|| self.widths.iter().map(store).collect());
    }

    /// Makes the copy.
    pub(crate) fn copy(&mut self, copy: BlockCopy) {
        self.ensure(copy.to);
        let mut to = self.blocks[copy.to.0 as usize].take().expect("ensured on the line above");
        to.iter_mut().zip(self.block(copy.from)).for_each(|(to, from)| to.copy_from(from));
        self.blocks[copy.to.0 as usize] = Some(to);
    }

    /// Returns the bytes of a block's contents.
    pub(crate) fn block_bytes(&self) -> usize {
        self.widths.iter().map(|(d, heads)| KvStore::content_bytes(self.format, *d, *heads)).sum()
    }

    /// Appends the contents of a block that was written to `to`.
    pub(crate) fn append_block(&self, id: BlockId, to: &mut Vec<u8>) {
        self.block(id).iter().for_each(|store| store.append_to(to));
    }

    /// Takes a block's contents from the front of `from`, as [`Self::append_block`] gave them.
    pub(crate) fn take_block(&mut self, id: BlockId, from: &mut &[u8]) {
        self.ensure(id);
        let stores = self.blocks[id.0 as usize].as_mut().expect("ensured on the line above");
        stores.iter_mut().for_each(|store| store.take_from(from));
    }

    /// Reads the key and the value of one token in one head of a layer, as floats.
    pub(crate) fn read(
        &self,
        (layer, head): (usize, usize),
        (id, slot): (BlockId, usize),
        k: &mut [f32],
        v: &mut [f32],
    ) {
        let place = self.place(layer);
        self.block(id)[place.store].read(place.first + head, slot, k, v);
    }

    /// Copies the tokens that `kept` names from the blocks `from` into the first slots of the blocks `to`.
    pub(crate) fn keep(&mut self, kept: &Kept, from: &[BlockId], to: &[BlockId]) {
        for (at, id) in to.iter().enumerate() {
            self.ensure(*id);
            let mut stores = self.blocks[id.0 as usize].take().expect("ensured on the line above");
            for (head, store, own) in self.heads() {
                let positions = kept.positions(head).chunks(BLOCK_TOKENS).nth(at).unwrap_or_default();
                for (slot, &position) in positions.iter().enumerate() {
                    let source = self.block(from[position / BLOCK_TOKENS]);
                    stores[store].copy_token(own, slot, &source[store], position % BLOCK_TOKENS);
                }
            }
            self.blocks[id.0 as usize] = Some(stores);
        }
    }

    /// Returns every head that the blocks hold: its index among all heads of the model with keys and values
    /// of their own, its store, and its index there.
    fn heads(&self) -> Vec<(usize, usize, usize)> {
        let (mut heads, mut of_model) = (Vec::new(), 0);
        for (layer, kv) in self.model.iter().enumerate().filter(|(layer, kv)| kv.source == *layer) {
            if let Some(place) = self.places[layer] {
                heads.extend((0..place.heads).map(|head| (of_model + head, place.store, place.first + head)));
            }
            of_model += kv.n_kv_heads;
        }
        heads
    }

    /// Writes the keys and values of a span's new rows; `k` and `v` are `[t, g d]`.
    pub(crate) fn append(&mut self, pool: &Pool, layer: usize, k: &[f32], v: &[f32], span: &SeqSpan) {
        let place = self.place(layer);
        let (d, width) = (place.d, place.heads * place.d);
        let end = span.start + span.rows.len();
        let first = span.start + span.cached;
        let write = |index: usize, block: &mut Stores| {
            let positions = first.max(index * BLOCK_TOKENS)..end.min((index + 1) * BLOCK_TOKENS);
            for kv_head in 0..place.heads {
                for position in positions.clone() {
                    let row = span.rows.start + position - span.start;
                    let at = row * width + kv_head * d..row * width + (kv_head + 1) * d;
                    let slot = position % BLOCK_TOKENS;
                    block[place.store].write(place.first + kv_head, slot, &k[at.clone()], &v[at]);
                }
            }
        };
        let indices = first / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS);
        let mut stores: Vec<(usize, Option<Stores>)> = Vec::with_capacity(indices.len());
        for index in indices {
            stores.push((index, self.blocks[span.blocks[index].0 as usize].take()));
        }
        pool.for_each(&mut stores, |(index, store)| {
            write(*index, store.as_mut().expect("prepare has ensured every block of a span"));
        });
        for (index, store) in stores {
            self.blocks[span.blocks[index].0 as usize] = store;
        }
    }

    /// Returns the first `keys` keys and values of one head of a sequence, as blocks. Blocks whose first
    /// position `wanted` rejects are left out.
    pub(crate) fn head_blocks(
        &self,
        layer: usize,
        kv_head: usize,
        blocks: &[BlockId],
        keys: Range<usize>,
        wanted: impl Fn(usize) -> bool,
    ) -> Vec<KvBlock<'_>> {
        let place = self.place(layer);
        let head = place.first + kv_head;
        let of_keys = keys.start / BLOCK_TOKENS..keys.end.div_ceil(BLOCK_TOKENS);
        let block = |(index, id): (usize, &BlockId)| {
            let first = index * BLOCK_TOKENS;
            let n = BLOCK_TOKENS.min(keys.end - first);
            wanted(first).then(|| self.block(*id)[place.store].block(head, n, first))
        };
        of_keys.clone().zip(&blocks[of_keys]).filter_map(block).collect()
    }

    fn block(&self, id: BlockId) -> &Stores {
        self.blocks[id.0 as usize]
            .as_ref()
            .expect("a sequence's blocks were ensured before they were written")
    }
}
