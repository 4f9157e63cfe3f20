//! Keys and values as small integers: how a row is rounded, and how half bytes become bytes again.
//!
//! Half bytes are computed with as bytes: a block's half bytes are spread once for all query rows, so no loop
//! but this one knows them.

use super::store::{Keys, KvBlock, Values};
use crate::activations::quantize_block;
use crate::blocks::SHORT_LEN;
use crate::exp::ROUND;
use crate::f16::{f16_to_f32, f32_to_f16};
use crate::simd::{Line, Simd};

/// Bytes of a group of 32 dimensions in four bits each.
pub(super) const NIBBLE_BYTES: usize = SHORT_LEN / 2;
/// Added to four-bit values.
const RAISE: u8 = 8;

/// The bytes of a group and its scale as binary16 bits.
pub(super) type GroupBytes<const BYTES: usize> = ([u8; BYTES], u16);

/// Returns group `g` of a row, zero past the row's end.
fn group(row: &[f32], g: usize) -> [f32; SHORT_LEN] {
    let part = &row[g * SHORT_LEN..row.len().min((g + 1) * SHORT_LEN)];
    let mut x = [0.0; SHORT_LEN];
    x[..part.len()].copy_from_slice(part);
    x
}

/// Returns group `g` of a row as signed bytes, and their scale.
pub(super) fn to_bytes(row: &[f32], g: usize) -> GroupBytes<SHORT_LEN> {
    let x = group(row, g);
    let mut q = [0; SHORT_LEN];
    let scale = quantize_block(&x, &mut q);
    let kept = f32_to_f16(scale);
    // Values are rounded in steps of the scale as it is kept. A group with a fault or of zeros already has
    // its bytes.
    let inverse = 1.0 / f16_to_f32(kept);
    if inverse.is_finite() {
        for (q, v) in q.iter_mut().zip(&x) {
            // The nearest integer; the low byte of `ROUND` is 0.
            *q = ((v * inverse).clamp(-127.0, 127.0) + ROUND).to_bits() as u8;
        }
    } else if scale.is_finite() {
        q = [0; SHORT_LEN];
    }
    (q, kept)
}

/// Returns group `g` of a row as half bytes, and their scale. The value of the largest magnitude becomes -8,
/// as in Q4_0, which uses all sixteen values. A group with a fault gets the scale NaN.
pub(super) fn to_nibbles(row: &[f32], g: usize) -> GroupBytes<NIBBLE_BYTES> {
    let x = group(row, g);
    let faulty = x.iter().any(|v| !v.is_finite());
    let extreme = x.iter().fold(0.0f32, |most, &v| if v.abs() > most.abs() { v } else { most });
    let kept = if faulty { f32_to_f16(f32::NAN) } else { f32_to_f16(extreme / -f32::from(RAISE)) };
    let inverse = 1.0 / f16_to_f32(kept);
    let mut q = [RAISE | RAISE << 4; NIBBLE_BYTES];
    if inverse.is_finite() {
        let nibble = |v: f32| ((v * inverse).clamp(-8.0, 7.0) + ROUND).to_bits() as u8;
        let (low, high) = x.split_at(NIBBLE_BYTES);
        for (q, (low, high)) in q.iter_mut().zip(low.iter().zip(high)) {
            *q = nibble(*low).wrapping_add(RAISE) & 15 | nibble(*high).wrapping_add(RAISE) << 4;
        }
    }
    (q, kept)
}

/// Returns the signed value of the low or of the high half of a byte.
pub(super) fn half(byte: u8, high: bool) -> i8 {
    (if high { byte >> 4 } else { byte & 15 }).wrapping_sub(RAISE) as i8
}

/// Half bytes of a block spread to bytes, kept by a thread from call to call.
#[derive(Default)]
pub(super) struct Spread {
    lines: Vec<Line>,
    rows: Vec<u8>,
}

impl Spread {
    /// Returns the block with bytes in place of half bytes, and the block to prefetch while it is computed
    /// with: itself, because the half bytes of `next` are prefetched here.
    #[inline(always)]
    pub(super) fn open<'a, S: Simd>(
        &'a mut self,
        s: S,
        block: &KvBlock<'a>,
        next: &KvBlock<'a>,
    ) -> [KvBlock<'a>; 2] {
        let (Keys::Q4 { lines, scale: k_scale }, Values::Q4 { q, scale: v_scale }) = (block.k, block.v)
        else {
            return [*block, *next];
        };
        self.lines.resize(2 * lines.len(), Line([0; 64]));
        let to = self.lines.as_chunks_mut::<8>().0.iter_mut().zip(lines.as_chunks::<4>().0);
        for (i, (to, from)) in to.enumerate() {
            let (low, high) = to.split_at_mut(4);
            for (j, (from, (low, high))) in from.iter().zip(low.iter_mut().zip(high)).enumerate() {
                s.prefetch_far(next.keys_at().wrapping_add((4 * i + j) * size_of::<Line>()));
                spread(&from.0, &mut low.0, &mut high.0);
            }
        }
        self.rows.resize(2 * q.len(), 0);
        let to = self.rows.as_chunks_mut::<SHORT_LEN>().0.iter_mut().zip(q.as_chunks::<NIBBLE_BYTES>().0);
        for (i, (to, from)) in to.enumerate() {
            if i % 4 == 0 {
                s.prefetch_far(next.values_at().wrapping_add(i * NIBBLE_BYTES));
            }
            let (low, high) = to.split_at_mut(NIBBLE_BYTES);
            let low = low.first_chunk_mut().expect("half a group");
            spread(from, low, high.first_chunk_mut().expect("half a group"));
        }
        let k = Keys::Q8 { lines: &self.lines, scale: k_scale };
        let opened = KvBlock { k, v: Values::Q8 { q: &self.rows, scale: v_scale }, ..*block };
        [opened; 2]
    }
}

/// Writes the signed values of the low and of the high halves of bytes.
#[inline(always)]
fn spread<const N: usize>(from: &[u8; N], low: &mut [u8; N], high: &mut [u8; N]) {
    for i in 0..N {
        low[i] = (from[i] & 15).wrapping_sub(RAISE);
        high[i] = (from[i] >> 4).wrapping_sub(RAISE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_fault_shows_and_zeros_stay_zero() {
        for fault in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 40];
            x[33] = fault;
            assert!(f16_to_f32(to_nibbles(&x, 1).1).is_nan());
            assert!(f16_to_f32(to_bytes(&x, 1).1).is_nan());
            assert!(f16_to_f32(to_nibbles(&x, 0).1).is_finite());
        }
        assert_eq!(to_nibbles(&[0.0; 32], 0).0, [0x88; 16]);
        assert_eq!(to_nibbles(&[1e-30; 7], 0).0, [0x88; 16]);
    }

    proptest! {
        #[test]
        fn half_bytes_are_within_a_step(x in proptest::collection::vec(-1e3f32..1e3, 32)) {
            let (q, scale) = to_nibbles(&x, 0);
            let step = f16_to_f32(scale);
            let (mut low, mut high) = ([0; 16], [0; 16]);
            spread(&q, &mut low, &mut high);
            for (i, v) in x.iter().enumerate() {
                let value = half(q[i % 16], i >= 16);
                prop_assert_eq!(value as u8, if i < 16 { low[i] } else { high[i - 16] });
                // The side opposite to the extreme has one value less, so its end may be a whole step away.
                prop_assert!((v - step * f32::from(value)).abs() <= step.abs() * 1.01);
            }
        }
    }
}
