//! Offloading to a real GPU with less memory than the model has, if there is one.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use baton_engine::{
    Engine, EngineOptions, GpuLayers, GpuLoss, GpuUse, Model, Offload, Pipeline, StepSeq, TokenId, Wanted,
};
use baton_gpu::Device;
use baton_kernels_cpu::Format;
use serde_json::json;

use super::Args;
use super::disk::with_model;
use crate::report::Report;

/// Least share of the bound that the measured rates of copies and products set.
const OF_BOUND_MIN: f64 = 0.9;
/// Steps before those that are measured, and those.
const STEPS: [usize; 2] = [4, 16];
const PIPELINES: [(Pipeline, &str); 3] = [
    (Pipeline::Performance, "performance"),
    (Pipeline::MemoryEfficient, "memory-efficient"),
    (Pipeline::Synchronous, "synchronous"),
];

/// Measures the model on the GPU, or says why not.
pub(super) fn measure(args: &Args, target: &Path, report: &mut Report) -> Result<()> {
    let skip = |report: &mut Report, reason: String| {
        report.note(format!("\nskipped: gpu: {reason}"));
        report.data("gpu_skipped", reason);
    };
    let mut opened = match baton_gpu::open(args.gpu, Some(args.vram)) {
        Ok(opened) => opened,
        Err(err) => {
            skip(report, err.to_string());
            return Ok(());
        }
    };
    let Some(device) = opened.device else {
        skip(report, opened.notices.pop().unwrap_or_else(|| "this machine has no GPU".to_owned()));
        return Ok(());
    };
    if device.facts().is_software {
        skip(report, format!("{} is a program on the CPU", baton_gpu::label(device.facts())));
        return Ok(());
    }
    with_model(&args.gpu_model, target, |path| on_device(path, &device, report))
}

fn on_loss(loss: &GpuLoss) {
    eprintln!("{}", baton_terminal::chain(loss));
}

fn on_device(path: &Path, device: &Arc<dyn Device>, report: &mut Report) -> Result<()> {
    let model = Model::open(path).with_context(|| format!("open {}", path.display()))?;
    let rates = baton_gpu::measure(&**device, &[Format::Q4K, Format::Q6K], baton_gpu::TIME)
        .context("measure the GPU")?;
    let copies = rates.copies.to_device_bytes_per_s;
    let read = rates.products.values().map(|rates| rates.vector_bytes_per_s).fold(f64::INFINITY, f64::min);
    let (mut rows, mut differ, mut want) = (Vec::new(), 0, None);
    for (pipeline, name) in PIPELINES {
        let run = decode(&model, device, pipeline)?;
        let bound_s = (run.bytes / copies).max(run.weights / read);
        let share = bound_s / run.step_s;
        if pipeline == Pipeline::Performance {
            report.check_at_least("gpu: speed, of the measured rates' bound", share, OF_BOUND_MIN);
        }
        differ += usize::from(want.get_or_insert_with(|| run.tokens.clone()) != &run.tokens);
        rows.push(vec![
            name.to_owned(),
            format!("{:.2}", 1.0 / run.step_s),
            format!("{:.1}", run.bytes / 1e6),
            format!("{:.2}", run.bytes / run.step_s / copies),
            format!("{share:.2}"),
        ]);
    }
    let title = format!(
        "{} on {}: copies of {:.1} GB/s measured",
        model.name(),
        baton_gpu::label(device.facts()),
        copies / 1e9
    );
    let header = ["pipeline", "tokens/s", "MB loaded a token", "of the copies' rate", "of the bound"];
    report.table(&title, &header, &rows);
    report.check_equal("gpu: pipelines whose tokens differ", differ as f64, 0.0);
    report.data("gpu", json!({ "device": baton_gpu::label(device.facts()), "rates": rates, "rows": rows }));
    Ok(())
}

struct Run {
    step_s: f64,
    /// Bytes loaded for a token.
    bytes: f64,
    /// Bytes of the layers' weights.
    weights: f64,
    tokens: Vec<TokenId>,
}

/// Decodes greedily.
fn decode(model: &Arc<Model>, device: &Arc<dyn Device>, pipeline: Pipeline) -> Result<Run> {
    let layers = GpuLayers::Offloaded(Offload { pipeline, ..Offload::default() });
    let gpu = Some(GpuUse { device: Arc::clone(device), layers, on_loss });
    let options = EngineOptions { gpu, kv_tokens: 256, ..EngineOptions::default() };
    let mut engine = Engine::new(Arc::clone(model), options).context("make an engine")?;
    let seq = engine.create();
    let mut tokens: Vec<TokenId> = vec![1];
    let mut token = |engine: &mut Engine| -> Result<()> {
        let ids = &tokens[tokens.len() - 1..];
        let step = StepSeq { seq, ids, logits: Wanted::Last, capture: None };
        let logits = engine.step(&[step], &mut ()).context("decode")?.remove(0).logits;
        let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
        tokens.push(best.context("an empty vocabulary")?.0 as TokenId);
        Ok(())
    };
    let [warm, steps] = STEPS;
    for _ in 0..warm {
        token(&mut engine)?;
    }
    let loaded = |engine: &Engine| engine.offload_stats().context("the GPU failed");
    let (before, begun) = (loaded(&engine)?, Instant::now());
    for _ in 0..steps {
        token(&mut engine)?;
    }
    let (step_s, after) = (begun.elapsed().as_secs_f64() / steps as f64, loaded(&engine)?);
    Ok(Run {
        step_s,
        bytes: (after.loaded_bytes - before.loaded_bytes) as f64 / steps as f64,
        weights: after.weight_bytes as f64,
        tokens,
    })
}
