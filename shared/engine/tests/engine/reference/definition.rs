//! Every family by its definition, in f64: full matrices, one token list, no cache, no kernels except
//! decoding of blocks. Knows families by name and tensors by GGUF's names; shares no rule with the engine.

use std::f64::consts::{PI, TAU};

use baton_engine::SlidingWindow;
use baton_engine::gguf::Gguf;
use baton_kernels_cpu::dequantize_row;
use baton_synthetic::{ExtraValue, SyntheticModel};

pub(crate) type Rows = Vec<Vec<f64>>;

/// The result of the definition: logits, and softmax weights by `[layer][head][query][key]`.
pub(crate) struct Reference {
    pub(crate) logits: Rows,
    pub(crate) weights: Vec<Vec<Rows>>,
}

struct File<'a> {
    model: &'a SyntheticModel,
    gguf: Gguf,
}

impl File<'_> {
    /// Returns all rows of a tensor; for a stack of matrices, one after the other.
    fn tensor(&self, name: &str) -> Option<Rows> {
        let view = self.gguf.find_tensor(name).unwrap()?;
        let cols = view.dims[0] as usize;
        let rows = view.dims[1..].iter().product::<u64>() as usize;
        let mut values = vec![0f32; rows * cols];
        dequantize_row(view.format, view.data, &mut values).unwrap();
        Some(values.chunks(cols).map(|row| row.iter().map(|v| f64::from(*v)).collect()).collect())
    }

    fn row(&self, name: &str) -> Vec<f64> {
        self.tensor(name).unwrap().remove(0)
    }

    fn is(&self, families: &[&str]) -> bool {
        families.contains(&self.model.family)
    }

    fn extra(&self, key: &str) -> Option<f64> {
        self.model.extra.iter().find(|(name, _)| *name == key).map(|(_, value)| match value {
            ExtraValue::U32(value) => f64::from(*value),
            ExtraValue::F32(value) => f64::from(*value),
            ExtraValue::Text(_) => f64::NAN,
        })
    }

    fn scaling(&self) -> Option<&'static str> {
        self.model.extra.iter().find_map(|(name, value)| match value {
            ExtraValue::Text(text) if *name == "rope.scaling.type" => Some(*text),
            _ => None,
        })
    }

    /// Gemma 3: of six layers (or as many as the file says), all but the last.
    fn is_local(&self, layer: u32) -> bool {
        let period = self.extra("attention.sliding_window_pattern").unwrap_or(6.0) as u32;
        self.is(&["gemma3"]) && layer % period + 1 < period
    }

    fn window(&self, layer: u32) -> Option<SlidingWindow> {
        let tokens = self.extra("attention.sliding_window")? as usize;
        let windowed = !self.is(&["gemma3"]) || self.is_local(layer);
        windowed.then_some(SlidingWindow { tokens, sinks: 0 })
    }

    fn rot_dims(&self) -> usize {
        self.extra("rope.dimension_count").map_or(self.model.d_head as usize, |dims| dims as usize)
    }

    /// Returns the radians per position of a pair, by the definitions of the scalings.
    fn frequency(&self, layer: u32, pair: usize) -> f64 {
        let dims = self.rot_dims() as f64;
        if self.is_local(layer) {
            return 10_000f64.powf(-2.0 * pair as f64 / dims);
        }
        let theta = self.extra("rope.freq_base").unwrap_or(10_000.0);
        let original = self.extra("rope.scaling.original_context_length");
        let context = f64::from(self.model.context_len);
        let stretched = original.is_some_and(|original| context > original);
        let factors = self.model.rope_factors.as_ref();
        let divisors = match factors {
            Some([long, short]) => Some(if stretched { long } else { short }),
            None => self.model.rope_divisors.as_ref(),
        };
        let base = theta.powf(-2.0 * pair as f64 / dims) / divisors.map_or(1.0, |all| f64::from(all[pair]));
        let Some(factor) = self.extra("rope.scaling.factor") else { return base };
        let wavelength = TAU / base;
        match (self.scaling(), original) {
            (Some("yarn"), original) => {
                let original = original.unwrap_or(context);
                let at = |turns: f64| dims * (original / (turns * TAU)).ln() / (2.0 * theta.ln());
                let (low, high) = (at(32.0).floor().max(0.0), at(1.0).ceil().min(dims - 1.0));
                let kept = 1.0 - ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                kept * base + (1.0 - kept) * base / factor
            }
            (Some("llama3"), Some(original)) if wavelength < original / 4.0 => base,
            (Some("llama3"), Some(original)) if wavelength <= original => {
                let smooth = (original / wavelength - 1.0) / 3.0;
                (1.0 - smooth) * base / factor + smooth * base
            }
            _ => base / factor,
        }
    }

    /// Returns the factor by which rotations lengthen.
    fn magnitude(&self) -> f64 {
        let own = self.extra("rope.scaling.attn_factor").unwrap_or(1.0);
        match (self.scaling(), self.extra("rope.scaling.factor")) {
            (Some("yarn"), Some(factor)) => own * (1.0 + 0.1 * factor.ln()),
            _ => own,
        }
    }

    fn rotate(&self, x: &mut Rows, layer: u32) {
        let (d, dims) = (self.model.d_head as usize, self.rot_dims());
        let adjacent = self.is(&["llama"]);
        for (position, row) in x.iter_mut().enumerate() {
            for head in row.chunks_mut(d) {
                for pair in 0..dims / 2 {
                    let (a, b) = if adjacent { (2 * pair, 2 * pair + 1) } else { (pair, pair + dims / 2) };
                    let angle = position as f64 * self.frequency(layer, pair);
                    let (cos, sin) = (self.magnitude() * angle.cos(), self.magnitude() * angle.sin());
                    (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
                }
            }
        }
    }

    fn queries_keys_values(&self, layer: u32, normed: &Rows) -> [Rows; 3] {
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");
        let d = self.model.d_head as usize;
        let (q, kv) = (self.model.n_heads as usize * d, self.model.n_kv_heads as usize * d);
        let [mut q, mut k, v] = match self.tensor(&name("attn_qkv.weight")) {
            Some(all) => {
                [0..q, q..q + kv, q + kv..q + 2 * kv].map(|rows| product(normed, &all[rows].to_vec(), None))
            }
            None => ["q", "k", "v"].map(|which| {
                let weight = self.tensor(&name(&format!("attn_{which}.weight"))).unwrap();
                product(normed, &weight, self.tensor(&name(&format!("attn_{which}.bias"))).as_ref())
            }),
        };
        if self.is(&["qwen3", "qwen3moe", "gemma3"]) {
            for (x, which) in [(&mut q, "q"), (&mut k, "k")] {
                let weight = self.row(&name(&format!("attn_{which}_norm.weight")));
                for head in x.iter_mut().flat_map(|row| row.chunks_mut(d)) {
                    head.copy_from_slice(&norm_one(head, &weight));
                }
            }
        }
        self.rotate(&mut q, layer);
        self.rotate(&mut k, layer);
        [q, k, v]
    }

    fn network(&self, x: &Rows, gate: &Rows, up: &Rows, down: &Rows) -> Rows {
        let gelu = self.is(&["gemma", "gemma3"]);
        let act = |x: f64| {
            if gelu {
                0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
            } else {
                x / (1.0 + (-x).exp())
            }
        };
        let (mut gate, up) = (product(x, gate, None), product(x, up, None));
        for (gate, up) in gate.iter_mut().flatten().zip(up.iter().flatten()) {
            *gate = act(*gate) * up;
        }
        product(&gate, down, None)
    }

    fn feed_forward(&self, layer: u32, x: &Rows) -> Rows {
        let tensor = |name: &str| self.tensor(&format!("blk.{layer}.{name}.weight")).unwrap();
        let f = self.model.d_ff as usize;
        if self.model.experts.is_some() {
            x.iter().map(|x| self.mixture(layer, x)).collect()
        } else if self.is(&["phi3"]) {
            let both = tensor("ffn_up");
            self.network(x, &both[..f].to_vec(), &both[f..].to_vec(), &tensor("ffn_down"))
        } else {
            self.network(x, &tensor("ffn_gate"), &tensor("ffn_up"), &tensor("ffn_down"))
        }
    }

    /// Returns a mixture's output for one row: its most likely experts, one after the other.
    fn mixture(&self, layer: u32, x: &[f64]) -> Vec<f64> {
        let experts = self.model.experts.unwrap();
        let tensor = |name: &str| self.tensor(&format!("blk.{layer}.{name}.weight")).unwrap();
        let x = vec![x.to_vec()];
        let exps: Vec<f64> = product(&x, &tensor("ffn_gate_inp"), None)[0].iter().map(|v| v.exp()).collect();
        let total: f64 = exps.iter().sum();
        let mut ranked: Vec<usize> = (0..exps.len()).collect();
        ranked.sort_by(|a, b| exps[*b].total_cmp(&exps[*a]));
        ranked.truncate(experts.used as usize);
        let chosen: f64 = ranked.iter().map(|expert| exps[*expert]).sum();
        let divisor = if self.is(&["qwen2moe"]) { total } else { chosen };
        let mut sum = vec![0.0; x[0].len()];
        let (gate, up, down) = (tensor("ffn_gate_exps"), tensor("ffn_up_exps"), tensor("ffn_down_exps"));
        for expert in ranked {
            let own = |all: &Rows| {
                let rows = all.len() / experts.count as usize;
                all[expert * rows..(expert + 1) * rows].to_vec()
            };
            let out = self.network(&x, &own(&gate), &own(&up), &own(&down));
            for (sum, out) in sum.iter_mut().zip(&out[0]) {
                *sum += exps[expert] / divisor * out;
            }
        }
        if self.is(&["qwen2moe"]) {
            let gate = product(&x, &tensor("ffn_gate_inp_shexp"), None)[0][0];
            let network = ["gate", "up", "down"].map(|which| tensor(&format!("ffn_{which}_shexp")));
            let out = self.network(&x, &network[0], &network[1], &network[2]);
            for (sum, out) in sum.iter_mut().zip(&out[0]) {
                *sum += out / (1.0 + (-gate).exp());
            }
        }
        sum
    }

    /// Returns the softmax weights of every head, `[head][query][key]`.
    fn softmax_weights(&self, q: &Rows, k: &Rows, sees: &dyn Fn(usize, usize, usize) -> bool) -> Vec<Rows> {
        let (d, heads) = (self.model.d_head as usize, self.model.n_heads as usize);
        let group = heads / self.model.n_kv_heads as usize;
        let width = if self.is(&["gemma3"]) && self.model.n_layers == 62 {
            f64::from(self.model.d_model / self.model.n_heads)
        } else {
            d as f64
        };
        let scale = self.extra("attention.scale").unwrap_or(1.0 / width.sqrt());
        let one = |head: usize| {
            let sees = |query, key| sees(head / group, query, key);
            head_weights(q, k, [head * d, head / group * d], d, scale, &sees)
        };
        (0..heads).map(one).collect()
    }
}

fn norm_one(row: &[f64], weight: &[f64]) -> Vec<f64> {
    let mean_square = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
    row.iter().zip(weight).map(|(v, w)| v / (mean_square + 1e-5).sqrt() * w).collect()
}

fn norm(x: &Rows, weight: &[f64]) -> Rows {
    x.iter().map(|row| norm_one(row, weight)).collect()
}

fn product(x: &Rows, w: &Rows, bias: Option<&Rows>) -> Rows {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let one = |row: &Vec<f64>| {
        let bias = |at: usize| bias.map_or(0.0, |bias| bias[0][at]);
        w.iter().enumerate().map(|(at, w)| dot(row, w) + bias(at)).collect()
    };
    x.iter().map(one).collect()
}

/// Returns the softmax weights of one head, `[query][key]`.
fn head_weights(
    q: &Rows,
    k: &Rows,
    [q_at, k_at]: [usize; 2],
    d: usize,
    scale: f64,
    sees: &dyn Fn(usize, usize) -> bool,
) -> Rows {
    let one = |(query, row): (usize, &Vec<f64>)| {
        let exps: Vec<f64> = k
            .iter()
            .enumerate()
            .map(|(key, k)| {
                let dot: f64 = (0..d).map(|i| row[q_at + i] * k[k_at + i]).sum();
                if sees(query, key) { (dot * scale).exp() } else { 0.0 }
            })
            .collect();
        let sum: f64 = exps.iter().sum();
        exps.into_iter().map(|e| e / sum).collect()
    };
    q.iter().enumerate().map(one).collect()
}

fn add(x: &mut Rows, y: &Rows) {
    for (x, y) in x.iter_mut().flatten().zip(y.iter().flatten()) {
        *x += y;
    }
}

pub(crate) fn reference(model: &SyntheticModel, ids: &[u32], window: Option<SlidingWindow>) -> Reference {
    masked_reference(model, ids, window, &|_, _, _| true)
}

/// As [`reference`], with keys that only some queries see: `seen(layer * g + KV head, query, key)`.
pub(crate) fn masked_reference(
    model: &SyntheticModel,
    ids: &[u32],
    window: Option<SlidingWindow>,
    seen: &dyn Fn(usize, usize, usize) -> bool,
) -> Reference {
    let file = File { model, gguf: Gguf::from_bytes(model.to_gguf().unwrap()).unwrap() };
    let table = file.tensor("token_embd.weight").unwrap();
    let mut x: Rows = ids.iter().map(|id| table[*id as usize].clone()).collect();
    if file.is(&["gemma", "gemma3"]) {
        x.iter_mut().flatten().for_each(|v| *v *= f64::from(model.d_model).sqrt());
    }
    let (d, heads) = (model.d_head as usize, model.n_heads as usize);
    let group = heads / model.n_kv_heads as usize;
    let mut weights = Vec::new();
    for layer in 0..model.n_layers {
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");
        let post = |out: Rows, tensor: &str| match file.tensor(&name(tensor)) {
            Some(weight) => norm(&out, &weight[0]),
            None => out,
        };
        let normed = norm(&x, &file.row(&name("attn_norm.weight")));
        let [q, k, v] = file.queries_keys_values(layer, &normed);
        let window = window.or_else(|| file.window(layer));
        let layer_weights = file.softmax_weights(&q, &k, &|kv_head, query, key| {
            let head = layer as usize * model.n_kv_heads as usize + kv_head;
            key <= query
                && window.is_none_or(|w| key < w.sinks || query - key < w.tokens)
                && seen(head, query, key)
        });
        let mixed: Rows = (0..ids.len())
            .map(|query| {
                let at = |i: usize| (i / d, i / d / group * d + i % d);
                (0..heads * d)
                    .map(|i| {
                        (0..=query).map(|key| layer_weights[at(i).0][query][key] * v[key][at(i).1]).sum()
                    })
                    .collect()
            })
            .collect();
        weights.push(layer_weights);
        let out = product(&mixed, &file.tensor(&name("attn_output.weight")).unwrap(), None);
        add(&mut x, &post(out, "post_attention_norm.weight"));
        let normed = norm(&x, &file.row(&name("ffn_norm.weight")));
        add(&mut x, &post(file.feed_forward(layer, &normed), "post_ffw_norm.weight"));
    }
    let normed = norm(&x, &file.row("output_norm.weight"));
    let head = file.tensor("output.weight").unwrap_or(table);
    Reference { logits: product(&normed, &head, None), weights }
}
