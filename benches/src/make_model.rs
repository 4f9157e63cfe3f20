//! `baton-bench make-model`: writes a GGUF file with random weights and the shape of a published model.
//!
//! Such files are for measurements that only need the shape; the text of the answers has no meaning. The file
//! is written as a stream, so only the disk limits its size. The same arguments give the same bytes.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use baton_synthetic::{Quant, SHAPES, SyntheticModel};

use crate::report::Report;

/// Options of `baton-bench make-model`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Shape: llama-1b or llama-3b (Llama 3.2), llama-8b (Llama 3.1), llama-30b (the original LLaMA, 32.5
    /// billion weights), mixtral-3b (a smaller Mixtral of 2.9 billion weights), qwen-0.5b, qwen-1.5b or
    /// qwen-7b (Qwen2.5)
    shape: String,
    /// Format: Q4_K_M, the mixture of llama-quantize, or one format for all matrices: F16, Q8_0, Q4_K, ...
    quant: String,
    /// File to write; by default SHAPE-QUANT.gguf in the current folder
    #[arg(long)]
    out: Option<PathBuf>,
    /// Seed of the random weights
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Maximum number of tokens in a sequence; by default as published
    #[arg(long)]
    context: Option<u32>,
}

/// Writes the file.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let name = format!("{}-{}.gguf", args.shape, args.quant);
    let path = args.out.clone().unwrap_or_else(|| PathBuf::from(name));
    let started = Instant::now();
    write(&args.shape, &args.quant, args.context, args.seed, &path)?;
    let seconds = started.elapsed().as_secs_f64();
    let file_bytes = std::fs::metadata(&path).context("read the file's size")?.len();
    let mut report = Report::new("make-model");
    report.note(format!(
        "{}: {:.0} MB of random weights in {seconds:.1} s",
        path.display(),
        file_bytes as f64 / 1e6
    ));
    report.data("path", path.display().to_string());
    report.data("file_bytes", file_bytes);
    report.data("seconds", seconds);
    Ok(report)
}

/// Writes the model `shape` in `quant` to `path`. An interrupted run never leaves an incomplete file at
/// `path`.
pub(crate) fn write(shape: &str, quant: &str, context: Option<u32>, seed: u64, path: &Path) -> Result<()> {
    let mixture = Quant::find(quant).ok_or_else(|| anyhow!("no format or mixture is called `{quant}`"))?;
    let model = SyntheticModel::shaped(shape, mixture, context, seed)
        .ok_or_else(|| anyhow!("no shape is called `{shape}`; there are {}", SHAPES.join(", ")))?;
    let unfinished = path.with_extension("unfinished");
    let file = File::create(&unfinished).with_context(|| format!("create {}", unfinished.display()))?;
    let mut percent = 0;
    let written = model.write_to(BufWriter::with_capacity(1 << 20, file), |written, total| {
        let now = written * 100 / total;
        if now >= percent + 10 {
            percent = now;
            eprintln!("{shape} {quant}: {now} % of {:.0} MB", total as f64 / 1e6);
        }
    });
    let finished = written.with_context(|| format!("write {}", unfinished.display())).and_then(|()| {
        std::fs::rename(&unfinished, path).with_context(|| format!("name {}", path.display()))
    });
    if finished.is_err() {
        let _ = std::fs::remove_file(&unfinished); // The earlier error matters more.
    }
    finished
}
