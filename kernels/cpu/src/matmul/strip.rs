//! Sixteen rows of a matrix, in either storage order.

use crate::format::{Matrix, STRIP_ROWS};
use crate::simd::Simd;

/// About how many bytes ahead of a product its weights are prefetched; at least a strip.
const AHEAD_BYTES: usize = 16 << 10;

/// Sixteen rows. If the matrix ends inside the strip, its last row is repeated.
#[derive(Clone, Copy)]
pub(super) struct Strip<'a> {
    /// The bytes from the first block of the first row to the end of the matrix.
    data: &'a [u8],
    /// The last row of the matrix, counted from the first one here.
    last: usize,
    /// Bytes of a block.
    bytes: usize,
    /// Bytes from a row's first block to the next row's.
    step: usize,
    /// Bytes from a block of a row to the next one.
    stride: usize,
    /// The prefetch distance in bytes: a number of whole strips.
    ahead: usize,
    /// Blocks of a row.
    pub blocks: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
}

impl<'a> Strip<'a> {
    /// Takes the rows of `w` from `first` on, a multiple of sixteen.
    #[inline(always)]
    pub(super) fn new(w: &Matrix<'a>, first: usize) -> Self {
        let first = first.min(w.rows() - 1);
        let bytes = w.format().block_bytes();
        let row_bytes = w.blocks() * bytes;
        let strip = STRIP_ROWS * row_bytes;
        let (data, last) = (w.row_onward(first), (w.rows() - 1 - first).min(STRIP_ROWS - 1));
        let (step, stride) = (w.row_step(), w.block_stride(first));
        assert!(
            last * step + w.blocks().saturating_sub(1) * stride + bytes.min(row_bytes) <= data.len(),
            "a strip ends inside its matrix"
        );
        Self {
            data,
            last,
            step,
            stride,
            bytes,
            blocks: w.blocks(),
            ahead: strip * (AHEAD_BYTES / strip.max(1)).max(1),
            row_bytes,
        }
    }

    /// Returns block `b` of row `i`, which has `bytes` bytes.
    #[inline(always)]
    pub(super) fn block(&self, i: usize, b: usize, bytes: usize) -> &'a [u8] {
        assert!(i < STRIP_ROWS && b < self.blocks && bytes == self.bytes, "no such block of a strip");
        let at = i.min(self.last) * self.step + b * self.stride;
        // SAFETY: `new` has checked that the last block of the last row ends inside the data. No row above
        // 15, no block from `blocks` on and no longer block is asked for (checked above).
        unsafe { self.data.get_unchecked(at..at + bytes) }
    }

    /// Returns a run of bytes of row `i`, for a format whose blocks are single numbers.
    #[inline(always)]
    pub(super) fn run(&self, i: usize, bytes: std::ops::Range<usize>) -> &'a [u8] {
        &self.data[i.min(self.last) * self.step..][bytes]
    }

    /// Prefetches part `i`, of `bytes` bytes, of block `b` of a later strip. The sixteen parts are taken in
    /// the order of addresses. Measured on one core with rows of 680 bytes: in the order in which rows are
    /// read, memory gave 14 GB/s instead of 32. Prefetching into L2 only was 5 % slower.
    #[inline(always)]
    pub(super) fn prefetch_ahead<S: Simd>(&self, s: S, i: usize, b: usize, bytes: usize) {
        let own = self.ahead + STRIP_ROWS * b * self.bytes + i * bytes;
        for line in 0..bytes.div_ceil(64) {
            s.prefetch(self.data.as_ptr().wrapping_add(own + 64 * line));
        }
    }
}
