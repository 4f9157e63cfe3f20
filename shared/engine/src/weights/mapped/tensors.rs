//! Finds a model's tensors in a file by their GGUF names and checks each against the model's shape.

use baton_kernels_cpu::{KernelError, Matrix, dequantize_row};

use super::super::TensorError;
use super::super::recurrent::{MixerAt, RecurrentAt};
use super::{
    AttentionAt, BesideAt, FfnAt, GatedAt, InputsAt, InputsOfLayersAt, LatentAt, LayerAt, MatrixAt,
    OwnInputAt, ROPE_FREQS, ROPE_LONG, ROPE_SHORT, ROTARY_LEFTOVER, UpAt,
};
use crate::config::{Experts, Heads, Latent, ModelConfig};
use crate::family::{Presence, SharedRule};
use crate::gguf::{Gguf, TensorView};

/// Finds a model's tensors in a file and keeps track of those not used.
pub(in super::super) struct Tensors<'a> {
    pub(in super::super) gguf: &'a Gguf,
    pub(in super::super) config: &'a ModelConfig,
    pub(in super::super) taken: Vec<String>,
}

impl<'a> Tensors<'a> {
    pub(super) fn new(gguf: &'a Gguf, config: &'a ModelConfig) -> Self {
        // Read by `rope_divisors`: one list, or two.
        let rope = if gguf.has_tensor(ROPE_FREQS) { &[ROPE_FREQS][..] } else { &[ROPE_LONG, ROPE_SHORT] };
        Self { gguf, config, taken: rope.iter().map(|name| (*name).to_owned()).collect() }
    }

    pub(super) fn layer(&mut self, layer: usize) -> Result<LayerAt, TensorError> {
        let config = self.config;
        let (e, family) = (config.d_model, config.family);
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");
        let post_norms = if family.post_norms { Presence::Required } else { Presence::Never };
        Ok(LayerAt {
            attn_norm: self.vector(&name("attn_norm.weight"), e)?,
            mixer: match &config.recurrent {
                Some(recurrent) if recurrent.layers[layer] => {
                    MixerAt::Recurrent(RecurrentAt::find(self, recurrent, &name)?)
                }
                _ => MixerAt::Attention(self.attention(layer, &name)?),
            },
            ffn_norm: self.vector(&name(&format!("{}.weight", family.ffn_norm)), e)?,
            ffn: match config.experts_at(layer) {
                Some(experts) => self.experts(layer, &name, experts)?,
                None => FfnAt::Dense(self.dense(layer, &name)?),
            },
            ffn_post_norm: self.vector_if(post_norms, &name("post_ffw_norm.weight"), e)?,
            input: self.own_input(&name)?,
            scale: self.scale(&name)?,
        })
    }

    fn attention(
        &mut self,
        layer: usize,
        name: &impl Fn(&str) -> String,
    ) -> Result<AttentionAt, TensorError> {
        let config = self.config;
        let (e, family) = (config.d_model, config.family);
        let only = |holds| if holds { Presence::Required } else { Presence::Never };
        self.taken.push(name(ROTARY_LEFTOVER));
        Ok(AttentionAt {
            inputs: match &config.latent {
                Some(latent) => InputsAt::Latent(self.latent(name, latent)?),
                None => self.heads(layer, name)?,
            },
            o: self.matrix(&name("attn_output.weight"), e, config.d_mixed(layer))?,
            o_bias: self.vector_if(family.output_bias, &name("attn_output.bias"), e)?,
            sinks: self.vector_if(only(family.sinks), &name("attn_sinks.weight"), config.n_heads)?,
            post_norm: self.vector_if(only(family.post_norms), &name("post_attention_norm.weight"), e)?,
        })
    }

    /// Finds the projections to queries, keys and values.
    fn heads(&mut self, layer: usize, name: &impl Fn(&str) -> String) -> Result<InputsAt, TensorError> {
        let config = self.config;
        let heads = config.heads_at(layer);
        let (e, q, kv) = (config.d_model, heads.d_q(), heads.d_kv());
        let family = config.family;
        let own_keys = config.kv_layer(layer) == layer;
        let (to_q, to_kv) = if family.fused_qkv {
            let all = self.matrix(&name("attn_qkv.weight"), q + 2 * kv, e)?;
            (all.rows(0..q), [Some(all.rows(q..q + kv)), Some(all.rows(q + kv..q + 2 * kv))])
        } else {
            let rows = if family.gated_attention { 2 * q } else { q };
            let to_q = self.matrix(&name("attn_q.weight"), rows, e)?;
            (to_q, if own_keys { self.keys_and_values(name, kv)? } else { self.unused_keys(name) })
        };
        Ok(InputsAt::Heads {
            q: to_q,
            kv: to_kv,
            biases: [
                self.vector_if(family.qkv_bias, &name("attn_q.bias"), q)?,
                self.vector_if(family.qkv_bias, &name("attn_k.bias"), kv)?,
                self.vector_if(family.qkv_bias, &name("attn_v.bias"), kv)?,
            ],
            head_norms: self.head_norms(name, heads, own_keys)?,
        })
    }

    /// Returns the norms of query, key and value heads.
    fn head_norms(
        &mut self,
        name: &impl Fn(&str) -> String,
        heads: Heads,
        own_keys: bool,
    ) -> Result<[Vec<f32>; 3], TensorError> {
        let family = self.config.family;
        let norms = |holds| if holds { Presence::Required } else { Presence::Never };
        let of_keys = norms(family.head_norms && own_keys);
        Ok([
            self.vector_if(norms(family.head_norms), &name("attn_q_norm.weight"), heads.width)?,
            self.vector_if(of_keys, &name("attn_k_norm.weight"), heads.width)?,
            if family.value_norm { vec![1.0; heads.width] } else { Vec::new() },
        ])
    }

    /// Finds the projections to keys and values; a family with a norm of values may lack the second.
    fn keys_and_values(
        &mut self,
        name: &impl Fn(&str) -> String,
        kv: usize,
    ) -> Result<[Option<MatrixAt>; 2], TensorError> {
        let (e, value) = (self.config.d_model, name("attn_v.weight"));
        let keys = self.matrix(&name("attn_k.weight"), kv, e)?;
        if self.config.family.value_norm && !self.gguf.has_tensor(&value) {
            return Ok([Some(keys), None]);
        }
        Ok([Some(keys), Some(self.matrix(&value, kv, e)?)])
    }

    /// Takes the tensors of keys and values that some files have in a layer which uses those of another one.
    fn unused_keys(&mut self, name: &impl Fn(&str) -> String) -> [Option<MatrixAt>; 2] {
        let unused = ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"];
        self.taken.extend(unused.map(name));
        [None, None]
    }

    /// Finds what the inputs of all layers are made with.
    pub(super) fn inputs(&mut self) -> Result<Option<InputsOfLayersAt>, TensorError> {
        let config = self.config;
        let Some(width) = config.input_width else { return Ok(None) };
        let all = width * config.n_layers;
        Ok(Some(InputsOfLayersAt {
            table: self.matrix("per_layer_token_embd.weight", config.vocab_len, all)?,
            projection: self.matrix("per_layer_model_proj.weight", all, config.d_model)?,
            norm: self.vector("per_layer_proj_norm.weight", width)?,
        }))
    }

    /// Finds the input that a layer has of its own.
    fn own_input(&mut self, name: &impl Fn(&str) -> String) -> Result<Option<OwnInputAt>, TensorError> {
        let (Some(width), e) = (self.config.input_width, self.config.d_model) else { return Ok(None) };
        Ok(Some(OwnInputAt {
            gate: self.matrix(&name("inp_gate.weight"), width, e)?,
            projection: self.matrix(&name("proj.weight"), e, width)?,
            post_norm: self.vector(&name("post_norm.weight"), e)?,
        }))
    }

    /// Returns the factor of a layer's result.
    fn scale(&mut self, name: &impl Fn(&str) -> String) -> Result<f32, TensorError> {
        let extras = if self.config.family.layer_extras { Presence::Optional } else { Presence::Never };
        let scale = self.vector_if(extras, &name("layer_output_scale.weight"), 1)?;
        Ok(scale.first().copied().unwrap_or(1.0))
    }

    /// Finds the projections of latent attention.
    fn latent(&mut self, name: &impl Fn(&str) -> String, latent: &Latent) -> Result<LatentAt, TensorError> {
        let (e, h, r) = (self.config.d_model, self.config.n_heads, latent.kv_rank);
        let q = h * latent.d_key();
        let (q_down, q) = match latent.q_rank {
            Some(rank) => {
                let down = self.matrix(&name("attn_q_a.weight"), rank, e)?;
                let norm = self.vector(&name("attn_q_a_norm.weight"), rank)?;
                (Some((down, norm)), self.matrix(&name("attn_q_b.weight"), q, rank)?)
            }
            None => (None, self.matrix(&name("attn_q.weight"), q, e)?),
        };
        let up = if latent.absorbed {
            UpAt::Split {
                keys: self.stack(&name("attn_k_b.weight"), h, r, latent.d_plain)?,
                values: self.stack(&name("attn_v_b.weight"), h, latent.d_value, r)?,
                heads: h,
            }
        } else {
            let rows = h * (latent.d_plain + latent.d_value);
            UpAt::Joined(self.matrix(&name("attn_kv_b.weight"), rows, r)?)
        };
        Ok(LatentAt {
            q_down,
            q,
            kv_down: self.matrix(&name("attn_kv_a_mqa.weight"), r + latent.d_turned, e)?,
            kv_norm: self.vector(&name("attn_kv_a_norm.weight"), r)?,
            up,
        })
    }

    fn dense(&mut self, layer: usize, name: &impl Fn(&str) -> String) -> Result<GatedAt, TensorError> {
        let (e, f) = (self.config.d_model, self.config.d_ff_at(layer));
        let family = self.config.family;
        if family.fused_gate {
            let both = self.matrix(&name("ffn_up.weight"), 2 * f, e)?;
            let down = self.matrix(&name("ffn_down.weight"), e, f)?;
            let biases = Default::default();
            return Ok(GatedAt { gate: both.rows(0..f), up: both.rows(f..2 * f), down, biases });
        }
        let mut network = self.gated(name, "", f)?;
        network.biases = [
            self.vector_if(family.ffn_bias, &name("ffn_gate.bias"), f)?,
            self.vector_if(family.ffn_bias, &name("ffn_up.bias"), f)?,
            self.vector_if(family.ffn_bias, &name("ffn_down.bias"), e)?,
        ];
        Ok(network)
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
            biases: Default::default(),
        })
    }

    fn experts(
        &mut self,
        layer: usize,
        name: &impl Fn(&str) -> String,
        experts: &Experts,
    ) -> Result<FfnAt, TensorError> {
        let (e, f, n) = (self.config.d_model, experts.d_ff, experts.count);
        let Some(rule) = self.config.family.experts else {
            return Ok(FfnAt::Dense(self.dense(layer, name)?));
        };
        let router = self.matrix(&name("ffn_gate_inp.weight"), n, e)?;
        let biased = if rule.biased { Presence::Required } else { Presence::Never };
        let chosen = if rule.stated { Presence::Optional } else { Presence::Never };
        let both = name("ffn_gate_up_exps.weight");
        let fused = rule.beside && self.gguf.has_tensor(&both);
        let (gate, up) = if fused {
            let both = self.stack(&both, n, 2 * f, e)?;
            (both, both)
        } else {
            let gate = self.stack(&name("ffn_gate_exps.weight"), n, f, e)?;
            (gate, self.stack(&name("ffn_up_exps.weight"), n, f, e)?)
        };
        let stacked = GatedAt {
            gate,
            up,
            down: self.stack(&name("ffn_down_exps.weight"), n, e, f)?,
            biases: [
                self.vectors_if(biased, &name("ffn_gate_exps.bias"), n, f)?,
                self.vectors_if(biased, &name("ffn_up_exps.bias"), n, f)?,
                self.vectors_if(biased, &name("ffn_down_exps.bias"), n, e)?,
            ],
        };
        let shared = match experts.shared_d_ff {
            Some(f) => {
                let gate = match rule.shared {
                    SharedRule::Gated => Some(self.row(&name("ffn_gate_inp_shexp.weight"), e)?),
                    SharedRule::Plain | SharedRule::Never => None,
                };
                Some((gate, self.gated(name, "_shexp", f)?))
            }
            None => None,
        };
        Ok(FfnAt::Experts {
            router,
            router_bias: self.vector_if(biased, &name("ffn_gate_inp.bias"), n)?,
            choice_bias: self.vector_if(chosen, &name("exp_probs_b.bias"), n)?,
            stacked,
            fused,
            count: n,
            shared,
            beside: if rule.beside { Some(Box::new(self.beside(layer, name, n)?)) } else { None },
        })
    }

    /// Finds the dense network beside `n` experts.
    fn beside(
        &mut self,
        layer: usize,
        name: &impl Fn(&str) -> String,
        n: usize,
    ) -> Result<BesideAt, TensorError> {
        let e = self.config.d_model;
        // The router's input has the length 1 before its weights.
        let length = (e as f32).sqrt();
        let router_norm = self.vector(&name("ffn_gate_inp.scale"), e)?;
        Ok(BesideAt {
            network: self.dense(layer, name)?,
            post_norm: self.vector(&name("post_ffw_norm_1.weight"), e)?,
            router_norm: router_norm.into_iter().map(|weight| weight / length).collect(),
            expert_norm: self.vector(&name("pre_ffw_norm_2.weight"), e)?,
            expert_post_norm: self.vector(&name("post_ffw_norm_2.weight"), e)?,
            expert_factors: self.vector_if(Presence::Optional, &name("ffn_down_exps.scale"), n)?,
        })
    }

    pub(in super::super) fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<MatrixAt, TensorError> {
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

    pub(in super::super) fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, TensorError> {
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

    /// As [`Self::vector_if`], for `count` vectors one after the other.
    fn vectors_if(
        &mut self,
        presence: Presence,
        name: &str,
        count: usize,
        len: usize,
    ) -> Result<Vec<f32>, TensorError> {
        if presence == Presence::Never {
            return Ok(Vec::new());
        }
        self.taken.push(name.to_owned());
        values(self.gguf, name, &[len as u64, count as u64])
    }

    pub(super) fn refuse_unknown(mut self) -> Result<(), TensorError> {
        self.taken.sort_unstable();
        let unused = self.config.n_layers..self.config.n_layers + self.config.unused_layers;
        let layer = |name: &str| name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok();
        let left = |name: &str| {
            self.taken.binary_search_by(|taken| taken.as_str().cmp(name)).is_err()
                && !layer(name).is_some_and(|layer| unused.contains(&layer))
        };
        match self.gguf.tensors().find(|tensor| left(tensor.name())) {
            Some(tensor) => Err(TensorError::Unexpected {
                name: tensor.name().to_owned(),
                family: self.config.family.name,
            }),
            None => Ok(()),
        }
    }
}

pub(super) fn vector(gguf: &Gguf, name: &str, len: usize) -> Result<Vec<f32>, TensorError> {
    values(gguf, name, &[len as u64])
}

/// Returns all values of a tensor, which must be finite.
pub(in super::super) fn values(gguf: &Gguf, name: &str, dims: &[u64]) -> Result<Vec<f32>, TensorError> {
    let view = gguf.tensor(name)?;
    check_dims(&view, dims)?;
    let (cols, rows) = (dims[0] as usize, dims[1..].iter().product::<u64>() as usize);
    Matrix::new(view.format, rows, cols, view.data).map_err(|err| bad_matrix(name, err))?;
    let mut values = vec![0.0; rows * cols];
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
