//! Products along stored rows: sixteen rows at a time directly from their blocks, for one to three activation
//! rows.
//!
//! For so few tokens, packing a panel would cost more than the products. The dot product of a block with the
//! activations is a sum across lanes, but of integers, so its order does not matter. Then the sums of sixteen
//! rows are put into lanes. The float operations that follow are, lane by lane, the definition of [`super`].

#![allow(
    clippy::needless_range_loop,
    reason = "one index names the same row or token in several arrays of registers"
)]

use super::heads::Heads;
use super::panel::{Blocks, ROWS};
use super::quants::{chunks, interleaved, of_four, quads, scales};
use super::strip::Strip;
use super::tile::{bias, is_biased, words};
use crate::activations::QuantizedRows;
use crate::blocks::{K_LEN, Long, SHORT_LEN, Short};
use crate::simd::Simd;

/// The largest number of activation rows of one call.
pub(super) const TOKENS_MAX: usize = 3;

/// Computes the elements of sixteen rows of short blocks and activation rows `first..first + T`, as the sum
/// of `SUMS` sums that take the blocks in turn. One sum is the definition; more are for comparison.
#[inline(always)]
pub(super) fn short<S: Simd, B: Short, const T: usize, const SUMS: usize>(
    s: S,
    rows: &Strip<'_>,
    x: &QuantizedRows,
    first: usize,
) -> [S::F; T] {
    let blocks = rows.blocks;
    let mut y = [[s.splat(0.0); T]; SUMS];
    for b in (0..blocks).step_by(4) {
        // Blocks behind the last one are loaded as the last one; these copies are not used.
        let four = [b, (b + 1).min(blocks - 1), (b + 2).min(blocks - 1), (b + 3).min(blocks - 1)];
        let (dots, heads) = four_blocks::<S, B, T>(s, rows, x, first, four);
        for j in 0..4.min(blocks - b) {
            let (d, m) = head_floats::<S, B>(s, rows, heads[j], four[j]);
            for t in 0..T {
                let at = (first + t) * blocks + four[j];
                let mut dot = dots[t][j];
                if is_biased::<S>(B::RAISE) {
                    dot = s.add_int(dot, bias(s, B::RAISE, s.splat_int(x.bias[at])));
                }
                let mut z = s.mul(s.to_float(dot), d);
                if B::MINIMUM {
                    z = s.fma(s.splat(-(x.bias[at] >> 7) as f32), m, z);
                }
                y[j % SUMS][t] = s.fma(z, s.splat(x.scale[at]), y[j % SUMS][t]);
            }
        }
    }
    added(s, y)
}

/// Returns the dot products of sixteen rows' blocks `four` with the activations, and the first four bytes of
/// each of these blocks.
#[inline(always)]
fn four_blocks<S: Simd, B: Short, const T: usize>(
    s: S,
    rows: &Strip<'_>,
    x: &QuantizedRows,
    first: usize,
    four: [usize; 4],
) -> ([[S::I; 4]; T], [S::I; 4]) {
    let zero = s.splat_int(0);
    let mut q = [[zero; 2]; T];
    for t in 0..T {
        let of = |j: usize| x.q.as_chunks::<SHORT_LEN>().0[(first + t) * rows.blocks + four[j]].as_chunks().0;
        let (a, b, c, d) = (of(0), of(1), of(2), of(3));
        q[t] = [s.quarters([&a[0], &b[0], &c[0], &d[0]]), s.quarters([&a[1], &b[1], &c[1], &d[1]])];
    }
    let (mut dots, mut heads) = ([[zero; 4]; T], [zero; 4]);
    for group in 0..4 {
        // Four calls in place of a loop, which the compiler would not unroll: it keeps sums in memory.
        let row = 4 * group;
        let a = four_of_row::<S, B, T>(s, rows, row, four, &q);
        let b = four_of_row::<S, B, T>(s, rows, row + 1, four, &q);
        let c = four_of_row::<S, B, T>(s, rows, row + 2, four, &q);
        let d = four_of_row::<S, B, T>(s, rows, row + 3, four, &q);
        heads[group] = s.quarter_firsts([a.1, b.1, c.1, d.1]);
        for t in 0..T {
            dots[t][group] = s.quarter_sums([a.0[t], b.0[t], c.0[t], d.0[t]]);
        }
    }
    for t in 0..T {
        dots[t] = s.transpose_quarters(dots[t]);
    }
    (dots, s.transpose_quarters(heads))
}

/// Returns the dot products of one row's blocks `four` with the activations, a quarter for each block, and
/// the first sixteen bytes of each block.
#[inline(always)]
fn four_of_row<S: Simd, B: Short, const T: usize>(
    s: S,
    rows: &Strip<'_>,
    row: usize,
    four: [usize; 4],
    q: &[[S::I; 2]; T],
) -> ([S::I; T], S::I) {
    let bytes = B::FORMAT.block_bytes();
    rows.prefetch_ahead(s, row, four[0], 4 * bytes);
    let own = [
        rows.block(row, four[0], bytes),
        rows.block(row, four[1], bytes),
        rows.block(row, four[2], bytes),
        rows.block(row, four[3], bytes),
    ];
    let heads = of_four(s, own, 0);
    let w = quads::<S, B>(s, own, heads);
    let mut dots = [s.splat_int(0); T];
    for t in 0..T {
        for half in 0..2 {
            dots[t] = if B::RAISE == 128 {
                s.dot_signed(dots[t], w[half], q[t][half])
            } else {
                s.dot_small(dots[t], w[half], q[t][half])
            };
        }
    }
    (dots, heads)
}

/// Returns the scales and the minima of block `b` of sixteen rows, whose first four bytes are `heads`.
#[inline(always)]
fn head_floats<S: Simd, B: Short>(s: S, rows: &Strip<'_>, heads: S::I, b: usize) -> (S::F, S::F) {
    if !B::WIDE_SCALE {
        return (s.widen_low(heads), s.widen_high(heads));
    }
    let mut scale = [0; ROWS];
    for i in 0..ROWS {
        scale[i] = B::scale(rows.block(i, b, B::FORMAT.block_bytes()));
    }
    (scales::<S, B>(s, &scale), s.splat(0.0))
}

/// Adds up the sums of each activation row.
#[inline(always)]
fn added<S: Simd, const T: usize, const SUMS: usize>(s: S, sums: [[S::F; T]; SUMS]) -> [S::F; T] {
    let mut y = sums[0];
    for sum in &sums[1..] {
        for t in 0..T {
            y[t] = s.add(y[t], sum[t]);
        }
    }
    y
}

/// Computes the elements of sixteen rows of super-blocks and activation rows `first..first + T`. `SUMS` is as
/// in [`short`].
#[inline(always)]
pub(super) fn long<S: Simd, B: Long, const T: usize, const SUMS: usize>(
    s: S,
    rows: &Strip<'_>,
    x: &QuantizedRows,
    first: usize,
) -> [S::F; T] {
    let bytes = B::FORMAT.block_bytes();
    let blocks = rows.blocks;
    let mut y = [[s.splat(0.0); T]; SUMS];
    for b in 0..blocks {
        let mut own: Blocks<'_> = [&[]; ROWS];
        for i in 0..ROWS {
            own[i] = rows.block(i, b, bytes);
        }
        let heads = Heads::of::<B>(s, own);
        let scales = heads.stored(s);
        let mut q = [[s.splat_int(0); 4]; T];
        for t in 0..T {
            q[t] = activations::<S, B>(s, &x.q.as_chunks().0[(first + t) * blocks + b]);
        }
        let mut dots = [[s.splat_int(0); ROWS]; T];
        for i in 0..ROWS {
            rows.prefetch_ahead(s, i, b, bytes);
            let (w, scale) = (chunks::<S, B>(s, own[i]), Heads::spread::<B>(s, &scales, i));
            let mut total = [s.splat_int(0); T];
            for c in 0..4 {
                for t in 0..T {
                    total[t] = add_dot::<S, B>(s, total[t], w[c], q[t][c], scale[c]);
                }
            }
            for t in 0..T {
                dots[t][i] = total[t];
            }
        }
        let mut totals = [s.splat_int(0); T];
        for t in 0..T {
            totals[t] = s.reduce(dots[t]);
        }
        for t in 0..T {
            let at = (first + t) * blocks + b;
            let sum = if SUMS == 1 { 0 } else { b % SUMS };
            y[sum][t] = add_block::<S, B>(s, &heads, totals[t], x, at, y[sum][t]);
        }
    }
    added(s, y)
}

/// Adds the products of sixteen rows with block `at` of the activations to `y`, given their scaled dot
/// products.
#[inline(always)]
pub(super) fn add_block<S: Simd, B: Long>(
    s: S,
    heads: &Heads<S>,
    mut total: S::I,
    x: &QuantizedRows,
    at: usize,
    y: S::F,
) -> S::F {
    if is_biased::<S>(B::RAISE) {
        // Interleaved formats have one scale per 32 weights here; none of them is raised.
        let raised = Heads::weigh(s, &heads.scales, &x.words[at].of_16);
        total = s.add_int(total, s.mul_int(raised, s.splat_int(-i32::from(B::RAISE))));
    }
    let mut z = s.mul(s.to_float(total), heads.d);
    if B::MINIMA {
        let minima = Heads::weigh(s, &heads.minima, words::<B>(&x.words[at]));
        z = s.fma(s.to_float(minima), heads.m, z);
    }
    s.fma(z, s.splat(x.scale[at]), y)
}

/// Loads the activations of a super-block in the order of [`chunks`].
#[inline(always)]
fn activations<S: Simd, B: Long>(s: S, q: &[u8; K_LEN]) -> [S::I; 4] {
    if interleaved::<B>() {
        let groups = q.as_chunks::<32>().0;
        [
            s.joined(&groups[0], &groups[2]),
            s.joined(&groups[1], &groups[3]),
            s.joined(&groups[4], &groups[6]),
            s.joined(&groups[5], &groups[7]),
        ]
    } else {
        let parts = q.as_chunks::<64>().0;
        [s.units(&parts[0]), s.units(&parts[1]), s.units(&parts[2]), s.units(&parts[3])]
    }
}

/// Adds the scaled dot product of a part of a super-block, spread over the lanes.
#[inline(always)]
fn add_dot<S: Simd, B: Long>(s: S, total: S::I, w: S::I, q: S::I, scale: S::I) -> S::I {
    if B::RAISE == 128 {
        let four = s.dot_signed(s.splat_int(0), w, q);
        s.add_int(total, s.mul_int(four, s.low_word(scale)))
    } else {
        s.dot_scaled(total, w, q, scale)
    }
}
