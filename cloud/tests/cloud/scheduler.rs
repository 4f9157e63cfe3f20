//! Seeded simulation of the scheduler core: slots, KV budget, fairness, cancellation, one end per sequence.

use std::collections::HashMap;
use std::time::Duration;

use baton_cloud::scheduler::{
    CloseReason, Effect, Event, JobId, JobSpec, Limits, Outcome, Refusal, SchedulerCore, StepPlan, StepRow,
};

/// SplitMix64: enough randomness for a simulation, reproducible from its seed.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// What the simulation knows about one sequence, kept apart from the scheduler's own books.
#[derive(Debug, Default)]
struct Known {
    spec: Option<JobSpec>,
    done: usize,
    decoding: bool,
    open: bool,
    written: usize,
    closed: Option<CloseReason>,
    cancelled: bool,
}

struct World {
    seed: u64,
    limits: Limits,
    core: SchedulerCore,
    rng: Rng,
    known: HashMap<JobId, Known>,
    order: Vec<JobId>,
    opened: Vec<JobId>,
    now: Duration,
    next_id: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng(seed);
        let limits = Limits {
            slots: 1 + rng.below(4),
            queue: rng.below(6),
            kv_tokens: 256 + rng.below(1024),
            kv_block: [1, 16, 32][rng.below(3)],
            chunk_tokens: 16 + rng.below(128),
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
        };
        assert!(world.core.is_idle());
        world
    }

    fn submit(&mut self) {
        let id = JobId(self.next_id);
        self.next_id += 1;
        let prompt_tokens = 1 + self.rng.below(600);
        let spec = JobSpec {
            id,
            prompt_tokens,
            max_tokens: 1 + self.rng.below(40),
            tail_tokens: 1 + self.rng.below(prompt_tokens.min(40)),
        };
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
        let id = live[self.rng.below(live.len())];
        let before = self.core.stats();
        let was_open = self.known[&id].open;
        let effects = self.core.step(Event::Cancel(id), self.now);
        self.known.get_mut(&id).unwrap().cancelled = true;
        self.perform(effects);
        let after = self.core.stats();
        assert_eq!(self.known[&id].closed, Some(CloseReason::Cancelled), "seed {}", self.seed);
        if was_open {
            assert_eq!(after.running, before.running - 1, "seed {}: the slot is free at once", self.seed);
            assert!(
                after.kv_reserved_tokens < before.kv_reserved_tokens,
                "seed {}: the KV is free at once",
                self.seed
            );
        }
        assert!(self.core.step(Event::Cancel(id), self.now).is_empty(), "a second cancel does nothing");
    }

    /// Performs effects until nothing is left but a pass to run.
    fn perform(&mut self, effects: Vec<Effect>) -> Option<StepPlan> {
        let mut plan = None;
        for effect in effects {
            match effect {
                Effect::Open(id) => {
                    let spec = self.known[&id].spec.unwrap();
                    let cached = self.rng.below(spec.prompt_tokens - spec.tail_tokens + 1);
                    let known = self.known.get_mut(&id).unwrap();
                    (known.open, known.done) = (true, cached);
                    self.opened.push(id);
                    let effects = self.core.step(Event::Opened { id, cached }, self.now);
                    plan = plan.or(self.perform(effects));
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
        let mut longest_tail = 0;
        for (at, row) in plan.rows.iter().enumerate() {
            assert!(
                plan.rows[..at].iter().all(|other| other.id() != row.id()),
                "seed {seed}: one row a sequence"
            );
            let known = &self.known[&row.id()];
            let spec = known.spec.unwrap();
            assert!(known.open && known.closed.is_none(), "seed {seed}: only live sequences run");
            match row {
                StepRow::Decode { .. } => assert!(known.decoding, "seed {seed}"),
                StepRow::Prefill { tokens, last, .. } => {
                    assert!(
                        !known.decoding && tokens.start == known.done && !tokens.is_empty(),
                        "seed {seed}"
                    );
                    assert_eq!(*last, tokens.end == spec.prompt_tokens, "seed {seed}");
                    let window = spec.prompt_tokens - spec.tail_tokens;
                    assert!(
                        if *last { tokens.start <= window } else { tokens.end <= window },
                        "seed {seed}: window cut"
                    );
                    longest_tail = longest_tail.max(spec.tail_tokens);
                }
            }
        }
        let decoding = self.known.values().filter(|known| known.open && known.decoding).count();
        assert_eq!(plan.decode_rows(), decoding, "seed {seed}: every decoding sequence is in every pass");
        let chunk = self.limits.chunk_tokens.max(longest_tail);
        assert!(plan.prefill_tokens() <= chunk, "seed {seed}: decoding waits for at most one chunk");
    }

    fn run(&mut self, plan: &StepPlan) {
        self.now += Duration::from_millis(1 + self.rng.below(20) as u64);
        if self.rng.one_in(20) {
            let effects = self.core.step(Event::StepUndone, self.now);
            assert!(effects.is_empty());
            return;
        }
        if self.rng.one_in(6) {
            self.cancel_one();
        }
        let mut outcomes = Vec::new();
        for row in &plan.rows {
            let seed = self.seed;
            let roll = self.rng.below(40);
            let known = self.known.get_mut(&row.id()).unwrap();
            if let StepRow::Prefill { tokens, last, .. } = row {
                known.done = tokens.end;
                known.decoding = *last;
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
        let reserved: usize = self
            .known
            .values()
            .filter(|known| known.open)
            .map(|known| {
                let spec = known.spec.unwrap();
                (spec.prompt_tokens + spec.max_tokens).next_multiple_of(self.limits.kv_block)
            })
            .sum();
        assert_eq!(stats.running, open, "seed {}", self.seed);
        assert_eq!(stats.kv_reserved_tokens, reserved, "seed {}", self.seed);
        assert!(
            stats.running <= self.limits.slots && reserved <= self.limits.kv_tokens,
            "seed {}",
            self.seed
        );
    }

    fn turn(&mut self) -> bool {
        let effects = self.core.step(Event::Turn, self.now);
        let plan = self.perform(effects);
        self.check_state();
        let Some(plan) = plan else { return false };
        self.check_plan(&plan);
        assert!(self.core.step(Event::Turn, self.now).is_empty(), "one pass at a time");
        self.run(&plan);
        self.check_state();
        true
    }
}

#[test]
fn slots_and_kv_never_leak_and_everyone_ends_once() {
    for seed in 0..400 {
        let mut world = World::new(seed);
        for _ in 0..200 {
            if world.rng.one_in(3) {
                world.submit();
            }
            if world.rng.one_in(25) {
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
        assert_eq!(
            (stats.running, stats.waiting, stats.kv_reserved_tokens, stats.backlog_tokens),
            (0, 0, 0, 0)
        );
        assert_eq!(stats.closed_total, world.order.len() as u64, "seed {seed}");
        let admitted: Vec<JobId> =
            world.order.iter().copied().filter(|id| world.opened.contains(id)).collect();
        assert_eq!(admitted, world.opened, "seed {seed}: first come, first served");
        for (id, known) in &world.known {
            assert!(known.closed.is_some(), "seed {seed}: {id:?} has no end");
            assert_eq!(known.closed == Some(CloseReason::Cancelled), known.cancelled, "seed {seed}: {id:?}");
        }
    }
}

#[test]
fn the_slot_is_free_in_the_pass_that_reaches_the_cap() {
    let limits = Limits { slots: 1, queue: 1, kv_tokens: 128, kv_block: 1, chunk_tokens: 64 };
    let mut core = SchedulerCore::new(limits);
    let at = Duration::from_millis;
    let spec = |id| JobSpec { id: JobId(id), prompt_tokens: 100, max_tokens: 2, tail_tokens: 10 };
    assert!(core.step(Event::Submit(spec(1)), at(0)).is_empty());
    assert!(core.step(Event::Submit(spec(2)), at(0)).is_empty());
    assert_eq!(core.step(Event::Turn, at(5)), [Effect::Open(JobId(1))]);
    let run = core.step(Event::Opened { id: JobId(1), cached: 0 }, at(5));
    let chunk = |tokens, last| {
        vec![Effect::Run(StepPlan { rows: vec![StepRow::Prefill { id: JobId(1), tokens, last }] })]
    };
    assert_eq!(run, chunk(0..64, false));
    assert!(core.step(Event::StepDone(vec![]), at(10)).is_empty());
    assert_eq!(core.step(Event::Turn, at(10)), chunk(64..100, true));
    assert!(core.step(Event::StepDone(vec![(JobId(1), Outcome::Token)]), at(20)).is_empty());
    assert_eq!(
        core.step(Event::Turn, at(20)),
        [Effect::Run(StepPlan { rows: vec![StepRow::Decode { id: JobId(1) }] })]
    );
    let effects = core.step(Event::StepDone(vec![(JobId(1), Outcome::Token)]), at(30));
    let [Effect::Close(closed)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!((closed.reason, closed.tokens), (CloseReason::Cap, 2));
    let times = closed.times;
    let want = (5.0, 15.0, 10.0, 25.0);
    assert_eq!((times.queue_ms, times.prefill_ms, times.decode_ms, times.slot_ms), want);
    assert_eq!(
        core.step(Event::Turn, at(30)),
        [Effect::Open(JobId(2))],
        "the next one starts in the same turn"
    );
    assert_eq!(core.stats().slot_ms_total, 25.0);
}

#[test]
fn a_full_queue_refuses_with_its_backlog() {
    let limits = Limits { slots: 1, queue: 1, kv_tokens: 1000, kv_block: 1, chunk_tokens: 64 };
    let mut core = SchedulerCore::new(limits);
    let spec = |id| JobSpec { id: JobId(id), prompt_tokens: 100, max_tokens: 2, tail_tokens: 10 };
    assert!(core.step(Event::Submit(spec(1)), Duration::ZERO).is_empty());
    assert!(core.step(Event::Submit(spec(2)), Duration::ZERO).is_empty());
    let refused = core.step(Event::Submit(spec(3)), Duration::ZERO);
    assert_eq!(refused, [Effect::Refuse(JobId(3), Refusal::Full { waiting: 2, backlog_tokens: 200 })]);
}
