//! Two hundred faults from seeds: each ends in a typed error or in the answer. Nothing leaks or hangs.
//!
//! A fault strikes at the nth read of the model's file, at the nth call of the GPU, or as a cancel at the nth
//! layer. Weights come from the disk to the CPU, from memory to a GPU, or from the disk to a GPU. A full disk
//! is not among the faults, since offloading writes to no disk. Weights are read from the model's own file.
//! Keys and values that are not in the GPU's memory are in the host's.
//!
//! The test runs in a process of its own, so that all threads and open files there are its own.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use baton_kernels_cpu::{Format, KvFormat};
use baton_kernels_gpu::cases::{Call, FailingDevice, Failure, HostDevice};
use baton_kernels_gpu::{Device, GpuError};
use baton_random::SplitMix64;
use baton_synthetic::{SyntheticExperts, SyntheticModel};

use super::{KvHome, Offload, Pipeline};
use crate::engine::{
    Engine, EngineError, EngineOptions, GpuLayers, GpuLoss, GpuUse, StepControl, StepError, StepSeq, Wanted,
};
use crate::model::Model;
use crate::weights::direct::planted::{self, ReadFault};
use crate::weights::{Residency, WeightError};

const TURNS: usize = 200;
/// Steps of an answer: two for the prompt, then one for each token.
const STEPS: usize = 7;
const LAYERS: u32 = 4;
/// Set in the process that the test starts.
const OWN_PROCESS: &str = "BATON_TEST_OFFLOADING_FAULTS";
/// Only guards against a hang: all turns take seconds.
const HANGS_AFTER: Duration = Duration::from_secs(300);

thread_local! {
    /// The faults for which an engine of this thread has left its GPU.
    static LOST: RefCell<Vec<GpuError>> = const { RefCell::new(Vec::new()) };
}

fn note(loss: &GpuLoss) {
    let GpuLoss::Failed(fault) = loss else { panic!("these devices do not forget a fault: {loss:?}") };
    LOST.with_borrow_mut(|lost| lost.push(fault.clone()));
}

/// Where weights come from and go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tiers {
    DiskToCpu,
    MemoryToGpu,
    DiskToGpu,
}

#[derive(Debug, Clone)]
enum Fault {
    Read(ReadFault),
    Device(Call, Failure),
    /// The nth allocation fails while the engine is made.
    Start(GpuError),
    Cancel,
}

impl Fault {
    /// Returns every fault of these tiers.
    fn all(tiers: Tiers) -> Vec<Self> {
        let mut all = vec![Self::Cancel];
        if tiers != Tiers::MemoryToGpu {
            all.extend(ReadFault::ALL.map(Self::Read));
        }
        if tiers != Tiers::DiskToCpu {
            let lost = GpuError::Lost("unplugged".to_owned());
            let full = GpuError::OutOfMemory { wanted: 4096, used: 1 << 20, budget: Some(1 << 20) };
            all.extend(Call::ALL.map(|call| Self::Device(call, Failure::Fault(lost.clone()))));
            all.push(Self::Device(Call::Alloc, Failure::Fault(full.clone())));
            // Threads that load make these calls.
            all.extend([Call::Load, Call::Save].map(|call| Self::Device(call, Failure::Panic)));
            all.extend([lost, full].map(Self::Start));
        }
        all
    }

    /// Returns how many calls, reads or layers there are in about an answer.
    fn places(&self) -> usize {
        match self {
            Self::Cancel => STEPS * LAYERS as usize,
            Self::Read(_) => 60,
            Self::Start(_) => 16,
            Self::Device(call, _) => match call {
                Call::Alloc | Call::Launch => 300,
                Call::Write | Call::Read => STEPS,
                Call::Load => 60,
                Call::Save => 30,
            },
        }
    }
}

/// Cancels at the layer with so many before it.
struct CancelAt(usize);

impl StepControl for CancelAt {
    fn after_layer(&mut self, _done: usize, _total: usize) -> ControlFlow<()> {
        let is_due = self.0 == 0;
        self.0 = self.0.wrapping_sub(1);
        if is_due { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// What an engine wrote: the likeliest token of each step, and all logits.
#[derive(Debug, Clone, Default)]
struct Answer {
    tokens: Vec<u32>,
    logits: Vec<f32>,
}

impl Answer {
    fn has_bits_of(&self, want: &Self) -> bool {
        let bits = |answer: &Self| answer.logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        self.tokens == want.tokens && bits(self) == bits(want)
    }

    /// Whether the tokens are the same, and the logits differ by at most this part of the largest.
    fn is_near(&self, want: &Self, tolerance: f32) -> bool {
        let top = want.logits.iter().fold(0.0f32, |top, x| top.max(x.abs()));
        let near = |(have, want): (&f32, &f32)| (have - want).abs() <= tolerance * top;
        self.tokens == want.tokens && self.logits.iter().zip(&want.logits).all(near)
    }
}

/// Lets an engine answer. If a step fails, its sequence has the length that it had.
fn answer(engine: &mut Engine, control: &mut dyn StepControl) -> Result<Answer, StepError> {
    let seq = engine.create();
    // It ends in the second block of keys.
    let prompt: Vec<u32> = (0..36).map(|at| (at * 37 + 11) % 256).collect();
    let (mut ids, mut answer) = (prompt[..25].to_vec(), Answer::default());
    for step in 0..STEPS {
        let before = engine.len(seq).unwrap();
        let batch = [StepSeq { seq, ids: &ids, logits: Wanted::Last, capture: None }];
        let mut outputs = match engine.step(&batch, control) {
            Ok(outputs) => outputs,
            Err(err) => {
                assert_eq!(engine.len(seq).unwrap(), before, "a step that failed has changed the sequence");
                engine.release(seq);
                return Err(err);
            }
        };
        let logits = outputs.remove(0).logits;
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32;
        ids = if step == 0 { prompt[25..].to_vec() } else { vec![best] };
        answer.tokens.push(best);
        answer.logits.extend(logits);
    }
    engine.release(seq);
    assert_eq!(engine.free_tokens(), engine.kv_tokens(), "blocks are still in use");
    Ok(answer)
}

/// A model on the disk, and its answers if all weights are in memory.
struct Case {
    path: PathBuf,
    model: Arc<Model>,
    kv_format: KvFormat,
    /// How near logits of the CPU and of a GPU are.
    tolerance: f32,
    weight_bytes: u64,
    of_cpu: Answer,
    of_gpu: Answer,
}

fn gpu(kv_format: KvFormat, device: Arc<dyn Device>, layers: GpuLayers) -> EngineOptions {
    let gpu = Some(GpuUse { device, layers, on_loss: note });
    EngineOptions { gpu, ..cpu(kv_format) }
}

fn cpu(kv_format: KvFormat) -> EngineOptions {
    EngineOptions { threads: NonZeroUsize::new(1), kv_tokens: 128, kv_format, ..EngineOptions::default() }
}

impl Case {
    fn new(
        folder: &Path,
        family: &'static str,
        experts: Option<SyntheticExperts>,
        (kv_format, tolerance): (KvFormat, f32),
    ) -> Self {
        let small = SyntheticModel::small(family, Format::Q8_0, 7);
        let d_head = if kv_format == KvFormat::F16 { 16 } else { 32 };
        let widths = SyntheticModel { d_model: 64, d_head, d_ff: 128, ..small };
        let bytes = SyntheticModel { n_layers: LAYERS, experts, tied: false, ..widths }.to_gguf().unwrap();
        let path = folder.join(format!("{family}-{kv_format}.gguf"));
        std::fs::write(&path, bytes).unwrap();
        let model = Model::open(&path).unwrap();
        let streamed = Model::open_within(&path, &Residency::default()).unwrap();
        let weight_bytes = streamed.streamed().unwrap().stats().weight_bytes;
        let of = |options| answer(&mut Engine::new(Arc::clone(&model), options).unwrap(), &mut ()).unwrap();
        let layers = match kv_format {
            KvFormat::F16 => GpuLayers::Fit,
            _ => GpuLayers::Offloaded(Offload { kv: KvHome::Gpu, ..Offload::default() }),
        };
        let (of_cpu, of_gpu) =
            (of(cpu(kv_format)), of(gpu(kv_format, Arc::new(HostDevice::new(None)), layers)));
        assert!(of_gpu.is_near(&of_cpu, tolerance), "{family}: CPU and GPU differ without any fault");
        Self { path, model, kv_format, tolerance, weight_bytes, of_cpu, of_gpu }
    }
}

/// One fault.
#[derive(Debug)]
struct Turn {
    tiers: Tiers,
    fault: Fault,
    /// How many calls, reads or layers come before it.
    nth: usize,
    /// Whether the engine has answered before.
    is_warm: bool,
    offload: Offload,
    residency: Residency,
}

impl Turn {
    /// Draws everything but the kind of the fault, which `number` counts through.
    fn draw(number: usize, weight_bytes: u64) -> Self {
        let kinds = [Tiers::DiskToCpu, Tiers::MemoryToGpu, Tiers::DiskToGpu]
            .into_iter()
            .flat_map(|tiers| Fault::all(tiers).into_iter().map(move |fault| (tiers, fault)));
        let kinds: Vec<_> = kinds.collect();
        let (tiers, fault) = kinds[number % kinds.len()].clone();
        let mut random = SplitMix64::new(number as u64);
        let number = |n: usize| NonZeroUsize::new(n).unwrap();
        let pipelines = [Pipeline::Performance, Pipeline::MemoryEfficient, Pipeline::Synchronous];
        // Only keys and values in the host's memory are saved.
        let homes = match fault {
            Fault::Device(Call::Save, _) => [KvHome::Host; 3],
            _ => KvHome::ALL,
        };
        let budget_bytes = weight_bytes * random.below(3) as u64 / 3;
        let threads = Offload {
            pipeline: pipelines[random.below(3)],
            threads: number(1 + random.below(3)),
            block_bytes: number([1500, 4096, 1 << 20][random.below(3)]),
            ..Offload::default()
        };
        Self {
            tiers,
            nth: random.below(fault.places()),
            is_warm: random.below(2) == 0,
            offload: Offload {
                resident_bytes: Some([0, 20_000, 60_000][random.below(3)]),
                kv: homes[random.below(3)],
                ..threads
            },
            residency: Residency {
                budget_bytes,
                prefetch_bytes: budget_bytes * random.below(2) as u64 / 2,
                reads_ahead: random.below(4) > 0,
                read_bytes: [4096, 16384][random.below(2)],
                buffers: [2, 8][random.below(2)],
                threads: 1 + random.below(3),
                ..Residency::default()
            },
            fault,
        }
    }

    fn model(&self, case: &Case) -> Arc<Model> {
        match self.tiers {
            Tiers::MemoryToGpu => Arc::clone(&case.model),
            _ => Model::open_within(&case.path, &self.residency).unwrap(),
        }
    }

    fn engine(
        &self,
        kv_format: KvFormat,
        model: &Arc<Model>,
        device: &Arc<FailingDevice>,
    ) -> Result<Engine, EngineError> {
        let options = match self.tiers {
            Tiers::DiskToCpu => cpu(kv_format),
            _ => gpu(kv_format, Arc::clone(device) as _, GpuLayers::Offloaded(self.offload.clone())),
        };
        let engine = Engine::new(Arc::clone(model), options)?;
        engine.share_weights().unwrap();
        Ok(engine)
    }

    /// Lets the fault strike while an engine is made, and makes another one. Returns whether it struck.
    fn run_start(&self, case: &Case, fault: &GpuError) -> bool {
        let device = Arc::new(FailingDevice::new(None));
        device.fail_at(Call::Alloc, self.nth, Failure::Fault(fault.clone()));
        let made = self.engine(case.kv_format, &self.model(case), &device);
        let struck = !device.forget();
        match made {
            Err(EngineError::Gpu(found)) => assert_eq!((&found, struck), (fault, true)),
            Ok(engine) => {
                assert!(!struck, "the engine was made without its memory");
                drop(engine);
            }
            Err(err) => panic!("{err:?}"),
        }
        assert_eq!((device.used_bytes(), Arc::strong_count(&device)), (0, 1));
        let device = Arc::new(FailingDevice::new(None));
        let mut engine = self.engine(case.kv_format, &self.model(case), &device).unwrap();
        assert!(answer(&mut engine, &mut ()).unwrap().has_bits_of(&case.of_gpu));
        struck
    }

    /// Lets the fault strike while an engine answers, and lets it answer again. Returns whether it struck.
    fn run(&self, case: &Case) -> bool {
        if let Fault::Start(fault) = &self.fault {
            return self.run_start(case, fault);
        }
        let (model, device) = (self.model(case), Arc::new(FailingDevice::new(None)));
        let mut engine = self.engine(case.kv_format, &model, &device).unwrap();
        let want = if self.tiers == Tiers::DiskToCpu { &case.of_cpu } else { &case.of_gpu };
        let mut bytes_before = None;
        if self.is_warm {
            assert!(answer(&mut engine, &mut ()).unwrap().has_bits_of(want), "before the fault");
            bytes_before = Some(device.used_bytes());
        }
        let mut control = CancelAt(usize::MAX);
        match &self.fault {
            Fault::Read(fault) => planted::plant(&case.path, self.nth, *fault),
            Fault::Device(call, failure) => device.fail_at(*call, self.nth, failure.clone()),
            Fault::Start(_) => {}
            Fault::Cancel => control = CancelAt(self.nth),
        }
        let first = answer(&mut engine, &mut control);
        let is_left = match &self.fault {
            Fault::Read(_) => planted::remove(&case.path),
            Fault::Device(..) => device.forget(),
            Fault::Start(_) | Fault::Cancel => first.is_ok(),
        };
        let mut is_lost = self.check(case, &first, want, false);
        // A read ahead that has failed is noticed by who needs it. So is a thread's panic.
        let again = answer(&mut engine, &mut ());
        let may_fail = first.is_ok() && !is_left && matches!(self.fault, Fault::Read(_));
        assert!(again.is_ok() || may_fail, "afterwards: {again:?}");
        is_lost = self.check(case, &again, want, is_lost);
        let last = answer(&mut engine, &mut ());
        assert!(last.is_ok(), "at last: {last:?}");
        is_lost = self.check(case, &last, want, is_lost);
        if let Some(before) = bytes_before.filter(|_| !is_lost) {
            assert_eq!(device.used_bytes(), before, "memory of the GPU after the fault, and before");
        }
        drop(engine);
        assert_eq!((device.used_bytes(), Arc::strong_count(&device)), (0, 1), "the GPU is still in use");
        let holders = if self.tiers == Tiers::MemoryToGpu { 2 } else { 1 };
        assert_eq!(Arc::strong_count(&model), holders, "the model is still in use");
        !is_left
    }

    /// Checks an answer, or the error instead. Returns whether the engine has left the GPU by now.
    fn check(&self, case: &Case, found: &Result<Answer, StepError>, want: &Answer, was_lost: bool) -> bool {
        let lost = LOST.take();
        for fault in &lost {
            assert!(!was_lost && lost.len() == 1, "it was lost twice: {lost:?}");
            match (&self.fault, fault) {
                (Fault::Device(_, Failure::Fault(planned)), fault) => assert_eq!(fault, planned),
                (Fault::Device(_, Failure::Panic), GpuError::Lost(why)) => {
                    assert!(why.contains("panicked: planned for a call"), "{why}");
                }
                (Fault::Read(ReadFault::Panic), GpuError::Lost(why)) => {
                    assert!(why.contains("panicked: planted for a read"), "{why}");
                }
                (_, fault) => panic!("the GPU was left for {fault:?}"),
            }
        }
        let is_lost = was_lost || !lost.is_empty();
        match (&self.fault, found) {
            (_, Ok(answer)) if is_lost => {
                assert!(answer.is_near(want, case.tolerance), "the CPU has gone on")
            }
            (_, Ok(answer)) => assert!(answer.has_bits_of(want), "another answer"),
            (Fault::Cancel, Err(StepError::Cancelled { done, total })) => {
                assert_eq!((*done, *total), (self.nth % LAYERS as usize + 1, LAYERS as usize));
            }
            (Fault::Read(fault), Err(StepError::Weights(WeightError::Read { path, err, .. }))) => {
                let want = fault.error().expect("a read that is short or interrupted goes on");
                assert_eq!(path, &case.path);
                assert_eq!((err.kind(), err.raw_os_error()), (want.kind(), want.raw_os_error()));
            }
            (_, Err(err)) => panic!("another error: {err:?}"),
        }
        is_lost
    }
}

/// Returns how many threads and open files this process has, if the system says.
fn threads_and_files() -> [usize; 2] {
    ["/proc/self/task", "/proc/self/fd"].map(|folder| std::fs::read_dir(folder).map_or(0, Iterator::count))
}

/// All turns. Aborts the process if one hangs.
fn all_turns() {
    static NOW: AtomicUsize = AtomicUsize::new(0);
    let (done, over) = channel::<()>();
    let guard = std::thread::spawn(move || {
        if over.recv_timeout(HANGS_AFTER) == Err(RecvTimeoutError::Timeout) {
            eprintln!("turn {} hangs", NOW.load(Ordering::Relaxed));
            std::process::abort();
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let experts = SyntheticExperts { count: 6, used: 2, d_ff: 32, shared_d_ff: 64 };
    // Numbers that a GPU rounds to binary16 before they are packed may become other integers than the CPU's.
    let cases = [
        Case::new(folder.path(), "llama", None, (KvFormat::F16, 2e-3)),
        Case::new(folder.path(), "qwen3moe", Some(experts), (KvFormat::F16, 2e-3)),
        Case::new(folder.path(), "llama", None, (KvFormat::Q8, 0.2)),
    ];
    let before = threads_and_files();
    let mut struck: BTreeMap<String, usize> = BTreeMap::new();
    for number in 0..TURNS {
        NOW.store(number, Ordering::Relaxed);
        let case = &cases[SplitMix64::new((TURNS + number) as u64).below(cases.len())];
        let turn = Turn::draw(number, case.weight_bytes);
        eprintln!("turn {number}: {turn:?}");
        let kind = format!("{:?} {:?}", turn.tiers, turn.fault);
        *struck.entry(kind).or_default() += usize::from(turn.run(case));
        // The system may list a thread for a moment after it was joined.
        let begun = Instant::now();
        while threads_and_files() != before {
            let have = threads_and_files();
            assert!(begun.elapsed() < HANGS_AFTER / 10, "threads and files: {have:?}, before {before:?}");
            std::thread::yield_now();
        }
    }
    println!("{struck:#?}");
    let without: Vec<_> = struck.iter().filter(|(_, times)| **times == 0).collect();
    assert!(without.is_empty(), "faults that never struck: {without:?}");
    let all: usize = struck.values().sum();
    assert!(all >= TURNS * 3 / 4, "{all} of {TURNS} faults struck");
    drop(done);
    guard.join().unwrap();
}

#[test]
fn two_hundred_faults_end_in_an_error_or_in_the_answer() {
    if std::env::var_os(OWN_PROCESS).is_some() {
        all_turns();
        return;
    }
    let name = concat!(module_path!(), "::two_hundred_faults_end_in_an_error_or_in_the_answer");
    let (_, name) = name.split_once("::").unwrap();
    let mut own = Command::new(std::env::current_exe().unwrap());
    let done = own.args([name, "--exact", "--nocapture"]).env(OWN_PROCESS, "1").output().unwrap();
    let [out, err] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(done.status.success() && out.contains("1 passed"), "{}\n{out}\n{err}", done.status);
}
