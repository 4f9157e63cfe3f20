//! `baton-bench cloud`: measures what requests cost the cloud service, running as a real process over HTTP.
//!
//! The engine without a service gives the reference times in the same run, while the service is idle. These
//! are the prefill time P, the time s of a decode step of one answer, and the time s_N of a step of N
//! answers. Two claims are checked. Without load, a request holds a slot for little more than `P + L s`. With
//! N clients in a closed loop on N slots, the service comes close to the bound of `1 / (P + L s_N / N)`
//! requests per second. So a smaller L serves more requests, as the bound predicts.
//!
//! Prompts are random letters, one token each, without a common prefix; nothing is refined.

use std::num::NonZeroUsize;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use baton_pacing::refit::median;
use serde_json::{Value, json};

use crate::engine::SubjectArgs;
use crate::engine::letters::Letters;
use crate::engine::process::Worker;
use crate::engine::samples::percentile;
use crate::report::Report;

mod load;
pub(crate) mod service;

use load::{Settled, Shape, closed_loop};
use service::{Service, Took};

/// Maximum slot time, as a multiple of `P + L s`.
const SLOT_RATIO_MAX: f64 = 1.15;
/// Minimum throughput, as a share of the bound.
const BOUND_SHARE_MIN: f64 = 0.85;
/// Number of steps over which the time of a step is averaged.
const STEPS: usize = 16;
/// The L with which the throughput of smaller L is compared.
const LONGEST: usize = 200;

/// Options of `baton-bench cloud`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: SubjectArgs,
    /// Number of slots of the service, and of clients in the closed loop
    #[arg(long, default_value = "8")]
    slots: NonZeroUsize,
    /// Lengths of prompts in tokens
    #[arg(long, value_delimiter = ',', default_value = "512,2048")]
    prompts: Vec<usize>,
    /// Values of L, the number of tokens that the cloud writes for a request
    #[arg(long, value_delimiter = ',', default_value = "1,10,20,50,100,200")]
    lengths: Vec<usize>,
    /// Number of requests without load, for each prompt length and L
    #[arg(long, default_value_t = 3)]
    alone: usize,
    /// Number of requests per slot that are counted in the closed loop
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// A short run of some minutes without checks: the first prompt length, three values of L, fewer requests
    #[arg(long)]
    quick: bool,
}

impl Args {
    fn looked_at(&self) -> Result<(Vec<usize>, Vec<usize>, usize, usize)> {
        let (mut prompts, mut lengths) = (self.prompts.clone(), self.lengths.clone());
        let (mut alone, mut rounds) = (self.alone, self.rounds);
        if self.quick {
            prompts.truncate(1);
            lengths.retain(|length| [1, 20, LONGEST].contains(length));
            (alone, rounds) = (1, 1);
        }
        if prompts.iter().any(|tokens| *tokens < 16) || lengths.contains(&0) || alone == 0 || rounds == 0 {
            bail!("prompts must have 16 tokens, and L, requests and rounds be at least 1");
        }
        Ok((prompts, lengths, alone, rounds))
    }
}

/// The times of the engine without a service, in seconds.
#[derive(Debug, Clone, Copy)]
struct Alone {
    /// P: prefill of the prompt.
    prefill_s: f64,
    /// s: one decode step of one answer.
    step_s: f64,
}

/// The results for one prompt length and one L.
#[derive(Debug)]
struct Cell {
    shape: Shape,
    alone: Alone,
    /// Median slot time of requests without load.
    slot_s: f64,
    settled: Settled,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let (prompts, lengths, alone, rounds) = args.looked_at()?;
    let subject = args.on.ready()?;
    let longest =
        prompts.iter().max().zip(lengths.iter().max()).map(|(p, l)| p + l).context("no prompts, no L")?;
    let slots = args.slots.get();
    let mut engine = engine(args, &subject.path, slots * (longest + 64))?;
    let options = [
        ("--threads", args.on.threads.get()),
        ("--slots", slots),
        ("--kv-tokens", (slots + 1) * (longest + 64)),
        ("--prefix-cache", 0),
        // Long enough that the service rejects no request of the closed loop.
        ("--queue-seconds", 3600),
    ];
    let mut options: Vec<String> =
        options.iter().flat_map(|(name, value)| [(*name).to_owned(), value.to_string()]).collect();
    // The bound is that of passes with one token of each answer.
    options.extend(["--speculate", "off"].map(str::to_owned));
    let service = Service::start(&subject.path, &options)?;
    let mut report = Report::new("cloud");
    report.note(format!("{}: {slots} slots, {} threads", subject.name, args.on.threads));
    for &prompt_tokens in &prompts {
        let mut step_n = vec![step_of_many(&mut engine, slots, prompt_tokens)?];
        let mut cells = Vec::new();
        for &answer_tokens in &lengths {
            let shape = Shape { prompt_tokens, answer_tokens };
            cells.push(cell(&mut engine, &service, shape, slots, alone, rounds)?);
            progress(&cells, &step_n, slots);
        }
        if !args.quick {
            step_n.push(step_of_many(&mut engine, slots, prompt_tokens)?);
        }
        let step_n_s = median(step_n).context("a step was measured")?;
        add(&mut report, &cells, step_n_s, slots, !args.quick)?;
    }
    report.data("slots", slots);
    report.data("threads", args.on.threads.get());
    Ok(report)
}

/// Starts the engine without a service, with the same KV format as in the service.
fn engine(args: &Args, model: &std::path::Path, context: usize) -> Result<Worker> {
    let own = std::env::current_exe().context("find the running program")?;
    let mut command = Command::new(own);
    command.arg("engine-worker").arg(model).args(["--kv", "f32"]);
    command.args(["--threads", &args.on.threads.to_string(), "--context", &context.to_string()]);
    Worker::start("engine", &mut command)
}

fn alone(engine: &mut Worker, prompt_tokens: usize) -> Result<Alone> {
    let prefill_s = engine.seconds(&format!("prefill {prompt_tokens}"))?;
    let step_s = engine.seconds(&format!("decode {prompt_tokens} {STEPS}"))? / STEPS as f64;
    Ok(Alone { prefill_s, step_s })
}

/// Measures s_N after prompts of this length.
fn step_of_many(engine: &mut Worker, slots: usize, prompt_tokens: usize) -> Result<f64> {
    Ok(engine.seconds(&format!("batch {slots} {STEPS} {prompt_tokens}"))? / STEPS as f64)
}

fn cell(
    engine: &mut Worker,
    service: &Service,
    shape: Shape,
    slots: usize,
    requests: usize,
    rounds: usize,
) -> Result<Cell> {
    let before = alone(engine, shape.prompt_tokens)?;
    let mut letters = Letters::new(shape.answer_tokens as u64);
    let mut held = Vec::new();
    for _ in 0..requests {
        let took = service.assist(&shape.ask(&mut letters))?;
        if took.prompt_tokens != shape.prompt_tokens as u64 || took.cached_tokens != 0 {
            bail!("{} prompt tokens, {} of them cached: {shape:?}", took.prompt_tokens, took.cached_tokens);
        }
        held.push(took.slot.as_secs_f64());
    }
    let after = alone(engine, shape.prompt_tokens)?;
    let settled = closed_loop(service, shape, slots, rounds * slots)?;
    Ok(Cell {
        shape,
        alone: Alone {
            prefill_s: (before.prefill_s + after.prefill_s) / 2.0,
            step_s: (before.step_s + after.step_s) / 2.0,
        },
        slot_s: median(held).context("a request was measured")?,
        settled,
    })
}

impl Cell {
    /// Returns the slot time as a multiple of `P + L s`.
    fn slot_ratio(&self) -> f64 {
        let Alone { prefill_s, step_s } = self.alone;
        self.slot_s / (prefill_s + self.shape.answer_tokens as f64 * step_s)
    }

    /// Returns the bound on requests per second, `1 / (P + L s_N / N)`.
    fn bound_per_s(&self, prefill_s: f64, step_n_s: f64, slots: usize) -> f64 {
        1.0 / (prefill_s + self.shape.answer_tokens as f64 * step_n_s / slots as f64)
    }

    fn ttft_s(&self, share: f64) -> f64 {
        let seconds = |took: &Took| took.ttft.as_secs_f64();
        percentile(self.settled.took.iter().map(seconds).collect(), share).unwrap_or(f64::NAN)
    }
}

fn progress(cells: &[Cell], step_n: &[f64], slots: usize) {
    let (Some(cell), Some(step_n_s)) = (cells.last(), step_n.last()) else { return };
    let bound = cell.bound_per_s(cell.alone.prefill_s, *step_n_s, slots);
    eprintln!(
        "{} tokens, L {}: slot {:.2} of P + L s, {:.3} requests/s, {:.2} of the bound",
        cell.shape.prompt_tokens,
        cell.shape.answer_tokens,
        cell.slot_ratio(),
        cell.settled.per_s,
        cell.settled.per_s / bound,
    );
}

/// Adds the table, the figures and the checks of one prompt length.
fn add(report: &mut Report, cells: &[Cell], step_n_s: f64, slots: usize, checks: bool) -> Result<()> {
    let prefill_s = median(cells.iter().map(|cell| cell.alone.prefill_s)).context("a prompt was measured")?;
    let step_s = median(cells.iter().map(|cell| cell.alone.step_s)).context("a step was measured")?;
    let prompt_tokens = cells[0].shape.prompt_tokens;
    let bound = |cell: &Cell| cell.bound_per_s(prefill_s, step_n_s, slots);
    let longest = cells.iter().find(|cell| cell.shape.answer_tokens == LONGEST);
    let (mut rows, mut data): (Vec<Vec<String>>, Vec<Value>) = (Vec::new(), Vec::new());
    for cell in cells {
        let share = cell.settled.per_s / bound(cell);
        let gains =
            longest.map(|longest| (cell.settled.per_s / longest.settled.per_s, bound(cell) / bound(longest)));
        let (gain, bound_gain) = gains.unzip();
        let number = |value: f64, digits: usize| format!("{value:.digits$}");
        let gain_text = |gain: Option<f64>| gain.map_or_else(String::new, |gain| number(gain, 2));
        rows.push(vec![
            cell.shape.answer_tokens.to_string(),
            number(cell.slot_s, 3),
            number(cell.slot_ratio(), 3),
            number(cell.settled.per_s, 3),
            number(bound(cell), 3),
            number(share, 3),
            gain_text(gain),
            gain_text(bound_gain),
            number(cell.ttft_s(0.5), 2),
            number(cell.ttft_s(0.95), 2),
        ]);
        data.push(json!({
            "assist_tokens": cell.shape.answer_tokens, "prefill_s": cell.alone.prefill_s, "step_s": cell.alone.step_s,
            "slot_s": cell.slot_s, "slot_ratio": cell.slot_ratio(), "requests_per_s": cell.settled.per_s,
            "bound_per_s": bound(cell), "bound_share": share, "gain": gain, "bound_gain": bound_gain,
            "ttft_p50_s": cell.ttft_s(0.5), "ttft_p95_s": cell.ttft_s(0.95), "requests": cell.settled.took.len(),
        }));
        if checks {
            let name = |what: &str| format!("{prompt_tokens} tokens, L {}: {what}", cell.shape.answer_tokens);
            report.check_at_most(name("slot time, in P + L s"), cell.slot_ratio(), SLOT_RATIO_MAX);
            report.check_at_least(name("requests/s, of the bound"), share, BOUND_SHARE_MIN);
        }
    }
    let title = format!(
        "{prompt_tokens} tokens: P {prefill_s:.3} s, s {:.1} ms, s_{slots} {:.1} ms",
        step_s * 1e3,
        step_n_s * 1e3
    );
    let over = format!("over L {LONGEST}");
    let header = [
        "L",
        "slot s",
        "/ (P + L s)",
        "requests/s",
        "bound",
        "share",
        &over,
        "bound's",
        "TTFT p50 s",
        "p95 s",
    ];
    report.table(&title, &header, &rows);
    report.data(
        &prompt_tokens.to_string(),
        json!({
            "prefill_s": prefill_s, "step_s": step_s, "step_n_s": step_n_s, "cells": data,
        }),
    );
    Ok(())
}
