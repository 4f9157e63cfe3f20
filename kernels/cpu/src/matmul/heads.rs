//! The scales, minima and units of sixteen super-blocks at once, read from the bytes of their blocks.

#![allow(
    clippy::needless_range_loop,
    reason = "one index names the same row in arrays of rows and of scales"
)]

use super::panel::{Blocks, ROWS};
use super::quants::{interleaved, part};
use crate::blocks::Long;
use crate::format::Format;
use crate::simd::{Line, Simd};

/// Scales, minima and units of sixteen super-blocks, one row per lane.
pub(super) struct Heads<S: Simd> {
    /// Four scales as bytes, each of a group of 16 weights, or of 32 if the format is interleaved.
    pub scales: [S::I; 4],
    /// Four minima of groups of [`Long::GROUP`] as bytes.
    pub minima: [S::I; 4],
    /// `d`, [`Long::UNIT`] included.
    pub d: S::F,
    /// Minus `dmin`.
    pub m: S::F,
}

impl<S: Simd> Heads<S> {
    #[inline(always)]
    pub(super) fn of<B: Long>(s: S, own: Blocks<'_>) -> Self {
        match B::FORMAT {
            Format::Q4K => Self::six_bits(s, own),
            Format::Q6K => Self::sixteen_bytes(s, own),
            _ => Self::any::<B>(s, own),
        }
    }

    /// Reads the rows one after another, for any format.
    #[inline(always)]
    fn any<B: Long>(s: S, own: Blocks<'_>) -> Self {
        let (mut scales, mut minima) = ([[0; ROWS]; 4], [[0; ROWS]; 4]);
        let (mut d, mut dmin) = ([0; ROWS], [0; ROWS]);
        let four = |bytes: &[i8; 16], at: [usize; 4]| u32::from_le_bytes(at.map(|g| bytes[g] as u8));
        for i in 0..ROWS {
            let (of_16, of_group) = (B::scales(own[i]), B::minima(own[i]));
            [d[i], dmin[i]] = B::units(own[i]);
            for c in 0..4 {
                let natural = [4 * c, 4 * c + 1, 4 * c + 2, 4 * c + 3];
                scales[c][i] = four(&of_16, natural);
                if B::MINIMA && B::GROUP == 16 {
                    minima[c][i] = four(&of_group, natural);
                } else if B::MINIMA && c < 2 {
                    minima[c][i] = four(&of_group, [8 * c, 8 * c + 2, 8 * c + 4, 8 * c + 6]);
                }
            }
        }
        let mut heads = Self::empty(s);
        for c in 0..4 {
            heads.scales[c] = s.units(&bytes_of(&scales[c]));
            heads.minima[c] = s.units(&bytes_of(&minima[c]));
        }
        heads.d = s.mul(s.widen(&d), s.splat(B::UNIT));
        heads.m = s.sub(s.splat(-0.0), s.widen(&dmin));
        heads
    }

    #[inline(always)]
    fn empty(s: S) -> Self {
        let (int, float) = (s.splat_int(0), s.splat(0.0));
        Self { scales: [int; 4], minima: [int; 4], d: float, m: float }
    }

    /// Reads formats that begin with `d`, `dmin` and twelve bytes of six-bit scales and minima. Takes four of
    /// a kind at once; [`crate::blocks`] reads the same layout one by one.
    #[inline(always)]
    fn six_bits(s: S, own: Blocks<'_>) -> Self {
        let mut heads = Self::empty(s);
        let [units, low, mid, high] = columns(s, own, 0);
        heads.scales[0] = s.or(s.low_nibbles(low), s.two_bits::<4>(low));
        heads.minima[0] = s.or(s.low_nibbles(mid), s.two_bits::<4>(mid));
        heads.scales[1] = s.or(s.low_nibbles(high), s.two_bits::<6>(low));
        heads.minima[1] = s.or(s.high_nibbles(high), s.two_bits::<6>(mid));
        let (d, dmin) = halves(s, units);
        heads.d = s.widen(&d);
        heads.m = s.sub(s.splat(-0.0), s.widen(&dmin));
        heads
    }

    /// Reads Q6_K: sixteen scales of one byte, followed by `d`.
    #[inline(always)]
    fn sixteen_bytes(s: S, own: Blocks<'_>) -> Self {
        let mut heads = Self::empty(s);
        heads.scales = columns(s, own, 192);
        let [_, _, _, last] = columns(s, own, 194);
        heads.d = s.widen(&halves(s, last).1);
        heads
    }

    /// Stores the scales as units in memory, so that each row can be spread.
    #[inline(always)]
    pub(super) fn stored(&self, s: S) -> [[u32; ROWS]; 4] {
        let mut stored = [[0; ROWS]; 4];
        for c in 0..4 {
            stored[c] = units_of(s, self.scales[c]);
        }
        stored
    }

    /// Returns the scales of row `i` as [`Simd::dot_scaled`] takes them, for each of
    /// [`super::quants::chunks`].
    #[inline(always)]
    pub(super) fn spread<B: Long>(s: S, stored: &[[u32; ROWS]; 4], i: usize) -> [S::I; 4] {
        if interleaved::<B>() {
            let (low, high) = (stored[0][i], stored[1][i]);
            [
                s.spread::<0, 0, 2, 2>(low),
                s.spread::<1, 1, 3, 3>(low),
                s.spread::<0, 0, 2, 2>(high),
                s.spread::<1, 1, 3, 3>(high),
            ]
        } else {
            [
                s.spread::<0, 1, 2, 3>(stored[0][i]),
                s.spread::<0, 1, 2, 3>(stored[1][i]),
                s.spread::<0, 1, 2, 3>(stored[2][i]),
                s.spread::<0, 1, 2, 3>(stored[3][i]),
            ]
        }
    }

    /// Returns `Σ factor Σ q` over groups of activations, lane by lane. Four factors are in a unit; the sums
    /// are as in [`SumWords`].
    ///
    /// [`SumWords`]: crate::activations::SumWords
    #[inline(always)]
    pub(super) fn weigh(s: S, factors: &[S::I; 4], words: &[i32]) -> S::I {
        let mut total = s.splat_int(0);
        for (factors, words) in factors.iter().zip(words.as_chunks::<2>().0) {
            total = s.dot_words(total, s.even_bytes(*factors), s.splat_int(words[0]));
            total = s.dot_words(total, s.odd_bytes(*factors), s.splat_int(words[1]));
        }
        total
    }
}

/// Reads four units at `at` of each row, as columns.
#[inline(always)]
fn columns<S: Simd>(s: S, own: Blocks<'_>, at: usize) -> [S::I; 4] {
    let mut bytes = [[0; 16]; ROWS];
    for i in 0..ROWS {
        bytes[i] = *part(own[i], at);
    }
    s.transpose_four(&bytes)
}

/// Returns the low and the high words of sixteen units.
#[inline(always)]
fn halves<S: Simd>(s: S, v: S::I) -> ([u16; ROWS], [u16; ROWS]) {
    let units = units_of(s, v);
    let (mut low, mut high) = ([0; ROWS], [0; ROWS]);
    for i in 0..ROWS {
        (low[i], high[i]) = (units[i] as u16, (units[i] >> 16) as u16);
    }
    (low, high)
}

/// Stores sixteen units in memory.
#[inline(always)]
fn units_of<S: Simd>(s: S, v: S::I) -> [u32; ROWS] {
    let mut line = Line([0; 64]);
    s.store_units(v, &mut line);
    let mut units = [0; ROWS];
    for (unit, bytes) in units.iter_mut().zip(line.0.as_chunks().0) {
        *unit = u32::from_ne_bytes(*bytes);
    }
    units
}

/// Returns sixteen units as their bytes.
#[inline(always)]
fn bytes_of(units: &[u32; ROWS]) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (to, from) in bytes.as_chunks_mut().0.iter_mut().zip(units) {
        *to = from.to_ne_bytes();
    }
    bytes
}
