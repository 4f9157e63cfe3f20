//! `baton-bench handoff`: the cloud's keys and values in place of a prefill on the device.
//!
//! Three parts. `bits`: logits over moved keys and values beside those computed on the spot. `paths`: when a
//! device has its own first token (TTFT_d), over lines of 100 Mb/s to 10 Gb/s. Compared are the mask, keys
//! and values in each form, and the choice. `quality`: what chosen sentences' keys and values are worth
//! beside the same sentences as text, with real models on real questions.

mod bits;
mod paths;
mod quality;
mod world;

use std::path::PathBuf;

use anyhow::Result;

use crate::report::Report;

/// The parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Equality of logits
    Bits,
    /// Times to the device's own first token
    Paths,
    /// Real models on real questions
    Quality,
}

/// Options of `baton-bench handoff`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Parts to run [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Bytes of the documents
    #[arg(long, value_delimiter = ',', default_values_t = [512, 1024, 2048, 4096, 8192])]
    prompts: Vec<usize>,
    /// Lines, in megabits a second
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1_000, 10_000])]
    lines: Vec<u64>,
    /// Runs of each path
    #[arg(long, default_value_t = 7)]
    runs: usize,
    /// GGUF file of a model that is cloud and device, for `bits` and `quality`; may be given several times
    #[arg(long, value_name = "GGUF")]
    model: Vec<PathBuf>,
    /// File in SQuAD's format, such as XQuAD's, for `quality`
    #[arg(long, value_name = "JSON")]
    squad: Vec<PathBuf>,
    /// Questions of each file
    #[arg(long, default_value_t = 40)]
    cases: usize,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let mut report = Report::new("handoff");
    let wanted = |part: Part| args.only.is_empty() || args.only.contains(&part);
    if wanted(Part::Bits) {
        bits::measure(&args.model, &mut report)?;
    }
    if wanted(Part::Paths) {
        let plan = paths::Plan { prompts: &args.prompts, lines: &args.lines, runs: args.runs.max(1) };
        paths::measure(&plan, &mut report)?;
    }
    if wanted(Part::Quality) {
        quality::measure(&args.model, &args.squad, args.cases, &mut report)?;
    }
    Ok(report)
}
