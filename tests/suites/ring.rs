//! A ring of real processes on this machine. Whatever happens to a worker, at any moment, the answer equals
//! that of a single device, and the head goes on.
//!
//! Devices are paired by their codes, find each other by address, and fetch the weights that they lack.
//! Wall-clock time is only a guard against hangs.

#[path = "ring/coming.rs"]
mod coming;
#[path = "ring/devices.rs"]
mod devices;
#[path = "ring/disk.rs"]
mod disk;
#[path = "ring/losses.rs"]
mod losses;
#[path = "ring/stops.rs"]
mod stops;
#[path = "ring/strangers.rs"]
mod strangers;
#[path = "ring/wire.rs"]
mod wire;

use devices::{alone, ask, bench, fetched, ring, ring_headed_by};

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_give_the_tokens_of_one_device() {
    let home = ring(&["desk", "phone"]).await.expect("a ring of three devices");
    let want = alone(64).await.expect("one device alone");
    for plan in [&[("head", 2), ("desk", 2), ("phone", 1)][..], &[("head", 0), ("phone", 3), ("desk", 2)]] {
        for rounds in [1, 2] {
            let answer = bench(&home, plan, rounds, 64).await.expect("the ring's answer");
            assert_eq!(answer["written"], want["written"], "{plan:?} in {rounds} rounds");
            let stats = &answer["ring"];
            assert_eq!(stats["devices"].as_array().map(Vec::len), Some(3), "{stats}");
            assert_eq!(stats["recoveries"], 0, "{stats}");
        }
    }
    let kept = fetched(&home).expect("the workers' folders");
    let again = bench(&home, &[("head", 2), ("desk", 2), ("phone", 1)], 1, 8).await.expect("an answer");
    assert_eq!(again["ring"]["recoveries"], 0);
    assert_eq!(fetched(&home).expect("the workers' folders"), kept, "a second start moves nothing");
}

/// Machines that were set up from one image have one host name.
#[tokio::test(flavor = "multi_thread")]
async fn devices_of_one_name_form_a_ring() {
    let home = ring_headed_by("desk", &["desk"]).await.expect("a ring of two devices");
    let want = alone(8).await.expect("one device alone");
    let answer = bench(&home, &[("desk", 2), ("desk-2", 3)], 1, 8).await.expect("the ring's answer");
    assert_eq!(answer["written"], want["written"]);
    assert_eq!(answer["ring"]["devices"].as_array().map(Vec::len), Some(2), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ring_is_the_device_side_of_an_agent() {
    let home = ring(&["desk"]).await.expect("a ring of two devices");
    let question = "What is a ring?";
    let want = ask(None, question).await.expect("one device's answer");
    let have = ask(Some(&home), question).await.expect("the ring's answer");
    assert!(!want.is_empty());
    assert_eq!(have, want);
}
