//! Ternary formats in super-blocks of 256 weights: each group of eight weights is an index into a codebook.
//!
//! ggml defines a weight as `d * (2 s + 1) * (v ± 1/8)` with `v` of -1, 0 or 1. That is exactly
//! `d / 8 * (2 s + 1) * (8 v ± 1)`. All factors are integers except a binary16 times a power of two, and the
//! product has at most 19 significant bits.

use super::codebook::codebook;
use super::iq1_grid::CODED;
use super::{K_LEN, Long, half_at};
use crate::format::Format;

/// For each code, the eight members of its vector, raised to 0, 1 and 2.
pub(crate) static TERNARY_GRID: [[u8; 8]; 2_048] = codebook(&CODED, TERNARY_VALUES);

/// The raised members.
pub(crate) const TERNARY_VALUES: [u8; 3] = [0, 1, 2];

/// Added to `8 v ± 1`.
const RAISE: u8 = 16;

/// Returns the raised quants of a code: `8 v ± 1 + 16`, which is `8 (v + 1)` plus 9 or 7.
#[inline(always)]
fn octet(code: usize, negative: bool) -> [u8; 8] {
    let above = u64::from_ne_bytes([if negative { 7 } else { 9 }; 8]);
    ((u64::from_le_bytes(TERNARY_GRID[code & 2_047]) << 3) + above).to_le_bytes()
}

/// `struct { half d; uint8 qs[32]; uint16 qh[8]; }`. `qs` holds the eight low bits of each code. Each `qh`
/// serves 32 weights: the high bits of four codes in twelve bits, `s` in three bits, and the sign of the
/// eighths in the highest bit.
pub(crate) struct Iq1S;

impl Iq1S {
    #[inline(always)]
    fn high(block: &[u8], group: usize) -> u16 {
        u16::from_le_bytes([block[34 + 2 * group], block[35 + 2 * group]])
    }
}

impl Long for Iq1S {
    const FORMAT: Format = Format::Iq1S;
    const RAISE: u8 = RAISE;
    const GROUP: usize = 32;
    const MINIMA: bool = false;
    // 15 * 256 * 9 * 127 = 4,389,120.
    const FLOAT_PARTS: usize = 1;
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn units(block: &[u8]) -> [u16; 2] {
        [half_at(block, 0), 0]
    }

    #[inline(always)]
    fn scales(block: &[u8]) -> [i8; 16] {
        std::array::from_fn(|i| 2 * ((Self::high(block, i / 2) >> 12) & 7) as i8 + 1)
    }

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; K_LEN]) {
        for (i, (octets, low)) in out.as_chunks_mut().0.iter_mut().zip(&block[2..34]).enumerate() {
            let high = Self::high(block, i / 4);
            let code = usize::from(*low) | usize::from(high >> (3 * (i % 4)) & 7) << 8;
            *octets = octet(code, high & 0x8000 != 0);
        }
    }
}

/// `struct { uint8 qs[32]; uint8 qh[16]; uint16 scales[4]; }`. `qs` holds the eight low bits of each code. A
/// nibble of `qh` holds a code's high bits and the sign of its eighths. Each of `scales` holds `s` of four
/// groups of 16 weights in twelve bits. Its highest four bits are a nibble of `d`, lowest nibble first.
pub(crate) struct Iq1M;

impl Iq1M {
    #[inline(always)]
    fn packed(block: &[u8], i: usize) -> u16 {
        u16::from_le_bytes([block[48 + 2 * i], block[49 + 2 * i]])
    }
}

impl Long for Iq1M {
    const FORMAT: Format = Format::Iq1M;
    const RAISE: u8 = RAISE;
    const GROUP: usize = 16;
    const MINIMA: bool = false;
    // As for IQ1_S.
    const FLOAT_PARTS: usize = 1;
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn units(block: &[u8]) -> [u16; 2] {
        let d = (0..4).fold(0, |d, i| d | (Self::packed(block, i) >> 12) << (4 * i));
        [d, 0]
    }

    #[inline(always)]
    fn scales(block: &[u8]) -> [i8; 16] {
        std::array::from_fn(|i| 2 * ((Self::packed(block, i / 4) >> (3 * (i % 4))) & 7) as i8 + 1)
    }

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; K_LEN]) {
        for (i, (octets, low)) in out.as_chunks_mut().0.iter_mut().zip(&block[..32]).enumerate() {
            let high = block[32 + i / 2] >> (4 * (i % 2));
            let code = usize::from(*low) | usize::from(high & 7) << 8;
            *octets = octet(code, high & 8 != 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codebook_is_full() {
        assert_eq!(CODED.iter().map(|word| word.count_ones()).sum::<u32>(), 2_048);
        // ggml's table begins with all -1 and ends with all 1.
        assert_eq!([octet(0, true), octet(0, false)], [[7; 8], [9; 8]]);
        assert_eq!([octet(2_047, true), octet(2_047, false)], [[23; 8], [25; 8]]);
    }
}
