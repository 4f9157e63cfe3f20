//! Formats in blocks of 32 weights.

use super::{SHORT_LEN, Short, half_at};
use crate::format::Format;

/// `struct { half d; int8 qs[32]; }`
pub(crate) struct Q8_0;

impl Short for Q8_0 {
    const FORMAT: Format = Format::Q8_0;
    const RAISE: u8 = 128;
    const MINIMUM: bool = false;

    #[inline(always)]
    fn scale(block: &[u8]) -> u16 {
        half_at(block, 0)
    }

    #[inline(always)]
    fn quants(block: &[u8], out: &mut [u8; SHORT_LEN]) {
        for (q, byte) in out.iter_mut().zip(&block[2..2 + SHORT_LEN]) {
            *q = byte ^ 0x80;
        }
    }
}
