//! Tests several tenants in the scheduler: shares by weight, and a queue that a flood cannot close.

use std::time::Duration;

use baton_generate::scheduler::{
    Effect, Event, JobSpec, Limits, MixedTokens, Refusal, Room, SchedulerCore, Share, StepBudget, StepRow,
};

use crate::{LAST, LIMITS, done, plain};

const KV_TOKENS: usize = 65_536;

fn core(queue: usize) -> SchedulerCore {
    SchedulerCore::new(Limits {
        slots: 1,
        queue,
        kv_tokens: KV_TOKENS,
        kv_block: 16,
        budget: StepBudget { chunk_tokens: 512, mixed: MixedTokens::Fixed(512) },
        ..LIMITS
    })
}

/// Submits one request of a tenant, with a prompt of 63 tokens and one token of answer; returns whether it is
/// accepted.
fn submit(core: &mut SchedulerCore, id: u64, tenant: u64, weight: u32) -> bool {
    let spec = JobSpec { share: Share { tenant, weight }, ..plain(id, 63, 1, 1) };
    match core.step(Event::Submit(spec), Duration::ZERO)[..] {
        [] => true,
        [Effect::Refuse(_, Refusal::Full { .. })] => false,
        ref other => panic!("{other:?}"),
    }
}

/// Runs until nothing is left; returns the order in which requests got the slot.
fn order(core: &mut SchedulerCore) -> Vec<u64> {
    let room = Room { free_tokens: KV_TOKENS, ..Room::default() };
    let (mut opened, mut closed) = (Vec::new(), 0);
    while !core.is_idle() {
        let mut effects = core.step(Event::Turn(room), Duration::ZERO);
        while let [Effect::Open(id)] = effects[..] {
            opened.push(id.0);
            effects = core.step(Event::Opened { id, cached: 0, room }, Duration::ZERO);
        }
        let [Effect::Run(plan)] = effects.as_slice() else { panic!("{effects:?}") };
        let sampling = plan.rows.iter().filter(|row| row.samples()).map(StepRow::id);
        let outcomes = sampling.map(|id| (id, LAST)).collect();
        closed += core.step(done(outcomes), Duration::ZERO).len();
    }
    assert_eq!(closed, opened.len(), "everybody ends once");
    opened
}

#[test]
fn slots_are_shared_by_weight() {
    let mut core = core(63);
    // The first tenant's twelve requests come before the second one's.
    assert!((0..12).all(|id| submit(&mut core, id, 1, 10)));
    assert!((100..112).all(|id| submit(&mut core, id, 2, 30)));
    let order = order(&mut core);
    let second = order[..12].iter().filter(|&&id| id >= 100).count();
    assert!((8..=10).contains(&second), "three of four, at most one request of each away: {order:?}");
    for tenant in [0..12, 100..112] {
        let own: Vec<u64> = order.iter().copied().filter(|id| tenant.contains(id)).collect();
        assert_eq!(own, tenant.collect::<Vec<u64>>(), "first come, first served within a tenant");
    }
}

#[test]
fn a_flood_does_not_close_the_queue_to_others() {
    let mut core = core(4);
    let taken = (0..100).filter(|&id| submit(&mut core, id, 1, 10)).count();
    assert_eq!(taken, 5, "slots and queue");
    assert!(submit(&mut core, 200, 2, 10), "who has nothing waiting is let in");
    assert!(!submit(&mut core, 201, 2, 10), "once");
    assert!(!submit(&mut core, 101, 1, 10));
    let order = order(&mut core);
    assert!(order.iter().position(|&id| id == 200).unwrap() <= 1, "{order:?}");
}
