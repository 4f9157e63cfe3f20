//! Devices that live but do not compute, found while no answer runs.

use super::*;
use crate::ring::link::Purpose;
use crate::ring::link::memory::Fate;

/// Makes a ring whose head sends a token round at every opportunity, and waits for it about five seconds.
/// That is several heartbeats, each long compared with the delays of a busy machine.
fn watched(home: &Home) -> RingHead {
    let planner = Box::new(first(plan(2, &[("head", 1), ("w1", 2), ("w2", 2)])));
    home.head_with(model(), planner, |options| {
        options.health = Duration::ZERO;
        options.heartbeat = Duration::from_secs(1);
        options.floor = Duration::from_secs(5);
        options.token = Duration::ZERO;
        options.hop = Duration::from_secs(60);
    })
}

#[test]
fn a_device_that_lives_and_does_not_compute_is_found_while_nobody_asks() {
    for victim in [1u8, 2] {
        let home = Home::new(2);
        let mut head = watched(&home);
        let handle = head.handle();
        let ids = prompt(9, 40);
        let want = written(&mut one_engine(), &ids, 3);
        assert_same_bits(&written(&mut head, &ids, 3).0, &want.0, "before");
        head.idle();
        assert!(handle.stats().lost.is_empty());
        // Its heartbeats go on; its frames are held back.
        home.hub.hook(move |passing| {
            match passing.from == [victim; 32] && passing.purpose == Purpose::Ring {
                true => Fate::Hold,
                false => Fate::Pass,
            }
        });
        head.idle();
        let stats = handle.stats();
        let lost: Vec<&str> = stats.lost.iter().map(|lost| lost.name.as_str()).collect();
        assert_eq!(lost, [format!("w{victim}")], "{stats:?}");
        assert!(stats.lost[0].words.contains("passed no frame on"), "{stats:?}");
        assert_eq!(stats.devices.len(), 2, "the ring is there again before anybody asks");
        let recoveries = stats.recoveries;
        assert_same_bits(&written(&mut head, &ids, 3).0, &want.0, "after");
        assert_eq!(handle.stats().recoveries, recoveries, "and the answer had to wait for nothing");
    }
}

#[test]
fn a_device_that_went_while_nobody_asked_is_left_out_before_the_next_answer() {
    let home = Home::new(2);
    let mut head = watched(&home);
    let handle = head.handle();
    home.hub.kill(2);
    let begun = std::time::Instant::now();
    while handle.stats().lost.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(120), "nobody noticed");
        head.idle();
    }
    assert_eq!((handle.stats().devices.len(), handle.present()), (2, vec![[1; 32]]));
}

#[test]
fn tokens_for_health_change_nothing_for_anybody_else() {
    let home = Home::new(2);
    let mut head = watched(&home);
    let handle = head.handle();
    let mut engine = one_engine();
    let ids = prompt(3, 100);
    let live = |sequences: &mut dyn Sequences| {
        let seq = sequences.create_with(None).unwrap();
        sequences.step(&[step(seq, &ids[..70], Wanted::Last)], &mut ()).unwrap();
        seq
    };
    let (own, others) = (live(&mut engine), live(&mut head));
    let epoch = handle.stats().epoch;
    (0..5).for_each(|_| head.idle());
    // The tokens that a prefix finds, and the logits with which the live sequence continues.
    let mut gained = Vec::new();
    for (sequences, live) in [(&mut engine as &mut dyn Sequences, own), (&mut head, others)] {
        let seq = sequences.create_with(None).unwrap();
        gained.push(sequences.reuse_prefix(seq, &ids));
        let batch = [step(live, &ids[70..], Wanted::All), step(seq, &ids[gained[0]..], Wanted::Last)];
        let outputs = sequences.step(&batch, &mut ()).unwrap();
        let logits: Vec<f32> = outputs.into_iter().flat_map(|output| output.logits).collect();
        gained.push(logits.iter().fold(0, |sum, value| sum ^ value.to_bits() as usize));
        gained.push(logits.len());
    }
    assert!(gained[0] > 0, "the prefix is known");
    assert_eq!(gained[..3], gained[3..], "tokens gained, logits, number of logits");
    let stats = handle.stats();
    assert_eq!((stats.epoch, stats.recoveries, stats.lost.len()), (epoch, 0, 0), "{stats:?}");
    assert_eq!(stats.steps, 1 + 5 + 1);
}
