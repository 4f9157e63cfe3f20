//! Attention with one key per lane: computes what [`super`] defines, for several query rows at a time.
//!
//! Keys are kept with their tokens in lanes, so a score is a sum inside its lane. Keys in binary16 are
//! widened once for all rows of the call. The state of each row (largest score, sum, weighted values) is kept
//! from chunk to chunk, so that each block is read once.

#![allow(
    clippy::needless_range_loop,
    reason = "one index names the same panel, row or dimension in several arrays of registers"
)]

use super::Queries;
use super::parts::PartState;
use super::quants::Spread;
use super::store::{HALF as LANES, Keys, KvBlock, Values};
use super::values::{ByteRows, ValueRows, value_rows, weigh_all, widened};
use crate::activations::{quantize_block, sum_bytes};
use crate::blocks::SHORT_LEN;
use crate::matmul::tile;
use crate::rows::larger;
use crate::simd::{Kernel, Line, Simd};

/// How many blocks ahead of the current one are prefetched.
const AHEAD: usize = 4;

/// [`super::attend_part`] as a kernel, for any number of parts: the last one is left in `part`, those before
/// it are joined to `total`.
pub(super) struct Attend<'a> {
    pub queries: &'a Queries<'a>,
    pub blocks: &'a [KvBlock<'a>],
    pub part: &'a mut PartState,
    pub total: &'a mut PartState,
    pub scratch: &'a mut Scratch,
}

/// [`super::score_rows`] as a kernel.
pub(super) struct Score<'a> {
    pub queries: &'a Queries<'a>,
    pub blocks: &'a [KvBlock<'a>],
    pub lse: &'a [f32],
    pub acc: &'a mut [f32],
    pub scratch: &'a mut Scratch,
}

/// Buffers of a thread, kept from call to call.
#[derive(Default)]
pub(super) struct Scratch {
    /// `[2, d]` lines, used if keys are kept in binary16.
    keys: Vec<Line>,
    /// Value rows of `width` floats, used if values are not kept as floats.
    values: Vec<f32>,
    /// Visible keys of each token.
    masks: Vec<u32>,
    bytes: RowBytes,
    spread: Spread,
}

/// Query rows as signed bytes, for keys kept as such.
#[derive(Default)]
struct RowBytes {
    /// `[rows, groups, 32]`.
    q: Vec<u8>,
    /// `[rows, groups]`.
    scale: Vec<f32>,
    /// `[rows, groups]`: -128 times the sum of a group.
    bias: Vec<i32>,
    groups: usize,
}

/// Keys of a chunk in the form that scores are computed from.
#[derive(Clone, Copy)]
enum Chunk<'a> {
    /// Two halves of `d` lines.
    Floats([&'a [Line]; 2]),
    /// Two halves of `d / 4` lines, with `d / 32` scales, and the address of the next block's lines.
    Bytes([&'a [Line]; 2], [&'a [[u16; LANES]]; 2], *const u8),
}

impl Kernel for Attend<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        attend(s, self);
    }
}

#[inline(always)]
fn attend<S: Simd>(s: S, task: Attend<'_>) {
    let Attend { queries, blocks, part, total, scratch } = task;
    let layout = queries.rows;
    let n_rows = layout.tokens * layout.heads;
    let Scratch { keys, values, masks, bytes, spread } = scratch;
    part.reset(layout);
    bytes.fill(queries, blocks);
    for (i, block) in blocks.iter().enumerate() {
        if i > 0 && block.part() != blocks[i - 1].part() {
            total.join(part);
            part.reset(layout);
        }
        if !see(queries, block.first, block.n, masks) {
            continue;
        }
        let next = blocks.get(i + AHEAD).unwrap_or(block);
        for scale in next.scales_at() {
            s.prefetch_far(scale);
        }
        let [block, next] = &spread.open(s, block, next);
        let keys = chunk(s, block, next, keys);
        match block.v {
            Values::Q8 { q, scale } if n_rows <= if S::WIDE { 4 } else { 2 } => {
                let groups = layout.d.div_ceil(SHORT_LEN);
                let next = next.values_at();
                let values = ByteRows { rows: q, scales: widened(s, scale, values), groups, next };
                Step { queries, keys, bytes, values }.all_rows(s, part, masks);
            }
            _ => {
                let values = value_rows(s, block, next, values);
                Step { queries, keys, bytes, values }.all_rows(s, part, masks);
            }
        }
    }
}

/// Sets the masks of all tokens for a chunk; returns whether any key of it is visible.
fn see(queries: &Queries<'_>, first: usize, n: usize, masks: &mut Vec<u32>) -> bool {
    masks.clear();
    masks.extend((0..queries.rows.tokens).map(|token| queries.visible.mask(token, first, n)));
    masks.iter().any(|&mask| mask != 0)
}

/// Returns the keys of a block, widened if they are in binary16, and prefetches the keys of `next`. Blocks
/// lie too far apart for the CPU to prefetch them by itself.
#[inline(always)]
fn chunk<'a, S: Simd>(
    s: S,
    block: &KvBlock<'a>,
    next: &KvBlock<'_>,
    widened: &'a mut Vec<Line>,
) -> Chunk<'a> {
    let next = next.keys_at();
    match block.k {
        Keys::F32(lines) => Chunk::Floats(halves(lines)),
        Keys::F16(lines) => {
            widened.resize(lines.len(), Line([0; 64]));
            for (i, (to, from)) in widened.iter_mut().zip(lines).enumerate() {
                s.prefetch_far(next.wrapping_add(i * size_of_val(from)));
                s.store_units(s.bits(s.widen(from)), to);
            }
            Chunk::Floats(halves(widened))
        }
        Keys::Q8 { lines, scale } => Chunk::Bytes(halves(lines), halves(scale), next),
        Keys::Q4 { .. } => unreachable!("half bytes are spread before"),
    }
}

/// Splits a slice into two halves.
#[inline(always)]
fn halves<T>(all: &[T]) -> [&[T]; 2] {
    let (low, high) = all.split_at(all.len() / 2);
    [low, high]
}

impl RowBytes {
    /// Quantizes every query row, if any block's keys are bytes.
    #[inline(always)]
    fn fill(&mut self, queries: &Queries<'_>, blocks: &[KvBlock<'_>]) {
        if !blocks.iter().any(|block| matches!(block.k, Keys::Q8 { .. } | Keys::Q4 { .. })) {
            return;
        }
        let layout = queries.rows;
        let n_rows = layout.tokens * layout.heads;
        self.groups = layout.d.div_ceil(SHORT_LEN);
        self.q.resize(n_rows * self.groups * SHORT_LEN, 0);
        self.scale.clear();
        self.bias.clear();
        for (at, q) in self.q.as_chunks_mut::<SHORT_LEN>().0.iter_mut().enumerate() {
            let (r, g) = (at / self.groups, at % self.groups);
            let row = &queries.q[layout.at(r / layout.heads, r % layout.heads)];
            let part = &row[g * SHORT_LEN..row.len().min((g + 1) * SHORT_LEN)];
            let mut x = [0.0; SHORT_LEN];
            x[..part.len()].copy_from_slice(part);
            self.scale.push(quantize_block(&x, q));
            self.bias.push(-128 * sum_bytes(q));
        }
    }

    /// Returns the products of rows `first..first + T` with the keys of a chunk.
    #[inline(always)]
    fn dots<S: Simd, const T: usize>(
        &self,
        s: S,
        first: usize,
        lines: [&[Line]; 2],
        scales: [&[[u16; LANES]]; 2],
        next: *const u8,
    ) -> tile::Tile<S, 2, T> {
        let mut y = [[s.splat(0.0); T]; 2];
        for g in 0..self.groups {
            let mut dot = [[s.splat_int(0); T]; 2];
            if S::RAISES_SIGNED {
                for t in 0..T {
                    let bias = s.splat_int(self.bias[(first + t) * self.groups + g]);
                    dot[0][t] = bias;
                    dot[1][t] = bias;
                }
            }
            let group: [&[Line; SHORT_LEN / 4]; 2] = [&lines[0].as_chunks().0[g], &lines[1].as_chunks().0[g]];
            let mut q: [&[u8; SHORT_LEN]; T] = [&[0; SHORT_LEN]; T];
            for t in 0..T {
                q[t] = &self.q.as_chunks().0[(first + t) * self.groups + g];
            }
            for k in 0..SHORT_LEN / 4 {
                let mut w = [s.splat_int(0); 2];
                for p in 0..2 {
                    s.prefetch_far(next.wrapping_add(64 * (8 * (p * self.groups + g) + k)));
                    w[p] = s.raised(s.load_units(&group[p][k]));
                }
                for t in 0..T {
                    let x = s.splat_int(i32::from_le_bytes(q[t].as_chunks().0[k]));
                    for p in 0..2 {
                        dot[p][t] = s.dot_signed(dot[p][t], w[p], x);
                    }
                }
            }
            for p in 0..2 {
                let d = s.widen(&scales[p][g]);
                for t in 0..T {
                    let z = s.mul(s.to_float(dot[p][t]), d);
                    let dq = s.splat(self.scale[(first + t) * self.groups + g]);
                    y[p][t] = s.fma(z, dq, y[p][t]);
                }
            }
        }
        y
    }
}

/// Returns the query vectors of rows `first..first + T`.
#[inline(always)]
fn vectors<'a, const T: usize>(queries: &Queries<'a>, first: usize) -> [&'a [f32]; T] {
    let layout = queries.rows;
    let mut vectors: [&[f32]; T] = [&[]; T];
    for t in 0..T {
        vectors[t] = &queries.q[layout.at((first + t) / layout.heads, (first + t) % layout.heads)];
    }
    vectors
}

/// Returns scores from products.
#[inline(always)]
fn scored<S: Simd>(s: S, queries: &Queries<'_>, dots: S::F) -> S::F {
    let scores = s.mul(dots, s.splat(queries.scale));
    match queries.cap {
        Some(cap) => s.soft_cap(scores, cap),
        None => scores,
    }
}

/// Splits a mask into the bits of the two panels' lanes.
#[inline(always)]
fn lane_masks(mask: u32) -> [u16; 2] {
    [mask as u16, (mask >> LANES) as u16]
}

/// The keys and values of one chunk, and the queries that are computed with them.
#[derive(Clone, Copy)]
struct Step<'a, V> {
    queries: &'a Queries<'a>,
    keys: Chunk<'a>,
    bytes: &'a RowBytes,
    values: V,
}

impl<V: Copy> Step<'_, V> {
    /// Returns the products of rows `first..first + T` with the chunk's keys.
    #[inline(always)]
    fn dots<S: Simd, const T: usize>(&self, s: S, first: usize) -> tile::Tile<S, 2, T> {
        match self.keys {
            Chunk::Floats(lines) => {
                let none = [[s.splat(0.0); T]; 2];
                tile::floats::<S, 2, T>(s, lines, vectors(self.queries, first), none)
            }
            Chunk::Bytes(lines, scales, next) => self.bytes.dots::<S, T>(s, first, lines, scales, next),
        }
    }

    /// Does one step of the online softmax for every row, as many rows at a time as the registers hold.
    #[inline(always)]
    fn all_rows<S: Simd>(&self, s: S, state: &mut PartState, masks: &[u32])
    where
        V: ValueRows<S>,
    {
        let heads = self.queries.rows.heads;
        let n_rows = masks.len() * heads;
        let mut r = 0;
        while r < n_rows {
            let mask = masks[r / heads];
            let same = |t: usize| r + t < n_rows && masks[(r + t) / heads] == mask;
            if S::WIDE && same(1) && same(2) && same(3) {
                self.rows::<S, 4>(s, state, r, mask);
                r += 4;
            } else if S::WIDE && same(1) && same(2) {
                self.rows::<S, 3>(s, state, r, mask);
                r += 3;
            } else if same(1) {
                self.rows::<S, 2>(s, state, r, mask);
                r += 2;
            } else {
                self.rows::<S, 1>(s, state, r, mask);
                r += 1;
            }
        }
    }

    /// Does one step of the online softmax for rows `first..first + T`, which all see the keys of `mask`.
    #[inline(always)]
    fn rows<S: Simd, const T: usize>(&self, s: S, state: &mut PartState, first: usize, mask: u32)
    where
        V: ValueRows<S>,
    {
        if mask == 0 {
            return;
        }
        let dots = self.dots::<S, T>(s, first);
        let seen = lane_masks(mask);
        let (hidden, none) = (s.splat(f32::NEG_INFINITY), s.splat(0.0));
        let mut weights = [[[0.0; LANES]; 2]; T];
        let mut sums = [0.0; T];
        // The factors by which the sums so far shrink, computed for all rows at once.
        let mut older = [f32::NEG_INFINITY; LANES];
        for t in 0..T {
            let low = s.keep(seen[0], scored(s, self.queries, dots[0][t]), hidden);
            let high = s.keep(seen[1], scored(s, self.queries, dots[1][t]), hidden);
            let top = larger(state.top[first + t], s.tree_largest(s.larger(low, high)));
            let low = s.keep(seen[0], s.exp(s.sub(low, s.splat(top))), none);
            let high = s.keep(seen[1], s.exp(s.sub(high, s.splat(top))), none);
            older[t] = state.top[first + t] - top;
            sums[t] = s.tree_sum(s.add(low, high));
            state.top[first + t] = top;
            s.store(low, &mut weights[t][0]);
            s.store(high, &mut weights[t][1]);
        }
        let mut fade = [0.0; LANES];
        s.store(s.exp(s.load(&older)), &mut fade);
        for t in 0..T {
            state.sum[first + t] = state.sum[first + t].mul_add(fade[t], sums[t]);
        }
        let fade = *fade.first_chunk().expect("no more rows than lanes");
        let width = self.queries.rows.d.next_multiple_of(LANES);
        let acc = &mut state.acc[first * width..(first + T) * width];
        weigh_all(s, acc, &fade, &weights, mask, self.values);
    }
}

impl Kernel for Score<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        score(s, self);
    }
}

#[inline(always)]
fn score<S: Simd>(s: S, task: Score<'_>) {
    let Score { queries, blocks, lse, acc, scratch } = task;
    let mut sums = Sums { queries, lse, acc };
    let layout = queries.rows;
    let n_rows = layout.tokens * layout.heads;
    let Scratch { keys, masks, bytes, spread, .. } = scratch;
    bytes.fill(queries, blocks);
    let mut before = 0;
    for (i, block) in blocks.iter().enumerate() {
        let columns = before..before + block.n;
        before = columns.end;
        if !see(queries, block.first, block.n, masks) {
            continue;
        }
        let next = blocks.get(i + AHEAD).unwrap_or(block);
        let [block, next] = &spread.open(s, block, next);
        let step = Step { queries, keys: chunk(s, block, next, keys), bytes, values: () };
        // As many rows at once as there are: one alone waits for its own sums.
        for r in (0..n_rows).step_by(4) {
            let columns = columns.clone();
            match n_rows - r {
                1 => sums.add::<S, 1>(s, step, r, masks, columns),
                2 => sums.add::<S, 2>(s, step, r, masks, columns),
                3 => sums.add::<S, 3>(s, step, r, masks, columns),
                _ => sums.add::<S, 4>(s, step, r, masks, columns),
            }
        }
    }
}

/// The sums of attention weights and the values they are computed from.
struct Sums<'a> {
    queries: &'a Queries<'a>,
    lse: &'a [f32],
    acc: &'a mut [f32],
}

impl Sums<'_> {
    /// Adds the weights of rows `first..first + T` over one chunk's keys, which are `columns` of the sums.
    #[inline(always)]
    fn add<S: Simd, const T: usize>(
        &mut self,
        s: S,
        step: Step<'_, ()>,
        first: usize,
        masks: &[u32],
        columns: std::ops::Range<usize>,
    ) {
        let heads = self.queries.rows.heads;
        let dots = step.dots::<S, T>(s, first);
        for t in 0..T {
            let seen = lane_masks(masks[(first + t) / heads]);
            let lse = s.splat(self.lse[first + t]);
            let acc = &mut self.acc[columns.clone()];
            for (p, acc) in acc.chunks_mut(LANES).enumerate() {
                let mut lanes = [0.0; LANES];
                lanes[..acc.len()].copy_from_slice(acc);
                let old = s.load(&lanes);
                let weight = s.exp(s.sub(scored(s, self.queries, dots[p][t]), lse));
                s.store(s.keep(seen[p], s.add(old, weight), old), &mut lanes);
                acc.copy_from_slice(&lanes[..acc.len()]);
            }
        }
    }
}
