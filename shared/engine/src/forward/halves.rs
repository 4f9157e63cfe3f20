//! The two halves of a layer around attention: queries, keys and values before it, its projection and the
//! feed-forward network behind it.
//!
//! Steps that follow each other are asked for together if nothing comes between them, such as a bias or an
//! adapter. A backend may compute them at once; the results are the same bits.

use super::{Gated, Pass, PassInput, rope_at};
use crate::adapter::Projection;
use crate::backend::{Backend, Norm};
use crate::weights::{
    AttentionInputs, AttentionWeights, FfnBody, FfnWeights, GatedWeights, HeadWeights, Part, Weight,
    WeightError,
};

/// The projection that ends half a layer, `[e, width]`, and what follows it.
struct End<'a> {
    layer: usize,
    projection: Projection,
    weight: Weight<'a>,
    bias: &'a [f32],
    post_norm: &'a [f32],
}

/// What the projection that ends half a layer takes.
#[derive(Clone, Copy)]
enum From<'a, R> {
    /// The attention output.
    Mixed,
    /// The gates of the feed-forward network.
    Gates,
    /// Other rows.
    Rows(&'a R),
}

impl<B: Backend> Pass<'_, B> {
    /// Computes the queries of every row, and writes its keys and values into the cache.
    pub(super) fn keys_and_values(
        &mut self,
        kv: &mut B::Kv,
        layer: usize,
        weights: &AttentionWeights<'_>,
    ) -> Result<(), WeightError> {
        let PassInput { backend, config, spans, .. } = self.input;
        let norm = Norm { weight: weights.norm, eps: config.norm_eps };
        match (&weights.inputs, &config.latent) {
            (AttentionInputs::Latent(weights), Some(latent)) => {
                backend.rms_norm(&self.x, norm.weight, norm.eps, &mut self.normed);
                self.project_latent(layer, weights, latent)?;
            }
            (AttentionInputs::Heads(weights), _) => {
                self.project_heads(layer, norm, weights)?;
                self.norm_heads(weights);
                let appends = weights.k.is_some() && config.kv_layer(layer) == layer;
                if appends && config.is_rotated(layer) && self.temperature.is_empty() {
                    let table = rope_at(config, layer, &self.rope, self.local_rope.as_ref());
                    let rotation = (self.heads.width, table, config.family.rope_style);
                    let rows = (&mut self.q, &mut self.k, &self.v);
                    backend.rotate_and_append(kv, layer, rotation, rows, spans);
                    return Ok(());
                }
                self.rotate(layer, weights);
            }
            (AttentionInputs::Latent(_), None) => return Err(WeightError::WrongPart(Part::Attention)),
        }
        if !self.temperature.is_empty() {
            backend.scale_rows(&mut self.q, &self.temperature);
        }
        if config.kv_layer(layer) == layer {
            backend.append(kv, layer, &self.k, &self.v, spans);
        }
        Ok(())
    }

    /// Computes queries, keys and values of the residual stream by a projection for each.
    fn project_heads(
        &mut self,
        layer: usize,
        norm: Norm<'_>,
        weights: &HeadWeights<'_>,
    ) -> Result<(), WeightError> {
        let backend = self.input.backend;
        let heads = self.heads;
        let mut both = self.gate.as_ref().map(|_| backend.rows(self.n_rows, 2 * heads.d_q()));
        let q = both.as_mut().unwrap_or(&mut self.q);
        let mut into = vec![(weights.q, q)];
        into.extend(weights.k.map(|weight| (weight, &mut self.k)));
        into.extend(weights.v.map(|weight| (weight, &mut self.v)));
        backend.norm_and_project(&self.x, norm, &mut self.normed, &mut into)?;
        if weights.k.is_some() && weights.v.is_none() {
            self.v = backend.take(&self.k, heads.d_kv(), 0..heads.d_kv());
        }
        if let (Some(both), Some(gate)) = (&both, &mut self.gate) {
            backend.split(both, heads.width, &mut self.q, gate);
        }
        let changed = &mut [
            (Projection::Query, &mut self.q),
            (Projection::Key, &mut self.k),
            (Projection::Value, &mut self.v),
        ];
        self.adapted.add(backend, layer, (&self.normed, self.n_rows), changed)?;
        let [q_bias, k_bias, v_bias] = weights.biases;
        backend.add_bias(&mut self.q, q_bias);
        backend.add_bias(&mut self.k, k_bias);
        backend.add_bias(&mut self.v, v_bias);
        Ok(())
    }

    /// Applies the norms of heads.
    fn norm_heads(&mut self, weights: &HeadWeights<'_>) {
        let PassInput { backend, config, .. } = self.input;
        let [q_norm, k_norm, v_norm] = weights.head_norms;
        backend.norm_heads(&mut self.q, q_norm, config.norm_eps);
        if weights.k.is_some() {
            backend.norm_heads(&mut self.k, k_norm, config.norm_eps);
            backend.norm_heads(&mut self.v, v_norm, config.norm_eps);
        }
    }

    /// Rotates queries and keys, if the layer does.
    fn rotate(&mut self, layer: usize, weights: &HeadWeights<'_>) {
        let PassInput { backend, config, .. } = self.input;
        if !config.is_rotated(layer) {
            return;
        }
        let table = rope_at(config, layer, &self.rope, self.local_rope.as_ref());
        let (width, style) = (self.heads.width, config.family.rope_style);
        backend.rope(&mut self.q, width, table, style);
        if weights.k.is_some() {
            backend.rope(&mut self.k, width, table, style);
        }
    }

    /// Adds the projected attention output to the residual stream.
    pub(super) fn mix(&mut self, layer: usize, weights: &AttentionWeights<'_>) -> Result<(), WeightError> {
        let values = match (&weights.inputs, &self.input.config.latent) {
            (AttentionInputs::Latent(weights), Some(latent)) => Some(self.latent_values(weights, latent)?),
            _ => None,
        };
        let (weight, bias, post_norm) = (weights.o, weights.o_bias, weights.post_norm);
        let end = End { layer, projection: Projection::Output, weight, bias, post_norm };
        self.end_half(&end, values.as_ref().map_or(From::Mixed, From::Rows))
    }

    /// Adds a projection to the residual stream.
    fn end_half(&mut self, end: &End<'_>, from: From<'_, B::Rows>) -> Result<(), WeightError> {
        let plain = end.bias.is_empty() && end.post_norm.is_empty() && self.adapted.is_empty();
        if !plain || self.input.config.residual_scale != 1.0 {
            self.project_end(end, from)?;
            self.add_half(end.post_norm);
            return Ok(());
        }
        let rows = match from {
            From::Mixed => &self.mixed,
            From::Gates => &self.scratch.gate,
            From::Rows(rows) => rows,
        };
        self.input.backend.project_and_add(rows, end.weight, &mut self.normed, &mut self.x)
    }

    /// Replaces the rows under the norm by a projection with its adapters and its bias.
    fn project_end(&mut self, end: &End<'_>, from: From<'_, B::Rows>) -> Result<(), WeightError> {
        let backend = self.input.backend;
        let rows = match from {
            From::Mixed => &self.mixed,
            From::Gates => &self.scratch.gate,
            From::Rows(rows) => rows,
        };
        backend.project(rows, &mut [(end.weight, &mut self.normed)])?;
        let changed = &mut [(end.projection, &mut self.normed)];
        self.adapted.add(backend, end.layer, (rows, self.n_rows), changed)?;
        backend.add_bias(&mut self.normed, end.bias);
        Ok(())
    }

    /// Adds the output of half a layer to the residual stream.
    pub(super) fn add_half(&mut self, post_norm: &[f32]) {
        let PassInput { backend, config, .. } = self.input;
        backend.norm_heads(&mut self.normed, post_norm, config.norm_eps);
        backend.scale(&mut self.normed, config.residual_scale);
        backend.add(&mut self.x, &self.normed);
    }

    /// Computes the second half of a layer.
    pub(super) fn feed_forward(&mut self, layer: usize, weights: &FfnWeights<'_>) -> Result<(), WeightError> {
        let PassInput { backend, config, .. } = self.input;
        let norm = Norm { weight: weights.norm, eps: config.norm_eps };
        match &weights.body {
            FfnBody::Dense(network) => {
                self.hint_next_layer(layer);
                self.gates(layer, Some(norm), network)?;
                self.end_half(&down(layer, network, weights.post_norm), From::Gates)?;
            }
            FfnBody::Experts(mixture) => {
                backend.rms_norm(&self.x, norm.weight, norm.eps, &mut self.normed);
                let dense = match &mixture.beside {
                    Some(beside) => Some(self.beside(layer, beside)?),
                    None => None,
                };
                if let Some(experts) = config.experts_at(layer) {
                    self.normed = self.mixture(layer, experts, mixture)?;
                }
                if let (Some(beside), Some(dense)) = (&mixture.beside, dense) {
                    backend.norm_heads(&mut self.normed, beside.expert_post_norm, config.norm_eps);
                    backend.add(&mut self.normed, &dense);
                }
                self.add_half(weights.post_norm);
            }
        }
        if let Some(input) = &weights.input {
            self.add_input(layer, input)?;
        }
        backend.scale(&mut self.x, weights.scale);
        Ok(())
    }

    /// Replaces the rows under the norm by the result of a dense network.
    pub(super) fn dense(&mut self, layer: usize, network: &GatedWeights<'_>) -> Result<(), WeightError> {
        self.gates(layer, None, network)?;
        self.project_end(&down(layer, network, &[]), From::Gates)
    }

    /// Computes the gates of a dense network: of the residual stream under a norm, or of the rows that are
    /// under one already.
    fn gates(
        &mut self,
        layer: usize,
        norm: Option<Norm<'_>>,
        network: &GatedWeights<'_>,
    ) -> Result<(), WeightError> {
        let PassInput { backend, config, .. } = self.input;
        let activation = config.family.activation;
        let Gated { gate, up, .. } = &mut self.scratch;
        let [gate_bias, up_bias, _] = network.biases;
        if let Some(norm) =
            norm.filter(|_| gate_bias.is_empty() && up_bias.is_empty() && self.adapted.is_empty())
        {
            let into = [(network.gate, gate), (network.up, up)];
            return backend.norm_and_gate(&self.x, norm, &mut self.normed, activation, into);
        }
        let into = &mut [(network.gate, &mut *gate), (network.up, &mut *up)];
        match norm {
            Some(norm) => backend.norm_and_project(&self.x, norm, &mut self.normed, into)?,
            None => backend.project(&self.normed, into)?,
        }
        let changed = &mut [(Projection::Gate, gate), (Projection::Up, up)];
        self.adapted.add(backend, layer, (&self.normed, self.n_rows), changed)?;
        self.scratch.activate(backend, network, activation);
        Ok(())
    }
}

/// Returns the projection that ends a dense network.
fn down<'a>(layer: usize, network: &GatedWeights<'a>, post_norm: &'a [f32]) -> End<'a> {
    let (weight, bias) = (network.down, network.biases[2]);
    End { layer, projection: Projection::Down, weight, bias, post_norm }
}
