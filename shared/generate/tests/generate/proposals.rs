//! Proposals in the scheduler, on a machine whose passes take a known time.

use std::collections::HashMap;
use std::time::Duration;

use baton_generate::scheduler::{
    Effect, Event, JobId, Limits, MixedTokens, Outcome, Room, SchedulerCore, StepBudget, StepPlan, StepRow,
};
use baton_generate::speculation::{Policy, SpeculationLimits};
use baton_random::SplitMix64;

use crate::{LIMITS, ONE, plain};

fn core(slots: usize, policy: Option<Policy>) -> SchedulerCore {
    let speculation = policy.map(SpeculationLimits::lookup);
    SchedulerCore::new(Limits { slots, queue: 8, kv_tokens: 65_536, kv_block: 32, speculation, ..LIMITS })
}

const ROOM: Room = Room { free_tokens: 65_536, next_held_tokens: 0, pass_tokens_min: 1, admits: true };

fn next(core: &mut SchedulerCore, room: Room, now: Duration) -> StepPlan {
    let mut effects = core.step(Event::Turn(room), now);
    while let [Effect::Open(id)] = effects[..] {
        effects = core.step(Event::Opened { id, cached: 0, room }, now);
    }
    let [Effect::Run(plan)] = effects.as_slice() else { panic!("{effects:?}") };
    plan.clone()
}

/// Writes answers of 600 tokens in every slot; returns the time that it took in seconds. `slope`: the cost
/// of a row in plain passes of none. `right`: the share of right proposals at this time.
fn written(
    slots: usize,
    policy: Option<Policy>,
    seed: u64,
    slope: impl Fn(f64) -> f64,
    right: impl Fn(f64) -> f64,
) -> f64 {
    let (mut core, mut rng, mut now) = (core(slots, policy), SplitMix64::new(seed), Duration::ZERO);
    for id in 0..slots as u64 {
        core.step(Event::Submit(plain(id, 20, 600, 1)), now);
    }
    let mut left: HashMap<JobId, usize> = (0..slots as u64).map(|id| (JobId(id), 600)).collect();
    while !core.is_empty() {
        let plan = next(&mut core, ROOM, now);
        let at = now.as_secs_f64();
        let rows = (plan.prefill_tokens() + plan.decode_rows() + plan.proposed_tokens()) as f64;
        // Another model had the machine before; this is not what the pass costs.
        let waited = Duration::from_millis(rng.remainder(3) as u64 * 20);
        now += waited + Duration::from_secs_f64(0.01 * (1.0 + slope(at) * rows));
        let mut outcomes = Vec::new();
        for row in plan.rows.iter().filter(|row| row.samples()) {
            let proposed = if let StepRow::Decode { proposed, .. } = row { *proposed } else { 0 };
            let is_right = |rng: &mut SplitMix64| (rng.remainder(1000) as f64) < 1000.0 * right(at);
            let accepted = (0..proposed).take_while(|_| is_right(&mut rng)).count();
            let left = left.get_mut(&row.id()).unwrap();
            assert!(proposed < *left, "never behind the cap");
            *left -= accepted + 1;
            let end = (*left == 0).then_some(baton_generate::scheduler::AnswerEnd::Cap);
            outcomes.push((row.id(), Outcome { proposed, accepted, written: accepted + 1, end }));
        }
        core.step(Event::StepDone { outcomes, waited }, now);
    }
    now.as_secs_f64()
}

#[test]
fn worthless_proposals_never_cost_more_than_three_percent() {
    for slots in [1, 2, 4, 8] {
        for seed in 0..4 {
            // What a row costs drifts, as other programs run and contexts grow.
            let slope = |at: f64| 0.1 + 0.05 * (at / 3.0).sin();
            let plain = written(slots, None, seed, slope, |_| 0.0);
            let tried = written(slots, Some(Policy::WhenItPays), seed, slope, |_| 0.0);
            assert!(tried <= 1.03 * plain, "{slots} answers, seed {seed}: {tried} s of {plain} s");
        }
    }
}

#[test]
fn right_proposals_pay_for_one_answer_and_for_several() {
    for (slots, least) in [(1, 1.7), (4, 1.3)] {
        let plain = written(slots, None, 1, |_| 0.05, |_| 0.0);
        let fast = written(slots, Some(Policy::WhenItPays), 1, |_| 0.05, |_| 0.9);
        assert!(plain / fast > least, "{slots} answers: {plain} s, {fast} s");
    }
}

#[test]
fn prompts_are_never_beside_proposals_and_waiting_requests_stop_tries() {
    let mut core = core(2, Some(Policy::Always));
    let at = Duration::ZERO;
    core.step(Event::Submit(plain(0, 40, 600, 1)), at);
    assert_eq!(next(&mut core, ROOM, at).proposed_tokens(), 0);
    let token = |id| (JobId(id), ONE);
    let step = |outcomes| Event::StepDone { outcomes, waited: Duration::ZERO };
    core.step(step(vec![token(0)]), at);
    assert!(next(&mut core, ROOM, at).proposed_tokens() >= 2);
    core.step(Event::StepUndone, at);
    core.step(Event::Submit(plain(1, 40, 600, 1)), at);
    let mixed = next(&mut core, ROOM, at);
    assert_eq!((mixed.prefill_tokens(), mixed.proposed_tokens()), (40, 0));
    core.step(step(vec![token(0), token(1)]), at);
    let both = next(&mut core, ROOM, at);
    assert!(both.rows.iter().all(|row| matches!(row, StepRow::Decode { proposed: 2.., .. })), "{both:?}");

    // It did not fit: the same pass without proposals comes first.
    assert!(core.step(Event::StepTooLarge, at).is_empty());
    let lean = next(&mut core, ROOM, at);
    assert_eq!((lean.decode_rows(), lean.proposed_tokens()), (2, 0));
    assert_eq!(core.step(Event::StepTooLarge, at), [Effect::Preempt(JobId(1))]);
    core.step(Event::Cancel(JobId(1)), at);

    // Two tokens are known, the cache has no other block: one more token needs none.
    assert!(next(&mut core, Room { free_tokens: 0, ..ROOM }, at).proposed_tokens() > 0, "within the block");
    let outcome = Outcome { proposed: 5, accepted: 3, written: 4, end: None };
    core.step(step(vec![(JobId(0), outcome)]), at);
    let stats = core.speculation_of(JobId(0)).unwrap();
    assert_eq!((stats.proposed, stats.accepted, stats.written, stats.speculative_steps), (5, 3, 5, 1));
    assert_eq!((core.stats().proposed_total, core.stats().accepted_total), (5, 3));
}

#[test]
fn no_tries_while_somebody_waits() {
    // At this price nothing is expected to pay: there are only tries.
    let limits = SpeculationLimits { slope: 0.6, ..SpeculationLimits::lookup(Policy::WhenItPays) };
    let limits = Limits { queue: 8, kv_tokens: 65_536, speculation: Some(limits), ..LIMITS };
    let mut core = SchedulerCore::new(limits);
    let at = |pass: u64| Duration::from_millis(10 * pass);
    core.step(Event::Submit(plain(0, 40, 600, 1)), at(0));
    core.step(Event::Submit(plain(1, 40, 600, 1)), at(0));
    let mut proposed = 0;
    for pass in 0..80 {
        let plan = next(&mut core, ROOM, at(pass));
        proposed += plan.proposed_tokens();
        let outcomes = vec![(JobId(0), ONE)];
        core.step(Event::StepDone { outcomes, waited: Duration::ZERO }, at(pass + 1));
        if pass == 40 {
            assert_eq!(proposed, 0, "the second one waits");
            core.step(Event::Cancel(JobId(1)), at(pass + 1));
        }
    }
    assert!(proposed > 0, "nobody waits");
}

#[test]
fn the_wait_for_another_model_is_no_cost_of_a_pass() {
    let mixed_tokens = |waited_ms: u64| {
        let budget = StepBudget { chunk_tokens: 512, mixed: MixedTokens::MaxStall(5.0) };
        let mut core = SchedulerCore::new(Limits { queue: 8, kv_tokens: 4096, budget, ..LIMITS });
        let mut now = Duration::ZERO;
        core.step(Event::Submit(plain(0, 512, 40, 1)), now);
        for _ in 0..30 {
            let plan = next(&mut core, ROOM, now);
            let ms = if plan.prefill_tokens() > 0 { 1024 } else { 30 };
            let waited = Duration::from_millis(waited_ms);
            now += waited + Duration::from_millis(ms);
            core.step(Event::StepDone { outcomes: vec![(JobId(0), ONE)], waited }, now);
        }
        core.stats().mixed_tokens
    };
    assert_eq!((mixed_tokens(0), mixed_tokens(500)), (60, 60));
}
