//! The products of `P` panels with `T` activation rows, in registers.
//!
//! Each function adds the columns of a panel to the elements of sixteen rows at once, as [`super`] defines.
//! Lane `i` of result `[t][p]` belongs to row `16 p + i` and activation row `t`; no operation crosses lanes.

#![allow(
    clippy::needless_range_loop,
    reason = "one index names the same panel, row or dimension in several arrays of registers"
)]

use super::FLOAT_BLOCK;
use super::panel::Panel;
use crate::activations::{QuantizedRows, SumWords};
use crate::blocks::{K_LEN, Long, SHORT_LEN, Short};
use crate::simd::{Floats, Line, Simd};

/// Partial sums of two panels with `T` activation rows, kept between ranges of columns.
pub(super) type Sums<const T: usize> = [[Floats; 2]; T];

/// Results of [`floats`].
pub(crate) type Tile<S, const P: usize, const T: usize> = [[<S as Simd>::F; T]; P];

#[inline(always)]
pub(super) fn load<S: Simd, const P: usize, const T: usize>(
    s: S,
    side: usize,
    sums: &Sums<T>,
) -> Tile<S, P, T> {
    let mut y = [[s.splat(0.0); T]; P];
    for t in 0..T {
        for p in 0..P {
            y[p][t] = s.load(&sums[t][side + p].0);
        }
    }
    y
}

#[inline(always)]
pub(super) fn store<S: Simd, const P: usize, const T: usize>(
    s: S,
    y: Tile<S, P, T>,
    side: usize,
    sums: &mut Sums<T>,
) {
    for t in 0..T {
        for p in 0..P {
            s.store(y[p][t], &mut sums[t][side + p].0);
        }
    }
}

/// Adds the products with float weights (F32, F16, keys) to `y`: one line per column, `x` the same columns of
/// `T` rows. The sums of several blocks run side by side if one block has too few to hide their latency.
#[inline(always)]
pub(crate) fn floats<S: Simd, const P: usize, const T: usize>(
    s: S,
    panels: [&[Line]; P],
    x: [&[f32]; T],
    mut y: Tile<S, P, T>,
) -> Tile<S, P, T> {
    const SEVERAL: usize = 4;
    let (cols, mut start) = (x[0].len(), 0);
    if P * T < SEVERAL {
        while start + SEVERAL * FLOAT_BLOCK <= cols {
            y = float_blocks::<S, P, T, SEVERAL>(s, panels, x, (start, FLOAT_BLOCK), y);
            start += SEVERAL * FLOAT_BLOCK;
        }
    }
    while start < cols {
        let n = FLOAT_BLOCK.min(cols - start);
        y = float_blocks::<S, P, T, 1>(s, panels, x, (start, n), y);
        start += n;
    }
    y
}

/// Adds the products of `K` blocks of `n` columns from `start` on, in order.
#[inline(always)]
fn float_blocks<S: Simd, const P: usize, const T: usize, const K: usize>(
    s: S,
    mut panels: [&[Line]; P],
    mut x: [&[f32]; T],
    (start, n): (usize, usize),
    mut y: Tile<S, P, T>,
) -> Tile<S, P, T> {
    for t in 0..T {
        x[t] = &x[t][start..start + K * n];
    }
    for p in 0..P {
        panels[p] = &panels[p][start..start + K * n];
    }
    let mut part = [[[s.splat(0.0); T]; P]; K];
    for c in 0..n {
        for k in 0..K {
            let mut w = [s.splat(0.0); P];
            for p in 0..P {
                w[p] = s.load_line(&panels[p][k * n + c]);
            }
            for t in 0..T {
                let x = s.splat(x[t][k * n + c]);
                for p in 0..P {
                    part[k][p][t] = s.fma(w[p], x, part[k][p][t]);
                }
            }
        }
    }
    for k in 0..K {
        for p in 0..P {
            for t in 0..T {
                y[p][t] = s.add(y[p][t], part[k][p][t]);
            }
        }
    }
    y
}

/// [`floats`] on columns of activation rows.
#[inline(always)]
pub(super) fn float_rows<S: Simd, const P: usize, const T: usize>(
    s: S,
    panels: [&Panel; P],
    x: [&[f32]; T],
    side: usize,
    sums: &mut Sums<T>,
) {
    let weights = panels.map(|panel| panel.weights.as_slice());
    let y = floats(s, weights, x, load(s, side, sums));
    store(s, y, side, sums);
}

/// Loads four activations in the form of the level's dot products, the same in every lane.
#[inline(always)]
pub(super) fn four<S: Simd>(s: S, q: &[u8], at: usize) -> S::I {
    s.splat_int(i32::from_le_bytes([q[at], q[at + 1], q[at + 2], q[at + 3]]))
}

/// Whether the level's dot products need a bias for weights raised by `raise`.
#[inline(always)]
pub(super) const fn is_biased<S: Simd>(raise: u8) -> bool {
    raise != 0 && (raise != 128 || S::RAISES_SIGNED)
}

/// Returns minus `raise` times a sum of activations, given -128 times that sum in every lane.
#[inline(always)]
pub(super) fn bias<S: Simd>(s: S, raise: u8, of_128: S::I) -> S::I {
    match raise {
        128 => of_128,
        64 => s.shift_down::<1>(of_128),
        32 => s.shift_down::<2>(of_128),
        16 => s.shift_down::<3>(of_128),
        8 => s.shift_down::<4>(of_128),
        4 => s.shift_down::<5>(of_128),
        1 => s.shift_down::<7>(of_128),
        _ => unreachable!("no format is raised by {raise}"),
    }
}

/// Multiplies short blocks: the panels hold those from `block` on, for activation rows `first..first + T`.
#[inline(always)]
pub(super) fn short<S: Simd, B: Short, const P: usize, const T: usize>(
    s: S,
    panels: [&Panel; P],
    x: &QuantizedRows,
    (first, blocks_in_row, block): (usize, usize, usize),
    side: usize,
    sums: &mut Sums<T>,
) {
    const STEPS: usize = SHORT_LEN / 4;
    let blocks = panels[0].d.len();
    let mut q: [&[[u8; SHORT_LEN]]; T] = [&[]; T];
    let (mut scale, mut of_128): ([&[f32]; T], [&[i32]; T]) = ([&[]; T], [&[]; T]);
    for t in 0..T {
        let start = (first + t) * blocks_in_row + block;
        q[t] = &x.q.as_chunks().0[start..start + blocks];
        scale[t] = &x.scale[start..start + blocks];
        of_128[t] = &x.bias[start..start + blocks];
    }
    let mut weights: [&[[Line; STEPS]]; P] = [&[]; P];
    let (mut d, mut m): ([&[Floats]; P], [&[Floats]; P]) = ([&[]; P], [&[]; P]);
    for p in 0..P {
        weights[p] = &panels[p].weights.as_chunks().0[..blocks];
        d[p] = &panels[p].d[..blocks];
        m[p] = &panels[p].m[..blocks];
    }
    let mut y = load::<S, P, T>(s, side, sums);
    for b in 0..blocks {
        let mut dot = [[s.splat_int(0); T]; P];
        if is_biased::<S>(B::RAISE) {
            for t in 0..T {
                let start = bias(s, B::RAISE, s.splat_int(of_128[t][b]));
                for p in 0..P {
                    dot[p][t] = start;
                }
            }
        }
        if S::PAIRS && T.is_multiple_of(2) {
            let mut x: [&[u8]; T] = [&[]; T];
            for t in 0..T {
                x[t] = &q[t][b];
            }
            for p in 0..P {
                dot[p] = s.dot_pairs(dot[p], &weights[p][b], x);
            }
        } else {
            for k in 0..STEPS {
                let mut w = [s.splat_int(0); P];
                for p in 0..P {
                    w[p] = s.load_units(&weights[p][b][k]);
                }
                for t in 0..T {
                    let x = four(s, &q[t][b], 4 * k);
                    for p in 0..P {
                        dot[p][t] = if B::RAISE == 128 {
                            s.dot_signed(dot[p][t], w[p], x)
                        } else {
                            s.dot_small(dot[p][t], w[p], x)
                        };
                    }
                }
            }
        }
        for p in 0..P {
            for t in 0..T {
                let mut z = s.mul(s.to_float(dot[p][t]), s.load(&d[p][b].0));
                if B::MINIMUM {
                    let sum = -(of_128[t][b] >> 7) as f32;
                    z = s.fma(s.splat(sum), s.load(&m[p][b].0), z);
                }
                y[p][t] = s.fma(z, s.splat(scale[t][b]), y[p][t]);
            }
        }
    }
    store(s, y, side, sums);
}

/// One super-block of packed rows and of an activation row.
struct LongBlock<'a, const P: usize, const T: usize> {
    weights: [&'a [Line; K_LEN / 4]; P],
    scales: [&'a [Line]; P],
    minima: [&'a [Line]; P],
    q: [&'a [u8; K_LEN]; T],
    bias: [&'a [i32; 16]; T],
    words: [&'a SumWords; T],
}

/// Multiplies super-blocks: the panels hold those from `block` on, for activation rows `first..first + T`.
#[inline(always)]
pub(super) fn long<S: Simd, B: Long, const P: usize, const T: usize>(
    s: S,
    panels: [&Panel; P],
    x: &QuantizedRows,
    (first, blocks_in_row, block): (usize, usize, usize),
    side: usize,
    sums: &mut Sums<T>,
) {
    let groups = K_LEN / B::GROUP;
    let half = groups / 2;
    let row = |t: usize| (first + t) * blocks_in_row + block;
    let mut y = load::<S, P, T>(s, side, sums);
    for b in 0..panels[0].d.len() {
        let own = LongBlock::<P, T> {
            weights: std::array::from_fn(|p| &panels[p].weights.as_chunks().0[b]),
            scales: std::array::from_fn(|p| &panels[p].scales[b * groups..(b + 1) * groups]),
            minima: std::array::from_fn(|p| &panels[p].minima[b * half..(b + 1) * half]),
            q: std::array::from_fn(|t| &x.q.as_chunks().0[row(t) + b]),
            bias: std::array::from_fn(|t| &x.bias.as_chunks().0[row(t) + b]),
            words: std::array::from_fn(|t| &x.words[row(t) + b]),
        };
        let dots = own.dots::<S, B>(s);
        let minima = if B::MINIMA { own.minima::<S, B>(s) } else { [[s.splat_int(0); T]; P] };
        for p in 0..P {
            let (d, m) = (s.load(&panels[p].d[b].0), s.load(&panels[p].m[b].0));
            for t in 0..T {
                let mut z = s.mul(dots[p][t], d);
                if B::MINIMA {
                    z = s.fma(s.to_float(minima[p][t]), m, z);
                }
                y[p][t] = s.fma(z, s.splat(x.scale[row(t) + b]), y[p][t]);
            }
        }
    }
    store(s, y, side, sums);
}

impl<const P: usize, const T: usize> LongBlock<'_, P, T> {
    /// Returns `Σ scale Σ w q` over the groups, exact, rounded once to a float.
    #[inline(always)]
    fn dots<S: Simd, B: Long>(&self, s: S) -> Tile<S, P, T> {
        let groups = K_LEN / B::GROUP;
        match B::FLOAT_PARTS {
            0 => self.whole_dots::<S, B>(s, groups),
            1 => self.float_dots::<S, B>(s, 0, groups),
            _ => {
                let before = self.float_dots::<S, B>(s, 0, groups / 2);
                let mut dots = self.float_dots::<S, B>(s, groups / 2, groups);
                for p in 0..P {
                    for t in 0..T {
                        dots[p][t] = s.add(before[p][t], dots[p][t]);
                    }
                }
                dots
            }
        }
    }

    /// Returns `Σ scale Σ w q` over groups `from..to` as floats, exact by [`Long::FLOAT_PARTS`].
    #[inline(always)]
    fn float_dots<S: Simd, B: Long>(&self, s: S, from: usize, to: usize) -> Tile<S, P, T> {
        let mut part = [[s.splat(0.0); T]; P];
        for g in from..to {
            let dot = self.group::<S, B>(s, g);
            for p in 0..P {
                let scale = s.floats_of(s.load_units(&self.scales[p][g]));
                for t in 0..T {
                    part[p][t] = s.fma(s.to_float(dot[p][t]), scale, part[p][t]);
                }
            }
        }
        part
    }

    /// Returns `Σ scale Σ w q` over the groups, computed in integers and rounded once to a float.
    #[inline(always)]
    fn whole_dots<S: Simd, B: Long>(&self, s: S, groups: usize) -> Tile<S, P, T> {
        let mut whole = [[s.splat_int(0); T]; P];
        for g in 0..groups {
            let dot = self.group::<S, B>(s, g);
            for p in 0..P {
                let scale = s.load_units(&self.scales[p][g]);
                for t in 0..T {
                    whole[p][t] = s.add_int(whole[p][t], s.mul_int(dot[p][t], scale));
                }
            }
        }
        let mut dots = [[s.splat(0.0); T]; P];
        for p in 0..P {
            for t in 0..T {
                dots[p][t] = s.to_float(whole[p][t]);
            }
        }
        dots
    }

    /// Returns `Σ w q` over group `g`.
    #[inline(always)]
    fn group<S: Simd, B: Long>(&self, s: S, g: usize) -> [[S::I; T]; P] {
        let mut dot = [[s.splat_int(0); T]; P];
        if is_biased::<S>(B::RAISE) {
            for t in 0..T {
                let of_128 = if B::GROUP == 16 {
                    s.splat_int(self.bias[t][g])
                } else {
                    s.add_int(s.splat_int(self.bias[t][2 * g]), s.splat_int(self.bias[t][2 * g + 1]))
                };
                let start = bias(s, B::RAISE, of_128);
                for p in 0..P {
                    dot[p][t] = start;
                }
            }
        }
        let steps = B::GROUP / 4;
        if S::PAIRS && T.is_multiple_of(2) {
            let mut x: [&[u8]; T] = [&[]; T];
            for t in 0..T {
                x[t] = &self.q[t][g * B::GROUP..(g + 1) * B::GROUP];
            }
            for p in 0..P {
                dot[p] = s.dot_pairs(dot[p], &self.weights[p][g * steps..(g + 1) * steps], x);
            }
            return dot;
        }
        for k in g * steps..(g + 1) * steps {
            let mut w = [s.splat_int(0); P];
            for p in 0..P {
                w[p] = s.load_units(&self.weights[p][k]);
            }
            for t in 0..T {
                let x = four(s, self.q[t], 4 * k);
                for p in 0..P {
                    dot[p][t] = if B::RAISE == 128 {
                        s.dot_signed(dot[p][t], w[p], x)
                    } else {
                        s.dot_small(dot[p][t], w[p], x)
                    };
                }
            }
        }
        dot
    }

    /// Returns `Σ minimum Σ q` over the groups.
    #[inline(always)]
    fn minima<S: Simd, B: Long>(&self, s: S) -> [[S::I; T]; P] {
        let mut out = [[s.splat_int(0); T]; P];
        for pair in 0..K_LEN / B::GROUP / 2 {
            let mut m = [s.splat_int(0); P];
            for p in 0..P {
                m[p] = s.load_units(&self.minima[p][pair]);
            }
            for t in 0..T {
                let sums = s.splat_int(words::<B>(self.words[t])[pair]);
                for p in 0..P {
                    out[p][t] = s.dot_words(out[p][t], m[p], sums);
                }
            }
        }
        out
    }
}

/// Returns the sums of groups of [`Long::GROUP`] activations.
#[inline(always)]
pub(super) fn words<B: Long>(words: &SumWords) -> &[i32] {
    if B::GROUP == 16 { &words.of_16 } else { &words.of_32 }
}
