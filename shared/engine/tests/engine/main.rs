//! The engine through its public interface, on models of random weights.

#![allow(clippy::unwrap_used, reason = "a test whose set-up fails has failed")]

mod adapters;
mod blocks;
mod eviction;
mod gpu;
mod invariance;
mod layers;
mod mixtures;
mod offload;
mod packed;
mod pieces;
mod recurrent;
mod reference;
mod refusals;
mod residency;
mod rows;
mod sequences;
mod split;

use std::num::NonZeroUsize;
use std::sync::Arc;

use baton_engine::engine::KvFormat;
use baton_engine::gguf::Gguf;
use baton_engine::{Capture, Engine, EngineOptions, Model, SeqId, SeqOutput, StepSeq, Wanted};
use baton_kernels_cpu::Format;
use baton_synthetic::{ExtraValue, SyntheticExperts, SyntheticLatent, SyntheticLayers, SyntheticModel};

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

/// Returns the architecture of a name of [`family`].
fn architecture(name: &'static str) -> &'static str {
    match name {
        "mixtral" | "llama-biased" => "llama",
        "deepseek2-joined" => "deepseek2",
        "gemma4-shared" | "gemma4-experts" => "gemma4",
        name => name,
    }
}

/// The names of [`family`].
const FAMILIES: [&str; 27] = [
    "llama",
    "llama-biased",
    "mixtral",
    "mistral3",
    "smollm3",
    "granite",
    "granitemoe",
    "glm4",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma4",
    "gemma4-shared",
    "gemma4-experts",
    "phi3",
    "gpt-oss",
    "deepseek2",
    "deepseek2-joined",
    "lfm2",
    "lfm2moe",
    "qwen3next",
    "qwen35",
    "qwen35moe",
];

/// Returns a tiny model of a family, with experts if it has them; `mixtral` is llama's with experts, and
/// `llama-biased` is llama's with every bias.
fn family(name: &'static str, format: Format) -> SyntheticModel {
    let architecture = architecture(name);
    let number = |key, value| (key, ExtraValue::F32(value));
    let window = ("attention.sliding_window", ExtraValue::U32(40));
    let extra = match name {
        "gemma2" => {
            vec![window, number("attn_logit_softcapping", 1.5), number("final_logit_softcapping", 2.0)]
        }
        "gpt-oss" | "gemma4" | "gemma4-shared" => vec![window],
        "gemma4-experts" => vec![window, number("final_logit_softcapping", 2.0)],
        "granite" | "granitemoe" => vec![
            number("embedding_scale", 5.0),
            number("residual_scale", 0.3),
            number("logit_scale", 2.5),
            number("attention.scale", 0.2),
        ],
        "mistral3" => vec![
            ("rope.scaling.type", ExtraValue::Text("yarn")),
            number("rope.scaling.factor", 4.0),
            number("rope.scaling.yarn_log_multiplier", 0.7),
            ("rope.scaling.original_context_length", ExtraValue::U32(32)),
            number("attention.temperature_scale", 0.4),
        ],
        "deepseek2" => vec![
            ("expert_gating_func", ExtraValue::U32(2)),
            ("expert_weights_norm", ExtraValue::Bool(true)),
            ("expert_group_count", ExtraValue::U32(3)),
            ("expert_group_used_count", ExtraValue::U32(2)),
            number("expert_weights_scale", 2.5),
            ("rope.scaling.type", ExtraValue::Text("yarn")),
            number("rope.scaling.factor", 8.0),
            number("rope.scaling.yarn_log_multiplier", 0.07),
            ("rope.scaling.original_context_length", ExtraValue::U32(50)),
        ],
        "glm4" => vec![("rope.dimension_count", ExtraValue::U32(8))],
        "lfm2moe" => vec![("expert_gating_func", ExtraValue::U32(2))],
        _ => Vec::new(),
    };
    let count = if name == "deepseek2" { 9 } else { 5 };
    let experts = SyntheticExperts { count, used: 2, d_ff: 32, shared_d_ff: 64 };
    // Local layers are wider than others, or narrower, and so are their key heads.
    let shared = name == "gemma4-shared";
    let layers = SyntheticLayers {
        interval: if shared { 2 } else { 3 },
        d_head: if shared { 32 } else { 48 },
        n_kv_heads: if shared { 2 } else { 6 },
        values_of_keys: !shared,
        shared: if shared { 3 } else { 0 },
        input_width: if shared { 32 } else { 0 },
    };
    let mixture =
        ["qwen2moe", "qwen3moe", "granitemoe", "gpt-oss", "deepseek2", "lfm2moe", "qwen3next", "qwen35moe"];
    // Odd widths that quantized formats hold only as whole blocks.
    let (q_rank, absorbed) = if name == "deepseek2" { (32, true) } else { (0, false) };
    let latent = SyntheticLatent { q_rank, kv_rank: 64, d_plain: 32, d_turned: 12, d_value: 32, absorbed };
    SyntheticModel {
        n_layers: match name {
            "smollm3" => 5,
            "gemma4-shared" => 7,
            _ => 3,
        },
        layers,
        experts: (name == "mixtral" || name == "gemma4-experts" || mixture.contains(&architecture))
            .then_some(experts),
        latent: (architecture == "deepseek2").then_some(latent),
        dense_layers: u32::from(["deepseek2", "lfm2moe"].contains(&architecture)),
        biased: ["llama-biased", "granite", "glm4", "deepseek2", "lfm2moe"].contains(&name),
        tied: name != "gpt-oss",
        extra,
        ..tiny(architecture, format)
    }
}

fn open(synthetic: &SyntheticModel) -> Arc<Model> {
    let bytes = synthetic.to_gguf().expect("the test's shape fits its format");
    Model::from_gguf(Gguf::from_bytes(bytes).unwrap()).unwrap()
}

fn engine(model: &Arc<Model>, threads: usize, options: EngineOptions) -> Engine {
    Engine::new(Arc::clone(model), EngineOptions { threads: NonZeroUsize::new(threads), ..options }).unwrap()
}

/// Returns options with keys and values in floats, for comparisons with definitions in floats.
fn exact() -> EngineOptions {
    EngineOptions { kv_format: KvFormat::F32, ..EngineOptions::default() }
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
