//! Tests sums over a range of time at the console and its API.

use baton_cloud::learn::traffic::{DAY_MS, HOUR_MS, RequestFigures, Traffic, TrafficKey};
use baton_cloud::store::{UsageDelta, now_ms};
use serde_json::{Value, json};

use super::pages::check_page;
use super::{API, World};

/// Writes two requests of an hour ago, one of another scene that failed, and usage of two days.
async fn filled() -> (World, i64) {
    let world = World::new().await;
    let now = now_ms();
    let mut traffic = Traffic::default();
    let key = |scene: &str, class: &str| TrafficKey {
        scene: scene.into(),
        class: class.into(),
        ..Default::default()
    };
    let figures = RequestFigures {
        ttft_ms: Some(40.0),
        prompt_tokens: 1000,
        completion_tokens: 24,
        prompt_tokens_saved: 700,
        slot_ms: 1500,
        slot_ms_saved: 500,
        ..RequestFigures::default()
    };
    for _ in 0..2 {
        traffic.record(now - HOUR_MS, key("doc-qa", "phone"), &figures);
    }
    let failed = RequestFigures { failed: true, prompt_tokens: 5, ..RequestFigures::default() };
    traffic.record(now - HOUR_MS, key("chat", "watch"), &failed);
    world.store.keep_traffic("one", &traffic.unwritten()).await.unwrap();
    let today = now - now.rem_euclid(DAY_MS);
    let delta = |tenant: &str, day_ms, tokens| UsageDelta {
        tenant: tenant.into(),
        minute_ms: day_ms,
        requests: 1,
        day_ms,
        day_requests: 2,
        tokens,
        running: 0,
        reserved: 0,
    };
    let used = [delta("acme", today, 100), delta("acme", today - DAY_MS, 7), delta("other", today, 9)];
    world.store.exchange_usage("one", &used, now).await.unwrap();
    (world, now)
}

#[tokio::test]
async fn sums_and_usage_are_those_of_the_range() {
    let (world, now) = filled().await;
    let vera = world.log_in("vera").await;
    let view = world.get(&vera, &format!("{API}/history?from_ms={}", now - 2 * HOUR_MS)).await.json();
    let total = &view["total"];
    assert_eq!(
        (&total["requests"], &total["failures"], &total["prompt_tokens"]),
        (&json!(3), &json!(1), &json!(2005))
    );
    assert_eq!((&total["slot_seconds"], &total["prompt_tokens_saved"]), (&json!(3.0), &json!(1400)));
    let names: Vec<&Value> = view["groups"].as_array().unwrap().iter().map(|group| &group["name"]).collect();
    assert_eq!(names, ["doc-qa", "chat"]);
    assert_eq!(view["groups"][0]["sums"]["ttft_p50_ms"], 40.0);
    let of = async |query: &str| world.get(&vera, &format!("{API}/history?{query}")).await.json();
    let classes = of("by=class&scene=chat").await;
    assert_eq!((&classes["groups"][0]["name"], &classes["total"]["requests"]), (&json!("watch"), &json!(1)));
    assert_eq!(of(&format!("to_ms={}", now - 2 * HOUR_MS)).await["total"]["requests"], 0);
    let usage = world.get(&vera, &format!("{API}/usage?from_ms={}", now - DAY_MS)).await.json();
    assert_eq!(usage["tenants"][0], json!({ "tenant": "acme", "requests": 4, "tokens": 107 }));
    assert_eq!((usage["days"].as_array().unwrap().len(), &usage["has_more"]), (3, &json!(false)));
    let one = world.get(&vera, &format!("{API}/usage?tenant=other")).await.json();
    assert_eq!((&one["tenants"][0]["tokens"], one["tenants"].as_array().unwrap().len()), (&json!(9), 1));
}

#[tokio::test]
async fn a_wrong_range_is_told_with_its_field() {
    let (world, now) = filled().await;
    let vera = world.log_in("vera").await;
    for (query, status, field) in [
        ("history?by=tenant".to_owned(), 422, "by"),
        ("history?from_ms=abc".to_owned(), 400, "from_ms"),
        ("history?from_ms=5".to_owned(), 422, "from_ms"),
        (format!("history?from_ms={}", now + HOUR_MS), 422, "from_ms"),
        (format!("usage?from_ms={now}&to_ms={}", now - 5), 422, "from_ms"),
        ("usage?from_ms=-9223372036854775808".to_owned(), 422, "from_ms"),
        ("usage?to_ms=-9223372036854775808".to_owned(), 422, "from_ms"),
    ] {
        let answer = world.get(&vera, &format!("{API}/{query}")).await;
        assert_eq!((answer.status, &answer.json()["field"]), (status, &json!(field)), "{query}: {answer:?}");
    }
}

#[tokio::test]
async fn the_page_shows_every_range_and_keeps_what_was_typed() {
    let (world, _) = filled().await;
    let vera = world.log_in("vera").await;
    for query in
        ["", "?last=1+hour&by=network", "?last=7+days&by=class", "?last=30+days&scene=doc-qa&tenant=acme"]
    {
        let page = world.get(&vera, &format!("/admin/history{query}")).await;
        assert_eq!(page.status, 200, "{query}: {page:?}");
        check_page(query, &page);
        assert!(page.body.contains("<svg") && !page.body.contains("NaN"), "{query}: {}", page.body);
    }
    let page = world.get(&vera, "/admin/history").await.body;
    assert!(page.contains("doc-qa") && page.contains("1,400") && page.contains("acme"), "{page}");
    for (query, kept) in [
        ("from=yesterday", "value=\"yesterday\""),
        ("from=2026-02-28T17:30&to=2026-02-28T17:00", "value=\"2026-02-28T17:30\""),
        ("last=1+year", "must be a range"),
        ("by=tenant", "must be scene, class or network"),
    ] {
        let page = world.get(&vera, &format!("/admin/history?{query}")).await;
        assert_eq!(page.status, 422, "{query}: {page:?}");
        check_page(query, &page);
        assert!(page.body.contains(kept), "{query}: {}", page.body);
    }
}
