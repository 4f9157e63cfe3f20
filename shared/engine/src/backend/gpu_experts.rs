//! Mixtures of experts on the GPU: the choice of experts, and for few rows their products.
//!
//! The device chooses, whatever the number of rows, so that a row has the same experts and factors in every
//! batch. With few rows the host does not learn what was chosen: one kernel multiplies each row by the
//! matrices of its experts. With more, rows are grouped by expert, and each expert's matrices are read once.
//! The matrices are the same memory, and the bits are the same.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use baton_kernels_gpu::ops::{self, Chosen, Input, TILED_TOKENS_MIN};
use baton_kernels_gpu::{DeviceStack, GpuError, MapOp, Quantized};

use super::Backend;
use super::gpu::{GpuBackend, GpuRows, MatrixPlace};
use crate::family::Activation;
use crate::routing::{ExpertRows, Router, by_expert};
use crate::weights::{ExpertMatrices, ExpertStacks, WeightError};

/// Chosen experts in the device's memory: for each row, ids in ascending order with the bits of factors.
#[derive(Debug)]
pub(crate) struct GpuRoutes {
    /// `[t, used, 2]` words.
    words: GpuRows,
    /// Experts of the layer.
    count: usize,
}

impl GpuRoutes {
    /// Returns how many experts each row has.
    fn used(&self) -> usize {
        self.words.width / 2
    }
}

impl GpuBackend {
    /// Chooses experts by their router's numbers.
    pub(super) fn chosen(&self, logits: &GpuRows, router: &Router<'_>) -> GpuRoutes {
        let (routing, count) = (router.experts.routing(), router.experts.count);
        let vector = |numbers: &[f32]| (!numbers.is_empty()).then(|| self.vector(numbers));
        let (bias, own) = (vector(router.choice_bias), vector(router.expert_factors));
        let rules = (bias.as_ref(), own.as_ref());
        let data = ops::route(self.dev(), &logits.data, (logits.t, count), &routing, rules);
        GpuRoutes { words: GpuRows { data, t: logits.t, width: 2 * routing.used }, count }
    }

    /// Waits for the choice, and groups its rows.
    pub(super) fn chosen_rows(&self, routes: &GpuRoutes) -> Result<Vec<ExpertRows>, WeightError> {
        let mut bytes = vec![0; 4 * routes.words.t * routes.words.width];
        self.read_bytes(&routes.words.data, &mut bytes)?;
        let pairs: Vec<(usize, f32)> = bytes
            .as_chunks()
            .0
            .iter()
            .map(|pair: &[u8; 8]| {
                let [id, factor] = [0, 4].map(|at| [0, 1, 2, 3].map(|i| pair[at + i]));
                (u32::from_le_bytes(id) as usize, f32::from_le_bytes(factor))
            })
            .collect();
        if let Some((id, _)) = pairs.iter().find(|(id, _)| *id >= routes.count) {
            return Err(GpuError::Lost(format!("it chose expert {id} of {}", routes.count)).into());
        }
        Ok(by_expert(routes.count, pairs.chunks(routes.used()).map(|row| row.iter().copied())))
    }

    /// Returns the matrices of all experts in the device's memory; each is found by its own place from then
    /// on. `None` if a binding of the device does not hold one of them.
    fn stack(&self, experts: usize, matrices: &ExpertMatrices<'_>) -> Option<Arc<DeviceStack>> {
        let ExpertMatrices { all, each, .. } = matrices;
        let count = experts * each;
        let mut stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let stack = DeviceStack::new(self.dev(), all, count).map(Arc::new)?;
            let places = all.bytes().chunks_exact(all.bytes().len() / count).map(MatrixPlace::of);
            let parts: Vec<_> = places.zip(stack.matrices().map(Arc::new)).collect();
            self.matrices().add(&parts);
            Some(stack)
        };
        stacks.entry(MatrixPlace::of(all.bytes())).or_insert_with(new).clone()
    }

    /// Returns the stacks of gate, up and down, unless weights are loaded for their use.
    fn stacks_of(&self, experts: &ExpertStacks<'_>) -> Option<[Arc<DeviceStack>; 3]> {
        if self.loads.get().is_some() {
            return None;
        }
        let [gate, up, down] =
            [&experts.gate, &experts.up, &experts.down].map(|matrices| self.stack(experts.count, matrices));
        Some([gate?, up?, down?])
    }

    /// Adds each row's experts to its sum, if the experts stay in the device's memory and the rows are few.
    /// Returns whether they are.
    pub(super) fn add_chosen(
        &self,
        x: &GpuRows,
        experts: &ExpertStacks<'_>,
        routes: &GpuRoutes,
        activation: Activation,
        sum: &GpuRows,
    ) -> Result<bool, WeightError> {
        // Also if the rows are many: the experts are parts of the stacks then.
        let Some([gate, up, down]) = self.stacks_of(experts) else { return Ok(false) };
        let (t, used) = (x.t, routes.used());
        let pairs = t * used;
        // With more pairs than experts, too many would read the same matrices by themselves.
        if t >= TILED_TOKENS_MIN || pairs > experts.count {
            return Ok(false);
        }
        let mut gates = self.rows(pairs, gate.rows());
        let ups = self.rows(pairs, up.rows());
        let chosen = |stack, of: &ExpertMatrices<'_>| Chosen { stack, each: of.each, at: of.at };
        let into = [(chosen(&gate, &experts.gate), &gates), (chosen(&up, &experts.up), &ups)];
        self.multiply_chosen((x, used), routes, &into);
        let [gate_bias, up_bias, down_bias] = experts.biases;
        self.add_chosen_bias(&gates, gate_bias, routes);
        self.add_chosen_bias(&ups, up_bias, routes);
        self.activate(activation, &mut gates, &ups);
        let out = self.rows(pairs, sum.width);
        self.multiply_chosen((&gates, 1), routes, &[(chosen(&down, &experts.down), &out)]);
        self.add_chosen_bias(&out, down_bias, routes);
        ops::add_chosen(self.dev(), &sum.data, &out.data, (&routes.words.data, used), (t, sum.width));
        self.fault()?;
        Ok(true)
    }

    /// Multiplies rows, of which each belongs to `used` pairs, by a matrix of each pair's expert.
    fn multiply_chosen(
        &self,
        (x, used): (&GpuRows, usize),
        routes: &GpuRoutes,
        into: &[(Chosen<'_>, &GpuRows)],
    ) {
        let mut rounded: HashMap<usize, Quantized> = HashMap::new();
        for (chosen, out) in into {
            let block = chosen.stack.format().block_len();
            let input = if block == 1 {
                Input::Floats(&x.data)
            } else {
                let new = || ops::quantize(self.dev(), &x.data, x.t, x.width, block);
                Input::Quantized(rounded.entry(block).or_insert_with(new))
            };
            let pairs = (&routes.words.data, x.t * used, used);
            ops::matmul_chosen(self.dev(), *chosen, pairs, input, &out.data);
        }
    }

    fn add_chosen_bias(&self, x: &GpuRows, bias: &[f32], routes: &GpuRoutes) {
        if !bias.is_empty() {
            let bias = self.vector(bias);
            ops::add_chosen_bias(self.dev(), &x.data, &bias, &routes.words.data, (x.t, x.width));
        }
    }

    /// Adds `sigmoid(gate[i])` times row `i` of `y` to row `i` of `x`.
    pub(super) fn add_sigmoid_scaled(&self, x: &GpuRows, gate: &GpuRows, y: &GpuRows) {
        self.map(MapOp::Sigmoid, gate, 0.0);
        let list = self.table(0..x.t);
        ops::add_scaled(self.dev(), &x.data, &y.data, (&list, &gate.data), (x.t, x.width));
    }
}
