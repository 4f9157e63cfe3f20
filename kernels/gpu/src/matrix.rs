//! Weights and rounded activations in a device's memory.

use std::ops::Range;

use baton_kernels_cpu::{Format, Matrix};

use crate::device::{Buffer, Device};

/// Some rows of a matrix, in one buffer.
#[derive(Debug, Clone)]
pub(crate) struct Chunk {
    pub(crate) buffer: Buffer,
    pub(crate) first: usize,
    pub(crate) rows: usize,
}

/// A weight matrix `[rows, cols]` in a device's memory, in as many buffers as its size takes.
#[derive(Debug, Clone)]
pub struct DeviceMatrix {
    pub(crate) format: Format,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) chunks: Vec<Chunk>,
}

/// Some rows of a matrix that lie in one buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The rows.
    pub rows: Range<usize>,
    /// Their place among the matrix's bytes.
    pub bytes: Range<usize>,
}

impl Piece {
    /// Returns the bytes of the buffer that holds it: whole words.
    pub fn buffer_bytes(&self) -> u64 {
        self.bytes.len().next_multiple_of(4) as u64
    }
}

/// Cuts a matrix into pieces that a binding of a device holds.
pub fn pieces(device: &dyn Device, format: Format, rows: usize, cols: usize) -> Vec<Piece> {
    let row_bytes = format.row_bytes(cols).unwrap_or(0);
    // A row that no binding holds makes the device refuse the launch.
    let most = ((device.facts().binding_bytes as usize).saturating_sub(3) / row_bytes.max(1)).max(1);
    let piece = |first| {
        let end = rows.min(first + most);
        Piece { rows: first..end, bytes: first * row_bytes..end * row_bytes }
    };
    (0..rows).step_by(most).map(piece).collect()
}

impl DeviceMatrix {
    /// Copies a matrix to the device. If there is no room, the device keeps the fault.
    pub fn new(device: &dyn Device, matrix: &Matrix<'_>) -> Self {
        let (format, rows, cols) = (matrix.format(), matrix.rows(), matrix.cols());
        let bytes = matrix.rows_in_order();
        let copy = |piece: Piece| {
            let part = &bytes[piece.bytes.clone()];
            let buffer = device.alloc(piece.buffer_bytes());
            let whole = part.len() / 4 * 4;
            device.write(&buffer, 0, &part[..whole]);
            if whole < part.len() {
                device.write(&buffer, whole as u64, &last_word(&part[whole..]));
            }
            (buffer, piece)
        };
        Self::over(pieces(device, format, rows, cols).into_iter().map(copy), (format, rows, cols))
    }

    /// Takes buffers that hold the pieces of a matrix of this format, rows and columns. They may be filled
    /// later, before it is used.
    pub fn over(
        held: impl IntoIterator<Item = (Buffer, Piece)>,
        (format, rows, cols): (Format, usize, usize),
    ) -> Self {
        let chunk = |(buffer, piece): (Buffer, Piece)| Chunk {
            buffer,
            first: piece.rows.start,
            rows: piece.rows.len(),
        };
        Self { format, rows, cols, chunks: held.into_iter().map(chunk).collect() }
    }

    /// Returns the number of rows: the length of an output vector.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns: the length of an activation row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns its storage format.
    pub fn format(&self) -> Format {
        self.format
    }
}

/// Returns up to three bytes as a word that ends with zeros.
pub fn last_word(bytes: &[u8]) -> [u8; 4] {
    let mut word = [0; 4];
    word[..bytes.len()].copy_from_slice(bytes);
    word
}

/// Activation rows as [`crate::Kernel::Quantize`] writes them.
#[derive(Debug, Clone)]
pub struct Quantized {
    pub(crate) q: Buffer,
    pub(crate) scale: Buffer,
    pub(crate) sums: Buffer,
}
