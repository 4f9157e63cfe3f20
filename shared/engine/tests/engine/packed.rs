//! Keys and values in eight or four bits on a GPU that offloads.
//!
//! Those in the host's memory are packed, those in the GPU's memory are rounded likewise. So bits are those
//! of a GPU that has all of them, and near those of the CPU with the same format.

use std::sync::Arc;

use baton_engine::engine::{EngineError, KvFormat};
use baton_engine::{
    Capture, Engine, EngineOptions, GpuLayers, HeadId, KvHome, MeanOver, Model, Offload, OffloadStats,
    Pipeline, SlidingWindow, StepSeq, Wanted,
};
use baton_kernels_cpu::Format;
use baton_kernels_gpu::Device;
use baton_kernels_gpu::cases::{HostDevice, LateDevice, Loads};
use baton_synthetic::{SyntheticLatent, SyntheticLayers, SyntheticModel};

use crate::invariance::check_ways_of_a_prefix;
use crate::offload::{PIPELINES, budget, cancel_a_step, devices, evicted, number, on, stats};
use crate::{all_logits, assert_same_bits, engine, family, one, open, prompt};

const PACKED: [KvFormat; 2] = [KvFormat::Q8, KvFormat::Q4];

/// Opens a model of [`family`] whose heads are whole groups of 32 dimensions.
fn model(name: &'static str) -> Arc<Model> {
    model_of(name, Format::Q8_0)
}

fn model_of(name: &'static str, weights: Format) -> Arc<Model> {
    let odd = family(name, weights);
    let latent = odd.latent.map(|latent| SyntheticLatent { d_turned: 32, ..latent });
    let layers = SyntheticLayers { d_head: 64, ..odd.layers };
    open(&SyntheticModel { d_head: 32, latent, layers, ..odd })
}

fn host() -> Arc<dyn Device> {
    Arc::new(HostDevice::new(None))
}

/// Options of a GPU that offloads, with keys and values in a format.
fn packed(kv_format: KvFormat, device: Arc<dyn Device>, options: Offload) -> EngineOptions {
    EngineOptions { kv_format, kv_tokens: 512, ..on(device, GpuLayers::Offloaded(options)) }
}

/// As [`packed`], with all keys and values at one place.
fn at_home(kv_format: KvFormat, device: Arc<dyn Device>, kv: KvHome) -> EngineOptions {
    packed(kv_format, device, Offload { kv, ..Offload::default() })
}

/// Logits of a prompt in chunks of these sizes, and of tokens one by one after it.
fn answer_in(engine: &mut Engine, chunks: &[usize]) -> Vec<f32> {
    let (seq, ids) = (engine.create(), prompt(3, 90));
    let (mut rest, mut logits) = (&ids[..], Vec::new());
    let mut sizes = chunks.iter().copied();
    while !rest.is_empty() {
        let (now, later) = rest.split_at(sizes.next().unwrap_or(1).min(rest.len()));
        logits.extend(all_logits(engine, seq, now));
        rest = later;
    }
    engine.release(seq);
    logits
}

fn answer(engine: &mut Engine) -> Vec<f32> {
    answer_in(engine, &[50, 3, 31])
}

#[test]
fn no_bit_depends_on_where_keys_are_nor_on_pipeline_chunks_and_blocks() {
    for name in ["llama", "gemma2", "gemma4-shared", "gemma4-experts", "qwen3moe", "deepseek2", "gpt-oss"] {
        let model = model(name);
        for format in PACKED {
            let mut on_gpu = engine(&model, 1, at_home(format, host(), KvHome::Gpu));
            let want = answer(&mut on_gpu);
            assert_eq!(stats(&on_gpu).kv_host_bytes, 0);
            for (nth, pipeline) in PIPELINES.into_iter().enumerate() {
                for (chunks, block, threads) in [(&[90][..], 1000, 3), (&[33, 31], 1 << 20, 1)] {
                    let (threads, block_bytes) = (number(threads), number(block));
                    let options = Offload { pipeline, threads, block_bytes, ..Offload::default() };
                    let options = Offload { kv: KvHome::Host, resident_bytes: Some(0), ..options };
                    let what = format!("{name} {format}, {chunks:?}: {options:?}");
                    let device = Arc::clone(&devices()[nth]);
                    let mut own = engine(&model, 1, packed(format, device, options));
                    assert_same_bits(&answer_in(&mut own, chunks), &want, &what);
                    assert_same_bits(&answer(&mut own), &want, &format!("{what}, again"));
                    let stats = stats(&own);
                    assert!(stats.kv_resident_bytes == 0 && stats.kv_saved_bytes > 0, "{what}: {stats:?}");
                }
            }
        }
    }
}

#[test]
fn a_part_in_the_host_s_memory_changes_no_bit_either() {
    let shape = SyntheticModel { n_layers: 8, ..SyntheticModel::small("llama", Format::Q8_0, 7) };
    let model = open(&SyntheticModel { d_head: 32, ..shape });
    let room = budget(&model, 1.0);
    for format in PACKED {
        let options = |device| EngineOptions { kv_tokens: 768, ..at_home(format, device, KvHome::Automatic) };
        let want = answer(&mut engine(&model, 1, options(host())));
        let within = |more: u64| engine(&model, 1, options(Arc::new(HostDevice::new(Some(room + more)))));
        let is_split = |own: &Engine| {
            let stats = stats(own);
            stats.kv_resident_bytes > 0 && stats.kv_host_bytes > 0
        };
        let mut own = (0..50).map(|step| within(step << 16)).find(is_split).expect("a room for a part");
        assert_same_bits(&answer(&mut own), &want, &format.to_string());
        let stats = stats(&own);
        assert!(stats.kv_loaded_bytes > 0, "{format}: {stats:?}");
    }
}

#[test]
fn every_block_is_opened_behind_its_load_and_packed_before_its_save() {
    for name in ["llama", "gemma4-shared"] {
        let model = model(name);
        for format in PACKED {
            let want = answer(&mut engine(&model, 1, at_home(format, host(), KvHome::Gpu)));
            for (pipeline, loads) in
                PIPELINES.into_iter().flat_map(|pipeline| Loads::ALL.map(|loads| (pipeline, loads)))
            {
                let options = Offload { pipeline, kv: KvHome::Host, ..Offload::default() };
                let what = format!("{name} {format}, {loads:?}: {options:?}");
                let device = Arc::new(LateDevice::new(None, loads));
                let mut own = engine(&model, 1, packed(format, Arc::clone(&device) as _, options));
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
fn forks_cuts_and_known_prefixes_change_no_bit_of_packed_keys() {
    for (name, format, pipeline) in [
        ("llama", KvFormat::Q8, PIPELINES[0]),
        ("gemma3", KvFormat::Q4, PIPELINES[1]),
        ("gemma4-shared", KvFormat::Q8, PIPELINES[2]),
    ] {
        let options = Offload { pipeline, kv: KvHome::Host, resident_bytes: Some(0), ..Offload::default() };
        for device in devices() {
            check_ways_of_a_prefix(&model(name), 1, packed(format, device, options.clone()));
        }
    }
}

#[test]
fn what_eviction_keeps_is_the_same_packed() {
    let model = model("llama");
    for format in PACKED {
        let want = evicted(&model, at_home(format, host(), KvHome::Gpu));
        for pipeline in PIPELINES {
            for device in devices() {
                let what = format!("{format}, {pipeline:?} on {device:?}");
                let options = Offload { pipeline, kv: KvHome::Host, ..Offload::default() };
                assert_same_bits(&evicted(&model, packed(format, device, options)), &want, &what);
            }
        }
    }
}

#[test]
fn windows_batches_and_scores_are_those_of_keys_on_the_gpu() {
    let model = model("llama");
    let heads = (0..3).flat_map(|layer| (0..6).map(move |head| HeadId { layer, head })).collect();
    let capture = Capture { heads, window: 73..80, over: MeanOver::Queries };
    let run = |format, kv, window| {
        let mut engine = engine(&model, 1, EngineOptions { window, ..at_home(format, host(), kv) });
        let [left, right] = [4, 5].map(|seed| (engine.create(), prompt(seed, 80)));
        let mut all = Vec::new();
        for (from, to) in [(0, 41), (41, 43), (43, 80)] {
            let batch = [&left, &right].map(|(seq, ids)| StepSeq {
                seq: *seq,
                ids: &ids[from..to],
                logits: Wanted::All,
                capture: None,
            });
            all.extend(engine.step(&batch, &mut ()).unwrap().into_iter().flat_map(|output| output.logits));
        }
        let seq = engine.create();
        let output = one(&mut engine, seq, &left.1, Some(&capture));
        all.extend(output.scores.unwrap().mean);
        all
    };
    for format in PACKED {
        for window in [None, Some(SlidingWindow { tokens: 20, sinks: 3 })] {
            let want = run(format, KvHome::Gpu, window);
            assert_same_bits(&run(format, KvHome::Host, window), &want, &format!("{format}, {window:?}"));
        }
    }
}

/// Returns the root of the mean square of the differences, as a part of that of the numbers.
fn distance(have: &[f32], want: &[f32]) -> f64 {
    assert_eq!(have.len(), want.len());
    let squares = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| f64::from(x).powi(2)).sum::<f64>();
    let apart = squares(&mut have.iter().zip(want).map(|(have, want)| have - want));
    (apart / squares(&mut want.iter().copied())).sqrt()
}

#[test]
fn logits_are_near_those_of_the_cpu_with_the_same_format() {
    for name in ["llama", "gemma2", "gemma4-shared", "qwen2", "phi3"] {
        // Without rounded activations, which would make each small difference a large one.
        let model = model_of(name, Format::F32);
        let on_cpu = |kv_format| {
            answer(&mut engine(&model, 1, EngineOptions { kv_format, ..EngineOptions::default() }))
        };
        let exact = on_cpu(KvFormat::F32);
        // The CPU rounds queries and weights of values to bytes as well, and the GPU does not.
        for (format, tolerance) in [(KvFormat::Q8, 0.025), (KvFormat::Q4, 0.1)] {
            let want = on_cpu(format);
            let have = answer(&mut engine(&model, 1, at_home(format, host(), KvHome::Host)));
            let apart = distance(&have, &want);
            assert!(apart <= tolerance, "{name} {format}: {apart}");
            let (own, of_cpu) = (distance(&have, &exact), distance(&want, &exact));
            assert!((0.3 * of_cpu..1.1 * of_cpu).contains(&own), "{name} {format}: {own}, the CPU {of_cpu}");
        }
    }
}

/// Lets an engine answer with all keys and values in the host's memory, and returns what was done.
fn moved(model: &Arc<Model>, format: KvFormat) -> OffloadStats {
    let mut own = engine(model, 1, at_home(format, host(), KvHome::Host));
    answer(&mut own);
    stats(&own)
}

#[test]
fn packed_keys_take_a_half_or_a_third_of_memory_and_transfers() {
    let shape = SyntheticModel { n_layers: 8, ..SyntheticModel::small("llama", Format::Q8_0, 7) };
    let model = open(&SyntheticModel { d_head: 32, ..shape });
    let f16 = moved(&model, KvFormat::F16);
    assert_eq!(f16.pipeline, Pipeline::Performance);
    // Of each layer's memory on the GPU three slots, packed; and one layer that is opened.
    let layer = f16.kv_host_bytes / 8;
    assert_eq!(f16.kv_slot_bytes, 3 * layer);
    for (format, of_32) in [(KvFormat::Q8, 17), (KvFormat::Q4, 9)] {
        let own = moved(&model, format);
        let pairs = [
            (own.kv_host_bytes, f16.kv_host_bytes),
            (own.kv_loaded_bytes, f16.kv_loaded_bytes),
            (own.kv_saved_bytes, f16.kv_saved_bytes),
            (own.kv_slot_bytes - layer, f16.kv_slot_bytes),
        ];
        for (own, f16) in pairs {
            assert!(f16 > 0);
            assert_eq!(32 * own, of_32 * f16, "{format}: {pairs:?}");
        }
        assert_eq!(own.kv_host_bytes, (model.config().kv_token_bytes(format) * 512) as u64);
    }
}

#[test]
fn what_a_gpu_does_not_keep_is_refused_by_name() {
    let (even, odd) = (model("llama"), open(&family("llama", Format::Q8_0)));
    let offloads = || GpuLayers::Offloaded(Offload::default());
    for (model, format, layers, says) in [
        (&even, KvFormat::F32, offloads(), "f32, and GPUs have kernels for f16, q8 and q4"),
        (&even, KvFormat::F32, GpuLayers::Fit, "f32, and GPUs have kernels for f16, q8 and q4"),
        (&even, KvFormat::Q8, GpuLayers::Fit, "q8, and a GPU keeps f16 unless it offloads"),
        (&even, KvFormat::Q4, GpuLayers::Only(vec![0, 1, 2]), "q4, and a GPU keeps f16 unless it offloads"),
        (&odd, KvFormat::Q8, offloads(), "heads of 16 dimensions"),
        (&odd, KvFormat::Q4, offloads(), "no multiple of 32, have no GPU kernel for q4"),
    ] {
        let options = EngineOptions { kv_format: format, ..on(host(), layers) };
        let err = Engine::new(Arc::clone(model), options).unwrap_err();
        assert!(matches!(err, EngineError::GpuRefused { .. }), "{format}: {err}");
        assert!(err.to_string().contains(says), "{format}: {err}");
    }
}
