//! The scheduler's state machine, `step(event, now) -> effects`.

use std::collections::VecDeque;
use std::time::Duration;

use super::plan::{StepPlan, StepRow, chunk_len};
use super::{
    CloseReason, Closed, Effect, Event, JobId, JobSpec, Limits, Outcome, Refusal, SchedulerStats, SlotTimes,
};

/// Queue, slots and KV budget as pure state; one pass is planned at a time.
#[derive(Debug)]
pub struct SchedulerCore {
    limits: Limits,
    waiting: VecDeque<Waiting>,
    running: Vec<Slot>,
    in_flight: Option<StepPlan>,
    slot_ms_total: f64,
    closed_total: u64,
}

#[derive(Debug)]
struct Waiting {
    spec: JobSpec,
    queued_at: Duration,
}

#[derive(Debug)]
struct Slot {
    spec: JobSpec,
    phase: Phase,
    queued_at: Duration,
    opened_at: Duration,
    first_at: Option<Duration>,
    written: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Opening,
    Prefill { done: usize },
    Decode,
}

impl SchedulerCore {
    /// An idle scheduler.
    ///
    /// # Panics
    /// If a limit is zero (the queue may be): the settings are checked before.
    pub fn new(limits: Limits) -> SchedulerCore {
        assert!(
            limits.slots > 0 && limits.kv_tokens > 0 && limits.kv_block > 0 && limits.chunk_tokens > 0,
            "scheduler limits are positive: {limits:?}"
        );
        SchedulerCore {
            limits,
            waiting: VecDeque::new(),
            running: Vec::with_capacity(limits.slots),
            in_flight: None,
            slot_ms_total: 0.0,
            closed_total: 0,
        }
    }

    /// Applies one event at time `now` (monotonic) and says what to do.
    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        match event {
            Event::Submit(spec) => self.submit(spec, now),
            Event::Cancel(id) => self.end(id, CloseReason::Cancelled, now).into_iter().collect(),
            Event::Fail(id) => self.end(id, CloseReason::Failed, now).into_iter().collect(),
            Event::Turn => self.turn(now),
            Event::Opened { id, cached } => self.opened(id, cached),
            Event::StepDone(outcomes) => self.step_done(&outcomes, now),
            Event::StepUndone => {
                self.in_flight = None;
                Vec::new()
            }
        }
    }

    /// What is in use now.
    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats {
            running: self.running.len(),
            slots: self.limits.slots,
            waiting: self.waiting.len(),
            queue: self.limits.queue,
            kv_reserved_tokens: self.kv_reserved(),
            kv_tokens: self.limits.kv_tokens,
            backlog_tokens: self.backlog(),
            slot_ms_total: self.slot_ms_total,
            closed_total: self.closed_total,
        }
    }

    /// Whether there is nothing to run and nobody waits.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    fn submit(&mut self, spec: JobSpec, now: Duration) -> Vec<Effect> {
        assert!(
            spec.max_tokens > 0 && (1..=spec.prompt_tokens).contains(&spec.tail_tokens),
            "a sequence has a prompt, a tail within it and a cap: {spec:?}"
        );
        let need = self.reservation(&spec);
        if need > self.limits.kv_tokens {
            return vec![Effect::Refuse(spec.id, Refusal::TooLarge { need, limit: self.limits.kv_tokens })];
        }
        if self.waiting.len() + self.running.len() >= self.limits.slots + self.limits.queue {
            let refusal = Refusal::Full { waiting: self.waiting.len(), backlog_tokens: self.backlog() };
            return vec![Effect::Refuse(spec.id, refusal)];
        }
        self.waiting.push_back(Waiting { spec, queued_at: now });
        Vec::new()
    }

    fn turn(&mut self, now: Duration) -> Vec<Effect> {
        if self.in_flight.is_some() || self.opening() {
            return Vec::new();
        }
        let mut effects = Vec::new();
        while self.running.len() < self.limits.slots {
            let fits = self.waiting.front().is_some_and(|next| {
                self.kv_reserved() + self.reservation(&next.spec) <= self.limits.kv_tokens
            });
            let Some(next) = self.waiting.pop_front_if(|_| fits) else { break };
            effects.push(Effect::Open(next.spec.id));
            self.running.push(Slot {
                spec: next.spec,
                phase: Phase::Opening,
                queued_at: next.queued_at,
                opened_at: now,
                first_at: None,
                written: 0,
            });
        }
        if effects.is_empty() { self.run() } else { effects }
    }

    fn opened(&mut self, id: JobId, cached: usize) -> Vec<Effect> {
        if let Some(slot) = self.running.iter_mut().find(|slot| slot.spec.id == id) {
            assert!(
                cached + slot.spec.tail_tokens <= slot.spec.prompt_tokens,
                "a prefix hit never covers the scoring window: {cached} cached of {:?}",
                slot.spec
            );
            slot.phase = Phase::Prefill { done: cached };
        }
        if self.opening() { Vec::new() } else { self.run() }
    }

    /// Plans the next pass over everything that runs.
    fn run(&mut self) -> Vec<Effect> {
        let mut plan = StepPlan::default();
        for slot in self.running.iter().filter(|slot| slot.phase == Phase::Decode) {
            plan.rows.push(StepRow::Decode { id: slot.spec.id });
        }
        let mut budget = self.limits.chunk_tokens;
        for slot in &self.running {
            let Phase::Prefill { done } = slot.phase else { continue };
            let left = slot.spec.prompt_tokens - done;
            let len = chunk_len(left, slot.spec.tail_tokens, budget, self.limits.chunk_tokens);
            if len == 0 {
                continue;
            }
            budget = budget.saturating_sub(len);
            plan.rows.push(StepRow::Prefill {
                id: slot.spec.id,
                tokens: done..done + len,
                last: len == left,
            });
        }
        if plan.rows.is_empty() {
            return Vec::new();
        }
        self.in_flight = Some(plan.clone());
        vec![Effect::Run(plan)]
    }

    fn step_done(&mut self, outcomes: &[(JobId, Outcome)], now: Duration) -> Vec<Effect> {
        let plan = self.in_flight.take().expect("a pass ends only after one was planned");
        let mut effects = Vec::new();
        for row in &plan.rows {
            let id = row.id();
            // A sequence that was cancelled while the pass ran has left already.
            let Some(slot) = self.running.iter_mut().find(|slot| slot.spec.id == id) else { continue };
            if let StepRow::Prefill { tokens, last, .. } = row {
                slot.phase = if *last { Phase::Decode } else { Phase::Prefill { done: tokens.end } };
            }
            if !row.samples() {
                continue;
            }
            slot.first_at.get_or_insert(now);
            let outcome =
                outcomes.iter().find(|(of, _)| *of == id).map_or(Outcome::Failed, |(_, outcome)| *outcome);
            let reason = match outcome {
                Outcome::Token | Outcome::LastToken => {
                    slot.written += 1;
                    let stop = outcome == Outcome::LastToken;
                    let cap = slot.written >= slot.spec.max_tokens;
                    if stop { Some(CloseReason::Stop) } else { cap.then_some(CloseReason::Cap) }
                }
                Outcome::EndOfText => Some(CloseReason::Stop),
                Outcome::Failed => Some(CloseReason::Failed),
            };
            effects.extend(reason.and_then(|reason| self.end(id, reason, now)));
        }
        effects
    }

    /// Takes a sequence out, wherever it is; its slot and reservation are free at once.
    fn end(&mut self, id: JobId, reason: CloseReason, now: Duration) -> Option<Effect> {
        let ms = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() * 1e3;
        let closed = if let Some(at) = self.running.iter().position(|slot| slot.spec.id == id) {
            let slot = self.running.remove(at);
            let first = slot.first_at.unwrap_or(now);
            let times = SlotTimes {
                queue_ms: ms(slot.queued_at, slot.opened_at),
                prefill_ms: ms(slot.opened_at, first),
                decode_ms: ms(first, now),
                slot_ms: ms(slot.opened_at, now),
            };
            Closed { id, reason, tokens: slot.written, times }
        } else {
            let at = self.waiting.iter().position(|waiting| waiting.spec.id == id)?;
            let waiting = self.waiting.remove(at).expect("the position was found above");
            let times = SlotTimes { queue_ms: ms(waiting.queued_at, now), ..SlotTimes::default() };
            Closed { id, reason, tokens: 0, times }
        };
        self.slot_ms_total += closed.times.slot_ms;
        self.closed_total += 1;
        Some(Effect::Close(closed))
    }

    fn opening(&self) -> bool {
        self.running.iter().any(|slot| slot.phase == Phase::Opening)
    }

    /// KV tokens of a sequence at its longest, in whole blocks.
    fn reservation(&self, spec: &JobSpec) -> usize {
        (spec.prompt_tokens + spec.max_tokens).next_multiple_of(self.limits.kv_block)
    }

    fn kv_reserved(&self) -> usize {
        self.running.iter().map(|slot| self.reservation(&slot.spec)).sum()
    }

    fn backlog(&self) -> usize {
        let waiting: usize = self.waiting.iter().map(|waiting| waiting.spec.prompt_tokens).sum();
        let running: usize = self
            .running
            .iter()
            .map(|slot| match slot.phase {
                Phase::Opening => slot.spec.prompt_tokens,
                Phase::Prefill { done } => slot.spec.prompt_tokens - done,
                Phase::Decode => 0,
            })
            .sum();
        waiting + running
    }
}
