//! Whole models, the relay, a ring and the real programs on a real GPU interface: Vulkan, and if nothing else
//! is there, Mesa's device in software.
//!
//! The device is the one that `BATON_TEST_GPU` names, as `--gpu` does; it must be there. Without the variable
//! it is `vulkan:0`, and if that is missing, the suite says so and is skipped. Each kernel by itself is
//! tested beside the kernels (suites of the same name).

mod gpu {
    mod lost;
    mod models;
    mod programs;
    mod relay;
    mod ring;
    mod submissions;
}

use std::sync::{Arc, OnceLock};

use baton_engine::gguf::Gguf;
use baton_engine::{Engine, EngineOptions, GpuLayers, GpuLoss, GpuUse, Model, SeqId, StepSeq, Wanted};
use baton_gpu::Device;
use baton_kernels_cpu::Format;
use baton_synthetic::{ExtraValue, SyntheticExperts, SyntheticModel};

/// Logits of a GPU differ from the CPU's by rounding: at most this part of the largest.
const TOLERANCE: f32 = 0.02;

/// Names the device of all tests.
const DEVICE_VARIABLE: &str = "BATON_TEST_GPU";

/// Opens the device that is named, or `vulkan:0`; says why there is none.
///
/// # Panics
/// If a device is named and cannot be opened.
fn opened(named: Option<&str>) -> Option<Arc<dyn Device>> {
    let choice = named.unwrap_or("vulkan:0").parse().expect("a choice as `--gpu` takes it");
    let device = match baton_gpu::open(choice, None) {
        Ok(opened) => opened.device.ok_or_else(|| "no GPU was found".to_owned()),
        Err(err) => Err(baton_terminal::chain(&err)),
    };
    match (device, named) {
        (Ok(device), _) => Some(device),
        (Err(why), Some(name)) => panic!("{DEVICE_VARIABLE} is {name}: {why}"),
        (Err(why), None) => {
            println!("skipped: gpu: {why}");
            None
        }
    }
}

/// Returns the device of all tests; says why there is none.
fn device() -> Option<Arc<dyn Device>> {
    static DEVICE: OnceLock<Option<Arc<dyn Device>>> = OnceLock::new();
    DEVICE.get_or_init(|| opened(std::env::var(DEVICE_VARIABLE).ok().as_deref())).clone()
}

#[test]
#[should_panic(expected = "BATON_TEST_GPU is vulkan:1000: there is no GPU `vulkan:1000`")]
fn a_named_device_that_is_missing_is_not_skipped() {
    opened(Some("vulkan:1000"));
}

fn fails(loss: &GpuLoss) {
    panic!("{}", baton_terminal::chain(loss));
}

/// Returns options of an engine with these layers on the device.
fn on(device: &Arc<dyn Device>, layers: GpuLayers, kv_tokens: usize) -> EngineOptions {
    let gpu = Some(GpuUse { device: Arc::clone(device), layers, on_loss: fails });
    EngineOptions { kv_tokens, gpu, ..EngineOptions::default() }
}

fn cpu(kv_tokens: usize) -> EngineOptions {
    EngineOptions { kv_tokens, ..EngineOptions::default() }
}

fn engine(model: &Arc<Model>, options: EngineOptions) -> Engine {
    Engine::new(Arc::clone(model), options).expect("the options are right")
}

/// Runs tokens of one sequence, with every logit.
fn logits(engine: &mut Engine, seq: SeqId, ids: &[u32]) -> Vec<f32> {
    let step = StepSeq { seq, ids, logits: Wanted::All, capture: None };
    engine.step(&[step], &mut ()).expect("a step").remove(0).logits
}

fn best(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.expect("a vocabulary is not empty").0 as u32
}

/// Returns logits of a prompt, and so many tokens after it.
fn written(engine: &mut Engine, ids: &[u32], tokens: usize) -> (Vec<f32>, Vec<u32>) {
    let (seq, vocab) = (engine.create(), engine.model().config().vocab_len);
    let all = logits(engine, seq, ids);
    let mut last = all[all.len() - vocab..].to_vec();
    let mut text = Vec::new();
    for _ in 0..tokens {
        text.push(best(&last));
        last = logits(engine, seq, &text[text.len() - 1..]);
    }
    engine.release(seq);
    (all, text)
}

#[track_caller]
fn assert_near(have: &[f32], want: &[f32], what: &str) {
    assert_eq!(have.len(), want.len(), "{what}");
    let top = want.iter().fold(0.0f32, |top, value| top.max(value.abs()));
    // The order in which NaN is the largest: `f32::max` would leave it out.
    let gap = have.iter().zip(want).map(|(a, b)| (a - b).abs()).max_by(f32::total_cmp).unwrap_or(0.0);
    assert!(gap <= TOLERANCE * top, "{what}: {gap} of {top}");
}

#[test]
#[should_panic(expected = "one is missing: NaN of 2")]
fn a_logit_that_is_no_number_is_far_from_every_number() {
    assert_near(&[1.0, f32::NAN, 2.0], &[1.0, 1.5, 2.0], "one is missing");
}

#[track_caller]
fn assert_same_bits(have: &[f32], want: &[f32], what: &str) {
    assert_eq!(have.len(), want.len(), "{what}");
    let differs = have.iter().zip(want).position(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(differs, None, "{what}: first number that differs");
    assert!(have.iter().all(|value| value.is_finite()), "{what}: not finite");
}

/// Returns a model of random weights, with experts or without.
fn synthetic(family: &'static str, format: Format, experts: bool) -> Arc<Model> {
    let experts = experts.then_some(SyntheticExperts { count: 6, used: 2, d_ff: 256, shared_d_ff: 256 });
    let windowed = ["gemma3", "gpt-oss"].contains(&family);
    let window = windowed.then_some(("attention.sliding_window", ExtraValue::U32(40)));
    let shape = SyntheticModel {
        experts,
        extra: window.into_iter().collect(),
        tied: family != "gpt-oss",
        ..SyntheticModel::small(family, format, 5)
    };
    let bytes = shape.to_gguf().expect("the shape fits the format");
    Model::from_gguf(Gguf::from_bytes(bytes).expect("a GGUF file")).expect("a model")
}

/// Returns token ids that resemble text; they differ for each seed.
fn prompt(seed: u32, len: usize, vocab: usize) -> Vec<u32> {
    let id = |i: u32| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 40_503) >> 7) % vocab as u32;
    (0..len as u32).map(id).collect()
}
