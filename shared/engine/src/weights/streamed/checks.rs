//! The bounds of what may be asked of streamed weights, and how it is refused.

use std::io;
use std::path::PathBuf;

use super::Residency;

/// Bounds of the size of a read.
const READ_BYTES_MIN: usize = 4 << 10;
const READ_BYTES_MAX: usize = 64 << 20;
/// Bounds of the number of buffers.
const BUFFERS_MIN: usize = 1;
const BUFFERS_MAX: usize = 1024;
/// Bounds of the number of reading threads.
const THREADS_MIN: usize = 1;
const THREADS_MAX: usize = 16;

/// Why weights cannot be streamed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResidencyError {
    /// The model does not have the layer.
    #[error("layer {layer} of {n_layers}")]
    NoSuchLayer {
        /// The layer.
        layer: usize,
        /// Number of layers of the model.
        n_layers: usize,
    },
    /// A layer is listed twice.
    #[error("layer {layer} is listed twice")]
    LayerTwice {
        /// The layer.
        layer: usize,
    },
    /// The size of reads is out of range.
    #[error("reads of {found} bytes, must be {min} to {max}")]
    ReadBytes {
        /// The size requested.
        found: usize,
        /// The least.
        min: usize,
        /// The most.
        max: usize,
    },
    /// The number of buffers is out of range.
    #[error("{found} buffers to read into, must be {min} to {max}")]
    Buffers {
        /// The number requested.
        found: usize,
        /// The least.
        min: usize,
        /// The most.
        max: usize,
    },
    /// The number of reading threads is out of range.
    #[error("{found} reading threads, must be {min} to {max}")]
    ReadingThreads {
        /// The number requested.
        found: usize,
        /// The least.
        min: usize,
        /// The most.
        max: usize,
    },
    /// The model is in memory and has no file to read from.
    #[error("a model without a file cannot be streamed")]
    NotAFile,
    /// A file cannot be opened again.
    #[error("open `{}` for reading past the page cache", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        err: io::Error,
    },
    /// The system cannot start threads.
    #[error("start reading threads")]
    Threads(#[source] io::Error),
}

/// Returns the size of a read that is allowed and nearest to this one.
pub(super) fn allowed_read(bytes: usize) -> usize {
    bytes.clamp(READ_BYTES_MIN, READ_BYTES_MAX)
}

/// Returns the number of buffers that is allowed and nearest to this one.
pub(super) fn allowed_buffers(count: usize) -> usize {
    count.clamp(BUFFERS_MIN, BUFFERS_MAX)
}

/// Checks the sizes and numbers of reads.
pub(super) fn check_reads(residency: &Residency) -> Result<(), ResidencyError> {
    let &Residency { read_bytes, buffers, threads, .. } = residency;
    if !(READ_BYTES_MIN..=READ_BYTES_MAX).contains(&read_bytes) {
        let (min, max) = (READ_BYTES_MIN, READ_BYTES_MAX);
        return Err(ResidencyError::ReadBytes { found: read_bytes, min, max });
    }
    if !(BUFFERS_MIN..=BUFFERS_MAX).contains(&buffers) {
        return Err(ResidencyError::Buffers { found: buffers, min: BUFFERS_MIN, max: BUFFERS_MAX });
    }
    if !(THREADS_MIN..=THREADS_MAX).contains(&threads) {
        return Err(ResidencyError::ReadingThreads { found: threads, min: THREADS_MIN, max: THREADS_MAX });
    }
    Ok(())
}

/// Checks that a model has each layer, and that none is listed twice.
pub(super) fn check_layers(layers: &[usize], n_layers: usize) -> Result<(), ResidencyError> {
    let mut seen = vec![false; n_layers];
    for &layer in layers {
        match seen.get_mut(layer) {
            None => return Err(ResidencyError::NoSuchLayer { layer, n_layers }),
            Some(true) => return Err(ResidencyError::LayerTwice { layer }),
            Some(seen) => *seen = true,
        }
    }
    Ok(())
}
