//! The machine that this device is: its memory, its disk, its GPUs, its speed, its power, and how a model is
//! opened within that.

pub mod disk;
pub mod gpu;
pub mod memory;
pub mod offload;
pub mod power;
pub mod profile;
pub mod residency;
pub mod shape;

use std::path::Path;
use std::sync::Arc;

use baton_engine::platform::own_bytes;
use baton_engine::{GpuUse, Model};
use baton_gpu::OpenedGpu;
use baton_ring::host::{Machine, OpenShare};

use profile::this_memory;
use residency::{Layers, MemoryFor, Share};

/// This machine, with the memory and the GPU that its user gives to models.
#[derive(Debug, Clone)]
pub struct ThisMachine {
    /// Memory for weights; what does not fit is read from the disk for every token.
    pub memory: MemoryFor,
    /// The GPU, if one computes.
    pub gpu: OpenedGpu,
}

impl Machine for ThisMachine {
    fn model_bytes(&self) -> Option<u64> {
        this_memory().ok().map(|(_, memory)| memory.available_bytes + own_bytes().unwrap_or(0))
    }

    fn open(
        &self,
        path: &Path,
        share: &OpenShare,
    ) -> Result<Arc<Model>, Box<dyn std::error::Error + Send + Sync>> {
        let OpenShare { layers, kv_tokens, kv_format, reads_ahead } = share.clone();
        let share = Share { kv_tokens, kv_format, layers: Layers::Of(layers), reads_ahead, read_bytes: None };
        Ok(residency::open(path, self.memory, 0, &share)?)
    }

    fn gpu(&self) -> Option<GpuUse> {
        self.gpu.part(gpu::on_loss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_s_share_is_opened_within_its_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        let shape = baton_synthetic::SyntheticModel::small("llama", baton_kernels_cpu::Format::F32, 3);
        std::fs::write(&path, shape.to_gguf().unwrap()).unwrap();
        let share =
            OpenShare { layers: vec![1], kv_tokens: 64, kv_format: Default::default(), reads_ahead: true };
        let within = ThisMachine { memory: MemoryFor::Bytes(10_000), gpu: OpenedGpu::default() };
        let model = within.open(&path, &share).unwrap();
        let weights = model.streamed().unwrap();
        assert_eq!(weights.layers(), [1]);
        assert!(weights.stats().resident_bytes <= 10_000);
        assert_eq!(within.model_bytes().is_some(), this_memory().is_ok());
        assert!(within.open(Path::new("missing.gguf"), &share).is_err());
        assert!(within.gpu().is_none());
        let device: Arc<dyn baton_gpu::Device> = Arc::new(baton_kernels_gpu::cases::HostDevice::new(None));
        let gpu = OpenedGpu { device: Some(device), ..OpenedGpu::default() };
        assert!(ThisMachine { gpu, ..within }.gpu().is_some());
    }
}
