//! The source of weights: gives one half of a layer at a time and is told ahead what comes next.
//!
//! The forward pass asks a [`WeightSource`] for the attention or feed-forward half of a layer, or for one of
//! its experts, and announces what it needs next. Whether the bytes are mapped from a file, repacked or
//! streamed is up to the source. [`MappedWeights`] borrows every matrix from the mapped model file.
//! [`StreamedWeights`] does so for the part that fits its budget, and reads the rest from the disk for every
//! token.
//!
//! Invariant: every tensor was checked against the model's shape when the source was created, so none has a
//! wrong shape later.

use std::path::PathBuf;

use baton_kernels_cpu::{Format, KernelError, Matrix};
use baton_kernels_gpu::GpuError;

use crate::gguf::GgufError;

mod mapped;
mod recurrent;
mod streamed;
pub(crate) mod uses;

pub(crate) use mapped::{ExpertsOnGpu, MatrixAt};
pub use mapped::{MappedWeights, rope_divisors, vocab_len};
pub use recurrent::{DeltaGates, DeltaNetWeights, RecurrentWeights, ShortConvWeights};
pub(crate) use streamed::{InMemory, direct};
pub use streamed::{
    Residency, ResidencyError, ResidencyStats, STREAM_BYTES, StreamedMatrix, StreamedWeights,
};

/// Half of a transformer layer, or an expert of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Part {
    /// Attention norm, query, key, value and output projections; in a recurrent layer what it has instead.
    Attention,
    /// Feed-forward norm; gate, up and down projections, or the router of experts and the shared expert.
    Ffn,
    /// Gate, up and down projections of one expert.
    Expert(usize),
}

/// Why a part could not be acquired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightError {
    /// The model does not have the layer.
    #[error("layer {layer} of {n_layers}")]
    NoSuchLayer {
        /// The layer requested.
        layer: usize,
        /// Number of layers of the model.
        n_layers: usize,
    },
    /// The layer does not have the expert.
    #[error("expert {expert} of {n_experts} in layer {layer}")]
    NoSuchExpert {
        /// The expert requested.
        expert: usize,
        /// Number of experts of the layer.
        n_experts: usize,
        /// The layer.
        layer: usize,
    },
    /// The source returned another part than the one requested.
    #[error("weights are not those of part {0:?}")]
    WrongPart(Part),
    /// The bytes do not make a matrix.
    #[error("weight matrix")]
    Matrix(#[from] KernelError),
    /// Another device computes the layer.
    #[error("layer {layer} is not among the layers that this device computes")]
    LayerElsewhere {
        /// The layer requested.
        layer: usize,
    },
    /// Another device computes embeddings and logits.
    #[error("this device computes neither embeddings nor logits")]
    EndsElsewhere,
    /// The GPU failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Weights that are read for every token could not be read.
    #[error("read {len} bytes of weights at byte {offset} of `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The position of the bytes in the file.
        offset: u64,
        /// Number of bytes.
        len: usize,
        /// The system's error.
        #[source]
        err: std::io::Error,
    },
}

/// Why a model's tensors were refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// A tensor is missing, or the kernels do not support its type.
    #[error("read tensor")]
    Gguf(#[from] GgufError),
    /// A tensor's dimensions are not those that the metadata implies.
    #[error("tensor `{name}` has dimensions {found:?}, must be {want:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its dimensions, columns first.
        found: Vec<u64>,
        /// The dimensions that the metadata implies.
        want: Vec<u64>,
    },
    /// A tensor's bytes are not rows of its format.
    #[error("tensor `{name}`")]
    Matrix {
        /// The tensor.
        name: String,
        /// The error of the kernels.
        #[source]
        err: KernelError,
    },
    /// The forward pass would not use the tensor, so results would be wrong.
    #[error("tensor `{name}` is not part of a {family} model")]
    Unexpected {
        /// The tensor.
        name: String,
        /// The model's family.
        family: &'static str,
    },
    /// A number in a norm, bias or divisor is not finite, or a divisor is not > 0.
    #[error("tensor `{name}` holds {value} at {at}")]
    Value {
        /// The tensor.
        name: String,
        /// The number.
        value: f32,
        /// Its index.
        at: usize,
    },
}

/// One weight matrix `[rows, cols]`, borrowed from its source.
///
/// A product with it has two steps, in this order: first with the rows that are [`Self::at_hand`], then with
/// those that are [waited for](Self::wait). Each output element has the same bits, whichever rows are
/// computed together.
#[derive(Debug, Clone, Copy)]
pub enum Weight<'a> {
    /// All rows are in memory.
    Whole(Matrix<'a>),
    /// Some rows are read when they are needed.
    Streamed(StreamedMatrix<'a>),
}

impl<'a> Weight<'a> {
    /// Returns the storage format.
    pub fn format(&self) -> Format {
        match self {
            Self::Whole(matrix) => matrix.format(),
            Self::Streamed(matrix) => matrix.format(),
        }
    }

    /// Returns the number of rows: the length of an output vector.
    pub fn rows(&self) -> usize {
        match self {
            Self::Whole(matrix) => matrix.rows(),
            Self::Streamed(matrix) => matrix.rows(),
        }
    }

    /// Returns the first rows that are in memory; none, some or all.
    ///
    /// # Errors
    /// [`WeightError::Matrix`] if bytes and shape disagree.
    pub fn at_hand(&self) -> Result<Matrix<'a>, WeightError> {
        match self {
            Self::Whole(matrix) => Ok(*matrix),
            Self::Streamed(matrix) => matrix.resident(),
        }
    }

    /// Calls `each(first, rows)` for the other rows, piece by piece in order, where `first` is the index of
    /// the piece's first row. The memory of a piece is reused after the call.
    ///
    /// # Errors
    /// [`WeightError::Read`] if the disk fails.
    pub fn wait(&self, each: impl FnMut(usize, Matrix<'_>)) -> Result<(), WeightError> {
        match self {
            Self::Whole(_) => Ok(()),
            Self::Streamed(matrix) => matrix.wait(each),
        }
    }
}

impl<'a> From<Matrix<'a>> for Weight<'a> {
    fn from(matrix: Matrix<'a>) -> Self {
        Self::Whole(matrix)
    }
}

/// What queries, keys and values are made with.
#[derive(Debug)]
pub enum AttentionInputs<'a> {
    /// A projection for each.
    Heads(HeadWeights<'a>),
    /// Projections to and from short vectors.
    Latent(LatentWeights<'a>),
}

/// Projections to queries, keys and values.
#[derive(Debug)]
pub struct HeadWeights<'a> {
    /// Query projection, `[h d, e]`; with gates, `[h 2 d, e]`: each head's queries, then its gate.
    pub q: Weight<'a>,
    /// Key projection, `[g d, e]`; `None` if the layer uses the keys and values of another one.
    pub k: Option<Weight<'a>>,
    /// Value projection, `[g d, e]`; `None` if values are the keys before their norm and rotation.
    pub v: Option<Weight<'a>>,
    /// Biases of `q`, `k` and `v`; empty if the model has none.
    pub biases: [&'a [f32]; 3],
    /// RMS norms of every query, key and value head, `[d]` each; empty if the model has none.
    pub head_norms: [&'a [f32]; 3],
}

/// Projections of latent attention. `r` is the width of the short vector of keys and values, `p` and `d` the
/// plain and all dimensions of a key head, `u` those of a value head.
#[derive(Debug)]
pub struct LatentWeights<'a> {
    /// Projection to the short vector of queries, `[q, e]`, and its RMS norm, `[q]`; `None` if there is none.
    pub q_down: Option<(Weight<'a>, &'a [f32])>,
    /// Projection to queries, `[h d, q]` or `[h d, e]`.
    pub q: Weight<'a>,
    /// Projection to the short vector of keys and values and to the rotated dimensions, `[r + d - p, e]`.
    pub kv_down: Weight<'a>,
    /// RMS norm of the short vector, `[r]`.
    pub kv_norm: &'a [f32],
    /// Projections from the short vector.
    pub up: LatentUp<'a>,
}

/// Projections from the short vector of keys and values.
#[derive(Debug)]
pub enum LatentUp<'a> {
    /// To the plain dimensions of the key and to the value of every head, `[h (p + u), r]`.
    Joined(Weight<'a>),
    /// For each head, from the plain dimensions of a query to the short vector's space, `[r, p]`, and from
    /// the short vector to a value, `[u, r]`.
    Split {
        /// One for each head.
        keys: Vec<Weight<'a>>,
        /// One for each head.
        values: Vec<Weight<'a>>,
    },
}

/// The attention half of a layer.
#[derive(Debug)]
pub struct AttentionWeights<'a> {
    /// RMS norm, `[e]`.
    pub norm: &'a [f32],
    /// What queries, keys and values are made with.
    pub inputs: AttentionInputs<'a>,
    /// Output projection, `[e, h d]`.
    pub o: Weight<'a>,
    /// Its bias, `[e]`; empty if the model has none.
    pub o_bias: &'a [f32],
    /// The score of each query head's sink, `[h]`; empty if the model has none.
    pub sinks: &'a [f32],
    /// RMS norm of the result, `[e]`; empty if the model has none.
    pub post_norm: &'a [f32],
}

/// A gated feed-forward network: a dense layer's, or one expert's.
#[derive(Debug)]
pub struct GatedWeights<'a> {
    /// Gate projection, `[f, e]`.
    pub gate: Weight<'a>,
    /// Up projection, `[f, e]`.
    pub up: Weight<'a>,
    /// Down projection, `[e, f]`.
    pub down: Weight<'a>,
    /// Biases of `gate`, `up` and `down`; empty if the model has none.
    pub biases: [&'a [f32]; 3],
}

/// An expert that every token uses.
#[derive(Debug)]
pub struct SharedExpert<'a> {
    /// Projection to the number whose sigmoid scales the expert, `[1, e]`; `None` if nothing scales it.
    pub gate: Option<Weight<'a>>,
    /// The expert.
    pub network: GatedWeights<'a>,
}

/// A matrix of every expert of a layer: matrix `each id + at` of those that lie one behind the other.
#[derive(Debug, Clone, Copy)]
pub struct ExpertMatrices<'a> {
    /// All of them, `[experts each rows, cols]`.
    pub all: Matrix<'a>,
    /// How many of them an expert has.
    pub each: usize,
    /// Which one of an expert's this is.
    pub at: usize,
}

/// All experts of a layer that only some tokens use.
#[derive(Debug)]
pub struct ExpertStacks<'a> {
    /// Experts.
    pub count: usize,
    /// Gate projections.
    pub gate: ExpertMatrices<'a>,
    /// Up projections.
    pub up: ExpertMatrices<'a>,
    /// Down projections.
    pub down: ExpertMatrices<'a>,
    /// Biases of gate, up and down, `[experts, width]`; empty if the model has none.
    pub biases: [&'a [f32]; 3],
}

/// The networks of a feed-forward half.
#[derive(Debug)]
pub enum FfnBody<'a> {
    /// One network for all tokens.
    Dense(GatedWeights<'a>),
    /// Experts, which are acquired as separate parts.
    Experts(MixtureWeights<'a>),
}

/// A mixture of experts, without the experts that only some tokens use.
#[derive(Debug)]
pub struct MixtureWeights<'a> {
    /// Projection to one number per expert, `[experts, e]`.
    pub router: Weight<'a>,
    /// Its bias, `[experts]`; empty if the model has none.
    pub router_bias: &'a [f32],
    /// Added to the experts' factors when they are chosen, but not to the factors used, `[experts]`; empty if
    /// the model has none.
    pub choice_bias: &'a [f32],
    /// The shared expert, if the model has one.
    pub shared: Option<SharedExpert<'a>>,
    /// The dense network beside the experts, if the model has one.
    pub beside: Option<Box<BesideWeights<'a>>>,
}

/// A dense network beside experts, and what the experts have then.
#[derive(Debug)]
pub struct BesideWeights<'a> {
    /// The network.
    pub network: GatedWeights<'a>,
    /// RMS norm of its result, `[e]`.
    pub post_norm: &'a [f32],
    /// RMS norm of the router's input, `[e]`.
    pub router_norm: &'a [f32],
    /// RMS norm of the experts' input, `[e]`.
    pub expert_norm: &'a [f32],
    /// RMS norm of the experts' result, `[e]`.
    pub expert_post_norm: &'a [f32],
    /// The factor of each expert's result, `[experts]`; empty if the model has none.
    pub expert_factors: &'a [f32],
}

/// The input that a layer has of its own from every token. `p` is its width.
#[derive(Debug)]
pub struct OwnInput<'a> {
    /// Projection of the residual stream to the gate of the input, `[p, e]`.
    pub gate: Weight<'a>,
    /// Projection of the gated input, `[e, p]`.
    pub projection: Weight<'a>,
    /// RMS norm of the result, `[e]`.
    pub post_norm: &'a [f32],
}

/// What the inputs of all layers are made with.
#[derive(Debug)]
pub struct InputWeights<'a> {
    /// A row for each token, `[v, l p]`.
    pub table: Matrix<'a>,
    /// Projection of the embedding, `[l p, e]`.
    pub projection: Weight<'a>,
    /// RMS norm of each layer's part of the projection, `[p]`.
    pub norm: &'a [f32],
}

/// The feed-forward half of a layer.
#[derive(Debug)]
pub struct FfnWeights<'a> {
    /// RMS norm, `[e]`.
    pub norm: &'a [f32],
    /// The network, or the router of experts.
    pub body: FfnBody<'a>,
    /// RMS norm of the result, `[e]`; empty if the model has none.
    pub post_norm: &'a [f32],
    /// The layer's own input, which is added after this half; `None` if the model has none.
    pub input: Option<OwnInput<'a>>,
    /// The factor of the residual stream after the layer; 1 if the model has none.
    pub scale: f32,
}

/// The final norm and the projection to logits.
#[derive(Debug)]
pub struct OutputWeights<'a> {
    /// RMS norm, `[e]`.
    pub norm: &'a [f32],
    /// Projection to logits, `[v, e]`; the embedding table if the model ties the two.
    pub head: Weight<'a>,
}

/// An acquired part.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "made for each half of a layer; a box would allocate each time")]
pub enum PartWeights<'a> {
    /// For [`Part::Attention`].
    Attention(AttentionWeights<'a>),
    /// For [`Part::Attention`] of a recurrent layer.
    Recurrent(RecurrentWeights<'a>),
    /// For [`Part::Ffn`].
    Ffn(FfnWeights<'a>),
    /// For [`Part::Expert`].
    Expert(GatedWeights<'a>),
}

impl<'a> PartWeights<'a> {
    /// Returns the attention half.
    ///
    /// # Errors
    /// [`WeightError::WrongPart`] if this is another part, or the layer is recurrent.
    pub fn attention(self) -> Result<AttentionWeights<'a>, WeightError> {
        match self {
            Self::Attention(weights) => Ok(weights),
            _ => Err(WeightError::WrongPart(Part::Attention)),
        }
    }

    /// Returns the feed-forward half.
    ///
    /// # Errors
    /// [`WeightError::WrongPart`] if this is another part.
    pub fn ffn(self) -> Result<FfnWeights<'a>, WeightError> {
        match self {
            Self::Ffn(weights) => Ok(weights),
            _ => Err(WeightError::WrongPart(Part::Ffn)),
        }
    }

    /// Returns expert `expert`.
    ///
    /// # Errors
    /// [`WeightError::WrongPart`] if this is not an expert.
    pub fn expert(self, expert: usize) -> Result<GatedWeights<'a>, WeightError> {
        match self {
            Self::Expert(weights) => Ok(weights),
            _ => Err(WeightError::WrongPart(Part::Expert(expert))),
        }
    }
}

/// Gives weights to the forward pass.
pub trait WeightSource: Send + Sync {
    /// Returns the weights of one part of a layer. Acquiring reads nothing: the pass waits for streamed rows
    /// piece by piece ([`Weight::wait`]), so a part may be larger than the memory it streams through.
    ///
    /// # Errors
    /// [`WeightError`] at any time, since a source may read or receive weights.
    fn acquire(&self, layer: usize, part: Part) -> Result<PartWeights<'_>, WeightError>;

    /// Returns all experts of a layer, if they are at hand without being acquired; `None` if they are not, or
    /// the layer has none.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    fn experts(&self, layer: usize) -> Result<Option<ExpertStacks<'_>>, WeightError> {
        let _ = layer;
        Ok(None)
    }

    /// Returns the embedding table, `[v, e]`, of which a token needs one row.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    fn embedding(&self) -> Result<Matrix<'_>, WeightError>;

    /// Returns what the inputs of all layers are made with; `None` if the model has none.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    fn inputs(&self) -> Result<Option<InputWeights<'_>>, WeightError>;

    /// Returns the weights that turn the last hidden state into logits.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    fn output(&self) -> Result<OutputWeights<'_>, WeightError>;

    /// Announces the part that will be acquired after the current one. A source may fetch it now, or do
    /// nothing.
    fn hint(&self, layer: usize, part: Part);
}
