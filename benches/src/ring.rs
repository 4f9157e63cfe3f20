//! `baton-bench ring`: measures rings of real processes on this machine, compared with one device and with
//! predictions.
//!
//! Each device is a process that is bound to a CPU or to a control group with a memory limit. They
//! communicate over loopback, or over simulated slow links ([`baton_e2e::link`]). If this machine lacks
//! something for a part, the report has a line `skipped: ...` and the part is not measured. All predictions
//! of runs are checked at the end.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use baton_device::machine::disk;
use baton_device::machine::shape::shape_of;
use baton_e2e::home::{Home, Planned, Task};
use baton_e2e::stop::Stop;
use baton_engine::engine::KvFormat;
use baton_pacing::refit::median;
use baton_plan::{Cluster, Costs, ModelShape, Workload};
use baton_ring::planning::Planned as Predicted;
use serde_json::{Value, json};

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

/// Maximum relative errors of predictions: the median and the largest.
const ERROR_MEDIAN_MAX: f64 = 0.15;
const ERROR_MAX: f64 = 0.35;

/// Options of `baton-bench ring`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Measure only these parts
    #[arg(long, value_delimiter = ',', value_enum)]
    only: Vec<Part>,
    /// Model for hops, links and prefill: the name of a shape of `make-model` (made in Q4_K_M with random
    /// weights), or a GGUF file
    #[arg(long, default_value = "llama-1b")]
    model: String,
    /// Model for devices with less memory than it needs: a shape or a GGUF file
    #[arg(long, default_value = "llama-8b")]
    large_model: String,
    /// Folder with the model files; missing files are made [default: `models` in the build folder]
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// Number of measurements of each figure
    #[arg(long, default_value_t = 5)]
    alternations: usize,
    /// Number of tokens written in each measurement of hops and links
    #[arg(long, default_value_t = 32)]
    tokens: usize,
    /// Memory of each device in megabytes, in the parts `memory` and `throttled`
    #[arg(long, default_value_t = 1300)]
    limit_mb: u64,
    /// Maximum disk read rate of each device in megabytes per second, in the part `throttled`
    #[arg(long, default_value_t = 500)]
    throttle_mb: u64,
    /// Folder of llama.cpp, built in `build` with RPC, for the part `peers` [default: downloaded from PyPI
    /// and built]
    #[arg(long, value_name = "DIR")]
    peer: Option<PathBuf>,
    /// Folder of prima.cpp, built there with `make llama-cli`, for the parts `peers`, `memory` and
    /// `throttled`
    #[arg(long, value_name = "DIR")]
    prima: Option<PathBuf>,
}

/// A part of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Tokens under many plans, compared with those of one device
    Plans,
    /// A ring of one device compared with the engine alone; the cost of a hop
    Overhead,
    /// Links with a latency of 3 to 7 ms
    Links,
    /// A prompt of 512 tokens on two devices
    Prefill,
    /// Two devices, each with less memory than its layers need
    Memory,
    /// The same with a limited disk read rate
    Throttled,
    /// Four devices and a model of 32 billion weights
    Large,
    /// Effects of context, latency, bandwidth, load, concurrent requests and speculation
    Sweeps,
    /// Rings of llama.cpp and prima.cpp
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

/// The result of one run of a ring.
#[derive(Debug, Clone)]
struct Figure {
    /// Median milliseconds of a step.
    step_ms: f64,
    prefill_tokens_per_s: f64,
    /// The whole JSON output of the run.
    answer: Value,
}

impl Figure {
    fn of(answer: Value) -> Result<Self> {
        let number =
            |name: &str| answer[name].as_f64().with_context(|| format!("the bench printed no {name}"));
        let (step_ms, prefill_tokens_per_s) = (number("step_ms")?, number("prefill_tokens_per_s")?);
        Ok(Self { step_ms, prefill_tokens_per_s, answer })
    }

    /// Returns the plan with its prediction and the data behind it, or `None` for an engine alone.
    fn predicted(&self) -> Option<Predicted> {
        serde_json::from_value(self.answer["planned"].clone()).ok()
    }

    /// Returns how often the ring lost a device.
    fn recoveries(&self) -> u64 {
        self.answer["ring"]["recoveries"].as_u64().unwrap_or(0)
    }
}

/// The predicted and measured time of a token in a run.
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

/// A running measurement.
struct Bench<'a> {
    args: &'a Args,
    report: Report,
    runtime: tokio::runtime::Runtime,
    stop: Stop,
    models: PathBuf,
    /// Folder on the disk of the models, for state folders and the devices' parts of models.
    scratch: PathBuf,
    predictions: Vec<Prediction>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<Report> {
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
    /// Returns the model file of a shape, or the given GGUF file.
    fn subject(&self, model: &str) -> Result<Subject> {
        subject_in(model, &self.models)
    }

    /// Reports that a part cannot be measured here.
    fn skip(&mut self, part: &str, reason: &str) {
        eprintln!("skipped: {part}: {reason}");
        self.report.note(format!("skipped: ring: {part}: {reason}"));
        self.report.data(&format!("{part} skipped"), reason);
    }

    /// Waits for `work`, or drops it and returns an error if the bench is told to stop.
    fn wait<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(self.stop.unless(work))
    }

    /// Runs a task on the ring.
    fn ring(&self, home: &Home, task: &Task, planned: &Planned) -> Result<Figure> {
        Figure::of(self.wait(home.run(task, planned))?)
    }

    /// Runs a task on the head alone.
    fn alone(&self, home: &Home, task: &Task) -> Result<Figure> {
        Figure::of(self.wait(home.alone(task))?)
    }

    /// Adds the head's prediction for these runs, if there is one, with the median of the measured times.
    fn predict(&mut self, of: impl Into<String>, figures: &[Figure]) {
        let predicted = figures.first().and_then(|figure| figure.predicted()?.prediction);
        let measured = median(figures.iter().map(|figure| figure.step_ms));
        if let (Some(prediction), Some(measured_ms)) = (predicted, measured) {
            let predicted_ms = prediction.token_s * 1e3;
            self.predictions.push(Prediction { of: of.into(), predicted_ms, measured_ms });
        }
    }

    /// As [`Self::predict`], for links whose delay the bench sets and the head cannot know. The time is
    /// predicted again after `really` has corrected the cluster.
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

/// Reads the shape of a model file, for predictions.
fn shape(subject: &Subject) -> Result<ModelShape> {
    shape_of(&subject.path, KvFormat::default())
        .with_context(|| format!("read the shape of {}", subject.path.display()))
}

/// Returns the predicted milliseconds of a token if all devices share one disk of this rate. Each device has
/// measured the disk alone, so the time is at least that of all reads together.
fn on_one_disk(figure: &Figure, bytes_per_s: f64) -> Option<f64> {
    let prediction = figure.predicted()?.prediction?;
    let read: f64 = prediction.devices.iter().map(|device| device.read_bytes).sum();
    Some(1e3 * prediction.token_s.max(read / bytes_per_s))
}

/// Measures the read rate of the disk with this file, in bytes per second.
fn disk_rate(path: &Path) -> Result<f64> {
    disk::sequential(path, disk::usual_block()).context("measure the disk")
}

/// Distributes layers as evenly as possible over these devices.
fn evenly<'a>(names: &[&'a str], layers: usize) -> Vec<(&'a str, usize)> {
    let (each, more) = (layers / names.len(), layers % names.len());
    names.iter().enumerate().map(|(at, name)| (*name, each + usize::from(at < more))).collect()
}

/// Returns the median milliseconds of a step over runs.
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
