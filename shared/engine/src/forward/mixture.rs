//! A mixture of experts in the forward pass: routing, each chosen expert, the shared expert.

use super::{Backend, Gated, Pass, PassInput};
use crate::config::Experts;
use crate::routing::Router;
use crate::weights::{BesideWeights, GatedWeights, MixtureWeights, Part, SharedExpert, WeightError};

impl<B: Backend> Pass<'_, B> {
    /// Computes the experts' output for the rows, of all experts at once if the backend can. Else it computes
    /// each expert once, for all of its rows, in the order of their ids.
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
        let expert_factors = weights.beside.as_ref().map_or(&[][..], |beside| beside.expert_factors);
        let router = Router { experts, choice_bias: weights.choice_bias, expert_factors };
        let routes = backend.route(logits, &router);
        let mut sum = backend.zeros(self.n_rows, config.d_model);
        let is_done = match source.experts(layer)? {
            Some(all) => {
                backend.add_experts(&self.normed, &all, &routes, config.family.activation, &mut sum)?
            }
            None => false,
        };
        let routes = if is_done { Vec::new() } else { backend.by_expert(routes)? };
        match routes.first() {
            Some(first) => source.hint(layer, Part::Expert(first.expert)),
            None => self.hint_next_layer(layer),
        }
        // Computed while the first expert is on its way, and added behind the experts.
        let shared = match (&weights.shared, experts.shared_d_ff) {
            (Some(shared), Some(f)) => Some(self.shared_output(shared, f)?),
            _ => None,
        };
        for (at, route) in routes.iter().enumerate() {
            match routes.get(at + 1) {
                Some(next) => source.hint(layer, Part::Expert(next.expert)),
                None => self.hint_next_layer(layer),
            }
            let network = source.acquire(layer, Part::Expert(route.expert))?.expert(route.expert)?;
            let x = backend.gather(&self.normed, &route.rows);
            let out = self.expert_output(&network, experts.d_ff, (&x, route.rows.len()))?;
            backend.add_scaled(&mut sum, &route.rows, &route.factors, &out);
        }
        match shared {
            Some((out, Some(gate))) => backend.add_gated(&mut sum, gate, &out),
            Some((out, None)) => backend.add(&mut sum, &out),
            None => {}
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

    /// Returns the output of an expert of width `f` for `t` rows.
    fn expert_output(
        &self,
        network: &GatedWeights<'_>,
        f: usize,
        (x, t): (&B::Rows, usize),
    ) -> Result<B::Rows, WeightError> {
        let PassInput { backend, config, .. } = self.input;
        let mut scratch = Gated::new(backend, t, f);
        scratch.project(backend, network, x)?;
        scratch.activate(backend, network, config.family.activation);
        let mut out = backend.rows(t, config.d_model);
        backend.project(&scratch.gate, &mut [(network.down, &mut out)])?;
        backend.add_bias(&mut out, network.biases[2]);
        Ok(out)
    }

    /// Returns the output of the shared expert of width `f` for all rows, and its gate if it has one.
    fn shared_output(
        &self,
        shared: &SharedExpert<'_>,
        f: usize,
    ) -> Result<(B::Rows, Option<B::Rows>), WeightError> {
        let backend = self.input.backend;
        let out = self.expert_output(&shared.network, f, (&self.normed, self.n_rows))?;
        let Some(weight) = shared.gate else { return Ok((out, None)) };
        let mut gate = backend.rows(self.n_rows, 1);
        backend.project(&self.normed, &mut [(weight, &mut gate)])?;
        Ok((out, Some(gate)))
    }
}
