//! Whole rings in memory: whatever the plan, and whatever breaks, logits and text are those of one engine.

mod audits;
mod gpu;
mod health;
mod home;
mod joining;
mod losses;
mod plans;
mod weights;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use baton_engine::tokenizer::TokenId;
use baton_engine::{Engine, Model, PrefixScope, SeqId, Sequences, StepSeq, Wanted};
use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticModel;

use crate::core::head::PlanFor;
use crate::core::{DeviceId, Node};
use crate::home::rejoin::spawn_rejoin;
use crate::host::{Names, Planner, RingHandle, RingHead, RingOptions};
use crate::host::{WorkerEvent, WorkerOptions, serve};
use crate::sim::home::{Home, HubHome, TestMachine, engine_options, even, first, plan, until_serves};
use crate::wire::link::Network;

/// Layers of the test's model.
const LAYERS: usize = 5;

struct Fixture {
    folder: tempfile::TempDir,
    model: Arc<Model>,
}

impl Fixture {
    /// Makes a model of four heads of this width.
    fn of(d_head: u32, d_ff: u32, seed: u64) -> Self {
        let shape = SyntheticModel {
            n_layers: LAYERS as u32,
            n_heads: 4,
            n_kv_heads: 2,
            d_model: 4 * d_head,
            d_head,
            d_ff,
            tied: false,
            ..SyntheticModel::small("llama", Format::F32, seed)
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring.gguf");
        std::fs::write(&path, shape.to_gguf().unwrap()).unwrap();
        Self { model: Model::open(&path).unwrap(), folder }
    }
}

static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| Fixture::of(16, 96, 11));

fn model() -> Arc<Model> {
    Arc::clone(&FIXTURE.model)
}

fn model_path() -> PathBuf {
    FIXTURE.folder.path().join("ring.gguf")
}

fn one_engine() -> Engine {
    Engine::new(model(), engine_options(1024)).unwrap()
}

/// Makes a home of so many workers that have the model.
fn home_of(workers: u8) -> Home {
    Home::new(workers, &model())
}

/// Returns token ids that resemble text; they differ for each seed.
fn prompt(seed: u32, len: usize) -> Vec<TokenId> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 40_503) >> 7) % 256).collect()
}

fn step(seq: SeqId, ids: &[TokenId], logits: Wanted) -> StepSeq<'_> {
    StepSeq { seq, ids, logits, capture: None }
}

fn greedy(logits: &[f32]) -> TokenId {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.unwrap().0 as TokenId
}

/// Returns every logit of a prompt and of so many further tokens, and these tokens.
fn written(sequences: &mut dyn Sequences, ids: &[TokenId], tokens: usize) -> (Vec<f32>, Vec<TokenId>) {
    let vocab = sequences.model().config().vocab_len;
    let seq = sequences.create_in(PrefixScope::default(), None).unwrap();
    let mut logits = sequences.step(&[step(seq, ids, Wanted::All)], &mut ()).unwrap().remove(0).logits;
    let mut text = Vec::new();
    for _ in 0..tokens {
        let token = greedy(&logits[logits.len() - vocab..]);
        text.push(token);
        let more = sequences.step(&[step(seq, &[token], Wanted::Last)], &mut ()).unwrap().remove(0);
        logits.extend(more.logits);
    }
    sequences.release(seq);
    (logits, text)
}

/// Returns the largest difference of two logits; NaN if one of them is NaN.
fn gap(have: &[f32], want: &[f32]) -> f32 {
    have.iter().zip(want).map(|(a, b)| (a - b).abs()).max_by(f32::total_cmp).unwrap_or(0.0)
}

#[track_caller]
fn assert_same_bits(have: &[f32], want: &[f32], what: &str) {
    assert_eq!(have.len(), want.len(), "{what}: number of logits");
    let differs = have.iter().zip(want).position(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(differs, None, "{what}: first logit that differs");
}
