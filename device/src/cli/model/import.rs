//! `baton model import` and `baton model adapter`: convert a Hugging Face folder or a LoRA adapter to a GGUF
//! file.

use super::super::interrupts::{Interrupts, Stopped};
use super::PercentLine;
use anyhow::{Context, anyhow, bail};
use baton_engine::adapter::FORMATS;
use baton_import::{
    ADAPTER_FORMAT, AdapterDir, AdapterOptions, ImportError, ImportOptions, Progress, Quantization, Summary,
    import, import_adapter,
};
use baton_kernels_cpu::Format;
use baton_terminal::outln;
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

#[derive(Debug, Args)]
pub(super) struct AdapterArgs {
    /// LoRA adapter folder (PEFT: adapter_config.json and adapter_model.safetensors), with an optional weight
    #[arg(value_name = "DIR[=WEIGHT]", value_parser = adapter)]
    dir: AdapterDir,
    /// GGUF file of the model that the adapter was trained on, in any quantization
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// Format of its numbers: F32, F16 or Q8_0. Rows that Q8_0 does not fit are F16
    #[arg(long, default_value = ADAPTER_FORMAT.name(), value_name = "NAME", value_parser = adapter_format)]
    format: Format,
    /// File to write; it is written only if everything succeeds
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// Folder with config.json, safetensors weights (F32, F16 or BF16) and a tokenizer
    dir: PathBuf,
    /// File to write; nothing is left of it if the import fails or is stopped
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Quantization of the weights
    #[arg(long, default_value_t = Quantization::Q4_K_M, value_name = "NAME")]
    quant: Quantization,
    /// LoRA adapter folder to merge, with an optional weight as in `DIR=0.5` (may be given several times)
    #[arg(long, value_name = "DIR[=WEIGHT]", value_parser = adapter)]
    lora: Vec<AdapterDir>,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

/// Lists what can be imported, for `--help`.
pub(super) fn supported() -> String {
    let quantizations: Vec<String> = Quantization::all().map(|quant| quant.to_string()).collect();
    format!(
        "Quantizations: {}\nModel classes (architectures in config.json): {}",
        quantizations.join(", "),
        baton_import::supported().join(", ")
    )
}

/// Reads `DIR` or `DIR=WEIGHT`. For a folder whose name ends in `=NUMBER`, add `=1`.
fn adapter(text: &str) -> Result<AdapterDir, String> {
    let (dir, weight) = match text.rsplit_once('=').map(|(dir, weight)| (dir, weight.parse::<f32>())) {
        Some((dir, Ok(weight))) => (dir, weight),
        _ => (text, 1.0),
    };
    if dir.is_empty() || !weight.is_finite() {
        return Err(format!("`{text}` is not a folder with a finite weight"));
    }
    Ok(AdapterDir { dir: PathBuf::from(dir), weight })
}

/// Reads the name of a format of adapters.
fn adapter_format(text: &str) -> Result<Format, String> {
    let found = FORMATS.into_iter().find(|format| format.name().eq_ignore_ascii_case(text));
    found.ok_or_else(|| format!("must be {}", FORMATS.map(Format::name).join(", ")))
}

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct ImportReport {
    file: String,
    file_bytes: u64,
    name: String,
    architecture: &'static str,
    quantization: String,
    tokenizer: &'static str,
    pre_tokenizer: &'static str,
    vocab_len: usize,
    n_weights: u64,
    n_tensors: usize,
    formats: BTreeMap<&'static str, usize>,
    adapters: Vec<AdapterReport>,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct AdapterReport {
    dir: String,
    weight: f32,
    matrices: usize,
}

pub(super) async fn make_adapter(args: AdapterArgs, interrupts: &Interrupts) -> anyhow::Result<()> {
    let dir = args.dir.dir.clone();
    let options = AdapterOptions {
        adapter: args.dir,
        model: args.model,
        format: args.format,
        out: args.out.clone(),
        replace: args.force,
    };
    let work = move |stop: &AtomicBool| import_adapter(&options, &|| stop.load(Ordering::Relaxed));
    let summary = advised(stoppable(interrupts, work).await?)
        .with_context(|| format!("import adapter `{}`", dir.display()))?;
    if args.json {
        let report = serde_json::json!({
            "file": args.out.to_string_lossy(), "file_bytes": summary.file_bytes, "name": summary.name,
            "architecture": summary.architecture, "alpha": summary.alpha, "matrices": summary.matrices,
            "rank": summary.rank_max,
        });
        outln!("{report}")?;
    } else {
        let (matrices, rank) = (summary.matrices, summary.rank_max);
        outln!("{}: {} ({})", args.out.display(), summary.name, summary.architecture)?;
        outln!("{matrices} matrices of rank up to {rank}, {} bytes", summary.file_bytes)?;
    }
    Ok(())
}

pub(super) async fn import_model(args: ImportArgs, interrupts: &Interrupts) -> anyhow::Result<()> {
    let options = ImportOptions {
        dir: args.dir,
        out: args.out,
        replace: args.force,
        quantization: args.quant,
        adapters: args.lora,
    };
    let started = Instant::now();
    let work = {
        let options = options.clone();
        move |stop: &AtomicBool| {
            let mut line = PercentLine::default();
            import(&options, &mut |progress| {
                show(&mut line, progress);
                if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
        }
    };
    let result = stoppable(interrupts, work).await;
    baton_terminal::clear_status();
    let summary = advised(result?).with_context(|| format!("import `{}`", options.dir.display()))?;
    let report = report(&options, summary, started.elapsed().as_secs_f64());
    if args.json {
        outln!("{}", serde_json::to_string(&report).context("write the report")?)?;
    } else {
        print(&report)?;
    }
    Ok(())
}

fn show(line: &mut PercentLine, progress: Progress<'_>) {
    let (idx, all) = (progress.tensor_idx + 1, progress.n_tensors);
    let said = || format!("tensor {idx} of {all}: {}", progress.tensor);
    line.show(progress.bytes_done, progress.bytes_total, said);
}

/// Runs an import. If a signal comes, it ends at its next band or matrix and removes what it wrote.
async fn stoppable<T: Send + 'static>(
    interrupts: &Interrupts,
    work: impl FnOnce(&AtomicBool) -> Result<T, ImportError> + Send + 'static,
) -> anyhow::Result<Result<T, ImportError>> {
    let (stop, mut watch) = (Arc::new(AtomicBool::new(false)), interrupts.watch());
    let asked = Arc::clone(&stop);
    let mut work = tokio::task::spawn_blocking(move || work(&asked));
    tokio::select! {
        done = &mut work => Ok(done?),
        signal = watch.signal() => {
            stop.store(true, Ordering::Relaxed);
            match work.await? {
                Err(ImportError::Cancelled) => bail!(Stopped(signal)),
                // It was done, or had failed, before it saw the request to stop.
                done => Ok(done),
            }
        }
    }
}

/// Adds the option that helps to the error, if there is one.
fn advised<T>(imported: Result<T, ImportError>) -> anyhow::Result<T> {
    imported.map_err(|err| match err {
        ImportError::OutExists { .. } => anyhow!("{err}: --force replaces it"),
        err => err.into(),
    })
}

fn report(options: &ImportOptions, summary: Summary, seconds: f64) -> ImportReport {
    let adapters = options.adapters.iter().zip(summary.adapted);
    ImportReport {
        file: options.out.to_string_lossy().into_owned(),
        file_bytes: summary.file_bytes,
        name: summary.name,
        architecture: summary.architecture,
        quantization: options.quantization.to_string(),
        tokenizer: summary.tokenizer.0,
        pre_tokenizer: summary.tokenizer.1,
        vocab_len: summary.vocab_len,
        n_weights: summary.n_weights,
        n_tensors: summary.n_tensors,
        formats: summary.formats,
        adapters: adapters
            .map(|(adapter, matrices)| AdapterReport {
                dir: adapter.dir.to_string_lossy().into_owned(),
                weight: adapter.weight,
                matrices,
            })
            .collect(),
        seconds,
    }
}

fn print(report: &ImportReport) -> std::io::Result<()> {
    let formats: Vec<String> = report.formats.iter().map(|(name, n)| format!("{n} {name}")).collect();
    outln!("{}: {} ({}), {}", report.file, report.name, report.architecture, report.quantization)?;
    outln!("{} tensors: {}", report.n_tensors, formats.join(", "))?;
    for adapter in &report.adapters {
        outln!("merged {} x {}: {} matrices", adapter.weight, adapter.dir, adapter.matrices)?;
    }
    let bits = report.file_bytes as f64 * 8.0 / report.n_weights as f64;
    outln!("{} weights in {} bytes, {bits:.2} bits a weight", report.n_weights, report.file_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: Option<(&str, f32)>) {
        let found = adapter(text).ok().map(|adapter| (adapter.dir.display().to_string(), adapter.weight));
        assert_eq!(found, want.map(|(dir, weight)| (dir.to_owned(), weight)), "{text}");
    }

    #[test]
    fn a_file_that_is_there_is_said_to_be_replaceable() {
        let said = |err| format!("{:#}", advised::<()>(Err(err)).unwrap_err());
        assert_eq!(
            said(ImportError::OutExists { path: "m.gguf".into() }),
            "`m.gguf` is already there: --force replaces it"
        );
        assert!(!said(ImportError::Cancelled).contains("--force"));
    }

    #[test]
    fn adapters_are_folders_with_weights() {
        check("a/b", Some(("a/b", 1.0)));
        check("a/b=0.5", Some(("a/b", 0.5)));
        check("a=b", Some(("a=b", 1.0)));
        check("a=2=-1", Some(("a=2", -1.0)));
        check("=1", None);
        check("a=inf", None);
        check("", None);
    }
}
