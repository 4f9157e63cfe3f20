//! What the keys and values of chosen sentences are worth beside the same sentences as text.
//!
//! Models that small answer few questions right, in every arm. So arms are compared by the probability of the
//! right answer. All arms have the same mask, by the attention of the model's default heads.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use baton_engine::engine::KvFormat;
use baton_engine::{Engine, KvRows, Model, PrefixScope, SeqId, StepSeq, TokenId, Wanted};
use baton_eval::case::Case;
use baton_eval::cloud::{Cloud, engine_options};
use baton_eval::predict::{Known, Predictor, ReadPrompt, predict};
use baton_eval::stats::{Estimate, Sample, estimate};
use baton_eval::suite::xquad;
use serde_json::json;

use super::bits::{exported, seen};
use crate::quality::DEFAULT;
use crate::report::Report;

/// Share of the content that is kept.
const RATIO: f32 = 0.25;
/// Paragraphs in one text.
const PARAGRAPHS: usize = 10;
/// The arms: the whole prompt, the kept sentences as text, and as keys and values.
const ARMS: [&str; 5] = ["whole prompt", "text", "kv f16", "kv q8", "kv q4"];
const FORMS: [KvFormat; 3] = [KvFormat::F16, KvFormat::Q8, KvFormat::Q4];
/// Most that a rounded form may lose of ln p beside f16.
const ROUNDED_MAX: f64 = 0.05;

/// Measures every model on every file.
pub(super) fn measure(
    models: &[PathBuf],
    squad: &[PathBuf],
    cases: usize,
    report: &mut Report,
) -> Result<()> {
    if models.is_empty() || squad.is_empty() {
        report.note("quality: not measured, as no --model or no --squad was named");
        return Ok(());
    }
    let mut all = Vec::new();
    for path in models {
        let name = path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let model = Model::open(path).with_context(|| format!("open model `{}`", path.display()))?;
        let refused =
            Engine::new(Arc::clone(&model), engine_options(&model, NonZeroUsize::MIN))?.kv_widths().err();
        let moves = f64::from(u8::from(refused.is_none()));
        report.check_equal(format!("{name}: keys and values can be moved"), moves, 1.0);
        if let Some(refused) = refused {
            report.note(format!("{name}: {refused}"));
            continue;
        }
        let found = measured(&model, squad, cases)?;
        told(&name, &found, report);
        all.push(json!({ "model": name, "n": found.len(), "ln_p": means(&found) }));
    }
    report.data("quality", all);
    Ok(())
}

/// One question: its text, and ln p of the right answer by arm.
struct Found {
    cluster: u64,
    ln_p: [f64; ARMS.len()],
}

fn means(found: &[Found]) -> serde_json::Value {
    let mean = |arm: usize| found.iter().map(|one| one.ln_p[arm]).sum::<f64>() / found.len() as f64;
    ARMS.iter()
        .enumerate()
        .map(|(arm, name)| ((*name).to_owned(), json!(mean(arm))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Returns the paired difference of two arms.
fn paired(found: &[Found], more: usize, less: usize) -> Option<Estimate> {
    let difference = |one: &Found| Sample { cluster: one.cluster, value: one.ln_p[more] - one.ln_p[less] };
    estimate(&found.iter().map(difference).collect::<Vec<_>>())
}

fn told(name: &str, found: &[Found], report: &mut Report) {
    let shown = |estimate: Option<Estimate>| {
        estimate.map_or_else(String::new, |e| format!("{:.3} [{:.3} {:.3}]", e.mean, e.low, e.high))
    };
    let rows: Vec<Vec<String>> = ARMS
        .iter()
        .enumerate()
        .map(|(arm, what)| {
            let own: Vec<Sample> =
                found.iter().map(|one| Sample { cluster: one.cluster, value: one.ln_p[arm] }).collect();
            vec![(*what).to_owned(), shown(estimate(&own)), shown(paired(found, arm, 1))]
        })
        .collect();
    let title = format!("{name}: {} questions, r = {RATIO}; ln p of the right answer", found.len());
    report.table(&title, &["arm", "mean", "less text"], &rows);
    let mean = |more, less| paired(found, more, less).map_or(f64::NAN, |e| e.mean);
    report.check_at_least(format!("{name}: ln p over kv f16 less over text"), mean(2, 1), 0.0);
    report.check_at_least(format!("{name}: ln p over kv q8 less over kv f16"), mean(3, 2), -ROUNDED_MAX);
    report.check_at_least(format!("{name}: ln p over kv q4 less over kv f16"), mean(4, 2), -ROUNDED_MAX);
}

fn measured(model: &Arc<Model>, squad: &[PathBuf], count: usize) -> Result<Vec<Found>> {
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let mut cloud = Cloud::new(Arc::clone(model), None, threads)?;
    let mut predictor = Predictor::new(Arc::clone(model), threads)?;
    let mut engine = Engine::new(Arc::clone(model), engine_options(model, threads))?;
    let mut found = Vec::new();
    for path in squad {
        for case in cases(path, count)? {
            let known = Known { right: &case.answers, cloud: None };
            let run = cloud.run(case.segments(), &[DEFAULT], 1, &mut ())?;
            let chosen = run.choose(DEFAULT, RATIO)?;
            let mut ln_p = [f64::NAN; ARMS.len()];
            let (whole, _) = predictor.predict(run.segments(), known, &mut ())?;
            let (text, _) = predictor.predict(&run.refined_segments(&chosen), known, &mut ())?;
            (ln_p[0], ln_p[1]) = (right(whole.right_ln_p), right(text.right_ln_p));
            let ids = run.prompt_ids().to_vec();
            let kept = seen(model, run.kept_positions(&chosen)?, ids.len() - 1);
            let seq = engine.create();
            let held = engine.reuse_prefix(seq, &ids[..ids.len() - 1]);
            for part in ids[held..ids.len() - 1].chunks(512) {
                engine.step(&[StepSeq { seq, ids: part, logits: Wanted::None, capture: None }], &mut ())?;
            }
            for (at, format) in FORMS.into_iter().enumerate() {
                ln_p[2 + at] = over_moved(&mut engine, seq, (&ids, &kept), format, known)?;
            }
            engine.release(seq);
            if ln_p.iter().all(|value| value.is_finite()) {
                found.push(Found { cluster: case.cluster, ln_p });
            }
            eprintln!("{}: {ln_p:.3?}", case.id);
        }
    }
    Ok(found)
}

fn right(ln_p: Option<f64>) -> f64 {
    ln_p.unwrap_or(f64::NAN)
}

/// Returns ln p of the right answer over keys and values that were moved.
fn over_moved(
    engine: &mut Engine,
    seq: SeqId,
    (ids, kept): (&[TokenId], &[usize]),
    format: KvFormat,
    known: Known<'_>,
) -> Result<f64> {
    let layers = engine.kv_widths()?.len();
    let mut rows = KvRows::new(format, kept.len(), layers);
    for layer in 0..layers {
        rows.push(layer, &exported(engine, seq, layer, kept, format)?);
    }
    let (before, last) = ids.split_at(ids.len() - 1);
    let moved = engine.import_rows(PrefixScope::default(), None, before, &rows)?;
    let step = StepSeq { seq: moved, ids: last, logits: Wanted::Last, capture: None };
    let logits = engine.step(&[step], &mut ())?.remove(0).logits;
    let read = ReadPrompt { seq: moved, last: last[0], logits: &logits };
    let predicted = predict(engine, read, known, &mut ());
    engine.release(moved);
    Ok(right(predicted?.right_ln_p))
}

/// Returns questions about several texts of a file.
fn cases(path: &Path, count: usize) -> Result<Vec<Case>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read `{}`", path.display()))?;
    let all = xquad::cases(&text, PARAGRAPHS, 0)?;
    let step = (all.len() / count.max(1)).max(1);
    Ok(all.into_iter().step_by(step).take(count).collect())
}
