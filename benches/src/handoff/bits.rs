//! Logits over moved keys and values beside those over the same ones computed on the spot, bit for bit.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use baton_engine::engine::KvFormat;
use baton_engine::gguf::Gguf;
use baton_engine::{
    Engine, EngineOptions, Kept, KvRows, Model, PrefixScope, RowsError, SeqId, StepSeq, TokenId, Wanted,
};
use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticModel;

use crate::report::Report;

/// Tokens of the prompt, and behind it.
const PROMPT: usize = 1024;
const BEHIND: usize = 32;

/// Compares a model of random weights, and the given ones.
pub(super) fn measure(models: &[PathBuf], report: &mut Report) -> Result<()> {
    let bytes = SyntheticModel { context_len: 2048, ..SyntheticModel::small("llama", Format::Q8_0, 3) };
    let synthetic = Model::from_gguf(Gguf::from_bytes(bytes.to_gguf()?)?)?;
    let mut all = vec![("random weights".to_owned(), synthetic)];
    for path in models {
        let name = path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        all.push((name, Model::open(path).with_context(|| format!("open model `{}`", path.display()))?));
    }
    let mut rows = Vec::new();
    for (name, model) in &all {
        for format in [KvFormat::F32, KvFormat::F16] {
            let found = differing(model, format);
            let shown = match &found {
                Ok((differing, logits)) => format!("{differing} of {logits}"),
                Err(err) => err.to_string(),
            };
            rows.push(vec![name.clone(), format.to_string(), shown]);
            let differing = found.map_or(f64::NAN, |(differing, _)| differing as f64);
            report.check_equal(format!("{name}, {format}: logits that differ in a bit"), differing, 0.0);
        }
    }
    report.table(
        "logits over moved keys and values, and over those computed on the spot",
        &["model", "format", "differ"],
        &rows,
    );
    Ok(())
}

/// Returns how many logits differ, and of how many.
fn differing(model: &Arc<Model>, format: KvFormat) -> Result<(usize, usize)> {
    let vocab = model.config().vocab_len as u32;
    let ids: Vec<TokenId> = (0..(PROMPT + BEHIND) as u32).map(|at| (at * 7919 + 13) % vocab).collect();
    let chosen: Vec<usize> = (0..PROMPT).filter(|at| at / 24 % 3 != 1).collect();
    let kept = seen(model, chosen, PROMPT);
    let options = EngineOptions { kv_tokens: 4096, kv_format: format, ..EngineOptions::default() };
    let mut cloud = Engine::new(Arc::clone(model), options.clone())?;
    let widths = cloud.kv_widths()?;
    let seq = cloud.create();
    cloud.step(&[StepSeq { seq, ids: &ids[..PROMPT], logits: Wanted::None, capture: None }], &mut ())?;
    let heads = widths.iter().map(|width| width.heads).sum();
    let there = cloud.evict(seq, &Kept::new(&vec![kept.clone(); heads])?)?;
    let mut rows = KvRows::new(format, kept.len(), widths.len());
    for layer in 0..widths.len() {
        rows.push(layer, &exported(&cloud, seq, layer, &kept, format)?);
    }
    let want = behind(&mut cloud, there, &ids[PROMPT..])?;
    let mut device = Engine::new(Arc::clone(model), options)?;
    let here = device.import_rows(PrefixScope::default(), None, &ids[..PROMPT], &rows)?;
    let have = behind(&mut device, here, &ids[PROMPT..])?;
    let differ = have.iter().zip(&want).filter(|(have, want)| have.to_bits() != want.to_bits()).count();
    Ok((differ + have.len().abs_diff(want.len()), want.len()))
}

/// Adds to chosen positions those that a sliding window of the model sees, as the cloud does.
pub(super) fn seen(model: &Model, chosen: Vec<usize>, cached: usize) -> Vec<usize> {
    match model.config().largest_window() {
        Some(window) => window.with_seen(&chosen, cached),
        None => chosen,
    }
}

/// Returns the rows of a layer.
pub(super) fn exported(
    engine: &Engine,
    seq: SeqId,
    layer: usize,
    kept: &[usize],
    format: KvFormat,
) -> Result<Vec<u8>, RowsError> {
    let mut bytes = Vec::new();
    engine.export_rows(seq, layer, kept, format, &mut bytes)?;
    Ok(bytes)
}

fn behind(engine: &mut Engine, seq: SeqId, ids: &[TokenId]) -> Result<Vec<f32>> {
    let mut logits = Vec::new();
    for part in [&ids[..1], &ids[1..]] {
        let step = StepSeq { seq, ids: part, logits: Wanted::All, capture: None };
        logits.extend(engine.step(&[step], &mut ())?.remove(0).logits);
    }
    Ok(logits)
}
