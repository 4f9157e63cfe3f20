//! What differs between the layers of Gemma 4, by its definition.

use super::{File, Rows, add, norm, norm_one, product};

/// The heads of one layer.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    /// Width of a head.
    pub(super) d: usize,
    /// Key and value heads.
    pub(super) kv: usize,
}

impl File<'_> {
    pub(super) fn layer_heads(&self, layer: u32) -> Heads {
        let model = self.model;
        if self.is(&["gemma4"]) && self.is_local(layer) {
            return Heads { d: model.layers.d_head as usize, kv: model.layers.n_kv_heads as usize };
        }
        Heads { d: model.d_head as usize, kv: model.n_kv_heads as usize }
    }

    /// Returns the layer whose keys and values a layer uses: the last one of its kind before the shared ones.
    pub(super) fn source(&self, layer: u32) -> u32 {
        let own = self.model.n_layers - self.model.layers.shared;
        if !self.is(&["gemma4"]) || layer < own {
            return layer;
        }
        (0..own).rev().find(|earlier| self.is_local(*earlier) == self.is_local(layer)).unwrap()
    }

    /// Returns queries, keys and values before their rotation; keys and values are empty in a layer without
    /// its own.
    pub(super) fn heads_under_norms(&self, layer: u32, normed: &Rows) -> [Rows; 3] {
        let tensor = |which: &str| self.tensor(&format!("blk.{layer}.attn_{which}.weight"));
        let d = self.layer_heads(layer).d;
        let each = |x: &Rows, weight: &[f64]| -> Rows {
            x.iter().map(|row| row.chunks(d).flat_map(|head| norm_one(head, weight)).collect()).collect()
        };
        let q = each(&product(normed, &tensor("q").unwrap(), None), &tensor("q_norm").unwrap()[0]);
        let Some(to_k) = tensor("k") else { return [q, Rows::new(), Rows::new()] };
        let k = product(normed, &to_k, None);
        let v = tensor("v").map_or_else(|| k.clone(), |to_v| product(normed, &to_v, None));
        [q, each(&k, &tensor("k_norm").unwrap()[0]), each(&v, &vec![1.0; d])]
    }

    /// Returns the feed-forward half's result for the residual stream `x`.
    pub(super) fn gemma4_feed_forward(&self, layer: u32, x: &Rows) -> Rows {
        let row = |name: &str| self.row(&format!("blk.{layer}.{name}"));
        let one = |which: &str| (self.tensor(&format!("blk.{layer}.ffn_{which}.weight")).unwrap(), None);
        let dense = self.network(&norm(x, &row("ffn_norm.weight")), ["gate", "up", "down"].map(one));
        let Some(experts) = self.model.experts else { return norm(&dense, &row("post_ffw_norm.weight")) };
        let mut sum = norm(&dense, &row("post_ffw_norm_1.weight"));
        let router = self.tensor(&format!("blk.{layer}.ffn_gate_inp.weight")).unwrap();
        let scale: Vec<f64> =
            row("ffn_gate_inp.scale").iter().map(|v| v / f64::from(self.model.d_model).sqrt()).collect();
        let numbers = product(&norm(x, &scale), &router, None);
        let (both, down, factors) = (one("gate_up_exps").0, one("down_exps").0, row("ffn_down_exps.scale"));
        let inputs = norm(x, &row("pre_ffw_norm_2.weight"));
        let mut mixture = Rows::new();
        for (input, numbers) in inputs.iter().zip(&numbers) {
            let mut ranked: Vec<usize> = (0..numbers.len()).collect();
            ranked.sort_by(|a, b| numbers[*b].total_cmp(&numbers[*a]));
            ranked.truncate(experts.used as usize);
            let total: f64 = ranked.iter().map(|expert| numbers[*expert].exp()).sum();
            let mut out = vec![vec![0.0; input.len()]];
            for expert in ranked {
                let (f, e) = (experts.d_ff as usize, input.len());
                let gate = both[expert * 2 * f..(expert * 2 + 1) * f].to_vec();
                let up = both[(expert * 2 + 1) * f..(expert * 2 + 2) * f].to_vec();
                let back = down[expert * e..(expert + 1) * e].to_vec();
                let own = self.network(&vec![input.clone()], [(gate, None), (up, None), (back, None)]);
                add(&mut out, &own, factors[expert] * numbers[expert].exp() / total);
            }
            mixture.extend(out);
        }
        add(&mut sum, &norm(&mixture, &row("post_ffw_norm_2.weight")), 1.0);
        norm(&sum, &row("post_ffw_norm.weight"))
    }

    /// Returns each row's inputs of all layers, if the model has them: `x` are the embeddings.
    pub(super) fn inputs_of_layers(&self, ids: &[u32], x: &Rows) -> Option<Rows> {
        let table = self.tensor("per_layer_token_embd.weight")?;
        let weight = self.row("per_layer_proj_norm.weight");
        let root = (weight.len() as f64).sqrt();
        let projected = product(x, &self.tensor("per_layer_model_proj.weight").unwrap(), None);
        let one = |(id, row): (&u32, &Vec<f64>)| {
            let row: Vec<f64> = row.iter().map(|v| v / f64::from(self.model.d_model).sqrt()).collect();
            let own = row.chunks(weight.len()).flat_map(|part| norm_one(part, &weight));
            own.zip(&table[*id as usize]).map(|(own, token)| (own + root * token) / 2f64.sqrt()).collect()
        };
        Some(ids.iter().zip(&projected).map(one).collect())
    }

    /// Adds the layer's own input, and applies the factor of its result.
    pub(super) fn end_of_layer(&self, layer: u32, x: &mut Rows, inputs: Option<&Rows>) {
        let name = |tensor: &str| format!("blk.{layer}.{tensor}.weight");
        if let Some(inputs) = inputs {
            let gate = product(x, &self.tensor(&name("inp_gate")).unwrap(), None);
            let width = gate[0].len();
            let gated = gate.iter().zip(inputs).map(|(gate, inputs)| {
                let own = &inputs[layer as usize * width..];
                gate.iter().zip(own).map(|(gate, own)| self.gelu(*gate) * own).collect()
            });
            let out = product(&gated.collect(), &self.tensor(&name("proj")).unwrap(), None);
            add(x, &norm(&out, &self.row(&name("post_norm"))), 1.0);
        }
        let scale = self.row(&name("layer_output_scale"))[0];
        x.iter_mut().flatten().for_each(|v| *v *= scale);
    }
}
