//! Model classes of Hugging Face as data: one row each, over one plan of tensors.
//!
//! A row says what the class's code does and its `config.json` does not say: how tensors are named, which exist, and
//! what is done to their numbers. Sources: the classes of the `transformers` library; names and metadata of the
//! result as in llama.cpp's `convert_hf_to_gguf.py`.

use crate::error::ImportError;
use crate::hf_config::HfConfig;

/// Experts of the feed-forward layers: names in the folder, after `model.layers.N.`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertNames {
    /// The router's matrix.
    pub(crate) router: &'static str,
    /// Before the number of an expert.
    pub(crate) experts: &'static str,
    /// Gate, up and down projection of an expert.
    pub(crate) gate_up_down: [&'static str; 3],
    /// The key of the number of experts.
    pub(crate) count_key: &'static str,
    /// The key of an expert's width; `intermediate_size` where an expert is as wide as a dense layer.
    pub(crate) width_key: &'static str,
    /// Whether there is an expert that every token goes through.
    pub(crate) shared: bool,
    /// What `norm_topk_prob` must be, as the family's name in GGUF files implies it.
    pub(crate) normalized: bool,
    /// What the class takes `norm_topk_prob` for where `config.json` does not say.
    pub(crate) normalized_by_default: bool,
}

/// How query, key and value projections are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Projections {
    /// A matrix each.
    Apart,
    /// One matrix for the three, and one for gate and up.
    Fused,
}

/// A model class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Architecture {
    /// Its names in `config.json`.
    pub(crate) classes: &'static [&'static str],
    /// `general.architecture` of the file, and the prefix of its keys.
    pub(crate) gguf: &'static str,
    /// Rows of query and key heads go from halves to neighbouring pairs, as the family's rotation wants them.
    pub(crate) pair_rows: bool,
    /// Added to the weights of norms, where the class adds it when it runs.
    pub(crate) norm_offset: f32,
    /// Norms of every query and key head.
    pub(crate) head_norms: bool,
    /// Norms after each half of a layer.
    pub(crate) post_norms: bool,
    /// How projections are stored.
    pub(crate) projections: Projections,
    /// Experts, in the classes that have them.
    pub(crate) experts: Option<ExpertNames>,
    /// Whether the embedding table is the projection to logits where `config.json` does not say.
    pub(crate) tied: bool,
    /// Values of `hidden_act` or `hidden_activation` that the family computes; the first where none is given.
    pub(crate) activations: &'static [&'static str],
    /// Whether `sliding_window` holds in every layer, where it is set.
    pub(crate) window: Window,
}

/// What `sliding_window` of a class means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    /// Nothing: the class does not read it.
    Ignored,
    /// Every layer, where it is set.
    Everywhere,
    /// Every layer where `use_sliding_window` says so; else none.
    WhereUsed,
    /// All layers but each n-th.
    Alternating,
}

const SILU: &[&str] = &["silu"];
/// Gemma's first files say `gelu` and mean the same.
const GELU: &[&str] = &["gelu_pytorch_tanh", "gelu"];

const LLAMA: Architecture = Architecture {
    classes: &["LlamaForCausalLM"],
    gguf: "llama",
    pair_rows: true,
    norm_offset: 0.0,
    head_norms: false,
    post_norms: false,
    projections: Projections::Apart,
    experts: None,
    tied: false,
    activations: SILU,
    window: Window::Ignored,
};

const MISTRAL: Architecture =
    Architecture { classes: &["MistralForCausalLM"], window: Window::Everywhere, ..LLAMA };

const MIXTRAL: Architecture = Architecture {
    classes: &["MixtralForCausalLM"],
    experts: Some(ExpertNames {
        router: "block_sparse_moe.gate.weight",
        experts: "block_sparse_moe.experts",
        gate_up_down: ["w1", "w3", "w2"],
        count_key: "num_local_experts",
        width_key: "intermediate_size",
        shared: false,
        normalized: true,
        normalized_by_default: true,
    }),
    ..MISTRAL
};

const QWEN2: Architecture = Architecture {
    classes: &["Qwen2ForCausalLM"],
    gguf: "qwen2",
    pair_rows: false,
    window: Window::WhereUsed,
    ..LLAMA
};

const QWEN3: Architecture =
    Architecture { classes: &["Qwen3ForCausalLM"], gguf: "qwen3", head_norms: true, ..QWEN2 };

const QWEN_EXPERTS: ExpertNames = ExpertNames {
    router: "mlp.gate.weight",
    experts: "mlp.experts",
    gate_up_down: ["gate_proj", "up_proj", "down_proj"],
    count_key: "num_experts",
    width_key: "moe_intermediate_size",
    shared: false,
    normalized: true,
    normalized_by_default: false,
};

const QWEN2_MOE: Architecture = Architecture {
    classes: &["Qwen2MoeForCausalLM"],
    gguf: "qwen2moe",
    experts: Some(ExpertNames { shared: true, normalized: false, ..QWEN_EXPERTS }),
    ..QWEN2
};

const QWEN3_MOE: Architecture = Architecture {
    classes: &["Qwen3MoeForCausalLM"],
    gguf: "qwen3moe",
    experts: Some(QWEN_EXPERTS),
    ..QWEN3
};

const GEMMA: Architecture = Architecture {
    classes: &["GemmaForCausalLM"],
    gguf: "gemma",
    pair_rows: false,
    norm_offset: 1.0,
    tied: true,
    activations: GELU,
    ..LLAMA
};

const GEMMA3: Architecture = Architecture {
    classes: &["Gemma3ForCausalLM"],
    gguf: "gemma3",
    head_norms: true,
    post_norms: true,
    activations: &["gelu_pytorch_tanh"],
    window: Window::Alternating,
    ..GEMMA
};

const PHI3: Architecture = Architecture {
    classes: &["Phi3ForCausalLM"],
    gguf: "phi3",
    pair_rows: false,
    projections: Projections::Fused,
    window: Window::Everywhere,
    ..LLAMA
};

const ARCHITECTURES: &[Architecture] =
    &[LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE, GEMMA, GEMMA3, PHI3];

/// The model classes that can be imported, as `config.json` names them.
pub fn supported() -> Vec<&'static str> {
    ARCHITECTURES.iter().flat_map(|architecture| architecture.classes).copied().collect()
}

/// The row of a model's class.
pub(crate) fn find(config: &HfConfig) -> Result<&'static Architecture, ImportError> {
    let class = config.class()?;
    let found = ARCHITECTURES.iter().find(|architecture| architecture.classes.contains(&class));
    found.ok_or_else(|| ImportError::UnknownArchitecture {
        found: class.chars().take(80).collect(),
        supported: supported().join(", "),
    })
}
