//! Tenants that take what others need: invented devices, keys and values that nobody fetches, drafts that no
//! model could write. All against the real process.

use std::time::{Duration, Instant};

use baton_e2e::hostile::streams::figures_when;
use baton_e2e::hostile::tenants::{GIVE_KV, SMALL_CACHE, Tenants};
use serde_json::Value;

/// A guard against hangs.
const HANG: Duration = Duration::from_secs(120);
/// Devices that exist in nobody's hand.
const INVENTED: usize = 300;
/// Keys and values that nobody fetches.
const ABANDONED: usize = 100;

#[tokio::test]
async fn invented_devices_pause_no_rollout_and_are_not_all_noted() {
    let folder = tempfile::tempdir().expect("a folder");
    let set = ["rollouts", "set", "--class", "phone", "m@1"];
    let tenants = Tenants::start(folder.path(), &["fleet", "stranger"], &[&set], &["--threads=2"]).await;
    let tenants = tenants.expect("the service starts");
    tenants.knows_targets().await.expect("it knows the target");
    for at in 0..10 {
        tenants.report(0, &format!("known-{at}"), "m@1", None).await.expect("a reply");
    }
    // When a rollout began is known to the second.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let start = ["rollouts", "start", "--class", "phone", "m@2", "--share", "100"];
    tenants.admin(&start).await.expect("it begins");
    for at in 0..INVENTED {
        tenants.report(1, &format!("invented-{at}"), "m@1", Some("m@2")).await.expect("a reply");
    }
    // Devices that were seen before do count, so the guard looks, and says what it has counted.
    for at in 0..3 {
        tenants.report(0, &format!("known-{at}"), "m@1", Some("m@2")).await.expect("a reply");
    }
    let begun = Instant::now();
    let guard = loop {
        let rows = tenants.admin(&["audit", "list"]).await.expect("the log");
        let rows = rows.as_array().expect("a list").clone();
        match rows.into_iter().find(|row| row["action"] == "rollout.guard") {
            Some(row) => break row,
            None => tokio::time::sleep(Duration::from_millis(200)).await,
        }
        assert!(begun.elapsed() < HANG, "the guard does not look");
    };
    assert_eq!(guard["detail"]["failed"], 3, "only those that were seen before: {guard}");
}

#[tokio::test]
async fn memory_of_handoffs_that_nobody_reads_goes_back_to_the_system() {
    if !cfg!(target_os = "linux") {
        return println!("skipped: hostile: memory of handoffs: only Linux says how much a process has");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let tenants = Tenants::start(folder.path(), &[], &[&GIVE_KV], &["--threads=2", SMALL_CACHE]).await;
    let tenants = tenants.expect("the service starts");
    let memory = || tenants.cloud.memory_bytes().expect("its memory");
    for at in 0..150 {
        tenants.ask(0, at, Value::Null).await.expect("an answer");
    }
    let before = memory();
    let mut bytes = 0;
    for at in 0..ABANDONED {
        bytes += tenants.abandon_handoff(0, 1000 + at).await.expect("an answer").unwrap_or(0);
    }
    assert!(bytes > 16 << 20 && memory() > before + bytes / 2, "{bytes} bytes are parked");
    let parked = |figures: &Value| figures["handoff_bytes"].as_u64();
    figures_when(tenants.server, |figures| parked(figures) == Some(0)).await.expect("they are forgotten");
    let after = memory();
    assert!(after < before + bytes / 4, "{before} bytes before, {after} after, {bytes} were parked");
}
