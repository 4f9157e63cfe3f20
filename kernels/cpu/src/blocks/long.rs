//! Formats in super-blocks of 256 weights: the k-quants.

use super::{K_LEN, Long, half_at};
use crate::format::Format;

/// `struct { half d, dmin; uint8 scales[12]; uint8 qs[128]; }`
pub(crate) struct Q4K;

/// Six-bit scales and minima of eight groups, packed in twelve bytes (Q4_K, Q5_K).
///
/// The first four of each sit in the low six bits of bytes 0..4 and 4..8; the last four have their low nibble in
/// bytes 8..12 and their two high bits in the top of the bytes that hold the first four.
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

    /// 32 low nibbles, then the 32 high ones of the same bytes, four times.
    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; K_LEN]) {
        let (halves, _) = out.as_chunks_mut::<64>();
        let (bytes, _) = block[16..].as_chunks::<32>();
        for (dst, src) in halves.iter_mut().zip(bytes) {
            let (low, high) = dst.split_at_mut(32);
            for ((low, high), byte) in low.iter_mut().zip(high).zip(src) {
                *low = byte & 15;
                *high = byte >> 4;
            }
        }
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

    /// Each half of 128 has 64 bytes of low nibbles and 32 bytes of high bit pairs; pair `p` of byte `i` belongs to
    /// weight `32 p + i`, whose low nibble is the low (`p < 2`) or high half of byte `32 (p % 2) + i`.
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
