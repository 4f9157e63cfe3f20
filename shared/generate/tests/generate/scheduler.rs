//! The scheduler core: a seeded simulation of slots, KV room, preemption, fairness, cancellation, orders and
//! one end per sequence; and single cases.

use std::collections::HashMap;
use std::time::Duration;

use baton_generate::scheduler::{
    CloseReason, Effect, Event, JobId, JobSpec, Limits, MixedTokens, PrefillEnd, QueueLimit, Refusal, Room,
    SchedulerCore, StepBudget, StepPlan, StepRow,
};

use crate::world::{Doing, World};
use crate::{END, LAST, LIMITS, ONE, done, plain, token};

#[test]
fn slots_and_kv_never_leak_and_everyone_ends_once() {
    let (mut resumed, mut seen) = (0, [0; 9]);
    for seed in 0..400 {
        let mut world = World::new(seed);
        for _ in 0..200 {
            if world.rng.remainder(3) == 0 {
                world.submit();
            }
            if world.rng.remainder(25) == 0 {
                world.cancel_one();
            }
            if world.rng.remainder(4) == 0 {
                world.order(false);
            }
            if world.rng.remainder(10) == 0 {
                world.mind_readers(world.core.stats().parked > 0);
            }
            world.turn();
        }
        let mut turns = 0;
        while !world.core.is_empty() {
            while world.order(true) {}
            world.mind_readers(true);
            let waits = |doing| matches!(doing, Doing::Held | Doing::Decides);
            let ran = world.turn();
            let waiting = world.known.values().any(|known| waits(known.doing));
            assert!(ran || waiting || world.core.is_empty(), "seed {seed}: work waits but nothing runs");
            turns += 1;
            assert!(turns < 20_000, "seed {seed}: every sequence ends in bounded time");
        }
        let stats = world.core.stats();
        assert_eq!((stats.running, stats.waiting, stats.kv_held_tokens, stats.backlog_tokens), (0, 0, 0, 0));
        assert_eq!(stats.closed_total, world.known.len() as u64, "seed {seed}");
        assert_eq!((world.core.need_tokens(), world.core.is_idle()), (0, true));
        assert!(world.opened.is_sorted(), "seed {seed}: first come, first served");
        for (id, known) in &world.known {
            let over = known.over();
            assert!(over.is_some(), "seed {seed}: {id:?} has no end");
            assert_eq!(over == Some(CloseReason::Cancelled), known.cancelled, "seed {seed}: {id:?}");
            let whole = matches!(over, Some(CloseReason::Cap | CloseReason::Stop));
            resumed += usize::from(known.preempted > 0 && whole);
        }
        let all = &world.seen;
        let counts = [
            all.preemptions as usize,
            all.held,
            all.verified,
            all.merged,
            all.decided_late,
            all.prompts,
            all.proposed,
            all.lean,
            all.parked,
        ];
        for (sum, count) in seen.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    assert!(resumed > 100 && seen.iter().all(|&times| times > 5), "{seen:?}, {resumed} ended after a pause");
}

fn chunks(tokens: usize) -> StepBudget {
    StepBudget { chunk_tokens: tokens, mixed: MixedTokens::Fixed(tokens) }
}

fn room(free_tokens: usize) -> Room {
    Room { free_tokens, ..Room::default() }
}

#[test]
fn the_slot_is_free_in_the_pass_that_reaches_the_cap() {
    let limits = Limits { slots: 1, queue: 1, kv_tokens: 128, kv_block: 1, budget: chunks(64), ..LIMITS };
    let mut core = SchedulerCore::new(limits);
    let at = Duration::from_millis;
    let spec = |id| plain(id, 100, 2, 10);
    assert!(core.step(Event::Submit(spec(1)), at(0)).is_empty());
    assert!(core.step(Event::Submit(spec(2)), at(0)).is_empty());
    assert_eq!(core.step(Event::Turn(room(128)), at(5)), [Effect::Open(JobId(1))]);
    let run = core.step(Event::Opened { id: JobId(1), cached: 0, room: room(128) }, at(5));
    let chunk = |tokens, end| {
        vec![Effect::Run(StepPlan { rows: vec![StepRow::Prefill { id: JobId(1), tokens, end }] })]
    };
    assert_eq!(run, chunk(0..64, PrefillEnd::More));
    assert!(core.step(done(vec![]), at(10)).is_empty());
    assert_eq!(core.step(Event::Turn(room(64)), at(10)), chunk(64..100, PrefillEnd::Sampled));
    assert!(core.step(done(vec![(JobId(1), ONE)]), at(20)).is_empty());
    assert_eq!(
        core.step(Event::Turn(room(28)), at(20)),
        [Effect::Run(StepPlan { rows: vec![StepRow::Decode { id: JobId(1), proposed: 0 }] })]
    );
    let effects = core.step(done(vec![(JobId(1), LAST)]), at(30));
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
    let limits = Limits { slots: 1, queue: 1, kv_tokens: 1000, kv_block: 1, budget: chunks(64), ..LIMITS };
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
    let limits = Limits { slots: 4, queue: 4, kv_tokens: 320, kv_block: 32, budget: chunks(512), ..LIMITS };
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
    let tokens = |ids: &[u64]| done(ids.iter().map(|id| (JobId(*id), ONE)).collect());
    core.step(tokens(&[1, 2]), at);
    let known = Room { free_tokens: 64, next_held_tokens: 96, ..Room::default() };
    let effects = core.step(Event::Turn(known), at);
    let [Effect::Run(plan)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(plan.decode_rows(), 2, "one block, and two for those that run: one too many");
    core.step(tokens(&[1, 2]), at);
    let known = Room { free_tokens: 96, next_held_tokens: 96, ..Room::default() };
    assert_eq!(
        core.step(Event::Turn(known), at),
        [Effect::Open(JobId(3))],
        "its prefix is held by the others"
    );
}

#[test]
fn the_latest_arrival_gives_way_and_goes_on_where_it_was() {
    let limits = Limits { slots: 2, queue: 4, kv_tokens: 128, kv_block: 32, budget: chunks(512), ..LIMITS };
    let mut core = SchedulerCore::new(limits);
    let at = Duration::from_millis;
    let spec = |id| plain(id, 31, 90, 8);
    core.step(Event::Submit(spec(1)), at(0));
    core.step(Event::Submit(spec(2)), at(0));
    core.step(Event::Submit(spec(3)), at(0));
    core.step(Event::Turn(room(128)), at(0));
    core.step(Event::Opened { id: JobId(1), cached: 0, room: room(128) }, at(0));
    core.step(Event::Opened { id: JobId(2), cached: 0, room: room(128) }, at(0));
    let tokens = |ids: &[u64]| done(ids.iter().map(|id| (JobId(*id), ONE)).collect());
    core.step(tokens(&[1, 2]), at(10));
    for pass in 0..33 {
        assert!(matches!(core.step(Event::Turn(room(64)), at(10))[..], [Effect::Run(_)]), "pass {pass}");
        core.step(tokens(&[1, 2]), at(10));
    }
    // Both hold 64 tokens, 34 of them written, and no block is left.
    assert_eq!(core.step(Event::Turn(room(0)), at(20)), [Effect::Preempt(JobId(2))]);
    assert_eq!((core.stats().waiting, core.stats().preemptions_total), (2, 1));
    let alone = core.step(Event::Turn(room(64)), at(20));
    assert_eq!(alone, [Effect::Run(StepPlan { rows: vec![StepRow::Decode { id: JobId(1), proposed: 0 }] })]);
    core.step(done(vec![(JobId(1), END)]), at(40));
    assert_eq!(core.step(Event::Turn(room(128)), at(50)), [Effect::Open(JobId(2))], "before the third");
    let effects = core.step(Event::Opened { id: JobId(2), cached: 32, room: room(96) }, at(50));
    let row = StepRow::Prefill { id: JobId(2), tokens: 32..65, end: PrefillEnd::Sampled };
    let [Effect::Run(plan)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(plan.rows, [row], "what it wrote is computed again; the third does not fit beside it");
    core.step(done(vec![(JobId(2), ONE)]), at(60));
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
    let limits =
        Limits { slots: 8, queue: 8, kv_tokens, kv_block: 32, budget: StepBudget::default(), ..LIMITS };
    let mut core = SchedulerCore::new(limits);
    let spec = |id| plain(id, 512, 64, 32);
    let mut now = Duration::ZERO;
    let mut written = HashMap::new();
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
            let outcomes = sampling.map(|id| token(&core, &mut written, id)).collect();
            core.step(done(outcomes), now);
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
