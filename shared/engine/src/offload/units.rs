//! The units of a model: what is loaded at once.
//!
//! PIPO loads attention and feed-forward weights as two units. They differ in size, so the load of a small
//! one does not fill the time in which a large one is computed. Here a unit is one matrix, or an expert. So
//! several are on their way in the memory of one feed-forward layer.

use std::cell::RefCell;

use baton_kernels_gpu::{Device, Piece, pieces};

use crate::weights::{MappedWeights, MatrixAt, Part, WeightError};

/// A unit: a matrix, or those of an expert.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub(super) matrices: Vec<MatrixAt>,
}

/// Returns the matrices of a part, in the order in which a pass uses them.
fn matrices(weights: &MappedWeights, layer: usize, part: Part) -> Result<Vec<MatrixAt>, WeightError> {
    let found = RefCell::new(Vec::new());
    weights.each_of(layer, part, &|at| found.borrow_mut().push(at))?;
    Ok(found.into_inner())
}

impl Unit {
    /// Returns the units of a layer, without its experts.
    pub(super) fn of_layer(weights: &MappedWeights, layer: usize) -> Result<Vec<Self>, WeightError> {
        let mut all = matrices(weights, layer, Part::Attention)?;
        all.extend(matrices(weights, layer, Part::Ffn)?);
        Ok(all.into_iter().map(|matrix| Self { matrices: vec![matrix] }).collect())
    }

    /// Returns an expert.
    pub(super) fn of_expert(
        weights: &MappedWeights,
        layer: usize,
        expert: usize,
    ) -> Result<Self, WeightError> {
        Ok(Self { matrices: matrices(weights, layer, Part::Expert(expert))? })
    }

    /// Returns the stored bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.matrices.iter().map(|at| at.extent().1.len() as u64).sum()
    }

    /// Returns the pieces of each matrix that bindings of the device hold.
    pub(super) fn pieces(&self, device: &dyn Device) -> Vec<Vec<Piece>> {
        self.matrices.iter().map(|at| pieces(device, at.format, at.rows, at.cols)).collect()
    }
}
