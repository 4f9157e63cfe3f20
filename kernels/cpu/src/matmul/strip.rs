//! Sixteen rows of a matrix, wherever their blocks lie.

use crate::format::{Matrix, STRIP_ROWS};

/// Sixteen rows; past the last row of the matrix it is repeated.
#[derive(Clone, Copy)]
pub(super) struct Strip<'a> {
    /// From the first block of each row on.
    rows: [&'a [u8]; STRIP_ROWS],
    stride: usize,
    /// Blocks of a row.
    pub blocks: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
}

impl<'a> Strip<'a> {
    /// The rows of `w` from `first` on, which is a multiple of sixteen.
    #[inline(always)]
    pub fn new(w: &Matrix<'a>, first: usize) -> Self {
        let row = |i: usize| (first + i).min(w.rows() - 1);
        let at = row(0);
        Self {
            rows: std::array::from_fn(|i| w.row_onward(row(i))),
            stride: w.block_stride(at),
            blocks: w.blocks(),
            row_bytes: w.blocks() * w.format().block_bytes(),
        }
    }

    /// Block `b` of row `i`, of `bytes` bytes.
    #[inline(always)]
    pub fn block(&self, i: usize, b: usize, bytes: usize) -> &'a [u8] {
        &self.rows[i][b * self.stride..][..bytes]
    }

    /// A run of bytes of row `i`, of a format whose blocks are single numbers.
    #[inline(always)]
    pub fn run(&self, i: usize, bytes: std::ops::Range<usize>) -> &'a [u8] {
        &self.rows[i][bytes]
    }
}
