//! Measures what this device can do with a given model: the figures that a plan needs.
//!
//! Matrix-vector products run on the model's own weights, so that shapes and formats are the real ones.
//! They run once on a piece that stays in the caches (arithmetic alone), and once on more weights than
//! caches hold (memory). The disk is read where the model is stored, bypassing the page cache. Every figure
//! is the median of several runs. Only the profile itself is written, and only if it is to be stored
//! ([`kept_or_measured`]).

mod general;
mod kept;

use std::collections::BTreeMap;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_engine::engine::KvFormat;
use baton_engine::gguf::{Gguf, GgufError, TensorView};
use baton_engine::{MoveRates, Offload, STREAM_BYTES};
use baton_gpu::{BlockRate, Rates};
use baton_kernels_cpu::{Activations, KernelError, Matrix, Pool, matmul};
use baton_pacing::refit::median;
use baton_plan::cluster::ByFormat;
use baton_plan::{Device, Disk, ModelShape, Os, Processor};
use memmap2::MmapMut;

use crate::machine::disk::{self, DiskError};
use crate::machine::gpu::{self, GpuProfile};
use crate::machine::memory::{self, Memory, MemoryError};
use crate::machine::residency::BUFFER_BYTES;
use crate::machine::shape::{ShapeError, shape_of};

pub use general::general;
pub use kept::{KeptProfiles, Origin, build, kept_drift, kept_or_measured};

/// Bytes of weights per thread that stay in the caches.
const CACHED_BYTES: usize = 256 << 10;
/// More bytes than a processor's caches hold.
const CACHE_BYTES: usize = 32 << 20;
/// Bytes of weights that no cache holds.
const STREAMED_BYTES: usize = 512 << 20;
/// Least time of one run of a cached product.
const RUN: Duration = Duration::from_millis(15);
const RUNS: usize = 5;

/// What to measure a device for.
#[derive(Debug, Clone)]
pub struct ProfileOptions {
    /// The model's file.
    pub model: PathBuf,
    /// Threads that compute.
    pub threads: NonZeroUsize,
    /// The device's name.
    pub name: String,
    /// The GPU to measure too, if there is one.
    pub gpu: Option<Arc<dyn baton_gpu::Device>>,
}

/// A measured device.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Profile {
    /// The entry of a description that `baton ring plan` reads.
    pub device: Device,
    /// The model that it was measured for.
    pub model: ModelShape,
    /// Its memory, and what limits it.
    pub memory: Memory,
    /// Whether the disk was read without the page cache; if not, its figures may be those of memory.
    pub direct_reads: bool,
    /// Reads of the model's file by the size of their blocks; none if the file is small.
    pub read_blocks: Vec<BlockRate>,
    /// The GPU that was measured.
    pub gpu: Option<GpuProfile>,
}

impl Profile {
    /// Returns the size of reads that was found best for the model's disk, or `None` if it is not known.
    pub fn read_bytes(&self) -> Option<usize> {
        disk::block_of(&self.read_blocks)
    }

    /// Returns offloading in blocks of the size that was found best, by the measured rates. A model that is
    /// read from the disk is also read in these blocks, so the larger one of both sizes counts.
    #[must_use]
    pub fn tell(&self, offload: Offload, from_disk: bool) -> Offload {
        let measured = self.gpu.as_ref().and_then(|gpu| Some((gpu, gpu.rates.as_ref()?)));
        let rates = measured.map(|(_, rates)| rates);
        let loads = rates.and_then(Rates::block_bytes).and_then(|bytes| usize::try_from(bytes).ok());
        let reads = self.read_bytes().filter(|_| from_disk);
        let best = loads.max(reads).and_then(NonZeroUsize::new);
        Offload {
            block_bytes: best.unwrap_or(offload.block_bytes),
            rates: measured.and_then(|(gpu, rates)| self.move_rates(rates, gpu.loads_beside)),
            ..offload
        }
    }

    /// Returns the rates by which a placement is chosen, in whole bytes; `None` if one is not known.
    fn move_rates(&self, gpu: &Rates, loads_beside: bool) -> Option<MoveRates> {
        let Device { cpu, disk, .. } = &self.device;
        let rate = |bytes_per_s: f64| NonZeroU64::new(bytes_per_s as u64);
        Some(MoveRates {
            to_gpu: rate(gpu.copies.to_device_bytes_per_s)?,
            gpu: rate(gpu.slowest_vector_bytes_per_s())?,
            cpu: rate(cpu.read_bytes_per_s)?,
            disk: rate(disk.sequential_bytes_per_s)?,
            loads_beside,
        })
    }
}

/// Why a device could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The model cannot be read.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A tensor cannot be read.
    #[error("read weights: {0}")]
    Weights(#[from] GgufError),
    /// A tensor cannot be computed with.
    #[error("multiply with `{name}`: {source}")]
    Product {
        /// The tensor.
        name: String,
        /// The cause.
        source: KernelError,
    },
    /// The memory cannot be determined.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The disk cannot be measured.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// There is no memory for a measurement.
    #[error("take {bytes} bytes of memory to measure copies in: {source}")]
    Room {
        /// How many bytes.
        bytes: usize,
        /// The cause.
        source: std::io::Error,
    },
    /// Threads cannot be started.
    #[error("start {threads} threads: {source}")]
    Threads {
        /// How many.
        threads: usize,
        /// The cause.
        source: std::io::Error,
    },
    /// The memory rules of this system are not known.
    #[error("memory rules of {0} are not known; describe this device by hand (see `baton ring plan --help`)")]
    System(&'static str),
}

/// Measures this device; `said` is told what is being measured.
///
/// # Errors
/// [`ProfileError`] naming what could not be measured.
pub fn profile(options: &ProfileOptions, said: &mut dyn FnMut(&str)) -> Result<Profile, ProfileError> {
    let model = shape_of(&options.model, KvFormat::default())?;
    let gguf = Gguf::open(&options.model)?;
    let pool = pool_of(options)?;
    said("memory");
    let (os, memory) = this_memory()?;
    let mut flops = ByFormat::new();
    for format in model.layer_flops.keys().chain(model.output_flops.keys()) {
        if !flops.contains_key(format) {
            said(&format!("products in {format}"));
            flops.insert(format.clone(), cached_rate(&gguf, format, &pool)?);
        }
    }
    said("reading weights from memory");
    let read_bytes_per_s = streamed_rate(&layers(&gguf, memory.available_bytes)?, &pool);
    said("disk");
    let disk = disk::measure(&options.model)?;
    let rates = Disk {
        sequential_bytes_per_s: disk.sequential_bytes_per_s,
        random_bytes_per_s: disk.random_bytes_per_s,
    };
    let gpu = options.gpu.as_deref().map(|gpu| {
        said(&format!("the GPU {}", baton_gpu::label(gpu.facts())));
        GpuProfile::measured(gpu, &gpu::formats(flops.keys()))
    });
    let cpu = Processor { flops, read_bytes_per_s, kv_copy_s: kv_copy_s(model.kv_bytes as usize)? };
    let mut device = device(&options.name, (os, &memory), cpu, rates);
    device.gpu = gpu.as_ref().and_then(|gpu| gpu.described(gpu::buffer_bytes(model.hidden, model.vocab)));
    Ok(Profile { device, model, memory, direct_reads: disk.direct, read_blocks: disk.blocks, gpu })
}

/// Returns the description of this device from what was measured.
fn device(name: &str, (os, memory): (Os, &Memory), cpu: Processor, disk: Disk) -> Device {
    Device {
        name: name.to_owned(),
        os,
        cpu,
        gpu: None,
        memory_bytes: memory.available_bytes as f64,
        swap_bytes: memory.swap_bytes as f64,
        buffer_bytes: BUFFER_BYTES as f64,
        stream_bytes: STREAM_BYTES as f64,
        weight_bytes_max: None,
        disk,
    }
}

fn pool_of(options: &ProfileOptions) -> Result<Pool, ProfileError> {
    let threads = options.threads.get();
    Pool::new(options.threads).map_err(|source| ProfileError::Threads { threads, source })
}

/// Sets the device's memory to what is free now, and its buffers to what this program uses beside weights.
///
/// # Errors
/// [`ProfileError::Memory`], [`ProfileError::System`].
pub fn refresh_memory(device: &mut Device) -> Result<(), ProfileError> {
    let (_, memory) = this_memory()?;
    (device.memory_bytes, device.swap_bytes) = (memory.available_bytes as f64, memory.swap_bytes as f64);
    (device.buffer_bytes, device.stream_bytes) = (BUFFER_BYTES as f64, STREAM_BYTES as f64);
    Ok(())
}

/// Returns this device's memory by the rules of its system.
pub(crate) fn this_memory() -> Result<(Os, Memory), ProfileError> {
    memory_with(0)
}

/// As [`this_memory`]. `held_bytes` of this program count as available.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn memory_with(held_bytes: u64) -> Result<(Os, Memory), ProfileError> {
    let is_android = cfg!(target_os = "android");
    let os = if is_android { Os::Android } else { Os::Linux };
    Ok((os, memory::of_linux("/".as_ref(), is_android, held_bytes)?))
}

#[cfg(any(target_os = "macos", windows))]
pub(crate) fn memory_with(held_bytes: u64) -> Result<(Os, Memory), ProfileError> {
    let os = if cfg!(windows) { Os::Windows } else { Os::Macos };
    Ok((os, memory::of_kernel(baton_engine::platform::free_bytes(), held_bytes)?))
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos", windows)))]
pub(crate) fn memory_with(_held_bytes: u64) -> Result<(Os, Memory), ProfileError> {
    Err(ProfileError::System(std::env::consts::OS))
}

/// Returns a matrix of a tensor's first rows, at most so many bytes of them.
fn rows_of<'a>(view: &TensorView<'a>, most: usize) -> Result<Matrix<'a>, ProfileError> {
    let cols = view.dims[0] as usize;
    let rows: usize = view.dims[1..].iter().map(|dim| *dim as usize).product();
    let row_bytes = view.data.len() / rows.max(1);
    let rows = rows.min((most / row_bytes.max(1)).max(1));
    let product = |source| ProfileError::Product { name: view.name.to_owned(), source };
    Matrix::new(view.format, rows, cols, &view.data[..rows * row_bytes]).map_err(product)
}

/// Vectors to multiply with, by their length.
#[derive(Default)]
struct Vectors(BTreeMap<usize, Vec<f32>>);

impl Vectors {
    fn of(&mut self, cols: usize) -> &[f32] {
        self.0.entry(cols).or_insert_with(|| (0..cols).map(|at| (at % 17) as f32 / 17.0 - 0.5).collect())
    }
}

/// Returns operations per second of products whose weights stay in the caches.
fn cached_rate(gguf: &Gguf, format: &str, pool: &Pool) -> Result<f64, ProfileError> {
    let named = gguf.tensors().filter(|tensor| tensor.type_name() == format && tensor.dims().len() > 1);
    let Some(largest) = named.max_by_key(|tensor| tensor.data_len()) else { return Ok(f64::NAN) };
    Ok(rate(&rows_of(&gguf.tensor(largest.name())?, CACHED_BYTES * pool.threads())?, pool))
}

/// Returns operations per second of products with this matrix, which stays in the caches.
fn rate(matrix: &Matrix<'_>, pool: &Pool) -> f64 {
    let mut vectors = Vectors::default();
    let x = Activations::new(vectors.of(matrix.cols()), matrix.cols());
    let mut out = vec![0.0; matrix.rows()];
    let mut run = || {
        let (begun, mut products) = (Instant::now(), 0_u32);
        while begun.elapsed() < RUN {
            matmul(pool, matrix, &x, &mut out);
            products += 1;
        }
        let operations = 2.0 * matrix.rows() as f64 * matrix.cols() as f64 * f64::from(products);
        operations / begun.elapsed().as_secs_f64()
    };
    run(); // Loads the weights into the caches.
    median((0..RUNS).map(|_| run())).unwrap_or(f64::NAN)
}

/// Returns weights of layers: more than a cache holds, but at most half of the available memory.
fn layers(gguf: &Gguf, available: u64) -> Result<Vec<Matrix<'_>>, ProfileError> {
    let most = STREAMED_BYTES.min((available / 2) as usize);
    let (mut matrices, mut bytes) = (Vec::new(), 0);
    let layers = gguf.tensors().filter(|tensor| tensor.name().starts_with("blk.") && tensor.dims().len() > 1);
    for tensor in layers {
        if bytes >= most {
            break;
        }
        let view = gguf.tensor(tensor.name())?;
        bytes += view.data.len();
        matrices.push(rows_of(&view, usize::MAX)?);
    }
    Ok(matrices)
}

/// Returns bytes of weights per second of products with these matrices.
fn streamed_rate(matrices: &[Matrix<'_>], pool: &Pool) -> f64 {
    let bytes = |matrix: &Matrix<'_>| {
        matrix.rows() as f64 * matrix.format().row_bytes(matrix.cols()).unwrap_or(0) as f64
    };
    let bytes: f64 = matrices.iter().map(bytes).sum();
    let mut vectors = Vectors::default();
    let mut run = || {
        let begun = Instant::now();
        for matrix in matrices {
            let x = Activations::new(vectors.of(matrix.cols()), matrix.cols());
            matmul(pool, matrix, &x, &mut vec![0.0; matrix.rows()]);
        }
        bytes / begun.elapsed().as_secs_f64()
    };
    run(); // Loads the weights from the disk into memory.
    median((0..RUNS).map(|_| run())).unwrap_or(f64::NAN)
}

/// Returns the seconds to append one token's keys and values to a KV cache larger than the processor's
/// caches. A file can claim any size: of more bytes than that, a part is copied, and the result is scaled
/// up.
fn kv_copy_s(claimed: usize) -> Result<f64, ProfileError> {
    let (len, bytes) = (CACHE_BYTES, claimed.min(CACHE_BYTES));
    let token = vec![1_u8; bytes];
    // A mapping of its own: after an allocator has freed so large a block, it would no longer return
    // smaller ones.
    let mut cache = MmapMut::map_anon(len).map_err(|source| ProfileError::Room { bytes: len, source })?;
    let places = cache.len() / bytes.max(1);
    let mut run = || {
        let begun = Instant::now();
        for at in 0..places {
            // A large odd step, so that no two copies are adjacent.
            let place = at.wrapping_mul(7919) % places * bytes;
            cache[place..place + bytes].copy_from_slice(&token);
        }
        begun.elapsed().as_secs_f64() / places as f64
    };
    run();
    let seconds = median((0..RUNS).map(|_| run())).unwrap_or(f64::NAN);
    std::hint::black_box(&cache);
    Ok(seconds * (claimed as f64 / bytes.max(1) as f64).max(1.0))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn this_machine_is_measured_in_full_and_can_be_planned_with() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo-cloud.gguf");
        let options =
            ProfileOptions { model, threads: NonZeroUsize::MIN, name: "here".to_owned(), gpu: None };
        let mut said = Vec::new();
        let profile = profile(&options, &mut |what| said.push(what.to_owned())).unwrap();
        assert!(said.iter().any(|what| what.starts_with("products in ")), "{said:?}");
        let cluster = baton_plan::Cluster {
            note: String::new(),
            devices: vec![profile.device.clone()],
            network: baton_plan::Network { latency_s: 0.0, bytes_per_s: 1e9, edges: Vec::new() },
            head: None,
        };
        assert_eq!(cluster.check(), Ok(()));
        let workload = baton_plan::Workload { context: 128, sequences: 1 };
        let plan = baton_plan::search(&cluster, &profile.model, workload, &Default::default()).unwrap();
        assert_eq!(plan.shares[0].layers, profile.model.layers);
        for format in profile.model.layer_flops.keys() {
            assert!(profile.device.cpu.flops[format] > 1e6, "{format}: {:?}", profile.device.cpu.flops);
        }
    }

    #[test]
    fn offloading_is_told_the_size_of_blocks() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo-device.gguf");
        let device = baton_kernels_gpu::cases::HostDevice::new(None);
        let options = ProfileOptions {
            model,
            threads: NonZeroUsize::MIN,
            name: "here".to_owned(),
            gpu: Some(Arc::new(device)),
        };
        let mut profile = profile(&options, &mut |_| {}).unwrap();
        let mut check = |loads: &[(u64, f64)], reads: &[(u64, f64)], from_disk, want: usize| {
            let rates = |all: &[(u64, f64)]| -> Vec<BlockRate> {
                let rate = |&(block_bytes, bytes_per_s)| BlockRate { block_bytes, bytes_per_s };
                all.iter().map(rate).collect()
            };
            profile.read_blocks = rates(reads);
            profile.gpu.as_mut().unwrap().rates.as_mut().unwrap().blocks = rates(loads);
            let told = profile.tell(Offload::default(), from_disk);
            assert_eq!(told.block_bytes.get(), want, "{loads:?} {reads:?} {from_disk}");
        };
        let usual = Offload::default().block_bytes.get();
        check(&[], &[], true, usual);
        check(&[(1000, 1.0), (2000, 9.0)], &[(4000, 1.0)], false, 2000);
        check(&[(1000, 1.0), (2000, 9.0)], &[(4000, 1.0)], true, 4000);
        check(&[(1000, 1.0)], &[], true, 1000);
        check(&[], &[(4000, 1.0)], false, usual);
        let rates = profile.tell(Offload::default(), false).rates.unwrap();
        assert_eq!(rates.disk.get(), profile.device.disk.sequential_bytes_per_s as u64);
        profile.device.disk.sequential_bytes_per_s = f64::NAN;
        assert_eq!(profile.tell(Offload::default(), false).rates, None);
    }

    #[test]
    fn copies_of_any_size_that_a_file_claims_take_no_more_memory_than_a_cache() {
        let usual = kv_copy_s(4096).unwrap();
        let endless = kv_copy_s(1 << 58).unwrap();
        assert!(usual > 0.0 && endless > usual && endless.is_finite(), "{usual} {endless}");
    }
}
