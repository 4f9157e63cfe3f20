//! Models that are loaded when a request needs one, and unloaded to make room for others.
//!
//! [`core`] decides; this module carries it out. Loads and unloads run on threads of their own. Always: a
//! model is taken out of its place before its host ends, and its host has ended before its room is free.

mod core;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use baton_engine::{Engine, EngineError, EngineOptions, Model};
use baton_generate::host::{Host, Turns};
use baton_generate::scheduler::BacklogBound;
use baton_protocol::AssistEvent;
use baton_terminal::chain;
use tokio::sync::oneshot;
use tracing::{error, info};

use self::core::{Effect, Refused, ResidencyCore, Waiter};
use super::places::Place;
use super::served::ModelSetup;
use super::stream::StreamWatch;
use super::{Served, ServiceError, ServiceOptions};

pub use self::core::ModelState;

/// How often a waiting request looks at what has become due.
const TICK: Duration = Duration::from_secs(1);

/// An error of a loader.
pub type LoadError = Box<dyn std::error::Error + Send + Sync>;

/// Opens models, by their number. Runs on any thread, for several models at the same time.
pub trait ModelLoader: Send + Sync {
    /// Opens a model's files.
    ///
    /// # Errors
    /// Why a file cannot be used.
    fn open(&self, at: usize) -> Result<ModelSetup, LoadError>;

    /// Makes a model's engine.
    ///
    /// # Errors
    /// As [`Engine::new`].
    fn engine(&self, at: usize, model: Arc<Model>, options: EngineOptions) -> Result<Engine, EngineError>;
}

/// What is known of a model's residency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelResidency {
    /// Its name in the API.
    pub name: String,
    /// Its state.
    pub state: ModelState,
    /// Whether it takes no requests until an operator loads it.
    pub is_drained: bool,
    /// The most memory that it takes, in bytes.
    pub memory_bytes: u64,
    /// Requests that hold it: running or in its queue.
    pub holding: usize,
    /// Requests that wait for it to be loaded.
    pub waiting: usize,
    /// Why the last load failed, until one succeeds.
    pub problem: Option<String>,
}

/// Loads and unloads the models of a service.
pub(crate) struct Residency {
    own: Weak<Residency>,
    books: Mutex<Books>,
    places: Arc<[Place]>,
    loader: Box<dyn ModelLoader>,
    options: Mutex<ServiceOptions>,
    /// A single model needs no turns.
    turns: Option<Arc<Turns>>,
    /// Runs what watches the engines elsewhere of a model.
    runtime: Option<tokio::runtime::Handle>,
}

struct Books {
    core: ResidencyCore,
    waiting: HashMap<Waiter, (usize, oneshot::Sender<Result<Lease, Refused>>)>,
    /// By model.
    hosts: Vec<Option<JoinHandle<()>>>,
    /// By model: why the last load failed.
    problems: Vec<Option<String>>,
    asked: u64,
}

impl std::fmt::Debug for Residency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Residency").field("core", &self.books().core).finish_non_exhaustive()
    }
}

/// Keeps a model in memory for a request.
#[derive(Debug)]
pub struct Lease(Option<(Arc<Residency>, usize)>);

impl Lease {
    /// Makes a lease of a model that always is in memory.
    pub(super) fn of_resident() -> Lease {
        Lease(None)
    }
}

/// The model stays in memory as long as the answer's stream exists.
impl StreamWatch for Lease {
    fn event(&mut self, _event: &AssistEvent) {}
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((residency, at)) = self.0.take() {
            residency.step(|core, now| core.release(at, now));
        }
    }
}

/// Withdraws a request that nobody waits for any more.
struct Waiting<'a>(&'a Residency, Waiter);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Waiting(residency, waiter) = self;
        if residency.books().waiting.remove(waiter).is_some() {
            residency.step(|core, now| core.withdraw(*waiter, now));
        }
    }
}

impl Residency {
    /// Makes the residency of these models, none of which is in memory.
    pub(super) fn new(
        places: Arc<[Place]>,
        options: ServiceOptions,
        budget: Option<u64>,
        loader: Box<dyn ModelLoader>,
    ) -> Arc<Residency> {
        let core = ResidencyCore::new(budget, places.iter().map(|place| place.facts.memory_bytes()));
        let (hosts, problems) = (places.iter().map(|_| None).collect(), vec![None; places.len()]);
        let turns = (places.len() > 1).then(Arc::<Turns>::default);
        let books = Books { core, waiting: HashMap::new(), hosts, problems, asked: 0 };
        Arc::new_cyclic(|own| Residency {
            own: own.clone(),
            books: Mutex::new(books),
            places,
            loader,
            options: Mutex::new(options),
            turns,
            runtime: tokio::runtime::Handle::try_current().ok(),
        })
    }

    /// Waits until the model is in memory, and holds it.
    ///
    /// # Errors
    /// [`ServiceError`] if it cannot be loaded, not within `deadline`, or too many requests wait.
    pub(super) async fn hold(
        self: &Arc<Residency>,
        at: usize,
        deadline: Option<Duration>,
    ) -> Result<Lease, ServiceError> {
        let queue = self.options().queue;
        let (sender, mut receiver) = oneshot::channel();
        let waiter = {
            let mut books = self.books();
            if books.core.requests(at).1 >= queue.max(1) {
                return Err(self.late(at));
            }
            books.asked += 1;
            let waiter = Waiter(books.asked);
            books.waiting.insert(waiter, (at, sender));
            waiter
        };
        let _waiting = Waiting(self, waiter);
        self.step(|core, now| core.want(at, waiter, now));
        let last = deadline.map(|deadline| tokio::time::Instant::now() + deadline);
        loop {
            let next = tokio::time::Instant::now() + TICK;
            let until = last.map_or(next, |last| last.min(next));
            match tokio::time::timeout_at(until, &mut receiver).await {
                Ok(Ok(granted)) => return granted.map_err(|refused| self.refused(at, refused)),
                Ok(Err(_)) => return Err(ServiceError::Stopping),
                Err(_) if last.is_some_and(|last| tokio::time::Instant::now() >= last) => {
                    return Err(self.late(at));
                }
                Err(_) => self.step(ResidencyCore::tick),
            }
        }
    }

    fn late(&self, at: usize) -> ServiceError {
        self.options().metrics.rejected("model_not_loaded");
        ServiceError::ModelLate { model: self.places[at].facts.name.clone() }
    }

    fn refused(&self, at: usize, refused: Refused) -> ServiceError {
        let model = self.places[at].facts.name.clone();
        let reason = match refused {
            Refused::Failed { .. } => "model_failed",
            Refused::Drained => "model_drained",
            Refused::Stopping => "stopping",
        };
        self.options().metrics.rejected(reason);
        match refused {
            Refused::Failed { retry_after } => {
                let retry_after_ms = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX).max(100);
                ServiceError::ModelFailed { model, retry_after_ms }
            }
            Refused::Drained => ServiceError::ModelDrained { model },
            Refused::Stopping => ServiceError::Stopping,
        }
    }

    /// An operator wants the model in memory.
    pub(super) fn load(&self, at: usize) {
        self.step(|core, now| core.order(at, now));
    }

    /// An operator wants the model out of memory, and if `drained` no requests for it.
    pub(super) fn unload(&self, at: usize, drained: bool) {
        self.step(|core, now| core.dismiss(at, drained, now));
    }

    /// Requests that wait get an error, and nothing is loaded any more.
    pub(super) fn stop(&self) {
        self.step(|core, _| core.stop());
    }

    /// Waits until the hosts of all models have ended. Returns false if one has panicked.
    pub(super) fn join(&self) -> bool {
        let hosts: Vec<_> = self.books().hosts.iter_mut().filter_map(Option::take).collect();
        // Every one is waited for, whatever became of the others.
        let panicked = hosts.into_iter().filter_map(|host| host.join().err()).count();
        panicked == 0
    }

    /// Changes the limits of queues, also for models that are loaded later.
    pub(super) fn set_backlog(&self, queue: usize, backlog: BacklogBound) {
        let mut options = self.options();
        (options.queue, options.backlog) = (queue, backlog);
    }

    /// Returns the budget in bytes, if there is one, and what is used of it.
    pub(super) fn memory(&self) -> (Option<u64>, u64) {
        let books = self.books();
        (books.core.budget(), books.core.used_bytes())
    }

    /// Returns what is known of every model.
    pub(super) fn views(&self) -> Vec<ModelResidency> {
        let books = self.books();
        let view = |at: usize| {
            let (holding, waiting) = books.core.requests(at);
            ModelResidency {
                name: self.places[at].facts.name.clone(),
                state: books.core.state(at),
                is_drained: books.core.is_drained(at),
                memory_bytes: books.core.bytes(at),
                holding,
                waiting,
                problem: books.problems[at].clone(),
            }
        };
        (0..self.places.len()).map(view).collect()
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("no holder of this lock panics")
    }

    fn options(&self) -> MutexGuard<'_, ServiceOptions> {
        self.options.lock().expect("no holder of this lock panics")
    }

    /// Tells the core something, and carries out what it decides.
    fn step(&self, event: impl FnOnce(&mut ResidencyCore, Duration) -> Vec<Effect>) {
        let Some(own) = self.own.upgrade() else { return };
        let now = self.options().clock.now();
        let mut books = self.books();
        let effects = event(&mut books.core, now);
        let mut replies = Vec::new();
        let mut works = Vec::new();
        for effect in effects {
            match effect {
                Effect::Grant(waiter) => {
                    let waiting = books.waiting.remove(&waiter);
                    // A request that has just left gives the model back at once.
                    replies.extend(waiting.map(|(at, sender)| (sender, Ok(Lease(Some((own.clone(), at)))))));
                }
                Effect::Refuse(waiter, refused) => {
                    let waiting = books.waiting.remove(&waiter);
                    replies.extend(waiting.map(|(_, sender)| (sender, Err(refused))));
                }
                work => works.push(work),
            }
        }
        drop(books);
        for (sender, reply) in replies {
            // If nobody waits any more, a lease in the reply is dropped here.
            let _ = sender.send(reply);
        }
        works.into_iter().for_each(|work| own.start(work));
    }

    /// Begins a load or an unload.
    fn start(self: &Arc<Residency>, work: Effect) {
        let own = self.clone();
        let run = move || match work {
            Effect::Load(at) => own.bring(at),
            Effect::Unload(at) => own.let_go(at),
            Effect::Grant(_) | Effect::Refuse(..) => {}
        };
        if let Err(err) = std::thread::Builder::new().name("models".into()).spawn(run) {
            error!(err = &err as &dyn std::error::Error, "no thread for a model");
            match work {
                Effect::Load(at) => self.step(|core, now| core.failed(at, now)),
                Effect::Unload(at) => self.let_go(at),
                Effect::Grant(_) | Effect::Refuse(..) => {}
            }
        }
    }

    /// Loads a model.
    fn bring(&self, at: usize) {
        let (name, started) = (&self.places[at].facts.name, Instant::now());
        let metrics = self.options().metrics.clone();
        info!(model = name, "loading");
        let opened = catch_unwind(AssertUnwindSafe(|| self.open(at)));
        let opened = opened.unwrap_or_else(|_| Err("the load panicked".into()));
        let elapsed = started.elapsed();
        match opened {
            Ok(host) => {
                info!(model = name, ms = elapsed.as_secs_f64() * 1e3, "loaded");
                metrics.model_loaded(name, "loaded", elapsed);
                let mut books = self.books();
                (books.hosts[at], books.problems[at]) = (Some(host), None);
                drop(books);
                self.step(|core, now| core.loaded(at, now));
            }
            Err(err) => {
                error!(model = name, err = &*err as &dyn std::error::Error, "a model cannot be loaded");
                metrics.model_loaded(name, "failed", elapsed);
                self.books().problems[at] = Some(chain(&*err));
                self.step(|core, now| core.failed(at, now));
            }
        }
    }

    /// Opens a model, puts it into its place, and starts its host.
    fn open(&self, at: usize) -> Result<JoinHandle<()>, LoadError> {
        let (place, setup) = (&self.places[at], self.loader.open(at)?);
        let options = self.options().clone();
        let engine = |model, options| self.loader.engine(at, model, options);
        let (served, host) =
            Served::open(setup, &options, self.turns.clone(), place.figures.clone(), engine)?;
        let thread = start(host)?;
        if let (Some(upstream), Some(runtime)) = (served.upstream.clone(), &self.runtime) {
            runtime.block_on(upstream.watch());
        }
        place.put(served);
        Ok(thread)
    }

    /// Unloads a model that nobody holds.
    fn let_go(&self, at: usize) {
        let name = &self.places[at].facts.name;
        if let Some(served) = self.places[at].take() {
            served.handle.drain();
            if let Some(upstream) = &served.upstream {
                upstream.stop();
            }
        }
        let host = self.books().hosts[at].take();
        if host.is_some_and(|host| host.join().is_err()) {
            error!(model = name, "an engine's thread panicked");
        }
        self.options().metrics.model_unloaded(name);
        info!(model = name, "unloaded");
        self.step(|core, now| core.gone(at, now));
    }
}

/// Runs the host on its own thread.
///
/// # Errors
/// The system's error if it cannot start a thread.
pub fn start(host: Host<Engine>) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("engine-driver".into()).spawn(move || host.serve())
}
