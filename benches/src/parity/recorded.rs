//! Compares with log-probabilities recorded from llama.cpp in `benches/data/llama_cpp_logits.json`.
//!
//! The record identifies every model file by its SHA-256. If a model has changed, its check fails until
//! `record_logits.py` makes the record again. A demo model that is missing, or was never recorded, is
//! reported as left out.

use std::path::Path;

use anyhow::{Context as _, Result};
use baton_engine::Model;
use baton_engine::gguf::Gguf;
use baton_kernels_cpu::Format;
use serde::{Deserialize, Serialize};

use super::cases::{self, Case};
use super::{EPSILON, FLOAT_ERROR_MAX, Tally, best, logits, relative_error};
use crate::report::Report;

/// Maximum relative error of BF16, because llama.cpp also rounds the activations to eight bits of mantissa.
const BF16_ERROR_MAX: f64 = 2e-2;

/// The built-in record.
const RECORD: &str = include_str!("../../data/llama_cpp_logits.json");

/// The demo models, by the stem of their file names.
const DEMO_MODELS: [&str; 3] = ["demo-cloud", "demo-device", "demo-device-b"];

/// The prompt of the demo models.
const TEXT: &str = "Aurora station\n\nHistory\nThe Aurora station was built in 1911 by three brothers. The Aurora \
    station's roof is made of copper. The keeper of the Aurora station lives in a white house.\n\nHarbour\n\
    The harbour of Veld has two piers. The harbour of Veld is closed in January.\n\nQuestion: What is the Aurora \
    station's roof made of?";

/// The record of one build of llama.cpp.
#[derive(Debug, Deserialize)]
pub(super) struct Record {
    /// The build.
    llama_cpp: String,
    models: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    name: String,
    sha256: String,
    prompt: Vec<u32>,
    /// For every position, the best token and its distance from the second in standard deviations.
    tops: Vec<(usize, f64)>,
    rows: Vec<Row>,
}

/// All log-probabilities after the first `tokens` tokens of the prompt.
#[derive(Debug, Deserialize)]
struct Row {
    tokens: usize,
    logprobs: Vec<f32>,
}

/// A prompt for `record_logits.py`.
#[derive(Debug, Serialize)]
struct Task {
    name: String,
    path: String,
    prompt: Vec<u32>,
}

/// Writes the models with random weights and `tasks.json` into `folder`.
pub(super) fn write(folder: &Path, cases: &[Case], models: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("make folder {}", folder.display()))?;
    let mut tasks = Vec::new();
    for case in cases {
        let path = folder.join(format!("{}.gguf", case.name));
        std::fs::write(&path, case.bytes()?).with_context(|| format!("write {}", path.display()))?;
        tasks.push(Task { name: case.name.clone(), path: absolute(&path)?, prompt: cases::prompt(9, 96) });
    }
    for name in DEMO_MODELS {
        let path = models.join(format!("{name}.gguf"));
        if path.exists() {
            let model = Model::open(&path).with_context(|| format!("open {}", path.display()))?;
            let prompt = model.tokenizer().encode(TEXT);
            tasks.push(Task { name: name.to_owned(), path: absolute(&path)?, prompt });
        }
    }
    let path = folder.join("tasks.json");
    std::fs::write(&path, serde_json::to_vec(&tasks)?).with_context(|| format!("write {}", path.display()))
}

fn absolute(path: &Path) -> Result<String> {
    let path = std::path::absolute(path).context("resolve path")?;
    path.to_str().map(str::to_owned).with_context(|| format!("`{}` is not UTF-8", path.display()))
}

/// Reads the record at `path`, or the built-in one.
pub(super) fn read(path: Option<&Path>) -> Result<Record> {
    let text = match path {
        Some(path) => std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?,
        None => RECORD.to_owned(),
    };
    serde_json::from_str(&text).context("parse the record of llama.cpp's logits")
}

/// Compares every recorded model.
pub(super) fn compare(report: &mut Report, record: &Record, cases: &[Case], models: &Path) -> Result<()> {
    let mut rows = Vec::new();
    for case in cases {
        let model = Model::from_gguf(Gguf::from_bytes(case.bytes()?)?)?;
        rows.extend(compare_one(report, record, &case.name, case.format, &model)?);
    }
    for name in DEMO_MODELS {
        let path = models.join(format!("{name}.gguf"));
        if path.exists() {
            let model = Model::open(&path).with_context(|| format!("open {}", path.display()))?;
            rows.extend(compare_one(report, record, name, format_of(&model)?, &model)?);
        } else {
            report.note(format!("{name}: left out, {} is not there", path.display()));
        }
    }
    let title = format!("against log-probabilities recorded from llama.cpp {}", record.llama_cpp);
    report.table(&title, &Tally::HEADER, &rows);
    Ok(())
}

/// Returns the format of most of a model's matrices.
fn format_of(model: &Model) -> Result<Format> {
    use baton_engine::weights::Part;
    Ok(model.weights().acquire(0, Part::Attention)?.attention()?.o.format())
}

fn compare_one(
    report: &mut Report,
    record: &Record,
    name: &str,
    format: Format,
    model: &std::sync::Arc<Model>,
) -> Result<Option<Vec<String>>> {
    let Some(entry) = record.models.iter().find(|entry| entry.name == name) else {
        report.note(format!("{name}: left out, never recorded (record_logits.py)"));
        return Ok(None);
    };
    let same = entry.sha256 == model.file_sha256();
    let want = "the recorded file (else run record_logits.py)";
    report.check(format!("llama.cpp {name} file"), f64::from(u8::from(same)), want, same);
    if !same {
        return Ok(None);
    }
    let have = logits(model, &entry.prompt)?;
    let mut tally = Tally::default();
    for (have, (top, margin)) in have.iter().zip(&entry.tops) {
        tally.add_top(best(have), *top, *margin > EPSILON);
    }
    let (mut own, mut theirs) = (Vec::new(), Vec::new());
    for row in &entry.rows {
        let have =
            have.get(row.tokens - 1).with_context(|| format!("{name}: row {} of the record", row.tokens))?;
        own.push(centred(have));
        theirs.push(centred(&row.logprobs));
    }
    tally.error_max = relative_error(&own, &theirs);
    let limit = if format == Format::Bf16 { BF16_ERROR_MAX } else { FLOAT_ERROR_MAX };
    tally.check(report, &format!("llama.cpp {name}"), format, limit);
    Ok(Some(tally.row(name)))
}

/// Subtracts the mean of a row. Log-probabilities are logits minus a constant per row, so both become equal.
fn centred(row: &[f32]) -> Vec<f32> {
    let mean = row.iter().map(|v| f64::from(*v)).sum::<f64>() / row.len() as f64;
    row.iter().map(|v| (f64::from(*v) - mean) as f32).collect()
}
