//! Rings against one engine: whatever is asked, and whatever breaks, results are those of one engine.

use std::collections::BTreeMap;

use baton_engine::Wanted;
use baton_random::SplitMix64;

use super::super::*;
use super::fake;
use super::home::Home;
use crate::core::ledger::LedgerError;
use crate::wire::frame::{FailureCode, Operation};

/// One engine that is told the same.
struct Reference {
    device: fake::Device,
    n_layers: usize,
}

impl Reference {
    fn ids(&self) -> BTreeMap<SeqNo, Vec<u32>> {
        self.device.ids()
    }
}

fn tokens(rng: &mut SplitMix64, most: u64) -> Vec<u32> {
    (0..1 + rng.next_u64() % most).map(|_| (rng.next_u64() % 3) as u32).collect()
}

fn any_seq(rng: &mut SplitMix64, reference: &Reference) -> Option<(SeqNo, Vec<u32>)> {
    let all: Vec<_> = reference.ids().into_iter().collect();
    let at = (rng.next_u64() as usize).checked_rem(all.len())?;
    Some(all[at].clone())
}

/// Asks for something, and compares.
fn one_request(home: &mut Home, reference: &mut Reference, rng: &mut SplitMix64) {
    let create = |home: &mut Home, reference: &mut Reference| {
        let seq = home.create();
        reference.device.apply(&Operation::Create { seq });
    };
    let Some((seq, ids)) = any_seq(rng, reference) else { return create(home, reference) };
    match rng.next_u64() % 10 {
        0 => create(home, reference),
        1 => {
            let n = rng.below(ids.len() + 1);
            let Ok(Outputs::Seq(child)) = home.ask(SeqAsk::Fork { from: seq, tokens: n }) else { panic!() };
            reference.device.apply(&Operation::Fork { from: seq, tokens: n as u64, seq: child });
        }
        2 => {
            let n = rng.below(ids.len() + 1);
            assert_eq!(home.ask(SeqAsk::Truncate { seq, tokens: n }), Ok(Outputs::None));
            reference.device.apply(&Operation::Truncate { seq, tokens: n as u64 });
        }
        3 if reference.ids().len() > 2 => {
            assert_eq!(home.ask(SeqAsk::Release(seq)), Ok(Outputs::None));
            reference.device.apply(&Operation::Release { seq });
        }
        4 => {
            let more = tokens(rng, 20);
            let Ok(Outputs::Gained(gained)) = home.ask(SeqAsk::Reuse { seq, ids: more.clone() }) else {
                panic!()
            };
            if gained > 0 {
                let step = [(seq, more[..gained].to_vec(), Wanted::None)];
                reference.device.whole(&step, reference.n_layers);
            }
        }
        5 => home.idle(),
        6 => home.between(),
        _ => {
            let mut batch = vec![(seq, tokens(rng, 100), Wanted::All)];
            for other in reference.ids().into_keys().filter(|other| *other != seq).take(2) {
                let wanted = [Wanted::None, Wanted::Last][rng.below(2)];
                batch.push((other, tokens(rng, 10), wanted));
            }
            let before = home.core.stats().steps;
            match home.batch(&batch) {
                Ok(logits) => {
                    assert_eq!(logits, reference.device.whole(&batch, reference.n_layers));
                    assert!(home.core.stats().steps > before);
                }
                Err(RingFault::Cancelled) => {}
                Err(err) => panic!("{err}"),
            }
        }
    }
}

fn same(home: &Home, reference: &Reference) {
    let known: Vec<SeqNo> = home.core.seqs().collect();
    let held: BTreeMap<SeqNo, Vec<u32>> =
        known.into_iter().map(|seq| (seq, home.core.ids(seq).unwrap_or_default().to_vec())).collect();
    assert_eq!(held, reference.ids(), "the ledger");
    if home.core.is_cached() {
        assert_eq!(home.engine.ids(), reference.ids(), "the engine");
    }
}

/// Runs a random script; `break_it` may arrange that something breaks before each request.
fn script(seed: u64, requests: usize, mut break_it: impl FnMut(&mut Home, &mut SplitMix64)) {
    let mut rng = SplitMix64::new(seed);
    let rounds = 1 + rng.below(2);
    let n_layers = rounds * (1 + rng.below(6));
    let mut home = Home::connected((rng.next_u64() % 4) as u8, n_layers, rounds, seed);
    let mut reference = Reference { device: fake::Device::default(), n_layers };
    for _ in 0..requests {
        break_it(&mut home, &mut rng);
        one_request(&mut home, &mut reference, &mut rng);
        home.then = None;
        same(&home, &reference);
        home.pass_time(Duration::from_millis(rng.next_u64() % 3000));
    }
}

#[test]
fn a_ring_gives_what_one_engine_gives() {
    (0..60).for_each(|seed| script(seed, 40, |_, _| {}));
}

#[test]
fn a_step_that_is_cancelled_at_any_time_changes_nothing() {
    for seed in 0..60 {
        script(seed, 30, |home, rng| {
            if rng.below(2) == 0 {
                let after = rng.below(60);
                home.then = Some((after, Box::new(Home::cancel)));
            }
        });
    }
}

#[test]
fn a_cancel_at_each_event_of_a_step_changes_nothing_and_the_next_step_is_right() {
    let batch = |seq| vec![(seq, (0..40).collect::<Vec<u32>>(), Wanted::Last)];
    for after in 0..60 {
        let mut home = Home::connected(2, 4, 2, 1);
        let seq = home.create();
        home.then = Some((after, Box::new(Home::cancel)));
        let mut reference = fake::Device::default();
        reference.apply(&Operation::Create { seq });
        let first = home.batch(&batch(seq));
        let want = reference.whole(&batch(seq), 4);
        match first {
            Ok(logits) => assert_eq!(logits, want),
            Err(err) => {
                assert_eq!(err, RingFault::Cancelled);
                assert_eq!(home.core.ids(seq), Some(&[][..]));
                assert_eq!(home.batch(&batch(seq)), Ok(want));
            }
        }
        home.then = None;
        let next = vec![(seq, vec![3], Wanted::Last)];
        assert_eq!(home.batch(&next), Ok(reference.whole(&next, 4)), "after {after} events");
    }
}

#[test]
fn a_cancel_while_sequences_are_computed_again_keeps_them_for_the_next_step() {
    for after in 0..80 {
        let mut home = Home::connected(2, 4, 1, 2);
        let seq = home.create();
        let mut reference = fake::Device::default();
        reference.apply(&Operation::Create { seq });
        let long = vec![(seq, (0..1200).collect::<Vec<u32>>(), Wanted::None)];
        assert_eq!(home.batch(&long), Ok(reference.whole(&long, 4)));
        home.kill(2);
        home.then = Some((after, Box::new(Home::cancel)));
        let next = vec![(seq, vec![3], Wanted::Last)];
        let want = reference.whole(&next, 4);
        match home.batch(&next) {
            Ok(logits) => assert_eq!(logits, want),
            Err(err) => {
                assert_eq!(err, RingFault::Cancelled);
                assert_eq!(home.core.ids(seq).map(<[u32]>::len), Some(1200));
                home.then = None;
                assert_eq!(home.batch(&next), Ok(want), "after {after} events");
            }
        }
    }
}

#[test]
fn devices_that_are_lost_at_any_time_cost_time_alone() {
    for seed in 0..80 {
        script(seed, 25, |home, rng| {
            let workers = home.core.present().len() as u64;
            let after = rng.below(50);
            if workers > 0 && rng.below(6) == 0 {
                let at = home.core.present()[rng.below(workers as usize)].0[0];
                home.then = Some((after, Box::new(move |home| home.kill(at))));
            } else if rng.below(6) == 0 {
                home.then = Some((after, Box::new(Home::cut)));
            } else if workers > 0 && rng.below(6) == 0 {
                let at = home.core.present()[rng.below(workers as usize)].0[0];
                let codes = [FailureCode::Engine, FailureCode::Before, FailureCode::Next, FailureCode::Busy];
                let code = codes[rng.below(4)];
                home.then = Some((after, Box::new(move |home| home.fail(at, code))));
            }
        });
    }
}

#[test]
fn changes_of_sequences_are_checked_and_need_no_ring() {
    let mut home = Home::connected(1, 2, 1, 3);
    let (a, lost) = (home.create(), SeqNo(77));
    assert!(home.batch(&[(a, vec![1, 2, 3, 4, 5], Wanted::None)]).is_ok());
    let unknown = Err(RingFault::Sequence(LedgerError::Unknown(lost)));
    assert_eq!(home.ask(SeqAsk::Fork { from: lost, tokens: 0 }), unknown);
    assert_eq!(home.ask(SeqAsk::Truncate { seq: lost, tokens: 0 }), unknown);
    assert_eq!(home.ask(SeqAsk::Reuse { seq: lost, ids: vec![1] }), unknown);
    assert_eq!(home.ask(SeqAsk::Release(lost)), Ok(Outputs::None));
    assert_eq!(home.batch(&[(lost, vec![1], Wanted::Last)]).map(drop), unknown.clone().map(drop));
    let past = Err(RingFault::Sequence(LedgerError::PastEnd { wanted: 6, len: 5 }));
    assert_eq!(home.ask(SeqAsk::Fork { from: a, tokens: 6 }), past);
    assert_eq!(home.ask(SeqAsk::Truncate { seq: a, tokens: 6 }), past);

    // The ring is down, and cannot be formed.
    home.kill(1);
    home.planless = true;
    assert!(matches!(home.batch(&[(a, vec![6], Wanted::Last)]), Err(RingFault::Missing { .. })));
    assert!(!home.core.is_cached());
    assert_eq!(home.ask(SeqAsk::Truncate { seq: a, tokens: 6 }), past);
    let Ok(Outputs::Seq(b)) = home.ask(SeqAsk::Fork { from: a, tokens: 4 }) else { panic!() };
    assert_eq!(home.ask(SeqAsk::Truncate { seq: a, tokens: 3 }), Ok(Outputs::None));
    assert_eq!(home.ask(SeqAsk::Reuse { seq: a, ids: vec![4, 5, 6, 7, 8] }), Ok(Outputs::Gained(0)));
    let c = home.create();
    assert_eq!(home.core.ids(a), Some(&[1, 2, 3][..]));
    assert_eq!(home.core.ids(b), Some(&[1, 2, 3, 4][..]));
    home.planless = false;
    let batch = [(a, vec![9], Wanted::Last), (b, vec![9], Wanted::Last), (c, vec![9], Wanted::Last)];
    let mut reference = fake::Device::default();
    for (seq, ids) in [(a, vec![1, 2, 3]), (b, vec![1, 2, 3, 4]), (c, vec![])] {
        reference.apply(&Operation::Create { seq });
        if !ids.is_empty() {
            reference.whole(&[(seq, ids, Wanted::None)], 2);
        }
    }
    assert_eq!(home.batch(&batch), Ok(reference.whole(&batch, 2)));
    assert_eq!(home.engine.ids(), reference.ids());
}

#[test]
fn a_replay_uses_known_prefixes_and_all_devices_find_the_same() {
    let mut home = Home::connected(2, 3, 1, 4);
    let ids: Vec<u32> = (0..700).collect();
    let a = home.create();
    assert!(home.batch(&[(a, ids.clone(), Wanted::None)]).is_ok());
    let b = match home.ask(SeqAsk::Fork { from: a, tokens: 650 }) {
        Ok(Outputs::Seq(b)) => b,
        other => panic!("{other:?}"),
    };
    let before = home.core.stats();
    home.judged = true;
    home.idle();
    let after = home.core.stats();
    // The second sequence needs what lies behind its last whole block.
    let again = after.tokens - before.tokens;
    assert!((700 + 2..700 + 10).contains(&again), "{again} tokens");
    assert_eq!(after.recoveries, before.recoveries + 1);
    assert_eq!(home.core.ids(b), Some(&ids[..650]));
    home.check_workers();
}
