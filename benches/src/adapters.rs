//! `baton-bench adapters`: LoRA adapters at run time. Their cost in a batch, the time to load one while the
//! engine works, and their equality with merged weights.
//!
//! Adapters have random numbers and change every projection of every layer, which is the most that an adapter
//! can cost. Speeds are ratios of runs that follow each other, so a drift of the machine affects both.

mod equal;
mod load;
mod speed;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use baton_engine::gguf::Gguf;
use baton_engine::{Adapter, Model};
use baton_import::ADAPTER_FORMAT;
use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticAdapter;

use crate::engine::SubjectArgs;
use crate::engine::worker::read_per_token;
use crate::report::Report;

/// Adapters of a run; two sequences use each.
const ADAPTERS: usize = 4;
/// Sequences of a batch.
const SEQUENCES: usize = 2 * ADAPTERS;
/// The rank of a quick run, and of the check of loading. The library PEFT's examples use 8 and 16.
const RANK: u32 = 16;

/// Options of `baton-bench adapters`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: SubjectArgs,
    /// Ranks of the adapters; the speed of each is checked
    #[arg(long, value_delimiter = ',', default_values_t = [8, RANK, 64])]
    ranks: Vec<u32>,
    /// Number of rounds; each measures every batch once, in turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Tokens that each sequence writes in a round
    #[arg(long, default_value_t = 32)]
    tokens: usize,
    /// A model file of F32, F16 or quantized weights; its adapters are compared with merged weights too. By
    /// default the demo model of a checkout
    #[arg(long, value_name = "FILE")]
    real: Option<PathBuf>,
    /// A short run of a minute or two without checks of speed: rank 16 and two rounds
    #[arg(long)]
    quick: bool,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let ranks = if args.quick { vec![RANK] } else { args.ranks.clone() };
    let rounds = if args.quick { 2 } else { args.rounds };
    ensure!(rounds > 0 && args.tokens > 0 && !ranks.is_empty(), "needs ranks, rounds and tokens");
    ensure!(ranks.iter().all(|rank| *rank > 0), "a rank must be at least 1");
    let subject = args.on.ready()?;
    let model = Model::open(&subject.path).context("open the model")?;
    let mut report = Report::new("adapters");
    report.note(format!(
        "{SEQUENCES} sequences on {}, {} threads; adapters of random numbers for every projection, in {} as `baton model adapter` writes them",
        subject.name, args.on.threads, ADAPTER_FORMAT.name()
    ));
    report.data("model", subject.name.as_str());
    report.data("threads", args.on.threads.get());
    let gguf = Gguf::open(&subject.path).context("read the directory of the model file")?;
    let run = speed::Run {
        threads: args.on.threads,
        rounds,
        tokens: args.tokens,
        weight_bytes: read_per_token(&gguf).map(|tensor| tensor.data_len()).sum(),
        checked: !args.quick,
    };
    speed::measure(&model, &ranks, &run, &mut report)?;
    load::measure(&model, &ranks, args.on.threads, &mut report)?;
    let real =
        args.real.clone().unwrap_or_else(|| baton_e2e::process::models_folder().join("demo-cloud.gguf"));
    equal::measure(&real, &mut report)?;
    Ok(report)
}

/// Returns the bytes of an adapter of random numbers.
fn adapter_bytes(model: &Model, rank: u32, format: Format, seed: u64) -> Result<Vec<u8>> {
    // A strength at which answers change and numbers stay in the range of trained models.
    let synthetic = SyntheticAdapter { rank, alpha: 2.0 * rank as f32, strength: 0.1, format, seed };
    synthetic.to_gguf(model.config()).context("make an adapter")
}

/// Opens the bytes of an adapter.
fn opened(model: &Arc<Model>, bytes: Vec<u8>) -> Result<Arc<Adapter>> {
    let gguf = Gguf::from_bytes(bytes).context("read an adapter")?;
    Adapter::from_gguf(gguf, model).context("open an adapter")
}
