//! Reference quantizers: floats to ggml's blocks, for making test data and small models.
//!
//! Q8_0 gives the bytes of ggml's own reference. The k-quants take each group's range as it is, without ggml's
//! search for a better scale: valid blocks, slightly larger error. Not a fast path.

use crate::blocks::{K_LEN, SHORT_LEN};
use crate::error::KernelError;
use crate::f16::{f16_to_f32, f32_to_f16};
use crate::format::Format;

/// Appends one row of `src` in `format` to `dst`.
///
/// # Errors
/// [`KernelError::PartialBlock`] where `src` is not whole blocks; [`KernelError::NotFinite`] where a quantized
/// format is asked for a NaN or an infinity.
pub fn quantize_row(format: Format, src: &[f32], dst: &mut Vec<u8>) -> Result<(), KernelError> {
    let bytes = format.checked_row_bytes(src.len())?;
    if format.block_len() > 1
        && let Some(index) = src.iter().position(|v| !v.is_finite())
    {
        return Err(KernelError::NotFinite { format, index });
    }
    dst.reserve(bytes);
    match format {
        Format::F32 => dst.extend(src.iter().flat_map(|v| v.to_le_bytes())),
        Format::F16 => dst.extend(src.iter().flat_map(|&v| f32_to_f16(v).to_le_bytes())),
        Format::Q8_0 => src.as_chunks().0.iter().for_each(|x| q8_0_block(x, dst)),
        Format::Q4K => src.as_chunks().0.iter().for_each(|x| dst.extend(q4k_block(x))),
        Format::Q6K => src.as_chunks().0.iter().for_each(|x| dst.extend(q6k_block(x))),
    }
    Ok(())
}

const Q4K_BYTES: usize = Format::Q4K.block_bytes();
const Q6K_BYTES: usize = Format::Q6K.block_bytes();

/// `1 / x`, or 0 where there is nothing to scale by.
fn inverse(x: f32) -> f32 {
    let inverse = 1.0 / x;
    if inverse.is_finite() { inverse } else { 0.0 }
}

fn q8_0_block(x: &[f32; SHORT_LEN], dst: &mut Vec<u8>) {
    let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let scale = largest / 127.0;
    let inverse = inverse(scale);
    dst.extend(f32_to_f16(scale).to_le_bytes());
    dst.extend(x.iter().map(|v| (v * inverse).round().clamp(-127.0, 127.0) as i8 as u8));
}

fn q4k_block(x: &[f32; K_LEN]) -> [u8; Q4K_BYTES] {
    let groups = x.as_chunks::<32>().0;
    let low: [f32; 8] = std::array::from_fn(|j| groups[j].iter().fold(0.0f32, |m, &v| m.min(v)));
    let step: [f32; 8] = std::array::from_fn(|j| {
        let high = groups[j].iter().fold(low[j], |m, &v| m.max(v));
        (high - low[j]) / 15.0
    });
    let d = f32_to_f16(step.iter().fold(0.0f32, |m, &v| m.max(v)) / 63.0);
    let dmin = f32_to_f16(low.iter().fold(0.0f32, |m, &v| m.max(-v)) / 63.0);
    let six_bits = |value: f32, unit: u16| (value * inverse(f16_to_f32(unit))).round().clamp(0.0, 63.0) as u8;
    let scale: [u8; 8] = std::array::from_fn(|j| six_bits(step[j], d));
    let min: [u8; 8] = std::array::from_fn(|j| six_bits(-low[j], dmin));

    let mut out = [0; Q4K_BYTES];
    out[0..2].copy_from_slice(&d.to_le_bytes());
    out[2..4].copy_from_slice(&dmin.to_le_bytes());
    for j in 0..4 {
        out[4 + j] = scale[j] | (scale[4 + j] >> 4 << 6);
        out[8 + j] = min[j] | (min[4 + j] >> 4 << 6);
        out[12 + j] = (scale[4 + j] & 15) | (min[4 + j] << 4);
    }
    for (i, &v) in x.iter().enumerate() {
        let j = i / 32;
        let step = f16_to_f32(d) * f32::from(scale[j]);
        let low = f16_to_f32(dmin) * f32::from(min[j]);
        let q = ((v + low) * inverse(step)).round().clamp(0.0, 15.0) as u8;
        out[16 + 32 * (j / 2) + i % 32] |= q << (4 * (j % 2));
    }
    out
}

fn q6k_block(x: &[f32; K_LEN]) -> [u8; Q6K_BYTES] {
    let groups = x.as_chunks::<16>().0;
    let step: [f32; 16] =
        std::array::from_fn(|j| groups[j].iter().fold(0.0f32, |m, v| m.max(v.abs())) / 31.0);
    let d = f32_to_f16(step.iter().fold(0.0f32, |m, &v| m.max(v)) / 127.0);
    let unit = f16_to_f32(d);
    let scale: [i8; 16] = std::array::from_fn(|j| (step[j] * inverse(unit)).round().clamp(0.0, 127.0) as i8);

    let mut out = [0; Q6K_BYTES];
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
