//! `baton-bench gpu`: a model on a GPU beside the CPU of the same machine.
//!
//! Five questions:
//! - Are the logits and greedy tokens those of the CPU? This is asked of random weights in F16. If
//!   activations are rounded to bytes, the smallest difference grows: with random weights, a change of 1e-7
//!   of what attention gives moves logits by 3 % of the largest.
//! - Have the logits the same bits again, and if the prompt comes in chunks?
//! - How fast is a prompt read and an answer written, and which share of the GPU's measured rates is that?
//! - What does a mask cost?
//! - How long does an answer hold a slot if the cloud writes L tokens of it?
//!
//! Times of a device in software say nothing about GPUs, so on one only the first question is checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use baton_device::machine::shape::shape_of;
use baton_engine::engine::KvFormat;
use baton_engine::{
    Capture, Engine, EngineOptions, GpuLayers, GpuLoss, GpuUse, HeadId, MeanOver, Model, SeqId, StepSeq,
    Wanted,
};
use baton_gpu::{Device, GpuChoice, Rates, VramLimit};
use baton_kernels_cpu::Format;
use baton_plan::ModelShape;
use baton_plan::cluster::ByFormat;
use clap::builder::RangedU64ValueParser;
use serde_json::json;

use crate::make_model;
use crate::report::Report;

/// Options of `baton-bench gpu`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The GPU: auto, or one by name as `baton --gpu` takes it, such as cuda:0 or vulkan:0
    #[arg(long, default_value = "auto", value_name = "GPU")]
    gpu: GpuChoice,
    /// Most memory of the GPU that the model may take, such as 6GB
    #[arg(long, value_name = "BYTES")]
    vram: Option<VramLimit>,
    /// Model file; by default random weights in --shape and --quant
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Shape of random weights, as `make-model` takes it
    #[arg(long, default_value = "llama-1b", conflicts_with = "model")]
    shape: String,
    /// Format of random weights, as `make-model` takes it
    #[arg(long, default_value = "Q4_K_M", conflicts_with = "model")]
    quant: String,
    /// Tokens of the prompts
    #[arg(long, value_delimiter = ',', default_values_t = [512, 2048], value_name = "TOKENS", value_parser = count(1_000_000))]
    prompts: Vec<usize>,
    /// Tokens that are written after each prompt
    #[arg(long, default_value_t = 64, value_name = "TOKENS", value_parser = count(100_000))]
    answer: usize,
    /// Longest prompt that the CPU reads too
    #[arg(long, default_value_t = 2048, value_name = "TOKENS")]
    cpu_prompt: usize,
    /// Turns, of which the fastest counts
    #[arg(long, default_value_t = 3, value_parser = count(1000))]
    turns: usize,
}

/// Takes a number from one to `most`.
fn count(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

/// Tokens of the comparison with the CPU, and tokens written after them.
const PARITY: (usize, usize) = (48, 12);
/// The random weights of the comparison.
const PARITY_WEIGHTS: (&str, &str) = ("qwen-0.5b", "F16");
/// Prompt tokens per pass of the comparison with all at once.
const FEW: usize = 7;
/// The largest difference of a logit, as a part of the largest logit.
const GAP_MAX: f64 = 0.02;
/// Prompt tokens per pass, as in `baton-cloud serve`.
const CHUNK: usize = 512;
/// Least share of the measured read rate in decoding.
const READ_SHARE_MIN: f64 = 0.6;
/// Least share of the measured rate of F16 products in reading a prompt.
const PRODUCT_SHARE_MIN: f64 = 0.4;
/// Most part of the prefill that a mask's scores may cost.
const SCORES_SHARE_MAX: f64 = 0.02;
/// Tokens of the cloud in the table of slots.
const ASSIST: [usize; 5] = [10, 20, 50, 100, 200];

/// Runs the bench.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let opened = baton_gpu::open(args.gpu, args.vram).context("open the GPU")?;
    let Some(device) = opened.device else {
        bail!("no GPU computes; name one with --gpu. {}", opened.notices.join("; "));
    };
    let folder = tempfile::tempdir().context("make a folder for the model")?;
    let path = match &args.model {
        Some(path) => path.clone(),
        None => {
            let path = folder.path().join("model.gguf");
            make_model::write(&args.shape, &args.quant, None, 1, &path)?;
            path
        }
    };
    let model = Model::open(&path).with_context(|| format!("open {}", path.display()))?;
    let mut report = Report::new("gpu");
    let facts = device.facts();
    report.note(format!("{} on {}", model.name(), baton_gpu::label(facts)));
    report.data("device", baton_gpu::label(facts));
    parity(&mut report, &device, folder.path())?;
    same_bits(&mut report, &model, &device)?;
    let rates = baton_gpu::measure(&*device, &[Format::F16, Format::Q8_0, Format::Q4K], baton_gpu::TIME)
        .context("measure the GPU")?;
    rates_table(&mut report, &rates);
    speed(&mut report, args, (&model, &path), &device, &rates)?;
    if facts.is_software {
        report.note("The device is a program on the CPU: its times are no GPU's, and are not checked.");
    }
    Ok(report)
}

fn on(device: &Arc<dyn Device>, kv_tokens: usize) -> EngineOptions {
    let on_loss = |loss: &GpuLoss| eprintln!("{}", baton_terminal::chain(loss));
    let gpu = Some(GpuUse { device: Arc::clone(device), layers: GpuLayers::Fit, on_loss });
    EngineOptions { kv_tokens, gpu, ..EngineOptions::default() }
}

/// An engine that is timed.
struct Bed {
    engine: Engine,
    vocab: usize,
}

impl Bed {
    fn new(model: &Arc<Model>, options: EngineOptions) -> Result<Self> {
        let engine = Engine::new(Arc::clone(model), options).context("make an engine")?;
        Ok(Self { engine, vocab: model.config().vocab_len })
    }

    fn ids(&self, n: usize) -> Vec<u32> {
        (0..n as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) % self.vocab as u32).collect()
    }

    fn step(
        &mut self,
        seq: SeqId,
        ids: &[u32],
        logits: Wanted,
        capture: Option<&Capture>,
    ) -> Result<Vec<f32>> {
        let step = StepSeq { seq, ids, logits, capture };
        Ok(self.engine.step(&[step], &mut ()).context("a step")?.remove(0).logits)
    }

    /// Reads a prompt in chunks, and returns the logits of its last token.
    fn read(&mut self, seq: SeqId, ids: &[u32], capture: Option<&Capture>) -> Result<Vec<f32>> {
        let mut last = Vec::new();
        let chunks = ids.len().div_ceil(CHUNK);
        for (at, chunk) in ids.chunks(CHUNK).enumerate() {
            let (wanted, capture) =
                if at + 1 == chunks { (Wanted::Last, capture) } else { (Wanted::None, None) };
            last = self.step(seq, chunk, wanted, capture)?;
        }
        Ok(last)
    }

    /// Writes tokens, and returns them.
    fn write(&mut self, seq: SeqId, mut logits: Vec<f32>, tokens: usize) -> Result<Vec<u32>> {
        let mut text = Vec::new();
        for _ in 0..tokens {
            let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
            text.push(best.context("an empty vocabulary")?.0 as u32);
            logits = self.step(seq, &text[text.len() - 1..], Wanted::Last, None)?;
        }
        Ok(text)
    }

    /// Returns the seconds of a prompt, and of each token after it; the fastest of so many turns.
    fn times(&mut self, prompt: usize, answer: usize, turns: usize) -> Result<(f64, f64)> {
        let ids = self.ids(prompt);
        let mut best = (f64::INFINITY, f64::INFINITY);
        for turn in 0..=turns {
            let seq = self.engine.create();
            let begun = Instant::now();
            let logits = self.read(seq, &ids, None)?;
            let read = begun.elapsed().as_secs_f64();
            let begun = Instant::now();
            self.write(seq, logits, answer)?;
            let token = begun.elapsed().as_secs_f64() / answer.max(1) as f64;
            self.engine.release(seq);
            // The first turn compiles kernels and copies weights.
            if turn > 0 {
                best = (best.0.min(read), best.1.min(token));
            }
        }
        Ok(best)
    }

    /// Returns the seconds of a prompt whose last 32 tokens' scores of eight heads are captured.
    fn times_with_scores(&mut self, prompt: usize, turns: usize) -> Result<f64> {
        let (layers, heads) = {
            let config = self.engine.model().config();
            (config.n_layers, config.n_heads)
        };
        let heads = (0..8).map(|at| HeadId { layer: at * layers / 8, head: at % heads }).collect();
        let last = prompt - (prompt - 1) / CHUNK * CHUNK;
        let capture = Capture { heads, window: last.saturating_sub(32)..last, over: MeanOver::Queries };
        let ids = self.ids(prompt);
        let mut best = f64::INFINITY;
        for _ in 0..=turns {
            let seq = self.engine.create();
            let begun = Instant::now();
            self.read(seq, &ids, Some(&capture))?;
            best = best.min(begun.elapsed().as_secs_f64());
            self.engine.release(seq);
        }
        Ok(best)
    }
}

/// Compares logits and greedy tokens with those of the CPU.
fn parity(report: &mut Report, device: &Arc<dyn Device>, folder: &Path) -> Result<()> {
    let path = folder.join("parity.gguf");
    let (shape, quant) = PARITY_WEIGHTS;
    make_model::write(shape, quant, None, 1, &path)?;
    let model = Model::open(&path).context("open the model of the comparison")?;
    let (tokens, more) = PARITY;
    let run = |options| -> Result<(Vec<f32>, Vec<u32>, usize)> {
        let mut bed = Bed::new(&model, options)?;
        let seq = bed.engine.create();
        let ids = bed.ids(tokens);
        let all = bed.step(seq, &ids, Wanted::All, None)?;
        let last = all[all.len() - bed.vocab..].to_vec();
        let text = bed.write(seq, last, more)?;
        Ok((all, text, bed.engine.gpu_layers().len()))
    };
    let (want, text, _) = run(EngineOptions { kv_tokens: 512, ..EngineOptions::default() })?;
    let (have, own, layers) = run(on(device, 512))?;
    let top = want.iter().fold(0.0f32, |top, value| top.max(value.abs()));
    let gap = gap(&have, &want);
    let same = own.iter().zip(&text).take_while(|(a, b)| a == b).count();
    report.check_at_most("largest difference of a logit, of the largest", f64::from(gap / top), GAP_MAX);
    report.check_equal("greedy tokens as on the CPU", same as f64, more as f64);
    check_layers(report, "in the comparison", layers, &model);
    report.data("layers_on_gpu", layers);
    Ok(())
}

/// Checks that the model's logits have the same bits once more, and if the prompt comes in chunks.
fn same_bits(report: &mut Report, model: &Arc<Model>, device: &Arc<dyn Device>) -> Result<()> {
    let mut bed = Bed::new(model, on(device, 512))?;
    let ids = bed.ids(PARITY.0);
    let mut logits = |chunk: usize| -> Result<Vec<u32>> {
        let seq = bed.engine.create();
        let mut all = Vec::new();
        for some in ids.chunks(chunk) {
            all.extend(bed.step(seq, some, Wanted::All, None)?.into_iter().map(f32::to_bits));
        }
        bed.engine.release(seq);
        Ok(all)
    };
    let want = logits(PARITY.0)?;
    for (chunk, what) in [(PARITY.0, "once more"), (FEW, "in chunks"), (1, "one by one")] {
        let differ = logits(chunk)?.iter().zip(&want).filter(|(a, b)| a != b).count();
        report.check_equal(format!("logits with other bits {what}"), differ as f64, 0.0);
    }
    Ok(())
}

/// Returns the largest difference of two numbers: NaN if one of them is NaN or one list is longer.
fn gap(have: &[f32], want: &[f32]) -> f32 {
    if have.len() != want.len() {
        return f32::NAN;
    }
    have.iter().zip(want).map(|(a, b)| (a - b).abs()).max_by(f32::total_cmp).unwrap_or(0.0)
}

/// Checks that the GPU has all layers: otherwise the figures are those of GPU and CPU together.
fn check_layers(report: &mut Report, when: &str, layers: usize, model: &Model) {
    report.check_equal(format!("layers on the GPU {when}"), layers as f64, model.config().n_layers as f64);
}

fn rates_table(report: &mut Report, rates: &Rates) {
    let row = |(format, of): (&String, &baton_gpu::ProductRates)| {
        let figures = [of.vector_bytes_per_s / 1e9, of.vector_flops / 1e9, of.matrix_flops / 1e9];
        std::iter::once(format.clone()).chain(figures.map(|figure| format!("{figure:.1}"))).collect()
    };
    let rows: Vec<Vec<String>> = rates.products.iter().map(row).collect();
    let header = ["weights", "1 token, GB/s", "1 token, GFLOP/s", "512 tokens, GFLOP/s"];
    report.table("Measured rates of the GPU's products", &header, &rows);
    let copies = rates.copies;
    report.note(format!(
        "to the GPU {:.1} GB/s, back {:.1} GB/s, a hidden state there and back {:.0} us, a kernel {:.1} us",
        copies.to_device_bytes_per_s / 1e9,
        copies.to_host_bytes_per_s / 1e9,
        copies.round_trip_s * 1e6,
        copies.launch_s * 1e6,
    ));
    report.data("rates", json!(rates));
}

fn speed(
    report: &mut Report,
    args: &Args,
    (model, path): (&Arc<Model>, &Path),
    device: &Arc<dyn Device>,
    rates: &Rates,
) -> Result<()> {
    let needs = Needs::of(&shape_of(path, KvFormat::F16).context("read the model's shape")?);
    let longest = args.prompts.iter().max().copied().unwrap_or(0);
    let kv_tokens = longest + args.answer + CHUNK;
    let mut gpu = Bed::new(model, on(device, kv_tokens))?;
    check_layers(report, "in the measurements", gpu.engine.gpu_layers().len(), model);
    let mut cpu = Bed::new(model, EngineOptions { kv_tokens, ..EngineOptions::default() })?;
    let best = |of: fn(&baton_gpu::ProductRates) -> f64| rates.products.values().map(of).fold(0.0, f64::max);
    let (read_rate, f16) = (best(|of| of.vector_bytes_per_s), rates.products["F16"].matrix_flops);
    let checked = !device.facts().is_software;
    let (mut rows, mut slots) = (Vec::new(), Vec::new());
    for &prompt in &args.prompts {
        eprintln!("{prompt} tokens");
        let (read_s, token_s) = gpu.times(prompt, args.answer, args.turns)?;
        let (cpu_read_s, cpu_token_s) = match prompt <= args.cpu_prompt {
            true => cpu.times(prompt, args.answer.min(16), 1)?,
            false => (f64::NAN, f64::NAN),
        };
        let scores_s = gpu.times_with_scores(prompt, args.turns)?;
        let read_share = needs.token_bytes / token_s / read_rate;
        let product_share = needs.layers_flops * prompt as f64 / read_s / f16;
        let scores_share = scores_s / read_s - 1.0;
        rows.push(
            [
                prompt as f64 / read_s,
                cpu_read_s / read_s,
                1.0 / token_s,
                cpu_token_s / token_s,
                read_share,
                product_share,
                100.0 * scores_share,
            ]
            .iter()
            .fold(vec![prompt.to_string()], |mut row, figure| {
                row.push(if figure.is_nan() { "-".to_owned() } else { format!("{figure:.2}") });
                row
            }),
        );
        if checked {
            check_shares(report, prompt, [read_share, product_share, scores_share]);
        }
        let slot = |tokens: usize| read_s + tokens as f64 * token_s;
        let mut row = vec![prompt.to_string()];
        row.extend(ASSIST.map(|tokens| format!("{:.2}", slot(200) / slot(tokens))));
        slots.push(row);
    }
    let header = [
        "prompt",
        "read, tokens/s",
        "beside the CPU",
        "written, tokens/s",
        "beside the CPU",
        "of the read rate",
        "of F16 products",
        "scores, %",
    ];
    report.table("One answer on the GPU, and beside the CPU of this machine", &header, &rows);
    let header = ["prompt", "L = 10", "20", "50", "100", "200"];
    report.table(
        "Answers that one slot gives, beside answers of 200 tokens by the cloud alone",
        &header,
        &slots,
    );
    report.data("speed", json!(rows));
    report.data("slots", json!(slots));
    Ok(())
}

/// Checks the shares of the rates, and what scores cost.
fn check_shares(report: &mut Report, prompt: usize, [read, products, scores]: [f64; 3]) {
    report.check_at_least(format!("share of the read rate after {prompt}"), read, READ_SHARE_MIN);
    report.check_at_least(format!("share of F16 products, {prompt} tokens"), products, PRODUCT_SHARE_MIN);
    report.check_at_most(format!("cost of scores, of the prefill of {prompt}"), scores, SCORES_SHARE_MAX);
}

/// What a GPU with all layers does for one token.
struct Needs {
    /// Bytes of the weights that it reads, with the projection to logits.
    token_bytes: f64,
    /// Operations of the layers' products.
    layers_flops: f64,
}

impl Needs {
    fn of(shape: &ModelShape) -> Self {
        // Two operations for each weight.
        let bytes = |flops: &ByFormat| -> f64 {
            flops.iter().map(|(format, flops)| flops / 2.0 * weight_bytes(format)).sum()
        };
        let layers = shape.layers as f64;
        Self {
            token_bytes: layers * bytes(&shape.layer_flops) + bytes(&shape.output_flops),
            layers_flops: layers * shape.layer_flops.values().sum::<f64>(),
        }
    }
}

/// Returns the bytes of one weight; 0 if this is the name of no format.
fn weight_bytes(name: &str) -> f64 {
    let format = Format::ALL.into_iter().find(|format| format.name() == name);
    format.map_or(0.0, |format| format.block_bytes() as f64 / format.block_len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::Parser as _;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_gap_is_seen_whatever_the_numbers_are() {
        assert_eq!(gap(&[1.0, 2.0], &[1.0, 2.5]), 0.5);
        assert!(gap(&[f32::NAN, 2.0], &[1.0, 2.5]).is_nan());
        assert!(gap(&[1.0], &[1.0, 2.5]).is_nan());
    }

    #[test]
    fn what_a_token_needs_is_that_of_the_matrices_it_meets() {
        let shape = ModelShape {
            name: String::new(),
            layers: 4,
            hidden: 64,
            vocab: 100,
            layer_bytes: 1e9,
            expert_bytes: 0.0,
            expert_share: 0.0,
            input_bytes: 1e9,
            output_bytes: 1e9,
            kv_bytes: 1.0,
            layer_flops: [("Q8_0".to_owned(), 640.0), ("F16".to_owned(), 20.0)].into(),
            output_flops: [("F32".to_owned(), 8.0)].into(),
        };
        let needs = Needs::of(&shape);
        assert_eq!(needs.layers_flops, 4.0 * 660.0);
        // 34 bytes for 32 weights, two bytes, four bytes.
        assert_eq!(needs.token_bytes, 4.0 * (340.0 + 20.0) + 16.0);
    }

    #[test]
    fn nothing_is_measured_zero_times() {
        for option in ["--prompts", "--answer", "--turns"] {
            assert!(Line::try_parse_from(["gpu", option, "1"]).is_ok(), "{option}");
            assert!(Line::try_parse_from(["gpu", option, "0"]).is_err(), "{option}");
        }
        assert!(Line::try_parse_from(["gpu", "--prompts", "16,0"]).is_err());
    }
}
