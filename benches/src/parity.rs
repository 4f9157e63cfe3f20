//! `baton-bench parity`: the engine's logits against two others that share none of its code.
//!
//! 1. **candle**: a plain f32 forward pass in candle-core over weights that candle's own GGUF code dequantized,
//!    on models of random weights, every family, and every format that candle has.
//! 2. **llama.cpp**: log-probabilities recorded once by `record_logits.py`, on models of every
//!    family and every format, and on the demo models. The record names each file by its SHA-256.
//!
//! Float formats are held to a relative error of the logits. Quantized formats round their activations to 8 bits
//! by design, so they are held to the choice of the best token, wherever the reference's two best differ by more
//! than [`EPSILON`]; how often that is, is printed beside it. With `--vectors` the tokenizers are checked too.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
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

/// Largest relative error of float formats, `|have - want| / |want|` over a prompt's logits.
const FLOAT_ERROR_MAX: f64 = 2e-3;

/// Least share of rows of quantized formats whose best token is the reference's, among rows with a clear one.
const TOP1_MIN: f64 = 0.995;

/// A clear best token: its logit is above the second by this much, in standard deviations of the row's logits.
/// Four times what 8-bit activations do to the difference of two logits of these models: their relative error is
/// at most 5.2 %, which is 0.074 standard deviations for a difference.
const EPSILON: f64 = 0.3;

/// Options of the subcommand.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Folder of tokenizer vectors (ggml-vocab-*.gguf with .inp and .out)
    #[arg(long, env = "BATON_TOKENIZER_VECTORS")]
    vectors: Option<PathBuf>,
    /// Folder of the demo models
    #[arg(long, default_value = "models")]
    models: PathBuf,
    /// A record made by `record_logits.py`, in place of the one built in
    #[arg(long)]
    record: Option<PathBuf>,
    /// Only write the models and prompts that `record_logits.py` reads into this folder
    #[arg(long)]
    write: Option<PathBuf>,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<Report> {
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

/// The engine's logits of every position of a prompt, in chunks as a server would run them.
fn logits(model: &Arc<Model>, ids: &[u32]) -> Result<Vec<Vec<f32>>> {
    let mut engine = Engine::new(Arc::clone(model), EngineOptions::default())?;
    let seq = engine.create();
    let mut rows = Vec::new();
    for ids in ids.chunks(48) {
        let outputs = engine.step(&[StepSeq { seq, ids, logits: Wanted::All, capture: None }], &mut ())?;
        rows.extend(outputs[0].logits.chunks(model.config().vocab_len).map(<[f32]>::to_vec));
    }
    Ok(rows)
}

/// How far two sets of rows of logits are apart.
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

/// `|have - want| / |want|` over all rows; infinite where a number is missing or not finite.
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

/// The best token; the lowest id of equal ones.
fn best(row: &[f32]) -> usize {
    (0..row.len()).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0)
}

/// What the best logit is above the second, in standard deviations of the row.
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
        let name = format!("tokenizer {} texts that differ", vector.name);
        report.check_equal(name, vector.failures.len() as f64, 0.0);
    }
    report.check_at_least("tokenizers checked", vectors.len() as f64, 1.0);
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
