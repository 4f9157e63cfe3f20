//! Writes the file: weights pass through in bands of rows, under a temporary name until all steps have
//! succeeded.
//!
//! A band is read, changed by the adapters, reordered, checked, quantized on all cores and written. Nothing
//! else of the model is in memory. Always holds: the file under the requested name is complete or absent.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread;

use baton_engine::gguf::{GgufStream, GgufWriteError, GgufWriter};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};

use crate::Progress;
use crate::adapter::{Adapter, Change};
use crate::error::ImportError;
use crate::mix::format_name;
use crate::plan::{Content, Plan, PlannedTensor};
use crate::safetensors::TensorFiles;

/// Weights of a band: 16 MiB as f32.
const BAND: usize = 4 << 20;
/// Smaller pieces are not worth a thread.
const VALUES_ALONE: usize = 1 << 14;
/// The largest finite binary16 number.
const F16_MAX: f32 = 65_504.0;

/// The output file while it is written; removed unless it is kept.
#[derive(Debug)]
pub(crate) struct Output {
    wanted: PathBuf,
    temporary: PathBuf,
    kept: bool,
}

impl Output {
    /// Checks that the file can be written, by creating it under another name in the same folder.
    pub(crate) fn create(wanted: &Path, replace: bool) -> Result<Output, ImportError> {
        if !replace && wanted.exists() {
            return Err(ImportError::OutExists { path: wanted.to_owned() });
        }
        // The new file replaces the old one by renaming. That must not happen to a folder or a device.
        if fs::metadata(wanted).is_ok_and(|found| !found.is_file()) {
            let err = std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a regular file");
            return Err(ImportError::Write { path: wanted.to_owned(), err: err.into() });
        }
        let mut name = OsString::from(".");
        name.push(wanted.file_name().unwrap_or_else(|| "model".as_ref()));
        name.push(format!(".{}.partial", std::process::id()));
        let temporary = wanted.with_file_name(name);
        let write = |err: std::io::Error| ImportError::Write { path: temporary.clone(), err: err.into() };
        OpenOptions::new().write(true).create(true).truncate(true).open(&temporary).map_err(write)?;
        Ok(Output { wanted: wanted.to_owned(), temporary, kept: false })
    }

    /// Returns the current path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.temporary
    }

    /// Writes everything; returns the length of the file.
    pub(crate) fn write(
        &self,
        mut writer: GgufWriter<'_>,
        sources: &Sources<'_>,
        progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
    ) -> Result<u64, ImportError> {
        let fail = |err| ImportError::Write { path: self.wanted.clone(), err };
        for tensor in &sources.plan.tensors {
            writer.declare(&tensor.name, &tensor.dims, tensor.storage()?).map_err(fail)?;
        }
        let open = OpenOptions::new().write(true).open(&self.temporary);
        let file = open.map_err(|err| fail(err.into()))?;
        let bytes_total: u64 = sources.plan.tensors.iter().map(PlannedTensor::data_len).sum();
        if !reserve(&file, bytes_total) {
            return Err(ImportError::NoRoom { path: self.wanted.clone(), bytes: bytes_total });
        }
        let stream = writer.begin(BufWriter::with_capacity(1 << 20, file)).map_err(fail)?;
        let mut bands = Bands { stream, path: &self.wanted, bytes_done: 0 };
        for (tensor_idx, tensor) in sources.plan.tensors.iter().enumerate() {
            let mut tell = |bytes_done| {
                let n_tensors = sources.plan.tensors.len();
                match progress(Progress {
                    tensor: &tensor.name,
                    tensor_idx,
                    n_tensors,
                    bytes_done,
                    bytes_total,
                }) {
                    ControlFlow::Continue(()) => Ok(()),
                    ControlFlow::Break(()) => Err(ImportError::Cancelled),
                }
            };
            bands.tensor(tensor, sources, &mut tell)?;
        }
        let mut file = bands.stream.finish().map_err(fail)?;
        let sync =
            file.flush().and_then(|()| file.get_ref().sync_all()).and_then(|()| file.get_ref().metadata());
        Ok(sync.map_err(|err| fail(err.into()))?.len())
    }

    /// Renames the file to its final name.
    pub(crate) fn keep(mut self) -> Result<(), ImportError> {
        let write = |err: std::io::Error| ImportError::Write { path: self.wanted.clone(), err: err.into() };
        fs::rename(&self.temporary, &self.wanted).map_err(write)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.kept {
            // If even that fails, nothing more can be done.
            drop(fs::remove_file(&self.temporary));
        }
    }
}

/// Reserves disk space, so that a full disk is noticed before hours of work. Returns false if there is not
/// enough; returns true if the file system cannot reserve space.
#[cfg(target_os = "linux")]
fn reserve(file: &File, bytes: u64) -> bool {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    // The length stays 0: only what is written counts.
    let reserved = fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes.max(1));
    !matches!(reserved, Err(Errno::NOSPC | Errno::DQUOT))
}

/// On other systems a full disk is noticed when a write fails.
#[cfg(not(target_os = "linux"))]
fn reserve(_: &File, _: u64) -> bool {
    true
}

/// The inputs of the weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sources<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) files: &'a TensorFiles,
    pub(crate) adapters: &'a [Adapter],
}

/// The output stream, and how many bytes were written to it.
struct Bands<'a> {
    stream: GgufStream<BufWriter<File>>,
    path: &'a Path,
    bytes_done: u64,
}

impl Bands<'_> {
    fn tensor(
        &mut self,
        tensor: &PlannedTensor,
        sources: &Sources<'_>,
        tell: &mut dyn FnMut(u64) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        let (names, rows, cols, pairs_in, offset) = match &tensor.content {
            Content::Values(values) => {
                tell(self.bytes_done)?;
                return self.put(tensor, values, values.len());
            }
            Content::Stored { names, rows, cols, pairs_in, offset } => {
                (names, *rows, *cols, *pairs_in, *offset)
            }
        };
        // If rows are reordered, a band holds whole heads.
        let unit = pairs_in.unwrap_or(1);
        let band_rows = (BAND / cols / unit).max(1) * unit;
        for name in names {
            let changes = changes(name, (rows, cols), sources.adapters)?;
            for start in (0..rows).step_by(band_rows) {
                tell(self.bytes_done)?;
                let band = start..rows.min(start + band_rows);
                let mut values = sources.files.rows(name, band.clone(), cols)?;
                for change in &changes {
                    let convert = |err| ImportError::Convert { name: name.clone(), err };
                    change.add_to(&mut values, band.clone()).map_err(convert)?;
                }
                values.iter_mut().for_each(|value| *value += offset);
                if let Some(d_head) = pairs_in {
                    values = in_pairs(&values, d_head, cols);
                }
                self.put(tensor, &values, cols)?;
            }
        }
        Ok(())
    }

    /// Quantizes a band of rows and writes it.
    fn put(&mut self, tensor: &PlannedTensor, values: &[f32], cols: usize) -> Result<(), ImportError> {
        check_range(tensor, values)?;
        let convert = |err| ImportError::Convert { name: tensor.name.clone(), err };
        for piece in encode(values, cols, tensor.format).map_err(convert)? {
            let write = |err: GgufWriteError| ImportError::Write { path: self.path.to_owned(), err };
            self.stream.put(&piece).map_err(write)?;
            self.bytes_done += piece.len() as u64;
        }
        Ok(())
    }
}

fn changes(name: &str, shape: (usize, usize), adapters: &[Adapter]) -> Result<Vec<Change>, ImportError> {
    adapters.iter().filter_map(|adapter| adapter.change(name, shape).transpose()).collect()
}

/// Reorders rows of heads, `[d, cols]` each, from halves to neighbouring pairs: row `j d/2 + i` of a head
/// becomes row `2 i + j`.
///
/// Hugging Face rotates dimension `i` with `i + d/2`; GGUF's llama family rotates `2 i` with `2 i + 1`.
pub(crate) fn in_pairs(values: &[f32], d_head: usize, cols: usize) -> Vec<f32> {
    let half = d_head / 2;
    let mut out = Vec::with_capacity(values.len());
    for head in values.chunks_exact(d_head * cols) {
        for row in 0..d_head {
            let from = (row % 2) * half + row / 2;
            out.extend_from_slice(&head[from * cols..(from + 1) * cols]);
        }
    }
    out
}

fn check_range(tensor: &PlannedTensor, values: &[f32]) -> Result<(), ImportError> {
    // Quantized blocks have 16-bit scales, which larger numbers would make infinite.
    let max = match tensor.format {
        GgmlDType::F32 | GgmlDType::BF16 => f32::MAX,
        _ => F16_MAX,
    };
    match values.iter().find(|value| value.is_nan() || value.abs() > max) {
        Some(&value) => {
            Err(ImportError::Value { name: tensor.name.clone(), value, format: format_name(tensor.format) })
        }
        None => Ok(()),
    }
}

/// Quantizes rows on all cores; the pieces are returned in the order of the rows.
fn encode(values: &[f32], cols: usize, format: GgmlDType) -> candle_core::Result<Vec<Vec<u8>>> {
    let piece = |values: &[f32]| {
        let tensor = Tensor::from_slice(values, (values.len() / cols, cols), &Device::Cpu)?;
        Ok(QTensor::quantize(&tensor, format)?.data()?.into_owned())
    };
    let n_threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let rows = (values.len() / cols).div_ceil(n_threads).max(1);
    if values.len() < VALUES_ALONE {
        return Ok(vec![piece(values)?]);
    }
    thread::scope(|scope| {
        let workers: Vec<_> =
            values.chunks(rows * cols).map(|values| scope.spawn(move || piece(values))).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, candle_core::Result<Vec<u8>>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_become_pairs() {
        // Two heads of four rows, two columns: the first number of a row is its index.
        let rows = |order: [f32; 4]| order.into_iter().flat_map(|row| [row, row + 10.0]).collect::<Vec<_>>();
        let from = [rows([0.0, 1.0, 2.0, 3.0]), rows([4.0, 5.0, 6.0, 7.0])].concat();
        let want = [rows([0.0, 2.0, 1.0, 3.0]), rows([4.0, 6.0, 5.0, 7.0])].concat();
        assert_eq!(in_pairs(&from, 4, 2), want);
    }

    #[test]
    fn a_file_that_is_not_kept_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = dir.path().join("m.gguf");
        let output = Output::create(&wanted, false).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        drop(output);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        Output::create(&wanted, false).unwrap().keep().unwrap();
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(names, std::slice::from_ref(&wanted));
        assert!(matches!(Output::create(&wanted, false), Err(ImportError::OutExists { .. })));
        assert!(Output::create(&wanted, true).is_ok());
    }
}
