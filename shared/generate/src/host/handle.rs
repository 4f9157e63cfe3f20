//! What other threads have of a host: jobs and orders go in, figures come out.
//!
//! Never: holds the lock while the engine computes or anything waits. Always: a job is accepted or refused at
//! once, and the host's thread sleeps while there is nothing to do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use baton_engine::PrefixStats;

use crate::clock::Clock;
use crate::job::{Job, Order};
use crate::scheduler::{
    BacklogBound, Effect, Event, JobId, Progress, Refusal, SchedulerCore, SchedulerStats,
};
use crate::speculation::SpeculationStats;
use crate::unread::CancelFlag;

/// The content of the engine's KV cache, after the last pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvFigures {
    /// Tokens of the blocks that no sequence holds.
    pub free_tokens: usize,
    /// Tokens of sequences that are kept after their answers, at most: their full blocks count as free, and
    /// some may have been evicted.
    pub kept_tokens: usize,
    /// Counters of shared prefixes.
    pub prefix: PrefixStats,
}

impl KvFigures {
    /// Returns the sum of both.
    #[must_use]
    pub fn beside(self, other: KvFigures) -> KvFigures {
        let (a, b) = (self.prefix, other.prefix);
        KvFigures {
            free_tokens: self.free_tokens + other.free_tokens,
            kept_tokens: self.kept_tokens + other.kept_tokens,
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

/// The stage of a host's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// New jobs are accepted.
    Open,
    /// No new jobs are accepted; running ones continue.
    Draining,
    /// Running jobs are ended, and then the thread ends.
    Stopping,
    /// The thread panicked: no job is served any more.
    Failed,
}

/// Why a job was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum NotTaken {
    /// The scheduler refused it.
    #[error("the scheduler refused it: {0:?}")]
    Refused(Refusal),
    /// The host takes no new jobs.
    #[error("no new answers are taken")]
    Draining,
    /// The host's thread has failed.
    #[error("the engine's thread has failed")]
    Gone,
}

/// Access to a host for other threads.
#[derive(Clone)]
pub struct HostHandle(Arc<Shared>);

struct Shared {
    clock: Clock,
    state: Mutex<State>,
    changed: Condvar,
    next_id: AtomicU64,
}

struct State {
    core: SchedulerCore,
    arrived: Vec<Job>,
    orders: Vec<(JobId, Order)>,
    kv: KvFigures,
    stage: Stage,
    /// Whether no new job gets a slot.
    paused: bool,
    /// Counts everything that the host's thread may have to act on.
    changes: u64,
}

/// How the wait for the emulated machine ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    /// It has passed.
    Whole,
    /// Nobody wants the pass.
    Unwanted,
    /// An order replaces what was computed.
    Replaced,
}

/// What has come in since the host looked last.
pub(super) struct Arrived {
    pub(super) jobs: Vec<Job>,
    pub(super) orders: Vec<(JobId, Order)>,
    pub(super) stage: Stage,
    pub(super) paused: bool,
    /// The count of changes up to now.
    pub(super) changes: u64,
}

impl HostHandle {
    pub(super) fn new(core: SchedulerCore, clock: Clock) -> HostHandle {
        let state = State {
            kv: KvFigures { free_tokens: core.stats().kv_tokens, ..KvFigures::default() },
            core,
            arrived: Vec::new(),
            orders: Vec::new(),
            stage: Stage::Open,
            paused: false,
            changes: 0,
        };
        HostHandle(Arc::new(Shared {
            clock,
            state: Mutex::new(state),
            changed: Condvar::new(),
            next_id: AtomicU64::new(1),
        }))
    }

    /// Returns an id that no other job of this host has.
    pub fn new_id(&self) -> JobId {
        JobId(self.0.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Queues a job.
    ///
    /// # Errors
    /// [`NotTaken`]; the job is dropped then, with its sink.
    pub fn submit(&self, job: Job) -> Result<(), NotTaken> {
        let now = self.now();
        let mut state = self.lock();
        match state.stage {
            Stage::Open => {}
            Stage::Draining | Stage::Stopping => return Err(NotTaken::Draining),
            Stage::Failed => return Err(NotTaken::Gone),
        }
        for effect in state.core.step(Event::Submit(job.spec), now) {
            if let Effect::Refuse(_, refusal) = effect {
                return Err(NotTaken::Refused(refusal));
            }
        }
        state.arrived.push(job);
        self.note(state);
        Ok(())
    }

    /// Tells a job something. Unknown ids are ignored: the job may have just ended.
    pub fn order(&self, id: JobId, order: Order) {
        let mut state = self.lock();
        state.orders.push((id, order));
        self.note(state);
    }

    /// Wakes the host's thread, so that it looks at its jobs again.
    pub fn wake(&self) {
        self.note(self.lock());
    }

    /// Says that the cancel flag of a job was set. An emulated wait ends if nobody wants its pass any more.
    pub fn cancelled(&self) {
        self.wake();
    }

    /// Gives no new job a slot as long as this is on. Those that run continue.
    pub fn pause(&self, on: bool) {
        let mut state = self.lock();
        state.paused = on;
        self.note(state);
    }

    /// Accepts no new jobs. The host's thread ends after the last one.
    pub fn drain(&self) {
        self.advance(Stage::Draining);
    }

    /// Ends all jobs, and then the host's thread.
    pub fn stop(&self) {
        self.advance(Stage::Stopping);
    }

    /// Returns the stage.
    pub fn stage(&self) -> Stage {
        self.lock().stage
    }

    /// Returns the current use and the totals.
    pub fn stats(&self) -> SchedulerStats {
        self.lock().core.stats()
    }

    /// Returns the content of the KV cache, after the last pass.
    pub fn kv(&self) -> KvFigures {
        self.lock().kv
    }

    /// Returns the progress of a job that has no token yet.
    pub fn progress(&self, id: JobId) -> Option<Progress> {
        self.lock().core.progress(id)
    }

    /// Returns how proposals went for a job that has not ended.
    pub fn speculation_of(&self, id: JobId) -> Option<SpeculationStats> {
        self.lock().core.speculation_of(id)
    }

    /// Changes the limits of the queue.
    pub fn set_backlog(&self, queue: usize, backlog: BacklogBound) {
        self.lock().core.set_backlog(queue, backlog);
    }

    /// Returns the time by the host's clock.
    pub fn now(&self) -> Duration {
        self.0.clock.now()
    }

    /// Passes one event to the scheduler; returns its effects, and the time at which they were made.
    pub(super) fn step(&self, event: Event) -> (Vec<Effect>, Duration) {
        let now = self.now();
        (self.lock().core.step(event, now), now)
    }

    /// Returns what came in since the last call.
    pub(super) fn take_arrived(&self) -> Arrived {
        let mut state = self.lock();
        Arrived {
            jobs: std::mem::take(&mut state.arrived),
            orders: std::mem::take(&mut state.orders),
            stage: state.stage,
            paused: state.paused,
            changes: state.changes,
        }
    }

    /// Asks the scheduler something.
    pub(super) fn ask<T>(&self, question: impl FnOnce(&SchedulerCore) -> T) -> T {
        question(&self.lock().core)
    }

    pub(super) fn set_kv(&self, kv: KvFigures) {
        self.lock().kv = kv;
    }

    /// Moves on to a later stage; never goes back.
    pub(super) fn advance(&self, stage: Stage) {
        let mut state = self.lock();
        state.stage = state.stage.max(stage);
        self.note(state);
    }

    /// Sleeps until something has changed since `seen`, at most for `limit`. Returns whether it has.
    pub(super) fn sleep(&self, seen: u64, limit: Option<Duration>) -> bool {
        let state = self.lock();
        let same = |state: &mut State| state.changes == seen;
        let state = match limit {
            None => self.0.changed.wait_while(state, same).expect(POISONED),
            Some(limit) => self.0.changed.wait_timeout_while(state, limit, same).expect(POISONED).0,
        };
        state.changes != seen
    }

    /// Lets `wait` pass, unless nobody wants the pass of these flags any more.
    pub(super) fn wait_out(&self, wait: Duration, flags: &[CancelFlag]) -> Waited {
        let begun = Instant::now();
        let mut state = self.lock();
        loop {
            let left = wait.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Waited::Whole;
            }
            if flags.iter().all(CancelFlag::is_set) {
                return Waited::Unwanted;
            }
            if flags.iter().all(CancelFlag::ends_pass) {
                return Waited::Replaced;
            }
            state = self.0.changed.wait_timeout(state, left).expect(POISONED).0;
        }
    }

    fn note(&self, mut state: MutexGuard<'_, State>) {
        state.changes += 1;
        self.0.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect(POISONED)
    }
}

impl std::fmt::Debug for HostHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostHandle").finish_non_exhaustive()
    }
}

/// A panic while the lock is held is a bug in the core: its state could not be trusted any more.
const POISONED: &str = "the scheduler does not panic while it is locked";
