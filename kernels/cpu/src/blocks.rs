//! Decoding of ggml's blocks: the only module that knows which bit belongs to which weight.
//!
//! A format is a set of constants (block size, raise) and a few functions that read small integers and float
//! units from a block. Dequantization, the definition of the dot products and the packing for the vector
//! levels all use these functions, so they cannot disagree about a layout. To add a format, implement one of
//! the two traits and add it to [`visit`].
//! Source: the block layouts of ggml (`ggml-common.h`).

mod codebook;
mod iq1;
mod iq1_grid;
mod iq2;
mod iq2_grid;
mod iq3;
mod iq3_grid;
mod long;
mod short;
mod tq;

use crate::error::KernelError;
use crate::f16::f16_to_f32;
use crate::format::Format;

pub(crate) use iq1::{Iq1M, Iq1S, TERNARY_GRID, TERNARY_VALUES};
pub(crate) use iq2::{IQ2_S_GRID, IQ2_VALUES, IQ2_XS_GRID, IQ2_XXS_GRID, Iq2S, Iq2Xs, Iq2Xxs};
pub(crate) use iq3::{IQ3_S_GRID, IQ3_S_VALUES, IQ3_XXS_GRID, IQ3_XXS_VALUES, Iq3S, Iq3Xxs};
pub(crate) use long::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
pub(crate) use short::{IQ4_VALUES, Iq4Nl, MXFP4_RAISED, MXFP4_VALUES, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(crate) use tq::{Tq1_0, Tq2_0};

/// Weights of a short block.
pub(crate) const SHORT_LEN: usize = 32;
/// Weights of a super-block.
pub(crate) const K_LEN: usize = 256;

/// A format in blocks of 32: weight `i` is `scale * (quants[i] - RAISE) + minimum`.
pub(crate) trait Short {
    /// The format.
    const FORMAT: Format;
    /// Added to each quant to make it a byte: at most 127 after raising, or 128 for quants of all eight bits.
    const RAISE: u8;
    /// Whether the format has minima.
    const MINIMUM: bool;
    /// Whether the scale has the range of a bfloat16, and [`Self::scale`] returns one.
    const WIDE_SCALE: bool = false;

    /// Returns the scale of a block as the bits of a binary16, which stands first in most formats, or of a
    /// bfloat16 if [`Self::WIDE_SCALE`].
    #[inline(always)]
    fn scale(block: &[u8]) -> u16 {
        half_at(block, 0)
    }

    /// Returns the scale of a block; exact.
    #[inline(always)]
    fn float_scale(block: &[u8]) -> f32 {
        let bits = Self::scale(block);
        if Self::WIDE_SCALE { bf16_to_f32(bits) } else { f16_to_f32(bits) }
    }

    /// Returns the number added to every weight of a block as the bits of a binary16; 0 if the format has
    /// none.
    fn minimum(_block: &[u8]) -> u16 {
        0
    }

    /// Writes the raised quants of a block, in the order of the weights.
    fn quants(block: &[u8], out: &mut [u8; SHORT_LEN]);
}

/// A format in super-blocks of 256. Weight `i` is
/// `d * scales[i / 16] * (quants[i] - RAISE) - dmin * minima[i / 16]`.
///
/// `scales[g] * Σ (quants - RAISE) * q` over a super-block fits `i32`, for activations `q` in -127..=127.
pub(crate) trait Long {
    /// The format.
    const FORMAT: Format;
    /// As [`Short::RAISE`].
    const RAISE: u8;
    /// Weights that share a scale and a minimum: 16 or 32.
    const GROUP: usize;
    /// Whether the format has minima.
    const MINIMA: bool;
    /// The number of equal parts of a super-block that have `|Σ scale * dot| <= 2^24` each, so that floats
    /// hold them exactly: 1 or 2; 0 if integers are needed.
    const FLOAT_PARTS: usize;

    /// A power of two that `d` is multiplied with; below 1 if the quants are multiples of ggml's own.
    const UNIT: f32 = 1.0;

    /// Returns `d / UNIT` and `dmin` (0 if the format has no minima) as the bits of binary16 numbers.
    fn units(block: &[u8]) -> [u16; 2];

    /// Returns one integer scale per 16 weights; scales 2 i and 2 i + 1 are equal if [`Self::GROUP`] is 32.
    fn scales(block: &[u8]) -> [i8; 16];

    /// Returns one integer minimum per 16 weights, as [`Self::scales`] does.
    fn minima(_block: &[u8]) -> [i8; 16] {
        [0; 16]
    }

    /// Writes the raised quants of a block, in the order of the weights.
    fn quants(block: &[u8], out: &mut [u8; K_LEN]);
}

/// An operation that is compiled for each format and runs for one of them.
pub(crate) trait Visitor {
    /// The result.
    type Output;
    /// Runs for IEEE binary32.
    fn f32(self) -> Self::Output;
    /// Runs for IEEE binary16.
    fn f16(self) -> Self::Output;
    /// Runs for bfloat16.
    fn bf16(self) -> Self::Output;
    /// Runs for a format of short blocks.
    fn short<B: Short>(self) -> Self::Output;
    /// Runs for a format of super-blocks.
    fn long<B: Long>(self) -> Self::Output;
}

/// Calls the visitor's function for `format`.
#[inline(always)]
pub(crate) fn visit<V: Visitor>(format: Format, visitor: V) -> V::Output {
    match format {
        Format::F32 => visitor.f32(),
        Format::F16 => visitor.f16(),
        Format::Bf16 => visitor.bf16(),
        Format::Q4_0 => visitor.short::<Q4_0>(),
        Format::Q4_1 => visitor.short::<Q4_1>(),
        Format::Q5_0 => visitor.short::<Q5_0>(),
        Format::Q5_1 => visitor.short::<Q5_1>(),
        Format::Q8_0 => visitor.short::<Q8_0>(),
        Format::Q2K => visitor.long::<Q2K>(),
        Format::Q3K => visitor.long::<Q3K>(),
        Format::Q4K => visitor.long::<Q4K>(),
        Format::Q5K => visitor.long::<Q5K>(),
        Format::Q6K => visitor.long::<Q6K>(),
        Format::Iq1S => visitor.long::<Iq1S>(),
        Format::Iq1M => visitor.long::<Iq1M>(),
        Format::Iq2Xxs => visitor.long::<Iq2Xxs>(),
        Format::Iq2Xs => visitor.long::<Iq2Xs>(),
        Format::Iq2S => visitor.long::<Iq2S>(),
        Format::Iq3Xxs => visitor.long::<Iq3Xxs>(),
        Format::Iq3S => visitor.long::<Iq3S>(),
        Format::Iq4Nl => visitor.short::<Iq4Nl>(),
        Format::Iq4Xs => visitor.long::<Iq4Xs>(),
        Format::Tq1_0 => visitor.long::<Tq1_0>(),
        Format::Tq2_0 => visitor.long::<Tq2_0>(),
        Format::Mxfp4 => visitor.short::<Mxfp4>(),
    }
}

/// Makes the scales of a block of arbitrary bytes finite, for tests: clears a bit of the exponent of each
/// binary16, and keeps the exponent of MXFP4 below 224.
#[cfg(test)]
pub(crate) fn make_finite(format: Format, block: &mut [u8]) {
    let halves: &[usize] = match format {
        Format::F32 | Format::Bf16 => &[],
        Format::F16 | Format::Q4_0 | Format::Q5_0 | Format::Q8_0 => &[0],
        Format::Iq1S | Format::Iq2Xxs | Format::Iq2Xs | Format::Iq2S => &[0],
        Format::Iq3Xxs | Format::Iq3S | Format::Iq4Nl | Format::Iq4Xs => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
        // The number lies in four nibbles, the highest in the last byte.
        Format::Iq1M => &[54],
        Format::Tq1_0 => &[52],
        Format::Tq2_0 => &[64],
        Format::Mxfp4 => {
            block[0] &= 0xdf;
            &[]
        }
    };
    for &at in halves {
        block[at + 1] &= 0xbf;
    }
}

/// Returns the value of bfloat16 bits; exact.
#[inline(always)]
pub(crate) const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Returns the bits of the binary16 number at `at`.
#[inline(always)]
pub(crate) fn half_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Returns the four bytes at `at` as a number.
#[inline(always)]
pub(crate) fn four_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Writes the floats of one stored row: exactly the values that ggml's dequantization returns.
///
/// A scale of 11 bits times an integer scale times a quant has at most 24 bits, so every product is exact in
/// any order. Only the last sum of the formats with minima rounds.
///
/// Shapes: `src` holds whole blocks, `dst: [cols]`.
///
/// # Errors
/// [`KernelError::PartialBlock`] if `dst` is not whole blocks, [`KernelError::Length`] if `src` does not
/// have the bytes of `dst.len()` values.
pub fn dequantize_row(format: Format, src: &[u8], dst: &mut [f32]) -> Result<(), KernelError> {
    let want = format.checked_row_bytes(dst.len())?;
    if src.len() != want {
        return Err(KernelError::Length { what: "row data", have: src.len(), want });
    }
    visit(format, Dequantize { src, dst });
    Ok(())
}

struct Dequantize<'a> {
    src: &'a [u8],
    dst: &'a mut [f32],
}

impl Visitor for Dequantize<'_> {
    type Output = ();

    fn f32(self) {
        for (value, bytes) in self.dst.iter_mut().zip(self.src.as_chunks().0) {
            *value = f32::from_le_bytes(*bytes);
        }
    }

    fn f16(self) {
        for (value, bytes) in self.dst.iter_mut().zip(self.src.as_chunks().0) {
            *value = f16_to_f32(u16::from_le_bytes(*bytes));
        }
    }

    fn bf16(self) {
        for (value, bytes) in self.dst.iter_mut().zip(self.src.as_chunks().0) {
            *value = bf16_to_f32(u16::from_le_bytes(*bytes));
        }
    }

    fn short<B: Short>(self) {
        let blocks = self.src.chunks_exact(B::FORMAT.block_bytes());
        for (out, block) in self.dst.as_chunks_mut::<SHORT_LEN>().0.iter_mut().zip(blocks) {
            let (scale, minimum) = (B::float_scale(block), f16_to_f32(B::minimum(block)));
            let mut quants = [0; SHORT_LEN];
            B::quants(block, &mut quants);
            for (value, &q) in out.iter_mut().zip(&quants) {
                let weight = scale * (f32::from(q) - f32::from(B::RAISE));
                *value = if B::MINIMUM { weight + minimum } else { weight };
            }
        }
    }

    fn long<B: Long>(self) {
        let blocks = self.src.chunks_exact(B::FORMAT.block_bytes());
        for (out, block) in self.dst.as_chunks_mut::<K_LEN>().0.iter_mut().zip(blocks) {
            let [d, dmin] = B::units(block).map(f16_to_f32);
            let (d, scales, minima) = (d * B::UNIT, B::scales(block), B::minima(block));
            let mut quants = [0; K_LEN];
            B::quants(block, &mut quants);
            for (i, (value, &q)) in out.iter_mut().zip(&quants).enumerate() {
                let weight = d * f32::from(scales[i / 16]) * (f32::from(q) - f32::from(B::RAISE));
                *value = if B::MINIMA { weight - dmin * f32::from(minima[i / 16]) } else { weight };
            }
        }
    }
}
