//! Decoding of ggml's blocks: the one place that knows which bit belongs to which weight.
//!
//! A format is a row of facts (how large a block, what is raised by how much) and a few functions from a block's bytes
//! to small integers and float units. Dequantization, the definition of the dot products and the packing for the vector
//! levels all start from these, so that they cannot disagree about a layout. Adding a format is implementing one of
//! the two traits and naming it in [`visit`].
//! Source: the block layouts of ggml (`ggml-common.h`).

mod iq1;
mod iq1_grid;
mod long;
mod short;

use crate::error::KernelError;
use crate::f16::f16_to_f32;
use crate::format::Format;

pub(crate) use iq1::{Iq1M, Iq1S, TERNARY_GRID};
pub(crate) use long::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
pub(crate) use short::{IQ4_VALUES, Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};

/// Weights of a short block.
pub(crate) const SHORT_LEN: usize = 32;
/// Weights of a super-block.
pub(crate) const K_LEN: usize = 256;

/// A format in blocks of 32: weight `i` is `scale * (quants[i] - RAISE) + minimum`.
pub(crate) trait Short {
    /// The format.
    const FORMAT: Format;
    /// What is added to each quant to make it a byte: at most 63 after raising, or 128 for quants of all eight bits.
    const RAISE: u8;
    /// Whether the format has minima.
    const MINIMUM: bool;

    /// The scale of a block, as the bits of a binary16.
    fn scale(block: &[u8]) -> u16;

    /// What is added to every weight of a block, as the bits of a binary16; 0 where the format has none.
    fn minimum(_block: &[u8]) -> u16 {
        0
    }

    /// The raised quants of a block, in the order of the weights.
    fn quants(block: &[u8], out: &mut [u8; SHORT_LEN]);
}

/// A format in super-blocks of 256: weight `i` is `d * scales[i / 16] * (quants[i] - RAISE) - dmin * minima[i / 16]`.
///
/// `scales[g] * Σ (quants - RAISE) * q` over a super-block and activations `q` in -127..=127 stays inside `i32`.
pub(crate) trait Long {
    /// The format.
    const FORMAT: Format;
    /// As [`Short::RAISE`].
    const RAISE: u8;
    /// Weights that share a scale and a minimum: 16 or 32.
    const GROUP: usize;
    /// Whether the format has minima.
    const MINIMA: bool;
    /// How many parts of a super-block, of equal length, have `|Σ scale * dot| <= 2^24` each, so that floats hold them
    /// exactly: 1 or 2; 0 where integers are needed.
    const FLOAT_PARTS: usize;

    /// A power of two that `d` is multiplied with: below 1 where the quants are multiples of ggml's own.
    const UNIT: f32 = 1.0;

    /// `d / UNIT` and `dmin` (0 where the format has no minima), as the bits of binary16 numbers.
    fn units(block: &[u8]) -> [u16; 2];

    /// Integer scales of 16 weights each; neighbours are equal where [`Self::GROUP`] is 32.
    fn scales(block: &[u8]) -> [i8; 16];

    /// Integer minima of 16 weights each, as [`Self::scales`].
    fn minima(_block: &[u8]) -> [i8; 16] {
        [0; 16]
    }

    /// The raised quants of a block, in the order of the weights.
    fn quants(block: &[u8], out: &mut [u8; K_LEN]);
}

/// Something done once for the format at hand, compiled for each.
pub(crate) trait Visitor {
    /// What it gives.
    type Output;
    /// For IEEE binary32.
    fn f32(self) -> Self::Output;
    /// For IEEE binary16.
    fn f16(self) -> Self::Output;
    /// For bfloat16.
    fn bf16(self) -> Self::Output;
    /// For a format of short blocks.
    fn short<B: Short>(self) -> Self::Output;
    /// For a format of super-blocks.
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
        Format::Iq4Nl => visitor.short::<Iq4Nl>(),
        Format::Iq4Xs => visitor.long::<Iq4Xs>(),
    }
}

/// Where the binary16 numbers of a block lie, for tests that make arbitrary bytes valid: clearing bit `0x40` of the
/// byte after each offset leaves a finite number. IQ1_M has its number in four nibbles, the highest in the last byte.
#[cfg(test)]
pub(crate) const fn halves(format: Format) -> &'static [usize] {
    match format {
        Format::F32 | Format::Bf16 => &[],
        Format::F16 | Format::Q4_0 | Format::Q5_0 | Format::Q8_0 => &[0],
        Format::Iq1S | Format::Iq4Nl | Format::Iq4Xs => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
        Format::Iq1M => &[54],
    }
}

/// The value of bfloat16 bits; exact.
#[inline(always)]
pub(crate) const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The bits of the binary16 number at a place in a block.
#[inline(always)]
pub(crate) fn half_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Writes the floats of one stored row: exactly the values that ggml's dequantization gives.
///
/// A scale of 11 bits, an integer scale and a quant make a product of at most 24 bits: every product is exact in
/// whatever order, and only the last sum of the formats with minima rounds.
///
/// Shapes: `src` whole blocks, `dst: [cols]`.
///
/// # Errors
/// [`KernelError::PartialBlock`] where `dst` is not whole blocks, [`KernelError::Length`] where `src` does not
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
            let (scale, minimum) = (f16_to_f32(B::scale(block)), f16_to_f32(B::minimum(block)));
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
