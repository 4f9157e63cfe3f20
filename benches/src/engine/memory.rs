//! Measures the unreclaimable memory of the engine with a model of 8 billion weights.
//!
//! The model file is made for the run and removed afterwards, unless it existed before.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::process::Worker;
use super::programs::{start_ours, start_own};
use super::worker::SHIPPED_KV;
use super::{Args, Subject, subject};
use crate::report::Report;

const SHAPE: &str = "llama-8b";
const PROMPT_TOKENS: usize = 512;
const DECODE_TOKENS: usize = 16;
/// Maximum unreclaimable memory besides the KV cache.
const OVERHEAD_MAX_MB: f64 = 128.0;
/// Minimum speed of decoding from the mapped file, as a share of the speed with repacked weights.
const MAPPED_MIN: f64 = 0.9;
/// Number of measurements of each layout.
const LAYOUT_TURNS: usize = 5;

/// Measures the memory and adds the table and the checks.
pub(super) fn measure(args: &Args, target: &Path, report: &mut Report) -> Result<()> {
    let kept = target.join("models").join(format!("{SHAPE}-Q4_K_M.gguf")).is_file();
    let subject = subject(SHAPE, target)?;
    let measured = measure_file(args, &subject, report);
    if !kept {
        std::fs::remove_file(&subject.path).with_context(|| format!("remove {}", subject.path.display()))?;
    }
    measured
}

fn measure_file(args: &Args, subject: &Subject, report: &mut Report) -> Result<()> {
    let mut worker = start_ours(args, subject, SHIPPED_KV)?;
    let info = worker.ask("info")?;
    let token_bytes = info["kv_bytes_per_token"].as_f64().context("the worker says no size of its cache")?;
    let seconds = worker.seconds(&format!("prefill {PROMPT_TOKENS}"))?;
    eprintln!("{}: prefill {PROMPT_TOKENS}: {:.1} tokens/s", subject.name, PROMPT_TOKENS as f64 / seconds);
    let seconds = worker.seconds(&format!("decode {PROMPT_TOKENS} {DECODE_TOKENS}"))?;
    let rate = DECODE_TOKENS as f64 / seconds;
    let memory = worker.memory()?;
    let kv_bytes = token_bytes * (PROMPT_TOKENS + DECODE_TOKENS) as f64;
    let beside = (memory.unreclaimable as f64 - kv_bytes) / 1e6;
    let (mapped, repacked) = layouts(args, subject, &mut worker)?;
    let rows = [
        ("decode, tokens/s", rate),
        ("decode straight from the map, median tokens/s", mapped),
        ("decode with repacked weights, median tokens/s", repacked),
        ("unreclaimable, MB", memory.unreclaimable as f64 / 1e6),
        ("of it KV cache, MB", kv_bytes / 1e6),
        ("peak with the mapped file, MB", memory.peak as f64 / 1e6),
    ]
    .map(|(what, value)| vec![what.to_owned(), format!("{value:.1}")]);
    report.table(&format!("{}: memory after {PROMPT_TOKENS} tokens", subject.name), &["", "baton"], &rows);
    report.data(
        &format!("{} memory", subject.name),
        json!({ "unreclaimable_bytes": memory.unreclaimable, "kv_bytes": kv_bytes, "decode_tokens_per_s": rate }),
    );
    if !args.quick {
        report.check_at_most(
            format!("{} Q4_K_M: unreclaimable memory beside the KV cache, MB", subject.name),
            beside,
            OVERHEAD_MAX_MB,
        );
        report.check_at_least(
            format!("{} Q4_K_M: decode straight from the map against repacked", subject.name),
            mapped / repacked,
            MAPPED_MIN,
        );
    }
    Ok(())
}

/// Decodes in turn from the mapped file and with repacked weights; returns the median tokens per second of
/// both.
fn layouts(args: &Args, subject: &Subject, mapped: &mut Worker) -> Result<(f64, f64)> {
    let mut repacked = start_own(args, subject, SHIPPED_KV, &["--repack"])?;
    repacked.seconds(&format!("prefill {PROMPT_TOKENS}"))?;
    let mut rates = [Vec::new(), Vec::new()];
    for turn in 1..=LAYOUT_TURNS {
        for (worker, rates) in [&mut *mapped, &mut repacked].into_iter().zip(&mut rates) {
            let seconds = worker.seconds(&format!("decode {PROMPT_TOKENS} {DECODE_TOKENS}"))?;
            rates.push(DECODE_TOKENS as f64 / seconds);
        }
        eprintln!(
            "{} {turn}/{LAYOUT_TURNS}: decode from the map {:.1}, repacked {:.1} tokens/s",
            subject.name,
            rates[0][turn - 1],
            rates[1][turn - 1]
        );
    }
    let [mapped, repacked] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    Ok((mapped, repacked))
}
