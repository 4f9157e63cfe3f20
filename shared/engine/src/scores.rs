//! Attention scores of a window of queries, for ranking the text they attend to.
//!
//! For chosen heads, a pass can return the softmax weight that the last queries of a sequence give to every
//! key: its mean over the queries, or over the heads. This costs one product of window and keys per head. The
//! denominators of the weights come from the log-sum-exp that the pass computes anyway. The full matrix of
//! queries and keys is never built.

use std::ops::Range;

use crate::config::ModelConfig;

/// One query head of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HeadId {
    /// Layer, from 0.
    pub layer: usize,
    /// Query head, from 0.
    pub head: usize,
}

/// The scores to capture of a sequence in a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capture {
    /// The queries: tokens of this sequence in this pass, as indices into its `ids`; not empty. The end of a
    /// chat template after the question is usually left out.
    pub window: Range<usize>,
    /// The heads, each at most once.
    pub heads: Vec<HeadId>,
    /// What the weights are averaged over.
    pub over: MeanOver,
}

/// What captured weights are averaged over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeanOver {
    /// The window's queries: each head has its own means.
    Queries,
    /// The heads: each query has its own means.
    Heads,
}

/// The scores of one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionScores {
    /// The heads, as requested.
    pub heads: Vec<HeadId>,
    /// Number of keys: all tokens of the sequence, including those of this pass.
    pub keys: usize,
    /// The mean softmax weight of each key: `[heads, keys]` over [`MeanOver::Queries`], `[queries, keys]`
    /// over [`MeanOver::Heads`]. A key that a query does not see (later ones, and those outside a sliding
    /// window) counts as zero.
    pub mean: Vec<f32>,
}

/// Why a [`Capture`] was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The window is empty or longer than the tokens of the pass.
    #[error("window of queries {window:?}, must be within 0..{tokens} and not empty")]
    Window {
        /// The window requested.
        window: Range<usize>,
        /// The tokens of this sequence in the pass.
        tokens: usize,
    },
    /// The model does not have the head.
    #[error("head {head} of layer {layer}, the model has {n_layers} layers of {n_heads} heads")]
    NoSuchHead {
        /// Layer requested.
        layer: usize,
        /// Head requested.
        head: usize,
        /// Number of layers of the model.
        n_layers: usize,
        /// Number of heads per layer.
        n_heads: usize,
    },
    /// The layer is recurrent and has no attention.
    #[error("layer {layer} of a {family} model is recurrent and has no attention scores")]
    Recurrent {
        /// Layer requested.
        layer: usize,
        /// The model's family.
        family: &'static str,
    },
}

impl Capture {
    /// Checks the window against the tokens of a pass and the heads against the model.
    pub(crate) fn check(&self, tokens: usize, config: &ModelConfig) -> Result<(), CaptureError> {
        if self.window.is_empty() || self.window.end > tokens {
            return Err(CaptureError::Window { window: self.window.clone(), tokens });
        }
        let (n_layers, n_heads) = (config.n_layers, config.n_heads);
        for &HeadId { layer, head } in &self.heads {
            if layer >= n_layers || head >= n_heads {
                return Err(CaptureError::NoSuchHead { layer, head, n_layers, n_heads });
            }
            if !config.has_attention(layer) {
                return Err(CaptureError::Recurrent { layer, family: config.family.name });
            }
        }
        Ok(())
    }
}
