//! The one thread that drives an engine or a ring: performs the scheduler's decisions, one pass at a time.
//!
//! A pass has two halves, so that emulated and virtual time can pass in between. [`Host::turn`] computes,
//! the caller waits for [`Pass::wait`], and [`Host::commit`] gives the tokens out and frees what has ended.
//! Never: decides which jobs run (the scheduler does), tokenizes, or waits for a reader. Always: a
//! cancelled job ends with the pass that runs. A preempted job continues with the same token that it would
//! have written.

mod compute;
mod handle;
mod idle;
mod jobs;
mod moved;
mod run;
mod turns;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use baton_engine::pace_emulation::{PassContent, PassCost};
use baton_engine::{
    AdapterId, KvError, PrefixScope, SeqId, SequenceError, Sequences, StepControl, StepError,
};
use tracing::error;

use self::handle::{Arrived, Waited};
pub use self::handle::{HostHandle, KvFigures, NotTaken, Stage};
use self::idle::IdleSequences;
use self::moved::Exports;
pub use self::run::Finished;
pub use self::turns::Turns;
use crate::answer::{Answer, Outcome};
use crate::clock::Clock;
use crate::hooks::Fault;
use crate::job::{Job, JobEvent, Order, Reading, Sink};
use crate::planted::{self, Bug};
use crate::scheduler::{Effect, Event, Goal, JobId, Limits, Room, SchedulerCore, StepPlan};
use crate::speculation::Proposer;
use crate::unread::CancelFlag;

/// How long the host sleeps at most while a job waits that cannot get a slot: its deadline may pass, and a
/// ring's devices may come or go.
const LOOK: Duration = Duration::from_millis(100);

/// What a host is made with.
pub struct HostOptions {
    /// Limits of the scheduler.
    pub limits: Limits,
    /// The clock.
    pub clock: Clock,
    /// The machine to emulate.
    pub emulation: Option<PassCost>,
    /// Turns, if other models share the machine.
    pub turns: Option<Arc<Turns>>,
    /// Makes proposals.
    pub proposer: Option<Box<dyn Proposer>>,
    /// Sequences that are kept after their answers, for the next ones.
    pub idle_sequences: usize,
    /// How long they are kept; `None` until their room is needed.
    pub idle_for: Option<Duration>,
    /// Hears of every pass.
    pub watch: Option<Box<dyn PassWatch>>,
}

/// Hears of every pass that was committed, for costs.
pub trait PassWatch: Send {
    /// Takes what one pass was and how long it took.
    fn pass(&mut self, sample: &PassSample);
}

/// One pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassSample {
    /// Prompts that it computed a part of.
    pub prompts: usize,
    /// Tokens of these parts.
    pub prefill_tokens: usize,
    /// Tokens that were in the cache before these parts.
    pub held_tokens: usize,
    /// Sequences that decoded.
    pub decode_rows: usize,
    /// Proposed tokens.
    pub proposed: usize,
    /// Tokens written.
    pub written: usize,
    /// How long it took by the host's clock, without other models' passes, with emulated time.
    pub elapsed: Duration,
}

/// A job that the host knows.
struct Entry {
    answer: Answer,
    goal: Goal,
    max_tokens: usize,
    scope: PrefixScope,
    adapter: Option<AdapterId>,
    cancel: CancelFlag,
    sink: Box<dyn Sink>,
    /// Its sequence, if it has a slot.
    seq: Option<SeqId>,
    /// Whether only some tokens of the sequence's prompt are in the cache, as they came from elsewhere.
    is_thin: bool,
    /// Whether it has had a slot.
    opened: bool,
    /// Whether a pass of this prompt in this slot has run.
    begun: bool,
    /// Whether the accepted part is verified in this slot.
    verified: bool,
    /// Whether its reader knows the result of the verification.
    told: bool,
    /// What it was told and has not done.
    orders: VecDeque<Order>,
}

/// Owns the engine, or the ring. Runs on its own thread, or in a test that controls time.
pub struct Host<S: Sequences> {
    engine: S,
    handle: HostHandle,
    clock: Clock,
    emulation: Option<PassCost>,
    turns: Option<Arc<Turns>>,
    proposer: Option<Box<dyn Proposer>>,
    watch: Option<Box<dyn PassWatch>>,
    idle: IdleSequences,
    /// Keys and values that leave.
    exports: Exports,
    jobs: BTreeMap<JobId, Entry>,
    /// Whether new jobs get slots in this turn.
    admits: bool,
    /// The changes that this turn has seen.
    seen: u64,
}

/// A computed pass whose tokens have not been given out yet.
#[derive(Debug)]
#[must_use = "the tokens of a pass are given out by `Host::commit`"]
pub struct Pass {
    content: PassContent,
    sample: PassSample,
    /// Time by the host's clock.
    begun_at: Duration,
    elapsed: Duration,
    wait: Duration,
    /// Time before the pass in which other models had the machine.
    waited: Duration,
    /// Jobs with a row, and their flags.
    rows: Vec<JobId>,
    flags: Vec<CancelFlag>,
    outcomes: Vec<(JobId, Outcome)>,
    /// Whether it took less time than on the emulated machine, because an order replaces it.
    is_cut: bool,
}

impl Pass {
    /// Returns what the pass computed.
    pub fn content(&self) -> PassContent {
        self.content
    }

    /// Returns how long it took to compute.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Returns how much longer the emulated machine would have taken; zero without emulation.
    pub fn wait(&self) -> Duration {
        self.wait
    }
}

impl<S: Sequences> Host<S> {
    /// Makes a host without jobs.
    ///
    /// # Panics
    /// If a limit is zero, except the queue's.
    pub fn new(engine: S, options: HostOptions) -> Host<S> {
        let core = SchedulerCore::new(options.limits);
        Host {
            engine,
            handle: HostHandle::new(core, options.clock.clone()),
            clock: options.clock,
            emulation: options.emulation,
            turns: options.turns,
            proposer: options.proposer,
            watch: options.watch,
            idle: IdleSequences::new(options.idle_sequences, options.idle_for),
            exports: Exports::default(),
            jobs: BTreeMap::new(),
            admits: true,
            seen: 0,
        }
    }

    /// Returns access for other threads.
    pub fn handle(&self) -> HostHandle {
        self.handle.clone()
    }

    /// Returns the engine.
    pub fn engine(&self) -> &S {
        &self.engine
    }

    /// Returns the engine, for adapters before the first job and for what is no answer. No job may be under
    /// way.
    pub fn engine_mut(&mut self) -> &mut S {
        &mut self.engine
    }

    /// Returns the free KV tokens of the engine, including those of kept prefixes.
    pub fn free_kv_tokens(&self) -> usize {
        self.engine.free_tokens()
    }

    /// Serves until it is stopped, or drained and empty. Should run on its own thread.
    pub fn serve(mut self) {
        loop {
            match self.turn() {
                Some(pass) => self.conclude(pass),
                None if self.is_over() => return,
                // What leaves goes on with the next turn.
                None if self.exports.are_under_way() => {}
                None => self.rest(),
            }
        }
    }

    /// Lets new jobs in, ends cancelled ones, does what jobs were told, and computes the next pass. Returns
    /// `None` if there is nothing to compute.
    pub fn turn(&mut self) -> Option<Pass> {
        self.turn_under(&mut ())
    }

    /// Gives out the tokens of a pass, and frees the sequences that ended with it.
    pub fn commit(&mut self, pass: Pass) {
        let elapsed = self.clock.now().saturating_sub(pass.begun_at);
        if let Some(watch) = self.watch.as_mut().filter(|_| !pass.is_cut) {
            watch.pass(&PassSample { elapsed, ..pass.sample });
        }
        let now = self.clock.now();
        // A job that ends here gives out its last token and its end together.
        self.perform(Event::StepDone { outcomes: pass.outcomes, waited: pass.waited });
        for id in pass.rows {
            self.flush(id, now);
        }
    }

    /// Runs so many tokens through the model on a temporary sequence; returns `None` if that fails. For
    /// measuring.
    pub fn probe(&mut self, tokens: usize) -> Option<()> {
        let seq = self.engine.create_in(PrefixScope::default(), None).ok()?;
        let done = self.probe_on(seq, tokens);
        self.engine.release(seq);
        done
    }

    /// As [`Self::turn`], with a control that may stop the pass. Its jobs are cancelled then.
    pub fn turn_under(&mut self, control: &mut dyn StepControl) -> Option<Pass> {
        let pass = self.next_pass(control);
        self.report_kv();
        pass
    }

    /// Lets the time go by that the emulated machine takes for a pass, and gives out its tokens.
    fn conclude(&mut self, mut pass: Pass) {
        match self.handle.wait_out(pass.wait, &pass.flags) {
            Waited::Whole => self.commit(pass),
            Waited::Unwanted => self.undo(pass),
            Waited::Replaced => {
                pass.is_cut = true;
                self.commit(pass);
            }
        }
    }

    /// Ends a pass that nobody wants any more. Its jobs leave in the next turn.
    fn undo(&mut self, _pass: Pass) {
        self.perform(Event::StepUndone);
    }

    fn is_over(&self) -> bool {
        match self.handle.stage() {
            Stage::Open => false,
            Stage::Draining | Stage::Stopping => self.handle.ask(SchedulerCore::is_empty),
            Stage::Failed => true,
        }
    }

    /// Sleeps until there is something to do; in between, a ring does its own work if no job is there, and
    /// sequences that were kept for long enough are released.
    fn rest(&mut self) {
        let (empty, waits) = self.handle.ask(|core| (core.is_empty(), core.stats().waiting > 0));
        let every = self.engine.idle_every().filter(|_| empty);
        let look = waits.then_some(LOOK);
        let expire = self.idle.expire_in(self.clock.now());
        let limit = look.or(every).into_iter().chain(expire).min();
        if !self.handle.sleep(self.seen, limit) && empty {
            self.engine.idle();
        }
    }

    fn next_pass(&mut self, control: &mut dyn StepControl) -> Option<Pass> {
        loop {
            let (stage, paused) = self.look();
            self.idle.expire(&mut self.engine, self.clock.now());
            // The order matters: a reader that leaves before its answer is parked wakes nobody.
            self.mind_readers();
            self.drop_cancelled(stage);
            self.follow_orders();
            self.export_some();
            self.share_prefixes();
            self.prepare(paused);
            let (effects, now) = self.handle.step(Event::Turn(self.room()));
            if effects.is_empty() {
                return None;
            }
            // Without a plan, a job was preempted, or it ended: look again.
            let Some(plan) = self.perform_turn(effects, now) else { continue };
            match self.compute(&plan, control) {
                Ok(pass) => return Some(pass),
                Err(err) if err.is_cancelled() => self.perform(Event::StepUndone),
                // A kept sequence may share the block that a sequence was cut back into.
                Err(SequenceError::Step(StepError::Kv(KvError::KvFull { .. })))
                    if self.idle.give_up(&mut self.engine) || self.exports.give_up(&mut self.engine) =>
                {
                    self.perform(Event::StepUndone);
                }
                Err(SequenceError::Step(err @ StepError::Kv(KvError::KvFull { .. }))) => {
                    error!(err = &err as &dyn std::error::Error, "a planned pass does not fit");
                    self.perform(Event::StepTooLarge);
                }
                Err(err) => self.fail_pass(&plan, &err),
            }
        }
    }

    /// Takes what has come in.
    fn look(&mut self) -> (Stage, bool) {
        let arrived = self.handle.take_arrived();
        self.seen = arrived.changes;
        let (stage, paused) = (arrived.stage, arrived.paused);
        self.take_in(arrived);
        (stage, paused)
    }

    fn take_in(&mut self, arrived: Arrived) {
        for Job { spec, answer, scope, adapter, cancel, sink } in arrived.jobs {
            let entry = Entry {
                answer,
                goal: spec.goal,
                max_tokens: spec.max_tokens,
                scope,
                adapter,
                cancel,
                sink,
                seq: None,
                is_thin: false,
                opened: false,
                begun: false,
                verified: false,
                told: false,
                orders: VecDeque::new(),
            };
            self.jobs.insert(spec.id, entry);
        }
        for (id, order) in arrived.orders {
            if let Some(entry) = self.jobs.get_mut(&id) {
                entry.orders.push_back(order);
            }
        }
    }

    /// Parks answers that nobody reads, and unparks those that are read again.
    fn mind_readers(&mut self) {
        let readings = self.jobs.iter_mut().filter_map(|(id, entry)| Some((*id, entry.sink.reading()?)));
        let readings =
            readings.filter(|(_, reading)| !(planted::is(Bug::ParkedForEver) && *reading == Reading::Unpark));
        let events: Vec<Event> = readings
            .map(|(id, reading)| match reading {
                Reading::Park => Event::Park(id),
                Reading::Unpark => Event::Unpark(id),
            })
            .collect();
        for event in events {
            self.perform(event);
        }
    }

    fn drop_cancelled(&mut self, stage: Stage) {
        let stopping = stage >= Stage::Stopping;
        let leaving: Vec<Event> = self
            .jobs
            .iter()
            .filter(|(_, entry)| stopping || entry.cancel.is_set())
            .filter(|(_, entry)| !planted::is(Bug::CancelIgnored) || entry.seq.is_some())
            .map(|(id, entry)| match entry.cancel.is_set() {
                true => Event::Cancel(*id),
                false => Event::Abort(*id),
            })
            .collect();
        for event in leaving {
            self.perform(event);
        }
    }

    /// Lets unfinished prompts reuse prefixes that others have computed meanwhile. So jobs with a common
    /// beginning that come together compute it once.
    fn share_prefixes(&mut self) {
        let mut found = Vec::new();
        for (id, entry) in &self.jobs {
            let Some(seq) = entry.seq else { continue };
            let held = self.engine.len(seq).unwrap_or(0);
            if held >= entry.answer.reusable_tokens(entry.goal) {
                continue;
            }
            let gained = self.engine.reuse_prefix(seq, &entry.beginning(held));
            if gained == 0 {
                continue;
            }
            // It ended with a block, or it would have gained nothing.
            let known = self.idle.settle(&mut self.engine, seq, held + gained).unwrap_or(held);
            if known > held {
                found.push(Event::Reused { id: *id, tokens: known - held });
            }
        }
        for event in found {
            self.perform(event);
        }
    }

    /// Lets a ring take devices in, and makes room for what comes next.
    fn prepare(&mut self, paused: bool) {
        let under_way = self.jobs.values().any(|entry| entry.seq.is_some());
        let (waits, need) = self.handle.ask(|core| (core.next_waiting().is_some(), core.need_tokens()));
        if waits && !under_way && !paused {
            self.engine.between_answers();
        }
        while self.engine.free_tokens() < need
            && (self.idle.give_up(&mut self.engine) || self.exports.give_up(&mut self.engine))
        {}
        self.admits = !(paused || under_way && self.engine.wants_pause());
    }

    /// Returns the free room of the KV cache.
    fn room(&self) -> Room {
        let next = self.handle.ask(SchedulerCore::next_waiting).and_then(|id| self.jobs.get(&id));
        let held = |entry: &Entry| {
            let ids = entry.answer.feed(0..entry.answer.reusable_tokens(entry.goal));
            self.engine.held_prefix(entry.scope, entry.adapter, &ids)
        };
        Room {
            free_tokens: self.engine.free_tokens(),
            next_held_tokens: next.map_or(0, held),
            pass_tokens_min: self.engine.pass_tokens_min(),
            admits: self.admits,
        }
    }

    fn report_kv(&self) {
        self.handle.set_kv(KvFigures {
            free_tokens: self.engine.free_tokens(),
            kept_tokens: self.idle.tokens(&self.engine),
            prefix: self.engine.prefix_stats(),
        });
    }

    /// Performs the effects of a turn; returns the plan, if there is one.
    fn perform_turn(&mut self, effects: Vec<Effect>, now: Duration) -> Option<StepPlan> {
        let mut effects = VecDeque::from(effects);
        let mut plan = None;
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Open(id) => effects.extend(self.open(id)),
                Effect::Run(run) => plan = Some(run),
                other => self.perform_one(other, now),
            }
        }
        plan
    }

    fn perform(&mut self, event: Event) {
        let (effects, now) = self.handle.step(event);
        for effect in effects {
            self.perform_one(effect, now);
        }
    }

    fn perform_one(&mut self, effect: Effect, now: Duration) {
        match effect {
            Effect::Close(closed) => self.close(closed),
            Effect::Preempt(id) => self.preempt(id),
            Effect::Held(id) => {
                if let Some(entry) = self.jobs.get_mut(&id) {
                    entry.sink.event(JobEvent::Held);
                    entry.sink.flush(now);
                }
            }
            other => error!(?other, "an effect that only a turn gives"),
        }
    }

    fn flush(&mut self, id: JobId, now: Duration) {
        if let Some(entry) = self.jobs.get_mut(&id) {
            entry.sink.flush(now);
        }
    }

    /// Handles a pass that the engine refused: its jobs end with an error, the others continue.
    fn fail_pass(&mut self, plan: &StepPlan, err: &SequenceError) {
        error!(err = err as &dyn std::error::Error, "a pass failed");
        self.perform(Event::StepUndone);
        for row in &plan.rows {
            self.fail(row.id(), Fault::Engine(chain(err)));
        }
    }

    /// Ends one job with a fault.
    fn fail(&mut self, id: JobId, fault: Fault) {
        if let Some(entry) = self.jobs.get_mut(&id) {
            entry.answer.fail(fault);
        }
        self.perform(Event::Fail(id));
    }
}

impl<S: Sequences> Drop for Host<S> {
    /// Ends the stage: no job may wait for a thread that is gone, and no new one may start.
    fn drop(&mut self) {
        self.handle.advance(if std::thread::panicking() { Stage::Failed } else { Stage::Stopping });
        // Nothing more arrives; what has arrived ends with the others.
        let arrived = self.handle.take_arrived();
        self.take_in(arrived);
    }
}

/// Returns an error and its causes in one line.
fn chain(err: &dyn std::error::Error) -> String {
    let mut words = err.to_string();
    let mut cause = err.source();
    while let Some(err) = cause {
        words.push_str(": ");
        words.push_str(&err.to_string());
        cause = err.source();
    }
    words
}
