//! Frames of a part: their checks, their order, and what ends the part.

use super::*;
use crate::wire::frame::Audit;

const EPOCH: u64 = 3;

fn serving() -> (Rig, LinkId, LinkId) {
    let mut rig = Rig::with_head();
    let (out, back) = rig.serve(configure(EPOCH, false));
    (rig, out, back)
}

/// A frame of the same step without operations.
fn chunk(rows: std::ops::Range<usize>) -> Step {
    Step { operations: Vec::new(), states: states(rows.len()), rows, ..first_step(EPOCH, 1) }
}

fn is_stopped(effects: &[Effect], code: FailureCode, words: &str) -> bool {
    let fits = |effect: &Effect| match effect {
        Effect::Link(LinkEffect::Send(CONTROL, Frame::Failed(failure))) => {
            failure.epoch == Epoch(EPOCH) && failure.code == code && failure.words.contains(words)
        }
        _ => false,
    };
    effects.iter().any(fits)
}

#[test]
fn frames_are_computed_one_after_the_other_and_sent_on_in_order() {
    let (mut rig, out, back) = serving();
    let (step, layers) = passes(&rig.heard(back, Frame::Step(first_step(EPOCH, 9)))).unwrap();
    assert_eq!((step, layers), (first_step(EPOCH, 9), 2..4));
    // Two more wait; then nothing is read.
    assert_eq!(rig.heard(back, Frame::Step(chunk(0..1))), []);
    assert_eq!(rig.heard(back, Frame::Step(chunk(1..3))), [hold(back)]);
    assert_eq!(rig.heard(back, Frame::Step(chunk(3..4))), [], "one that was under way");
    let computed = |step: &Step| Box::new(Step { states: states(step.rows.len()), ..step.clone() });
    let mut sent = Vec::new();
    let mut present = first_step(EPOCH, 9);
    loop {
        let effects = rig.computed(WorkerDone::Passed(computed(&present)));
        assert_eq!(effects[0], send(out, Frame::Step(Step { layers_done: 4, ..present.clone() })));
        sent.push(present.rows.clone());
        let released = effects.contains(&release(back));
        assert_eq!(released, sent.len() == 2, "as soon as one waits: {effects:?}");
        match passes(&effects) {
            Some((next, _)) => present = next,
            None => break,
        }
    }
    assert_eq!(sent, [0..9, 0..1, 1..3, 3..4]);
    let beat = rig.next_beat(Meters::default());
    assert_eq!((beat.received, beat.sent, beat.compute_us), (4, 4, 28_000));
    assert_eq!((beat.singles, beat.singles_us), (2, 14_000));
    assert_eq!(rig.core.lengths(), BTreeMap::from([(SEQ, 0)]), "nothing is committed");
    assert_eq!(rig.core.applied(), 2);
}

#[test]
fn time_without_a_frame_is_counted() {
    let (mut rig, _, back) = serving();
    rig.pass(ms(100));
    rig.heard(back, Frame::Step(first_step(EPOCH, 1)));
    rig.pass(ms(50));
    rig.computed(WorkerDone::Passed(Box::new(first_step(EPOCH, 1))));
    rig.pass(ms(30));
    rig.heard(back, Frame::Step(chunk(0..1)));
    assert_eq!(rig.next_beat(Meters::default()).wait_us, 130_000);
}

#[test]
fn frames_that_do_not_fit_are_refused_before_anything_is_computed() {
    type Change = fn(&mut Step);
    let cases: [(Change, &str); 14] = [
        (|step| step.states = States::of(Hidden { rows: 2, width: 3, values: vec![0.0; 6] }), "3 values"),
        (|step| step.layers_done = 7, "behind layer 7"),
        (|step| step.layers_done = 1, "1 layers are done"),
        (|step| step.layers_done = 4, "4 layers are done"),
        (|step| step.round = 1, "2 layers are done"),
        (
            |step| step.states = States::of(Hidden { rows: 2, width: 4, values: vec![f32::NAN; 8] }),
            "no number",
        ),
        (|step| step.operations.insert(1, Operation::Create { seq: SEQ }), "there already"),
        (|step| step.operations.truncate(1), "step 5 is not open"),
        (|step| step.step = StepNo(6), "step 6 is not open"),
        (|step| step.rows = 1..3, "must be 2"),
        (|step| step.rows = 0..1, "must be 1"),
        (|step| step.states = states(3), "3 rows"),
        (|step| step.operations.push(Operation::Cancel { step: StepNo(5) }), "is not open"),
        (|step| step.audit = Some(Audit { place: 1, begin: 2, end: 5 }), "not all this device's"),
    ];
    for (change, words) in cases {
        let (mut rig, out, back) = serving();
        let mut step = first_step(EPOCH, 2);
        change(&mut step);
        let effects = rig.heard(back, Frame::Step(step));
        assert!(is_stopped(&effects, FailureCode::Refused, words), "{words}: {effects:?}");
        assert_eq!((passes(&effects), effects.contains(&close(out))), (None, true));
        assert!(effects.iter().any(|effect| matches!(effect, Effect::Discard(_))));
    }
}

#[test]
fn spans_that_begin_elsewhere_are_refused_unless_the_bug_is_planted() {
    let operations = vec![
        Operation::Create { seq: SEQ },
        Operation::Open {
            step: StepNo(5),
            spans: vec![Span { seq: SEQ, start: 4, wanted: Wanted::Last, ids: vec![7] }],
        },
    ];
    let step = Step { operations, ..first_step(EPOCH, 1) };
    let (mut rig, _, back) = serving();
    let effects = rig.heard(back, Frame::Step(step.clone()));
    assert!(is_stopped(&effects, FailureCode::Refused, "begins at 4, has 0 tokens"), "{effects:?}");
    let mut rig = Rig::with_head_and(Planted::bug(Bug::SpanElsewhere));
    let (_, back) = rig.serve(configure(EPOCH, false));
    assert!(passes(&rig.heard(back, Frame::Step(step))).is_some());
}

#[test]
fn behind_the_last_layer_only_wanted_rows_come() {
    // Place 2 of two others: everything is computed before it comes here in round 1.
    let window = |round, place, begin, end| Window { round, place, begin, end, gpu: 0 };
    let windows = vec![window(0, 1, 0, 2), window(0, 2, 2, 4), window(1, 0, 4, 6)];
    let mut rig = Rig::with_head();
    let (out, back) = rig.serve(Configure { windows, ..configure(EPOCH, false) });
    let first = Step { layers_done: 0, ..first_step(EPOCH, 3) };
    let (step, layers) = passes(&rig.heard(back, Frame::Step(first))).unwrap();
    assert_eq!(layers, 0..2);
    rig.computed(WorkerDone::Passed(Box::new(step)));
    let last = Step { round: 1, layers_done: 6, states: states(1), ..chunk(0..3) };
    let (step, layers) = passes(&rig.heard(back, Frame::Step(last.clone()))).unwrap();
    assert_eq!((&step, layers), (&last, 0..0), "passed on, by way of the one queue");
    assert_eq!(rig.computed(WorkerDone::Passed(Box::new(step))), [send(out, Frame::Step(last))]);
    let all = Step { round: 1, layers_done: 6, ..chunk(0..3) };
    assert!(is_stopped(&rig.heard(back, Frame::Step(all)), FailureCode::Refused, "3 rows"));
}

#[test]
fn audits_are_computed_where_they_are_meant() {
    let audit = |place, begin, end| {
        let audit = Some(Audit { place, begin, end });
        let layers_done = if place < 1 { end } else { begin };
        Step { audit, layers_done, ..first_step(EPOCH, 1) }
    };
    for (step, want) in [(audit(1, 3, 4), 3..4), (audit(2, 4, 5), 0..0), (audit(0, 0, 1), 0..0)] {
        let (mut rig, out, back) = serving();
        let (step, layers) = passes(&rig.heard(back, Frame::Step(step))).unwrap();
        assert_eq!(layers, want);
        let done = if layers.is_empty() { step.layers_done } else { layers.end as u16 };
        let effects = rig.computed(WorkerDone::Passed(Box::new(step.clone())));
        assert_eq!(effects, [send(out, Frame::Step(Step { layers_done: done, ..step }))]);
    }
    let (mut rig, _, back) = serving();
    let passed = Step { layers_done: 0, ..audit(0, 0, 1) };
    assert!(is_stopped(&rig.heard(back, Frame::Step(passed)), FailureCode::Refused, "behind 1"));
}

#[test]
fn a_relay_checks_and_sends_on_at_once() {
    let mut rig = Rig::with_head();
    let (out, back) = rig.serve(configure(EPOCH, true));
    let effects = rig.heard(back, Frame::Step(first_step(EPOCH, 2)));
    assert_eq!(effects, [send(out, Frame::Step(first_step(EPOCH, 2)))]);
    let commit = Step {
        step: StepNo(6),
        operations: vec![
            Operation::Commit { step: StepNo(5) },
            Operation::Open {
                step: StepNo(6),
                spans: vec![Span { seq: SEQ, start: 2, wanted: Wanted::Last, ids: vec![1] }],
            },
        ],
        ..chunk(0..1)
    };
    assert_eq!(rig.heard(back, Frame::Step(commit)).len(), 1);
    assert_eq!((rig.core.lengths(), rig.core.applied()), (BTreeMap::from([(SEQ, 2)]), 4));
    let beat = rig.next_beat(Meters::default());
    assert_eq!((beat.received, beat.sent, beat.singles), (2, 2, 0));
    assert!(is_stopped(&rig.heard(back, Frame::Step(first_step(EPOCH, 2))), FailureCode::Refused, "open"));
}

#[test]
fn frames_of_another_epoch_are_counted_and_dropped() {
    let (mut rig, _, back) = serving();
    for epoch in [EPOCH - 1, EPOCH + 1] {
        let step = first_step(epoch, 1);
        assert_eq!(rig.heard(back, Frame::Step(step.clone())), [Effect::Discard(Box::new(step))]);
    }
    let beat = rig.next_beat(Meters::default());
    assert_eq!((beat.received, beat.refused), (0, 2));
}

#[test]
fn what_is_no_step_ends_the_part() {
    let (mut rig, out, back) = serving();
    let effects = rig.heard(back, Frame::Provided);
    assert!(is_stopped(&effects, FailureCode::Refused, "no step"));
    assert!(effects.contains(&close(out)) && effects.contains(&close(back)));
    let (mut rig, _, back) = serving();
    assert!(is_stopped(&rig.no_frame(back), FailureCode::Refused, "odd bytes"));
    let (mut rig, out, _) = serving();
    assert!(is_stopped(&rig.heard(out, Frame::Provided), FailureCode::Next, "sent a frame back"));
}

#[test]
fn links_that_end_name_the_device_at_their_other_end() {
    let (mut rig, out, back) = serving();
    rig.heard(back, Frame::Step(first_step(EPOCH, 1)));
    let effects = rig.gone(back);
    assert!(is_stopped(&effects, FailureCode::Before, "cut"));
    assert!(effects.contains(&Effect::Interrupt) && effects.contains(&close(out)));
    // The result of the interrupted work is dropped.
    let step = first_step(EPOCH, 1);
    let effects = rig.computed(WorkerDone::Passed(Box::new(step.clone())));
    assert_eq!(effects, [Effect::Discard(Box::new(step))]);
    let (mut rig, out, _) = serving();
    assert!(is_stopped(&rig.gone(out), FailureCode::Next, "cut"));
}

#[test]
fn what_goes_wrong_in_the_engine_is_the_right_ones_fault() {
    let nan = States::of(Hidden { rows: 1, width: WIDTH, values: vec![f32::INFINITY; WIDTH] });
    for (done, code, words) in [
        (
            WorkerDone::Passed(Box::new(Step { states: nan, ..first_step(EPOCH, 1) })),
            FailureCode::Engine,
            "layers 2 to 4 gave a value that is no number",
        ),
        (WorkerDone::Engine("broken".into()), FailureCode::Engine, "broken"),
        (WorkerDone::Refused("no room".into()), FailureCode::Refused, "no room"),
        (WorkerDone::Gains { want: 3, found: 2 }, FailureCode::Refused, "3 tokens of a prefix"),
    ] {
        let (mut rig, _, back) = serving();
        rig.heard(back, Frame::Step(first_step(EPOCH, 1)));
        let effects = rig.computed(done);
        assert!(is_stopped(&effects, code, words), "{words}: {effects:?}");
        let effects = rig.head(Frame::Configure(Box::new(configure(EPOCH + 1, false))));
        assert!(begins(&effects), "the model stays open");
    }
}

#[test]
fn a_panic_of_the_engine_ends_the_session_by_name_and_the_next_head_is_served() {
    let (mut rig, out, back) = serving();
    rig.heard(back, Frame::Step(first_step(EPOCH, 1)));
    let effects = rig.computed(WorkerDone::Panicked("the engine panicked: odd".into()));
    assert_eq!(effects[..2], failed(EPOCH, FailureCode::Engine, "the engine panicked: odd"));
    for link in [CONTROL, out, back] {
        assert!(effects.contains(&close(link)), "{link:?}: {effects:?}");
    }
    assert_eq!(rig.computing, None, "nothing is left to be dropped");
    rig.arrive(LinkId(99), OTHER, Purpose::Control);
    let effects = rig.heard(LinkId(99), Frame::Configure(Box::new(configure(1, false))));
    assert!(
        matches!(on_disk(&effects), Some(DiskWork::Look { .. })),
        "the model is opened anew: {effects:?}"
    );
}

#[test]
fn a_panic_of_a_work_that_nobody_waits_for_ends_nothing() {
    let (mut rig, _, back) = serving();
    rig.heard(back, Frame::Step(first_step(EPOCH, 1)));
    rig.head(Frame::Configure(Box::new(configure(EPOCH + 1, false))));
    let effects = rig.computed(WorkerDone::Panicked("the engine panicked: odd".into()));
    assert!(matches!(on_disk(&effects), Some(DiskWork::Look { .. })), "the newer part begins: {effects:?}");
}

#[test]
fn a_newer_part_drops_frames_of_the_older_unless_the_bug_is_planted() {
    for (planted, computed) in [(Planted::default(), false), (Planted::bug(Bug::OldFramesComputed), true)] {
        let mut rig = Rig::with_head_and(planted);
        let (out, back) = rig.serve(configure(EPOCH, false));
        rig.heard(back, Frame::Step(first_step(EPOCH, 1)));
        rig.heard(back, Frame::Step(first_step(EPOCH, 1)));
        let effects = rig.head(Frame::Configure(Box::new(configure(EPOCH + 1, false))));
        for effect in [close(out), close(back), Effect::Interrupt] {
            assert!(effects.contains(&effect), "{effect:?}");
        }
        let dropped = effects.contains(&Effect::Discard(Box::new(first_step(EPOCH, 1))));
        assert_eq!(dropped, !computed);
        assert!(begins(&rig.computed(WorkerDone::Stopped)));
        let out = connected(&rig.computed(WorkerDone::Begun));
        rig.opened(out);
        let (back, _) = rig.arrives(BEFORE, Purpose::Ring);
        let effects = rig.heard(back, Frame::Enter { epoch: Epoch(EPOCH + 1), place: 0 });
        assert_eq!(passes(&effects).is_some(), computed);
        assert_eq!(rig.core.applied() > 0, computed, "sequences begin anew");
    }
}
