//! Matrices as they are stored, which a GPU copies, and how many bytes they have.

use std::sync::Arc;

use baton_kernels_cpu::Matrix;

use super::{FfnAt, MappedWeights, MatrixAt};
use crate::gguf::Gguf;
use crate::weights::{Part, PartWeights, WeightError};

impl MappedWeights {
    /// Returns the stored bytes of all matrices of a layer, experts included.
    pub(crate) fn layer_bytes(&self, layer: usize) -> u64 {
        let matrices = self.matrices(layer).into_iter().chain(self.expert_matrices(layer));
        matrices.map(|at| self.bytes(&at).len() as u64).sum()
    }

    /// Calls `each` with every matrix of a part, and the rows of it that the part has.
    ///
    /// # Errors
    /// [`WeightError::NoSuchLayer`] and [`WeightError::NoSuchExpert`].
    pub(crate) fn each_of(
        &self,
        layer: usize,
        part: Part,
        each: &dyn Fn(MatrixAt),
    ) -> Result<(), WeightError> {
        let found = self.part(layer, part, &|at, rows| {
            let at = at.rows(rows);
            each(at);
            Ok(self.stored(&at)?.into())
        });
        found.map(drop)
    }

    /// Returns a part with its matrices as they are in the file, also those that have a repacked copy.
    ///
    /// # Errors
    /// As [`Self::each_of`].
    pub(crate) fn stored_part(&self, layer: usize, part: Part) -> Result<PartWeights<'_>, WeightError> {
        self.part(layer, part, &|at, rows| Ok(self.stored(&at.rows(rows))?.into()))
    }

    pub(super) fn stored(&self, at: &MatrixAt) -> Result<Matrix<'_>, WeightError> {
        Ok(Matrix::new(at.format, at.rows, at.cols, self.bytes(at))?)
    }

    /// Whether a layer has a mixture of experts.
    pub(crate) fn has_experts(&self, layer: usize) -> bool {
        matches!(self.layers.get(layer).map(|at| &at.ffn), Some(FfnAt::Experts { .. }))
    }

    /// Returns the file.
    pub(crate) fn file(&self) -> &Arc<Gguf> {
        &self.gguf
    }

    /// Returns the stored bytes of the projection to logits.
    pub(crate) fn output_bytes(&self) -> u64 {
        self.bytes(self.head_at()).len() as u64
    }
}
