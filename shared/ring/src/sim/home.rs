//! Whole rings of real devices in memory, for tests of this package and of packages above. There are a
//! head, workers
//! with the real engine and real threads, and a network that a test may disturb.

#![allow(clippy::unwrap_used, reason = "a test whose set-up fails has failed")]

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use baton_engine::{EngineOptions, GpuUse, Model, Residency};
use baton_plan::{Plan, Share};

use crate::core::head::PlanFor;
use crate::core::{DeviceId, Node};
use crate::home::rejoin::DeviceFinder;
use crate::host::{Machine, OpenShare};
use crate::host::{Planner, RingHandle, RingHead, RingOptions};
use crate::host::{WorkerEvent, WorkerOptions, serve};
use crate::wire::link::Network;
use crate::wire::memory::Hub;

/// A machine with a fixed amount of memory for weights.
#[derive(Debug, Default)]
pub struct TestMachine {
    /// Bytes of weights that stay in memory; all if none.
    pub budget: Option<u64>,
    /// Its GPU.
    pub gpu: Option<GpuUse>,
}

impl Machine for TestMachine {
    fn model_bytes(&self) -> Option<u64> {
        Some(self.budget.unwrap_or(1 << 30))
    }

    fn open(
        &self,
        path: &Path,
        share: &OpenShare,
    ) -> Result<Arc<Model>, Box<dyn std::error::Error + Send + Sync>> {
        let Some(budget_bytes) = self.budget else { return Ok(Model::open(path)?) };
        let (layers, reads_ahead) = (Some(share.layers.clone()), share.reads_ahead);
        let residency = Residency { budget_bytes, layers, ends: false, reads_ahead, ..Residency::default() };
        Ok(Model::open_within(path, &residency)?)
    }

    fn gpu(&self) -> Option<GpuUse> {
        self.gpu.clone().filter(|gpu| gpu.device.fault().is_none())
    }
}

/// Returns options of an engine of one thread with a cache of so many tokens.
pub fn engine_options(kv_tokens: usize) -> EngineOptions {
    EngineOptions { threads: NonZeroUsize::new(1), kv_tokens, ..EngineOptions::default() }
}

/// Makes a plan from names and layers in ring order; relays follow a `>`: `desk>router`.
pub fn plan(rounds: usize, shares: &[(&str, usize)]) -> Plan {
    let share = |(name, layers): &(&str, usize)| {
        let mut names = name.split('>').map(str::to_owned);
        let device = names.next().unwrap();
        Share { device, layers: *layers, gpu_layers: 0, prefetch_bytes: 0.0, relays: names.collect() }
    };
    let shares: Vec<Share> = shares.iter().map(share).collect();
    Plan { layers: shares.iter().map(|share| share.layers).sum(), rounds, shares }
}

/// Spreads layers over head and workers as evenly as possible.
pub fn even(rounds: usize, layers: usize) -> impl FnMut(&PlanFor) -> Result<Plan, String> + Send {
    move |of: &PlanFor| {
        let names: Vec<&str> =
            std::iter::once("head").chain(of.workers.iter().map(|hello| hello.name.as_str())).collect();
        let n = names.len();
        let own = |at: usize| layers * (at + 1) / n - layers * at / n;
        let shares: Vec<(&str, usize)> =
            names.iter().enumerate().map(|(at, name)| (*name, own(at))).collect();
        Ok(plan(rounds, &shares))
    }
}

/// Uses this plan as long as all of its devices are present, then an even one.
pub fn first(wanted: Plan) -> impl FnMut(&PlanFor) -> Result<Plan, String> + Send {
    let mut rest = even(wanted.rounds, wanted.layers);
    move |of: &PlanFor| {
        let there = |name: &String| name == "head" || of.workers.iter().any(|hello| hello.name == *name);
        let all = wanted.shares.iter().all(|share| there(&share.device) && share.relays.iter().all(there));
        if all { Ok(wanted.clone()) } else { rest(of) }
    }
}

/// Devices of a home: the head is node 0, worker `w1` is node 1, and so on.
pub struct Home {
    /// Its network.
    pub hub: Arc<Hub>,
    /// What its workers have reported, by number.
    pub events: Arc<Mutex<Vec<(u8, WorkerEvent)>>>,
    /// Patience of the workers that are added from now on.
    pub patience: Duration,
    workers: Vec<(Arc<AtomicBool>, Option<JoinHandle<()>>)>,
    model: Arc<Model>,
    folder: PathBuf,
}

impl Home {
    /// Makes a home of so many workers that have this model's file.
    ///
    /// # Panics
    /// If the model is in no file.
    pub fn new(workers: u8, model: &Arc<Model>) -> Self {
        static HOMES: AtomicUsize = AtomicUsize::new(0);
        let file = model.path().expect("a model in a file").to_owned();
        let number = HOMES.fetch_add(1, Ordering::Relaxed);
        let folder = file.parent().expect("a file is in a folder").join(format!("home-{number}"));
        let mut home = Self {
            hub: Arc::default(),
            workers: Vec::new(),
            events: Arc::default(),
            patience: Duration::from_secs(10),
            model: Arc::clone(model),
            folder,
        };
        (1..=workers).for_each(|number| home.add(number, vec![file.clone()]));
        home
    }

    /// Adds a worker with these model files.
    pub fn add(&mut self, number: u8, files: Vec<PathBuf>) {
        self.add_within(number, files, None);
    }

    /// The same, with so much memory for weights.
    pub fn add_within(&mut self, number: u8, files: Vec<PathBuf>, budget: Option<u64>) {
        self.add_on(number, files, Arc::new(TestMachine { budget, gpu: None }));
    }

    /// The same, on this machine.
    pub fn add_on(&mut self, number: u8, files: Vec<PathBuf>, machine: Arc<dyn Machine>) {
        let folder = self.folder.join(format!("{number}-{}", self.workers.len()));
        std::fs::create_dir_all(&folder).expect("a folder for a worker");
        let mut options = WorkerOptions::new(format!("w{number}"), folder, machine);
        options.threads = NonZeroUsize::new(1);
        options.files = files;
        options.patience = self.patience;
        let network: Arc<dyn Network> = self.hub.node(number);
        let stop = Arc::new(AtomicBool::new(false));
        let (own, events) = (Arc::clone(&stop), Arc::clone(&self.events));
        let said: crate::host::EventSink =
            Arc::new(move |event| events.lock().unwrap().push((number, event)));
        let thread = std::thread::spawn(move || {
            serve(&network, &options, &|key| key.0 == [0; 32], &said, &own).unwrap();
        });
        self.workers.push((stop, Some(thread)));
    }

    /// Returns the address of a device.
    pub fn node(number: u8) -> Node {
        Node { address: format!("memory:{number}"), device: DeviceId([number; 32]) }
    }

    /// Returns the addresses of all workers.
    pub fn nodes(&self) -> Vec<Node> {
        (1..=self.workers.len() as u8).map(Self::node).collect()
    }

    /// Forms the ring, with changed options.
    ///
    /// # Panics
    /// If the ring cannot be formed.
    pub fn head_with(
        &self,
        model: Arc<Model>,
        planner: Planner,
        change: impl FnOnce(&mut RingOptions),
    ) -> RingHead {
        let mut options = RingOptions::new("head", engine_options(1024), Arc::new(TestMachine::default()));
        // Tests of silence set their own times; in other tests a busy machine must not look like a lost
        // device.
        options.heartbeat = Duration::from_secs(5);
        options.floor = Duration::from_secs(60);
        change(&mut options);
        RingHead::connect(self.hub.node(0), &self.nodes(), model, planner, options).unwrap()
    }

    /// Forms the ring of the home's model.
    ///
    /// # Panics
    /// If the ring cannot be formed.
    pub fn head(&self, planner: impl FnMut(&PlanFor) -> Result<Plan, String> + Send + 'static) -> RingHead {
        self.head_with(Arc::clone(&self.model), Box::new(planner), |_| {})
    }
}

/// Calls `sees` until this device has its weights and takes part.
#[track_caller]
pub fn until_serves(handle: &RingHandle, name: &str, mut sees: impl FnMut()) {
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
            let ended = thread.take().map(JoinHandle::join);
            assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking(), "a worker panicked");
        }
        // A home without workers has no folder.
        let _missing = std::fs::remove_dir_all(&self.folder);
    }
}

/// Workers of a hub, found by this device finder.
pub struct HubHome {
    /// Their network.
    pub hub: Arc<Hub>,
    /// Their numbers.
    pub workers: Vec<u8>,
}

impl DeviceFinder for HubHome {
    fn paired(&mut self) -> Vec<DeviceId> {
        self.workers.iter().map(|number| DeviceId([*number; 32])).collect()
    }

    fn find(&mut self, key: &DeviceId) -> Option<Node> {
        self.hub.is_alive(key).then(|| Home::node(key.0[0]))
    }
}
