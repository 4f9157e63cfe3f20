//! The definition of a matrix product's elements in plain Rust. Slow, and the oracle of every other level.

use crate::activations::{Activations, QuantizedRows};
use crate::blocks::{
    K_LEN, Q4K_BYTES, Q6K_BYTES, Q8_0_BYTES, Q8_0_LEN, q4k_quants, q4k_scales, q6k_quants, q6k_scales,
    q8_0_quants, q8_0_scale,
};
use crate::f16::f16_to_f32;
use crate::format::{Format, Matrix};

/// Output element of weight row `row` and activation row `t`.
pub(super) fn element(w: &Matrix<'_>, row: usize, x: &Activations<'_>, t: usize) -> f32 {
    let cols = w.cols();
    let bytes = w.row(row);
    let floats = || &x.as_slice()[t * cols..(t + 1) * cols];
    match w.format() {
        Format::F32 => {
            let weights = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
            float_row(weights, floats())
        }
        Format::F16 => {
            let weights = bytes.as_chunks::<2>().0.iter().map(|b| f16_to_f32(u16::from_le_bytes(*b)));
            float_row(weights, floats())
        }
        Format::Q8_0 => q8_0_row(bytes.as_chunks().0, x.q8_0(), t, cols),
        Format::Q4K => q4k_row(bytes.as_chunks().0, x.q8_k(), t, cols),
        Format::Q6K => q6k_row(bytes.as_chunks().0, x.q8_k(), t, cols),
    }
}

/// Columns of a float row that are summed on their own.
pub(crate) const FLOAT_BLOCK: usize = 32;

fn float_row(mut weights: impl Iterator<Item = f32>, x: &[f32]) -> f32 {
    let mut y = 0.0;
    for block in x.chunks(FLOAT_BLOCK) {
        let mut s = 0.0f32;
        for (x, w) in block.iter().zip(&mut weights) {
            s = w.mul_add(*x, s);
        }
        y += s;
    }
    y
}

/// `Σ (w - below) q` of one group.
fn group_dot(w: &[u8], q: &[i8], below: i32) -> i32 {
    w.iter().zip(q).map(|(&w, &q)| (i32::from(w) - below) * i32::from(q)).sum()
}

fn q8_0_row(blocks: &[[u8; Q8_0_BYTES]], x: &QuantizedRows, t: usize, cols: usize) -> f32 {
    let q = x.q[t * cols..].as_chunks::<Q8_0_LEN>().0;
    let scales = &x.scale[t * (cols / Q8_0_LEN)..];
    let mut y = 0.0f32;
    for ((block, q), dx) in blocks.iter().zip(q).zip(scales) {
        let weights = q8_0_quants(block).iter().map(|&w| i32::from(w as i8));
        let dot: i32 = weights.zip(q).map(|(w, &q)| w * i32::from(q)).sum();
        y = (dot as f32).mul_add(q8_0_scale(block) * dx, y);
    }
    y
}

fn q4k_row(blocks: &[[u8; Q4K_BYTES]], x: &QuantizedRows, t: usize, cols: usize) -> f32 {
    let q = x.q[t * cols..].as_chunks::<K_LEN>().0;
    let scales = &x.scale[t * (cols / K_LEN)..];
    let mut y = 0.0f32;
    let mut weights = [0; K_LEN];
    for ((block, q), dx) in blocks.iter().zip(q).zip(scales) {
        q4k_quants(block, &mut weights);
        let group = q4k_scales(block);
        let mut a = 0.0f32;
        for (j, (w, q)) in weights.chunks(32).zip(q.chunks(32)).enumerate() {
            a = (group_dot(w, q, 0) as f32).mul_add(group.scale[j], a);
        }
        for (j, q) in q.chunks(32).enumerate() {
            let sum: i32 = q.iter().map(|&q| i32::from(q)).sum();
            a = (sum as f32).mul_add(-group.min[j], a);
        }
        y = a.mul_add(*dx, y);
    }
    y
}

fn q6k_row(blocks: &[[u8; Q6K_BYTES]], x: &QuantizedRows, t: usize, cols: usize) -> f32 {
    let q = x.q[t * cols..].as_chunks::<K_LEN>().0;
    let scales = &x.scale[t * (cols / K_LEN)..];
    let mut y = 0.0f32;
    let mut weights = [0; K_LEN];
    for ((block, q), dx) in blocks.iter().zip(q).zip(scales) {
        q6k_quants(block, &mut weights);
        let group = q6k_scales(block);
        let mut a = 0.0f32;
        for (j, (w, q)) in weights.chunks(16).zip(q.chunks(16)).enumerate() {
            a = (group_dot(w, q, 32) as f32).mul_add(group[j], a);
        }
        y = a.mul_add(*dx, y);
    }
    y
}
