//! Recurrent layers by their definitions, in f64, over whole token lists.

use super::{File, Rows, norm_one, product};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// Returns a vector of the same direction and length 1.
fn unit(x: &[f64]) -> Vec<f64> {
    let length = x.iter().map(|v| v * v).sum::<f64>().sqrt();
    x.iter().map(|v| v / length).collect()
}

/// Convolves each column with its own taps, which are stored newest token last.
fn convolved(x: &Rows, taps: &Rows) -> Rows {
    let n = taps[0].len();
    let one = |t: usize, c: usize| {
        (0..n).filter(|back| *back <= t).map(|back| taps[c][n - 1 - back] * x[t - back][c]).sum()
    };
    (0..x.len()).map(|t| (0..taps.len()).map(|c| one(t, c)).collect()).collect()
}

impl File<'_> {
    /// Whether the layer is recurrent.
    pub(super) fn is_recurrent(&self, layer: u32) -> bool {
        self.is(&["lfm2", "lfm2moe", "qwen3next", "qwen35", "qwen35moe"])
            && !(layer + 1).is_multiple_of(self.model.recurrent.interval)
    }

    /// Returns what the first half of a recurrent layer adds to the residual stream.
    pub(super) fn recurrent(&self, layer: u32, normed: &Rows) -> Rows {
        let tensor = |name: &str| self.tensor(&format!("blk.{layer}.{name}.weight")).unwrap();
        if self.is(&["lfm2", "lfm2moe"]) {
            let (e, all) = (normed[0].len(), product(normed, &tensor("shortconv.in_proj"), None));
            let inputs: Rows =
                all.iter().map(|row| (0..e).map(|i| row[i] * row[2 * e + i]).collect()).collect();
            let mut out = convolved(&inputs, &tensor("shortconv.conv"));
            for (out, row) in out.iter_mut().zip(&all) {
                out.iter_mut().zip(&row[e..2 * e]).for_each(|(out, gate)| *out *= gate);
            }
            return product(&out, &tensor("shortconv.out_proj"), None);
        }
        let mixed = convolved(&product(normed, &tensor("attn_qkv"), None), &tensor("ssm_conv1d"));
        let gates = product(normed, &tensor("attn_gate"), None);
        let heads = 0..self.model.recurrent.value_heads as usize;
        let parts: Vec<Rows> =
            heads.map(|head| self.delta_head(layer, head, normed, &mixed, &gates)).collect();
        let joined: Rows =
            (0..normed.len()).map(|t| parts.iter().flat_map(|part| part[t].clone()).collect()).collect();
        product(&joined, &tensor("ssm_out"), None)
    }

    /// Returns the gated output of one value head.
    fn delta_head(&self, layer: u32, head: usize, normed: &Rows, mixed: &Rows, gates: &Rows) -> Rows {
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");
        let with = self.model.recurrent;
        let (d, n_keys, n) = (with.d_head as usize, with.key_heads as usize, with.value_heads as usize);
        let share = n / n_keys;
        let (beta, alpha, key) = if self.is(&["qwen3next"]) {
            let both = product(normed, &self.tensor(&name("ssm_ba.weight")).unwrap(), None);
            let at = head / share * 2 * share + head % share;
            let column = |at: usize| both.iter().map(|row| row[at]).collect::<Vec<f64>>();
            (column(at), column(at + share), head / share)
        } else {
            let column = |tensor: &str| {
                let all = product(normed, &self.tensor(&name(tensor)).unwrap(), None);
                all.iter().map(|row| row[head]).collect::<Vec<f64>>()
            };
            (column("ssm_beta.weight"), column("ssm_alpha.weight"), head % n_keys)
        };
        let (bias, decay) = (self.row(&name("ssm_dt.bias"))[head], self.row(&name("ssm_a"))[head]);
        let norm = self.row(&name("ssm_norm.weight"));
        let mut state = vec![vec![0.0; d]; d];
        let mut out = Rows::new();
        for (t, row) in mixed.iter().enumerate() {
            let part = |from: usize| row[from..from + d].iter().map(|x| silu(*x)).collect::<Vec<f64>>();
            let (q, k) = (unit(&part(key * d)), unit(&part((n_keys + key) * d)));
            let v = part(2 * n_keys * d + head * d);
            let fade = (decay * (alpha[t] + bias).exp().ln_1p()).exp();
            state.iter_mut().flatten().for_each(|s| *s *= fade);
            for j in 0..d {
                let held: f64 = (0..d).map(|i| k[i] * state[i][j]).sum();
                let delta = sigmoid(beta[t]) * (v[j] - held);
                (0..d).for_each(|i| state[i][j] += k[i] * delta);
            }
            let read = |j: usize| (0..d).map(|i| q[i] * state[i][j]).sum::<f64>() / (d as f64).sqrt();
            let read: Vec<f64> = (0..d).map(read).collect();
            let gate = &gates[t][head * d..(head + 1) * d];
            out.push(norm_one(&read, &norm).iter().zip(gate).map(|(x, gate)| x * silu(*gate)).collect());
        }
        out
    }
}
