//! Model families as data: one row of flags each, over one forward pass.
//!
//! A family is what the architecture key of a GGUF file implies and its other metadata does not say: how
//! rotary positions pair the dimensions of a head, which tensors exist and what is done with them. Adding a
//! family of the same parts is adding a row.

use baton_kernels_cpu::RopeStyle;

/// Whether a kind of tensor belongs to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Presence {
    /// The file must not hold it.
    Never,
    /// The file must hold it.
    Required,
    /// Used where the file holds it.
    Optional,
}

/// What the gate of a feed-forward layer goes through before it is multiplied with the other half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// GELU in its hyperbolic-tangent form.
    Gelu,
}

/// The mixture of experts of a family whose feed-forward layers may be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertRule {
    /// Whether every model of the family is a mixture; where [`Presence::Optional`], `expert_count` says so.
    pub presence: Presence,
    /// The chosen experts' probabilities are divided by their sum.
    pub normalized: bool,
    /// One more expert that every token goes through, under a gate of its own.
    pub shared: bool,
    /// An expert has a width of its own (`expert_feed_forward_length`), not that of a whole layer.
    pub own_width: bool,
}

/// Layers that see a sliding window only, between others that see everything.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LocalRule {
    /// Of so many neighbouring layers all but the last are local, where the file does not say how many.
    pub period: u32,
    /// Base of the local layers' rotary frequencies, where the file does not say it; they are not scaled.
    pub freq_base: f32,
}

/// What an architecture implies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Family {
    /// `general.architecture` of the file, and the prefix of its keys.
    pub name: &'static str,
    /// How rotary positions pair the dimensions of a head.
    pub rope_style: RopeStyle,
    /// Biases of the query, key and value projections.
    pub qkv_bias: Presence,
    /// RMS norm of every query and key head, before its rotation.
    pub head_norms: bool,
    /// Query, key and value projections are one tensor, and so are gate and up.
    pub fused: bool,
    /// Each half's result goes through one more RMS norm before it is added.
    pub post_norms: bool,
    /// Embeddings are multiplied by the square root of their width.
    pub scaled_embedding: bool,
    /// The projection to logits: [`Presence::Never`] where it is always the embedding table.
    pub output: Presence,
    /// What the gate goes through.
    pub activation: Activation,
    /// The feed-forward layers' experts; `None` where the family never has any.
    pub experts: Option<ExpertRule>,
    /// Local layers; `None` where all layers are alike.
    pub local: Option<LocalRule>,
    /// A model of so many layers scales its query-key products by the width `e / h` instead of that of a head;
    /// its file does not say so.
    pub model_scale_layers: Option<u32>,
}

/// Llama 1 to 3.x, Mistral, Mixtral, and what was distilled into them.
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

/// Qwen2 and Qwen2.5, and what was distilled into them.
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

/// Gemma 1. Its norms' weights are stored with the 1 that the model adds to them.
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

/// The family of an architecture key.
pub fn find(architecture: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == architecture)
}
