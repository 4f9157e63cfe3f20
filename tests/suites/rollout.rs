//! Rollouts of models to devices. A thousand simulated devices in virtual time, with the rules that both
//! programs use; then the real programs.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

#[path = "rollout/fleet.rs"]
mod fleet;
#[path = "rollout/programs.rs"]
mod programs;

use baton_protocol::ModelPair;
use baton_registry::rollout::{Change, GRACE_S, Guard, LEASE_S, SETTLE_S, Share};
use fleet::{Fleet, HOUR_S, Shape};

const CLASSES: [&str; 4] = ["phone", "tablet", "laptop", "desktop"];
const SEEDS: u64 = 4;

fn pair(text: &str) -> ModelPair {
    text.parse().unwrap()
}

fn share(text: &str) -> Share {
    text.parse().unwrap()
}

fn start(candidate: &str, percent: &str) -> Change {
    Change::Start { candidate: pair(candidate), share: share(percent), guard: Guard::default() }
}

fn fleet(seed: u64) -> Fleet {
    Fleet::new(seed, &Shape { classes: &CLASSES, devices: 1_000, first: pair("m@1") })
}

/// What always holds is asserted in every step of the simulation ([`Fleet::run`]).
#[test]
fn a_rollout_goes_from_one_percent_to_all_with_pauses_restarts_and_damage() {
    for seed in 0..SEEDS {
        let mut fleet = fleet(seed);
        fleet.run(HOUR_S);
        assert_eq!(fleet.with(&pair("m@1")), 1_000, "seed {seed}");
        for class in CLASSES {
            fleet.change(class, &start("m@2+law@1", "1"));
        }
        fleet.settle();
        let few = fleet.with(&pair("m@2+law@1"));
        // 10 are expected: five standard deviations of a binomial are 16.
        assert!((1..=26).contains(&few), "seed {seed}: {few} devices at 1 %");
        for class in CLASSES {
            fleet.change(class, &Change::Share { share: share("10") });
        }
        fleet.run(HOUR_S);
        fleet.settle();
        let more = fleet.with(&pair("m@2+law@1"));
        // 100 are expected; five standard deviations are 47.
        assert!((50..=150).contains(&more), "seed {seed}: {more} devices at 10 %");
        // One class pauses; the others go on.
        fleet.change("phone", &Change::Pause);
        for class in &CLASSES[1..] {
            fleet.change(class, &Change::Share { share: Share::ALL });
        }
        // What was told before the pause is still being fetched.
        fleet.settle();
        let phones = fleet.with_in("phone", &pair("m@2+law@1"));
        fleet.settle();
        assert_eq!(fleet.with_in("phone", &pair("m@2+law@1")), phones, "seed {seed}: it is paused");
        for class in &CLASSES[1..] {
            assert_eq!(fleet.with_in(class, &pair("m@2+law@1")), 250, "seed {seed}: {class}");
            fleet.change(class, &Change::Finish);
        }
        fleet.change("phone", &Change::RollBack);
        fleet.run(HOUR_S);
        fleet.settle();
        assert_eq!(fleet.with_in("phone", &pair("m@1")), 250, "seed {seed}: rolled back");
        assert_eq!(fleet.with(&pair("m@2+law@1")), 750, "seed {seed}");
        let seen = fleet.seen();
        assert!(seen.asked > 50_000 && seen.damaged > 100 && seen.restarts > 100, "seed {seed}: {seen:?}");
        assert_eq!(seen.refused, 0, "seed {seed}: {seen:?}");
    }
}

#[test]
fn what_does_not_load_pauses_by_itself_and_leaves_every_device_what_it_had() {
    for seed in 0..SEEDS {
        let mut fleet = fleet(seed);
        fleet.breaks(&pair("m@3"), 0.3);
        fleet.run(HOUR_S);
        fleet.change("laptop", &start("m@3", "40"));
        fleet.run(6 * HOUR_S);
        let rollout = fleet.target("laptop").rollout.clone().expect("it runs");
        assert!(rollout.paused_by_guard, "seed {seed}");
        let loaded = fleet.with_in("laptop", &pair("m@3"));
        assert!(loaded < 100, "seed {seed}: {loaded} of 250");
        assert_eq!(loaded + fleet.with_in("laptop", &pair("m@1")), 250, "seed {seed}");
        fleet.change("laptop", &Change::RollBack);
        fleet.settle();
        assert_eq!(fleet.with_in("laptop", &pair("m@1")), 250, "seed {seed}");
        assert_eq!(fleet.seen().refused, 0, "seed {seed}");
    }
}

#[test]
fn a_pair_that_is_revoked_is_refused_and_no_device_is_without_one() {
    for seed in 0..SEEDS {
        let mut fleet = fleet(seed);
        fleet.run(HOUR_S);
        fleet.change("tablet", &start("m@2", "100"));
        fleet.run(HOUR_S);
        fleet.settle();
        assert_eq!(fleet.with_in("tablet", &pair("m@2")), 250, "seed {seed}");
        fleet.change("tablet", &Change::RollBack);
        fleet.change("tablet", &Change::Revoke { pair: pair("m@2") });
        fleet.run(HOUR_S);
        fleet.settle();
        // Only the lease of before is broken: who is refused asks at once which pair is right.
        let seen = fleet.seen();
        assert!(seen.refused > 0 && seen.refused <= 2 * 250, "seed {seed}: {seen:?}");
        assert_eq!(fleet.with_in("tablet", &pair("m@1")), 250, "seed {seed}");
    }
}

/// A cloud that took a pair away at once would refuse devices that keep to what they were told.
#[test]
fn without_the_grace_devices_would_be_refused() {
    let mut fleet = fleet(1);
    fleet.forgets_at_once();
    fleet.run(HOUR_S);
    fleet.change("phone", &start("m@2", "100"));
    fleet.run(6 * HOUR_S);
    fleet.change("phone", &Change::RollBack);
    fleet.run(4 * HOUR_S);
    assert!(fleet.seen().refused > 0, "{:?}", fleet.seen());
    const { assert!(GRACE_S > LEASE_S + SETTLE_S) };
}
