//! Where weights come from: one half of a layer at a time, announced ahead.
//!
//! The forward pass asks a [`WeightSource`] for the attention or feed-forward half of a layer and says what it
//! needs next; whether the bytes are mapped from a file, repacked or streamed is the source's business. The
//! source here, [`MappedWeights`], borrows every matrix from the mapped model file.
//!
//! Invariant: every tensor has been checked against the model's shape when the source was made, so acquiring
//! cannot meet a wrong one.

use std::sync::Arc;

use baton_kernels_cpu::{Format, KernelError, Matrix, dequantize_row};

use crate::config::ModelConfig;
use crate::family::Presence;
use crate::gguf::{Gguf, GgufError, TensorPlace, TensorView};

/// Half of a transformer layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Part {
    /// Attention norm, query, key, value and output projections.
    Attention,
    /// Feed-forward norm, gate, up and down projections.
    Ffn,
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
    /// The source gave another part than the one asked for.
    #[error("weights are not those of part {0:?}")]
    WrongPart(Part),
    /// The bytes do not make a matrix.
    #[error("weight matrix")]
    Matrix(#[from] KernelError),
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
pub type Weight<'a> = Matrix<'a>;

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
}

/// The feed-forward half of a layer.
#[derive(Debug)]
pub struct FfnWeights<'a> {
    /// RMS norm, `[e]`.
    pub norm: &'a [f32],
    /// Gate projection, `[f, e]`.
    pub gate: Weight<'a>,
    /// Up projection, `[f, e]`.
    pub up: Weight<'a>,
    /// Down projection, `[e, f]`.
    pub down: Weight<'a>,
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
}

impl<'a> PartWeights<'a> {
    /// The attention half.
    ///
    /// # Errors
    /// [`WeightError::WrongPart`] if this is another part.
    pub fn attention(self) -> Result<AttentionWeights<'a>, WeightError> {
        match self {
            Self::Attention(weights) => Ok(weights),
            Self::Ffn(_) => Err(WeightError::WrongPart(Part::Attention)),
        }
    }

    /// The feed-forward half.
    ///
    /// # Errors
    /// [`WeightError::WrongPart`] if this is another part.
    pub fn ffn(self) -> Result<FfnWeights<'a>, WeightError> {
        match self {
            Self::Ffn(weights) => Ok(weights),
            Self::Attention(_) => Err(WeightError::WrongPart(Part::Ffn)),
        }
    }
}

/// Gives weights to the forward pass.
pub trait WeightSource: Send + Sync {
    /// The weights of one half of a layer, valid while the borrow lasts.
    ///
    /// # Errors
    /// [`WeightError`]; a source that reads or receives may fail at any time.
    fn acquire(&self, layer: usize, part: Part) -> Result<PartWeights<'_>, WeightError>;

    /// The embedding table, `[v, e]`.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    fn embedding(&self) -> Result<Weight<'_>, WeightError>;

    /// What turns the last hidden state into logits.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    fn output(&self) -> Result<OutputWeights<'_>, WeightError>;

    /// Announces what will be acquired after the current part; a source may fetch it now, or do nothing.
    fn hint(&self, layer: usize, part: Part);
}

/// A checked matrix in the file.
#[derive(Debug, Clone)]
struct MatrixAt {
    format: Format,
    rows: usize,
    cols: usize,
    place: TensorPlace,
}

struct LayerAt {
    attn_norm: Vec<f32>,
    qkvo: [MatrixAt; 4],
    biases: [Vec<f32>; 3],
    ffn_norm: Vec<f32>,
    gate_up_down: [MatrixAt; 3],
}

/// Weights borrowed from a mapped model file. Norms and biases are kept as f32 copies.
pub struct MappedWeights {
    gguf: Arc<Gguf>,
    embedding: MatrixAt,
    output_norm: Vec<f32>,
    /// `None` where the model ties it to the embedding table.
    head: Option<MatrixAt>,
    layers: Vec<LayerAt>,
}

/// Rows of the embedding table in `gguf`.
///
/// # Errors
/// [`TensorError`] where the table is missing or not a matrix.
pub fn vocab_len(gguf: &Gguf) -> Result<usize, TensorError> {
    let view = gguf.tensor(EMBEDDING)?;
    match view.dims {
        [_, rows] => Ok(usize::try_from(*rows).unwrap_or(usize::MAX)),
        dims => Err(TensorError::Shape {
            name: EMBEDDING.to_owned(),
            found: dims.to_vec(),
            want: vec![dims.first().copied().unwrap_or(0), 1],
        }),
    }
}

/// The divisors of rotary frequencies that the file may hold, `[rot_dims / 2]`.
///
/// # Errors
/// [`TensorError`] where they are malformed, not finite or not > 0.
pub fn rope_divisors(gguf: &Gguf, config: &ModelConfig) -> Result<Option<Vec<f32>>, TensorError> {
    if !gguf.has_tensor(ROPE_FREQS) {
        return Ok(None);
    }
    let divisors = vector(gguf, ROPE_FREQS, config.rope.rot_dims / 2)?;
    match divisors.iter().position(|divisor| *divisor <= 0.0) {
        Some(at) => Err(TensorError::Value { name: ROPE_FREQS.to_owned(), value: divisors[at], at }),
        None => Ok(Some(divisors)),
    }
}

const EMBEDDING: &str = "token_embd.weight";
const OUTPUT_NORM: &str = "output_norm.weight";
const OUTPUT: &str = "output.weight";
const ROPE_FREQS: &str = "rope_freqs.weight";
/// Left in old files by their converter; the forward pass computes the same numbers itself.
const ROTARY_LEFTOVER: &str = "attn_rot_embd.weight";

impl MappedWeights {
    /// Finds every tensor of the model and checks it against `config`.
    ///
    /// # Errors
    /// [`TensorError`] for what is missing, of a wrong shape, or unknown.
    pub fn new(gguf: Arc<Gguf>, config: &ModelConfig) -> Result<Self, TensorError> {
        let (e, v) = (config.d_model, config.vocab_len);
        let embedding = matrix(&gguf, EMBEDDING, v, e)?;
        let output_norm = vector(&gguf, OUTPUT_NORM, e)?;
        let head = if gguf.has_tensor(OUTPUT) { Some(matrix(&gguf, OUTPUT, v, e)?) } else { None };
        let mut layers = Vec::new();
        for layer in 0..config.n_layers {
            layers.push(layer_at(&gguf, config, layer)?);
        }
        refuse_unknown(&gguf, config)?;
        Ok(Self { gguf, embedding, output_norm, head, layers })
    }

    /// A borrowed matrix.
    fn matrix(&self, at: &MatrixAt) -> Result<Matrix<'_>, WeightError> {
        Ok(Matrix::new(at.format, at.rows, at.cols, self.gguf.bytes_at(at.place))?)
    }
}

impl std::fmt::Debug for MappedWeights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MappedWeights").field("layers", &self.layers.len()).finish_non_exhaustive()
    }
}

impl WeightSource for MappedWeights {
    fn acquire(&self, layer: usize, part: Part) -> Result<PartWeights<'_>, WeightError> {
        let n_layers = self.layers.len();
        let at = self.layers.get(layer).ok_or(WeightError::NoSuchLayer { layer, n_layers })?;
        match part {
            Part::Attention => {
                let [q, k, v, o] = &at.qkvo;
                Ok(PartWeights::Attention(AttentionWeights {
                    norm: &at.attn_norm,
                    q: self.matrix(q)?,
                    k: self.matrix(k)?,
                    v: self.matrix(v)?,
                    o: self.matrix(o)?,
                    biases: at.biases.each_ref().map(Vec::as_slice),
                }))
            }
            Part::Ffn => {
                let [gate, up, down] = &at.gate_up_down;
                Ok(PartWeights::Ffn(FfnWeights {
                    norm: &at.ffn_norm,
                    gate: self.matrix(gate)?,
                    up: self.matrix(up)?,
                    down: self.matrix(down)?,
                }))
            }
        }
    }

    fn embedding(&self) -> Result<Weight<'_>, WeightError> {
        self.matrix(&self.embedding)
    }

    fn output(&self) -> Result<OutputWeights<'_>, WeightError> {
        let head = self.matrix(self.head.as_ref().unwrap_or(&self.embedding))?;
        Ok(OutputWeights { norm: &self.output_norm, head })
    }

    /// Nothing: the operating system reads mapped pages ahead by itself.
    fn hint(&self, _layer: usize, _part: Part) {}
}

fn layer_at(gguf: &Gguf, config: &ModelConfig, layer: usize) -> Result<LayerAt, TensorError> {
    let (e, f, q, kv) = (config.d_model, config.d_ff, config.d_q(), config.d_kv());
    let name = |tensor: &str| format!("blk.{layer}.{tensor}");
    let weight = |tensor: &str, rows, cols| matrix(gguf, &name(tensor), rows, cols);
    let bias = |tensor: &str, len| {
        let name = name(tensor);
        match config.family.qkv_bias {
            Presence::Optional if !gguf.has_tensor(&name) => Ok(Vec::new()),
            _ => vector(gguf, &name, len),
        }
    };
    Ok(LayerAt {
        attn_norm: vector(gguf, &name("attn_norm.weight"), e)?,
        qkvo: [
            weight("attn_q.weight", q, e)?,
            weight("attn_k.weight", kv, e)?,
            weight("attn_v.weight", kv, e)?,
            weight("attn_output.weight", e, q)?,
        ],
        biases: [bias("attn_q.bias", q)?, bias("attn_k.bias", kv)?, bias("attn_v.bias", kv)?],
        ffn_norm: vector(gguf, &name("ffn_norm.weight"), e)?,
        gate_up_down: [
            weight("ffn_gate.weight", f, e)?,
            weight("ffn_up.weight", f, e)?,
            weight("ffn_down.weight", e, f)?,
        ],
    })
}

/// Names after `blk.N.` that a layer may have.
const LAYER_TENSORS: &[&str] = &[
    "attn_norm.weight",
    "attn_q.weight",
    "attn_k.weight",
    "attn_v.weight",
    "attn_output.weight",
    "attn_q.bias",
    "attn_k.bias",
    "attn_v.bias",
    "ffn_norm.weight",
    "ffn_gate.weight",
    "ffn_up.weight",
    "ffn_down.weight",
    ROTARY_LEFTOVER,
];

fn refuse_unknown(gguf: &Gguf, config: &ModelConfig) -> Result<(), TensorError> {
    for tensor in gguf.tensors() {
        let name = tensor.name();
        let known = match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, rest)) => {
                layer.parse::<usize>().is_ok_and(|layer| layer < config.n_layers)
                    && LAYER_TENSORS.contains(&rest)
            }
            None => [EMBEDDING, OUTPUT_NORM, OUTPUT, ROPE_FREQS].contains(&name),
        };
        if !known {
            return Err(TensorError::Unexpected { name: name.to_owned(), family: config.family.name });
        }
    }
    Ok(())
}

fn matrix(gguf: &Gguf, name: &str, rows: usize, cols: usize) -> Result<MatrixAt, TensorError> {
    let view = gguf.tensor(name)?;
    check_dims(&view, &[cols as u64, rows as u64])?;
    Matrix::new(view.format, rows, cols, view.data).map_err(|err| bad_matrix(name, err))?;
    Ok(MatrixAt { format: view.format, rows, cols, place: view.place })
}

fn vector(gguf: &Gguf, name: &str, len: usize) -> Result<Vec<f32>, TensorError> {
    let view = gguf.tensor(name)?;
    check_dims(&view, &[len as u64])?;
    Matrix::new(view.format, 1, len, view.data).map_err(|err| bad_matrix(name, err))?;
    let mut values = vec![0.0; len];
    dequantize_row(view.format, view.data, &mut values).map_err(|err| bad_matrix(name, err))?;
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(TensorError::Value { name: name.to_owned(), value: values[at], at }),
        None => Ok(values),
    }
}

fn check_dims(view: &TensorView<'_>, want: &[u64]) -> Result<(), TensorError> {
    if view.dims == want {
        return Ok(());
    }
    Err(TensorError::Shape { name: view.name.to_owned(), found: view.dims.to_vec(), want: want.to_vec() })
}

fn bad_matrix(name: &str, err: KernelError) -> TensorError {
    TensorError::Matrix { name: name.to_owned(), err }
}
