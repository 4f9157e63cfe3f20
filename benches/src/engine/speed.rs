//! Measures prefill, decoding and batched decoding of one model: alternations, tables and checks.

use std::process::Command;

use anyhow::{Context as _, Result};
use baton_engine::ModelConfig;
use baton_engine::gguf::Gguf;
use baton_engine::weights::vocab_len;
use baton_kernels_cpu::Dispatch;
use baton_pacing::refit::median;
use serde_json::json;

use super::figure::{DEEP_TOKENS, DEPTH_CHECKED, Figure, figures};
use super::process::Worker;
use super::programs::{IK, LLAMA, PEER_KV, Programs, own_command};
use super::samples::Samples;
use super::worker::SHIPPED_KV;
use super::{Args, MAIN_MODEL, OURS, Peers, Subject};
use crate::report::Report;

/// The limits of the machine, and the work for one token.
struct Limits {
    read_bytes_per_s: f64,
    int8_ops_per_s: f64,
    weight_bytes: f64,
    layer_weights: f64,
}

/// Measures one model and adds its tables and checks.
pub(super) fn measure(args: &Args, subject: &Subject, peers: &Peers, report: &mut Report) -> Result<()> {
    let context_tokens = context_tokens(subject)?;
    let figures = figures(args, context_tokens);
    if figures.is_empty() {
        return Ok(());
    }
    let mut probe = Worker::start("probe", Command::new(&peers.probe).arg(args.threads.to_string()))?;
    // A file that was just written is on small pages, with which address translation would limit the speed.
    probe.number(&format!("fresh {}", subject.path.display()), "per_second")?;
    let mut programs =
        Programs::start(args, subject, &peers.all(), context_tokens.min(args.longest_tokens()))?;
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
        let with_ik = peers.ik.is_some();
        checks(subject, &figures, &samples, with_ik, report);
        limit_checks(subject, &samples, &limits, report);
        tile_unit(args, subject, report)?;
    }
    Ok(())
}

/// Returns the context length of the model.
pub(super) fn context_tokens(subject: &Subject) -> Result<usize> {
    let read = || format!("read {}", subject.path.display());
    let gguf = Gguf::open(&subject.path).with_context(read)?;
    let vocabulary = vocab_len(&gguf).with_context(read)?;
    Ok(ModelConfig::from_gguf(&gguf, vocabulary).with_context(read)?.context_len)
}

fn progress(args: &Args, subject: &Subject, figure: Figure, at: usize, samples: &Samples) {
    let name = figure.name();
    let rates: Vec<String> = programs()
        .filter_map(|program| Some(format!("{program} {:.1}", samples.rate(&name, program, at)?)))
        .collect();
    let (turn, turns) = (at + 1, args.alternations());
    eprintln!("{} {turn}/{turns}: {name}: {} tokens/s", subject.name, rates.join(", "));
}

/// The names of all programs, in the order of the tables.
fn programs() -> impl Iterator<Item = &'static str> {
    [OURS].into_iter().chain(LLAMA).chain(IK)
}

fn tables(subject: &Subject, figures: &[Figure], samples: &Samples, limits: &Limits, report: &mut Report) {
    let text =
        |value: Option<f64>, digits: usize| value.map_or_else(String::new, |v| format!("{v:.digits$}"));
    let mut data = Vec::new();
    let mut rows = Vec::new();
    for &figure in figures {
        let name = figure.name();
        let rates: Vec<Option<f64>> = programs().map(|program| samples.median(&name, program)).collect();
        let (to_llama, to_ik) = (samples.ratio(&name, OURS, &LLAMA), samples.ratio(&name, OURS, &IK));
        let share = rates[0].and_then(|rate| limits.share(figure, rate));
        data.push(json!({
            "model": subject.name, "figure": name, "baton": rates[0], "llama_repack_0": rates[1],
            "llama_repack_1": rates[2], "ik_repack_0": rates[3], "ik_repack_1": rates[4],
            "ratio": to_llama, "ratio_to_ik": to_ik, "share_of_limit": share,
        }));
        let mut row = vec![name];
        row.extend(rates.into_iter().map(|rate| text(rate, 1)));
        row.extend([text(to_llama, 2), text(to_ik, 2)]);
        row.push(share.map_or_else(String::new, |share| format!("{share:.2} of {}", figure.limit_name())));
        rows.push(row);
    }
    let mut header = vec!["tokens/s, median"];
    header.extend(programs());
    header.extend(["to the better llama.cpp", "to the better ik", "of the limit"]);
    report.table(&subject.name, &header, &rows);
    report.note(format!(
        "keys and values as each program keeps them by itself: baton {SHIPPED_KV}, llama.cpp and ik {PEER_KV}"
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
        if self.is_prefill() { "int8 peak" } else { "bandwidth" }
    }
}

impl Limits {
    /// Returns the share of the machine's limit that `rate` tokens per second use. `None` for batches, for
    /// which neither limit is meaningful, and if the limit is unknown.
    fn share(&self, figure: Figure, rate: f64) -> Option<f64> {
        match figure {
            Figure::Prefill(_) | Figure::Deep(_) if self.int8_ops_per_s > 0.0 => {
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

fn checks(subject: &Subject, figures: &[Figure], samples: &Samples, with_ik: bool, report: &mut Report) {
    for &figure in figures {
        let name = figure.name();
        if let Some(least) = figure.least_ratio(&subject.name) {
            let ratio = samples.ratio(&name, OURS, &LLAMA).unwrap_or(f64::NAN);
            report.check_at_least(format!("{} {name}: ratio to llama.cpp", subject.name), ratio, least);
        }
        if let Some(least) = figure.least_ratio_to_ik().filter(|_| with_ik) {
            let ratio = samples.ratio(&name, OURS, &IK).unwrap_or(f64::NAN);
            report.check_at_least(format!("{} {name}: ratio to ik_llama.cpp", subject.name), ratio, least);
        }
    }
}

/// Checks how much of the machine's limits is used, and what a long context costs.
fn limit_checks(subject: &Subject, samples: &Samples, limits: &Limits, report: &mut Report) {
    let (short, single) = (Figure::Prefill(DEEP_TOKENS), Figure::Decode(0));
    let ours = |figure: Figure| samples.median(&figure.name(), OURS);
    // With a tile unit the limit is another one, and the check is that of `tile_unit`.
    if let Some(share) = ours(short).and_then(|rate| limits.share(short, rate))
        && Dispatch::best() != Dispatch::Avx512Amx
    {
        report.check_at_least(
            format!("{} {}: share of the int8 peak", subject.name, short.name()),
            share,
            0.5,
        );
    }
    if let Some(share) = ours(single).and_then(|rate| limits.share(single, rate)) {
        let least = if subject.name == MAIN_MODEL { 0.92 } else { 0.9 };
        report.check_at_least(format!("{} decode at 0: share of read bandwidth", subject.name), share, least);
    }
    let deep = Figure::Deep(DEPTH_CHECKED);
    if let Some((rate, of)) = ours(deep).zip(ours(short)) {
        let name = format!("{} {}: share of the rate of {}", subject.name, deep.name(), short.name());
        report.check_at_least(name, rate / of, 0.6);
    }
}

/// Compares the level with a tile unit with the one below it, on machines that have such a unit.
fn tile_unit(args: &Args, subject: &Subject, report: &mut Report) -> Result<()> {
    if Dispatch::best() != Dispatch::Avx512Amx {
        report.note("this CPU has no tile unit (AMX), so that level is not measured");
        return Ok(());
    }
    let figure = Figure::Prefill(DEEP_TOKENS);
    let mut workers = Vec::new();
    for level in [Dispatch::Avx512Amx, Dispatch::Avx512Vnni] {
        let mut command = own_command(args, subject, SHIPPED_KV)?;
        workers.push(Worker::start(level.name(), command.env("BATON_CPU", level.name()))?);
    }
    let mut ratios = Vec::new();
    for _ in 0..args.alternations() {
        let [tiles, lanes] = [0, 1].map(|idx: usize| workers[idx].seconds(&figure.request()));
        ratios.push(lanes? / tiles?);
    }
    let ratio = median(ratios).context("nothing was measured")?;
    let name = format!("{} {}: tile unit beside AVX-512 VNNI", subject.name, figure.name());
    report.check_at_least(name, ratio, 2.5);
    Ok(())
}
