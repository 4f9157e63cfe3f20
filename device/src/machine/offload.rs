//! What stays where if a model does not fit, and what that costs for each token.
//!
//! Sizes are those of an engine that was made with the same options. Times come from measured rates. Loads
//! and computation run at the same time, so the slowest of them sets the pace (PIPO, section 3.1). A GPU that
//! cannot do both at once takes the sum of both. Reads from the disk run beside either.

use baton_engine::weights::ResidencyStats;
use baton_engine::{ModelConfig, OffloadStats};
use baton_gpu::Rates;
use baton_terminal::size;
use serde::Serialize;

use crate::machine::gpu::GpuProfile;

/// Bytes in each memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Tiers {
    /// In the GPU's memory.
    pub gpu_bytes: u64,
    /// In the host's memory.
    pub memory_bytes: u64,
    /// On the disk only.
    pub disk_bytes: u64,
}

/// What moves for a token, and how long it takes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Step {
    /// Bytes.
    pub bytes: u64,
    /// Seconds at the measured rate.
    pub seconds: f64,
}

impl Step {
    fn new(bytes: u64, bytes_per_s: f64) -> Self {
        Self { bytes, seconds: if bytes == 0 { 0.0 } else { bytes as f64 / bytes_per_s } }
    }
}

/// Measured rates in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speeds {
    /// From the disk, in order.
    pub disk: f64,
    /// From the host's memory to the CPU.
    pub memory: f64,
    /// From the host's memory to the GPU, and from the GPU's memory to its products.
    pub gpu: Option<[f64; 2]>,
    /// Whether the GPU loads while it computes.
    pub loads_beside: bool,
}

impl Speeds {
    /// Adds the rates of a GPU; its slowest format counts.
    pub fn with_gpu(self, gpu: Option<&GpuProfile>) -> Self {
        let slowest = |rates: &Rates| {
            let read = rates.products.values().map(|product| product.vector_bytes_per_s);
            [rates.copies.to_device_bytes_per_s, read.fold(f64::INFINITY, f64::min)]
        };
        let rates = gpu.and_then(|gpu| gpu.rates.as_ref());
        Self { gpu: rates.map(slowest), loads_beside: gpu.is_some_and(|gpu| gpu.loads_beside), ..self }
    }
}

/// Where a model's weights, keys and values are, and what a token costs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OffloadProfile {
    /// The GPU that computes; `None` if the CPU does.
    pub gpu: Option<String>,
    /// The pipeline of its loads, if there are any.
    pub pipeline: Option<&'static str>,
    /// Tokens that keys and values are kept of.
    pub context: usize,
    /// Weights of the layers, experts included.
    pub weights: Tiers,
    /// Keys and values of the whole context.
    pub kv: Tiers,
    /// Bytes of the GPU's memory that the others are loaded into.
    pub slot_bytes: u64,
    /// Experts of a mixture that the GPU keeps.
    pub experts_kept: usize,
    /// Reads from the disk.
    pub disk: Step,
    /// Copies of weights to the GPU; experts count as often as they are not kept, if all are chosen alike.
    pub weights_to_gpu: Step,
    /// Copies of keys and values to the GPU, if half of the context is used.
    pub kv_to_gpu: Step,
    /// Reading of the weights by what computes.
    pub computing: Step,
    /// Tokens per second at most.
    pub tokens_per_s: f64,
    /// What sets that pace.
    pub bound_by: &'static str,
}

/// What an engine that was made has set aside.
#[derive(Debug, Clone)]
pub struct Made<'a> {
    /// The GPU's name, if it computes.
    pub gpu: Option<String>,
    /// The model's properties.
    pub config: &'a ModelConfig,
    /// Bytes of all layers' weights.
    pub layer_bytes: u64,
    /// Tokens that keys and values are kept of, and bytes for each.
    pub context: (usize, f64),
    /// What offloading has set aside; `None` if everything is in the GPU's memory, or the CPU computes.
    pub offload: Option<OffloadStats>,
    /// What stays in memory of a model that is read from the disk.
    pub residency: Option<ResidencyStats>,
}

/// The share of the context that is used, for the time of a token.
const USED: f64 = 0.5;

impl Made<'_> {
    /// Returns the costs with these speeds.
    pub fn profile(&self, speeds: Speeds) -> OffloadProfile {
        let kv_bytes = (self.context.0 as f64 * self.context.1) as u64;
        let on_gpu = self.gpu.is_some();
        let stats = self.offload.unwrap_or(OffloadStats {
            weight_bytes: self.layer_bytes,
            resident_bytes: if on_gpu { self.layer_bytes } else { 0 },
            kv_resident_bytes: if on_gpu { kv_bytes } else { 0 },
            ..OffloadStats::default()
        });
        let (experts, kept) = self.experts(&stats);
        let gpu_bytes = stats.resident_bytes + kept;
        let in_memory = self.residency.map(|weights| weights.resident_bytes);
        let not_on_gpu = self.layer_bytes.saturating_sub(gpu_bytes);
        let memory_bytes = in_memory.unwrap_or(not_on_gpu).min(not_on_gpu);
        let weights = Tiers { gpu_bytes, memory_bytes, disk_bytes: not_on_gpu - memory_bytes };
        let host_kv = if on_gpu { stats.kv_host_bytes } else { kv_bytes };
        let kv = Tiers { gpu_bytes: stats.kv_resident_bytes, memory_bytes: host_kv, disk_bytes: 0 };
        let others = stats.weight_bytes - stats.resident_bytes;
        let loaded = others + experts;
        let from_disk = (loaded as f64 * share(weights.disk_bytes, not_on_gpu)) as u64;
        let [to_gpu, read] = speeds.gpu.unwrap_or([f64::INFINITY, speeds.memory]);
        let (moved, moved_kv) = if on_gpu { (loaded, host_kv as f64 * USED) } else { (0, 0.0) };
        let used = stats.weight_bytes + self.used_experts(&stats);
        let mut profile = OffloadProfile {
            gpu: self.gpu.clone(),
            pipeline: (stats.slot_bytes + stats.kv_slot_bytes > 0).then(|| stats.pipeline.name()),
            context: self.context.0,
            weights,
            kv,
            slot_bytes: stats.slot_bytes + stats.kv_slot_bytes - kept.min(stats.slot_bytes),
            experts_kept: stats.expert_slots,
            disk: Step::new(from_disk, speeds.disk),
            weights_to_gpu: Step::new(moved, to_gpu),
            kv_to_gpu: Step::new(moved_kv as u64, to_gpu),
            computing: Step::new(used, read),
            tokens_per_s: 0.0,
            bound_by: "",
        };
        profile.find_pace(speeds.loads_beside);
        profile
    }

    /// Returns bytes of experts that are loaded for a token, and those that the GPU keeps.
    fn experts(&self, stats: &OffloadStats) -> (u64, u64) {
        let all = self.layer_bytes.saturating_sub(stats.weight_bytes);
        let kept = (stats.expert_slots as u64 * stats.expert_slot_bytes).min(all);
        ((self.used_experts(stats) as f64 * share(all - kept, all)) as u64, kept)
    }

    /// Returns bytes of the experts that a token uses.
    fn used_experts(&self, stats: &OffloadStats) -> u64 {
        let all = self.layer_bytes.saturating_sub(stats.weight_bytes);
        self.config.experts.map_or(0, |experts| all / experts.count as u64 * experts.used as u64)
    }
}

fn share(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}

impl OffloadProfile {
    fn find_pace(&mut self, loads_beside: bool) {
        let copies_s = self.weights_to_gpu.seconds + self.kv_to_gpu.seconds;
        let disk = ("the disk", self.disk.seconds);
        let computing = ("computing", self.computing.seconds);
        let paces = if loads_beside || copies_s == 0.0 {
            vec![computing, ("copies to the GPU", copies_s), disk]
        } else {
            vec![("computing and copies to the GPU, in turn", copies_s + computing.1), disk]
        };
        let slowest = paces.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let (bound_by, seconds) = slowest.expect("there are two at least");
        self.bound_by = bound_by;
        self.tokens_per_s = 1.0 / seconds;
    }

    /// Returns it as a table.
    pub fn text(&self) -> String {
        let cell = |bytes: u64| if bytes == 0 { "-".to_owned() } else { size(bytes) };
        let row = |name: &str, tiers: &Tiers| {
            let cells = [tiers.gpu_bytes, tiers.memory_bytes, tiers.disk_bytes].map(cell);
            format!("    {name:<18}{:>12}{:>12}{:>12}\n", cells[0], cells[1], cells[2])
        };
        let mut out = match &self.gpu {
            Some(gpu) => format!("  layers on {gpu}, a context of {} tokens:\n", self.context),
            None => format!("  layers on the CPU, a context of {} tokens:\n", self.context),
        };
        out += &format!("    {:<18}{:>12}{:>12}{:>12}\n", "", "GPU", "memory", "disk");
        out += &row("weights", &self.weights);
        out += &row("keys and values", &self.kv);
        if let Some(pipeline) = self.pipeline {
            out += &row("loaded through", &Tiers { gpu_bytes: self.slot_bytes, ..Tiers::default() });
            out += &format!("    pipeline: {pipeline}\n");
        }
        if self.experts_kept > 0 {
            out += &format!("    experts on the GPU: the {} used most\n", self.experts_kept);
        }
        let steps = [
            ("from the disk", self.disk),
            ("weights to the GPU", self.weights_to_gpu),
            ("keys and values", self.kv_to_gpu),
            ("computing", self.computing),
        ];
        for (name, Step { bytes, seconds }) in steps.into_iter().filter(|(_, step)| step.bytes > 0) {
            out += &format!("    {name:<18}{:>12} a token, {:.1} ms\n", size(bytes), seconds * 1e3);
        }
        out + &format!("    at most {:.1} tokens/s, bound by {}\n", self.tokens_per_s, self.bound_by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::Arc;

    use baton_engine::{Engine, EngineOptions, GpuLayers, GpuUse, KvHome, Model, Offload, Pipeline};
    use baton_kernels_cpu::Format;
    use baton_kernels_gpu::cases::HostDevice;
    use baton_synthetic::{SyntheticExperts, SyntheticModel};

    const SPEEDS: Speeds = Speeds { disk: 1e9, memory: 1e10, gpu: None, loads_beside: true };
    const WITH_GPU: Speeds = Speeds { gpu: Some([2e9, 1e11]), ..SPEEDS };

    fn open(experts: Option<SyntheticExperts>) -> Arc<Model> {
        let family = if experts.is_some() { "qwen3moe" } else { "llama" };
        let file = tempfile::NamedTempFile::new().unwrap();
        let shape = SyntheticModel { experts, ..SyntheticModel::small(family, Format::Q8_0, 3) };
        std::fs::write(&file, shape.to_gguf().unwrap()).unwrap();
        Model::open(file.path()).unwrap()
    }

    fn made(model: &Arc<Model>, options: Offload) -> Made<'_> {
        let device = Arc::new(HostDevice::new(None));
        let gpu = GpuUse { device, layers: GpuLayers::Offloaded(options), on_loss: |_| {} };
        let options = EngineOptions { kv_tokens: 64, gpu: Some(gpu), ..EngineOptions::default() };
        let engine = Engine::new(Arc::clone(model), options).unwrap();
        Made {
            gpu: Some("a GPU".to_owned()),
            config: model.config(),
            layer_bytes: model.layer_weight_bytes(),
            context: (64, 128.0),
            offload: engine.offload_stats(),
            residency: None,
        }
    }

    #[test]
    fn what_does_not_stay_is_loaded_at_the_rate_of_copies() {
        let model = open(None);
        let options = Offload { resident_bytes: Some(0), kv: KvHome::Host, ..Offload::default() };
        let all = made(&model, options).profile(WITH_GPU);
        let layers = model.layer_weight_bytes();
        assert_eq!(all.weights, Tiers { memory_bytes: layers, ..Tiers::default() });
        assert_eq!((all.pipeline, all.bound_by), (Some(Pipeline::Performance.name()), "copies to the GPU"));
        assert_eq!(all.weights_to_gpu.bytes, layers);
        let seconds = (layers as f64 + all.kv.memory_bytes as f64 / 2.0) / 2e9;
        assert!((all.tokens_per_s * seconds - 1.0).abs() < 1e-3, "{all:?}");
        assert!(all.text().contains("bound by copies to the GPU"), "{}", all.text());
        // From the disk it takes twice as long.
        let none = ResidencyStats { resident_bytes: 0, ..residency() };
        let from_disk = Made { residency: Some(none), ..made(&model, Offload::default()) };
        assert_eq!(from_disk.profile(WITH_GPU).bound_by, "computing", "everything stays on the GPU");
        let options = Offload { resident_bytes: Some(0), ..Offload::default() };
        let from_disk = Made { residency: Some(none), ..made(&model, options) }.profile(WITH_GPU);
        assert_eq!((from_disk.bound_by, from_disk.weights.disk_bytes), ("the disk", layers));
    }

    #[test]
    fn a_gpu_that_loads_and_computes_in_turn_takes_the_sum_of_both() {
        let model = open(None);
        let pace = |options: Offload, loads_beside, residency| {
            let made = Made { residency, ..made(&model, options) };
            let found = made.profile(Speeds { loads_beside, ..WITH_GPU });
            (1.0 / found.tokens_per_s, found.bound_by, found)
        };
        let options = Offload { resident_bytes: Some(0), kv: KvHome::Host, ..Offload::default() };
        let (seconds, bound_by, found) = pace(options.clone(), false, None);
        let copies = found.weights_to_gpu.seconds + found.kv_to_gpu.seconds;
        assert!((seconds / (found.computing.seconds + copies) - 1.0).abs() < 1e-9, "{found:?}");
        assert_eq!(bound_by, "computing and copies to the GPU, in turn");
        assert!((pace(options.clone(), true, None).0 / copies - 1.0).abs() < 1e-9, "{found:?}");
        // Reads from the disk run beside both, and without copies there are no turns.
        assert_eq!(pace(options, false, Some(residency())).1, "the disk");
        assert_eq!(pace(Offload::default(), false, None).1, "computing");
    }

    fn residency() -> ResidencyStats {
        ResidencyStats::default()
    }

    #[test]
    fn a_cpu_that_reads_from_the_disk_is_bound_by_it() {
        let model = open(None);
        let layers = model.layer_weight_bytes();
        let half = ResidencyStats { resident_bytes: layers / 2, ..residency() };
        let made =
            Made { gpu: None, offload: None, residency: Some(half), ..made(&model, Offload::default()) };
        let found = made.profile(SPEEDS);
        let tiers = Tiers { gpu_bytes: 0, memory_bytes: layers / 2, disk_bytes: layers - layers / 2 };
        assert_eq!((found.weights, found.bound_by, found.pipeline), (tiers, "the disk", None));
        assert!((found.tokens_per_s * (layers - layers / 2) as f64 / 1e9 - 1.0).abs() < 1e-3, "{found:?}");
        let whole = Made { residency: None, ..made };
        assert_eq!(whole.profile(SPEEDS).bound_by, "computing");
    }

    #[test]
    fn of_a_mixture_chosen_experts_count() {
        let experts = SyntheticExperts { count: 8, used: 2, d_ff: 64, shared_d_ff: 0 };
        let model = open(Some(experts));
        let options = Offload { resident_bytes: Some(0), ..Offload::default() };
        let made = made(&model, options);
        let found = made.profile(WITH_GPU);
        let stats = made.offload.unwrap();
        let of_experts = model.layer_weight_bytes() - stats.weight_bytes;
        let used = found.computing.bytes - stats.weight_bytes;
        assert!((used as f64 / of_experts as f64 - 0.25).abs() < 1e-3, "{found:?}");
        assert!(
            found.weights_to_gpu.bytes < stats.weight_bytes + used && found.experts_kept >= 2,
            "{found:?}"
        );
    }
}
