//! A plain forward pass in candle-core: f32 tensors, full attention matrices, no cache, and every expert on
//! every token. It reads and dequantizes the model with candle's own code.

use std::collections::HashMap;
use std::io::Cursor;

use anyhow::{Context as _, Result, bail};
use baton_kernels_cpu::Format;
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{D, DType, Device, Tensor};

/// Returns whether candle supports the format.
pub(super) fn reads(format: Format) -> bool {
    !["IQ", "TQ", "MX"].iter().any(|kind| format.name().starts_with(kind))
}

/// The dequantized model.
pub(super) struct Reference {
    tensors: HashMap<String, Tensor>,
    metadata: HashMap<String, Value>,
    family: String,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    d_head: usize,
    norm_eps: f64,
}

impl Reference {
    /// Reads and dequantizes a GGUF file.
    pub(super) fn open(bytes: &[u8]) -> Result<Self> {
        let mut reader = Cursor::new(bytes);
        let content = Content::read(&mut reader)?;
        let mut tensors = HashMap::new();
        for name in content.tensor_infos.keys() {
            let tensor = content.tensor(&mut reader, name, &Device::Cpu)?;
            tensors.insert(name.clone(), tensor.dequantize(&Device::Cpu)?.to_dtype(DType::F32)?);
        }
        let value = |key: &str| content.metadata.get(key).with_context(|| format!("metadata `{key}`"));
        let family = value("general.architecture")?.to_string()?.clone();
        if !FAMILIES.contains(&family.as_str()) {
            bail!("family `{family}` has no reference here");
        }
        let own = |key: &str| -> Result<&Value> { value(&format!("{family}.{key}")) };
        let count = |key: &str| -> Result<usize> { Ok(own(key)?.to_u32()? as usize) };
        Ok(Self {
            n_layers: count("block_count")?,
            n_heads: count("attention.head_count")?,
            n_kv_heads: count("attention.head_count_kv")?,
            d_head: count("attention.key_length")?,
            norm_eps: f64::from(own("attention.layer_norm_rms_epsilon")?.to_f32()?),
            metadata: content.metadata,
            family,
            tensors,
        })
    }

    /// Returns the logits of every position.
    pub(super) fn logits(&self, ids: &[u32]) -> Result<Vec<Vec<f32>>> {
        let ids = Tensor::new(ids, &Device::Cpu)?;
        let mut x = self.tensor("token_embd.weight")?.index_select(&ids, 0)?;
        if self.family.starts_with("gemma") {
            x = (&x * (x.dim(1)? as f64).sqrt())?;
        }
        for layer in 0..self.n_layers {
            let name = |tensor: &str| format!("blk.{layer}.{tensor}");
            let normed = self.norm(&x, &name("attn_norm.weight"))?;
            let mixed = self.linear(&self.attention(&normed, layer)?, &name("attn_output"))?;
            x = (x + self.norm_if(mixed, &name("post_attention_norm.weight"))?)?;
            let normed = self.norm(&x, &name("ffn_norm.weight"))?;
            let out = self.feed_forward(&normed, layer)?;
            x = (x + self.norm_if(out, &name("post_ffw_norm.weight"))?)?;
        }
        let normed = self.norm(&x, "output_norm.weight")?;
        let head = if self.tensors.contains_key("output.weight") { "output" } else { "token_embd" };
        let logits = self.linear(&normed, head)?;
        let logits = match self.number("final_logit_softcapping") {
            Some(cap) => ((logits / cap)?.tanh()? * cap)?,
            None => logits,
        };
        Ok(logits.to_vec2()?)
    }

    fn attention(&self, x: &Tensor, layer: usize) -> Result<Tensor> {
        let (t, d) = (x.dim(0)?, self.d_head);
        let name = |tensor: &str| format!("blk.{layer}.attn_{tensor}");
        let (q, k, v) = if self.family == "phi3" {
            let all = self.linear(x, &name("qkv"))?;
            let (q, kv) = (self.n_heads * d, self.n_kv_heads * d);
            (all.narrow(1, 0, q)?, all.narrow(1, q, kv)?, all.narrow(1, q + kv, kv)?)
        } else {
            let project = |which: &str| self.linear(x, &name(which));
            (project("q")?, project("k")?, project("v")?)
        };
        let heads = |x: Tensor, n: usize| x.contiguous()?.reshape((t, n, d));
        let q = self.norm_if(heads(q, self.n_heads)?, &name("q_norm.weight"))?;
        let k = self.norm_if(heads(k, self.n_kv_heads)?, &name("k_norm.weight"))?;
        let (q, k, v) = (self.rotate(&q, layer)?, self.rotate(&k, layer)?, heads(v, self.n_kv_heads)?);
        let hidden = self.hidden(t, layer)?;
        let mut heads = Vec::new();
        for head in 0..self.n_heads {
            let own = |x: &Tensor, head: usize| x.narrow(1, head, 1)?.squeeze(1)?.contiguous();
            let kv_head = head / (self.n_heads / self.n_kv_heads);
            let scores = own(&q, head)?.matmul(&own(&k, kv_head)?.t()?)?;
            let weights = softmax(&((scores / (d as f64).sqrt())? + &hidden)?)?;
            heads.push(weights.matmul(&own(&v, kv_head)?)?);
        }
        Ok(Tensor::cat(&heads, 1)?)
    }

    /// Returns the attention mask, `[t, t]`: minus infinity if a query does not see a key, else 0.
    fn hidden(&self, t: usize, layer: usize) -> Result<Tensor> {
        let whole = self.family == "gemma3" && !self.is_local(layer);
        let window = self.number("attention.sliding_window").filter(|_| !whole).unwrap_or(f64::INFINITY);
        let hidden = |at: usize| {
            let (query, key) = (at / t, at % t);
            if key > query || (query - key) as f64 >= window { f32::NEG_INFINITY } else { 0.0 }
        };
        Ok(Tensor::from_vec((0..t * t).map(hidden).collect::<Vec<f32>>(), (t, t), &Device::Cpu)?)
    }

    /// Returns whether a layer of Gemma 3 has local attention: all except every sixth, or as the file says.
    fn is_local(&self, layer: usize) -> bool {
        let period = self.number("attention.sliding_window_pattern").unwrap_or(6.0) as usize;
        self.family == "gemma3" && layer % period < period - 1
    }

    /// Applies rotary embeddings to `[t, heads, d]`.
    fn rotate(&self, x: &Tensor, layer: usize) -> Result<Tensor> {
        let (t, heads, d) = x.dims3()?;
        let dims = self.number("rope.dimension_count").map_or(d, |dims| dims as usize);
        let pairs = dims / 2;
        let frequencies = self.frequencies(layer, dims)?;
        let angles: Vec<f32> =
            (0..t * pairs).map(|at| ((at / pairs) as f64 * frequencies[at % pairs]) as f32).collect();
        let angles = Tensor::from_vec(angles, (t, 1, pairs), &Device::Cpu)?;
        let magnitude = self.magnitude();
        let (cos, sin) = ((angles.cos()? * magnitude)?, (angles.sin()? * magnitude)?);
        let (turned, kept) = (x.narrow(2, 0, dims)?.contiguous()?, x.narrow(2, dims, d - dims)?);
        let (shape, pair_dim) =
            if self.family == "llama" { ((t, heads, pairs, 2), 3) } else { ((t, heads, 2, pairs), 2) };
        let split = turned.reshape(shape)?;
        let (a, b) = (
            split.narrow(pair_dim, 0, 1)?.squeeze(pair_dim)?,
            split.narrow(pair_dim, 1, 1)?.squeeze(pair_dim)?,
        );
        let turned_a = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
        let turned_b = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
        let turned = Tensor::stack(&[turned_a, turned_b], pair_dim)?.reshape((t, heads, dims))?;
        Ok(if dims == d { turned } else { Tensor::cat(&[&turned, &kept], 2)? })
    }

    /// Returns the radians per position of every pair of dimensions.
    fn frequencies(&self, layer: usize, dims: usize) -> Result<Vec<f64>> {
        let local = self.is_local(layer);
        let base = if local { 10_000.0 } else { self.number("rope.freq_base").unwrap_or(10_000.0) };
        let plain = (0..dims / 2).map(|pair| base.powf(-2.0 * pair as f64 / dims as f64));
        if local {
            return Ok(plain.collect());
        }
        let context = self.number("context_length").context("context length")?;
        let original = self.number("rope.scaling.original_context_length").unwrap_or(context);
        let which = if context > original { "long" } else { "short" };
        let divisors = match self.tensors.get(&format!("rope_factors_{which}.weight")) {
            Some(divisors) => divisors.to_vec1::<f32>()?,
            None => vec![1.0; dims / 2],
        };
        let plain = plain.zip(&divisors).map(|(frequency, divisor)| frequency / f64::from(*divisor));
        let Some(factor) = self.number("rope.scaling.factor") else { return Ok(plain.collect()) };
        if !self.is_yarn() {
            return Ok(plain.map(|frequency| frequency / factor).collect());
        }
        let pair_of =
            |turns: f64| dims as f64 * (original / (turns * std::f64::consts::TAU)).ln() / (2.0 * base.ln());
        let (low, high) = (pair_of(32.0).floor().max(0.0), pair_of(1.0).ceil().min(dims as f64 - 1.0));
        let blend = |(pair, frequency): (usize, f64)| {
            let stretched = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            frequency * (1.0 - stretched) + frequency / factor * stretched
        };
        Ok(plain.enumerate().map(blend).collect())
    }

    fn is_yarn(&self) -> bool {
        let kind = self.metadata.get(&format!("{}.rope.scaling.type", self.family));
        kind.and_then(|kind| kind.to_string().ok()).is_some_and(|kind| kind == "yarn")
    }

    fn magnitude(&self) -> f64 {
        let own = self.number("rope.scaling.attn_factor").unwrap_or(1.0);
        let factor = self.number("rope.scaling.factor").filter(|_| self.is_yarn()).unwrap_or(1.0);
        own * (1.0 + 0.1 * factor.ln())
    }

    fn feed_forward(&self, x: &Tensor, layer: usize) -> Result<Tensor> {
        let name = |tensor: &str| format!("blk.{layer}.ffn_{tensor}");
        if self.tensors.contains_key(&name("gate_inp.weight")) {
            return self.mixture(x, &name);
        }
        let (gate, up) = if self.family == "phi3" {
            let both = self.linear(x, &name("up"))?;
            let f = both.dim(1)? / 2;
            (both.narrow(1, 0, f)?, both.narrow(1, f, f)?)
        } else {
            (self.linear(x, &name("gate"))?, self.linear(x, &name("up"))?)
        };
        self.linear(&self.gated(&gate, &up)?, &name("down"))
    }

    fn gated(&self, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
        let active = if self.family.starts_with("gemma") { gate.gelu()? } else { gate.silu()? };
        Ok((active * up)?)
    }

    /// Runs every expert on every token; the shares of most experts are zero.
    fn mixture(&self, x: &Tensor, name: &impl Fn(&str) -> String) -> Result<Tensor> {
        let used = self.number("expert_used_count").context("experts used")? as usize;
        let shares = softmax(&self.linear(x, &name("gate_inp"))?)?;
        let mut shares = shares.to_vec2::<f32>()?;
        for row in &mut shares {
            let mut ranked: Vec<usize> = (0..row.len()).collect();
            ranked.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
            ranked[used..].iter().for_each(|expert| row[*expert] = 0.0);
            if self.family != "qwen2moe" {
                let sum: f32 = row.iter().sum();
                row.iter_mut().for_each(|share| *share /= sum);
            }
        }
        let n_experts = shares.first().map_or(0, Vec::len);
        let shares = Tensor::new(shares, &Device::Cpu)?;
        let mut sum = x.zeros_like()?;
        for expert in 0..n_experts {
            let own = |which: &str| -> Result<Tensor> {
                Ok(self.tensor(&name(&format!("{which}_exps.weight")))?.get(expert)?.t()?)
            };
            let gated = self.gated(&x.matmul(&own("gate")?)?, &x.matmul(&own("up")?)?)?;
            let out = gated.matmul(&own("down")?)?;
            sum = (sum + out.broadcast_mul(&shares.narrow(1, expert, 1)?)?)?;
        }
        if self.family == "qwen2moe" {
            let project = |which: &str| self.linear(x, &name(&format!("{which}_shexp")));
            let out = self.linear(&self.gated(&project("gate")?, &project("up")?)?, &name("down_shexp"))?;
            let gate = x.matmul(&self.tensor(&name("gate_inp_shexp.weight"))?.reshape(((), 1))?)?;
            let share = ((gate.neg()?.exp()? + 1.0)?).recip()?;
            sum = (sum + out.broadcast_mul(&share)?)?;
        }
        Ok(sum)
    }

    fn norm(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let mean_square = x.sqr()?.mean_keepdim(D::Minus1)?;
        let scaled = x.broadcast_div(&(mean_square + self.norm_eps)?.sqrt()?)?;
        Ok(scaled.broadcast_mul(self.tensor(name)?)?)
    }

    /// Applies the norm if the file has its weight.
    fn norm_if(&self, x: Tensor, name: &str) -> Result<Tensor> {
        if self.tensors.contains_key(name) { self.norm(&x, name) } else { Ok(x) }
    }

    /// Returns `x W^T`, plus the bias if there is one.
    fn linear(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let out = x.matmul(&self.tensor(&format!("{name}.weight"))?.t()?)?;
        match self.tensors.get(&format!("{name}.bias")) {
            Some(bias) => Ok(out.broadcast_add(bias)?),
            None => Ok(out),
        }
    }

    fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.tensors.get(name).with_context(|| format!("tensor `{name}`"))
    }

    /// Returns a number of the metadata, or `None` if it is missing.
    fn number(&self, key: &str) -> Option<f64> {
        let value = self.metadata.get(&format!("{}.{key}", self.family))?;
        value.to_f32().map(f64::from).or_else(|_| value.to_u32().map(f64::from)).ok()
    }
}

/// The families that are implemented here.
pub(super) const FAMILIES: [&str; 8] =
    ["llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "gemma", "gemma3", "phi3"];

/// Computes the softmax over the last dimension.
fn softmax(x: &Tensor) -> Result<Tensor> {
    let exps = x.broadcast_sub(&x.max_keepdim(D::Minus1)?)?.exp()?;
    Ok(exps.broadcast_div(&exps.sum_keepdim(D::Minus1)?)?)
}
