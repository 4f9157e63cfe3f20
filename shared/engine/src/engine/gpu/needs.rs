//! What a GPU needs memory for, and how many layers fit.

use std::sync::Arc;

use baton_kernels_gpu::{Device, ops};

use super::EngineError;
use crate::adapter::Adapter;
use crate::backend::cpu_kv::LayerKv;
use crate::backend::gpu::GROUPS_MIN;
use crate::backend::gpu_kv::GpuKv;
use crate::config::ModelConfig;
use crate::kv::BLOCK_TOKENS;
use crate::model::Model;
use crate::weights::ExpertsOnGpu;

/// The largest step for which memory of a GPU is set aside. Larger ones work too if there is room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSize {
    /// Tokens of all sequences.
    pub tokens: usize,
    /// Rows of logits.
    pub logit_rows: usize,
}

impl Default for StepSize {
    fn default() -> Self {
        Self { tokens: 512, logit_rows: 32 }
    }
}

/// Norms and biases of a layer, in hidden states.
const VECTORS: usize = 12;

/// What needs memory beside the model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beside<'a> {
    /// Blocks of the cache.
    pub(super) n_blocks: usize,
    pub(super) step: StepSize,
    pub(super) adapters: &'a [Arc<Adapter>],
    /// Bytes that were missing before.
    pub(super) spare: u64,
}

/// Bytes that a GPU needs for each part of a model.
pub(super) struct Needs {
    /// By layer: matrices, also those of adapters.
    weights: Vec<u64>,
    /// By layer: what sizes of these are rounded up by, if experts stay and if they are loaded.
    rounding: [Vec<u64>; 2],
    /// By layer: keys and values.
    cache: Vec<u64>,
    /// The projection to logits.
    pub(super) output: u64,
    /// Norms and biases of a layer, those of experts included.
    vectors: u64,
    /// Activations, states of attention, and what was missing before.
    scratch: u64,
    /// What is left to driver and kernels.
    headroom: u64,
}

impl Needs {
    /// Counts what a model needs on a device with `free` bytes.
    pub(super) fn new(
        model: &Model,
        device: &dyn Device,
        (kv, free): (&[LayerKv], u64),
        beside: Beside<'_>,
    ) -> Self {
        let Beside { n_blocks, step, adapters, spare } = beside;
        let config = model.config();
        let weights = model.mapped_weights();
        let cache = |(layer, kv): (usize, &LayerKv)| {
            if kv.source == layer { GpuKv::layer_bytes(kv, n_blocks) } else { 0 }
        };
        let adapted = |layer| adapters.iter().map(|adapter| adapter.layer_bytes(layer)).sum::<u64>();
        let rounding = |experts| {
            (0..kv.len()).map(|layer| weights.layer_rounding(layer, device, experts)).collect::<Vec<_>>()
        };
        // Numbers of routers and their ranks; and pairs of rows and experts, of which there are at most as
        // many as experts.
        let [routed, pairs] = config.experts.map_or([0; 2], |experts| {
            [5 * experts.count, experts.count * (3 * experts.d_ff + 2 * config.d_model)]
        });
        let widest = 8 * config.d_model + 4 * config.d_q() + 3 * config.d_ff + routed;
        let numbers = step.tokens * widest + step.logit_rows * config.vocab_len + pairs;
        // Few rows take the biases of all experts at once, many rows those of each.
        let biases = (0..kv.len()).map(|layer| 2 * weights.expert_bias_bytes(layer)).max().unwrap_or(0);
        let keys = n_blocks * BLOCK_TOKENS;
        let states = |kv: &LayerKv| {
            ops::attend_states_bytes(GROUPS_MIN.div_ceil(kv.n_kv_heads), (kv.n_kv_heads, kv.d_head), keys)
        };
        Self {
            weights: (0..kv.len()).map(|layer| weights.layer_bytes(layer) + adapted(layer)).collect(),
            rounding: [ExpertsOnGpu::Stacked, ExpertsOnGpu::Apart].map(rounding),
            cache: kv.iter().enumerate().map(cache).collect(),
            output: weights.output_bytes(),
            vectors: 4 * (VECTORS * config.d_model + config.d_ff) as u64 + biases,
            scratch: 4 * numbers as u64 + kv.iter().map(states).max().unwrap_or(0) + spare,
            headroom: device.headroom_bytes().min(free / 4),
        }
    }

    /// Returns the bytes that remain for weights, keys and values of these layers, if some are loaded for
    /// their use.
    pub(super) fn room(&self, layers: &[usize], free: u64) -> Result<u64, EngineError> {
        self.room_of(layers, free, &self.rounding[1])
    }

    fn room_of(&self, layers: &[usize], free: u64, rounding: &[u64]) -> Result<u64, EngineError> {
        let rounding: u64 = layers.iter().map(|layer| rounding[*layer]).sum();
        let need = layers.len() as u64 * self.vectors + self.scratch + self.headroom.max(rounding);
        let none = || EngineError::GpuRefused {
            reason: format!("activations need {need} bytes of the GPU's memory, and {free} are free"),
        };
        free.checked_sub(need).ok_or_else(none)
    }

    /// Returns the bytes of `free` that these layers do not need; `None` if they do not fit.
    pub(super) fn left(&self, layers: &[usize], output: bool, free: u64) -> Option<u64> {
        let need: u64 = layers.iter().map(|layer| self.weights[*layer] + self.cache[*layer]).sum();
        let ends = layers.last().is_some_and(|layer| layer + 1 == self.weights.len());
        let output = if output && ends { self.output } else { 0 };
        self.room_of(layers, free, &self.rounding[0]).ok()?.checked_sub(need + output)
    }

    /// Returns the longest run of the last of `layers`, but at most `most`, that fits `free` bytes.
    pub(super) fn fitting(&self, layers: &[usize], (most, output): (usize, bool), free: u64) -> Vec<usize> {
        let least = layers.len().saturating_sub(most);
        let mut runs = (least..layers.len()).map(|first| &layers[first..]);
        runs.find(|run| self.left(run, output, free).is_some()).map_or_else(Vec::new, <[usize]>::to_vec)
    }
}

/// Returns whether a model's layers are computed on a GPU only as a whole.
pub(super) fn is_undivided(config: &ModelConfig) -> bool {
    config.has_tied_layers() || config.input_width.is_some()
}
