//! Model families as data: one row of flags each, for one forward pass.
//!
//! A family holds what the architecture key of a GGUF file implies and its other metadata does not say. This
//! is how rotary positions pair the dimensions of a head, which tensors exist and how they are used. A family
//! with the same parts needs only a new row.

pub use baton_kernels_cpu::Gating;
use baton_kernels_cpu::RopeStyle;

/// Whether a kind of tensor or key belongs to a model.
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
    /// `x / (1 + e^-1.702x) (up + 1)`, with both halves clamped.
    ClampedSilu,
}

/// The expert that every token uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedRule {
    /// There is none.
    Never,
    /// It has its own gate, a sigmoid.
    Gated,
    /// It is added as it is, if the file states its width.
    Plain,
}

/// The mixture of experts of a family, if its feed-forward layers may be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertRule {
    /// Whether every model of the family is a mixture; if [`Presence::Optional`], `expert_count` decides.
    pub presence: Presence,
    /// How the router's numbers become factors.
    pub gating: Gating,
    /// Whether the chosen experts' factors are divided by their sum.
    pub normalized: bool,
    /// The expert that every token uses.
    pub shared: SharedRule,
    /// Whether an expert has its own width (`expert_feed_forward_length`) instead of that of a dense layer.
    pub own_width: bool,
    /// Whether a dense network works beside the experts. Both have norms of their own, the router reads the
    /// residual stream under a third one, and each expert's result has a factor.
    pub beside: bool,
    /// Whether the router and every projection of an expert have biases.
    pub biased: bool,
    /// Whether the file's keys say more: gating, normalization, the factors' scale, groups of experts, and
    /// how many first layers are dense. A file may also hold a bias for the choice of experts.
    pub stated: bool,
}

/// Layers that see only a sliding window, between others that see everything.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LocalRule {
    /// Default if the file does not say: of this many consecutive layers, all but the last are local.
    pub period: u32,
    /// Default base of the local layers' rotary frequencies, which are not scaled; `None` if these are
    /// rotated like the others.
    pub freq_base: Option<f32>,
    /// The key of the window's length; without an optional one no layer is local.
    pub window: Presence,
    /// Whether the file lists the local layers, whose heads have their own width and whose key heads have
    /// their own number.
    pub listed: bool,
}

/// How queries of later positions are lengthened, and by which number of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TemperatureRule {
    /// If the file has the scale, a step is as long as the context before rotary scaling.
    OriginalContext,
    /// If the file has the scale, it also has the length of a step.
    Stated,
}

/// What `rope.scaling.yarn_log_multiplier` does beside YaRN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum YarnLogRule {
    /// The family's files do not have it.
    Never,
    /// YaRN's lengthening of rotations is divided by the same with this multiplier in place of 1.
    Divides,
    /// Rotations are not lengthened; query-key products are scaled by the square of `1 + multiplier
    /// ln(factor)`. Source: DeepSeek-AI 2024, the reference code of DeepSeek-V2.
    ScalesAttention,
}

/// Recurrent layers, which have a state of a fixed size instead of keys and values, between layers of
/// attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecurrentRule {
    /// Short convolutions between two gates; layers without key heads are such layers.
    ShortConv,
    /// Gated delta nets; of every four layers (or as many as the file says), all but the last are such
    /// layers.
    DeltaNet {
        /// Whether the value heads of one key head are neighbours, and so are the rows of their gates, which
        /// are one tensor. If not, value head `n` has key head `n % heads`, and the gates are two tensors.
        grouped: bool,
    },
}

/// The properties that an architecture implies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Family {
    /// `general.architecture` of the file, and the prefix of its keys.
    pub name: &'static str,
    /// How rotary positions pair the dimensions of a head.
    pub rope_style: RopeStyle,
    /// Of this many consecutive layers, the last does not rotate its queries and keys; `None` if all do.
    pub unrotated_period: Option<u32>,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: Presence,
    /// Whether the projection of the attention output has a bias.
    pub output_bias: Presence,
    /// Whether the projections of dense feed-forward layers have biases.
    pub ffn_bias: Presence,
    /// Whether every query and key head has an RMS norm before its rotation.
    pub head_norms: bool,
    /// Whether every value head has an RMS norm without weights. A layer may then lack the projection to
    /// values: they are the keys before their norm and rotation.
    pub value_norm: bool,
    /// Whether each query head has a learned score beside those of the keys, whose value is zero.
    pub sinks: bool,
    /// Whether query, key and value projections are one tensor.
    pub fused_qkv: bool,
    /// Whether the gate and up projections of dense layers are one tensor.
    pub fused_gate: bool,
    /// The tensor of the feed-forward layer's norm, between `blk.N.` and `.weight`.
    pub ffn_norm: &'static str,
    /// Whether the result of each half of a layer has one more RMS norm before it is added.
    pub post_norms: bool,
    /// Whether embeddings are multiplied by the square root of their width.
    pub scaled_embedding: bool,
    /// Whether the file states factors of embeddings and of each half's result, and a divisor of logits.
    pub multipliers: bool,
    /// Whether query-key products have no factor; if not, they are divided by the root of a head's width.
    pub unscaled_products: bool,
    /// Divisors of rotary frequencies, except those of local layers.
    pub rope_divisors: Presence,
    /// Whether the file may state what single layers have. That is an input of their own from each token, the
    /// keys and values of an earlier layer, a factor of their result, and their own width of the network.
    pub layer_extras: bool,
    /// Whether the file may list tokens that the model must never choose.
    pub suppresses: bool,
    /// The key of the bound of attention scores.
    pub attention_cap: Presence,
    /// The key of the bound of logits.
    pub logit_cap: Presence,
    /// The projection to logits; [`Presence::Never`] if it is always the embedding table.
    pub output: Presence,
    /// The activation function of the gate.
    pub activation: Activation,
    /// The experts of the feed-forward layers; `None` if the family never has any.
    pub experts: Option<ExpertRule>,
    /// Local layers; `None` if all layers are alike.
    pub local: Option<LocalRule>,
    /// What `rope.scaling.yarn_log_multiplier` does.
    pub yarn_log: YarnLogRule,
    /// Whether keys and values are made from one short vector a token. Source: DeepSeek-AI 2024, DeepSeek-V2,
    /// section 2.1 (multi-head latent attention).
    pub latent: bool,
    /// Queries that become longer with their position; `None` if the family never has them.
    pub temperature: Option<TemperatureRule>,
    /// A model with this many layers scales its query-key products by the width `e / h` instead of that of a
    /// head; its file does not say so.
    pub model_scale_layers: Option<u32>,
    /// Recurrent layers; `None` if all layers are of attention.
    pub recurrent: Option<RecurrentRule>,
    /// Whether the attention output is multiplied by the sigmoid of a gate, whose rows follow each query
    /// head's in one tensor.
    pub gated_attention: bool,
    /// The name of the norm before the projection to logits.
    pub output_norm: &'static str,
}

/// Experts as in Mixtral.
const MIXTRAL_EXPERTS: ExpertRule = ExpertRule {
    presence: Presence::Optional,
    gating: Gating::Softmax,
    normalized: true,
    shared: SharedRule::Never,
    own_width: false,
    beside: false,
    biased: false,
    stated: false,
};

/// Llama 1 to 3.x, Mistral, Mixtral, and models distilled into them.
const LLAMA: Family = Family {
    name: "llama",
    rope_style: RopeStyle::Adjacent,
    unrotated_period: None,
    qkv_bias: Presence::Optional,
    output_bias: Presence::Optional,
    ffn_bias: Presence::Optional,
    head_norms: false,
    value_norm: false,
    sinks: false,
    fused_qkv: false,
    fused_gate: false,
    ffn_norm: "ffn_norm",
    post_norms: false,
    scaled_embedding: false,
    multipliers: false,
    unscaled_products: false,
    rope_divisors: Presence::Optional,
    layer_extras: false,
    suppresses: false,
    attention_cap: Presence::Never,
    logit_cap: Presence::Never,
    output: Presence::Optional,
    activation: Activation::Silu,
    experts: Some(MIXTRAL_EXPERTS),
    local: None,
    yarn_log: YarnLogRule::Never,
    latent: false,
    temperature: None,
    model_scale_layers: None,
    recurrent: None,
    gated_attention: false,
    output_norm: "output_norm.weight",
};

/// Mistral Small 3.x and Ministral 3.
const MISTRAL3: Family = Family {
    name: "mistral3",
    yarn_log: YarnLogRule::Divides,
    temperature: Some(TemperatureRule::OriginalContext),
    ..LLAMA
};

/// SmolLM3.
const SMOLLM3: Family = Family {
    name: "smollm3",
    unrotated_period: Some(4),
    output_bias: Presence::Never,
    ffn_bias: Presence::Never,
    experts: None,
    ..LLAMA
};

/// Granite 3 and 4, dense.
const GRANITE: Family = Family { name: "granite", multipliers: true, experts: None, ..LLAMA };

/// Granite 3 with experts.
const GRANITE_MOE: Family = Family {
    name: "granitemoe",
    experts: Some(ExpertRule { presence: Presence::Required, shared: SharedRule::Plain, ..MIXTRAL_EXPERTS }),
    ..GRANITE
};

/// GLM-4-0414.
const GLM4: Family = Family {
    name: "glm4",
    output_bias: Presence::Never,
    ffn_bias: Presence::Never,
    fused_gate: true,
    post_norms: true,
    experts: None,
    ..LLAMA
};

/// Qwen2 and Qwen2.5, and models distilled into them.
const QWEN2: Family = Family {
    name: "qwen2",
    rope_style: RopeStyle::Halves,
    qkv_bias: Presence::Required,
    output_bias: Presence::Never,
    ffn_bias: Presence::Never,
    experts: None,
    ..LLAMA
};

/// Qwen1.5-MoE and Qwen2 with experts.
const QWEN2_MOE: Family = Family {
    name: "qwen2moe",
    experts: Some(ExpertRule {
        presence: Presence::Required,
        normalized: false,
        shared: SharedRule::Gated,
        own_width: true,
        ..MIXTRAL_EXPERTS
    }),
    ..QWEN2
};

/// Qwen3, dense.
const QWEN3: Family = Family { name: "qwen3", qkv_bias: Presence::Optional, head_norms: true, ..QWEN2 };

/// Qwen3 with experts.
const QWEN3_MOE: Family = Family {
    name: "qwen3moe",
    experts: Some(ExpertRule { presence: Presence::Required, own_width: true, ..MIXTRAL_EXPERTS }),
    ..QWEN3
};

/// Gemma 1. Its norm weights are stored with the 1 that the model adds to them.
const GEMMA: Family = Family {
    name: "gemma",
    rope_style: RopeStyle::Halves,
    qkv_bias: Presence::Never,
    output_bias: Presence::Never,
    ffn_bias: Presence::Never,
    scaled_embedding: true,
    output: Presence::Never,
    activation: Activation::Gelu,
    experts: None,
    ..LLAMA
};

/// Gemma 2.
const GEMMA2: Family = Family {
    name: "gemma2",
    post_norms: true,
    attention_cap: Presence::Required,
    logit_cap: Presence::Required,
    local: Some(LocalRule { period: 2, freq_base: None, window: Presence::Required, listed: false }),
    // The 27B model.
    model_scale_layers: Some(46),
    ..GEMMA
};

/// Gemma 3, text.
const GEMMA3: Family = Family {
    name: "gemma3",
    head_norms: true,
    post_norms: true,
    logit_cap: Presence::Optional,
    output: Presence::Optional,
    local: Some(LocalRule {
        period: 6,
        freq_base: Some(10_000.0),
        window: Presence::Optional,
        listed: false,
    }),
    // The 27B model.
    model_scale_layers: Some(62),
    ..GEMMA
};

/// Gemma 4, text. Its norm weights are stored as they are.
const GEMMA4: Family = Family {
    name: "gemma4",
    value_norm: true,
    unscaled_products: true,
    rope_divisors: Presence::Required,
    layer_extras: true,
    suppresses: true,
    experts: Some(ExpertRule { own_width: true, beside: true, ..MIXTRAL_EXPERTS }),
    local: Some(LocalRule { period: 6, freq_base: Some(10_000.0), window: Presence::Required, listed: true }),
    model_scale_layers: None,
    ..GEMMA3
};

/// Phi-3, Phi-3.5 mini and Phi-4.
const PHI3: Family = Family {
    name: "phi3",
    rope_style: RopeStyle::Halves,
    qkv_bias: Presence::Never,
    output_bias: Presence::Never,
    ffn_bias: Presence::Never,
    fused_qkv: true,
    fused_gate: true,
    experts: None,
    ..LLAMA
};

/// gpt-oss.
const GPT_OSS: Family = Family {
    name: "gpt-oss",
    rope_style: RopeStyle::Halves,
    qkv_bias: Presence::Required,
    output_bias: Presence::Required,
    ffn_bias: Presence::Never,
    sinks: true,
    ffn_norm: "post_attention_norm",
    output: Presence::Required,
    activation: Activation::ClampedSilu,
    experts: Some(ExpertRule {
        presence: Presence::Required,
        gating: Gating::ChosenSoftmax,
        normalized: false,
        own_width: true,
        biased: true,
        ..MIXTRAL_EXPERTS
    }),
    local: Some(LocalRule { period: 2, freq_base: None, window: Presence::Required, listed: false }),
    ..LLAMA
};

/// DeepSeek V2 to V3.1, and other models with latent attention: GigaChat 3, Kanana 2, GLM-4.7-Flash.
const DEEPSEEK2: Family = Family {
    name: "deepseek2",
    qkv_bias: Presence::Never,
    output_bias: Presence::Never,
    ffn_bias: Presence::Never,
    experts: Some(ExpertRule {
        presence: Presence::Required,
        normalized: false,
        shared: SharedRule::Plain,
        own_width: true,
        stated: true,
        ..MIXTRAL_EXPERTS
    }),
    yarn_log: YarnLogRule::ScalesAttention,
    latent: true,
    temperature: Some(TemperatureRule::Stated),
    ..LLAMA
};

/// LFM2, dense.
const LFM2: Family = Family {
    name: "lfm2",
    rope_style: RopeStyle::Halves,
    qkv_bias: Presence::Never,
    output_bias: Presence::Never,
    ffn_bias: Presence::Never,
    head_norms: true,
    experts: None,
    recurrent: Some(RecurrentRule::ShortConv),
    output_norm: "token_embd_norm.weight",
    ..LLAMA
};

/// LFM2 and LFM2.5 with experts.
const LFM2_MOE: Family = Family {
    name: "lfm2moe",
    experts: Some(ExpertRule {
        presence: Presence::Required,
        gating: Gating::Sigmoid,
        own_width: true,
        stated: true,
        ..MIXTRAL_EXPERTS
    }),
    ..LFM2
};

/// Qwen3-Next.
const QWEN3_NEXT: Family = Family {
    name: "qwen3next",
    qkv_bias: Presence::Never,
    experts: Some(ExpertRule {
        presence: Presence::Required,
        shared: SharedRule::Gated,
        own_width: true,
        ..MIXTRAL_EXPERTS
    }),
    recurrent: Some(RecurrentRule::DeltaNet { grouped: true }),
    gated_attention: true,
    ffn_norm: "post_attention_norm",
    ..QWEN3
};

/// Qwen3.5 with experts, text.
const QWEN35_MOE: Family =
    Family { name: "qwen35moe", recurrent: Some(RecurrentRule::DeltaNet { grouped: false }), ..QWEN3_NEXT };

/// Qwen3.5, dense, text.
const QWEN35: Family = Family { name: "qwen35", experts: None, ..QWEN35_MOE };

/// Every family that the engine runs.
pub const FAMILIES: &[Family] = &[
    LLAMA,
    MISTRAL3,
    SMOLLM3,
    GRANITE,
    GRANITE_MOE,
    GLM4,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GEMMA4,
    PHI3,
    GPT_OSS,
    DEEPSEEK2,
    LFM2,
    LFM2_MOE,
    QWEN3_NEXT,
    QWEN35,
    QWEN35_MOE,
];

/// Returns the family of an architecture key.
pub fn find(architecture: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == architecture)
}
