//! `baton-bench offload`: measures pipelined offloading, the scheme of PIPO.
//!
//! There are three parts. `emulated`: a GPU's weights are loaded from memory, on a device with stated speeds
//! and a clock of its own. `disk`: weights are read from the disk in a control group with a memory limit, in
//! real time. `gpu`: the same model on a real GPU. A part that cannot run here is skipped with the reason.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::Result;
use baton_gpu::{GpuChoice, VramLimit};

use crate::engine::target_folder;
use crate::report::Report;

mod bed;
mod disk;
mod emulated;
mod gpu;
mod trace;

/// Options of `baton-bench offload`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Measure only these parts
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Part>,
    /// Dense model of the part `disk`: the name of a shape of `make-model` (made in Q4_K_M with random
    /// weights), or a GGUF file
    #[arg(long, default_value = "llama-8b")]
    model: String,
    /// Its memory limit in megabytes
    #[arg(long, default_value_t = 1500)]
    limit_mb: u64,
    /// Mixture of the part `disk`, as --model
    #[arg(long, default_value = "mixtral-3b")]
    mixture: String,
    /// Its memory limit in megabytes
    #[arg(long, default_value_t = 800)]
    mixture_limit_mb: u64,
    /// Number of tokens that are measured in each way of the part `disk`
    #[arg(long, default_value_t = 8)]
    tokens: usize,
    /// Turns of all ways of the part `disk`; of each way the fastest counts
    #[arg(long, default_value = "2")]
    turns: NonZeroUsize,
    /// Source folder of llama.cpp with a build in `build`; by default the one that `engine` made, if it did
    #[arg(long)]
    peer: Option<PathBuf>,
    /// The GPU of the part `gpu`: auto, or one by name as `baton --gpu` takes it, such as cuda:0
    #[arg(long, default_value = "auto", value_name = "GPU")]
    gpu: GpuChoice,
    /// Most memory of the GPU that the model may take
    #[arg(long, default_value = "6GB", value_name = "BYTES")]
    vram: VramLimit,
    /// Model of the part `gpu`, as --model
    #[arg(long, default_value = "llama-8b")]
    gpu_model: String,
}

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Weights in memory, loaded to a device with stated speeds and a clock of its own
    Emulated,
    /// Weights on the disk, in a control group with a memory limit
    Disk,
    /// Weights in memory, loaded to a real GPU
    Gpu,
}

impl Args {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let target = target_folder()?;
    let mut report = Report::new("offload");
    if args.wants(Part::Emulated) {
        emulated::measure(&target, &mut report)?;
    }
    if args.wants(Part::Disk) {
        disk::measure(args, &target, &mut report)?;
    }
    if args.wants(Part::Gpu) {
        gpu::measure(args, &target, &mut report)?;
    }
    Ok(report)
}
