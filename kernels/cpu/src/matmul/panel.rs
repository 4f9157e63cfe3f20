//! Sixteen weight rows packed side by side, so that one register lane belongs to one row.
//!
//! Step `k` of a panel holds columns `4 k..4 k + 4` (bytes) or column `k` (floats) of all sixteen rows on one cache
//! line; scales of a group lie likewise. Packing costs about as much as multiplying with two or three activation
//! rows, and is what keeps the sum of an element inside its lane.

#![allow(
    clippy::needless_range_loop,
    reason = "one index names the same row in arrays of rows, lanes and scales; see `simd` on closures"
)]

use crate::blocks::{K_LEN, Q4K_BYTES, Q6K_BYTES, Q8_0_BYTES, q6k_quants, q6k_scales, q8_0_quants};
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

/// Bytes of a row past the last whole line, padded with zeros.
fn padded(tail: &[u8]) -> [u8; 64] {
    let mut line = [0; 64];
    line[..tail.len()].copy_from_slice(tail);
    line
}

/// Sixteen halves from the bytes of a file.
#[inline(always)]
fn halves(bytes: &[u8; 32]) -> [u16; ROWS] {
    let mut halves = [0; ROWS];
    for (half, bytes) in halves.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *half = u16::from_le_bytes(*bytes);
    }
    halves
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

    /// Makes room for whole transposes of `steps` lines and for scales.
    fn reset(&mut self, steps: usize, scales: usize, minima: usize) {
        self.weights.resize(steps.next_multiple_of(ROWS), Line([0; 64]));
        self.scales.resize(scales, Floats([0.0; ROWS]));
        self.minima.resize(minima, Floats([0.0; ROWS]));
    }

    #[inline(always)]
    fn pack_f32<S: Simd>(&mut self, s: S, rows: [&[u8]; ROWS], cols: usize) {
        self.reset(cols, 0, 0);
        let mut units = [s.splat_int(0); ROWS];
        for (c, lines) in self.weights.as_chunks_mut().0.iter_mut().enumerate() {
            for i in 0..ROWS {
                let (whole, tail) = rows[i].as_chunks::<64>();
                units[i] = if c < whole.len() { s.units(&whole[c]) } else { s.units(&padded(tail)) };
            }
            s.transpose(units, lines);
        }
    }

    #[inline(always)]
    fn pack_f16<S: Simd>(&mut self, s: S, rows: [&[u8]; ROWS], cols: usize) {
        self.reset(cols, 0, 0);
        let mut units = [s.splat_int(0); ROWS];
        for (c, lines) in self.weights.as_chunks_mut().0.iter_mut().enumerate() {
            for i in 0..ROWS {
                let (whole, tail) = rows[i].as_chunks::<32>();
                let row = if c < whole.len() {
                    halves(&whole[c])
                } else {
                    halves(padded(tail).first_chunk().expect("64 bytes begin with 32"))
                };
                units[i] = s.bits(s.widen(&row));
            }
            s.transpose(units, lines);
        }
    }

    #[inline(always)]
    fn pack_q8_0<S: Simd>(&mut self, s: S, rows: [&[[u8; Q8_0_BYTES]]; ROWS]) {
        let blocks = rows[0].len();
        self.reset(blocks * 8, blocks, 0);
        let mut units = [s.splat_int(0); ROWS];
        for (pair, lines) in self.weights.as_chunks_mut().0.iter_mut().enumerate() {
            // An odd last block is taken twice; nothing reads the second.
            let (a, b) = (2 * pair, (2 * pair + 1).min(blocks - 1));
            let (mut scale_a, mut scale_b) = ([0; ROWS], [0; ROWS]);
            for i in 0..ROWS {
                let (low, high) = (&rows[i][a], &rows[i][b]);
                units[i] = s.raised(s.joined(q8_0_quants(low), q8_0_quants(high)));
                scale_a[i] = u16::from_le_bytes([low[0], low[1]]);
                scale_b[i] = u16::from_le_bytes([high[0], high[1]]);
            }
            s.transpose(units, lines);
            s.store(s.widen(&scale_a), &mut self.scales[a].0);
            s.store(s.widen(&scale_b), &mut self.scales[b].0);
        }
    }

    #[inline(always)]
    fn pack_q4k<S: Simd>(&mut self, s: S, rows: [&[[u8; Q4K_BYTES]]; ROWS]) {
        let blocks = rows[0].len();
        self.reset(blocks * K_LEN / 4, blocks * 8, blocks * 8);
        let groups = self.scales.as_chunks_mut::<8>().0.iter_mut().zip(self.minima.as_chunks_mut::<8>().0);
        let mut units = [s.splat_int(0); ROWS];
        for ((b, lines), (scales, minima)) in
            self.weights.as_chunks_mut::<64>().0.iter_mut().enumerate().zip(groups)
        {
            let mut head = [Line([0; 64]); ROWS];
            for i in 0..ROWS {
                units[i] = s.units(rows[i][b].first_chunk().expect("a block of 144 bytes begins with 64"));
            }
            s.transpose(units, &mut head);
            q4k_heads(&head, scales, minima);
            for (part, lines) in lines.as_chunks_mut().0.iter_mut().enumerate() {
                for i in 0..ROWS {
                    units[i] = s.nibbles(&rows[i][b][16..].as_chunks().0[part]);
                }
                s.transpose(units, lines);
            }
        }
    }

    #[inline(always)]
    fn pack_q6k<S: Simd>(&mut self, s: S, rows: [&[[u8; Q6K_BYTES]]; ROWS]) {
        let blocks = rows[0].len();
        self.reset(blocks * K_LEN / 4, blocks * 16, 0);
        let groups = self.scales.as_chunks_mut::<16>().0;
        let mut units = [s.splat_int(0); ROWS];
        let mut stage = [[0; K_LEN]; ROWS];
        for ((b, lines), scales) in self.weights.as_chunks_mut::<64>().0.iter_mut().enumerate().zip(groups) {
            for i in 0..ROWS {
                q6k_quants(&rows[i][b], &mut stage[i]);
                for (scale, value) in scales.iter_mut().zip(q6k_scales(&rows[i][b])) {
                    scale.0[i] = value;
                }
            }
            for (part, lines) in lines.as_chunks_mut().0.iter_mut().enumerate() {
                for i in 0..ROWS {
                    units[i] = s.units(&stage[i].as_chunks().0[part]);
                }
                s.transpose(units, lines);
            }
        }
    }
}

/// [`crate::blocks::q4k_scales`] of sixteen rows at once, minima negated: unit `k` of row `i` of the blocks' first
/// bytes is unit `i` of `head[k]` (0 holds both halves, 1 to 3 the packed scales and minima).
#[inline(always)]
fn q4k_heads(head: &[Line; ROWS], scales: &mut [Floats; 8], minima: &mut [Floats; 8]) {
    let mut units = [[0u32; ROWS]; 4];
    for (units, line) in units.iter_mut().zip(head) {
        for (unit, bytes) in units.iter_mut().zip(line.0.as_chunks().0) {
            *unit = u32::from_le_bytes(*bytes);
        }
    }
    let (mut d, mut dmin) = ([0.0; ROWS], [0.0; ROWS]);
    for i in 0..ROWS {
        d[i] = f16_to_f32(units[0][i] as u16);
        dmin[i] = -f16_to_f32((units[0][i] >> 16) as u16);
    }
    for j in 0..4 {
        for i in 0..ROWS {
            let byte = |k: usize| (units[k][i] >> (8 * j)) as i32 & 255;
            let (low, mid, high) = (byte(1), byte(2), byte(3));
            scales[j].0[i] = d[i] * (low & 63) as f32;
            minima[j].0[i] = dmin[i] * (mid & 63) as f32;
            scales[4 + j].0[i] = d[i] * (high & 15 | low >> 6 << 4) as f32;
            minima[4 + j].0[i] = dmin[i] * (high >> 4 | mid >> 6 << 4) as f32;
        }
    }
}
