//! Offloading on a device with stated speeds, whose clock is its own.
//!
//! The device computes in host memory, so bits are real, and its memory has a hard bound. Its times are those
//! of two engines with the stated rates, and no GPU's.

use std::path::Path;

use anyhow::{Context as _, Result};
use baton_engine::Pipeline;
use baton_kernels_cpu::Format;
use baton_kernels_gpu::cases::Speeds;
use baton_synthetic::{SyntheticExperts, SyntheticModel};
use serde_json::json;

use super::bed::{Bed, Figure, STEPS, Way};
use super::trace::{self, Trace, multiplied};
use crate::report::Report;

const N_LAYERS: u32 = 12;
/// Products read as fast as copies are made: both engines have the same work if nothing stays.
const EVEN: Speeds = Speeds { copy_bytes_per_s: 1e9, copy_s: 1e-6, read_bytes_per_s: 1e9, launch_s: 1e-7 };
/// Products read twenty times as fast, as GPUs read their memory: copies bind.
const NARROW: Speeds = Speeds { read_bytes_per_s: 20e9, ..EVEN };
/// Shares of the layers' weights that stay.
const SHARES: [f64; 3] = [0.0, 0.3, 0.7];
const BATCHES: [usize; 5] = [1, 4, 8, 16, 32];
const PIPELINES: [(Pipeline, &str); 3] = [
    (Pipeline::Performance, "performance"),
    (Pipeline::MemoryEfficient, "memory-efficient"),
    (Pipeline::Synchronous, "synchronous"),
];
/// Most bytes loaded for a token, of the least possible.
const BYTES_MAX: f64 = 1.1;
/// Least share of the bound that the copies, or the products if they take longer, set.
const BOUND_MIN: f64 = 0.9;
/// Least speed beside the synchronous pipeline, if nothing stays and both engines have the same work.
const BESIDE_SYNCHRONOUS_MIN: f64 = 1.9;
/// Least share of products beside which a later matrix is on its way.
const OVERLAP_MIN: f64 = 0.9;
/// Experts of the mixture: so many of them are used.
const EXPERTS: SyntheticExperts = SyntheticExperts { count: 16, used: 2, d_ff: 256, shared_d_ff: 0 };
/// Default bytes of a block.
const BLOCK_BYTES: usize = 8 << 20;

fn way(bed: &Bed, share: f64, pipeline: Pipeline, speeds: Speeds) -> Way {
    let resident = (share * bed.weights as f64) as u64;
    Way { pipeline, resident, block_bytes: BLOCK_BYTES, threads: 3, batch: 1, speeds }
}

/// Counts ways whose tokens are not those of everything in memory.
#[derive(Default)]
struct Differing(usize, usize);

impl Differing {
    fn look(&mut self, bed: &Bed, figure: &Figure) {
        self.0 += usize::from(!bed.agrees(figure));
        self.1 += 1;
    }
}

/// Measures everything on the emulated device. The picture goes to `target`.
pub(super) fn measure(target: &Path, report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir().context("make a folder for models")?;
    // The proportions of Llama 3 8B.
    let shape = |family| SyntheticModel {
        n_layers: N_LAYERS,
        n_kv_heads: 1,
        d_ff: 896,
        ..SyntheticModel::small(family, Format::Q8_0, 7)
    };
    let bed = Bed::new(&shape("llama"), folder.path(), 1)?;
    report.note(format!(
        "Emulated device: copies of {:.1} GB/s that begin after {:.1} us, a clock of its own. These times are \
         those of stated rates, and no GPU's.",
        EVEN.copy_bytes_per_s / 1e9,
        EVEN.copy_s * 1e6
    ));
    let mut differing = Differing::default();
    shares(&bed, report, &mut differing)?;
    overlap(&bed, target, report)?;
    blocks(&bed, report, &mut differing)?;
    let many = Bed::new(&shape("llama"), folder.path(), BATCHES[BATCHES.len() - 1])?;
    batches(&many, report, &mut differing)?;
    let mixture = SyntheticModel { experts: Some(EXPERTS), ..shape("qwen3moe") };
    experts(&Bed::new(&mixture, folder.path(), 1)?, report, &mut differing)?;
    let Differing(differ, runs) = differing;
    report.data("emulated_runs", runs);
    report.check_equal("emulated: runs whose tokens differ from everything in memory", differ as f64, 0.0);
    Ok(())
}

/// Each share with each pipeline, on both devices.
fn shares(bed: &Bed, report: &mut Report, differing: &mut Differing) -> Result<()> {
    let (mut rows, mut data) = (Vec::new(), Vec::new());
    for (speeds, device) in [(EVEN, "even"), (NARROW, "narrow")] {
        for share in SHARES {
            let mut fastest_s = f64::NAN;
            for (pipeline, name) in PIPELINES {
                let figure = bed.run(&way(bed, share, pipeline, speeds))?;
                differing.look(bed, &figure);
                let least = (1.0 - share) * bed.weights as f64;
                let copying_s = figure.bytes / speeds.copy_bytes_per_s;
                let bound_s = copying_s.max(bed.weights as f64 / speeds.read_bytes_per_s);
                let (of_least, of_bound) = (figure.bytes / least, bound_s / figure.step_s);
                if pipeline == Pipeline::Performance {
                    fastest_s = figure.step_s;
                    let name = format!("emulated {device}, {share} stays: bytes a token, of the least");
                    report.check_at_most(name, of_least, BYTES_MAX);
                    let name = format!("emulated {device}, {share} stays: speed, of the bound");
                    report.check_at_least(name, of_bound, BOUND_MIN);
                }
                let beside = figure.step_s / fastest_s;
                if (pipeline, share, device) == (Pipeline::Synchronous, 0.0, "even") {
                    let name = "emulated even, nothing stays: times as fast as synchronous";
                    report.check_at_least(name, beside, BESIDE_SYNCHRONOUS_MIN);
                }
                rows.push(vec![
                    format!("{device}, {share} stays, {name}"),
                    format!("{:.3}", figure.step_s * 1e3),
                    format!("{:.3}", figure.bytes / 1e6),
                    format!("{of_least:.3}"),
                    format!("{of_bound:.3}"),
                    format!("{:.2}", 1.0 / beside),
                    format!("{:.2}", (figure.stats.slot_bytes + figure.stats.resident_bytes) as f64 / 1e6),
                ]);
                data.push(json!({
                    "device": device, "share": share, "pipeline": name, "step_s": figure.step_s,
                    "bytes": figure.bytes, "of_least": of_least, "of_bound": of_bound,
                }));
            }
        }
    }
    let title = format!(
        "emulated device, {:.2} MB of weights in {N_LAYERS} layers: one token (even: products read {} GB/s, \
         narrow: {} GB/s)",
        bed.weights as f64 / 1e6,
        EVEN.read_bytes_per_s / 1e9,
        NARROW.read_bytes_per_s / 1e9
    );
    let header = [
        "",
        "ms a token",
        "MB loaded",
        "of the least",
        "of the bound",
        "beside performance",
        "MB for weights",
    ];
    report.table(&title, &header, &rows);
    report.data("emulated", data);
    Ok(())
}

/// What runs beside what, if nothing stays.
fn overlap(bed: &Bed, target: &Path, report: &mut Report) -> Result<()> {
    let mut traces = Vec::new();
    for (pipeline, name) in PIPELINES {
        // Loads of one thread are in the order of the walk.
        let figure = bed.run(&Way { threads: 1, ..way(bed, 0.0, pipeline, EVEN) })?;
        let passes = figure.stats.loaded_bytes / bed.weights.max(1);
        let units = figure.spans[1].len() / passes.max(1) as usize;
        let last = figure.spans[0].iter().filter(|span| span.start_s >= figure.last_step_s);
        let last: Vec<_> = last.cloned().collect();
        traces.push((name, Trace::new(&figure, units, multiplied(&last).count())));
    }
    let rows: Vec<Vec<String>> = traces
        .iter()
        .flat_map(|(name, trace)| {
            let [copy, compute] = trace.strip();
            let row = |lane: &str, strip| vec![(*name).to_owned(), lane.to_owned(), strip];
            [row("copy", copy), row("compute", compute)]
        })
        .collect();
    let title = "emulated device, nothing stays: the first matrices of a token, a letter for each (strips \
                 have scales of their own)";
    report.table(title, &["pipeline", "engine", "time"], &rows);
    let path = target.join("offload-pipeline.svg");
    let note = "One token on an emulated device (1 GB/s copies, products read 1 GB/s): no GPU's times";
    let runs: Vec<(&str, &Trace)> = traces.iter().map(|(name, trace)| (*name, trace)).collect();
    trace::draw(&path, note, &runs)?;
    report.note(format!("The picture of it is {}", path.display()));
    report.data("picture", path.display().to_string());
    let [performance, _, synchronous] = &traces[..] else { return Ok(()) };
    let (share, none) = (performance.1.overlapped(), synchronous.1.overlapped());
    let name = "emulated: products beside which a later matrix is loaded";
    report.check_at_least(name, share, OVERLAP_MIN);
    report.check_equal("emulated, synchronous: products beside which a later matrix is loaded", none, 0.0);
    report.data("emulated_copy_share", performance.1.copy_share());
    Ok(())
}

/// Sizes of blocks: each costs the time until a copy begins.
fn blocks(bed: &Bed, report: &mut Report, differing: &mut Differing) -> Result<()> {
    let mut rows = Vec::new();
    for block_bytes in [BLOCK_BYTES, 64 << 10, 4 << 10] {
        let figure = bed.run(&Way { block_bytes, ..way(bed, 0.0, Pipeline::Performance, EVEN) })?;
        differing.look(bed, &figure);
        rows.push(vec![format!("{} KiB", block_bytes >> 10), format!("{:.3}", figure.step_s * 1e3)]);
    }
    report.table("emulated device, nothing stays: blocks of at most", &["", "ms a token"], &rows);
    Ok(())
}

fn batches(bed: &Bed, report: &mut Report, differing: &mut Differing) -> Result<()> {
    let mut rows = Vec::new();
    let mut data = Vec::new();
    for batch in BATCHES {
        let mut row = vec![batch.to_string()];
        for (pipeline, name) in PIPELINES {
            let figure = bed.run(&Way { batch, ..way(bed, 0.0, pipeline, EVEN) })?;
            differing.look(bed, &figure);
            let rate = batch as f64 / figure.step_s;
            row.push(format!("{rate:.0}"));
            if pipeline == Pipeline::Performance {
                row.push(format!("{:.2}", figure.bytes / 1e6));
                let name = format!("emulated, batch of {batch}: bytes a step, of the least");
                report.check_at_most(name, figure.bytes / bed.weights as f64, BYTES_MAX);
            }
            data.push(json!({ "batch": batch, "pipeline": name, "tokens_per_s": rate }));
        }
        rows.push(row);
    }
    let header = ["batch", "performance", "its MB a step", "memory-efficient", "synchronous"];
    report.table(
        "emulated device, nothing stays: tokens a second in sum, on a clock that counts copies, reads of weights \
         and launches, and no arithmetic",
        &header,
        &rows,
    );
    report.data("emulated_batches", data);
    Ok(())
}

/// A mixture whose other weights stay, with slots for a part of its experts.
fn experts(bed: &Bed, report: &mut Report, differing: &mut Differing) -> Result<()> {
    let all = u64::from(EXPERTS.count * N_LAYERS);
    let needed = f64::from(EXPERTS.used * N_LAYERS);
    let probe = bed.run(&way(bed, 1.0, Pipeline::Performance, EVEN))?;
    let one = probe.experts[0] / probe.experts[2].max(1);
    let (mut rows, mut hits_before) = (Vec::new(), -1.0);
    let mut rising = true;
    for slots in [2, all / 4, all / 2, all] {
        let resident = bed.weights + slots * one;
        let figure = bed.run(&Way { resident, ..way(bed, 1.0, Pipeline::Performance, EVEN) })?;
        differing.look(bed, &figure);
        let [bytes, hits, loads] = figure.experts.map(|count| count as f64 / STEPS as f64);
        let chosen = needed * one as f64;
        let share = hits / needed;
        rising &= share >= hits_before;
        hits_before = share;
        rows.push(vec![
            format!("{} of {all}", figure.stats.expert_slots),
            format!("{:.3}", bytes / 1e6),
            format!("{:.3}", bytes / chosen),
            format!("{:.3}", bytes / (all * one) as f64),
            format!("{:.1} %", 100.0 * share),
            format!("{loads:.1}"),
            format!("{:.3}", figure.step_s * 1e3),
        ]);
        let name = format!("emulated mixture, {slots} slots: expert bytes a token, of the chosen experts'");
        report.check_at_most(name, bytes / chosen, BYTES_MAX);
        let missed = chosen - hits * one as f64;
        if slots < all {
            let name = format!("emulated mixture, {slots} slots: expert bytes, of those not there");
            report.check_at_most(name, bytes / missed, BYTES_MAX);
        }
    }
    let title = format!(
        "emulated device, mixture: {} of {} experts a token in each of {N_LAYERS} layers; those used most stay",
        EXPERTS.used, EXPERTS.count
    );
    let header = [
        "experts that stay",
        "MB loaded a token",
        "of the chosen ones",
        "of all experts",
        "were there",
        "loads a token",
        "ms a token",
    ];
    report.table(&title, &header, &rows);
    report.check_at_least("emulated mixture, a slot for each: hits", hits_before, 0.5);
    report.check_equal("emulated mixture: hits rise with the slots", f64::from(u8::from(rising)), 1.0);
    Ok(())
}
