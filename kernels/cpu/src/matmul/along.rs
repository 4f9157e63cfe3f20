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
use super::quants::{chunks, interleaved, pair, scales};
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
    let bytes = B::FORMAT.block_bytes();
    let blocks = rows.blocks;
    let mut y = [[s.splat(0.0); T]; SUMS];
    for b in (0..blocks).step_by(2) {
        // An odd last block is loaded twice; the second copy is not used.
        let two = [b, (b + 1).min(blocks - 1)];
        let mut q = [s.splat_int(0); T];
        for t in 0..T {
            let row = (first + t) * blocks;
            let of = |b: usize| &x.q.as_chunks::<SHORT_LEN>().0[row + b];
            q[t] = s.joined(of(two[0]), of(two[1]));
        }
        let mut dots = [[s.splat_int(0); ROWS]; T];
        let (mut scale, mut minimum) = ([[0; ROWS]; 2], [[0; ROWS]; 2]);
        for i in 0..ROWS {
            let own = [rows.block(i, two[0], bytes), rows.block(i, two[1], bytes)];
            rows.prefetch_ahead(s, i, two[0], bytes);
            let w = pair::<S, B>(s, own[0], own[1]);
            for t in 0..T {
                dots[t][i] = if B::RAISE == 128 {
                    s.dot_signed(s.splat_int(0), w, q[t])
                } else {
                    s.dot_small(s.splat_int(0), w, q[t])
                };
            }
            for j in 0..2 {
                scale[j][i] = B::scale(own[j]);
                minimum[j][i] = B::minimum(own[j]);
            }
        }
        let mut halves = [[s.splat_int(0); 2]; T];
        for t in 0..T {
            halves[t] = s.reduce_halves(dots[t]);
        }
        for j in 0..2.min(blocks - b) {
            let (d, m) = (scales::<S, B>(s, &scale[j]), s.widen(&minimum[j]));
            for t in 0..T {
                let at = (first + t) * blocks + two[j];
                let mut dot = halves[t][j];
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
