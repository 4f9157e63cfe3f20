//! Compares the formats of keys and values: bytes of a token, speed after a long context, and perplexity.

use anyhow::{Context as _, Result};
use baton_engine::engine::KvFormat;
use baton_pacing::refit::median;
use serde_json::json;

use super::figure::{DEEP_TOKENS, DEPTH_CHECKED, Figure};
use super::programs::start_ours;
use super::speed::context_tokens;
use super::{Args, MAIN_MODEL, Subject};
use crate::report::Report;

/// The format whose perplexity is the reference.
const EXACT: KvFormat = KvFormat::F32;
const FORMATS: [KvFormat; 4] = [EXACT, KvFormat::F16, KvFormat::Q8, KvFormat::Q4];
/// Tokens of the text whose perplexity is measured.
const TEXT_TOKENS: usize = 2048;

/// The figures of one format.
struct Row {
    format: KvFormat,
    token_bytes: f64,
    perplexity: f64,
    /// Tokens per second: decoding at 0 and after the context, prefill after the context.
    rates: [f64; 3],
}

/// Measures every format and adds the table and the checks.
pub(super) fn measure(args: &Args, subject: &Subject, report: &mut Report) -> Result<()> {
    let context_tokens = context_tokens(subject)?;
    let depth = DEPTH_CHECKED.min(context_tokens.saturating_sub(DEEP_TOKENS));
    let figures = [Figure::Decode(0), Figure::Decode(depth), Figure::Deep(depth)];
    let mut rows = Vec::new();
    for format in FORMATS {
        let mut worker = start_ours(args, subject, format)?;
        let info = worker.ask("info")?;
        let token_bytes =
            info["kv_bytes_per_token"].as_f64().context("the worker says no bytes of a token")?;
        let mut rates = [0.0; 3];
        for (rate, figure) in rates.iter_mut().zip(figures) {
            let mut seen = Vec::new();
            for _ in 0..args.alternations() {
                seen.push(figure.tokens() as f64 / worker.seconds(&figure.request())?);
            }
            *rate = median(seen).context("nothing was measured")?;
        }
        let tokens = TEXT_TOKENS.min(context_tokens);
        let perplexity = worker.number(&format!("perplexity {tokens}"), "perplexity")?;
        eprintln!("{}: {format} KV: {rates:.1?} tokens/s, perplexity {perplexity:.4}", subject.name);
        rows.push(Row { format, token_bytes, perplexity, rates });
    }
    table(subject, depth, &rows, report);
    if subject.name == MAIN_MODEL {
        let q8 = rows.iter().find(|row| row.format == KvFormat::Q8).context("q8 was measured")?;
        let loss = 100.0 * (1.0 - q8.rates[1] / q8.rates[0]);
        let name = format!("{} decode at {depth}, q8 KV: % lost against 0", subject.name);
        report.check_at_most(name, loss, 25.0);
    }
    Ok(())
}

fn table(subject: &Subject, depth: usize, rows: &[Row], report: &mut Report) {
    let exact = rows[0].perplexity;
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let more = 100.0 * (row.perplexity / exact - 1.0);
            let rates = row.rates.iter().map(|rate| format!("{rate:.1}"));
            let first = [row.format.to_string(), format!("{:.0}", row.token_bytes)];
            let last = [format!("{:.4}", row.perplexity), format!("{more:+.3} %")];
            first.into_iter().chain(rates).chain(last).collect()
        })
        .collect();
    let deep = [format!("decode at {depth}"), Figure::Deep(depth).name()];
    let header =
        ["KV format", "bytes of a token", "decode at 0", &deep[0], &deep[1], "perplexity", "beside f32"];
    report.table(&format!("{}: formats of keys and values, tokens/s", subject.name), &header, &cells);
    let data: Vec<_> = rows
        .iter()
        .map(|row| {
            json!({
                "format": row.format.name(), "token_bytes": row.token_bytes, "perplexity": row.perplexity,
                "decode_0": row.rates[0], "decode_deep": row.rates[1], "prefill_deep": row.rates[2],
                "depth": depth,
            })
        })
        .collect();
    report.data(&format!("{} kv formats", subject.name), data);
}
