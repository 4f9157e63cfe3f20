//! Sixteen weight rows packed side by side, so that one register lane belongs to one row.
//!
//! Step `k` of a panel holds columns `4 k..4 k + 4` (bytes) or column `k` (floats) of all sixteen rows on one cache
//! line; scales of a group lie likewise. Packing costs about as much as multiplying with two or three activation
//! rows, and is what keeps the sum of an element inside its lane.

use crate::blocks::{
    K_LEN, Q4K_BYTES, Q6K_BYTES, Q8_0_BYTES, Q8_0_LEN, q4k_quants, q4k_scales, q6k_quants, q6k_scales,
    q8_0_quants,
};
use crate::f16::f16_to_f32;
use crate::format::{Format, Matrix};
use crate::simd::{Floats, Line, Simd};

/// Rows of a panel.
pub(super) const ROWS: usize = 16;

/// One packed panel; its buffers are kept from use to use.
#[derive(Debug, Default)]
pub(super) struct Panel {
    /// Weights, a line a step; columns past the last are not read.
    pub weights: Vec<Line>,
    /// Scales of the groups of 16 (Q6_K) or 32 columns.
    pub scales: Vec<Floats>,
    /// Minus the minima of Q4_K's groups.
    pub minima: Vec<Floats>,
}

/// Sixteen rows of 256 decoded bytes, on their way to being transposed.
#[repr(align(64))]
struct Stage([[u8; K_LEN]; ROWS]);

impl Stage {
    const EMPTY: Self = Self([[0; K_LEN]; ROWS]);

    #[inline(always)]
    fn columns<S: Simd>(&self, s: S, part: usize) -> [S::I; ROWS] {
        std::array::from_fn(|i| s.units(&self.0[i].as_chunks::<64>().0[part]))
    }
}

impl Panel {
    /// Packs rows `first..first + 16` of `w`; past the last row it is repeated.
    #[inline(always)]
    pub fn pack<S: Simd>(&mut self, s: S, w: &Matrix<'_>, first: usize) {
        let rows: [&[u8]; ROWS] = std::array::from_fn(|i| w.row((first + i).min(w.rows() - 1)));
        match w.format() {
            Format::F32 => self.pack_f32(s, rows, w.cols()),
            Format::F16 => self.pack_f16(s, rows, w.cols()),
            Format::Q8_0 => self.pack_q8_0(s, rows.map(|row| row.as_chunks().0)),
            Format::Q4K => self.pack_q4k(s, rows.map(|row| row.as_chunks().0)),
            Format::Q6K => self.pack_q6k(s, rows.map(|row| row.as_chunks().0)),
        }
    }

    /// Makes room for whole transposes of `steps` lines and for scales, and gives the transposes.
    #[inline(always)]
    fn reset(&mut self, steps: usize, scales: usize, minima: usize) -> &mut [[Line; ROWS]] {
        self.weights.resize(steps.next_multiple_of(ROWS), Line([0; 64]));
        self.scales.resize(scales, Floats([0.0; ROWS]));
        self.minima.resize(minima, Floats([0.0; ROWS]));
        self.weights.as_chunks_mut().0
    }

    #[inline(always)]
    fn pack_f32<S: Simd>(&mut self, s: S, rows: [&[u8]; ROWS], cols: usize) {
        let chunks = rows.map(|row| row.as_chunks::<64>());
        for (c, lines) in self.reset(cols, 0, 0).iter_mut().enumerate() {
            if c < chunks[0].0.len() {
                s.transpose(std::array::from_fn(|i| s.units(&chunks[i].0[c])), lines);
            } else {
                let mut stage = Stage::EMPTY;
                for (row, (_, tail)) in stage.0.iter_mut().zip(chunks) {
                    row[..tail.len()].copy_from_slice(tail);
                }
                s.transpose(stage.columns(s, 0), lines);
            }
        }
    }

    #[inline(always)]
    fn pack_f16<S: Simd>(&mut self, s: S, rows: [&[u8]; ROWS], cols: usize) {
        let mut stage = Stage::EMPTY;
        for (c, lines) in self.reset(cols, 0, 0).iter_mut().enumerate() {
            for (to, row) in stage.0.iter_mut().zip(rows) {
                let halves = &row[32 * c..row.len().min(32 * (c + 1))];
                for (to, half) in to.as_chunks_mut::<4>().0.iter_mut().zip(halves.as_chunks::<2>().0) {
                    *to = f16_to_f32(u16::from_le_bytes(*half)).to_ne_bytes();
                }
            }
            s.transpose(stage.columns(s, 0), lines);
        }
    }

    #[inline(always)]
    fn pack_q8_0<S: Simd>(&mut self, s: S, rows: [&[[u8; Q8_0_BYTES]]; ROWS]) {
        let raise = if S::RAISES_SIGNED { 0x80 } else { 0 };
        let blocks = rows[0].len();
        let mut stage = Stage::EMPTY;
        for (pair, lines) in self.reset(blocks * Q8_0_LEN / 4, blocks, 0).iter_mut().enumerate() {
            for (to, row) in stage.0.iter_mut().zip(rows) {
                for (to, block) in
                    to.as_chunks_mut::<Q8_0_LEN>().0.iter_mut().zip(&row[2 * pair..blocks.min(2 * pair + 2)])
                {
                    for (to, q) in to.iter_mut().zip(q8_0_quants(block)) {
                        *to = q ^ raise;
                    }
                }
            }
            s.transpose(stage.columns(s, 0), lines);
        }
        for (b, scales) in self.scales.iter_mut().enumerate() {
            let halves: [u16; ROWS] = rows.map(|row| u16::from_le_bytes([row[b][0], row[b][1]]));
            scales.0 = halves.map(f16_to_f32);
        }
    }

    #[inline(always)]
    fn pack_q4k<S: Simd>(&mut self, s: S, rows: [&[[u8; Q4K_BYTES]]; ROWS]) {
        let blocks = rows[0].len();
        let mut stage = Stage::EMPTY;
        self.reset(blocks * K_LEN / 4, blocks * 8, blocks * 8);
        let groups = self.scales.as_chunks_mut::<8>().0.iter_mut().zip(self.minima.as_chunks_mut::<8>().0);
        for ((b, lines), (scales, minima)) in
            self.weights.as_chunks_mut::<64>().0.iter_mut().enumerate().zip(groups)
        {
            for (i, (to, row)) in stage.0.iter_mut().zip(rows).enumerate() {
                q4k_quants(&row[b], to);
                let group = q4k_scales(&row[b]);
                for j in 0..8 {
                    scales[j].0[i] = group.scale[j];
                    minima[j].0[i] = -group.min[j];
                }
            }
            transpose_all(s, &stage, lines);
        }
    }

    #[inline(always)]
    fn pack_q6k<S: Simd>(&mut self, s: S, rows: [&[[u8; Q6K_BYTES]]; ROWS]) {
        let blocks = rows[0].len();
        let mut stage = Stage::EMPTY;
        self.reset(blocks * K_LEN / 4, blocks * 16, 0);
        let groups = self.scales.as_chunks_mut::<16>().0;
        for ((b, lines), scales) in self.weights.as_chunks_mut::<64>().0.iter_mut().enumerate().zip(groups) {
            for (i, (to, row)) in stage.0.iter_mut().zip(rows).enumerate() {
                q6k_quants(&row[b], to);
                for (scale, value) in scales.iter_mut().zip(q6k_scales(&row[b])) {
                    scale.0[i] = value;
                }
            }
            transpose_all(s, &stage, lines);
        }
    }
}

#[inline(always)]
fn transpose_all<S: Simd>(s: S, stage: &Stage, lines: &mut [Line; 64]) {
    for (part, lines) in lines.as_chunks_mut::<ROWS>().0.iter_mut().enumerate() {
        s.transpose(stage.columns(s, part), lines);
    }
}
