//! Contents of the KV cache's blocks in main memory.
//!
//! Each block has one store, made when the block is first used, which holds every head of every layer. A
//! block's contents outlive their sequences, for the prefix index.

use baton_kernels_cpu::{KvBlock, KvMemory, KvStore, Pool};

use super::SeqSpan;
use super::cpu_states::CpuStates;
use crate::eviction::Kept;
use crate::kv::pool::BlockId;
use crate::kv::{BLOCK_TOKENS, BlockCopy};

pub use baton_kernels_cpu::KvFormat;

/// The layout of one token's keys and values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KvShape {
    /// Layers whose keys and values are kept.
    pub(crate) n_layers: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) d_head: usize,
    pub(crate) format: KvFormat,
}

impl KvShape {
    fn store(&self, memory: &KvMemory) -> KvStore {
        KvStore::new(self.format, self.d_head, self.n_layers * self.n_kv_heads, memory)
    }
}

/// The blocks of one engine.
pub(crate) struct CpuKv {
    shape: KvShape,
    /// For every layer of the model, its index among the layers that the blocks hold; `usize::MAX` if they do
    /// not hold it.
    places: Vec<usize>,
    memory: KvMemory,
    /// By block id; `None` if a block was never used.
    blocks: Vec<Option<KvStore>>,
    /// The recurrent states of the model's other layers.
    pub(crate) states: CpuStates,
}

impl std::fmt::Debug for CpuKv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuKv").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl CpuKv {
    /// Makes a cache for these layers of the model, without any block in memory. Their number must be the
    /// shape's.
    pub(crate) fn new(shape: KvShape, layers: impl Iterator<Item = usize>) -> Self {
        let mut places = Vec::new();
        for (place, layer) in layers.enumerate() {
            places.resize(places.len().max(layer + 1), usize::MAX);
            places[layer] = place;
        }
        let states = CpuStates::default();
        Self { shape, places, memory: KvMemory::default(), blocks: Vec::new(), states }
    }

    /// Returns a cache of the same kind for these layers, without any block in memory.
    pub(crate) fn emptied(&self, layers: &[usize]) -> Self {
        let states = self.states.emptied();
        Self { states, ..Self::new(KvShape { n_layers: layers.len(), ..self.shape }, layers.iter().copied()) }
    }

    /// Allocates memory for the block if it has none.
    pub(crate) fn ensure(&mut self, id: BlockId) {
        let at = id.0 as usize;
        if self.blocks.len() <= at {
            self.blocks.resize_with(at + 1, || None);
        }
        self.blocks[at].get_or_insert_with(|| self.shape.store(&self.memory));
    }

    /// Makes the copy.
    pub(crate) fn copy(&mut self, copy: BlockCopy) {
        self.ensure(copy.to);
        let mut to = self.blocks[copy.to.0 as usize].take().expect("ensured on the line above");
        to.copy_from(self.block(copy.from));
        self.blocks[copy.to.0 as usize] = Some(to);
    }

    /// Copies the tokens that `kept` names from the blocks `from` into the first slots of the blocks `to`.
    pub(crate) fn keep(&mut self, kept: &Kept, from: &[BlockId], to: &[BlockId]) {
        for (at, id) in to.iter().enumerate() {
            self.ensure(*id);
            let mut store = self.blocks[id.0 as usize].take().expect("ensured on the line above");
            for head in 0..self.shape.n_layers * self.shape.n_kv_heads {
                let positions = kept.positions(head).chunks(BLOCK_TOKENS).nth(at).unwrap_or_default();
                for (slot, &position) in positions.iter().enumerate() {
                    let source = self.block(from[position / BLOCK_TOKENS]);
                    store.copy_token(head, slot, source, position % BLOCK_TOKENS);
                }
            }
            self.blocks[id.0 as usize] = Some(store);
        }
    }

    /// Writes the keys and values of a span's new rows; `k` and `v` are `[t, g d]`.
    pub(crate) fn append(&mut self, pool: &Pool, layer: usize, k: &[f32], v: &[f32], span: &SeqSpan) {
        let (shape, d, place) = (self.shape, self.shape.d_head, self.places[layer]);
        let width = shape.n_kv_heads * d;
        let end = span.start + span.rows.len();
        let first = span.start + span.cached;
        let write = |index: usize, block: &mut KvStore| {
            let positions = first.max(index * BLOCK_TOKENS)..end.min((index + 1) * BLOCK_TOKENS);
            for kv_head in 0..shape.n_kv_heads {
                for position in positions.clone() {
                    let row = span.rows.start + position - span.start;
                    let at = row * width + kv_head * d..row * width + (kv_head + 1) * d;
                    let slot = position % BLOCK_TOKENS;
                    block.write(place * shape.n_kv_heads + kv_head, slot, &k[at.clone()], &v[at]);
                }
            }
        };
        let indices = first / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS);
        let mut stores: Vec<(usize, Option<KvStore>)> = Vec::with_capacity(indices.len());
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
        keys: usize,
        wanted: impl Fn(usize) -> bool,
    ) -> Vec<KvBlock<'_>> {
        let head = self.places[layer] * self.shape.n_kv_heads + kv_head;
        let block = |(index, id): (usize, &BlockId)| {
            let first = index * BLOCK_TOKENS;
            let n = BLOCK_TOKENS.min(keys - first);
            wanted(first).then(|| self.block(*id).block(head, n, first))
        };
        blocks[..keys.div_ceil(BLOCK_TOKENS)].iter().enumerate().filter_map(block).collect()
    }

    fn block(&self, id: BlockId) -> &KvStore {
        self.blocks[id.0 as usize]
            .as_ref()
            .expect("a sequence's blocks were ensured before they were written")
    }
}
