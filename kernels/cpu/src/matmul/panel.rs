//! Sixteen weight rows packed side by side, so that one register lane belongs to one row.
//!
//! Step `k` of a panel holds columns `4 k..4 k + 4` (bytes) or column `k` (floats) of all sixteen rows on one
//! cache line. The scales of a group lie the same way. A panel holds a range of blocks that is short enough
//! to stay in the L1 cache while every token is multiplied with it.

#![allow(
    clippy::needless_range_loop,
    reason = "one index names the same row in arrays of rows, lanes and scales; see `simd` on closures"
)]

use std::ops::Range;

use super::heads::Heads;
use super::quants::{bfloats, chunks, interleaved, pair, part, scales};
use super::strip::Strip;
use crate::blocks::{K_LEN, Long, SHORT_LEN, Short};
use crate::format::{Format, STRIP_ROWS};
use crate::simd::{Floats, Line, Simd};

/// Rows of a panel.
pub(super) const ROWS: usize = STRIP_ROWS;

/// One block of each row of a panel.
pub(super) type Blocks<'a> = [&'a [u8]; ROWS];

/// One packed panel; its buffers are reused.
#[derive(Debug, Default)]
pub(super) struct Panel {
    /// Weights, one line per step.
    pub weights: Vec<Line>,
    /// Super-blocks: the integer scales of each group, as floats or integers, whichever [`Long::FLOAT_PARTS`]
    /// asks for.
    pub scales: Vec<Line>,
    /// Super-blocks: the integer minima of two groups as signed words: groups 0 and 2, 1 and 3, 4 and 6, and
    /// so on.
    pub minima: Vec<Line>,
    /// A super-block for tiles: the lines of `weights` times their scales, low and high digits, in four
    /// parts.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has a tile unit"))]
    pub digits: Vec<[[Line; ROWS]; 2]>,
    /// The scale or `d` of each block.
    pub d: Vec<Floats>,
    /// The minimum or minus `dmin` of each block.
    pub m: Vec<Floats>,
}

/// Returns the bytes of a row past its last whole line, padded with zeros.
fn padded(tail: &[u8]) -> [u8; 64] {
    let mut line = [0; 64];
    line[..tail.len()].copy_from_slice(tail);
    line
}

/// Reads sixteen binary16 numbers from the bytes of a file.
#[inline(always)]
fn halves(bytes: &[u8; 32]) -> [u16; ROWS] {
    let mut halves = [0; ROWS];
    for (half, bytes) in halves.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *half = u16::from_le_bytes(*bytes);
    }
    halves
}

/// Returns the bits of sixteen numbers of two bytes: part `c` of columns `cols` of row `i`, zeros past the
/// last column.
#[inline(always)]
fn half_columns(rows: &Strip<'_>, i: usize, cols: &Range<usize>, c: usize) -> [u16; ROWS] {
    let (whole, tail) = rows.run(i, 2 * cols.start..2 * cols.end).as_chunks::<32>();
    match tail.first_chunk::<16>() {
        _ if c < whole.len() => halves(&whole[c]),
        // Rows of eight numbers, as in an adapter of rank 8: a copy of a known length.
        Some(eight) if tail.len() == 16 => {
            let mut line = [0; 32];
            line[..16].copy_from_slice(eight);
            halves(&line)
        }
        _ => halves(part(&padded(tail), 0)),
    }
}

impl Panel {
    /// Makes room for `steps` lines, rounded up to whole transposes, and for `blocks` blocks.
    fn reset(&mut self, steps: usize, blocks: usize, groups: usize, minima: usize) {
        self.weights.resize(steps.next_multiple_of(ROWS), Line([0; 64]));
        self.scales.resize(blocks * groups, Line([0; 64]));
        self.minima.resize(blocks * minima, Line([0; 64]));
        self.d.resize(blocks, Floats([0.0; ROWS]));
        self.m.resize(blocks, Floats([0.0; ROWS]));
    }

    /// Packs columns `cols` of F32 rows, zeros past the last column.
    #[inline(always)]
    pub(super) fn pack_f32<S: Simd>(&mut self, s: S, rows: &Strip<'_>, cols: Range<usize>) {
        self.reset(cols.len(), 0, 0, 0);
        let mut units = [s.splat_int(0); ROWS];
        for (c, lines) in self.weights.as_chunks_mut::<ROWS>().0.iter_mut().enumerate() {
            for i in 0..ROWS {
                let (whole, tail) = rows.run(i, 4 * cols.start..4 * cols.end).as_chunks::<64>();
                units[i] = if c < whole.len() { s.units(&whole[c]) } else { s.units(&padded(tail)) };
            }
            store(s, s.transpose(units), lines);
        }
    }

    /// Packs columns `cols` of F16 rows as floats, zeros past the last column.
    #[inline(always)]
    pub(super) fn pack_f16<S: Simd>(&mut self, s: S, rows: &Strip<'_>, cols: Range<usize>) {
        self.reset(cols.len(), 0, 0, 0);
        let mut units = [s.splat_int(0); ROWS];
        for (c, lines) in self.weights.as_chunks_mut::<ROWS>().0.iter_mut().enumerate() {
            for i in 0..ROWS {
                units[i] = s.bits(s.widen(&half_columns(rows, i, &cols, c)));
            }
            store(s, s.transpose(units), lines);
        }
    }

    /// Packs columns `cols` of BF16 rows as floats, zeros past the last column.
    #[inline(always)]
    pub(super) fn pack_bf16<S: Simd>(&mut self, s: S, rows: &Strip<'_>, cols: Range<usize>) {
        self.reset(cols.len(), 0, 0, 0);
        let mut units = [s.splat_int(0); ROWS];
        for (c, lines) in self.weights.as_chunks_mut::<ROWS>().0.iter_mut().enumerate() {
            for i in 0..ROWS {
                units[i] = bfloats(s, &half_columns(rows, i, &cols, c));
            }
            store(s, s.transpose(units), lines);
        }
    }

    /// Packs short blocks `blocks`.
    #[inline(always)]
    pub(super) fn pack_short<S: Simd, B: Short>(&mut self, s: S, rows: &Strip<'_>, blocks: Range<usize>) {
        const STEPS: usize = SHORT_LEN / 4;
        let bytes = B::FORMAT.block_bytes();
        self.reset(blocks.len() * STEPS, blocks.len(), 0, 0);
        let mut units = [s.splat_int(0); ROWS];
        for (two, lines) in self.weights.as_chunks_mut::<ROWS>().0.iter_mut().enumerate() {
            // An odd last block is loaded twice; the second copy is not read.
            let a = blocks.start + 2 * two;
            let b = (a + 1).min(blocks.end - 1);
            let (mut scale, mut minimum) = ([[0; ROWS]; 2], [[0; ROWS]; 2]);
            for i in 0..ROWS {
                let own = [rows.block(i, a, bytes), rows.block(i, b, bytes)];
                prefetch_ahead(s, own[0], rows.row_bytes);
                units[i] = pair::<S, B>(s, own[0], own[1]);
                for j in 0..2 {
                    scale[j][i] = B::scale(own[j]);
                    minimum[j][i] = B::minimum(own[j]);
                }
            }
            store(s, s.transpose(units), lines);
            for (j, at) in (2 * two..blocks.len().min(2 * two + 2)).enumerate() {
                s.store(scales::<S, B>(s, &scale[j]), &mut self.d[at].0);
                if B::MINIMUM {
                    s.store(s.widen(&minimum[j]), &mut self.m[at].0);
                }
            }
        }
    }

    /// Packs super-blocks `blocks`.
    #[inline(always)]
    pub(super) fn pack_long<S: Simd, B: Long>(&mut self, s: S, rows: &Strip<'_>, blocks: Range<usize>) {
        let groups = K_LEN / B::GROUP;
        self.reset(blocks.len() * K_LEN / 4, blocks.len(), groups, groups / 2);
        for (at, b) in blocks.enumerate() {
            let mut own: Blocks<'_> = [&[]; ROWS];
            for i in 0..ROWS {
                own[i] = rows.block(i, b, B::FORMAT.block_bytes());
                prefetch_ahead(s, own[i], rows.row_bytes);
            }
            let lines = self.weights[at * K_LEN / 4..].first_chunk_mut().expect("reset made the room");
            match B::FORMAT {
                Format::Q4K => pack_q4k(s, own, lines),
                Format::Q6K => pack_q6k(s, own, lines),
                _ => pack_chunks::<S, B>(s, own, lines),
            }
            self.pack_scales::<S, B>(s, own, at);
        }
    }

    /// Packs the scales, minima and units of one super-block of sixteen rows.
    #[inline(always)]
    fn pack_scales<S: Simd, B: Long>(&mut self, s: S, own: Blocks<'_>, at: usize) {
        let groups = K_LEN / B::GROUP;
        let heads = Heads::of::<B>(s, own);
        let lines = &mut self.scales[at * groups..(at + 1) * groups];
        if B::GROUP == 32 && !interleaved::<B>() {
            // There is one scale per 16 weights; here neighbours are equal, so every second one is taken.
            for (four, lines) in heads.scales.into_iter().zip(lines.as_chunks_mut::<2>().0) {
                s.store_units(scale::<S, B>(s, s.byte::<0>(four)), &mut lines[0]);
                s.store_units(scale::<S, B>(s, s.byte::<2>(four)), &mut lines[1]);
            }
        } else {
            for (four, lines) in heads.scales.into_iter().zip(lines.as_chunks_mut::<4>().0) {
                s.store_units(scale::<S, B>(s, s.byte::<0>(four)), &mut lines[0]);
                s.store_units(scale::<S, B>(s, s.byte::<1>(four)), &mut lines[1]);
                s.store_units(scale::<S, B>(s, s.byte::<2>(four)), &mut lines[2]);
                s.store_units(scale::<S, B>(s, s.byte::<3>(four)), &mut lines[3]);
            }
        }
        s.store(heads.d, &mut self.d[at].0);
        if B::MINIMA {
            let lines = &mut self.minima[at * groups / 2..(at + 1) * groups / 2];
            for (four, lines) in heads.minima.into_iter().zip(lines.as_chunks_mut::<2>().0) {
                s.store_units(s.even_bytes(four), &mut lines[0]);
                s.store_units(s.odd_bytes(four), &mut lines[1]);
            }
            s.store(heads.m, &mut self.m[at].0);
        }
    }
}

/// Prefetches the same block of the row two panels later, which is needed once these panels have been
/// multiplied.
#[inline(always)]
fn prefetch_ahead<S: Simd>(s: S, block: &[u8], row_bytes: usize) {
    for line in (0..block.len()).step_by(64) {
        s.prefetch_far(block.as_ptr().wrapping_add(2 * ROWS * row_bytes + line));
    }
}

/// Converts integer scales to the form that [`Panel::scales`] keeps.
#[inline(always)]
fn scale<S: Simd, B: Long>(s: S, v: S::I) -> S::I {
    if B::FLOAT_PARTS > 0 { s.bits(s.to_float(v)) } else { v }
}

#[inline(always)]
fn store<S: Simd>(s: S, columns: [S::I; ROWS], lines: &mut [Line; ROWS]) {
    for i in 0..ROWS {
        s.store_units(columns[i], &mut lines[i]);
    }
}

/// Packs any format: the quants of each row, then one transpose per 64 columns.
#[inline(always)]
fn pack_chunks<S: Simd, B: Long>(s: S, own: Blocks<'_>, lines: &mut [Line; K_LEN / 4]) {
    assert!(!interleaved::<B>(), "interleaved formats are packed by functions of their own");
    let mut parts = [[s.splat_int(0); ROWS]; 4];
    for i in 0..ROWS {
        let row = chunks::<S, B>(s, own[i]);
        for c in 0..4 {
            parts[c][i] = row[c];
        }
    }
    for (part, lines) in parts.into_iter().zip(lines.as_chunks_mut().0) {
        store(s, s.transpose(part), lines);
    }
}

/// Packs Q4_K: transposes bytes of two weights each and splits them afterwards, which halves the shuffles.
#[inline(always)]
fn pack_q4k<S: Simd>(s: S, own: Blocks<'_>, lines: &mut [Line; K_LEN / 4]) {
    for (half, lines) in lines.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let mut units = [s.splat_int(0); ROWS];
        for i in 0..ROWS {
            units[i] = s.units(part(own[i], 16 + 64 * half));
        }
        let columns = s.transpose(units);
        for k in 0..ROWS {
            // Eight steps of one group's low nibbles, then eight of the next group's high nibbles.
            let step = k / 8 * 16 + k % 8;
            s.store_units(s.low_nibbles(columns[k]), &mut lines[step]);
            s.store_units(s.high_nibbles(columns[k]), &mut lines[step + 8]);
        }
    }
}

/// Packs Q6_K as [`pack_q4k`] does Q4_K; the high bits of four weights share a byte.
#[inline(always)]
fn pack_q6k<S: Simd>(s: S, own: Blocks<'_>, lines: &mut [Line; K_LEN / 4]) {
    let mut units = [s.splat_int(0); ROWS];
    for i in 0..ROWS {
        units[i] = s.units(part(own[i], 128));
    }
    let high = s.transpose(units);
    for (half, lines) in lines.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for i in 0..ROWS {
            units[i] = s.units(part(own[i], 64 * half));
        }
        let low = s.transpose(units);
        for k in 0..8 {
            let (a, b, h) = (low[k], low[8 + k], high[8 * half + k]);
            s.store_units(s.or(s.low_nibbles(a), s.two_bits::<0>(h)), &mut lines[k]);
            s.store_units(s.or(s.low_nibbles(b), s.two_bits::<2>(h)), &mut lines[8 + k]);
            s.store_units(s.or(s.high_nibbles(a), s.two_bits::<4>(h)), &mut lines[16 + k]);
            s.store_units(s.or(s.high_nibbles(b), s.two_bits::<6>(h)), &mut lines[24 + k]);
        }
    }
}
