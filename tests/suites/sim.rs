//! The relay and the ring in virtual time, over many seeds: every check holds on each of them.
//!
//! A seed that breaks a check is printed with the shortest list of questions and faults that still shows it.
//! `SIM_SEED=n ./x test sim replay` tells everything that happens in one seed of the relay.

use std::panic;

use baton_e2e::sim::sweep::{AnyBug, Tally, Which};
use baton_e2e::sim::{Options, Scenario, run, shrink};

/// Seeds of the relay's simulation, which takes longer for each, and of the ring's.
const RELAY_SEEDS: u64 = 5_000;
const RING_SEEDS: u64 = 15_500;
/// Seeds within which each planted bug must be found.
const BUG_SEEDS: u64 = 1_500;
/// Seeds of the relay within which a bug of a device's ring must be found.
const RING_BUG_SEEDS: u64 = 500;

/// Prints what does not hold, and fails.
fn check(which: Which, tally: &Tally) {
    println!(
        "{which:?}: {} seeds, {} events, {:.0} s simulated",
        tally.seeds,
        tally.events,
        tally.time.as_secs_f64()
    );
    let Some((seed, words)) = tally.broken.first_key_value() else { return };
    for (seed, words) in &tally.broken {
        println!("seed {seed}: {words}");
    }
    let shortest = which.shortest(*seed).unwrap_or_default();
    panic!("{} seeds of {which:?} fail, the first is {seed}: {words}\n{shortest}", tally.broken.len());
}

#[test]
fn every_check_holds_on_every_seed_of_the_relay() {
    check(Which::Relay, &Which::Relay.sweep(0..RELAY_SEEDS));
}

#[test]
fn every_check_holds_on_every_seed_of_the_ring() {
    check(Which::Ring, &Which::Ring.sweep(0..RING_SEEDS));
}

#[test]
fn every_planted_bug_is_found() {
    // Some of them end in a panic, which is as good as a check.
    panic::set_hook(Box::new(|_| {}));
    let found: Vec<(AnyBug, Option<u64>)> =
        AnyBug::all().into_iter().map(|bug| (bug, bug.found_after(BUG_SEEDS))).collect();
    drop(panic::take_hook());
    for (bug, seeds) in &found {
        println!("{}: {seeds:?} seeds", bug.name());
    }
    let missed: Vec<String> =
        found.iter().filter(|(_, seeds)| seeds.is_none()).map(|(bug, _)| bug.name()).collect();
    assert!(missed.is_empty(), "not found within {BUG_SEEDS} seeds: {missed:?}");
}

#[test]
fn bugs_of_a_ring_are_found_behind_the_relay() {
    panic::set_hook(Box::new(|_| {}));
    let found = |bug| {
        let options = Options { ring_bug: Some(bug), ..Options::default() };
        let broken = |seed: &u64| panic::catch_unwind(|| run(*seed, &options).broken.is_some());
        (0..RING_BUG_SEEDS).find(|seed| broken(seed).unwrap_or(true))
    };
    let bugs = [baton_ring::sim::Bug::LastTokenLost, baton_ring::sim::Bug::EmptyNotCreated];
    let seeds = bugs.map(|bug| (bug, found(bug)));
    drop(panic::take_hook());
    assert!(seeds.iter().all(|(_, seed)| seed.is_some()), "not found: {seeds:?}");
}

#[test]
fn two_runs_of_a_seed_are_the_same() {
    for which in [Which::Relay, Which::Ring] {
        for seed in 0..50 {
            assert_eq!(which.run(seed), which.run(seed), "seed {seed} of {which:?}");
        }
    }
}

#[test]
fn a_scenario_without_some_parts_keeps_the_others() {
    for seed in 0..200 {
        let scenario = Scenario::of(seed);
        assert_eq!(scenario, Scenario::of(seed));
        let last = scenario.questions.len() - 1;
        let part = scenario.only(&[last], &[]);
        assert_eq!(part.questions, [scenario.questions[last].clone()]);
        assert!(part.faults.is_empty());
    }
}

#[test]
fn a_seed_that_breaks_a_check_is_made_shorter() {
    let options = Options { bug: Some(baton_e2e::sim::Bug::TokenLost), ..Options::default() };
    let seed = (0..100).find(|seed| run(*seed, &options).broken.is_some()).expect("the bug is found");
    let shrunk = shrink(seed, &options).expect("the seed breaks a check");
    assert_eq!(shrunk.scenario.questions.len(), 1, "{shrunk}");
    assert!(shrunk.scenario.faults.is_empty(), "{shrunk}");
}

/// Tells everything that happens in the seed that the environment names; without one it does nothing.
#[test]
fn replay() {
    let Some(seed) = std::env::var("SIM_SEED").ok().and_then(|seed| seed.parse().ok()) else { return };
    let outcome = run(seed, &Options { tells: true, ..Options::default() });
    println!("{outcome:?}");
    if let Some(shrunk) = shrink(seed, &Options::default()) {
        println!("{shrunk}");
    }
    assert_eq!(outcome.broken, None);
}
