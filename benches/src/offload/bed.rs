//! Engines on an emulated device, which decode greedily.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use baton_engine::{
    Engine, EngineOptions, GpuLayers, GpuLoss, GpuUse, Model, Offload, OffloadStats, Pipeline, SeqId,
    StepSeq, Wanted,
};
use baton_gpu::Device;
use baton_kernels_gpu::cases::{HostDevice, Span, Speeds, TimedDevice};
use baton_synthetic::SyntheticModel;

/// Tokens of each prompt.
const PROMPT: usize = 4;
/// Steps that are not measured: they load what stays.
const WARM: usize = 2;
/// Steps that are measured.
pub(super) const STEPS: usize = 12;
/// Memory within which the least budget is searched, beyond what an engine takes when it is made.
const SEARCH_BYTES: u64 = 512 << 20;

/// How a model is offloaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub(super) pipeline: Pipeline,
    /// Bytes of weights that stay.
    pub(super) resident: u64,
    pub(super) block_bytes: usize,
    pub(super) threads: usize,
    /// Sequences at once.
    pub(super) batch: usize,
    pub(super) speeds: Speeds,
}

impl Way {
    fn options(&self) -> Offload {
        Offload {
            pipeline: self.pipeline,
            threads: NonZeroUsize::new(self.threads).unwrap_or(NonZeroUsize::MIN),
            block_bytes: NonZeroUsize::new(self.block_bytes).unwrap_or(NonZeroUsize::MIN),
            resident_bytes: Some(self.resident),
            ..Offload::default()
        }
    }
}

/// What a way gave.
#[derive(Debug)]
pub(super) struct Figure {
    /// Seconds of a step on the device's clock.
    pub(super) step_s: f64,
    /// Bytes that a step loads.
    pub(super) bytes: f64,
    /// Counts of the measured steps: bytes of experts, experts that were there, and experts that were loaded.
    pub(super) experts: [u64; 3],
    pub(super) stats: OffloadStats,
    /// The tokens of each sequence.
    pub(super) tokens: Vec<Vec<u32>>,
    /// What commands and loads did, from the first step on.
    pub(super) spans: [Vec<Span>; 2],
    /// When the last step began.
    pub(super) last_step_s: f64,
}

/// A model, and the memory that it needs on a device.
pub(super) struct Bed {
    pub(super) model: Arc<Model>,
    kv_tokens: usize,
    /// The least budget with which an engine can be made, with the projection to logits.
    least: u64,
    /// Bytes of the weights of all layers, without experts.
    pub(super) weights: u64,
    /// The tokens of each sequence if everything is in memory.
    want: Vec<Vec<u32>>,
}

fn ignore(_: &GpuLoss) {}

impl Bed {
    /// Writes the model into `folder`, finds the least budget for `batch` sequences, and decodes with
    /// everything in the device's memory.
    pub(super) fn new(shape: &SyntheticModel, folder: &Path, batch: usize) -> Result<Self> {
        let path = folder.join(format!("{}-{batch}.gguf", shape.family));
        std::fs::write(&path, shape.to_gguf().context("make a model")?).context("write a model")?;
        let model = Model::open(&path).context("open a model")?;
        let blocks = (PROMPT + WARM + STEPS).next_multiple_of(baton_engine::BLOCK_TOKENS);
        let mut bed = Self { model, kv_tokens: batch * blocks, least: 0, weights: 0, want: Vec::new() };
        let device = Arc::new(HostDevice::new(None));
        let none = Offload { resident_bytes: Some(0), ..Offload::default() };
        let engine = bed.engine(Arc::clone(&device) as _, GpuLayers::Offloaded(none))?;
        bed.weights = offload_stats(&engine)?.weight_bytes;
        bed.least = bed.find_least(device.used_bytes()) + bed.output_bytes();
        let mut whole = bed.engine(Arc::new(HostDevice::new(None)), GpuLayers::Fit)?;
        bed.want = Decoder::new(&mut whole, batch)?.all()?;
        Ok(bed)
    }

    fn engine(&self, device: Arc<dyn Device>, layers: GpuLayers) -> Result<Engine> {
        let gpu = Some(GpuUse { device, layers, on_loss: ignore });
        let options = EngineOptions { gpu, kv_tokens: self.kv_tokens, ..EngineOptions::default() };
        Engine::new(Arc::clone(&self.model), options).context("make an engine")
    }

    /// Bytes of the projection to logits, in Q8_0.
    fn output_bytes(&self) -> u64 {
        let config = self.model.config();
        (config.vocab_len * config.d_model / 32 * 34) as u64
    }

    /// Returns the least budget that an engine accepts. An engine that was made holds `held` bytes; more is
    /// set aside for activations.
    fn find_least(&self, held: u64) -> u64 {
        let works = |budget| {
            let device = Arc::new(HostDevice::new(Some(budget)));
            self.engine(device, GpuLayers::Offloaded(Offload::default())).is_ok()
        };
        let (mut low, mut high) = (held, held + SEARCH_BYTES);
        while high - low > 1024 {
            let middle = low.midpoint(high);
            if works(middle) { high = middle } else { low = middle }
        }
        high
    }

    /// Decodes in one way, on a device with no more memory than what stays and what the least takes.
    pub(super) fn run(&self, way: &Way) -> Result<Figure> {
        let budget = self.least + way.resident;
        let device = Arc::new(TimedDevice::new(Some(budget), way.speeds));
        let layers = GpuLayers::Offloaded(way.options());
        let mut engine = self.engine(Arc::clone(&device) as _, layers)?;
        device.take_spans();
        let mut decoder = Decoder::new(&mut engine, way.batch)?;
        for _ in 0..WARM {
            decoder.step()?;
        }
        let (before, begun_s) = (offload_stats(decoder.engine)?, device.now_s());
        let mut last_step_s = begun_s;
        for _ in 0..STEPS {
            last_step_s = device.now_s();
            decoder.step()?;
        }
        let tokens = decoder.tokens;
        let stats = offload_stats(&engine)?;
        ensure!(device.fault().is_none() && device.used_bytes() <= budget, "the device has a fault");
        Ok(Figure {
            step_s: (device.now_s() - begun_s) / STEPS as f64,
            bytes: (stats.loaded_bytes - before.loaded_bytes) as f64 / STEPS as f64,
            experts: [
                stats.expert_bytes - before.expert_bytes,
                stats.expert_hits - before.expert_hits,
                stats.expert_loads - before.expert_loads,
            ],
            stats,
            tokens,
            spans: device.take_spans(),
            last_step_s,
        })
    }

    /// Whether tokens are those of everything in memory.
    pub(super) fn agrees(&self, figure: &Figure) -> bool {
        !figure.tokens.is_empty() && figure.tokens[..] == self.want[..figure.tokens.len()]
    }
}

fn offload_stats(engine: &Engine) -> Result<OffloadStats> {
    engine.offload_stats().context("the emulated device failed")
}

/// Sequences that are decoded greedily, each after a prompt of its own.
struct Decoder<'a> {
    engine: &'a mut Engine,
    seqs: Vec<SeqId>,
    tokens: Vec<Vec<u32>>,
}

impl<'a> Decoder<'a> {
    fn new(engine: &'a mut Engine, batch: usize) -> Result<Self> {
        let vocab = engine.model().config().vocab_len as u32;
        let mut decoder = Self { engine, seqs: Vec::new(), tokens: Vec::new() };
        for number in 0..batch as u32 {
            let seq = decoder.engine.create();
            decoder.seqs.push(seq);
            let mut next = Vec::new();
            for at in 0..PROMPT as u32 {
                next = decoder.pass(&[seq], &[(7 + 31 * number + 13 * at * at) % vocab])?;
            }
            decoder.tokens.push(next);
        }
        Ok(decoder)
    }

    /// Computes one token of each sequence, and returns the next ones.
    fn pass(&mut self, seqs: &[SeqId], ids: &[u32]) -> Result<Vec<u32>> {
        let steps: Vec<StepSeq<'_>> = (seqs.iter().zip(ids.chunks(1)))
            .map(|(seq, ids)| StepSeq { seq: *seq, ids, logits: Wanted::Last, capture: None })
            .collect();
        let results = self.engine.step(&steps, &mut ()).context("decode")?;
        let best = |logits: &[f32]| {
            let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
            best.map(|(id, _)| id as u32).context("an empty vocabulary")
        };
        results.iter().map(|result| best(&result.logits)).collect()
    }

    fn step(&mut self) -> Result<()> {
        let ids: Vec<u32> = self.tokens.iter().filter_map(|tokens| tokens.last().copied()).collect();
        let next = self.pass(&self.seqs.clone(), &ids)?;
        self.tokens.iter_mut().zip(next).for_each(|(tokens, id)| tokens.push(id));
        Ok(())
    }

    /// Decodes as many tokens as a measurement.
    fn all(mut self) -> Result<Vec<Vec<u32>>> {
        for _ in 0..WARM + STEPS {
            self.step()?;
        }
        Ok(self.tokens)
    }
}
