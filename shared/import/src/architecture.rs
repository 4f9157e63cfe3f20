//! Model classes of Hugging Face as data: one row each, for one common plan of tensors.
//!
//! A row holds what the code of the class defines and its `config.json` does not: the names of tensors, which
//! of them exist, and how their numbers change. Sources: the classes of the `transformers` library; names and
//! metadata of the result as in llama.cpp's `convert_hf_to_gguf.py`.

use crate::error::ImportError;
use crate::hf_config::HfConfig;

/// Expert layers: tensor names in the folder, after `model.layers.N.`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertNames {
    /// The router's matrix.
    pub(crate) router: &'static str,
    /// The part of the name before an expert's number.
    pub(crate) experts: &'static str,
    /// Gate, up and down projection of an expert.
    pub(crate) gate_up_down: [&'static str; 3],
    /// The key that gives the number of experts.
    pub(crate) count_key: &'static str,
    /// The key that gives an expert's width; `intermediate_size` if an expert is as wide as a dense layer.
    pub(crate) width_key: &'static str,
    /// Whether one expert serves every token.
    pub(crate) shared: bool,
    /// The value of `norm_topk_prob` that the family's name in GGUF files implies.
    pub(crate) normalized: bool,
    /// The value of `norm_topk_prob` if `config.json` does not give one.
    pub(crate) normalized_by_default: bool,
}

/// How query, key and value projections are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Projections {
    /// One matrix each.
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
    /// Reorders rows of query and key heads from halves to neighbouring pairs, as the family's rotation needs
    /// them.
    pub(crate) pair_rows: bool,
    /// Added to the weights of norms, because the class adds it at run time.
    pub(crate) norm_offset: f32,
    /// Whether every query and key head has a norm.
    pub(crate) head_norms: bool,
    /// Whether a norm follows each half of a layer.
    pub(crate) post_norms: bool,
    /// How projections are stored.
    pub(crate) projections: Projections,
    /// Experts, in the classes that have them.
    pub(crate) experts: Option<ExpertNames>,
    /// Whether the embedding table is also the projection to logits if `config.json` does not say.
    pub(crate) tied: bool,
    /// Values of `hidden_act` or `hidden_activation` that the family supports; the first is the default.
    pub(crate) activations: &'static [&'static str],
    /// How `sliding_window` applies.
    pub(crate) window: Window,
}

/// The meaning of `sliding_window` for a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    /// The class does not read it.
    Ignored,
    /// Every layer has the window, if it is set.
    Everywhere,
    /// Every layer has the window if `use_sliding_window` is true; else none has.
    WhereUsed,
    /// All layers but each n-th have the window.
    Alternating,
}

const SILU: &[&str] = &["silu"];
/// The first Gemma files say `gelu` and mean the same.
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

/// Returns the model classes that can be imported, as `config.json` names them.
pub fn supported() -> Vec<&'static str> {
    ARCHITECTURES.iter().flat_map(|architecture| architecture.classes).copied().collect()
}

/// Returns the row of a model's class.
pub(crate) fn find(config: &HfConfig) -> Result<&'static Architecture, ImportError> {
    let class = config.class()?;
    let found = ARCHITECTURES.iter().find(|architecture| architecture.classes.contains(&class));
    found.ok_or_else(|| ImportError::UnknownArchitecture {
        found: class.chars().take(80).collect(),
        supported: supported().join(", "),
    })
}
