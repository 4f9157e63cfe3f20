//! The layers that a GPU computes: how many fit, and what happens if the GPU fails.
//!
//! A GPU that fails takes its keys and values along. The engine then goes on with the CPU alone. The table of
//! sequences stays as it is, and every block counts as lost. A sequence's next step first computes its lost
//! tokens again. Callers notice the time, and numbers that differ by rounding.

use std::sync::Arc;

use baton_kernels_cpu::KvFormat;
use baton_kernels_gpu::ops::takes_heads_of;
use baton_kernels_gpu::{Device, GpuError};

use super::segments::{End, Lane, Lanes, StepInput};
use super::{Engine, EngineError, StepControl, StepError, StepSeq, adapted, files_are_intact};
use crate::backend::SeqSpan;
use crate::backend::cpu_kv::LayerKv;
use crate::backend::gpu::GpuBackend;
use crate::backend::gpu_kv::GpuKv;
use crate::config::{ModelConfig, SlidingWindow};
use crate::kv::pool::BlockId;
use crate::kv::{BLOCK_TOKENS, KvError, SeqId};
use crate::model::Model;
use crate::offload::{
    HostKv, HostKvOptions, HostLayer, Loader, Offload, OffloadError, OffloadStats, Offloaded, Placement,
    Planned,
};
use crate::weights::ResidencyError;

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

/// Tokens of the largest step that memory is set aside for.
const STEP_TOKENS: usize = 512;
/// Rows of logits of one step that memory is set aside for.
const LOGIT_ROWS: usize = 32;
/// Norms and biases of a layer, in hidden states.
const VECTORS: usize = 12;
/// Tokens that are computed again in one pass.
const PASS_TOKENS: usize = 256;

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
}

impl GpuLane {
    /// Whether it computes the layer.
    pub(super) fn holds(&self, layer: usize) -> bool {
        self.layers[layer]
    }
}

/// Bytes that a GPU needs for each part of a model.
struct Needs {
    /// By layer: matrices.
    weights: Vec<u64>,
    /// By layer: keys and values.
    cache: Vec<u64>,
    /// The projection to logits.
    output: u64,
    /// Activations.
    scratch: u64,
}

impl Needs {
    fn new(model: &Model, kv: &[LayerKv], n_blocks: usize) -> Self {
        let config = model.config();
        let weights = model.mapped_weights();
        let cache = |(layer, kv): (usize, &LayerKv)| {
            if kv.source == layer { GpuKv::layer_bytes(kv, n_blocks) } else { 0 }
        };
        let widest = 8 * config.d_model + 4 * config.d_q() + 3 * config.d_ff;
        let numbers = STEP_TOKENS * widest + LOGIT_ROWS * config.vocab_len;
        Self {
            weights: (0..kv.len()).map(|layer| weights.layer_bytes(layer)).collect(),
            cache: kv.iter().enumerate().map(cache).collect(),
            output: weights.output_bytes(),
            scratch: 4 * numbers as u64,
        }
    }

    /// Returns the bytes that remain for weights, keys and values of these layers.
    fn room(&self, config: &ModelConfig, layers: &[usize], free: u64) -> Result<u64, EngineError> {
        let vectors = 4 * (layers.len() * (VECTORS * config.d_model + config.d_ff)) as u64;
        let need = vectors + self.scratch;
        let none = || EngineError::GpuRefused {
            reason: format!("activations need {need} bytes of the GPU's memory, and {free} are free"),
        };
        free.checked_sub(need).ok_or_else(none)
    }

    /// Whether `free` bytes hold these layers.
    fn fit(&self, config: &ModelConfig, layers: &[usize], free: u64) -> Result<bool, EngineError> {
        let need: u64 = layers.iter().map(|layer| self.weights[*layer] + self.cache[*layer]).sum();
        Ok(need <= self.room(config, layers, free)?)
    }

    /// Returns the longest run of the last of `layers` that fits `free` bytes.
    fn fitting(&self, layers: &[usize], free: u64) -> Vec<usize> {
        let Some(mut room) = free.checked_sub(self.scratch) else { return Vec::new() };
        let mut fitting = Vec::new();
        for &layer in layers.iter().rev() {
            let ends = layer + 1 == self.weights.len();
            let need = self.weights[layer] + self.cache[layer] + if ends { self.output } else { 0 };
            let Some(rest) = room.checked_sub(need) else { break };
            room = rest;
            fitting.insert(0, layer);
        }
        fitting
    }
}

impl GpuUse {
    /// Checks that GPUs can compute layers of such a model, with keys and values in this format.
    ///
    /// # Errors
    /// [`EngineError::GpuRefused`] if they have no kernels for that.
    pub fn check(config: &ModelConfig, format: KvFormat) -> Result<(), EngineError> {
        let family = config.family.name;
        let refused = |reason: String| Err(EngineError::GpuRefused { reason });
        if config.recurrent.is_some() {
            return refused(format!("a {family} model has recurrent layers, which only the CPU computes"));
        }
        if format != KvFormat::F16 {
            return refused(format!("keys and values are {format}, and GPUs keep f16 only"));
        }
        let mut widths = (0..config.n_layers).map(|layer| config.heads_at(layer).width);
        match widths.find(|width| !takes_heads_of(*width)) {
            Some(width) => refused(format!("heads of {width} dimensions have no GPU kernel")),
            None => Ok(()),
        }
    }
}

/// Makes the lane of a GPU for some of an engine's layers; `None` if not one of them fits.
pub(super) fn lane(
    model: &Arc<Model>,
    gpu: &GpuUse,
    (layers, format): (&[usize], KvFormat),
    (kv, window): (&[LayerKv], Option<SlidingWindow>),
    n_blocks: usize,
) -> Result<Option<GpuLane>, EngineError> {
    if matches!(&gpu.layers, GpuLayers::Only(chosen) if chosen.is_empty()) {
        return Ok(None);
    }
    let config = model.config();
    GpuUse::check(config, format)?;
    let device = &*gpu.device;
    if let Some(fault) = device.fault() {
        return Err(fault.into());
    }
    let needs = Needs::new(model, kv, n_blocks);
    let free = device.free_bytes().unwrap_or(u64::MAX);
    let chosen = match &gpu.layers {
        GpuLayers::Offloaded(_) => layers.to_vec(),
        GpuLayers::Only(chosen) => {
            chosen.iter().copied().filter(|layer| layers.binary_search(layer).is_ok()).collect()
        }
        GpuLayers::Fit => needs.fitting(layers, free),
    };
    let offload = match &gpu.layers {
        GpuLayers::Offloaded(options) => Some(options.clone()),
        GpuLayers::Only(_) if chosen == layers && !needs.fit(config, layers, free)? => {
            Some(Offload::default())
        }
        _ => None,
    };
    let whole = chosen.len() == config.n_layers;
    if !whole && !chosen.is_empty() && (config.has_tied_layers() || config.input_width.is_some()) {
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
        let room = needs.room(config, &chosen, free)?;
        let logits = matches!(gpu.layers, GpuLayers::Offloaded(_));
        let of_model = OfModel { model, kv, window, n_blocks, logits };
        let made = of_model.offloaded(&gpu.device, (&chosen, room), &needs, &options);
        let (lane, offloaded, output) = made.map_err(|err| match err {
            OffloadError::Gpu(fault) => fault.into(),
            err => EngineError::GpuRefused { reason: err.to_string() },
        })?;
        return Ok(Some(GpuLane { lane, layers, output, offloaded: Some(offloaded) }));
    }
    let kv = GpuKv::new(device, kv, &chosen, n_blocks)?;
    let backend = GpuBackend::new(Arc::clone(&gpu.device));
    let output = gpu.layers == GpuLayers::Fit;
    Ok(Some(GpuLane { lane: Lane { backend, kv }, layers, output, offloaded: None }))
}

/// A model and its KV cache.
struct OfModel<'a> {
    model: &'a Arc<Model>,
    kv: &'a [LayerKv],
    window: Option<SlidingWindow>,
    n_blocks: usize,
    /// Whether the GPU computes the logits, if there is room.
    logits: bool,
}

impl OfModel<'_> {
    /// Offloads layers, within `room` bytes. Also returns whether the GPU has room for the projection to
    /// logits.
    fn offloaded(
        &self,
        device: &Arc<dyn Device>,
        (layers, room): (&[usize], u64),
        needs: &Needs,
        options: &Offload,
    ) -> Result<(Lane<GpuBackend>, Arc<Offloaded>, bool), OffloadError> {
        let Self { model, kv, n_blocks, .. } = *self;
        let own: Vec<usize> = layers.iter().copied().filter(|layer| kv[*layer].source == *layer).collect();
        let sizes: Vec<u64> = own.iter().map(|layer| needs.cache[*layer]).collect();
        let ends = layers.last().is_some_and(|layer| layer + 1 == model.config().n_layers);
        let output = (ends && self.logits).then_some(needs.output);
        let planned = Planned::new(model, &**device, (layers, &sizes, output), options, room)?;
        let Placement { kv_stays, pipeline, output, .. } = planned.placement().clone();
        let loader = Arc::new(Loader::start(options.threads).map_err(OffloadError::Threads)?);
        let split = own.iter().zip(&kv_stays);
        let on_gpu: Vec<usize> =
            split.clone().filter(|(_, stays)| **stays).map(|(layer, _)| *layer).collect();
        let on_host: Vec<HostLayer> =
            split.filter(|(_, stays)| !**stays).map(|(layer, _)| self.host_layer(*layer)).collect();
        let mut cache = GpuKv::new(&**device, kv, &on_gpu, n_blocks)?;
        if !on_host.is_empty() {
            let options = HostKvOptions { pipeline, block_bytes: options.block_bytes.get(), n_blocks };
            cache = cache.with_host(HostKv::new(Arc::clone(device), Arc::clone(&loader), on_host, options)?);
        }
        let backend = GpuBackend::new(Arc::clone(device));
        let (device, matrices) = (Arc::clone(device), backend.matrices().clone());
        let offloaded =
            Arc::new(Offloaded::new(Arc::clone(model), device, matrices, (loader, options), planned)?);
        backend.set_loads(Arc::clone(&offloaded) as _);
        Ok((Lane { backend, kv: cache }, offloaded, output))
    }

    fn host_layer(&self, layer: usize) -> HostLayer {
        let LayerKv { n_kv_heads: heads, d_head: d, .. } = self.kv[layer];
        let window = self.window.or_else(|| self.model.config().window_at(layer));
        HostLayer { layer, heads, d, window }
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

    /// Makes the lanes anew for these layers. If the GPU fails at that or refuses them, the CPU takes all.
    pub(super) fn share_out(&mut self, gpu_layers: GpuLayers) {
        // The old lane's memory is given back before the new one takes some.
        self.gpu = None;
        if let Some(gpu) = &mut self.gpu_use {
            gpu.layers = gpu_layers;
            let n_blocks = self.table.kv_tokens() / BLOCK_TOKENS;
            let kv = &self.host.kv;
            let of_model = (kv.of_model(), self.window);
            match lane(&self.model, gpu, (&self.layers, kv.format()), of_model, n_blocks) {
                Ok(lane) => self.gpu = lane,
                Err(EngineError::Gpu(fault)) => {
                    (gpu.on_loss)(&GpuLoss::Failed(fault));
                    self.gpu_use = None;
                }
                Err(err) => (gpu.on_loss)(&GpuLoss::Refused { reason: err.to_string() }),
            }
        }
        self.host.kv = self.host.kv.emptied(&self.host_layers());
        self.lost.clear();
    }

    /// Returns the layers that the CPU computes, ascending.
    pub fn host_layers(&self) -> Vec<usize> {
        let on_gpu = |layer: &usize| self.gpu.as_ref().is_some_and(|gpu| gpu.holds(*layer));
        self.layers.iter().copied().filter(|layer| !on_gpu(layer)).collect()
    }

    /// Goes on without the GPU if `err` is its fault: every block is lost. Returns whether it was.
    pub(super) fn leave_gpu(&mut self, err: &StepError) -> bool {
        let Some(fault) = err.gpu_fault() else { return false };
        let Some(gpu) = self.gpu_use.take() else { return false };
        self.gpu = None;
        if let Some(weights) = self.model.streamed() {
            // Until now they read the other layers only. The error of an unknown layer cannot occur.
            if weights.set_layers(self.layers.clone()).is_err() {
                return false;
            }
        }
        self.host.kv = self.host.kv.emptied(&self.layers);
        self.lost = vec![true; self.table.kv_tokens() / BLOCK_TOKENS];
        (gpu.on_loss)(&GpuLoss::Failed(fault.clone()));
        true
    }

    fn is_lost(&self, block: BlockId) -> bool {
        self.lost.get(block.0 as usize).copied().unwrap_or(false)
    }

    /// Counts a block as written.
    pub(super) fn found(&mut self, block: BlockId) {
        if let Some(lost) = self.lost.get_mut(block.0 as usize) {
            *lost = false;
        }
    }

    /// Returns the first token of the sequence whose keys and values are lost.
    pub(super) fn first_lost(&self, seq: SeqId) -> Result<Option<usize>, KvError> {
        let at = self.table.blocks(seq)?.iter().position(|block| self.is_lost(*block));
        Ok(at.map(|at| at * BLOCK_TOKENS))
    }

    /// Computes lost keys and values of the batch's sequences again.
    pub(super) fn restore(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<(), StepError> {
        if self.lost.is_empty() {
            return Ok(());
        }
        for entry in batch {
            let len = self.table.len(entry.seq)?;
            while let Some(start) = self.first_lost(entry.seq)?.filter(|start| *start < len) {
                if self.table.evicted(entry.seq)? > 0 {
                    return Err(StepError::Lost(entry.seq));
                }
                let n = PASS_TOKENS.min(len - start);
                self.compute_again(entry.seq, start, n, control)?;
                let blocks = self.table.blocks(entry.seq)?.to_vec();
                for block in &blocks[start / BLOCK_TOKENS..(start + n).div_ceil(BLOCK_TOKENS)] {
                    self.found(*block);
                }
            }
        }
        Ok(())
    }

    fn compute_again(
        &mut self,
        seq: SeqId,
        start: usize,
        n: usize,
        control: &mut dyn StepControl,
    ) -> Result<(), StepError> {
        let Self { model, host, gpu, window, table, adapters, .. } = self;
        let blocks = table.blocks(seq)?.to_vec();
        let spans = [SeqSpan { rows: 0..n, start, evicted: 0, cached: 0, blocks }];
        host.prepare(&[], &spans);
        let input = StepInput {
            window: *window,
            spans: &spans,
            moves: &[],
            ids: &table.ids(seq)?[start..start + n],
            captures: &[None],
            wanted: &std::array::from_fn::<_, 1, _>(|_| n..n),
        };
        let own = || adapted(table, adapters, std::iter::once((seq, 0..n)));
        let layers = (0..model.config().n_layers, End::Logits);
        Lanes { model, host, gpu: gpu.as_mut() }.run(&input, &own, None, layers, &mut Again(control))?;
        files_are_intact(model, adapters)?;
        Ok(())
    }
}

/// Hears cancellation, and reports no layer as done.
pub(super) struct Again<'a>(pub(super) &'a mut dyn StepControl);

impl StepControl for Again<'_> {
    fn after_layer(&mut self, _done: usize, total: usize) -> std::ops::ControlFlow<()> {
        self.0.after_layer(0, total)
    }
}
