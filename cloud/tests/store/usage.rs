//! Tests of quotas that replicas share, of telemetry by minute and hour, and of settings that reach replicas.

use std::process::Stdio;
use std::time::Duration;

use baton_cloud::access::TenantSettings;
use baton_cloud::learn::traffic::{DAY_MS, HOUR_MS, MINUTE_MS, RequestFigures, Traffic, TrafficKey};
use baton_cloud::scene::SceneSettings;
use baton_cloud::store::{Database, Expected, SharedUsage, Store, UsageDelta, now_ms};

use crate::outage::{Program, question, send};
use crate::world::{ann, on_each};

const HANG: Duration = Duration::from_secs(60);

/// Returns usage in the minute and on the day of this time.
fn used(tenant: &str, at_ms: i64, requests: u64, tokens: u64, running: u32) -> UsageDelta {
    UsageDelta {
        tenant: tenant.into(),
        minute_ms: at_ms - at_ms.rem_euclid(MINUTE_MS),
        requests,
        day_ms: at_ms - at_ms.rem_euclid(DAY_MS),
        day_requests: requests,
        tokens,
        running,
        reserved: 10 * u64::from(running),
    }
}

async fn add_tenants(store: &Store, names: &[&str]) {
    for name in names {
        store.set_tenant(name, &TenantSettings::default(), Expected::Any, &ann()).await.unwrap();
    }
}

#[test]
fn replicas_add_up_what_tenants_use() {
    on_each(|db| async move {
        let store = db.open().await;
        add_tenants(&store, &["a", "b"]).await;
        let (minute_ms, day_ms, now) = (7 * DAY_MS, 7 * DAY_MS, 7 * DAY_MS + 1000);
        let delta = |tenant: &str, requests, tokens, running| UsageDelta {
            tenant: tenant.into(),
            minute_ms,
            requests,
            day_ms,
            day_requests: requests,
            tokens,
            running,
            reserved: 10 * u64::from(running),
        };
        let usage = |tenant: &str, requests, tokens, running_elsewhere| SharedUsage {
            tenant: tenant.into(),
            minute_ms,
            requests,
            day_ms,
            tokens,
            running_elsewhere,
            reserved_elsewhere: 10 * u64::from(running_elsewhere),
        };
        let one =
            store.exchange_usage("one", &[delta("b", 3, 100, 2), delta("a", 1, 5, 1)], now).await.unwrap();
        assert_eq!(one, [usage("a", 1, 5, 0), usage("b", 3, 100, 0)]);
        let two = store.exchange_usage("two", &[delta("b", 4, 50, 7)], now + 1).await.unwrap();
        assert_eq!(two, [usage("b", 7, 150, 2), usage("a", 1, 5, 1)]);
        let one = store.exchange_usage("one", &[delta("b", 0, 0, 1)], now + 2).await.unwrap();
        assert_eq!(one, [usage("b", 7, 150, 7), usage("a", 1, 5, 0)]);
        // A replica that does not report any more runs nothing.
        let one = store.exchange_usage("one", &[delta("b", 0, 0, 1)], now + 20_000).await.unwrap();
        assert_eq!((one[0].running_elsewhere, one[0].reserved_elsewhere), (0, 0));
        let day = store.usage_of_day(day_ms).await.unwrap();
        assert_eq!(
            day.iter().map(|used| (used.tenant.as_str(), used.requests, used.tokens)).collect::<Vec<_>>(),
            [("a", 1, 5), ("b", 7, 150)]
        );
    });
}

#[test]
fn a_meeting_tells_of_every_tenant_also_where_there_is_nothing_to_add() {
    on_each(|db| async move {
        let store = db.open().await;
        add_tenants(&store, &["a", "b", "c"]).await;
        let now = 7 * DAY_MS + MINUTE_MS + 1000;
        let sent = [used("a", now, 2, 10, 1), used("b", now - DAY_MS, 3, 999, 0), used("d", now, 0, 0, 4)];
        store.exchange_usage("one", &sent, now).await.unwrap();
        let heard = store.exchange_usage("two", &[], now).await.unwrap();
        let at = |now_ms: i64| (now_ms - now_ms.rem_euclid(MINUTE_MS), now_ms - now_ms.rem_euclid(DAY_MS));
        let usage = |tenant: &str, now_ms, requests, tokens, running_elsewhere| SharedUsage {
            tenant: tenant.into(),
            minute_ms: at(now_ms).0,
            requests,
            day_ms: at(now_ms).1,
            tokens,
            running_elsewhere,
            reserved_elsewhere: 10 * u64::from(running_elsewhere),
        };
        assert_eq!(heard, [usage("a", now, 2, 10, 1), usage("d", now, 0, 0, 4)], "nothing of yesterday");
        let later = now + MINUTE_MS;
        let heard = store.exchange_usage("two", &[], later).await.unwrap();
        assert_eq!(heard, [usage("a", later, 0, 10, 0)], "the replica is gone, the day is not");
        assert_eq!(store.exchange_usage("two", &[], now + DAY_MS).await.unwrap(), []);
    });
}

#[test]
fn both_days_of_a_tenant_tell_what_runs_elsewhere() {
    on_each(|db| async move {
        let store = db.open().await;
        let now = 7 * DAY_MS + 1000;
        store.exchange_usage("one", &[used("a", now, 1, 1, 3)], now).await.unwrap();
        // At midnight: usage of yesterday that was not sent yet, and today's.
        let sent = [used("a", now - DAY_MS, 0, 5, 0), used("a", now, 1, 6, 0)];
        let heard = store.exchange_usage("two", &sent, now).await.unwrap();
        let told: Vec<(u64, u32, u64)> = heard
            .iter()
            .map(|usage| (usage.tokens, usage.running_elsewhere, usage.reserved_elsewhere))
            .collect();
        assert_eq!(told, [(5, 3, 30), (7, 3, 30)]);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_starts_refuses_the_first_request_of_a_day_that_is_used_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cloud.db");
    let store = Store::open(&Database::File(path.clone())).await.unwrap();
    let settings = TenantSettings { tokens_per_day: Some(1_000_000), ..TenantSettings::default() };
    store.set_tenant("default", &settings, Expected::Any, &ann()).await.unwrap();
    let now = now_ms();
    // Tomorrow too, because midnight may come before the request.
    let sent = [used("default", now, 1, 1_000_000, 0), used("default", now + DAY_MS, 1, 1_000_000, 0)];
    store.exchange_usage("before", &sent, now).await.unwrap();
    let program = Program::start_with(path.to_str().unwrap(), "error", Stdio::inherit());
    let (status, body) = send(&program.address, "POST", "/v1/assist", "none", &question()).await;
    assert!(status == 429 && body.contains("tokens in a day"), "{status}: {body}");
    program.stop();
    store.close().await;
}

#[test]
fn replicas_that_meet_at_the_same_time_lose_nothing() {
    on_each(|db| async move {
        let stores = [db.open().await, db.open().await, db.open().await];
        let meet = stores.iter().enumerate().map(|(at, store)| async move {
            for round in 0..10 {
                let delta = |tenant: &str| UsageDelta {
                    tenant: tenant.into(),
                    minute_ms: 0,
                    requests: 1,
                    day_ms: 0,
                    day_requests: 1,
                    tokens: 10,
                    running: 0,
                    reserved: 0,
                };
                // In any order: the store sorts them, so that replicas cannot deadlock.
                let deltas =
                    if (at + round) % 2 == 0 { [delta("a"), delta("b")] } else { [delta("b"), delta("a")] };
                store.exchange_usage(&at.to_string(), &deltas, 1000).await.unwrap();
            }
        });
        futures_util::future::join_all(meet).await;
        for used in stores[0].usage_of_day(0).await.unwrap() {
            assert_eq!((used.requests, used.tokens), (30, 300), "{}", used.tenant);
        }
    });
}

#[test]
fn telemetry_is_kept_by_minute_then_by_hour() {
    on_each(|db| async move {
        let store = db.open().await;
        let start = 100 * DAY_MS;
        let key = TrafficKey { scene: "doc-qa".into(), class: "phone".into(), network: "wifi".into() };
        let figures = RequestFigures {
            ttft_ms: Some(120.0),
            assist_tokens: Some(24),
            ratio: Some(0.25),
            prompt_tokens: 1000,
            ..RequestFigures::default()
        };
        for replica in ["one", "two"] {
            let mut traffic = Traffic::default();
            for minute in 0..3 {
                traffic.record(start + minute * MINUTE_MS, key.clone(), &figures);
            }
            store.keep_traffic(replica, &traffic.unwritten()).await.unwrap();
            // The same minute again with more requests: it replaces the first write.
            traffic.record(start, key.clone(), &figures);
            store.keep_traffic(replica, &traffic.unwritten()).await.unwrap();
        }
        let minutes = store.traffic(MINUTE_MS, start, start + HOUR_MS).await.unwrap();
        assert_eq!(
            minutes.iter().map(|row| row.sums.requests).collect::<Vec<_>>(),
            [4, 2, 2],
            "both replicas"
        );
        assert_eq!(minutes[0].sums.ttft_ms.quantile(0.5), Some(125.0));
        assert_eq!((minutes[0].sums.prompt_tokens, &minutes[0].key), (4000, &key));
        store.compact(start + DAY_MS).await.unwrap();
        assert_eq!(
            store.traffic(MINUTE_MS, start, start + HOUR_MS).await.unwrap().len(),
            3,
            "kept for two days"
        );
        for _ in 0..2 {
            store.compact(start + 3 * DAY_MS).await.unwrap();
            assert_eq!(store.traffic(MINUTE_MS, 0, i64::MAX).await.unwrap(), []);
            let hours = store.traffic(HOUR_MS, start, start + HOUR_MS).await.unwrap();
            assert_eq!((hours.len(), hours[0].sums.requests, hours[0].start_ms), (1, 8, start));
        }
        store.compact(start + 91 * DAY_MS).await.unwrap();
        assert_eq!(store.traffic(HOUR_MS, 0, i64::MAX).await.unwrap(), []);
    });
}

#[test]
fn a_change_reaches_the_watch_of_every_replica() {
    on_each(|db| async move {
        let (editor, replica) = (db.open().await, db.open().await);
        let before = replica.snapshot().await.unwrap();
        let mut watch = replica.watch(before.generation);
        // The first call finds nothing newer. From then on the watch listens, or polls every second.
        while tokio::time::timeout(HANG, watch.next()).await.unwrap().unwrap().is_some() {}
        for round in 0..3 {
            let settings = SceneSettings::with_system(format!("round {round}"));
            let scene = editor.set_scene("chat", &settings, "", Expected::Any, &ann()).await.unwrap();
            let newer = async {
                loop {
                    if let Some(snapshot) = watch.next().await.unwrap() {
                        return snapshot;
                    }
                }
            };
            let snapshot = tokio::time::timeout(HANG, newer).await.expect("the change is heard of");
            assert!(snapshot.scenes.contains(&scene), "{round}");
            assert!(snapshot.generation > before.generation);
        }
        assert_eq!(replica.health().away_since_ms, None);
    });
}
