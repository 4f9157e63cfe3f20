//! Matrix products of stored weights and activation rows: `out[t, r] = Σ_c w[r, c] x[t, c]`.
//!
//! The definition of one output element, the same for every number of tokens, threads and dispatch level
//! (`fma` rounds once; integers are exact):
//!
//! | weights | activations | element |
//! |---|---|---|
//! | F32, F16 | `f32` | per 32 columns `s = fma(w, x, s)` from 0 in order, then `y += s` |
//! | Q8_0 | bytes, scale `dx` per 32 | per block `y = fma(Σ w q, d * dx, y)` |
//! | Q4_K | bytes, scale `dx` per 256 | per super-block `a = fma(Σ w q, d * scale, a)` over its 8 groups, then `a = fma(Σ q, -(dmin * min), a)` over them, then `y = fma(a, dx, y)` |
//! | Q6_K | bytes, scale `dx` per 256 | per super-block `a = fma(Σ w q, d * scale, a)` over its 16 groups, then `y = fma(a, dx, y)` |
//!
//! `scalar` is that table in code. The vector levels keep sixteen rows side by side in the lanes of a register,
//! so that no sum crosses lanes and the order above is the natural one.

mod output;
mod panel;
mod scalar;
pub(crate) mod tile;

use std::cell::RefCell;
use std::ops::Range;

use rayon::prelude::*;

use crate::activations::Activations;
use crate::dispatch::Dispatch;
use crate::format::{Format, Matrix};
use crate::simd::{Kernel, Simd, run};

use output::Output;
use panel::{Panel, ROWS};
pub(crate) use scalar::FLOAT_BLOCK;

/// Multiplies every activation row with every weight row, at [`Dispatch::current`].
///
/// Shapes: `w: [rows, cols]`, `x: [t, cols]`, `out: [t, rows]`. Cost: `O(t rows cols)`, parallel over ranges of rows
/// on the current rayon pool.
///
/// # Panics
/// Where `w` and `x` differ in columns, or `out` is not `t * rows` long.
pub fn matmul(w: &Matrix<'_>, x: &Activations<'_>, out: &mut [f32]) {
    matmul_at(Dispatch::current(), w, x, out);
}

/// [`matmul`] at a given level; one that the CPU lacks falls back to the scalar definition.
///
/// # Panics
/// As [`matmul`].
pub fn matmul_at(level: Dispatch, w: &Matrix<'_>, x: &Activations<'_>, out: &mut [f32]) {
    assert_eq!(w.cols(), x.cols(), "columns of the weights and of the activations");
    assert_eq!(out.len(), x.rows() * w.rows(), "length of the output of a matrix product");
    if out.is_empty() {
        return;
    }
    // The byte form is made before the work is split, by all threads together.
    match w.format() {
        Format::F32 | Format::F16 => {}
        Format::Q8_0 => _ = x.q8_0(),
        Format::Q4K | Format::Q6K => _ = x.q8_k(),
    }
    let product = Product { level, w, x, out: Output::new(out, w.rows()) };
    let tasks = Tasks::split(w.rows(), x.rows(), w.cols());
    if tasks.count() == 1 {
        product.compute(0..w.rows(), 0..x.rows());
    } else {
        (0..tasks.count()).into_par_iter().for_each(|i| {
            let (rows, tokens) = tasks.get(i);
            product.compute(rows, tokens);
        });
    }
}

/// Rows of a pair of panels: the unit in which rows are split.
const UNIT: usize = 2 * ROWS;

/// How a product is cut into rectangles of rows and tokens; no two overlap and together they are all of it.
#[derive(Debug, Clone, Copy)]
struct Tasks {
    rows: usize,
    tokens: usize,
    rows_each: usize,
    tokens_each: usize,
}

impl Tasks {
    /// Multiplications below which handing a piece to another thread costs more than doing it.
    const PIECE_MIN: usize = 1 << 18;
    /// Packing a weight costs about as much as this many multiplications with it.
    const PACK_COST: usize = 3;

    fn split(rows: usize, tokens: usize, cols: usize) -> Self {
        let threads = rayon::current_num_threads();
        let cost = rows.saturating_mul(cols).saturating_mul(tokens + Self::PACK_COST);
        // Several pieces a thread, so that a late thread leaves little to wait for.
        let pieces = if threads == 1 { 1 } else { (cost / Self::PIECE_MIN).clamp(1, 4 * threads) };
        let units = rows.div_ceil(UNIT);
        let units_each = units.div_ceil(pieces);
        // Too few rows for the pieces wanted: cut tokens too, though each cut packs the weights again.
        let token_pieces = (pieces / units.div_ceil(units_each)).clamp(1, tokens.div_ceil(64));
        Self { rows, tokens, rows_each: units_each * UNIT, tokens_each: tokens.div_ceil(token_pieces) }
    }

    fn count(self) -> usize {
        self.rows.div_ceil(self.rows_each) * self.tokens.div_ceil(self.tokens_each)
    }

    fn get(self, i: usize) -> (Range<usize>, Range<usize>) {
        let across = self.tokens.div_ceil(self.tokens_each);
        let (row, token) = (i / across * self.rows_each, i % across * self.tokens_each);
        (row..(row + self.rows_each).min(self.rows), token..(token + self.tokens_each).min(self.tokens))
    }
}

/// One matrix product and where its results go.
struct Product<'a> {
    level: Dispatch,
    w: &'a Matrix<'a>,
    x: &'a Activations<'a>,
    out: Output<'a>,
}

thread_local! {
    /// The panels of this thread's rows, kept to be filled again.
    static PANELS: RefCell<[Panel; 2]> = RefCell::default();
}

impl Product<'_> {
    /// Computes a rectangle of the output; calls at one time are for disjoint ones.
    fn compute(&self, rows: Range<usize>, tokens: Range<usize>) {
        let vectors = PANELS.with_borrow_mut(|panels| {
            let rectangle = Rectangle { product: self, rows: rows.clone(), tokens: tokens.clone(), panels };
            run(self.level, rectangle).is_ok()
        });
        if !vectors {
            for t in tokens {
                for row in rows.clone() {
                    self.out.write(t, row, &[scalar::element(self.w, row, self.x, t)]);
                }
            }
        }
    }
}

/// The work of one task.
struct Rectangle<'a> {
    product: &'a Product<'a>,
    rows: Range<usize>,
    tokens: Range<usize>,
    panels: &'a mut [Panel; 2],
}

impl Kernel for Rectangle<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { product, rows, tokens, panels } = self;
        for first in rows.clone().step_by(UNIT) {
            panels[0].pack(s, product.w, first);
            let pair = first + ROWS < rows.end;
            if pair {
                panels[1].pack(s, product.w, first + ROWS);
            }
            let [a, b] = &*panels;
            if pair && S::WIDE {
                product.tokens(s, [a, b], first, tokens.clone());
            } else {
                product.tokens(s, [a], first, tokens.clone());
                if pair {
                    product.tokens(s, [b], first + ROWS, tokens.clone());
                }
            }
        }
    }
}

impl Product<'_> {
    /// The products of panels that start at row `first` with a range of tokens, six, three or one at a time.
    #[inline(always)]
    fn tokens<S: Simd, const P: usize>(&self, s: S, panels: [&Panel; P], first: usize, tokens: Range<usize>) {
        let mut t = tokens.start;
        if S::WIDE {
            while t + 6 <= tokens.end {
                self.tile::<S, P, 6>(s, panels, first, t);
                t += 6;
            }
        }
        while t + 3 <= tokens.end {
            self.tile::<S, P, 3>(s, panels, first, t);
            t += 3;
        }
        while t < tokens.end {
            self.tile::<S, P, 1>(s, panels, first, t);
            t += 1;
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const P: usize, const T: usize>(
        &self,
        s: S,
        panels: [&Panel; P],
        first: usize,
        t: usize,
    ) {
        let y = match self.w.format() {
            Format::F32 | Format::F16 => {
                let cols = self.x.cols();
                let row = |i: usize| &self.x.as_slice()[(t + i) * cols..(t + i + 1) * cols];
                let weights = panels.map(|panel| panel.weights.as_slice());
                tile::floats(s, weights, std::array::from_fn::<_, T, _>(row))
            }
            Format::Q8_0 => tile::q8_0(s, panels, self.x.q8_0(), t),
            Format::Q4K => tile::k_quant::<S, P, T, 32, true>(s, panels, self.x.q8_k(), t),
            Format::Q6K => tile::k_quant::<S, P, T, 16, false>(s, panels, self.x.q8_k(), t),
        };
        let mut lanes = [0.0; ROWS];
        for (p, y) in y.iter().enumerate() {
            let row = first + ROWS * p;
            let n = ROWS.min(self.w.rows() - row);
            for (i, y) in y.iter().enumerate() {
                s.store(*y, &mut lanes);
                self.out.write(t + i, row, &lanes[..n]);
            }
        }
    }
}

#[cfg(test)]
mod tests;
