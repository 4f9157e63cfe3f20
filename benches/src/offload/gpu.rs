//! Offloading to a real GPU with less memory than the model has, if there is one.
//!
//! The tokens are compared with those of a GPU that holds everything, if this one can, else with the CPU's.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use baton_engine::{
    Engine, EngineOptions, GpuLayers, GpuLoss, GpuUse, Model, Offload, Pipeline, SeqId, StepSeq, TokenId,
    Wanted,
};
use baton_gpu::Device;
use baton_kernels_cpu::Format;
use serde_json::{Value, json};

use super::Args;
use super::disk::with_model;
use crate::engine::peer::{NAME, Peer};
use crate::report::Report;

/// Least share of the bound that the measured rates of copies and products set.
const OF_BOUND_MIN: f64 = 0.9;
/// Steps before those that are measured, and those.
const STEPS: [usize; 2] = [4, 16];
/// Sequences at once, and steps of each of them.
const BATCHES: [usize; 5] = [1, 4, 8, 16, 32];
const BATCH_STEPS: [usize; 2] = [2, 8];
/// Tokens of prompts, and of one pass over them as in the programs.
const PROMPTS: [usize; 2] = [512, 2048];
const CHUNK_TOKENS: usize = 512;
/// Tokens of the cache of one sequence that is decoded.
const KV_TOKENS: usize = 64;
/// Share of the GPU's memory that llama.cpp's layers may take; the others are for its buffers and its cache.
const PEER_SHARE: f64 = 0.85;
/// Tokens that llama.cpp decodes.
const PEER_TOKENS: usize = 16;
/// What PIPO reports for a laptop with an RTX 3060 of 6 GB (section 4.2).
const PAPER: [(&str, &str); 3] = [
    ("PIPO beside FlexGen, weights on the disk, at most", "3.10 x"),
    ("its use of the GPU (FlexGen's)", "97 % (36 %)"),
    ("its time to the first token, beside FlexGen's", "42.5 % less"),
];
const PIPELINES: [(Pipeline, &str); 3] = [
    (Pipeline::Performance, "performance"),
    (Pipeline::MemoryEfficient, "memory-efficient"),
    (Pipeline::Synchronous, "synchronous"),
];

/// Measures the model on the GPU, or says why not.
pub(super) fn measure(args: &Args, target: &Path, report: &mut Report) -> Result<()> {
    let skip = |report: &mut Report, reason: String| {
        report.note(format!("\nskipped: gpu: {reason}"));
        report.data("gpu_skipped", reason);
    };
    let mut opened = match baton_gpu::open(args.gpu, Some(args.vram)) {
        Ok(opened) => opened,
        Err(err) => {
            skip(report, err.to_string());
            return Ok(());
        }
    };
    let Some(device) = opened.device else {
        skip(report, opened.notices.pop().unwrap_or_else(|| "this machine has no GPU".to_owned()));
        return Ok(());
    };
    if device.facts().is_software {
        skip(report, format!("{} is a program on the CPU", baton_gpu::label(device.facts())));
        return Ok(());
    }
    with_model(&args.gpu_model, target, |path| on_device(args, target, path, &device, report))
}

fn on_loss(loss: &GpuLoss) {
    eprintln!("{}", baton_terminal::chain(loss));
}

fn on_device(
    args: &Args,
    target: &Path,
    path: &Path,
    device: &Arc<dyn Device>,
    report: &mut Report,
) -> Result<()> {
    let model = Model::open(path).with_context(|| format!("open {}", path.display()))?;
    let rates = baton_gpu::measure(&**device, &[Format::Q4K, Format::Q6K], baton_gpu::TIME)
        .context("measure the GPU")?;
    let copies = rates.copies.to_device_bytes_per_s;
    let read = rates.slowest_vector_bytes_per_s();
    let reference = Reference::of(args, &model)?;
    let (mut rows, mut differ, mut runs) = (Vec::new(), 0, Vec::new());
    for (pipeline, name) in PIPELINES {
        let run = decode(&model, device, pipeline)?;
        let bound_s = (run.bytes / copies).max(run.weights / read);
        let share = bound_s / run.step_s;
        if pipeline == Pipeline::Performance {
            report.check_at_least("gpu: speed, of the measured rates' bound", share, OF_BOUND_MIN);
        }
        differ += usize::from(run.tokens != reference.tokens);
        rows.push(vec![
            name.to_owned(),
            format!("{:.2}", 1.0 / run.step_s),
            format!("{:.1}", run.bytes / 1e6),
            format!("{:.2}", run.bytes / run.step_s / copies),
            format!("{share:.2}"),
        ]);
        runs.push(run);
    }
    let label = baton_gpu::label(device.facts());
    let title = format!("{} on {label}: copies of {:.1} GB/s measured", model.name(), copies / 1e9);
    let header = ["pipeline", "tokens/s", "MB loaded a token", "of the copies' rate", "of the bound"];
    rows.push(vec![reference.whose.to_owned(), format!("{:.2}", 1.0 / reference.step_s)]);
    report.table(&title, &header, &rows);
    let name = format!("gpu: pipelines whose tokens differ from those of {}", reference.whose);
    if reference.is_exact {
        report.check_equal(name, differ as f64, 0.0);
    } else {
        // The CPU rounds quotients otherwise, so a close choice may fall otherwise.
        report.note(format!("{name}: {differ}"));
    }
    let alike = runs.iter().filter(|run| run.tokens != runs[0].tokens).count();
    report.check_equal("gpu: pipelines whose tokens differ from each other", alike as f64, 0.0);
    report.data("gpu", json!({ "device": label, "rates": rates, "rows": rows }));
    prompts_and_batches(&model, device, &runs[0].tokens, report)?;
    let busy = |run: &Run| format!("{:.0} %", 100.0 * run.weights / read / run.step_s);
    let mut beside: Vec<Vec<String>> =
        PAPER.iter().map(|(what, figure)| vec![(*what).to_owned(), (*figure).to_owned()]).collect();
    let synchronous = &runs[PIPELINES.len() - 1];
    let times = synchronous.step_s / runs[0].step_s;
    beside.push(vec![
        "here: performance beside synchronous, weights in memory".to_owned(),
        format!("{times:.2} x"),
    ]);
    let used = format!("{} ({})", busy(&runs[0]), busy(synchronous));
    beside.push(vec!["here: products by their measured rates, of a step (synchronous)".to_owned(), used]);
    report.table("beside the paper, on another GPU and with other weights", &["", ""], &beside);
    peer(args, target, path, (&model, 1.0 / runs[0].step_s), report);
    Ok(())
}

/// Whose tokens the others are compared with.
struct Reference {
    tokens: Vec<TokenId>,
    whose: &'static str,
    /// Whether it computes as the others do, so that tokens must be equal.
    is_exact: bool,
    step_s: f64,
}

impl Reference {
    /// Decodes with everything in the GPU's memory without a limit, or on the CPU if it does not fit.
    fn of(args: &Args, model: &Arc<Model>) -> Result<Self> {
        let opened = baton_gpu::open(args.gpu, None).ok().and_then(|opened| opened.device);
        let resident = opened.and_then(|device| {
            let engine = engine(model, Some((&device, GpuLayers::Fit)), KV_TOKENS).ok()?;
            let is_whole = engine.gpu_layers().len() == model.config().n_layers && engine.gpu_has_output();
            is_whole.then_some(engine)
        });
        let (engine, whose, is_exact) = match resident {
            Some(engine) => (engine, "everything in the GPU's memory", true),
            None => (engine(model, None, KV_TOKENS)?, "the CPU", false),
        };
        let mut decoder = Decoder::new(engine, 1);
        let step_s = decoder.run(STEPS)?;
        Ok(Self { tokens: decoder.tokens.remove(0), whose, is_exact, step_s })
    }
}

fn engine(
    model: &Arc<Model>,
    gpu: Option<(&Arc<dyn Device>, GpuLayers)>,
    kv_tokens: usize,
) -> Result<Engine> {
    let gpu = gpu.map(|(device, layers)| GpuUse { device: Arc::clone(device), layers, on_loss });
    let options = EngineOptions { gpu, kv_tokens, ..EngineOptions::default() };
    Engine::new(Arc::clone(model), options).context("make an engine")
}

fn offloading(
    model: &Arc<Model>,
    device: &Arc<dyn Device>,
    pipeline: Pipeline,
    kv_tokens: usize,
) -> Result<Engine> {
    let layers = GpuLayers::Offloaded(Offload { pipeline, ..Offload::default() });
    engine(model, Some((device, layers)), kv_tokens)
}

struct Run {
    step_s: f64,
    /// Bytes loaded for a token.
    bytes: f64,
    /// Bytes of the layers' weights.
    weights: f64,
    tokens: Vec<TokenId>,
}

/// Decodes one sequence.
fn decode(model: &Arc<Model>, device: &Arc<dyn Device>, pipeline: Pipeline) -> Result<Run> {
    let mut decoder = Decoder::new(offloading(model, device, pipeline, KV_TOKENS)?, 1);
    let [warm, steps] = STEPS;
    decoder.run([0, warm])?;
    let loaded = |decoder: &Decoder| decoder.engine.offload_stats().context("the GPU failed");
    let before = loaded(&decoder)?;
    let step_s = decoder.run([0, steps])?;
    let after = loaded(&decoder)?;
    Ok(Run {
        step_s,
        bytes: (after.loaded_bytes - before.loaded_bytes) as f64 / steps as f64,
        weights: after.weight_bytes as f64,
        tokens: decoder.tokens.remove(0),
    })
}

/// Sequences that are decoded greedily.
struct Decoder {
    engine: Engine,
    seqs: Vec<SeqId>,
    tokens: Vec<Vec<TokenId>>,
}

impl Decoder {
    /// Each sequence begins with a token of its own. The first one does not depend on the batch.
    fn new(mut engine: Engine, batch: usize) -> Self {
        let seqs = (0..batch).map(|_| engine.create()).collect();
        Self { engine, seqs, tokens: (0..batch as TokenId).map(|number| vec![1 + number]).collect() }
    }

    fn step(&mut self) -> Result<()> {
        let last: Vec<[TokenId; 1]> = self.tokens.iter().map(|tokens| [tokens[tokens.len() - 1]]).collect();
        let steps: Vec<StepSeq<'_>> = (self.seqs.iter().zip(&last))
            .map(|(seq, ids)| StepSeq { seq: *seq, ids, logits: Wanted::Last, capture: None })
            .collect();
        let results = self.engine.step(&steps, &mut ()).context("decode")?;
        for (tokens, result) in self.tokens.iter_mut().zip(results) {
            let logits = result.logits.iter().enumerate();
            let best = logits.max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
            tokens.push(best.context("an empty vocabulary")?.0 as TokenId);
        }
        Ok(())
    }

    /// Decodes tokens that are not measured and some that are, and returns the seconds of one step.
    fn run(&mut self, [warm, steps]: [usize; 2]) -> Result<f64> {
        for _ in 0..warm {
            self.step()?;
        }
        let begun = Instant::now();
        for _ in 0..steps {
            self.step()?;
        }
        Ok(begun.elapsed().as_secs_f64() / steps as f64)
    }

    /// Returns the seconds until the first token after a prompt is known.
    fn prompt(&mut self, tokens: usize) -> Result<f64> {
        let vocab = self.engine.model().config().vocab_len;
        let ids: Vec<TokenId> = (0..tokens).map(|at| (at * 7919 % vocab) as TokenId).collect();
        let (seq, begun) = (self.engine.create(), Instant::now());
        for (at, ids) in ids.chunks(CHUNK_TOKENS).enumerate() {
            let is_last = (at + 1) * CHUNK_TOKENS >= tokens;
            let logits = if is_last { Wanted::Last } else { Wanted::None };
            self.engine.step(&[StepSeq { seq, ids, logits, capture: None }], &mut ()).context("prefill")?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        self.engine.release(seq);
        Ok(seconds)
    }
}

/// Measures the performance pipeline with prompts and with several sequences. The first of them must have the
/// tokens that it has alone.
fn prompts_and_batches(
    model: &Arc<Model>,
    device: &Arc<dyn Device>,
    want: &[TokenId],
    report: &mut Report,
) -> Result<()> {
    let longest = PROMPTS[PROMPTS.len() - 1] + CHUNK_TOKENS;
    let mut reader = Decoder::new(offloading(model, device, Pipeline::Performance, longest)?, 0);
    let (mut rows, mut data) = (Vec::new(), json!({}));
    for tokens in PROMPTS {
        let seconds = reader.prompt(tokens)?;
        rows.push(vec![format!("first token after {tokens}, s"), format!("{seconds:.2}")]);
        data["first_token_s"][tokens.to_string()] = json!(seconds);
    }
    drop(reader);
    let mut differ = 0u32;
    for batch in BATCHES {
        let engine = offloading(model, device, Pipeline::Performance, batch * KV_TOKENS)?;
        let mut decoder = Decoder::new(engine, batch);
        let rate = batch as f64 / decoder.run(BATCH_STEPS)?;
        let first = &decoder.tokens[0];
        differ += u32::from(first[..] != want[..first.len()]);
        rows.push(vec![format!("batch of {batch}, tokens/s of all"), format!("{rate:.2}")]);
        data["tokens_per_s"][batch.to_string()] = json!(rate);
    }
    report.table("prompts and batches on the GPU", &["", "performance"], &rows);
    report.check_equal("gpu: batches whose first sequence has other tokens", f64::from(differ), 0.0);
    report.data("gpu_prompts_and_batches", data);
    Ok(())
}

/// Measures llama.cpp with as many layers on the GPU as fit, if a build for CUDA is named.
fn peer(args: &Args, target: &Path, path: &Path, own: (&Arc<Model>, f64), report: &mut Report) {
    match peer_rate(args, target, path, own.0) {
        Ok((layers, rate)) => {
            let row = |name: String, rate: f64| vec![name, format!("{rate:.2}")];
            let rows =
                [row("Baton, performance".to_owned(), own.1), row(format!("{NAME}, -ngl {layers}"), rate)];
            report.table("beside llama.cpp on the GPU", &["", "tokens/s"], &rows);
            report.data("gpu_llama_cpp", json!({ "layers": layers, "tokens_per_s": rate }));
        }
        Err(err) => {
            report.note(format!("skipped: llama.cpp on the GPU: {err:#}"));
            report.data("gpu_llama_cpp_skipped", format!("{err:#}"));
        }
    }
}

/// Returns how many layers llama.cpp has on the GPU, and its tokens per second.
fn peer_rate(args: &Args, target: &Path, path: &Path, model: &Model) -> Result<(usize, f64)> {
    let program = Peer::found(args.peer.as_deref(), target)?.on_cuda()?;
    let layer = model.layer_weight_bytes() as f64 / model.config().n_layers as f64;
    let fit = (PEER_SHARE * args.vram.0 as f64 / layer) as usize;
    let layers = fit.min(model.config().n_layers);
    let mut command = Command::new(program);
    command.arg("-m").arg(path).args(["-p", "0", "-r", "3", "-o", "json"]);
    command.args(["-ngl", &layers.to_string(), "-n", &PEER_TOKENS.to_string()]);
    let out = command.output().context("start llama-bench")?;
    if !out.status.success() {
        bail!("llama-bench ended with {}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    let runs: Value = serde_json::from_slice(&out.stdout).context("read what llama-bench printed")?;
    let rate = runs[0]["avg_ts"].as_f64().context("llama-bench printed no avg_ts")?;
    Ok((layers, rate))
}
