//! Attention of query rows to a KV cache kept in blocks, with an online softmax.
//!
//! Keys are taken in parts: part `p` has the blocks that begin at positions `p * PART` to
//! `(p + 1) * PART - 1`. Within a part, blocks of up to [`CHUNK`] keys are taken in the order given, from
//! `top = -inf`, `sum = 0`, `out = 0`. The steps for one query and one block with at least one visible key
//! are as follows. `fma` rounds once; hidden keys have score -inf and weight 0.
//!
//! 1. Scores: `s[i] = scale * dot(q, k[i])`, with the dot product of [`mod@crate::matmul`]. For keys in
//!    floats: per 32 elements `p = fma(q, k, p)` in order, then `dot += p`. For keys in bytes: per 32
//!    elements `z = (Σ q k) * dk`, then `dot = fma(z, dq, dot)`; the query is in bytes with scale `dq`, as
//!    activations are. With a cap, `s[i] = cap tanh(s[i] / cap)` (`exp::soft_cap`).
//! 2. Weights: `top' = max(top, max s)`, `c = exp(top - top')`, `w[i] = exp(s[i] - top')`.
//! 3. Sum: `sum = fma(sum, c, Σ w)`, adding lanes sixteen apart, then eight, four, two, one.
//! 4. Output: `out = out * c`, then `out = fma(w[i], v[i], out)` for the visible keys in order.
//!
//! The parts are joined in order, to a total that begins as a part does. A part without a visible key changes
//! nothing. Else `top' = max(top, top_p)`, `a = exp(top - top')`, `b = exp(top_p - top')`,
//! `sum = fma(sum_p, b, sum * a)`, `out = fma(out_p, b, out * a)`. So parts can be computed on different
//! threads ([`attend_part`], [`join_parts`]).
//!
//! A head may have a sink: one more score, whose value is zero. It is added last: `top' = max(top, sink)`,
//! `c = exp(top - top')`, `sum = fma(sum, c, exp(sink - top'))`, `out = out * c`.
//!
//! The result is `out / sum`, and `lse = top + ln(sum)`. A query's result depends only on its own values, the
//! visible keys and the positions at which blocks begin, never on other queries of the same call. Chunked
//! prefill, several queries at once and one query at a time are equal bit for bit as long as blocks begin at
//! the same positions.
//! Source: Milakov and Gimelshein 2018 (online softmax); Dao 2022, FlashAttention, section 3.1. Parts: Dao
//! and others 2023, Flash-Decoding. The cap:
//! Gemma Team 2024, Gemma 2, section 2. Sinks of heads: OpenAI 2025, gpt-oss model card, section 2.

mod lanes;
mod memory;
mod parts;
mod quants;
mod scalar;
mod store;
mod values;

pub use memory::KvMemory;
pub use parts::PartState;
pub use store::{KvBlock, KvFormat, KvStore, UnknownKvFormat};

use std::cell::RefCell;

use crate::dispatch::Dispatch;
use crate::simd::run;

thread_local! {
    /// Buffers for the calls of this thread, reused from call to call.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[derive(Default)]
struct Scratch {
    lanes: lanes::Scratch,
    part: PartState,
    total: PartState,
}

/// Keys of a block. One block is one step of the online softmax.
pub const CHUNK: usize = 32;

/// Positions of a part of the keys. Parts are joined in order, and may be computed on different threads.
pub const PART: usize = 256;

/// How the vectors of a group of heads lie in a buffer: token `i`, head `j` starts at `i * stride + j * d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLayout {
    /// Query tokens, at consecutive positions.
    pub tokens: usize,
    /// Query heads that share the KV head (grouped-query attention).
    pub heads: usize,
    /// Dimensions of a head.
    pub d: usize,
    /// Elements from one token to the next.
    pub stride: usize,
}

impl RowLayout {
    fn at(self, token: usize, head: usize) -> std::ops::Range<usize> {
        let start = token * self.stride + head * self.d;
        start..start + self.d
    }

    fn check(self, len: usize, what: &str) {
        assert!(
            self.d > 0 && self.heads * self.d <= self.stride,
            "{} heads of {} in {}",
            self.heads,
            self.d,
            self.stride
        );
        let want = if self.tokens == 0 { 0 } else { (self.tokens - 1) * self.stride + self.heads * self.d };
        assert!(len >= want, "{what} have length {len}, expected at least {want}");
    }
}

/// Which keys a query sees: those at or before its own position that are sinks or within its window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visible {
    /// Position of the first query token; the others follow it.
    pub position: usize,
    /// Keys from the start of the sequence that are always seen.
    pub sinks: usize,
    /// Newest keys seen, the query's own included; `usize::MAX` for all.
    pub window: usize,
}

impl Visible {
    /// Every key up to the query's own is visible.
    pub const fn causal(position: usize) -> Self {
        Self { position, sinks: 0, window: usize::MAX }
    }

    /// Bit `i` is set if query token `token` sees key `first + i`, for `n <= 32` keys.
    fn mask(self, token: usize, first: usize, n: usize) -> u32 {
        let query = self.position + token;
        let up_to = |position: usize| ones(position.saturating_sub(first).min(n));
        let oldest = (query + 1).saturating_sub(self.window);
        up_to(query + 1) & (up_to(self.sinks) | !up_to(oldest))
    }
}

/// A mask with the lowest `n <= 32` bits set.
const fn ones(n: usize) -> u32 {
    if n >= 32 { u32::MAX } else { (1 << n) - 1 }
}

/// Query rows of a group of heads and what they may see.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// The vectors, laid out as `rows` says.
    pub q: &'a [f32],
    /// Their layout.
    pub rows: RowLayout,
    /// The keys that each token sees.
    pub visible: Visible,
    /// Factor of the scores, usually `1 / sqrt(d)`.
    pub scale: f32,
    /// The bound that scores approach but never pass; > 0.
    pub cap: Option<f32>,
    /// The score of each head's sink, `[heads]`; empty if heads have none.
    pub sinks: &'a [f32],
}

impl Queries<'_> {
    fn check(&self, blocks: &[KvBlock<'_>], lse: &[f32]) {
        assert_eq!(lse.len(), self.rows.tokens * self.rows.heads, "length of the log-sum-exps");
        self.check_inputs(blocks);
    }

    fn check_inputs(&self, blocks: &[KvBlock<'_>]) {
        let d = self.rows.d;
        self.rows.check(self.q.len(), "queries");
        assert!(
            self.sinks.is_empty() || self.sinks.len() == self.rows.heads,
            "{} sinks of {} heads",
            self.sinks.len(),
            self.rows.heads
        );
        for block in blocks {
            assert_eq!(block.d, d, "dimensions of keys and queries");
        }
    }
}

/// Attends all query rows to the keys of the blocks that each may see.
///
/// Shapes: `out` as `queries.rows` says, `lse: [tokens, heads]`. `lse` gets the log-sum-exp of each row's
/// scores, a sink's included. A row that sees neither key nor sink gets `-inf` there; without a key its
/// output is 0. Cost: `O(tokens heads keys d)` on the
/// calling thread. Each block is read once for all rows, so several rows at once are much faster than one by
/// one.
///
/// # Panics
/// If a buffer is shorter than its shape says.
pub fn attend_rows(queries: &Queries<'_>, blocks: &[KvBlock<'_>], out: &mut [f32], lse: &mut [f32]) {
    attend_rows_at(Dispatch::current(), queries, blocks, out, lse);
}

/// [`attend_rows`] at a given level. If the CPU lacks that level, the scalar definition runs.
///
/// # Panics
/// As [`attend_rows`].
pub fn attend_rows_at(
    level: Dispatch,
    queries: &Queries<'_>,
    blocks: &[KvBlock<'_>],
    out: &mut [f32],
    lse: &mut [f32],
) {
    queries.check(blocks, lse);
    queries.rows.check(out.len(), "outputs");
    SCRATCH.with_borrow_mut(|scratch| {
        let Scratch { lanes, part, total } = scratch;
        total.reset(queries.rows);
        attend_blocks(level, queries, blocks, part, total, lanes);
        finish(level, queries, std::slice::from_ref(part), total, out, lse);
    });
}

/// Leaves the state over the last part in `part`, and joins those before it to `total`.
fn attend_blocks(
    level: Dispatch,
    queries: &Queries<'_>,
    blocks: &[KvBlock<'_>],
    part: &mut PartState,
    total: &mut PartState,
    scratch: &mut lanes::Scratch,
) {
    if let Err(kernel) = run(level, lanes::Attend { queries, blocks, part, total, scratch }) {
        let mut before = false;
        for blocks in parts_of(blocks) {
            if before {
                kernel.total.join(kernel.part);
            }
            scalar::attend(queries, blocks, kernel.part);
            before = true;
        }
        if !before {
            kernel.part.reset(queries.rows);
        }
    }
}

/// Joins the parts to `total`, and writes outputs and log-sum-exps.
fn finish(
    level: Dispatch,
    queries: &Queries<'_>,
    parts: &[PartState],
    total: &mut PartState,
    out: &mut [f32],
    lse: &mut [f32],
) {
    if let Err(kernel) = run(level, parts::Finish { queries, parts, total, out, lse }) {
        kernel.all();
    }
}

/// Returns the blocks of each part, in order.
fn parts_of<'a, 'b>(blocks: &'a [KvBlock<'b>]) -> impl Iterator<Item = &'a [KvBlock<'b>]> {
    blocks.chunk_by(|a, b| a.part() == b.part())
}

/// Attends all query rows to the keys of one part, as a part of [`attend_rows`] that another thread may
/// compute. Returns the state for [`join_parts`].
///
/// # Panics
/// If a buffer is shorter than its shape says, or the blocks are of more than one part.
pub fn attend_part(queries: &Queries<'_>, blocks: &[KvBlock<'_>]) -> PartState {
    attend_part_at(Dispatch::current(), queries, blocks)
}

/// [`attend_part`] at a given level. If the CPU lacks that level, the scalar definition runs.
///
/// # Panics
/// As [`attend_part`].
pub fn attend_part_at(level: Dispatch, queries: &Queries<'_>, blocks: &[KvBlock<'_>]) -> PartState {
    queries.check_inputs(blocks);
    assert!(blocks.iter().all(|block| block.part() == blocks[0].part()), "blocks of more than one part");
    let (mut part, mut total) = (PartState::default(), PartState::default());
    SCRATCH.with_borrow_mut(|scratch| {
        attend_blocks(level, queries, blocks, &mut part, &mut total, &mut scratch.lanes);
    });
    part
}

/// Joins the states of the parts, in the order of their positions. The result has the bits of
/// [`attend_rows`] over the blocks of all of them.
///
/// # Panics
/// If a buffer is shorter than its shape says, or a state is of other query rows.
pub fn join_parts(queries: &Queries<'_>, parts: &[PartState], out: &mut [f32], lse: &mut [f32]) {
    join_parts_at(Dispatch::current(), queries, parts, out, lse);
}

/// [`join_parts`] at a given level. If the CPU lacks that level, the scalar definition runs.
///
/// # Panics
/// As [`join_parts`].
pub fn join_parts_at(
    level: Dispatch,
    queries: &Queries<'_>,
    parts: &[PartState],
    out: &mut [f32],
    lse: &mut [f32],
) {
    queries.check(&[], lse);
    queries.rows.check(out.len(), "outputs");
    for part in parts {
        part.check(queries.rows);
    }
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.total.reset(queries.rows);
        finish(level, queries, parts, &mut scratch.total, out, lse);
    });
}

/// Adds the attention weights of all query rows: `acc[i] += Σ exp(s[i] - lse)` over tokens and heads. Tokens
/// are added in order, the heads of each in order; the sums of hidden keys do not change. The weights of a
/// row sum to 1 if its head has no sink, else to less.
///
/// Shapes: `lse: [tokens, heads]` from [`attend_rows`], `acc: [keys]`.
///
/// # Panics
/// If a buffer's length does not fit its shape.
pub fn score_rows(queries: &Queries<'_>, blocks: &[KvBlock<'_>], lse: &[f32], acc: &mut [f32]) {
    score_rows_at(Dispatch::current(), queries, blocks, lse, acc);
}

/// [`score_rows`] at a given level. If the CPU lacks that level, the scalar definition runs.
///
/// # Panics
/// As [`score_rows`].
pub fn score_rows_at(
    level: Dispatch,
    queries: &Queries<'_>,
    blocks: &[KvBlock<'_>],
    lse: &[f32],
    acc: &mut [f32],
) {
    queries.check(blocks, lse);
    let keys: usize = blocks.iter().map(|block| block.n).sum();
    assert_eq!(acc.len(), keys, "length of the sums of attention weights");
    SCRATCH.with_borrow_mut(|scratch| {
        let scratch = &mut scratch.lanes;
        if let Err(kernel) = run(level, lanes::Score { queries, blocks, lse, acc, scratch }) {
            scalar::score(queries, blocks, lse, kernel.acc);
        }
    });
}

#[cfg(test)]
mod tests;
