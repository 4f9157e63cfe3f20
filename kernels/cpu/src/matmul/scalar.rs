//! The definition of the elements of a matrix product in plain Rust: slow, and the reference for every other
//! level.

use crate::activations::Activations;
use crate::blocks::{K_LEN, Long, SHORT_LEN, Short, Visitor, bf16_to_f32, visit};
use crate::f16::f16_to_f32;
use crate::format::Matrix;

/// Returns the output element of weight row `row` and activation row `t`.
pub(super) fn element(w: &Matrix<'_>, row: usize, x: &Activations<'_>, t: usize) -> f32 {
    let stored: Vec<u8> = (0..w.blocks()).flat_map(|b| w.block(row, b)).copied().collect();
    visit(w.format(), Element { bytes: &stored, x, t })
}

/// Columns of a float row that have a partial sum of their own.
pub(crate) const FLOAT_BLOCK: usize = 32;

/// One element: the stored bytes of its weight row, and its activation row.
struct Element<'a> {
    bytes: &'a [u8],
    x: &'a Activations<'a>,
    t: usize,
}

impl Element<'_> {
    fn floats(&self, mut weights: impl Iterator<Item = f32>) -> f32 {
        let cols = self.x.cols();
        let mut y = 0.0;
        for block in self.x.as_slice()[self.t * cols..(self.t + 1) * cols].chunks(FLOAT_BLOCK) {
            let mut s = 0.0f32;
            for (x, w) in block.iter().zip(&mut weights) {
                s = w.mul_add(*x, s);
            }
            y += s;
        }
        y
    }
}

impl Visitor for Element<'_> {
    type Output = f32;

    fn f32(self) -> f32 {
        self.floats(self.bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)))
    }

    fn f16(self) -> f32 {
        self.floats(self.bytes.as_chunks().0.iter().map(|b| f16_to_f32(u16::from_le_bytes(*b))))
    }

    fn bf16(self) -> f32 {
        self.floats(self.bytes.as_chunks().0.iter().map(|b| bf16_to_f32(u16::from_le_bytes(*b))))
    }

    fn short<B: Short>(self) -> f32 {
        let (x, cols) = (self.x.short(), self.x.cols());
        let q = x.q[self.t * cols..].as_chunks::<SHORT_LEN>().0;
        let scales = &x.scale[self.t * (cols / SHORT_LEN)..];
        let mut y = 0.0f32;
        for ((block, q), dx) in self.bytes.chunks_exact(B::FORMAT.block_bytes()).zip(q).zip(scales) {
            let mut weights = [0; SHORT_LEN];
            B::quants(block, &mut weights);
            let mut z = dot(&weights, q, B::RAISE) as f32 * B::float_scale(block);
            if B::MINIMUM {
                z = (sum(q) as f32).mul_add(f16_to_f32(B::minimum(block)), z);
            }
            y = z.mul_add(*dx, y);
        }
        y
    }

    fn long<B: Long>(self) -> f32 {
        let (x, cols) = (self.x.long(), self.x.cols());
        let q = x.q[self.t * cols..].as_chunks::<K_LEN>().0;
        let scales = &x.scale[self.t * (cols / K_LEN)..];
        let mut y = 0.0f32;
        for ((block, q), dx) in self.bytes.chunks_exact(B::FORMAT.block_bytes()).zip(q).zip(scales) {
            let mut weights = [0; K_LEN];
            B::quants(block, &mut weights);
            let [d, dmin] = B::units(block).map(f16_to_f32);
            let groups = || weights.chunks(16).zip(q.chunks(16));
            let dots: i32 =
                groups().zip(B::scales(block)).map(|((w, q), s)| i32::from(s) * dot(w, q, B::RAISE)).sum();
            let mut z = dots as f32 * (d * B::UNIT);
            if B::MINIMA {
                let sums: i32 = groups().zip(B::minima(block)).map(|((_, q), m)| i32::from(m) * sum(q)).sum();
                z = (sums as f32).mul_add(-dmin, z);
            }
            y = z.mul_add(*dx, y);
        }
        y
    }
}

/// `Σ (w - raise) q` of one group.
fn dot(w: &[u8], q: &[u8], raise: u8) -> i32 {
    w.iter().zip(q).map(|(&w, &q)| (i32::from(w) - i32::from(raise)) * i32::from(q as i8)).sum()
}

/// `Σ q` of one group.
fn sum(q: &[u8]) -> i32 {
    q.iter().map(|&q| i32::from(q as i8)).sum()
}
