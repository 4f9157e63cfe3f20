//! Seeded simulation of the scheduler core: slots, KV room, preemption, fairness, cancellation, one end per
//! sequence.

use std::collections::HashMap;
use std::time::Duration;

use baton_cloud::service::scheduler::{
    BacklogBound, CloseReason, Effect, Event, JobId, JobSpec, KvRoom, Limits, MixedTokens, Outcome,
    QueueLimit, Refusal, SchedulerCore, Share, StepBudget, StepPlan, StepRow,
};
use baton_random::SplitMix64;

/// Returns a request without bytes, deadline or tenant, whose cap is not lowered.
fn plain(id: u64, prompt_tokens: usize, max_tokens: usize, tail_tokens: usize) -> JobSpec {
    JobSpec {
        id: JobId(id),
        prompt_tokens,
        max_tokens,
        floor_tokens: max_tokens,
        tail_tokens,
        bytes: 0,
        deadline: None,
        share: Share::default(),
    }
}

/// What the simulation knows about one sequence, separately from the scheduler's own state.
#[derive(Debug, Default)]
struct Known {
    spec: Option<JobSpec>,
    /// Tokens in the KV cache.
    done: usize,
    decoding: bool,
    open: bool,
    written: usize,
    closed: Option<CloseReason>,
    cancelled: bool,
    preempted: usize,
}

impl Known {
    fn total(&self) -> usize {
        self.spec.unwrap().prompt_tokens + self.written
    }

    fn tail(&self) -> usize {
        if self.written == 0 { self.spec.unwrap().tail_tokens } else { 1 }
    }
}

struct World {
    seed: u64,
    limits: Limits,
    core: SchedulerCore,
    rng: SplitMix64,
    known: HashMap<JobId, Known>,
    order: Vec<JobId>,
    opened: Vec<JobId>,
    now: Duration,
    next_id: u64,
    preemptions: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = SplitMix64::new(seed);
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
        };
        let core = SchedulerCore::new(limits);
        let world = World {
            seed,
            limits,
            core,
            rng,
            known: HashMap::new(),
            order: Vec::new(),
            opened: Vec::new(),
            now: Duration::ZERO,
            next_id: 0,
            preemptions: 0,
        };
        assert!(world.core.is_idle());
        world
    }

    /// Returns the number of blocks that open sequences hold.
    fn held_blocks(&self) -> usize {
        let open = self.known.values().filter(|known| known.open);
        open.map(|known| known.done.div_ceil(self.limits.kv_block)).sum()
    }

    fn free_blocks(&self) -> usize {
        self.limits.kv_tokens / self.limits.kv_block - self.held_blocks()
    }

    fn room(&self) -> KvRoom {
        KvRoom { free_tokens: self.free_blocks() * self.limits.kv_block, next_held_tokens: 0 }
    }

    fn submit(&mut self) {
        let id = JobId(self.next_id);
        self.next_id += 1;
        let prompt_tokens = 1 + self.rng.remainder(600);
        let max_tokens = 1 + self.rng.remainder(40);
        let tail_tokens = 1 + self.rng.remainder(prompt_tokens.min(40));
        let spec = plain(id.0, prompt_tokens, max_tokens, tail_tokens);
        let before = self.core.stats();
        let effects = self.core.step(Event::Submit(spec), self.now);
        let need = (spec.prompt_tokens + spec.max_tokens).next_multiple_of(self.limits.kv_block);
        match effects.as_slice() {
            [] => {
                assert!(need <= self.limits.kv_tokens, "seed {}: {spec:?} cannot ever run", self.seed);
                self.known.insert(id, Known { spec: Some(spec), ..Known::default() });
                self.order.push(id);
            }
            [Effect::Refuse(refused, Refusal::TooLarge { .. })] => {
                assert_eq!(*refused, id);
                assert!(need > self.limits.kv_tokens, "seed {}: {spec:?} would fit", self.seed);
            }
            [Effect::Refuse(refused, Refusal::Full { waiting, .. })] => {
                assert_eq!(*refused, id);
                assert_eq!(*waiting, before.waiting);
                assert_eq!(
                    before.waiting + before.running,
                    self.limits.slots + self.limits.queue,
                    "seed {}",
                    self.seed
                );
            }
            other => panic!("seed {}: submit gave {other:?}", self.seed),
        }
    }

    fn cancel_one(&mut self) {
        let live: Vec<JobId> =
            self.order.iter().copied().filter(|id| self.known[id].closed.is_none()).collect();
        if live.is_empty() {
            return;
        }
        let id = live[self.rng.remainder(live.len())];
        let before = self.core.stats();
        let was_open = self.known[&id].open;
        let effects = self.core.step(Event::Cancel(id), self.now);
        self.known.get_mut(&id).unwrap().cancelled = true;
        self.perform(effects);
        let after = self.core.stats();
        assert_eq!(self.known[&id].closed, Some(CloseReason::Cancelled), "seed {}", self.seed);
        if was_open {
            assert_eq!(after.running, before.running - 1, "seed {}: the slot is free at once", self.seed);
        }
        assert!(self.core.step(Event::Cancel(id), self.now).is_empty(), "a second cancel does nothing");
    }

    /// Performs effects until only a pass is left to run.
    fn perform(&mut self, effects: Vec<Effect>) -> Option<StepPlan> {
        let mut plan = None;
        for effect in effects {
            match effect {
                Effect::Open(id) => {
                    let (free, block) = (self.free_blocks(), self.limits.kv_block);
                    let known = &self.known[&id];
                    let cached = self.rng.remainder(known.total() - known.tail() + 1).min(free * block);
                    let known = self.known.get_mut(&id).unwrap();
                    assert!(!known.open && known.closed.is_none(), "seed {}", self.seed);
                    (known.open, known.done) = (true, cached);
                    if known.preempted == 0 {
                        self.opened.push(id);
                    }
                    let room = self.room();
                    let effects = self.core.step(Event::Opened { id, cached, room }, self.now);
                    plan = plan.or(self.perform(effects));
                }
                Effect::Preempt(id) => {
                    let open = self.order.iter().filter(|id| self.known[id].open);
                    assert_eq!(open.clone().next_back(), Some(&id), "seed {}: the latest arrival", self.seed);
                    assert!(open.count() > 1, "seed {}: the oldest goes on", self.seed);
                    self.preemptions += 1;
                    let known = self.known.get_mut(&id).unwrap();
                    (known.open, known.done, known.decoding) = (false, 0, false);
                    known.preempted += 1;
                }
                Effect::Run(run) => plan = Some(run),
                Effect::Close(closed) => {
                    let known = self.known.get_mut(&closed.id).unwrap();
                    assert_eq!(known.closed, None, "seed {}: one end per sequence", self.seed);
                    assert_eq!(closed.tokens, known.written, "seed {}", self.seed);
                    known.closed = Some(closed.reason);
                    known.open = false;
                }
                Effect::Refuse(..) => panic!("seed {}: refused after acceptance", self.seed),
            }
        }
        plan
    }

    fn check_plan(&self, plan: &StepPlan) {
        let seed = self.seed;
        let (mut longest_tail, mut blocks) = (0, 0);
        for (at, row) in plan.rows.iter().enumerate() {
            assert!(
                plan.rows[..at].iter().all(|other| other.id() != row.id()),
                "seed {seed}: one row a sequence"
            );
            let known = &self.known[&row.id()];
            assert!(known.open && known.closed.is_none(), "seed {seed}: only live sequences run");
            let end = match row {
                StepRow::Decode { .. } => {
                    assert!(known.decoding, "seed {seed}");
                    known.done + 1
                }
                StepRow::Prefill { tokens, last, .. } => {
                    assert!(
                        !known.decoding && tokens.start == known.done && !tokens.is_empty(),
                        "seed {seed}"
                    );
                    assert_eq!(*last, tokens.end == known.total(), "seed {seed}");
                    let window = known.total() - known.tail();
                    assert!(
                        if *last { tokens.start <= window } else { tokens.end <= window },
                        "seed {seed}: window cut"
                    );
                    longest_tail = longest_tail.max(known.tail());
                    tokens.end
                }
            };
            blocks += end.div_ceil(self.limits.kv_block) - known.done.div_ceil(self.limits.kv_block);
        }
        assert!(blocks <= self.free_blocks(), "seed {seed}: a pass fits into the cache");
        let decoding = self.known.values().filter(|known| known.open && known.decoding).count();
        assert_eq!(plan.decode_rows(), decoding, "seed {seed}: every decoding sequence is in every pass");
        let stats = self.core.stats();
        let budget = if decoding > 0 { stats.mixed_tokens } else { stats.chunk_tokens };
        assert!(plan.prefill_tokens() <= budget.max(longest_tail), "seed {seed}: within the budget");
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
            assert_eq!(effects.len(), 1, "seed {}: somebody gives way", self.seed);
            self.perform(effects);
            return;
        }
        if self.rng.remainder(6) == 0 {
            self.cancel_one();
        }
        let mut outcomes = Vec::new();
        for row in &plan.rows {
            let seed = self.seed;
            let roll = self.rng.remainder(40);
            let known = self.known.get_mut(&row.id()).unwrap();
            match row {
                StepRow::Prefill { tokens, last, .. } => {
                    (known.done, known.decoding) = (tokens.end, *last);
                }
                StepRow::Decode { .. } => known.done += 1,
            }
            if row.samples() {
                let outcome = match roll {
                    0 => Outcome::EndOfText,
                    1 => Outcome::LastToken,
                    2 => Outcome::Failed,
                    _ => Outcome::Token,
                };
                if known.closed.is_none() && matches!(outcome, Outcome::Token | Outcome::LastToken) {
                    known.written += 1;
                    assert!(known.written <= known.spec.unwrap().max_tokens, "seed {seed}: at most L tokens");
                }
                outcomes.push((row.id(), outcome));
            }
        }
        let effects = self.core.step(Event::StepDone(outcomes), self.now);
        self.perform(effects);
    }

    fn check_state(&self) {
        let stats = self.core.stats();
        let open = self.known.values().filter(|known| known.open).count();
        assert_eq!(stats.running, open, "seed {}", self.seed);
        assert_eq!(stats.kv_held_tokens, self.held_blocks() * self.limits.kv_block, "seed {}", self.seed);
        assert_eq!(stats.preemptions_total, self.preemptions, "seed {}", self.seed);
        assert!(
            stats.running <= self.limits.slots && stats.kv_held_tokens <= self.limits.kv_tokens,
            "seed {}",
            self.seed
        );
    }

    /// Turns until a pass runs; returns false if nothing is left to run.
    fn turn(&mut self) -> bool {
        let plan = loop {
            let effects = self.core.step(Event::Turn(self.room()), self.now);
            if effects.is_empty() {
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

#[test]
fn slots_and_kv_never_leak_and_everyone_ends_once() {
    let (mut preemptions, mut resumed) = (0, 0);
    for seed in 0..400 {
        let mut world = World::new(seed);
        for _ in 0..200 {
            if world.rng.remainder(3) == 0 {
                world.submit();
            }
            if world.rng.remainder(25) == 0 {
                world.cancel_one();
            }
            world.turn();
        }
        let mut turns = 0;
        while !world.core.is_idle() {
            assert!(world.turn(), "seed {seed}: work waits but nothing runs");
            turns += 1;
            assert!(turns < 20_000, "seed {seed}: every sequence ends in bounded time");
        }
        let stats = world.core.stats();
        assert_eq!((stats.running, stats.waiting, stats.kv_held_tokens, stats.backlog_tokens), (0, 0, 0, 0));
        assert_eq!(stats.closed_total, world.order.len() as u64, "seed {seed}");
        let admitted: Vec<JobId> =
            world.order.iter().copied().filter(|id| world.opened.contains(id)).collect();
        assert_eq!(admitted, world.opened, "seed {seed}: first come, first served");
        for (id, known) in &world.known {
            assert!(known.closed.is_some(), "seed {seed}: {id:?} has no end");
            assert_eq!(known.closed == Some(CloseReason::Cancelled), known.cancelled, "seed {seed}: {id:?}");
            let whole = matches!(known.closed, Some(CloseReason::Cap | CloseReason::Stop));
            resumed += usize::from(known.preempted > 0 && whole);
        }
        preemptions += world.preemptions;
    }
    assert!(preemptions > 300 && resumed > 100, "{preemptions} preemptions, {resumed} ended after one");
}

fn chunks(tokens: usize) -> StepBudget {
    StepBudget { chunk_tokens: tokens, mixed: MixedTokens::Fixed(tokens) }
}

fn room(free_tokens: usize) -> KvRoom {
    KvRoom { free_tokens, next_held_tokens: 0 }
}

#[test]
fn the_slot_is_free_in_the_pass_that_reaches_the_cap() {
    let limits = Limits {
        slots: 1,
        queue: 1,
        backlog: BacklogBound::NONE,
        kv_tokens: 128,
        kv_block: 1,
        budget: chunks(64),
    };
    let mut core = SchedulerCore::new(limits);
    let at = Duration::from_millis;
    let spec = |id| plain(id, 100, 2, 10);
    assert!(core.step(Event::Submit(spec(1)), at(0)).is_empty());
    assert!(core.step(Event::Submit(spec(2)), at(0)).is_empty());
    assert_eq!(core.step(Event::Turn(room(128)), at(5)), [Effect::Open(JobId(1))]);
    let run = core.step(Event::Opened { id: JobId(1), cached: 0, room: room(128) }, at(5));
    let chunk = |tokens, last| {
        vec![Effect::Run(StepPlan { rows: vec![StepRow::Prefill { id: JobId(1), tokens, last }] })]
    };
    assert_eq!(run, chunk(0..64, false));
    assert!(core.step(Event::StepDone(vec![]), at(10)).is_empty());
    assert_eq!(core.step(Event::Turn(room(64)), at(10)), chunk(64..100, true));
    assert!(core.step(Event::StepDone(vec![(JobId(1), Outcome::Token)]), at(20)).is_empty());
    assert_eq!(
        core.step(Event::Turn(room(28)), at(20)),
        [Effect::Run(StepPlan { rows: vec![StepRow::Decode { id: JobId(1) }] })]
    );
    let effects = core.step(Event::StepDone(vec![(JobId(1), Outcome::Token)]), at(30));
    let [Effect::Close(closed)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!((closed.reason, closed.tokens), (CloseReason::Cap, 2));
    let times = closed.times;
    let want = (5.0, 15.0, 10.0, 25.0);
    assert_eq!((times.queue_ms, times.prefill_ms, times.decode_ms, times.slot_ms), want);
    assert_eq!(
        core.step(Event::Turn(room(128)), at(30)),
        [Effect::Open(JobId(2))],
        "the next one starts in the same turn"
    );
    assert_eq!(core.stats().slot_ms_total, 25.0);
}

#[test]
fn a_full_queue_refuses_with_its_backlog() {
    let limits = Limits {
        slots: 1,
        queue: 1,
        backlog: BacklogBound::NONE,
        kv_tokens: 1000,
        kv_block: 1,
        budget: chunks(64),
    };
    let mut core = SchedulerCore::new(limits);
    let spec = |id| plain(id, 100, 2, 10);
    assert!(core.step(Event::Submit(spec(1)), Duration::ZERO).is_empty());
    assert!(core.step(Event::Submit(spec(2)), Duration::ZERO).is_empty());
    let refused = core.step(Event::Submit(spec(3)), Duration::ZERO);
    let [Effect::Refuse(JobId(3), Refusal::Full { limit, waiting: 2, backlog_tokens: 200, .. })] =
        refused[..]
    else {
        panic!("{refused:?}")
    };
    assert_eq!(limit, QueueLimit::Requests(1));
}

#[test]
fn a_request_is_let_in_by_what_it_needs_now() {
    let limits = Limits {
        slots: 4,
        queue: 4,
        backlog: BacklogBound::NONE,
        kv_tokens: 320,
        kv_block: 32,
        budget: chunks(512),
    };
    let mut core = SchedulerCore::new(limits);
    let at = Duration::ZERO;
    // At their longest they need 7 blocks each; now they need 3 and a bit.
    let spec = |id| plain(id, 100, 120, 1);
    for id in 1..=3 {
        assert!(core.step(Event::Submit(spec(id)), at).is_empty());
    }
    assert_eq!(core.step(Event::Turn(room(320)), at), [Effect::Open(JobId(1))]);
    assert_eq!(core.next_waiting(), Some(JobId(2)));
    let opened = |id, room| Event::Opened { id: JobId(id), cached: 0, room };
    assert_eq!(
        core.step(opened(1, room(320)), at),
        [Effect::Open(JobId(2))],
        "4 + 4 blocks and one more each"
    );
    let effects = core.step(opened(2, room(320)), at);
    let [Effect::Run(plan)] = effects.as_slice() else { panic!("the third does not fit: {effects:?}") };
    assert_eq!(plan.prefill_tokens(), 200);
    let tokens = |ids: &[u64]| Event::StepDone(ids.iter().map(|id| (JobId(*id), Outcome::Token)).collect());
    core.step(tokens(&[1, 2]), at);
    let known = KvRoom { free_tokens: 64, next_held_tokens: 96 };
    let effects = core.step(Event::Turn(known), at);
    let [Effect::Run(plan)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(plan.decode_rows(), 2, "one block, and two for those that run: one too many");
    core.step(tokens(&[1, 2]), at);
    let known = KvRoom { free_tokens: 96, next_held_tokens: 96 };
    assert_eq!(
        core.step(Event::Turn(known), at),
        [Effect::Open(JobId(3))],
        "its prefix is held by the others"
    );
}

#[test]
fn the_latest_arrival_gives_way_and_goes_on_where_it_was() {
    let limits = Limits {
        slots: 2,
        queue: 4,
        backlog: BacklogBound::NONE,
        kv_tokens: 128,
        kv_block: 32,
        budget: chunks(512),
    };
    let mut core = SchedulerCore::new(limits);
    let at = Duration::from_millis;
    let spec = |id| plain(id, 31, 90, 8);
    core.step(Event::Submit(spec(1)), at(0));
    core.step(Event::Submit(spec(2)), at(0));
    core.step(Event::Submit(spec(3)), at(0));
    core.step(Event::Turn(room(128)), at(0));
    core.step(Event::Opened { id: JobId(1), cached: 0, room: room(128) }, at(0));
    core.step(Event::Opened { id: JobId(2), cached: 0, room: room(128) }, at(0));
    let tokens = |ids: &[u64]| Event::StepDone(ids.iter().map(|id| (JobId(*id), Outcome::Token)).collect());
    core.step(tokens(&[1, 2]), at(10));
    for pass in 0..33 {
        assert!(matches!(core.step(Event::Turn(room(64)), at(10))[..], [Effect::Run(_)]), "pass {pass}");
        core.step(tokens(&[1, 2]), at(10));
    }
    // Both hold 64 tokens, 34 of them written, and no block is left.
    assert_eq!(core.step(Event::Turn(room(0)), at(20)), [Effect::Preempt(JobId(2))]);
    assert_eq!((core.stats().waiting, core.stats().preemptions_total), (2, 1));
    let alone = core.step(Event::Turn(room(64)), at(20));
    assert_eq!(alone, [Effect::Run(StepPlan { rows: vec![StepRow::Decode { id: JobId(1) }] })]);
    core.step(Event::StepDone(vec![(JobId(1), Outcome::EndOfText)]), at(40));
    assert_eq!(core.step(Event::Turn(room(128)), at(50)), [Effect::Open(JobId(2))], "before the third");
    let effects = core.step(Event::Opened { id: JobId(2), cached: 32, room: room(96) }, at(50));
    let row = StepRow::Prefill { id: JobId(2), tokens: 32..65, last: true };
    let [Effect::Run(plan)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(plan.rows, [row], "what it wrote is computed again; the third does not fit beside it");
    core.step(Event::StepDone(vec![(JobId(2), Outcome::Token)]), at(60));
    let effects = core.step(Event::Cancel(JobId(2)), at(70));
    let [Effect::Close(closed)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!((closed.tokens, closed.times.slot_ms), (35, 20.0 + 20.0), "the pause is no slot time");
    assert_eq!((closed.times.prefill_ms, closed.times.decode_ms), (10.0, 60.0));
}

/// Returns the time that a machine needs for a pass, in milliseconds: to read weights and to compute rows.
fn machine_ms(plan: &StepPlan) -> f64 {
    let rows = (plan.prefill_tokens() + plan.decode_rows()) as f64;
    (30.0 + 0.5 * rows).max(2.0 * rows)
}

#[test]
fn no_running_answer_waits_for_more_than_the_stall() {
    let kv_tokens = 8 * 640;
    let limits = Limits {
        slots: 8,
        queue: 8,
        backlog: BacklogBound::NONE,
        kv_tokens,
        kv_block: 32,
        budget: StepBudget::default(),
    };
    let mut core = SchedulerCore::new(limits);
    let spec = |id| plain(id, 512, 64, 32);
    let mut now = Duration::ZERO;
    let (mut last_at, mut longest, mut alone, mut ttft) = (HashMap::new(), 0.0_f64, Vec::new(), Vec::new());
    // A short answer first, like a server's warm-up; then eight streams at once.
    for first in [8, 0] {
        let ids = if first == 8 { 8..9 } else { 0..8 };
        let begun = now;
        for id in ids {
            let max_tokens = if id == 8 { 4 } else { 64 };
            core.step(Event::Submit(JobSpec { max_tokens, floor_tokens: 1, ..spec(id) }), now);
        }
        while !core.is_idle() {
            let mut effects = core.step(Event::Turn(room(kv_tokens)), now);
            while let [Effect::Open(id)] = effects[..] {
                effects = core.step(Event::Opened { id, cached: 0, room: room(kv_tokens) }, now);
            }
            let [Effect::Run(plan)] = effects.as_slice() else { panic!("{effects:?}") };
            let ms = machine_ms(plan);
            if plan.prefill_tokens() == 0 {
                alone.push(ms);
            }
            now += Duration::from_secs_f64(ms / 1e3);
            let sampling = plan.rows.iter().filter(|row| row.samples()).map(StepRow::id);
            for id in sampling.clone() {
                match last_at.insert(id, now) {
                    Some(before) => longest = longest.max((now - before).as_secs_f64() * 1e3),
                    None => ttft.push((now - begun).as_secs_f64()),
                }
            }
            core.step(Event::StepDone(sampling.map(|id| (id, Outcome::Token)).collect()), now);
        }
    }
    alone.sort_by(f64::total_cmp);
    let median = alone[alone.len() / 2];
    assert!(longest <= 5.5 * median, "{longest} ms without a token, {median} ms a pass without prompts");
    assert!(longest >= 3.0 * median, "the budget is used: {longest} ms of {median} ms");
    ttft.sort_by(f64::total_cmp);
    // Without any answers in the same passes, the prompts take 8.2 s.
    assert!(ttft[7] < 11.0, "the last first token after {} s", ttft[7]);
}
