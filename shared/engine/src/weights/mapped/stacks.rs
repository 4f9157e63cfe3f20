//! The experts of a layer as they lie in the file, one behind the other, and what a GPU needs beside them.

use baton_kernels_gpu::{Device, stack_buffers};

use super::{FfnAt, MappedWeights, MatrixAt};
use crate::weights::{ExpertMatrices, ExpertStacks, WeightError};

/// How the experts of a layer lie in a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpertsOnGpu {
    /// As in the file, if a binding of the device holds a matrix.
    Stacked,
    /// Each matrix by itself.
    Apart,
}

impl MappedWeights {
    /// Returns all experts of a layer, as they are in the file; `None` if it has none.
    pub(super) fn stacks(&self, layer: usize) -> Result<Option<ExpertStacks<'_>>, WeightError> {
        let Some(FfnAt::Experts { stacked, fused, count, .. }) = self.layers.get(layer).map(|at| &at.ffn)
        else {
            return Ok(None);
        };
        let of = |at: &MatrixAt, each: usize, place: usize| -> Result<ExpertMatrices<'_>, WeightError> {
            Ok(ExpertMatrices { all: self.stored(at)?, each, at: place })
        };
        let each = if *fused { 2 } else { 1 };
        Ok(Some(ExpertStacks {
            count: *count,
            gate: of(&stacked.gate, each, 0)?,
            up: of(&stacked.up, each, each - 1)?,
            down: of(&stacked.down, 1, 0)?,
            biases: stacked.biases.each_ref().map(Vec::as_slice),
        }))
    }

    /// Returns the bytes by which a layer's matrices take more of a device's memory than they have: sizes of
    /// buffers are rounded up, and experts begin at aligned places.
    pub(crate) fn layer_rounding(&self, layer: usize, device: &dyn Device, experts: ExpertsOnGpu) -> u64 {
        let round = |bytes: u64| device.rounding_bytes(bytes);
        let plain: u64 = self.matrices(layer).iter().map(|at| round(self.bytes(at).len() as u64)).sum();
        let Some(FfnAt::Experts { fused, count, .. }) = self.layers.get(layer).map(|at| &at.ffn) else {
            return plain;
        };
        let of_stack = |(i, at): (usize, &MatrixAt)| {
            let (parts, stored) = (if *fused && i == 0 { 2 * count } else { *count }, self.bytes(at).len());
            let shape = (at.rows / parts, at.cols);
            let stacked = (experts == ExpertsOnGpu::Stacked)
                .then(|| stack_buffers(device, at.format, shape, parts))
                .flatten();
            match stacked {
                Some(buffers) => {
                    let all: u64 = buffers.iter().map(|(_, bytes)| bytes + round(*bytes)).sum();
                    all - stored as u64
                }
                None => parts as u64 * round((stored / parts) as u64),
            }
        };
        plain + self.expert_matrices(layer).iter().enumerate().map(of_stack).sum::<u64>()
    }

    /// Returns the bytes of the biases of a layer's experts.
    pub(crate) fn expert_bias_bytes(&self, layer: usize) -> u64 {
        match self.layers.get(layer).map(|at| &at.ffn) {
            Some(FfnAt::Experts { stacked, .. }) => {
                stacked.biases.iter().map(|bias| size_of_val(bias.as_slice()) as u64).sum()
            }
            _ => 0,
        }
    }
}
