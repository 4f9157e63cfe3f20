//! Devices and links that are lost at any moment, and frames that are wrong: the answer is the same, only
//! later.

use super::*;
use crate::ring::frame::{Frame, Operation};
use crate::ring::head::RingHandle;
use crate::ring::link::memory::{Fate, Passing};
use crate::ring::link::{Key, Purpose};

/// The result of one engine.
static WANT: LazyLock<(Vec<f32>, Vec<TokenId>)> =
    LazyLock::new(|| written(&mut one_engine(), &prompt(3, 60), 5));

/// A home of a head and two workers that share the layers in two rounds.
fn home() -> Home {
    Home::new(2)
}

fn head(home: &Home) -> RingHead {
    home.head(first(plan(2, &[("head", 1), ("w1", 2), ("w2", 2)])))
}

/// Counts frames of the ring; `fate` decides what happens to the one with this number.
fn at_frame(home: &Home, number: usize, mut fate: impl FnMut(&Passing<'_>) -> Fate + Send + 'static) {
    let mut seen = 0;
    home.hub.hook(move |passing| {
        let step = matches!(Frame::decode(passing.frame), Ok(Frame::Step(_)));
        if passing.purpose == Purpose::Control || !step {
            return Fate::Pass;
        }
        seen += 1;
        if seen == number { fate(passing) } else { Fate::Pass }
    });
}

/// Computes the answer and checks that it equals that of one engine.
#[track_caller]
fn check_answer(head: &mut RingHead, what: &str) -> RingHandle {
    let (logits, text) = written(head, &prompt(3, 60), 5);
    assert_eq!(text, WANT.1, "{what}");
    assert_same_bits(&logits, &WANT.0, what);
    head.handle()
}

fn lost(handle: &RingHandle) -> Vec<String> {
    handle.stats().lost.into_iter().map(|lost| lost.name).collect()
}

#[test]
fn a_worker_that_dies_with_any_frame_is_replaced_by_the_others() {
    for number in [1, 2, 3, 4, 5, 6, 9, 14, 20, 27, 33] {
        for victim in [1u8, 2] {
            let home = home();
            let mut head = head(&home);
            let hub = Arc::clone(&home.hub);
            // The frame itself arrives, unless the victim sent it.
            at_frame(&home, number, move |_| {
                hub.kill(victim);
                Fate::Pass
            });
            let what = format!("w{victim} dies with frame {number}");
            let handle = check_answer(&mut head, &what);
            assert_eq!(lost(&handle), [format!("w{victim}")], "{what}");
            assert!(handle.stats().recoveries >= 1, "{what}");
        }
    }
}

#[test]
fn when_all_are_gone_the_head_goes_on_alone() {
    let home = home();
    let mut head = head(&home);
    let hub = Arc::clone(&home.hub);
    at_frame(&home, 12, move |_| {
        hub.kill(1);
        hub.kill(2);
        Fate::Cut
    });
    let handle = check_answer(&mut head, "both die");
    let mut names = lost(&handle);
    names.sort();
    assert_eq!(names, ["w1", "w2"]);
    assert_eq!(handle.stats().devices.len(), 1);
}

#[test]
fn a_head_that_cannot_hold_the_model_alone_says_so() {
    let home = Home::new(1);
    let mut head = home.head(|workers: &[Hello]| match workers.len() {
        0 => Err("the head holds 2 of 5 layers".to_owned()),
        _ => Ok(plan(1, &[("head", 2), ("w1", 3)])),
    });
    let hub = Arc::clone(&home.hub);
    at_frame(&home, 3, move |_| {
        hub.kill(1);
        Fate::Pass
    });
    let seq = head.create_with(None).unwrap();
    let ids = prompt(3, 60);
    let refused = (0..10).find_map(|_| head.step(&[step(seq, &ids, Wanted::Last)], &mut ()).err()).unwrap();
    let words = baton_terminal::chain(&refused);
    assert!(words.contains("no plan for head: the head holds 2 of 5 layers"), "{words}");
    assert!(words.contains("the ring lacks `w1` ("), "{words}");
    assert_eq!(head.len(seq).unwrap(), 0, "the step changed nothing");
}

#[test]
fn a_link_that_is_cut_costs_an_epoch_but_no_device() {
    for number in [2, 7, 16] {
        let home = home();
        let mut head = head(&home);
        at_frame(&home, number, |_| Fate::Cut);
        let handle = check_answer(&mut head, &format!("cut with frame {number}"));
        assert!(lost(&handle).is_empty(), "{:?}", handle.stats());
        assert_eq!(handle.stats().epoch, 2);
    }
}

#[test]
fn a_frame_that_is_lost_is_noticed_by_the_deadline() {
    for number in [1, 6, 11] {
        let home = home();
        let planner = Box::new(first(plan(2, &[("head", 1), ("w1", 2), ("w2", 2)])));
        let mut head = home.head_with(model(), planner, |options| {
            options.heartbeat = Duration::from_millis(400);
            options.floor = Duration::from_millis(1500);
            options.token = Duration::ZERO;
        });
        at_frame(&home, number, |_| Fate::Instead(Vec::new()));
        let handle = check_answer(&mut head, &format!("frame {number} is lost"));
        assert!(handle.stats().recoveries >= 1);
    }
}

#[test]
fn a_worker_that_stands_still_is_lost_by_its_silence() {
    for victim in [1u8, 2] {
        let home = home();
        let planner = Box::new(first(plan(2, &[("head", 1), ("w1", 2), ("w2", 2)])));
        let mut head = home.head_with(model(), planner, |options| {
            options.heartbeat = Duration::from_millis(400);
            options.patience = Duration::from_secs(4);
        });
        let (mut seen, key): (usize, Key) = (0, [victim; 32]);
        // From its fifth frame on it sends nothing more, not even heartbeats, but its links stay open.
        home.hub.hook(move |passing| {
            let from = passing.from == key;
            seen += usize::from(from && passing.purpose == Purpose::Ring);
            if from && seen >= 5 { Fate::Instead(Vec::new()) } else { Fate::Pass }
        });
        let handle = check_answer(&mut head, &format!("w{victim} stands still"));
        assert!(lost(&handle).contains(&format!("w{victim}")), "{:?}", handle.stats());
    }
}

/// Returns a step frame after a change.
fn changed(frame: &[u8], change: impl FnOnce(&mut crate::ring::frame::Step)) -> Fate {
    let Ok(Frame::Step(mut step)) = Frame::decode(frame) else { panic!("a step frame") };
    change(&mut step);
    Fate::Instead(vec![Frame::Step(step).encode()])
}

#[test]
fn who_sends_what_is_no_number_is_ejected() {
    // To the next worker, and to the head.
    for (number, culprit) in [(2, "w1"), (3, "w2")] {
        let home = home();
        let mut head = home.head(first(plan(1, &[("head", 1), ("w1", 2), ("w2", 2)])));
        at_frame(&home, number, |passing| changed(passing.frame, |step| step.hidden.values[5] = f32::NAN));
        let ids = prompt(3, 16);
        let want = written(&mut one_engine(), &ids, 3);
        let have = written(&mut head, &ids, 3);
        assert_same_bits(&have.0, &want.0, culprit);
        let stats = head.handle().stats();
        assert_eq!(lost(&head.handle()), [culprit]);
        assert!(stats.lost[0].words.contains("no number"), "{stats:?}");
    }
}

#[test]
fn who_sends_other_shapes_rows_or_layers_is_ejected() {
    type Change = fn(&mut crate::ring::frame::Step);
    let changes: [Change; 6] = [
        |step| {
            step.hidden.width = 32;
            step.hidden.values.truncate(step.hidden.rows * 32);
        },
        |step| {
            step.hidden.rows -= 1;
            step.hidden.values.truncate(step.hidden.rows * step.hidden.width);
        },
        |step| step.rows.end += 40,
        |step| step.layers_done += 1,
        |step| step.step += 1,
        |step| step.round += 1,
    ];
    for (at, change) in changes.into_iter().enumerate() {
        for (number, culprit) in [(2, "w1"), (3, "w2")] {
            let home = home();
            let mut head = home.head(first(plan(1, &[("head", 1), ("w1", 2), ("w2", 2)])));
            at_frame(&home, number, move |passing| changed(passing.frame, change));
            let (ids, what) = (prompt(3, 16), format!("change {at} by {culprit}"));
            let want = written(&mut one_engine(), &ids, 3);
            let have = written(&mut head, &ids, 3);
            assert_same_bits(&have.0, &want.0, &what);
            assert_eq!(lost(&head.handle()), [culprit], "{what}");
        }
    }
}

#[test]
fn who_sends_a_frame_twice_or_sequences_without_end_is_ejected() {
    type Instead = fn(&[u8]) -> Fate;
    let twice: Instead = |frame| Fate::Instead(vec![frame.to_vec(); 2]);
    let flood: Instead = |frame| {
        changed(frame, |step| {
            let more = (1_000..20_000).map(|seq| Operation::Create { seq });
            step.operations.extend(more);
        })
    };
    for (what, instead) in [("twice", twice), ("a flood of sequences", flood)] {
        let home = home();
        let mut head = home.head(first(plan(1, &[("head", 1), ("w1", 2), ("w2", 2)])));
        at_frame(&home, 2, move |passing| instead(passing.frame));
        let ids = prompt(3, 16);
        let want = written(&mut one_engine(), &ids, 3);
        let have = written(&mut head, &ids, 3);
        assert_same_bits(&have.0, &want.0, what);
        assert_eq!(lost(&head.handle()), ["w1"], "{what}");
    }
}

#[test]
fn a_worker_refuses_a_span_that_begins_elsewhere() {
    let home = Home::new(1);
    let mut head = home.head(first(plan(1, &[("head", 2), ("w1", 3)])));
    // The second step's operations, in transit to the worker.
    at_frame(&home, 3, |passing| {
        changed(passing.frame, |step| {
            for operation in &mut step.operations {
                if let Operation::Open { spans, .. } = operation {
                    spans[0].start += 1;
                }
            }
        })
    });
    let ids = prompt(3, 16);
    let want = written(&mut one_engine(), &ids, 3);
    let have = written(&mut head, &ids, 3);
    assert_same_bits(&have.0, &want.0, "a wrong start");
    let events = home.events.lock().unwrap();
    let said = events.iter().find_map(|(_, event)| match event {
        WorkerEvent::Failed { words, .. } => Some(words.clone()),
        _ => None,
    });
    assert!(said.unwrap().contains("begins at 17, has 16 tokens"), "{events:?}");
}

#[test]
fn late_frames_of_an_old_epoch_are_refused_and_counted() {
    let home = home();
    let mut head = head(&home);
    let (mut cut, mut old) = (false, Vec::new());
    let mut sent = [0; 2];
    // Frames of the first epoch are kept until its link is cut; in the second epoch they arrive again.
    home.hub.hook(move |passing| {
        let Ok(Frame::Step(step)) = Frame::decode(passing.frame) else { return Fate::Pass };
        if step.epoch == 1 {
            let back = old.iter().any(|(to, _)| *to == [0; 32]);
            old.push((passing.to, passing.frame.to_vec()));
            if back && !cut {
                cut = true;
                return Fate::Cut;
            }
            return Fate::Pass;
        }
        let place = usize::from(passing.to == [0; 32]);
        let late = old.iter().find(|(to, _)| *to == passing.to).filter(|_| sent[place] < 2);
        match late {
            Some((_, late)) => {
                sent[place] += 1;
                Fate::Instead(vec![late.clone(), passing.frame.to_vec()])
            }
            None => Fate::Pass,
        }
    });
    let handle = check_answer(&mut head, "late frames");
    assert!(lost(&handle).is_empty());
    assert_eq!(handle.stats().refused, 2, "by the head");
}

#[test]
fn sequences_of_every_kind_survive_a_loss() {
    let home = home();
    let mut head = head(&home);
    let mut engine = one_engine();
    let texts = [prompt(1, 90), prompt(2, 90)];
    // Two sequences, a fork, and one that was shortened; all continue after the loss.
    let begin = |sequences: &mut dyn Sequences| {
        let [a, b] = [(); 2].map(|()| sequences.create_with(None).unwrap());
        let batch = [step(a, &texts[0][..50], Wanted::Last), step(b, &texts[1][..40], Wanted::None)];
        sequences.step(&batch, &mut ()).unwrap();
        let c = sequences.fork(a, 45).unwrap();
        sequences.truncate(b, 33).unwrap();
        [a, b, c]
    };
    let go_on = |sequences: &mut dyn Sequences, [a, b, c]: [SeqId; 3]| {
        let batch = [
            step(a, &texts[0][50..60], Wanted::All),
            step(b, &texts[1][33..60], Wanted::Last),
            step(c, &texts[0][45..47], Wanted::All),
        ];
        let outputs = sequences.step(&batch, &mut ()).unwrap();
        assert_eq!([a, b, c].map(|seq| sequences.len(seq).unwrap()), [60, 60, 47]);
        outputs.into_iter().flat_map(|output| output.logits).collect::<Vec<f32>>()
    };
    let (own, others) = (begin(&mut engine), begin(&mut head));
    home.hub.kill(2);
    let want = go_on(&mut engine, own);
    assert_same_bits(&go_on(&mut head, others), &want, "after a loss between steps");
    home.hub.kill(1);
    let again = |sequences: &mut dyn Sequences, seq| {
        sequences.step(&[step(seq, &[7], Wanted::Last)], &mut ()).unwrap().remove(0).logits
    };
    let want = again(&mut engine, own[1]);
    assert_same_bits(&again(&mut head, others[1]), &want, "and after the second");
    assert_eq!(lost(&head.handle()), ["w2", "w1"]);
}
