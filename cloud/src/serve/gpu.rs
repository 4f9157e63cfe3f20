//! Engines, the first of which computes on the GPU.
//!
//! Weights come into the GPU's memory when they are first used. A second model could not see how much of it
//! is taken by then, so further models are computed by the CPU.

use std::sync::Arc;

use anyhow::Context as _;
use baton_engine::{Engine, EngineError, EngineOptions, GpuLoss, Model, Offload};
use baton_gpu::{GpuPart, OpenedGpu};
use tracing::{error, info, warn};

use crate::config::Config;

/// Makes the engines of a service, one after another.
#[derive(Debug)]
pub(super) struct Engines {
    /// For the next engine.
    gpu: OpenedGpu,
}

impl Engines {
    /// Opens the GPU that is configured.
    ///
    /// # Errors
    /// Fails if a named GPU is not there or cannot be opened.
    pub(super) fn open(config: &Config) -> anyhow::Result<Engines> {
        let gpu = baton_gpu::open(config.gpu, config.vram).context("choose a GPU (--gpu)")?;
        let gpu = gpu.offloading(config.gpu_offload.then(Offload::default));
        for notice in &gpu.notices {
            warn!(notice, "GPUs");
        }
        Ok(Engines { gpu })
    }

    /// Makes the next engine.
    ///
    /// # Errors
    /// As [`OpenedGpu::engine`].
    pub(super) fn make(&mut self, model: Arc<Model>, options: EngineOptions) -> Result<Engine, EngineError> {
        let name = model.name().to_owned();
        let (engine, part) = std::mem::take(&mut self.gpu).engine(model, options, on_loss)?;
        match &part {
            GpuPart::None => {}
            GpuPart::Layers { gpu, layers, of, logits } => {
                info!(model = name, gpu, layers, of, logits, "a GPU computes layers");
            }
            GpuPart::Offloaded { gpu, loaded_bytes, weight_bytes, kv_bytes, logits, .. } => {
                info!(
                    model = name,
                    gpu,
                    loaded_bytes,
                    weight_bytes,
                    kv_bytes,
                    logits,
                    "a GPU computes layers, and loads weights"
                );
            }
            GpuPart::NoRoom { .. } | GpuPart::Refused { .. } => {
                warn!(model = name, reason = %part, "a GPU is not used");
            }
        }
        Ok(engine)
    }
}

fn on_loss(loss: &GpuLoss) {
    error!(loss = loss as &dyn std::error::Error, "an engine does without its GPU");
}
