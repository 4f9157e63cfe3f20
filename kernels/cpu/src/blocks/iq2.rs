//! Formats in super-blocks of 256 weights of about two bits: each group of eight weights is an index into a
//! codebook of three magnitudes, with eight signs.
//!
//! ggml defines a weight as `d * (s + 1/2) / 4 * ± v` with `v` of 8, 25 or 43. That is exactly
//! `d / 8 * (2 s + 1) * ± v`, a product of at most 22 significant bits.

use super::codebook::{codebook, even_signs, signed};
use super::iq2_grid::{CODED_S, CODED_XS, CODED_XXS};
use super::{K_LEN, Long, four_at, half_at};
use crate::format::Format;

/// The magnitudes.
pub(crate) const IQ2_VALUES: [u8; 3] = [8, 25, 43];

/// For each code of IQ2_XXS, its magnitudes.
pub(crate) static IQ2_XXS_GRID: [[u8; 8]; 256] = codebook(&CODED_XXS, IQ2_VALUES);
/// For each code of IQ2_XS, its magnitudes.
pub(crate) static IQ2_XS_GRID: [[u8; 8]; 512] = codebook(&CODED_XS, IQ2_VALUES);
/// For each code of IQ2_S, its magnitudes.
pub(crate) static IQ2_S_GRID: [[u8; 8]; 1_024] = codebook(&CODED_S, IQ2_VALUES);

/// Added to the signed magnitudes.
const RAISE: u8 = 64;

/// Returns the odd scales of the nibbles at `at`, low nibbles first.
#[inline(always)]
fn nibble_scales(block: &[u8], at: usize) -> [i8; 16] {
    std::array::from_fn(|i| 2 * (block[at + i / 2] >> (4 * (i % 2)) & 15) as i8 + 1)
}

/// `struct { half d; struct { uint8 codes[4]; uint32 signs; } groups[8]; }`. Each word `signs` holds four
/// times seven signs, and `s` in its highest four bits.
pub(crate) struct Iq2Xxs;

impl Iq2Xxs {
    #[inline(always)]
    fn signs(block: &[u8], group: usize) -> u32 {
        four_at(block, 6 + 8 * group)
    }
}

impl Long for Iq2Xxs {
    const FORMAT: Format = Format::Iq2Xxs;
    const RAISE: u8 = RAISE;
    const GROUP: usize = 32;
    const MINIMA: bool = false;
    // 4 groups of 32: 31 * 128 * 43 * 127 = 21,669,248 is too much.
    const FLOAT_PARTS: usize = 0;
    const UNIT: f32 = 0.125;

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
        for (group, octets) in out.as_chunks_mut::<8>().0.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let signs = Self::signs(block, group);
            for (i, octet) in octets.iter_mut().enumerate() {
                let code = usize::from(block[2 + 8 * group + i]);
                *octet = signed(IQ2_XXS_GRID[code], even_signs(signs >> (7 * i)), RAISE);
            }
        }
    }
}

/// `struct { half d; uint16 qs[32]; uint8 scales[8]; }`. Each `qs` holds a code in nine bits and seven signs.
/// Each nibble of `scales` is the `s` of 16 weights.
pub(crate) struct Iq2Xs;

impl Long for Iq2Xs {
    const FORMAT: Format = Format::Iq2Xs;
    const RAISE: u8 = RAISE;
    const GROUP: usize = 16;
    const MINIMA: bool = false;
    // As for IQ2_XXS.
    const FLOAT_PARTS: usize = 0;
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn units(block: &[u8]) -> [u16; 2] {
        [half_at(block, 0), 0]
    }

    #[inline(always)]
    fn scales(block: &[u8]) -> [i8; 16] {
        nibble_scales(block, 66)
    }

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; K_LEN]) {
        for (i, octet) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let packed = half_at(block, 2 + 2 * i);
            let magnitudes = IQ2_XS_GRID[usize::from(packed & 511)];
            *octet = signed(magnitudes, even_signs(u32::from(packed >> 9)), RAISE);
        }
    }
}

/// `struct { half d; uint8 qs[32], signs[32], qh[8], scales[8]; }`. `qs` holds the eight low bits of each
/// code, `qh` the high bit pairs in order. `scales` are as in IQ2_XS.
pub(crate) struct Iq2S;

impl Long for Iq2S {
    const FORMAT: Format = Format::Iq2S;
    const RAISE: u8 = RAISE;
    const GROUP: usize = 16;
    const MINIMA: bool = false;
    // As for IQ2_XXS.
    const FLOAT_PARTS: usize = 0;
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn units(block: &[u8]) -> [u16; 2] {
        [half_at(block, 0), 0]
    }

    #[inline(always)]
    fn scales(block: &[u8]) -> [i8; 16] {
        nibble_scales(block, 74)
    }

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; K_LEN]) {
        for (i, octet) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let high = usize::from(block[66 + i / 4] >> (2 * (i % 4)) & 3);
            let code = usize::from(block[2 + i]) | high << 8;
            *octet = signed(IQ2_S_GRID[code], block[34 + i], RAISE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codebooks_are_full() {
        let codes = |coded: &[u32]| coded.iter().map(|word| word.count_ones()).sum::<u32>();
        assert_eq!([codes(&CODED_XXS), codes(&CODED_XS), codes(&CODED_S)], [256, 512, 1_024]);
        // ggml's tables begin with the lowest magnitudes; two of them end with the highest.
        assert_eq!([IQ2_XXS_GRID[0], IQ2_XS_GRID[0], IQ2_S_GRID[0]], [[8; 8]; 3]);
        assert_eq!([IQ2_XS_GRID[511], IQ2_S_GRID[1_023]], [[43; 8]; 2]);
    }
}
