//! The input that each layer has of its own from every token, beside the residual stream.
//!
//! It is made once for all layers: a row of a table for the token, and a projection of its embedding. A layer
//! adds it after its two halves, gated by the residual stream. Source: Google 2025, the reference code of
//! Gemma 3n.

use std::f32::consts::FRAC_1_SQRT_2;

use super::{Backend, Pass, PassInput};
use crate::weights::{OwnInput, WeightError};

/// Returns the inputs of all layers for every row, `[t, l p]`, given the embeddings `x`; `None` if the model
/// has none.
pub(super) fn inputs_of_layers<B: Backend>(
    input: &PassInput<'_, B>,
    x: &B::Rows,
) -> Result<Option<B::Rows>, WeightError> {
    let PassInput { backend, config, source, ids, .. } = input;
    let (Some(width), Some(weights)) = (config.input_width, source.inputs()?) else { return Ok(None) };
    let rows = || backend.rows(ids.len(), width * config.n_layers);
    let (mut of_tokens, mut inputs) = (rows(), rows());
    backend.embed(&weights.table, ids, &mut of_tokens);
    backend.scale(&mut of_tokens, (width as f32).sqrt());
    backend.project(x, &mut [(weights.projection, &mut inputs)])?;
    backend.scale(&mut inputs, 1.0 / (config.d_model as f32).sqrt());
    backend.norm_heads(&mut inputs, weights.norm, config.norm_eps);
    backend.add(&mut inputs, &of_tokens);
    backend.scale(&mut inputs, FRAC_1_SQRT_2);
    Ok(Some(inputs))
}

impl<B: Backend> Pass<'_, B> {
    /// Adds the layer's own input to the residual stream.
    pub(super) fn add_input(&mut self, layer: usize, weights: &OwnInput<'_>) -> Result<(), WeightError> {
        let PassInput { backend, config, .. } = self.input;
        let (Some(inputs), Some(width)) = (&self.inputs, config.input_width) else { return Ok(()) };
        let mut gate = backend.rows(self.n_rows, width);
        backend.project(&self.x, &mut [(weights.gate, &mut gate)])?;
        let own = backend.take(inputs, width * config.n_layers, layer * width..(layer + 1) * width);
        backend.geglu(&mut gate, &own);
        backend.project(&gate, &mut [(weights.projection, &mut self.normed)])?;
        self.add_half(weights.post_norm);
        Ok(())
    }
}
