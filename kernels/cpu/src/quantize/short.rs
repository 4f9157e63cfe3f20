//! Blocks of 32, with the bytes of ggml's reference (`quantize_row_*_ref` of `ggml-quants.c`).

use super::{extreme, inverse, nearest_iq4};
use crate::blocks::{IQ4_VALUES, MXFP4_VALUES, Mxfp4, SHORT_LEN, Short};
use crate::f16::f32_to_f16;

pub(super) fn q8_0_block(x: &[f32; SHORT_LEN], dst: &mut Vec<u8>) {
    let scale = extreme(x).abs() / 127.0;
    let inverse = inverse(scale);
    dst.extend(f32_to_f16(scale).to_le_bytes());
    dst.extend(x.iter().map(|v| (v * inverse).round().clamp(-127.0, 127.0) as i8 as u8));
}

/// Q4_0 and Q5_0: the extreme becomes the lowest quant, whose magnitude is one more than that of the highest.
pub(super) fn symmetric_block(x: &[f32; SHORT_LEN], bits: u32, dst: &mut Vec<u8>) {
    let lowest = (1 << (bits - 1)) as f32;
    let scale = extreme(x) / -lowest;
    let inverse = inverse(scale);
    dst.extend(f32_to_f16(scale).to_le_bytes());
    // The conversion truncates, so adding one half rounds to nearest.
    push_quants(&x.map(|v| (v * inverse + (lowest + 0.5)) as u8), bits, dst);
}

/// Q4_1 and Q5_1: quants cover the range from the lowest value to the highest.
pub(super) fn range_block(x: &[f32; SHORT_LEN], bits: u32, dst: &mut Vec<u8>) {
    let low = x.iter().fold(f32::MAX, |m, &v| m.min(v));
    let high = x.iter().fold(f32::MIN, |m, &v| m.max(v));
    let scale = (high - low) / ((1 << bits) - 1) as f32;
    let inverse = inverse(scale);
    dst.extend(f32_to_f16(scale).to_le_bytes());
    dst.extend(f32_to_f16(low).to_le_bytes());
    push_quants(&x.map(|v| ((v - low) * inverse + 0.5) as u8), bits, dst);
}

/// IQ4_NL: chooses table indices with the extreme's scale, then fits the scale to them; large values weigh
/// more.
pub(super) fn iq4_nl_block(x: &[f32; SHORT_LEN], dst: &mut Vec<u8>) {
    let inverse = inverse(extreme(x) / f32::from(IQ4_VALUES[0]));
    let places = x.map(|v| nearest_iq4(v * inverse));
    let (mut with_x, mut with_self) = (0.0f32, 0.0f32);
    for (x, place) in x.iter().zip(places) {
        let (q, weight) = (f32::from(IQ4_VALUES[usize::from(place)]), x * x);
        with_x += weight * q * x;
        with_self += weight * q * q;
    }
    let scale = if with_self > 0.0 { with_x / with_self } else { 0.0 };
    dst.extend(f32_to_f16(scale).to_le_bytes());
    push_quants(&places, 4, dst);
}

/// MXFP4: the largest magnitude gets the highest exponent of E2M1, and each value the nearest of the table,
/// the first one if two are equally near.
pub(super) fn mxfp4_block(x: &[f32; SHORT_LEN], dst: &mut Vec<u8>) {
    // E2M1 reaches 1.5 * 2^2, so the exponent is that of the largest magnitude less 2, biased by 127 alike.
    let exponent = extreme(x).abs().to_bits() >> 23;
    dst.push(exponent.saturating_sub(2) as u8);
    let scale = Mxfp4::float_scale(&dst[dst.len() - 1..]);
    let values = MXFP4_VALUES.map(|v| scale * f32::from(v));
    let places = x.map(|x| {
        let nearer =
            |best: usize, i: usize| if (values[i] - x).abs() < (values[best] - x).abs() { i } else { best };
        (1..16).fold(0, nearer) as u8
    });
    push_quants(&places, 4, dst);
}

/// Appends quants of four or five bits; the fifth bits come first.
fn push_quants(quants: &[u8; SHORT_LEN], bits: u32, dst: &mut Vec<u8>) {
    let quants = quants.map(|q| q.min((1 << bits) - 1));
    if bits == 5 {
        let fifth = quants.iter().enumerate().fold(0u32, |all, (i, q)| all | u32::from(q >> 4) << i);
        dst.extend(fifth.to_le_bytes());
    }
    let (low, high) = quants.split_at(SHORT_LEN / 2);
    dst.extend(low.iter().zip(high).map(|(low, high)| low & 15 | high << 4));
}
