//! Connects requests with the engine's thread: the scheduler core behind one short lock.
//!
//! Never: holds the lock while the engine computes or anything waits. Always: a request is accepted or
//! refused at once, and the engine's thread sleeps while there is nothing to do.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use baton_engine::PrefixStats;
use baton_protocol::{DeviceInfo, ProgressEvent, ProgressStage};

use crate::access::DeviceClass;
use crate::learn::coefficients::Coefficients;
use crate::learn::cost::{Costs, Measured};
use crate::learn::telemetry::Telemetry;
use crate::learn::traffic::Traffic;
use crate::service::job::Job;
use crate::service::scheduler::{
    BacklogBound, Effect, Event, JobId, Progress, Refusal, SchedulerCore, SchedulerStats,
};

/// The time since some fixed moment, monotonic. It is a parameter, so that tests can control time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// Makes a clock that shows the machine's monotonic time.
    pub fn monotonic() -> Clock {
        let start = Instant::now();
        Clock(Arc::new(move || start.elapsed()))
    }

    /// Makes a clock that shows what `now` returns, which must never go back.
    pub fn from_fn(now: impl Fn() -> Duration + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(now))
    }

    /// Returns the current time.
    pub fn now(&self) -> Duration {
        (self.0)()
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}

/// Shared by every request and the engine's thread.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) clock: Clock,
    state: Mutex<State>,
    wake: Condvar,
    next_id: AtomicU64,
}

#[derive(Debug)]
struct State {
    core: SchedulerCore,
    arrived: HashMap<JobId, Job>,
    costs: Costs,
    telemetry: Telemetry,
    traffic: Traffic,
    kv: KvFigures,
    stage: Stage,
    /// Whether the engine's thread has something to do that the core does not know of.
    woken: bool,
}

/// The content of the engine's KV cache, after the last pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvFigures {
    /// Tokens of the blocks that no running sequence holds.
    pub free_tokens: usize,
    /// Counters of shared prefixes.
    pub prefix: PrefixStats,
}

impl KvFigures {
    /// Returns the sum of both.
    pub(crate) fn beside(self, other: KvFigures) -> KvFigures {
        let (a, b) = (self.prefix, other.prefix);
        KvFigures {
            free_tokens: self.free_tokens + other.free_tokens,
            prefix: PrefixStats {
                queries: a.queries + b.queries,
                hits: a.hits + b.hits,
                query_tokens: a.query_tokens + b.query_tokens,
                hit_tokens: a.hit_tokens + b.hit_tokens,
                evicted_blocks: a.evicted_blocks + b.evicted_blocks,
                cached_blocks: a.cached_blocks + b.cached_blocks,
            },
        }
    }
}

/// The stage of the service's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Open,
    /// No new answers are accepted; running ones continue.
    Draining,
    /// Running answers are cancelled, and then the thread ends.
    Stopping,
    /// The thread panicked: no request is answered any more.
    Failed,
}

/// Why a job was not accepted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum NotTaken {
    Refused(Refusal),
    Draining,
}

impl Desk {
    pub(crate) fn new(core: SchedulerCore, costs: Costs, telemetry: Telemetry, clock: Clock) -> Desk {
        let kv = KvFigures { free_tokens: core.stats().kv_tokens, ..KvFigures::default() };
        let arrived = HashMap::new();
        let traffic = Traffic::default();
        let state = State { core, arrived, costs, telemetry, traffic, kv, stage: Stage::Open, woken: false };
        Desk { clock, state: Mutex::new(state), wake: Condvar::new(), next_id: AtomicU64::new(1) }
    }

    pub(crate) fn new_id(&self) -> JobId {
        JobId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Queues a job, or returns why it is not accepted.
    pub(crate) fn submit(&self, job: Job) -> Result<(), NotTaken> {
        let now = self.clock.now();
        let mut state = self.lock();
        if state.stage != Stage::Open {
            return Err(NotTaken::Draining);
        }
        for effect in state.core.step(Event::Submit(job.spec), now) {
            if let Effect::Refuse(_, refusal) = effect {
                return Err(NotTaken::Refused(refusal));
            }
        }
        state.arrived.insert(job.spec.id, job);
        self.wake.notify_all();
        Ok(())
    }

    /// Passes one event to the scheduler; returns its effects.
    pub(crate) fn step(&self, event: Event) -> Vec<Effect> {
        let now = self.clock.now();
        self.lock().core.step(event, now)
    }

    /// Moves the jobs that arrived since the last call to `into`.
    pub(crate) fn take_arrived(&self, into: &mut HashMap<JobId, Job>) {
        let mut state = self.lock();
        into.extend(state.arrived.drain());
    }

    /// Sleeps until there is a job, [`Self::wake`] is called, or the stage is not `stage`. Returns at once if
    /// one of these is already so.
    pub(crate) fn wait(&self, stage: Stage) {
        let state = self.lock();
        let idle = |state: &mut State| state.core.is_idle() && state.stage == stage && !state.woken;
        self.wake.wait_while(state, idle).expect(POISONED).woken = false;
    }

    /// Wakes the engine's thread, so that it looks at its answers again.
    pub(crate) fn wake(&self) {
        self.lock().woken = true;
        self.wake.notify_all();
    }

    pub(crate) fn stage(&self) -> Stage {
        self.lock().stage
    }

    /// Moves on to a later stage; never goes back.
    pub(crate) fn advance(&self, stage: Stage) {
        let mut state = self.lock();
        state.stage = state.stage.max(stage);
        self.wake.notify_all();
    }

    pub(crate) fn stats(&self) -> SchedulerStats {
        self.lock().core.stats()
    }

    /// Returns the most tokens that a running sequence may write.
    pub(crate) fn max_tokens(&self, id: JobId) -> Option<usize> {
        self.lock().core.max_tokens(id)
    }

    /// Returns the progress of a sequence that has no token yet.
    pub(crate) fn progress(&self, id: JobId) -> Option<ProgressEvent> {
        let Progress { running, computed, total, eta_ms } = self.lock().core.progress(id)?;
        let stage = if running { ProgressStage::Prefill } else { ProgressStage::Queue };
        Some(ProgressEvent { stage, computed: computed as u64, total: total as u64, eta_ms })
    }

    /// Changes the limits of the queue.
    pub(crate) fn set_backlog(&self, queue: usize, backlog: BacklogBound) {
        self.lock().core.set_backlog(queue, backlog);
    }

    /// Returns the request that would get a free slot now, if one waits.
    pub(crate) fn next_waiting(&self) -> Option<JobId> {
        self.lock().core.next_waiting()
    }

    pub(crate) fn kv(&self) -> KvFigures {
        self.lock().kv
    }

    pub(crate) fn set_kv(&self, kv: KvFigures) {
        self.lock().kv = kv;
    }

    pub(crate) fn measured(&self) -> Measured {
        self.lock().costs.current()
    }

    /// Records what a device of this tenant reports about itself.
    pub(crate) fn hear(&self, tenant: u128, device: &DeviceInfo) {
        self.lock().telemetry.record(tenant, device);
    }

    /// Returns the known costs of devices and networks.
    pub(crate) fn known(&self) -> Arc<Coefficients> {
        self.lock().telemetry.known()
    }

    /// Sets the costs of these device classes, which replace what the devices report.
    pub(crate) fn set_classes(&self, classes: &[DeviceClass]) {
        self.lock().telemetry.set_classes(classes);
    }

    pub(crate) fn traffic<T>(&self, work: impl FnOnce(&mut Traffic) -> T) -> T {
        work(&mut self.lock().traffic)
    }

    /// Returns the coefficients to keep for the next start.
    pub(crate) fn coefficients(&self) -> Coefficients {
        let state = self.lock();
        state.telemetry.to_keep(state.costs.current())
    }

    pub(crate) fn record(&self, record: impl FnOnce(&mut Costs)) {
        record(&mut self.lock().costs);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(POISONED)
    }
}

/// A panic while the lock is held is a bug in the core: its state could not be trusted any more.
const POISONED: &str = "the scheduler does not panic while it is locked";
