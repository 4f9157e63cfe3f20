//! Tests of rollouts: shares, grace, leases and the guard.

use super::*;
use proptest::prelude::*;

fn pair(text: &str) -> ModelPair {
    text.parse().unwrap()
}

fn share(text: &str) -> Share {
    text.parse().unwrap()
}

fn start(candidate: &str, percent: &str) -> Change {
    Change::Start { candidate: pair(candidate), share: share(percent), guard: Guard::default() }
}

#[test]
fn shares_are_read() {
    for (text, hundredths) in [("1", 100), ("0.01", 1), ("12.5 %", 1250), ("100%", 10_000), ("2.05", 205)] {
        assert_eq!(text.parse::<Share>().map(u32::from), Ok(hundredths), "{text}");
    }
    for bad in ["", "0", "100.01", "-1", "1.005", "1e2", ".5", "one", "1 2"] {
        assert!(bad.parse::<Share>().is_err(), "{bad}");
    }
    assert!(serde_json::from_str::<Share>("0").is_err());
    assert_eq!(share("12.5").to_string(), "12.5 %");
}

#[test]
fn a_rollout_takes_its_share_and_a_larger_one_has_all_of_a_smaller() {
    let target = Target::new(pair("m@1"), 0);
    let devices: Vec<String> = (0..20_000).map(|at| format!("device-{at}")).collect();
    let mut before = Vec::new();
    for percent in ["1", "10", "50", "100"] {
        let next = target.changed(&start("m@2", percent), 0).unwrap();
        let rollout = next.rollout.as_ref().unwrap();
        let chosen: Vec<&String> = devices.iter().filter(|device| rollout.is_for(device)).collect();
        let want = rollout.share.percent() / 100.0 * 20_000.0;
        // Five standard deviations of a binomial.
        let off = 5.0 * (want * (1.0 - want / 20_000.0)).sqrt();
        assert!((chosen.len() as f64 - want).abs() <= off, "{percent} %: {} of {want}", chosen.len());
        assert!(before.iter().all(|device| chosen.contains(device)));
        before = chosen.clone();
    }
    // Another rollout does not begin with the same devices.
    let first = |candidate: &str| {
        let next = target.changed(&start(candidate, "1"), 0).unwrap();
        devices.iter().position(|device| next.rollout.as_ref().unwrap().is_for(device))
    };
    assert_ne!(first("m@2"), first("m@3"));
}

#[test]
fn changes_that_make_no_sense_say_why() {
    let target = Target::new(pair("m@1"), 0);
    let refused = |target: &Target, change: &Change| target.changed(change, 10).unwrap_err();
    for change in [Change::Share { share: Share::ALL }, Change::Pause, Change::Resume, Change::Finish] {
        assert_eq!(refused(&target, &change), ChangeError::NoRollout);
    }
    assert_eq!(refused(&target, &Change::RollBack), ChangeError::NothingBefore);
    assert_eq!(refused(&target, &start("m@1", "1")), ChangeError::IsStable(pair("m@1")));
    let revoke = |text: &str| Change::Revoke { pair: pair(text) };
    assert_eq!(refused(&target, &revoke("m@1")), ChangeError::InUse(pair("m@1")));
    assert_eq!(refused(&target, &revoke("m@9")), ChangeError::NotAllowed(pair("m@9")));
    let running = target.changed(&start("m@2", "10"), 0).unwrap();
    assert_eq!(refused(&running, &start("m@3", "1")), ChangeError::Running(pair("m@2")));
    assert_eq!(refused(&running, &Change::Finish), ChangeError::NotForAll(share("10")));
    assert_eq!(refused(&running, &Change::Resume), ChangeError::NotPaused);
    assert_eq!(refused(&running, &revoke("m@2")), ChangeError::InUse(pair("m@2")));
    let paused = running.changed(&Change::Pause, 0).unwrap();
    for change in [Change::Share { share: Share::ALL }, Change::Pause, Change::Finish] {
        assert_eq!(refused(&paused, &change), ChangeError::Paused);
    }
    let mut many = target;
    for version in 2..2 + RETIRED_MAX as u32 {
        many = many.changed(&start(&format!("m@{version}"), "1"), 0).unwrap();
        many = many.changed(&Change::RollBack, 0).unwrap();
    }
    many = many.changed(&start("n@1", "1"), 0).unwrap();
    assert_eq!(refused(&many, &Change::RollBack), ChangeError::TooMany);
    assert!(many.changed(&Change::RollBack, GRACE_S).is_ok());
}

#[test]
fn a_paused_rollout_stays_where_it_is_and_one_that_fails_pauses() {
    let target = Target::new(pair("m@1"), 0).changed(&start("m@2", "100"), 0).unwrap();
    let (old, new) = (pair("m@1"), pair("m@2"));
    assert_eq!(target.wanted("d", Some(&old), &[], SETTLE_S - 1), &old);
    assert_eq!(target.wanted("d", Some(&old), &[], SETTLE_S), &new);
    assert_eq!(
        target.wanted("d", Some(&old), std::slice::from_ref(&new), SETTLE_S),
        &old,
        "it could not load it"
    );
    assert_eq!(target.guarded(1000, 2), None);
    assert_eq!(target.guarded(1000, 20), None);
    let paused = target.guarded(100, 3).unwrap();
    assert!(paused.rollout.as_ref().unwrap().paused_by_guard);
    assert_eq!(paused.guarded(0, 100), None, "once");
    assert_eq!(paused.wanted("d", Some(&old), &[], SETTLE_S), &old);
    assert_eq!(paused.wanted("d", Some(&new), &[], SETTLE_S), &new);
    let again = paused.changed(&Change::Resume, 0).unwrap();
    assert!(!again.rollout.as_ref().unwrap().paused_by_guard);
    assert_eq!(again.wanted("d", Some(&old), &[], SETTLE_S), &new);
}

#[test]
fn what_was_stable_before_is_what_a_roll_back_goes_to() {
    let target = Target::new(pair("m@1"), 0).changed(&start("m@2", "100"), 0).unwrap();
    let done = target.changed(&Change::Finish, 5_000).unwrap();
    assert_eq!((&done.stable, done.last_good.as_ref()), (&pair("m@2"), Some(&pair("m@1"))));
    assert!(done.allows(&pair("m@1"), 5_000 + GRACE_S - 1) && !done.allows(&pair("m@1"), 5_000 + GRACE_S));
    let back = done.changed(&Change::RollBack, 90_000).unwrap();
    // Replicas that do not know of it yet would refuse m@1, so nobody is told to use it before they do.
    assert_eq!(back.wanted("d", Some(&pair("m@2")), &[], 90_000), &pair("m@2"));
    assert_eq!(back.lease(&pair("m@1"), 90_000), None);
    assert_eq!(back.wanted("d", Some(&pair("m@2")), &[], 90_000 + SETTLE_S), &pair("m@1"));
    assert_eq!(back.lease(&pair("m@1"), 90_000 + SETTLE_S).unwrap().lease_s, LEASE_S);
    assert_eq!(back.changed(&Change::RollBack, 90_000), Err(ChangeError::NothingBefore));
    let json = serde_json::to_string(&back).unwrap();
    assert_eq!(serde_json::from_str::<Target>(&json).unwrap(), back);
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (1_u32..5, 1_u32..=10_000).prop_map(|(version, share)| Change::Start {
            candidate: pair(&format!("m@{version}")),
            share: Share::try_from(share).unwrap(),
            guard: Guard::default(),
        }),
        2 => (1_u32..=10_000).prop_map(|share| Change::Share { share: Share::try_from(share).unwrap() }),
        2 => Just(Change::Share { share: Share::ALL }),
        1 => Just(Change::Pause),
        1 => Just(Change::Resume),
        1 => Just(Change::RollBack),
        3 => Just(Change::Finish),
    ]
}

proptest! {
    /// A lease that any replica gives, however old its state is, is kept by every replica.
    #[test]
    fn a_lease_is_kept_by_every_replica(
        changes in prop::collection::vec((change(), 0_u64..1_500), 1..24),
        asked in prop::collection::vec((0_u64..20_000, 0_u64..SETTLE_S, 0_u64..SETTLE_S, 0_u64..LEASE_S), 1..40),
    ) {
        let mut states = vec![(0, Target::new(pair("m@1"), 0))];
        let mut now = 0;
        for (change, wait) in &changes {
            now += wait;
            if let Ok(next) = states.last().unwrap().1.changed(change, now) {
                states.push((now, next));
            }
        }
        // What a replica knows that is behind by so much; before the first state it has no rule at all.
        let known = |at: u64, behind: u64| {
            states.iter().rev().find(|(since, _)| since + behind <= at).map(|(_, target)| target)
        };
        for (told_at, told_behind, asked_behind, later) in asked {
            let Some(teller) = known(told_at, told_behind) else { continue };
            for version in 1..5 {
                let pair = pair(&format!("m@{version}"));
                let Some(lease) = teller.lease(&pair, told_at) else { continue };
                prop_assert!(lease.lease_s <= LEASE_S);
                let asked_at = told_at + later.min(lease.lease_s - 1);
                let Some(replica) = known(asked_at, asked_behind) else { continue };
                prop_assert!(
                    replica.allows(&pair, asked_at),
                    "{pair} told at {told_at} ({told_behind} s behind) and refused at {asked_at} ({asked_behind} s behind)"
                );
            }
        }
    }

    /// What a device should have is something that it may ask with, now or as soon as all replicas know it.
    #[test]
    fn what_is_wanted_is_allowed(
        changes in prop::collection::vec((change(), 0_u64..1_500), 1..24),
        device in "[a-z]{1,8}",
        active in prop::option::of(1_u32..5),
    ) {
        let (mut target, mut now) = (Target::new(pair("m@1"), 0), 0);
        let active = active.map(|version| pair(&format!("m@{version}")));
        for (change, wait) in changes {
            now += wait;
            target = target.changed(&change, now).unwrap_or(target);
            let wanted = target.wanted(&device, active.as_ref(), &[], now);
            prop_assert!(target.allows(wanted, now));
            prop_assert!(target.lease(wanted, now).is_some() || target.lease(wanted, now + SETTLE_S).is_some());
        }
    }
}
