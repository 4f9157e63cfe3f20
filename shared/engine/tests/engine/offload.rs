//! Layers whose weights are loaded to the GPU for each pass.
//!
//! Bits are those of a GPU that has all weights. Bytes and time are near the least. The device computes in
//! host memory; its clock has stated speeds. Faults in the middle are in `src/offload/faults.rs`.

use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::ControlFlow;
use std::sync::Arc;

use baton_engine::engine::EngineError;
use baton_engine::weights::WeightError;
use baton_engine::{
    Engine, EngineOptions, GpuLayers, GpuLoss, GpuUse, Kept, KvHome, Model, MoveRates, Offload, OffloadStats,
    Pipeline, Residency, SlidingWindow, StepControl, StepError, StepSeq, Wanted,
};
use baton_kernels_cpu::Format;
use baton_kernels_gpu::Device;
use baton_kernels_gpu::cases::{HostDevice, LateDevice, Loads, Speeds, TimedDevice};
use baton_random::SplitMix64;
use baton_synthetic::{SyntheticExperts, SyntheticModel};

use crate::invariance::check_ways_of_a_prefix;
use crate::{all_logits, assert_same_bits, engine, family, open, prompt};

pub(crate) const PIPELINES: [Pipeline; 3] =
    [Pipeline::Performance, Pipeline::MemoryEfficient, Pipeline::Synchronous];

fn ignore(_: &GpuLoss) {}

pub(crate) fn on(device: Arc<dyn Device>, layers: GpuLayers) -> EngineOptions {
    let gpu = Some(GpuUse { device, layers, on_loss: ignore });
    EngineOptions { gpu, kv_tokens: 128, ..EngineOptions::default() }
}

fn offloaded(options: Offload) -> EngineOptions {
    on(Arc::new(HostDevice::new(None)), GpuLayers::Offloaded(options))
}

/// Devices that load in the order of the calls, as early as they may, and as late as they may.
pub(crate) fn devices() -> [Arc<dyn Device>; 3] {
    let [early, late] = Loads::ALL.map(|loads| Arc::new(LateDevice::new(None, loads)));
    [Arc::new(HostDevice::new(None)), early, late]
}

pub(crate) fn number(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

/// Logits of a prompt in chunks, and of tokens one by one after it.
fn answer(engine: &mut Engine) -> Vec<f32> {
    let (seq, ids) = (engine.create(), prompt(3, 60));
    let parts = [&ids[..50], &ids[50..53], &ids[53..54], &ids[54..]];
    let logits = parts.into_iter().flat_map(|part| all_logits(engine, seq, part)).collect();
    engine.release(seq);
    logits
}

/// Rates of a CPU in bytes per second, beside a GPU that is fast and far away.
fn rates(cpu: u64) -> MoveRates {
    let rate = |bytes| NonZeroU64::new(bytes).unwrap();
    let (to_gpu, disk) = (rate(1 << 30), rate(1 << 30));
    MoveRates { to_gpu, gpu: rate(1 << 40), cpu: rate(cpu), disk, loads_beside: true }
}

pub(crate) fn stats(engine: &Engine) -> OffloadStats {
    engine.offload_stats().expect("the GPU has not failed")
}

#[test]
fn no_bit_depends_on_what_stays_nor_on_pipeline_blocks_and_threads() {
    for (name, format) in [
        ("llama", Format::Q8_0),
        ("llama", Format::F16),
        ("gemma2", Format::F32),
        ("gemma4-experts", Format::Q8_0),
        ("qwen3moe", Format::Q8_0),
        ("deepseek2", Format::Q8_0),
        ("gpt-oss", Format::Q8_0),
    ] {
        let model = open(&family(name, format));
        let fit = on(Arc::new(HostDevice::new(None)), GpuLayers::Fit);
        let want = answer(&mut engine(&model, 1, fit));
        for pipeline in PIPELINES {
            for (resident, block, threads, kv) in [
                (0, 1, 1, KvHome::Host),
                (0, 1000, 3, KvHome::Gpu),
                (40_000, 1 << 20, 2, KvHome::Automatic),
                (90_000, 4096, 5, KvHome::Host),
            ] {
                let options = Offload {
                    pipeline,
                    threads: number(threads),
                    block_bytes: number(block * 8),
                    resident_bytes: Some(resident),
                    kv,
                    // So slow a CPU that the projection stays on the GPU.
                    rates: (kv == KvHome::Automatic).then(|| rates(1)),
                };
                let what = format!("{name} {}: {options:?}", format.name());
                let mut own = engine(&model, 1, offloaded(options));
                assert_same_bits(&answer(&mut own), &want, &what);
                assert_same_bits(&answer(&mut own), &want, &format!("{what}, again"));
                let stats = stats(&own);
                assert!(stats.resident_bytes <= resident && stats.pipeline == pipeline, "{what}: {stats:?}");
                let on_host = kv == KvHome::Host;
                let moved = stats.kv_saved_bytes > 0 && stats.kv_host_bytes > 0;
                assert_eq!((moved, stats.kv_resident_bytes == 0), (on_host, on_host), "{what}: {stats:?}");
                // Three slots hold small models whole.
                let in_turn = on_host && stats.kv_slot_bytes < stats.kv_host_bytes;
                assert!(stats.kv_loaded_bytes > 0 || !in_turn, "{what}: {stats:?}");
                let all_stay = stats.resident_bytes == stats.weight_bytes;
                assert!(stats.loaded_bytes > 0 && (!all_stay || stats.expert_bytes > 0), "{what}: {stats:?}");
            }
        }
    }
}

#[test]
fn no_bit_of_three_tiers_depends_on_what_stays_nor_on_pipeline_blocks_and_threads() {
    let folder = tempfile::tempdir().unwrap();
    for (name, format) in [
        ("llama", Format::F16),
        ("gemma3", Format::Q8_0),
        ("mixtral", Format::Q8_0),
        ("deepseek2", Format::Q8_0),
        ("gpt-oss", Format::Q8_0),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, family(name, format).to_gguf().unwrap()).unwrap();
        let model = Model::open(&path).unwrap();
        let fit = on(Arc::new(HostDevice::new(None)), GpuLayers::Fit);
        let (want, all) = (answer(&mut engine(&model, 1, fit)), model.layer_weight_bytes());
        for pipeline in PIPELINES {
            for (memory, resident, block, threads, kv) in [
                (0, 0, 1000, 1, KvHome::Host),
                (all / 3, 40_000, 1 << 20, 3, KvHome::Automatic),
                (all / 2, 0, 4096, 5, KvHome::Host),
                (all / 4, 20_000, 9000, 2, KvHome::Gpu),
            ] {
                let (threads, block_bytes) = (number(threads), number(block));
                let options = Offload { pipeline, threads, block_bytes, ..Offload::default() };
                let options = Offload { resident_bytes: Some(resident), kv, ..options };
                let what = format!("{name} {}, {memory} bytes in memory: {options:?}", format.name());
                let residency = Residency { budget_bytes: memory, read_bytes: 4096, ..Residency::default() };
                let streamed = Model::open_within(&path, &residency).unwrap();
                let mut own = engine(&streamed, 1, offloaded(options));
                own.share_weights().unwrap();
                assert_same_bits(&answer(&mut own), &want, &what);
                let stats = stats(&own);
                assert!(stats.read_bytes > 0 && stats.read_bytes <= stats.loaded_bytes, "{what}: {stats:?}");
                let on_host = kv == KvHome::Host;
                let moved = stats.kv_saved_bytes > 0 && stats.kv_host_bytes > 0;
                assert_eq!((moved, stats.kv_resident_bytes == 0), (on_host, on_host), "{what}: {stats:?}");
            }
        }
    }
}

/// Cancels at the second layer.
struct AtSecond;

impl StepControl for AtSecond {
    fn after_layer(&mut self, done: usize, _: usize) -> ControlFlow<()> {
        if done == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Cancels a step of a sequence of its own.
#[track_caller]
pub(crate) fn cancel_a_step(engine: &mut Engine, what: &str) {
    let (seq, ids) = (engine.create(), prompt(5, 30));
    let batch = [StepSeq { seq, ids: &ids, logits: Wanted::Last, capture: None }];
    let err = engine.step(&batch, &mut AtSecond).unwrap_err();
    assert!(matches!(err, StepError::Cancelled { done: 2, .. }), "{what}: {err}");
    engine.release(seq);
}

/// Logits behind a prompt of which each head keeps other tokens, and behind the whole prompt.
pub(crate) fn evicted(model: &Arc<Model>, options: EngineOptions) -> Vec<f32> {
    let heads = model.config().n_layers * model.config().n_kv_heads;
    let mut random = SplitMix64::new(5);
    let chosen: Vec<Vec<usize>> = (0..heads)
        .map(|_| (0..100).filter(|_| random.below(2) == 0).chain(100..).take(40).collect())
        .collect();
    let mut engine = engine(model, 1, options);
    let (seq, ids) = (engine.create(), prompt(2, 140));
    all_logits(&mut engine, seq, &ids[..130]);
    let child = engine.evict(seq, &Kept::new(&chosen).unwrap()).unwrap();
    let logits = all_logits(&mut engine, child, &ids[130..]);
    [logits, all_logits(&mut engine, seq, &ids[130..])].concat()
}

#[test]
fn every_load_is_behind_what_it_replaces_and_before_what_needs_it() {
    for (name, format) in
        [("llama", Format::Q8_0), ("gemma4-experts", Format::Q8_0), ("qwen3moe", Format::F16)]
    {
        let model = open(&family(name, format));
        let fit = on(Arc::new(HostDevice::new(None)), GpuLayers::Fit);
        let want = answer(&mut engine(&model, 1, fit));
        for (pipeline, loads) in
            PIPELINES.into_iter().flat_map(|pipeline| Loads::ALL.map(|loads| (pipeline, loads)))
        {
            // At last all weights stay, so that nothing but keys and values is loaded.
            for (resident, block, threads, kv) in [
                (0, 2000, 2, KvHome::Host),
                (40_000, 1 << 20, 3, KvHome::Gpu),
                (1 << 30, 4096, 2, KvHome::Host),
            ] {
                let (threads, block_bytes) = (number(threads), number(block));
                let options = Offload { pipeline, threads, block_bytes, ..Offload::default() };
                let options = Offload { resident_bytes: Some(resident), kv, ..options };
                let what = format!("{name}, {loads:?}: {options:?}");
                let device = Arc::new(LateDevice::new(None, loads));
                let mut own = engine(&model, 1, on(Arc::clone(&device) as _, GpuLayers::Offloaded(options)));
                assert_same_bits(&answer(&mut own), &want, &what);
                cancel_a_step(&mut own, &what);
                assert_same_bits(&answer(&mut own), &want, &format!("{what}, after a cancelled step"));
                drop(own);
                assert_eq!(device.used_bytes(), 0, "{what}: memory of the device is still held");
            }
        }
    }
}

#[test]
fn forks_cuts_and_known_prefixes_change_no_bit_of_keys_in_the_host_s_memory() {
    for (name, pipeline) in
        [("llama", PIPELINES[0]), ("gemma3", PIPELINES[1]), ("gemma4-shared", PIPELINES[2])]
    {
        let options = Offload { pipeline, kv: KvHome::Host, resident_bytes: Some(0), ..Offload::default() };
        for device in devices() {
            let on_host = on(device, GpuLayers::Offloaded(options.clone()));
            let on_host = EngineOptions { kv_tokens: 512, ..on_host };
            check_ways_of_a_prefix(&open(&family(name, Format::Q8_0)), 1, on_host);
        }
    }
}

#[test]
fn what_eviction_keeps_is_the_same_in_the_host_s_memory() {
    let model = open(&family("llama", Format::Q8_0));
    let after = |options| evicted(&model, EngineOptions { kv_tokens: 512, ..options });
    let want = after(on(Arc::new(HostDevice::new(None)), GpuLayers::Fit));
    for pipeline in PIPELINES {
        let options = Offload { pipeline, kv: KvHome::Host, ..Offload::default() };
        for device in devices() {
            let what = format!("{pipeline:?} on {device:?}");
            let on_host = on(device, GpuLayers::Offloaded(options.clone()));
            assert_same_bits(&after(on_host), &want, &what);
        }
    }
}

/// Decodes tokens behind a long prompt, and returns loaded and saved bytes for each token.
#[test]
fn of_keys_in_the_host_s_memory_only_what_is_seen_is_loaded_and_one_block_is_saved() {
    let model = deep(None);
    for (window, seen) in [(None, 4.1), (Some(SlidingWindow { tokens: 32, sinks: 0 }), 2.1)] {
        let device = Arc::new(TimedDevice::new(None, SPEEDS));
        let options = Offload { kv: KvHome::Host, ..Offload::default() };
        let of_gpu = on(Arc::clone(&device) as _, GpuLayers::Offloaded(options));
        let mut own = engine(&model, 1, EngineOptions { kv_tokens: 4096, window, ..of_gpu });
        let (seq, ids) = (own.create(), prompt(4, 128));
        all_logits(&mut own, seq, &ids[..100]);
        let before = stats(&own);
        for id in &ids[100..120] {
            all_logits(&mut own, seq, &[*id]);
        }
        let now = stats(&own);
        let block = now.kv_host_bytes as f64 / 128.0;
        let per_token = |now: u64, before: u64| (now - before) as f64 / 20.0;
        let saved = per_token(now.kv_saved_bytes, before.kv_saved_bytes);
        assert!((saved - block).abs() < 1.0, "{window:?}: {saved}, a block has {block}");
        let loaded = per_token(now.kv_loaded_bytes, before.kv_loaded_bytes);
        assert!(loaded <= seen * block && loaded > 0.0, "{window:?}: {loaded}, a block has {block}: {now:?}");
        assert!(device.used_bytes() < now.kv_host_bytes, "three of eight layers have slots: {now:?}");
    }
}

#[test]
fn a_model_that_fits_is_loaded_once() {
    let model = open(&family("llama", Format::Q8_0));
    let mut own = engine(&model, 1, offloaded(Offload::default()));
    answer(&mut own);
    let stats = stats(&own);
    assert_eq!((stats.resident_bytes, stats.slot_bytes, stats.loaded_bytes), (stats.weight_bytes, 0, 0));
}

/// A model of eight layers, and the bytes of its layers.
fn deep(experts: Option<SyntheticExperts>) -> Arc<Model> {
    let family = if experts.is_some() { "qwen3moe" } else { "llama" };
    let shape = SyntheticModel { n_layers: 8, experts, ..SyntheticModel::small(family, Format::Q8_0, 7) };
    open(&shape)
}

/// The free memory that the device must have so that `share` of the layers' weights stay.
pub(crate) fn budget(model: &Arc<Model>, share: f64) -> u64 {
    let device = Arc::new(HostDevice::new(None));
    let options = Offload { pipeline: Pipeline::Performance, kv: KvHome::Gpu, ..Offload::default() };
    let all = Offload { resident_bytes: Some(0), ..options.clone() };
    let engine = engine(model, 1, on(Arc::clone(&device) as _, GpuLayers::Offloaded(all)));
    let OffloadStats { weight_bytes, .. } = stats(&engine);
    let mut low = device.used_bytes();
    // Activations and the projection to logits are set aside; the least budget that works is found.
    let works = |budget| {
        let device = Arc::new(HostDevice::new(Some(budget)));
        Engine::new(Arc::clone(model), on(device, GpuLayers::Offloaded(options.clone()))).is_ok()
    };
    let mut high = low + (64 << 20);
    assert!(works(high) && !works(low));
    while high - low > 1024 {
        let middle = low.midpoint(high);
        if works(middle) { high = middle } else { low = middle }
    }
    high + (share * weight_bytes as f64) as u64
}

const SPEEDS: Speeds = Speeds { copy_bytes_per_s: 1e9, copy_s: 1e-6, read_bytes_per_s: 1e9, launch_s: 1e-7 };

/// Decodes tokens on a device with a clock. Returns seconds and loaded bytes for each token.
///
/// One thread loads: the device's clock goes in the order of its calls, and that of threads is the system's.
fn decode(model: &Arc<Model>, budget: u64, speeds: Speeds, options: Offload) -> (f64, f64, OffloadStats) {
    let device = Arc::new(TimedDevice::new(Some(budget), speeds));
    let options = Offload { threads: number(1), ..options };
    let mut own = engine(model, 1, on(Arc::clone(&device) as _, GpuLayers::Offloaded(options)));
    let (seq, ids) = (own.create(), prompt(4, 24));
    let one = |own: &mut Engine, ids: &[u32]| {
        own.step(&[StepSeq { seq, ids, logits: Wanted::Last, capture: None }], &mut ()).unwrap();
    };
    one(&mut own, &ids[..4]);
    let (before, begun) = (stats(&own).loaded_bytes, device.now_s());
    ids[4..].iter().for_each(|id| one(&mut own, &[*id]));
    let (now, tokens) = (stats(&own), (ids.len() - 4) as f64);
    assert!(device.fault().is_none() && device.used_bytes() <= budget);
    ((device.now_s() - begun) / tokens, (now.loaded_bytes - before) as f64 / tokens, now)
}

#[test]
fn bytes_are_near_the_least_and_loads_hide_computing() {
    let model = deep(None);
    for share in [0.0, 0.3, 0.7] {
        let budget = budget(&model, share);
        let options = |pipeline| Offload { pipeline, kv: KvHome::Gpu, ..Offload::default() };
        let run = |pipeline| decode(&model, budget, SPEEDS, options(pipeline));
        let (seconds, bytes, stats) = run(Pipeline::Performance);
        let least = (1.0 - share) * stats.weight_bytes as f64;
        assert!(bytes <= 1.1 * least, "{share}: {bytes} of {least}, {stats:?}");
        // Products read as fast as copies are made, so what stays takes longer than what is loaded.
        let computing = stats.weight_bytes as f64 / SPEEDS.read_bytes_per_s;
        let bound = computing.max(bytes / SPEEDS.copy_bytes_per_s);
        assert!(bound >= 0.9 * seconds, "{share}: {seconds} s, the least is {bound}, {stats:?}");
        let (slow, _, _) = run(Pipeline::Synchronous);
        assert!(slow >= (1.9 - share) * seconds, "{share}: {slow} s, {seconds} with loads beside computing");
        let (between, _, stats) = run(Pipeline::MemoryEfficient);
        assert!(seconds <= 1.001 * between && between < slow, "{share}: {between} s, {stats:?}");
    }
}

#[test]
fn measured_rates_move_the_projection_to_the_cpu_with_the_same_bits() {
    let model = deep(None);
    let budget = budget(&model, 0.9);
    let run = |rates: Option<MoveRates>| {
        let pipeline = Pipeline::Performance;
        let options = Offload { pipeline, kv: KvHome::Gpu, rates, ..Offload::default() };
        let device = Arc::new(HostDevice::new(Some(budget)));
        let mut own = engine(&model, 1, on(device, GpuLayers::Offloaded(options)));
        (own.gpu_has_output(), stats(&own).resident_bytes, answer(&mut own))
    };
    let (on_gpu, kept, want) = run(None);
    let (on_slow, kept_beside_slow, _) = run(Some(rates(1)));
    let (on_fast, kept_beside_fast, logits) = run(Some(rates(1 << 40)));
    assert_eq!([on_gpu, on_slow, on_fast], [true, true, false]);
    assert!(kept == kept_beside_slow && kept < kept_beside_fast, "{kept} {kept_beside_fast}");
    assert_same_bits(&logits, &want, "the CPU computes the logits");
}

#[test]
fn only_chosen_experts_are_loaded_and_those_used_most_stay() {
    let experts = SyntheticExperts { count: 8, used: 2, d_ff: 64, shared_d_ff: 0 };
    let model = deep(Some(experts));
    let (_, _, stats) = decode(&model, budget(&model, 1.0) + (1 << 20), SPEEDS, Offload::default());
    let passes = 21;
    assert_eq!(stats.loaded_bytes, stats.expert_bytes, "other weights fit");
    let one = stats.expert_bytes / stats.expert_loads;
    let all = 8 * 8 * one;
    assert!(stats.expert_loads + stats.expert_hits >= 8 * 2 * passes, "{stats:?}");
    assert!(stats.expert_bytes < passes * all / 3, "two of eight are needed: {stats:?}");
    assert!(stats.expert_hits > 0 && stats.expert_slots >= 16, "{stats:?}");
}

#[test]
fn dense_layers_of_a_mixture_take_no_slots_for_experts() {
    let model = open(&family("deepseek2", Format::Q8_0));
    let own = engine(&model, 1, offloaded(Offload::default()));
    // Nine experts in each of three layers, the first of which is dense.
    assert_eq!((model.config().n_layers, stats(&own).expert_slots), (3, 18));
}

#[test]
fn a_device_without_room_is_refused_with_the_way_out() {
    let model = deep(None);
    let least = budget(&model, 0.0) - 2048;
    let stated = Offload { pipeline: Pipeline::Performance, kv: KvHome::Gpu, ..Offload::default() };
    for (budget, says) in [(1000, "activations need"), (least, "lower the context")] {
        let device = Arc::new(HostDevice::new(Some(budget)));
        let err = Engine::new(Arc::clone(&model), on(device, GpuLayers::Offloaded(stated.clone())));
        let err = err.unwrap_err();
        assert!(matches!(err, EngineError::GpuRefused { .. }), "{budget}: {err}");
        assert!(err.to_string().contains(says), "{budget}: {err}");
    }
    // What is not stated finds a way: fewer slots, and keys and values in the host's memory.
    let device = Arc::new(HostDevice::new(Some(least)));
    let own = engine(&model, 1, on(device, GpuLayers::Offloaded(Offload::default())));
    let stats = stats(&own);
    assert!(stats.pipeline == Pipeline::MemoryEfficient || stats.kv_host_bytes > 0, "{stats:?}");
}

#[test]
fn weights_come_from_the_disk_if_the_model_does_not_fit_and_a_short_file_is_an_error() {
    let shape = SyntheticModel { n_layers: 4, ..SyntheticModel::small("llama", Format::Q8_0, 9) };
    let bytes = shape.to_gguf().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    let want = {
        let model = Model::open(file.path()).unwrap();
        answer(&mut engine(&model, 1, on(Arc::new(HostDevice::new(None)), GpuLayers::Fit)))
    };
    let options = || offloaded(Offload { resident_bytes: Some(0), ..Offload::default() });
    let within = |budget_bytes: u64| {
        // Reads of few rows, so that small matrices are cut too.
        let residency = Residency { budget_bytes, read_bytes: 8192, ..Residency::default() };
        let model = Model::open_within(file.path(), &residency).unwrap();
        let mut own = engine(&model, 1, options());
        own.share_weights().unwrap();
        assert_same_bits(&answer(&mut own), &want, &format!("{budget_bytes} bytes stay in memory"));
        let OffloadStats { loaded_bytes, read_bytes, kv_resident_bytes, .. } = stats(&own);
        assert!(kv_resident_bytes > 0, "the host has no memory for keys and values");
        (model, read_bytes as f64 / loaded_bytes as f64)
    };
    assert_eq!(within(1 << 30).1, 0.0, "all is in memory");
    let shares = [2, 8].map(|part| within(bytes.len() as u64 / part).1);
    assert!(0.2 < shares[0] && shares[0] < shares[1] && shares[1] < 1.0, "{shares:?}");
    let (model, all) = within(0);
    // Seven matrices of the next pass may still be on their way.
    assert!(all > 0.9, "{all} of the bytes were read, nothing stays");
    let mut own = engine(&model, 1, options());
    let (seq, ids) = (own.create(), prompt(1, 8));
    let mut step =
        || own.step(&[StepSeq { seq, ids: &ids[..4], logits: Wanted::Last, capture: None }], &mut ());
    step().unwrap();
    // Every layer is behind the first eighth of the file.
    std::fs::OpenOptions::new()
        .write(true)
        .open(file.path())
        .unwrap()
        .set_len(bytes.len() as u64 / 2)
        .unwrap();
    let err = step().unwrap_err();
    let StepError::Weights(WeightError::Read { path, err, .. }) = &err else { panic!("{err:?}") };
    assert_eq!((path.as_path(), err.kind()), (file.path(), std::io::ErrorKind::UnexpectedEof));
}

/// Writes a model into a file, opens it as one of which `budget_bytes` of weights stay in memory, and returns
/// it with the file.
fn streamed(shape: &SyntheticModel, budget_bytes: u64) -> (Arc<Model>, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), shape.to_gguf().unwrap()).unwrap();
    let residency = Residency { budget_bytes, read_bytes: 8192, ..Residency::default() };
    (Model::open_within(file.path(), &residency).unwrap(), file)
}

#[test]
fn a_changed_budget_takes_effect_with_the_next_pass_of_a_gpu_that_loads() {
    let shape = SyntheticModel { n_layers: 4, ..SyntheticModel::small("llama", Format::Q8_0, 9) };
    for has_room in [true, false] {
        let (model, _file) = streamed(&shape, 0);
        let weights = model.streamed().unwrap();
        let options = Offload { resident_bytes: Some(0), kv: KvHome::Gpu, ..Offload::default() };
        let room = (!has_room).then(|| budget(&model, 0.0));
        let device = Arc::new(HostDevice::new(room));
        let mut own = engine(&model, 1, on(device, GpuLayers::Offloaded(options)));
        own.share_weights().unwrap();
        assert_eq!(own.gpu_has_output(), has_room, "the projection to logits fits or not");
        let seq = own.create();
        let layers = model.layer_weight_bytes();
        for (pass, budget) in [0, layers / 2, layers, 0].into_iter().enumerate() {
            weights.set_budget(budget);
            all_logits(&mut own, seq, &prompt(pass as u32, 5));
            let stats = weights.stats();
            assert_eq!((stats.passes, stats.budget_bytes), (pass as u64 + 1, budget), "{has_room}");
            assert!(
                stats.resident_bytes <= budget && (stats.resident_bytes > 0) == (budget > 0),
                "{stats:?}"
            );
        }
    }
}

#[test]
fn keys_and_values_may_be_in_memory_if_all_weights_are_there_whatever_limits_them() {
    let shape = SyntheticModel { n_layers: 8, ..SyntheticModel::small("llama", Format::Q8_0, 7) };
    let (mapped, all) = (open(&shape), open(&shape).layer_weight_bytes());
    let room = budget(&mapped, 1.0);
    let on_host = |model: &Arc<Model>| {
        let device = Arc::new(HostDevice::new(Some(room)));
        let own = GpuLayers::Offloaded(Offload::default());
        let own = engine(model, 1, EngineOptions { kv_tokens: 768, ..on(device, own) });
        stats(&own).kv_host_bytes
    };
    let want = on_host(&mapped);
    assert!(want > 0, "a part of the keys and values is in the host's memory");
    for (budget_bytes, want) in [(2 * all, want), (u64::MAX, want), (all / 2, 0)] {
        let (model, _file) = streamed(&shape, budget_bytes);
        assert_eq!(on_host(&model), want, "{budget_bytes} bytes of weights may stay, {all} are there");
    }
}

#[test]
fn experts_that_a_gpu_loads_stay_in_memory_if_they_are_used_most() {
    let experts = SyntheticExperts { count: 8, used: 2, d_ff: 64, shared_d_ff: 0 };
    let shape = SyntheticModel {
        n_layers: 4,
        experts: Some(experts),
        ..SyntheticModel::small("qwen3moe", Format::Q8_0, 7)
    };
    let answer = |model: &Arc<Model>| {
        // The GPU has room for two experts only.
        let options = Offload { resident_bytes: Some(0), kv: KvHome::Gpu, ..Offload::default() };
        let mut own = engine(model, 1, offloaded(options));
        own.share_weights().unwrap();
        let seq = own.create();
        let logits: Vec<f32> = (0..40).flat_map(|id| all_logits(&mut own, seq, &[id % 3])).collect();
        (logits, stats(&own))
    };
    let (want, _) = answer(&open(&shape));
    let (model, _file) = streamed(&shape, 0);
    let all = model.streamed().unwrap().stats();
    let mut before = u64::MAX;
    for percent in [0, 25, 50, 75] {
        let budget = all.weight_bytes - all.all_expert_bytes * (100 - percent) / 100;
        let (model, _file) = streamed(&shape, budget);
        let (have, offload) = answer(&model);
        assert_same_bits(&have, &want, &format!("{percent} % of the experts stay in memory"));
        let stats = model.streamed().unwrap().stats();
        assert!(stats.resident_bytes <= budget && stats.held_expert_bytes <= stats.kept_bytes, "{stats:?}");
        // Everything else fits.
        assert_eq!(offload.read_bytes, stats.expert_bytes, "{percent} %: {stats:?}");
        assert_eq!(
            offload.expert_bytes,
            stats.expert_bytes + stats.kept_expert_bytes,
            "{percent} %: {stats:?}"
        );
        let kept = stats.kept_expert_bytes as f64 / offload.expert_bytes as f64;
        assert!(kept >= 0.9 * percent as f64 / 100.0, "{percent} %: {kept}");
        assert!(stats.expert_bytes < before, "{percent} %: {stats:?}");
        before = stats.expert_bytes;
    }
}
