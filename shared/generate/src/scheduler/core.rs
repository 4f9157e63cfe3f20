//! The scheduler's state machine, `step(event, now) -> effects`.

use std::time::Duration;

use super::admission::{Ahead, DrainRate, load, lowered};
use super::budget::PassTimes;
use super::fair::{FairQueue, Standing};
use super::orders::NewPrompt;
use super::plan::{PrefillEnd, StepPlan, StepRow};
use super::request::{Request, reason};
use super::slot::{Phase, Slot};
use super::speculate::Proposing;
use super::{
    AnswerEnd, BacklogBound, CloseReason, Effect, Event, Goal, JobId, JobSpec, Limits, Outcome, Progress,
    Refusal, Room, SchedulerStats, Share,
};
use crate::speculation::SpeculationStats;

/// Result of a row that should have one.
const FAILED: Outcome = Outcome { proposed: 0, accepted: 0, written: 0, end: Some(AnswerEnd::Failed) };

/// Queue, slots and KV room as pure state. One pass is planned at a time.
#[derive(Debug)]
pub struct SchedulerCore {
    pub(super) limits: Limits,
    /// Preempted requests first, then tenants by their weights.
    pub(super) waiting: FairQueue,
    /// In order of arrival.
    pub(super) running: Vec<Slot>,
    /// Without a slot until their readers read.
    pub(super) parked: Vec<Request>,
    pub(super) in_flight: Option<InFlight>,
    /// As the engine reported last.
    pub(super) room: Room,
    pub(super) times: PassTimes,
    pub(super) proposing: Option<Proposing>,
    /// Whether the next pass must hold no proposals, because the last one did not fit.
    pub(super) lean: bool,
    drain: DrainRate,
    /// The time of the last event.
    now: Duration,
    arrivals: u64,
    slot_ms_total: f64,
    closed_total: u64,
    pub(super) preemptions_total: u64,
    refused_total: u64,
    expired_total: u64,
}

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) plan: StepPlan,
    pub(super) planned_at: Duration,
}

impl SchedulerCore {
    /// Makes an idle scheduler.
    ///
    /// # Panics
    /// If a limit is zero (except the queue's): the settings were checked before.
    pub fn new(limits: Limits) -> SchedulerCore {
        assert!(
            limits.slots > 0
                && limits.kv_tokens > 0
                && limits.kv_block > 0
                && limits.budget.chunk_tokens > 0
                && limits.admit_tokens > 0
                && limits.logit_rows > 0,
            "scheduler limits are positive: {limits:?}"
        );
        SchedulerCore {
            limits,
            waiting: FairQueue::default(),
            running: Vec::with_capacity(limits.slots),
            parked: Vec::new(),
            in_flight: None,
            room: Room::default(),
            times: PassTimes::default(),
            proposing: limits.speculation.map(Proposing::new),
            lean: false,
            drain: DrainRate::default(),
            now: Duration::ZERO,
            arrivals: 0,
            slot_ms_total: 0.0,
            closed_total: 0,
            preemptions_total: 0,
            refused_total: 0,
            expired_total: 0,
        }
    }

    /// Applies one event at time `now` (monotonic) and returns what to do.
    ///
    /// # Panics
    /// If the driver breaks the order of events: an order that does not fit the sequence's phase, or the end
    /// of a pass that was not planned.
    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        self.now = now;
        match event {
            Event::Submit(spec) => self.submit(spec, now),
            Event::Prompt { id, prompt_tokens, max_tokens, pass_tokens, kept, goal } => {
                let spec = NewPrompt { prompt_tokens, max_tokens, pass_tokens, goal };
                self.prompt(id, spec, kept, now).into_iter().collect()
            }
            Event::Accept { id, accepted } => self.accept(id, accepted, now).into_iter().collect(),
            Event::Decided { id, kept, tokens, end } => {
                self.decided(id, kept, tokens, now);
                end.and_then(|end| self.end(id, reason(end), now)).into_iter().collect()
            }
            Event::Park(id) => self.park(id, now).into_iter().collect(),
            Event::Unpark(id) => {
                // It waits and is charged like a new request: its blocks may be gone from the cache and
                // computed again.
                if let Some(at) = self.parked.iter().position(|request| request.spec.id == id) {
                    self.waiting.push_back(self.parked.swap_remove(at));
                }
                Vec::new()
            }
            Event::Cancel(id) => self.end(id, CloseReason::Cancelled, now).into_iter().collect(),
            Event::Abort(id) => self.end(id, CloseReason::Stopped, now).into_iter().collect(),
            Event::Fail(id) => self.end(id, CloseReason::Failed, now).into_iter().collect(),
            Event::Turn(room) => {
                self.room = room;
                self.turn(now)
            }
            Event::Opened { id, cached, room } => {
                self.room = room;
                let mut effects: Vec<Effect> = self.reused(id, cached).into_iter().collect();
                effects.extend(self.turn(now));
                effects
            }
            Event::Reused { id, tokens } => self.reused(id, tokens).into_iter().collect(),
            Event::StepDone { outcomes, waited } => self.step_done(&outcomes, waited, now),
            Event::StepUndone => {
                self.in_flight = None;
                Vec::new()
            }
            Event::StepTooLarge => {
                let plan = self.in_flight.take().map(|flight| flight.plan);
                if plan.is_some_and(|plan| plan.proposed_tokens() > 0) {
                    self.lean = true;
                    return Vec::new();
                }
                self.make_room(now)
            }
        }
    }

    /// Returns the request that would get a free slot, if one waits. [`Room::next_held_tokens`] is about
    /// its prefix.
    pub fn next_waiting(&self) -> Option<JobId> {
        let free = self.running.len() < self.limits.slots && self.in_flight.is_none();
        self.waiting.front().filter(|_| free).map(|next| next.spec.id)
    }

    /// Returns the most tokens that a running sequence may write: its cap, or less if it got its slot under
    /// load.
    pub fn max_tokens(&self, id: JobId) -> Option<usize> {
        self.running.iter().find(|slot| slot.request.spec.id == id).map(|slot| slot.request.spec.max_tokens)
    }

    /// Returns the progress of a sequence; `None` if it has a token, has ended or is unknown.
    ///
    /// The estimate counts all prompt tokens up to its own last one, at the rate measured recently. It is too
    /// short if an answer runs long, or if a tenant of more weight comes later.
    pub fn progress(&self, id: JobId) -> Option<Progress> {
        let ms = self.drain.ms_per_token(self.times.alone_ms(), self.now);
        let eta_ms = |tokens: usize| ms.map(|ms| ms * tokens as f64);
        let left = |slots: &[Slot]| slots.iter().map(Slot::missing_prompt).sum::<usize>();
        if let Some(at) = self.running.iter().position(|slot| slot.request.spec.id == id) {
            let slot = &self.running[at];
            let total = slot.request.target_tokens();
            let (computed, eta_ms) = (slot.held().min(total), eta_ms(left(&self.running[..=at])));
            return (slot.request.written == 0).then_some(Progress {
                running: true,
                computed,
                total,
                eta_ms,
            });
        }
        let request = self.waiting.iter().find(|request| request.spec.id == id)?;
        let before = self.waiting.iter().filter(|other| other.arrival <= request.arrival);
        let eta_ms = eta_ms(left(&self.running) + before.map(Request::target_tokens).sum::<usize>());
        let total = request.target_tokens();
        (request.written == 0).then_some(Progress { running: false, computed: 0, total, eta_ms })
    }

    /// Returns the current use and the totals.
    pub fn stats(&self) -> SchedulerStats {
        let decoding = self.running.iter().filter(|slot| slot.phase == Phase::Decode).count();
        let ahead = self.ahead();
        let backlog_ms = ahead.wait_ms().unwrap_or_default();
        let backlog_ms_max = self.limits.backlog.wait.as_secs_f64() * 1e3;
        SchedulerStats {
            running: self.running.len(),
            slots: self.limits.slots,
            waiting: self.waiting.len(),
            queue: self.limits.queue,
            parked: self.parked.len(),
            held: self.running.iter().filter(|slot| slot.waits()).count(),
            kv_held_tokens: self.running.iter().map(|slot| self.blocks(slot.held())).sum::<usize>()
                * self.limits.kv_block,
            kv_tokens: self.limits.kv_tokens,
            backlog_tokens: ahead.tokens,
            backlog_ms,
            backlog_ms_max,
            waiting_bytes: ahead.bytes,
            load: load(backlog_ms, backlog_ms_max),
            chunk_tokens: self.limits.budget.chunk_tokens,
            mixed_tokens: self.times.mixed_tokens(self.limits.budget, decoding.max(1)),
            slot_ms_total: self.slot_ms_total,
            closed_total: self.closed_total,
            preemptions_total: self.preemptions_total,
            refused_total: self.refused_total,
            expired_total: self.expired_total,
            proposed_total: self.proposing.as_ref().map_or(0, |proposing| proposing.totals.0),
            accepted_total: self.proposing.as_ref().map_or(0, |proposing| proposing.totals.1),
        }
    }

    /// Changes the limits of the queue. Requests that wait already stay.
    pub fn set_backlog(&mut self, queue: usize, backlog: BacklogBound) {
        self.limits.queue = queue;
        self.limits.backlog = backlog;
    }

    /// Returns what came of the proposed tokens of a sequence; `None` if it is unknown or none are proposed.
    pub fn speculation_of(&self, id: JobId) -> Option<SpeculationStats> {
        self.proposing.as_ref()?;
        let running = self.running.iter().map(|slot| &slot.request);
        let mut all = running.chain(self.waiting.iter()).chain(&self.parked);
        all.find(|request| request.spec.id == id).map(|request| request.speculation)
    }

    /// Returns whether no sequence in a slot has anything to compute and none waits for a slot.
    pub fn is_idle(&self) -> bool {
        self.running.iter().all(Slot::waits) && self.waiting.is_empty()
    }

    /// Returns whether there is no sequence at all.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.parked.is_empty()
    }

    /// Returns the KV tokens, in whole blocks, that the next admission and the next pass would take. More may
    /// be free.
    pub fn need_tokens(&self) -> usize {
        let missing: usize = self.running.iter().map(|slot| self.missing(slot) + self.next_block(slot)).sum();
        let next = match self.next_waiting() {
            Some(_) => self.waiting.front().map_or(0, |next| self.need(next)) + self.reserved(),
            None => 0,
        };
        missing.max(next) * self.limits.kv_block
    }

    fn submit(&mut self, spec: JobSpec, now: Duration) -> Vec<Effect> {
        let tail = match spec.goal {
            Goal::Write => 1..=spec.prompt_tokens,
            Goal::Hold { upto } => 0..=upto.min(spec.prompt_tokens),
            Goal::Verify { .. } => 0..=1,
        };
        assert!(
            (1..=spec.max_tokens).contains(&spec.floor_tokens)
                && spec.prompt_tokens > 0
                && spec.pass_tokens > 0
                && tail.contains(&spec.tail_tokens),
            "a sequence has a prompt, a tail within it, a cap and a floor: {spec:?}"
        );
        let need = (spec.prompt_tokens + spec.max_tokens).next_multiple_of(self.limits.kv_block);
        if need > self.limits.kv_tokens {
            return vec![Effect::Refuse(spec.id, Refusal::TooLarge { need, limit: self.limits.kv_tokens })];
        }
        let standing = self.standing(spec.share);
        if let Err(refusal) = self.ahead().admit(&spec, standing, &self.limits, now) {
            self.refused_total += 1;
            return vec![Effect::Refuse(spec.id, refusal)];
        }
        self.waiting.push_back(Request::new(spec, self.arrivals, now));
        self.arrivals += 1;
        Vec::new()
    }

    /// Returns a tenant's standing in the queue: alone it may fill slots and queue, with others only its
    /// share.
    fn standing(&self, share: Share) -> Standing {
        let running: Vec<Share> = self.running.iter().map(|slot| slot.request.spec.share).collect();
        let room = (self.limits.slots + self.limits.queue).saturating_sub(running.len());
        self.waiting.standing(share, room, self.limits.queue, &running)
    }

    fn turn(&mut self, now: Duration) -> Vec<Effect> {
        if self.in_flight.is_some() || self.opening() {
            return Vec::new();
        }
        let expired = self.expire(now);
        if !expired.is_empty() {
            return expired;
        }
        match self.admit(now) {
            Some(open) => vec![open],
            None => self.run(now),
        }
    }

    /// Ends requests that have waited past their deadline. A request that had a slot before continues,
    /// because most of its work is done.
    fn expire(&mut self, now: Duration) -> Vec<Effect> {
        let late = |request: &&Request| {
            request.opened_at.is_none() && request.spec.deadline.is_some_and(|deadline| deadline <= now)
        };
        let ids: Vec<JobId> = self.waiting.iter().filter(late).map(|request| request.spec.id).collect();
        self.expired_total += ids.len() as u64;
        ids.into_iter().filter_map(|id| self.end(id, CloseReason::Expired, now)).collect()
    }

    /// Admits the request that waits first, if there is a slot and KV room. The room must hold its prompt
    /// and its first tokens ([`Limits::admit_tokens`]), and the rest of the running prompts. Every running
    /// sequence must find room for as many further tokens, at least one block. More blocks come later, or
    /// by preemption.
    fn admit(&mut self, now: Duration) -> Option<Effect> {
        self.next_waiting()?;
        let next = self.waiting.front().filter(|_| self.room.admits)?;
        let need = self.need(next);
        let shared = self.room.next_held_tokens / self.limits.kv_block;
        let free = self.room.free_tokens / self.limits.kv_block;
        if !self.running.is_empty() && need.saturating_sub(shared) + self.reserved() > free {
            return None;
        }
        let mut request = self.waiting.pop_front()?;
        let id = request.spec.id;
        if request.opened_at.is_none() {
            request.opened_at = Some(now);
            // The load behind this request counts, after it has left the queue. Lowering its L helps only
            // those requests.
            request.spec.max_tokens = lowered(&request.spec, self.stats().load);
        }
        let at = self.running.partition_point(|slot| slot.request.arrival < request.arrival);
        self.running.insert(at, Slot { request, phase: Phase::Opening, since: now });
        Some(Effect::Open(id))
    }

    /// Notes that the sequence need not compute `tokens` more tokens.
    fn reused(&mut self, id: JobId, tokens: usize) -> Option<Effect> {
        let block = self.limits.kv_block;
        let slot = self.running.iter_mut().find(|slot| slot.request.spec.id == id)?;
        assert!(
            matches!(slot.phase, Phase::Opening | Phase::Prefill { .. }),
            "only a prompt under way is known already: {slot:?}"
        );
        slot.begin(slot.held() + tokens, block)
    }

    /// Parks a sequence that has written something: it frees its slot until its reader reads.
    fn park(&mut self, id: JobId, now: Duration) -> Option<Effect> {
        if self.in_flight.is_some() {
            return None;
        }
        let unread = |request: &Request| request.spec.id == id && request.written > 0;
        if let Some(at) = self.running.iter().position(|slot| unread(&slot.request)) {
            let mut slot = self.running.remove(at);
            slot.request.slot_time += now.saturating_sub(slot.since);
            self.parked.push(slot.request);
            return Some(Effect::Preempt(id));
        }
        // It may have been preempted before.
        if self.waiting.iter().any(unread) {
            self.parked.extend(self.waiting.take_resumed(id));
        }
        None
    }

    fn step_done(&mut self, outcomes: &[(JobId, Outcome)], waited: Duration, now: Duration) -> Vec<Effect> {
        let InFlight { plan, planned_at } =
            self.in_flight.take().expect("a pass ends only after one was planned");
        let took = now.saturating_sub(planned_at);
        let own = took.saturating_sub(waited);
        if outcomes.iter().all(|(_, outcome)| outcome.proposed == 0) {
            self.times.record(&plan, own);
        }
        self.learn(&plan, outcomes, own);
        if plan.prefill_tokens() > 0 || !self.waiting.is_empty() {
            self.drain.record(took, plan.prefill_tokens(), now);
        }
        let mut effects = Vec::new();
        for row in &plan.rows {
            let id = row.id();
            // A sequence that was cancelled while the pass ran has left already.
            let Some(slot) = self.running.iter_mut().find(|slot| slot.request.spec.id == id) else {
                continue;
            };
            slot.phase = match row {
                StepRow::Prefill { end: PrefillEnd::Sampled, .. } | StepRow::Decode { .. } => Phase::Decode,
                StepRow::Prefill { tokens, end: PrefillEnd::More, .. }
                | StepRow::Verify { tokens, last: false, .. } => {
                    Phase::Prefill { done: tokens.end, borrowed: false }
                }
                StepRow::Prefill { tokens, end: PrefillEnd::Held, .. } => {
                    Phase::Held { done: tokens.end, borrowed: false }
                }
                StepRow::Verify { tokens, last: true, .. } => Phase::Decide { done: tokens.end },
            };
            let outcome = outcomes.iter().find(|(of, _)| *of == id).map(|(_, outcome)| *outcome);
            let reason = match row.samples() {
                true => slot.request.wrote(outcome.unwrap_or(FAILED), now),
                false => outcome.and_then(|outcome| outcome.end).map(reason),
            };
            effects.extend(reason.and_then(|reason| self.end(id, reason, now)));
        }
        effects
    }

    /// Removes a sequence, wherever it is; its slot is free at once.
    pub(super) fn end(&mut self, id: JobId, reason: CloseReason, now: Duration) -> Option<Effect> {
        let request = if let Some(at) = self.running.iter().position(|slot| slot.request.spec.id == id) {
            let mut slot = self.running.remove(at);
            slot.request.slot_time += now.saturating_sub(slot.since);
            slot.request
        } else if let Some(at) = self.parked.iter().position(|request| request.spec.id == id) {
            self.parked.swap_remove(at)
        } else {
            self.waiting.take(id)?
        };
        let closed = request.closed(reason, now, self.proposing.is_some());
        self.slot_ms_total += closed.times.slot_ms;
        self.closed_total += 1;
        Some(Effect::Close(closed))
    }

    fn opening(&self) -> bool {
        self.running.iter().any(|slot| slot.phase == Phase::Opening)
    }

    pub(super) fn blocks(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.limits.kv_block)
    }

    /// Returns the number of blocks that a sequence takes when it grows.
    pub(super) fn growth(&self, from: usize, to: usize) -> usize {
        self.blocks(to).saturating_sub(self.blocks(from))
    }

    /// Returns the number of blocks that a request needs to be admitted.
    fn need(&self, request: &Request) -> usize {
        self.blocks(request.whole_tokens() + request.rest_tokens(self.limits.admit_tokens).max(1))
    }

    /// Returns the number of blocks that running sequences must find beside a request that is admitted.
    fn reserved(&self) -> usize {
        let later = |slot: &Slot| {
            let from =
                if slot.phase == Phase::Decode { slot.held() } else { slot.request.whole_tokens() + 1 };
            self.growth(from, from + slot.request.rest_tokens(self.limits.admit_tokens)).max(1)
        };
        self.running.iter().map(|slot| self.missing(slot) + later(slot)).sum()
    }

    /// Returns the number of blocks that an unfinished prompt will still take, with its first answer token.
    fn missing(&self, slot: &Slot) -> usize {
        match slot.phase {
            Phase::Opening | Phase::Decide { .. } | Phase::Decode => 0,
            Phase::Prefill { done, borrowed } | Phase::Held { done, borrowed } => {
                self.growth(done, slot.request.whole_tokens() + 1) + usize::from(borrowed)
            }
        }
    }

    /// Returns the number of blocks that the next token of an answer takes.
    fn next_block(&self, slot: &Slot) -> usize {
        match slot.phase {
            Phase::Decode => self.growth(slot.held(), slot.held() + 1),
            _ => 0,
        }
    }

    /// Returns the work that is before a request that comes now.
    fn ahead(&self) -> Ahead {
        let alone_ms = self.times.alone_ms();
        Ahead {
            waiting: self.waiting.len(),
            bytes: self.waiting.iter().chain(&self.parked).map(|request| request.spec.bytes).sum(),
            tokens: self.backlog(),
            drain_ms: self.drain.ms_per_token(alone_ms, self.now),
            alone_ms,
        }
    }

    fn backlog(&self) -> usize {
        let waiting: usize = self.waiting.iter().map(Request::target_tokens).sum();
        waiting + self.running.iter().map(Slot::missing_prompt).sum::<usize>()
    }
}
