//! Every family by its definition, in f64: full matrices, one token list, no cache, no kernels except
//! decoding of blocks. Knows families by name and tensors by GGUF's names; shares no rule with the engine.

mod layered;
mod recurrent;

use std::f64::consts::{PI, TAU};

use baton_engine::SlidingWindow;
use baton_engine::gguf::Gguf;
use baton_kernels_cpu::dequantize_row;
use baton_synthetic::{ExtraValue, SyntheticLatent, SyntheticModel};

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
            ExtraValue::Bool(value) => f64::from(u8::from(*value)),
            ExtraValue::Text(_) => f64::NAN,
        })
    }

    fn scaling(&self) -> Option<&'static str> {
        self.model.extra.iter().find_map(|(name, value)| match value {
            ExtraValue::Text(text) if *name == "rope.scaling.type" => Some(*text),
            _ => None,
        })
    }

    /// Gemma 3: of six layers (or as many as the file says), all but the last; Gemma 4 lists them. Gemma 2
    /// and gpt-oss: every other layer.
    fn is_local(&self, layer: u32) -> bool {
        if self.is(&["gemma4"]) {
            return layer % self.model.layers.interval + 1 < self.model.layers.interval;
        }
        let default = if self.is(&["gemma3"]) { 6.0 } else { 2.0 };
        let period = self.extra("attention.sliding_window_pattern").unwrap_or(default) as u32;
        self.is(&["gemma2", "gemma3", "gpt-oss"]) && layer % period + 1 < period
    }

    /// SmolLM3 rotates three of four layers; a Granite file may say that no layer is rotated.
    fn is_rotated(&self, layer: u32) -> bool {
        let skipped = self.is(&["smollm3"]) && layer % 4 == 3;
        !skipped && self.extra("rope.scaling.finetuned") != Some(0.0)
    }

    fn window(&self, layer: u32) -> Option<SlidingWindow> {
        let tokens = self.extra("attention.sliding_window")? as usize;
        let windowed = !self.is(&["gemma2", "gemma3", "gemma4", "gpt-oss"]) || self.is_local(layer);
        windowed.then_some(SlidingWindow { tokens, sinks: 0 })
    }

    fn rot_dims(&self, layer: u32) -> usize {
        if self.is(&["gemma4"]) {
            return self.layer_heads(layer).d;
        }
        let turned = self.model.latent.map(|latent| f64::from(latent.d_turned));
        let stated = self.extra("rope.dimension_count").or(turned);
        stated.map_or(self.model.d_head as usize, |dims| dims as usize)
    }

    /// Returns the radians per position of a pair, by the definitions of the scalings.
    fn frequency(&self, layer: u32, pair: usize) -> f64 {
        let dims = self.rot_dims(layer) as f64;
        if self.is(&["gemma3", "gemma4"]) && self.is_local(layer) {
            return 10_000f64.powf(-2.0 * pair as f64 / dims);
        }
        let theta = self.extra("rope.freq_base").unwrap_or(10_000.0);
        let original = self.extra("rope.scaling.original_context_length");
        let context = f64::from(self.model.context_len);
        let stretched = original.is_some_and(|original| context > original);
        let factors = self.model.rope_factors.as_ref();
        let stated = self.tensor("rope_freqs.weight");
        let divisors = match factors {
            Some([long, short]) => Some(if stretched { long } else { short }),
            None => None,
        };
        let divisor =
            divisors.map_or(1.0, |all| f64::from(all[pair])) * stated.map_or(1.0, |all| all[0][pair]);
        let base = theta.powf(-2.0 * pair as f64 / dims) / divisor;
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
            (Some("yarn"), Some(factor)) => {
                let multiplier = self.extra("rope.scaling.yarn_log_multiplier").unwrap_or(0.0);
                let multiplier = if self.model.latent.is_some() { 1.0 } else { multiplier };
                own * (1.0 + 0.1 * factor.ln()) / (1.0 + 0.1 * multiplier * factor.ln())
            }
            _ => own,
        }
    }

    /// Rotates heads of width `d`.
    fn rotate(&self, x: &mut Rows, layer: u32, d: usize) {
        let dims = self.rot_dims(layer).min(d);
        let adjacent =
            self.is(&["llama", "mistral3", "smollm3", "granite", "granitemoe", "glm4", "deepseek2"]);
        let frequencies: Vec<f64> = (0..dims / 2).map(|pair| self.frequency(layer, pair)).collect();
        for (position, row) in x.iter_mut().enumerate() {
            for head in row.chunks_mut(d) {
                for (pair, frequency) in frequencies.iter().enumerate() {
                    let (a, b) = if adjacent { (2 * pair, 2 * pair + 1) } else { (pair, pair + dims / 2) };
                    let angle = position as f64 * frequency;
                    let (cos, sin) = (self.magnitude() * angle.cos(), self.magnitude() * angle.sin());
                    (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
                }
            }
        }
    }

    /// Returns the widths of a key head and of a value head, and how many query heads share them.
    fn heads(&self, layer: u32) -> (usize, usize, usize) {
        match self.model.latent {
            Some(latent) => ((latent.d_plain + latent.d_turned) as usize, latent.d_value as usize, 1),
            None => {
                let layered::Heads { d, kv } = self.layer_heads(layer);
                (d, d, self.model.n_heads as usize / kv)
            }
        }
    }

    /// Returns every head's queries, keys and values of latent attention.
    fn latent_heads(&self, layer: u32, normed: &Rows, latent: SyntheticLatent) -> [Rows; 3] {
        let tensor = |name: &str| self.tensor(&format!("blk.{layer}.attn_{name}.weight"));
        let (p, r, h) = (latent.d_plain as usize, latent.kv_rank as usize, self.model.n_heads as usize);
        let (d, u) = (p + latent.d_turned as usize, latent.d_value as usize);
        let mut q = match tensor("q_a") {
            Some(down) => {
                let low = norm(&product(normed, &down, None), &tensor("q_a_norm").unwrap()[0]);
                product(&low, &tensor("q_b").unwrap(), None)
            }
            None => product(normed, &tensor("q").unwrap(), None),
        };
        let low = product(normed, &tensor("kv_a_mqa").unwrap(), None);
        let short: Rows = low.iter().map(|row| row[..r].to_vec()).collect();
        let short = norm(&short, &tensor("kv_a_norm").unwrap()[0]);
        let mut turned: Rows = low.iter().map(|row| row[r..].to_vec()).collect();
        self.rotate(&mut turned, layer, d - p);
        for row in &mut q {
            for head in row.chunks_mut(d) {
                head.rotate_left(p);
            }
        }
        self.rotate(&mut q, layer, d);
        let (mut k, mut v) = (Rows::new(), Rows::new());
        for (short, turned) in short.iter().zip(&turned) {
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for head in 0..h {
                keys.extend(turned);
                let all = match (tensor("k_b"), tensor("v_b")) {
                    (Some(k_b), Some(v_b)) => {
                        let key = |j: usize| (0..r).map(|i| k_b[head * r + i][j] * short[i]).sum::<f64>();
                        let value =
                            product(&vec![short.clone()], &v_b[head * u..(head + 1) * u].to_vec(), None);
                        (0..p).map(key).chain(value[0].clone()).collect()
                    }
                    _ => {
                        let own = tensor("kv_b").unwrap()[head * (p + u)..(head + 1) * (p + u)].to_vec();
                        product(&vec![short.clone()], &own, None).remove(0)
                    }
                };
                keys.extend(&all[..p]);
                values.extend(&all[p..]);
            }
            k.push(keys);
            v.push(values);
        }
        [q, k, v]
    }

    /// Splits the queries of each head from the gate after them; returns both.
    fn queries_and_gates(&self, both: &Rows) -> (Rows, Rows) {
        let d = self.model.d_head as usize;
        let half = |first: usize| {
            let one =
                |row: &Vec<f64>| row.chunks(2 * d).flat_map(|head| head[first..first + d].to_vec()).collect();
            both.iter().map(one).collect()
        };
        (half(0), half(d))
    }

    /// Returns queries, keys and values, and the gates of the output.
    fn queries_keys_values(&self, layer: u32, normed: &Rows) -> ([Rows; 3], Option<Rows>) {
        if let Some(latent) = self.model.latent {
            return (self.latent_heads(layer, normed, latent), None);
        }
        if self.is(&["gemma4"]) {
            let [mut q, mut k, v] = self.heads_under_norms(layer, normed);
            self.rotate(&mut q, layer, self.layer_heads(layer).d);
            self.rotate(&mut k, layer, self.layer_heads(layer).d);
            return ([q, k, v], None);
        }
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
        let mut gates = None;
        if self.is(&["qwen3next", "qwen35", "qwen35moe"]) {
            let (queries, others) = self.queries_and_gates(&q);
            (q, gates) = (queries, Some(others));
        }
        if self.is(&["qwen3", "qwen3moe", "gemma3", "lfm2", "lfm2moe", "qwen3next", "qwen35", "qwen35moe"]) {
            for (x, which) in [(&mut q, "q"), (&mut k, "k")] {
                let weight = self.row(&name(&format!("attn_{which}_norm.weight")));
                for head in x.iter_mut().flat_map(|row| row.chunks_mut(d)) {
                    head.copy_from_slice(&norm_one(head, &weight));
                }
            }
        }
        if self.is_rotated(layer) {
            self.rotate(&mut q, layer, d);
            self.rotate(&mut k, layer, d);
        }
        if let Some(scale) = self.extra("attention.temperature_scale") {
            let step = self.extra("rope.scaling.original_context_length").unwrap();
            for (position, row) in q.iter_mut().enumerate() {
                let longer = 1.0 + scale * (1.0 + (position as f64 / step).floor()).ln();
                row.iter_mut().for_each(|value| *value *= longer);
            }
        }
        ([q, k, v], gates)
    }

    fn gelu(&self, x: f64) -> f64 {
        0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
    }

    /// Returns the output of a gated network: gate, up and down, each with its bias if there is one.
    fn network(&self, x: &Rows, [gate, up, down]: [(Rows, Option<Rows>); 3]) -> Rows {
        let gelu = self.is(&["gemma", "gemma2", "gemma3", "gemma4"]);
        let act = |x: f64, up: f64| {
            if gelu {
                self.gelu(x) * up
            } else if self.is(&["gpt-oss"]) {
                let x = x.min(7.0);
                x / (1.0 + (-1.702 * x).exp()) * (up.clamp(-7.0, 7.0) + 1.0)
            } else {
                x / (1.0 + (-x).exp()) * up
            }
        };
        let (mut gate, up) = (product(x, &gate.0, gate.1.as_ref()), product(x, &up.0, up.1.as_ref()));
        for (gate, up) in gate.iter_mut().flatten().zip(up.iter().flatten()) {
            *gate = act(*gate, *up);
        }
        product(&gate, &down.0, down.1.as_ref())
    }

    fn feed_forward(&self, layer: u32, x: &Rows) -> Rows {
        let name = |which: &str, part: &str| format!("blk.{layer}.ffn_{which}.{part}");
        let f = self.model.d_ff as usize;
        if self.model.experts.is_some() && layer >= self.model.dense_layers {
            x.iter().map(|x| self.mixture(layer, x)).collect()
        } else if self.is(&["phi3", "glm4"]) {
            let both = self.tensor(&name("up", "weight")).unwrap();
            let down = self.tensor(&name("down", "weight")).unwrap();
            self.network(x, [(both[..f].to_vec(), None), (both[f..].to_vec(), None), (down, None)])
        } else {
            let one =
                |which| (self.tensor(&name(which, "weight")).unwrap(), self.tensor(&name(which, "bias")));
            self.network(x, ["gate", "up", "down"].map(one))
        }
    }

    /// Returns a mixture's output for one row: its most likely experts, one after the other.
    fn mixture(&self, layer: u32, x: &[f64]) -> Vec<f64> {
        let experts = self.model.experts.unwrap();
        let tensor = |name: &str| self.tensor(&format!("blk.{layer}.{name}.weight")).unwrap();
        let x = vec![x.to_vec()];
        let bias = |name: &str| self.tensor(&format!("blk.{layer}.{name}.bias"));
        let numbers = product(&x, &tensor("ffn_gate_inp"), bias("ffn_gate_inp").as_ref());
        let sigmoid = self.extra("expert_gating_func") == Some(2.0);
        let act = |v: &f64| if sigmoid { 1.0 / (1.0 + (-v).exp()) } else { v.exp() };
        let exps: Vec<f64> = numbers[0].iter().map(act).collect();
        let total: f64 = if sigmoid { 1.0 } else { exps.iter().sum() };
        let choice = bias("exp_probs_b").map_or(vec![0.0; exps.len()], |bias| bias[0].clone());
        let rank: Vec<f64> = exps.iter().zip(&choice).map(|(e, bias)| e / total + bias).collect();
        let mut ranked: Vec<usize> = (0..exps.len()).collect();
        if let Some(groups) = self.extra("expert_group_count") {
            let each = exps.len() / groups as usize;
            let two_best = |group: usize| {
                let mut own = rank[group * each..(group + 1) * each].to_vec();
                own.sort_by(f64::total_cmp);
                own[each - 1] + own[each - 2]
            };
            let mut best: Vec<usize> = (0..groups as usize).collect();
            best.sort_by(|a, b| two_best(*b).total_cmp(&two_best(*a)));
            best.truncate(self.extra("expert_group_used_count").unwrap() as usize);
            ranked.retain(|expert| best.contains(&(expert / each)));
        }
        ranked.sort_by(|a, b| rank[*b].total_cmp(&rank[*a]));
        ranked.truncate(experts.used as usize);
        let chosen: f64 = ranked.iter().map(|expert| exps[*expert]).sum();
        let whole = self.is(&["qwen2moe", "deepseek2"]) && self.extra("expert_weights_norm") != Some(1.0);
        let divisor = if whole { total } else { chosen } / self.extra("expert_weights_scale").unwrap_or(1.0);
        let mut sum = vec![0.0; x[0].len()];
        let all = ["gate", "up", "down"].map(|which| format!("ffn_{which}_exps"));
        let all = all.map(|name| (tensor(&name), bias(&name)));
        for expert in ranked {
            let own = |(all, bias): &(Rows, Option<Rows>)| {
                let rows = all.len() / experts.count as usize;
                let bias = bias.as_ref().map(|bias| vec![bias[expert].clone()]);
                (all[expert * rows..(expert + 1) * rows].to_vec(), bias)
            };
            let out = self.network(&x, all.each_ref().map(own));
            for (sum, out) in sum.iter_mut().zip(&out[0]) {
                *sum += exps[expert] / divisor * out;
            }
        }
        if self.is(&["qwen2moe", "granitemoe", "deepseek2", "qwen3next", "qwen35moe"]) {
            let share = match self.tensor(&format!("blk.{layer}.ffn_gate_inp_shexp.weight")) {
                Some(gate) => 1.0 / (1.0 + (-product(&x, &gate, None)[0][0]).exp()),
                None => 1.0,
            };
            let network = ["gate", "up", "down"].map(|which| (tensor(&format!("ffn_{which}_shexp")), None));
            let out = self.network(&x, network);
            for (sum, out) in sum.iter_mut().zip(&out[0]) {
                *sum += share * out;
            }
        }
        sum
    }

    /// Returns the softmax weights of every head, `[head][query][key]`.
    fn softmax_weights(
        &self,
        layer: u32,
        q: &Rows,
        k: &Rows,
        sees: &dyn Fn(usize, usize, usize) -> bool,
    ) -> Vec<Rows> {
        let ((d, _, group), heads) = (self.heads(layer), self.model.n_heads as usize);
        let width = if self.is(&["gemma4"]) {
            1.0
        } else if self.is(&["gemma3"]) && self.model.n_layers == 62 {
            f64::from(self.model.d_model / self.model.n_heads)
        } else {
            d as f64
        };
        let mut scale = self.extra("attention.scale").unwrap_or(1.0 / width.sqrt());
        if let (Some(_), Some(factor)) = (self.model.latent, self.extra("rope.scaling.factor")) {
            let multiplier = self.extra("rope.scaling.yarn_log_multiplier").unwrap_or(0.0);
            scale *= (1.0 + multiplier * factor.ln()).powi(2);
        }
        let cap = self.extra("attn_logit_softcapping");
        let score = |dot: f64| cap.map_or(dot * scale, |cap| cap * (dot * scale / cap).tanh());
        let sinks = self.tensor(&format!("blk.{layer}.attn_sinks.weight"));
        let one = |head: usize| {
            let sees = |query, key| sees(head / group, query, key);
            let sink = sinks.as_ref().map_or(0.0, |sinks| sinks[0][head].exp());
            head_weights((q, head * d), (k, head / group * d), d, sink, &score, &sees)
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

/// Returns the softmax weights of one head, `[query][key]`; its queries and keys begin at the given columns.
/// `sink` is added to the sum of the weights.
fn head_weights(
    (q, q_at): (&Rows, usize),
    (k, k_at): (&Rows, usize),
    d: usize,
    sink: f64,
    score: &dyn Fn(f64) -> f64,
    sees: &dyn Fn(usize, usize) -> bool,
) -> Rows {
    let one = |(query, row): (usize, &Vec<f64>)| {
        let weight = |(key, k): (usize, &Vec<f64>)| {
            let dot: f64 = (0..d).map(|i| row[q_at + i] * k[k_at + i]).sum();
            if sees(query, key) { score(dot).exp() } else { 0.0 }
        };
        let exps: Vec<f64> = k.iter().enumerate().map(weight).collect();
        let sum: f64 = sink + exps.iter().sum::<f64>();
        exps.into_iter().map(|e| e / sum).collect()
    };
    q.iter().enumerate().map(one).collect()
}

/// Adds `factor` times `y`.
fn add(x: &mut Rows, y: &Rows, factor: f64) {
    for (x, y) in x.iter_mut().flatten().zip(y.iter().flatten()) {
        *x += factor * y;
    }
}

pub(crate) fn reference(model: &SyntheticModel, ids: &[u32], window: Option<SlidingWindow>) -> Reference {
    masked_reference(model, ids, window, &|_, _, _| true)
}

/// Returns each query's sum of weighted values, of all heads; `group` query heads of width `d` share values.
fn values_mixed(weights: &[Rows], values: &Rows, (heads, group, d): (usize, usize, usize)) -> Rows {
    let one = |query: usize, i: usize| {
        let (head, at) = (i / d, i / d / group * d + i % d);
        (0..=query).map(|key| weights[head][query][key] * values[key][at]).sum()
    };
    (0..values.len()).map(|query| (0..heads * d).map(|i| one(query, i)).collect()).collect()
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
    if file.is(&["gemma", "gemma2", "gemma3", "gemma4"]) {
        x.iter_mut().flatten().for_each(|v| *v *= f64::from(model.d_model).sqrt());
    }
    let multiplier = |key| file.extra(key).unwrap_or(1.0);
    x.iter_mut().flatten().for_each(|v| *v *= multiplier("embedding_scale"));
    let inputs = file.inputs_of_layers(ids, &x);
    let heads = model.n_heads as usize;
    let (mut weights, mut kept) = (Vec::new(), Vec::new());
    for layer in 0..model.n_layers {
        let (_, d, group) = file.heads(layer);
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");
        let post = |out: Rows, tensor: &str| match file.tensor(&name(tensor)) {
            Some(weight) if file.is(&["gemma2", "gemma3", "gemma4", "glm4"]) => norm(&out, &weight[0]),
            _ => out,
        };
        // gpt-oss and the Qwens with recurrent layers call it by another name.
        let ffn_norm =
            if file.is(&["gpt-oss", "qwen3next", "qwen35", "qwen35moe"]) { "post_attention" } else { "ffn" };
        let ffn_norm = file.row(&name(&format!("{ffn_norm}_norm.weight")));
        let normed = norm(&x, &file.row(&name("attn_norm.weight")));
        if file.is_recurrent(layer) {
            add(&mut x, &file.recurrent(layer, &normed), 1.0);
            weights.push(Vec::new());
            kept.push([Rows::new(), Rows::new()]);
            let normed = norm(&x, &ffn_norm);
            add(&mut x, &file.feed_forward(layer, &normed), 1.0);
            continue;
        }
        let ([q, k, v], gates) = file.queries_keys_values(layer, &normed);
        kept.push([k, v]);
        let [k, v] = &kept[file.source(layer) as usize];
        let window = window.or_else(|| file.window(layer));
        let layer_weights = file.softmax_weights(layer, &q, k, &|kv_head, query, key| {
            let head = layer as usize * model.n_kv_heads as usize + kv_head;
            key <= query
                && window.is_none_or(|w| key < w.sinks || query - key < w.tokens)
                && seen(head, query, key)
        });
        let mut mixed = values_mixed(&layer_weights, v, (heads, group, d));
        weights.push(layer_weights);
        for (x, gate) in mixed.iter_mut().flatten().zip(gates.iter().flatten().flatten()) {
            *x /= 1.0 + (-gate).exp();
        }
        let bias = file.tensor(&name("attn_output.bias"));
        let out = product(&mixed, &file.tensor(&name("attn_output.weight")).unwrap(), bias.as_ref());
        add(&mut x, &post(out, "post_attention_norm.weight"), multiplier("residual_scale"));
        if file.is(&["gemma4"]) {
            let out = file.gemma4_feed_forward(layer, &x);
            add(&mut x, &out, 1.0);
            file.end_of_layer(layer, &mut x, inputs.as_ref());
            continue;
        }
        let normed = norm(&x, &ffn_norm);
        let out = post(file.feed_forward(layer, &normed), "post_ffw_norm.weight");
        add(&mut x, &out, multiplier("residual_scale"));
    }
    let output_norm =
        if file.is(&["lfm2", "lfm2moe"]) { "token_embd_norm.weight" } else { "output_norm.weight" };
    let normed = norm(&x, &file.row(output_norm));
    let head = file.tensor("output.weight").unwrap_or(table);
    let mut logits = product(&normed, &head, None);
    for logit in logits.iter_mut().flatten() {
        *logit /= multiplier("logit_scale");
        *logit = file.extra("final_logit_softcapping").map_or(*logit, |cap| cap * (*logit / cap).tanh());
    }
    Reference { logits, weights }
}
