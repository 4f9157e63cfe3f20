//! The arithmetic of the model classes, written plainly in candle from the folder's own tensors. Rotary
//! positions rotate halves of a head, projections stay as Hugging Face stores them, and nothing is cached.

use candle_core::{D, DType, Device, Result, Tensor};

use crate::folder::{Folder, LAYERS};

/// In what a class differs from the common form.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Traits {
    /// Norms add 1, embeddings are scaled, the gate goes through GELU, the table is the head.
    pub gemma: bool,
    /// Query, key and value are one matrix, gate and up another.
    pub fused: bool,
    /// Query and key heads have norms.
    pub head_norms: bool,
    /// The output of each half of a layer has a norm.
    pub post_norms: bool,
    /// Experts per token, if layers have any, and whether their weights are normalized to add up to 1.
    pub experts: Option<(usize, bool)>,
}

struct Reference<'a> {
    folder: &'a Folder,
    traits: Traits,
    /// Width of a head; there are 4 query and 2 key heads.
    d: usize,
    /// One per pair of dimensions.
    inverse_freqs: Vec<f32>,
}

/// Returns the logits `[t, v]` of every position. `divisors` divide the frequencies of the rotation.
pub(crate) fn logits(folder: &Folder, traits: Traits, ids: &[u32], divisors: &[f32]) -> Vec<f32> {
    let theta = folder.config["rope_theta"].as_f64().unwrap();
    let d = folder.config["head_dim"].as_u64().unwrap() as usize;
    let inverse_freqs = (0..d / 2).map(|i| {
        let freq = theta.powf(-2.0 * i as f64 / d as f64);
        (freq / divisors.get(i).map_or(1.0, |&divisor| f64::from(divisor))) as f32
    });
    let reference = Reference { folder, traits, d, inverse_freqs: inverse_freqs.collect() };
    reference.run(ids).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn softmax(x: &Tensor) -> Result<Tensor> {
    let x = x.broadcast_sub(&x.max_keepdim(D::Minus1)?)?.exp()?;
    x.broadcast_div(&x.sum_keepdim(D::Minus1)?)
}

impl Reference<'_> {
    fn tensor(&self, name: &str) -> Result<Tensor> {
        self.folder.tensors[name].to_dtype(DType::F32)
    }

    fn at(&self, layer: usize, rest: &str) -> Result<Tensor> {
        self.tensor(&format!("model.layers.{layer}.{rest}"))
    }

    fn project(&self, x: &Tensor, layer: usize, name: &str) -> Result<Tensor> {
        let y = x.matmul(&self.at(layer, &format!("{name}.weight"))?.t()?)?;
        match self.folder.tensors.contains_key(&format!("model.layers.{layer}.{name}.bias")) {
            true => y.broadcast_add(&self.at(layer, &format!("{name}.bias"))?),
            false => Ok(y),
        }
    }

    fn norm(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
        let x = x.broadcast_div(&(mean + 1e-5)?.sqrt()?)?;
        let weight = if self.traits.gemma { (weight + 1.0)? } else { weight.clone() };
        x.broadcast_mul(&weight)
    }

    /// Returns `x cos + rotate_half(x) sin`, `[t, h, d]`.
    fn rotate(&self, x: &Tensor) -> Result<Tensor> {
        let (t, _, d) = x.dims3()?;
        let angles: Vec<f32> = (0..t)
            .flat_map(|position| (0..d).map(move |i| (position, i % (d / 2))))
            .map(|(position, pair)| position as f32 * self.inverse_freqs[pair])
            .collect();
        let angles = Tensor::from_vec(angles, (t, 1, d), &Device::Cpu)?;
        let (low, high) = (x.narrow(2, 0, d / 2)?, x.narrow(2, d / 2, d / 2)?);
        let turned = Tensor::cat(&[&high.neg()?, &low], 2)?;
        x.broadcast_mul(&angles.cos()?)? + turned.broadcast_mul(&angles.sin()?)?
    }

    fn attention(&self, x: &Tensor, layer: usize) -> Result<Tensor> {
        let (t, d) = (x.dim(0)?, self.d);
        let (q, k, v) = if self.traits.fused {
            let all = self.project(x, layer, "self_attn.qkv_proj")?;
            (all.narrow(1, 0, 4 * d)?, all.narrow(1, 4 * d, 2 * d)?, all.narrow(1, 6 * d, 2 * d)?)
        } else {
            let part = |letter: &str| self.project(x, layer, &format!("self_attn.{letter}_proj"));
            (part("q")?, part("k")?, part("v")?)
        };
        let (mut q, mut k, v) = (q.reshape((t, 4, d))?, k.reshape((t, 2, d))?, v.reshape((t, 2, d))?);
        if self.traits.head_norms {
            q = self.norm(&q, &self.at(layer, "self_attn.q_norm.weight")?)?;
            k = self.norm(&k, &self.at(layer, "self_attn.k_norm.weight")?)?;
        }
        let (q, k) = (self.rotate(&q)?, self.rotate(&k)?);
        let mask: Vec<f32> =
            (0..t * t).map(|i| if i % t > i / t { f32::NEG_INFINITY } else { 0.0 }).collect();
        let mask = Tensor::from_vec(mask, (t, t), &Device::Cpu)?;
        let mut heads = Vec::new();
        for head in 0..4 {
            let of = |x: &Tensor, head: usize| x.narrow(1, head, 1)?.squeeze(1)?.contiguous();
            let (q, k, v) = (of(&q, head)?, of(&k, head / 2)?, of(&v, head / 2)?);
            let scores = ((q.matmul(&k.t()?)? / (d as f64).sqrt())? + &mask)?;
            heads.push(softmax(&scores)?.matmul(&v)?);
        }
        self.project(&Tensor::cat(&heads, 1)?, layer, "self_attn.o_proj")
    }

    fn gate(&self, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
        (if self.traits.gemma { gate.gelu()? } else { gate.silu()? }) * up
    }

    fn feed_forward(&self, x: &Tensor, layer: usize) -> Result<Tensor> {
        let hidden = if self.traits.fused {
            let both = self.project(x, layer, "mlp.gate_up_proj")?;
            let f = both.dim(1)? / 2;
            self.gate(&both.narrow(1, 0, f)?, &both.narrow(1, f, f)?)?
        } else {
            self.gate(&self.project(x, layer, "mlp.gate_proj")?, &self.project(x, layer, "mlp.up_proj")?)?
        };
        self.project(&hidden, layer, "mlp.down_proj")
    }

    /// Runs each token through its experts, one after the other.
    fn experts(&self, x: &Tensor, layer: usize, (used, normalized): (usize, bool)) -> Result<Tensor> {
        let mixtral = self.folder.config["architectures"][0] == "MixtralForCausalLM";
        let (router, experts) = if mixtral {
            ("block_sparse_moe.gate", "block_sparse_moe.experts")
        } else {
            ("mlp.gate", "mlp.experts")
        };
        let [gate, up, down] =
            if mixtral { ["w1", "w3", "w2"] } else { ["gate_proj", "up_proj", "down_proj"] };
        let shares = softmax(&self.project(x, layer, router)?)?.to_vec2::<f32>()?;
        let mut rows = Vec::new();
        for (token, shares) in shares.iter().enumerate() {
            let x = x.narrow(0, token, 1)?;
            let mut order: Vec<usize> = (0..shares.len()).collect();
            order.sort_by(|&a, &b| shares[b].total_cmp(&shares[a]));
            let chosen = &order[..used];
            let sum: f32 = if normalized { chosen.iter().map(|&expert| shares[expert]).sum() } else { 1.0 };
            let mut row = x.zeros_like()?;
            for &expert in chosen {
                let part =
                    |x: &Tensor, name: &str| self.project(x, layer, &format!("{experts}.{expert}.{name}"));
                let hidden = self.gate(&part(&x, gate)?, &part(&x, up)?)?;
                row = (row + (part(&hidden, down)? * f64::from(shares[expert] / sum))?)?;
            }
            rows.push(row);
        }
        let routed = Tensor::cat(&rows, 0)?;
        if !self.folder.tensors.contains_key(&format!("model.layers.{layer}.mlp.shared_expert_gate.weight")) {
            return Ok(routed);
        }
        let part = |x: &Tensor, name: &str| self.project(x, layer, &format!("mlp.shared_expert.{name}_proj"));
        let shared = part(&self.gate(&part(x, "gate")?, &part(x, "up")?)?, "down")?;
        let open = self.project(x, layer, "mlp.shared_expert_gate")?;
        let open = (open.neg()?.exp()? + 1.0)?.recip()?;
        routed + shared.broadcast_mul(&open)?
    }

    fn run(&self, ids: &[u32]) -> Result<Tensor> {
        let table = self.tensor("model.embed_tokens.weight")?;
        let mut x = table.index_select(&Tensor::new(ids, &Device::Cpu)?, 0)?;
        if self.traits.gemma {
            x = (x * (table.dim(1)? as f64).sqrt())?;
        }
        for layer in 0..LAYERS {
            let normed = self.norm(&x, &self.at(layer, "input_layernorm.weight")?)?;
            let mut out = self.attention(&normed, layer)?;
            if self.traits.post_norms {
                out = self.norm(&out, &self.at(layer, "post_attention_layernorm.weight")?)?;
            }
            x = (&x + out)?;
            let before = if self.traits.post_norms { "pre_feedforward" } else { "post_attention" };
            let normed = self.norm(&x, &self.at(layer, &format!("{before}_layernorm.weight"))?)?;
            let mut out = match self.traits.experts {
                Some(experts) => self.experts(&normed, layer, experts)?,
                None => self.feed_forward(&normed, layer)?,
            };
            if self.traits.post_norms {
                out = self.norm(&out, &self.at(layer, "post_feedforward_layernorm.weight")?)?;
            }
            x = (&x + out)?;
        }
        let x = self.norm(&x, &self.tensor("model.norm.weight")?)?;
        let head = if self.folder.tensors.contains_key("lm_head.weight") {
            self.tensor("lm_head.weight")?
        } else {
            table
        };
        x.matmul(&head.t()?)
    }
}
