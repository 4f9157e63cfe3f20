//! Mixtures of experts on a GPU: few rows are given their experts without the host, many by way of it.

use std::sync::Arc;

use baton_engine::{Engine, EngineOptions, GpuLayers, GpuLoss, GpuUse, Model, SeqId, StepSeq, Wanted};
use baton_kernels_cpu::Format;
use baton_kernels_gpu::Device;
use baton_kernels_gpu::cases::{HostDevice, Speeds, TimedDevice};
use baton_synthetic::{SyntheticExperts, SyntheticModel};

use crate::invariance::check_ways_of_a_prefix;
use crate::{all_logits, assert_same_bits, engine, family, open, prompt, ragged};

/// Families of mixtures that GPUs compute: with biases, groups, shared experts, a dense network beside the
/// experts, and gate and up of an expert in one matrix.
const MIXTURES: [&str; 8] = [
    "mixtral",
    "qwen2moe",
    "qwen3moe",
    "granitemoe",
    "gpt-oss",
    "deepseek2",
    "deepseek2-joined",
    "gemma4-experts",
];

/// The speeds do not matter.
const SPEEDS: Speeds = Speeds { copy_bytes_per_s: 1e9, copy_s: 1e-6, read_bytes_per_s: 1e9, launch_s: 1e-7 };

fn fails(loss: &GpuLoss) {
    panic!("{loss}");
}

fn on(device: Arc<dyn Device>) -> EngineOptions {
    let gpu = Some(GpuUse { device, layers: GpuLayers::Fit, on_loss: fails });
    EngineOptions { gpu, ..EngineOptions::default() }
}

fn mixture(name: &'static str, format: Format) -> Arc<Model> {
    open(&family(name, format))
}

/// Runs some tokens. Returns how often the host waited for the device, and the kernels that ran.
fn run(own: &mut Engine, device: &TimedDevice, seq: SeqId, ids: &[u32]) -> (usize, Vec<String>) {
    device.take_spans();
    own.step(&[StepSeq { seq, ids, logits: Wanted::Last, capture: None }], &mut ()).unwrap();
    let [commands, _] = device.take_spans();
    let names: Vec<String> = commands.into_iter().map(|span| span.what).collect();
    (names.iter().filter(|what| *what == "read").count(), names)
}

#[test]
fn a_token_waits_for_the_gpu_once() {
    for name in MIXTURES {
        let model = mixture(name, Format::Q8_0);
        let layers = model.config().n_layers - model.config().experts.unwrap().first_layer;
        let device = Arc::new(TimedDevice::new(None, SPEEDS));
        let mut own = engine(&model, 1, on(Arc::clone(&device) as _));
        let (seq, ids) = (own.create(), prompt(3, 40));
        let count = |names: &[String], begin: &str, end: &str| {
            names.iter().filter(|name| name.starts_with(begin) && name.ends_with(end)).count()
        };
        let (reads, kernels) = run(&mut own, &device, seq, &ids[..30]);
        // The last layer has one row: that of the logits.
        assert_eq!((reads, count(&kernels, "route", "")), (layers, layers), "{name}: a prompt");
        for tokens in [30..31, 31..32, 32..34] {
            let n = tokens.len();
            let (reads, kernels) = run(&mut own, &device, seq, &ids[tokens]);
            assert_eq!((reads, count(&kernels, "route", "")), (1, layers), "{name}: {n} tokens");
            // Gate, up and down.
            assert_eq!(count(&kernels, "matvec", "_chosen"), 3 * layers, "{name}: {n} tokens");
        }
    }
}

#[test]
fn rows_have_the_same_bits_however_they_are_given_their_experts() {
    // An expert's matrix is larger than the keys of a layer, which are in one buffer.
    let (width, kv_tokens) = (1024, 64);
    for name in MIXTURES {
        for format in [Format::F16, Format::Q8_0] {
            let small = family(name, format);
            let experts =
                small.experts.map(|own| SyntheticExperts { d_ff: width, shared_d_ff: width, ..own });
            let model = open(&SyntheticModel { experts, d_ff: width, ..small });
            let ids = prompt(4, 40);
            let run = |device: HostDevice, chunk: usize| -> Vec<f32> {
                let mut own = engine(&model, 1, EngineOptions { kv_tokens, ..on(Arc::new(device)) });
                let seq = own.create();
                ids.chunks(chunk).flat_map(|ids| all_logits(&mut own, seq, ids)).collect()
            };
            let want = run(HostDevice::new(None), 1);
            let one = format.row_bytes(model.config().d_model).unwrap() * width as usize;
            // Buffers that hold all experts, two of them, and none.
            for (bytes, chunk) in
                [(1 << 30, 40), (1 << 30, 3), (2 * one + 600, 1), (2 * one + 600, 17), (one - 64, 1)]
            {
                let have = run(HostDevice::new(None).of_bindings(bytes as u64), chunk);
                let what = format!("{name} {}, chunks of {chunk}, bindings of {bytes}", format.name());
                assert_same_bits(&have, &want, &what);
            }
        }
    }
}

#[test]
fn batches_forks_and_cuts_of_a_mixture_change_no_bit() {
    for name in ["qwen3moe", "gpt-oss", "deepseek2"] {
        let model = mixture(name, Format::Q8_0);
        let options = || on(Arc::new(HostDevice::new(None)));
        check_ways_of_a_prefix(&model, 1, options());
        let prompts = [prompt(4, 60), prompt(5, 20), prompt(6, 40)];
        let moves = [[1, 1, 0], [30, 1, 1], [1, 0, 1], [1, 2, 20], [27, 16, 18]];
        let mut own = engine(&model, 1, options());
        let seqs = [own.create(), own.create(), own.create()];
        let have = ragged(&mut own, seqs, &prompts, &moves);
        for (have, ids) in have.iter().zip(&prompts) {
            let mut alone = engine(&model, 1, options());
            let seq = alone.create();
            assert_same_bits(have, &all_logits(&mut alone, seq, ids), name);
        }
    }
}

#[test]
fn the_gpu_keeps_each_expert_once() {
    let (model, ids) = (mixture("qwen3moe", Format::Q8_0), prompt(4, 60));
    let used = |chunks: &[usize]| {
        let device = Arc::new(HostDevice::new(None));
        let mut own = engine(&model, 1, on(Arc::clone(&device) as _));
        let seq = own.create();
        let mut rest = &ids[..];
        for chunk in chunks {
            let (now, later) = rest.split_at(*chunk);
            all_logits(&mut own, seq, now);
            rest = later;
        }
        device.used_bytes()
    };
    let (by_rows, by_experts) = (used(&[1, 1]), used(&[40]));
    assert_eq!((by_rows, by_experts), (by_experts, used(&[1, 40, 1])));
}
