//! Ternary super-blocks with one scale (TQ1_0, TQ2_0), with the bytes of ggml's reference.

use super::{extreme, inverse};
use crate::blocks::K_LEN;
use crate::f16::f32_to_f16;
use crate::format::Format;

/// Returns the scale, and -1, 0 or 1 for each weight, raised by one.
fn ternary(x: &[f32; K_LEN]) -> (u16, [u8; K_LEN]) {
    let scale = extreme(x).abs();
    let inverse = inverse(scale);
    (f32_to_f16(scale), x.map(|v| ((v * inverse).round() + 1.0) as u8))
}

/// Writes up to five weights to each byte, as fractions of 256 with digits to the base 3: the first weights
/// become the first digits of all bytes.
fn put_digits(quants: &[u8], out: &mut [u8]) {
    let bytes = out.len();
    for (i, byte) in out.iter_mut().enumerate() {
        let digit = |place: usize| quants.get(place * bytes + i).copied().map_or(0, u32::from);
        let number = (0..5).fold(0, |number, place| 3 * number + digit(place));
        // Rounded up, so that cutting off the digits gives them back.
        *byte = (number * 256).div_ceil(243) as u8;
    }
}

pub(super) fn tq1_0_block(x: &[f32; K_LEN]) -> [u8; Format::Tq1_0.block_bytes()] {
    let (d, quants) = ternary(x);
    let mut out = [0; Format::Tq1_0.block_bytes()];
    put_digits(&quants[..160], &mut out[..32]);
    put_digits(&quants[160..240], &mut out[32..48]);
    put_digits(&quants[240..], &mut out[48..52]);
    out[52..].copy_from_slice(&d.to_le_bytes());
    out
}

pub(super) fn tq2_0_block(x: &[f32; K_LEN]) -> [u8; Format::Tq2_0.block_bytes()] {
    let (d, quants) = ternary(x);
    let mut out = [0; Format::Tq2_0.block_bytes()];
    for (i, q) in quants.iter().enumerate() {
        out[32 * (i / 128) + i % 32] |= q << (2 * (i % 128 / 32));
    }
    out[64..].copy_from_slice(&d.to_le_bytes());
    out
}
