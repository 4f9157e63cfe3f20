//! Prefill and decoding of a batch over no adapter, over one and over four, in turn.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use baton_engine::{AdapterId, Engine, EngineOptions, Model, StepSeq, TokenId, Wanted};
use baton_import::ADAPTER_FORMAT;
use baton_kernels_cpu::Format;
use serde_json::json;

use super::{ADAPTERS, SEQUENCES, adapter_bytes, opened};
use crate::engine::samples::Samples;
use crate::report::Report;

/// Tokens of each sequence's prompt. All prompts are one pass, as the service would compute them.
const PROMPT_TOKENS: usize = 64;
/// The least speed over four adapters, as a share of that over one.
const SHARE_MIN: f64 = 0.8;

/// How a measurement is done.
pub(super) struct Run {
    /// Threads of the engine.
    pub threads: NonZeroUsize,
    /// Rounds.
    pub rounds: usize,
    /// Tokens that each sequence writes in a round.
    pub tokens: usize,
    /// Bytes of weights that a decoded token reads.
    pub weight_bytes: usize,
    /// Whether the claims are checked.
    pub checked: bool,
}

impl Run {
    /// Returns the most that decoding over four adapters can reach, as a share of decoding over one. Both are
    /// bound by reading memory: each pass reads the weights and each of its adapters once.
    fn memory_limit(&self, adapter_bytes: usize) -> f64 {
        (self.weight_bytes + adapter_bytes) as f64 / (self.weight_bytes + ADAPTERS * adapter_bytes) as f64
    }
}

/// What the sequences of a batch use: no adapter, one, or all in turn.
const BATCHES: [&str; 3] = ["none", "one", "four"];

/// Measures each rank.
pub(super) fn measure(model: &Arc<Model>, ranks: &[u32], run: &Run, report: &mut Report) -> Result<()> {
    let (mut rows, mut data) = (Vec::new(), Vec::new());
    // Beside what is written by default, the largest rank in F16, which has twice the bytes.
    let largest = ranks.iter().max().map(|rank| (*rank, Format::F16));
    for (rank, format) in ranks.iter().map(|rank| (*rank, ADAPTER_FORMAT)).chain(largest) {
        let samples = sampled(model, rank, format, run)?;
        let memory_limit = run.memory_limit(adapter_bytes(model, rank, format, 0)?.len());
        for figure in ["prefill", "decode"] {
            // A prefill is bound by its products.
            let limit = if figure == "decode" { memory_limit } else { 1.0 };
            let median = |batch| samples.median(figure, batch).unwrap_or(f64::NAN);
            let ratio = |of, to| samples.ratio(figure, of, &[to]).unwrap_or(f64::NAN);
            let (shared, cost) = (ratio("four", "one"), ratio("one", "none"));
            let mut row = vec![format!("rank {rank} {} {figure}", format.name())];
            row.extend(BATCHES.map(|batch| format!("{:.1}", median(batch))));
            row.extend([shared, limit, cost].map(|ratio| format!("{ratio:.3}")));
            rows.push(row);
            data.push(json!({
                "rank": rank, "format": format.name(), "figure": figure, "none_per_s": median("none"), "one_per_s": median("one"),
                "four_per_s": median("four"), "four_of_one": shared, "four_of_one_limit": limit, "one_of_none": cost,
            }));
            if run.checked && format == ADAPTER_FORMAT {
                let name = format!("{figure}, rank {rank}: four adapters, share of one adapter's speed");
                report.check_at_least(name, shared, SHARE_MIN);
            }
        }
    }
    let header = ["tokens/s", "no adapter", "one", "four", "four / one", "limit", "one / none"];
    report.table(&format!("{SEQUENCES} sequences, medians of {} rounds", run.rounds), &header, &rows);
    report.data("speed", data);
    Ok(())
}

fn sampled(model: &Arc<Model>, rank: u32, format: Format, run: &Run) -> Result<Samples> {
    let options = EngineOptions {
        threads: Some(run.threads),
        kv_tokens: SEQUENCES * (PROMPT_TOKENS + run.tokens + 64),
        prefix_cache_percent: 0,
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(Arc::clone(model), options).context("make an engine")?;
    let adapters: Vec<AdapterId> = (0..ADAPTERS as u64)
        .map(|seed| {
            let adapter = opened(model, adapter_bytes(model, rank, format, seed)?)?;
            engine.add_adapter(adapter).context("take an adapter in")
        })
        .collect::<Result<_>>()?;
    let mut samples = Samples::default();
    for round in 0..=run.rounds {
        for at in 0..BATCHES.len() {
            // Each batch is first, second and third equally often.
            let batch = (at + round) % BATCHES.len();
            let of = |seq: usize| match batch {
                0 => None,
                1 => Some(adapters[0]),
                _ => Some(adapters[seq % ADAPTERS]),
            };
            let (prefill, decode) = timed(&mut engine, run.tokens, of)?;
            // The first round brings the weights to memory.
            if let Some(round) = round.checked_sub(1) {
                samples.add("prefill", BATCHES[batch], round, prefill);
                samples.add("decode", BATCHES[batch], round, decode);
            }
        }
    }
    Ok(samples)
}

/// Returns the tokens per second of prompts and of writing.
fn timed(engine: &mut Engine, tokens: usize, of: impl Fn(usize) -> Option<AdapterId>) -> Result<(f64, f64)> {
    let seqs = (0..SEQUENCES).map(|seq| engine.create_with(of(seq))).collect::<Result<Vec<_>, _>>()?;
    let ids: Vec<TokenId> = (0..(SEQUENCES * PROMPT_TOKENS) as TokenId).map(|id| 97 + id % 23).collect();
    let step = |engine: &mut Engine, per_seq: usize, logits: Wanted| {
        let batch: Vec<StepSeq<'_>> = seqs
            .iter()
            .zip(ids.chunks(per_seq))
            .map(|(seq, ids)| StepSeq { seq: *seq, ids, logits, capture: None })
            .collect();
        engine.step(&batch, &mut ()).map(drop).context("compute a batch")
    };
    let start = Instant::now();
    step(engine, PROMPT_TOKENS, Wanted::Last)?;
    let prefill = (SEQUENCES * PROMPT_TOKENS) as f64 / start.elapsed().as_secs_f64();
    let start = Instant::now();
    for _ in 0..tokens {
        step(engine, 1, Wanted::Last)?;
    }
    let decode = (SEQUENCES * tokens) as f64 / start.elapsed().as_secs_f64();
    seqs.iter().for_each(|seq| engine.release(*seq));
    Ok((prefill, decode))
}
