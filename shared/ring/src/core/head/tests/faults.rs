//! Who is blamed for what, and when.

use baton_engine::Wanted;
use baton_engine::engine::Hidden;

use super::super::*;
use super::home::{Home, node};
use crate::core::{Bug, Note, States};
use crate::wire::frame::{FailureCode, Step};

fn ready(workers: u8) -> (Home, SeqNo) {
    let mut home = Home::connected(workers, 6, 1, 5);
    let seq = home.create();
    assert!(home.batch(&[(seq, vec![1, 2, 3], Wanted::Last)]).is_ok());
    (home, seq)
}

fn step(home: &mut Home, seq: SeqNo) {
    assert_eq!(home.batch(&[(seq, vec![4], Wanted::Last)]).map(|logits| logits.len()), Ok(1));
}

fn lost(home: &Home) -> Vec<String> {
    home.core.stats().lost.into_iter().map(|lost| lost.name).collect()
}

#[test]
fn a_link_that_breaks_once_costs_nobody_the_ring_and_twice_in_a_row_one_device() {
    let (mut home, seq) = ready(2);
    home.cut();
    step(&mut home, seq);
    assert_eq!((lost(&home).len(), home.core.present().len()), (0, 2));
    assert!(home.notes.iter().any(|note| matches!(note, Note::LinkBroke { .. })));
    home.cut();
    step(&mut home, seq);
    assert_eq!(home.core.present().len(), 2, "a step was done between them");
    // The second time the sequences are being computed again.
    home.bend = Some(Box::new(|_| Vec::new()));
    let second = |home: &mut Home| {
        home.bend = None;
        home.cut();
    };
    home.then = Some((
        12,
        Box::new(move |home: &mut Home| {
            home.cut();
            home.then = Some((home.events + 60, Box::new(second)));
        }),
    ));
    step(&mut home, seq);
    assert_eq!(lost(&home), ["w1"]);
}

#[test]
fn a_broken_link_waits_for_its_cause() {
    let (mut home, seq) = ready(2);
    // The links of the ring break first; 100 ms later the device says why.
    home.cut();
    home.then = Some((
        1,
        Box::new(|home: &mut Home| {
            home.now += Duration::from_millis(100);
            home.fail(1, FailureCode::Engine);
        }),
    ));
    step(&mut home, seq);
    assert_eq!(lost(&home), ["w1"]);
    assert!(!home.notes.iter().any(|note| matches!(note, Note::LinkBroke { .. })));
}

#[test]
fn a_device_that_refuses_frames_accuses_the_one_before() {
    let (mut home, seq) = ready(3);
    home.fail(3, FailureCode::Refused);
    step(&mut home, seq);
    assert_eq!(lost(&home), ["w2"]);
    let (mut home, seq) = ready(3);
    home.fail(1, FailureCode::Refused);
    step(&mut home, seq);
    assert_eq!(lost(&home), ["w1"], "the head knows when it fails itself");
}

fn bent(bend: fn(Step) -> Vec<Step>) -> Home {
    let (mut home, seq) = ready(2);
    home.bend = Some(Box::new(bend));
    home.then = Some((90, Box::new(|home: &mut Home| home.bend = None)));
    step(&mut home, seq);
    step(&mut home, seq);
    home
}

#[test]
fn a_last_device_that_sends_nonsense_leaves() {
    let nan = |mut step: Step| {
        step.states = States::of(Hidden { rows: 1, width: 1, values: vec![f32::NAN] });
        vec![step]
    };
    assert_eq!(lost(&bent(nan))[0], "w2");
    let twice = |step: Step| vec![step.clone(), step];
    assert_eq!(lost(&bent(twice))[0], "w2");
    let other = |mut step: Step| {
        step.round += 1;
        vec![step]
    };
    assert_eq!(lost(&bent(other))[0], "w2");
}

#[test]
fn planted_bugs_of_frames_and_of_a_cancelled_replay_are_seen() {
    let mut home = Home::with_bug(Bug::NotFiniteUsed, 2, 6);
    let seq = home.create();
    home.bend = Some(Box::new(|mut step: Step| {
        step.states = States::of(Hidden { rows: 1, width: 1, values: vec![f32::NAN] });
        vec![step]
    }));
    step(&mut home, seq);
    assert!(lost(&home).is_empty(), "nobody is blamed for what is no number");

    // The next step begins on a ring without the tokens, or with those that were computed again until then.
    let mut home = Home::with_bug(Bug::CancelledReplayDone, 2, 6);
    let seq = home.create();
    assert!(home.batch(&[(seq, vec![1; 600], Wanted::None)]).is_ok());
    home.cut();
    home.bend = Some(Box::new(|_| Vec::new()));
    home.then = Some((60, Box::new(Home::cancel)));
    assert_eq!(home.batch(&[(seq, vec![4], Wanted::Last)]), Err(RingFault::Cancelled));
    assert!(home.core.is_cached(), "no route has the tokens");
}

#[test]
fn frames_of_another_epoch_are_refused_and_nobody_is_blamed() {
    let (mut home, seq) = ready(2);
    home.bend = Some(Box::new(|step: Step| {
        let mut old = step.clone();
        old.epoch.0 -= 1;
        vec![old, step]
    }));
    step(&mut home, seq);
    assert_eq!((home.core.stats().refused, lost(&home).len()), (1, 0));
}

#[test]
fn a_ring_that_does_not_move_is_given_up_after_the_limit() {
    let (mut home, seq) = ready(2);
    let before = home.now;
    home.bend = Some(Box::new(|_| Vec::new()));
    home.then = Some((12, Box::new(|home: &mut Home| home.bend = None)));
    step(&mut home, seq);
    let took = home.now - before;
    assert!(took >= Duration::from_secs(15) && took < Duration::from_secs(20), "{took:?}");
    assert_eq!(home.core.stats().recoveries, 1);
}

#[test]
fn the_caller_gets_an_error_if_nothing_helps_and_goes_on_when_it_does() {
    let (mut home, seq) = ready(1);
    home.planless = true;
    home.kill(1);
    let err = home.batch(&[(seq, vec![4], Wanted::Last)]);
    let Err(RingFault::Missing { lost, err }) = err else { panic!("{err:?}") };
    assert!(lost.starts_with("`w1`"), "{lost}");
    assert!(matches!(*err, RingFault::NoPlan { .. }));
    assert_eq!(home.core.ids(seq), Some(&[1, 2, 3][..]));
    home.planless = false;
    step(&mut home, seq);
    assert_eq!(home.core.ids(seq), Some(&[1, 2, 3, 4][..]));
}

#[test]
fn what_no_longer_fits_when_it_is_computed_again_is_an_error_of_its_own() {
    let (mut home, seq) = ready(1);
    home.room = 2;
    home.cut();
    home.pass_time(Duration::from_millis(50));
    let err = home.batch(&[(seq, vec![4], Wanted::Last)]);
    assert_eq!(err, Err(RingFault::Replay));
    home.room = 100;
    step(&mut home, seq);
    home.room = 4;
    assert_eq!(home.batch(&[(seq, vec![4], Wanted::Last)]), Err(RingFault::Refused));
    home.room = 100;
    step(&mut home, seq);
}

#[test]
fn a_device_that_comes_back_is_taken_in_between_answers() {
    let (mut home, seq) = ready(2);
    home.kill(2);
    step(&mut home, seq);
    assert_eq!(home.core.present().len(), 1);
    home.revive(2);
    home.step(Event::Join(node(2)));
    assert_eq!(home.core.joining(), [DeviceId([2; 32])]);
    home.between();
    assert_eq!(home.core.stats().fetching, ["w2"]);
    step(&mut home, seq);
    home.between();
    assert_eq!(home.core.stats().devices.len(), 3);
    home.check_workers();
    step(&mut home, seq);
}
