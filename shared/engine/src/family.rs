//! Model families as data: one row of flags each, for one forward pass.
//!
//! A family holds what the architecture key of a GGUF file implies and its other metadata does not say. This
//! is how rotary positions pair the dimensions of a head, which tensors exist and how they are used. A family
//! with the same parts needs only a new row.

use baton_kernels_cpu::RopeStyle;

/// Whether a kind of tensor belongs to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Presence {
    /// The file must not hold it.
    Never,
    /// The file must hold it.
    Required,
    /// Used if the file holds it.
    Optional,
}

/// The activation function of a feed-forward layer's gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// GELU in its hyperbolic-tangent form.
    Gelu,
}

/// The mixture of experts of a family, if its feed-forward layers may be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertRule {
    /// Whether every model of the family is a mixture; if [`Presence::Optional`], `expert_count` decides.
    pub presence: Presence,
    /// Whether the chosen experts' probabilities are divided by their sum.
    pub normalized: bool,
    /// Whether there is one more expert that every token uses, with its own gate.
    pub shared: bool,
    /// Whether an expert has its own width (`expert_feed_forward_length`) instead of that of a dense layer.
    pub own_width: bool,
}

/// Layers that see only a sliding window, between others that see everything.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LocalRule {
    /// Default if the file does not say: of this many consecutive layers, all but the last are local.
    pub period: u32,
    /// Default base of the local layers' rotary frequencies, which are not scaled.
    pub freq_base: f32,
}

/// The properties that an architecture implies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Family {
    /// `general.architecture` of the file, and the prefix of its keys.
    pub name: &'static str,
    /// How rotary positions pair the dimensions of a head.
    pub rope_style: RopeStyle,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: Presence,
    /// Whether every query and key head has an RMS norm before its rotation.
    pub head_norms: bool,
    /// Whether query, key and value projections are one tensor, and gate and up another.
    pub fused: bool,
    /// Whether the result of each half of a layer has one more RMS norm before it is added.
    pub post_norms: bool,
    /// Whether embeddings are multiplied by the square root of their width.
    pub scaled_embedding: bool,
    /// The projection to logits; [`Presence::Never`] if it is always the embedding table.
    pub output: Presence,
    /// The activation function of the gate.
    pub activation: Activation,
    /// The experts of the feed-forward layers; `None` if the family never has any.
    pub experts: Option<ExpertRule>,
    /// Local layers; `None` if all layers are alike.
    pub local: Option<LocalRule>,
    /// A model with this many layers scales its query-key products by the width `e / h` instead of that of a
    /// head; its file does not say so.
    pub model_scale_layers: Option<u32>,
}

/// Llama 1 to 3.x, Mistral, Mixtral, and models distilled into them.
const LLAMA: Family = Family {
    name: "llama",
    rope_style: RopeStyle::Adjacent,
    qkv_bias: Presence::Optional,
    head_norms: false,
    fused: false,
    post_norms: false,
    scaled_embedding: false,
    output: Presence::Optional,
    activation: Activation::Silu,
    experts: Some(ExpertRule {
        presence: Presence::Optional,
        normalized: true,
        shared: false,
        own_width: false,
    }),
    local: None,
    model_scale_layers: None,
};

/// Qwen2 and Qwen2.5, and models distilled into them.
const QWEN2: Family = Family {
    name: "qwen2",
    rope_style: RopeStyle::Halves,
    qkv_bias: Presence::Required,
    experts: None,
    ..LLAMA
};

/// Qwen1.5-MoE and Qwen2 with experts.
const QWEN2_MOE: Family = Family {
    name: "qwen2moe",
    experts: Some(ExpertRule {
        presence: Presence::Required,
        normalized: false,
        shared: true,
        own_width: true,
    }),
    ..QWEN2
};

/// Qwen3, dense.
const QWEN3: Family = Family { name: "qwen3", qkv_bias: Presence::Optional, head_norms: true, ..QWEN2 };

/// Qwen3 with experts.
const QWEN3_MOE: Family = Family {
    name: "qwen3moe",
    experts: Some(ExpertRule {
        presence: Presence::Required,
        normalized: true,
        shared: false,
        own_width: true,
    }),
    ..QWEN3
};

/// Gemma 1. Its norm weights are stored with the 1 that the model adds to them.
const GEMMA: Family = Family {
    name: "gemma",
    rope_style: RopeStyle::Halves,
    qkv_bias: Presence::Never,
    scaled_embedding: true,
    output: Presence::Never,
    activation: Activation::Gelu,
    experts: None,
    ..LLAMA
};

/// Gemma 3, text. Gemma 2 caps its attention scores, which the kernels do not.
const GEMMA3: Family = Family {
    name: "gemma3",
    head_norms: true,
    post_norms: true,
    output: Presence::Optional,
    local: Some(LocalRule { period: 6, freq_base: 10_000.0 }),
    // The 27B model.
    model_scale_layers: Some(62),
    ..GEMMA
};

/// Phi-3, Phi-3.5 mini and Phi-4.
const PHI3: Family = Family {
    name: "phi3",
    rope_style: RopeStyle::Halves,
    qkv_bias: Presence::Never,
    fused: true,
    experts: None,
    ..LLAMA
};

/// Every family that the engine runs.
pub const FAMILIES: &[Family] = &[LLAMA, QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE, GEMMA, GEMMA3, PHI3];

/// Returns the family of an architecture key.
pub fn find(architecture: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == architecture)
}
