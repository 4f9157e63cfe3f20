//! Formats in super-blocks of 256 weights: the k-quants and IQ4_XS.

use super::short::{IQ4_RAISE, IQ4_RAISED, looked_up};
use super::{K_LEN, Long, half_at};
use crate::format::Format;

/// Writes the bit pairs of 256 weights: in each half of 128, pair `p` of byte `i` belongs to weight
/// `32 p + i` (Q2_K, Q3_K, TQ2_0).
#[inline(always)]
pub(super) fn bit_pairs(bytes: &[u8], out: &mut [u8; K_LEN]) {
    let (halves, _) = out.as_chunks_mut::<128>();
    for (dst, src) in halves.iter_mut().zip(bytes.as_chunks::<32>().0) {
        for (pair, dst) in dst.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (q, byte) in dst.iter_mut().zip(src) {
                *q = byte >> (2 * pair) & 3;
            }
        }
    }
}

/// Writes 32 low nibbles, then the 32 high ones of the same bytes, four times (Q4_K, Q5_K).
#[inline(always)]
fn nibbles(bytes: &[u8], out: &mut [u8; K_LEN]) {
    let (quarters, _) = out.as_chunks_mut::<64>();
    for (dst, src) in quarters.iter_mut().zip(bytes.as_chunks::<32>().0) {
        let (low, high) = dst.split_at_mut(32);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(src) {
            *low = byte & 15;
            *high = byte >> 4;
        }
    }
}

/// Adds the highest bits of 256 weights: bit `g` of byte `i` belongs to weight `32 g + i` (Q3_K, Q5_K).
#[inline(always)]
fn add_high_bits(bytes: &[u8], value: u8, out: &mut [u8; K_LEN]) {
    for (group, dst) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (q, byte) in dst.iter_mut().zip(bytes) {
            *q += (byte >> group & 1) * value;
        }
    }
}

/// `struct { uint8 scales[16], qs[64]; half d, dmin; }`; scales in the low nibbles, minima in the high ones.
pub(crate) struct Q2K;

impl Long for Q2K {
    const FORMAT: Format = Format::Q2K;
    const RAISE: u8 = 0;
    const GROUP: usize = 16;
    const MINIMA: bool = true;
    // 15 * 256 * 3 * 127 = 1,463,040.
    const FLOAT_PARTS: usize = 1;

    #[inline(always)]
    fn units(block: &[u8]) -> [u16; 2] {
        [half_at(block, 80), half_at(block, 82)]
    }

    #[inline(always)]
    fn scales(block: &[u8]) -> [i8; 16] {
        std::array::from_fn(|i| (block[i] & 15) as i8)
    }

    #[inline(always)]
    fn minima(block: &[u8]) -> [i8; 16] {
        std::array::from_fn(|i| (block[i] >> 4) as i8)
    }

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; K_LEN]) {
        bit_pairs(&block[16..80], out);
    }
}

/// `struct { uint8 hmask[32], qs[64], scales[12]; half d; }`
pub(crate) struct Q3K;

impl Long for Q3K {
    const FORMAT: Format = Format::Q3K;
    const RAISE: u8 = 4;
    const GROUP: usize = 16;
    const MINIMA: bool = false;
    // 32 * 256 * 4 * 127 = 4,161,536.
    const FLOAT_PARTS: usize = 1;

    #[inline(always)]
    fn units(block: &[u8]) -> [u16; 2] {
        [half_at(block, 108), 0]
    }

    /// Six bits, raised by 32. Bytes 0..8 hold the low nibbles of the first eight scales in their low halves
    /// and of the last eight in their high halves. Then four bytes hold bit pairs: pair `p` of byte `i`
    /// belongs to scale `4 p + i`.
    #[inline(always)]
    fn scales(block: &[u8]) -> [i8; 16] {
        let packed = &block[96..108];
        std::array::from_fn(|i| {
            let low = packed[i % 8] >> (4 * (i / 8)) & 15;
            let high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
            (low | high << 4) as i8 - 32
        })
    }

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; K_LEN]) {
        bit_pairs(&block[32..96], out);
        add_high_bits(&block[..32], 4, out);
    }
}

/// `struct { half d, dmin; uint8 scales[12]; uint8 qs[128]; }`
pub(crate) struct Q4K;

/// Returns the six-bit scales and minima of eight groups, packed in twelve bytes (Q4_K, Q5_K).
///
/// The first four of each sit in the low six bits of bytes 0..4 and 4..8. The last four have their low nibble
/// in bytes 8..12 and their two high bits in the top bits of the bytes that hold the first four.
#[inline(always)]
fn six_bits(packed: &[u8]) -> ([i8; 16], [i8; 16]) {
    let (mut scales, mut minima) = ([0; 16], [0; 16]);
    for j in 0..4 {
        let (low, mid, high) = (packed[j], packed[4 + j], packed[8 + j]);
        for half in 0..2 {
            scales[2 * j + half] = (low & 63) as i8;
            minima[2 * j + half] = (mid & 63) as i8;
            scales[8 + 2 * j + half] = ((high & 15) | ((low >> 6) << 4)) as i8;
            minima[8 + 2 * j + half] = ((high >> 4) | ((mid >> 6) << 4)) as i8;
        }
    }
    (scales, minima)
}

impl Long for Q4K {
    const FORMAT: Format = Format::Q4K;
    const RAISE: u8 = 0;
    const GROUP: usize = 32;
    const MINIMA: bool = true;
    // 4 groups of 32: 63 * 4 * 32 * 15 * 127 = 15,361,920.
    const FLOAT_PARTS: usize = 2;

    #[inline(always)]
    fn units(block: &[u8]) -> [u16; 2] {
        [half_at(block, 0), half_at(block, 2)]
    }

    #[inline(always)]
    fn scales(block: &[u8]) -> [i8; 16] {
        six_bits(&block[4..16]).0
    }

    #[inline(always)]
    fn minima(block: &[u8]) -> [i8; 16] {
        six_bits(&block[4..16]).1
    }

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; K_LEN]) {
        nibbles(&block[16..144], out);
    }
}

/// `struct { half d, dmin; uint8 scales[12], qh[32], qs[128]; }`
pub(crate) struct Q5K;

impl Long for Q5K {
    const FORMAT: Format = Format::Q5K;
    const RAISE: u8 = 0;
    const GROUP: usize = 32;
    const MINIMA: bool = true;
    // 4 groups of 32: 63 * 128 * 31 * 127 = 31,747,968 is too much.
    const FLOAT_PARTS: usize = 0;

    #[inline(always)]
    fn units(block: &[u8]) -> [u16; 2] {
        [half_at(block, 0), half_at(block, 2)]
    }

    #[inline(always)]
    fn scales(block: &[u8]) -> [i8; 16] {
        six_bits(&block[4..16]).0
    }

    #[inline(always)]
    fn minima(block: &[u8]) -> [i8; 16] {
        six_bits(&block[4..16]).1
    }

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; K_LEN]) {
        nibbles(&block[48..176], out);
        add_high_bits(&block[16..48], 16, out);
    }
}

/// `struct { uint8 ql[128], qh[64]; int8 scales[16]; half d; }`
pub(crate) struct Q6K;

impl Long for Q6K {
    const FORMAT: Format = Format::Q6K;
    const RAISE: u8 = 32;
    const GROUP: usize = 16;
    const MINIMA: bool = false;
    const FLOAT_PARTS: usize = 0;

    #[inline(always)]
    fn units(block: &[u8]) -> [u16; 2] {
        [half_at(block, 208), 0]
    }

    #[inline(always)]
    fn scales(block: &[u8]) -> [i8; 16] {
        let mut scales = [0; 16];
        for (scale, &byte) in scales.iter_mut().zip(&block[192..208]) {
            *scale = byte as i8;
        }
        scales
    }

    /// Each half of 128 weights has 64 bytes of low nibbles and 32 bytes of high bit pairs. Pair `p` of byte
    /// `i` belongs to weight `32 p + i`. The low nibble of that weight is the low half (`p < 2`) or the high
    /// half of byte `32 (p % 2) + i`.
    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; K_LEN]) {
        let (halves, _) = out.as_chunks_mut::<128>();
        let (lows, _) = block[..128].as_chunks::<64>();
        let (highs, _) = block[128..192].as_chunks::<32>();
        for ((dst, low), high) in halves.iter_mut().zip(lows).zip(highs) {
            for (i, h) in high.iter().enumerate() {
                let (a, b) = (low[i], low[32 + i]);
                dst[i] = (a & 15) | ((h & 3) << 4);
                dst[32 + i] = (b & 15) | (((h >> 2) & 3) << 4);
                dst[64 + i] = (a >> 4) | (((h >> 4) & 3) << 4);
                dst[96 + i] = (b >> 4) | ((h >> 6) << 4);
            }
        }
    }
}

/// `struct { half d; uint16 scales_h; uint8 scales_l[4], qs[128]; }`, each 16 bytes of `qs` as in IQ4_NL.
pub(crate) struct Iq4Xs;

impl Long for Iq4Xs {
    const FORMAT: Format = Format::Iq4Xs;
    const RAISE: u8 = IQ4_RAISE;
    const GROUP: usize = 32;
    const MINIMA: bool = false;
    // 4 groups of 32: 32 * 128 * 127 * 127 is too much.
    const FLOAT_PARTS: usize = 0;

    #[inline(always)]
    fn units(block: &[u8]) -> [u16; 2] {
        [half_at(block, 0), 0]
    }

    /// Six bits, raised by 32: low nibbles and high bit pairs, both in order.
    #[inline(always)]
    fn scales(block: &[u8]) -> [i8; 16] {
        let high = u16::from_le_bytes([block[2], block[3]]);
        std::array::from_fn(|i| {
            let group = i / 2;
            let low = block[4 + group / 2] >> (4 * (group % 2)) & 15;
            (low | ((high >> (2 * group) & 3) as u8) << 4) as i8 - 32
        })
    }

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; K_LEN]) {
        for (dst, src) in out.as_chunks_mut().0.iter_mut().zip(block[8..136].as_chunks::<16>().0) {
            looked_up(&IQ4_RAISED, src, dst);
        }
    }
}
