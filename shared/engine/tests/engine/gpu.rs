//! Layers on a GPU: the same answers as the CPU's, and what happens if the GPU fails.
//!
//! The device is one in host memory that computes each kernel by its definition, and whose fresh memory holds
//! NaN. The suite `gpu` repeats the main checks on a real interface.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use baton_engine::engine::{EngineError, KvFormat};
use baton_engine::{
    Capture, Engine, EngineOptions, GpuLayers, GpuLoss, GpuUse, HeadId, Kept, MeanOver, Model, Offload,
    SlidingWindow, StepControl, StepError, StepSeq, StepSize, Wanted,
};
use baton_kernels_cpu::Format;
use baton_kernels_gpu::cases::HostDevice;
use baton_kernels_gpu::{Device, GpuError};
use baton_synthetic::{SyntheticAdapter, SyntheticModel};
use proptest::prelude::*;

use crate::invariance::check_ways_of_a_prefix;
use crate::{
    FAMILIES, adapters, all_logits, assert_same_bits, engine, family, one, open, prompt, ragged, tiny,
};

fn ignore(_: &GpuLoss) {}

fn on(device: &Arc<HostDevice>, layers: GpuLayers) -> EngineOptions {
    let device: Arc<dyn Device> = Arc::clone(device) as _;
    EngineOptions { gpu: Some(GpuUse { device, layers, on_loss: ignore }), ..EngineOptions::default() }
}

fn whole() -> EngineOptions {
    on(&Arc::new(HostDevice::new(None)), GpuLayers::Fit)
}

/// Checks logits of a prompt in chunks, and of tokens one by one after it.
#[track_caller]
fn check_equal(model: &Arc<Model>, options: &EngineOptions, gpu: &EngineOptions, what: &str) {
    let mut cpu = engine(model, 1, options.clone());
    let mut own = engine(model, 1, gpu.clone());
    assert!(!own.gpu_layers().is_empty(), "{what}: nothing is on the GPU");
    let (left, right) = (cpu.create(), own.create());
    let ids = prompt(3, 60);
    for part in [&ids[..50], &ids[50..53], &ids[53..54], &ids[54..]] {
        let want = all_logits(&mut cpu, left, part);
        assert_near(&all_logits(&mut own, right, part), &want, what);
    }
    assert!(own.gpu_device().is_some(), "{what}: the GPU failed");
}

/// Logits differ by the order of additions in places, and never by more than this part of the largest.
const TOLERANCE: f32 = 2e-4;

#[track_caller]
fn assert_near(have: &[f32], want: &[f32], what: &str) {
    assert_eq!(have.len(), want.len(), "{what}");
    let top = want.iter().fold(0.0f32, |top, value| top.max(value.abs()));
    for (at, (have, want)) in have.iter().zip(want).enumerate() {
        assert!((have - want).abs() <= TOLERANCE * top, "{what}: number {at} is {have}, must be {want}");
    }
}

#[test]
fn every_family_that_is_not_refused_has_the_cpu_s_logits() {
    let mut refused = 0;
    for name in FAMILIES {
        for format in [Format::F32, Format::Q8_0] {
            let model = open(&family(name, format));
            if model.config().recurrent.is_some() {
                refused += 1;
                continue;
            }
            check_equal(&model, &EngineOptions::default(), &whole(), &format!("{name} {}", format.name()));
        }
    }
    assert_eq!(refused, 10, "five families in two formats");
}

#[test]
fn every_format_has_the_cpu_s_logits() {
    for format in Format::ALL {
        let synthetic = match format.block_len() {
            256 => SyntheticModel::small("llama", format, 2),
            _ => tiny("llama", format),
        };
        check_equal(&open(&synthetic), &EngineOptions::default(), &whole(), format.name());
    }
}

#[test]
fn windows_of_layers_mix_cpu_and_gpu() {
    for name in ["llama", "mixtral", "gemma2", "gemma4", "deepseek2"] {
        let model = open(&family(name, Format::Q8_0));
        for layers in [vec![0], vec![1], vec![2], vec![0, 2], vec![0, 1, 2]] {
            let gpu = on(&Arc::new(HostDevice::new(None)), GpuLayers::Only(layers.clone()));
            check_equal(&model, &EngineOptions::default(), &gpu, &format!("{name} {layers:?}"));
            assert_eq!(engine(&model, 1, gpu).gpu_layers(), layers);
        }
    }
    let windowed = EngineOptions {
        window: Some(SlidingWindow { tokens: 20, sinks: 3 }),
        ..on(&Arc::new(HostDevice::new(None)), GpuLayers::Only(vec![1]))
    };
    let model = open(&family("llama", Format::Q8_0));
    check_equal(&model, &EngineOptions { gpu: None, ..windowed.clone() }, &windowed, "a window");
}

#[test]
fn scores_and_adapters_are_those_of_the_cpu() {
    let model = open(&tiny("llama", Format::Q8_0));
    let heads = (0..3).flat_map(|layer| (0..6).map(move |head| HeadId { layer, head })).collect();
    let capture = Capture { heads, window: 33..40, over: MeanOver::Queries };
    let ids = prompt(5, 40);
    let lora = adapters::adapter(&model, &SyntheticAdapter::of_seed(8));
    let run = |options: EngineOptions| {
        let mut engine = engine(&model, 1, options);
        let id = engine.add_adapter(Arc::clone(&lora)).unwrap();
        let (plain, adapted) = (engine.create(), engine.create_with(Some(id)).unwrap());
        let batch = [plain, adapted].map(|seq| StepSeq {
            seq,
            ids: &ids,
            logits: Wanted::Last,
            capture: Some(&capture),
        });
        engine.step(&batch, &mut ()).unwrap()
    };
    let want = run(EngineOptions::default());
    assert_ne!(want[0].logits, want[1].logits, "the adapter does nothing");
    for layers in [GpuLayers::Fit, GpuLayers::Only(vec![1])] {
        let have = run(on(&Arc::new(HostDevice::new(None)), layers));
        for (have, want) in have.iter().zip(&want) {
            assert_near(&have.logits, &want.logits, "logits");
            let (have, want) = (have.scores.as_ref().unwrap(), want.scores.as_ref().unwrap());
            assert_eq!((have.keys, &have.heads), (want.keys, &want.heads));
            assert_near(&have.mean, &want.mean, "scores");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn batches_and_chunks_change_no_bit(
        script in prop::collection::vec([0..40usize, 0..3usize, 0..70usize], 1..9),
        name in prop::sample::select(vec!["llama", "mixtral", "gemma3", "deepseek2"]),
    ) {
        let model = open(&family(name, Format::Q8_0));
        let prompts = [prompt(4, 100), prompt(5, 20), prompt(6, 100)];
        let mut batched = engine(&model, 1, whole());
        let seqs = [batched.create(), batched.create(), batched.create()];
        let have = ragged(&mut batched, seqs, &prompts, &script);
        let vocab_len = model.config().vocab_len;
        for at in 0..3 {
            let mut alone = engine(&model, 1, whole());
            let seq = alone.create();
            let ids = &prompts[at][..have[at].len() / vocab_len];
            let want: Vec<f32> = ids.iter().flat_map(|id| all_logits(&mut alone, seq, &[*id])).collect();
            assert_same_bits(&have[at], &want, "a sequence in ragged batches");
        }
    }
}

#[test]
fn forks_cuts_and_known_prefixes_change_no_bit() {
    check_ways_of_a_prefix(&open(&tiny("qwen2", Format::Q8_0)), 1, whole());
}

#[test]
fn eviction_keeps_the_same_tokens_as_on_the_cpu() {
    let model = open(&tiny("llama", Format::F32));
    let kept: Vec<Vec<usize>> = (0..9).map(|head| (head..head + 40).collect()).collect();
    let run = |options: EngineOptions| {
        let mut engine = engine(&model, 1, options);
        let seq = engine.create();
        all_logits(&mut engine, seq, &prompt(6, 80));
        let thin = engine.evict(seq, &Kept::new(&kept).unwrap()).unwrap();
        all_logits(&mut engine, thin, &prompt(7, 5))
    };
    let want = run(EngineOptions::default());
    assert_near(&run(whole()), &want, "all layers");
    let some = on(&Arc::new(HostDevice::new(None)), GpuLayers::Only(vec![1]));
    assert_near(&run(some), &want, "one layer");
}

/// Fails the device at a layer.
struct FailAt(Arc<HostDevice>, usize, usize);

impl StepControl for FailAt {
    fn after_layer(&mut self, _done: usize, _total: usize) -> ControlFlow<()> {
        self.1 += 1;
        if self.1 == self.2 {
            self.0.fail(GpuError::Lost("unplugged".to_owned()));
        }
        ControlFlow::Continue(())
    }
}

static LOSSES: AtomicUsize = AtomicUsize::new(0);

fn count_loss(loss: &GpuLoss) {
    assert!(matches!(loss, GpuLoss::Failed(GpuError::Lost(_))), "{loss}");
    LOSSES.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_gpu_lost_at_any_layer_of_any_step_costs_nothing_but_time() {
    let model = open(&tiny("qwen3", Format::Q8_0));
    let ids = prompt(9, 100);
    let steps = [&ids[..70], &ids[70..71], &ids[71..75], &ids[75..]];
    let mut cpu = engine(&model, 1, EngineOptions::default());
    let (seq, other) = (cpu.create(), cpu.create());
    let want: Vec<Vec<f32>> = steps.iter().map(|part| all_logits(&mut cpu, seq, part)).collect();
    let want_other = all_logits(&mut cpu, other, &ids[..40]);
    let before = LOSSES.load(Ordering::Relaxed);
    // A loss after the last use of the GPU is noticed by the next step.
    for (fails_at, layers) in (1..=11).flat_map(|at| [(at, GpuLayers::Fit), (at, GpuLayers::Only(vec![1]))]) {
        let device = Arc::new(HostDevice::new(None));
        let mut options = on(&device, layers);
        options.gpu.as_mut().unwrap().on_loss = count_loss;
        let mut engine = engine(&model, 1, options);
        let (seq, other) = (engine.create(), engine.create());
        all_logits(&mut engine, other, &ids[..20]);
        let mut control = FailAt(Arc::clone(&device), 0, fails_at);
        for (part, want) in steps.iter().zip(&want) {
            let batch = [StepSeq { seq, ids: part, logits: Wanted::All, capture: None }];
            let have = engine.step(&batch, &mut control).unwrap().remove(0).logits;
            assert_near(&have, want, &format!("lost at {fails_at}"));
        }
        assert!(engine.gpu_device().is_none() && engine.gpu_layers().is_empty(), "at {fails_at}");
        assert_eq!(engine.len(seq).unwrap(), ids.len());
        let have = all_logits(&mut engine, other, &ids[20..40]);
        assert_near(&have, &want_other[20 * model.config().vocab_len..], "another sequence");
        let forked = engine.fork(seq, 30).unwrap();
        let have = all_logits(&mut engine, forked, &ids[30..40]);
        assert_near(&have, &want_other[30 * model.config().vocab_len..], "a fork");
    }
    assert_eq!(LOSSES.load(Ordering::Relaxed) - before, 22, "each loss is told once");
}

#[test]
fn evicted_tokens_are_lost_with_the_gpu_and_other_sequences_are_not() {
    let model = open(&tiny("llama", Format::F32));
    let device = Arc::new(HostDevice::new(None));
    let mut engine = engine(&model, 1, on(&device, GpuLayers::Fit));
    let seq = engine.create();
    all_logits(&mut engine, seq, &prompt(6, 80));
    let kept: Vec<Vec<usize>> = vec![(0..40).collect(); 9];
    let thin = engine.evict(seq, &Kept::new(&kept).unwrap()).unwrap();
    device.fail(GpuError::Lost("unplugged".to_owned()));
    let plain = StepSeq { seq: thin, ids: &[1], logits: Wanted::Last, capture: None };
    let err = engine.step(&[plain], &mut ()).unwrap_err();
    assert!(matches!(err, StepError::Lost(lost) if lost == thin), "{err}");
    one(&mut engine, seq, &[1, 2], None);
}

#[test]
fn as_many_of_the_last_layers_as_fit_are_on_the_gpu() {
    let model = open(&tiny("llama", Format::Q8_0));
    let small = EngineOptions { kv_tokens: 128, ..EngineOptions::default() };
    let mut counts = BTreeSet::new();
    for budget in (0..60).map(|step| step << 16) {
        let gpu = on(&Arc::new(HostDevice::new(Some(budget))), GpuLayers::Fit);
        let options = EngineOptions { kv_tokens: 128, ..gpu };
        let layers = Engine::new(Arc::clone(&model), options.clone()).unwrap().gpu_layers();
        assert_eq!(layers, (3 - layers.len()..3).collect::<Vec<_>>(), "budget {budget}");
        if counts.insert(layers.len()) && !layers.is_empty() {
            check_equal(&model, &small, &options, &format!("budget {budget}"));
        }
    }
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn what_the_gpu_does_not_compute_is_refused_by_name() {
    let refused = |name: &'static str, options: EngineOptions| {
        let err = Engine::new(open(&family(name, Format::F32)), options).unwrap_err();
        assert!(matches!(err, EngineError::GpuRefused { .. }), "{err}");
        err.to_string()
    };
    assert!(refused("lfm2", whole()).contains("lfm2 model has recurrent layers"));
    assert!(refused("qwen3next", whole()).contains("recurrent"));
    let q8 = EngineOptions { kv_format: KvFormat::Q8, ..whole() };
    assert!(refused("llama", q8).contains("keys and values are q8"));
    let some = on(&Arc::new(HostDevice::new(None)), GpuLayers::Only(vec![1]));
    assert!(refused("gemma4-shared", some).contains("as a whole"));
    let failed = Arc::new(HostDevice::new(None));
    failed.fail(GpuError::Lost("gone".to_owned()));
    let err = Engine::new(open(&family("llama", Format::F32)), on(&failed, GpuLayers::Fit)).unwrap_err();
    assert!(matches!(err, EngineError::Gpu(GpuError::Lost(_))), "{err}");
}

#[test]
fn a_reset_gives_the_gpu_other_layers() {
    let model = open(&tiny("llama", Format::Q8_0));
    let ids = prompt(2, 40);
    let mut cpu = engine(&model, 1, EngineOptions::default());
    let seq = cpu.create();
    let want = all_logits(&mut cpu, seq, &ids);
    let device = Arc::new(HostDevice::new(None));
    let mut engine = engine(&model, 1, on(&device, GpuLayers::Only(vec![0])));
    let seq = engine.create();
    for layers in [GpuLayers::Only(vec![1, 2]), GpuLayers::Fit, GpuLayers::Only(vec![])] {
        assert_near(&all_logits(&mut engine, seq, &ids), &want, &format!("before {layers:?}"));
        engine.reset(None, layers).unwrap();
    }
    assert_near(&all_logits(&mut engine, seq, &ids), &want, "at last");
    assert!(engine.gpu_layers().is_empty());
    drop(engine);
    assert_eq!(device.used_bytes(), 0, "all memory is given back");
}

static REFUSALS: AtomicUsize = AtomicUsize::new(0);

fn count_refusal(loss: &GpuLoss) {
    let GpuLoss::Refused { reason } = loss else { panic!("{loss}") };
    assert!(reason.contains("activations need") && reason.contains("are free"), "{reason}");
    REFUSALS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_reset_to_layers_that_the_gpu_refuses_is_told_and_the_next_one_tries_again() {
    let model = open(&tiny("llama", Format::Q8_0));
    let ids = prompt(2, 40);
    let mut cpu = engine(&model, 1, EngineOptions::default());
    let seq = cpu.create();
    let want = all_logits(&mut cpu, seq, &ids);
    let device = Arc::new(HostDevice::new(Some(1000)));
    let mut options = on(&device, GpuLayers::Only(vec![]));
    options.gpu.as_mut().unwrap().on_loss = count_refusal;
    let mut engine = engine(&model, 1, options);
    let seq = engine.create();
    for refusals in 1..3 {
        engine.reset(None, GpuLayers::Offloaded(Offload::default())).unwrap();
        assert_eq!(REFUSALS.load(Ordering::Relaxed), refusals);
        assert!(engine.gpu_layers().is_empty() && device.fault().is_none());
        assert_same_bits(&all_logits(&mut engine, seq, &ids), &want, "the CPU computes");
    }
}

/// The most probable token of each row.
fn best_of(logits: &[f32], vocab_len: usize) -> Vec<usize> {
    let best =
        |row: &[f32]| (0..vocab_len).max_by(|a, b| row[*a].total_cmp(&row[*b]).then(b.cmp(a))).unwrap();
    logits.chunks(vocab_len).map(best).collect()
}

static FULL: AtomicUsize = AtomicUsize::new(0);
static GIVEN_UP: AtomicUsize = AtomicUsize::new(0);

fn count_shortage(loss: &GpuLoss) {
    match loss {
        GpuLoss::Full { fault: GpuError::OutOfMemory { .. }, layers } => {
            assert!((1..3).contains(layers), "{layers} layers");
            FULL.fetch_add(1, Ordering::Relaxed);
        }
        GpuLoss::Failed(GpuError::OutOfMemory { .. }) => _ = GIVEN_UP.fetch_add(1, Ordering::Relaxed),
        loss => panic!("{loss}"),
    }
}

#[test]
fn a_step_that_the_gpu_has_no_room_for_goes_on_with_fewer_layers_or_without_it() {
    let model = open(&tiny("llama", Format::Q8_0));
    let (ids, vocab_len) = (prompt(9, 100), model.config().vocab_len);
    let steps = [&ids[..3], &ids[3..80], &ids[80..81], &ids[81..]];
    let mut cpu = engine(&model, 1, EngineOptions::default());
    let (seq, other) = (cpu.create(), cpu.create());
    let want: Vec<Vec<f32>> = steps.iter().map(|part| all_logits(&mut cpu, seq, part)).collect();
    let want_other = all_logits(&mut cpu, other, &ids[..40]);
    let mut kept = BTreeSet::new();
    for budget in (0..40).map(|step| (1 << 18) + (step << 15)) {
        let device = Arc::new(HostDevice::new(Some(budget)));
        // Memory is set aside for smaller steps than there are.
        let largest_step = StepSize { tokens: 4, logit_rows: 4 };
        let mut options = EngineOptions { largest_step, kv_tokens: 256, ..on(&device, GpuLayers::Fit) };
        options.gpu.as_mut().unwrap().on_loss = count_shortage;
        let mut engine = engine(&model, 1, options);
        let before = engine.gpu_layers().len();
        let (seq, other) = (engine.create(), engine.create());
        all_logits(&mut engine, other, &ids[..2]);
        for (part, want) in steps.iter().zip(&want) {
            let have = all_logits(&mut engine, seq, part);
            assert_near(&have, want, &format!("budget {budget}"));
            assert_eq!(best_of(&have, vocab_len), best_of(want, vocab_len), "budget {budget}");
        }
        let have = all_logits(&mut engine, other, &ids[2..40]);
        assert_near(&have, &want_other[2 * vocab_len..], "another sequence");
        kept.insert((before, engine.gpu_layers().len()));
        drop(engine);
        assert_eq!((device.fault(), device.used_bytes()), (None, 0), "budget {budget}");
    }
    assert!(kept.contains(&(3, 3)) && kept.iter().any(|(before, now)| *now > 0 && now < before), "{kept:?}");
    assert!(FULL.load(Ordering::Relaxed) > 0 && GIVEN_UP.load(Ordering::Relaxed) > 0, "{kept:?}");
}

static OTHER_LOSSES: AtomicUsize = AtomicUsize::new(0);

fn count_other(loss: &GpuLoss) {
    assert!(matches!(loss, GpuLoss::Failed(GpuError::Lost(_))), "{loss}");
    OTHER_LOSSES.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn an_engine_notices_that_another_one_had_no_room_on_the_same_device() {
    let model = open(&tiny("llama", Format::Q8_0));
    let (ids, whole) = (prompt(9, 100), EngineOptions::default());
    let mut cpu = engine(&model, 1, whole);
    let seq = cpu.create();
    let want = all_logits(&mut cpu, seq, &ids);
    let device = Arc::new(HostDevice::new(None));
    let mut options = on(&device, GpuLayers::Fit);
    options.gpu.as_mut().unwrap().on_loss = count_other;
    let mut engine = engine(&model, 1, options);
    let seq = engine.create();
    all_logits(&mut engine, seq, &ids[..50]);
    device.fail(GpuError::OutOfMemory { wanted: 1, used: 1, budget: None });
    assert!(device.recover());
    let have = all_logits(&mut engine, seq, &ids[50..]);
    assert_near(&have, &want[50 * model.config().vocab_len..], "after the other's shortage");
    assert_eq!((OTHER_LOSSES.load(Ordering::Relaxed), engine.gpu_layers().len()), (1, 0));
}

#[test]
fn adapters_have_memory_that_layers_would_have() {
    let model = open(&tiny("llama", Format::Q8_0));
    let ids = prompt(5, 40);
    let lora = adapters::adapter(&model, &SyntheticAdapter::of_seed(8));
    let layers = |budget: u64| {
        let options = on(&Arc::new(HostDevice::new(Some(budget))), GpuLayers::Fit);
        Engine::new(Arc::clone(&model), EngineOptions { kv_tokens: 128, ..options }).unwrap()
    };
    let least = (1..1 << 12).map(|step| step << 12).find(|budget| layers(*budget).gpu_layers().len() == 3);
    let mut own = layers(least.expect("a device of 16 MB holds the model"));
    let mut cpu = engine(&model, 1, EngineOptions::default());
    let plain = own.create();
    all_logits(&mut own, plain, &ids[..20]);
    let answers = [&mut own, &mut cpu].map(|engine| {
        let id = engine.add_adapter(Arc::clone(&lora)).unwrap();
        let seq = engine.create_with(Some(id)).unwrap();
        all_logits(engine, seq, &ids)
    });
    assert_eq!(own.gpu_layers(), [1, 2], "the adapter takes the room of one layer");
    assert_near(&answers[0], &answers[1], "with an adapter");
    let seq = cpu.create();
    let want = all_logits(&mut cpu, seq, &ids);
    let have = all_logits(&mut own, plain, &ids[20..]);
    assert_near(&have, &want[20 * model.config().vocab_len..], "a sequence from before");
}

#[test]
fn the_most_probable_token_comes_from_the_gpu_without_logits() {
    for name in ["llama", "gemma2", "mixtral"] {
        let model = open(&family(name, Format::Q8_0));
        let (ids, vocab_len) = (prompt(3, 60), model.config().vocab_len);
        let mut own = engine(&model, 1, whole());
        let seqs = [own.create(), own.create(), own.create()];
        let want = best_of(&all_logits(&mut own, seqs[0], &ids), vocab_len);
        let step = |seq, ids, logits| StepSeq { seq, ids, logits, capture: None };
        let batch = [step(seqs[1], &ids[..40], Wanted::Best), step(seqs[2], &ids[..20], Wanted::None)];
        let have = own.step(&batch, &mut ()).unwrap();
        assert_eq!((have[0].best, have[0].logits.len()), (Some(Ok(want[39] as u32)), 0), "{name}");
        assert_eq!((have[1].best, have[1].logits.len()), (None, 0), "{name}");
        // Beside rows that need logits, and of layers whose logits the CPU computes, there are logits.
        let batch = [step(seqs[1], &ids[40..50], Wanted::Best), step(seqs[2], &ids[20..40], Wanted::Last)];
        let have = own.step(&batch, &mut ()).unwrap();
        let bests = have.iter().map(|output| best_of(&output.logits, vocab_len)[0]).collect::<Vec<_>>();
        assert_eq!((have[0].best, bests), (None, vec![want[49], want[39]]), "{name}");
        let some = on(&Arc::new(HostDevice::new(None)), GpuLayers::Only(vec![1]));
        let mut mixed = engine(&model, 1, some);
        let seq = mixed.create();
        let have = mixed.step(&[step(seq, &ids, Wanted::Best)], &mut ()).unwrap().remove(0);
        assert_eq!((have.best, best_of(&have.logits, vocab_len)), (None, vec![want[59]]), "{name}");
    }
}

#[test]
fn tables_are_uploaded_once_a_pass_and_not_for_each_layer() {
    let uploads = |n_layers: u32| {
        let model = open(&SyntheticModel { n_layers, ..tiny("llama", Format::Q8_0) });
        let device = Arc::new(HostDevice::new(None));
        let mut own = engine(&model, 1, on(&device, GpuLayers::Fit));
        let (seq, ids) = (own.create(), prompt(3, 40));
        let mut counts = Vec::new();
        for part in [&ids[..30], &ids[30..31], &ids[31..32]] {
            let before = device.uploads();
            one(&mut own, seq, part, None);
            counts.push(device.uploads() - before);
        }
        counts
    };
    let few = uploads(2);
    assert_eq!(few, uploads(5));
    // Rotations are two; then places, items and blocks.
    assert_eq!(few[1..], [5, 5]);
}
