//! How many bytes parts of a model have.

use super::MappedWeights;

impl MappedWeights {
    /// Returns the stored bytes of all matrices of a layer, experts included.
    pub(crate) fn layer_bytes(&self, layer: usize) -> u64 {
        let matrices = self.matrices(layer).into_iter().chain(self.expert_matrices(layer));
        matrices.map(|at| self.bytes(&at).len() as u64).sum()
    }

    /// Returns the stored bytes of the projection to logits.
    pub(crate) fn output_bytes(&self) -> u64 {
        self.bytes(self.head_at()).len() as u64
    }
}
