//! The layers that a GPU computes: how many fit, and what happens if the GPU fails.
//!
//! A GPU that fails takes its keys and values along. The engine then goes on with the CPU alone; if the GPU
//! only had no room for something, with fewer layers on it. The table of sequences stays as it is, and every
//! block counts as lost. A sequence's next step first computes its lost tokens again. Callers notice the
//! time, and numbers that differ by rounding.

mod losses;
mod making;
mod needs;

use std::sync::Arc;

use baton_kernels_cpu::KvFormat;
use baton_kernels_gpu::ops::takes_heads_of;
use baton_kernels_gpu::{Device, GpuError, PackedKv};

use super::segments::Lane;
use super::{Engine, EngineError};
use crate::backend::gpu::GpuBackend;
use crate::config::ModelConfig;
use crate::offload::{Offload, OffloadStats, Offloaded};
use crate::weights::ResidencyError;

pub(super) use losses::Again;
pub(super) use making::{Limits, Making};
pub use needs::StepSize;

/// A GPU that takes part.
#[derive(Debug, Clone)]
pub struct GpuUse {
    /// The device, opened with the user's memory limit.
    pub device: Arc<dyn Device>,
    /// Its layers.
    pub layers: GpuLayers,
    /// Called if the engine must do without the GPU, or without a part of it.
    pub on_loss: fn(&GpuLoss),
}

/// Why an engine does without its GPU. `Display` says what follows, without the cause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuLoss {
    /// It failed. The CPU computes all layers from now on.
    #[error("the GPU failed: the CPU goes on alone, and computes again what the GPU had kept")]
    Failed(#[source] GpuError),
    /// It cannot compute the layers that it was given last. The CPU computes them until it is given others.
    #[error("the GPU cannot compute the layers that it was given, the CPU computes all: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// Its memory was full. It computes fewer layers from now on, or loads more of their weights.
    #[error(
        "the GPU's memory was full: it computes {layers} layers now, and what it had kept is computed again"
    )]
    Full {
        /// What was missing.
        #[source]
        fault: GpuError,
        /// Layers that it computes.
        layers: usize,
    },
    /// Adapters need memory that some of its layers had.
    #[error("adapters leave room for {layers} layers in the GPU's memory")]
    Adapters {
        /// Layers that it computes.
        layers: usize,
    },
}

/// The layers of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuLayers {
    /// The projection to logits, and as many of the last layers as its free memory holds with their part of
    /// the KV cache.
    Fit,
    /// These, ascending; the CPU computes the logits. If they are all layers of the engine and do not fit,
    /// what does not fit is loaded for each pass.
    Only(Vec<usize>),
    /// All. What does not fit into its memory is loaded for each pass.
    Offloaded(Offload),
}

/// A GPU with its part of the model.
#[derive(Debug)]
pub(super) struct GpuLane {
    pub(super) lane: Lane<GpuBackend>,
    /// By layer of the model.
    layers: Vec<bool>,
    /// Whether it computes the logits too.
    pub(super) output: bool,
    /// The weights, if not all of them are in its memory.
    pub(super) offloaded: Option<Arc<Offloaded>>,
    /// Bytes that are free beside what its layers need, if the engine has chosen the layers so that they fit.
    left: Option<u64>,
}

impl GpuLane {
    /// Whether it computes the layer.
    pub(super) fn holds(&self, layer: usize) -> bool {
        self.layers[layer]
    }
}

impl GpuUse {
    /// Checks that GPUs can compute layers of such a model, with keys and values in this format. Only with
    /// offloading is that another than f16.
    ///
    /// # Errors
    /// [`EngineError::GpuRefused`] if they have no kernels for that.
    pub fn check(config: &ModelConfig, format: KvFormat, layers: &GpuLayers) -> Result<(), EngineError> {
        let family = config.family.name;
        let refused = |reason: String| Err(EngineError::GpuRefused { reason });
        if config.recurrent.is_some() {
            return refused(format!("a {family} model has recurrent layers, which only the CPU computes"));
        }
        let packed = PackedKv::of(format);
        let offloads = matches!(layers, GpuLayers::Offloaded(_));
        match packed {
            None if format != KvFormat::F16 => {
                return refused(format!(
                    "keys and values are {format}, and GPUs have kernels for f16, q8 and q4"
                ));
            }
            Some(_) if !offloads => {
                return refused(format!(
                    "keys and values are {format}, and a GPU keeps f16 unless it offloads"
                ));
            }
            _ => {}
        }
        for width in (0..config.n_layers).map(|layer| config.heads_at(layer).width) {
            if !takes_heads_of(width) {
                return refused(format!("heads of {width} dimensions have no GPU kernel"));
            }
            if packed.is_some() && !PackedKv::takes_heads_of(width) {
                return refused(format!(
                    "heads of {width} dimensions, no multiple of 32, have no GPU kernel for {format}"
                ));
            }
        }
        Ok(())
    }
}

impl Engine {
    /// Returns the layers that a GPU computes, ascending; none after it has failed.
    pub fn gpu_layers(&self) -> Vec<usize> {
        let holds = |layer: &usize| self.gpu.as_ref().is_some_and(|gpu| gpu.holds(*layer));
        (0..self.model.config().n_layers).filter(holds).collect()
    }

    /// Whether the GPU computes the logits too.
    pub fn gpu_has_output(&self) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| gpu.output)
    }

    /// Returns the device that computes some of the layers, if there is one and it has not failed.
    pub fn gpu_device(&self) -> Option<&Arc<dyn Device>> {
        self.gpu.as_ref().map(|gpu| gpu.lane.backend.device())
    }

    /// Returns what offloading did so far, if the GPU's weights are offloaded.
    pub fn offload_stats(&self) -> Option<OffloadStats> {
        let gpu = self.gpu.as_ref()?;
        let mut stats = gpu.offloaded.as_ref()?.stats();
        gpu.lane.kv.add_stats(&mut stats);
        Some(stats)
    }

    /// Tells weights that do not fit into memory which layers the CPU computes, and what of the others is
    /// loaded to the GPU. Call it once for the engine that computes with them.
    ///
    /// # Errors
    /// [`ResidencyError`]; nothing has changed then.
    pub fn share_weights(&self) -> Result<(), ResidencyError> {
        let Some(weights) = self.model.streamed() else { return Ok(()) };
        let offloaded = self.gpu.as_ref().and_then(|gpu| gpu.offloaded.as_ref());
        let Some(offloaded) = offloaded else { return weights.set_layers(self.host_layers()) };
        weights.set_loaded(self.host_layers(), &offloaded.loaded(), &self.gpu_layers())
    }

    /// Returns the layers that the CPU computes, ascending.
    pub fn host_layers(&self) -> Vec<usize> {
        let on_gpu = |layer: &usize| self.gpu.as_ref().is_some_and(|gpu| gpu.holds(*layer));
        self.layers.iter().copied().filter(|layer| !on_gpu(layer)).collect()
    }
}
