//! Formats in blocks of 32 weights.

use super::{SHORT_LEN, Short, half_at};
use crate::format::Format;

/// The 16 values of the non-linear formats (IQ4_NL, IQ4_XS), as given by `kvalues_iq4nl` of ggml.
pub(crate) const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Added to them.
pub(super) const IQ4_RAISE: u8 = 128;

/// [`IQ4_VALUES`], raised.
const IQ4_RAISED: [u8; 16] = {
    let mut raised = [0; 16];
    let mut i = 0;
    while i < 16 {
        raised[i] = IQ4_VALUES[i] as u8 ^ IQ4_RAISE;
        i += 1;
    }
    raised
};

/// Writes the 16 low nibbles, then the 16 high ones of the same bytes.
#[inline(always)]
fn nibbles(bytes: &[u8], out: &mut [u8; SHORT_LEN]) {
    let (low, high) = out.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}

/// Writes the raised non-linear values that the [`nibbles`] select.
#[inline(always)]
pub(super) fn iq4_quants(bytes: &[u8], out: &mut [u8; SHORT_LEN]) {
    nibbles(bytes, out);
    for q in out {
        *q = IQ4_RAISED[usize::from(*q & 15)];
    }
}

/// Writes quants of five bits: four bytes hold the fifth bits in order, then come the [`nibbles`] with the
/// rest.
#[inline(always)]
fn five_bits(bytes: &[u8], out: &mut [u8; SHORT_LEN]) {
    nibbles(&bytes[4..20], out);
    for (quants, byte) in out.as_chunks_mut::<8>().0.iter_mut().zip(&bytes[..4]) {
        for (i, q) in quants.iter_mut().enumerate() {
            *q |= (byte >> i & 1) << 4;
        }
    }
}

/// `struct { half d; uint8 qs[16]; }`
pub(crate) struct Q4_0;

impl Short for Q4_0 {
    const FORMAT: Format = Format::Q4_0;
    const RAISE: u8 = 8;
    const MINIMUM: bool = false;

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; SHORT_LEN]) {
        nibbles(&block[2..18], out);
    }
}

/// `struct { half d, m; uint8 qs[16]; }`
pub(crate) struct Q4_1;

impl Short for Q4_1 {
    const FORMAT: Format = Format::Q4_1;
    const RAISE: u8 = 0;
    const MINIMUM: bool = true;

    #[inline(always)]
    fn minimum(block: &[u8]) -> u16 {
        half_at(block, 2)
    }

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; SHORT_LEN]) {
        nibbles(&block[4..20], out);
    }
}

/// `struct { half d; uint8 qh[4], qs[16]; }`
pub(crate) struct Q5_0;

impl Short for Q5_0 {
    const FORMAT: Format = Format::Q5_0;
    const RAISE: u8 = 16;
    const MINIMUM: bool = false;

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; SHORT_LEN]) {
        five_bits(&block[2..22], out);
    }
}

/// `struct { half d, m; uint8 qh[4], qs[16]; }`
pub(crate) struct Q5_1;

impl Short for Q5_1 {
    const FORMAT: Format = Format::Q5_1;
    const RAISE: u8 = 0;
    const MINIMUM: bool = true;

    #[inline(always)]
    fn minimum(block: &[u8]) -> u16 {
        half_at(block, 2)
    }

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; SHORT_LEN]) {
        five_bits(&block[4..24], out);
    }
}

/// `struct { half d; int8 qs[32]; }`
pub(crate) struct Q8_0;

impl Short for Q8_0 {
    const FORMAT: Format = Format::Q8_0;
    const RAISE: u8 = 128;
    const MINIMUM: bool = false;

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; SHORT_LEN]) {
        for (q, byte) in out.iter_mut().zip(&block[2..2 + SHORT_LEN]) {
            *q = byte ^ 0x80;
        }
    }
}

/// `struct { half d; uint8 qs[16]; }`; each nibble is an index into [`IQ4_VALUES`].
pub(crate) struct Iq4Nl;

impl Short for Iq4Nl {
    const FORMAT: Format = Format::Iq4Nl;
    const RAISE: u8 = IQ4_RAISE;
    const MINIMUM: bool = false;

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; SHORT_LEN]) {
        iq4_quants(&block[2..18], out);
    }
}
