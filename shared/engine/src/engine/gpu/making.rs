//! Makes the lane of a GPU: chooses its layers, and allocates what they need.

use std::sync::Arc;

use baton_kernels_cpu::KvFormat;
use baton_kernels_gpu::{GpuError, PackedKv};

use super::needs::{Beside, Needs, StepSize, is_undivided};
use super::{EngineError, GpuLane, GpuLayers, GpuUse};
use crate::adapter::Adapter;
use crate::backend::cpu_kv::LayerKv;
use crate::backend::gpu::GpuBackend;
use crate::backend::gpu_kv::GpuKv;
use crate::config::SlidingWindow;
use crate::engine::segments::Lane;
use crate::model::Model;
use crate::offload::{
    HostKv, HostKvOptions, HostLayer, KvSizes, Loader, Offload, OffloadError, Offloaded, Placement, Planned,
};

/// How often an engine tries again with less after its GPU had no room.
const SHORTAGES_MAX: u32 = 4;

/// What shortages have taught about the room of a GPU.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Limits {
    /// Bytes that plans leave free beside what they count.
    spare: u64,
    /// Layers at most.
    layers_max: usize,
    shortages: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { spare: 0, layers_max: usize::MAX, shortages: 0 }
    }
}

impl Limits {
    /// Takes in that so many layers were too many. Returns whether to try again.
    pub(super) fn learn(&mut self, fault: &GpuError, layers: usize) -> bool {
        let GpuError::OutOfMemory { wanted, used, .. } = *fault else { return false };
        self.shortages += 1;
        self.spare = self.spare.saturating_add(wanted.max(used / 16));
        self.layers_max = layers - layers.div_ceil(8);
        self.shortages <= SHORTAGES_MAX
    }

    /// Begins with other layers. What is known of the room stays.
    pub(super) fn begin(&mut self) {
        *self = Self { spare: self.spare, ..Self::default() };
    }
}

/// What the lane of a GPU is made from.
pub(in crate::engine) struct Making<'a> {
    pub(in crate::engine) model: &'a Arc<Model>,
    pub(in crate::engine) gpu: &'a GpuUse,
    /// The engine's layers, ascending.
    pub(in crate::engine) layers: &'a [usize],
    pub(in crate::engine) format: KvFormat,
    pub(in crate::engine) kv: &'a [LayerKv],
    pub(in crate::engine) window: Option<SlidingWindow>,
    pub(in crate::engine) n_blocks: usize,
    pub(in crate::engine) step: StepSize,
    pub(in crate::engine) adapters: &'a [Arc<Adapter>],
}

impl Making<'_> {
    /// Makes the lane for some of the engine's layers; `None` if not one of them fits. If the GPU has less
    /// room than counted, it gets fewer layers.
    ///
    /// # Errors
    /// [`EngineError::GpuRefused`] and [`EngineError::Gpu`].
    pub(in crate::engine) fn lane(&self, limits: &mut Limits) -> Result<Option<GpuLane>, EngineError> {
        if matches!(&self.gpu.layers, GpuLayers::Only(chosen) if chosen.is_empty()) {
            return Ok(None);
        }
        GpuUse::check(self.model.config(), self.format, &self.gpu.layers)?;
        let device = &*self.gpu.device;
        loop {
            if let Some(fault) = device.fault().filter(|_| !device.recover()) {
                return Err(fault.into());
            }
            let free = device.free_bytes().unwrap_or(u64::MAX);
            let needs = self.needs(free, limits);
            let (chosen, offload) = self.chosen(&needs, limits, free);
            match self.lane_of(&needs, (&chosen, offload), free) {
                Err(EngineError::Gpu(fault)) if fault.is_full() => {
                    if !device.recover() || !limits.learn(&fault, chosen.len()) {
                        return Err(fault.into());
                    }
                }
                made => return made,
            }
        }
    }

    fn needs(&self, free: u64, limits: &Limits) -> Needs {
        let Self { n_blocks, step, adapters, .. } = *self;
        let beside = Beside { n_blocks, step, adapters, spare: limits.spare };
        Needs::new(self.model, &*self.gpu.device, (self.kv, free), beside)
    }

    /// Returns the layers of the GPU, and how they are loaded if they do not all fit.
    fn chosen(&self, needs: &Needs, limits: &Limits, free: u64) -> (Vec<usize>, Option<Offload>) {
        let most = limits.layers_max;
        match &self.gpu.layers {
            GpuLayers::Offloaded(options) => (self.layers.to_vec(), Some(options.clone())),
            GpuLayers::Fit => (needs.fitting(self.layers, (most, true), free), None),
            GpuLayers::Only(wanted) => {
                let is_here = |layer: &usize| self.layers.binary_search(layer).is_ok();
                let wanted: Vec<usize> = wanted.iter().copied().filter(is_here).collect();
                if wanted == self.layers && needs.left(&wanted, false, free).is_none() {
                    return (wanted, Some(Offload::default()));
                }
                let first = wanted.len().saturating_sub(most);
                (wanted[first..].to_vec(), None)
            }
        }
    }

    fn lane_of(
        &self,
        needs: &Needs,
        (chosen, offload): (&[usize], Option<Offload>),
        free: u64,
    ) -> Result<Option<GpuLane>, EngineError> {
        let config = self.model.config();
        if chosen.len() < config.n_layers && !chosen.is_empty() && is_undivided(config) {
            let family = config.family.name;
            let reason =
                format!("a {family} model is computed on the GPU as a whole or not at all, it does not fit");
            return Err(EngineError::GpuRefused { reason });
        }
        if chosen.is_empty() {
            return Ok(None);
        }
        let mut layers = vec![false; config.n_layers];
        chosen.iter().for_each(|layer| layers[*layer] = true);
        if let Some(options) = offload {
            let made = self.offloaded((chosen, needs.room(chosen, free)?), needs, &options);
            let (lane, offloaded, output) = made.map_err(|err| match err {
                OffloadError::Gpu(fault) => fault.into(),
                err => EngineError::GpuRefused { reason: err.to_string() },
            })?;
            return Ok(Some(GpuLane { lane, layers, output, offloaded: Some(offloaded), left: None }));
        }
        let kv = GpuKv::new(&*self.gpu.device, self.kv, chosen, (self.n_blocks, None))?;
        let backend = GpuBackend::new(Arc::clone(&self.gpu.device));
        let output = self.gpu.layers == GpuLayers::Fit;
        let left = if output { needs.left(chosen, output, free) } else { None };
        Ok(Some(GpuLane { lane: Lane { backend, kv }, layers, output, offloaded: None, left }))
    }

    /// Offloads layers, within `room` bytes. Also returns whether the GPU has room for the projection to
    /// logits.
    fn offloaded(
        &self,
        (layers, room): (&[usize], u64),
        needs: &Needs,
        options: &Offload,
    ) -> Result<(Lane<GpuBackend>, Arc<Offloaded>, bool), OffloadError> {
        let Self { model, kv, n_blocks, .. } = *self;
        let device = &self.gpu.device;
        let own: Vec<usize> = layers.iter().copied().filter(|layer| kv[*layer].source == *layer).collect();
        let packed = PackedKv::of(self.format);
        let ends = layers.last().is_some_and(|layer| layer + 1 == model.config().n_layers);
        let logits = matches!(self.gpu.layers, GpuLayers::Offloaded(_));
        let output = (ends && logits).then_some(needs.output);
        let planned =
            Planned::new(model, &**device, (layers, self.kv_sizes(&own, packed), output), options, room)?;
        let Placement { kv_stays, pipeline, output, .. } = planned.placement().clone();
        let loader = Arc::new(Loader::start(options.threads).map_err(OffloadError::Threads)?);
        let split = own.iter().zip(&kv_stays);
        let on_gpu: Vec<usize> =
            split.clone().filter(|(_, stays)| **stays).map(|(layer, _)| *layer).collect();
        let on_host: Vec<HostLayer> =
            split.filter(|(_, stays)| !**stays).map(|(layer, _)| self.host_layer(*layer)).collect();
        let mut cache = GpuKv::new(&**device, kv, &on_gpu, (n_blocks, packed))?;
        if !on_host.is_empty() {
            let block_bytes = options.block_bytes.get();
            let options = HostKvOptions { pipeline, block_bytes, n_blocks, packed };
            cache = cache.with_host(HostKv::new(Arc::clone(device), Arc::clone(&loader), on_host, options)?);
        }
        let backend = GpuBackend::new(Arc::clone(device));
        let (device, matrices) = (Arc::clone(device), backend.matrices().clone());
        let offloaded =
            Arc::new(Offloaded::new(Arc::clone(model), device, matrices, (loader, options), planned)?);
        backend.set_loads(Arc::clone(&offloaded) as _);
        Ok((Lane { backend, kv: cache }, offloaded, output))
    }

    /// Returns the bytes of keys and values of these layers, on the GPU and in the host's memory.
    fn kv_sizes(&self, layers: &[usize], packed: Option<PackedKv>) -> KvSizes {
        let on_gpu: Vec<u64> =
            layers.iter().map(|layer| GpuKv::layer_bytes(&self.kv[*layer], self.n_blocks)).collect();
        let Some(how) = packed else { return KvSizes { on_host: on_gpu.clone(), on_gpu, opened: 0 } };
        let on_host = layers.iter().map(|layer| {
            let LayerKv { n_kv_heads, d_head, .. } = self.kv[*layer];
            how.block_bytes(n_kv_heads, d_head) * self.n_blocks as u64
        });
        KvSizes { on_host: on_host.collect(), opened: on_gpu.iter().copied().max().unwrap_or(0), on_gpu }
    }

    fn host_layer(&self, layer: usize) -> HostLayer {
        let LayerKv { n_kv_heads: heads, d_head: d, .. } = self.kv[layer];
        let window = self.window.or_else(|| self.model.config().window_at(layer));
        HostLayer { layer, heads, d, window }
    }
}
