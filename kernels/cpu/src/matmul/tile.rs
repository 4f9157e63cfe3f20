//! The products of `P` panels with `T` activation rows, in registers.
//!
//! Each function is the definition of [`super`] for sixteen rows at once: lane `i` of result `[p][t]` is the element
//! of row `16 p + i` and activation row `t`, and no operation crosses lanes.

#![allow(
    clippy::needless_range_loop,
    reason = "one index names the same panel, row or dimension in several arrays of registers"
)]

use super::FLOAT_BLOCK;
use super::panel::Panel;
use crate::activations::QuantizedRows;
use crate::blocks::{K_LEN, Q8_0_LEN};
use crate::simd::{Line, Simd};

/// Results of a tile.
pub(crate) type Tile<S, const P: usize, const T: usize> = [[<S as Simd>::F; T]; P];

/// Weights as floats (F32, F16, keys), a line a column; `x` are the `T` rows.
#[inline(always)]
pub(crate) fn floats<S: Simd, const P: usize, const T: usize>(
    s: S,
    panels: [&[Line]; P],
    x: [&[f32]; T],
) -> Tile<S, P, T> {
    let cols = x[0].len();
    let mut y = [[s.splat(0.0); T]; P];
    for start in (0..cols).step_by(FLOAT_BLOCK) {
        let n = FLOAT_BLOCK.min(cols - start);
        let x: [&[f32]; T] = std::array::from_fn(|t| &x[t][start..start + n]);
        let weights: [&[Line]; P] = std::array::from_fn(|p| &panels[p][start..start + n]);
        let mut part = [[s.splat(0.0); T]; P];
        for c in 0..n {
            let mut w = [s.splat(0.0); P];
            for p in 0..P {
                w[p] = s.load_line(&weights[p][c]);
            }
            for t in 0..T {
                let x = s.splat(x[t][c]);
                for p in 0..P {
                    part[p][t] = s.fma(w[p], x, part[p][t]);
                }
            }
        }
        for p in 0..P {
            for t in 0..T {
                y[p][t] = s.add(y[p][t], part[p][t]);
            }
        }
    }
    y
}

/// Four activations as the level's dot products take them.
#[inline(always)]
fn four(q: &[i8], at: usize) -> i32 {
    i32::from_le_bytes([q[at] as u8, q[at + 1] as u8, q[at + 2] as u8, q[at + 3] as u8])
}

/// Q8_0 weights; activation rows `first..first + T`.
#[inline(always)]
pub(super) fn q8_0<S: Simd, const P: usize, const T: usize>(
    s: S,
    panels: [&Panel; P],
    x: &QuantizedRows,
    first: usize,
) -> Tile<S, P, T> {
    const STEPS: usize = Q8_0_LEN / 4;
    let blocks = panels[0].scales.len();
    let row = |t: usize| (first + t) * blocks..(first + t + 1) * blocks;
    let q: [&[[i8; Q8_0_LEN]]; T] = std::array::from_fn(|t| &x.q.as_chunks().0[row(t)]);
    let scale: [&[f32]; T] = std::array::from_fn(|t| &x.scale[row(t)]);
    let bias: [&[i32]; T] = std::array::from_fn(|t| &x.bias[row(t)]);
    let weights: [&[[Line; STEPS]]; P] = std::array::from_fn(|p| &panels[p].weights.as_chunks().0[..blocks]);
    let scales = panels.map(|panel| &panel.scales[..blocks]);
    let mut y = [[s.splat(0.0); T]; P];
    for b in 0..blocks {
        let mut start = [s.splat_int(0); T];
        if S::RAISES_SIGNED {
            for t in 0..T {
                start[t] = s.splat_int(bias[t][b]);
            }
        }
        let mut dot = [start; P];
        for k in 0..STEPS {
            let mut w = [s.splat_int(0); P];
            for p in 0..P {
                w[p] = s.weights(&weights[p][b][k]);
            }
            for t in 0..T {
                let x = four(&q[t][b], 4 * k);
                for p in 0..P {
                    dot[p][t] = s.dot_signed(dot[p][t], w[p], x);
                }
            }
        }
        for p in 0..P {
            let d = s.load(&scales[p][b].0);
            for t in 0..T {
                let d = s.mul(d, s.splat(scale[t][b]));
                y[p][t] = s.fma(s.to_float(dot[p][t]), d, y[p][t]);
            }
        }
    }
    y
}

/// k-quants with groups of `GROUP` columns; activation rows `first..first + T`.
///
/// `MINIMA` (Q4_K): groups have minima and weights are not raised; else (Q6_K) weights are raised by 32.
#[inline(always)]
pub(super) fn k_quant<S: Simd, const P: usize, const T: usize, const GROUP: usize, const MINIMA: bool>(
    s: S,
    panels: [&Panel; P],
    x: &QuantizedRows,
    first: usize,
) -> Tile<S, P, T> {
    let groups = K_LEN / GROUP;
    let steps = GROUP / 4;
    let blocks = panels[0].scales.len() / groups;
    let row = |t: usize| (first + t) * blocks..(first + t + 1) * blocks;
    let q: [&[[i8; K_LEN]]; T] = std::array::from_fn(|t| &x.q.as_chunks().0[row(t)]);
    let scale: [&[f32]; T] = std::array::from_fn(|t| &x.scale[row(t)]);
    let bias: [&[[i32; 16]]; T] = std::array::from_fn(|t| &x.bias.as_chunks().0[row(t)]);
    let sums: [&[[f32; 8]]; T] = std::array::from_fn(|t| &x.sums.as_chunks().0[row(t)]);
    let weights: [&[[Line; K_LEN / 4]]; P] =
        std::array::from_fn(|p| &panels[p].weights.as_chunks().0[..blocks]);
    let mut y = [[s.splat(0.0); T]; P];
    for b in 0..blocks {
        let mut a = [[s.splat(0.0); T]; P];
        for g in 0..groups {
            let mut start = [s.splat_int(0); T];
            if !MINIMA {
                for t in 0..T {
                    start[t] = s.splat_int(bias[t][b][g]);
                }
            }
            let mut dot = [start; P];
            for k in g * steps..(g + 1) * steps {
                let mut w = [s.splat_int(0); P];
                for p in 0..P {
                    w[p] = s.weights(&weights[p][b][k]);
                }
                for t in 0..T {
                    let x = four(&q[t][b], 4 * k);
                    for p in 0..P {
                        dot[p][t] = s.dot_small(dot[p][t], w[p], x);
                    }
                }
            }
            for p in 0..P {
                let d = s.load(&panels[p].scales[b * groups + g].0);
                for t in 0..T {
                    a[p][t] = s.fma(s.to_float(dot[p][t]), d, a[p][t]);
                }
            }
        }
        if MINIMA {
            for g in 0..8 {
                for p in 0..P {
                    let minimum = s.load(&panels[p].minima[b * 8 + g].0);
                    for t in 0..T {
                        a[p][t] = s.fma(s.splat(sums[t][b][g]), minimum, a[p][t]);
                    }
                }
            }
        }
        for t in 0..T {
            let d = s.splat(scale[t][b]);
            for p in 0..P {
                y[p][t] = s.fma(a[p][t], d, y[p][t]);
            }
        }
    }
    y
}
