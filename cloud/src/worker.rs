//! The engine's thread: performs what the scheduler decides, one pass at a time.
//!
//! A pass has two halves, so that emulated and virtual time fit in between: [`Worker::turn`] computes, the caller
//! lets [`Pass::wait`] go by, [`Worker::commit`] sends the tokens and frees what has ended.
//! Never: decides who runs (the scheduler does). Always: a cancelled answer leaves within the pass that runs.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_engine::pace_emulation::{PassContent, PassCost};
use baton_engine::tokenizer::TokenId;
use baton_engine::{Capture, Engine, SeqId, SeqOutput, StepControl, StepError, StepSeq, Wanted};
use tracing::error;

use crate::cost::PassSample;
use crate::desk::{Desk, Stage};
use crate::job::Job;
use crate::scheduler::{Closed, Effect, Event, JobId, Outcome, StepPlan, StepRow};
use crate::stream::CancelFlag;

/// Owns the engine; lives on a thread of its own, or in a test that makes time pass by itself.
#[derive(Debug)]
pub struct Worker {
    engine: Engine,
    desk: Arc<Desk>,
    emulation: Option<PassCost>,
    jobs: HashMap<JobId, Job>,
    running: HashMap<JobId, SeqId>,
}

/// A computed pass whose tokens have not been sent yet.
#[derive(Debug)]
#[must_use = "the tokens of a pass are sent by `Worker::commit`"]
pub struct Pass {
    content: PassContent,
    elapsed: Duration,
    wait: Duration,
    outcomes: Vec<(JobId, Outcome)>,
}

impl Pass {
    /// What it held.
    pub fn content(&self) -> PassContent {
        self.content
    }

    /// How long it took to compute.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// How much longer the emulated machine would have taken; zero without emulation.
    pub fn wait(&self) -> Duration {
        self.wait
    }
}

impl Worker {
    pub(crate) fn new(engine: Engine, desk: Arc<Desk>, emulation: Option<PassCost>) -> Worker {
        Worker { engine, desk, emulation, jobs: HashMap::new(), running: HashMap::new() }
    }

    /// Serves until the service is stopped; for a thread of its own.
    pub fn run(mut self) {
        loop {
            if let Some(pass) = self.turn() {
                std::thread::sleep(pass.wait());
                self.commit(pass);
                continue;
            }
            match self.desk.stage() {
                Stage::Open => self.desk.wait(),
                Stage::Draining | Stage::Stopping | Stage::Failed => return,
            }
        }
    }

    /// Lets new answers in, cancelled ones out, and computes the next pass; none where nothing runs.
    pub fn turn(&mut self) -> Option<Pass> {
        loop {
            self.desk.take_arrived(&mut self.jobs);
            self.drop_cancelled();
            let mut effects = VecDeque::from(self.desk.step(Event::Turn));
            let mut plan = None;
            while let Some(effect) = effects.pop_front() {
                match effect {
                    Effect::Open(id) => effects.extend(self.open(id)),
                    Effect::Run(run) => plan = Some(run),
                    Effect::Close(closed) => self.close(closed),
                    Effect::Refuse(id, _) => error!(job = id.0, "refused after it was accepted"),
                }
            }
            let plan = plan?;
            match self.compute(&plan) {
                Ok(pass) => return Some(pass),
                Err(StepError::Cancelled { .. }) => self.perform(Event::StepUndone),
                Err(err) => self.fail(&plan, &err),
            }
        }
    }

    /// Sends the tokens of a pass and frees what has ended with it.
    pub fn commit(&mut self, pass: Pass) {
        let content = pass.content;
        self.desk.record(|costs| {
            costs.record_pass(PassSample {
                prefill_tokens: content.prefill_tokens,
                decode_rows: content.decode_rows,
                elapsed: pass.elapsed,
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

    /// Free KV tokens of the engine, those of kept prefixes included.
    pub fn free_kv_tokens(&self) -> usize {
        self.engine.free_tokens()
    }

    fn perform(&mut self, event: Event) {
        for effect in self.desk.step(event) {
            match effect {
                Effect::Close(closed) => self.close(closed),
                other => error!(?other, "an effect that only a turn gives"),
            }
        }
    }

    fn drop_cancelled(&mut self) {
        let all = self.desk.stage() >= Stage::Stopping;
        let cancelled: Vec<JobId> = self
            .jobs
            .values()
            .filter(|job| all || job.sink.cancel().is_set())
            .map(|job| job.spec.id)
            .collect();
        for id in cancelled {
            self.perform(Event::Cancel(id));
        }
    }

    fn open(&mut self, id: JobId) -> Vec<Effect> {
        let Some(job) = self.jobs.get_mut(&id) else {
            error!(job = id.0, "a sequence without its request");
            return self.desk.step(Event::Fail(id));
        };
        let seq = self.engine.create();
        self.running.insert(id, seq);
        job.opened_at = self.desk.clock.now();
        // The scoring window is always computed, so that there are queries to score with.
        let reusable = job.prompt.len() - job.spec.tail_tokens;
        if reusable > 0 {
            job.cached = self.engine.reuse_prefix(seq, &job.prompt[..reusable]);
        }
        self.desk.step(Event::Opened { id, cached: job.cached })
    }

    fn close(&mut self, closed: Closed) {
        if let Some(seq) = self.running.remove(&closed.id) {
            self.engine.release(seq);
        }
        if let Some(job) = self.jobs.remove(&closed.id) {
            job.close(&closed);
        }
    }

    /// The engine refused a pass: its sequences end with an error, the others go on.
    fn fail(&mut self, plan: &StepPlan, err: &StepError) {
        error!(err = err as &dyn std::error::Error, "a pass failed");
        self.perform(Event::StepUndone);
        for row in &plan.rows {
            self.perform(Event::Fail(row.id()));
        }
    }

    fn compute(&mut self, plan: &StepPlan) -> Result<Pass, StepError> {
        let started = Instant::now();
        let rows: Vec<Row> = plan.rows.iter().filter_map(|row| self.row(row)).collect();
        let batch: Vec<StepSeq<'_>> = rows.iter().map(Row::step).collect();
        let mut control = CancelWatch { flags: rows.iter().map(|row| row.cancel.clone()).collect() };
        let outputs = self.engine.step(&batch, &mut control)?;
        let content = PassContent {
            prompts_begun: rows.iter().filter(|row| row.begins).count(),
            prefill_tokens: plan.prefill_tokens(),
            decode_rows: plan.decode_rows(),
        };
        let mut outcomes = Vec::new();
        for (row, output) in rows.iter().zip(outputs) {
            if let Some(outcome) = self.write(row, output) {
                outcomes.push((row.id, outcome));
            }
        }
        let elapsed = started.elapsed();
        let wait = self.emulation.map_or(Duration::ZERO, |cost| cost.wait(content, elapsed));
        Ok(Pass { content, elapsed, wait, outcomes })
    }

    fn row(&self, row: &StepRow) -> Option<Row> {
        let id = row.id();
        let (job, seq) = (self.jobs.get(&id)?, *self.running.get(&id)?);
        let (ids, begins, capture) = match row {
            StepRow::Decode { .. } => (vec![*job.answer.last()?], false, None),
            StepRow::Prefill { tokens, last, .. } => {
                let window = job.window.as_ref().filter(|_| *last);
                let capture = window.map(|window| Capture {
                    window: window.tokens.start - tokens.start..window.tokens.end - tokens.start,
                    heads: window.heads.clone(),
                });
                (job.prompt[tokens.clone()].to_vec(), tokens.start == job.cached, capture)
            }
        };
        let logits = if row.samples() { Wanted::Last } else { Wanted::None };
        Some(Row { id, seq, ids, begins, logits, capture, cancel: job.sink.cancel().clone() })
    }

    /// Samples from one row's output; none where the row asked for no token.
    fn write(&mut self, row: &Row, output: SeqOutput) -> Option<Outcome> {
        if row.logits == Wanted::None {
            return None;
        }
        let job = self.jobs.get_mut(&row.id)?;
        if job.written() == 0
            && let Some(elapsed) = job.put_mask(output.scores.as_ref())
        {
            self.desk.record(|costs| costs.record_refine(elapsed));
        }
        Some(job.write(&output.logits))
    }
}

impl Drop for Worker {
    /// Whoever waits for an answer must not wait for a thread that is gone, nor may anybody start a new one.
    fn drop(&mut self) {
        self.desk.advance(if std::thread::panicking() { Stage::Failed } else { Stage::Stopping });
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

/// Breaks a pass off when nobody waits for any of its rows.
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
