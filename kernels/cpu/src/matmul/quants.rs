//! Raised quants of blocks in registers, used by packing and by the products along rows.
//!
//! Each function has fast code for the formats that matter most to speed and reads the others through
//! [`Short::quants`] and [`Long::quants`].

use super::panel::ROWS;
use crate::blocks::{IQ4_VALUES, K_LEN, Long, MXFP4_RAISED, SHORT_LEN, Short};
use crate::format::Format;
use crate::simd::Simd;

/// Returns a run of `N` bytes at `at`.
#[inline(always)]
pub(super) fn part<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("parts lie inside their block")
}

/// Loads bytes for the dot products: small ones as they are, those raised by 128 in the level's signed form.
#[inline(always)]
fn taken<S: Simd>(s: S, bytes: &mut [u8; 64], raise: u8) -> S::I {
    if raise < 128 {
        return s.units(bytes);
    }
    for byte in bytes.iter_mut() {
        *byte ^= 0x80;
    }
    s.raised(s.units(bytes))
}

/// Returns the four bytes at `at` of two blocks as one number.
#[inline(always)]
fn two_units(a: &[u8], b: &[u8], at: usize) -> u64 {
    u64::from(u32::from_le_bytes(*part(a, at))) | u64::from(u32::from_le_bytes(*part(b, at))) << 32
}

/// [`IQ4_VALUES`] as bytes.
const IQ4_BYTES: [u8; 16] = {
    let mut bytes = [0; 16];
    let mut i = 0;
    while i < 16 {
        bytes[i] = IQ4_VALUES[i] as u8;
        i += 1;
    }
    bytes
};

/// Returns the values of IQ4_NL that the nibbles of 16 bytes select, then those of 16 others.
#[inline(always)]
fn iq4_pair<S: Simd>(s: S, a: &[u8; 16], b: &[u8; 16]) -> S::I {
    s.raised(s.look_up(&IQ4_BYTES, s.nibble_pair(a, b)))
}

/// Returns the bits of the floats that sixteen bfloat16 numbers stand for.
#[inline(always)]
pub(super) fn bfloats<S: Simd>(s: S, halves: &[u16; ROWS]) -> S::I {
    let mut bytes = [0; 64];
    for (to, half) in bytes.as_chunks_mut().0.iter_mut().zip(halves) {
        *to = (u32::from(*half) << 16).to_ne_bytes();
    }
    s.units(&bytes)
}

/// Converts what [`Short::scale`] returned for sixteen blocks to floats, exactly.
#[inline(always)]
pub(super) fn scales<S: Simd, B: Short>(s: S, halves: &[u16; ROWS]) -> S::F {
    if B::WIDE_SCALE { s.floats_of(bfloats(s, halves)) } else { s.widen(halves) }
}

/// Returns the quants of two short blocks, in the order of the weights.
#[inline(always)]
pub(super) fn pair<S: Simd, B: Short>(s: S, a: &[u8], b: &[u8]) -> S::I {
    match B::FORMAT {
        Format::Q8_0 => s.raised(s.joined(part(a, 2), part(b, 2))),
        Format::Q4_0 => s.nibble_pair(part(a, 2), part(b, 2)),
        Format::Q4_1 => s.nibble_pair(part(a, 4), part(b, 4)),
        Format::Q5_0 => s.fifth_bits(s.nibble_pair(part(a, 6), part(b, 6)), two_units(a, b, 2)),
        Format::Q5_1 => s.fifth_bits(s.nibble_pair(part(a, 8), part(b, 8)), two_units(a, b, 4)),
        Format::Iq4Nl => iq4_pair(s, part(a, 2), part(b, 2)),
        Format::Mxfp4 => s.look_up(&MXFP4_RAISED, s.nibble_pair(part(a, 1), part(b, 1))),
        _ => {
            let mut bytes = [0; 64];
            let (low, high) = bytes.as_chunks_mut::<SHORT_LEN>().0.split_at_mut(1);
            B::quants(a, &mut low[0]);
            B::quants(b, &mut high[0]);
            taken(s, &mut bytes, B::RAISE)
        }
    }
}

/// Returns the 16 bytes at `at` of four blocks.
#[inline(always)]
pub(super) fn of_four<S: Simd>(s: S, own: [&[u8]; 4], at: usize) -> S::I {
    s.quarters([part(own[0], at), part(own[1], at), part(own[2], at), part(own[3], at)])
}

/// Returns the low halves of the 16 bytes at `at` of four blocks, and their high halves.
#[inline(always)]
fn nibbles_of_four<S: Simd>(s: S, own: [&[u8]; 4], at: usize) -> [S::I; 2] {
    let v = of_four(s, own, at);
    [s.low_nibbles(v), s.high_nibbles(v)]
}

/// Returns the first halves of the quants of four short blocks, and the second halves, in the order of the
/// weights. Each quarter of `heads` begins with the first bytes of a block.
#[inline(always)]
pub(super) fn quads<S: Simd, B: Short>(s: S, own: [&[u8]; 4], heads: S::I) -> [S::I; 2] {
    match B::FORMAT {
        Format::Q8_0 => [s.raised(of_four(s, own, 2)), s.raised(of_four(s, own, 18))],
        Format::Q4_0 => nibbles_of_four(s, own, 2),
        Format::Q4_1 => nibbles_of_four(s, own, 4),
        Format::Q5_0 => {
            let [low, high] = nibbles_of_four(s, own, 6);
            [s.fifth_bits_of::<2>(low, heads), s.fifth_bits_of::<4>(high, heads)]
        }
        Format::Q5_1 => {
            let [low, high] = nibbles_of_four(s, own, 8);
            [s.fifth_bits_of::<4>(low, heads), s.fifth_bits_of::<6>(high, heads)]
        }
        Format::Iq4Nl => {
            let [low, high] = nibbles_of_four(s, own, 2);
            [s.raised(s.look_up(&IQ4_BYTES, low)), s.raised(s.look_up(&IQ4_BYTES, high))]
        }
        _ => {
            let [low, high] = nibbles_of_four(s, own, 1);
            [s.look_up(&MXFP4_RAISED, low), s.look_up(&MXFP4_RAISED, high)]
        }
    }
}

/// Whether [`chunks`] returns the groups of 32 weights in the order 0 2 1 3 4 6 5 7. That is so for formats
/// whose bytes hold a weight of one group in the low half and one of the next group in the high half.
pub(super) const fn interleaved<B: Long>() -> bool {
    matches!(B::FORMAT, Format::Q4K)
}

/// Returns the quants of a super-block in four parts of 64, in the order of the weights or [`interleaved`].
#[inline(always)]
pub(super) fn chunks<S: Simd, B: Long>(s: S, block: &[u8]) -> [S::I; 4] {
    match B::FORMAT {
        Format::Q4K => {
            let (a, b) = (s.units(part(block, 16)), s.units(part(block, 80)));
            [s.low_nibbles(a), s.high_nibbles(a), s.low_nibbles(b), s.high_nibbles(b)]
        }
        Format::Q6K => {
            let (a, b) = (s.units(part(block, 0)), s.units(part(block, 64)));
            let [a_low, a_high] = s.bit_pairs(part(block, 128));
            let [b_low, b_high] = s.bit_pairs(part(block, 160));
            [
                s.or(s.low_nibbles(a), a_low),
                s.or(s.high_nibbles(a), a_high),
                s.or(s.low_nibbles(b), b_low),
                s.or(s.high_nibbles(b), b_high),
            ]
        }
        Format::Iq4Xs => [
            iq4_pair(s, part(block, 8), part(block, 24)),
            iq4_pair(s, part(block, 40), part(block, 56)),
            iq4_pair(s, part(block, 72), part(block, 88)),
            iq4_pair(s, part(block, 104), part(block, 120)),
        ],
        _ => {
            let mut bytes = [0; K_LEN];
            B::quants(block, &mut bytes);
            let parts = bytes.as_chunks_mut::<64>().0;
            let mut out = [s.splat_int(0); 4];
            for (out, part) in out.iter_mut().zip(parts) {
                *out = taken(s, part, B::RAISE);
            }
            out
        }
    }
}
