//! `baton-bench host`: measures what writes the answers of both programs. These are several answers at
//! once on a device, proposed tokens in the cloud service, and the host beside a bare loop.
//!
//! The programs run as real processes on loopback, on the same CPUs as the bare engine. Whatever is compared
//! takes turns, figures are medians over turns, and every ratio is taken within one turn. The machine's read
//! bandwidth is measured in the same run.
//!
//! With `--before` the programs of an earlier version take turns with these instead.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use baton_pacing::refit::median;

use crate::engine::process::Worker;
use crate::engine::{SubjectArgs, peer, target_folder};
use crate::report::Report;

mod before;
pub(crate) mod clients;
mod cloud;
mod device;
mod overhead;

/// The figure that is measured for different numbers of answers.
const RATE: &str = "tokens/s";
/// Tokens of an answer on the device; in the cloud, where proposals have to be learned, twice as many.
const TOKENS: usize = 128;
const TOKENS_QUICK: usize = 64;

/// Options of `baton-bench host`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: SubjectArgs,
    /// Measure only these parts
    #[arg(long, value_delimiter = ',', value_enum)]
    part: Vec<Part>,
    /// Number of measurements of each figure
    #[arg(long, default_value_t = 5)]
    alternations: usize,
    /// A short run of some minutes without checks: one alternation, shorter answers
    #[arg(long)]
    quick: bool,
    /// Folder with the programs of an earlier version (baton, baton-cloud, baton-bench): runs short
    /// measurements with both versions in turn, instead of the parts
    #[arg(long, value_name = "DIR", conflicts_with = "part")]
    before: Option<PathBuf>,
}

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// 1 to 8 answers at once on a device, beside the bare engine
    Device,
    /// Proposed tokens in the cloud service, on text with and without repeats
    Cloud,
    /// One answer through the host, beside a bare loop
    Overhead,
}

/// What all parts measure with.
struct Bench<'a> {
    /// Name and file of the model.
    name: String,
    model: &'a Path,
    threads: NonZeroUsize,
    alternations: usize,
    /// Tokens of an answer.
    tokens: usize,
    quick: bool,
    read_bytes_per_s: f64,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<Report> {
    ensure!(args.alternations > 0, "--alternations 0, must be at least 1");
    let subject = args.on.ready()?;
    let mut bench = Bench {
        name: subject.name,
        model: &subject.path,
        threads: args.on.threads,
        alternations: if args.quick { 1 } else { args.alternations },
        tokens: if args.quick { TOKENS_QUICK } else { TOKENS },
        quick: args.quick,
        read_bytes_per_s: 0.0,
    };
    bench.read_bytes_per_s = read_bytes_per_s(&bench)?;
    let mut report = Report::new("host");
    report.note(format!(
        "{}: {} threads; the machine reads {:.1} GB/s",
        bench.name,
        bench.threads,
        bench.read_bytes_per_s / 1e9
    ));
    report.data("read_bytes_per_s", bench.read_bytes_per_s);
    report.data("alternations", bench.alternations);
    if let Some(folder) = &args.before {
        before::measure(&bench, folder, &mut report)?;
        return Ok(report);
    }
    let wanted = |part| args.part.is_empty() || args.part.contains(&part);
    if wanted(Part::Device) {
        device::measure(&bench, &mut report)?;
    }
    if wanted(Part::Cloud) {
        let longer = Bench { tokens: 2 * bench.tokens, name: bench.name.clone(), ..bench };
        cloud::measure(&longer, &mut report)?;
    }
    if wanted(Part::Overhead) {
        overhead::measure(&bench, &mut report)?;
    }
    Ok(report)
}

/// Measures the machine's read bandwidth, in bytes a second.
fn read_bytes_per_s(bench: &Bench<'_>) -> Result<f64> {
    let mut command = Command::new(peer::probe(&target_folder()?)?);
    let mut probe = Worker::start("probe", command.arg(bench.threads.to_string()))?;
    // A file that was just written is on small pages, with which address translation would limit the speed.
    probe.number(&format!("fresh {}", bench.model.display()), "per_second")?;
    let reads: Vec<f64> = (0..3).map(|_| probe.number("read", "per_second")).collect::<Result<_>>()?;
    median(reads).context("no bandwidth was measured")
}

/// Formats a figure, or returns an empty cell.
fn text(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(String::new, |value| format!("{value:.digits$}"))
}
