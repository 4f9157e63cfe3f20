//! The first half of a recurrent layer: what it makes of the residual stream, and of the sequences' states.
//!
//! Every row passes through it, also those whose result nobody wants: later states depend on them.

use super::Pass;
use crate::backend::{Backend, DeltaInput, Recurrence};
use crate::config::RecurrentKind;
use crate::weights::{
    DeltaGates, DeltaNetWeights, Part, RecurrentWeights, ShortConvWeights, Weight, WeightError,
};

/// The output of a recurrent layer before its last projection.
pub(super) struct Recurred<'a, R> {
    /// `[t, width of the projection]`.
    rows: R,
    /// `[e, width]`.
    output: Weight<'a>,
}

impl<B: Backend> Pass<'_, B> {
    /// Computes the recurrent half of a layer for every row and fills the states.
    pub(super) fn recur<'w>(
        &mut self,
        kv: &mut B::Kv,
        layer: usize,
        weights: &RecurrentWeights<'w>,
    ) -> Result<Recurred<'w, B::Rows>, WeightError> {
        let (backend, config) = (self.input.backend, self.input.config);
        let norm = match weights {
            RecurrentWeights::ShortConv(weights) => weights.norm,
            RecurrentWeights::DeltaNet(weights) => weights.norm,
        };
        backend.rms_norm(&self.x, norm, config.norm_eps, &mut self.normed);
        match weights {
            RecurrentWeights::ShortConv(weights) => self.short_conv(kv, layer, weights),
            RecurrentWeights::DeltaNet(weights) => self.delta_net(kv, layer, weights),
        }
    }

    fn recurrence<'a>(&'a self, layer: usize, taps: &'a [f32]) -> Recurrence<'a> {
        Recurrence { layer, spans: self.input.spans, moves: self.input.moves, taps }
    }

    fn short_conv<'w>(
        &self,
        kv: &mut B::Kv,
        layer: usize,
        weights: &ShortConvWeights<'w>,
    ) -> Result<Recurred<'w, B::Rows>, WeightError> {
        let (backend, e) = (self.input.backend, self.input.config.d_model);
        let mut bcx = backend.rows(self.n_rows, 3 * e);
        backend.project(&self.normed, &mut [(weights.input, &mut bcx)])?;
        let mut rows = backend.rows(self.n_rows, e);
        backend.short_conv(kv, &self.recurrence(layer, weights.taps), &bcx, &mut rows);
        Ok(Recurred { rows, output: weights.output })
    }

    fn delta_net<'w>(
        &self,
        kv: &mut B::Kv,
        layer: usize,
        weights: &DeltaNetWeights<'w>,
    ) -> Result<Recurred<'w, B::Rows>, WeightError> {
        let (backend, config) = (self.input.backend, self.input.config);
        let Some((recurrent, RecurrentKind::DeltaNet(net))) =
            config.recurrent.as_ref().map(|recurrent| (recurrent, &recurrent.kind))
        else {
            return Err(WeightError::WrongPart(Part::Attention));
        };
        let rows = |width| backend.rows(self.n_rows, width);
        let (n, values) = (net.value_heads, net.d_values());
        let (mut qkv, mut gate, mut out) = (rows(recurrent.channels), rows(values), rows(values));
        let (mut beta, mut alpha) = (rows(n), rows(n));
        match weights.gates {
            DeltaGates::Joint(joint) => {
                let mut both = rows(2 * n);
                let into = &mut [(weights.qkv, &mut qkv), (weights.gate, &mut gate), (joint, &mut both)];
                backend.project(&self.normed, into)?;
                backend.split(&both, n / net.key_heads, &mut beta, &mut alpha);
            }
            DeltaGates::Apart([to_beta, to_alpha]) => backend.project(
                &self.normed,
                &mut [
                    (weights.qkv, &mut qkv),
                    (weights.gate, &mut gate),
                    (to_beta, &mut beta),
                    (to_alpha, &mut alpha),
                ],
            )?,
        }
        let input = DeltaInput {
            net,
            qkv: &qkv,
            beta: &beta,
            alpha: &alpha,
            alpha_bias: weights.alpha_bias,
            decay: weights.decay,
            eps: config.norm_eps,
        };
        backend.delta_net(kv, &self.recurrence(layer, weights.taps), &input, &mut out);
        backend.norm_heads(&mut out, weights.output_norm, config.norm_eps);
        backend.swiglu(&mut gate, &out);
        Ok(Recurred { rows: gate, output: weights.output })
    }

    /// Adds the projected output of a recurrent layer to the residual stream; in the last layer only for the
    /// wanted rows, which are all that is left then.
    pub(super) fn mix_recurred(
        &mut self,
        recurred: Recurred<'_, B::Rows>,
        last: bool,
    ) -> Result<(), WeightError> {
        let (backend, before) = (self.input.backend, self.n_rows);
        let Recurred { mut rows, output } = recurred;
        if last {
            self.keep_wanted();
            if self.n_rows < before {
                rows = backend.gather(&rows, &self.wanted_rows());
            }
        }
        backend.project(&rows, &mut [(output, &mut self.normed)])?;
        backend.add(&mut self.x, &self.normed);
        Ok(())
    }
}
