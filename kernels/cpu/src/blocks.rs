//! Decoding of ggml's blocks: the one place that knows which bit belongs to which weight.
//!
//! Each decoder turns a block's bytes into small integers and float scales; dequantization, the scalar dot
//! products and the packing of panels all start from these, so that they cannot disagree about the layout.
//! Source: the block layouts of ggml (`block_q8_0`, `block_q4_K`, `block_q6_K`).

use crate::error::KernelError;
use crate::f16::f16_to_f32;
use crate::format::Format;

/// Values in a Q8_0 block.
pub(crate) const Q8_0_LEN: usize = 32;
/// Values in a super-block of the k-quants.
pub(crate) const K_LEN: usize = 256;
/// Bytes of the blocks, as array lengths.
pub(crate) const Q8_0_BYTES: usize = Format::Q8_0.block_bytes();
/// Bytes of a Q4_K super-block.
pub(crate) const Q4K_BYTES: usize = Format::Q4K.block_bytes();
/// Bytes of a Q6_K super-block.
pub(crate) const Q6K_BYTES: usize = Format::Q6K.block_bytes();

/// A Q4_K super-block decoded: weight `i` is `scale[i / 32] * q[i] - min[i / 32]`.
pub(crate) struct Q4KScales {
    pub scale: [f32; 8],
    pub min: [f32; 8],
}

#[inline(always)]
fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// The scale of a Q8_0 block.
#[inline(always)]
pub(crate) fn q8_0_scale(block: &[u8; Q8_0_BYTES]) -> f32 {
    half_at(block, 0)
}

/// The 32 signed weights of a Q8_0 block, as the bytes they are stored in.
#[inline(always)]
pub(crate) fn q8_0_quants(block: &[u8; Q8_0_BYTES]) -> &[u8; 32] {
    block.last_chunk().expect("a block of 34 bytes ends in 32")
}

/// Scales and minima of a Q4_K super-block: six bits each, packed in twelve bytes.
///
/// The first four of each sit in the low six bits of bytes 0..4 and 4..8; the last four have their low nibble in
/// bytes 8..12 and their two high bits in the top of the bytes that hold the first four.
#[inline(always)]
pub(crate) fn q4k_scales(block: &[u8; Q4K_BYTES]) -> Q4KScales {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let packed: &[u8] = &block[4..16];
    let mut out = Q4KScales { scale: [0.0; 8], min: [0.0; 8] };
    for j in 0..4 {
        let (low, mid, high) = (packed[j], packed[4 + j], packed[8 + j]);
        out.scale[j] = d * f32::from(low & 63);
        out.min[j] = dmin * f32::from(mid & 63);
        out.scale[4 + j] = d * f32::from((high & 15) | ((low >> 6) << 4));
        out.min[4 + j] = dmin * f32::from((high >> 4) | ((mid >> 6) << 4));
    }
    out
}

/// The 256 nibbles of a Q4_K super-block in the order of the weights: 32 low nibbles, then the 32 high ones of
/// the same bytes, four times.
#[inline(always)]
pub(crate) fn q4k_quants(block: &[u8; Q4K_BYTES], out: &mut [u8; K_LEN]) {
    let (halves, _) = out.as_chunks_mut::<64>();
    let (bytes, _) = block[16..].as_chunks::<32>();
    for (dst, src) in halves.iter_mut().zip(bytes) {
        let (low, high) = dst.split_at_mut(32);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(src) {
            *low = byte & 15;
            *high = byte >> 4;
        }
    }
}

/// The sixteen scales of a Q6_K super-block, each for 16 weights.
#[inline(always)]
pub(crate) fn q6k_scales(block: &[u8; Q6K_BYTES]) -> [f32; 16] {
    let d = half_at(block, 208);
    let mut out = [0.0; 16];
    for (scale, &byte) in out.iter_mut().zip(&block[192..208]) {
        *scale = d * f32::from(byte as i8);
    }
    out
}

/// The 256 weights of a Q6_K super-block plus 32 each, so 0..=63, in the order of the weights.
///
/// Each half of 128 has 64 bytes of low nibbles and 32 bytes of high bit pairs; pair `p` of byte `i` belongs to
/// weight `32 p + i`, whose low nibble is the low (`p < 2`) or high half of byte `32 (p % 2) + i`.
#[inline(always)]
pub(crate) fn q6k_quants(block: &[u8; Q6K_BYTES], out: &mut [u8; K_LEN]) {
    let (halves, _) = out.as_chunks_mut::<128>();
    let (lows, _) = block[..128].as_chunks::<64>();
    let (highs, _) = block[128..192].as_chunks::<32>();
    for ((dst, low), high) in halves.iter_mut().zip(lows).zip(highs) {
        for (i, h) in high.iter().enumerate() {
            let (a, b) = (low[i], low[32 + i]);
            dst[i] = (a & 15) | ((h & 3) << 4);
            dst[32 + i] = (b & 15) | (((h >> 2) & 3) << 4);
            dst[64 + i] = (a >> 4) | (((h >> 4) & 3) << 4);
            dst[96 + i] = (b >> 4) | ((h >> 6) << 4);
        }
    }
}

/// Writes the floats of one stored row: exactly the values that ggml's dequantization gives.
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
    match format {
        Format::F32 => {
            for (out, bytes) in dst.iter_mut().zip(src.as_chunks::<4>().0) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        Format::F16 => {
            for (out, bytes) in dst.iter_mut().zip(src.as_chunks::<2>().0) {
                *out = f16_to_f32(u16::from_le_bytes(*bytes));
            }
        }
        Format::Q8_0 => {
            for (out, block) in dst.as_chunks_mut::<Q8_0_LEN>().0.iter_mut().zip(src.as_chunks().0) {
                let scale = q8_0_scale(block);
                for (value, &q) in out.iter_mut().zip(q8_0_quants(block)) {
                    *value = scale * f32::from(q as i8);
                }
            }
        }
        Format::Q4K => {
            for (out, block) in dst.as_chunks_mut::<K_LEN>().0.iter_mut().zip(src.as_chunks().0) {
                let scales = q4k_scales(block);
                let mut quants = [0; K_LEN];
                q4k_quants(block, &mut quants);
                for (i, (value, &q)) in out.iter_mut().zip(&quants).enumerate() {
                    *value = scales.scale[i / 32] * f32::from(q) - scales.min[i / 32];
                }
            }
        }
        Format::Q6K => {
            for (out, block) in dst.as_chunks_mut::<K_LEN>().0.iter_mut().zip(src.as_chunks().0) {
                let scales = q6k_scales(block);
                let mut quants = [0; K_LEN];
                q6k_quants(block, &mut quants);
                for (i, (value, &q)) in out.iter_mut().zip(&quants).enumerate() {
                    *value = scales[i / 16] * f32::from(q as i8 - 32);
                }
            }
        }
    }
    Ok(())
}
