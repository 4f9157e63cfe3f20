//! The errors of this crate: lengths and values from outside that do not fit a format.

use crate::format::Format;

/// Why data given to this crate was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A row of a quantized format is not whole blocks.
    #[error("a row of {} has {cols} columns, not a multiple of {block_len}", format.name())]
    PartialBlock {
        /// The format of the row.
        format: Format,
        /// Columns of the row.
        cols: usize,
        /// Values in one block of the format.
        block_len: usize,
    },
    /// The byte size of `rows` x `cols` values does not fit the address space.
    #[error("{rows} x {cols} values of {} do not fit the address space", format.name())]
    TooLarge {
        /// The format of the matrix.
        format: Format,
        /// Rows requested.
        rows: usize,
        /// Columns requested.
        cols: usize,
    },
    /// A buffer is shorter or longer than its shape says.
    #[error("{what} has length {have}, expected {want}")]
    Length {
        /// What the buffer is.
        what: &'static str,
        /// Its length.
        have: usize,
        /// The length that its shape demands.
        want: usize,
    },
    /// A value that cannot be quantized.
    #[error("value {index} of a row for {} is not finite", format.name())]
    NotFinite {
        /// The format requested.
        format: Format,
        /// Index of the first such value.
        index: usize,
    },
}
