//! Where weights come from: one half of a layer at a time, announced ahead.
//!
//! The forward pass asks a [`WeightSource`] for the attention or feed-forward half of a layer, or for one of its
//! experts, and says what it needs next; whether the bytes are mapped from a file, repacked or streamed is the
//! source's business. [`MappedWeights`] borrows every matrix from the mapped model file; [`StreamedWeights`] does so
//! with what fits into its budget, and reads the rest from the disk for every token.
//!
//! Invariant: every tensor has been checked against the model's shape when the source was made, so acquiring
//! cannot meet a wrong one.

use std::path::PathBuf;

use baton_kernels_cpu::{Format, KernelError, Matrix};

use crate::gguf::GgufError;

mod mapped;
mod streamed;

pub(crate) use mapped::MatrixAt;
pub use mapped::{MappedWeights, rope_divisors, vocab_len};
pub use streamed::{
    Residency, ResidencyError, ResidencyStats, STREAM_BYTES, StreamedMatrix, StreamedWeights,
};

/// Half of a transformer layer, or an expert of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Part {
    /// Attention norm, query, key, value and output projections.
    Attention,
    /// Feed-forward norm; gate, up and down projections, or the router of experts and the shared expert.
    Ffn,
    /// Gate, up and down projections of one expert.
    Expert(usize),
}

/// What goes wrong while a part is acquired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightError {
    /// A layer that the model does not have.
    #[error("layer {layer} of {n_layers}")]
    NoSuchLayer {
        /// The layer asked for.
        layer: usize,
        /// The model's layers.
        n_layers: usize,
    },
    /// An expert that the layer does not have.
    #[error("expert {expert} of {n_experts} in layer {layer}")]
    NoSuchExpert {
        /// The expert asked for.
        expert: usize,
        /// The layer's experts.
        n_experts: usize,
        /// The layer.
        layer: usize,
    },
    /// The source gave another part than the one asked for.
    #[error("weights are not those of part {0:?}")]
    WrongPart(Part),
    /// The bytes do not make a matrix.
    #[error("weight matrix")]
    Matrix(#[from] KernelError),
    /// A layer that another device computes.
    #[error("layer {layer} is not among the layers that this device computes")]
    LayerElsewhere {
        /// The layer asked for.
        layer: usize,
    },
    /// Embedding or logits where another device computes them.
    #[error("this device computes neither embeddings nor logits")]
    EndsElsewhere,
    /// Weights that are read for every token could not be read.
    #[error("read {len} bytes of weights at byte {offset} of `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Where the bytes begin.
        offset: u64,
        /// How many they are.
        len: usize,
        /// What the system says.
        #[source]
        err: std::io::Error,
    },
}

/// What is wrong with a model's tensors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// A tensor is missing or of a type that the kernels lack.
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
        /// What the kernels say.
        #[source]
        err: KernelError,
    },
    /// A tensor that this forward pass would leave out, so that its results would be wrong.
    #[error("tensor `{name}` is not part of a {family} model")]
    Unexpected {
        /// The tensor.
        name: String,
        /// The model's family.
        family: &'static str,
    },
    /// A number in a norm, bias or divisor that is not finite, or a divisor that is not > 0.
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
/// A product with it is made of two steps, in this order: with the rows that are [`Self::at_hand`], then with those that
/// are [waited for](Self::wait). An element is the same bits whichever rows come with it.
#[derive(Debug, Clone, Copy)]
pub enum Weight<'a> {
    /// All rows are at hand.
    Whole(Matrix<'a>),
    /// Some rows are read when their turn comes.
    Streamed(StreamedMatrix<'a>),
}

impl<'a> Weight<'a> {
    /// The storage format.
    pub fn format(&self) -> Format {
        match self {
            Self::Whole(matrix) => matrix.format(),
            Self::Streamed(matrix) => matrix.format(),
        }
    }

    /// Rows: the length of an output vector.
    pub fn rows(&self) -> usize {
        match self {
            Self::Whole(matrix) => matrix.rows(),
            Self::Streamed(matrix) => matrix.rows(),
        }
    }

    /// The first rows, as many as need not be waited for; none, some or all.
    ///
    /// # Errors
    /// [`WeightError::Matrix`] where bytes and shape disagree.
    pub fn at_hand(&self) -> Result<Matrix<'a>, WeightError> {
        match self {
            Self::Whole(matrix) => Ok(*matrix),
            Self::Streamed(matrix) => matrix.resident(),
        }
    }

    /// Calls `each(first, rows)` for the other rows, a piece at a time and in order, with the first row's number.
    /// A piece's memory is taken back when the call returns.
    ///
    /// # Errors
    /// [`WeightError::Read`] where the disk fails.
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

/// The attention half of a layer.
#[derive(Debug)]
pub struct AttentionWeights<'a> {
    /// RMS norm, `[e]`.
    pub norm: &'a [f32],
    /// Query projection, `[h d, e]`.
    pub q: Weight<'a>,
    /// Key projection, `[g d, e]`.
    pub k: Weight<'a>,
    /// Value projection, `[g d, e]`.
    pub v: Weight<'a>,
    /// Output projection, `[e, h d]`.
    pub o: Weight<'a>,
    /// Biases of `q`, `k` and `v`, empty where the model has none.
    pub biases: [&'a [f32]; 3],
    /// RMS norms of every query and every key head, `[d]` each, empty where the model has none.
    pub head_norms: [&'a [f32]; 2],
    /// RMS norm of the result, `[e]`, empty where the model has none.
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
}

/// An expert that every token goes through.
#[derive(Debug)]
pub struct SharedExpert<'a> {
    /// Projection to the number whose sigmoid scales the expert, `[1, e]`.
    pub gate: Weight<'a>,
    /// The expert.
    pub network: GatedWeights<'a>,
}

/// What a feed-forward half computes with.
#[derive(Debug)]
pub enum FfnBody<'a> {
    /// One network for all tokens.
    Dense(GatedWeights<'a>),
    /// Experts, which are parts of their own.
    Experts {
        /// Projection to one number an expert, `[experts, e]`.
        router: Weight<'a>,
        /// Where the model has one.
        shared: Option<SharedExpert<'a>>,
    },
}

/// The feed-forward half of a layer.
#[derive(Debug)]
pub struct FfnWeights<'a> {
    /// RMS norm, `[e]`.
    pub norm: &'a [f32],
    /// The network, or what chooses among experts.
    pub body: FfnBody<'a>,
    /// RMS norm of the result, `[e]`, empty where the model has none.
    pub post_norm: &'a [f32],
}

/// The final norm and the projection to logits.
#[derive(Debug)]
pub struct OutputWeights<'a> {
    /// RMS norm, `[e]`.
    pub norm: &'a [f32],
    /// Projection to logits, `[v, e]`; the embedding table where the model ties the two.
    pub head: Weight<'a>,
}

/// An acquired part.
#[derive(Debug)]
pub enum PartWeights<'a> {
    /// Of [`Part::Attention`].
    Attention(AttentionWeights<'a>),
    /// Of [`Part::Ffn`].
    Ffn(FfnWeights<'a>),
    /// Of [`Part::Expert`].
    Expert(GatedWeights<'a>),
}

impl<'a> PartWeights<'a> {
    /// The attention half.
    ///
    /// # Errors
    /// [`WeightError::WrongPart`] if this is another part.
    pub fn attention(self) -> Result<AttentionWeights<'a>, WeightError> {
        match self {
            Self::Attention(weights) => Ok(weights),
            _ => Err(WeightError::WrongPart(Part::Attention)),
        }
    }

    /// The feed-forward half.
    ///
    /// # Errors
    /// [`WeightError::WrongPart`] if this is another part.
    pub fn ffn(self) -> Result<FfnWeights<'a>, WeightError> {
        match self {
            Self::Ffn(weights) => Ok(weights),
            _ => Err(WeightError::WrongPart(Part::Ffn)),
        }
    }

    /// Expert `expert`.
    ///
    /// # Errors
    /// [`WeightError::WrongPart`] if this is no expert.
    pub fn expert(self, expert: usize) -> Result<GatedWeights<'a>, WeightError> {
        match self {
            Self::Expert(weights) => Ok(weights),
            _ => Err(WeightError::WrongPart(Part::Expert(expert))),
        }
    }
}

/// Gives weights to the forward pass.
pub trait WeightSource: Send + Sync {
    /// The weights of one part of a layer, valid while the borrow lasts. Acquiring reads nothing: rows that are
    /// streamed are waited for one piece at a time ([`Weight::wait`]), so that a part may be larger than the memory
    /// that it streams through.
    ///
    /// # Errors
    /// [`WeightError`]; a source that reads or receives may fail at any time.
    fn acquire(&self, layer: usize, part: Part) -> Result<PartWeights<'_>, WeightError>;

    /// The embedding table, `[v, e]`, of which a token needs one row.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    fn embedding(&self) -> Result<Matrix<'_>, WeightError>;

    /// What turns the last hidden state into logits.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    fn output(&self) -> Result<OutputWeights<'_>, WeightError>;

    /// Announces what will be acquired after the current part; a source may fetch it now, or do nothing.
    fn hint(&self, layer: usize, part: Part);
}
