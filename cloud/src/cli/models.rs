//! `models import DIR`: converts, quantizes, calibrates, measures and publishes a model, as one job.
//!
//! Always: the last line on standard output says what was published. Nothing is published if the job fails,
//! or is stopped by SIGINT or SIGTERM.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use baton_import::{AdapterDir, Quantization};
use baton_protocol::{ModelVersion, is_model_name};
use baton_registry::envelope::SigningKey;
use baton_registry::manifest::Kind;
use clap::{Args, Subcommand};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::UsageError;
use super::registry::{self, signing_key};
use crate::config::numbers;
use crate::fleet::folder::RegistryFolder;
use crate::fleet::publish::Publication;
use crate::import::{ADAPTER_SUFFIX, Gate, ImportJob, JobControl, Manifest, Step, run as import};

/// Time between two lines about one step.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// `models`.
#[derive(Debug, Args)]
pub struct ModelsCommand {
    /// What to do.
    #[command(subcommand)]
    pub action: ModelsAction,
}

/// The commands of `models`.
#[derive(Debug, Subcommand)]
pub enum ModelsAction {
    /// Convert a Hugging Face folder to a quantized, calibrated and measured model, and publish it
    Import(Box<ImportCommand>),
}

/// `models import`.
#[derive(Debug, Args)]
pub struct ImportCommand {
    /// Folder with config.json, safetensors weights (F32, F16 or BF16) and a tokenizer
    pub dir: PathBuf,
    /// Folder of published models; the model gets a folder of its name in it
    #[arg(long, value_name = "FOLDER", env = "BATON_MODELS_FOLDER")]
    pub into: PathBuf,
    /// Name of the model; the default is the folder's name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Quantization of the weights
    #[arg(long, default_value_t = Quantization::Q4_K_M, value_name = "QUANT")]
    pub quant: Quantization,
    /// LoRA adapter folder that becomes a file beside the model, for `serve --adapter` (may be given several
    /// times)
    #[arg(long, value_name = "NAME=DIR", value_parser = adapter)]
    pub adapter: Vec<(String, PathBuf)>,
    /// LoRA adapter folder to merge into the weights (may be given several times)
    #[arg(long, value_name = "DIR")]
    pub merge: Vec<PathBuf>,
    /// Licence to record; the default is what the folder's model card names
    #[arg(long, value_name = "NAME")]
    pub licence: Option<String>,
    /// Replace a published model of this name, once the new one is whole
    #[arg(long)]
    pub replace: bool,
    /// Also publish the model and its adapters in this folder: a registry of models for devices
    #[arg(long, value_name = "FOLDER", requires_all = ["publish_as", "key"])]
    pub registry: Option<PathBuf>,
    /// Name and version of the model in the registry; its adapters get the same number
    #[arg(long = "as", id = "publish_as", value_name = "NAME@VERSION", requires = "registry")]
    pub publish_as: Option<ModelVersion>,
    /// File of the key that signs (`baton-cloud registry key`)
    #[arg(long, value_name = "FILE", requires = "registry")]
    pub key: Option<PathBuf>,
    /// Find no heads of the refiner, and measure no recall; for a model that only writes
    #[arg(long)]
    pub no_heads: bool,
    /// Number of questions of the calibration, and of the measurement of recall
    #[arg(long, default_value = "64", value_name = "N", value_parser = numbers::positive)]
    pub probes: NonZeroUsize,
    /// Words of each document; fewer if the model's context is shorter
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(100..=100_000), value_name = "N")]
    pub words: u32,
    /// Gate: least share of positions at which the quantized and the unquantized model choose the same token
    #[arg(long, default_value_t = Gate::default().agreement_min, value_name = "SHARE")]
    pub agreement_min: f64,
    /// Gate: most perplexity, as a multiple of that of the unquantized model
    #[arg(long, default_value_t = Gate::default().perplexity_ratio_max, value_name = "X")]
    pub perplexity_ratio_max: f64,
    /// Gate: least share of answering sentences that a mask keeps at r = .25
    #[arg(long, default_value_t = Gate::default().recall_min, value_name = "SHARE")]
    pub recall_min: f64,
    /// Threads of the engine; the default is one for each core
    #[arg(long, value_name = "N", value_parser = numbers::positive)]
    pub threads: Option<NonZeroUsize>,
    /// Print the progress and the result as lines of JSON on standard output
    #[arg(long)]
    pub json: bool,
}

/// Reads `NAME=DIR`.
fn adapter(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, dir)) if is_folder_name(name) && !dir.is_empty() => {
            Ok((name.to_owned(), PathBuf::from(dir)))
        }
        _ => Err("it must be NAME=DIR".to_owned()),
    }
}

/// Returns whether a name is one in the API, and a file's name on every system.
fn is_folder_name(name: &str) -> bool {
    is_model_name(name)
        && !name.starts_with('.')
        && !name.contains(['/', '\\', ':', '*', '?', '"', '<', '>', '|'])
}

pub(super) async fn run(command: ModelsCommand) -> anyhow::Result<()> {
    let ModelsAction::Import(command) = command.action;
    let json = command.json;
    let for_devices = ForDevices::of(&command)?;
    let job = job(*command)?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut log = JobLog { json, stop: stop.clone(), step: None, said_at: Instant::now() };
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut work = tokio::task::spawn_blocking(move || -> anyhow::Result<Manifest> {
        let manifest = import(&job, &mut log)?;
        if let Some(registry) = for_devices {
            registry.publish(&job, &manifest, &log.stop)?;
        }
        Ok(manifest)
    });
    let done = tokio::select! {
        done = &mut work => done,
        _ = interrupt.recv() => stopped(&stop, work).await,
        _ = terminate.recv() => stopped(&stop, work).await,
    };
    baton_terminal::clear_status();
    let manifest = done.context("run the job")??;
    print(&manifest, json).context("print")
}

async fn stopped(
    stop: &AtomicBool,
    work: tokio::task::JoinHandle<anyhow::Result<Manifest>>,
) -> Result<anyhow::Result<Manifest>, tokio::task::JoinError> {
    stop.store(true, Ordering::Relaxed);
    work.await
}

/// The registry that gets the model too.
struct ForDevices {
    folder: RegistryFolder,
    key: SigningKey,
    model: ModelVersion,
    /// Names of the adapters, and their versions.
    adapters: Vec<(String, ModelVersion)>,
}

impl ForDevices {
    /// Checks what can be checked before the job begins.
    fn of(command: &ImportCommand) -> anyhow::Result<Option<ForDevices>> {
        let (Some(folder), Some(model), Some(key)) = (&command.registry, &command.publish_as, &command.key)
        else {
            return Ok(None);
        };
        let version = |(name, _): &(String, PathBuf)| {
            let version = ModelVersion::new(name, model.version());
            version.map(|version| (name.clone(), version)).map_err(|err| UsageError(err.to_string()))
        };
        Ok(Some(ForDevices {
            folder: RegistryFolder::new(folder.clone()),
            key: signing_key(key)?,
            model: model.clone(),
            adapters: command.adapter.iter().map(version).collect::<Result<_, _>>()?,
        }))
    }

    /// Publishes the base, then the adapters.
    fn publish(&self, job: &ImportJob, done: &Manifest, stop: &AtomicBool) -> anyhow::Result<()> {
        let folder = job.into.join(&job.name);
        let licence = done.licence.clone().with_context(|| {
            format!("`{}` is published, but the registry needs --licence", folder.display())
        })?;
        for file in &done.files {
            let (model, kind, base) = match file.kind.as_str() {
                "model" => (self.model.clone(), Kind::Base, None),
                "adapter" => {
                    let name = file.name.strip_suffix(ADAPTER_SUFFIX);
                    let found = self.adapters.iter().find(|(known, _)| Some(known.as_str()) == name);
                    let (_, version) = found.with_context(|| format!("`{}` is no adapter", file.name))?;
                    (version.clone(), Kind::Adapter, Some(self.model.clone()))
                }
                _ => continue,
            };
            let path = folder.join(&file.name);
            let publication = Publication { model, kind, path, licence: licence.clone(), base };
            registry::publish_shown(&self.folder, &self.key, &publication, stop)?;
        }
        Ok(())
    }
}

fn job(command: ImportCommand) -> anyhow::Result<ImportJob> {
    let of_folder = || command.dir.canonicalize().ok()?.file_name()?.to_str().map(str::to_owned);
    let name = command.name.clone().or_else(of_folder).unwrap_or_default();
    let usage = |text: String| Err(UsageError(text).into());
    if !is_folder_name(&name) {
        return usage(format!("`{name}` is no name of a model: pass --name"));
    }
    for (option, value) in [
        ("--agreement-min", command.agreement_min),
        ("--perplexity-ratio-max", command.perplexity_ratio_max),
        ("--recall-min", command.recall_min),
    ] {
        if !(value >= 0.0 && value.is_finite()) {
            return usage(format!("{option} {value}: it must be 0 or more"));
        }
    }
    let mut names: Vec<&String> = command.adapter.iter().map(|(name, _)| name).collect();
    names.sort();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return usage("two adapters have one name".to_owned());
    }
    Ok(ImportJob {
        dir: command.dir,
        name,
        into: command.into,
        replace: command.replace,
        quantization: command.quant,
        merged: command.merge.into_iter().map(|dir| AdapterDir { dir, weight: 1.0 }).collect(),
        adapters: command.adapter,
        licence: command.licence,
        finds_heads: !command.no_heads,
        probes: command.probes,
        words: command.words as usize,
        threads: command.threads,
        gate: Gate {
            agreement_min: command.agreement_min,
            perplexity_ratio_max: command.perplexity_ratio_max,
            recall_min: command.recall_min,
        },
    })
}

/// Shows progress: lines of JSON on standard output, or text on standard error.
struct JobLog {
    json: bool,
    stop: Arc<AtomicBool>,
    step: Option<Step>,
    said_at: Instant,
}

impl JobControl for JobLog {
    fn progress(&mut self, step: Step, done: u64, of: u64) {
        let is_new = self.step != Some(step);
        let on_terminal = !self.json && baton_terminal::stderr_is_terminal();
        if !is_new && !on_terminal && self.said_at.elapsed() < LINE_EVERY {
            return;
        }
        (self.step, self.said_at) = (Some(step), Instant::now());
        let number = Step::ALL.iter().position(|other| *other == step).unwrap_or(0) + 1;
        let (name, steps) = (step.as_str(), Step::ALL.len());
        let percent = (done * 100).checked_div(of).unwrap_or(0);
        if self.json {
            let line = json!({ "step": name, "number": number, "steps": steps, "done": done, "of": of });
            // If nobody reads, the job goes on; its result is the folder.
            let _ = baton_terminal::outln!("{line}");
        } else if on_terminal {
            baton_terminal::status(&format!("step {number} of {steps}, {name}: {percent} %"));
        } else {
            baton_terminal::errln!("step {number} of {steps}, {name}: {percent} %");
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

fn print(manifest: &Manifest, json: bool) -> std::io::Result<()> {
    if json {
        return baton_terminal::outln!("{}", json!({ "published": manifest }));
    }
    let gate = &manifest.gate;
    let recall = gate.recall.map_or_else(|| "not measured".to_owned(), |recall| format!("{recall:.3}"));
    baton_terminal::outln!(
        "published {} ({}, {}): agreement {:.3}, perplexity {:.2} beside {:.2}, recall {recall}",
        manifest.name,
        manifest.family,
        manifest.quantization,
        gate.agreement,
        gate.perplexity,
        gate.reference_perplexity
    )?;
    for file in &manifest.files {
        baton_terminal::outln!("{:>12} {} {}", file.bytes, file.sha256, file.name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_has_a_name_and_a_folder() {
        assert_eq!(adapter("law=a/b"), Ok(("law".to_owned(), PathBuf::from("a/b"))));
        for bad in ["law", "=a", "law=", "../x=a", ".law=a"] {
            assert!(adapter(bad).is_err(), "{bad}");
        }
    }
}
