//! Ternary formats in super-blocks of 256 weights with one scale: a weight is `-d`, 0 or `d`.

use super::long::bit_pairs;
use super::{K_LEN, Long, half_at};
use crate::format::Format;

/// The powers of three that move a digit of a byte to the front.
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// Writes the digits of `bytes`: all first digits, then all second ones, and so on until `out` is full.
///
/// A byte is a fraction of 256 with digits to the base 3. A power of three moves digits past the point, where
/// they are cut off. What is left, times three, has the next digit before the point.
#[inline(always)]
fn digits(bytes: &[u8], out: &mut [u8]) {
    for (out, power) in out.chunks_exact_mut(bytes.len()).zip(POWERS) {
        for (digit, byte) in out.iter_mut().zip(bytes) {
            *digit = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as u8;
        }
    }
}

/// `struct { uint8 qs[48], qh[4]; half d; }`. Each byte of `qs` holds five weights: 32 bytes those of the
/// first 160 weights, 16 bytes those of the next 80. Each byte of `qh` holds four of the last 16.
pub(crate) struct Tq1_0;

impl Long for Tq1_0 {
    const FORMAT: Format = Format::Tq1_0;
    const RAISE: u8 = 1;
    const GROUP: usize = 32;
    const MINIMA: bool = false;
    // 256 * 127 = 32,512.
    const FLOAT_PARTS: usize = 1;

    #[inline(always)]
    fn units(block: &[u8]) -> [u16; 2] {
        [half_at(block, 52), 0]
    }

    #[inline(always)]
    fn scales(_block: &[u8]) -> [i8; 16] {
        [1; 16]
    }

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; K_LEN]) {
        digits(&block[..32], &mut out[..160]);
        digits(&block[32..48], &mut out[160..240]);
        digits(&block[48..52], &mut out[240..]);
    }
}

/// `struct { uint8 qs[64]; half d; }`, bit pairs as in Q2_K. The pair 3, which no quantizer writes, is a
/// weight of `2 d`.
pub(crate) struct Tq2_0;

impl Long for Tq2_0 {
    const FORMAT: Format = Format::Tq2_0;
    const RAISE: u8 = 1;
    const GROUP: usize = 32;
    const MINIMA: bool = false;
    // 256 * 2 * 127 = 65,024.
    const FLOAT_PARTS: usize = 1;

    #[inline(always)]
    fn units(block: &[u8]) -> [u16; 2] {
        [half_at(block, 64), 0]
    }

    #[inline(always)]
    fn scales(_block: &[u8]) -> [i8; 16] {
        [1; 16]
    }

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; K_LEN]) {
        bit_pairs(&block[..64], out);
    }
}
