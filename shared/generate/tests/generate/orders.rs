//! Single cases of held prompts, given parts of answers and decisions.

use std::time::Duration;

use baton_generate::scheduler::{
    AnswerEnd, CloseReason, Effect, Event, Goal, JobId, JobSpec, Limits, PrefillEnd, Room, SchedulerCore,
    StepRow,
};

use crate::{LIMITS, ONE, done, plain};

const AT: Duration = Duration::ZERO;
const A: JobId = JobId(1);

fn core(slots: usize, logit_rows: usize) -> SchedulerCore {
    SchedulerCore::new(Limits { slots, queue: 4, logit_rows, kv_block: 16, ..LIMITS })
}

fn room(free_tokens: usize) -> Room {
    Room { free_tokens, ..Room::default() }
}

/// A sequence that holds all but the last token of its prompt.
fn held(id: u64, prompt_tokens: usize, pass_tokens: usize) -> JobSpec {
    let goal = Goal::Hold { upto: prompt_tokens - 1 };
    JobSpec { goal, tail_tokens: 0, pass_tokens, ..plain(id, prompt_tokens, 20, 1) }
}

/// Returns the rows of the next pass; sequences open with nothing in the cache.
#[track_caller]
fn rows(core: &mut SchedulerCore, free: usize) -> Vec<StepRow> {
    let mut effects = core.step(Event::Turn(room(free)), AT);
    while let [Effect::Open(id)] = effects[..] {
        effects = core.step(Event::Opened { id, cached: 0, room: room(free) }, AT);
    }
    let [Effect::Run(plan)] = effects.as_slice() else { panic!("{effects:?}") };
    plan.rows.clone()
}

fn prefill(tokens: std::ops::Range<usize>, end: PrefillEnd) -> StepRow {
    StepRow::Prefill { id: A, tokens, end }
}

#[test]
fn a_takeover_holds_verifies_and_writes_in_one_slot() {
    let mut core = core(1, 64);
    core.step(Event::Submit(held(1, 101, 60)), AT);
    assert_eq!(core.need_tokens(), 112, "the prompt and one token, in whole blocks");
    assert_eq!(rows(&mut core, 1024), [prefill(0..60, PrefillEnd::More)], "at most so many in a pass");
    core.step(done(vec![]), AT);
    let progress = core.progress(A).unwrap();
    assert_eq!((progress.computed, progress.total, core.is_idle()), (60, 100, false));
    assert_eq!(rows(&mut core, 960), [prefill(60..100, PrefillEnd::Held)]);
    core.step(done(vec![]), AT);
    assert!(core.step(Event::Turn(room(912)), AT).is_empty(), "it only waits");
    let stats = core.stats();
    assert_eq!((stats.running, stats.held, stats.backlog_tokens, stats.kv_held_tokens), (1, 1, 0, 112));
    assert!(core.is_idle() && !core.is_empty());
    assert!(core.step(Event::Accept { id: A, accepted: 5 }, AT).is_empty());
    assert_eq!((core.is_idle(), core.stats().backlog_tokens), (false, 6));
    assert_eq!(rows(&mut core, 912), [StepRow::Verify { id: A, tokens: 100..106, last: true }]);
    core.step(done(vec![]), AT);
    assert!(core.step(Event::Turn(room(912)), AT).is_empty());
    assert_eq!(core.stats().held, 1);
    assert!(core.step(Event::Decided { id: A, kept: 3, tokens: 4, end: None }, AT).is_empty());
    assert_eq!(rows(&mut core, 912), [StepRow::Decode { id: A, proposed: 0 }]);
    core.step(done(vec![(A, ONE)]), AT);
    let effects = core.step(Event::Cancel(A), AT);
    let [Effect::Close(closed)] = effects[..] else { panic!("{effects:?}") };
    assert_eq!((closed.tokens, closed.reason, closed.speculation), (5, CloseReason::Cancelled, None));
    assert!(core.is_empty());
}

#[test]
fn a_short_rest_of_the_prompt_goes_with_the_part_and_a_long_one_before_it() {
    // Fifty prompt tokens are missing: one pass if there may be so many logits, else two.
    for (logit_rows, pass_tokens, want) in [
        (64, 1000, vec![(50..103, true)]),
        (51, 1000, vec![(50..101, true), (101..103, true)]),
        (50, 1000, vec![(50..100, true), (100..103, true)]),
        (49, 1000, vec![(50..99, false), (99..103, true)]),
        (64, 49, vec![(50..103, true)]),
        (64, 48, vec![(50..98, false), (98..103, true)]),
        (2, 1000, vec![(50..99, false), (99..101, true), (101..103, true)]),
    ] {
        let mut core = core(1, logit_rows);
        core.step(Event::Submit(held(1, 100, pass_tokens)), AT);
        core.step(Event::Turn(room(1024)), AT);
        core.step(Event::Opened { id: A, cached: 50, room: room(1024) }, AT);
        core.step(Event::StepUndone, AT);
        core.step(Event::Accept { id: A, accepted: 3 }, AT);
        let mut got = Vec::new();
        while !core.is_idle() {
            match &rows(&mut core, 512)[..] {
                [StepRow::Verify { tokens, last, .. }] => {
                    assert_eq!(*last, tokens.end == 103);
                    got.push((tokens.clone(), true));
                }
                [StepRow::Prefill { tokens, end: PrefillEnd::More, .. }] => got.push((tokens.clone(), false)),
                other => panic!("{other:?}"),
            }
            core.step(done(vec![]), AT);
        }
        assert_eq!(got, want, "{logit_rows} rows of logits, {pass_tokens} tokens in a pass");
    }
}

#[test]
fn another_prompt_goes_on_from_what_both_have_in_common() {
    let mut core = core(1, 64);
    core.step(Event::Submit(held(1, 51, 1000)), AT);
    rows(&mut core, 1024);
    core.step(done(vec![]), AT);
    let prompt = |prompt_tokens, kept, goal| Event::Prompt {
        id: A,
        prompt_tokens,
        max_tokens: 30,
        pass_tokens: 1000,
        kept,
        goal,
    };
    let hold = |upto| Goal::Hold { upto };
    assert_eq!(core.step(prompt(41, 40, hold(40)), AT), [Effect::Held(A)], "a part of what it holds");
    assert!(core.step(Event::Turn(room(900)), AT).is_empty());
    assert!(core.step(prompt(61, 40, hold(60)), AT).is_empty());
    assert_eq!(rows(&mut core, 900), [prefill(40..60, PrefillEnd::Held)]);
    core.step(done(vec![]), AT);
    assert!(core.step(prompt(90, 20, Goal::Write), AT).is_empty());
    assert_eq!(rows(&mut core, 900), [prefill(20..90, PrefillEnd::Sampled)]);
    core.step(done(vec![(A, ONE)]), AT);
    assert_eq!(core.max_tokens(A), Some(30));
    core.step(Event::Cancel(A), AT);
    core.step(Event::Submit(held(2, 51, 1000)), AT);
    let long = Event::Prompt {
        id: JobId(2),
        prompt_tokens: 1000,
        max_tokens: 30,
        pass_tokens: 1000,
        kept: 0,
        goal: hold(999),
    };
    let effects = core.step(long, AT);
    let [Effect::Close(closed)] = effects[..] else { panic!("it can never fit: {effects:?}") };
    assert_eq!((closed.id, closed.reason), (JobId(2), CloseReason::Failed));
}

#[test]
fn a_decision_finds_a_sequence_without_its_blocks() {
    let mut core = core(2, 64);
    core.step(Event::Submit(plain(0, 31, 60, 1)), AT);
    core.step(Event::Submit(held(1, 33, 1000)), AT);
    assert_eq!(rows(&mut core, 1024).len(), 2);
    core.step(done(vec![(JobId(0), ONE)]), AT);
    core.step(Event::Accept { id: A, accepted: 4 }, AT);
    let verify = StepRow::Verify { id: A, tokens: 32..37, last: true };
    assert_eq!(rows(&mut core, 1024), [StepRow::Decode { id: JobId(0), proposed: 0 }, verify]);
    core.step(done(vec![(JobId(0), ONE)]), AT);
    // No block is left for the first answer: the later one gives way, while it waits for the decision.
    assert_eq!(core.step(Event::Turn(room(0)), AT), [Effect::Preempt(A)]);
    core.step(Event::Park(A), AT);
    assert_eq!(core.stats().parked, 0, "nothing of it is unread");
    assert!(core.step(Event::Decided { id: A, kept: 4, tokens: 5, end: None }, AT).is_empty());
    let again = prefill(0..38, PrefillEnd::Sampled);
    assert_eq!(rows(&mut core, 1024), [StepRow::Decode { id: JobId(0), proposed: 0 }, again]);
    core.step(done(vec![(JobId(0), ONE), (A, ONE)]), AT);

    // The same while the part is computed again.
    let b = JobId(2);
    core.step(Event::Cancel(JobId(0)), AT);
    core.step(Event::Submit(held(2, 33, 1000)), AT);
    rows(&mut core, 1024);
    core.step(done(vec![(A, ONE)]), AT);
    core.step(Event::Accept { id: b, accepted: 4 }, AT);
    rows(&mut core, 1024);
    core.step(done(vec![(A, ONE)]), AT);
    assert_eq!(rows(&mut core, 1024), [StepRow::Decode { id: A, proposed: 0 }]);
    assert_eq!(core.step(Event::StepTooLarge, AT), [Effect::Preempt(b)]);
    assert_eq!(core.step(Event::Turn(room(1024)), AT), [Effect::Open(b)]);
    core.step(Event::Opened { id: b, cached: 32, room: room(1024) }, AT);
    core.step(Event::StepUndone, AT);
    core.step(Event::Decided { id: b, kept: 2, tokens: 3, end: None }, AT);
    let behind = StepRow::Prefill { id: b, tokens: 32..36, end: PrefillEnd::Sampled };
    assert_eq!(rows(&mut core, 1024)[1], behind);
    core.step(done(vec![(A, ONE), (b, ONE)]), AT);
    assert_eq!(core.stats().held, 0);
}

#[test]
fn an_answer_may_end_with_the_decision() {
    let mut core = core(1, 64);
    core.step(Event::Submit(held(1, 10, 1000)), AT);
    rows(&mut core, 1024);
    core.step(done(vec![]), AT);
    core.step(Event::Accept { id: A, accepted: 0 }, AT);
    assert_eq!(rows(&mut core, 1024), [StepRow::Verify { id: A, tokens: 9..10, last: true }]);
    core.step(done(vec![]), AT);
    let effects = core.step(Event::Decided { id: A, kept: 0, tokens: 0, end: Some(AnswerEnd::Stop) }, AT);
    let [Effect::Close(closed)] = effects[..] else { panic!("{effects:?}") };
    assert_eq!((closed.reason, closed.tokens, core.is_empty()), (CloseReason::Stop, 0, true));
}

#[test]
fn the_limits_of_a_device_let_fewer_in_and_make_passes_larger() {
    let limits = Limits { slots: 2, queue: 4, admit_tokens: 256, kv_tokens: 640, kv_block: 32, ..LIMITS };
    let mut core = SchedulerCore::new(limits);
    core.step(Event::Submit(plain(0, 100, 300, 1)), AT);
    core.step(Event::Submit(plain(1, 100, 300, 1)), AT);
    let ring = Room { pass_tokens_min: 80, ..room(640) };
    assert_eq!(core.step(Event::Turn(Room { admits: false, ..ring }), AT), [], "no new answers now");
    assert_eq!(core.step(Event::Turn(ring), AT), [Effect::Open(JobId(0))]);
    let effects = core.step(Event::Opened { id: JobId(0), cached: 0, room: ring }, AT);
    let [Effect::Run(plan)] = effects.as_slice() else { panic!("both need 12 of 20 blocks: {effects:?}") };
    assert_eq!(plan.rows.len(), 1);
    assert_eq!(core.step(Event::StepDone { outcomes: vec![(JobId(0), ONE)], waited: AT }, AT), []);
    assert!(core.need_tokens() > 512, "what the second one needs beside the first: {}", core.need_tokens());

    let mut core = SchedulerCore::new(limits);
    core.step(Event::Submit(JobSpec { pass_tokens: 8, ..plain(0, 100, 300, 1) }), AT);
    core.step(Event::Turn(ring), AT);
    let effects = core.step(Event::Opened { id: JobId(0), cached: 0, room: ring }, AT);
    let [Effect::Run(plan)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(plan.prefill_tokens(), 80, "a pass of a ring has at least so many");
}
