//! The models and prompts of the comparison. Seeds decide them, so that they are the same on every machine.

use anyhow::{Context as _, Result};
use baton_kernels_cpu::Format;
use baton_synthetic::{ExtraValue, SyntheticExperts, SyntheticLatent, SyntheticLayers, SyntheticModel};

/// A model with random weights.
pub(super) struct Case {
    /// Family and format; also the stem of its file name.
    pub name: String,
    /// Format of its matrices.
    pub format: Format,
    shape: SyntheticModel,
}

impl Case {
    /// Returns the name of its family.
    pub(super) fn family(&self) -> &'static str {
        self.shape.family
    }

    /// Returns the model as the bytes of a GGUF file.
    pub(super) fn bytes(&self) -> Result<Vec<u8>> {
        self.shape.to_gguf().with_context(|| format!("make model {}", self.name))
    }
}

/// The formats of plain llama and qwen2.
const FORMATS: [Format; 5] = [Format::F32, Format::F16, Format::Q8_0, Format::Q4K, Format::Q6K];

/// Variants of model families besides plain llama and qwen2.
const MEMBERS: [&str; 23] = [
    "mixtral",
    "qwen2moe",
    "qwen2-yarn",
    "qwen3",
    "qwen3moe",
    "gemma",
    "gemma3",
    "phi3",
    "phi3-short",
    "gemma2",
    "gemma3-capped",
    "smollm3",
    "granite",
    "granitemoe",
    "llama-biased",
    "mistral3",
    "glm4",
    "gpt-oss",
    "deepseek2",
    "deepseek2-joined",
    "gemma4",
    "gemma4-shared",
    "gemma4-experts",
];

/// Makes the models: llama with its own output matrix and qwen2 with tied embeddings, in [`FORMATS`]. Every
/// other variant has a float and a quantized format, and llama also has every other format.
pub(super) fn random_models() -> Vec<Case> {
    let mut cases = Vec::new();
    // The seed of a case never changes, because the record identifies files by their digest.
    let mut add = |name: &str, format: Format, seed: u64, change: &dyn Fn(&mut SyntheticModel)| {
        let mut shape = SyntheticModel {
            n_layers: 4,
            n_heads: 8,
            n_kv_heads: 2,
            d_head: 32,
            d_ff: 768,
            ..SyntheticModel::small("llama", format, seed)
        };
        change(&mut shape);
        cases.push(Case { name: format!("{name}-{}", format.name()), format, shape });
    };
    for (family, seeds) in [("llama", 1000..), ("qwen2", 1005..)] {
        for (format, seed) in FORMATS.into_iter().zip(seeds) {
            add(family, format, seed, &|shape| {
                shape.family = family;
                shape.tied = family == "qwen2";
            });
        }
    }
    for (member, seed) in MEMBERS.into_iter().zip((1100..).step_by(2)) {
        add(member, Format::F32, seed, &|shape| particular(member, shape));
        add(member, Format::Q4K, seed + 1, &|shape| {
            particular(member, shape);
            // All experts are used. Otherwise rounded activations could change the choice of an expert near a
            // tie.
            shape.experts.iter_mut().for_each(|experts| experts.used = experts.count);
            shape.extra.retain(|(key, _)| !key.starts_with("expert_group"));
        });
    }
    for format in Format::ALL.into_iter().filter(|format| !FORMATS.contains(format)) {
        add("llama", format, 2000 + u64::from(format.ggml_type()), &|shape| shape.tied = false);
    }
    cases
}

/// Turns the shape into that of a variant. Prompts are longer than every attention window and every original
/// context.
#[expect(clippy::too_many_lines, reason = "a table: one arm for each variant")]
fn particular(member: &str, shape: &mut SyntheticModel) {
    let experts = Some(SyntheticExperts { count: 8, used: 2, d_ff: 256, shared_d_ff: 512 });
    let number = |key, value| (key, ExtraValue::F32(value));
    let count = |key, value| (key, ExtraValue::U32(value));
    match member {
        "mixtral" => (shape.experts, shape.d_ff) = (experts, 256),
        "qwen2moe" => (shape.family, shape.tied, shape.experts) = ("qwen2moe", false, experts),
        "qwen2-yarn" => {
            shape.family = "qwen2";
            shape.extra = vec![
                ("rope.scaling.type", ExtraValue::Text("yarn")),
                number("rope.scaling.factor", 4.0),
                count("rope.scaling.original_context_length", 64),
            ];
        }
        "qwen3" => (shape.family, shape.d_head) = ("qwen3", 64),
        "qwen3moe" => (shape.family, shape.d_head, shape.experts) = ("qwen3moe", 64, experts),
        "gemma" => (shape.family, shape.d_head) = ("gemma", 64),
        "gemma3" => {
            (shape.family, shape.d_head) = ("gemma3", 64);
            shape.extra = vec![
                count("attention.sliding_window", 40),
                count("attention.sliding_window_pattern", 2),
                number("rope.freq_base", 1e6),
                ("rope.scaling.type", ExtraValue::Text("linear")),
                number("rope.scaling.factor", 8.0),
            ];
        }
        "gemma2" => {
            (shape.family, shape.d_head) = ("gemma2", 64);
            shape.extra = vec![
                count("attention.sliding_window", 40),
                number("attn_logit_softcapping", 1.5),
                number("final_logit_softcapping", 3.0),
            ];
        }
        "gemma3-capped" => {
            (shape.family, shape.d_head) = ("gemma3", 64);
            shape.extra = vec![
                count("attention.sliding_window", 40),
                count("attention.sliding_window_pattern", 2),
                number("final_logit_softcapping", 3.0),
            ];
        }
        "gemma4" | "gemma4-shared" | "gemma4-experts" => {
            let shared = member == "gemma4-shared";
            (shape.family, shape.d_head, shape.n_kv_heads) = ("gemma4", 64, 1);
            shape.n_layers = if shared { 6 } else { 4 };
            shape.experts = experts.filter(|_| member == "gemma4-experts");
            shape.layers = SyntheticLayers {
                interval: 2,
                d_head: 32,
                n_kv_heads: 4,
                values_of_keys: !shared,
                shared: if shared { 2 } else { 0 },
                input_width: if shared { 32 } else { 0 },
            };
            shape.extra = vec![
                count("attention.sliding_window", 40),
                number("rope.freq_base", 1e6),
                number("final_logit_softcapping", 3.0),
            ];
        }
        "smollm3" => shape.family = "smollm3",
        "granite" | "granitemoe" => {
            (shape.family, shape.biased) = (if member == "granite" { "granite" } else { "granitemoe" }, true);
            shape.experts = experts.filter(|_| member == "granitemoe");
            shape.extra = vec![
                number("embedding_scale", 12.0),
                number("residual_scale", 0.22),
                number("logit_scale", 8.0),
                number("attention.scale", 0.1),
            ];
        }
        "llama-biased" => (shape.biased, shape.tied) = (true, false),
        "mistral3" => {
            shape.family = "mistral3";
            shape.extra = vec![
                ("rope.scaling.type", ExtraValue::Text("yarn")),
                number("rope.scaling.factor", 16.0),
                number("rope.scaling.yarn_beta_fast", 32.0),
                number("rope.scaling.yarn_beta_slow", 1.0),
                number("rope.scaling.yarn_log_multiplier", 0.7),
                count("rope.scaling.original_context_length", 32),
                number("attention.temperature_scale", 0.4),
            ];
        }
        "glm4" => {
            (shape.family, shape.biased) = ("glm4", true);
            shape.extra = vec![count("rope.dimension_count", 16)];
        }
        "gpt-oss" => {
            (shape.family, shape.d_head, shape.tied, shape.experts) = ("gpt-oss", 64, false, experts);
            shape.extra = vec![
                count("attention.sliding_window", 40),
                ("rope.scaling.type", ExtraValue::Text("yarn")),
                number("rope.scaling.factor", 32.0),
                count("rope.scaling.original_context_length", 32),
            ];
        }
        "deepseek2" | "deepseek2-joined" => {
            let absorbed = member == "deepseek2";
            (shape.family, shape.tied, shape.dense_layers, shape.biased) = ("deepseek2", false, 1, absorbed);
            let used = if absorbed { 3 } else { 2 };
            shape.experts = Some(SyntheticExperts { count: 8, used, d_ff: 256, shared_d_ff: 512 });
            shape.latent = Some(SyntheticLatent {
                q_rank: 256,
                kv_rank: 256,
                d_plain: 64,
                d_turned: 32,
                d_value: 64,
                absorbed,
            });
            shape.extra = vec![
                ("rope.scaling.type", ExtraValue::Text("yarn")),
                number("rope.scaling.factor", 8.0),
                number("rope.scaling.yarn_log_multiplier", 0.07),
                count("rope.scaling.original_context_length", 64),
            ];
            if absorbed {
                shape.extra.extend([
                    count("expert_gating_func", 2),
                    count("expert_group_count", 4),
                    count("expert_group_used_count", 2),
                    number("expert_weights_scale", 2.5),
                    ("expert_weights_norm", ExtraValue::Bool(true)),
                ]);
            }
        }
        // Half of the dimensions are rotated. llama.cpp ignores the window of phi3, so its prompts are
        // shorter than the window.
        _ => {
            let factors = |more: f32| (0..8).map(|pair| 1.0 + more * pair as f32).collect();
            shape.family = "phi3";
            shape.rope_factors = Some([factors(0.5), factors(0.1)]);
            shape.extra = vec![
                count("rope.dimension_count", 16),
                count("attention.sliding_window", 100),
                count("rope.scaling.original_context_length", if member == "phi3" { 256 } else { 1024 }),
                number("rope.scaling.attn_factor", 1.1),
            ];
        }
    }
}

/// Returns the prompts of the comparison with candle: different sequences of byte tokens.
pub(super) fn prompts() -> Vec<Vec<u32>> {
    (0..4).map(|seed| prompt(seed, 128)).collect()
}

/// Returns a prompt of byte tokens.
pub(super) fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 7_368_787) >> 9) % 256).collect()
}
