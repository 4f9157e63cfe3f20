//! The options `--gpu` and `--vram`, and what commands say of GPUs.

use std::sync::Arc;

use anyhow::Context as _;
use baton_engine::engine::KvFormat;
use baton_engine::{Engine, EngineError, EngineOptions, KvHome, Model, Offload, Pipeline};
use baton_gpu::{BlockRate, Facts, GpuChoice, GpuPart, OpenError, OpenedGpu, VramLimit};
use baton_kernels_cpu::Format;
use baton_terminal::{chain, errln, size};
use clap::Args;
use clap::builder::{FalseyValueParser, PossibleValuesParser, TypedValueParser as _};

use super::heading;
use crate::machine::gpu::{GpuProfile, on_loss};
use crate::machine::profile::{KeptProfiles, Profile};

/// Which GPU computes.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct GpuArgs {
    /// GPU that computes: auto (the best one, or none), off, or a device such as cuda:0, vulkan:1 or metal:0
    ///
    /// It computes as many of the model's last layers as fit into its memory, the CPU the others. In a ring
    /// the plan says how many of the first layers of each window it computes. `baton profile` lists the GPUs.
    #[arg(long, env = "BATON_GPU", default_value_t, value_name = "DEVICE", help_heading = heading::MODEL)]
    gpu: GpuChoice,
    /// Most memory to use of the GPU, as 6GB [default: what is free]
    #[arg(long, env = "BATON_VRAM", value_name = "SIZE", hide_short_help = true, help_heading = heading::MODEL)]
    vram: Option<VramLimit>,
}

/// Whether and how all layers are computed on a GPU with too little memory.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct OffloadArgs {
    /// Lets the GPU compute all layers; weights that do not fit into its memory are loaded for every token
    ///
    /// Without it the CPU computes the layers that do not fit. Not with --ring, for which the plan decides.
    /// `baton profile --offload` shows what would stay where, and what that costs.
    #[arg(
        long,
        env = "BATON_GPU_OFFLOAD",
        value_parser = FalseyValueParser::new(),
        hide_short_help = true,
        help_heading = heading::MODEL
    )]
    gpu_offload: bool,
    #[command(flatten)]
    how: OffloadHow,
}

/// How layers are offloaded.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct OffloadHow {
    /// Where keys and values are with --gpu-offload: auto, gpu or memory (loaded for every token)
    #[arg(
        long,
        default_value = KvHome::Automatic.name(),
        value_name = "WHERE",
        value_parser = PossibleValuesParser::new(KvHome::ALL.map(KvHome::name)).map(|name| kv_home(&name)),
        hide_short_help = true,
        help_heading = heading::MODEL
    )]
    offload_kv: KvHome,
    /// Loads ahead with --gpu-offload: auto, performance (more memory) or memory-efficient
    #[arg(
        long,
        default_value = Pipeline::Automatic.name(),
        value_name = "PIPELINE",
        value_parser = PossibleValuesParser::new(Pipeline::WANTED.map(Pipeline::name)).map(|name| pipeline(&name)),
        hide_short_help = true,
        help_heading = heading::MODEL
    )]
    offload_pipeline: Pipeline,
    /// Most bytes of weights that stay in the GPU's memory with --gpu-offload, as 2GB [default: all that fit]
    #[arg(long, value_name = "SIZE", value_parser = weight_limit, hide_short_help = true, help_heading = heading::MODEL)]
    offload_weights: Option<u64>,
}

fn kv_home(name: &str) -> KvHome {
    KvHome::ALL.into_iter().find(|home| home.name() == name).unwrap_or_default()
}

fn pipeline(name: &str) -> Pipeline {
    Pipeline::WANTED.into_iter().find(|pipeline| pipeline.name() == name).unwrap_or_default()
}

fn weight_limit(text: &str) -> Result<u64, String> {
    baton_gpu::bytes_of(text).ok_or_else(|| format!("`{text}` is no size: want one like 2GB or 800MB"))
}

impl OffloadArgs {
    /// Returns how layers are offloaded, if they are.
    pub(super) fn offload(self) -> Option<Offload> {
        self.gpu_offload.then(|| self.how.offload())
    }
}

impl OffloadHow {
    /// Returns these options.
    pub(super) fn offload(self) -> Offload {
        Offload {
            kv: self.offload_kv,
            pipeline: self.offload_pipeline,
            resident_bytes: self.offload_weights,
            ..Offload::default()
        }
    }
}

impl GpuArgs {
    /// Opens the GPU, and writes nothing.
    pub(super) fn found(self) -> anyhow::Result<OpenedGpu> {
        baton_gpu::open(self.gpu, self.vram).context("choose a GPU (--gpu)")
    }

    /// Opens the GPU. Writes lines about GPUs that cannot be used, and options without effect.
    pub(super) fn open(self) -> anyhow::Result<OpenedGpu> {
        self.open_for(None)
    }

    /// As [`Self::open`]. With options of offloading, the GPU is to compute all layers.
    pub(super) fn open_for(self, offload: Option<Offload>) -> anyhow::Result<OpenedGpu> {
        let opened = self.found()?;
        let opened = opened.offloading(offload);
        for notice in &opened.notices {
            errln!("note: {notice}");
        }
        Ok(opened)
    }

    /// Returns all GPUs of this device, the one that computes first. That one is measured, with weights in
    /// these formats; it may take seconds. Also returns why the GPU that the user named cannot be used.
    pub(super) fn profiles(self, formats: &[Format]) -> (Vec<GpuProfile>, Option<OpenError>) {
        match baton_gpu::open(self.gpu, self.vram) {
            Ok(opened) => {
                let measured = opened.device.as_deref().map(|device| GpuProfile::measured(device, formats));
                (with_others(measured, &opened), None)
            }
            Err(err) => (unopened(&baton_gpu::list(), &err), Some(err)),
        }
    }
}

/// Returns GPUs of which a named one cannot be opened.
fn unopened(found: &[Facts], err: &OpenError) -> Vec<GpuProfile> {
    let profile = |facts: &Facts| match err {
        OpenError::Device { facts: named, err } if **named == *facts => {
            GpuProfile { problem: Some(chain(&**err)), ..GpuProfile::of(facts) }
        }
        _ => GpuProfile::of(facts),
    };
    found.iter().map(profile).collect()
}

/// Returns the measured GPU, if there is one, then those that cannot be opened, then all others.
pub(super) fn with_others(measured: Option<GpuProfile>, opened: &OpenedGpu) -> Vec<GpuProfile> {
    let refused = opened.refused.iter().map(|gpu| {
        let problem = Some(gpu.reason.clone());
        GpuProfile { problem, ..GpuProfile::of(&gpu.facts) }
    });
    measured.into_iter().chain(refused).chain(opened.others.iter().map(GpuProfile::of)).collect()
}

/// As [`told_by`], by what earlier runs have measured, if they have.
pub(super) fn told(profiles: &KeptProfiles, gpu: OpenedGpu, model: &Model) -> OpenedGpu {
    let facts = gpu.device.as_ref().map(|device| device.facts());
    match facts.and_then(|facts| profiles.with_gpu(facts)) {
        Some(measured) => told_by(measured, gpu, model),
        None => gpu,
    }
}

/// Returns the GPU with what was measured for the options of offloading, if it offloads.
pub(super) fn told_by(measured: &Profile, gpu: OpenedGpu, model: &Model) -> OpenedGpu {
    let from_disk = model.streamed().is_some();
    let offload = gpu.offload.map(|offload| measured.tell(offload, from_disk));
    OpenedGpu { offload, ..gpu }
}

/// Makes an engine on the GPU, and writes a line that says what the GPU computes.
pub(super) fn engine(
    gpu: &OpenedGpu,
    model: Arc<Model>,
    options: EngineOptions,
) -> Result<Engine, EngineError> {
    let (engine, part) = gpu.engine(model, options, on_loss)?;
    if part != GpuPart::None {
        errln!("gpu: {part}");
    }
    Ok(engine)
}

/// Returns the GPU for the engine of a ring's head, if it can compute such a model.
pub(super) fn of_head(gpu: &OpenedGpu, model: &Model, format: KvFormat) -> Result<OpenedGpu, EngineError> {
    let Some(part) = gpu.refused(model.config(), format)? else { return Ok(gpu.clone()) };
    errln!("gpu: {part}");
    Ok(OpenedGpu::default())
}

/// Returns lines about a GPU: what it is, and its rates.
pub(super) fn lines(gpu: &GpuProfile) -> String {
    let mut out = format!("{} ({})", gpu.name, gpu.place);
    if gpu.is_software {
        out += ", a program on the CPU";
    }
    match (gpu.memory_bytes, gpu.free_bytes) {
        (Some(all), Some(free)) => out += &format!(", {}, {} free", size(all), size(free)),
        (Some(all), None) => out += &format!(", {}", size(all)),
        (None, Some(free)) => out += &format!(", {} free", size(free)),
        (None, None) => out += ", memory not known",
    }
    if gpu.shares_memory {
        out += ", shared with the CPU";
    }
    out += "\n";
    if let Some(problem) = &gpu.problem {
        out += &format!("    cannot be used: {problem}\n");
    }
    let Some(rates) = &gpu.rates else { return out };
    for (format, product) in &rates.products {
        out += &format!(
            "    products in {format:<8} {:>8.1} GB/s of weights, {:>8.1} GFLOP/s; of 512 vectors {:>8.1} GFLOP/s\n",
            product.vector_bytes_per_s / 1e9,
            product.vector_flops / 1e9,
            product.matrix_flops / 1e9
        );
    }
    let copies = &rates.copies;
    out += &format!(
        "    copies to it {:.1} GB/s, from it {:.1} GB/s; a hidden state there and back {:.0} us, a launch {:.1} us\n",
        copies.to_device_bytes_per_s / 1e9,
        copies.to_host_bytes_per_s / 1e9,
        copies.round_trip_s * 1e6,
        copies.launch_s * 1e6
    );
    if let Some(best) = rates.block_bytes() {
        out += &format!("    loads of weights in blocks of {}\n", blocks(best, &rates.blocks));
    }
    out
}

/// Returns the size of blocks that is used and its rate, then those of all sizes that were tried.
pub(super) fn blocks(best: u64, rates: &[BlockRate]) -> String {
    let size = |bytes: u64| format!("{} KiB", bytes >> 10);
    let rate = |rate: &BlockRate| format!("{} {:.1}", size(rate.block_bytes), rate.bytes_per_s / 1e9);
    let of_best =
        rates.iter().find(|rate| rate.block_bytes == best).map_or(f64::NAN, |rate| rate.bytes_per_s);
    let all: Vec<String> = rates.iter().map(rate).collect();
    format!("{} {:.1} GB/s ({})", size(best), of_best / 1e9, all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    use baton_gpu::{CopyRates, Device as _, ProductRates, Rates, RefusedGpu};
    use baton_kernels_gpu::cases::HostDevice;

    #[test]
    fn a_gpu_is_shown_with_its_memory_and_rates() {
        let products = ProductRates { vector_bytes_per_s: 3.1e11, vector_flops: 1.1e12, matrix_flops: 2e13 };
        let copies = CopyRates {
            to_device_bytes_per_s: 1.2e10,
            to_host_bytes_per_s: 1.1e10,
            round_trip_s: 4e-5,
            launch_s: 3.1e-6,
        };
        let blocks = vec![
            BlockRate { block_bytes: 1 << 20, bytes_per_s: 9e9 },
            BlockRate { block_bytes: 4 << 20, bytes_per_s: 1.15e10 },
        ];
        let rates = Rates { products: [("Q4_K".to_owned(), products)].into(), copies, blocks };
        let known = GpuProfile {
            name: "GTX 1".to_owned(),
            place: "cuda:0".to_owned(),
            is_software: false,
            shares_memory: false,
            memory_bytes: Some(8_000_000_000),
            free_bytes: Some(7_500_000_000),
            rates: Some(rates),
            loads_beside: true,
            problem: None,
        };
        assert_eq!(
            lines(&known),
            "GTX 1 (cuda:0), 8.00 GB, 7.50 GB free\n\
             \x20   products in Q4_K        310.0 GB/s of weights,   1100.0 GFLOP/s; of 512 vectors  20000.0 GFLOP/s\n\
             \x20   copies to it 12.0 GB/s, from it 11.0 GB/s; a hidden state there and back 40 us, a launch 3.1 us\n\
             \x20   loads of weights in blocks of 4096 KiB 11.5 GB/s (1024 KiB 9.0, 4096 KiB 11.5)\n"
        );
        let other = GpuProfile {
            place: "vulkan:0".to_owned(),
            is_software: true,
            shares_memory: true,
            memory_bytes: None,
            free_bytes: None,
            rates: None,
            problem: Some("no room".to_owned()),
            ..known
        };
        assert_eq!(
            lines(&other),
            "GTX 1 (vulkan:0), a program on the CPU, memory not known, shared with the CPU\n\
             \x20   cannot be used: no room\n"
        );
    }

    fn facts(index: usize) -> Facts {
        Facts { index, ..HostDevice::new(None).facts().clone() }
    }

    #[test]
    fn gpus_that_cannot_be_opened_are_listed_with_the_reason() {
        let problems = |all: &[GpuProfile]| -> Vec<(String, Option<String>)> {
            all.iter().map(|gpu| (gpu.place.clone(), gpu.problem.clone())).collect()
        };
        let want =
            |index: usize, problem: Option<&str>| (format!("vulkan:{index}"), problem.map(str::to_owned));
        let opened = OpenedGpu {
            refused: vec![RefusedGpu { facts: facts(0), reason: "the driver is too old".to_owned() }],
            others: vec![facts(1)],
            ..OpenedGpu::default()
        };
        let all = with_others(Some(GpuProfile::of(&facts(2))), &opened);
        assert_eq!(problems(&all), [want(2, None), want(0, Some("the driver is too old")), want(1, None)]);
        let err = OpenError::Device { facts: Box::new(facts(1)), err: "no driver".into() };
        let all = unopened(&[facts(0), facts(1)], &err);
        assert_eq!(problems(&all), [want(0, None), want(1, Some("no driver"))]);
        let missing = OpenError::Missing { wanted: GpuChoice::Auto, found: vec![facts(0)] };
        assert_eq!(problems(&unopened(&[facts(0)], &missing)), [want(0, None)]);
    }
}
