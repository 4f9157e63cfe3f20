//! `models import`: one job from a Hugging Face folder to a model that `serve` can use. It converts and
//! quantizes, converts adapters, finds the refiner's heads, measures the result against a gate, and
//! publishes.
//!
//! Never: changes the folder that it reads, or downloads anything. Always: a model is published as a whole
//! folder or not at all. A job that fails, or is stopped, removes what it wrote. What a killed job has left
//! is removed by the next one.

mod gate;
mod publish;

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_engine::{EngineError, Model, ModelError, StepError};
use baton_import::{
    ADAPTER_FORMAT, AdapterDir, AdapterOptions, ImportError, ImportOptions, Quantization, import,
    import_adapter,
};
use baton_refine::Calibration;
use serde::Serialize;

use crate::calibrate::{self, CalibrateControl, CalibrateError, ProbeOptions, calibrate};

pub use self::gate::{Figures, Gate, Miss};
pub use self::publish::{FileMark, Manifest, PublishError};

/// How the name of an adapter's file ends, behind the adapter's name.
pub const ADAPTER_SUFFIX: &str = ".lora.gguf";

use self::publish::Staging;

/// Share of a document that a mask keeps when recall is measured.
const RECALL_RATIO: f32 = 0.25;

/// What to import, and where to publish it.
#[derive(Debug, Clone)]
pub struct ImportJob {
    /// The folder with `config.json`, safetensors weights and a tokenizer.
    pub dir: PathBuf,
    /// The model's name: the name of its folder, and of its file without the suffix.
    pub name: String,
    /// The folder that published models are in.
    pub into: PathBuf,
    /// Whether a published model of this name is replaced.
    pub replace: bool,
    /// The formats of the weights.
    pub quantization: Quantization,
    /// Adapters that are merged into the weights.
    pub merged: Vec<AdapterDir>,
    /// Adapters that become files beside the model: names and folders.
    pub adapters: Vec<(String, PathBuf)>,
    /// The licence to record, if the folder does not say one.
    pub licence: Option<String>,
    /// Whether heads of the refiner are found and measured.
    pub finds_heads: bool,
    /// Questions of the calibration, and of the measurement of recall.
    pub probes: NonZeroUsize,
    /// Words of a document; fewer if the model's context is too short.
    pub words: usize,
    /// Threads of the engine, or `None` for one per core.
    pub threads: Option<NonZeroUsize>,
    /// What the model must reach.
    pub gate: Gate,
}

/// A step of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Converts and quantizes the weights.
    Convert,
    /// Converts the weights without quantizing them, to measure against.
    Reference,
    /// Converts adapters.
    Adapters,
    /// Finds the refiner's heads.
    Calibrate,
    /// Measures the quantized model against the other one.
    Compare,
    /// Measures the refiner's recall.
    Recall,
    /// Hashes the files and publishes the folder.
    Publish,
}

impl Step {
    /// Every step, in order.
    pub const ALL: [Step; 7] = [
        Step::Convert,
        Step::Reference,
        Step::Adapters,
        Step::Calibrate,
        Step::Compare,
        Step::Recall,
        Step::Publish,
    ];

    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Step::Convert => "convert",
            Step::Reference => "reference",
            Step::Adapters => "adapters",
            Step::Calibrate => "calibrate",
            Step::Compare => "compare",
            Step::Recall => "recall",
            Step::Publish => "publish",
        }
    }
}

/// Follows a job, and may stop it.
pub trait JobControl {
    /// Called as a step goes on: how much is done of how much, in units of the step.
    fn progress(&mut self, step: Step, done: u64, of: u64);
    /// Returns whether to stop as soon as possible.
    fn stopped(&self) -> bool;
}

/// Why nothing was published.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The folder or an adapter cannot be converted.
    #[error("{}: convert `{}`", step.as_str(), path.display())]
    Convert {
        /// The step.
        step: Step,
        /// The folder.
        path: PathBuf,
        /// The cause.
        #[source]
        err: Box<ImportError>,
    },
    /// A converted file cannot be opened.
    #[error("open `{}`", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        err: Box<ModelError>,
    },
    /// No heads were found, or not measured.
    #[error("{}: probe the model's heads", step.as_str())]
    Heads {
        /// The step.
        step: Step,
        /// The cause.
        #[source]
        err: Box<CalibrateError>,
    },
    /// The engine cannot be set up.
    #[error("compare: set the engine up")]
    Engine(#[from] Box<EngineError>),
    /// A pass failed.
    #[error("compare: compute a pass")]
    Pass(#[from] Box<StepError>),
    /// The model's context is too short to measure anything.
    #[error("compare: a context of {context_len} tokens is too short, must be at least {min}")]
    Context {
        /// The model's context.
        context_len: usize,
        /// The least.
        min: usize,
    },
    /// The model does not reach the gate.
    #[error("the gate is not reached: {}", misses.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Gate {
        /// What is missed.
        misses: Vec<Miss>,
    },
    /// The files cannot be written or published.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// It was told to stop.
    #[error("stopped; nothing is published")]
    Stopped,
}

/// Runs a job. Cost: reads the weights twice, and some hundred prefills of short documents.
///
/// # Errors
/// [`JobError`]; then nothing is published, and nothing is left of it.
pub fn run(job: &ImportJob, control: &mut dyn JobControl) -> Result<Manifest, JobError> {
    let staging = Staging::begin(&job.into, &job.name, job.replace)?;
    let file = staging.path(&format!("{}.gguf", job.name));
    convert(job, Step::Convert, job.quantization, &file, control)?;
    let reference = staging.scratch("reference.gguf");
    convert(job, Step::Reference, Quantization::F16, &reference, control)?;
    let adapters = convert_adapters(job, &staging, &file, control)?;
    let model = open(&file)?;
    let calibration = find_heads(job, &model, &staging, control)?;
    let mut figures = {
        let other = open(&reference)?;
        gate::compare(&model, &other, job.threads, control)?
    };
    staging.forget(&reference)?;
    if let Some(calibration) = &calibration {
        let mut watch = Probing { step: Step::Recall, control };
        let recall = calibrate::recall(&model, calibration, RECALL_RATIO, probes(job), &mut watch);
        figures.recall = Some(recall.map_err(|err| heads_error(Step::Recall, err))?);
    }
    let misses = job.gate.misses(&figures);
    if !misses.is_empty() {
        return Err(JobError::Gate { misses });
    }
    stop_asked(control)?;
    let facts = publish::Facts {
        job,
        family: model.config().family.name,
        tokenizer_sha256: model.tokenizer().digest_hex(),
        figures,
        adapters: &adapters,
        has_heads: calibration.is_some(),
    };
    let manifest = publish::manifest(&staging, &facts, control)?;
    drop(model);
    stop_asked(control)?;
    staging.publish()?;
    Ok(manifest)
}

fn stop_asked(control: &dyn JobControl) -> Result<(), JobError> {
    if control.stopped() { Err(JobError::Stopped) } else { Ok(()) }
}

fn convert(
    job: &ImportJob,
    step: Step,
    quantization: Quantization,
    out: &Path,
    control: &mut dyn JobControl,
) -> Result<(), JobError> {
    let options = ImportOptions {
        dir: job.dir.clone(),
        out: out.to_owned(),
        replace: false,
        quantization,
        adapters: job.merged.clone(),
    };
    let done = import(&options, &mut |progress| {
        control.progress(step, progress.bytes_done, progress.bytes_total);
        if control.stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    done.map(drop).map_err(|err| convert_error(step, &job.dir, err))
}

fn convert_error(step: Step, path: &Path, err: ImportError) -> JobError {
    match err {
        ImportError::Cancelled => JobError::Stopped,
        err => JobError::Convert { step, path: path.to_owned(), err: Box::new(err) },
    }
}

/// Converts the adapters that stay files of their own; returns the names of these files.
fn convert_adapters(
    job: &ImportJob,
    staging: &Staging,
    model: &Path,
    control: &mut dyn JobControl,
) -> Result<Vec<String>, JobError> {
    let mut files = Vec::new();
    for (at, (name, dir)) in job.adapters.iter().enumerate() {
        control.progress(Step::Adapters, at as u64, job.adapters.len() as u64);
        let file = format!("{name}{ADAPTER_SUFFIX}");
        let options = AdapterOptions {
            adapter: AdapterDir { dir: dir.clone(), weight: 1.0 },
            model: model.to_owned(),
            format: ADAPTER_FORMAT,
            out: staging.path(&file),
            replace: false,
        };
        let made = import_adapter(&options, &|| control.stopped());
        made.map_err(|err| convert_error(Step::Adapters, dir, err))?;
        files.push(file);
    }
    Ok(files)
}

fn open(path: &Path) -> Result<Arc<Model>, JobError> {
    Model::open(path).map_err(|err| JobError::Open { path: path.to_owned(), err: Box::new(err) })
}

fn probes(job: &ImportJob) -> ProbeOptions {
    ProbeOptions { probes: job.probes, words: job.words, threads: job.threads }
}

fn heads_error(step: Step, err: CalibrateError) -> JobError {
    match err {
        CalibrateError::Stopped { .. } => JobError::Stopped,
        err => JobError::Heads { step, err: Box::new(err) },
    }
}

/// Finds the refiner's heads and writes them beside the model.
fn find_heads(
    job: &ImportJob,
    model: &Arc<Model>,
    staging: &Staging,
    control: &mut dyn JobControl,
) -> Result<Option<Calibration>, JobError> {
    if !job.finds_heads {
        return Ok(None);
    }
    let mut watch = Probing { step: Step::Calibrate, control };
    let found = calibrate(model, probes(job), &mut watch);
    let found = found.map_err(|err| heads_error(Step::Calibrate, err))?;
    staging.write(&format!("{}.heads.json", job.name), &found.calibration.to_json())?;
    Ok(Some(found.calibration))
}

/// Passes the progress of probes on.
struct Probing<'a> {
    step: Step,
    control: &'a mut dyn JobControl,
}

impl CalibrateControl for Probing<'_> {
    fn progress(&mut self, progress: calibrate::Progress) {
        self.control.progress(self.step, progress.probes as u64, progress.of as u64);
    }

    fn stopped(&self) -> bool {
        self.control.stopped()
    }
}
