//! Weight formats in ggml's block layouts, and a borrowed matrix in one of them.
//!
//! Only shapes and sizes are here: `blocks` decodes, `quantize` encodes. A [`Matrix`] checks its length once,
//! so that the loops over it need no further checks.

use std::borrow::Cow;

use crate::error::KernelError;

/// A storage format of weights. Blocks are laid out byte for byte as ggml lays them out (little-endian).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// 32 values: binary16 scale, 32 nibbles.
    Q4_0,
    /// 32 values: binary16 scale and minimum, 32 nibbles.
    Q4_1,
    /// 32 values: binary16 scale, fifth bits, 32 nibbles.
    Q5_0,
    /// 32 values: binary16 scale and minimum, fifth bits, 32 nibbles.
    Q5_1,
    /// 32 values: binary16 scale, 32 signed bytes.
    Q8_0,
    /// 256 values: sixteen 4-bit scales and minima, bit pairs, binary16 scale and minimum scale.
    Q2K,
    /// 256 values: high bits, low bit pairs, sixteen signed 6-bit scales, binary16 scale.
    Q3K,
    /// 256 values: binary16 scale and minimum scale, eight 6-bit scales and minima, 256 nibbles.
    Q4K,
    /// 256 values: as [`Self::Q4K`] with fifth bits.
    Q5K,
    /// 256 values: low nibbles, high bit pairs, sixteen signed 8-bit scales, binary16 scale.
    Q6K,
    /// 256 values: binary16 scale, ternary vectors of eight by 11-bit codes, eight 3-bit scales, eight signs
    /// of an offset.
    Iq1S,
    /// 256 values: as [`Self::Iq1S`], with sixteen scales and 32 signs; the binary16 scale is spread among
    /// them.
    Iq1M,
    /// 256 values: binary16 scale, magnitudes of eight values by 8-bit codes, seven signs a code (an even
    /// number of values is negative), eight 4-bit scales.
    Iq2Xxs,
    /// 256 values: as [`Self::Iq2Xxs`], with 9-bit codes and sixteen scales.
    Iq2Xs,
    /// 256 values: as [`Self::Iq2Xs`], with 10-bit codes and eight signs a code.
    Iq2S,
    /// 256 values: binary16 scale, magnitudes of four values by 8-bit codes, seven signs per two codes (an
    /// even number of values is negative), eight 4-bit scales.
    Iq3Xxs,
    /// 256 values: as [`Self::Iq3Xxs`], with 9-bit codes and four signs a code.
    Iq3S,
    /// 32 values: binary16 scale, 32 nibbles that are indices into a table of values.
    Iq4Nl,
    /// 256 values: binary16 scale, eight signed 6-bit scales, nibbles as in [`Self::Iq4Nl`].
    Iq4Xs,
    /// 256 values of -1, 0 and 1: five or four to a byte as digits to the base 3, binary16 scale.
    Tq1_0,
    /// 256 values of -1, 0 and 1: bit pairs, binary16 scale.
    Tq2_0,
    /// 32 values: a power of two as scale, 32 floats of four bits. The microscaling format of the Open
    /// Compute Project.
    Mxfp4,
}

/// The constants of a format: ggml's name and type number, values and bytes of a block.
struct Facts {
    name: &'static str,
    ggml_type: u32,
    block_len: usize,
    block_bytes: usize,
}

impl Format {
    /// Every format of this crate.
    pub const ALL: [Self; 25] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq1S,
        Self::Iq1M,
        Self::Iq2Xxs,
        Self::Iq2Xs,
        Self::Iq2S,
        Self::Iq3Xxs,
        Self::Iq3S,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Tq1_0,
        Self::Tq2_0,
        Self::Mxfp4,
    ];

    const fn facts(self) -> Facts {
        let (name, ggml_type, block_len, block_bytes) = match self {
            Self::F32 => ("F32", 0, 1, 4),
            Self::F16 => ("F16", 1, 1, 2),
            Self::Bf16 => ("BF16", 30, 1, 2),
            Self::Q4_0 => ("Q4_0", 2, 32, 18),
            Self::Q4_1 => ("Q4_1", 3, 32, 20),
            Self::Q5_0 => ("Q5_0", 6, 32, 22),
            Self::Q5_1 => ("Q5_1", 7, 32, 24),
            Self::Q8_0 => ("Q8_0", 8, 32, 34),
            Self::Q2K => ("Q2_K", 10, 256, 84),
            Self::Q3K => ("Q3_K", 11, 256, 110),
            Self::Q4K => ("Q4_K", 12, 256, 144),
            Self::Q5K => ("Q5_K", 13, 256, 176),
            Self::Q6K => ("Q6_K", 14, 256, 210),
            Self::Iq1S => ("IQ1_S", 19, 256, 50),
            Self::Iq1M => ("IQ1_M", 29, 256, 56),
            Self::Iq2Xxs => ("IQ2_XXS", 16, 256, 66),
            Self::Iq2Xs => ("IQ2_XS", 17, 256, 74),
            Self::Iq2S => ("IQ2_S", 22, 256, 82),
            Self::Iq3Xxs => ("IQ3_XXS", 18, 256, 98),
            Self::Iq3S => ("IQ3_S", 21, 256, 110),
            Self::Iq4Nl => ("IQ4_NL", 20, 32, 18),
            Self::Iq4Xs => ("IQ4_XS", 23, 256, 136),
            Self::Tq1_0 => ("TQ1_0", 34, 256, 54),
            Self::Tq2_0 => ("TQ2_0", 35, 256, 66),
            Self::Mxfp4 => ("MXFP4", 39, 32, 17),
        };
        Facts { name, ggml_type, block_len, block_bytes }
    }

    /// Returns the number of values in one block (1 for the float formats).
    pub const fn block_len(self) -> usize {
        self.facts().block_len
    }

    /// Returns the bytes of one block.
    pub const fn block_bytes(self) -> usize {
        self.facts().block_bytes
    }

    /// Returns the bytes of a row of `cols` values, or `None` if the row is not whole blocks or the size
    /// overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Returns the format with ggml's type number, or `None` if this crate does not have it.
    pub fn from_ggml_type(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.ggml_type() == number)
    }

    /// Returns ggml's type number.
    pub const fn ggml_type(self) -> u32 {
        self.facts().ggml_type
    }

    /// Returns ggml's name of the format.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// As [`Self::row_bytes`], with an error that says why the row has no size.
    pub(crate) fn checked_row_bytes(self, cols: usize) -> Result<usize, KernelError> {
        if !cols.is_multiple_of(self.block_len()) {
            return Err(KernelError::PartialBlock { format: self, cols, block_len: self.block_len() });
        }
        self.row_bytes(cols).ok_or(KernelError::TooLarge { format: self, rows: 1, cols })
    }
}

/// A borrowed row-major matrix `[rows, cols]` of weights: one output per row.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    format: Format,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    strips: bool,
    data: &'a [u8],
}

/// Rows of a strip of a repacked matrix: as many as are multiplied together.
pub(crate) const STRIP_ROWS: usize = 16;

impl<'a> Matrix<'a> {
    /// Borrows `data` as `[rows, cols]` in `format`; any alignment will do.
    ///
    /// # Errors
    /// [`KernelError::PartialBlock`] if `cols` is not whole blocks, [`KernelError::TooLarge`] if the size
    /// overflows, [`KernelError::Length`] if `data` is not exactly as long as the shape says.
    pub fn new(format: Format, rows: usize, cols: usize, data: &'a [u8]) -> Result<Self, KernelError> {
        let row_bytes = format.checked_row_bytes(cols)?;
        let want = row_bytes.checked_mul(rows).ok_or(KernelError::TooLarge { format, rows, cols })?;
        if data.len() != want {
            return Err(KernelError::Length { what: "matrix data", have: data.len(), want });
        }
        Ok(Self { format, rows, cols, row_bytes, strips: false, data })
    }

    /// Borrows data that [`Self::repack`] made from a matrix of this shape.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn repacked(format: Format, rows: usize, cols: usize, data: &'a [u8]) -> Result<Self, KernelError> {
        Ok(Self { strips: format.block_len() > 1, ..Self::new(format, rows, cols, data)? })
    }

    /// Returns the same bytes with the blocks of sixteen rows in the order in which they are multiplied. They
    /// are then read as one stream instead of sixteen. Float formats stay as they are. For
    /// [`Self::repacked`].
    pub fn repack(&self) -> Vec<u8> {
        if self.strips || self.format.block_len() == 1 {
            return self.data.to_vec();
        }
        let mut to = Vec::with_capacity(self.data.len());
        for first in (0..self.rows).step_by(STRIP_ROWS) {
            for b in 0..self.blocks() {
                for row in first..self.rows.min(first + STRIP_ROWS) {
                    to.extend_from_slice(self.block(row, b));
                }
            }
        }
        to
    }

    /// Returns the bytes as they were given. Their place in memory tells a matrix from all others.
    pub const fn bytes(&self) -> &'a [u8] {
        self.data
    }

    /// Returns the bytes of the rows, one row after another, also if [`Self::repack`] has changed the order.
    pub fn rows_in_order(&self) -> Cow<'a, [u8]> {
        if !self.strips {
            return Cow::Borrowed(self.data);
        }
        let rows = (0..self.rows).flat_map(|row| (0..self.blocks()).map(move |b| (row, b)));
        Cow::Owned(rows.flat_map(|(row, b)| self.block(row, b)).copied().collect())
    }

    /// Returns the number of blocks of a row.
    #[inline]
    pub(crate) const fn blocks(&self) -> usize {
        self.cols / self.format.block_len()
    }

    /// Returns the bytes from a block of a row to the row's next block.
    #[inline]
    pub(crate) fn block_stride(&self, row: usize) -> usize {
        let first = row / STRIP_ROWS * STRIP_ROWS;
        let beside = if self.strips { STRIP_ROWS.min(self.rows - first) } else { 1 };
        beside * self.format.block_bytes()
    }

    /// Returns the bytes from a row's first block to that of the next row of the strip.
    #[inline]
    pub(crate) fn row_step(&self) -> usize {
        if self.strips { self.format.block_bytes() } else { self.row_bytes }
    }

    /// Returns the bytes from the first block of row `row` to the end of the matrix.
    ///
    /// # Panics
    /// If `row` is not below [`Self::rows`].
    #[inline]
    pub(crate) fn row_onward(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "row {row} of a matrix of {} rows", self.rows);
        if self.strips && self.row_bytes > 0 {
            let first = row / STRIP_ROWS * STRIP_ROWS;
            &self.data[first * self.row_bytes + (row - first) * self.format.block_bytes()..]
        } else {
            &self.data[row * self.row_bytes..]
        }
    }

    /// Returns block `b` of row `row`.
    ///
    /// # Panics
    /// If there is no such row or block.
    #[inline]
    pub(crate) fn block(&self, row: usize, b: usize) -> &'a [u8] {
        assert!(b < self.blocks(), "block {b} of a row of {}", self.blocks());
        &self.row_onward(row)[b * self.block_stride(row)..][..self.format.block_bytes()]
    }

    /// Returns the storage format.
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Returns the number of rows: the length of an output vector.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns: the length of an activation row.
    pub const fn cols(&self) -> usize {
        self.cols
    }

    /// Writes row `row` as floats into `dst` (`[cols]`), as the lookup in an embedding table needs it.
    ///
    /// # Errors
    /// [`KernelError::Length`] if `dst` is not `cols` long.
    ///
    /// # Panics
    /// If `row` is not below [`Self::rows`].
    pub fn dequantize_row(&self, row: usize, dst: &mut [f32]) -> Result<(), KernelError> {
        if dst.len() != self.cols {
            return Err(KernelError::Length { what: "row of floats", have: dst.len(), want: self.cols });
        }
        if !self.strips {
            return crate::dequantize_row(self.format, &self.row_onward(row)[..self.row_bytes], dst);
        }
        for (b, dst) in dst.chunks_exact_mut(self.format.block_len()).enumerate() {
            crate::dequantize_row(self.format, self.block(row, b), dst)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_checked() {
        let data = [0u8; 68];
        assert_eq!(Matrix::new(Format::Q8_0, 2, 32, &data).unwrap().block(1, 0).len(), 34);
        assert_eq!(
            Matrix::new(Format::Q8_0, 2, 33, &data).unwrap_err(),
            KernelError::PartialBlock { format: Format::Q8_0, cols: 33, block_len: 32 }
        );
        assert_eq!(
            Matrix::new(Format::Q8_0, 3, 32, &data).unwrap_err(),
            KernelError::Length { what: "matrix data", have: 68, want: 102 }
        );
        let huge = usize::MAX / 2;
        assert_eq!(
            Matrix::new(Format::F32, 3, huge, &data).unwrap_err(),
            KernelError::TooLarge { format: Format::F32, rows: 1, cols: huge }
        );
        assert_eq!(
            Matrix::new(Format::F32, huge, 3, &data).unwrap_err(),
            KernelError::TooLarge { format: Format::F32, rows: huge, cols: 3 }
        );
        assert_eq!(Matrix::new(Format::Q4K, 0, 256, &[]).unwrap().rows(), 0);
    }

    #[test]
    fn rows_in_order_undo_repacking() {
        let (rows, cols) = (19, 64);
        let data: Vec<u8> = (0..rows * cols / 32 * 18).map(|at| (at * 7 % 251) as u8).collect();
        let matrix = Matrix::new(Format::Q4_0, rows, cols, &data).unwrap();
        assert!(matches!(matrix.rows_in_order(), Cow::Borrowed(same) if same == data));
        let copy = matrix.repack();
        assert_ne!(copy, data);
        assert_eq!(Matrix::repacked(Format::Q4_0, rows, cols, &copy).unwrap().rows_in_order(), data);
    }

    #[test]
    fn type_numbers_go_both_ways() {
        for format in Format::ALL {
            assert_eq!(Format::from_ggml_type(format.ggml_type()), Some(format));
        }
        // Q8_1 and Q8_K (activation formats) and NVFP4.
        for number in [9, 15, 40] {
            assert_eq!(Format::from_ggml_type(number), None);
        }
    }

    #[test]
    fn errors_name_limit_and_value() {
        let err = Matrix::new(Format::Q6K, 1, 100, &[]).unwrap_err();
        assert_eq!(err.to_string(), "a row of Q6_K has 100 columns, not a multiple of 256");
    }
}
