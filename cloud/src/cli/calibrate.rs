//! `calibrate MODEL.gguf`: finds the attention heads that the refiner ranks by, and writes them beside the
//! model.
//!
//! Always: the file is complete or does not exist, also after an interrupt.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, ensure};
use baton_engine::Model;
use clap::Args;
use serde_json::json;

use crate::calibrate::{CalibrateControl, Calibrated, ProbeOptions, Progress, calibrate};
use crate::config::numbers;

/// `calibrate`.
#[derive(Debug, Args)]
pub struct CalibrateCommand {
    /// GGUF file of the model
    pub model: PathBuf,
    /// File to write the heads to; the default is MODEL with .heads.json in place of .gguf, which `serve`
    /// reads
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Number of questions, four about each document
    #[arg(
        long,
        default_value = "64",
        value_name = "N",
        value_parser = numbers::positive,
        allow_negative_numbers = true
    )]
    pub probes: NonZeroUsize,
    /// Words of each document; fewer if the model's context is shorter
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(100..=100_000), value_name = "N")]
    pub words: u32,
    /// Threads of the engine; the default is one for each core
    #[arg(long, value_name = "N", value_parser = numbers::positive, allow_negative_numbers = true)]
    pub threads: Option<NonZeroUsize>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

pub(super) async fn run(command: CalibrateCommand) -> anyhow::Result<()> {
    let out = command.out.clone().unwrap_or_else(|| command.model.with_extension("heads.json"));
    // The folder of the model exists if the model does.
    if let Some(out) = &command.out {
        check_place(out)?;
    }
    let options =
        ProbeOptions { probes: command.probes, words: command.words as usize, threads: command.threads };
    let stop = Arc::new(AtomicBool::new(false));
    let (path, flag) = (command.model.clone(), stop.clone());
    let mut work = tokio::task::spawn_blocking(move || -> anyhow::Result<Calibrated> {
        let model = Model::open(&path).with_context(|| format!("open model `{}`", path.display()))?;
        let mut control = ProgressLine::new(flag);
        let done = calibrate(&model, options, &mut control);
        baton_terminal::clear_status();
        done.with_context(|| format!("calibrate `{}`", path.display()))
    });
    let done = tokio::select! {
        done = &mut work => done,
        signal = tokio::signal::ctrl_c() => {
            signal.context("listen for Ctrl-C")?;
            stop.store(true, Ordering::Relaxed);
            work.await
        }
    };
    let calibrated = done.context("run the probes")??;
    // The last probe may have ended before the flag was checked.
    ensure!(!stop.load(Ordering::Relaxed), "stopped; nothing is written");
    write_whole(&out, &calibrated.calibration.to_json())?;
    print(&calibrated, &out, command.json).context("print")
}

/// Fails early if the file could not be written after the probes, which take minutes.
fn check_place(out: &Path) -> anyhow::Result<()> {
    ensure!(!out.is_dir(), "`{}` is a folder: name a file", out.display());
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(folder.is_dir(), "write `{}`: there is no folder `{}`", out.display(), folder.display());
    Ok(())
}

/// Writes under another name first, so that a reader finds the whole file or none.
fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    let unfinished = path.with_extension(format!("unfinished-{}", std::process::id()));
    let written =
        std::fs::write(&unfinished, text).with_context(|| format!("write `{}`", path.display())).and_then(
            |()| std::fs::rename(&unfinished, path).with_context(|| format!("name `{}`", path.display())),
        );
    if written.is_err() {
        let _ = std::fs::remove_file(&unfinished); // The first error matters more than a file that is left.
    }
    written
}

fn print(calibrated: &Calibrated, path: &Path, as_json: bool) -> std::io::Result<()> {
    let mut out = baton_terminal::stdout();
    let heads = calibrated.calibration.heads();
    let gain = |layer: usize, head: usize| {
        calibrated.gains.iter().find(|(id, _)| *id == (layer, head)).map_or(0.0, |(_, gain)| *gain)
    };
    if as_json {
        let heads = heads.iter().map(
            |h| json!({ "layer": h.layer, "head": h.head, "weight": h.weight, "gain": gain(h.layer, h.head) }),
        );
        let object = json!({
            "file": path.display().to_string(), "model_sha256": calibrated.calibration.model_sha256(),
            "probes": calibrated.probes, "words": calibrated.words, "heads": heads.collect::<Vec<_>>(),
        });
        return writeln!(out, "{object}");
    }
    writeln!(out, "{:>5} {:>5} {:>8} {:>8}", "layer", "head", "weight", "gain")?;
    for head in heads {
        let gain = gain(head.layer, head.head);
        writeln!(out, "{:>5} {:>5} {:>8.4} {gain:>8.4}", head.layer, head.head, head.weight)?;
    }
    writeln!(
        out,
        "{} heads of {} by {} probes: {}",
        heads.len(),
        calibrated.gains.len(),
        calibrated.probes,
        path.display()
    )
}

/// Shows progress on standard error: a progress line on a terminal, else a line every few probes.
struct ProgressLine {
    stop: Arc<AtomicBool>,
    started: Instant,
}

impl ProgressLine {
    fn new(stop: Arc<AtomicBool>) -> Self {
        Self { stop, started: Instant::now() }
    }
}

impl CalibrateControl for ProgressLine {
    fn progress(&mut self, Progress { probes, of, tokens }: Progress) {
        let seconds = self.started.elapsed().as_secs_f64();
        let left = seconds / probes as f64 * (of - probes) as f64;
        let line = format!(
            "{probes} of {of} probes, {:.0} tokens/s, about {left:.0} s left",
            tokens as f64 / seconds
        );
        if baton_terminal::stderr_is_terminal() {
            baton_terminal::status(&line);
        } else if probes % 8 == 0 || probes == of {
            baton_terminal::errln!("{line}");
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
