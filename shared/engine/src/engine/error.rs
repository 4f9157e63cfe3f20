//! Why an engine cannot be created, and why a step did not happen.

use baton_kernels_gpu::GpuError;

use crate::config::ModelConfig;
use crate::gguf::GgufError;
use crate::kv::{KvError, SeqId};
use crate::scores::CaptureError;
use crate::tokenizer::TokenId;
use crate::weights::WeightError;

/// Why an engine cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The cache has no room, or more blocks than can be numbered.
    #[error("kv cache of {tokens} tokens, must be 1 to {max}")]
    KvTokens {
        /// Tokens requested.
        tokens: usize,
        /// The most.
        max: usize,
    },
    /// The share exceeds 100 percent.
    #[error("prefix cache of {percent} percent of the kv cache, must be 0 to 100")]
    PrefixShare {
        /// The share requested.
        percent: u8,
    },
    /// The model does not have these layers, or they are not ascending.
    #[error("layers {layers:?}, must ascend and be below {n_layers}")]
    Layers {
        /// The layers requested.
        layers: Vec<usize>,
        /// Number of layers of the model.
        n_layers: usize,
    },
    /// The sliding window sees no token.
    #[error("sliding window of 0 tokens, must be at least 1")]
    EmptyWindow,
    /// Only some layers are wanted of a model whose recurrent states cannot be split.
    #[error("a {family} model has recurrent layers, so one engine must compute all its layers")]
    Recurrent {
        /// The model's family.
        family: &'static str,
    },
    /// Only some layers are wanted of a model whose layers need more than hidden states.
    #[error(
        "layers of this {family} model need tokens or an earlier layer's keys, so one engine must compute all"
    )]
    TiedLayers {
        /// The model's family.
        family: &'static str,
    },
    /// The GPU has no kernels for this model or these settings.
    #[error("the GPU cannot compute this model: {reason}")]
    GpuRefused {
        /// What it cannot compute.
        reason: String,
    },
    /// The GPU failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The operating system cannot start threads.
    #[error("start compute threads")]
    Threads(#[source] std::io::Error),
}

/// Why a step did not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The cache refuses the step: the sequence is unknown, or there is too little room.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// A sequence is twice in a batch.
    #[error("{0:?} is in the batch twice")]
    DuplicateSequence(SeqId),
    /// A sequence in the batch has no tokens.
    #[error("no tokens for {0:?}")]
    NoTokens(SeqId),
    /// The model does not have this token.
    #[error("token {id}, the model has {vocab_len}")]
    NoSuchToken {
        /// The token.
        id: TokenId,
        /// The rows of the model's embedding table.
        vocab_len: usize,
    },
    /// The sequence would exceed the model's context.
    #[error("sequence would have {tokens} tokens, the model's context has {context_len}")]
    ContextFull {
        /// Tokens after the step.
        tokens: usize,
        /// The model's limit.
        context_len: usize,
    },
    /// The requested scores cannot be captured.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A weight source failed.
    #[error("acquire weights")]
    Weights(#[from] WeightError),
    /// The model's file changed while the step read it.
    #[error("read the model's file")]
    ModelFile(#[from] GgufError),
    /// This engine does not compute the layer.
    #[error("layer {layer} is not one of this engine's")]
    NotHeld {
        /// The layer.
        layer: usize,
    },
    /// Hidden states do not fit the rows of the step.
    #[error("hidden states of {found:?} (rows, width), must be {want:?}")]
    Hidden {
        /// The shape given.
        found: (usize, usize),
        /// The shape needed.
        want: (usize, usize),
    },
    /// The open step does not have these rows.
    #[error("rows {rows:?} of a step of {total}")]
    Rows {
        /// The rows requested.
        rows: std::ops::Range<usize>,
        /// Number of rows of the step.
        total: usize,
    },
    /// The sequence's keys and values were lost with a GPU. They cannot be computed again, since some of them
    /// were evicted, or other devices compute the layers before.
    #[error("keys and values of {0:?} were lost with the GPU; begin it again")]
    Lost(SeqId),
    /// Scores were requested for a step that is computed in pieces.
    #[error("attention scores are not captured in steps by pieces")]
    CaptureInPieces,
    /// A model with recurrent layers is computed in whole steps only.
    #[error("a {family} model has recurrent layers, which are not computed in steps by pieces")]
    RecurrentInPieces {
        /// The model's family.
        family: &'static str,
    },
    /// A model whose layers need more than hidden states is computed in whole steps only.
    #[error(
        "layers of this {family} model need tokens or an earlier layer's keys, so steps are not in pieces"
    )]
    TiedInPieces {
        /// The model's family.
        family: &'static str,
    },
    /// [`super::StepControl::after_layer`] asked to stop.
    #[error("cancelled after layer {done} of {total}")]
    Cancelled {
        /// Layers done.
        done: usize,
        /// All layers.
        total: usize,
    },
}

impl StepError {
    /// Returns the fault of the GPU, if that was the cause.
    pub fn gpu_fault(&self) -> Option<&GpuError> {
        match self {
            Self::Weights(WeightError::Gpu(fault)) => Some(fault),
            _ => None,
        }
    }
}

impl EngineError {
    /// Returns why one engine must compute all layers of a model, if it must.
    pub fn undivided(config: &ModelConfig) -> Option<Self> {
        let family = config.family.name;
        if config.recurrent.is_some() {
            return Some(Self::Recurrent { family });
        }
        config.has_tied_layers().then_some(Self::TiedLayers { family })
    }
}
