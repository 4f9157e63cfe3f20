//! Super-blocks of 256: the k-quants and IQ4_XS.

use super::{extreme, inverse, nearest_iq4};
use crate::blocks::{IQ4_VALUES, K_LEN};
use crate::f16::{f16_to_f32, f32_to_f16};
use crate::format::Format;

/// Groups described by their lowest value and a step (Q2_K, Q4_K, Q5_K).
struct Ranges<const GROUPS: usize> {
    d: u16,
    dmin: u16,
    scale: [u8; GROUPS],
    min: [u8; GROUPS],
    quants: [u8; K_LEN],
}

impl<const GROUPS: usize> Ranges<GROUPS> {
    /// Fits the groups of a super-block, with quants up to `quant_max`, scales and minima up to `scale_max`.
    fn new(x: &[f32; K_LEN], quant_max: f32, scale_max: f32) -> Self {
        let group = |j: usize| &x[j * (K_LEN / GROUPS)..][..K_LEN / GROUPS];
        let low: [f32; GROUPS] = std::array::from_fn(|j| group(j).iter().fold(0.0f32, |m, &v| m.min(v)));
        let step: [f32; GROUPS] = std::array::from_fn(|j| {
            let high = group(j).iter().fold(low[j], |m, &v| m.max(v));
            (high - low[j]) / quant_max
        });
        let d = f32_to_f16(step.iter().fold(0.0f32, |m, &v| m.max(v)) / scale_max);
        let dmin = f32_to_f16(low.iter().fold(0.0f32, |m, &v| m.max(-v)) / scale_max);
        let in_units =
            |value: f32, unit: u16| (value * inverse(f16_to_f32(unit))).round().clamp(0.0, scale_max) as u8;
        let scale = step.map(|step| in_units(step, d));
        let min = low.map(|low| in_units(-low, dmin));
        let quants = std::array::from_fn(|i| {
            let j = i / (K_LEN / GROUPS);
            let step = f16_to_f32(d) * f32::from(scale[j]);
            let low = f16_to_f32(dmin) * f32::from(min[j]);
            ((x[i] + low) * inverse(step)).round().clamp(0.0, quant_max) as u8
        });
        Self { d, dmin, scale, min, quants }
    }
}

impl Ranges<8> {
    /// Returns `d`, `dmin`, and the six-bit scales and minima: the first bytes of Q4_K and Q5_K.
    fn head(&self) -> [u8; 16] {
        let Self { d, dmin, scale, min, .. } = self;
        let mut head = [0; 16];
        head[0..2].copy_from_slice(&d.to_le_bytes());
        head[2..4].copy_from_slice(&dmin.to_le_bytes());
        for j in 0..4 {
            head[4 + j] = scale[j] | (scale[4 + j] >> 4 << 6);
            head[8 + j] = min[j] | (min[4 + j] >> 4 << 6);
            head[12 + j] = (scale[4 + j] & 15) | (min[4 + j] << 4);
        }
        head
    }
}

/// Returns the unit and the signed six-bit scales in that unit (Q3_K, IQ4_XS). The extreme step becomes -32.
fn signed_scales<const GROUPS: usize>(steps: [f32; GROUPS]) -> (u16, [i8; GROUPS]) {
    let d = f32_to_f16(extreme(&steps) / -32.0);
    let inverse = inverse(f16_to_f32(d));
    (d, steps.map(|step| (step * inverse).round().clamp(-32.0, 31.0) as i8))
}

pub(super) fn q2k_block(x: &[f32; K_LEN]) -> [u8; Format::Q2K.block_bytes()] {
    let ranges = Ranges::<16>::new(x, 3.0, 15.0);
    let mut out = [0; Format::Q2K.block_bytes()];
    for (byte, (scale, min)) in out.iter_mut().zip(ranges.scale.iter().zip(&ranges.min)) {
        *byte = scale | min << 4;
    }
    for (i, q) in ranges.quants.iter().enumerate() {
        out[16 + 32 * (i / 128) + i % 32] |= q << (2 * (i % 128 / 32));
    }
    out[80..82].copy_from_slice(&ranges.d.to_le_bytes());
    out[82..84].copy_from_slice(&ranges.dmin.to_le_bytes());
    out
}

pub(super) fn q3k_block(x: &[f32; K_LEN]) -> [u8; Format::Q3K.block_bytes()] {
    let groups = x.as_chunks::<16>().0;
    let (d, scale) = signed_scales::<16>(std::array::from_fn(|j| extreme(&groups[j]) / -4.0));
    let mut out = [0; Format::Q3K.block_bytes()];
    for (i, &v) in x.iter().enumerate() {
        let step = f16_to_f32(d) * f32::from(scale[i / 16]);
        let q = ((v * inverse(step)).round().clamp(-4.0, 3.0) as i8 + 4) as u8;
        out[i % 32] |= q >> 2 << (i / 32);
        out[32 + 32 * (i / 128) + i % 32] |= (q & 3) << (2 * (i % 128 / 32));
    }
    for (j, scale) in scale.iter().enumerate() {
        let raised = (scale + 32) as u8;
        out[96 + j % 8] |= (raised & 15) << (4 * (j / 8));
        out[104 + j % 4] |= raised >> 4 << (2 * (j / 4));
    }
    out[108..110].copy_from_slice(&d.to_le_bytes());
    out
}

pub(super) fn q4k_block(x: &[f32; K_LEN]) -> [u8; Format::Q4K.block_bytes()] {
    let ranges = Ranges::<8>::new(x, 15.0, 63.0);
    let mut out = [0; Format::Q4K.block_bytes()];
    out[..16].copy_from_slice(&ranges.head());
    for (i, q) in ranges.quants.iter().enumerate() {
        out[16 + 32 * (i / 64) + i % 32] |= q << (4 * (i / 32 % 2));
    }
    out
}

pub(super) fn q5k_block(x: &[f32; K_LEN]) -> [u8; Format::Q5K.block_bytes()] {
    let ranges = Ranges::<8>::new(x, 31.0, 63.0);
    let mut out = [0; Format::Q5K.block_bytes()];
    out[..16].copy_from_slice(&ranges.head());
    for (i, q) in ranges.quants.iter().enumerate() {
        out[16 + i % 32] |= q >> 4 << (i / 32);
        out[48 + 32 * (i / 64) + i % 32] |= (q & 15) << (4 * (i / 32 % 2));
    }
    out
}

pub(super) fn q6k_block(x: &[f32; K_LEN]) -> [u8; Format::Q6K.block_bytes()] {
    let groups = x.as_chunks::<16>().0;
    let step: [f32; 16] = std::array::from_fn(|j| extreme(&groups[j]).abs() / 31.0);
    let d = f32_to_f16(step.iter().fold(0.0f32, |m, &v| m.max(v)) / 127.0);
    let unit = f16_to_f32(d);
    let scale = step.map(|step| (step * inverse(unit)).round().clamp(0.0, 127.0) as i8);

    let mut out = [0; Format::Q6K.block_bytes()];
    for (i, &v) in x.iter().enumerate() {
        let step = unit * f32::from(scale[i / 16]);
        let q = ((v * inverse(step)).round().clamp(-32.0, 31.0) as i8 + 32) as u8;
        let (half, pair, byte) = (i / 128, i % 128 / 32, i % 32);
        out[64 * half + 32 * (pair % 2) + byte] |= (q & 15) << (4 * (pair / 2));
        out[128 + 32 * half + byte] |= (q >> 4) << (2 * pair);
    }
    for (byte, &s) in out[192..208].iter_mut().zip(&scale) {
        *byte = s as u8;
    }
    out[208..210].copy_from_slice(&d.to_le_bytes());
    out
}

pub(super) fn iq4_xs_block(x: &[f32; K_LEN]) -> [u8; Format::Iq4Xs.block_bytes()] {
    let groups = x.as_chunks::<32>().0;
    let steps: [f32; 8] = std::array::from_fn(|j| extreme(&groups[j]) / f32::from(IQ4_VALUES[0]));
    let (d, scale) = signed_scales(steps);
    let mut out = [0; Format::Iq4Xs.block_bytes()];
    out[0..2].copy_from_slice(&d.to_le_bytes());
    for (j, scale) in scale.iter().enumerate() {
        let raised = (scale + 32) as u8;
        out[2 + j / 4] |= raised >> 4 << (2 * (j % 4));
        out[4 + j / 2] |= (raised & 15) << (4 * (j % 2));
    }
    for (i, &v) in x.iter().enumerate() {
        let step = f16_to_f32(d) * f32::from(scale[i / 32]);
        let place = nearest_iq4(v * inverse(step));
        out[8 + 16 * (i / 32) + i % 16] |= place << (4 * (i / 16 % 2));
    }
    out
}
