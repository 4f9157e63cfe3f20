//! The options `--gpu` and `--vram`, and what commands say of GPUs.

use std::sync::Arc;

use anyhow::Context as _;
use baton_engine::engine::KvFormat;
use baton_engine::{Engine, EngineError, EngineOptions, KvHome, Model, Offload, Pipeline};
use baton_gpu::{GpuChoice, GpuPart, OpenedGpu, VramLimit};
use baton_kernels_cpu::Format;
use baton_terminal::errln;
use clap::Args;
use clap::builder::{FalseyValueParser, PossibleValuesParser, TypedValueParser as _};

use super::heading;
use crate::machine::gpu::{GpuProfile, on_loss};
use crate::machine::residency::size;

/// Which GPU computes.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct GpuArgs {
    /// GPU that computes: auto (the best one, or none), off, or a device such as cuda:0, vulkan:1 or metal:0
    ///
    /// It computes as many of the model's last layers as fit into its memory, the CPU the others.
    /// `baton profile` lists the GPUs.
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
    /// Opens the GPU. Writes a line if one that is there cannot be used.
    pub(super) fn open(self) -> anyhow::Result<OpenedGpu> {
        let opened = baton_gpu::open(self.gpu, self.vram).context("choose a GPU (--gpu)")?;
        if let Some(notice) = &opened.notice {
            errln!("note: {notice}");
        }
        Ok(opened)
    }

    /// Returns all GPUs of this device, the one that computes first. That one is measured, with weights in
    /// these formats; it may take seconds.
    pub(super) fn profiles(self, formats: &[Format]) -> anyhow::Result<Vec<GpuProfile>> {
        let measured = self.open()?.device.map(|device| GpuProfile::measured(&*device, formats));
        Ok(with_others(measured))
    }
}

/// Returns the measured GPU, if there is one, and all others of this device.
pub(super) fn with_others(measured: Option<GpuProfile>) -> Vec<GpuProfile> {
    let is_other = |other: &GpuProfile| measured.as_ref().is_none_or(|one| one.place != other.place);
    let others: Vec<_> = baton_gpu::list().iter().map(GpuProfile::of).filter(is_other).collect();
    measured.into_iter().chain(others).collect()
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
        out += &format!("    cannot be measured: {problem}\n");
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
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    use baton_gpu::{CopyRates, ProductRates, Rates};

    #[test]
    fn a_gpu_is_shown_with_its_memory_and_rates() {
        let products = ProductRates { vector_bytes_per_s: 3.1e11, vector_flops: 1.1e12, matrix_flops: 2e13 };
        let copies = CopyRates {
            to_device_bytes_per_s: 1.2e10,
            to_host_bytes_per_s: 1.1e10,
            round_trip_s: 4e-5,
            launch_s: 3.1e-6,
        };
        let rates = Rates { products: [("Q4_K".to_owned(), products)].into(), copies };
        let known = GpuProfile {
            name: "GTX 1".to_owned(),
            place: "cuda:0".to_owned(),
            is_software: false,
            shares_memory: false,
            memory_bytes: Some(8_000_000_000),
            free_bytes: Some(7_500_000_000),
            rates: Some(rates),
            problem: None,
        };
        assert_eq!(
            lines(&known),
            "GTX 1 (cuda:0), 8.00 GB, 7.50 GB free\n\
             \x20   products in Q4_K        310.0 GB/s of weights,   1100.0 GFLOP/s; of 512 vectors  20000.0 GFLOP/s\n\
             \x20   copies to it 12.0 GB/s, from it 11.0 GB/s; a hidden state there and back 40 us, a launch 3.1 us\n"
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
             \x20   cannot be measured: no room\n"
        );
    }
}
