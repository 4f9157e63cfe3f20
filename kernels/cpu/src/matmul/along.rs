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
use super::quants::{chunks, interleaved, pair};
use super::strip::Strip;
use super::tile::{bias, is_biased, words};
use crate::activations::QuantizedRows;
use crate::blocks::{K_LEN, Long, SHORT_LEN, Short};
use crate::simd::Simd;

/// The largest number of activation rows of one call.
pub(super) const TOKENS_MAX: usize = 3;

/// Computes the elements of sixteen rows of short blocks and activation rows `first..first + T`.
#[inline(always)]
pub(super) fn short<S: Simd, B: Short, const T: usize>(
    s: S,
    rows: &Strip<'_>,
    x: &QuantizedRows,
    first: usize,
) -> [S::F; T] {
    let bytes = B::FORMAT.block_bytes();
    let blocks = rows.blocks;
    let mut y = [s.splat(0.0); T];
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
            let (d, m) = (s.widen(&scale[j]), s.widen(&minimum[j]));
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
                y[t] = s.fma(z, s.splat(x.scale[at]), y[t]);
            }
        }
    }
    y
}

/// Computes the elements of sixteen rows of super-blocks and activation rows `first..first + T`.
#[inline(always)]
pub(super) fn long<S: Simd, B: Long, const T: usize>(
    s: S,
    rows: &Strip<'_>,
    x: &QuantizedRows,
    first: usize,
) -> [S::F; T] {
    let bytes = B::FORMAT.block_bytes();
    let blocks = rows.blocks;
    let mut y = [s.splat(0.0); T];
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
            for t in 0..T {
                dots[t][i] = dot::<S, B>(s, w, q[t], scale);
            }
        }
        for t in 0..T {
            let at = (first + t) * blocks + b;
            let mut total = s.reduce(dots[t]);
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
            y[t] = s.fma(z, s.splat(x.scale[at]), y[t]);
        }
    }
    y
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

/// Returns the scaled dot product of a super-block, spread over the lanes.
#[inline(always)]
fn dot<S: Simd, B: Long>(s: S, w: [S::I; 4], q: [S::I; 4], scale: [S::I; 4]) -> S::I {
    let mut total = s.splat_int(0);
    for c in 0..4 {
        total = if B::RAISE == 128 {
            let four = s.dot_signed(s.splat_int(0), w[c], q[c]);
            s.add_int(total, s.mul_int(four, s.low_word(scale[c])))
        } else {
            s.dot_scaled(total, w[c], q[c], scale[c])
        };
    }
    total
}
