//! Latent attention in the forward pass: queries, keys and values from short vectors, and back.
//!
//! Keys of the cache are `[plain, turned]` per head, or the short vector and the turned dimensions for all
//! heads together. Values begin a row of the same width and end in zeros. Source: DeepSeek-AI 2024,
//! DeepSeek-V2, section 2.1.

use super::{Backend, Pass, PassInput};
use crate::config::Latent;
use crate::weights::{LatentUp, LatentWeights, WeightError};

impl<B: Backend> Pass<'_, B> {
    /// Computes queries, keys and values.
    pub(super) fn project_latent(
        &mut self,
        layer: usize,
        weights: &LatentWeights<'_>,
        latent: &Latent,
    ) -> Result<(), WeightError> {
        let PassInput { backend, config, .. } = self.input;
        let (t, h) = (self.n_rows, config.n_heads);
        let (r, p, d) = (latent.kv_rank, latent.d_plain, latent.d_key());
        let mut q = backend.rows(t, h * d);
        let mut low = backend.rows(t, r + latent.d_turned);
        match (&weights.q_down, latent.q_rank) {
            (Some((down, norm)), Some(rank)) => {
                let mut q_low = backend.rows(t, rank);
                let into = &mut [(*down, &mut q_low), (weights.kv_down, &mut low)];
                backend.project(&self.normed, into)?;
                backend.norm_heads(&mut q_low, norm, config.norm_eps);
                backend.project(&q_low, &mut [(weights.q, &mut q)])?;
            }
            _ => backend.project(&self.normed, &mut [(weights.q, &mut q), (weights.kv_down, &mut low)])?,
        }
        let mut short = backend.take(&low, r + latent.d_turned, 0..r);
        backend.norm_heads(&mut short, weights.kv_norm, config.norm_eps);
        let mut q_turned = backend.take(&q, d, p..d);
        let mut k_turned = backend.take(&low, r + latent.d_turned, r..r + latent.d_turned);
        if config.is_rotated(layer) {
            backend.rope(&mut q_turned, latent.d_turned, &self.rope, config.family.rope_style);
            backend.rope(&mut k_turned, latent.d_turned, &self.rope, config.family.rope_style);
        }
        match &weights.up {
            LatentUp::Joined(up) => {
                let both = p + latent.d_value;
                let mut heads = backend.rows(t, h * both);
                backend.project(&short, &mut [(*up, &mut heads)])?;
                self.q = q;
                backend.put(&mut self.q, d, p..d, &q_turned);
                backend.put(&mut self.k, d, 0..p, &backend.take(&heads, both, 0..p));
                for head in 0..h {
                    backend.put(&mut self.k, h * d, head * d + p..(head + 1) * d, &k_turned);
                }
                backend.put(&mut self.v, d, 0..latent.d_value, &backend.take(&heads, both, p..both));
            }
            LatentUp::Split { keys, .. } => {
                let width = config.d_head;
                for (head, key) in keys.iter().enumerate() {
                    let own = backend.take(&q, h * d, head * d..head * d + p);
                    let mut turned = backend.rows(t, r);
                    backend.project(&own, &mut [(*key, &mut turned)])?;
                    backend.put(&mut self.q, h * width, head * width..head * width + r, &turned);
                }
                backend.put(&mut self.q, width, r..width, &q_turned);
                backend.put(&mut self.k, width, 0..r, &short);
                backend.put(&mut self.k, width, r..width, &k_turned);
                backend.put(&mut self.v, width, 0..r, &short);
            }
        }
        Ok(())
    }

    /// Returns the attention output of every head in the space of its values, `[t, h u]`.
    pub(super) fn latent_values(
        &self,
        weights: &LatentWeights<'_>,
        latent: &Latent,
    ) -> Result<B::Rows, WeightError> {
        let PassInput { backend, config, .. } = self.input;
        let (h, width, u) = (config.n_heads, config.d_head, latent.d_value);
        let LatentUp::Split { values, .. } = &weights.up else {
            return Ok(backend.take(&self.mixed, width, 0..u));
        };
        let mut all = backend.rows(self.n_rows, h * u);
        for (head, value) in values.iter().enumerate() {
            let short = head * width..head * width + latent.kv_rank;
            let own = backend.take(&self.mixed, h * width, short);
            let mut out = backend.rows(self.n_rows, u);
            backend.project(&own, &mut [(*value, &mut out)])?;
            backend.put(&mut all, h * u, head * u..(head + 1) * u, &out);
        }
        Ok(all)
    }
}
