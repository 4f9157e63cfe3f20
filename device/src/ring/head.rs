//! The head of a ring: the device that has the text. It offers the sequences of one engine, and computes
//! them together with other devices.
//!
//! The head is place 0: it computes the embedding, the output and its own windows. Hidden states go round
//! the other places and come back. The head's own engine holds every sequence. What is done to sequences is
//! sent to the other devices as a log, before the hidden states of the next step.
//!
//! Always holds:
//!
//! - The results of a step are those of one engine, bit for bit (with f32 activations).
//! - Whatever device is lost, and whenever, a step returns these results, later, or a typed error.
//! - If the plan has no other device, a step is just [`Engine::step`].

mod audit;
mod configure;
mod drift;
mod health;
mod joining;
mod listener;
mod member;
mod pump;
mod recovery;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use baton_engine::tokenizer::TokenId;
use baton_engine::weights::ResidencyError;
use baton_engine::{
    Adapter, AdapterId, Engine, EngineError, EngineOptions, Model, SeqId, SeqOutput, StepControl, StepError,
    StepSeq,
};
use baton_plan::Plan;

use super::drift::ObservedDevice;
use super::edges::EdgeTable;
use super::frame::{Activations, Hello, NodeAddress, Operation};
use super::layout::{Layout, LayoutError};
use super::link::{Key, LinkError, Network, Outbox};
use super::locked;
use super::stats::RingStats;
use super::weights::WeightsError;
use crate::local::{SequenceError, Sequences};
use baton_terminal::chain;

use listener::{FrameInbox, RingListener};
use member::{Member, ModelFile};
use recovery::TokensToRebuild;

/// Makes a plan for the head and these workers, by name; the plan begins with the head. An error says why
/// there is no plan.
pub type Planner = Box<dyn FnMut(&[Hello]) -> Result<Plan, String> + Send>;

/// Drafts a plan that includes devices about to join, so that they can fetch their layers before the
/// switch.
pub type Drafter = Box<dyn Fn(&[Hello]) -> Result<Plan, String> + Send>;

/// Decides whether to plan anew, from what devices have reported; called only between answers.
pub type Reviser = Box<dyn FnMut(&[ObservedDevice]) -> bool + Send>;

/// Predicts the times of the present plan, or returns `None` if they are not known. Called while the head
/// waits for a frame.
pub type TimePredictor = Box<dyn Fn() -> Option<PredictedTimes> + Send>;

/// How long computing by a plan should take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PredictedTimes {
    /// A token of one sequence.
    pub token: Duration,
    /// Reading a device's weights for the first time, on the device that takes longest.
    pub first: Duration,
}

/// The names that a person gave to other devices, by their keys: a device does not choose its own name
/// here.
#[derive(Clone, Default)]
pub struct Names(Option<Arc<NameOf>>);

type NameOf = dyn Fn(&Key) -> Option<String> + Send + Sync;

impl Names {
    /// Uses this function, which is called whenever a device joins.
    pub fn new(name_of: impl Fn(&Key) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(name_of)))
    }

    fn of(&self, key: &Key) -> Option<String> {
        self.0.as_ref().and_then(|name_of| name_of(key))
    }
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Names" } else { "no names" })
    }
}

/// How a ring is run.
#[derive(Debug, Clone)]
pub struct RingOptions {
    /// The head's name in plans.
    pub name: String,
    /// Options of the head's engine; the other devices use the same cache. The plan sets the layers.
    pub engine: EngineOptions,
    /// The format of hidden states between devices.
    pub activations: Activations,
    /// Whether the other devices read weights ahead of computing with them.
    pub reads_ahead: bool,
    /// Least and most rows of a chunk.
    pub chunk_rows: (usize, usize),
    /// Time between heartbeats; a device that misses three is lost.
    pub heartbeat: Duration,
    /// How long a frame may take to the next device.
    pub hop: Duration,
    /// How long the ring may make no progress within a step, in addition to what `token` predicts.
    pub floor: Duration,
    /// Least time that a token of one sequence counts as, whatever is predicted.
    pub token: Duration,
    /// How long devices may take to connect, without the time for fetching weights.
    pub patience: Duration,
    /// Time between two tokens that test whether every device computes, while no answer runs.
    pub health: Duration,
    /// What is known of the network paths between devices; updated as devices join.
    pub edges: EdgeTable,
    /// The names of devices; a device without an entry keeps the name that it gives itself.
    pub names: Names,
}

impl RingOptions {
    /// Returns the usual times, with the given engine.
    pub fn new(name: impl Into<String>, engine: EngineOptions) -> Self {
        Self {
            name: name.into(),
            engine,
            activations: Activations::F32,
            reads_ahead: true,
            chunk_rows: (16, 128),
            heartbeat: Duration::from_millis(300),
            hop: Duration::from_secs(5),
            floor: Duration::from_secs(5),
            token: Duration::from_millis(500),
            patience: Duration::from_secs(10),
            health: Duration::from_secs(10),
            edges: EdgeTable::default(),
            names: Names::default(),
        }
    }
}

/// Why a ring cannot be formed, or cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The head's engine cannot be created.
    #[error("the head's engine")]
    Engine(#[from] EngineError),
    /// The head's weights cannot be changed to those of the plan.
    #[error("the head's weights")]
    Residency(#[from] ResidencyError),
    /// A worker cannot be reached.
    #[error("connect to `{address}`")]
    Member {
        /// Its address.
        address: String,
        /// The cause.
        #[source]
        err: LinkError,
    },
    /// A worker does not take part.
    #[error("a device refuses: {words}")]
    Refused {
        /// Its explanation.
        words: String,
    },
    /// Two devices have the same name.
    #[error("two devices of the ring are called `{name}`")]
    TwoNames {
        /// The name.
        name: String,
    },
    /// The model's file cannot be served to the other devices.
    #[error("serve the model's weights")]
    Weights(#[from] WeightsError),
    /// The model is not in a file.
    #[error("the model has no file to serve weights from")]
    NoFile,
    /// There is no plan for the remaining devices.
    #[error("no plan for {devices}: {words}")]
    NoPlan {
        /// Their names.
        devices: String,
        /// The reason.
        words: String,
    },
    /// The head's own weights are damaged.
    #[error("the head's own model cannot be computed with: {words}")]
    Damaged {
        /// What is wrong.
        words: String,
    },
    /// The plan cannot be run.
    #[error("the plan cannot be run")]
    Layout(#[from] LayoutError),
    /// Threads cannot be started.
    #[error("start the ring's threads")]
    Threads(#[source] std::io::Error),
    /// The ring broke too often within one step.
    #[error("the ring broke {times} times within one step, the last time: {words}")]
    GaveUp {
        /// How often.
        times: usize,
        /// The last fault.
        words: String,
    },
    /// Live sequences could not be computed again, or the step was cancelled meanwhile.
    #[error("compute sequences again")]
    Rebuild(#[source] StepError),
    /// The ring cannot go on without devices that were lost.
    #[error("the ring lacks {lost}; start what is missing again, the ring takes it in by itself")]
    Missing {
        /// Which devices were lost, and how.
        lost: String,
        /// Why the ring cannot go on without them.
        #[source]
        err: Box<RingError>,
    },
    /// Adapters need the whole model on the head.
    #[error("a ring of several devices computes no adapters")]
    Adapters,
}

impl From<RingError> for SequenceError {
    fn from(err: RingError) -> Self {
        match err {
            RingError::Rebuild(err @ StepError::Cancelled { .. }) => Self::Step(err),
            err => Self::Ring(Box::new(err)),
        }
    }
}

/// An epoch of several devices.
struct Epoch {
    layout: Layout,
    /// Workers at the places from 1 on.
    places: Vec<Arc<Member>>,
    out: Outbox,
    inbox: FrameInbox,
    /// Chunks in flight, oldest first.
    in_flight: VecDeque<pump::ChunkInFlight>,
}

/// Where steps are computed.
enum Route {
    /// The head computes everything.
    Alone,
    /// By all devices of the ring.
    Ring(Box<Epoch>),
    /// Nowhere, until the ring is formed again.
    Down,
}

/// What the head shares with other threads.
#[derive(Debug, Default)]
struct HeadShared {
    stats: Mutex<RingStats>,
    newcomers: Mutex<Vec<NodeAddress>>,
    /// Keys of the members, whether or not the plan uses them, and of devices that fetch their weights.
    present: Mutex<Vec<Key>>,
}

/// Access to the ring for other threads: its statistics, and a way to let devices join.
#[derive(Debug, Clone)]
pub struct RingHandle(Arc<HeadShared>);

/// The same access, which does not keep the ring alive.
#[derive(Debug, Clone)]
pub struct WeakRingHandle(Weak<HeadShared>);

impl WeakRingHandle {
    /// Returns the access as long as the ring is alive.
    pub fn upgrade(&self) -> Option<RingHandle> {
        self.0.upgrade().map(RingHandle)
    }
}

impl RingHandle {
    /// Returns the present statistics of the ring.
    pub fn stats(&self) -> RingStats {
        locked(&self.0.stats).clone()
    }

    /// Lets a device take part as soon as it has its weights and no answer runs.
    pub fn join(&self, node: NodeAddress) {
        let mut newcomers = locked(&self.0.newcomers);
        newcomers.retain(|other| other.key != node.key);
        newcomers.push(node);
    }

    /// Returns the keys of the members, whether or not the plan uses them, and of devices that fetch their
    /// weights.
    pub fn present(&self) -> Vec<Key> {
        locked(&self.0.present).clone()
    }

    /// Returns the keys of devices that will join as soon as no answer runs.
    pub fn joining(&self) -> Vec<Key> {
        locked(&self.0.newcomers).iter().map(|node| node.key).collect()
    }

    /// Returns access that does not keep the ring alive.
    pub fn downgrade(&self) -> WeakRingHandle {
        WeakRingHandle(Arc::downgrade(&self.0))
    }
}

/// The head of a ring.
pub struct RingHead {
    network: Arc<dyn Network>,
    options: RingOptions,
    planner: Planner,
    drafter: Option<Drafter>,
    reviser: Option<Reviser>,
    time_predictor: Option<TimePredictor>,
    singles: drift::SingleRowTimes,
    own_memory: drift::OwnMemory,
    engine: Engine,
    model_file: Option<Arc<ModelFile>>,
    listener: Option<RingListener>,
    members: Vec<Arc<Member>>,
    /// Devices that fetch their weights and are not yet members.
    coming: Vec<Arc<Member>>,
    route: Route,
    epoch: u64,
    step: u64,
    /// The numbers by which the other devices know the sequences.
    numbers: BTreeMap<SeqId, u64>,
    next_number: u64,
    /// Operations that were not yet sent to the other devices.
    log: Vec<Operation>,
    /// Tokens of all sequences, if the ring could not be formed again. They are computed again once it is.
    to_rebuild: Option<TokensToRebuild>,
    /// Broken links per device, as long as the device was not lost.
    strikes: BTreeMap<Key, u32>,
    /// Pairs of workers that were asked to measure the path between them.
    edges_asked: BTreeSet<(Key, Key)>,
    refused: Arc<AtomicU64>,
    /// Microseconds of this epoch's steps, and of the head's own part in them.
    step_us: [u64; 2],
    /// When a test token last went round.
    probed: Instant,
    /// How long that token took.
    probe_took: Duration,
    audits: audit::Audits,
    shared: Arc<HeadShared>,
}

impl RingHead {
    /// Connects to the workers and forms a ring with those that answer; the planner decides who computes
    /// what. Workers that cannot be reached are left out, with a warning.
    ///
    /// # Errors
    /// [`RingError`] if two devices have the same name, if the model's file cannot be served, or if no ring
    /// can be formed, not even with the head alone.
    pub fn connect(
        network: Arc<dyn Network>,
        members: &[NodeAddress],
        model: Arc<Model>,
        planner: Planner,
        options: RingOptions,
    ) -> Result<Self, RingError> {
        let engine = Engine::new(model, EngineOptions { layers: None, ..options.engine.clone() })?;
        let mut head = Self {
            network,
            options,
            planner,
            engine,
            model_file: None,
            listener: None,
            members: Vec::new(),
            coming: Vec::new(),
            route: Route::Down,
            epoch: 0,
            step: 0,
            numbers: BTreeMap::new(),
            next_number: 0,
            log: Vec::new(),
            to_rebuild: None,
            strikes: BTreeMap::new(),
            edges_asked: BTreeSet::new(),
            drafter: None,
            reviser: None,
            time_predictor: None,
            singles: drift::SingleRowTimes::default(),
            own_memory: drift::OwnMemory::default(),
            refused: Arc::default(),
            step_us: [0; 2],
            probed: Instant::now(),
            probe_took: Duration::ZERO,
            audits: audit::Audits::default(),
            shared: Arc::default(),
        };
        for node in members {
            head.admit(node)?;
        }
        head.measure_edges();
        head.form(&mut ())?;
        Ok(head)
    }

    /// Sets the drafter, which drafts plans that are not run yet. Without it the planner is asked, which
    /// may record the draft as the present plan.
    #[must_use]
    pub fn with_drafter(mut self, drafter: Drafter) -> Self {
        self.drafter = Some(drafter);
        self
    }

    /// Sets the reviser, which decides from the devices' reports whether to plan anew.
    #[must_use]
    pub fn with_reviser(mut self, reviser: Reviser) -> Self {
        self.reviser = Some(reviser);
        self
    }

    /// Sets the time predictor. The head waits for frames as long as it predicts, if that is longer than
    /// the options say.
    #[must_use]
    pub fn with_time_predictor(mut self, time_predictor: TimePredictor) -> Self {
        self.time_predictor = Some(time_predictor);
        self
    }

    /// Returns access to the ring for other threads.
    pub fn handle(&self) -> RingHandle {
        RingHandle(Arc::clone(&self.shared))
    }

    /// Adds an operation to the log for the other devices, if there are any.
    fn note(&mut self, operation: Operation) {
        if matches!(self.route, Route::Ring(_)) {
            self.log.push(operation);
        }
    }

    fn number(&mut self, seq: SeqId) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.numbers.insert(seq, number);
        number
    }
}

impl Sequences for RingHead {
    fn model(&self) -> &Arc<Model> {
        self.engine.model()
    }

    /// Works only if the head computes everything.
    fn add_adapter(&mut self, adapter: Arc<Adapter>) -> Result<AdapterId, SequenceError> {
        if !matches!(self.route, Route::Alone) {
            return Err(RingError::Adapters.into());
        }
        Ok(self.engine.add_adapter(adapter)?)
    }

    fn create_with(&mut self, adapter: Option<AdapterId>) -> Result<SeqId, SequenceError> {
        if adapter.is_some() && !matches!(self.route, Route::Alone) {
            return Err(RingError::Adapters.into());
        }
        let id = self.engine.create_with(adapter)?;
        if let Some(to_rebuild) = &mut self.to_rebuild {
            to_rebuild.create(id);
        }
        let seq = self.number(id);
        self.note(Operation::Create { seq });
        Ok(id)
    }

    fn fork(&mut self, seq: SeqId, n_tokens: usize) -> Result<SeqId, SequenceError> {
        let child = match &mut self.to_rebuild {
            Some(to_rebuild) => {
                to_rebuild.first(seq, n_tokens)?;
                let child = self.engine.fork(seq, 0)?;
                to_rebuild.fork(seq, n_tokens, child)?;
                child
            }
            None => self.engine.fork(seq, n_tokens)?,
        };
        let from = self.numbers[&seq];
        let seq = self.number(child);
        self.note(Operation::Fork { from, tokens: n_tokens as u64, seq });
        Ok(child)
    }

    fn truncate(&mut self, seq: SeqId, n_tokens: usize) -> Result<(), SequenceError> {
        if let Some(to_rebuild) = &mut self.to_rebuild {
            return Ok(to_rebuild.truncate(seq, n_tokens)?);
        }
        let cuts = self.engine.len(seq)? != n_tokens;
        self.engine.truncate(seq, n_tokens)?;
        if cuts {
            let seq = self.numbers[&seq];
            self.note(Operation::Truncate { seq, tokens: n_tokens as u64 });
        }
        Ok(())
    }

    fn release(&mut self, seq: SeqId) {
        self.engine.release(seq);
        if let Some(to_rebuild) = &mut self.to_rebuild {
            to_rebuild.release(seq);
        }
        if let Some(seq) = self.numbers.remove(&seq) {
            self.note(Operation::Release { seq });
        }
    }

    fn len(&self, seq: SeqId) -> Result<usize, SequenceError> {
        Ok(self.ids(seq)?.len())
    }

    fn ids(&self, seq: SeqId) -> Result<&[TokenId], SequenceError> {
        Ok(match &self.to_rebuild {
            Some(to_rebuild) => to_rebuild.ids(seq)?,
            None => self.engine.ids(seq)?,
        })
    }

    fn reuse_prefix(&mut self, seq: SeqId, ids: &[TokenId]) -> usize {
        if self.to_rebuild.is_some() {
            return 0;
        }
        let gained = self.engine.reuse_prefix(seq, ids);
        // A lookup that finds nothing changes nothing.
        if let (true, Some(seq)) = (gained > 0, self.numbers.get(&seq).copied()) {
            self.note(Operation::Reuse { seq, ids: ids.to_vec(), gained: gained as u64 });
        }
        gained
    }

    fn step(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, SequenceError> {
        self.step_through(batch, control)
    }

    /// Enough for each device to have several chunks of one pass.
    fn pass_tokens_min(&self) -> usize {
        match &self.route {
            Route::Ring(epoch) => self.options.chunk_rows.1 * 2 * (epoch.places.len() + 1),
            Route::Alone | Route::Down => 1,
        }
    }

    fn between_answers(&mut self) {
        self.update_members();
        self.check_layers_before_answers();
        self.check_drift();
    }

    fn idle_every(&self) -> Option<Duration> {
        Some(health::IDLE.min(self.options.health))
    }

    fn idle(&mut self) {
        self.update_members();
        self.check_health();
        self.check_layers_while_idle();
        self.check_drift();
    }
}

/// What ended a step.
#[derive(Debug)]
enum Broken {
    /// The step itself: refused by the head's engine, or cancelled.
    Step(StepError),
    /// The ring.
    Ring(configure::Fault),
}

impl From<StepError> for Broken {
    fn from(err: StepError) -> Self {
        Self::Step(err)
    }
}
