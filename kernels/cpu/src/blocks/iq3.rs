//! Formats in super-blocks of 256 weights of about three bits: each group of four weights is an index into a
//! codebook of eight magnitudes, with four signs.
//!
//! ggml defines a weight of IQ3_XXS as `d * (s + 1/2) / 2 * ± v` with even `v` of 4 to 62. That is exactly `d
//! / 2 * (2 s + 1) * ± v / 2`. A weight of IQ3_S is `d * (2 s + 1) * ± v` with `v` of 1 to 15. The products
//! have at most 21 significant bits.

use super::codebook::{codebook, even_signs, signed};
use super::iq3_grid::{CODED_S, CODED_XXS};
use super::{K_LEN, Long, four_at, half_at};
use crate::format::Format;

/// The magnitudes of IQ3_XXS, halved.
pub(crate) const IQ3_XXS_VALUES: [u8; 8] = [2, 6, 10, 14, 18, 22, 26, 31];
/// The magnitudes of IQ3_S.
pub(crate) const IQ3_S_VALUES: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];

/// For each code of IQ3_XXS, its halved magnitudes.
pub(crate) static IQ3_XXS_GRID: [[u8; 4]; 256] = codebook(&CODED_XXS, IQ3_XXS_VALUES);
/// For each code of IQ3_S, its magnitudes.
pub(crate) static IQ3_S_GRID: [[u8; 4]; 512] = codebook(&CODED_S, IQ3_S_VALUES);

/// Returns the magnitudes of two codes.
#[inline(always)]
fn joined(low: [u8; 4], high: [u8; 4]) -> [u8; 8] {
    (u64::from(u32::from_le_bytes(low)) | u64::from(u32::from_le_bytes(high)) << 32).to_le_bytes()
}

/// `struct { half d; uint8 qs[64]; uint32 signs[8]; }`. `qs` holds the codes. Each word of `signs` holds four
/// times seven signs, and `s` of 32 weights in its highest four bits.
pub(crate) struct Iq3Xxs;

impl Iq3Xxs {
    #[inline(always)]
    fn signs(block: &[u8], group: usize) -> u32 {
        four_at(block, 66 + 4 * group)
    }
}

impl Long for Iq3Xxs {
    const FORMAT: Format = Format::Iq3Xxs;
    const RAISE: u8 = 32;
    const GROUP: usize = 32;
    const MINIMA: bool = false;
    // 4 groups of 32: 31 * 128 * 31 * 127 = 15,622,016.
    const FLOAT_PARTS: usize = 2;
    const UNIT: f32 = 0.5;

    #[inline(always)]
    fn units(block: &[u8]) -> [u16; 2] {
        [half_at(block, 0), 0]
    }

    #[inline(always)]
    fn scales(block: &[u8]) -> [i8; 16] {
        std::array::from_fn(|i| 2 * (Self::signs(block, i / 2) >> 28) as i8 + 1)
    }

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; K_LEN]) {
        for (i, octet) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let [low, high] = [0, 1].map(|j| IQ3_XXS_GRID[usize::from(block[2 + 2 * i + j])]);
            let signs = even_signs(Self::signs(block, i / 4) >> (7 * (i % 4)));
            *octet = signed(joined(low, high), signs, Self::RAISE);
        }
    }
}

/// `struct { half d; uint8 qs[64], qh[8], signs[32], scales[4]; }`. `qs` holds the eight low bits of each
/// code, `qh` the ninth bits in order. Each nibble of `scales` is the `s` of 32 weights.
pub(crate) struct Iq3S;

impl Long for Iq3S {
    const FORMAT: Format = Format::Iq3S;
    const RAISE: u8 = 16;
    const GROUP: usize = 32;
    const MINIMA: bool = false;
    // 31 * 256 * 15 * 127 = 15,118,080.
    const FLOAT_PARTS: usize = 1;

    #[inline(always)]
    fn units(block: &[u8]) -> [u16; 2] {
        [half_at(block, 0), 0]
    }

    #[inline(always)]
    fn scales(block: &[u8]) -> [i8; 16] {
        std::array::from_fn(|i| 2 * (block[106 + i / 4] >> (4 * (i / 2 % 2)) & 15) as i8 + 1)
    }

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; K_LEN]) {
        for (i, octet) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let ninths = usize::from(block[66 + i / 4] >> (2 * (i % 4)));
            let low = IQ3_S_GRID[usize::from(block[2 + 2 * i]) | (ninths & 1) << 8];
            let high = IQ3_S_GRID[usize::from(block[3 + 2 * i]) | (ninths >> 1 & 1) << 8];
            *octet = signed(joined(low, high), block[74 + i], Self::RAISE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codebooks_are_full() {
        let codes = |coded: &[u32]| coded.iter().map(|word| word.count_ones()).sum::<u32>();
        assert_eq!([codes(&CODED_XXS), codes(&CODED_S)], [256, 512]);
        // The first and last vectors of ggml's tables; those of IQ3_XXS are halved.
        assert_eq!([IQ3_XXS_GRID[0], IQ3_XXS_GRID[255]], [[2; 4], [2, 14, 26, 31]]);
        assert_eq!([IQ3_S_GRID[0], IQ3_S_GRID[511]], [[1; 4], [1, 1, 15, 15]]);
    }
}
