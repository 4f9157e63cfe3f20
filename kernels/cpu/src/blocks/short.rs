//! Formats in blocks of 32 weights.

use super::{SHORT_LEN, Short, half_at};
use crate::format::Format;

/// The 16 values of the non-linear formats (IQ4_NL, IQ4_XS), as given by `kvalues_iq4nl` of ggml.
pub(crate) const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Added to them.
pub(super) const IQ4_RAISE: u8 = 128;

/// [`IQ4_VALUES`], raised.
pub(crate) const IQ4_RAISED: [u8; 16] = raised(IQ4_VALUES, IQ4_RAISE);

/// The doubled values of E2M1: a sign, two bits of exponent and one of mantissa (`kvalues_mxfp4` of ggml).
pub(crate) const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Added to them.
const MXFP4_RAISE: u8 = 16;

/// [`MXFP4_VALUES`], raised.
pub(crate) const MXFP4_RAISED: [u8; 16] = raised(MXFP4_VALUES, MXFP4_RAISE);

const fn raised(values: [i8; 16], raise: u8) -> [u8; 16] {
    let mut raised = [0; 16];
    let mut i = 0;
    while i < 16 {
        raised[i] = raise.wrapping_add_signed(values[i]);
        i += 1;
    }
    raised
}

/// Writes the 16 low nibbles, then the 16 high ones of the same bytes.
#[inline(always)]
fn nibbles(bytes: &[u8], out: &mut [u8; SHORT_LEN]) {
    let (low, high) = out.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}

/// Writes the bytes of a table that the [`nibbles`] select.
#[inline(always)]
pub(super) fn looked_up(table: &[u8; 16], bytes: &[u8], out: &mut [u8; SHORT_LEN]) {
    nibbles(bytes, out);
    for q in out {
        *q = table[usize::from(*q & 15)];
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
        looked_up(&IQ4_RAISED, &block[2..18], out);
    }
}

/// `struct { uint8 e; uint8 qs[16]; }`; each nibble is an index into [`MXFP4_VALUES`]. `e` is an exponent of
/// the microscaling formats (E8M0) for the values of E2M1, so the scale of the doubled values is `2^(e -
/// 128)`.
pub(crate) struct Mxfp4;

impl Short for Mxfp4 {
    const FORMAT: Format = Format::Mxfp4;
    const RAISE: u8 = MXFP4_RAISE;
    const MINIMUM: bool = false;
    const WIDE_SCALE: bool = true;

    /// The powers below `2^-126` are subnormal. As in ggml, 255 is no NaN but one more power.
    #[inline(always)]
    fn scale(block: &[u8]) -> u16 {
        match block[0] {
            e @ 0..2 => 0x20 << e,
            e => u16::from(e - 1) << 7,
        }
    }

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; SHORT_LEN]) {
        looked_up(&MXFP4_RAISED, &block[1..17], out);
    }
}
