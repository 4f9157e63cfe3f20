//! The engine through its public interface, on models of random weights.

#![allow(clippy::unwrap_used, reason = "a test whose set-up fails has failed")]

mod adapters;
mod eviction;
mod invariance;
mod pieces;
mod reference;
mod refusals;
mod residency;
mod sequences;
mod split;

use std::num::NonZeroUsize;
use std::sync::Arc;

use baton_engine::gguf::Gguf;
use baton_engine::{Capture, Engine, EngineOptions, Model, SeqId, SeqOutput, StepSeq, Wanted};
use baton_kernels_cpu::Format;
use baton_synthetic::{SyntheticExperts, SyntheticModel};

/// Returns a model of small, odd widths: three layers, six heads, three key heads.
fn tiny(family: &'static str, format: Format) -> SyntheticModel {
    SyntheticModel {
        n_layers: 3,
        n_heads: 6,
        n_kv_heads: 3,
        d_model: 64,
        d_head: 16,
        d_ff: 96,
        context_len: 400,
        ..SyntheticModel::small(family, format, 7)
    }
}

/// Returns a tiny model of a family, with experts if it has them; `mixtral` is llama's with experts.
fn family(name: &'static str, format: Format) -> SyntheticModel {
    let architecture = if name == "mixtral" { "llama" } else { name };
    let experts = SyntheticExperts { count: 5, used: 2, d_ff: 32, shared_d_ff: 64 };
    let mixture = ["mixtral", "qwen2moe", "qwen3moe"].contains(&name);
    SyntheticModel { experts: mixture.then_some(experts), ..tiny(architecture, format) }
}

fn open(synthetic: &SyntheticModel) -> Arc<Model> {
    let bytes = synthetic.to_gguf().expect("the test's shape fits its format");
    Model::from_gguf(Gguf::from_bytes(bytes).unwrap()).unwrap()
}

fn engine(model: &Arc<Model>, threads: usize, options: EngineOptions) -> Engine {
    Engine::new(Arc::clone(model), EngineOptions { threads: NonZeroUsize::new(threads), ..options }).unwrap()
}

/// Returns text-like ids, different for each seed.
fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 40_503) >> 7) % 256).collect()
}

/// Runs one sequence's tokens through the engine, with every logit.
fn all_logits(engine: &mut Engine, seq: SeqId, ids: &[u32]) -> Vec<f32> {
    one(engine, seq, ids, None).logits
}

fn one(engine: &mut Engine, seq: SeqId, ids: &[u32], capture: Option<&Capture>) -> SeqOutput {
    let batch = [StepSeq { seq, ids, logits: Wanted::All, capture }];
    engine.step(&batch, &mut ()).unwrap().remove(0)
}

/// Advances the sequences, each along its own prompt, with a step per entry of `moves`. An entry says by how
/// many tokens (0: not in the batch). Returns every logit of every sequence.
fn ragged<const N: usize>(
    engine: &mut Engine,
    seqs: [SeqId; N],
    prompts: &[Vec<u32>; N],
    moves: &[[usize; N]],
) -> [Vec<f32>; N] {
    let mut have = [const { Vec::new() }; N];
    for moves in moves {
        let mut batch = Vec::new();
        for at in 0..N {
            let from = engine.len(seqs[at]).unwrap();
            let ids = &prompts[at][from..prompts[at].len().min(from + moves[at])];
            if !ids.is_empty() {
                batch.push(StepSeq { seq: seqs[at], ids, logits: Wanted::All, capture: None });
            }
        }
        for (output, entry) in engine.step(&batch, &mut ()).unwrap().into_iter().zip(&batch) {
            let at = seqs.iter().position(|seq| *seq == entry.seq).unwrap();
            have[at].extend(output.logits);
        }
    }
    have
}

#[track_caller]
fn assert_same_bits(have: &[f32], want: &[f32], what: &str) {
    assert_eq!(have.len(), want.len(), "{what}: length");
    let differs = have.iter().zip(want).position(|(have, want)| have.to_bits() != want.to_bits());
    assert_eq!(differs, None, "{what}: first difference");
    assert!(have.iter().all(|value| value.is_finite()), "{what}: not finite");
}
