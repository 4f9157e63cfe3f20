//! The engine's thread: performs the scheduler's decisions, one pass at a time.
//!
//! A pass has two halves, so that emulated and virtual time can pass in between. [`Worker::turn`] computes,
//! the caller waits for [`Pass::wait`], and [`Worker::commit`] sends the tokens and frees what has ended.
//! Never: decides which sequences run (the scheduler does). Always: a cancelled answer ends with the pass
//! that runs. A preempted answer continues with the same token that it would have written.

mod turns;

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_engine::pace_emulation::{PassContent, PassCost};
use baton_engine::tokenizer::TokenId;
use baton_engine::{Capture, Engine, KvError, SeqId, SeqOutput, StepControl, StepError, StepSeq, Wanted};
use tracing::{debug, error};

use crate::learn::cost::PassSample;
use crate::service::desk::{Desk, KvFigures, Stage};
use crate::service::job::Job;
use crate::service::scheduler::{Closed, Effect, Event, JobId, KvRoom, Outcome, StepPlan, StepRow};
use crate::service::stream::CancelFlag;

pub(crate) use self::turns::Turns;

/// Owns the engine. Runs on its own thread, or in a test that controls time.
#[derive(Debug)]
pub struct Worker {
    engine: Engine,
    desk: Arc<Desk>,
    emulation: Option<PassCost>,
    /// Turns, if other models share the machine.
    turns: Option<Arc<Turns>>,
    jobs: HashMap<JobId, Job>,
    running: HashMap<JobId, Running>,
}

/// A sequence that holds a slot.
#[derive(Debug, Clone, Copy)]
struct Running {
    seq: SeqId,
    /// Whether a pass of this slot has run.
    begun: bool,
}

/// A computed pass whose tokens have not been sent yet.
#[derive(Debug)]
#[must_use = "the tokens of a pass are sent by `Worker::commit`"]
pub struct Pass {
    content: PassContent,
    /// Time by the service's clock.
    begun_at: Duration,
    elapsed: Duration,
    wait: Duration,
    outcomes: Vec<(JobId, Outcome)>,
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

impl Worker {
    pub(crate) fn new(
        engine: Engine,
        desk: Arc<Desk>,
        emulation: Option<PassCost>,
        turns: Option<Arc<Turns>>,
    ) -> Worker {
        Worker { engine, desk, emulation, turns, jobs: HashMap::new(), running: HashMap::new() }
    }

    /// Serves until the service is stopped. Should run on its own thread.
    pub fn run(mut self) {
        loop {
            if let Some(pass) = self.turn() {
                std::thread::sleep(pass.wait());
                self.commit(pass);
                continue;
            }
            match self.desk.stage() {
                Stage::Open => self.desk.wait(Stage::Open),
                // A request was accepted after the last check and before the stage changed.
                Stage::Draining | Stage::Stopping if self.desk.stats().waiting > 0 => {}
                // An answer that waits for its reader has not ended.
                Stage::Draining if self.desk.stats().parked > 0 => self.desk.wait(Stage::Draining),
                Stage::Draining | Stage::Stopping | Stage::Failed => return,
            }
        }
    }

    /// Admits new answers, ends cancelled ones, and computes the next pass. Returns `None` if nothing runs.
    pub fn turn(&mut self) -> Option<Pass> {
        let pass = self.next_pass();
        self.report_kv();
        pass
    }

    fn next_pass(&mut self) -> Option<Pass> {
        loop {
            self.desk.take_arrived(&mut self.jobs);
            // The order matters: a reader that disconnects before its answer is parked wakes nobody.
            self.mind_readers();
            self.drop_cancelled();
            self.share_prefixes();
            let mut effects = VecDeque::from(self.desk.step(Event::Turn(self.room())));
            if effects.is_empty() {
                return None;
            }
            let mut plan = None;
            while let Some(effect) = effects.pop_front() {
                match effect {
                    Effect::Open(id) => effects.extend(self.open(id)),
                    Effect::Run(run) => plan = Some(run),
                    other => self.perform_one(other),
                }
            }
            // Without a plan, a sequence was preempted or failed: check again.
            let Some(plan) = plan else { continue };
            match self.compute(&plan) {
                Ok(pass) => return Some(pass),
                Err(StepError::Cancelled { .. }) => self.perform(Event::StepUndone),
                Err(err @ StepError::Kv(KvError::KvFull { .. })) => {
                    error!(err = &err as &dyn std::error::Error, "a planned pass does not fit");
                    self.perform(Event::StepTooLarge);
                }
                Err(err) => self.fail(&plan, &err),
            }
        }
    }

    /// Sends the tokens of a pass, and frees the sequences that ended with it.
    pub fn commit(&mut self, pass: Pass) {
        let content = pass.content;
        let elapsed = self.desk.clock.now().saturating_sub(pass.begun_at);
        self.desk.record(|costs| {
            costs.record_pass(PassSample {
                prefill_tokens: content.prefill_tokens,
                decode_rows: content.decode_rows,
                elapsed,
            });
        });
        let (now, decode_ms) = (self.desk.clock.now(), self.desk.measured().decode_ms);
        let written: Vec<JobId> = pass.outcomes.iter().map(|(id, _)| *id).collect();
        for id in &written {
            if let Some(job) = self.jobs.get_mut(id) {
                job.stamp_first(now, decode_ms);
            }
        }
        // An answer that ends here sends its last token and its end in one packet.
        self.perform(Event::StepDone(pass.outcomes));
        for id in written {
            if let Some(job) = self.jobs.get_mut(&id) {
                job.flush();
            }
        }
    }

    /// Returns the free KV tokens of the engine, including those of kept prefixes.
    pub fn free_kv_tokens(&self) -> usize {
        self.engine.free_tokens()
    }

    fn perform(&mut self, event: Event) {
        for effect in self.desk.step(event) {
            self.perform_one(effect);
        }
    }

    fn perform_one(&mut self, effect: Effect) {
        match effect {
            Effect::Close(closed) => self.close(closed),
            Effect::Preempt(id) => self.preempt(id),
            other => error!(?other, "an effect that only a turn gives"),
        }
    }

    /// Returns the free room of the KV cache.
    fn room(&self) -> KvRoom {
        let next = self.desk.next_waiting().and_then(|id| self.jobs.get(&id));
        let held = |job: &Job| {
            self.engine.held_prefix(job.prefixes, job.adapter, &job.feed()[..job.reusable_tokens()])
        };
        KvRoom { free_tokens: self.engine.free_tokens(), next_held_tokens: next.map_or(0, held) }
    }

    fn report_kv(&self) {
        let (free_tokens, prefix) = (self.engine.free_tokens(), self.engine.prefix_stats());
        self.desk.set_kv(KvFigures { free_tokens, prefix });
    }

    /// Lets unfinished prompts reuse prefixes that others have computed meanwhile. So requests of one scene
    /// that come together compute their common prefix once.
    fn share_prefixes(&mut self) {
        for (id, running) in &self.running {
            let Some(job) = self.jobs.get(id) else { continue };
            let (held, reusable) = (self.engine.len(running.seq).unwrap_or(0), job.reusable_tokens());
            if held >= reusable {
                continue;
            }
            // The engine never reuses the last of the tokens given.
            let tokens = self.engine.reuse_prefix(running.seq, &job.feed()[held..=reusable]);
            if tokens > 0 {
                self.desk.step(Event::Reused { id: *id, tokens });
            }
        }
    }

    fn drop_cancelled(&mut self) {
        let stopping = self.desk.stage() >= Stage::Stopping;
        let cancelled = |job: &&Job| job.sink.cancel().is_set();
        let leaving: Vec<Event> = self
            .jobs
            .values()
            .filter(|job| stopping || cancelled(job))
            .map(|job| match cancelled(&job) {
                true => Event::Cancel(job.spec.id),
                false => Event::Abort(job.spec.id),
            })
            .collect();
        for event in leaving {
            self.perform(event);
        }
    }

    /// Parks answers that nobody reads, and unparks those that are read again.
    fn mind_readers(&mut self) {
        let events: Vec<Event> = self
            .jobs
            .values()
            .filter_map(|job| match job.sink.is_parked() {
                true => job.sink.unpark().then_some(Event::Unpark(job.spec.id)),
                false => job.sink.park().then_some(Event::Park(job.spec.id)),
            })
            .collect();
        for event in events {
            self.perform(event);
        }
    }

    fn open(&mut self, id: JobId) -> Vec<Effect> {
        if !self.jobs.contains_key(&id) {
            // It arrived between the last check and this turn.
            self.desk.take_arrived(&mut self.jobs);
        }
        let Some(job) = self.jobs.get_mut(&id) else {
            error!(job = id.0, "a sequence without its request");
            return self.desk.step(Event::Fail(id));
        };
        let Ok(seq) = self.engine.create_in(job.prefixes, job.adapter) else {
            error!(job = id.0, "a request with an adapter of another engine");
            return self.desk.step(Event::Fail(id));
        };
        self.running.insert(id, Running { seq, begun: false });
        // The scoring window is always computed, because its queries are needed for the scores.
        let cached = self.engine.reuse_prefix(seq, &job.feed()[..=job.reusable_tokens()]);
        if job.opened_at.is_none() {
            job.opened_at = Some(self.desk.clock.now());
            job.found(cached);
            job.lower(self.desk.max_tokens(id));
        }
        let room = self.room();
        self.desk.step(Event::Opened { id, cached, room })
    }

    fn preempt(&mut self, id: JobId) {
        if let Some(running) = self.running.remove(&id) {
            debug!(job = id.0, free_tokens = self.engine.free_tokens(), "gives way");
            self.engine.release(running.seq);
        }
    }

    fn close(&mut self, closed: Closed) {
        if !self.jobs.contains_key(&closed.id) {
            // It arrived after the last check, and its deadline has passed already.
            self.desk.take_arrived(&mut self.jobs);
        }
        if let Some(running) = self.running.remove(&closed.id) {
            self.engine.release(running.seq);
            // Reported before its reader receives the end.
            self.report_kv();
        }
        if let Some(job) = self.jobs.remove(&closed.id) {
            job.close(&closed);
        }
    }

    /// Handles a pass that the engine refused: its sequences end with an error, the others continue.
    fn fail(&mut self, plan: &StepPlan, err: &StepError) {
        error!(err = err as &dyn std::error::Error, "a pass failed");
        self.perform(Event::StepUndone);
        for row in &plan.rows {
            self.perform(Event::Fail(row.id()));
        }
    }

    fn compute(&mut self, plan: &StepPlan) -> Result<Pass, StepError> {
        let turns = self.turns.clone();
        let turn = turns.as_deref().map(Turns::take);
        // The cost of a pass does not include the wait for other models' passes.
        let (begun_at, started) = (self.desk.clock.now(), Instant::now());
        // Charged before it is computed: a reader that disconnects during the pass pays for it.
        for row in &plan.rows {
            if let StepRow::Prefill { id, tokens, .. } = row
                && let Some(job) = self.jobs.get_mut(id)
            {
                job.begin_prefill(tokens.end);
            }
        }
        let rows: Vec<Row> = plan.rows.iter().filter_map(|row| self.row(row)).collect();
        let batch: Vec<StepSeq<'_>> = rows.iter().map(Row::step).collect();
        let mut control = CancelWatch { flags: rows.iter().map(|row| row.cancel.clone()).collect() };
        let outputs = self.engine.step(&batch, &mut control)?;
        drop(turn);
        let content = PassContent {
            prompts_begun: rows.iter().filter(|row| row.begins).count(),
            prefill_tokens: plan.prefill_tokens(),
            decode_rows: plan.decode_rows(),
        };
        for row in &rows {
            if let Some(running) = self.running.get_mut(&row.id) {
                running.begun = true;
            }
        }
        let mut outcomes = Vec::new();
        for (row, output) in rows.iter().zip(outputs) {
            if let Some(outcome) = self.write(row, output) {
                outcomes.push((row.id, outcome));
            }
        }
        let elapsed = started.elapsed();
        let wait = self.emulation.map_or(Duration::ZERO, |cost| cost.wait(content, elapsed));
        Ok(Pass { content, begun_at, elapsed, wait, outcomes })
    }

    fn row(&self, row: &StepRow) -> Option<Row> {
        let id = row.id();
        let (job, Running { seq, begun }) = (self.jobs.get(&id)?, *self.running.get(&id)?);
        let (ids, begins, capture) = match row {
            StepRow::Decode { .. } => (vec![*job.answer.last()?], false, None),
            StepRow::Prefill { tokens, last, .. } => {
                let window = job.window.as_ref().filter(|_| *last && job.written() == 0);
                let capture = window.map(|window| Capture {
                    window: window.tokens.start - tokens.start..window.tokens.end - tokens.start,
                    heads: window.heads.clone(),
                });
                (job.feed()[tokens.clone()].to_vec(), !begun, capture)
            }
        };
        let logits = if row.samples() { Wanted::Last } else { Wanted::None };
        Some(Row { id, seq, ids, begins, logits, capture, cancel: job.sink.cancel().clone() })
    }

    /// Samples from one row's output; returns `None` if the row wants no token.
    fn write(&mut self, row: &Row, output: SeqOutput) -> Option<Outcome> {
        if row.logits == Wanted::None {
            return None;
        }
        let job = self.jobs.get_mut(&row.id)?;
        // The scores are complete some layers before the token, so the mask could be sent earlier. But this
        // would save only a part of the last chunk, which is the same for any length of prompt. With a 1B
        // model and its middle layers it is 16 % of the time to the first token at 512 tokens, and 4 % at
        // 2,048 (`./x bench refiner`). For longer prompts it is even less, and there a device computes for
        // seconds anyway. So the mask is sent with the token, in one packet.
        if job.written() == 0
            && let Some(elapsed) = job.put_mask(output.scores.as_ref(), &self.desk.clock)
        {
            self.desk.record(|costs| costs.record_refine(elapsed));
        }
        Some(job.write(&output.logits))
    }
}

impl Drop for Worker {
    /// Ends the stage: no answer may wait for a thread that is gone, and no new one may start.
    fn drop(&mut self) {
        self.desk.advance(if std::thread::panicking() { Stage::Failed } else { Stage::Stopping });
        // Nothing more arrives; what has arrived ends with the others.
        self.desk.take_arrived(&mut self.jobs);
    }
}

/// One sequence's part of a pass, with what the engine borrows.
#[derive(Debug)]
struct Row {
    id: JobId,
    seq: SeqId,
    ids: Vec<TokenId>,
    begins: bool,
    logits: Wanted,
    capture: Option<Capture>,
    cancel: CancelFlag,
}

impl Row {
    fn step(&self) -> StepSeq<'_> {
        StepSeq { seq: self.seq, ids: &self.ids, logits: self.logits, capture: self.capture.as_ref() }
    }
}

/// Cancels a pass if all of its rows are cancelled.
#[derive(Debug)]
struct CancelWatch {
    flags: Vec<CancelFlag>,
}

impl StepControl for CancelWatch {
    fn after_layer(&mut self, _done: usize, _total: usize) -> ControlFlow<()> {
        if self.flags.iter().all(CancelFlag::is_set) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_broken_off_only_when_nobody_waits_for_it() {
        let flags = [CancelFlag::default(), CancelFlag::default()];
        let mut watch = CancelWatch { flags: flags.to_vec() };
        assert_eq!(watch.after_layer(1, 3), ControlFlow::Continue(()));
        flags[0].set();
        assert_eq!(watch.after_layer(2, 3), ControlFlow::Continue(()));
        flags[1].set();
        assert_eq!(watch.after_layer(3, 3), ControlFlow::Break(()));
    }
}
