//! `baton-bench ring`: rings of real processes on this machine, beside one device and beside what was predicted.
//!
//! Each device is a process that is bound to a CPU or to a control group with a memory limit; ways between them are
//! loopback, or slow links ([`baton_e2e::link`]). What a part lacks on this machine it says in a line `skipped: ...`,
//! and measures nothing in its place. Every run that has a prediction is kept for the check of predictions at the end.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use baton_device::ring::disk;
use baton_device::ring::planning::Planned as Predicted;
use baton_device::ring::shape::shape_of;
use baton_e2e::home::{Home, Planned, Task};
use baton_e2e::stop::Stop;
use baton_plan::{Cluster, Costs, ModelShape, Workload};
use serde_json::{Value, json};

use crate::engine::samples::median;
use crate::engine::{Subject, subject_in, target_folder};
use crate::report::Report;

mod large;
mod links;
mod memory;
mod overhead;
mod peers;
mod plans;
mod prima;
mod sampler;
mod sweeps;

/// Predictions that are off: the median and the largest.
const ERROR_MEDIAN_MAX: f64 = 0.15;
const ERROR_MAX: f64 = 0.35;

/// Options of `baton-bench ring`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these parts
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Part>,
    /// A shape as make-model knows it (in Q4_K_M), or a GGUF file, for hops, links and prefill
    #[arg(long, default_value = "llama-1b")]
    model: String,
    /// The same for devices with less memory than it needs
    #[arg(long, default_value = "llama-8b")]
    large_model: String,
    /// Folder with the models' files, which are made where they are missing [default: `models` in the build's folder]
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// How often each figure is measured
    #[arg(long, default_value_t = 5)]
    alternations: usize,
    /// Tokens written in each measurement of hops and links
    #[arg(long, default_value_t = 32)]
    tokens: usize,
    /// Megabytes of memory of each device in the part `memory`
    #[arg(long, default_value_t = 1300)]
    limit_mb: u64,
    /// Megabytes a second that each device reads at most in the part `throttled`
    #[arg(long, default_value_t = 500)]
    throttle_mb: u64,
    /// llama.cpp's folder, built in `build` with its RPC, for the part `peers` [default: fetched from PyPI and built]
    #[arg(long, value_name = "DIR")]
    peer: Option<PathBuf>,
    /// prima.cpp's folder, built there with `make llama-cli`, for the parts `peers`, `memory` and `throttled`
    #[arg(long, value_name = "DIR")]
    prima: Option<PathBuf>,
}

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// One device's tokens under many plans
    Plans,
    /// A ring of one beside the engine; what a hop costs
    Overhead,
    /// Links of 3 to 7 ms
    Links,
    /// A prompt of 512 tokens on two devices
    Prefill,
    /// Two devices, each with less memory than its layers need
    Memory,
    /// The same with disks that give a set rate
    Throttled,
    /// Four devices and a model of 32 billion weights
    Large,
    /// Context, distance, bandwidth, load, requests at a time, speculation
    Sweeps,
    /// llama.cpp's and prima.cpp's rings
    Peers,
}

const PARTS: [Part; 9] = [
    Part::Plans,
    Part::Overhead,
    Part::Links,
    Part::Prefill,
    Part::Memory,
    Part::Throttled,
    Part::Large,
    Part::Sweeps,
    Part::Peers,
];

/// A run of a ring.
#[derive(Debug, Clone)]
struct Figure {
    /// Median milliseconds of a step.
    step_ms: f64,
    prefill_tokens_per_s: f64,
    /// All that its bench printed.
    answer: Value,
}

impl Figure {
    fn of(answer: Value) -> Result<Self> {
        let number =
            |name: &str| answer[name].as_f64().with_context(|| format!("the bench printed no {name}"));
        let (step_ms, prefill_tokens_per_s) = (number("step_ms")?, number("prefill_tokens_per_s")?);
        Ok(Self { step_ms, prefill_tokens_per_s, answer })
    }

    /// The plan and what it stands on; none of an engine alone.
    fn predicted(&self) -> Option<Predicted> {
        serde_json::from_value(self.answer["planned"].clone()).ok()
    }

    /// How often the ring lost a device.
    fn recoveries(&self) -> u64 {
        self.answer["ring"]["recoveries"].as_u64().unwrap_or(0)
    }
}

/// What was predicted of a run, and what it took.
#[derive(Debug, Clone)]
struct Prediction {
    of: String,
    predicted_ms: f64,
    measured_ms: f64,
}

impl Prediction {
    fn error(&self) -> f64 {
        (self.predicted_ms / self.measured_ms - 1.0).abs()
    }
}

/// A measurement under way.
struct Bench<'a> {
    args: &'a Args,
    report: Report,
    runtime: tokio::runtime::Runtime,
    stop: Stop,
    models: PathBuf,
    /// On the disk of the models; for state folders and devices' own parts of models.
    scratch: PathBuf,
    predictions: Vec<Prediction>,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<Report> {
    if args.alternations == 0 || args.tokens < 2 {
        bail!("--alternations {}, --tokens {}: want at least 1 and 2", args.alternations, args.tokens);
    }
    let target = target_folder()?;
    let scratch = target.join("ring");
    std::fs::create_dir_all(&scratch).with_context(|| format!("create {}", scratch.display()))?;
    let report = Report::new("ring");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.context("start an executor")?;
    let mut bench = Bench {
        args,
        report,
        stop: runtime.block_on(async { Stop::listen() })?,
        runtime,
        models: args.models.clone().unwrap_or_else(|| target.join("models")),
        scratch,
        predictions: Vec::new(),
    };
    for part in PARTS.into_iter().filter(|part| args.only.is_empty() || args.only.contains(part)) {
        eprintln!("ring: {part:?}");
        match part {
            Part::Plans => plans::measure(&mut bench),
            Part::Overhead => overhead::measure(&mut bench),
            Part::Links => links::measure(&mut bench),
            Part::Prefill => overhead::prefill(&mut bench),
            Part::Memory => memory::measure(&mut bench, None),
            Part::Throttled => memory::measure(&mut bench, Some(args.throttle_mb * 1_000_000)),
            Part::Large => large::measure(&mut bench),
            Part::Sweeps => sweeps::measure(&mut bench),
            Part::Peers => peers::measure(&mut bench),
        }
        .with_context(|| format!("measure {part:?}"))?;
    }
    bench.predictions_checked();
    Ok(bench.report)
}

impl Bench<'_> {
    /// The file of a shape, or the file itself.
    fn subject(&self, model: &str) -> Result<Subject> {
        subject_in(model, &self.models)
    }

    /// Says what cannot be measured here.
    fn skip(&mut self, part: &str, reason: &str) {
        eprintln!("skipped: {part}: {reason}");
        self.report.note(format!("skipped: ring: {part}: {reason}"));
        self.report.data(&format!("{part} skipped"), reason);
    }

    /// Waits for this, or ends it with an error where the bench is told to stop: whatever was begun is then dropped.
    fn wait<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(self.stop.unless(work))
    }

    /// Runs a task on the ring.
    fn ring(&self, home: &Home, task: &Task, planned: &Planned) -> Result<Figure> {
        Figure::of(self.wait(home.run(task, planned))?)
    }

    /// Runs it on the head alone.
    fn alone(&self, home: &Home, task: &Task) -> Result<Figure> {
        Figure::of(self.wait(home.alone(task))?)
    }

    /// Keeps what the head predicted of these runs, if it did, beside the median of what they took.
    fn predict(&mut self, of: impl Into<String>, figures: &[Figure]) {
        let predicted = figures.first().and_then(|figure| figure.predicted()?.prediction);
        let measured = median(figures.iter().map(|figure| figure.step_ms));
        if let (Some(prediction), Some(measured_ms)) = (predicted, measured) {
            let predicted_ms = prediction.token_s * 1e3;
            self.predictions.push(Prediction { of: of.into(), predicted_ms, measured_ms });
        }
    }

    /// The same over links whose delay the bench sets, which no head can know: predicted anew with what `really` changes.
    fn predict_in(
        &mut self,
        of: impl Into<String>,
        figures: &[Figure],
        model: &ModelShape,
        task: &Task,
        really: impl FnOnce(&mut Cluster),
    ) {
        let of = of.into();
        let anew = || {
            let mut known =
                figures.first().and_then(Figure::predicted).context("the head printed no plan")?;
            really(&mut known.cluster);
            let workload = Workload { context: task.prompt + task.tokens, sequences: task.sequences };
            Ok::<f64, anyhow::Error>(
                Costs::new(&known.cluster, model, workload)?.predict(&known.plan)?.token_s,
            )
        };
        match anew() {
            Ok(token_s) => {
                let (predicted_ms, measured_ms) = (token_s * 1e3, median_ms(figures));
                self.predictions.push(Prediction { of, predicted_ms, measured_ms });
            }
            Err(err) => self.report.note(format!("no prediction of {of}: {err:#}")),
        }
    }

    fn predictions_checked(&mut self) {
        if self.predictions.is_empty() {
            return;
        }
        let row = |prediction: &Prediction| {
            vec![
                prediction.of.clone(),
                format!("{:.2}", prediction.predicted_ms),
                format!("{:.2}", prediction.measured_ms),
                format!("{:.1}", 100.0 * prediction.error()),
            ]
        };
        let rows: Vec<_> = self.predictions.iter().map(row).collect();
        let header = ["", "predicted, ms a token", "measured", "off by, %"];
        self.report.table("what was predicted", &header, &rows);
        let errors: Vec<f64> = self.predictions.iter().map(Prediction::error).collect();
        let typical = median(errors.iter().copied()).unwrap_or(f64::NAN);
        let largest = errors.into_iter().fold(0.0, f64::max);
        self.report.check_at_most("predicted TPOT is off by, median", typical, ERROR_MEDIAN_MAX);
        self.report.check_at_most("predicted TPOT is off by, largest", largest, ERROR_MAX);
        let each = self.predictions.iter().map(|prediction| {
            let Prediction { of, predicted_ms, measured_ms } = prediction;
            json!({ "of": of, "predicted_ms": predicted_ms, "measured_ms": measured_ms })
        });
        self.report.data("predictions", Value::Array(each.collect()));
    }
}

/// The shape of a model's file, for predictions.
fn shape(subject: &Subject) -> Result<ModelShape> {
    shape_of(&subject.path).with_context(|| format!("read the shape of {}", subject.path.display()))
}

/// Milliseconds of a token that a head predicted, where its devices share one disk of this rate in truth: no less than
/// reading for all of them takes. Each has measured the disk alone.
fn on_one_disk(figure: &Figure, bytes_per_s: f64) -> Option<f64> {
    let prediction = figure.predicted()?.prediction?;
    let read: f64 = prediction.devices.iter().map(|device| device.read_bytes).sum();
    Some(1e3 * prediction.token_s.max(read / bytes_per_s))
}

/// What the disk under this file gives now, in bytes a second.
fn disk_rate(path: &Path) -> Result<f64> {
    Ok(disk::measure(path).context("measure the disk")?.sequential_bytes_per_s)
}

/// Layers as evenly as possible over these devices.
fn evenly<'a>(names: &[&'a str], layers: usize) -> Vec<(&'a str, usize)> {
    let (each, more) = (layers / names.len(), layers % names.len());
    names.iter().enumerate().map(|(at, name)| (*name, each + usize::from(at < more))).collect()
}

/// Median milliseconds of a step over runs.
fn median_ms(figures: &[Figure]) -> f64 {
    median(figures.iter().map(|figure| figure.step_ms)).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_spread_evenly() {
        assert_eq!(evenly(&["a", "b", "c"], 16), [("a", 6), ("b", 5), ("c", 5)]);
    }

    #[test]
    fn what_a_run_printed_is_read() {
        let answer = json!({ "step_ms": 3.5, "prefill_tokens_per_s": 100.0, "ring": { "recoveries": 2 } });
        let figure = Figure::of(answer).unwrap();
        assert_eq!((figure.step_ms, figure.recoveries()), (3.5, 2));
        assert!(figure.predicted().is_none());
        assert!(Figure::of(json!({ "step_ms": 1.0 })).is_err());
        let prediction = Prediction { of: String::new(), predicted_ms: 8.0, measured_ms: 10.0 };
        assert!((prediction.error() - 0.2).abs() < 1e-9);
    }
}
