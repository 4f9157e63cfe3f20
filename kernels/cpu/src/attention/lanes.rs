//! Attention with the keys of a chunk in the lanes: the definition of [`super`], several query rows at a time.
//!
//! A chunk's keys are transposed once into two panels of sixteen, so that a score is a sum inside its lane; all rows
//! of the call then use them. The state of each row (largest score, sum, weighted values) is kept from chunk to
//! chunk, so that blocks are read once.

#![allow(
    clippy::needless_range_loop,
    reason = "one index names the same panel, row or dimension in several arrays of registers"
)]

use super::{CHUNK, KvBlock, KvRows, Queries};
use crate::exp::exp;
use crate::matmul::tile;
use crate::rows::larger;
use crate::simd::{Kernel, Line, Simd};

/// Keys of a panel.
const LANES: usize = 16;

/// [`super::attend_rows`] as a kernel.
pub(super) struct Attend<'a> {
    pub queries: &'a Queries<'a>,
    pub blocks: &'a [KvBlock<'a>],
    pub out: &'a mut [f32],
    pub lse: &'a mut [f32],
    pub scratch: &'a mut Scratch,
}

/// [`super::score_rows`] as a kernel; `keys` is the number of keys of all blocks.
pub(super) struct Score<'a> {
    pub queries: &'a Queries<'a>,
    pub blocks: &'a [KvBlock<'a>],
    pub keys: usize,
    pub lse: &'a [f32],
    pub acc: &'a mut [f32],
    pub scratch: &'a mut Scratch,
}

/// Buffers of a thread, kept from call to call.
#[derive(Default)]
pub(super) struct Scratch {
    /// Two panels of `d` lines.
    keys: Vec<Line>,
    /// Value rows of `width` floats, where the cache's own cannot be read as they are.
    values: Vec<f32>,
    /// Visible keys of each token.
    masks: Vec<u32>,
    rows: Rows,
}

/// The state of every query row.
#[derive(Default)]
struct Rows {
    top: Vec<f32>,
    sum: Vec<f32>,
    /// `[rows, width]`: weighted sums of the values.
    acc: Vec<f32>,
}

/// Value rows of a chunk: row `i` starts at `i * stride` and has whole lanes.
#[derive(Clone, Copy)]
struct Values<'a> {
    rows: &'a [f32],
    stride: usize,
}

impl Kernel for Attend<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        attend(s, self);
    }
}

#[inline(always)]
fn attend<S: Simd>(s: S, task: Attend<'_>) {
    let Attend { queries, blocks, out, lse, scratch } = task;
    let layout = queries.rows;
    let width = layout.d.next_multiple_of(LANES);
    let n_rows = layout.tokens * layout.heads;
    let Scratch { keys, values, masks, rows } = scratch;
    rows.reset(n_rows, width);
    for block in blocks {
        for start in (0..block.n).step_by(CHUNK) {
            let n = CHUNK.min(block.n - start);
            if !see(queries, block.first + start, n, masks) {
                continue;
            }
            pack_keys(s, block, start, n, layout.d, keys);
            let keys = panels(keys);
            let values = value_rows(s, block, start, n, layout.d, values);
            let mut r = 0;
            while r < n_rows {
                let mask = masks[r / layout.heads];
                let same = |t: usize| r + t < n_rows && masks[(r + t) / layout.heads] == mask;
                if S::WIDE && same(1) && same(2) && same(3) {
                    rows.step::<S, 4>(s, queries, r, mask, keys, values);
                    r += 4;
                } else if same(1) {
                    rows.step::<S, 2>(s, queries, r, mask, keys, values);
                    r += 2;
                } else {
                    rows.step::<S, 1>(s, queries, r, mask, keys, values);
                    r += 1;
                }
            }
        }
    }
    for (r, lse) in lse.iter_mut().enumerate() {
        let out = &mut out[layout.at(r / layout.heads, r % layout.heads)];
        *lse = rows.finish(r, out);
    }
}

/// Sets the masks of all tokens for a chunk; says whether any key of it is seen.
fn see(queries: &Queries<'_>, first: usize, n: usize, masks: &mut Vec<u32>) -> bool {
    masks.clear();
    masks.extend((0..queries.rows.tokens).map(|token| queries.visible.mask(token, first, n)));
    masks.iter().any(|&mask| mask != 0)
}

/// Transposes the keys of a chunk into two panels of `d` (rounded up to whole lanes) lines.
///
/// Lanes past the last key repeat it; they are hidden by every mask.
#[inline(always)]
fn pack_keys<S: Simd>(s: S, block: &KvBlock<'_>, start: usize, n: usize, d: usize, to: &mut Vec<Line>) {
    let width = d.next_multiple_of(LANES);
    to.resize(2 * width, Line([0; 64]));
    let mut units = [s.splat_int(0); LANES];
    for (half, panel) in to.chunks_exact_mut(width).enumerate().take(n.div_ceil(LANES)) {
        let row = |i: usize| (start + (half * LANES + i).min(n - 1)) * block.stride;
        for (part, lines) in panel.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let columns = part * LANES..d.min((part + 1) * LANES);
            match block.k {
                KvRows::F32(k) if columns.len() == LANES => {
                    for i in 0..LANES {
                        units[i] = s.bits(s.load(lanes_at(k, row(i) + columns.start)));
                    }
                }
                KvRows::F16(k) if columns.len() == LANES => {
                    for i in 0..LANES {
                        units[i] = s.bits(s.widen(lanes_at(k, row(i) + columns.start)));
                    }
                }
                KvRows::F32(k) => {
                    for i in 0..LANES {
                        let part = padded(&k[row(i) + columns.start..row(i) + columns.end]);
                        units[i] = s.bits(s.load(&part));
                    }
                }
                KvRows::F16(k) => {
                    for i in 0..LANES {
                        let part = padded(&k[row(i) + columns.start..row(i) + columns.end]);
                        units[i] = s.bits(s.widen(&part));
                    }
                }
            }
            let columns = s.transpose(units);
            for i in 0..LANES {
                s.store_units(columns[i], &mut lines[i]);
            }
        }
    }
}

/// The sixteen elements at `at`, inside a row by the caller's shape.
#[inline(always)]
fn lanes_at<T>(rows: &[T], at: usize) -> &[T; LANES] {
    rows[at..].first_chunk().expect("rows have d elements, checked on entry")
}

/// A part of a row with zeros behind it.
fn padded<T: Copy + Default>(part: &[T]) -> [T; LANES] {
    let mut whole = [T::default(); LANES];
    whole[..part.len()].copy_from_slice(part);
    whole
}

/// The two panels of packed keys.
#[inline(always)]
fn panels(keys: &[Line]) -> [&[Line]; 2] {
    let (low, high) = keys.split_at(keys.len() / 2);
    [low, high]
}

/// The value rows of a chunk, copied only where they are not floats in whole lanes.
#[inline(always)]
fn value_rows<'a, S: Simd>(
    s: S,
    block: &KvBlock<'a>,
    start: usize,
    n: usize,
    d: usize,
    copy: &'a mut Vec<f32>,
) -> Values<'a> {
    let first = start * block.stride;
    if let KvRows::F32(v) = block.v
        && d.is_multiple_of(LANES)
    {
        return Values { rows: &v[first..], stride: block.stride };
    }
    let width = d.next_multiple_of(LANES);
    copy.resize(n * width, 0.0);
    for (i, to) in copy.chunks_exact_mut(width).enumerate() {
        let from = first + i * block.stride..first + i * block.stride + d;
        match block.v {
            KvRows::F32(v) => to[..d].copy_from_slice(&v[from]),
            KvRows::F16(v) => {
                let (whole, tail) = v[from].as_chunks::<LANES>();
                for (c, to) in to.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                    let halves = if c < whole.len() { whole[c] } else { padded(tail) };
                    s.store(s.widen(&halves), to);
                }
            }
        }
    }
    Values { rows: copy, stride: width }
}

/// The query vectors of rows `first..first + T`.
#[inline(always)]
fn vectors<'a, const T: usize>(queries: &Queries<'a>, first: usize) -> [&'a [f32]; T] {
    let layout = queries.rows;
    std::array::from_fn(|t| &queries.q[layout.at((first + t) / layout.heads, (first + t) % layout.heads)])
}

/// Bits of the keys in the lanes of each panel.
#[inline(always)]
fn lane_masks(mask: u32) -> [u16; 2] {
    [mask as u16, (mask >> LANES) as u16]
}

impl Rows {
    #[inline(always)]
    fn reset(&mut self, n_rows: usize, width: usize) {
        for (state, start, len) in [
            (&mut self.top, f32::NEG_INFINITY, n_rows),
            (&mut self.sum, 0.0, n_rows),
            (&mut self.acc, 0.0, n_rows * width),
        ] {
            state.clear();
            state.resize(len, start);
        }
    }

    /// One step of the online softmax for rows `first..first + T`, which all see the keys of `mask`.
    #[inline(always)]
    fn step<S: Simd, const T: usize>(
        &mut self,
        s: S,
        queries: &Queries<'_>,
        first: usize,
        mask: u32,
        keys: [&[Line]; 2],
        values: Values<'_>,
    ) {
        if mask == 0 {
            return;
        }
        let none = [[s.splat(0.0); T]; 2];
        let dots = tile::floats::<S, 2, T>(s, keys, vectors(queries, first), none);
        let seen = lane_masks(mask);
        let (hidden, none) = (s.splat(f32::NEG_INFINITY), s.splat(0.0));
        let scale = s.splat(queries.scale);
        let mut weights = [[[0.0; LANES]; 2]; T];
        let mut fade = [0.0; T];
        for t in 0..T {
            let low = s.keep(seen[0], s.mul(dots[0][t], scale), hidden);
            let high = s.keep(seen[1], s.mul(dots[1][t], scale), hidden);
            let top = larger(self.top[first + t], s.tree_largest(s.larger(low, high)));
            let low = s.keep(seen[0], s.exp(s.sub(low, s.splat(top))), none);
            let high = s.keep(seen[1], s.exp(s.sub(high, s.splat(top))), none);
            fade[t] = exp(self.top[first + t] - top);
            self.sum[first + t] = self.sum[first + t].mul_add(fade[t], s.tree_sum(s.add(low, high)));
            self.top[first + t] = top;
            s.store(low, &mut weights[t][0]);
            s.store(high, &mut weights[t][1]);
        }
        let width = queries.rows.d.next_multiple_of(LANES);
        let acc = &mut self.acc[first * width..(first + T) * width];
        weigh_all(s, acc, &fade, &weights, mask, values);
    }

    /// Writes row `r`'s output and gives its log-sum-exp.
    #[inline(always)]
    fn finish(&self, r: usize, out: &mut [f32]) -> f32 {
        let width = self.acc.len() / self.top.len();
        let sum = self.sum[r];
        let acc = &self.acc[r * width..][..out.len()];
        if sum == 0.0 {
            out.copy_from_slice(acc);
            return f32::NEG_INFINITY;
        }
        for (out, acc) in out.iter_mut().zip(acc) {
            *out = acc / sum;
        }
        self.top[r] + sum.ln()
    }
}

/// `acc[t] = acc[t] * fade[t] + Σ weights[t] v` over the visible keys in order, in strips of as many lanes as the
/// registers hold.
#[inline(always)]
fn weigh_all<S: Simd, const T: usize>(
    s: S,
    acc: &mut [f32],
    fade: &[f32; T],
    weights: &[[[f32; LANES]; 2]; T],
    mask: u32,
    values: Values<'_>,
) {
    let strips = acc.len() / T / LANES;
    let mut strip = 0;
    while strip < strips {
        let left = strips - strip;
        if S::WIDE && T == 1 && left >= 8 {
            weigh::<S, T, 8>(s, acc, strip, fade, weights, mask, values);
            strip += 8;
        } else if (S::WIDE || T == 1) && left >= 4 {
            weigh::<S, T, 4>(s, acc, strip, fade, weights, mask, values);
            strip += 4;
        } else if left >= 2 {
            weigh::<S, T, 2>(s, acc, strip, fade, weights, mask, values);
            strip += 2;
        } else {
            weigh::<S, T, 1>(s, acc, strip, fade, weights, mask, values);
            strip += 1;
        }
    }
}

/// [`weigh_all`] for `J` strips of sixteen dimensions from `strip` on.
#[inline(always)]
fn weigh<S: Simd, const T: usize, const J: usize>(
    s: S,
    acc: &mut [f32],
    strip: usize,
    fade: &[f32; T],
    weights: &[[[f32; LANES]; 2]; T],
    mask: u32,
    values: Values<'_>,
) {
    let width = acc.len() / T;
    let from = |t: usize| t * width + strip * LANES..t * width + (strip + J) * LANES;
    let mut sums = [[s.splat(0.0); J]; T];
    for t in 0..T {
        let strips = acc[from(t)].as_chunks::<LANES>().0;
        for j in 0..J {
            sums[t][j] = s.mul(s.load(&strips[j]), s.splat(fade[t]));
        }
    }
    let mut seen = mask;
    while seen != 0 {
        let i = seen.trailing_zeros() as usize;
        seen &= seen - 1;
        let at = i * values.stride + strip * LANES;
        let strips = values.rows[at..at + J * LANES].as_chunks::<LANES>().0;
        let mut v = [s.splat(0.0); J];
        for j in 0..J {
            v[j] = s.load(&strips[j]);
        }
        for t in 0..T {
            let w = s.splat(weights[t].as_flattened()[i]);
            for j in 0..J {
                sums[t][j] = s.fma(w, v[j], sums[t][j]);
            }
        }
    }
    for t in 0..T {
        let strips = acc[from(t)].as_chunks_mut::<LANES>().0;
        for j in 0..J {
            s.store(sums[t][j], &mut strips[j]);
        }
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
    let Score { queries, blocks, keys: n_keys, lse, acc, scratch } = task;
    let mut sums = Sums { queries, keys: n_keys, lse, acc };
    let layout = queries.rows;
    let n_rows = layout.tokens * layout.heads;
    let Scratch { keys, masks, .. } = scratch;
    let mut before = 0;
    for block in blocks {
        for start in (0..block.n).step_by(CHUNK) {
            let n = CHUNK.min(block.n - start);
            if !see(queries, block.first + start, n, masks) {
                continue;
            }
            pack_keys(s, block, start, n, layout.d, keys);
            let columns = before + start..before + start + n;
            let mut r = 0;
            while r + 4 <= n_rows {
                sums.add::<S, 4>(s, r, panels(keys), masks, columns.clone());
                r += 4;
            }
            while r < n_rows {
                sums.add::<S, 1>(s, r, panels(keys), masks, columns.clone());
                r += 1;
            }
        }
        before += block.n;
    }
}

/// The sums of attention weights and what they are made of.
struct Sums<'a> {
    queries: &'a Queries<'a>,
    keys: usize,
    lse: &'a [f32],
    acc: &'a mut [f32],
}

impl Sums<'_> {
    /// Adds the weights of rows `first..first + T` over one chunk's keys, which are `columns` of the sums.
    #[inline(always)]
    fn add<S: Simd, const T: usize>(
        &mut self,
        s: S,
        first: usize,
        keys: [&[Line]; 2],
        masks: &[u32],
        columns: std::ops::Range<usize>,
    ) {
        let heads = self.queries.rows.heads;
        let none = [[s.splat(0.0); T]; 2];
        let dots = tile::floats::<S, 2, T>(s, keys, vectors(self.queries, first), none);
        let scale = s.splat(self.queries.scale);
        for t in 0..T {
            let seen = lane_masks(masks[(first + t) / heads]);
            let lse = s.splat(self.lse[first + t]);
            let head = (first + t) % heads * self.keys;
            let acc = &mut self.acc[head + columns.start..head + columns.end];
            for (p, acc) in acc.chunks_mut(LANES).enumerate() {
                let mut lanes = [0.0; LANES];
                lanes[..acc.len()].copy_from_slice(acc);
                let old = s.load(&lanes);
                let weight = s.exp(s.sub(s.mul(dots[p][t], scale), lse));
                s.store(s.keep(seen[p], s.add(old, weight), old), &mut lanes);
                acc.copy_from_slice(&lanes[..acc.len()]);
            }
        }
    }
}
