//! Weights borrowed from a mapped model file.
//!
//! Finds every tensor of the model by its GGUF name and checks it once. Matrices stay at their place in the
//! file. Matrices that a file holds fused (query, key and value; gate and up; all experts of a layer) are
//! ranges of rows of one tensor. Norms and biases are kept as f32 copies.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use baton_kernels_cpu::{Format, KernelError, Matrix, dequantize_row};

use super::{
    AttentionWeights, FfnBody, FfnWeights, GatedWeights, OutputWeights, Part, PartWeights, SharedExpert,
    TensorError, Weight, WeightError, WeightSource,
};
use crate::config::{Experts, ModelConfig};
use crate::family::Presence;
use crate::gguf::{Gguf, TensorPlace, TensorView};

/// A checked matrix in the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MatrixAt {
    pub(crate) format: Format,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// The place of the tensor, which may have more rows than these.
    pub(crate) place: TensorPlace,
    pub(crate) first_row: usize,
}

impl MatrixAt {
    /// Returns some of the rows.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Self {
        Self { rows: rows.len(), first_row: self.first_row + rows.start, ..*self }
    }

    /// Returns its stored bytes in the file that it was found in.
    pub(crate) fn bytes<'a>(&self, gguf: &'a Gguf) -> &'a [u8] {
        let row_bytes = self.row_bytes();
        &gguf.bytes_at(self.place)[self.first_row * row_bytes..(self.first_row + self.rows) * row_bytes]
    }

    /// Returns the stored bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.format.row_bytes(self.cols).unwrap_or(0)
    }

    /// Returns the position of its bytes: the index of the file, and their range in it.
    pub(crate) fn extent(&self) -> (usize, Range<usize>) {
        let first = self.place.range().start + self.first_row * self.row_bytes();
        (self.place.part(), first..first + self.rows * self.row_bytes())
    }
}

/// How a source returns some rows of a matrix.
pub(super) type WeightOf<'a, 'f> = &'f dyn Fn(&MatrixAt, Range<usize>) -> Result<Weight<'a>, WeightError>;

struct GatedAt {
    gate: MatrixAt,
    up: MatrixAt,
    down: MatrixAt,
}

impl GatedAt {
    fn matrices(&self) -> [MatrixAt; 3] {
        [self.gate, self.up, self.down]
    }

    fn all<'a>(&self, weight: WeightOf<'a, '_>) -> Result<GatedWeights<'a>, WeightError> {
        let all = |at: &MatrixAt| weight(at, 0..at.rows);
        Ok(GatedWeights { gate: all(&self.gate)?, up: all(&self.up)?, down: all(&self.down)? })
    }

    /// Returns one of `count` networks whose matrices are stacked.
    fn one<'a>(
        &self,
        expert: usize,
        count: usize,
        weight: WeightOf<'a, '_>,
    ) -> Result<GatedWeights<'a>, WeightError> {
        let one = |at: &MatrixAt| {
            let rows = at.rows / count;
            weight(at, expert * rows..(expert + 1) * rows)
        };
        Ok(GatedWeights { gate: one(&self.gate)?, up: one(&self.up)?, down: one(&self.down)? })
    }
}

#[expect(clippy::large_enum_variant, reason = "one for each layer, whichever it is")]
enum FfnAt {
    Dense(GatedAt),
    Experts {
        router: MatrixAt,
        /// The stacked matrices of all experts.
        stacked: GatedAt,
        count: usize,
        shared: Option<(MatrixAt, GatedAt)>,
    },
}

impl FfnAt {
    fn body<'a>(&self, weight: WeightOf<'a, '_>) -> Result<FfnBody<'a>, WeightError> {
        match self {
            Self::Dense(network) => Ok(FfnBody::Dense(network.all(weight)?)),
            Self::Experts { router, shared, .. } => {
                let router = weight(router, 0..router.rows)?;
                let shared = match shared {
                    Some((gate, network)) => Some(SharedExpert {
                        gate: weight(gate, 0..gate.rows)?,
                        network: network.all(weight)?,
                    }),
                    None => None,
                };
                Ok(FfnBody::Experts { router, shared })
            }
        }
    }

    fn expert<'a>(
        &self,
        layer: usize,
        expert: usize,
        weight: WeightOf<'a, '_>,
    ) -> Result<GatedWeights<'a>, WeightError> {
        match self {
            Self::Experts { stacked, count, .. } if expert < *count => stacked.one(expert, *count, weight),
            Self::Experts { count, .. } => {
                Err(WeightError::NoSuchExpert { expert, n_experts: *count, layer })
            }
            Self::Dense(_) => Err(WeightError::NoSuchExpert { expert, n_experts: 0, layer }),
        }
    }
}

struct LayerAt {
    attn_norm: Vec<f32>,
    qkvo: [MatrixAt; 4],
    biases: [Vec<f32>; 3],
    head_norms: [Vec<f32>; 2],
    attn_post_norm: Vec<f32>,
    ffn_norm: Vec<f32>,
    ffn: FfnAt,
    ffn_post_norm: Vec<f32>,
}

/// Weights borrowed from a mapped model file. Norms, biases and repacked matrices are copies; other matrices
/// are read in place.
pub struct MappedWeights {
    gguf: Arc<Gguf>,
    /// Copies made by [`MappedWeights::repack`], by the address of the matrix in memory.
    repacked: HashMap<usize, Vec<u8>>,
    embedding: MatrixAt,
    output_norm: Vec<f32>,
    /// `None` if the model ties it to the embedding table.
    head: Option<MatrixAt>,
    layers: Vec<LayerAt>,
}

/// Returns the number of rows of the embedding table in `gguf`.
///
/// # Errors
/// [`TensorError`] if the table is missing or not a matrix.
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

/// Returns the divisors of rotary frequencies that the file may hold, `[rot_dims / 2]`: one list, or one for
/// short and one for long contexts. A model with an extended context always uses the long ones, so that a
/// token's logits do not depend on the length of its sequence.
///
/// # Errors
/// [`TensorError`] if they are malformed, not finite or not > 0, or one of the two lists is missing.
pub fn rope_divisors(gguf: &Gguf, config: &ModelConfig) -> Result<Option<Vec<f32>>, TensorError> {
    let divisors = |name: &str| {
        let divisors = vector(gguf, name, config.rope.rot_dims / 2)?;
        match divisors.iter().position(|divisor| *divisor <= 0.0) {
            Some(at) => Err(TensorError::Value { name: name.to_owned(), value: divisors[at], at }),
            None => Ok(divisors),
        }
    };
    if gguf.has_tensor(ROPE_FREQS) {
        return divisors(ROPE_FREQS).map(Some);
    }
    if !gguf.has_tensor(ROPE_LONG) && !gguf.has_tensor(ROPE_SHORT) {
        return Ok(None);
    }
    let (long, short) = (divisors(ROPE_LONG)?, divisors(ROPE_SHORT)?);
    Ok(Some(if config.context_len > config.original_context_len { long } else { short }))
}

const EMBEDDING: &str = "token_embd.weight";
const OUTPUT_NORM: &str = "output_norm.weight";
const OUTPUT: &str = "output.weight";
const ROPE_FREQS: &str = "rope_freqs.weight";
const ROPE_LONG: &str = "rope_factors_long.weight";
const ROPE_SHORT: &str = "rope_factors_short.weight";
/// A tensor that old converters left in files; the forward pass computes the same numbers itself.
const ROTARY_LEFTOVER: &str = "attn_rot_embd.weight";

impl MappedWeights {
    /// Finds every tensor of the model and checks it against `config`.
    ///
    /// # Errors
    /// [`TensorError`] if a tensor is missing, has a wrong shape, or is unknown.
    pub fn new(gguf: Arc<Gguf>, config: &ModelConfig) -> Result<Self, TensorError> {
        let (e, v) = (config.d_model, config.vocab_len);
        let mut tensors = Tensors::new(&gguf, config);
        let embedding = tensors.matrix(EMBEDDING, v, e)?;
        let output_norm = tensors.vector(OUTPUT_NORM, e)?;
        let head = match config.family.output {
            Presence::Required => Some(tensors.matrix(OUTPUT, v, e)?),
            Presence::Optional if gguf.has_tensor(OUTPUT) => Some(tensors.matrix(OUTPUT, v, e)?),
            Presence::Optional | Presence::Never => None,
        };
        let mut layers = Vec::new();
        for layer in 0..config.n_layers {
            layers.push(tensors.layer(layer)?);
        }
        tensors.refuse_unknown()?;
        Ok(Self { embedding, output_norm, head, layers, gguf, repacked: HashMap::new() })
    }

    /// Copies quantized matrices into an order that is read faster, layer by layer and the output last, while
    /// all copies together stay within `budget` bytes. Returns the bytes of the copies. Experts are not
    /// copied, since a token needs few of them.
    pub fn repack(&mut self, budget: u64) -> u64 {
        let mut wanted: Vec<MatrixAt> = Vec::new();
        for layer in &self.layers {
            wanted.extend(layer.qkvo);
            if let FfnAt::Dense(gated) = &layer.ffn {
                wanted.extend([gated.gate, gated.up, gated.down]);
            }
        }
        wanted.push(self.head.unwrap_or(self.embedding));
        let mut taken = 0;
        for at in &wanted {
            let bytes = self.bytes(at);
            let (place, len) = (bytes.as_ptr() as usize, bytes.len() as u64);
            if at.format.block_len() > 1 && taken + len <= budget && !self.repacked.contains_key(&place) {
                let matrix = Matrix::new(at.format, at.rows, at.cols, bytes);
                let copy = matrix.expect("every matrix was checked when the source was made").repack();
                self.repacked.insert(place, copy);
                taken += len;
            }
        }
        taken
    }

    /// Returns the stored bytes of a matrix.
    fn bytes(&self, at: &MatrixAt) -> &[u8] {
        at.bytes(&self.gguf)
    }

    /// Returns a borrowed matrix.
    fn matrix(&self, at: &MatrixAt) -> Result<Matrix<'_>, WeightError> {
        let bytes = self.bytes(at);
        match self.repacked.get(&(bytes.as_ptr() as usize)).filter(|copy| copy.len() == bytes.len()) {
            Some(copy) => Ok(Matrix::repacked(at.format, at.rows, at.cols, copy)?),
            None => Ok(Matrix::new(at.format, at.rows, at.cols, bytes)?),
        }
    }

    /// Returns one part of a layer, with matrices as `weight` returns them. `weight` is called with each
    /// matrix of the part and the range of its rows. That is all rows, except for an expert, whose rows are
    /// among those of others.
    ///
    /// # Errors
    /// [`WeightError::NoSuchLayer`], [`WeightError::NoSuchExpert`], or an error of `weight`.
    pub(super) fn part<'a>(
        &'a self,
        layer: usize,
        part: Part,
        weight: WeightOf<'a, '_>,
    ) -> Result<PartWeights<'a>, WeightError> {
        let n_layers = self.layers.len();
        let at = self.layers.get(layer).ok_or(WeightError::NoSuchLayer { layer, n_layers })?;
        match part {
            Part::Attention => {
                let [q, k, v, o] = &at.qkvo;
                let all = |at: &MatrixAt| weight(at, 0..at.rows);
                Ok(PartWeights::Attention(AttentionWeights {
                    norm: &at.attn_norm,
                    q: all(q)?,
                    k: all(k)?,
                    v: all(v)?,
                    o: all(o)?,
                    biases: at.biases.each_ref().map(Vec::as_slice),
                    head_norms: at.head_norms.each_ref().map(Vec::as_slice),
                    post_norm: &at.attn_post_norm,
                }))
            }
            Part::Ffn => Ok(PartWeights::Ffn(FfnWeights {
                norm: &at.ffn_norm,
                body: at.ffn.body(weight)?,
                post_norm: &at.ffn_post_norm,
            })),
            Part::Expert(expert) => Ok(PartWeights::Expert(at.ffn.expert(layer, expert, weight)?)),
        }
    }

    /// Returns the weights that turn the last hidden state into logits, with the matrix as `weight` returns
    /// it.
    pub(super) fn output_part<'a>(
        &'a self,
        weight: WeightOf<'a, '_>,
    ) -> Result<OutputWeights<'a>, WeightError> {
        let head = self.head_at();
        Ok(OutputWeights { norm: &self.output_norm, head: weight(head, 0..head.rows)? })
    }

    /// Returns the projection to logits.
    pub(super) fn head_at(&self) -> &MatrixAt {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Returns the number of layers of the model.
    pub(super) fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// Returns the matrices of a layer that every token needs, in the order of a pass.
    pub(super) fn matrices(&self, layer: usize) -> Vec<MatrixAt> {
        let Some(at) = self.layers.get(layer) else { return Vec::new() };
        let mut matrices = at.qkvo.to_vec();
        match &at.ffn {
            FfnAt::Dense(network) => matrices.extend(network.matrices()),
            FfnAt::Experts { router, shared, .. } => {
                matrices.push(*router);
                if let Some((gate, network)) = shared {
                    matrices.push(*gate);
                    matrices.extend(network.matrices());
                }
            }
        }
        matrices
    }

    /// Returns the stacked matrices of all experts of a layer; empty if it has none.
    pub(super) fn expert_matrices(&self, layer: usize) -> Vec<MatrixAt> {
        match self.layers.get(layer).map(|at| &at.ffn) {
            Some(FfnAt::Experts { stacked, .. }) => stacked.matrices().to_vec(),
            _ => Vec::new(),
        }
    }

    /// Returns the file.
    pub(super) fn gguf(&self) -> &Arc<Gguf> {
        &self.gguf
    }
}

impl std::fmt::Debug for MappedWeights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MappedWeights").field("layers", &self.layers.len()).finish_non_exhaustive()
    }
}

impl WeightSource for MappedWeights {
    fn acquire(&self, layer: usize, part: Part) -> Result<PartWeights<'_>, WeightError> {
        self.part(layer, part, &|at, rows| Ok(self.matrix(&at.rows(rows))?.into()))
    }

    fn embedding(&self) -> Result<Matrix<'_>, WeightError> {
        self.matrix(&self.embedding)
    }

    fn output(&self) -> Result<OutputWeights<'_>, WeightError> {
        self.output_part(&|at, rows| Ok(self.matrix(&at.rows(rows))?.into()))
    }

    /// Does nothing: the operating system reads mapped pages ahead by itself.
    fn hint(&self, _layer: usize, _part: Part) {}
}

/// Finds a model's tensors in a file and keeps track of those not used.
struct Tensors<'a> {
    gguf: &'a Gguf,
    config: &'a ModelConfig,
    taken: Vec<String>,
}

impl<'a> Tensors<'a> {
    fn new(gguf: &'a Gguf, config: &'a ModelConfig) -> Self {
        // Read by `rope_divisors`: one list, or two.
        let rope = if gguf.has_tensor(ROPE_FREQS) { &[ROPE_FREQS][..] } else { &[ROPE_LONG, ROPE_SHORT] };
        Self { gguf, config, taken: rope.iter().map(|name| (*name).to_owned()).collect() }
    }

    fn layer(&mut self, layer: usize) -> Result<LayerAt, TensorError> {
        let config = self.config;
        let (e, d, q, kv) = (config.d_model, config.d_head, config.d_q(), config.d_kv());
        let family = config.family;
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");
        let [q_at, k_at, v_at] = if family.fused {
            let all = self.matrix(&name("attn_qkv.weight"), q + 2 * kv, e)?;
            [all.rows(0..q), all.rows(q..q + kv), all.rows(q + kv..q + 2 * kv)]
        } else {
            [
                self.matrix(&name("attn_q.weight"), q, e)?,
                self.matrix(&name("attn_k.weight"), kv, e)?,
                self.matrix(&name("attn_v.weight"), kv, e)?,
            ]
        };
        self.taken.push(name(ROTARY_LEFTOVER));
        let only = |holds| if holds { Presence::Required } else { Presence::Never };
        let (head_norms, post_norms) = (only(family.head_norms), only(family.post_norms));
        Ok(LayerAt {
            attn_norm: self.vector(&name("attn_norm.weight"), e)?,
            qkvo: [q_at, k_at, v_at, self.matrix(&name("attn_output.weight"), e, q)?],
            biases: [
                self.vector_if(family.qkv_bias, &name("attn_q.bias"), q)?,
                self.vector_if(family.qkv_bias, &name("attn_k.bias"), kv)?,
                self.vector_if(family.qkv_bias, &name("attn_v.bias"), kv)?,
            ],
            head_norms: [
                self.vector_if(head_norms, &name("attn_q_norm.weight"), d)?,
                self.vector_if(head_norms, &name("attn_k_norm.weight"), d)?,
            ],
            attn_post_norm: self.vector_if(post_norms, &name("post_attention_norm.weight"), e)?,
            ffn_norm: self.vector(&name("ffn_norm.weight"), e)?,
            ffn: match config.experts {
                Some(experts) => self.experts(&name, experts)?,
                None => FfnAt::Dense(self.dense(&name)?),
            },
            ffn_post_norm: self.vector_if(post_norms, &name("post_ffw_norm.weight"), e)?,
        })
    }

    fn dense(&mut self, name: &impl Fn(&str) -> String) -> Result<GatedAt, TensorError> {
        let (e, f) = (self.config.d_model, self.config.d_ff);
        if self.config.family.fused {
            let both = self.matrix(&name("ffn_up.weight"), 2 * f, e)?;
            let down = self.matrix(&name("ffn_down.weight"), e, f)?;
            return Ok(GatedAt { gate: both.rows(0..f), up: both.rows(f..2 * f), down });
        }
        self.gated(name, "", f)
    }

    /// Finds a network of three matrices whose names end in `suffix`.
    fn gated(
        &mut self,
        name: &impl Fn(&str) -> String,
        suffix: &str,
        f: usize,
    ) -> Result<GatedAt, TensorError> {
        let e = self.config.d_model;
        Ok(GatedAt {
            gate: self.matrix(&name(&format!("ffn_gate{suffix}.weight")), f, e)?,
            up: self.matrix(&name(&format!("ffn_up{suffix}.weight")), f, e)?,
            down: self.matrix(&name(&format!("ffn_down{suffix}.weight")), e, f)?,
        })
    }

    fn experts(&mut self, name: &impl Fn(&str) -> String, experts: Experts) -> Result<FfnAt, TensorError> {
        let (e, f, n) = (self.config.d_model, experts.d_ff, experts.count);
        let router = self.matrix(&name("ffn_gate_inp.weight"), n, e)?;
        let stacked = GatedAt {
            gate: self.stack(&name("ffn_gate_exps.weight"), n, f, e)?,
            up: self.stack(&name("ffn_up_exps.weight"), n, f, e)?,
            down: self.stack(&name("ffn_down_exps.weight"), n, e, f)?,
        };
        let shared = match experts.shared_d_ff {
            Some(f) => {
                let gate = self.row(&name("ffn_gate_inp_shexp.weight"), e)?;
                Some((gate, self.gated(name, "_shexp", f)?))
            }
            None => None,
        };
        Ok(FfnAt::Experts { router, stacked, count: n, shared })
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<MatrixAt, TensorError> {
        self.shaped(name, &[cols as u64, rows as u64], rows, cols)
    }

    /// Finds `count` matrices `[rows, cols]` as one of `count * rows` rows.
    fn stack(&mut self, name: &str, count: usize, rows: usize, cols: usize) -> Result<MatrixAt, TensorError> {
        self.shaped(name, &[cols as u64, rows as u64, count as u64], count.saturating_mul(rows), cols)
    }

    /// Finds a matrix of one row, which may be stored as a vector.
    fn row(&mut self, name: &str, cols: usize) -> Result<MatrixAt, TensorError> {
        let dims = [cols as u64, 1];
        let n_dims = self.gguf.tensor(name)?.dims.len().clamp(1, 2);
        self.shaped(name, &dims[..n_dims], 1, cols)
    }

    fn shaped(
        &mut self,
        name: &str,
        dims: &[u64],
        rows: usize,
        cols: usize,
    ) -> Result<MatrixAt, TensorError> {
        let view = self.gguf.tensor(name)?;
        check_dims(&view, dims)?;
        Matrix::new(view.format, rows, cols, view.data).map_err(|err| bad_matrix(name, err))?;
        self.taken.push(name.to_owned());
        Ok(MatrixAt { format: view.format, rows, cols, place: view.place, first_row: 0 })
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, TensorError> {
        self.taken.push(name.to_owned());
        vector(self.gguf, name, len)
    }

    /// Returns an empty vector if it is absent and not required.
    fn vector_if(&mut self, presence: Presence, name: &str, len: usize) -> Result<Vec<f32>, TensorError> {
        match presence {
            Presence::Never => Ok(Vec::new()),
            Presence::Optional if !self.gguf.has_tensor(name) => Ok(Vec::new()),
            Presence::Optional | Presence::Required => self.vector(name, len),
        }
    }

    fn refuse_unknown(mut self) -> Result<(), TensorError> {
        self.taken.sort_unstable();
        let left = |name: &str| self.taken.binary_search_by(|taken| taken.as_str().cmp(name)).is_err();
        match self.gguf.tensors().find(|tensor| left(tensor.name())) {
            Some(tensor) => Err(TensorError::Unexpected {
                name: tensor.name().to_owned(),
                family: self.config.family.name,
            }),
            None => Ok(()),
        }
    }
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
