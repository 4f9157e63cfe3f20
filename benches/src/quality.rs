//! `quality`: measures the loss of quality by refinement with the shipped demo models. At a quarter of the
//! prompt there should be none.
//!
//! Documents and questions are not in the training data, and the same for every arm. Masks are scored without
//! decoding by their recall of gold sentences, answers by exact match. Some questions are too hard for models
//! of this size: two hops in a long document, and words that are not in the training data. For these, answers
//! are only in the table and not checked, but masks are checked.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::Context as _;
use baton_baselines::{Baseline, Ranking};
use baton_engine::{Model, SlidingWindow};
use baton_eval::arm::{Arm, Eviction};
use baton_eval::curves::curves;
use baton_eval::device::DeviceSpec;
use baton_eval::html;
use baton_eval::progress::Bar;
use baton_eval::run::{Job, Setup, run as evaluate};
use baton_eval::store::{Row, Store};
use baton_eval::suite::facts::{self, Kind};
use baton_eval::summary::figures;
use baton_refine::{Calibration, Mode, ModelMark, QualityCurves};
use clap::Args as ClapArgs;
use serde_json::json;

use crate::report::Report;

mod checks;
mod real;

/// Lengths of documents in tokens.
pub(crate) const LENGTHS: [usize; 3] = [512, 1024, 2048];
/// Values of r for which masks are scored.
pub(crate) const RATIOS: [f32; 3] = [0.1, 0.25, 0.5];
/// Values of L for the device with a smaller model than the cloud's.
pub(crate) const ASSIST_TOKENS: [usize; 3] = [1, 8, 32];
/// The sliding window; its sinks are the first tokens, which it always sees.
const WINDOW: SlidingWindow = SlidingWindow { tokens: 512, sinks: 4 };
/// Seed of the first document. Answers are written on the first documents of those for masks. None of them
/// was used to tune the refiner.
const SEED: u64 = 5_000_000;

/// The default ranking, and those that it is compared with.
pub(crate) const DEFAULT: Ranking = Ranking::Mode(Mode::Attention);
pub(crate) const BM25: Ranking = Ranking::Mode(Mode::Bm25);
pub(crate) const PAPER: Ranking = Ranking::Baseline(Baseline::Paper);
pub(crate) const RANDOM: Ranking = Ranking::Baseline(Baseline::Random { seed: 0 });
/// The rankings in the checks.
pub(crate) const JUDGED: [Ranking; 4] = [DEFAULT, BM25, PAPER, RANDOM];
/// Baselines that are only in the results, not in the checks.
const SHOWN: [Baseline; 4] = [Baseline::Tokens, Baseline::GemFilter, Baseline::Chunk, Baseline::Streaming];

/// Names of the devices: the cloud's model with full attention and with a window, a smaller model, and one
/// with another tokenizer.
pub(crate) const FULL: &str = "full";
pub(crate) const WINDOWED: &str = "window";
pub(crate) const PHONE: &str = "phone";
pub(crate) const OTHER: &str = "phone-b";

/// Options of `quality`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Folder with the demo models
    #[arg(long, default_value = "models")]
    models: PathBuf,
    /// Number of documents of each length on which masks are scored
    #[arg(long, default_value_t = 40)]
    mask_documents: usize,
    /// Number of documents of each length on which answers are written
    #[arg(long, default_value_t = 16)]
    documents: usize,
    /// File that keeps all results; an interrupted run continues from it
    #[arg(long)]
    results: Option<PathBuf>,
    /// Write an HTML page with tables and plots
    #[arg(long)]
    html: Option<PathBuf>,
    /// Write the quality over r to a file, for `baton-cloud scenes fit-xi`
    #[arg(long)]
    curves: Option<PathBuf>,
    #[command(flatten)]
    real: real::RealArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Report> {
    if args.real.is_set() {
        return real::run(&args.real);
    }
    let begun = Instant::now();
    let setup = setup(&args.models)?;
    let jobs = jobs(args, &setup);
    let kept = jobs.clone();
    let mut store = match &args.results {
        Some(path) => Store::open(path, &setup.origin())?,
        None => Store::in_memory(),
    };
    let mut bar = Bar::new();
    let stop = AtomicBool::new(false);
    evaluate(&setup, jobs, &mut store, &stop, &mut |done, total, what| bar.draw(done, total, what))?;
    bar.clear();
    let rows: Vec<&Row> = kept
        .iter()
        .flat_map(|job| job.arms.iter().filter_map(|arm| store.get(&job.case, &arm.to_string())))
        .collect();
    let mut report = Report::new("quality");
    checks::masks(&mut report, &rows);
    checks::answers(&mut report, &rows);
    report.data("cases", kept.len());
    report.data("seconds", begun.elapsed().as_secs());
    let figures = figures(&rows);
    report.data("figures", json!(figures));
    if let Some(path) = &args.html {
        let about = vec![
            "The demo models on held-out generated documents; devices: the cloud's own model with full \
             attention and with a window of 512, the device model, the one with another tokenizer."
                .to_owned(),
        ];
        write(path, html::page(&rows, &figures, &about))?;
    }
    if let Some(path) = &args.curves {
        write(path, quality_curves(&setup, &rows)?.to_json())?;
    }
    Ok(report)
}

fn write(path: &Path, text: String) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("write `{}`", path.display()))
}

fn quality_curves(setup: &Setup, rows: &[&Row]) -> anyhow::Result<QualityCurves> {
    let device =
        setup.devices.iter().find(|spec| spec.name == PHONE).context("the phone is among the devices")?;
    let mark =
        |model: &Model| ModelMark { name: model.name().to_owned(), sha256: model.file_sha256().to_owned() };
    let (cloud, phone) = (mark(&setup.cloud), mark(&device.model));
    let made_by = concat!("baton-bench quality ", env!("CARGO_PKG_VERSION"));
    Ok(QualityCurves::new(made_by, SEED, cloud, phone, curves(rows, PHONE))?)
}

fn setup(models: &Path) -> anyhow::Result<Setup> {
    let open = |name: &str| {
        let path = models.join(name);
        Model::open(&path).with_context(|| format!("open model `{}`", path.display()))
    };
    let cloud = open("demo-cloud.gguf")?;
    let heads = models.join("demo-cloud.heads.json");
    let heads = std::fs::read_to_string(&heads).with_context(|| format!("read `{}`", heads.display()))?;
    let device = |name: &str, model: &Arc<Model>, window: Option<SlidingWindow>| DeviceSpec {
        name: name.to_owned(),
        model: model.clone(),
        window,
    };
    Ok(Setup {
        calibration: Some(Arc::new(Calibration::from_json(&heads)?)),
        devices: vec![
            device(FULL, &cloud, None),
            device(WINDOWED, &cloud, Some(WINDOW)),
            device(PHONE, &open("demo-device.gguf")?, None),
            device(OTHER, &open("demo-device-b.gguf")?, None),
        ],
        cloud,
        workers: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
    })
}

/// Makes the jobs: masks on all cases, answers on some of them.
fn jobs(args: &Args, setup: &Setup) -> Vec<Job> {
    let options = |documents: usize, questions: usize| facts::Options {
        kinds: Kind::ALL.to_vec(),
        lengths: LENGTHS.to_vec(),
        documents,
        questions,
        seed: SEED,
    };
    let tokenizer = setup.cloud.tokenizer();
    let mask = |ranking: Ranking| RATIOS.map(|ratio| Arm::Mask { ranking, ratio });
    let judged: Vec<Arm> = JUDGED.into_iter().flat_map(mask).collect();
    let shown: Vec<Arm> = SHOWN.into_iter().map(Ranking::Baseline).flat_map(mask).collect();
    let answered: Vec<String> =
        facts::cases(&options(args.documents, 3), tokenizer).into_iter().map(|case| case.id).collect();
    let cases = facts::cases(&options(args.mask_documents.max(args.documents), 6), tokenizer);
    cases
        .into_iter()
        .map(|case| {
            let mut arms = judged.clone();
            if answered.contains(&case.id) {
                arms.extend(shown.iter().cloned());
                arms.extend(answers(&case.group));
            }
            Job { case, arms }
        })
        .collect()
}

/// Returns the arms that answer questions of this group.
fn answers(group: &str) -> Vec<Arm> {
    let relay = |device: &str, ratio: f32, tokens: usize| Arm::relay(device, Mode::Attention, ratio, tokens);
    let mut arms = vec![
        Arm::Cloud,
        Arm::device(FULL),
        Arm::device(WINDOWED),
        Arm::device(PHONE),
        relay(FULL, 0.25, 1),
        relay(FULL, 0.1, 1),
        relay(WINDOWED, 0.25, 1),
        Arm::relay(PHONE, Mode::None, 1.0, 8),
    ];
    arms.extend(ASSIST_TOKENS.map(|tokens| relay(PHONE, 0.25, tokens)));
    arms.extend([0.1, 0.5].map(|ratio| relay(PHONE, ratio, 8)));
    arms.extend([Arm::device(OTHER), relay(OTHER, 0.25, 8)]);
    if group == Kind::Short.as_str() || group == Kind::TwoHop.as_str() {
        let evict = |policy| Arm::Evict { device: FULL.to_owned(), policy, ratio: 0.25 };
        arms.extend(Eviction::ALL.map(evict));
    }
    arms
}
