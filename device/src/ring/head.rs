//! The head of a ring: the device that has the text. It offers the sequences of one engine, and computes them with
//! others.
//!
//! The head is place 0: embedding, output and its own windows are here; hidden states go round the other places and
//! come back. Its own engine holds every sequence, and what is done to them goes to the other devices as a log ahead
//! of the next step's hidden states. Always holds: a step's results are those of one engine, bit for bit (with f32
//! activations); whatever device is lost at whatever moment, a step either gives them, later, or a typed error; with
//! nobody else in the plan, a step is [`Engine::step`] and nothing more.

mod audit;
mod configure;
mod door;
mod drift;
mod health;
mod joining;
mod member;
mod pump;
mod recovery;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use baton_engine::tokenizer::TokenId;
use baton_engine::weights::ResidencyError;
use baton_engine::{
    Adapter, AdapterId, Engine, EngineError, EngineOptions, Model, SeqId, SeqOutput, StepControl, StepError,
    StepSeq,
};
use baton_plan::Plan;

use super::drift::Shown;
use super::edges::EdgeBook;
use super::frame::{Activations, Hello, NextNode, Operation};
use super::layout::{Layout, LayoutError};
use super::link::{Key, LinkError, Network, Outbox};
use super::stats::RingStats;
use super::weights::WeightsError;
use crate::local::{SequenceError, Sequences};
use baton_terminal::chain;

use door::{Door, Inbox};
use member::{Member, Shelf};
use recovery::Owed;

/// Plans for the head and these workers, by name; the plan begins with the head. Words say why there is none.
pub type Planner = Box<dyn FnMut(&[Hello]) -> Result<Plan, String> + Send>;

/// The same for a plan that nobody runs yet: which layers devices that come would have.
pub type Drafter = Box<dyn Fn(&[Hello]) -> Result<Plan, String> + Send>;

/// Whether to plan anew, after what devices have shown of themselves; asked between answers only.
pub type Reviser = Box<dyn FnMut(&[Shown]) -> bool + Send>;

/// What the present plan should take; none where nobody says. Asked while the head waits for a frame.
pub type Pacer = Box<dyn Fn() -> Option<Pace> + Send>;

/// How long computing by a plan should take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pace {
    /// A token of one sequence.
    pub token: Duration,
    /// Reading a device's weights for the first time, on the device that takes longest.
    pub first: Duration,
}

/// What a person calls other devices, by their keys: a device does not choose the name that it is spoken of by.
#[derive(Clone, Default)]
pub struct Names(Option<Arc<NameOf>>);

type NameOf = dyn Fn(&Key) -> Option<String> + Send + Sync;

impl Names {
    /// By this list, which is asked whenever a device comes.
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
    /// The head's engine; the other devices keep the same cache. Its layers are the plan's.
    pub engine: EngineOptions,
    /// How hidden states travel.
    pub activations: Activations,
    /// Whether the other devices read weights ahead of computing with them.
    pub reads_ahead: bool,
    /// Least and most rows of a chunk.
    pub chunk_rows: (usize, usize),
    /// Time between heartbeats; a device that misses three is lost.
    pub heartbeat: Duration,
    /// How long a frame may take to the next device.
    pub hop: Duration,
    /// How long the ring may show no progress within a step, beyond what `token` predicts.
    pub floor: Duration,
    /// What a token of one sequence takes at least, whatever is predicted.
    pub token: Duration,
    /// How long devices may take to connect, beside fetching weights.
    pub patience: Duration,
    /// Time between tokens that are sent round the ring while no answer runs, to see whether every device computes.
    pub health: Duration,
    /// What is known of the ways between devices, and becomes known as they join.
    pub edges: EdgeBook,
    /// What devices are called; one that is not named goes by the name that it says.
    pub names: Names,
}

impl RingOptions {
    /// The usual times; the engine as given.
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
            edges: EdgeBook::default(),
            names: Names::default(),
        }
    }
}

/// Why a ring cannot be formed, or cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The head's engine cannot be made.
    #[error("the head's engine")]
    Engine(#[from] EngineError),
    /// The head's weights cannot follow the plan.
    #[error("the head's weights")]
    Residency(#[from] ResidencyError),
    /// A worker cannot be reached.
    #[error("connect to `{address}`")]
    Member {
        /// Where it was looked for.
        address: String,
        /// What happened.
        #[source]
        err: LinkError,
    },
    /// A worker does not take part.
    #[error("a device refuses: {words}")]
    Refused {
        /// What it says.
        words: String,
    },
    /// Two devices have one name.
    #[error("two devices of the ring are called `{name}`")]
    TwoNames {
        /// The name.
        name: String,
    },
    /// The model's file cannot be served to the others.
    #[error("serve the model's weights")]
    Weights(#[from] WeightsError),
    /// The model is not in a file.
    #[error("the model has no file to serve weights from")]
    NoFile,
    /// There is no plan for the devices that are left.
    #[error("no plan for {devices}: {words}")]
    NoPlan {
        /// Their names.
        devices: String,
        /// Why.
        words: String,
    },
    /// The head's own weights are not what they were.
    #[error("the head's own model cannot be computed with: {words}")]
    Damaged {
        /// What is wrong.
        words: String,
    },
    /// A plan that cannot be run.
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
        /// What happened last.
        words: String,
    },
    /// Live sequences could not be computed again, or somebody took back what they were wanted for.
    #[error("compute sequences again")]
    Rebuild(#[source] StepError),
    /// Without devices that were lost it does not go on.
    #[error("the ring lacks {lost}; start what is missing again, the ring takes it in by itself")]
    Missing {
        /// Who was lost, and how.
        lost: String,
        /// Why it does not go on without them.
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
    /// Of places 1 and on.
    places: Vec<Arc<Member>>,
    out: Outbox,
    inbox: Inbox,
    /// Chunks under way, oldest first: step, first row, and layers done when they come back.
    flying: VecDeque<pump::Flight>,
}

/// Where steps go.
enum Route {
    /// The head computes everything.
    Alone,
    /// Round the ring.
    Ring(Box<Epoch>),
    /// Nowhere before the ring is formed again.
    Down,
}

/// What the head shows to other threads, and takes from them.
#[derive(Debug, Default)]
struct Board {
    stats: Mutex<RingStats>,
    newcomers: Mutex<Vec<NextNode>>,
    /// The members, whether or not the plan uses them, and who is about to be one.
    present: Mutex<Vec<Key>>,
}

/// A view of the ring for other threads: its figures, and the way to let devices join.
#[derive(Debug, Clone)]
pub struct RingHandle(Arc<Board>);

/// The same view, which keeps nothing alive.
#[derive(Debug, Clone)]
pub struct RingWatch(Weak<Board>);

impl RingWatch {
    /// The view, as long as somebody else has it.
    pub fn handle(&self) -> Option<RingHandle> {
        self.0.upgrade().map(RingHandle)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RingHandle {
    /// The ring as it stands.
    pub fn stats(&self) -> RingStats {
        locked(&self.0.stats).clone()
    }

    /// Lets a device take part as soon as it has its weights and no answer runs.
    pub fn join(&self, node: NextNode) {
        let mut newcomers = locked(&self.0.newcomers);
        newcomers.retain(|other| other.key != node.key);
        newcomers.push(node);
    }

    /// Keys of the workers that have joined, whether or not the plan uses them, and of those that fetch their weights.
    pub fn present(&self) -> Vec<Key> {
        locked(&self.0.present).clone()
    }

    /// Keys of those that are to join as soon as no answer runs.
    pub fn joining(&self) -> Vec<Key> {
        locked(&self.0.newcomers).iter().map(|node| node.key).collect()
    }

    /// A view that keeps nothing alive.
    pub fn watch(&self) -> RingWatch {
        RingWatch(Arc::downgrade(&self.0))
    }
}

/// The head of a ring.
pub struct RingHead {
    network: Arc<dyn Network>,
    options: RingOptions,
    planner: Planner,
    drafter: Option<Drafter>,
    reviser: Option<Reviser>,
    pacer: Option<Pacer>,
    singles: drift::Singles,
    own_memory: drift::OwnMemory,
    engine: Engine,
    shelf: Option<Arc<Shelf>>,
    door: Option<Door>,
    members: Vec<Arc<Member>>,
    /// Devices that fetch their weights and are no members yet.
    coming: Vec<Arc<Member>>,
    route: Route,
    epoch: u64,
    step: u64,
    /// Numbers of sequences, as the other devices know them.
    numbers: BTreeMap<SeqId, u64>,
    next_number: u64,
    /// What the other devices have not been told yet.
    log: Vec<Operation>,
    /// What sequences hold, where the ring could not be formed again.
    owed: Option<Owed>,
    /// Links that broke without a device being lost.
    strikes: BTreeMap<Key, u32>,
    /// Pairs of workers that were asked for the way between them.
    weighed: BTreeSet<(Key, Key)>,
    refused: Arc<AtomicU64>,
    /// Microseconds of this epoch's steps, and of the head's own part in them.
    step_us: [u64; 2],
    /// When a token last went round.
    probed: Instant,
    /// What that token took.
    probe_took: Duration,
    audits: audit::Audits,
    board: Arc<Board>,
}

impl RingHead {
    /// Connects to the workers and forms a ring with those that are there; the planner says who computes what. Workers
    /// that cannot be reached are left out, with a warning.
    ///
    /// # Errors
    /// [`RingError`] where not even the planner's choice of the head alone can run.
    pub fn connect(
        network: Arc<dyn Network>,
        members: &[NextNode],
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
            shelf: None,
            door: None,
            members: Vec::new(),
            coming: Vec::new(),
            route: Route::Down,
            epoch: 0,
            step: 0,
            numbers: BTreeMap::new(),
            next_number: 0,
            log: Vec::new(),
            owed: None,
            strikes: BTreeMap::new(),
            weighed: BTreeSet::new(),
            drafter: None,
            reviser: None,
            pacer: None,
            singles: drift::Singles::default(),
            own_memory: drift::OwnMemory::default(),
            refused: Arc::default(),
            step_us: [0; 2],
            probed: Instant::now(),
            probe_took: Duration::ZERO,
            audits: audit::Audits::default(),
            board: Arc::default(),
        };
        for node in members {
            head.admit(node)?;
        }
        head.weigh_edges();
        head.form(&mut ())?;
        Ok(head)
    }

    /// Asks this where the plan is not to be run yet, in place of the planner, which may keep what it said last.
    #[must_use]
    pub fn with_drafter(mut self, drafter: Drafter) -> Self {
        self.drafter = Some(drafter);
        self
    }

    /// Has the plan revised by what devices show of themselves.
    #[must_use]
    pub fn with_reviser(mut self, reviser: Reviser) -> Self {
        self.reviser = Some(reviser);
        self
    }

    /// Waits for frames as long as this predicts, where that is more than the options say.
    #[must_use]
    pub fn with_pacer(mut self, pacer: Pacer) -> Self {
        self.pacer = Some(pacer);
        self
    }

    /// The ring for other threads.
    pub fn handle(&self) -> RingHandle {
        RingHandle(Arc::clone(&self.board))
    }

    /// Notes an operation for the others, where there are any.
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

    /// Only where the head computes everything.
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
        if let Some(owed) = &mut self.owed {
            owed.create(id);
        }
        let seq = self.number(id);
        self.note(Operation::Create { seq });
        Ok(id)
    }

    fn fork(&mut self, seq: SeqId, n_tokens: usize) -> Result<SeqId, SequenceError> {
        let child = match &mut self.owed {
            Some(owed) => {
                owed.first(seq, n_tokens)?;
                let child = self.engine.fork(seq, 0)?;
                owed.fork(seq, n_tokens, child)?;
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
        if let Some(owed) = &mut self.owed {
            return Ok(owed.truncate(seq, n_tokens)?);
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
        if let Some(owed) = &mut self.owed {
            owed.release(seq);
        }
        if let Some(seq) = self.numbers.remove(&seq) {
            self.note(Operation::Release { seq });
        }
    }

    fn len(&self, seq: SeqId) -> Result<usize, SequenceError> {
        Ok(self.ids(seq)?.len())
    }

    fn ids(&self, seq: SeqId) -> Result<&[TokenId], SequenceError> {
        Ok(match &self.owed {
            Some(owed) => owed.ids(seq)?,
            None => self.engine.ids(seq)?,
        })
    }

    fn reuse_prefix(&mut self, seq: SeqId, ids: &[TokenId]) -> usize {
        if self.owed.is_some() {
            return 0;
        }
        let gained = self.engine.reuse_prefix(seq, ids);
        // Looking up changes nothing where nothing is found.
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
        self.settle();
        self.check_layers_before_answers();
        self.check_drift();
    }

    fn idle_every(&self) -> Option<Duration> {
        Some(health::IDLE.min(self.options.health))
    }

    fn idle(&mut self) {
        self.settle();
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
