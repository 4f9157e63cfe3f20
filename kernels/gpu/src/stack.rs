//! Matrices of one shape that lie one behind the other in a device's memory, such as the experts of a layer.
//!
//! A kernel finds a matrix by its number ([`crate::Kernel::MatVecChosen`]). Each is a [`DeviceMatrix`] of its
//! own too: a part of the same memory.

use baton_kernels_cpu::{Format, Matrix};

use crate::device::{Buffer, Device, PART_ALIGNMENT};
use crate::matrix::{DeviceMatrix, Piece, last_word};

/// Some matrices in one buffer.
#[derive(Debug, Clone)]
pub(crate) struct StackChunk {
    pub(crate) buffer: Buffer,
    /// The number of the first.
    pub(crate) first: usize,
    pub(crate) held: usize,
}

/// Matrices `[rows, cols]` in a device's memory, in as many buffers as their size takes.
#[derive(Debug, Clone)]
pub struct DeviceStack {
    pub(crate) format: Format,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Bytes from one matrix to the next.
    pub(crate) stride: usize,
    pub(crate) chunks: Vec<StackChunk>,
}

/// Returns the bytes of a matrix `[rows, cols]`, and from one to the next in a stack.
fn sizes(format: Format, rows: usize, cols: usize) -> (usize, usize) {
    let bytes = rows * format.row_bytes(cols).unwrap_or(0);
    (bytes, bytes.next_multiple_of(PART_ALIGNMENT as usize))
}

/// Returns how many of `count` matrices `[rows, cols]` each buffer of a stack holds, and its bytes; `None` if
/// a binding of the device does not hold one matrix.
pub fn stack_buffers(
    device: &dyn Device,
    format: Format,
    (rows, cols): (usize, usize),
    count: usize,
) -> Option<Vec<(usize, u64)>> {
    let (bytes, stride) = sizes(format, rows, cols);
    let most = device.facts().binding_bytes as usize / stride.max(1);
    let buffer = |first: usize| {
        let held = most.min(count - first);
        (held, (held * stride) as u64)
    };
    (bytes > 0 && most > 0).then(|| (0..count).step_by(most).map(buffer).collect())
}

impl DeviceStack {
    /// Copies `count` matrices, whose rows follow each other in `all`, to the device. Returns `None` if a
    /// binding does not hold one of them. If there is no room, the device keeps the fault.
    pub fn new(device: &dyn Device, all: &Matrix<'_>, count: usize) -> Option<Self> {
        let (format, rows, cols) = (all.format(), all.rows() / count.max(1), all.cols());
        let (bytes, stride) = sizes(format, rows, cols);
        let stored = all.rows_in_order();
        let mut first = 0;
        let mut chunks = Vec::new();
        for (held, buffer_bytes) in stack_buffers(device, format, (rows, cols), count)? {
            let buffer = device.alloc(buffer_bytes);
            let own = &stored[first * bytes..(first + held) * bytes];
            if bytes == stride {
                device.write(&buffer, 0, own);
            } else {
                let whole = bytes / 4 * 4;
                for (i, matrix) in own.chunks_exact(bytes).enumerate() {
                    let at = (i * stride) as u64;
                    device.write(&buffer, at, &matrix[..whole]);
                    if whole < bytes {
                        device.write(&buffer, at + whole as u64, &last_word(&matrix[whole..]));
                    }
                }
            }
            chunks.push(StackChunk { buffer, first, held });
            first += held;
        }
        Some(Self { format, rows, cols, stride, chunks })
    }

    /// Returns the number of rows of each matrix.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the storage format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns each matrix by itself, in order: the same memory.
    pub fn matrices(&self) -> impl Iterator<Item = DeviceMatrix> {
        let (bytes, _) = sizes(self.format, self.rows, self.cols);
        self.chunks.iter().flat_map(move |chunk| {
            (0..chunk.held).map(move |i| {
                let piece = Piece { rows: 0..self.rows, bytes: 0..bytes };
                let part = chunk.buffer.part((i * self.stride) as u64, piece.buffer_bytes());
                DeviceMatrix::over([(part, piece)], (self.format, self.rows, self.cols))
            })
        })
    }
}
