//! How fast a device is: products, copies and launches, on weights that are made for it.
//!
//! A run is long enough to be measured, and its figure is the median of several. Slow devices get smaller
//! matrices, so that the time stays the same. The matrix-vector products of a fast device read several
//! matrices in turn, more than its caches hold.
//!
//! Never: brings a fault upon the device. If the device says how much memory is free, weights take at most
//! half of that; activations and copies take up to 32 MiB more, one measurement after another.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use baton_kernels_cpu::{Activations, Format, KernelError, Matrix, Pool, matmul, quantize_row};
use baton_kernels_gpu::ops::{self, Input};
use baton_kernels_gpu::{Buffer, Device, DeviceMatrix, GpuError, MapOp, Quantized};
use serde::{Deserialize, Serialize};

/// About how long [`measure`] should take, beside the compiling of kernels.
pub const TIME: Duration = Duration::from_secs(2);

/// Columns of every matrix.
const COLS: usize = 4096;
/// Activation rows of the matrix products.
const TOKENS: usize = 512;
/// The most rows of the matrix products.
const ROWS_MAX: usize = 4096;
/// The fewest rows of the matrix products.
const ROWS_MIN: usize = 32;
/// Bytes of the largest matrix.
const MATRIX_BYTES_MAX: u64 = 64 << 20;
/// Bytes of the smallest matrix of the matrix-vector products.
const MATRIX_BYTES_MIN: u64 = 1 << 20;
/// Matrices that are read in turn.
const MATRICES: usize = 4;
/// Bytes that a device must have free.
const FREE_BYTES_MIN: u64 = 64 << 20;
/// Bytes of a copy whose rate is measured.
const COPY_BYTES: usize = 16 << 20;
/// Least time of one run.
const RUN: Duration = Duration::from_millis(10);
/// The most runs of one figure.
const RUNS: usize = 5;
/// Bytes of the weights that the CPU multiplies with one activation row: more than its caches hold.
const CPU_MATRIX_BYTES: usize = 64 << 20;
/// Rows of the matrix that it multiplies with many, and those.
const CPU_ROWS: usize = 512;
const CPU_TOKENS: usize = 64;
/// The most calls of one run: each holds commands in memory until the run ends.
const CALLS_MAX: u32 = 1024;

/// The rates of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Products, by the format of the weights (ggml's name).
    pub products: BTreeMap<String, ProductRates>,
    /// Copies and launches.
    pub copies: CopyRates,
}

/// The rates of products with weights of one format.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ProductRates {
    /// Bytes of weights a second, if they are multiplied with one activation row.
    pub vector_bytes_per_s: f64,
    /// Floating-point operations a second, if weights are multiplied with one activation row.
    pub vector_flops: f64,
    /// Floating-point operations a second, if weights are multiplied with 512 activation rows.
    pub matrix_flops: f64,
}

/// The rates of what is not a product.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CopyRates {
    /// Bytes a second from the host to the device.
    pub to_device_bytes_per_s: f64,
    /// Bytes a second from the device to the host.
    pub to_host_bytes_per_s: f64,
    /// Seconds to copy a hidden state of 4096 floats to the device and back.
    pub round_trip_s: f64,
    /// Seconds of a kernel with almost nothing to do, among others.
    pub launch_s: f64,
}

/// Why a device could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The device has a fault.
    #[error(transparent)]
    Device(#[from] GpuError),
    /// Weights cannot be made in a format.
    #[error("make weights in {}", format.name())]
    Weights {
        /// The format.
        format: Format,
        /// The cause.
        #[source]
        err: KernelError,
    },
    /// The system cannot start threads.
    #[error("start threads that compute")]
    Threads(#[source] std::io::Error),
    /// The device has too little memory for a measurement.
    #[error("{free} bytes of GPU memory are free; measuring needs {}", FREE_BYTES_MIN)]
    NoRoom {
        /// Bytes that are free.
        free: u64,
    },
}

/// Measures products in these formats, copies and launches, in about the given time ([`TIME`] is enough for
/// a few formats). Each figure takes one run at least, however slow the device is.
///
/// # Errors
/// [`MeasureError`] if the device has too little memory or a fault.
pub fn measure(device: &dyn Device, formats: &[Format], time: Duration) -> Result<Rates, MeasureError> {
    let free = device.free_bytes().unwrap_or(u64::MAX);
    if free < FREE_BYTES_MIN {
        return Err(MeasureError::NoRoom { free });
    }
    // Two figures for each format, and four others.
    let figures = 2 * formats.len() as u32 + 4;
    let bench = Bench { device, sink: device.upload(&[0; 4]), time: time / figures };
    let copies = bench.copies()?;
    let mut products = BTreeMap::new();
    for format in formats {
        products.insert(format.name().to_owned(), bench.products(*format, free)?);
    }
    Ok(Rates { products, copies })
}

/// Measures products on the CPU with weights in a format, in about the given time.
///
/// # Errors
/// [`MeasureError::Weights`]; [`MeasureError::Threads`] if threads cannot be started.
pub(crate) fn measure_cpu(
    threads: NonZeroUsize,
    format: Format,
    time: Duration,
) -> Result<ProductRates, MeasureError> {
    let pool = Pool::new(threads).map_err(MeasureError::Threads)?;
    let all = weights(format, CPU_MATRIX_BYTES)?;
    let row_bytes = format.row_bytes(COLS).unwrap_or(all.len());
    let rate = |t: usize, rows: usize| -> Result<f64, MeasureError> {
        let wrong = |err| MeasureError::Weights { format, err };
        let matrix = Matrix::new(format, rows, COLS, &all[..rows * row_bytes]).map_err(wrong)?;
        let (numbers, mut out) = (activations(t), vec![0.0; t * rows]);
        let x = Activations::new(&numbers, COLS);
        let once = || {
            matmul(&pool, &matrix, &x, &mut out);
            Ok(())
        };
        let seconds = seconds(time / 2, once, &mut || Ok(()))?;
        Ok(2.0 * (t * rows * COLS) as f64 / seconds)
    };
    let rows = all.len() / row_bytes;
    let (vector_flops, matrix_flops) = (rate(1, rows)?, rate(CPU_TOKENS, rows.min(CPU_ROWS))?);
    let vector_bytes_per_s = vector_flops / 2.0 * row_bytes as f64 / COLS as f64;
    Ok(ProductRates { vector_bytes_per_s, vector_flops, matrix_flops })
}

/// Returns rows of weights, about so many bytes.
fn weights(format: Format, bytes: usize) -> Result<Vec<u8>, MeasureError> {
    let row: Vec<f32> = (0..COLS).map(|at| (at % 31) as f32 / 31.0 - 0.5).collect();
    let mut one = Vec::new();
    quantize_row(format, &row, &mut one).map_err(|err| MeasureError::Weights { format, err })?;
    Ok(one.repeat((bytes / one.len()).max(1)))
}

/// Returns `t` activation rows.
fn activations(t: usize) -> Vec<f32> {
    (0..t * COLS).map(|at| (at % 17) as f32 / 17.0 - 0.5).collect()
}

/// What the measurements of a device have in common.
struct Bench<'a> {
    device: &'a dyn Device,
    /// Read to wait for the device.
    sink: Buffer,
    /// Time of one figure.
    time: Duration,
}

/// Activation rows in device memory.
struct Rows {
    floats: Buffer,
    rounded: Option<Quantized>,
}

impl Rows {
    fn new(device: &dyn Device, format: Format, t: usize) -> Self {
        let bytes: Vec<u8> = activations(t).iter().flat_map(|number| number.to_le_bytes()).collect();
        let floats = device.alloc(bytes.len() as u64);
        device.write(&floats, 0, &bytes);
        let block = format.block_len();
        let rounded = (block > 1).then(|| ops::quantize(device, &floats, t, COLS, block));
        Self { floats, rounded }
    }

    fn input(&self) -> Input<'_> {
        self.rounded.as_ref().map_or(Input::Floats(&self.floats), Input::Quantized)
    }
}

impl Bench<'_> {
    fn copies(&self) -> Result<CopyRates, MeasureError> {
        let device = self.device;
        let (large, small) = (device.alloc(COPY_BYTES as u64), device.alloc(4 * COLS as u64));
        let (mut bytes, mut state) = (vec![0; COPY_BYTES], vec![0; 4 * COLS]);
        device.clear(&small);
        let to_device_s = self.seconds(|| {
            device.write(&large, 0, &bytes);
            Ok(())
        })?;
        let to_host_s = self.seconds(|| device.read(&large, 0, &mut bytes))?;
        let round_trip_s = self.seconds(|| {
            device.write(&small, 0, &state);
            device.read(&small, 0, &mut state)
        })?;
        let launch_s = self.seconds(|| {
            ops::map(device, MapOp::Scale, &small, COLS, 1.0);
            Ok(())
        })?;
        Ok(CopyRates {
            to_device_bytes_per_s: COPY_BYTES as f64 / to_device_s,
            to_host_bytes_per_s: COPY_BYTES as f64 / to_host_s,
            round_trip_s,
            launch_s,
        })
    }

    fn products(&self, format: Format, free: u64) -> Result<ProductRates, MeasureError> {
        let all = weights(format, MATRIX_BYTES_MAX.min(free / (2 * MATRICES as u64)) as usize)?;
        let row_bytes = format.row_bytes(COLS).unwrap_or(all.len());
        let copy = |rows: usize| {
            let matrix = Matrix::new(format, rows, COLS, &all[..rows * row_bytes]);
            let matrix = matrix.map_err(|err| MeasureError::Weights { format, err })?;
            Ok(DeviceMatrix::new(self.device, &matrix))
        };
        let rows_max = all.len() / row_bytes;
        let least = (MATRIX_BYTES_MIN as usize).div_ceil(row_bytes);
        let (rows, vector_s) = self.product(format, 1, (least, rows_max), &copy)?;
        let vector_flops = 2.0 * (rows * COLS) as f64 / vector_s;
        let vector_bytes_per_s = (rows * row_bytes) as f64 / vector_s;
        let (rows, matrix_s) = self.product(format, TOKENS, (ROWS_MIN, rows_max.min(ROWS_MAX)), &copy)?;
        let matrix_flops = 2.0 * (rows * COLS * TOKENS) as f64 / matrix_s;
        Ok(ProductRates { vector_bytes_per_s, vector_flops, matrix_flops })
    }

    /// Returns the rows of a matrix and the seconds of its product with `t` activation rows. The matrix has
    /// as many rows as the device multiplies in the time of a run, within these bounds.
    fn product(
        &self,
        format: Format,
        t: usize,
        (least, most): (usize, usize),
        copy: &dyn Fn(usize) -> Result<DeviceMatrix, MeasureError>,
    ) -> Result<(usize, f64), MeasureError> {
        let x = Rows::new(self.device, format, t);
        let mut rows = least.min(most);
        loop {
            let mut matrices = vec![copy(rows)?];
            let out = self.device.alloc(4 * (rows * t) as u64);
            let once = |matrix: &DeviceMatrix| {
                ops::matmul(self.device, matrix, x.input(), t, &out);
                Ok(())
            };
            self.run(1, &mut || once(&matrices[0]))?;
            let is_largest = rows == most;
            let spent = self.run(1, &mut || once(&matrices[0]))?;
            if spent < RUN / 2 && !is_largest {
                rows = (4 * rows).min(most);
                continue;
            }
            if t == 1 && is_largest {
                for _ in 1..MATRICES {
                    matrices.push(copy(rows)?);
                }
            }
            let mut turn = matrices.iter().cycle();
            return Ok((rows, self.seconds(|| turn.next().map_or(Ok(()), once))?));
        }
    }

    /// Returns the seconds of one call: the median of several runs.
    fn seconds(&self, call: impl FnMut() -> Result<(), GpuError>) -> Result<f64, MeasureError> {
        seconds(self.time, call, &mut || self.done())
    }

    /// Returns the time of so many calls, until the device has done them.
    fn run(
        &self,
        calls: u32,
        call: &mut dyn FnMut() -> Result<(), GpuError>,
    ) -> Result<Duration, MeasureError> {
        run(calls, call, &mut || self.done())
    }

    /// Waits for the device.
    fn done(&self) -> Result<(), GpuError> {
        self.device.read(&self.sink, 0, &mut [0; 4])?;
        self.device.fault().map_or(Ok(()), Err)
    }
}

/// Something that may bring the device's fault.
type Call<'a> = &'a mut dyn FnMut() -> Result<(), GpuError>;

/// Returns the seconds of one call: the median of several runs, in about this time. `done` waits until what
/// was called is done.
fn seconds(
    time: Duration,
    mut call: impl FnMut() -> Result<(), GpuError>,
    done: Call<'_>,
) -> Result<f64, MeasureError> {
    run(1, &mut call, done)?; // Compiles the kernel and touches the memory.
    let begun = Instant::now();
    let mut calls = 1;
    let mut spent = run(calls, &mut call, done)?;
    while spent < RUN && calls < CALLS_MAX {
        let wanted = RUN.as_secs_f64() / spent.as_secs_f64().max(1e-9);
        calls = (f64::from(calls) * wanted.clamp(2.0, 64.0)).ceil().min(CALLS_MAX.into()) as u32;
        spent = run(calls, &mut call, done)?;
    }
    let mut all = vec![spent];
    while all.len() < RUNS && begun.elapsed() < time {
        all.push(run(calls, &mut call, done)?);
    }
    all.sort_unstable();
    // A clock that stands still would make a rate infinite.
    Ok(all[all.len() / 2].as_secs_f64().max(1e-9) / f64::from(calls))
}

/// Returns the time of so many calls.
fn run(calls: u32, call: Call<'_>, done: Call<'_>) -> Result<Duration, MeasureError> {
    let begun = Instant::now();
    for _ in 0..calls {
        call()?;
    }
    done()?;
    Ok(begun.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    use baton_kernels_gpu::cases::HostDevice;

    #[test]
    fn every_figure_of_a_device_is_a_rate() {
        let device = HostDevice::new(None);
        let formats = [Format::Q8_0, Format::F16];
        let rates = measure(&device, &formats, Duration::ZERO).unwrap();
        assert_eq!(rates.products.keys().collect::<Vec<_>>(), ["F16", "Q8_0"]);
        let copies = rates.copies;
        let mut figures = vec![
            copies.to_device_bytes_per_s,
            copies.to_host_bytes_per_s,
            copies.round_trip_s,
            copies.launch_s,
        ];
        for product in rates.products.values() {
            figures.extend([product.vector_bytes_per_s, product.vector_flops, product.matrix_flops]);
        }
        assert!(figures.iter().all(|figure| figure.is_finite() && *figure > 0.0), "{rates:?}");
        // Two operations for each weight: 34 bytes hold 32 weights.
        let eights = rates.products["Q8_0"];
        let weights = eights.vector_bytes_per_s / 34.0 * 32.0;
        assert!((eights.vector_flops / weights - 2.0).abs() < 1e-9, "{eights:?}");
        assert_eq!((device.fault(), device.used_bytes()), (None, 0), "all memory is given back");
    }

    #[test]
    fn the_cpu_has_the_same_figures() {
        let two = NonZeroUsize::new(2).unwrap();
        let rates = measure_cpu(two, Format::Q8_0, Duration::ZERO).unwrap();
        let figures = [rates.vector_bytes_per_s, rates.vector_flops, rates.matrix_flops];
        assert!(figures.iter().all(|figure| figure.is_finite() && *figure > 0.0), "{rates:?}");
        assert!(
            (rates.vector_flops / (rates.vector_bytes_per_s / 34.0 * 32.0) - 2.0).abs() < 1e-9,
            "{rates:?}"
        );
    }

    #[test]
    fn a_device_without_room_is_left_alone() {
        let device = HostDevice::new(Some(FREE_BYTES_MIN - 4));
        let said = measure(&device, &[Format::Q4_0], TIME).unwrap_err().to_string();
        assert_eq!(said, "67108860 bytes of GPU memory are free; measuring needs 67108864");
        assert_eq!((device.fault(), device.used_bytes()), (None, 0));
    }

    #[test]
    fn the_least_memory_is_enough_for_every_format() {
        let bench = |format: Format| {
            let most = FREE_BYTES_MIN / (2 * MATRICES as u64);
            let weights = MATRICES as u64 * most.max(format.row_bytes(COLS).unwrap_or(0) as u64);
            let x = 4 * (TOKENS * COLS) as u64;
            let rounded = x / 4 + x / 16 + x / 32;
            weights + x + rounded + 4 * (TOKENS * ROWS_MAX) as u64
        };
        for format in Format::ALL {
            assert!(bench(format) <= FREE_BYTES_MIN, "{}: {}", format.name(), bench(format));
        }
    }

    #[test]
    fn a_fault_of_the_device_is_returned() {
        let device = HostDevice::new(None);
        device.fail(GpuError::Lost("unplugged".to_owned()));
        let err = measure(&device, &[Format::F32], TIME).unwrap_err();
        assert!(matches!(err, MeasureError::Device(GpuError::Lost(_))), "{err}");
    }
}
