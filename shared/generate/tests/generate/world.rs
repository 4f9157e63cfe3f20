//! A seeded world around the scheduler core: an engine that only counts, readers that cancel, and answers
//! that are held, verified and decided about. It keeps its own account of every sequence.

use std::collections::BTreeMap;
use std::time::Duration;

use baton_generate::scheduler::{
    AnswerEnd, BacklogBound, CloseReason, Effect, Event, Goal, JobId, JobSpec, Limits, MixedTokens, Outcome,
    PrefillEnd, Refusal, Room, SchedulerCore, StepBudget, StepPlan, StepRow,
};
use baton_generate::speculation::{K_MAX, Policy, SpeculationLimits};
use baton_random::SplitMix64;

use crate::{done, plain};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    Waits,
    Parked,
    Computes,
    Held,
    Decides,
    Writes,
    Over(CloseReason),
}

/// What the world knows about one sequence, separately from the scheduler's own state.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) spec: JobSpec,
    pub(crate) doing: Doing,
    /// Tokens in the KV cache.
    cached: usize,
    written: usize,
    /// Whether the given part was computed once.
    verified: bool,
    pub(crate) cancelled: bool,
    pub(crate) preempted: usize,
    proposed: u64,
}

impl Known {
    fn open(&self) -> bool {
        !matches!(self.doing, Doing::Waits | Doing::Parked | Doing::Over(_))
    }

    pub(crate) fn over(&self) -> Option<CloseReason> {
        if let Doing::Over(reason) = self.doing { Some(reason) } else { None }
    }

    fn feed(&self) -> usize {
        self.spec.prompt_tokens + self.written
    }

    fn target(&self) -> usize {
        match self.spec.goal {
            Goal::Write => self.feed(),
            Goal::Hold { upto } => upto,
            Goal::Verify { accepted } => self.feed() + accepted,
        }
    }

    fn tail(&self) -> usize {
        match self.spec.goal {
            Goal::Write if self.written > 0 => 1,
            Goal::Write => self.spec.tail_tokens.max(1),
            Goal::Hold { .. } => self.spec.tail_tokens,
            // The token before the given part, and that part.
            Goal::Verify { accepted } => accepted + 1,
        }
    }

    /// Goes on with these tokens in the cache.
    fn begin(&mut self, cached: usize) {
        self.cached = cached;
        if self.open() || self.doing == Doing::Waits {
            self.doing = Doing::Computes;
        }
    }
}

/// How often something happened.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) preemptions: u64,
    pub(crate) held: usize,
    pub(crate) verified: usize,
    pub(crate) merged: usize,
    pub(crate) decided_late: usize,
    pub(crate) prompts: usize,
    pub(crate) proposed: usize,
    pub(crate) lean: usize,
    pub(crate) parked: usize,
}

pub(crate) struct World {
    pub(crate) seed: u64,
    limits: Limits,
    pass_tokens_min: usize,
    pub(crate) core: SchedulerCore,
    pub(crate) rng: SplitMix64,
    pub(crate) known: BTreeMap<JobId, Known>,
    pub(crate) opened: Vec<JobId>,
    now: Duration,
    next_id: u64,
    /// Whether the next plan must hold no proposals.
    lean: bool,
    /// Whether a pass was just refused by the engine.
    too_large: bool,
    pub(crate) seen: Seen,
}

impl World {
    pub(crate) fn new(seed: u64) -> World {
        let mut rng = SplitMix64::new(seed);
        let policy = [None, Some(Policy::WhenItPays), Some(Policy::Always)][rng.remainder(3)];
        let limits = Limits {
            slots: 1 + rng.remainder(4),
            queue: rng.remainder(6),
            backlog: BacklogBound::NONE,
            kv_tokens: 256 + rng.remainder(1024),
            kv_block: [1, 16, 32][rng.remainder(3)],
            budget: StepBudget {
                chunk_tokens: 16 + rng.remainder(128),
                mixed: match rng.remainder(2) {
                    0 => MixedTokens::Fixed(1 + rng.remainder(64)),
                    _ => MixedTokens::MaxStall(1.5 + rng.remainder(6) as f64),
                },
            },
            admit_tokens: [1, 64][rng.remainder(2)],
            logit_rows: 1 + rng.remainder(20),
            speculation: policy.map(SpeculationLimits::lookup),
        };
        let core = SchedulerCore::new(limits);
        assert!(core.is_idle() && core.is_empty());
        World {
            seed,
            limits,
            pass_tokens_min: 1 + rng.remainder(3) * rng.remainder(60),
            core,
            rng,
            known: BTreeMap::new(),
            opened: Vec::new(),
            now: Duration::ZERO,
            next_id: 0,
            lean: false,
            too_large: false,
            seen: Seen::default(),
        }
    }

    fn blocks(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.limits.kv_block)
    }

    fn held_blocks(&self) -> usize {
        self.known.values().filter(|known| known.open()).map(|known| self.blocks(known.cached)).sum()
    }

    fn free_blocks(&self) -> usize {
        self.limits.kv_tokens / self.limits.kv_block - self.held_blocks()
    }

    fn room(&self) -> Room {
        let free_tokens = self.free_blocks() * self.limits.kv_block;
        Room { free_tokens, pass_tokens_min: self.pass_tokens_min, ..Room::default() }
    }

    fn new_spec(&mut self, id: JobId) -> JobSpec {
        let prompt_tokens = 1 + self.rng.remainder(600);
        let (max_tokens, tail) = (1 + self.rng.remainder(40), 1 + self.rng.remainder(prompt_tokens.min(40)));
        let spec = plain(id.0, prompt_tokens, max_tokens, tail);
        let pass_tokens = [usize::MAX, 1 + self.rng.remainder(100)][self.rng.remainder(2)];
        let held = |upto, tail_tokens| (Goal::Hold { upto }, tail_tokens);
        let (goal, tail_tokens) = match self.rng.remainder(6) {
            0 | 1 => held(prompt_tokens - 1, 0),
            2 if tail < prompt_tokens => held(prompt_tokens - 1, tail - tail / 2),
            _ => (Goal::Write, tail),
        };
        JobSpec { pass_tokens, goal, tail_tokens, ..spec }
    }

    pub(crate) fn submit(&mut self) {
        let id = JobId(self.next_id);
        self.next_id += 1;
        let spec = self.new_spec(id);
        let before = self.core.stats();
        let effects = self.core.step(Event::Submit(spec), self.now);
        let (seed, fits) = (self.seed, self.fits(spec.prompt_tokens + spec.max_tokens));
        match effects.as_slice() {
            [] => {
                assert!(fits, "seed {seed}: {spec:?} cannot ever run");
                let known = Known {
                    spec,
                    doing: Doing::Waits,
                    cached: 0,
                    written: 0,
                    verified: false,
                    cancelled: false,
                    preempted: 0,
                    proposed: 0,
                };
                self.known.insert(id, known);
            }
            [Effect::Refuse(refused, Refusal::TooLarge { .. })] => {
                assert_eq!(*refused, id);
                assert!(!fits, "seed {seed}: {spec:?} would fit");
            }
            [Effect::Refuse(refused, Refusal::Full { waiting, .. })] => {
                assert_eq!((*refused, *waiting), (id, before.waiting));
                let all = self.limits.slots + self.limits.queue;
                // Those that were parked come back even if it is full.
                assert!(before.waiting + before.running >= all, "seed {seed}");
            }
            other => panic!("seed {seed}: submit gave {other:?}"),
        }
    }

    fn fits(&self, tokens: usize) -> bool {
        self.blocks(tokens) * self.limits.kv_block <= self.limits.kv_tokens
    }

    fn live(&mut self, of: impl Fn(&Known) -> bool) -> Option<JobId> {
        let live = self.known.iter().filter(|(_, known)| known.over().is_none() && of(known));
        let live: Vec<JobId> = live.map(|(id, _)| *id).collect();
        (!live.is_empty()).then(|| live[self.rng.remainder(live.len())])
    }

    pub(crate) fn cancel_one(&mut self) {
        let Some(id) = self.live(|_| true) else { return };
        self.cancel(id);
    }

    fn cancel(&mut self, id: JobId) {
        let before = self.core.stats();
        let was_open = self.known[&id].open();
        let effects = self.core.step(Event::Cancel(id), self.now);
        self.known.get_mut(&id).unwrap().cancelled = true;
        self.perform(effects);
        let after = self.core.stats();
        assert_eq!(self.known[&id].over(), Some(CloseReason::Cancelled), "seed {}", self.seed);
        if was_open {
            assert_eq!(after.running, before.running - 1, "seed {}: the slot is free at once", self.seed);
        }
        assert!(self.core.step(Event::Cancel(id), self.now).is_empty(), "a second cancel does nothing");
    }

    /// Lets a reader stop reading, or all of them read again.
    pub(crate) fn mind_readers(&mut self, all_read: bool) {
        if all_read {
            while let Some(id) = self.live(|known| known.doing == Doing::Parked) {
                assert!(self.core.step(Event::Unpark(id), self.now).is_empty());
                self.known.get_mut(&id).unwrap().doing = Doing::Waits;
            }
            return;
        }
        let Some(id) = self.live(|known| known.doing != Doing::Parked) else { return };
        let before = self.core.stats().parked;
        let effects = self.core.step(Event::Park(id), self.now);
        let known = self.known.get_mut(&id).unwrap();
        let seed = self.seed;
        match effects[..] {
            [Effect::Preempt(parked)] => assert!(parked == id && known.open(), "seed {seed}"),
            [] => assert!(known.written == 0 || known.doing == Doing::Waits, "seed {seed}"),
            _ => panic!("seed {seed}: {effects:?}"),
        }
        if self.core.stats().parked > before {
            assert!(known.written > 0, "seed {seed}: nothing of it is unread");
            (known.doing, known.cached) = (Doing::Parked, 0);
            known.preempted += 1;
            self.seen.parked += 1;
        }
    }

    /// Orders something of one sequence that may take an order, if there is one. `end`: of one that can do
    /// nothing without an order, and nothing that makes it wait again.
    pub(crate) fn order(&mut self, end: bool) -> bool {
        let orderly = |known: &Known| match known.spec.goal {
            Goal::Hold { .. } => !end || known.doing == Doing::Held,
            Goal::Verify { .. } => (known.verified && !end) || known.doing == Doing::Decides,
            Goal::Write => false,
        };
        let Some(id) = self.live(orderly) else { return false };
        match self.known[&id].spec.goal {
            Goal::Verify { accepted } => self.decide(id, accepted),
            _ if self.known[&id].spec.tail_tokens > 0 => self.cancel(id),
            _ if !end && self.rng.remainder(3) == 0 => self.prompt(id),
            _ => self.accept(id),
        }
        true
    }

    fn prompt(&mut self, id: JobId) {
        self.seen.prompts += 1;
        let spec = JobSpec { tail_tokens: 0, ..self.new_spec(id) };
        let known = &self.known[&id];
        let most = match spec.goal {
            Goal::Hold { upto } => upto,
            _ => spec.prompt_tokens - 1,
        };
        let most = most.min(known.cached);
        let kept = self.rng.remainder(most + 1);
        let JobSpec { prompt_tokens, max_tokens, pass_tokens, goal, .. } = spec;
        let event = Event::Prompt { id, prompt_tokens, max_tokens, pass_tokens, kept, goal };
        let effects = self.core.step(event, self.now);
        if self.fits(prompt_tokens + max_tokens) {
            let known = self.known.get_mut(&id).unwrap();
            known.spec = spec;
            if known.open() {
                known.begin(kept);
            }
        } else {
            assert!(matches!(effects[..], [Effect::Close(_)]), "seed {}: {effects:?}", self.seed);
        }
        self.perform(effects);
    }

    fn accept(&mut self, id: JobId) {
        let accepted = self.rng.remainder(self.known[&id].spec.max_tokens + 1);
        let effects = self.core.step(Event::Accept { id, accepted }, self.now);
        assert!(effects.is_empty(), "seed {}: {effects:?}", self.seed);
        let known = self.known.get_mut(&id).unwrap();
        known.spec.goal = Goal::Verify { accepted };
        if known.open() {
            known.doing = Doing::Computes;
        }
    }

    fn decide(&mut self, id: JobId, accepted: usize) {
        let kept = self.rng.remainder(accepted + 1);
        let known = self.known.get_mut(&id).unwrap();
        let tokens = (kept + 1).min(known.spec.max_tokens);
        let stop = self.rng.remainder(20) == 0;
        let end = match tokens == known.spec.max_tokens {
            true => Some(AnswerEnd::Cap),
            false => stop.then_some(AnswerEnd::Stop),
        };
        (known.written, known.spec.goal) = (tokens, Goal::Write);
        known.cached = known.cached.min(known.spec.prompt_tokens + kept);
        match known.doing {
            Doing::Decides => known.doing = Doing::Writes,
            _ => self.seen.decided_late += 1,
        }
        let effects = self.core.step(Event::Decided { id, kept, tokens, end }, self.now);
        self.perform(effects);
        assert_eq!(self.known[&id].over().is_some(), end.is_some(), "seed {}", self.seed);
    }

    /// Performs effects until only a pass is left to run.
    fn perform(&mut self, effects: Vec<Effect>) -> Option<StepPlan> {
        let (mut plan, seed) = (None, self.seed);
        for effect in effects {
            match effect {
                Effect::Open(id) => {
                    let most = self.known[&id].target() - self.known[&id].tail();
                    let most = most.min(self.free_blocks() * self.limits.kv_block);
                    let cached = self.rng.remainder(most + 1);
                    let known = self.known.get_mut(&id).unwrap();
                    assert_eq!(known.doing, Doing::Waits, "seed {seed}");
                    known.begin(cached);
                    if known.preempted == 0 {
                        self.opened.push(id);
                    }
                    let room = self.room();
                    let effects = self.core.step(Event::Opened { id, cached, room }, self.now);
                    plan = plan.or(self.perform(effects));
                }
                Effect::Held(id) => {
                    let known = self.known.get_mut(&id).unwrap();
                    assert_eq!((known.doing, known.cached), (Doing::Computes, known.target()), "seed {seed}");
                    known.doing = Doing::Held;
                }
                Effect::Preempt(id) => self.preempted(id),
                Effect::Run(run) => plan = Some(run),
                Effect::Close(closed) => {
                    let known = self.known.get_mut(&closed.id).unwrap();
                    assert_eq!(known.over(), None, "seed {seed}: one end per sequence");
                    assert_eq!(closed.tokens, known.written, "seed {seed}");
                    let proposed = closed.speculation.map_or(0, |stats| stats.proposed);
                    assert_eq!(proposed, known.proposed, "seed {seed}");
                    known.doing = Doing::Over(closed.reason);
                }
                Effect::Refuse(..) => panic!("seed {seed}: refused after acceptance"),
            }
        }
        plan
    }

    fn preempted(&mut self, id: JobId) {
        let seed = self.seed;
        let open: Vec<&Known> = self.known.values().filter(|known| known.open()).collect();
        assert_eq!(open.last().map(|known| known.spec.id), Some(id), "seed {seed}: the latest arrival");
        assert!(open.len() > 1, "seed {seed}: the oldest goes on");
        if !self.too_large && open.iter().all(|known| known.doing != Doing::Computes) {
            let writing = open.iter().filter(|known| known.doing == Doing::Writes);
            let next = writing.map(|known| self.blocks(known.cached + 1) - self.blocks(known.cached));
            assert!(next.sum::<usize>() > self.free_blocks(), "seed {seed}: proposals preempt nobody");
        }
        self.seen.preemptions += 1;
        let known = self.known.get_mut(&id).unwrap();
        (known.doing, known.cached) = (Doing::Waits, 0);
        known.preempted += 1;
    }

    fn check_plan(&mut self, plan: &StepPlan) {
        let (seed, free) = (self.seed, self.free_blocks());
        let (mut longest_tail, mut blocks, mut plain_blocks, mut kinds) = (0, 0, 0, Vec::new());
        for (at, row) in plan.rows.iter().enumerate() {
            assert!(plan.rows[..at].iter().all(|other| other.id() != row.id()), "seed {seed}: one row each");
            let known = &self.known[&row.id()];
            let (plain, end) = match row {
                StepRow::Decode { proposed, .. } => {
                    kinds.push(0);
                    assert_eq!(known.doing, Doing::Writes, "seed {seed}");
                    let most = known.spec.max_tokens - known.written - 1;
                    assert!(*proposed <= most.min(K_MAX).min(self.limits.logit_rows - 1), "seed {seed}");
                    (known.cached + 1, known.cached + 1 + proposed)
                }
                StepRow::Verify { tokens, last, .. } => {
                    kinds.push(1);
                    let first = known.feed() - 1;
                    assert!(matches!(known.spec.goal, Goal::Verify { .. }), "seed {seed}");
                    assert!(tokens.end > first && tokens.len() <= self.limits.logit_rows, "seed {seed}");
                    assert_eq!(*last, tokens.end == known.target(), "seed {seed}");
                    self.seen.merged += usize::from(tokens.start < first);
                    self.check_chunk(known, tokens.start);
                    (tokens.end, tokens.end)
                }
                StepRow::Prefill { tokens, end, .. } => {
                    kinds.push(if matches!(known.spec.goal, Goal::Verify { .. }) { 1 } else { 2 });
                    self.check_chunk(known, tokens.start);
                    let window = known.target() - known.tail();
                    match end {
                        PrefillEnd::More => assert!(tokens.end <= window, "seed {seed}: the tail is cut"),
                        _ => assert!(tokens.start <= window && tokens.end == known.target(), "seed {seed}"),
                    }
                    assert_eq!(*end == PrefillEnd::Sampled, tokens.end == known.feed(), "seed {seed}");
                    let cap = known.spec.pass_tokens.max(self.pass_tokens_min);
                    assert!(tokens.len() <= cap.max(known.tail()), "seed {seed}: {row:?} of {cap}");
                    longest_tail = longest_tail.max(known.tail());
                    (tokens.end, tokens.end)
                }
            };
            let before = self.blocks(known.cached);
            blocks += self.blocks(end) - before;
            plain_blocks += self.blocks(plain) - before;
        }
        assert!(kinds.is_sorted(), "seed {seed}: answers, given parts, prompts: {plan:?}");
        assert!(blocks <= free, "seed {seed}: a pass fits into the cache");
        let count = |doing| self.known.values().filter(|known| known.doing == doing).count();
        assert_eq!(plan.decode_rows(), count(Doing::Writes), "seed {seed}: every answer is in every pass");
        if plan.proposed_tokens() > 0 {
            assert!(!self.lean && count(Doing::Computes) == 0, "seed {seed}: {plan:?}");
            assert!(plan.proposed_tokens() <= 16, "seed {seed}: {plan:?}");
            let spare = blocks == plain_blocks || blocks + plan.rows.len() <= free;
            assert!(spare, "seed {seed}: one more block for everybody is left: {plan:?}");
        }
        self.lean = false;
        let stats = self.core.stats();
        let alone = stats.chunk_tokens.max(self.pass_tokens_min);
        let budget = if plan.decode_rows() > 0 { stats.mixed_tokens } else { alone };
        assert!(plan.prefill_tokens() <= budget.max(longest_tail), "seed {seed}: within the budget");
        let need = (plain_blocks) * self.limits.kv_block;
        assert!(need <= self.core.need_tokens(), "seed {seed}: {need} of {}", self.core.need_tokens());
    }

    fn check_chunk(&self, known: &Known, start: usize) {
        assert_eq!((known.doing, known.cached), (Doing::Computes, start), "seed {}", self.seed);
    }

    fn run(&mut self, plan: &StepPlan) {
        self.now += Duration::from_millis(1 + self.rng.remainder(20) as u64);
        if self.rng.remainder(20) == 0 {
            let effects = self.core.step(Event::StepUndone, self.now);
            assert!(effects.is_empty());
            return;
        }
        if self.rng.remainder(40) == 0 {
            let effects = self.core.step(Event::StepTooLarge, self.now);
            self.lean = plan.proposed_tokens() > 0;
            self.seen.lean += usize::from(self.lean);
            assert_eq!(effects.len(), usize::from(!self.lean), "seed {}: somebody gives way", self.seed);
            self.too_large = true;
            self.perform(effects);
            self.too_large = false;
            return;
        }
        if self.rng.remainder(6) == 0 {
            self.cancel_one();
        }
        let mut outcomes = Vec::new();
        for row in &plan.rows {
            self.computed(row);
            if row.samples() {
                outcomes.push((row.id(), self.outcome(row)));
            }
        }
        let effects = self.core.step(done(outcomes), self.now);
        self.perform(effects);
    }

    fn computed(&mut self, row: &StepRow) {
        let Some(known) = self.known.get_mut(&row.id()).filter(|known| known.over().is_none()) else {
            return;
        };
        let (end, doing) = match row {
            StepRow::Decode { .. } => (known.cached + 1, Doing::Writes),
            StepRow::Prefill { tokens, end: PrefillEnd::More, .. }
            | StepRow::Verify { tokens, last: false, .. } => (tokens.end, Doing::Computes),
            StepRow::Prefill { tokens, end: PrefillEnd::Held, .. } => (tokens.end, Doing::Held),
            StepRow::Prefill { tokens, end: PrefillEnd::Sampled, .. } => (tokens.end, Doing::Writes),
            StepRow::Verify { tokens, last: true, .. } => (tokens.end, Doing::Decides),
        };
        (known.cached, known.doing) = (end, doing);
        known.verified |= doing == Doing::Decides;
        self.seen.verified += usize::from(doing == Doing::Decides);
        self.seen.held += usize::from(doing == Doing::Held);
    }

    fn outcome(&mut self, row: &StepRow) -> Outcome {
        let most = if let StepRow::Decode { proposed, .. } = row { *proposed } else { 0 };
        let proposed = self.rng.remainder(most + 1);
        let accepted = self.rng.remainder(proposed + 1);
        let roll = self.rng.remainder(40);
        let known = self.known.get_mut(&row.id()).unwrap();
        let (written, end) = match roll {
            0 => (accepted, Some(AnswerEnd::Stop)),
            1 => (accepted + 1, Some(AnswerEnd::Stop)),
            2 => (accepted, Some(AnswerEnd::Failed)),
            _ => (accepted + 1, None),
        };
        if known.over().is_some() {
            return Outcome { proposed, accepted, written, end };
        }
        known.cached += accepted;
        known.written += written;
        known.proposed += proposed as u64;
        self.seen.proposed += proposed;
        assert!(known.written <= known.spec.max_tokens, "seed {}: at most L tokens", self.seed);
        let cap = (known.written == known.spec.max_tokens).then_some(AnswerEnd::Cap);
        Outcome { proposed, accepted, written, end: end.or(cap) }
    }

    fn check_state(&self) {
        let (stats, seed) = (self.core.stats(), self.seed);
        let open = self.known.values().filter(|known| known.open()).count();
        let held = |known: &&Known| matches!(known.doing, Doing::Held | Doing::Decides);
        assert_eq!(stats.running, open, "seed {seed}");
        let parked = self.known.values().filter(|known| known.doing == Doing::Parked).count();
        assert_eq!(stats.parked, parked, "seed {seed}");
        assert_eq!(stats.held, self.known.values().filter(held).count(), "seed {seed}");
        assert_eq!(stats.kv_held_tokens, self.held_blocks() * self.limits.kv_block, "seed {seed}");
        assert_eq!(stats.preemptions_total, self.seen.preemptions, "seed {seed}");
        let within = stats.running <= self.limits.slots && stats.kv_held_tokens <= self.limits.kv_tokens;
        assert!(within, "seed {seed}: {stats:?}");
        for (id, known) in &self.known {
            let stats = self.core.speculation_of(*id).map_or(0, |stats| stats.proposed);
            assert!(known.over().is_some() || stats == known.proposed, "seed {seed}: {known:?}");
        }
    }

    /// Turns until a pass runs; returns false if nothing is left to run.
    pub(crate) fn turn(&mut self) -> bool {
        let plan = loop {
            let effects = self.core.step(Event::Turn(self.room()), self.now);
            if effects.is_empty() {
                self.check_state();
                return false;
            }
            if let Some(plan) = self.perform(effects) {
                break plan;
            }
            self.check_state();
        };
        self.check_state();
        self.check_plan(&plan);
        assert!(self.core.step(Event::Turn(self.room()), self.now).is_empty(), "one pass at a time");
        self.run(&plan);
        self.check_state();
        true
    }
}
