//! `demo`: measures how often `./x demo` gives the right answer on documents that were not used in its
//! development.
//!
//! It runs as the demo does: real programs on loopback, the emulated phone and cloud, and the demo's
//! questions. The seeds differ from those used to write the demo.

use anyhow::{Context as _, Result};
use baton_e2e::demo::odds::{MEASURED, odds};
use baton_e2e::demo::{About, DOCUMENT_TOKENS, DemoOptions};
use baton_e2e::process::models_folder;
use clap::Args as ClapArgs;

use crate::report::Report;

/// Minimum share of right answers of the relay.
const RIGHT_MIN: f64 = 0.97;

/// Options of `demo`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Seed of the first document
    #[arg(long, default_value_t = MEASURED.first)]
    seed: u64,
    /// Number of documents; the next documents have the next seeds
    #[arg(long, default_value_t = MEASURED.asked() as u64, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    documents: u64,
}

/// Runs the bench.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let mut report = Report::new("demo");
    let models = models_folder();
    let options = DemoOptions {
        seed: args.seed,
        json: true,
        quiet: true,
        real: false,
        about: About::Generated,
        cloud_model: models.join("demo-cloud.gguf"),
        device_model: models.join("demo-device.gguf"),
        document_tokens_min: DOCUMENT_TOKENS as usize,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("start an executor")?;
    let seeds = args.seed..=args.seed.saturating_add(args.documents - 1);
    let mut wrong = Vec::new();
    let found = runtime.block_on(odds(&options, seeds, &mut |line| wrong.push(line.to_owned())))?;
    report.note(found.describe());
    wrong.iter().for_each(|line| report.note(line));
    report.check_at_least(
        "share of the relay's answers that are right",
        found.relay as f64 / found.asked() as f64,
        RIGHT_MIN,
    );
    report.note(format!("the demo says: {}", MEASURED.describe()));
    report.data("odds", found.json());
    Ok(report)
}
