//! What computes: the operations that the forward pass is made of.
//!
//! The forward pass is written once over [`Backend`]; the CPU is the first. A backend owns the memory of
//! activations and of the KV cache's blocks, and keeps the engine's law: a row of a result depends on the same
//! row of the input alone (and, in attention, on its sequence), in one fixed order of summation.

use std::ops::Range;

use baton_kernels_cpu::{Matrix, RopeStyle};

use crate::config::SlidingWindow;
use crate::eviction::Kept;
use crate::kv::pool::BlockId;
use crate::kv::{BLOCK_TOKENS, BlockCopy};
use crate::rope::RopeTable;
use crate::tokenizer::TokenId;
use crate::weights::{Weight, WeightError};

pub(crate) mod cpu;
pub(crate) mod cpu_kv;

/// The tokens of one sequence in a pass.
#[derive(Debug, Clone)]
pub(crate) struct SeqSpan {
    /// Rows of the pass.
    pub(crate) rows: Range<usize>,
    /// Where the first row's keys and values go: the sequence's cached tokens before the pass.
    pub(crate) start: usize,
    /// Tokens before these that the cache has given up: the first row's position is `start + evicted`.
    pub(crate) evicted: usize,
    /// The sequence's blocks, those reserved for this pass included.
    pub(crate) blocks: Vec<BlockId>,
}

impl SeqSpan {
    /// Positions of the rows.
    pub(crate) fn positions(&self) -> Range<usize> {
        let first = self.start + self.evicted;
        first..first + self.rows.len()
    }
}

/// What attention needs to know of the model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionShape {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) d_head: usize,
    /// The factor of query-key products.
    pub(crate) scale: f32,
    pub(crate) window: Option<SlidingWindow>,
}

impl AttentionShape {
    /// Query heads that share a key head.
    pub(crate) fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// Whether any query from `position` on may see a key of the block that begins at `first`.
    pub(crate) fn sees_block(&self, position: usize, first: usize) -> bool {
        self.window.is_none_or(|window| {
            let oldest = (position + 1).saturating_sub(window.tokens);
            first < window.sinks || first + BLOCK_TOKENS > oldest
        })
    }
}

/// The rows whose attention scores are kept, and where.
pub(crate) struct ScoreTarget<'a> {
    pub(crate) head: usize,
    /// `[keys]`, added to.
    pub(crate) sum: &'a mut [f32],
}

/// Operations over rows of activations, `[t, width]` in f32.
pub(crate) trait Backend: Send + Sync {
    /// Activations.
    type Rows: Send + Sync;
    /// Contents of the KV cache's blocks.
    type Kv: Send + Sync;

    /// Zeroed activations.
    fn rows(&self, t: usize, width: usize) -> Self::Rows;

    /// Makes the copies, in order, and room for `blocks` where they have none yet.
    fn prepare(&self, kv: &mut Self::Kv, copies: &[BlockCopy], spans: &[SeqSpan]);

    /// Copies the keys and values that `kept` names from the blocks `from` into the first slots of the blocks `to`.
    fn keep(&self, kv: &mut Self::Kv, kept: &Kept, from: &[BlockId], to: &[BlockId]);

    /// Row `i` becomes the embedding of `ids[i]`.
    fn embed(&self, table: &Matrix<'_>, ids: &[TokenId], out: &mut Self::Rows);

    /// Chosen rows of `x`, in the order given.
    fn gather(&self, x: &Self::Rows, rows: &[usize]) -> Self::Rows;

    /// RMS norm of each row.
    fn rms_norm(&self, x: &Self::Rows, weight: &[f32], eps: f32, out: &mut Self::Rows);

    /// RMS norm of each head of each row, in place; heads are as wide as `weight`. Nothing where it is empty.
    fn norm_heads(&self, x: &mut Self::Rows, weight: &[f32], eps: f32);

    /// `x *= factor`.
    fn scale(&self, x: &mut Self::Rows, factor: f32);

    /// Each output becomes `x W^T`: first with the rows of the weights that are at hand, then, in order, with those that
    /// are waited for.
    ///
    /// # Errors
    /// [`WeightError`] where weights cannot be read; what the outputs hold then means nothing.
    fn project(&self, x: &Self::Rows, into: &mut [(Weight<'_>, &mut Self::Rows)]) -> Result<(), WeightError>;

    /// Adds the bias to each row; nothing where it is empty.
    fn add_bias(&self, x: &mut Self::Rows, bias: &[f32]);

    /// `x += y`.
    fn add(&self, x: &mut Self::Rows, y: &Self::Rows);

    /// `gate = silu(gate) * up`.
    fn swiglu(&self, gate: &mut Self::Rows, up: &Self::Rows);

    /// `gate = gelu(gate) * up`.
    fn geglu(&self, gate: &mut Self::Rows, up: &Self::Rows);

    /// For every `i`: row `rows[i]` of `x` gains `factors[i]` times row `i` of `y`.
    fn add_scaled(&self, x: &mut Self::Rows, rows: &[usize], factors: &[f32], y: &Self::Rows);

    /// Turns every head of each row by the row's position.
    fn rope(&self, x: &mut Self::Rows, d_head: usize, table: &RopeTable, style: RopeStyle);

    /// Writes the keys and values of every span into its blocks.
    fn append(&self, kv: &mut Self::Kv, layer: usize, k: &Self::Rows, v: &Self::Rows, spans: &[SeqSpan]);

    /// Attention of every row of the spans over its own sequence; other rows of `out` and `lse` keep what they
    /// hold. A span may begin and end anywhere in the tokens whose keys were appended. `lse` is `[t, h]`: the
    /// log-sum-exp of each row's scaled scores.
    #[expect(clippy::too_many_arguments, reason = "one fused operation; every operand is its own")]
    fn attend(
        &self,
        kv: &Self::Kv,
        layer: usize,
        shape: &AttentionShape,
        q: &Self::Rows,
        spans: &[SeqSpan],
        out: &mut Self::Rows,
        lse: &mut Self::Rows,
    );

    /// Adds the softmax weights of the queries in `rows`, which lie in `span`, to every target.
    #[expect(clippy::too_many_arguments, reason = "one fused operation; every operand is its own")]
    fn score(
        &self,
        kv: &Self::Kv,
        layer: usize,
        shape: &AttentionShape,
        q: &Self::Rows,
        lse: &Self::Rows,
        span: &SeqSpan,
        rows: Range<usize>,
        targets: &mut [ScoreTarget<'_>],
    );

    /// Activations of these numbers, row-major.
    fn write(&self, values: Vec<f32>, width: usize) -> Self::Rows;

    /// The numbers, row-major.
    fn read(&self, x: Self::Rows) -> Vec<f32>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(window: Option<SlidingWindow>) -> AttentionShape {
        AttentionShape { n_heads: 4, n_kv_heads: 2, d_head: 16, scale: 0.25, window }
    }

    #[test]
    fn blocks_outside_sinks_and_window_are_left_out() {
        let windowed = shape(Some(SlidingWindow { tokens: 40, sinks: 33 }));
        for (first, want) in [(0, true), (32, true), (64, false), (128, false), (160, true), (192, true)] {
            // The window of position 200 begins at 161.
            assert_eq!(windowed.sees_block(200, first), want, "block at {first}");
            assert!(windowed.sees_block(30, first.min(30)));
            assert!(shape(None).sees_block(1000, first));
        }
        let endless = SlidingWindow { tokens: usize::MAX, sinks: usize::MAX };
        assert!(shape(Some(endless)).sees_block(7, 0));
        assert_eq!(windowed.group(), 2);
    }
}
