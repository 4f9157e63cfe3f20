//! The time from an adapter's file to the first token of a sequence that uses it, on an engine that writes.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use baton_engine::{Adapter, Engine, EngineOptions, Model, SeqId, StepSeq, Wanted};
use baton_import::ADAPTER_FORMAT;
use baton_pacing::refit::median;
use serde_json::json;

use super::{RANK, adapter_bytes};
use crate::report::Report;
use crate::residency::forget;

/// Loads of each rank.
const LOADS: u64 = 5;
/// The most milliseconds from the file to the first token.
const LOAD_MS_MAX: f64 = 300.0;
/// Tokens of the sequence that the engine writes meanwhile.
const BUSY_TOKENS: usize = 64;

/// One load, in milliseconds.
struct Load {
    /// Until the engine has the adapter.
    ready_ms: f64,
    /// Until the first token of a new sequence with it, in a pass with the other sequence.
    first_token_ms: f64,
}

/// Measures each rank, from files in the page cache and from files that were dropped from it.
pub(super) fn measure(
    model: &Arc<Model>,
    ranks: &[u32],
    threads: NonZeroUsize,
    report: &mut Report,
) -> Result<()> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let options = EngineOptions { threads: Some(threads), kv_tokens: 4096, ..EngineOptions::default() };
    let mut engine = Engine::new(Arc::clone(model), options).context("make an engine")?;
    let busy = engine.create();
    let ids: Vec<u32> = (0..BUSY_TOKENS as u32).map(|id| 97 + id % 23).collect();
    let step = [StepSeq { seq: busy, ids: &ids, logits: Wanted::Last, capture: None }];
    engine.step(&step, &mut ()).context("begin an answer")?;
    let (mut rows, mut data) = (Vec::new(), Vec::new());
    for rank in ranks {
        let mut medians = Vec::new();
        let mut file_bytes = 0;
        for dropped in [false, true] {
            let mut loads = Vec::new();
            for seed in 0..LOADS {
                let bytes = adapter_bytes(model, *rank, ADAPTER_FORMAT, 100 + seed)?;
                file_bytes = bytes.len();
                let path = folder.path().join(format!("{rank}-{seed}-{dropped}.gguf"));
                std::fs::write(&path, bytes).context("write an adapter")?;
                if dropped {
                    forget(&path)?;
                }
                loads.push(load(&mut engine, model, busy, &path)?);
            }
            let ready = median(loads.iter().map(|load| load.ready_ms)).unwrap_or(f64::NAN);
            let first = median(loads.iter().map(|load| load.first_token_ms)).unwrap_or(f64::NAN);
            if *rank == RANK && !dropped {
                report.check_at_most(format!("rank {rank}: file to first token, ms"), first, LOAD_MS_MAX);
            }
            medians.extend([ready, first]);
        }
        let mut row = vec![format!("rank {rank}"), format!("{:.1}", file_bytes as f64 / 1e6)];
        row.extend(medians.iter().map(|ms| format!("{ms:.1}")));
        rows.push(row);
        data.push(json!({
            "rank": rank, "file_bytes": file_bytes, "ready_ms": medians[0], "first_token_ms": medians[1],
            "dropped_ready_ms": medians[2], "dropped_first_token_ms": medians[3],
        }));
    }
    report.table(
        &format!("an adapter loaded beside a running answer, ms, medians of {LOADS}"),
        &["", "MB", "cached: ready", "first token", "dropped: ready", "first token"],
        &rows,
    );
    report
        .note("dropped: its pages were dropped from the page cache; caches of the disk may still hold them");
    report.data("load", data);
    Ok(())
}

fn load(engine: &mut Engine, model: &Arc<Model>, busy: SeqId, path: &Path) -> Result<Load> {
    let since_ms = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    let start = Instant::now();
    let adapter = Adapter::open(path, model).context("open an adapter")?;
    let id = engine.add_adapter(adapter).context("take an adapter in")?;
    let seq = engine.create_with(Some(id)).context("begin a sequence")?;
    let ready_ms = since_ms(start);
    let batch = [busy, seq].map(|seq| StepSeq { seq, ids: &[100], logits: Wanted::Last, capture: None });
    engine.step(&batch, &mut ()).context("write a token")?;
    let first_token_ms = since_ms(start);
    engine.release(seq);
    Ok(Load { ready_ms, first_token_ms })
}
