//! The operations that the forward pass is made of.
//!
//! The forward pass is written once over [`Backend`]. There are two: the CPU ([`cpu`]) and GPUs ([`gpu`]). A
//! backend owns the memory of activations and of the KV cache's blocks. It keeps the engine's invariant: a
//! row of a result depends only on the same row of the input, and in attention on its sequence. The order of
//! summation is fixed.

use std::ops::Range;

use baton_kernels_cpu::{Matrix, RopeStyle};

use crate::config::{DeltaNet, SlidingWindow};
use crate::eviction::Kept;
use crate::family::Activation;
use crate::kv::BlockCopy;
use crate::kv::pool::BlockId;
use crate::kv::states::StateMoves;
use crate::rope::RopeTable;
use crate::routing::{ExpertRows, Router};
use crate::sampling::Best;
use crate::tokenizer::TokenId;
use crate::weights::{ExpertStacks, Weight, WeightError};

pub(crate) mod cpu;
pub(crate) mod cpu_kv;
pub(crate) mod cpu_states;
pub(crate) mod gpu;
mod gpu_attention;
mod gpu_experts;
mod gpu_joined;
pub(crate) mod gpu_kv;

/// The tokens of one sequence in a pass.
#[derive(Debug, Clone)]
pub(crate) struct SeqSpan {
    /// Rows of the pass.
    pub(crate) rows: Range<usize>,
    /// Number of tokens of the sequence before the first row; its keys and values go there.
    pub(crate) start: usize,
    /// Earlier tokens that the cache has evicted: the first row's position is `start + evicted`.
    pub(crate) evicted: usize,
    /// How many of the first rows are in the cache already. They are computed again for the recurrent states.
    pub(crate) cached: usize,
    /// The sequence's blocks, including those reserved for this pass.
    pub(crate) blocks: Vec<BlockId>,
}

impl SeqSpan {
    /// Returns the positions of the rows.
    pub(crate) fn positions(&self) -> Range<usize> {
        let first = self.start + self.evicted;
        first..first + self.rows.len()
    }

    /// Returns the rows of the tokens that are new in the cache.
    pub(crate) fn new_rows(&self) -> Range<usize> {
        self.rows.start + self.cached..self.rows.end
    }
}

/// The rows of a pass, sequence by sequence, with what happens to their recurrent states.
#[derive(Clone, Copy)]
pub(crate) struct Recurrence<'a> {
    pub(crate) layer: usize,
    pub(crate) spans: &'a [SeqSpan],
    /// One of each span.
    pub(crate) moves: &'a [StateMoves],
    /// The convolution, `[taps, channels]`, oldest token first.
    pub(crate) taps: &'a [f32],
}

/// The projections of one layer with a gated delta net, and its small weights.
pub(crate) struct DeltaInput<'a, R> {
    pub(crate) net: &'a DeltaNet,
    /// Queries, keys and values before the convolution, `[t, channels]`.
    pub(crate) qkv: &'a R,
    /// `[t, n]`.
    pub(crate) beta: &'a R,
    /// `[t, n]`.
    pub(crate) alpha: &'a R,
    /// Added to alpha, `[n]`.
    pub(crate) alpha_bias: &'a [f32],
    /// The factor of `softplus(alpha)` in the logarithm of the decay, `[n]`.
    pub(crate) decay: &'a [f32],
    /// The least length of a query or key.
    pub(crate) eps: f32,
}

/// The model's properties that attention needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionShape<'a> {
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) d_head: usize,
    /// The factor of query-key products.
    pub(crate) scale: f32,
    /// The bound of scores.
    pub(crate) cap: Option<f32>,
    /// The score of each query head's sink, `[h]`; empty if there are none.
    pub(crate) sinks: &'a [f32],
    pub(crate) window: Option<SlidingWindow>,
}

impl<'a> AttentionShape<'a> {
    /// Returns the number of query heads that share a key head.
    pub(crate) fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// Returns the sinks of some query heads.
    pub(crate) fn sinks_of(&self, heads: Range<usize>) -> &'a [f32] {
        self.sinks.get(heads).unwrap_or_default()
    }

    /// Whether a query at `position` or later may see a key of the block that begins at `first`.
    pub(crate) fn sees_block(&self, position: usize, first: usize) -> bool {
        self.window.is_none_or(|window| window.sees_block(position, first))
    }
}

/// An RMS norm.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Norm<'a> {
    pub(crate) weight: &'a [f32],
    /// Added to the mean of the squares.
    pub(crate) eps: f32,
}

/// Queries of a span and the keys they attend to, for scores.
pub(crate) struct Attending<'a, B: Backend> {
    pub(crate) kv: &'a B::Kv,
    pub(crate) layer: usize,
    pub(crate) shape: &'a AttentionShape<'a>,
    /// `[t, h d]`.
    pub(crate) q: &'a B::Rows,
    /// `[t, h]`, as [`Backend::attend`] gave it.
    pub(crate) lse: &'a B::Rows,
    pub(crate) span: &'a SeqSpan,
}

impl<B: Backend> Attending<'_, B> {
    /// Returns the keys of the span's sequence.
    pub(crate) fn keys(&self) -> usize {
        self.span.start + self.span.rows.len()
    }

    /// Returns the position of a row of the span among the keys.
    pub(crate) fn position(&self, row: usize) -> usize {
        self.span.start + row - self.span.rows.start
    }
}

/// The head whose attention scores are kept, and the buffer for them.
pub(crate) struct ScoreTarget<'a> {
    pub(crate) head: usize,
    /// `[keys]`; scores are added to it.
    pub(crate) sum: &'a mut [f32],
}

/// Operations over rows of activations, `[t, width]` in f32.
pub(crate) trait Backend: Send + Sync + Sized {
    /// Activations.
    type Rows: Send + Sync;
    /// Contents of the KV cache's blocks.
    type Kv: Send + Sync;
    /// The experts that rows were given, and their factors.
    type Routes;

    /// Returns activations that every number is written to before it is read.
    fn rows(&self, t: usize, width: usize) -> Self::Rows;

    /// Returns zeroed activations.
    fn zeros(&self, t: usize, width: usize) -> Self::Rows;

    /// Makes the copies, in order, and makes room for blocks of `spans` that have none yet.
    fn prepare(&self, kv: &mut Self::Kv, copies: &[BlockCopy], spans: &[SeqSpan]);

    /// Makes room for the recurrent states that `moves` fill.
    fn prepare_states(&self, kv: &mut Self::Kv, moves: &[StateMoves]);

    /// Copies the keys and values that `kept` names from the blocks `from` into the first slots of the blocks
    /// `to`.
    fn keep(&self, kv: &mut Self::Kv, kept: &Kept, from: &[BlockId], to: &[BlockId]);

    /// Sets row `i` to the embedding of `ids[i]`.
    fn embed(&self, table: &Matrix<'_>, ids: &[TokenId], out: &mut Self::Rows);

    /// Returns chosen rows of `x`, in the order given.
    fn gather(&self, x: &Self::Rows, rows: &[usize]) -> Self::Rows;

    /// Returns the columns `part` of every group of `group` columns, side by side.
    fn take(&self, x: &Self::Rows, group: usize, part: Range<usize>) -> Self::Rows;

    /// Sets the columns `part` of every group of `group` columns: the inverse of [`Self::take`].
    fn put(&self, x: &mut Self::Rows, group: usize, part: Range<usize>, y: &Self::Rows);

    /// Applies an RMS norm to each row.
    fn rms_norm(&self, x: &Self::Rows, weight: &[f32], eps: f32, out: &mut Self::Rows);

    /// Applies an RMS norm to each head of each row, in place. Heads are as wide as `weight`; if it is empty,
    /// nothing changes.
    fn norm_heads(&self, x: &mut Self::Rows, weight: &[f32], eps: f32);

    /// Multiplies `x *= factor`; a factor of 1 changes nothing.
    fn scale(&self, x: &mut Self::Rows, factor: f32);

    /// Multiplies each row by its own factor.
    fn scale_rows(&self, x: &mut Self::Rows, factors: &[f32]);

    /// Sets `x = cap tanh(x / cap)`.
    fn soft_cap(&self, x: &mut Self::Rows, cap: f32);

    /// Sets each output to `x W^T`: first for the rows of the weights that are in memory, then, in order, for
    /// those that are still being read.
    ///
    /// # Errors
    /// [`WeightError`] if weights cannot be read; the outputs are then undefined.
    fn project(&self, x: &Self::Rows, into: &mut [(Weight<'_>, &mut Self::Rows)]) -> Result<(), WeightError>;

    /// As [`Self::project`], for products that have inputs of their own.
    ///
    /// # Errors
    /// As [`Self::project`].
    fn project_each(
        &self,
        products: &mut [(&Self::Rows, Weight<'_>, &mut Self::Rows)],
    ) -> Result<(), WeightError> {
        products.iter_mut().try_for_each(|(x, weight, out)| self.project(x, &mut [(*weight, &mut **out)]))
    }

    /// Sets `normed` to the norm of `x`, and each output to `normed W^T`.
    ///
    /// # Errors
    /// As [`Self::project`].
    fn norm_and_project(
        &self,
        x: &Self::Rows,
        norm: Norm<'_>,
        normed: &mut Self::Rows,
        into: &mut [(Weight<'_>, &mut Self::Rows)],
    ) -> Result<(), WeightError> {
        self.rms_norm(x, norm.weight, norm.eps, normed);
        self.project(normed, into)
    }

    /// As [`Self::norm_and_project`] for a gate and what it gates, and sets the first output to
    /// `act(gate) * up`. The second output is undefined then.
    ///
    /// # Errors
    /// As [`Self::project`].
    fn norm_and_gate(
        &self,
        x: &Self::Rows,
        norm: Norm<'_>,
        normed: &mut Self::Rows,
        activation: Activation,
        [(gate_weight, gate), (up_weight, up)]: [(Weight<'_>, &mut Self::Rows); 2],
    ) -> Result<(), WeightError> {
        self.norm_and_project(x, norm, normed, &mut [(gate_weight, &mut *gate), (up_weight, &mut *up)])?;
        self.activate(activation, gate, up);
        Ok(())
    }

    /// Adds `y W^T` to `x`. `product` has room for it, and is undefined afterwards.
    ///
    /// # Errors
    /// As [`Self::project`].
    fn project_and_add(
        &self,
        y: &Self::Rows,
        weight: Weight<'_>,
        product: &mut Self::Rows,
        x: &mut Self::Rows,
    ) -> Result<(), WeightError> {
        self.project(y, &mut [(weight, &mut *product)])?;
        self.add(x, product);
        Ok(())
    }

    /// Adds the bias to each row; an empty bias changes nothing.
    fn add_bias(&self, x: &mut Self::Rows, bias: &[f32]);

    /// Adds `x += y`.
    fn add(&self, x: &mut Self::Rows, y: &Self::Rows);

    /// Sets `gate = silu(gate) * up`.
    fn swiglu(&self, gate: &mut Self::Rows, up: &Self::Rows);

    /// Sets `gate = gelu(gate) * up`.
    fn geglu(&self, gate: &mut Self::Rows, up: &Self::Rows);

    /// Sets `gate` to the clamped form of [`Self::swiglu`], as in gpt-oss.
    fn swiglu_clamped(&self, gate: &mut Self::Rows, up: &Self::Rows);

    /// Sets `gate = act(gate) * up`.
    fn activate(&self, activation: Activation, gate: &mut Self::Rows, up: &Self::Rows) {
        match activation {
            Activation::Silu => self.swiglu(gate, up),
            Activation::Gelu => self.geglu(gate, up),
            Activation::ClampedSilu => self.swiglu_clamped(gate, up),
        }
    }

    /// Adds `factors[i]` times row `i` of `y` to row `rows[i]` of `x`, for every `i`.
    fn add_scaled(&self, x: &mut Self::Rows, rows: &[usize], factors: &[f32], y: &Self::Rows);

    /// Adds `sigmoid(gate[i])` times row `i` of `y` to row `i` of `x`, for every `i`. `gate` is `[t, 1]`.
    fn add_gated(&self, x: &mut Self::Rows, gate: Self::Rows, y: &Self::Rows);

    /// Chooses each row's experts by its router's numbers, `[t, experts]`.
    fn route(&self, logits: Self::Rows, router: &Router<'_>) -> Self::Routes;

    /// Returns the experts that have rows, in the order of their ids.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn by_expert(&self, routes: Self::Routes) -> Result<Vec<ExpertRows>, WeightError>;

    /// Adds the output of each row's experts, times their factors, to the row of `sum`, in the order of their
    /// ids. Returns whether it did: if not, the caller computes expert by expert, which gives the same bits.
    ///
    /// # Errors
    /// As [`Self::project`].
    fn add_experts(
        &self,
        x: &Self::Rows,
        experts: &ExpertStacks<'_>,
        routes: &Self::Routes,
        activation: Activation,
        sum: &mut Self::Rows,
    ) -> Result<bool, WeightError> {
        let _ = (x, experts, routes, activation, sum);
        Ok(false)
    }

    /// Rotates every head of each row by the row's position.
    fn rope(&self, x: &mut Self::Rows, d_head: usize, table: &RopeTable, style: RopeStyle);

    /// Splits each row into groups of `2 width` numbers: the first halves go to `first`, the second ones to
    /// `second`.
    fn split(&self, x: &Self::Rows, width: usize, first: &mut Self::Rows, second: &mut Self::Rows);

    /// Multiplies `x *= sigmoid(gate)`.
    fn gate_by_sigmoid(&self, x: &mut Self::Rows, gate: &Self::Rows);

    /// Computes a layer's short convolutions, and the states after them: with each row of `bcx` in thirds
    /// `b`, `c`, `x`, row `t` of `out` is `c[t] Σ_i taps[i] b[t - i] x[t - i]`.
    fn short_conv(&self, kv: &mut Self::Kv, of: &Recurrence<'_>, bcx: &Self::Rows, out: &mut Self::Rows);

    /// Computes a layer's gated delta nets, and the states after them. `out` is `[t, n d]`.
    fn delta_net(
        &self,
        kv: &mut Self::Kv,
        of: &Recurrence<'_>,
        input: &DeltaInput<'_, Self::Rows>,
        out: &mut Self::Rows,
    );

    /// Writes the keys and values of every span's new rows into its blocks.
    fn append(&self, kv: &mut Self::Kv, layer: usize, k: &Self::Rows, v: &Self::Rows, spans: &[SeqSpan]);

    /// Rotates the heads of the queries and of the keys, and appends the keys and the values. `rotation` is
    /// that of [`Self::rope`]. The keys are undefined afterwards.
    fn rotate_and_append(
        &self,
        kv: &mut Self::Kv,
        layer: usize,
        (d_head, table, style): (usize, &RopeTable, RopeStyle),
        (q, k, v): (&mut Self::Rows, &mut Self::Rows, &Self::Rows),
        spans: &[SeqSpan],
    ) {
        self.rope(q, d_head, table, style);
        self.rope(k, d_head, table, style);
        self.append(kv, layer, k, v, spans);
    }

    /// Computes attention of every row of the spans over its own sequence; other rows of `out` and `lse` do
    /// not change. A span may begin and end anywhere in the tokens whose keys were appended. `lse` is
    /// `[t, h]`: the log-sum-exp of each row's scaled scores.
    #[expect(clippy::too_many_arguments, reason = "one fused operation; every operand is its own")]
    fn attend(
        &self,
        kv: &Self::Kv,
        layer: usize,
        shape: &AttentionShape<'_>,
        q: &Self::Rows,
        spans: &[SeqSpan],
        out: &mut Self::Rows,
        lse: &mut Self::Rows,
    );

    /// Adds the softmax weights of the queries in `rows`, which lie in the span, to every target.
    ///
    /// # Errors
    /// [`WeightError::Gpu`].
    fn score(
        &self,
        queries: &Attending<'_, Self>,
        rows: Range<usize>,
        targets: &mut [ScoreTarget<'_>],
    ) -> Result<(), WeightError>;

    /// Adds the softmax weights of one query, a row of the span, to `sum`, `[keys]`, head by head.
    ///
    /// # Errors
    /// As [`Self::score`].
    fn score_heads(
        &self,
        queries: &Attending<'_, Self>,
        row: usize,
        heads: &[usize],
        sum: &mut [f32],
    ) -> Result<(), WeightError>;

    /// Returns activations with these numbers, row-major.
    fn write(&self, values: Vec<f32>, width: usize) -> Self::Rows;

    /// Returns the numbers, row-major.
    ///
    /// # Errors
    /// [`WeightError::Gpu`]; everything since the last call is undefined then.
    fn read(&self, x: Self::Rows) -> Result<Vec<f32>, WeightError>;

    /// Returns the most probable token of each row of logits; `None` if reading all logits costs nothing.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn best(&self, logits: &Self::Rows) -> Result<Option<Vec<Best>>, WeightError> {
        let _ = logits;
        Ok(None)
    }

    /// Waits until everything is computed that `x` depends on.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn settle(&self, x: &Self::Rows) -> Result<(), WeightError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(window: Option<SlidingWindow>) -> AttentionShape<'static> {
        AttentionShape { n_heads: 4, n_kv_heads: 2, d_head: 16, scale: 0.25, cap: None, sinks: &[], window }
    }

    #[test]
    fn sinks_are_those_of_the_heads_or_none() {
        assert_eq!(shape(None).sinks_of(2..4), [0.0; 0]);
        let sinks = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(AttentionShape { sinks: &sinks, ..shape(None) }.sinks_of(2..4), [3.0, 4.0]);
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
