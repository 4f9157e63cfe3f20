//! Replay in parts, settling, and the limits of breaks.

use std::time::Duration;

use super::*;
use crate::core::head::tests::setup;
use crate::core::head::{Effect, HeadDone, Outputs, SeqAsk};

/// A head alone with these sequences, whose tokens are all lost.
fn holding(lens: &[usize], planted: Planted) -> (Recover, Pump) {
    let (mut recover, mut pump) = (Recover::new(planted), Pump::new(&setup("head", 2), planted));
    for len in lens {
        let mut fx = Fx::default();
        assert_eq!(recover.ask(&SeqAsk::Create { adapter: false }, true, &mut fx), Ok(None));
        let created = recover.computed(HeadDone::Done, &mut pump, false);
        let Some(Ok(Outputs::Seq(seq))) = created else { panic!("{created:?}") };
        if *len > 0 {
            let ids = (0..*len as u32).collect();
            let span = Span { seq, start: 0, wanted: Wanted::None, ids };
            recover.committed(Committed { kind: Kind::Caller, step: StepNo(1), spans: vec![span] });
        }
    }
    (recover, pump)
}

/// Replays alone, and returns the parts that the engine computed, with what it found of each sequence before.
fn replayed(lens: &[usize], gains: &[usize], planted: Planted) -> Vec<(u64, usize, u32)> {
    let (mut recover, mut pump) = holding(lens, planted);
    let (mut parts, mut gains) = (Vec::new(), gains.iter());
    let mut fx = Fx::default();
    let mut ledger = recover.ledger().clone();
    loop {
        match recover.drive(&mut pump, None, false, Duration::ZERO, &mut fx) {
            ReplayNews::Done => break,
            ReplayNews::Waiting => {}
            news => panic!("{news:?}"),
        }
        let effects = fx.take();
        let Some(Effect::Compute(work, what)) = effects.into_iter().next() else { panic!("no work") };
        assert!(fx.computed(work));
        match what {
            HeadWork::Sequence(Operation::Reuse { .. }) => {
                let gained = HeadDone::Gained(*gains.next().expect("a look-up"));
                assert_eq!(recover.computed(gained, &mut pump, false), None);
            }
            HeadWork::Whole { replay: Some(part) } => {
                parts.push((part.seq.0, part.ids.len(), part.ids[0]));
                pump.computed(HeadDone::Done, Duration::ZERO, None, Duration::ZERO, &mut fx);
            }
            work => panic!("{work:?}"),
        }
    }
    assert!(recover.is_cached());
    std::mem::swap(&mut ledger, &mut recover.ledger);
    assert_eq!(ledger, recover.ledger, "replay does not change the ledger");
    parts
}

#[test]
fn every_token_is_computed_again_in_parts_behind_what_is_known() {
    let none = Planted::default();
    assert_eq!(replayed(&[], &[], none), []);
    assert_eq!(replayed(&[0, 3, 0], &[0], none), [(1, 3, 0)]);
    assert_eq!(
        replayed(&[1200, 512], &[0, 508], none),
        [(0, 512, 0), (0, 512, 512), (0, 176, 1024), (1, 4, 508)]
    );
    let short = Planted::bug(Bug::LastTokenLost);
    assert_eq!(replayed(&[3], &[0], short), [(0, 2, 0)], "the planted bug is one");
}

#[test]
fn a_broken_link_waits_and_a_certain_fault_does_not() {
    let second = Duration::from_secs(1);
    let link = Fault::Link { place: 1, words: "a".to_owned() };
    let gone = Fault::Lost { place: 2, words: "b".to_owned() };
    let mut recover = Recover::new(Planted::default());
    recover.fault(link.clone(), second);
    assert_eq!(recover.settles_at(), Some(second + SETTLE));
    recover.fault(Fault::Link { place: 3, words: "c".to_owned() }, second * 2);
    assert_eq!(recover.settles_at(), Some(second + SETTLE), "the first link counts");
    recover.fault(gone.clone(), second);
    assert_eq!(recover.settles_at(), Some(second));
    recover.fault(link.clone(), second);
    assert_eq!(recover.settled(), Some(gone));
    assert_eq!((recover.settled(), recover.settles_at()), (None, None));
    let mut hasty = Recover::new(Planted::bug(Bug::BlamedAtOnce));
    hasty.fault(link, second);
    assert_eq!(hasty.settles_at(), Some(second), "the planted bug is one");
}

#[test]
fn breaks_are_counted_apart_for_the_step_and_for_each_replay() {
    let fault = Fault::Link { place: 1, words: "again".to_owned() };
    let mut recover = Recover::new(Planted::default());
    recover.begin_request();
    for _ in 0..6 {
        assert_eq!(recover.broke(Within::Step, 1, &fault), None);
        recover.begin_ready(true);
        for _ in 0..6 {
            assert_eq!(recover.broke(Within::Replay, 1, &fault), None);
        }
    }
    let words = "again".to_owned();
    let gave_up = |times| Some(RingFault::GaveUp { times, words: words.clone() });
    assert_eq!(recover.broke(Within::Replay, 1, &fault), gave_up(7));
    assert_eq!(recover.broke(Within::Step, 1, &fault), gave_up(7));
    recover.begin_request();
    assert_eq!(recover.broke(Within::Step, 1, &fault), None);
    assert_eq!(recover.recoveries(), 6);
}

#[test]
fn a_cancelled_replay_does_not_count_as_done() {
    let (mut recover, mut pump) = holding(&[600], Planted::default());
    let mut fx = Fx::default();
    assert_eq!(recover.drive(&mut pump, None, false, Duration::ZERO, &mut fx), ReplayNews::Waiting);
    assert_eq!(
        recover.drive(&mut pump, None, true, Duration::ZERO, &mut fx),
        ReplayNews::Waiting,
        "the engine works"
    );
    assert_eq!(recover.computed(HeadDone::Gained(0), &mut pump, false), None);
    let cancelled = ReplayNews::Failed(RingFault::Cancelled);
    assert_eq!(recover.drive(&mut pump, None, true, Duration::ZERO, &mut fx), cancelled);
    recover.cancelled();
    assert!(!recover.is_cached());
    assert_eq!(recover.ledger().len(SeqNo(0)), Some(600));
}

#[test]
fn a_refused_change_leaves_the_ledger_as_it_was() {
    let (mut recover, mut pump) = holding(&[5], Planted::default());
    let mut fx = Fx::default();
    let before = recover.ledger().clone();
    let fork = SeqAsk::Fork { from: SeqNo(0), tokens: 3 };
    assert_eq!(recover.ask(&fork, true, &mut fx), Ok(None));
    let refused = Some(Err(RingFault::Refused));
    assert_eq!(recover.computed(HeadDone::Refused, &mut pump, false), refused);
    assert_eq!(recover.ledger(), &before);
}
