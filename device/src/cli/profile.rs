//! `baton profile`: measures what this device can do with a model, for `baton ring plan`.

use baton_terminal::{errln, out, outln};
use std::io::IsTerminal as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use baton_engine::EngineOptions;
use baton_engine::engine::KvFormat;
use baton_engine::weights::StreamedWeights;
use baton_gpu::{BlockRate, OpenedGpu};
use baton_plan::{Device, ModelShape};
use clap::Args;

use super::gpu::{self, GpuArgs, OffloadHow};
use super::values::one_or_more;
use crate::context::Held;
use crate::local::largest_step;
use crate::machine::gpu::GpuProfile;
use crate::machine::memory::Memory;
use crate::machine::offload::{Made, OffloadProfile, Speeds};
use crate::machine::profile::{Origin, Profile, ProfileOptions, kept_or_measured};
use crate::machine::residency::{self, Layers, MemoryFor, Share};
use crate::machine::shape::shape_of;
use crate::settings::{CONFIG_DIR_ENV, Settings};

#[derive(Debug, Args)]
pub(super) struct ProfileArgs {
    /// GGUF model to measure: its shapes and formats, on its disk
    #[arg(long, env = "BATON_MODEL", value_name = "FILE")]
    model: PathBuf,
    /// Number of compute threads [default: all]
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = one_or_more)]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    gpu: GpuArgs,
    /// Name of this device
    #[arg(long, default_value = "this device", value_name = "NAME")]
    name: String,
    /// Measure again, even if a stored profile is still valid
    #[arg(long)]
    again: bool,
    /// Folder for stored profiles [default: the platform's]
    #[arg(long, env = CONFIG_DIR_ENV, value_name = "DIR")]
    config_dir: Option<PathBuf>,
    /// Show what of the model would stay in which memory with --gpu-offload, and what a token costs
    #[arg(long)]
    offload: bool,
    #[command(flatten)]
    how: OffloadHow,
    /// Number format of keys and values with --offload: f32, f16, q8 or q4
    #[arg(long, default_value_t, value_name = "FORMAT")]
    kv: KvFormat,
    /// Memory for weights with --offload: auto, all or a size like 2GB
    #[arg(long, default_value = "auto", env = "BATON_MEMORY", value_name = "SIZE")]
    memory: MemoryFor,
    /// Print one JSON object; its `device` is an entry of the description that `baton ring plan` reads
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: ProfileArgs) -> anyhow::Result<()> {
    let all = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let opened = args.gpu.open()?;
    let (model, threads, name) = (args.model, args.threads.unwrap_or(all), args.name);
    let options = ProfileOptions { model: model.clone(), threads, name, gpu: opened.device.clone() };
    let loud = std::io::stderr().is_terminal();
    let (settings, again) = (Settings::open(args.config_dir), args.again);
    let work = tokio::task::spawn_blocking(move || {
        kept_or_measured(&options, &settings, again, &mut |what| {
            if loud {
                errln!("measuring {what}");
            }
        })
    });
    let (measured, origin) = work.await.context("measure this device")??;
    let gpus = gpu::with_others(measured.gpu.clone(), &opened);
    let (how, held) = (args.how, (args.memory, args.kv));
    let offload = if args.offload {
        let (kept, opened) = (measured.clone(), opened.offloading(Some(how.offload())));
        let work = tokio::task::spawn_blocking(move || offloaded(&model, held, opened, &kept));
        Some(work.await.context("place the model")??)
    } else {
        None
    };
    if args.json {
        let answer = Answer { offload: offload.as_ref(), ..Answer::of(&measured, &origin, &gpus) };
        outln!("{}", serde_json::to_string(&answer).context("write the profile")?)?;
    } else {
        let placed = offload.as_ref().map(OffloadProfile::text).unwrap_or_default();
        out!("{}{}{placed}{}", text(&measured), gpu_text(&gpus), said(&origin))?;
    }
    Ok(())
}

fn speeds(profile: &Profile) -> Speeds {
    let disk = profile.device.disk.sequential_bytes_per_s;
    let memory = profile.device.cpu.read_bytes_per_s;
    Speeds { disk, memory, gpu: None, loads_beside: false }.with_gpu(profile.gpu.as_ref())
}

/// Opens the model as `baton ask --gpu-offload` does, and returns what stays where.
fn offloaded(
    path: &Path,
    (memory, kv_format): (MemoryFor, KvFormat),
    gpu: OpenedGpu,
    measured: &Profile,
) -> anyhow::Result<OffloadProfile> {
    let kv_tokens = Held::of(path, memory, kv_format, None)?.tokens;
    let shape = shape_of(path, kv_format)?;
    let share = Share {
        kv_tokens,
        kv_format,
        layers: Layers::All,
        reads_ahead: true,
        read_bytes: measured.read_bytes(),
    };
    let model = residency::open(path, memory, 0, &share)
        .with_context(|| format!("open model `{}`", path.display()))?;
    let largest_step = largest_step(model.config().vocab_len, 1);
    let options = EngineOptions { kv_tokens, kv_format, largest_step, ..EngineOptions::default() };
    let gpu = gpu::told_by(measured, gpu, &model);
    let engine = gpu::engine(&gpu, Arc::clone(&model), options).context("start the engine")?;
    let on_gpu = engine.gpu_device().is_some();
    let made = Made {
        gpu: engine.gpu_device().map(|device| device.facts().name.clone()),
        config: model.config(),
        layer_bytes: model.layer_weight_bytes(),
        context: (kv_tokens, shape.kv_bytes * shape.layers as f64),
        offload: engine.offload_stats(),
        residency: model.streamed().map(StreamedWeights::stats),
        options: gpu.offload.clone(),
        cpu_output_bytes: if on_gpu && !engine.gpu_has_output() { shape.output_bytes as u64 } else { 0 },
    };
    Ok(made.profile(speeds(measured)))
}

/// What `--json` prints.
#[derive(Debug, serde::Serialize)]
struct Answer<'a> {
    device: &'a Device,
    model: &'a ModelShape,
    memory: &'a Memory,
    direct_reads: bool,
    /// Bytes of a read that were found best, and the rates of all sizes that were tried.
    read_bytes: Option<usize>,
    read_blocks: &'a [BlockRate],
    origin: &'a Origin,
    /// All GPUs, the measured one first.
    gpus: &'a [GpuProfile],
    /// What stays where, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    offload: Option<&'a OffloadProfile>,
}

impl<'a> Answer<'a> {
    fn of(profile: &'a Profile, origin: &'a Origin, gpus: &'a [GpuProfile]) -> Self {
        let Profile { device, model, memory, direct_reads, read_blocks, gpu: _ } = profile;
        Self {
            device,
            model,
            memory,
            direct_reads: *direct_reads,
            read_bytes: profile.read_bytes(),
            read_blocks,
            origin,
            gpus,
            offload: None,
        }
    }
}

fn said(origin: &Origin) -> String {
    match origin {
        Origin::Kept => {
            "Kept from an earlier run, memory as it is now; measure again with --again.\n".to_owned()
        }
        Origin::New | Origin::Asked => String::new(),
        Origin::Missing { what, problem } => {
            format!("Measured again: {what} could not be measured before ({problem}).\n")
        }
        Origin::Drifted { figure, then, now } => {
            format!("Measured again: {figure} was {:.1} G/s, now {:.1} G/s.\n", then / 1e9, now / 1e9)
        }
    }
}

fn text(profile: &Profile) -> String {
    let Profile { device, model, memory, direct_reads, read_blocks, gpu: _ } = profile;
    let gigabytes = |bytes: f64| bytes / 1e9;
    let mut out = format!(
        "{} for {} ({} layers of {:.1} MB)\n",
        device.name,
        model.name,
        model.layers,
        model.layer_bytes / 1e6
    );
    for (format, rate) in &device.cpu.flops {
        out += &format!(
            "  products in {format:<6} {:>9.1} GFLOP/s (one vector, weights in the caches)\n",
            rate / 1e9
        );
    }
    out += &format!("  weights from memory {:>8.1} GB/s\n", gigabytes(device.cpu.read_bytes_per_s));
    out += &format!("  KV append           {:>8.2} us a token and layer\n", device.cpu.kv_copy_s * 1e6);
    out += &format!(
        "  memory              {:>8.2} GB (limited by: {})\n",
        gigabytes(device.memory_bytes),
        memory.bound_by
    );
    if device.swap_bytes > 0.0 {
        out += &format!("  can be swapped out  {:>8.2} GB\n", gigabytes(device.swap_bytes));
    }
    let cached = if *direct_reads {
        ""
    } else {
        " (may come from the page cache: this file system has no direct reads)"
    };
    out += &format!(
        "  disk, in order      {:>8.2} GB/s{cached}\n",
        gigabytes(device.disk.sequential_bytes_per_s)
    );
    out += &format!("  disk, random reads  {:>8.2} GB/s\n", gigabytes(device.disk.random_bytes_per_s));
    if let Some(best) = profile.read_bytes() {
        out += &format!("  disk, in blocks of {}\n", gpu::blocks(best as u64, read_blocks));
    }
    out
}

fn gpu_text(gpus: &[GpuProfile]) -> String {
    gpus.iter().map(|found| format!("  GPU {}", gpu::lines(found))).collect()
}
