//! Engines, the first of which computes on the GPU.
//!
//! Weights come into the GPU's memory when they are first used. A second model could not see how much of it
//! is taken by then, so further models are computed by the CPU. If the first model is loaded again, its
//! earlier engine has ended, and the GPU is opened again.

use std::sync::Arc;

use anyhow::Context as _;
use baton_engine::{Engine, EngineError, EngineOptions, GpuLoss, Model, Offload};
use baton_gpu::{GpuChoice, GpuPart, OpenedGpu, VramLimit};
use tracing::{error, info, warn};

use crate::config::Config;

/// Makes the engines of a service, one after another.
#[derive(Debug)]
pub(super) struct Engines {
    /// For the first model's first engine.
    gpu: Option<OpenedGpu>,
    choice: GpuChoice,
    vram: Option<VramLimit>,
    offload: bool,
}

impl Engines {
    /// Opens the GPU that is configured.
    ///
    /// # Errors
    /// Fails if a named GPU is not there or cannot be opened.
    pub(super) fn open(config: &Config) -> anyhow::Result<Engines> {
        let (choice, vram, offload) = (config.gpu, config.vram, config.gpu_offload);
        let gpu = baton_gpu::open(choice, vram).context("choose a GPU (--gpu)")?;
        let gpu = gpu.offloading(offload.then(Offload::default));
        for notice in &gpu.notices {
            warn!(notice, "GPUs");
        }
        Ok(Engines { gpu: Some(gpu), choice, vram, offload })
    }

    /// Returns the GPU for the first model's next engine.
    fn of_first(&mut self) -> OpenedGpu {
        if let Some(gpu) = self.gpu.take() {
            return gpu;
        }
        match baton_gpu::open(self.choice, self.vram) {
            Ok(gpu) => gpu.offloading(self.offload.then(Offload::default)),
            Err(err) => {
                warn!(err = &err as &dyn std::error::Error, "the GPU cannot be opened again");
                OpenedGpu::default()
            }
        }
    }

    /// Makes an engine of the first model, or of another one.
    ///
    /// # Errors
    /// As [`OpenedGpu::engine`].
    pub(super) fn make(
        &mut self,
        is_first: bool,
        model: Arc<Model>,
        options: EngineOptions,
    ) -> Result<Engine, EngineError> {
        let name = model.name().to_owned();
        let gpu = if is_first { self.of_first() } else { OpenedGpu::default() };
        let (engine, part) = gpu.engine(model, options, on_loss)?;
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
