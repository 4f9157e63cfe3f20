//! Tests sums of telemetry and usage over a range, against sums computed by hand.

use baton_cloud::learn::traffic::history::{GroupBy, History, TimeRange};
use baton_cloud::learn::traffic::{DAY_MS, HOUR_MS, MINUTE_MS, RequestFigures, Traffic, TrafficKey};
use baton_cloud::store::{Store, UsageDelta};

use crate::world::on_each;

const NOW: i64 = 100 * DAY_MS + 5 * HOUR_MS;

/// A request: how long ago, scene, class, TTFT, whether it failed.
type Asked = (i64, &'static str, &'static str, f64, bool);

const REQUESTS: [Asked; 7] = [
    (10 * MINUTE_MS, "a", "phone", 40.0, false),
    (10 * MINUTE_MS, "a", "watch", 40.0, true),
    (90 * MINUTE_MS, "b", "phone", 150.0, false),
    (DAY_MS, "", "", 40.0, false),
    (3 * DAY_MS, "a", "phone", 900.0, false),
    (3 * DAY_MS + MINUTE_MS, "a", "phone", 900.0, true),
    (40 * DAY_MS, "b", "watch", 40.0, false),
];

fn figures(ttft_ms: f64, failed: bool) -> RequestFigures {
    RequestFigures {
        failed,
        ttft_ms: Some(ttft_ms),
        prompt_tokens: 100,
        completion_tokens: 10,
        prompt_tokens_saved: 60,
        slot_ms: 2000,
        slot_ms_saved: 500,
        ..RequestFigures::default()
    }
}

/// Writes every request, on two replicas.
async fn fill(store: &Store) {
    for replica in ["one", "two"] {
        let mut traffic = Traffic::default();
        for (ago, scene, class, ttft_ms, failed) in REQUESTS {
            let key = TrafficKey { scene: scene.into(), class: class.into(), network: "wifi".into() };
            traffic.record(NOW - ago, key, &figures(ttft_ms, failed));
        }
        store.keep_traffic(replica, &traffic.unwritten()).await.unwrap();
    }
}

fn groups(history: &History) -> Vec<(&str, u64, u64)> {
    let groups = history.largest_first().into_iter();
    groups.map(|(name, sums)| (name, sums.requests, sums.failures)).collect()
}

#[test]
fn minutes_and_hours_are_summed_together() {
    on_each(|db| async move {
        let store = db.open().await;
        fill(&store).await;
        let range = |ago| TimeRange::new(NOW - ago, NOW, NOW).unwrap();
        let read = async |ago, by| store.history(range(ago), by, None).await.unwrap();
        let before = read(80 * DAY_MS, GroupBy::Scene).await;
        store.compact(NOW).await.unwrap();
        assert_eq!(store.traffic(HOUR_MS, 0, NOW).await.unwrap().len(), 3, "old minutes are hours now");
        let after = read(80 * DAY_MS, GroupBy::Scene).await;
        assert_eq!(before, after, "no request is counted twice or lost");
        assert_eq!(groups(&after), [("a", 8, 4), ("b", 4, 0), ("", 2, 0)]);
        let total = &after.total;
        assert_eq!((total.requests, total.prompt_tokens, total.completion_tokens), (14, 1400, 140));
        assert_eq!((total.prompt_tokens_saved, total.slot_ms, total.slot_ms_saved), (840, 28_000, 7000));
        assert_eq!((total.ttft_ms.total(), total.ttft_ms.quantile(0.99) > Some(750.0)), (14, true));
        assert_eq!(after.points().map(|(_, sums)| sums.requests).sum::<u64>(), 14);
        for (ago, want) in [(HOUR_MS, 4), (2 * HOUR_MS, 6), (2 * DAY_MS, 8), (4 * DAY_MS, 12)] {
            assert_eq!(read(ago, GroupBy::Network).await.total.requests, want, "{ago}");
        }
        let hour = read(HOUR_MS, GroupBy::Class).await;
        assert_eq!(groups(&hour), [("phone", 2, 0), ("watch", 2, 2)]);
        assert_eq!(hour.range.step_ms(), MINUTE_MS);
        let scene = async |scene: &str| {
            let found = store.history(range(80 * DAY_MS), GroupBy::Class, Some(scene.into())).await.unwrap();
            found.total.requests
        };
        assert_eq!((scene("a").await, scene("").await, scene("none").await), (8, 2, 0));
    });
}

#[test]
fn usage_is_listed_by_day_and_summed_by_tenant() {
    on_each(|db| async move {
        let store = db.open().await;
        let today = 100 * DAY_MS;
        let used = |tenant: &str, days_ago: i64, requests, tokens| UsageDelta {
            tenant: tenant.into(),
            minute_ms: NOW,
            requests,
            day_ms: today - days_ago * DAY_MS,
            day_requests: requests,
            tokens,
            running: 0,
            reserved: 0,
        };
        let deltas = [used("a", 0, 1, 10), used("a", 1, 2, 20), used("b", 1, 5, 500), used("a", 9, 7, 7000)];
        store.exchange_usage("one", &deltas, NOW).await.unwrap();
        store.exchange_usage("two", &[used("a", 0, 1, 5)], NOW).await.unwrap();
        let range = TimeRange::new(today - DAY_MS, NOW, NOW).unwrap();
        let of = async |tenant: &str| store.usage_history(range, tenant).await.unwrap();
        let all = of("").await;
        let days: Vec<_> = all
            .days
            .iter()
            .map(|day| {
                (
                    (today - day.day_ms) / DAY_MS,
                    day.usage.tenant.as_str(),
                    day.usage.requests,
                    day.usage.tokens,
                )
            })
            .collect();
        assert_eq!(days, [(0, "a", 2, 15), (1, "a", 2, 20), (1, "b", 5, 500)]);
        let sums: Vec<_> =
            all.tenants.iter().map(|used| (used.tenant.as_str(), used.requests, used.tokens)).collect();
        assert_eq!((sums, all.has_more), (vec![("b", 5, 500), ("a", 4, 35)], false));
        let one = of("b").await;
        assert_eq!((one.days.len(), one.tenants.len(), one.tenants[0].tokens), (1, 1, 500));
        assert_eq!(of("none").await.tenants, []);
    });
}
