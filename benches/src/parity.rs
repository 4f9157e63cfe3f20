//! `baton-bench parity`: compares the engine's logits with two implementations that share no code with it.
//!
//! 1. **candle**: a plain f32 forward pass in candle-core over weights that candle's own GGUF code
//!    dequantized. The models have random weights. They cover the families of `candle::FAMILIES` and every
//!    format that candle supports.
//! 2. **llama.cpp**: log-probabilities recorded once by `record_logits.py`, on models of every family and
//!    every format, and on the demo models. The record identifies each file by its SHA-256.
//!
//! For float formats, the relative error of the logits is checked. Quantized formats round their activations
//! to 8 bits by design, so only the best token is checked. A row counts if the reference's two best logits
//! differ by more than [`EPSILON`]; the table shows how many rows count. With `--vectors` the tokenizers are
//! checked too.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use baton_engine::engine::KvFormat;
use baton_engine::gguf::Gguf;
use baton_engine::tokenizer::check_vectors;
use baton_engine::{Engine, EngineOptions, Model, StepSeq, Wanted};
use baton_kernels_cpu::Format;
use clap::Args as ClapArgs;

use crate::report::Report;

mod candle;
mod cases;
mod recorded;

use cases::Case;

/// Maximum relative error of float formats, `|have - want| / |want|` over a prompt's logits.
const FLOAT_ERROR_MAX: f64 = 2e-3;

/// Minimum share of rows of quantized formats whose best token is that of the reference, among rows with a
/// clear best token.
const TOP1_MIN: f64 = 0.995;

/// A best token is clear if its logit exceeds the second by this many standard deviations of the row's
/// logits. This is four times the effect of 8-bit activations on the difference of two logits in these
/// models. Their relative error is at most 5.2 %, which is 0.074 standard deviations for a difference.
const EPSILON: f64 = 0.3;

/// Options of the subcommand.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Folder of tokenizer test vectors (ggml-vocab-*.gguf with .inp and .out files); without it, tokenizers
    /// are not checked
    #[arg(long, env = "BATON_TOKENIZER_VECTORS")]
    vectors: Option<PathBuf>,
    /// Folder of the demo models
    #[arg(long, default_value = "models")]
    models: PathBuf,
    /// Record made by `record_logits.py`; by default the built-in record
    #[arg(long)]
    record: Option<PathBuf>,
    /// Compare nothing; write the models and prompts for `record_logits.py` into this folder
    #[arg(long)]
    write: Option<PathBuf>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<Report> {
    let mut report = Report::new("parity");
    let cases = cases::random_models();
    if let Some(folder) = &args.write {
        recorded::write(folder, &cases, &args.models)?;
        report.note(format!("wrote {} models of random weights to {}", cases.len(), folder.display()));
        return Ok(report);
    }
    report.data("epsilon", EPSILON);
    against_candle(&mut report, &cases)?;
    let record = recorded::read(args.record.as_deref())?;
    recorded::compare(&mut report, &record, &cases, &args.models)?;
    vectors(&mut report, args.vectors.as_deref())?;
    Ok(report)
}

fn against_candle(report: &mut Report, cases: &[Case]) -> Result<()> {
    let mut rows = Vec::new();
    for case in cases {
        if !candle::reads(case.format) {
            report.note(format!("{}: left out, candle has no {}", case.name, case.format.name()));
            continue;
        }
        if !candle::FAMILIES.contains(&case.family()) {
            report.note(format!("{}: left out, no reference in candle", case.name));
            continue;
        }
        let bytes = case.bytes()?;
        let reference =
            candle::Reference::open(&bytes).with_context(|| format!("read {} by candle", case.name))?;
        let model = Model::from_gguf(Gguf::from_bytes(bytes)?)?;
        let mut tally = Tally::default();
        for ids in cases::prompts() {
            let have = logits(&model, &ids)?;
            let want = reference.logits(&ids).with_context(|| format!("run {} by candle", case.name))?;
            tally.add(&have, &want);
        }
        tally.check(report, &format!("candle {}", case.name), case.format, FLOAT_ERROR_MAX);
        rows.push(tally.row(&case.name));
    }
    report.table("against candle-core f32 over dequantized weights", &Tally::HEADER, &rows);
    Ok(())
}

/// Returns the engine's logits of every position of a prompt, computed in chunks as in a server.
fn logits(model: &Arc<Model>, ids: &[u32]) -> Result<Vec<Vec<f32>>> {
    // The references keep floats.
    let options = EngineOptions { kv_format: KvFormat::F32, ..EngineOptions::default() };
    let mut engine = Engine::new(Arc::clone(model), options)?;
    let seq = engine.create();
    let mut rows = Vec::new();
    for ids in ids.chunks(48) {
        let outputs = engine.step(&[StepSeq { seq, ids, logits: Wanted::All, capture: None }], &mut ())?;
        rows.extend(outputs[0].logits.chunks(model.config().vocab_len).map(<[f32]>::to_vec));
    }
    Ok(rows)
}

/// The differences between two sets of rows of logits.
#[derive(Debug, Default)]
struct Tally {
    rows: usize,
    clear: usize,
    same_top: usize,
    error_max: f64,
}

impl Tally {
    const HEADER: [&'static str; 5] = ["model", "rows", "relative error", "clear rows", "same top-1"];

    /// Adds the rows of one prompt.
    fn add(&mut self, have: &[Vec<f32>], want: &[Vec<f32>]) {
        self.error_max = self.error_max.max(relative_error(have, want));
        for (have, want) in have.iter().zip(want) {
            self.add_top(best(have), best(want), margin(want) > EPSILON);
        }
    }

    fn add_top(&mut self, have: usize, want: usize, clear: bool) {
        self.rows += 1;
        if clear {
            self.clear += 1;
            self.same_top += usize::from(have == want);
        }
    }

    fn agreement(&self) -> f64 {
        self.same_top as f64 / self.clear as f64
    }

    fn check(&self, report: &mut Report, name: &str, format: Format, float_error_max: f64) {
        if matches!(format, Format::F32 | Format::F16 | Format::Bf16) {
            report.check_at_most(format!("{name} relative error"), self.error_max, float_error_max);
        } else {
            report.check_at_least(format!("{name} top-1 agreement"), self.agreement(), TOP1_MIN);
        }
    }

    fn row(&self, name: &str) -> Vec<String> {
        vec![
            name.to_owned(),
            self.rows.to_string(),
            format!("{:.1e}", self.error_max),
            format!("{} ({:.0} %)", self.clear, 100.0 * self.clear as f64 / self.rows as f64),
            format!("{:.2} %", 100.0 * self.agreement()),
        ]
    }
}

/// Returns `|have - want| / |want|` over all rows, or infinity if a number is missing or not finite.
fn relative_error(have: &[Vec<f32>], want: &[Vec<f32>]) -> f64 {
    if have.iter().map(Vec::len).ne(want.iter().map(Vec::len)) {
        return f64::INFINITY;
    }
    let pairs = || have.iter().flatten().zip(want.iter().flatten());
    let gap: f64 = pairs().map(|(have, want)| f64::from(have - want).powi(2)).sum();
    let norm: f64 = pairs().map(|(_, want)| f64::from(*want).powi(2)).sum();
    let error = (gap / norm).sqrt();
    if error.is_finite() { error } else { f64::INFINITY }
}

/// Returns the best token; among equal ones, the one with the lowest id.
fn best(row: &[f32]) -> usize {
    (0..row.len()).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0)
}

/// Returns the difference between the best and the second logit, in standard deviations of the row.
fn margin(row: &[f32]) -> f64 {
    let top = best(row);
    let second = (0..row.len()).filter(|at| *at != top).map(|at| row[at]).fold(f32::NEG_INFINITY, f32::max);
    f64::from(row[top] - second) / deviation(row)
}

fn deviation(row: &[f32]) -> f64 {
    let count = row.len() as f64;
    let mean = row.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
    (row.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / count).sqrt()
}

fn vectors(report: &mut Report, folder: Option<&Path>) -> Result<()> {
    let Some(folder) = folder else {
        report.note("tokenizer vectors: left out (give --vectors or BATON_TOKENIZER_VECTORS)");
        return Ok(());
    };
    let vectors = check_vectors(folder).with_context(|| format!("read vectors of {}", folder.display()))?;
    for vector in &vectors {
        if let Some(err) = &vector.refused {
            report.note(format!("tokenizer {} is refused: {err}", vector.name));
            continue;
        }
        let name = format!("tokenizer {} texts that differ", vector.name);
        report.check_equal(name, vector.failures.len() as f64, 0.0);
    }
    let checked = vectors.iter().filter(|vector| vector.refused.is_none()).count();
    report.check_at_least("tokenizers checked", checked as f64, 1.0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_token_and_its_margin_are_those_of_the_row() {
        let row = [0.0, 3.0, 1.0, 3.0];
        assert_eq!(best(&row), 1);
        assert_eq!(margin(&row), 0.0);
        let clear = [0.0, 4.0, 2.0, 2.0];
        assert!((margin(&clear) - 2.0 / 2f64.sqrt()).abs() < 1e-9);
    }

    #[test]
    fn errors_are_relative_and_never_pass_as_missing() {
        let rows = |row: &[f32]| vec![row.to_vec()];
        assert!((relative_error(&rows(&[3.0, 4.5]), &rows(&[3.0, 4.0])) - 0.1).abs() < 1e-9);
        assert_eq!(relative_error(&rows(&[f32::NAN]), &rows(&[1.0])), f64::INFINITY);
        assert_eq!(relative_error(&rows(&[1.0]), &rows(&[1.0, 2.0])), f64::INFINITY);
    }

    #[test]
    fn only_rows_with_a_clear_best_token_count() {
        let mut tally = Tally::default();
        tally.add(&[vec![1.0, 0.0], vec![0.0, 1.0]], &[vec![1.0, 0.0], vec![1.0, 0.999]]);
        assert_eq!((tally.rows, tally.clear, tally.same_top), (2, 2, 1));
        tally.add(&[vec![0.0, 1.0, 9.0]], &[vec![1.0, 0.999, -99.0]]);
        assert_eq!((tally.rows, tally.clear, tally.same_top), (3, 2, 1));
    }
}
