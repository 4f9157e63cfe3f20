//! The scales, minima and units of sixteen super-blocks at once, taken out of their blocks' bytes.

#![allow(
    clippy::needless_range_loop,
    reason = "one index names the same row in arrays of rows and of scales"
)]

use super::panel::{ROWS, Rows};
use super::quants::{interleaved, part};
use crate::blocks::Long;
use crate::format::Format;
use crate::simd::Simd;

/// Scales, minima and units of sixteen super-blocks, by row.
pub(super) struct Heads {
    /// Four scales of groups of 16 (where the format is interleaved: of 32) as bytes.
    pub scales: [[u32; ROWS]; 4],
    /// Four minima of groups of [`Long::GROUP`] as bytes.
    pub minima: [[u32; ROWS]; 4],
    pub d: [u16; ROWS],
    pub dmin: [u16; ROWS],
}

impl Heads {
    #[inline(always)]
    pub fn of<B: Long>(own: Rows<'_>) -> Self {
        match B::FORMAT {
            Format::Q4K => Self::six_bits(own),
            _ => Self::any::<B>(own),
        }
    }

    #[inline(always)]
    fn any<B: Long>(own: Rows<'_>) -> Self {
        let mut heads =
            Self { scales: [[0; ROWS]; 4], minima: [[0; ROWS]; 4], d: [0; ROWS], dmin: [0; ROWS] };
        let four = |bytes: &[i8; 16], at: [usize; 4]| u32::from_le_bytes(at.map(|g| bytes[g] as u8));
        for i in 0..ROWS {
            let (scales, minima) = (B::scales(own[i]), B::minima(own[i]));
            [heads.d[i], heads.dmin[i]] = B::units(own[i]);
            for c in 0..4 {
                heads.scales[c][i] = four(&scales, [4 * c, 4 * c + 1, 4 * c + 2, 4 * c + 3]);
                if B::MINIMA && B::GROUP == 16 {
                    heads.minima[c][i] = four(&minima, [4 * c, 4 * c + 1, 4 * c + 2, 4 * c + 3]);
                } else if B::MINIMA && c < 2 {
                    heads.minima[c][i] = four(&minima, [8 * c, 8 * c + 2, 8 * c + 4, 8 * c + 6]);
                }
            }
        }
        heads
    }

    /// Formats that begin with `d`, `dmin` and twelve bytes of six-bit scales and minima; four of a kind at once, as
    /// [`crate::blocks`] takes them apart one by one.
    #[inline(always)]
    fn six_bits(own: Rows<'_>) -> Self {
        let mut units = [[0u32; ROWS]; 4];
        for i in 0..ROWS {
            let head: &[u8; 16] = part(own[i], 0);
            for (k, bytes) in head.as_chunks().0.iter().enumerate() {
                units[k][i] = u32::from_le_bytes(*bytes);
            }
        }
        let mut heads =
            Self { scales: [[0; ROWS]; 4], minima: [[0; ROWS]; 4], d: [0; ROWS], dmin: [0; ROWS] };
        for i in 0..ROWS {
            let (low, mid, high) = (units[1][i], units[2][i], units[3][i]);
            heads.d[i] = units[0][i] as u16;
            heads.dmin[i] = (units[0][i] >> 16) as u16;
            heads.scales[0][i] = low & 0x3f3f_3f3f;
            heads.minima[0][i] = mid & 0x3f3f_3f3f;
            heads.scales[1][i] = high & 0x0f0f_0f0f | low >> 2 & 0x3030_3030;
            heads.minima[1][i] = high >> 4 & 0x0f0f_0f0f | mid >> 2 & 0x3030_3030;
        }
        heads
    }

    /// The scales of row `i` as [`Simd::dot_scaled`] takes them, for each of [`chunks`].
    #[inline(always)]
    pub fn spread<S: Simd, B: Long>(&self, s: S, i: usize) -> [S::I; 4] {
        if interleaved::<B>() {
            let (low, high) = (self.scales[0][i], self.scales[1][i]);
            [
                s.spread::<0, 0, 2, 2>(low),
                s.spread::<1, 1, 3, 3>(low),
                s.spread::<0, 0, 2, 2>(high),
                s.spread::<1, 1, 3, 3>(high),
            ]
        } else {
            [
                s.spread::<0, 1, 2, 3>(self.scales[0][i]),
                s.spread::<0, 1, 2, 3>(self.scales[1][i]),
                s.spread::<0, 1, 2, 3>(self.scales[2][i]),
                s.spread::<0, 1, 2, 3>(self.scales[3][i]),
            ]
        }
    }

    /// `Σ factor Σ q` over groups of activations, lane by lane: factors four to a unit, sums as [`SumWords`] has them.
    ///
    /// [`SumWords`]: crate::activations::SumWords
    #[inline(always)]
    pub fn weigh<S: Simd>(s: S, factors: &[[u32; ROWS]; 4], words: &[i32]) -> S::I {
        let mut total = s.splat_int(0);
        for (factors, words) in factors.iter().zip(words.as_chunks::<2>().0) {
            let four = s.units(&bytes_of(factors));
            total = s.dot_words(total, s.even_bytes(four), s.splat_int(words[0]));
            total = s.dot_words(total, s.odd_bytes(four), s.splat_int(words[1]));
        }
        total
    }
}

/// Sixteen units as their bytes.
#[inline(always)]
pub(super) fn bytes_of(units: &[u32; ROWS]) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (to, from) in bytes.as_chunks_mut().0.iter_mut().zip(units) {
        *to = from.to_ne_bytes();
    }
    bytes
}
