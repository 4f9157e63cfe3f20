//! `baton-eval`: runs a suite over arms and reports.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use baton_engine::Model;
use baton_eval::arm::Arm;
use baton_eval::device::DeviceSpec;
use baton_eval::progress::Bar;
use baton_eval::run::{Ended, Job, Setup, run};
use baton_eval::store::Store;
use baton_eval::suite::facts;
use baton_eval::summary::{figures, table};
use baton_refine::Calibration;
use clap::Parser;

#[derive(Debug, Parser)]
struct Cli {
    #[arg(long)]
    cloud: PathBuf,
    #[arg(long)]
    heads: Option<PathBuf>,
    #[arg(long)]
    device: Vec<String>,
    #[arg(long, value_delimiter = ',')]
    arms: Vec<Arm>,
    #[arg(long, value_delimiter = ',')]
    lengths: Vec<usize>,
    #[arg(long, default_value_t = 10)]
    documents: usize,
    #[arg(long, default_value_t = 4)]
    questions: usize,
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    let cloud = Model::open(&cli.cloud)?;
    let calibration = cli
        .heads
        .as_ref()
        .map(|p| anyhow::Ok(Arc::new(Calibration::from_json(&std::fs::read_to_string(p)?)?)))
        .transpose()?;
    let mut devices = Vec::new();
    for d in &cli.device {
        let (name, rest) = d.split_once('=').context("NAME=FILE")?;
        let (file, window) = match rest.split_once(',') {
            Some((f, w)) => (f, Some(w.parse()?)),
            None => (rest, None),
        };
        devices.push(DeviceSpec {
            name: name.into(),
            model: Model::open(Path::new(file))?,
            window: window.map(|tokens| baton_engine::SlidingWindow { tokens, sinks: 4 }),
        });
    }
    let setup = Setup { cloud, calibration, devices, workers: NonZeroUsize::new(2).unwrap() };
    let cases = facts::cases(
        &facts::Options {
            kinds: facts::Kind::ALL.to_vec(),
            lengths: cli.lengths,
            documents: cli.documents,
            questions: cli.questions,
            seed: 2_000_000,
        },
        setup.cloud.tokenizer(),
    );
    let jobs = cases.into_iter().map(|case| Job { case, arms: cli.arms.clone() }).collect();
    let mut store = match &cli.out {
        Some(p) => Store::open(p, &setup.origin())?,
        None => Store::in_memory(),
    };
    let mut bar = Bar::new();
    let begun = std::time::Instant::now();
    let ended = run(&setup, jobs, &mut store, &AtomicBool::new(false), &mut |d, t, w| bar.draw(d, t, w))?;
    bar.clear();
    println!("{ended:?} {:?}", begun.elapsed());
    println!("{}", table(&figures(&store.rows())));
    let _ = Ended::Whole;
    Ok(ExitCode::SUCCESS)
}
