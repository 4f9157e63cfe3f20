//! Measures what this device can do with any model: for a device that has none yet and must report what
//! share it could compute.
//!
//! Products run on generated weights, in every format of the kernels and one usual width. The disk is
//! measured by a file that is written for this purpose and then removed.

use std::fs::File;
use std::io::Write as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use baton_kernels_cpu::{Format, Matrix, Pool, quantize_row};
use baton_plan::cluster::ByFormat;
use baton_plan::{Device, Disk, Processor};

use super::{
    CACHED_BYTES, ProfileError, STREAMED_BYTES, device, kv_copy_s, rate, streamed_rate, this_memory,
};
use crate::machine::disk::{self, DiskError};

/// Columns of the generated matrices.
const COLS: usize = 4096;
/// Bytes of one token's keys and values in one layer: 8 heads of 128 values in f16.
const KV_BYTES: usize = 2 * 8 * 128 * 2;
/// Bytes of the file by which the disk is measured.
const FILE_BYTES: usize = 64 << 20;

/// Measures this device without a model; `folder` is on the disk that will hold weights. `said` is told
/// what is being measured.
///
/// # Errors
/// [`ProfileError`] naming what could not be measured.
pub fn general(
    name: &str,
    threads: NonZeroUsize,
    folder: &Path,
    said: &mut dyn FnMut(&str),
) -> Result<Device, ProfileError> {
    let pool =
        Pool::new(threads).map_err(|source| ProfileError::Threads { threads: threads.get(), source })?;
    let (os, memory) = this_memory()?;
    let mut flops = ByFormat::new();
    for format in Format::ALL {
        said(&format!("products in {}", format.name()));
        let bytes = weights(format, CACHED_BYTES * pool.threads())?;
        flops.insert(format.name().to_owned(), rate(&matrix(format, &bytes)?, &pool));
    }
    said("reading weights from memory");
    let most = STREAMED_BYTES.min((memory.available_bytes / 4) as usize);
    let bytes = weights(Format::Q8_0, most)?;
    let read_bytes_per_s = streamed_rate(&[matrix(Format::Q8_0, &bytes)?], &pool);
    drop(bytes);
    said("disk");
    let disk = disk_below(folder)?;
    let cpu = Processor { flops, read_bytes_per_s, kv_copy_s: kv_copy_s(KV_BYTES)? };
    Ok(device(name, (os, &memory), cpu, disk))
}

/// Makes at most `most` bytes of weights, but at least one row.
fn weights(format: Format, most: usize) -> Result<Vec<u8>, ProfileError> {
    let row: Vec<f32> = (0..COLS).map(|at| (at % 31) as f32 / 31.0 - 0.5).collect();
    let mut one = Vec::new();
    quantize_row(format, &row, &mut one).map_err(|source| made_up(format, source))?;
    let rows = (most / one.len()).max(1);
    Ok(one.repeat(rows))
}

fn matrix(format: Format, bytes: &[u8]) -> Result<Matrix<'_>, ProfileError> {
    let row_bytes = format.row_bytes(COLS).unwrap_or(bytes.len());
    let made = Matrix::new(format, bytes.len() / row_bytes, COLS, bytes);
    made.map_err(|source| made_up(format, source))
}

fn made_up(format: Format, source: baton_kernels_cpu::KernelError) -> ProfileError {
    ProfileError::Product { name: format!("made-up weights in {}", format.name()), source }
}

/// Removes its file when dropped.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // A file that is left over is small compared with a model, and is overwritten next time.
        let _removed = std::fs::remove_file(&self.0);
    }
}

fn disk_below(folder: &Path) -> Result<Disk, ProfileError> {
    let path = folder.join("disk-speed.partial");
    let read = |source| DiskError::Read { path: path.clone(), source };
    let written = TemporaryFile(path.clone());
    std::fs::create_dir_all(folder).map_err(read)?;
    let mut file = File::create(&path).map_err(read)?;
    // Numbers that no file system can compress.
    let mut state = 1_u64;
    let mut piece = vec![0_u8; 1 << 20];
    for _ in 0..FILE_BYTES / piece.len() {
        for word in piece.as_chunks_mut::<8>().0 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *word = state.to_le_bytes();
        }
        file.write_all(&piece).map_err(read)?;
    }
    file.sync_all().map_err(read)?;
    let rates = disk::measure(&path)?;
    drop(written);
    Ok(Disk {
        sequential_bytes_per_s: rates.sequential_bytes_per_s,
        random_bytes_per_s: rates.random_bytes_per_s,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::shape::shape_of;

    #[test]
    fn a_device_without_a_model_can_be_planned_with_for_every_format() {
        let folder = tempfile::tempdir().unwrap();
        let mut said = 0;
        let device = general("new", NonZeroUsize::MIN, folder.path(), &mut |_| said += 1).unwrap();
        assert_eq!(device.cpu.flops.len(), Format::ALL.len());
        assert_eq!(said, Format::ALL.len() + 2);
        assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "the file is gone");
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo-cloud.gguf");
        let cluster = baton_plan::Cluster {
            note: String::new(),
            devices: vec![device],
            network: baton_plan::Network { latency_s: 0.0, bytes_per_s: 1e9, edges: Vec::new() },
            head: None,
        };
        let workload = baton_plan::Workload { context: 128, sequences: 1 };
        let shape = shape_of(&model, Default::default()).unwrap();
        let plan = baton_plan::search(&cluster, &shape, workload, &Default::default()).unwrap();
        assert_eq!(plan.shares[0].layers, shape.layers);
    }
}
