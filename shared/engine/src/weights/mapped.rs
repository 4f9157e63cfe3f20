//! Weights borrowed from a mapped model file.
//!
//! Finds every tensor of the model by its GGUF name and checks it once. Matrices stay at their place in the
//! file. Matrices that a file holds fused (query, key and value; gate and up; all experts of a layer) are
//! ranges of rows of one tensor. Norms and biases are kept as f32 copies.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use baton_kernels_cpu::{Format, Matrix};

use super::recurrent::MixerAt;
use super::{
    AttentionInputs, AttentionWeights, BesideWeights, ExpertStacks, FfnBody, FfnWeights, GatedWeights,
    HeadWeights, InputWeights, LatentUp, LatentWeights, MixtureWeights, OutputWeights, OwnInput, Part,
    PartWeights, SharedExpert, TensorError, Weight, WeightError, WeightSource,
};
use crate::config::ModelConfig;
use crate::family::Presence;
use crate::gguf::{Gguf, TensorPlace};

mod sizes;
mod stacks;
mod tensors;

pub(crate) use stacks::ExpertsOnGpu;
pub(super) use tensors::{Tensors, values};

use tensors::vector;

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
    biases: [Vec<f32>; 3],
}

impl GatedAt {
    fn matrices(&self) -> [MatrixAt; 3] {
        [self.gate, self.up, self.down]
    }

    fn all<'a>(&'a self, weight: WeightOf<'a, '_>) -> Result<GatedWeights<'a>, WeightError> {
        let all = |at: &MatrixAt| weight(at, 0..at.rows);
        let biases = self.biases.each_ref().map(Vec::as_slice);
        Ok(GatedWeights { gate: all(&self.gate)?, up: all(&self.up)?, down: all(&self.down)?, biases })
    }

    /// Returns one of `count` networks whose matrices are stacked. With `fused`, gate and up are the same
    /// stack, in which each network's gate is before its up.
    fn one<'a>(
        &'a self,
        expert: usize,
        count: usize,
        fused: bool,
        weight: WeightOf<'a, '_>,
    ) -> Result<GatedWeights<'a>, WeightError> {
        let nth = |at: &MatrixAt, nth: usize, count: usize| {
            let rows = at.rows / count;
            weight(at, nth * rows..(nth + 1) * rows)
        };
        let halves = if fused { 2 } else { 1 };
        let half = |at: &MatrixAt, half: usize| nth(at, halves * expert + half, halves * count);
        let biases = self.biases.each_ref().map(|all| {
            let width = all.len() / count;
            &all[expert * width..(expert + 1) * width]
        });
        let (gate, up) = (half(&self.gate, 0)?, half(&self.up, halves - 1)?);
        Ok(GatedWeights { gate, up, down: nth(&self.down, expert, count)?, biases })
    }
}

#[expect(clippy::large_enum_variant, reason = "one for each layer, whichever it is")]
enum FfnAt {
    Dense(GatedAt),
    Experts {
        router: MatrixAt,
        router_bias: Vec<f32>,
        choice_bias: Vec<f32>,
        /// The stacked matrices of all experts.
        stacked: GatedAt,
        /// Whether gate and up of all experts are one stack.
        fused: bool,
        count: usize,
        /// The shared expert, and its gate if it has one.
        shared: Option<(Option<MatrixAt>, GatedAt)>,
        beside: Option<Box<BesideAt>>,
    },
}

/// A dense network beside experts.
struct BesideAt {
    network: GatedAt,
    post_norm: Vec<f32>,
    router_norm: Vec<f32>,
    expert_norm: Vec<f32>,
    expert_post_norm: Vec<f32>,
    expert_factors: Vec<f32>,
}

impl BesideAt {
    fn all<'a>(&'a self, weight: WeightOf<'a, '_>) -> Result<BesideWeights<'a>, WeightError> {
        Ok(BesideWeights {
            network: self.network.all(weight)?,
            post_norm: &self.post_norm,
            router_norm: &self.router_norm,
            expert_norm: &self.expert_norm,
            expert_post_norm: &self.expert_post_norm,
            expert_factors: &self.expert_factors,
        })
    }
}

impl FfnAt {
    fn body<'a>(&'a self, weight: WeightOf<'a, '_>) -> Result<FfnBody<'a>, WeightError> {
        match self {
            Self::Dense(network) => Ok(FfnBody::Dense(network.all(weight)?)),
            Self::Experts { router, router_bias, choice_bias, shared, beside, .. } => {
                let all = |at: &MatrixAt| weight(at, 0..at.rows);
                let router = all(router)?;
                let shared = match shared {
                    Some((gate, network)) => Some(SharedExpert {
                        gate: gate.as_ref().map(all).transpose()?,
                        network: network.all(weight)?,
                    }),
                    None => None,
                };
                let beside = beside.as_ref().map(|beside| beside.all(weight).map(Box::new)).transpose()?;
                Ok(FfnBody::Experts(MixtureWeights { router, router_bias, choice_bias, shared, beside }))
            }
        }
    }

    fn expert<'a>(
        &'a self,
        layer: usize,
        expert: usize,
        weight: WeightOf<'a, '_>,
    ) -> Result<GatedWeights<'a>, WeightError> {
        match self {
            Self::Experts { stacked, fused, count, .. } if expert < *count => {
                stacked.one(expert, *count, *fused, weight)
            }
            Self::Experts { count, .. } => {
                Err(WeightError::NoSuchExpert { expert, n_experts: *count, layer })
            }
            Self::Dense(_) => Err(WeightError::NoSuchExpert { expert, n_experts: 0, layer }),
        }
    }
}

/// What queries, keys and values are made with.
enum InputsAt {
    Heads { q: MatrixAt, kv: [Option<MatrixAt>; 2], biases: [Vec<f32>; 3], head_norms: [Vec<f32>; 3] },
    Latent(LatentAt),
}

struct LatentAt {
    q_down: Option<(MatrixAt, Vec<f32>)>,
    q: MatrixAt,
    kv_down: MatrixAt,
    kv_norm: Vec<f32>,
    up: UpAt,
}

enum UpAt {
    Joined(MatrixAt),
    /// Stacked matrices of all heads, and the number of heads.
    Split {
        keys: MatrixAt,
        values: MatrixAt,
        heads: usize,
    },
}

impl InputsAt {
    fn all<'a>(&'a self, weight: WeightOf<'a, '_>) -> Result<AttentionInputs<'a>, WeightError> {
        let all = |at: &MatrixAt| weight(at, 0..at.rows);
        match self {
            Self::Heads { q, kv: [k, v], biases, head_norms } => Ok(AttentionInputs::Heads(HeadWeights {
                q: all(q)?,
                k: k.as_ref().map(all).transpose()?,
                v: v.as_ref().map(all).transpose()?,
                biases: biases.each_ref().map(Vec::as_slice),
                head_norms: head_norms.each_ref().map(Vec::as_slice),
            })),
            Self::Latent(at) => {
                let q_down = match &at.q_down {
                    Some((down, norm)) => Some((all(down)?, norm.as_slice())),
                    None => None,
                };
                Ok(AttentionInputs::Latent(LatentWeights {
                    q_down,
                    q: all(&at.q)?,
                    kv_down: all(&at.kv_down)?,
                    kv_norm: &at.kv_norm,
                    up: at.up.all(weight)?,
                }))
            }
        }
    }

    /// Returns the matrices that are read from their first row to their last, in the order of a pass. The
    /// projections of single heads are not among them, and stay in memory.
    fn matrices(&self) -> Vec<MatrixAt> {
        match self {
            Self::Heads { q, kv, .. } => std::iter::once(q).chain(kv.iter().flatten()).copied().collect(),
            Self::Latent(at) => {
                let mut matrices = match &at.q_down {
                    Some((down, _)) => vec![*down, at.kv_down, at.q],
                    None => vec![at.q, at.kv_down],
                };
                if let UpAt::Joined(up) = at.up {
                    matrices.push(up);
                }
                matrices
            }
        }
    }
}

impl UpAt {
    fn all<'a>(&self, weight: WeightOf<'a, '_>) -> Result<LatentUp<'a>, WeightError> {
        match self {
            Self::Joined(at) => Ok(LatentUp::Joined(weight(at, 0..at.rows)?)),
            Self::Split { keys, values, heads } => {
                let each = |at: &MatrixAt| {
                    let rows = at.rows / heads;
                    (0..*heads).map(|head| weight(at, head * rows..(head + 1) * rows)).collect()
                };
                let keys: Result<Vec<_>, WeightError> = each(keys);
                Ok(LatentUp::Split { keys: keys?, values: each(values)? })
            }
        }
    }
}

pub(super) struct AttentionAt {
    inputs: InputsAt,
    o: MatrixAt,
    o_bias: Vec<f32>,
    sinks: Vec<f32>,
    post_norm: Vec<f32>,
}

impl AttentionAt {
    pub(super) fn part<'a>(
        &'a self,
        norm: &'a [f32],
        weight: WeightOf<'a, '_>,
    ) -> Result<AttentionWeights<'a>, WeightError> {
        Ok(AttentionWeights {
            norm,
            inputs: self.inputs.all(weight)?,
            o: weight(&self.o, 0..self.o.rows)?,
            o_bias: &self.o_bias,
            sinks: &self.sinks,
            post_norm: &self.post_norm,
        })
    }

    /// Returns the matrices that are read from their first row to their last, in the order of a pass.
    pub(super) fn matrices(&self) -> Vec<MatrixAt> {
        let mut matrices = self.inputs.matrices();
        matrices.push(self.o);
        matrices
    }
}

struct LayerAt {
    attn_norm: Vec<f32>,
    mixer: MixerAt,
    ffn_norm: Vec<f32>,
    ffn: FfnAt,
    ffn_post_norm: Vec<f32>,
    input: Option<OwnInputAt>,
    scale: f32,
}

/// The input that a layer has of its own.
struct OwnInputAt {
    gate: MatrixAt,
    projection: MatrixAt,
    post_norm: Vec<f32>,
}

impl OwnInputAt {
    fn all<'a>(&'a self, weight: WeightOf<'a, '_>) -> Result<OwnInput<'a>, WeightError> {
        let all = |at: &MatrixAt| weight(at, 0..at.rows);
        Ok(OwnInput {
            gate: all(&self.gate)?,
            projection: all(&self.projection)?,
            post_norm: &self.post_norm,
        })
    }
}

/// What the inputs of all layers are made with.
struct InputsOfLayersAt {
    table: MatrixAt,
    projection: MatrixAt,
    norm: Vec<f32>,
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
    inputs: Option<InputsOfLayersAt>,
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
    if gguf.has_tensor(ROPE_FREQS) || config.family.rope_divisors == Presence::Required {
        return divisors(ROPE_FREQS).map(Some);
    }
    if config.family.rope_divisors != Presence::Required
        && !gguf.has_tensor(ROPE_LONG)
        && !gguf.has_tensor(ROPE_SHORT)
    {
        return Ok(None);
    }
    let (long, short) = (divisors(ROPE_LONG)?, divisors(ROPE_SHORT)?);
    Ok(Some(if config.context_len > config.original_context_len { long } else { short }))
}

const EMBEDDING: &str = "token_embd.weight";
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
        let output_norm = tensors.vector(config.family.output_norm, e)?;
        let head = match config.family.output {
            Presence::Required => Some(tensors.matrix(OUTPUT, v, e)?),
            Presence::Optional if gguf.has_tensor(OUTPUT) => Some(tensors.matrix(OUTPUT, v, e)?),
            Presence::Optional | Presence::Never => None,
        };
        let inputs = tensors.inputs()?;
        let mut layers = Vec::new();
        for layer in 0..config.n_layers {
            layers.push(tensors.layer(layer)?);
        }
        tensors.refuse_unknown()?;
        Ok(Self { embedding, output_norm, head, inputs, layers, gguf, repacked: HashMap::new() })
    }

    /// Copies quantized matrices into an order that is read faster, layer by layer and the output last, while
    /// all copies together stay within `budget` bytes. Returns the bytes of the copies. Experts are not
    /// copied, since a token needs few of them.
    pub fn repack(&mut self, budget: u64) -> u64 {
        let mut wanted: Vec<MatrixAt> = Vec::new();
        for layer in &self.layers {
            wanted.extend(layer.mixer.matrices());
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
            Part::Attention => at.mixer.part(&at.attn_norm, weight),
            Part::Ffn => Ok(PartWeights::Ffn(FfnWeights {
                norm: &at.ffn_norm,
                body: at.ffn.body(weight)?,
                post_norm: &at.ffn_post_norm,
                input: at.input.as_ref().map(|input| input.all(weight)).transpose()?,
                scale: at.scale,
            })),
            Part::Expert(expert) => Ok(PartWeights::Expert(at.ffn.expert(layer, expert, weight)?)),
        }
    }

    /// Returns what the inputs of all layers are made with, with the projection as `weight` returns it.
    pub(super) fn inputs_part<'a>(
        &'a self,
        weight: WeightOf<'a, '_>,
    ) -> Result<Option<InputWeights<'a>>, WeightError> {
        let Some(InputsOfLayersAt { table, projection, norm }) = &self.inputs else { return Ok(None) };
        let projection = weight(projection, 0..projection.rows)?;
        Ok(Some(InputWeights { table: self.matrix(table)?, projection, norm }))
    }

    /// Returns the projection of embeddings to the inputs of all layers, if the model has one.
    pub(super) fn inputs_at(&self) -> Option<&MatrixAt> {
        self.inputs.as_ref().map(|inputs| &inputs.projection)
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
        let mut matrices = at.mixer.matrices();
        match &at.ffn {
            FfnAt::Dense(network) => matrices.extend(network.matrices()),
            FfnAt::Experts { router, shared, beside, .. } => {
                matrices.extend(beside.iter().flat_map(|beside| beside.network.matrices()));
                matrices.push(*router);
                if let Some((gate, network)) = shared {
                    matrices.extend(gate);
                    matrices.extend(network.matrices());
                }
            }
        }
        if let Some(input) = &at.input {
            matrices.extend([input.gate, input.projection]);
        }
        matrices
    }

    /// Returns the stacked matrices of all experts of a layer; empty if it has none.
    pub(super) fn expert_matrices(&self, layer: usize) -> Vec<MatrixAt> {
        match self.layers.get(layer).map(|at| &at.ffn) {
            Some(FfnAt::Experts { stacked, fused: true, .. }) => vec![stacked.gate, stacked.down],
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

    fn experts(&self, layer: usize) -> Result<Option<ExpertStacks<'_>>, WeightError> {
        self.stacks(layer)
    }

    fn embedding(&self) -> Result<Matrix<'_>, WeightError> {
        self.matrix(&self.embedding)
    }

    fn inputs(&self) -> Result<Option<InputWeights<'_>>, WeightError> {
        self.inputs_part(&|at, rows| Ok(self.matrix(&at.rows(rows))?.into()))
    }

    fn output(&self) -> Result<OutputWeights<'_>, WeightError> {
        self.output_part(&|at, rows| Ok(self.matrix(&at.rows(rows))?.into()))
    }

    /// Does nothing: the operating system reads mapped pages ahead by itself.
    fn hint(&self, _layer: usize, _part: Part) {}
}
