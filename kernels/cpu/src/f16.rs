//! IEEE binary16 as bits (`u16`): exact widening, and narrowing to nearest, ties to even.
//!
//! Pure integer and float arithmetic with the same result on every machine, so no level of the crate depends
//! on conversion instructions of the CPU. Written without branches, so that loops over rows vectorize.

/// Returns the value of binary16 bits; exact. NaNs stay NaNs.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    const TWO_POW_112: f32 = f32::from_bits(0x7780_0000);
    let magnitude = u32::from(bits & 0x7fff);
    // Exponents differ in bias by 112; a float multiplication also normalizes the subnormal halves.
    let scaled = (f32::from_bits(magnitude << 13) * TWO_POW_112).to_bits();
    let special = if magnitude >= 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled | special | (u32::from(bits & 0x8000) << 16))
}

/// Returns the nearest binary16 of `value`, ties to even. Overflow gives infinity, NaN a quiet NaN.
#[inline(always)]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let sign = (bits >> 16) as u16 & 0x8000;
    // Below 2^-14 the result is a multiple of 2^-24, which is the last bit of floats near 0.5.
    let subnormal = (f32::from_bits(magnitude.min(0x3880_0000)) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let round = 0xfff + ((magnitude >> 13) & 1);
    let normal = magnitude.wrapping_add(round).wrapping_sub(112 << 23) >> 13;
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let half = if magnitude >= 0x4780_0000 {
        special
    } else if magnitude < 0x3880_0000 {
        subnormal
    } else {
        normal
    };
    half as u16 | sign
}

/// Widens a row: `dst[i] = src[i]`.
///
/// # Panics
/// If the lengths differ.
pub fn f16_to_f32_row(src: &[u16], dst: &mut [f32]) {
    assert_eq!(src.len(), dst.len(), "lengths of a binary16 row and its floats");
    for (out, &bits) in dst.iter_mut().zip(src) {
        *out = f16_to_f32(bits);
    }
}

/// Narrows a row: `dst[i] = nearest(src[i])`.
///
/// # Panics
/// If the lengths differ.
pub fn f32_to_f16_row(src: &[f32], dst: &mut [u16]) {
    assert_eq!(src.len(), dst.len(), "lengths of a float row and its binary16");
    for (out, &value) in dst.iter_mut().zip(src) {
        *out = f32_to_f16(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_half_widens_exactly_and_returns() {
        for bits in 0..=u16::MAX {
            let want = half::f16::from_bits(bits).to_f32();
            let have = f16_to_f32(bits);
            if want.is_nan() {
                assert!(have.is_nan(), "bits {bits:#06x}");
                assert!(half::f16::from_bits(f32_to_f16(have)).is_nan(), "bits {bits:#06x}");
            } else {
                assert_eq!(have.to_bits(), want.to_bits(), "bits {bits:#06x}");
                assert_eq!(f32_to_f16(have), bits);
            }
        }
    }

    #[test]
    fn midpoints_go_to_even() {
        for bits in 0..0x7bffu16 {
            let middle = (f64::from(f16_to_f32(bits)) + f64::from(f16_to_f32(bits + 1))) / 2.0;
            let value = middle as f32;
            assert_eq!(
                f32_to_f16(value),
                half::f16::from_f32(value).to_bits(),
                "between {bits:#06x} and the next"
            );
            assert_eq!(f32_to_f16(value) & 1, 0);
        }
    }

    proptest! {
        #[test]
        fn narrowing_equals_the_reference(bits: u32) {
            let value = f32::from_bits(bits);
            let want = half::f16::from_f32(value);
            if value.is_nan() {
                prop_assert!(half::f16::from_bits(f32_to_f16(value)).is_nan());
            } else {
                prop_assert_eq!(f32_to_f16(value), want.to_bits());
            }
        }
    }
}
