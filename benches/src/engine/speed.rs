//! Measures prefill, decoding and batched decoding of one model: alternations, tables and checks.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use baton_engine::ModelConfig;
use baton_engine::engine::KvFormat;
use baton_engine::gguf::Gguf;
use baton_engine::weights::vocab_len;
use baton_pacing::refit::median;
use serde_json::json;

use super::peer::{self, Peer};
use super::process::Worker;
use super::samples::Samples;
use super::worker::SHIPPED_KV;
use super::{Args, OURS, Part, Subject};
use crate::report::Report;

/// Baton with KV format q8. Only the engine has it: the programs have no option for it.
const OURS_Q8: &str = "baton, q8 KV (engine alone)";
/// llama.cpp's default format of keys and values.
const PEER_KV: &str = "f16";
const PEERS: [&str; 2] = ["llama.cpp repack 0", "llama.cpp repack 1"];
/// Length of the longest sequence, including the tokens decoded after it.
const CONTEXT_TOKENS: usize = 8192 + 64;
const DECODE_TOKENS: usize = 64;
const BATCH_STEPS: usize = 32;

/// A measured figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Figure {
    /// Prefill of a prompt of this many tokens.
    Prefill(usize),
    /// Decoding of single tokens after this many tokens.
    Decode(usize),
    /// Decoding of one token at a time for this many sequences.
    Batch(usize),
}

impl Figure {
    fn name(self) -> String {
        match self {
            Self::Prefill(tokens) => format!("prefill {tokens}"),
            Self::Decode(context) => format!("decode at {context}"),
            Self::Batch(seqs) => format!("decode batch {seqs}"),
        }
    }

    fn request(self) -> String {
        match self {
            Self::Prefill(tokens) => format!("prefill {tokens}"),
            Self::Decode(context) => format!("decode {context} {DECODE_TOKENS}"),
            Self::Batch(seqs) => format!("batch {seqs} {BATCH_STEPS}"),
        }
    }

    /// Returns the length of the longest sequence of one request.
    fn longest_tokens(self) -> usize {
        match self {
            Self::Prefill(tokens) => tokens,
            Self::Decode(context) => context + DECODE_TOKENS,
            Self::Batch(_) => BATCH_STEPS,
        }
    }

    /// Returns the number of timed tokens of one request, over all sequences.
    fn tokens(self) -> usize {
        match self {
            Self::Prefill(tokens) => tokens,
            Self::Decode(_) => DECODE_TOKENS,
            Self::Batch(seqs) => seqs * BATCH_STEPS,
        }
    }

    /// Returns the minimum ratio to llama.cpp for the model, or `None` if there is no check.
    fn least_ratio(self, model: &str) -> Option<f64> {
        match (model, self) {
            ("llama-1b", Self::Prefill(_)) => Some(1.4),
            ("qwen-0.5b", Self::Prefill(_)) => Some(1.8),
            ("llama-1b", Self::Decode(0)) => Some(1.0),
            ("qwen-0.5b", Self::Decode(0)) => Some(1.3),
            ("llama-1b", Self::Decode(2048)) => Some(1.4),
            ("llama-1b", Self::Batch(_)) => Some(2.0),
            _ => None,
        }
    }
}

/// Returns the figures to measure that fit into the model's context. A prompt comes just before decoding
/// after it.
fn figures(args: &Args, context_tokens: usize) -> Vec<Figure> {
    use Figure::{Batch, Decode, Prefill};
    let all: &[Figure] = if args.quick {
        &[Prefill(512), Decode(0), Batch(8)]
    } else {
        &[
            Prefill(512),
            Decode(0),
            Prefill(2048),
            Decode(2048),
            Prefill(8192),
            Decode(8192),
            Batch(8),
            Batch(16),
        ]
    };
    let part = |figure: &Figure| match figure {
        Prefill(_) => Part::Prefill,
        Decode(_) => Part::Decode,
        Batch(_) => Part::Batch,
    };
    let fits = |figure: &Figure| figure.longest_tokens() <= context_tokens;
    all.iter().copied().filter(|figure| args.wants(part(figure)) && fits(figure)).collect()
}

/// The limits of the machine, and the work for one token.
struct Limits {
    read_bytes_per_s: f64,
    int8_ops_per_s: f64,
    weight_bytes: f64,
    layer_weights: f64,
}

/// Measures one model and adds its tables and checks.
pub(super) fn measure(
    args: &Args,
    subject: &Subject,
    peer: &Peer,
    target: &Path,
    report: &mut Report,
) -> Result<()> {
    let context_tokens = context_tokens(subject)?;
    let figures = figures(args, context_tokens);
    if figures.is_empty() {
        return Ok(());
    }
    let mut probe = Worker::start("probe", Command::new(peer::probe(target)?).arg(args.threads.to_string()))?;
    // A file that was just written is on small pages, with which address translation would limit the speed.
    probe.number(&format!("fresh {}", subject.path.display()), "per_second")?;
    let mut programs = Programs::start(args, subject, peer, context_tokens.min(CONTEXT_TOKENS))?;
    let mut samples = Samples::default();
    let (mut reads, mut int8s) = (Vec::new(), Vec::new());
    for at in 0..args.alternations() {
        for _ in 0..3 {
            reads.push(probe.number("read", "per_second")?);
        }
        int8s.push(probe.number("int8", "per_second")?);
        for &figure in &figures {
            programs.alternate(figure, at, &mut samples)?;
            progress(args, subject, figure, at, &samples);
        }
    }
    let info = programs.running[0].ask("info")?;
    let size = |key: &str| info[key].as_f64().with_context(|| format!("the engine's worker says no {key}"));
    let limits = Limits {
        read_bytes_per_s: median(reads).context("no bandwidth was measured")?,
        int8_ops_per_s: median(int8s).context("no int8 rate was measured")?,
        weight_bytes: size("weight_bytes")?,
        layer_weights: size("layer_weights")?,
    };
    tables(subject, &figures, &samples, &limits, report);
    memory(subject, &programs.running, report)?;
    programs.tell_failures(subject, report);
    if !args.quick {
        checks(subject, &figures, &samples, &limits, report);
    }
    Ok(())
}

/// Returns the context length of the model, which is the longest sequence that is measured.
fn context_tokens(subject: &Subject) -> Result<usize> {
    let read = || format!("read {}", subject.path.display());
    let gguf = Gguf::open(&subject.path).with_context(read)?;
    let vocabulary = vocab_len(&gguf).with_context(read)?;
    Ok(ModelConfig::from_gguf(&gguf, vocabulary).with_context(read)?.context_len)
}

/// The workers that are measured in turn. A variant of llama.cpp that fails is reported and not measured
/// again.
struct Programs {
    running: Vec<Worker>,
    failed: Vec<(String, String)>,
}

impl Programs {
    fn start(args: &Args, subject: &Subject, peer: &Peer, context_tokens: usize) -> Result<Self> {
        let mut running = vec![start_ours(args, subject, SHIPPED_KV)?];
        if args.wants(Part::Decode) && !args.quick {
            running.push(start_ours(args, subject, KvFormat::Q8)?);
        }
        let driver = peer.driver()?;
        let mut programs = Self { running, failed: Vec::new() };
        for (name, repack) in PEERS.into_iter().zip(["0", "1"]) {
            let mut command = Command::new(&driver);
            command.arg(&subject.path);
            command.args([&args.threads.to_string(), repack, PEER_KV, &context_tokens.to_string()]);
            match Worker::start(name, &mut command) {
                Ok(worker) => programs.running.push(worker),
                Err(err) => programs.fail(name, &err),
            }
        }
        Ok(programs)
    }

    fn fail(&mut self, name: &str, err: &anyhow::Error) {
        eprintln!("{name} failed, and is not measured any more: {err:#}");
        self.failed.push((name.to_owned(), format!("{err:#}")));
    }

    /// Measures one figure with every program. Each alternation starts with another program.
    fn alternate(&mut self, figure: Figure, at: usize, samples: &mut Samples) -> Result<()> {
        let figure_name = figure.name();
        let count = self.running.len();
        let order: Vec<String> =
            (0..count).map(|turn| self.running[(at + turn) % count].name.clone()).collect();
        for name in order {
            let is_peer = PEERS.contains(&name.as_str());
            if name == OURS_Q8 && !matches!(figure, Figure::Decode(0 | 8192)) {
                continue;
            }
            if at > 0 && is_peer && samples.is_behind(&figure_name, &name, &PEERS) {
                continue;
            }
            let Some(idx) = self.running.iter().position(|program| program.name == name) else { continue };
            match self.running[idx].seconds(&figure.request()) {
                Ok(seconds) => samples.add(&figure_name, &name, at, figure.tokens() as f64 / seconds),
                Err(err) if is_peer => {
                    self.running.remove(idx);
                    self.fail(&name, &err);
                }
                Err(err) => return Err(err),
            }
        }
        Ok(())
    }

    /// Reports failed variants of llama.cpp. If all variants failed, ratios are NaN and their checks fail.
    fn tell_failures(&self, subject: &Subject, report: &mut Report) {
        for (name, error) in &self.failed {
            report.note(format!("{name} failed on {}: {error}", subject.name));
        }
        report.data(&format!("{} failed peers", subject.name), json!(self.failed));
    }
}

fn progress(args: &Args, subject: &Subject, figure: Figure, at: usize, samples: &Samples) {
    let name = figure.name();
    let rates: Vec<String> = [OURS, OURS_Q8, PEERS[0], PEERS[1]]
        .into_iter()
        .filter_map(|program| Some(format!("{program} {:.1}", samples.rate(&name, program, at)?)))
        .collect();
    let (turn, turns) = (at + 1, args.alternations());
    eprintln!("{} {turn}/{turns}: {name}: {} tokens/s", subject.name, rates.join(", "));
}

/// Starts Baton's worker on the model, with the KV format `kv`.
pub(super) fn start_ours(args: &Args, subject: &Subject, kv: KvFormat) -> Result<Worker> {
    start_own(args, subject, kv, &[])
}

/// As [`start_ours`], with further options.
pub(super) fn start_own(args: &Args, subject: &Subject, kv: KvFormat, more: &[&str]) -> Result<Worker> {
    let own = std::env::current_exe().context("find the running program")?;
    let mut command = Command::new(own);
    command.arg("engine-worker").arg(&subject.path).args(["--kv", kv.name()]);
    command.args(["--threads", &args.threads.to_string(), "--context", &CONTEXT_TOKENS.to_string()]);
    command.args(more);
    Worker::start(if kv == KvFormat::Q8 { OURS_Q8 } else { OURS }, &mut command)
}

fn tables(subject: &Subject, figures: &[Figure], samples: &Samples, limits: &Limits, report: &mut Report) {
    let text =
        |value: Option<f64>, digits: usize| value.map_or_else(String::new, |v| format!("{v:.digits$}"));
    let mut data = Vec::new();
    let rows: Vec<Vec<String>> = figures
        .iter()
        .map(|&figure| {
            let name = figure.name();
            let [ours, ours_q8, first, second] =
                [OURS, OURS_Q8, PEERS[0], PEERS[1]].map(|program| samples.median(&name, program));
            let ratio = samples.ratio(&name, OURS, &PEERS);
            let share = ours.and_then(|rate| limits.share(figure, rate));
            data.push(json!({
                "model": subject.name, "figure": name, "baton": ours, "baton_q8_kv": ours_q8,
                "llama_repack_0": first,
                "llama_repack_1": second, "ratio": ratio, "share_of_limit": share,
            }));
            let mut row =
                vec![name, text(ours, 1), text(ours_q8, 1), text(first, 1), text(second, 1), text(ratio, 2)];
            row.push(
                share.map_or_else(String::new, |share| format!("{share:.2} of {}", figure.limit_name())),
            );
            row
        })
        .collect();
    let header =
        ["tokens/s, median", OURS, OURS_Q8, PEERS[0], PEERS[1], "ratio to the better", "of the limit"];
    report.table(&subject.name, &header, &rows);
    report.note(format!(
        "keys and values as each program keeps them by itself: baton {SHIPPED_KV}, llama.cpp {PEER_KV}"
    ));
    report.note(format!(
        "read bandwidth {:.1} GB/s, int8 peak {:.2} TOP/s, {:.0} MB of weights read for a token",
        limits.read_bytes_per_s / 1e9,
        limits.int8_ops_per_s / 1e12,
        limits.weight_bytes / 1e6
    ));
    report.data(format!("{} figures", subject.name).as_str(), data);
    report.data(format!("{} read_bytes_per_s", subject.name).as_str(), limits.read_bytes_per_s);
    report.data(format!("{} int8_ops_per_s", subject.name).as_str(), limits.int8_ops_per_s);
}

impl Figure {
    fn limit_name(self) -> &'static str {
        if matches!(self, Self::Prefill(_)) { "int8 peak" } else { "bandwidth" }
    }
}

impl Limits {
    /// Returns the share of the machine's limit that `rate` tokens per second use. `None` for batches, for
    /// which neither limit is meaningful, and if the limit is unknown.
    fn share(&self, figure: Figure, rate: f64) -> Option<f64> {
        match figure {
            Figure::Prefill(_) if self.int8_ops_per_s > 0.0 => {
                Some(2.0 * self.layer_weights * rate / self.int8_ops_per_s)
            }
            Figure::Decode(_) => Some(self.weight_bytes * rate / self.read_bytes_per_s),
            _ => None,
        }
    }
}

fn memory(subject: &Subject, programs: &[Worker], report: &mut Report) -> Result<()> {
    let mut rows = Vec::new();
    let mut data = Vec::new();
    for program in programs {
        let memory = program.memory()?;
        rows.push(vec![
            program.name.clone(),
            format!("{:.0}", memory.peak as f64 / 1e6),
            format!("{:.0}", memory.unreclaimable as f64 / 1e6),
        ]);
        data.push(json!({
            "program": program.name, "peak_bytes": memory.peak, "unreclaimable_bytes": memory.unreclaimable,
        }));
    }
    report.table(&format!("{}: memory, MB", subject.name), &["", "peak", "unreclaimable"], &rows);
    report.data(format!("{} memory", subject.name).as_str(), data);
    Ok(())
}

fn checks(subject: &Subject, figures: &[Figure], samples: &Samples, limits: &Limits, report: &mut Report) {
    for &figure in figures {
        let name = figure.name();
        if let Some(least) = figure.least_ratio(&subject.name) {
            let ratio = samples.ratio(&name, OURS, &PEERS).unwrap_or(f64::NAN);
            report.check_at_least(format!("{} {name}: ratio to llama.cpp", subject.name), ratio, least);
        }
        if figure == Figure::Decode(0) && subject.name == "llama-1b" {
            let rate = samples.median(&name, OURS).unwrap_or(f64::NAN);
            let share = limits.share(figure, rate).unwrap_or(f64::NAN);
            report.check_at_least(format!("{} {name}: share of read bandwidth", subject.name), share, 0.92);
        }
        if figure == Figure::Decode(8192) && subject.name == "llama-1b" {
            let without = Figure::Decode(0).name();
            let left = samples.median(&name, OURS_Q8).zip(samples.median(&without, OURS_Q8));
            let loss = left.map_or(f64::NAN, |(with, without)| 100.0 * (1.0 - with / without));
            report.check_at_most(format!("{} {name}, q8 KV: % lost against 0", subject.name), loss, 25.0);
        }
    }
}
