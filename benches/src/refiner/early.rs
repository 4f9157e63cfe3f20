//! Measures how much earlier the mask could be sent, if it did not wait for the first token.
//!
//! The scores are complete when the last chosen layer of the last chunk is done. Today the mask is sent with
//! the first token, after the logits of that chunk. The time in between is what a separate mask would save.

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::Result;
use baton_engine::tokenizer::TokenId;
use baton_engine::{Engine, EngineOptions, Model, StepControl, StepSeq, Wanted};
use serde_json::json;

use super::{Args, CHUNK, SUFFIX, capture, plan, prefill};
use crate::clock::process_seconds;
use crate::report::Report;

/// Records the time at which a layer is done.
struct LayerWatch {
    layers: usize,
    at: f64,
}

impl StepControl for LayerWatch {
    fn after_layer(&mut self, done: usize, _total: usize) -> ControlFlow<()> {
        if done == self.layers {
            self.at = process_seconds();
        }
        ControlFlow::Continue(())
    }
}

pub(super) fn run(report: &mut Report, name: &str, model: &Arc<Model>, args: &Args) -> Result<()> {
    let plan = plan(model, SUFFIX, None)?;
    let layers = plan.heads.last().map_or(0, |head| head.0 + 1);
    let (mut rows, mut figures) = (Vec::new(), Vec::new());
    let vocab = model.tokenizer().vocab_len();
    for &tokens in args.early_tokens.iter().filter(|&&n| n > SUFFIX && n < model.config().context_len) {
        let options =
            EngineOptions { threads: args.threads, kv_tokens: tokens + CHUNK, ..EngineOptions::default() };
        let mut engine = Engine::new(model.clone(), options)?;
        let seq = engine.create();
        let ids: Vec<TokenId> = (0..tokens).map(|at| (at * 7919 % vocab) as TokenId).collect();
        let last = (tokens - 1) / CHUNK * CHUNK;
        let started = process_seconds();
        if last > 0 {
            prefill(&mut engine, seq, &ids[..last])?;
        }
        let capture = capture(&plan, tokens - last);
        let mut watch = LayerWatch { layers, at: f64::NAN };
        let step = StepSeq { seq, ids: &ids[last..], logits: Wanted::Last, capture: Some(&capture) };
        engine.step(&[step], &mut watch)?;
        let ended = process_seconds();
        let (prefill, saved) = (ended - started, ended - watch.at);
        let percent = 100.0 * saved / prefill;
        rows.push(vec![
            tokens.to_string(),
            format!("{:.1}", prefill * 1e3),
            format!("{:.1}", saved * 1e3),
            format!("{percent:.1}"),
        ]);
        figures.push(json!({ "tokens": tokens, "prefill_s": prefill, "saved_s": saved, "percent": percent }));
    }
    let title = format!(
        "early mask, {name}: last chosen layer {} of {}, chunks of {CHUNK}",
        layers,
        model.config().n_layers
    );
    report.table(&title, &["prompt tokens", "first token CPU ms", "mask earlier by ms", "%"], &rows);
    report.data(&format!("early mask, {name}"), figures);
    Ok(())
}
