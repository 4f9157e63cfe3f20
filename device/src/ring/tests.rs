//! Whole rings in memory: whatever the plan, and whatever breaks, logits and text are those of one engine.

mod answers;
mod audits;
mod cancelled;
mod cloud;
mod edges;
mod health;
mod home;
mod joining;
mod losses;
mod plans;
mod weights;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use baton_engine::tokenizer::TokenId;
use baton_engine::{Engine, EngineOptions, Model, SeqId, StepSeq, Wanted};
use baton_kernels_cpu::Format;
use baton_plan::{Plan, Share};
use baton_synthetic::SyntheticModel;

use super::frame::{Hello, NodeAddress};
use super::head::{Names, Planner, RingHandle, RingHead, RingOptions};
use super::link::memory::Hub;
use super::link::{Key, Network};
use super::rejoin::{DeviceFinder, spawn_rejoin};
use super::worker::{WorkerEvent, WorkerOptions, serve};
use crate::local::Sequences;
use crate::residency::MemoryFor;

/// Layers of the test's model.
const LAYERS: usize = 5;

struct Fixture {
    folder: tempfile::TempDir,
    model: Arc<Model>,
}

impl Fixture {
    /// Makes a model of four heads of this width.
    fn of(d_head: u32, d_ff: u32, seed: u64) -> Self {
        let shape = SyntheticModel {
            n_layers: LAYERS as u32,
            n_heads: 4,
            n_kv_heads: 2,
            d_model: 4 * d_head,
            d_head,
            d_ff,
            tied: false,
            ..SyntheticModel::small("llama", Format::F32, seed)
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring.gguf");
        std::fs::write(&path, shape.to_gguf().unwrap()).unwrap();
        Self { model: Model::open(&path).unwrap(), folder }
    }
}

static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| Fixture::of(16, 96, 11));

fn model() -> Arc<Model> {
    Arc::clone(&FIXTURE.model)
}

fn model_path() -> PathBuf {
    FIXTURE.folder.path().join("ring.gguf")
}

fn engine_options(kv_tokens: usize) -> EngineOptions {
    EngineOptions { threads: NonZeroUsize::new(1), kv_tokens, ..EngineOptions::default() }
}

fn one_engine() -> Engine {
    Engine::new(model(), engine_options(1024)).unwrap()
}

/// Makes a plan from names and layers in ring order; relays follow a `>`: `desk>router`.
fn plan(rounds: usize, shares: &[(&str, usize)]) -> Plan {
    let share = |(name, layers): &(&str, usize)| {
        let mut names = name.split('>').map(str::to_owned);
        let device = names.next().unwrap();
        Share { device, layers: *layers, gpu_layers: 0, prefetch_bytes: 0.0, relays: names.collect() }
    };
    let shares: Vec<Share> = shares.iter().map(share).collect();
    Plan { layers: shares.iter().map(|share| share.layers).sum(), rounds, shares }
}

/// Spreads layers over head and workers as evenly as possible.
fn even(rounds: usize, layers: usize) -> impl FnMut(&[Hello]) -> Result<Plan, String> + Send {
    move |workers| {
        let names: Vec<&str> =
            std::iter::once("head").chain(workers.iter().map(|hello| hello.name.as_str())).collect();
        let n = names.len();
        let own = |at: usize| layers * (at + 1) / n - layers * at / n;
        let shares: Vec<(&str, usize)> =
            names.iter().enumerate().map(|(at, name)| (*name, own(at))).collect();
        Ok(plan(rounds, &shares))
    }
}

/// Uses this plan as long as all of its devices are present, then an even one.
fn first(wanted: Plan) -> impl FnMut(&[Hello]) -> Result<Plan, String> + Send {
    let mut rest = even(wanted.rounds, wanted.layers);
    move |workers| {
        let there = |name: &String| name == "head" || workers.iter().any(|hello| hello.name == *name);
        let all = wanted.shares.iter().all(|share| there(&share.device) && share.relays.iter().all(there));
        if all { Ok(wanted.clone()) } else { rest(workers) }
    }
}

/// Devices of a home: the head is node 0, worker `w1` is node 1, and so on.
struct Home {
    hub: Arc<Hub>,
    workers: Vec<(Arc<AtomicBool>, Option<JoinHandle<()>>)>,
    events: Arc<Mutex<Vec<(u8, WorkerEvent)>>>,
    /// Patience of the workers that are added from now on.
    patience: Duration,
    folders: Vec<tempfile::TempDir>,
}

impl Home {
    fn new(workers: u8) -> Self {
        let mut home = Self {
            hub: Arc::default(),
            workers: Vec::new(),
            events: Arc::default(),
            patience: Duration::from_secs(10),
            folders: Vec::new(),
        };
        (1..=workers).for_each(|number| home.add(number, vec![model_path()]));
        home
    }

    /// Adds a worker with these model files.
    fn add(&mut self, number: u8, files: Vec<PathBuf>) {
        self.add_within(number, files, MemoryFor::Auto);
    }

    /// The same, with so much memory for weights.
    fn add_within(&mut self, number: u8, files: Vec<PathBuf>, memory: MemoryFor) {
        let folder = tempfile::tempdir().unwrap();
        let mut options = WorkerOptions::new(format!("w{number}"), folder.path());
        options.threads = NonZeroUsize::new(1);
        options.files = files;
        options.memory = memory;
        options.patience = self.patience;
        let network: Arc<dyn Network> = self.hub.node(number);
        let stop = Arc::new(AtomicBool::new(false));
        let (own, events) = (Arc::clone(&stop), Arc::clone(&self.events));
        let said: super::worker::EventSink =
            Arc::new(move |event| events.lock().unwrap().push((number, event)));
        let thread = std::thread::spawn(move || {
            serve(&network, &options, &|key| *key == [0; 32], &said, &own).unwrap();
        });
        self.workers.push((stop, Some(thread)));
        self.folders.push(folder);
    }

    fn node(number: u8) -> NodeAddress {
        NodeAddress { address: format!("memory:{number}"), key: [number; 32] }
    }

    fn nodes(&self) -> Vec<NodeAddress> {
        (1..=self.workers.len() as u8).map(Self::node).collect()
    }

    fn head_with(
        &self,
        model: Arc<Model>,
        planner: Planner,
        change: impl FnOnce(&mut RingOptions),
    ) -> RingHead {
        let mut options = RingOptions::new("head", engine_options(1024));
        // Tests of silence set their own times; in other tests a busy machine must not look like a lost
        // device.
        options.heartbeat = Duration::from_secs(5);
        options.floor = Duration::from_secs(60);
        change(&mut options);
        RingHead::connect(self.hub.node(0), &self.nodes(), model, planner, options).unwrap()
    }

    fn head(&self, planner: impl FnMut(&[Hello]) -> Result<Plan, String> + Send + 'static) -> RingHead {
        self.head_with(model(), Box::new(planner), |_| {})
    }
}

/// Calls `sees` until this device has its weights and takes part.
#[track_caller]
fn until_serves(handle: &RingHandle, name: &str, mut sees: impl FnMut()) {
    let begun = std::time::Instant::now();
    loop {
        sees();
        if handle.stats().devices.iter().any(|device| device.name == name) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", handle.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.workers.iter().for_each(|(stop, _)| stop.store(true, Ordering::Release));
        for (_, thread) in &mut self.workers {
            thread.take().unwrap().join().unwrap();
        }
    }
}

/// Workers of a hub, found by this device finder.
struct HubHome {
    hub: Arc<Hub>,
    workers: Vec<u8>,
}

impl DeviceFinder for HubHome {
    fn paired(&mut self) -> Vec<Key> {
        self.workers.iter().map(|number| [*number; 32]).collect()
    }

    fn find(&mut self, key: &Key) -> Option<NodeAddress> {
        self.hub.is_alive(key).then(|| Home::node(key[0]))
    }
}

/// Returns token ids that resemble text; they differ for each seed.
fn prompt(seed: u32, len: usize) -> Vec<TokenId> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 40_503) >> 7) % 256).collect()
}

fn step(seq: SeqId, ids: &[TokenId], logits: Wanted) -> StepSeq<'_> {
    StepSeq { seq, ids, logits, capture: None }
}

fn greedy(logits: &[f32]) -> TokenId {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.unwrap().0 as TokenId
}

/// Returns every logit of a prompt and of so many further tokens, and these tokens.
fn written(sequences: &mut dyn Sequences, ids: &[TokenId], tokens: usize) -> (Vec<f32>, Vec<TokenId>) {
    let vocab = sequences.model().config().vocab_len;
    let seq = sequences.create_with(None).unwrap();
    let mut logits = sequences.step(&[step(seq, ids, Wanted::All)], &mut ()).unwrap().remove(0).logits;
    let mut text = Vec::new();
    for _ in 0..tokens {
        let token = greedy(&logits[logits.len() - vocab..]);
        text.push(token);
        let more = sequences.step(&[step(seq, &[token], Wanted::Last)], &mut ()).unwrap().remove(0);
        logits.extend(more.logits);
    }
    sequences.release(seq);
    (logits, text)
}

#[track_caller]
fn assert_same_bits(have: &[f32], want: &[f32], what: &str) {
    assert_eq!(have.len(), want.len(), "{what}: number of logits");
    let differs = have.iter().zip(want).position(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(differs, None, "{what}: first logit that differs");
}
