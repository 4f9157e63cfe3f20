//! The scheduler's state machine, `step(event, now) -> effects`.

use std::time::Duration;

use super::admission::{Ahead, DrainRate, load, lowered};
use super::budget::PassTimes;
use super::fair::{FairQueue, Standing};
use super::plan::{Room, StepPlan, StepRow, chunk_len};
use super::request::Request;
use super::{
    BacklogBound, CloseReason, Effect, Event, JobId, JobSpec, KvRoom, Limits, Outcome, Progress, Refusal,
    SchedulerStats, Share,
};

/// Queue, slots and KV room as pure state. One pass is planned at a time.
#[derive(Debug)]
pub struct SchedulerCore {
    limits: Limits,
    /// Preempted requests first, then tenants by their weights.
    waiting: FairQueue,
    /// In order of arrival.
    running: Vec<Slot>,
    /// Without a slot until their readers read.
    parked: Vec<Request>,
    in_flight: Option<InFlight>,
    /// As the engine reported last.
    room: KvRoom,
    times: PassTimes,
    drain: DrainRate,
    /// The time of the last event.
    now: Duration,
    arrivals: u64,
    slot_ms_total: f64,
    closed_total: u64,
    preemptions_total: u64,
    refused_total: u64,
    expired_total: u64,
}

#[derive(Debug)]
struct InFlight {
    plan: StepPlan,
    planned_at: Duration,
}

#[derive(Debug)]
struct Slot {
    request: Request,
    phase: Phase,
    since: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Opening,
    Prefill {
        /// Tokens in the KV cache.
        done: usize,
        /// Whether the block that they end in belongs to another sequence's prefix. Then one more block is
        /// needed to continue.
        borrowed: bool,
    },
    Decode,
}

impl Slot {
    /// Returns the tokens in the KV cache. The token written last is added by the next pass.
    fn held(&self) -> usize {
        match self.phase {
            Phase::Opening => 0,
            Phase::Prefill { done, .. } => done,
            Phase::Decode => self.request.feed_tokens() - 1,
        }
    }

    /// Returns the number of tokens to compute before it writes.
    fn missing_prompt(&self) -> usize {
        match self.phase {
            Phase::Opening | Phase::Prefill { .. } => self.request.feed_tokens() - self.held(),
            Phase::Decode => 0,
        }
    }
}

impl SchedulerCore {
    /// Makes an idle scheduler.
    ///
    /// # Panics
    /// If a limit is zero (except the queue's): the settings were checked before.
    pub fn new(limits: Limits) -> SchedulerCore {
        assert!(
            limits.slots > 0 && limits.kv_tokens > 0 && limits.kv_block > 0 && limits.budget.chunk_tokens > 0,
            "scheduler limits are positive: {limits:?}"
        );
        SchedulerCore {
            limits,
            waiting: FairQueue::default(),
            running: Vec::with_capacity(limits.slots),
            parked: Vec::new(),
            in_flight: None,
            room: KvRoom::default(),
            times: PassTimes::default(),
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
    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        self.now = now;
        match event {
            Event::Submit(spec) => self.submit(spec, now),
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
                self.reused(id, cached);
                self.turn(now)
            }
            Event::Reused { id, tokens } => {
                self.reused(id, tokens);
                Vec::new()
            }
            Event::StepDone(outcomes) => self.step_done(&outcomes, now),
            Event::StepUndone => {
                self.in_flight = None;
                Vec::new()
            }
            Event::StepTooLarge => {
                self.in_flight = None;
                self.make_room(now)
            }
        }
    }

    /// Returns the request that would get a free slot, if one waits. [`KvRoom::next_held_tokens`] is about
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
            let total = slot.request.spec.prompt_tokens;
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
        let eta_ms = eta_ms(left(&self.running) + before.map(Request::feed_tokens).sum::<usize>());
        let total = request.spec.prompt_tokens;
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
        }
    }

    /// Changes the limits of the queue. Requests that wait already stay.
    pub fn set_backlog(&mut self, queue: usize, backlog: BacklogBound) {
        self.limits.queue = queue;
        self.limits.backlog = backlog;
    }

    /// Returns whether nothing runs and nothing waits for a slot.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    fn submit(&mut self, spec: JobSpec, now: Duration) -> Vec<Effect> {
        assert!(
            (1..=spec.max_tokens).contains(&spec.floor_tokens)
                && (1..=spec.prompt_tokens).contains(&spec.tail_tokens),
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

    /// Admits the request that waits first, if there is a slot and KV room. The room must hold its prompt and
    /// first token, the rest of the running prompts, and one more block of every sequence. Further blocks for
    /// its answer come later, or by preemption.
    fn admit(&mut self, now: Duration) -> Option<Effect> {
        self.next_waiting()?;
        let next = self.waiting.front()?;
        let need = self.blocks(next.feed_tokens() + 1);
        let shared = self.room.next_held_tokens / self.limits.kv_block;
        let spoken: usize = self.running.iter().map(|slot| self.missing(slot)).sum();
        let free = self.room.free_tokens / self.limits.kv_block;
        if !self.running.is_empty() && need.saturating_sub(shared) + spoken + self.running.len() > free {
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
    fn reused(&mut self, id: JobId, tokens: usize) {
        let Some(slot) = self.running.iter_mut().find(|slot| slot.request.spec.id == id) else { return };
        let done = slot.held() + tokens;
        assert!(
            done + slot.request.tail_tokens() <= slot.request.feed_tokens(),
            "a known prefix never covers the scoring window: {done} known of {:?}",
            slot.request
        );
        slot.phase = Phase::Prefill { done, borrowed: !done.is_multiple_of(self.limits.kv_block) };
    }

    /// Plans the next pass: one token of every decoding sequence, then prompts, in order of arrival.
    fn run(&mut self, now: Duration) -> Vec<Effect> {
        let mut plan = StepPlan::default();
        let mut free = self.room.free_tokens / self.limits.kv_block;
        for slot in self.running.iter().filter(|slot| slot.phase == Phase::Decode) {
            let Some(left) = free.checked_sub(self.growth(slot.held(), slot.held() + 1)) else {
                return self.make_room(now);
            };
            free = left;
            plan.rows.push(StepRow::Decode { id: slot.request.spec.id });
        }
        self.add_prompts(&mut plan, free);
        if plan.rows.is_empty() {
            return if self.running.is_empty() { Vec::new() } else { self.make_room(now) };
        }
        self.in_flight = Some(InFlight { plan: plan.clone(), planned_at: now });
        vec![Effect::Run(plan)]
    }

    /// Fills the pass's budget with chunks of prompts, as far as `free` blocks allow.
    fn add_prompts(&self, plan: &mut StepPlan, mut free: usize) {
        let whole = match plan.rows.len() {
            0 => self.limits.budget.chunk_tokens,
            rows => self.times.mixed_tokens(self.limits.budget, rows),
        };
        let mut budget = whole;
        let prefilling = self.running.iter().filter(|slot| matches!(slot.phase, Phase::Prefill { .. }));
        let mut behind = prefilling.clone().count();
        for slot in prefilling {
            let Phase::Prefill { done, borrowed } = slot.phase else { continue };
            behind -= 1;
            let (total, own) = (slot.request.feed_tokens(), usize::from(borrowed));
            let in_block = done.next_multiple_of(self.limits.kv_block) - done;
            let kv = match free.checked_sub(own) {
                Some(free) => in_block + free * self.limits.kv_block,
                None => 0,
            };
            let room = Room { budget, whole, kv, others: behind > 0 };
            let len = chunk_len(total - done, slot.request.tail_tokens(), room);
            if len == 0 {
                continue;
            }
            budget = budget.saturating_sub(len);
            free -= own + self.growth(done, done + len);
            let (id, tokens) = (slot.request.spec.id, done..done + len);
            plan.rows.push(StepRow::Prefill { id, last: tokens.end == total, tokens });
        }
    }

    /// Makes room in the KV cache for the next pass: preempts the latest arrival.
    fn make_room(&mut self, now: Duration) -> Vec<Effect> {
        let Some(mut slot) = self.running.pop() else { return Vec::new() };
        let id = slot.request.spec.id;
        if self.running.is_empty() {
            // It was checked to fit alone when it came, so the engine has less room than it reported.
            self.running.push(slot);
            return self.end(id, CloseReason::Failed, now).into_iter().collect();
        }
        slot.request.slot_time += now.saturating_sub(slot.since);
        self.waiting.push_front(slot.request);
        self.preemptions_total += 1;
        vec![Effect::Preempt(id)]
    }

    /// Parks a sequence that has written something: it frees its slot until its reader reads.
    fn park(&mut self, id: JobId, now: Duration) -> Option<Effect> {
        if self.in_flight.is_some() {
            return None;
        }
        if let Some(at) = self.running.iter().position(|slot| slot.request.spec.id == id) {
            let mut slot = self.running.remove(at);
            slot.request.slot_time += now.saturating_sub(slot.since);
            self.parked.push(slot.request);
            return Some(Effect::Preempt(id));
        }
        // It may have been preempted before.
        self.parked.extend(self.waiting.take_resumed(id));
        None
    }

    fn step_done(&mut self, outcomes: &[(JobId, Outcome)], now: Duration) -> Vec<Effect> {
        let InFlight { plan, planned_at } =
            self.in_flight.take().expect("a pass ends only after one was planned");
        let took = now.saturating_sub(planned_at);
        self.times.record(&plan, took);
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
            if let StepRow::Prefill { tokens, last, .. } = row {
                let done = tokens.end;
                slot.phase = if *last { Phase::Decode } else { Phase::Prefill { done, borrowed: false } };
            }
            if !row.samples() {
                continue;
            }
            let outcome =
                outcomes.iter().find(|(of, _)| *of == id).map_or(Outcome::Failed, |(_, outcome)| *outcome);
            let reason = slot.request.wrote(outcome, now);
            effects.extend(reason.and_then(|reason| self.end(id, reason, now)));
        }
        effects
    }

    /// Removes a sequence, wherever it is; its slot is free at once.
    fn end(&mut self, id: JobId, reason: CloseReason, now: Duration) -> Option<Effect> {
        let request = if let Some(at) = self.running.iter().position(|slot| slot.request.spec.id == id) {
            let mut slot = self.running.remove(at);
            slot.request.slot_time += now.saturating_sub(slot.since);
            slot.request
        } else if let Some(at) = self.parked.iter().position(|request| request.spec.id == id) {
            self.parked.swap_remove(at)
        } else {
            self.waiting.take(id)?
        };
        let closed = request.closed(reason, now);
        self.slot_ms_total += closed.times.slot_ms;
        self.closed_total += 1;
        Some(Effect::Close(closed))
    }

    fn opening(&self) -> bool {
        self.running.iter().any(|slot| slot.phase == Phase::Opening)
    }

    fn blocks(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.limits.kv_block)
    }

    /// Returns the number of blocks that a sequence takes when it grows.
    fn growth(&self, from: usize, to: usize) -> usize {
        self.blocks(to) - self.blocks(from)
    }

    /// Returns the number of blocks that an unfinished prompt will still take, with its first answer token.
    fn missing(&self, slot: &Slot) -> usize {
        match slot.phase {
            Phase::Opening | Phase::Decode => 0,
            Phase::Prefill { done, borrowed } => {
                self.growth(done, slot.request.feed_tokens() + 1) + usize::from(borrowed)
            }
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
        let waiting: usize = self.waiting.iter().map(Request::feed_tokens).sum();
        waiting + self.running.iter().map(Slot::missing_prompt).sum::<usize>()
    }
}
