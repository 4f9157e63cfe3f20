//! Attention scores of a window of queries, for ranking the text they look at.
//!
//! A pass can hand out, for chosen heads, the mean softmax weight that the last queries of a sequence give to
//! every key. It costs one product of window and keys a head: the weights' denominators come from the
//! log-sum-exp of the attention that the pass computed anyway, and no matrix of all queries and keys exists.

use std::ops::Range;

/// One query head of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HeadId {
    /// Layer, from 0.
    pub layer: usize,
    /// Query head, from 0.
    pub head: usize,
}

/// Which scores to keep of a sequence in a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capture {
    /// Which of this pass's tokens of the sequence are the queries, as indices into its `ids`; not empty. A chat
    /// template's tail after the question stays outside.
    pub window: Range<usize>,
    /// The heads, each at most once.
    pub heads: Vec<HeadId>,
}

/// The scores of one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionScores {
    /// The heads, as asked for.
    pub heads: Vec<HeadId>,
    /// Keys: all tokens of the sequence, those of this pass included.
    pub keys: usize,
    /// `[heads, keys]`: the mean over the window's queries of the softmax weight they give to each key. A key
    /// that a query does not see (later ones, and those outside a sliding window) counts as zero.
    pub mean: Vec<f32>,
}

/// What is wrong with a [`Capture`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The window is empty or longer than the tokens of the pass.
    #[error("window of queries {window:?}, must be within 0..{tokens} and not empty")]
    Window {
        /// The window asked for.
        window: Range<usize>,
        /// The tokens of this sequence in the pass.
        tokens: usize,
    },
    /// A head that the model does not have.
    #[error("head {head} of layer {layer}, the model has {n_layers} layers of {n_heads} heads")]
    NoSuchHead {
        /// Layer asked for.
        layer: usize,
        /// Head asked for.
        head: usize,
        /// The model's layers.
        n_layers: usize,
        /// The model's heads a layer.
        n_heads: usize,
    },
}

impl Capture {
    /// Checks the window against the tokens of a pass and the heads against the model.
    pub(crate) fn check(&self, tokens: usize, n_layers: usize, n_heads: usize) -> Result<(), CaptureError> {
        if self.window.is_empty() || self.window.end > tokens {
            return Err(CaptureError::Window { window: self.window.clone(), tokens });
        }
        match self.heads.iter().find(|id| id.layer >= n_layers || id.head >= n_heads) {
            Some(&HeadId { layer, head }) => Err(CaptureError::NoSuchHead { layer, head, n_layers, n_heads }),
            None => Ok(()),
        }
    }
}
