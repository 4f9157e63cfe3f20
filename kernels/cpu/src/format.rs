//! Weight formats in ggml's block layouts, and a borrowed matrix of one of them.
//!
//! Only shapes and sizes live here; `blocks` decodes, `quantize` encodes. A [`Matrix`] checks its length once,
//! so that the loops over it need no further checks.

use crate::error::KernelError;

/// A storage format of weights. Blocks are laid out byte for byte as ggml lays them out (little-endian).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// 32 values: binary16 scale, 32 signed bytes.
    Q8_0,
    /// 256 values: binary16 scale and minimum scale, eight 6-bit scales and minima, 256 nibbles.
    Q4K,
    /// 256 values: low nibbles, high bit pairs, sixteen signed 8-bit scales, binary16 scale.
    Q6K,
}

impl Format {
    /// Every format of this crate.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Q8_0, Self::Q4K, Self::Q6K];

    /// Values in one block (1 for the float formats).
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 => 1,
            Self::Q8_0 => 32,
            Self::Q4K | Self::Q6K => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q6K => 210,
        }
    }

    /// Bytes of a row of `cols` values; `None` where the row is not whole blocks or the size overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The format with ggml's type number, where this crate has it.
    pub const fn from_ggml_type(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::F32),
            1 => Some(Self::F16),
            8 => Some(Self::Q8_0),
            12 => Some(Self::Q4K),
            14 => Some(Self::Q6K),
            _ => None,
        }
    }

    /// ggml's type number.
    pub const fn ggml_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 8,
            Self::Q4K => 12,
            Self::Q6K => 14,
        }
    }

    /// ggml's name of the format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// [`Self::row_bytes`] with the reason where there is none.
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
    data: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// Borrows `data` as `[rows, cols]` in `format`. No alignment is asked for.
    ///
    /// # Errors
    /// [`KernelError::PartialBlock`] where `cols` is not whole blocks, [`KernelError::TooLarge`] where the size
    /// overflows, [`KernelError::Length`] where `data` is not exactly as long as the shape says.
    pub fn new(format: Format, rows: usize, cols: usize, data: &'a [u8]) -> Result<Self, KernelError> {
        let row_bytes = format.checked_row_bytes(cols)?;
        let want = row_bytes.checked_mul(rows).ok_or(KernelError::TooLarge { format, rows, cols })?;
        if data.len() != want {
            return Err(KernelError::Length { what: "matrix data", have: data.len(), want });
        }
        Ok(Self { format, rows, cols, row_bytes, data })
    }

    /// The storage format.
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Rows: the length of an output vector.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: the length of an activation row.
    pub const fn cols(&self) -> usize {
        self.cols
    }

    /// The stored bytes of row `row`.
    ///
    /// # Panics
    /// Where `row` is not below [`Self::rows`].
    pub fn row(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "row {row} of a matrix of {} rows", self.rows);
        &self.data[row * self.row_bytes..(row + 1) * self.row_bytes]
    }

    /// Writes row `row` as floats into `dst` (`[cols]`); the lookup of an embedding table.
    ///
    /// # Errors
    /// [`KernelError::Length`] where `dst` is not `cols` long.
    ///
    /// # Panics
    /// Where `row` is not below [`Self::rows`].
    pub fn dequantize_row(&self, row: usize, dst: &mut [f32]) -> Result<(), KernelError> {
        crate::dequantize_row(self.format, self.row(row), dst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_checked() {
        let data = [0u8; 68];
        assert_eq!(Matrix::new(Format::Q8_0, 2, 32, &data).unwrap().row(1).len(), 34);
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
    fn type_numbers_go_both_ways() {
        for format in Format::ALL {
            assert_eq!(Format::from_ggml_type(format.ggml_type()), Some(format));
        }
        assert_eq!(Format::from_ggml_type(2), None);
    }

    #[test]
    fn errors_name_limit_and_value() {
        let err = Matrix::new(Format::Q6K, 1, 100, &[]).unwrap_err();
        assert_eq!(err.to_string(), "a row of Q6_K has 100 columns, not a multiple of 256");
    }
}
