//! Tokens that a head sends round while no answer runs.

use super::*;

/// Makes a ring whose head sends a token round at every opportunity.
fn watched(home: &Home) -> RingHead {
    let planner = Box::new(first(plan(2, &[("head", 1), ("w1", 2), ("w2", 2)])));
    home.head_with(model(), planner, |options| options.health = Duration::ZERO)
}

#[test]
fn tokens_for_health_change_nothing_for_anybody_else() {
    let home = home_of(2);
    let mut head = watched(&home);
    let handle = head.handle();
    let mut engine = one_engine();
    let ids = prompt(3, 100);
    let live = |sequences: &mut dyn Sequences| {
        let seq = sequences.create_in(PrefixScope::default(), None).unwrap();
        sequences.step(&[step(seq, &ids[..70], Wanted::Last)], &mut ()).unwrap();
        seq
    };
    let (own, others) = (live(&mut engine), live(&mut head));
    let epoch = handle.stats().epoch;
    (0..5).for_each(|_| head.idle());
    // The tokens that a prefix finds, and the logits with which the live sequence continues.
    let mut gained = Vec::new();
    for (sequences, live) in [(&mut engine as &mut dyn Sequences, own), (&mut head, others)] {
        let seq = sequences.create_in(PrefixScope::default(), None).unwrap();
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
