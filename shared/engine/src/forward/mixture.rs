//! A mixture of experts in the forward pass: routing, each chosen expert, the shared expert.

use super::{Backend, Gated, Pass, PassInput};
use crate::config::Experts;
use crate::routing::{ExpertRows, route, sigmoid};
use crate::weights::{BesideWeights, GatedWeights, MixtureWeights, Part, SharedExpert, WeightError};

impl<B: Backend> Pass<'_, B> {
    /// Computes the experts' output for the rows: each expert once, for all of its rows, in the order of
    /// their ids.
    pub(super) fn mixture(
        &self,
        layer: usize,
        experts: &Experts,
        weights: &MixtureWeights<'_>,
    ) -> Result<B::Rows, WeightError> {
        let PassInput { backend, config, source, .. } = self.input;
        let mut logits = backend.rows(self.n_rows, experts.count);
        let routed = weights.beside.as_ref().map(|beside| self.under_norm(beside.router_norm));
        let routed = routed.as_ref().unwrap_or(&self.normed);
        backend.project(routed, &mut [(weights.router, &mut logits)])?;
        backend.add_bias(&mut logits, weights.router_bias);
        let mut routes = route(backend.read(logits)?, experts, weights.choice_bias);
        let expert_factors = weights.beside.as_ref().map_or(&[][..], |beside| beside.expert_factors);
        for route in &mut routes {
            if let Some(factor) = expert_factors.get(route.expert) {
                route.factors.iter_mut().for_each(|own| *own *= factor);
            }
        }
        let mut sum = backend.zeros(self.n_rows, config.d_model);
        if let Some(first) = routes.first() {
            source.hint(layer, Part::Expert(first.expert));
        }
        // Computed while the first expert is on its way, and added behind the experts.
        let shared = match (&weights.shared, experts.shared_d_ff) {
            (Some(shared), Some(f)) => {
                let own = self.shared_rows(shared)?;
                Some((self.expert_output(&shared.network, f, &own)?, own))
            }
            _ => None,
        };
        for (at, route) in routes.iter().enumerate() {
            match routes.get(at + 1) {
                Some(next) => source.hint(layer, Part::Expert(next.expert)),
                None => self.hint_next_layer(layer),
            }
            let network = source.acquire(layer, Part::Expert(route.expert))?.expert(route.expert)?;
            let out = self.expert_output(&network, experts.d_ff, route)?;
            backend.add_scaled(&mut sum, &route.rows, &route.factors, &out);
        }
        if let Some((out, own)) = shared {
            backend.add_scaled(&mut sum, &own.rows, &own.factors, &out);
        }
        Ok(sum)
    }

    /// Returns the output of the dense network beside experts, and leaves the experts' input in its place.
    pub(super) fn beside(
        &mut self,
        layer: usize,
        weights: &BesideWeights<'_>,
    ) -> Result<B::Rows, WeightError> {
        let PassInput { backend, config, .. } = self.input;
        self.dense(layer, &weights.network)?;
        backend.norm_heads(&mut self.normed, weights.post_norm, config.norm_eps);
        let input = self.under_norm(weights.expert_norm);
        Ok(std::mem::replace(&mut self.normed, input))
    }

    /// Returns the residual stream under a norm.
    fn under_norm(&self, norm: &[f32]) -> B::Rows {
        let PassInput { backend, config, .. } = self.input;
        let mut rows = backend.rows(self.n_rows, config.d_model);
        backend.rms_norm(&self.x, norm, config.norm_eps, &mut rows);
        rows
    }

    /// Returns the output of an expert of width `f` for the rows that it has.
    fn expert_output(
        &self,
        network: &GatedWeights<'_>,
        f: usize,
        own: &ExpertRows,
    ) -> Result<B::Rows, WeightError> {
        let PassInput { backend, config, .. } = self.input;
        let x = backend.gather(&self.normed, &own.rows);
        let mut scratch = Gated::new(backend, own.rows.len(), f);
        scratch.project(backend, network, &x)?;
        scratch.activate(backend, network, config.family.activation);
        let mut out = backend.rows(own.rows.len(), config.d_model);
        backend.project(&scratch.gate, &mut [(network.down, &mut out)])?;
        backend.add_bias(&mut out, network.biases[2]);
        Ok(out)
    }

    /// Returns all rows, with the factors of the shared expert.
    fn shared_rows(&self, shared: &SharedExpert<'_>) -> Result<ExpertRows, WeightError> {
        let backend = self.input.backend;
        let mut factors = vec![1.0; self.n_rows];
        if let Some(weight) = shared.gate {
            let mut gate = backend.rows(self.n_rows, 1);
            backend.project(&self.normed, &mut [(weight, &mut gate)])?;
            factors = backend.read(gate)?;
            sigmoid(&mut factors);
        }
        Ok(ExpertRows { expert: 0, rows: (0..self.n_rows).collect(), factors })
    }
}
