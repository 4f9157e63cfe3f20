//! Reference quantizers: floats to ggml's blocks, for test data and small models.
//!
//! Formats in blocks of 32, TQ1_0 and TQ2_0 give the same bytes as ggml's own reference. The k-quants use
//! each group's range as it is, without ggml's search for a better scale, and the formats with codebooks try
//! few scales. Their blocks are valid, with a slightly larger error. Not built for speed.

mod iq1;
mod lattice;
mod long;
mod nearest;
mod short;
mod tq;

use crate::error::KernelError;
use crate::f16::f32_to_f16;
use crate::format::Format;

/// Quantizes the row `src` to `format` and appends it to `dst`.
///
/// # Errors
/// [`KernelError::PartialBlock`] if `src` does not hold whole blocks; [`KernelError::NotFinite`] if the
/// format is quantized and `src` holds a NaN or an infinity.
pub fn quantize_row(format: Format, src: &[f32], dst: &mut Vec<u8>) -> Result<(), KernelError> {
    let bytes = format.checked_row_bytes(src.len())?;
    if format.block_len() > 1
        && let Some(index) = src.iter().position(|v| !v.is_finite())
    {
        return Err(KernelError::NotFinite { format, index });
    }
    dst.reserve(bytes);
    let (blocks, supers) = (src.as_chunks().0, src.as_chunks().0);
    match format {
        Format::F32 => dst.extend(src.iter().flat_map(|v| v.to_le_bytes())),
        Format::F16 => dst.extend(src.iter().flat_map(|&v| f32_to_f16(v).to_le_bytes())),
        Format::Bf16 => dst.extend(src.iter().flat_map(|&v| f32_to_bf16(v).to_le_bytes())),
        Format::Q4_0 => blocks.iter().for_each(|x| short::symmetric_block(x, 4, dst)),
        Format::Q4_1 => blocks.iter().for_each(|x| short::range_block(x, 4, dst)),
        Format::Q5_0 => blocks.iter().for_each(|x| short::symmetric_block(x, 5, dst)),
        Format::Q5_1 => blocks.iter().for_each(|x| short::range_block(x, 5, dst)),
        Format::Q8_0 => blocks.iter().for_each(|x| short::q8_0_block(x, dst)),
        Format::Iq4Nl => blocks.iter().for_each(|x| short::iq4_nl_block(x, dst)),
        Format::Q2K => supers.iter().for_each(|x| dst.extend(long::q2k_block(x))),
        Format::Q3K => supers.iter().for_each(|x| dst.extend(long::q3k_block(x))),
        Format::Q4K => supers.iter().for_each(|x| dst.extend(long::q4k_block(x))),
        Format::Q5K => supers.iter().for_each(|x| dst.extend(long::q5k_block(x))),
        Format::Q6K => supers.iter().for_each(|x| dst.extend(long::q6k_block(x))),
        Format::Iq1S => supers.iter().for_each(|x| dst.extend(iq1::iq1_s_block(x))),
        Format::Iq1M => supers.iter().for_each(|x| dst.extend(iq1::iq1_m_block(x))),
        Format::Iq2Xxs => supers.iter().for_each(|x| dst.extend(lattice::iq2_xxs_block(x))),
        Format::Iq2Xs => supers.iter().for_each(|x| dst.extend(lattice::iq2_xs_block(x))),
        Format::Iq2S => supers.iter().for_each(|x| dst.extend(lattice::iq2_s_block(x))),
        Format::Iq3Xxs => supers.iter().for_each(|x| dst.extend(lattice::iq3_xxs_block(x))),
        Format::Iq3S => supers.iter().for_each(|x| dst.extend(lattice::iq3_s_block(x))),
        Format::Tq1_0 => supers.iter().for_each(|x| dst.extend(tq::tq1_0_block(x))),
        Format::Tq2_0 => supers.iter().for_each(|x| dst.extend(tq::tq2_0_block(x))),
        Format::Mxfp4 => blocks.iter().for_each(|x| short::mxfp4_block(x, dst)),
        Format::Iq4Xs => supers.iter().for_each(|x| dst.extend(long::iq4_xs_block(x))),
    }
    Ok(())
}

/// Returns the nearest bfloat16, ties to even. Overflow gives infinity, NaN a quiet NaN.
fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Returns `1 / x`, or 0 if that is not finite.
fn inverse(x: f32) -> f32 {
    let inverse = 1.0 / x;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// Returns the first value of the largest magnitude, with its sign.
fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |most, &v| if v.abs() > most.abs() { v } else { most })
}

/// Returns the index in [`IQ4_VALUES`](crate::blocks::IQ4_VALUES) of the value nearest to `x`; of two equally
/// near, the higher.
fn nearest_iq4(x: f32) -> u8 {
    let values = crate::blocks::IQ4_VALUES.map(f32::from);
    match values.iter().position(|&v| x < v) {
        None => 15,
        Some(0) => 0,
        Some(above) if x - values[above - 1] < values[above] - x => above as u8 - 1,
        Some(above) => above as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bf16_equals_the_reference(bits: u32) {
            let value = f32::from_bits(bits);
            prop_assert_eq!(f32_to_bf16(value), half::bf16::from_f32(value).to_bits());
        }
    }
}
