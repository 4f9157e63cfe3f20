//! Contents of the KV cache's blocks in main memory.
//!
//! One allocation a block, made when the block is first used: `[l, 2, g, 32, d]`, so that the keys of one head
//! in one block are one run of rows. A block's contents outlive their sequences, for the prefix index.

use baton_kernels_cpu::f16::f32_to_f16;
use baton_kernels_cpu::{KvBlock, KvRows};

use super::SeqSpan;
use crate::kv::pool::BlockId;
use crate::kv::{BLOCK_TOKENS, BlockCopy};

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvFormat {
    /// As computed.
    #[default]
    F32,
    /// Rounded to half precision: half the memory.
    F16,
}

/// What one token needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KvShape {
    pub(crate) n_layers: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) d_head: usize,
    pub(crate) format: KvFormat,
}

impl KvShape {
    /// Numbers of one head in one block.
    fn head_len(&self) -> usize {
        BLOCK_TOKENS * self.d_head
    }

    fn block_len(&self) -> usize {
        self.n_layers * 2 * self.n_kv_heads * self.head_len()
    }

    /// Where the keys (`side` 0) or values (1) of a head begin in a block.
    fn at(&self, layer: usize, side: usize, kv_head: usize) -> usize {
        ((layer * 2 + side) * self.n_kv_heads + kv_head) * self.head_len()
    }
}

#[derive(Debug, Clone)]
enum Numbers {
    F32(Box<[f32]>),
    F16(Box<[u16]>),
}

impl Numbers {
    fn zeroed(format: KvFormat, len: usize) -> Self {
        match format {
            KvFormat::F32 => Self::F32(vec![0.0; len].into()),
            KvFormat::F16 => Self::F16(vec![0; len].into()),
        }
    }

    fn copy_from(&mut self, other: &Self) {
        match (self, other) {
            (Self::F32(to), Self::F32(from)) => to.copy_from_slice(from),
            (Self::F16(to), Self::F16(from)) => to.copy_from_slice(from),
            _ => unreachable!("all blocks of a cache have one format"),
        }
    }

    fn write(&mut self, at: usize, row: &[f32]) {
        match self {
            Self::F32(to) => to[at..at + row.len()].copy_from_slice(row),
            Self::F16(to) => {
                for (to, value) in to[at..at + row.len()].iter_mut().zip(row) {
                    *to = f32_to_f16(*value);
                }
            }
        }
    }

    fn rows(&self, at: usize, len: usize) -> KvRows<'_> {
        match self {
            Self::F32(numbers) => KvRows::F32(&numbers[at..at + len]),
            Self::F16(numbers) => KvRows::F16(&numbers[at..at + len]),
        }
    }
}

/// The blocks of one engine.
pub(crate) struct CpuKv {
    shape: KvShape,
    /// By block id; `None` where a block was never used.
    blocks: Vec<Option<Numbers>>,
}

impl std::fmt::Debug for CpuKv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuKv").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl CpuKv {
    /// A cache without any block in memory.
    pub(crate) fn new(shape: KvShape) -> Self {
        Self { shape, blocks: Vec::new() }
    }

    /// Takes memory for the block where it has none.
    pub(crate) fn ensure(&mut self, id: BlockId) {
        let at = id.0 as usize;
        if self.blocks.len() <= at {
            self.blocks.resize(at + 1, None);
        }
        self.blocks[at].get_or_insert_with(|| Numbers::zeroed(self.shape.format, self.shape.block_len()));
    }

    /// Makes the copy.
    pub(crate) fn copy(&mut self, copy: BlockCopy) {
        self.ensure(copy.to);
        let mut to = self.blocks[copy.to.0 as usize].take().expect("ensured on the line above");
        to.copy_from(self.block(copy.from));
        self.blocks[copy.to.0 as usize] = Some(to);
    }

    /// Writes the keys and values of a span's rows, each `[t, g d]`.
    pub(crate) fn append(&mut self, layer: usize, k: &[f32], v: &[f32], span: &SeqSpan) {
        let (shape, d) = (self.shape, self.shape.d_head);
        let width = shape.n_kv_heads * d;
        for (row, position) in span.rows.clone().zip(span.start..) {
            let id = span.blocks[position / BLOCK_TOKENS];
            let block =
                self.blocks[id.0 as usize].as_mut().expect("prepare has ensured every block of a span");
            let slot = position % BLOCK_TOKENS;
            for (side, source) in [k, v].into_iter().enumerate() {
                let heads = source[row * width..(row + 1) * width].chunks_exact(d);
                for (kv_head, values) in heads.enumerate() {
                    block.write(shape.at(layer, side, kv_head) + slot * d, values);
                }
            }
        }
    }

    /// The first `keys` keys and values of one head of a sequence, as blocks. Blocks that hold none of the
    /// positions that `wanted` accepts (given the first position of each) are left out.
    pub(crate) fn head_blocks(
        &self,
        layer: usize,
        kv_head: usize,
        blocks: &[BlockId],
        keys: usize,
        wanted: impl Fn(usize) -> bool,
    ) -> Vec<KvBlock<'_>> {
        let (shape, d) = (self.shape, self.shape.d_head);
        let block = |(index, id): (usize, &BlockId)| {
            let first = index * BLOCK_TOKENS;
            let n = BLOCK_TOKENS.min(keys - first);
            let numbers = self.block(*id);
            let rows = |side| numbers.rows(shape.at(layer, side, kv_head), n * d);
            wanted(first).then(|| KvBlock { k: rows(0), v: rows(1), n, stride: d, first })
        };
        blocks[..keys.div_ceil(BLOCK_TOKENS)].iter().enumerate().filter_map(block).collect()
    }

    fn block(&self, id: BlockId) -> &Numbers {
        self.blocks[id.0 as usize]
            .as_ref()
            .expect("a sequence's blocks were ensured before they were written")
    }
}
