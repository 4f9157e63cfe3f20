//! Whole models: logits within the tolerance of the CPU, the same greedy tokens, and the same bits for every
//! batch, chunk and fork.

use std::sync::Arc;
use std::time::Instant;

use baton_e2e::clients::fetched_models;
use baton_e2e::pair::demo_model;
use baton_engine::engine::KvFormat;
use baton_engine::gguf::Gguf;
use baton_engine::{Adapter, EngineOptions, GpuLayers, KvHome, Model, Offload, StepSeq, Wanted};
use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticAdapter;

use crate::{assert_near, assert_same_bits, cpu, device, engine, logits, on, prompt, synthetic, written};

/// Checks a model against the CPU: a prompt, and so many greedy tokens.
#[track_caller]
fn check(model: &Arc<Model>, layers: GpuLayers, (ids, tokens): (&[u32], usize), what: &str) {
    let Some(device) = device() else { return };
    let begun = Instant::now();
    let mut ours = engine(model, on(&device, layers, 1024));
    assert!(!ours.gpu_layers().is_empty(), "{what}: nothing is on the GPU");
    let (want, text) = written(&mut engine(model, cpu(1024)), ids, tokens);
    let (have, own_text) = written(&mut ours, ids, tokens);
    assert_near(&have, &want, what);
    assert_eq!(own_text, text, "{what}");
    assert!(ours.gpu_device().is_some(), "{what}: the GPU failed");
    println!("{what}: {} tokens and {tokens} more, {:.1} s", ids.len(), begun.elapsed().as_secs_f64());
}

#[test]
fn toy_models_are_those_of_the_cpu() {
    for name in ["demo-cloud.gguf", "demo-device.gguf"] {
        let model = demo_model(name).expect("the demo models are in the checkout");
        let ids = prompt(1, 100, model.config().vocab_len);
        check(&model, GpuLayers::Fit, (&ids, 24), name);
        check(&model, GpuLayers::Only(vec![1]), (&ids, 8), &format!("{name}, one layer"));
    }
}

#[test]
fn families_and_mixtures_are_those_of_the_cpu() {
    for (family, format, experts) in [
        ("llama", Format::Q4K, false),
        ("gemma3", Format::Q6K, false),
        ("phi3", Format::F16, false),
        ("qwen3moe", Format::Q8_0, true),
        ("gpt-oss", Format::Mxfp4, true),
    ] {
        let model = synthetic(family, format, experts);
        let what = format!("{family} {}", format.name());
        check(&model, GpuLayers::Fit, (&prompt(2, 70, 256), 12), &what);
    }
}

#[test]
fn real_models_are_those_of_the_cpu() {
    let folder = match fetched_models() {
        Ok(folder) => folder,
        Err(why) => return println!("skipped: gpu: real models: {why}"),
    };
    let text = "The lighthouse keeper wrote down the weather every evening. On Monday it rained. On Tuesday";
    for file in ["smollm2.gguf", "gemma3.gguf"] {
        let model = Model::open(&folder.join(file)).expect("a file that others read");
        let ids = model.tokenizer().encode(text);
        check(&model, GpuLayers::Fit, (&ids, 12), file);
    }
}

#[test]
fn weights_that_are_loaded_for_each_pass_change_no_bit() {
    let Some(device) = device() else { return };
    let small = Offload { resident_bytes: Some(300_000), ..Offload::default() };
    for (family, format, experts) in
        [("llama", Format::Q4K, false), ("gemma3", Format::Q6K, false), ("qwen3moe", Format::Q8_0, true)]
    {
        let (model, ids) = (synthetic(family, format, experts), prompt(8, 70, 256));
        let (want, text) = written(&mut engine(&model, on(&device, GpuLayers::Fit, 512)), &ids, 12);
        let mut own = engine(&model, on(&device, GpuLayers::Offloaded(small.clone()), 512));
        let (have, own_text) = written(&mut own, &ids, 12);
        assert_same_bits(&have, &want, family);
        assert_eq!(own_text, text, "{family}");
        let stats = own.offload_stats().expect("the GPU has not failed");
        assert!(stats.loaded_bytes > stats.weight_bytes, "{family}: {stats:?}");
    }
}

#[test]
fn keys_and_values_of_fewer_bits_have_the_same_bits_in_the_host_s_memory() {
    let Some(device) = device() else { return };
    for (family, experts) in [("llama", false), ("gemma3", false), ("qwen3moe", true)] {
        let (model, ids) = (synthetic(family, Format::Q8_0, experts), prompt(8, 70, 256));
        for format in [KvFormat::Q8, KvFormat::Q4] {
            let run = |kv| {
                let offload = GpuLayers::Offloaded(Offload { kv, ..Offload::default() });
                let options = EngineOptions { kv_format: format, ..on(&device, offload, 512) };
                let mut own = engine(&model, options);
                let found = written(&mut own, &ids, 12);
                (found, own.offload_stats().expect("the GPU has not failed"))
            };
            let ((want, text), _) = run(KvHome::Gpu);
            let ((have, own_text), stats) = run(KvHome::Host);
            assert_same_bits(&have, &want, &format!("{family} {format}"));
            assert_eq!(own_text, text, "{family} {format}");
            let bytes = (model.config().kv_token_bytes(format) * 512) as u64;
            assert_eq!((stats.kv_resident_bytes, stats.kv_host_bytes), (0, bytes), "{family} {format}");
        }
    }
}

#[test]
fn rows_with_an_adapter_and_without_are_those_of_the_cpu() {
    let Some(device) = device() else { return };
    let model = synthetic("llama", Format::Q8_0, false);
    let ids = prompt(3, 40, 256);
    let run = |lora: &Arc<Adapter>, options| {
        let mut engine = engine(&model, options);
        let id = engine.add_adapter(Arc::clone(lora)).expect("an adapter of this model");
        let (plain, adapted) = (engine.create(), engine.create_with(Some(id)).expect("a sequence"));
        let batch =
            [plain, adapted].map(|seq| StepSeq { seq, ids: &ids, logits: Wanted::All, capture: None });
        let outputs = engine.step(&batch, &mut ()).expect("a step");
        outputs.into_iter().map(|output| output.logits).collect::<Vec<_>>()
    };
    for (format, rank) in [(Format::F32, 4), (Format::Q8_0, 32)] {
        let lora = SyntheticAdapter { format, rank, alpha: rank as f32, ..SyntheticAdapter::of_seed(4) };
        let lora = Gguf::from_bytes(lora.to_gguf(model.config()).expect("an adapter")).expect("a GGUF file");
        let lora = Adapter::from_gguf(lora, &model).expect("an adapter");
        let (want, have) = (run(&lora, cpu(512)), run(&lora, on(&device, GpuLayers::Fit, 512)));
        assert_ne!(want[0], want[1], "the adapter does nothing");
        assert_near(&have[0], &want[0], "without an adapter");
        assert_near(&have[1], &want[1], "with an adapter");
    }
}

#[test]
fn batch_chunk_and_fork_change_no_bit() {
    let Some(device) = device() else { return };
    for model in [synthetic("llama", Format::Q4K, false), synthetic("qwen3moe", Format::Q8_0, true)] {
        let vocab = model.config().vocab_len;
        let options = || on(&device, GpuLayers::Fit, 1024);
        let (ids, others) = (prompt(4, 90, 256), prompt(5, 33, 256));
        let mut alone = engine(&model, options());
        let seq = alone.create();
        let want: Vec<f32> = ids.iter().flat_map(|id| logits(&mut alone, seq, &[*id])).collect();
        let mut engine = engine(&model, options());
        let whole = engine.create();
        assert_same_bits(&logits(&mut engine, whole, &ids), &want, "all at once");
        let chunked = engine.create();
        let have: Vec<f32> = ids.chunks(17).flat_map(|ids| logits(&mut engine, chunked, ids)).collect();
        assert_same_bits(&have, &want, "in chunks");
        let (one, other) = (engine.create(), engine.create());
        let entry = |seq, ids| StepSeq { seq, ids, logits: Wanted::All, capture: None };
        let both = engine.step(&[entry(other, &others), entry(one, &ids)], &mut ()).expect("a step");
        assert_same_bits(&both[1].logits, &want, "beside another sequence");
        let child = engine.fork(one, 45).expect("a fork");
        let have = logits(&mut engine, child, &ids[45..]);
        assert_same_bits(&have, &want[45 * vocab..], "after a fork");
        engine.truncate(one, 70).expect("a cut");
        assert_same_bits(&logits(&mut engine, one, &ids[70..]), &want[70 * vocab..], "after a cut");
    }
}
