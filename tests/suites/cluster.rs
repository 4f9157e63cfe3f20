//! A small cluster: two replicas of the real program, one PostgreSQL, HAProxy in front of them, and devices
//! that ask through it.
//!
//! The checks are about answers, not times: none fails while replicas are restarted or killed. One time is
//! promised: a change is in force everywhere within 5 s. The fastest of three changes must keep it, so that a
//! short load on the machine fails no test. Every other clock here is a guard against hangs.

#[path = "cluster/agents.rs"]
mod agents;
#[path = "cluster/replicas.rs"]
mod replicas;

use std::time::{Duration, Instant};

use baton_e2e::{balancer::Spread, demo::emulation::Speed};
use serde_json::Value;

use agents::Agents;
use replicas::{Cluster, lacks, wait_until};

/// The promised time for settings and keys.
const IN_FORCE: Duration = Duration::from_secs(5);
/// 50 ms a token, so that an answer of the cloud takes long enough to be cut.
const SLOW_CLOUD: Speed = Speed { prefill_base_ms: 20.0, prefill_ms_per_token: 0.1, decode_ms: 50.0 };

/// Returns whether this machine can run the suite; if not, prints why.
fn can_run() -> bool {
    let lacks = lacks();
    if let Some(reason) = &lacks {
        println!("skipped: cluster: {reason}");
    }
    lacks.is_none()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_under_load_fails_no_answer() {
    if !can_run() {
        return;
    }
    let mut cluster = Cluster::start(Spread::RoundRobin, SLOW_CLOUD).await;
    let agents = Agents::start(&cluster, 2, 1, 20);
    agents.answers_more(2).await;
    for idx in 0..cluster.replicas.len() {
        // This is in the middle of an answer, so that there is something to lose.
        cluster.wait_for_running(idx, 1).await;
        let status = cluster.replicas[idx].process.terminate().await.expect("it stops");
        assert!(status.success(), "replica {idx} ended with {status}");
        cluster.start_again(idx).await;
        agents.answers_more(3).await;
    }
    let told = agents.stop().await;
    assert!(told.failed.is_empty(), "failed answers: {:#?}", told.failed);
    // How devices and callers share the answers depends on the machine: a device takes longer than a caller.
    let (chats, asks) = (told.chats, told.reports.len());
    assert!(chats >= 1 && asks >= 2 && chats + asks >= 8, "{chats} chats, {asks} asks");
    told.check_answers();
    let by_cloud = told.reports.iter().filter(|(_, report)| report.tokens_from_cloud > 0).count();
    assert!(
        by_cloud * 2 > told.reports.len(),
        "the cloud began {by_cloud} of {} answers",
        told.reports.len()
    );
    for idx in 0..cluster.replicas.len() {
        let stats = cluster.stats(idx).await;
        assert!(stats["requests_ended_total"].as_u64() > Some(0), "replica {idx} is asked again: {stats}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_replica_leaves_every_answer_whole() {
    if !can_run() {
        return;
    }
    // An answer takes seconds, so that it is still running when its replica is killed.
    let speed = Speed { decode_ms: 200.0, ..SLOW_CLOUD };
    let mut cluster = Cluster::start(Spread::RoundRobin, speed).await;
    // The devices ask again and again, so that a good moment to kill comes however slowly they start.
    let agents = Agents::start(&cluster, 4, 0, 40);
    cluster.wait_for_running(0, 1).await;
    cluster.replicas[0].process.kill().await.expect("it is killed");
    let told = agents.stop().await;
    assert!(told.failed.is_empty(), "failed answers: {:#?}", told.failed);
    assert!(told.reports.len() >= 4, "{} answers", told.reports.len());
    told.check_answers();
    let cut = told.reports.iter().filter(|(_, report)| !report.notes.is_empty()).count();
    assert!(cut >= 1, "no answer was in flight on the replica that was killed");
    for (_, report) in told.reports.iter().filter(|(_, report)| !report.notes.is_empty()) {
        assert!(report.tokens_from_device > 0, "the device goes on: {:?}", report.notes);
    }
}

/// Waits until every replica answers as wanted; returns how long that took after `since`.
async fn in_force(
    cluster: &Cluster,
    since: Instant,
    what: &str,
    path: &str,
    key: &str,
    is: impl Fn(u16, &Value) -> bool,
) -> Duration {
    for idx in 0..cluster.replicas.len() {
        wait_until(what, async || {
            let (status, body) = cluster.get(idx, path, key).await;
            is(status, &body)
        })
        .await;
    }
    let elapsed = since.elapsed();
    println!("{what}: in force on both after {elapsed:?}");
    elapsed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_scenes_come_into_force_on_both() {
    if !can_run() {
        return;
    }
    let cluster = Cluster::start(Spread::RoundRobin, SLOW_CLOUD).await;
    let own = cluster.key.clone();
    let path = "/v1/scenes/doc-qa";

    let since = Instant::now();
    let (id, key) = cluster.create_key("another");
    let created = in_force(&cluster, since, "a new key", path, &key, |status, _| status == 200).await;

    let since = Instant::now();
    cluster.revoke_key(&id);
    let revoked = in_force(&cluster, since, "a revoked key", path, &key, |status, _| status == 401).await;

    let (_, before) = cluster.get(0, path, &own).await;
    let version = before["version"].as_u64().expect("a version");
    let since = Instant::now();
    cluster.admin(&["scenes", "set", "doc-qa", "--ratio", "0.5"]);
    let newer = |status: u16, scene: &Value| {
        status == 200 && scene["version"].as_u64() > Some(version) && scene["ratio"].as_f64() == Some(0.5)
    };
    let published = in_force(&cluster, since, "a published scene", path, &own, newer).await;
    assert!(created.min(revoked).min(published) < IN_FORCE, "{created:?}, {revoked:?}, {published:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_one_scene_go_to_one_replica() {
    if !can_run() {
        return;
    }
    let cluster = Cluster::start(Spread::Scene, SLOW_CLOUD).await;
    let ended = async || {
        let mut ended = Vec::new();
        for idx in 0..cluster.replicas.len() {
            ended.push(cluster.stats(idx).await["requests_ended_total"].as_u64().expect("a count"));
        }
        ended
    };
    let before = ended().await;
    let told = agents::ask_at_once(&cluster, 4, 10).finish().await;
    assert!(told.failed.is_empty(), "failed answers: {:#?}", told.failed);
    let after = ended().await;
    let asked: Vec<u64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
    assert!(asked.contains(&0), "one scene was asked of both replicas: {asked:?}");
    assert_eq!(asked.iter().sum::<u64>(), 4);
}
