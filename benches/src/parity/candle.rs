//! A plain forward pass in candle-core: f32 tensors, full attention matrices, nothing cached. It reads the model
//! through candle's own GGUF reader and dequantizes by candle's own code.

use std::collections::HashMap;
use std::io::Cursor;

use anyhow::{Context as _, Result, bail};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{D, DType, Device, Tensor};

/// The dequantized model.
pub struct Reference {
    tensors: HashMap<String, Tensor>,
    /// Rotary positions pair a dimension with its neighbour, not with the one half a head away.
    adjacent: bool,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    d_head: usize,
    norm_eps: f64,
    freq_base: f32,
}

impl Reference {
    /// Reads and dequantizes a GGUF file.
    pub fn open(bytes: &[u8]) -> Result<Self> {
        let mut reader = Cursor::new(bytes);
        let content = Content::read(&mut reader)?;
        let mut tensors = HashMap::new();
        for name in content.tensor_infos.keys() {
            let tensor = content.tensor(&mut reader, name, &Device::Cpu)?;
            tensors.insert(name.clone(), tensor.dequantize(&Device::Cpu)?.to_dtype(DType::F32)?);
        }
        let value = |key: &str| content.metadata.get(key).with_context(|| format!("metadata `{key}`"));
        let family = value("general.architecture")?.to_string()?.clone();
        let own = |key: &str| -> Result<&Value> { value(&format!("{family}.{key}")) };
        let count = |key: &str| -> Result<usize> { Ok(own(key)?.to_u32()? as usize) };
        let adjacent = match family.as_str() {
            "llama" => true,
            "qwen2" => false,
            other => bail!("family `{other}` has no reference here"),
        };
        Ok(Self {
            adjacent,
            n_layers: count("block_count")?,
            n_heads: count("attention.head_count")?,
            n_kv_heads: count("attention.head_count_kv")?,
            d_head: count("embedding_length")? / count("attention.head_count")?,
            norm_eps: f64::from(own("attention.layer_norm_rms_epsilon")?.to_f32()?),
            freq_base: own("rope.freq_base")?.to_f32()?,
            tensors,
        })
    }

    /// Logits of every position.
    pub fn logits(&self, ids: &[u32]) -> Result<Vec<Vec<f32>>> {
        let ids = Tensor::new(ids, &Device::Cpu)?;
        let mut x = self.tensor("token_embd.weight")?.index_select(&ids, 0)?;
        for layer in 0..self.n_layers {
            let name = |tensor: &str| format!("blk.{layer}.{tensor}");
            let normed = self.norm(&x, &name("attn_norm.weight"))?;
            let mixed = self.attention(&normed, layer)?;
            x = (x + self.linear(&mixed, &name("attn_output"))?)?;
            let normed = self.norm(&x, &name("ffn_norm.weight"))?;
            let gate = self.linear(&normed, &name("ffn_gate"))?;
            let gated = (gate.silu()? * self.linear(&normed, &name("ffn_up"))?)?;
            x = (x + self.linear(&gated, &name("ffn_down"))?)?;
        }
        let normed = self.norm(&x, "output_norm.weight")?;
        let head = if self.tensors.contains_key("output.weight") { "output" } else { "token_embd" };
        Ok(self.linear(&normed, head)?.to_vec2()?)
    }

    fn attention(&self, x: &Tensor, layer: usize) -> Result<Tensor> {
        let (t, d) = (x.dim(0)?, self.d_head);
        let project = |which: &str| self.linear(x, &format!("blk.{layer}.attn_{which}"));
        let q = self.rotate(&project("q")?.reshape((t, self.n_heads, d))?)?;
        let k = self.rotate(&project("k")?.reshape((t, self.n_kv_heads, d))?)?;
        let v = project("v")?.reshape((t, self.n_kv_heads, d))?;
        let hidden: Vec<f32> =
            (0..t * t).map(|at| if at % t > at / t { f32::NEG_INFINITY } else { 0.0 }).collect();
        let hidden = Tensor::from_vec(hidden, (t, t), &Device::Cpu)?;
        let mut heads = Vec::new();
        for head in 0..self.n_heads {
            let own = |x: &Tensor, head: usize| x.narrow(1, head, 1)?.squeeze(1)?.contiguous();
            let kv_head = head / (self.n_heads / self.n_kv_heads);
            let scores = own(&q, head)?.matmul(&own(&k, kv_head)?.t()?)?;
            let scores = ((scores / (d as f64).sqrt())? + &hidden)?;
            let exps = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
            let weights = exps.broadcast_div(&exps.sum_keepdim(D::Minus1)?)?;
            heads.push(weights.matmul(&own(&v, kv_head)?)?);
        }
        Ok(Tensor::cat(&heads, 1)?)
    }

    /// Turns `[t, heads, d]` by position.
    fn rotate(&self, x: &Tensor) -> Result<Tensor> {
        let (t, heads, d) = x.dims3()?;
        let pairs = d / 2;
        let angle = |at: usize| {
            let (position, pair) = (at / pairs, at % pairs);
            position as f32 * self.freq_base.powf(-2.0 * pair as f32 / d as f32)
        };
        let angles: Vec<f32> = (0..t * pairs).map(angle).collect();
        let angles = Tensor::from_vec(angles, (t, 1, pairs), &Device::Cpu)?;
        let (cos, sin) = (angles.cos()?, angles.sin()?);
        let (shape, pair_dim) =
            if self.adjacent { ((t, heads, pairs, 2), 3) } else { ((t, heads, 2, pairs), 2) };
        let split = x.reshape(shape)?;
        let (a, b) = (
            split.narrow(pair_dim, 0, 1)?.squeeze(pair_dim)?,
            split.narrow(pair_dim, 1, 1)?.squeeze(pair_dim)?,
        );
        let turned_a = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
        let turned_b = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
        Ok(Tensor::stack(&[turned_a, turned_b], pair_dim)?.reshape((t, heads, d))?)
    }

    fn norm(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let mean_square = x.sqr()?.mean_keepdim(D::Minus1)?;
        let scaled = x.broadcast_div(&(mean_square + self.norm_eps)?.sqrt()?)?;
        Ok(scaled.broadcast_mul(self.tensor(name)?)?)
    }

    /// `x W^T`, plus the bias where there is one.
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
}
