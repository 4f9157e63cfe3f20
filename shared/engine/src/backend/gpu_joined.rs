//! Steps of the GPU backend that are computed at once: several products of the same rows, and what comes
//! before and after them.
//!
//! Launches cost a few microseconds each, which is most of what small products take. A device that
//! [joins](baton_kernels_gpu::Device::joins) gives the same bits in fewer of them.

use std::collections::HashMap;
use std::sync::Arc;

use baton_kernels_gpu::ops::{self, Input};
use baton_kernels_gpu::{Buffer, DeviceMatrix, Quantized, ZipOp};

use super::gpu::{GpuBackend, GpuRows};
use super::gpu_kv::GpuKv;
use super::{Backend, Norm, SeqSpan};
use crate::family::Activation;
use crate::weights::{Weight, WeightError};

/// The most matrices of one launch.
const JOINED_MAX: usize = 3;

/// Rounded rows, by the length of their blocks.
type RoundedRows = HashMap<usize, Quantized>;

impl GpuBackend {
    /// Whether products of these matrices with `t` rows can be joined. Matrices that are loaded for their use
    /// are used one by one.
    fn joins(&self, matrices: &[&DeviceMatrix], t: usize) -> bool {
        self.loads.get().is_none() && ops::can_join(self.dev(), matrices, t)
    }

    /// Returns the weight in the device's memory.
    fn resident(&self, weight: &Weight<'_>) -> Result<Arc<DeviceMatrix>, WeightError> {
        let matrix = self.matrix(&weight.at_hand()?)?;
        assert_eq!(matrix.rows(), weight.rows(), "GPU layers take their weights from the mapped file");
        Ok(matrix)
    }

    /// Sets `normed`, and returns what is rounded of it by the way.
    pub(super) fn norm_rounded(
        &self,
        x: &GpuRows,
        norm: Norm<'_>,
        normed: &mut GpuRows,
        block: usize,
    ) -> RoundedRows {
        if block == 1 || !x.width.is_multiple_of(block) || !self.device().joins() {
            self.rms_norm(x, norm.weight, norm.eps, normed);
            return HashMap::new();
        }
        let (weight, out) = (self.vector(norm.weight), (&normed.data, block));
        let rounded = ops::norm_rounded(self.dev(), &x.data, (&weight, x.width), norm.eps, x.t, out);
        HashMap::from([(block, rounded)])
    }

    /// Sets each output to `x W^T`, given what is rounded of `x` already.
    pub(super) fn project_rounded(
        &self,
        x: &GpuRows,
        mut rounded: RoundedRows,
        into: &mut [(Weight<'_>, &mut GpuRows)],
    ) -> Result<(), WeightError> {
        // Matrices of one format, which is that of the rounded rows.
        let mut waiting: Vec<(Arc<DeviceMatrix>, Buffer)> = Vec::new();
        for (weight, out) in into {
            let matrix = self.resident(weight)?;
            let block = matrix.format().block_len();
            if block > 1 {
                let new = || ops::quantize(self.dev(), &x.data, x.t, x.width, block);
                rounded.entry(block).or_insert_with(new);
            }
            let mut all: Vec<&DeviceMatrix> = waiting.iter().map(|(matrix, _)| &**matrix).collect();
            all.push(&matrix);
            if all.len() > JOINED_MAX || !self.joins(&all, x.t) {
                self.multiply(x, &rounded, &waiting);
                waiting.clear();
            }
            waiting.push((matrix, out.data.clone()));
            if self.loads.get().is_some() {
                self.multiply(x, &rounded, &waiting);
                waiting.clear();
            }
        }
        self.multiply(x, &rounded, &waiting);
        self.fault()
    }

    /// Multiplies by matrices that join, or by one.
    fn multiply(&self, x: &GpuRows, rounded: &RoundedRows, into: &[(Arc<DeviceMatrix>, Buffer)]) {
        match into {
            [] => {}
            [(matrix, out)] => {
                let input = rounded.get(&matrix.format().block_len()).map(Input::Quantized);
                ops::matmul(self.dev(), matrix, input.unwrap_or(Input::Floats(&x.data)), x.t, out);
            }
            [(first, _), ..] => {
                let into: Vec<(&DeviceMatrix, &Buffer)> =
                    into.iter().map(|(matrix, out)| (&**matrix, out)).collect();
                ops::matmul_apart(self.dev(), &into, &rounded[&first.format().block_len()], x.t);
            }
        }
    }

    /// Sets `out = act(x gate^T) * (x up^T)` of rounded rows, if that is one step. Returns whether it is.
    pub(super) fn gate_joined(
        &self,
        rounded: &RoundedRows,
        activation: Activation,
        (gate, up): (Weight<'_>, Weight<'_>),
        out: &GpuRows,
    ) -> Result<bool, WeightError> {
        let Some(x) = rounded.get(&gate.format().block_len()).filter(|_| self.loads.get().is_none()) else {
            return Ok(false);
        };
        let (gate, up) = (self.resident(&gate)?, self.resident(&up)?);
        if gate.rows() != up.rows() || !self.joins(&[&gate, &up], out.t) {
            return Ok(false);
        }
        let op = match activation {
            Activation::Silu => ZipOp::Swiglu,
            Activation::Gelu => ZipOp::Geglu,
            Activation::ClampedSilu => ZipOp::SwigluClamped,
        };
        ops::matmul_gated(self.dev(), op, (&gate, &up), (x, out.t), &out.data);
        Ok(true)
    }

    /// Adds `y W^T` to `x`, if that is one step. Returns whether it is.
    pub(super) fn add_joined(
        &self,
        y: &GpuRows,
        weight: Weight<'_>,
        x: &GpuRows,
    ) -> Result<bool, WeightError> {
        if self.loads.get().is_some() {
            return Ok(false);
        }
        let matrix = self.resident(&weight)?;
        if !self.joins(&[&matrix], y.t) {
            return Ok(false);
        }
        let rounded = ops::quantize(self.dev(), &y.data, y.t, y.width, matrix.format().block_len());
        ops::matmul_added(self.dev(), &matrix, &rounded, y.t, &x.data);
        Ok(true)
    }

    /// Returns the row and the slot of each new token, and how many there are.
    pub(super) fn places(&self, spans: &[SeqSpan]) -> (Buffer, usize) {
        let places: Vec<u32> =
            spans.iter().flat_map(GpuKv::places).flat_map(|(row, slot)| [row as u32, slot as u32]).collect();
        let t = places.len() / 2;
        (self.shared_table(places), t)
    }
}
