//! Weights and rounded activations in a device's memory.

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

impl DeviceMatrix {
    /// Copies a matrix to the device. If there is no room, the device keeps the fault.
    pub fn new(device: &dyn Device, matrix: &Matrix<'_>) -> Self {
        let (format, rows, cols) = (matrix.format(), matrix.rows(), matrix.cols());
        let bytes = matrix.rows_in_order();
        let row_bytes = bytes.len() / rows.max(1);
        // A row that no binding holds makes the device refuse the launch.
        let most = ((device.facts().binding_bytes as usize).saturating_sub(3) / row_bytes.max(1)).max(1);
        let mut chunks = Vec::new();
        for first in (0..rows).step_by(most) {
            let rows = most.min(rows - first);
            let part = &bytes[first * row_bytes..(first + rows) * row_bytes];
            let buffer = device.alloc(part.len().next_multiple_of(4) as u64);
            let whole = part.len() / 4 * 4;
            device.write(&buffer, 0, &part[..whole]);
            if whole < part.len() {
                let mut last = [0; 4];
                last[..part.len() - whole].copy_from_slice(&part[whole..]);
                device.write(&buffer, whole as u64, &last);
            }
            chunks.push(Chunk { buffer, first, rows });
        }
        Self { format, rows, cols, chunks }
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

/// Activation rows as [`crate::Kernel::Quantize`] writes them.
#[derive(Debug, Clone)]
pub struct Quantized {
    pub(crate) q: Buffer,
    pub(crate) scale: Buffer,
    pub(crate) sums: Buffer,
}
