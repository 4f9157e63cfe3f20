//! `baton-bench refiner`: measures the cost of a mask compared with its prefill. It also shows which layers
//! and windows find the gold sentences, and how much earlier a mask could be sent.
//!
//! Costs are CPU time on a small model with random weights, for prompts of up to 32k tokens. Layers and
//! windows are tested with the demo model on generated documents.

mod ablation;
mod early;

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use baton_corpus::document;
use baton_engine::gguf::Gguf;
use baton_engine::tokenizer::TokenId;
use baton_engine::{
    AttentionScores, Capture, Engine, EngineOptions, HeadId, MeanOver, Model, SeqId, StepSeq, Wanted,
};
use baton_protocol::{MaskEvent, Role, Segment, SentenceMap};
use baton_refine::{
    AttentionShape, Calibration, CapturePlan, ContentTokens, Mode, RefineInput, Scores, WeightedHead,
    capture_plan, refine,
};
use baton_synthetic::{Quant, SyntheticModel};
use serde_json::json;

use crate::clock::{process_seconds, thread_seconds};
use crate::report::Report;

/// Options of `baton-bench refiner`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Prompt lengths for the table of costs
    #[arg(long, value_delimiter = ',', default_values_t = [2048, 8192, 32_768], value_name = "TOKENS")]
    tokens: Vec<usize>,
    /// Model file for the comparison of layers and windows; a demo model, which was trained on such questions
    #[arg(long, default_value = "models/demo-cloud.gguf", value_name = "FILE")]
    model: PathBuf,
    /// Number of documents for the comparison of layers and windows, with one question of each kind
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u64).range(1..=1000))]
    documents: u64,
    /// Another model file for which the early mask is measured, besides the demo model
    #[arg(long, value_name = "FILE")]
    early_model: Option<PathBuf>,
    /// Prompt lengths for the early mask; those longer than a model's context are left out
    #[arg(long, value_delimiter = ',', default_values_t = [512, 1024, 2048, 4096], value_name = "TOKENS")]
    early_tokens: Vec<usize>,
    /// Number of threads of the engine; by default one per core
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

/// Maximum cost of a mask, in percent of the prefill.
const SHARE_PERCENT_MAX: f64 = 2.0;
/// Maximum time to choose the sentences for 8k tokens.
const SELECTION_MS_MAX: f64 = 5.0;
const SELECTION_TOKENS: usize = 8192;
/// Tokens before and after the content.
const PREFIX: usize = 16;
const SUFFIX: usize = 40;
/// Prompt tokens per pass, as in `baton-cloud serve`.
const CHUNK: usize = 512;
/// Number of runs, of which the fastest counts.
const RUNS: usize = 7;
const RATIO: f32 = 0.25;

/// Runs the bench.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let mut report = Report::new("refiner");
    costs(&mut report, args)?;
    if args.model.is_file() {
        let demo = Model::open(&args.model).context("open the demo model")?;
        ablation::run(&mut report, &demo, args)?;
        early::run(&mut report, "demo model", &demo, args)?;
    } else {
        report.note(format!("skipped: layers, windows and early mask: no file `{}`", args.model.display()));
    }
    if let Some(path) = &args.early_model {
        let model = Model::open(path).with_context(|| format!("open `{}`", path.display()))?;
        early::run(&mut report, &path.display().to_string(), &model, args)?;
    }
    Ok(report)
}

/// The cost of one mask, in CPU seconds.
struct Cost {
    prefill: f64,
    capture: f64,
    selection: f64,
    encoding: f64,
}

fn costs(report: &mut Report, args: &Args) -> Result<()> {
    let mut rows = Vec::new();
    let mut figures = Vec::new();
    for &tokens in &args.tokens {
        let mut bed = TestBed::new(tokens, args.threads)?;
        let prefill = bed.prefill()?;
        for (name, calibration) in [("uniform", None), ("8 heads", Some(eight_heads()?))] {
            let cost = bed.cost(prefill, calibration.as_ref())?;
            let mask = cost.capture + cost.selection + cost.encoding;
            let percent = 100.0 * mask / cost.prefill;
            let label = format!("{tokens} tokens, {name}");
            rows.push(vec![
                label.clone(),
                format!("{:.2}", cost.prefill),
                format!("{:.2}", cost.capture * 1e3),
                format!("{:.2}", cost.selection * 1e3),
                format!("{:.1}", cost.encoding * 1e6),
                format!("{percent:.2}"),
            ]);
            figures.push(json!({
                "tokens": tokens, "heads": name, "prefill_s": cost.prefill, "capture_s": cost.capture,
                "selection_s": cost.selection, "encoding_s": cost.encoding, "percent": percent,
            }));
            report.check_at_most(format!("{label}: mask, % of prefill"), percent, SHARE_PERCENT_MAX);
            if tokens == SELECTION_TOKENS {
                report.check_at_most(
                    format!("{label}: selection ms"),
                    cost.selection * 1e3,
                    SELECTION_MS_MAX,
                );
            }
        }
    }
    let header = ["prompt, heads", "prefill s", "scores ms", "selection ms", "encoding us", "% of prefill"];
    report.table("CPU time of a mask", &header, &rows);
    report.note("4 layers of width 256, 4 heads; uniform: all heads of the middle layers, where nothing is calibrated");
    report.data("costs", figures);
    Ok(())
}

/// Makes a calibration of eight heads: four in each of two layers.
fn eight_heads() -> Result<Calibration> {
    let head = |at: usize| WeightedHead { layer: 1 + at / 4, head: at % 4, weight: 0.125 };
    Calibration::new(String::new(), (0..8).map(head).collect()).context("make a calibration")
}

/// An engine with a prompt, of which all but the last window is in the cache.
struct TestBed {
    engine: Engine,
    seq: SeqId,
    ids: Vec<TokenId>,
    prompt: TimedPrompt,
}

/// A document between a prefix and a suffix, with one token per word.
struct TimedPrompt {
    segments: Vec<Segment>,
    map: SentenceMap,
    spans: Vec<Range<usize>>,
    tokens: usize,
}

impl TestBed {
    fn new(tokens: usize, threads: Option<NonZeroUsize>) -> Result<Self> {
        let context = u32::try_from(tokens + CHUNK).context("a prompt is shorter than 2^32")?;
        let shape = SyntheticModel {
            n_layers: 4,
            d_ff: 384 + 128,
            context_len: context,
            ..SyntheticModel::small("llama", Quant::from(baton_kernels_cpu::Format::Q8_0), 1)
        };
        let bytes = shape.to_gguf().context("write the model")?;
        let model = Model::from_gguf(Gguf::from_bytes(bytes).context("read the model")?)?;
        let options = EngineOptions { threads, kv_tokens: tokens + 2 * CHUNK, ..EngineOptions::default() };
        let mut engine = Engine::new(model, options)?;
        let seq = engine.create();
        let ids = (0..tokens).map(|at| (at * 7919 % 250) as TokenId).collect();
        Ok(Self { engine, seq, ids, prompt: TimedPrompt::new(tokens) })
    }

    /// Computes the prompt in chunks, with logits of the last token. Then removes the last window from the
    /// cache.
    fn prefill(&mut self) -> Result<f64> {
        let started = process_seconds();
        prefill(&mut self.engine, self.seq, &self.ids)?;
        let seconds = process_seconds() - started;
        self.engine.truncate(self.seq, self.ids.len() - SUFFIX)?;
        Ok(seconds)
    }

    /// Computes the last tokens again, with or without scores.
    fn last_pass(&mut self, plan: Option<&CapturePlan>) -> Result<(f64, Option<AttentionScores>)> {
        let held = self.ids.len() - SUFFIX;
        let seq = self.engine.fork(self.seq, held)?;
        let capture = plan.map(|plan| capture(plan, SUFFIX));
        let step = StepSeq { seq, ids: &self.ids[held..], logits: Wanted::Last, capture: capture.as_ref() };
        let started = process_seconds();
        let mut outputs = self.engine.step(&[step], &mut ())?;
        let seconds = process_seconds() - started;
        self.engine.release(seq);
        Ok((seconds, outputs.remove(0).scores))
    }

    fn cost(&mut self, prefill: f64, calibration: Option<&Calibration>) -> Result<Cost> {
        let plan = plan(self.engine.model(), SUFFIX, calibration)?;
        let (mut with, mut without) = (f64::INFINITY, f64::INFINITY);
        let mut scores = None;
        for _ in 0..RUNS {
            without = without.min(self.last_pass(None)?.0);
            let (seconds, captured) = self.last_pass(Some(&plan))?;
            with = with.min(seconds);
            scores = captured;
        }
        let scores = scores.ok_or_else(|| anyhow!("the engine gave no scores"))?;
        let (mut selection, mut encoding) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..RUNS {
            let started = thread_seconds();
            let refined = self.prompt.refine(&scores, calibration)?;
            let chosen = thread_seconds();
            black_box(MaskEvent::new(&self.prompt.map, &refined.kept, refined.ratio, refined.prompt_ratio));
            selection = selection.min(chosen - started);
            encoding = encoding.min(thread_seconds() - chosen);
        }
        Ok(Cost { prefill, capture: (with - without).max(0.0), selection, encoding })
    }
}

impl TimedPrompt {
    fn new(tokens: usize) -> Self {
        let content = tokens - PREFIX - SUFFIX;
        let mut text = document(1, content).text;
        let mut spans: Vec<Range<usize>> = Vec::with_capacity(content);
        let mut start = 0;
        for (end, _) in text.match_indices([' ', '\n']).skip(1) {
            if spans.len() == content {
                break;
            }
            spans.push(start..end);
            start = end;
        }
        text.truncate(spans.last().map_or(0, |span| span.end));
        let tokens = PREFIX + spans.len() + SUFFIX;
        let segments = vec![
            Segment::refinable(Role::User, text),
            Segment::fixed(Role::User, "\n\nQuestion: What is it?"),
        ];
        Self { map: SentenceMap::new(&segments), segments, spans, tokens }
    }

    fn refine(
        &self,
        scores: &AttentionScores,
        calibration: Option<&Calibration>,
    ) -> Result<baton_refine::Refined> {
        let heads: Vec<_> = scores.heads.iter().map(|id| (id.layer, id.head)).collect();
        let queries = scores.keys - SUFFIX..scores.keys;
        let scores = Scores { heads: &heads, keys: scores.keys, mean: &scores.mean, queries };
        let refined = refine(RefineInput {
            segments: &self.segments,
            map: &self.map,
            content: &[ContentTokens { segment: 0, first: PREFIX, spans: &self.spans }],
            prompt_tokens: self.tokens,
            scores: Some(scores),
            calibration,
            question: "",
            ratio: RATIO,
            least_value: None,
            mode: Mode::Attention,
        });
        refined.context("choose sentences")
    }
}

/// Returns the scores that the default mode needs.
fn plan(model: &Arc<Model>, suffix_tokens: usize, calibration: Option<&Calibration>) -> Result<CapturePlan> {
    let config = model.config();
    let shape = AttentionShape { n_layers: config.n_layers, n_heads: config.n_heads };
    let plan = capture_plan(Mode::Attention, shape, suffix_tokens, calibration);
    plan.context("the default mode ranks by attention")
}

/// Makes the capture of the plan's window at the end of a pass of `tokens` tokens.
fn capture(plan: &CapturePlan, tokens: usize) -> Capture {
    Capture {
        window: tokens.saturating_sub(plan.window)..tokens,
        heads: plan.heads.iter().map(|&(layer, head)| HeadId { layer, head }).collect(),
        over: MeanOver::Queries,
    }
}

/// Computes `ids` in chunks, with logits of the last token.
fn prefill(engine: &mut Engine, seq: SeqId, ids: &[TokenId]) -> Result<()> {
    let mut chunks = ids.chunks(CHUNK).peekable();
    while let Some(chunk) = chunks.next() {
        let logits = if chunks.peek().is_some() { Wanted::None } else { Wanted::Last };
        engine.step(&[StepSeq { seq, ids: chunk, logits, capture: None }], &mut ())?;
    }
    Ok(())
}
