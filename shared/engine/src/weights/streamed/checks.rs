//! The bounds of what may be asked of streamed weights.

use super::{Residency, ResidencyError};

/// Bounds of the size of a read.
const READ_BYTES_MIN: usize = 4 << 10;
const READ_BYTES_MAX: usize = 8_000_000;
/// Bounds of the number of buffers.
const BUFFERS_MIN: usize = 1;
const BUFFERS_MAX: usize = 1024;
/// Bounds of the number of reading threads.
const THREADS_MIN: usize = 1;
const THREADS_MAX: usize = 16;

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
