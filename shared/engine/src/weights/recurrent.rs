//! What the first half of a layer holds, and the weights of recurrent layers: their names in GGUF files, and
//! the form in which the pass uses them.

use super::mapped::{AttentionAt, MatrixAt, Tensors, WeightOf, values};
use super::{PartWeights, TensorError, Weight, WeightError};
use crate::config::{DeltaNet, Recurrent, RecurrentKind};

/// The first half of a layer with a short convolution.
#[derive(Debug)]
pub struct ShortConvWeights<'a> {
    /// RMS norm, `[e]`.
    pub norm: &'a [f32],
    /// Projection to the gate before the convolution, the gate after it, and its input, `[3 e, e]`.
    pub input: Weight<'a>,
    /// The convolution, `[taps, e]`, oldest token first.
    pub taps: &'a [f32],
    /// Output projection, `[e, e]`.
    pub output: Weight<'a>,
}

/// The projections to the two numbers that each value head of a delta net needs for a token.
#[derive(Debug)]
pub enum DeltaGates<'a> {
    /// `[2 n, e]`: for each key head, beta of its value heads, then alpha of them.
    Joint(Weight<'a>),
    /// Beta and alpha of every value head, `[n, e]` each.
    Apart([Weight<'a>; 2]),
}

/// The first half of a layer with a gated delta net.
#[derive(Debug)]
pub struct DeltaNetWeights<'a> {
    /// RMS norm, `[e]`.
    pub norm: &'a [f32],
    /// Projection to queries, keys and values, `[channels, e]`.
    pub qkv: Weight<'a>,
    /// Projection to the gate of the output, `[n d, e]`.
    pub gate: Weight<'a>,
    /// Projections to beta and alpha.
    pub gates: DeltaGates<'a>,
    /// The convolution over queries, keys and values, `[taps, channels]`, oldest token first.
    pub taps: &'a [f32],
    /// Added to alpha, `[n]`.
    pub alpha_bias: &'a [f32],
    /// The factor of `softplus(alpha)` in the logarithm of the decay, `[n]`.
    pub decay: &'a [f32],
    /// RMS norm of every value head of the output, `[d]`.
    pub output_norm: &'a [f32],
    /// Output projection, `[e, n d]`.
    pub output: Weight<'a>,
}

/// The first half of a recurrent layer.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "made once for each layer of a step")]
pub enum RecurrentWeights<'a> {
    /// A short convolution.
    ShortConv(ShortConvWeights<'a>),
    /// A gated delta net.
    DeltaNet(DeltaNetWeights<'a>),
}

/// What the first half of a layer computes.
#[expect(clippy::large_enum_variant, reason = "one for each layer, whichever it is")]
pub(super) enum MixerAt {
    Attention(AttentionAt),
    Recurrent(RecurrentAt),
}

impl MixerAt {
    /// Returns the matrices, in the order of a pass.
    pub(super) fn matrices(&self) -> Vec<MatrixAt> {
        match self {
            Self::Attention(at) => at.matrices(),
            Self::Recurrent(at) => at.matrices(),
        }
    }

    /// Returns the weights, with matrices as `weight` returns them.
    pub(super) fn part<'a>(
        &'a self,
        norm: &'a [f32],
        weight: WeightOf<'a, '_>,
    ) -> Result<PartWeights<'a>, WeightError> {
        match self {
            Self::Attention(at) => Ok(PartWeights::Attention(at.part(norm, weight)?)),
            Self::Recurrent(at) => Ok(PartWeights::Recurrent(at.part(norm, weight)?)),
        }
    }
}

enum GatesAt {
    Joint(MatrixAt),
    Apart([MatrixAt; 2]),
}

/// The place of a recurrent layer's matrices in the file; copies of the rest.
pub(super) enum RecurrentAt {
    ShortConv { input: MatrixAt, taps: Vec<f32>, output: MatrixAt },
    DeltaNet(Box<DeltaNetAt>),
}

pub(super) struct DeltaNetAt {
    qkv: MatrixAt,
    gate: MatrixAt,
    gates: GatesAt,
    taps: Vec<f32>,
    alpha_bias: Vec<f32>,
    decay: Vec<f32>,
    output_norm: Vec<f32>,
    output: MatrixAt,
}

impl RecurrentAt {
    /// Finds the tensors of a layer, whose names `name` makes.
    pub(super) fn find(
        tensors: &mut Tensors<'_>,
        recurrent: &Recurrent,
        name: &impl Fn(&str) -> String,
    ) -> Result<Self, TensorError> {
        let e = tensors.config.d_model;
        match &recurrent.kind {
            RecurrentKind::ShortConv => Ok(Self::ShortConv {
                input: tensors.matrix(&name("shortconv.in_proj.weight"), 3 * e, e)?,
                taps: taps(tensors, &name("shortconv.conv.weight"), recurrent)?,
                output: tensors.matrix(&name("shortconv.out_proj.weight"), e, e)?,
            }),
            RecurrentKind::DeltaNet(net) => {
                let (n, values) = (net.value_heads, net.d_values());
                Ok(Self::DeltaNet(Box::new(DeltaNetAt {
                    qkv: tensors.matrix(&name("attn_qkv.weight"), recurrent.channels, e)?,
                    gate: tensors.matrix(&name("attn_gate.weight"), values, e)?,
                    gates: GatesAt::find(tensors, net, name)?,
                    taps: taps(tensors, &name("ssm_conv1d.weight"), recurrent)?,
                    alpha_bias: tensors.vector(&name("ssm_dt.bias"), n)?,
                    decay: tensors.vector(&name("ssm_a"), n)?,
                    output_norm: tensors.vector(&name("ssm_norm.weight"), net.d_head)?,
                    output: tensors.matrix(&name("ssm_out.weight"), e, values)?,
                })))
            }
        }
    }

    /// Returns the matrices, in the order of a pass.
    pub(super) fn matrices(&self) -> Vec<MatrixAt> {
        match self {
            Self::ShortConv { input, output, .. } => vec![*input, *output],
            Self::DeltaNet(at) => {
                let gates = match &at.gates {
                    GatesAt::Joint(both) => std::slice::from_ref(both),
                    GatesAt::Apart(both) => both,
                };
                [&[at.qkv, at.gate], gates, &[at.output]].concat()
            }
        }
    }

    /// Returns the weights, with matrices as `weight` returns them.
    pub(super) fn part<'a>(
        &'a self,
        norm: &'a [f32],
        weight: WeightOf<'a, '_>,
    ) -> Result<RecurrentWeights<'a>, WeightError> {
        let all = |at: &MatrixAt| weight(at, 0..at.rows);
        match self {
            Self::ShortConv { input, taps, output } => Ok(RecurrentWeights::ShortConv(ShortConvWeights {
                norm,
                input: all(input)?,
                taps,
                output: all(output)?,
            })),
            Self::DeltaNet(at) => Ok(RecurrentWeights::DeltaNet(DeltaNetWeights {
                norm,
                qkv: all(&at.qkv)?,
                gate: all(&at.gate)?,
                gates: match &at.gates {
                    GatesAt::Joint(both) => DeltaGates::Joint(all(both)?),
                    GatesAt::Apart([beta, alpha]) => DeltaGates::Apart([all(beta)?, all(alpha)?]),
                },
                taps: &at.taps,
                alpha_bias: &at.alpha_bias,
                decay: &at.decay,
                output_norm: &at.output_norm,
                output: all(&at.output)?,
            })),
        }
    }
}

impl GatesAt {
    fn find(
        tensors: &mut Tensors<'_>,
        net: &DeltaNet,
        name: &impl Fn(&str) -> String,
    ) -> Result<Self, TensorError> {
        let (n, e) = (net.value_heads, tensors.config.d_model);
        Ok(if net.grouped {
            Self::Joint(tensors.matrix(&name("ssm_ba.weight"), 2 * n, e)?)
        } else {
            let one = |tensors: &mut Tensors<'_>, tensor| tensors.matrix(&name(tensor), n, e);
            Self::Apart([one(tensors, "ssm_beta.weight")?, one(tensors, "ssm_alpha.weight")?])
        })
    }
}

/// Finds the taps of a convolution, which a file stores channel by channel; returns them token by token,
/// `[taps, channels]`.
fn taps(tensors: &mut Tensors<'_>, name: &str, recurrent: &Recurrent) -> Result<Vec<f32>, TensorError> {
    let (n, channels) = (recurrent.taps, recurrent.channels);
    tensors.taken.push(name.to_owned());
    let stored = values(tensors.gguf, name, &[n as u64, channels as u64])?;
    Ok((0..n * channels).map(|at| stored[at % channels * n + at / channels]).collect())
}
