//! Tests of what a device does next, step by step.

use super::*;
use crate::sync::Lease;

fn pair(text: &str) -> ModelPair {
    text.parse().unwrap()
}

fn model(text: &str) -> ModelVersion {
    text.parse().unwrap()
}

fn reply(wanted: &str, leases: &[(&str, u64)]) -> SyncReply {
    let leases = leases.iter().map(|(text, lease_s)| Lease { pair: pair(text), lease_s: *lease_s });
    SyncReply {
        wanted: Some(pair(wanted)),
        leases: leases.collect(),
        models: Vec::new(),
        locations: Vec::new(),
        serves: true,
        again_s: 300,
    }
}

/// A device that answers with m@1, and has asked the cloud at 0.
fn device() -> Holding {
    let kept = Kept { active: Some(pair("m@1")), ..Kept::default() };
    let mut holding = Holding::new(kept, [model("m@1")]);
    assert_eq!(holding.next(0), Step::Sync);
    holding
}

#[test]
fn a_wanted_pair_is_fetched_loaded_and_the_one_before_it_kept() {
    let mut holding = device();
    assert_eq!(holding.pair_for_cloud(0), None, "nothing was told");
    holding.synced(&reply("m@1", &[("m@1", 900)]), 0);
    assert_eq!(holding.next(1), Step::Wait { until_ms: 300_000 });
    assert_eq!(holding.pair_for_cloud(899_999), Some(&pair("m@1")));
    assert_eq!(holding.pair_for_cloud(900_000), None);
    assert_eq!(holding.next(300_000), Step::Sync);
    holding.synced(&reply("m@2+law@1", &[("m@1", 900), ("m@2+law@1", 900)]), 300_000);
    assert_eq!(holding.next(300_001), Step::Fetch(model("m@2")));
    assert!(matches!(holding.next(300_002), Step::Wait { .. }), "it is being fetched");
    holding.fetched(model("m@2"));
    assert_eq!(holding.next(300_003), Step::Fetch(model("law@1")));
    holding.fetched(model("law@1"));
    assert_eq!(holding.next(300_004), Step::Switch(pair("m@2+law@1")));
    assert_eq!(holding.pair_for_cloud(300_004), Some(&pair("m@1")));
    holding.switched(pair("m@2+law@1"));
    assert_eq!(holding.pair_for_cloud(300_005), Some(&pair("m@2+law@1")));
    assert_eq!(holding.next(300_005), Step::Sync, "the cloud learns what it has now");
    holding.synced(&reply("m@2+law@1", &[("m@2+law@1", 900)]), 300_005);
    assert!(matches!(holding.next(300_005), Step::Wait { .. }), "m@1 is kept: it was good");
    // The next one makes it superfluous.
    holding.synced(&reply("m@3", &[]), 300_005);
    assert_eq!(holding.next(300_006), Step::Fetch(model("m@3")));
    holding.fetched(model("m@3"));
    assert_eq!(holding.next(300_007), Step::Switch(pair("m@3")));
    holding.switched(pair("m@3"));
    holding.synced(&reply("m@3", &[]), 300_008);
    assert_eq!(holding.next(300_008), Step::Remove(model("m@1")));
    holding.removed(&model("m@1"));
    assert!(matches!(holding.next(300_009), Step::Wait { .. }));
    assert_eq!(holding.kept().last_good, Some(pair("m@2+law@1")));
}

#[test]
fn a_pair_that_does_not_load_is_told_and_not_tried_again() {
    let mut holding = device();
    holding.synced(&reply("m@2", &[("m@1", 900)]), 0);
    assert_eq!(holding.next(1), Step::Fetch(model("m@2")));
    holding.fetched(model("m@2"));
    assert_eq!(holding.next(2), Step::Switch(pair("m@2")));
    holding.switch_failed(pair("m@2"));
    assert_eq!(holding.active(), Some(&pair("m@1")));
    assert_eq!(holding.next(3), Step::Sync);
    assert_eq!(holding.request("d", "phone", "*").failed, [pair("m@2")]);
    holding.synced(&reply("m@2", &[("m@1", 900)]), 3);
    assert!(matches!(holding.next(4), Step::Wait { .. }), "not again");
    holding.synced(&reply("m@1", &[("m@1", 900)]), 4);
    assert_eq!(holding.next(5), Step::Remove(model("m@2")));
    // Also not after a restart.
    let kept: Kept = serde_json::from_str(&serde_json::to_string(holding.kept()).unwrap()).unwrap();
    let again = Holding::new(kept, [model("m@1")]);
    assert_eq!((again.active(), again.coming()), (Some(&pair("m@1")), None));
    assert_eq!(again.pair_for_cloud(5), None, "leases do not survive");
}

#[test]
fn a_roll_back_stops_what_is_fetched() {
    let mut holding = device();
    holding.synced(&reply("m@2", &[("m@1", 900)]), 0);
    assert_eq!(holding.next(1), Step::Fetch(model("m@2")));
    holding.synced(&reply("m@1", &[("m@1", 900)]), 2);
    assert_eq!(holding.next(3), Step::StopFetch);
    holding.fetch_failed(3);
    assert!(matches!(holding.next(4), Step::Wait { .. }));
}

#[test]
fn failures_are_tried_again_later_and_later() {
    let mut holding = device();
    holding.synced(&reply("m@2", &[]), 0);
    let (mut now, mut waits) = (1, Vec::new());
    for _ in 0..9 {
        assert_eq!(holding.next(now), Step::Fetch(model("m@2")));
        holding.fetch_failed(now);
        let begun = now;
        loop {
            match holding.next(now) {
                Step::Wait { until_ms } => now = until_ms,
                Step::Sync => holding.synced(&reply("m@2", &[]), now),
                Step::Fetch(_) => break,
                step => panic!("{step:?}"),
            }
        }
        holding.fetching = None;
        waits.push(now - begun);
    }
    let want: Vec<u64> = (0..9).map(|at| (RETRY_MS << at).min(RETRY_MS_MAX)).collect();
    assert_eq!(waits, want);
    holding.sync_failed(now);
    assert!(holding.sync_at_ms >= now + RETRY_MS);
    holding.refused();
    assert_eq!(holding.next(now), Step::Sync);
}

#[test]
fn files_that_are_gone_leave_the_pair_before() {
    let kept = Kept {
        active: Some(pair("m@2+law@1")),
        last_good: Some(pair("m@1")),
        wanted: Some(pair("m@2+law@1")),
        failed: Vec::new(),
    };
    let holding = Holding::new(kept.clone(), [model("m@1"), model("m@2")]);
    assert_eq!((holding.active(), holding.coming()), (Some(&pair("m@1")), Some(&pair("m@2+law@1"))));
    let mut none = Holding::new(kept, []);
    assert_eq!(none.active(), None);
    assert_eq!(none.next(0), Step::Sync);
    assert_eq!(none.next(1), Step::Fetch(model("m@2")), "what was wanted is fetched without an answer");
}
