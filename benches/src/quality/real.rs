//! `quality --real`: refinement with model files that people download, on texts that people wrote.
//!
//! Models that small answer few questions right, in every arm. So prompts are compared by the probability of
//! the right answer, and by the share of the cloud's own answer that the device would have written too.
//! Cloud and device run the same model: what differs is the prompt alone.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context as _, bail};
use baton_baselines::{Baseline, Ranking};
use baton_e2e::process::cpu_program;
use baton_engine::Model;
use baton_eval::arm::{Arm, Eviction};
use baton_eval::case::Case;
use baton_eval::device::DeviceSpec;
use baton_eval::progress::Bar;
use baton_eval::run::{Job, Setup, run as evaluate};
use baton_eval::stats::Estimate;
use baton_eval::store::{Row, Store};
use baton_eval::suite::{synonyms, xquad};
use baton_eval::summary::{figures, fitting_recall, paired};
use baton_refine::{Calibration, Mode};
use clap::Args as ClapArgs;
use serde_json::json;

use super::{BM25, DEFAULT, RANDOM, RATIOS};
use crate::report::Report;

/// The first and the last sentences.
const ENDS: Ranking = Ranking::Baseline(Baseline::Streaming);
/// The rankings that are compared.
const RANKINGS: [Ranking; 4] = [DEFAULT, BM25, RANDOM, ENDS];
/// The group of questions in other words than the text.
const SYNONYMS: &str = "synonyms";
/// The r of the checks.
const CHECKED: f32 = 0.25;
/// A dynamic r: sentences below a share of the best one's value are left out, in thousandths.
const DYNAMIC: [Ranking; 3] = [at_least(100), at_least(200), at_least(300)];
const fn at_least(share: u16) -> Ranking {
    Ranking::AtLeast(Mode::Attention, share)
}

/// The dynamic r that is checked.
const DYNAMIC_CHECKED: Ranking = DYNAMIC[1];
/// The name of the device.
const SAME: &str = "same";
/// Seed of the generated documents: none of them was used for anything else.
const SEED: u64 = 6_000_000;

/// Options of `quality --real`.
#[derive(Debug, ClapArgs)]
pub(crate) struct RealArgs {
    /// Measure model files and texts of your own instead of the demo models (needs --squad)
    #[arg(long, requires = "squad")]
    real: bool,
    /// GGUF file of a model that is cloud and device; may be given several times [default:
    /// SmolLM2-135M-Instruct, which is fetched once]
    #[arg(long, value_name = "GGUF", requires = "real")]
    model: Vec<PathBuf>,
    /// File in SQuAD's format, such as XQuAD's; may be given several times
    #[arg(long, value_name = "JSON", requires = "real")]
    squad: Vec<PathBuf>,
    /// Numbers of paragraphs in one text
    #[arg(long, value_delimiter = ',', default_values_t = [10, 30], requires = "real")]
    paragraphs: Vec<usize>,
    /// Number of questions of each file and number of paragraphs, and generated ones with other words than
    /// the text
    #[arg(long, default_value_t = 60, requires = "real")]
    cases: usize,
}

impl RealArgs {
    pub(crate) fn is_set(&self) -> bool {
        self.real
    }
}

pub(crate) fn run(args: &RealArgs) -> anyhow::Result<Report> {
    let begun = Instant::now();
    let mut report = Report::new("quality-real");
    let fetched;
    let models = match args.model.is_empty() {
        false => &args.model,
        true => {
            let runtime = tokio::runtime::Runtime::new().context("start a runtime")?;
            fetched = vec![runtime.block_on(baton_e2e::demo::real::model())?];
            &fetched
        }
    };
    let mut all = Vec::new();
    for path in models {
        let (name, setup) = setup(path)?;
        let jobs = jobs(args)?;
        report.note(format!(
            "{name}: {} questions, {} calibrated heads",
            jobs.len(),
            setup.calibration.as_ref().map_or(0, |calibration| calibration.heads().len())
        ));
        let rows = measured(&setup, jobs)?;
        checks(&mut report, &name, &rows.iter().collect::<Vec<_>>());
        all.push(json!({ "model": name, "figures": figures(&rows.iter().collect::<Vec<_>>()) }));
    }
    report.data("models", all);
    report.data("seconds", begun.elapsed().as_secs());
    Ok(report)
}

/// Calibrates the heads of a model, as an operator does.
fn calibrated(path: &Path) -> anyhow::Result<Calibration> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let heads = folder.path().join("heads.json");
    let done = cpu_program("baton-cloud")?
        .arg("calibrate")
        .args([path, Path::new("--out"), &heads])
        .output()
        .context("start baton-cloud")?;
    if !done.status.success() {
        bail!("baton-cloud calibrate failed: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    let heads = std::fs::read_to_string(&heads).context("read the calibrated heads")?;
    Ok(Calibration::from_json(&heads)?)
}

/// Opens a model and calibrates its heads.
fn setup(path: &Path) -> anyhow::Result<(String, Setup)> {
    let model = Model::open(path).with_context(|| format!("open model `{}`", path.display()))?;
    let setup = Setup {
        calibration: Some(Arc::new(calibrated(path)?)),
        devices: vec![DeviceSpec { name: SAME.to_owned(), model: model.clone(), window: None }],
        cloud: model,
        workers: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
    };
    let name = path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok((name, setup))
}

/// Makes the jobs: all arms for questions about real texts; masks for generated questions with other words
/// than their texts.
fn jobs(args: &RealArgs) -> anyhow::Result<Vec<Job>> {
    let mut cases = Vec::new();
    for path in &args.squad {
        let text = std::fs::read_to_string(path).with_context(|| format!("read `{}`", path.display()))?;
        let set = path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        for &paragraphs in &args.paragraphs {
            let of_set = xquad::cases(&text, paragraphs, 0)?;
            // Adjacent questions share a text; a few questions of each of some texts cost fewer prefills.
            let named = of_set.into_iter().map(|case| Case {
                id: format!("{set}/{}", case.id),
                group: format!("{set}, {}", case.group),
                ..case
            });
            cases.extend(some(named.collect(), args.cases));
        }
    }
    let mut jobs: Vec<Job> = cases.into_iter().map(|case| Job { case, arms: arms() }).collect();
    let generated = synonyms::cases(args.cases.div_ceil(OF_ONE_TEXT), OF_ONE_TEXT, SEED);
    jobs.extend(generated.into_iter().map(|case| Job { case, arms: masks() }));
    Ok(jobs)
}

/// Questions about one text that are kept together.
const OF_ONE_TEXT: usize = 6;

/// Chooses `count` cases: a few about each of some texts.
fn some(cases: Vec<Case>, count: usize) -> Vec<Case> {
    let mut by_text: Vec<Vec<Case>> = Vec::new();
    for case in cases {
        match by_text.last_mut().filter(|group| group[0].cluster == case.cluster) {
            Some(group) => group.push(case),
            None => by_text.push(vec![case]),
        }
    }
    let texts = count.div_ceil(OF_ONE_TEXT).clamp(1, by_text.len().max(1));
    let step = (by_text.len() / texts).max(1);
    let chosen = by_text.into_iter().step_by(step).take(texts).flat_map(|group| {
        let step = (group.len() / OF_ONE_TEXT).max(1);
        group.into_iter().step_by(step).take(OF_ONE_TEXT)
    });
    chosen.take(count).collect()
}

/// Returns the arms that choose sentences.
fn masks() -> Vec<Arm> {
    let fixed = RANKINGS.into_iter().flat_map(|ranking| RATIOS.map(|ratio| Arm::Mask { ranking, ratio }));
    fixed.chain(DYNAMIC.map(|ranking| Arm::Mask { ranking, ratio: CHECKED })).collect()
}

/// Returns all arms: r varies for the default and for BM25 only, because every r is another prompt to read.
fn arms() -> Vec<Arm> {
    let predict = |ranking, ratio| Arm::Predict { device: SAME.to_owned(), ranking, ratio };
    let mut arms = vec![Arm::Cloud, predict(Ranking::Mode(Mode::None), 1.0)];
    arms.extend(masks());
    arms.extend([DEFAULT, BM25].into_iter().flat_map(|ranking| RATIOS.map(|ratio| predict(ranking, ratio))));
    arms.extend([RANDOM, ENDS, DYNAMIC_CHECKED].map(|ranking| predict(ranking, CHECKED)));
    arms.push(Arm::Evict { device: SAME.to_owned(), policy: Eviction::SnapKv, ratio: CHECKED });
    arms
}

fn measured(setup: &Setup, jobs: Vec<Job>) -> anyhow::Result<Vec<Row>> {
    let mut store = Store::in_memory();
    let mut bar = Bar::new();
    let stop = AtomicBool::new(false);
    evaluate(setup, jobs, &mut store, &stop, &mut |done, total, what| bar.draw(done, total, what))?;
    bar.clear();
    Ok(store.rows().into_iter().cloned().collect())
}

fn predict(ranking: Ranking, ratio: f32) -> String {
    format!("predict:{SAME}:{ranking}@{ratio}")
}

fn mask(ranking: Ranking) -> String {
    format!("mask:{ranking}@{CHECKED}")
}

/// A measure of predictions: its name and its value in a row.
type Measure = (&'static str, fn(&Row) -> Option<f64>);

const MEASURES: [Measure; 2] =
    [("ln p of the right answer", |row| row.right_ln_p), ("accepted share", |row| row.acceptance)];

fn checks(report: &mut Report, model: &str, rows: &[&Row]) {
    table(report, model, rows);
    let mut groups: Vec<&str> = rows.iter().map(|row| row.group.as_str()).collect();
    groups.sort_unstable();
    groups.dedup();
    let mean = |value: Option<Estimate>| value.map_or(f64::NAN, |e| e.mean);
    for group in groups {
        let own: Vec<&Row> = rows.iter().copied().filter(|row| row.group == group).collect();
        let gap = paired(&own, [&mask(DEFAULT), &mask(BM25)], fitting_recall);
        let name = format!("{model}, {group}: gold sentences kept at r = {CHECKED}, attention less bm25");
        match group == SYNONYMS {
            true => report.check(name, mean(gap), "> 0", mean(gap) > 0.0),
            false => report.check_at_least(name, mean(gap), 0.0),
        }
    }
    dynamic(report, model, rows);
    let whole = predict(Ranking::Mode(Mode::None), 1.0);
    let real: Vec<&Row> = rows.iter().copied().filter(|row| row.suite == "xquad").collect();
    for (what, value) in MEASURES {
        let far = |ranking| mean(paired(&real, [&whole, &predict(ranking, CHECKED)], value)).abs();
        report.check_at_most(
            format!("{model}: {what}, distance of attention from the full prompt, of bm25's"),
            far(DEFAULT) / far(BM25),
            1.0,
        );
        let over = paired(&real, [&predict(DEFAULT, CHECKED), &predict(RANDOM, CHECKED)], value);
        let low = over.map_or(f64::NAN, |e| e.low);
        report.check(format!("{model}: {what}, attention less random, lower end"), low, "> 0", low > 0.0);
    }
}

/// Checks what a dynamic r keeps, beside the fixed r that bounds it.
fn dynamic(report: &mut Report, model: &str, rows: &[&Row]) {
    let mean = |arm: &str, value: fn(&Row) -> Option<f64>| {
        let own: Vec<f64> = rows.iter().filter(|row| row.arm == arm).filter_map(|row| value(row)).collect();
        own.iter().sum::<f64>() / own.len() as f64
    };
    let share =
        |value: fn(&Row) -> Option<f64>| mean(&mask(DYNAMIC_CHECKED), value) / mean(&mask(DEFAULT), value);
    let name = format!("{model}: dynamic r of at most {CHECKED}");
    let kept = share(fitting_recall);
    report.check_at_least(format!("{name}: gold sentences kept, of those at the fixed r"), kept, 0.95);
    let tokens = share(|row| row.ratio.map(f64::from));
    report.check_at_most(format!("{name}: mean share of tokens, of that of the fixed r"), tokens, 0.6);
}

/// Prints one row for each set and arm.
fn table(report: &mut Report, model: &str, rows: &[&Row]) {
    let number = |value: Option<Estimate>, digits: usize, scale: f64| {
        value.map_or_else(String::new, |e| {
            let [mean, low, high] = [e.mean, e.low, e.high].map(|x| x * scale);
            format!("{mean:.digits$} [{low:.digits$} {high:.digits$}]")
        })
    };
    let header =
        ["arm", "n", "F1, %", "gold kept, %", "tokens kept, %", "ln p of right", "accepted, %", "prompt"];
    let mut groups: Vec<&str> = rows.iter().map(|row| row.group.as_str()).collect();
    groups.sort_unstable();
    groups.dedup();
    for group in groups {
        let own: Vec<&Row> = rows.iter().copied().filter(|row| row.group == group).collect();
        let lines: Vec<Vec<String>> = figures(&own)
            .into_iter()
            .map(|f| {
                let n = f.score.or(f.recall).or(f.right_ln_p).map_or(0, |e| e.n);
                let prompt =
                    if f.prompt_tokens > 0.0 { format!("{:.0}", f.prompt_tokens) } else { String::new() };
                vec![
                    f.key.arm,
                    n.to_string(),
                    number(f.score, 1, 100.0),
                    number(f.recall, 1, 100.0),
                    f.ratio.map_or_else(String::new, |ratio| format!("{:.1}", 100.0 * ratio)),
                    number(f.right_ln_p, 3, 1.0),
                    number(f.acceptance, 1, 100.0),
                    prompt,
                ]
            })
            .collect();
        report.table(&format!("{model}, {group}"), &header, &lines);
    }
}
