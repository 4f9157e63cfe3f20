//! Tests answers that nobody reads: they hold a slot for a limited number of tokens, then none, and none of
//! their text is lost.

use baton_cloud::access::TenantSettings;
use baton_cloud::scene::book::SceneBook;
use baton_cloud::scene::{Scene, SceneSettings};
use baton_cloud::service::stream::UNREAD_TOKENS_MAX;
use baton_cloud::service::{CloudService, ServiceOptions};
use baton_protocol::{AssistEvent, AssistRequest, EndReason};

use crate::client::{HANG, Server};
use crate::isolation;
use crate::world::{answer, by_hand, document, drain, end, options, request, run_all, setup, tokens};

/// Returns a request for an answer of about a thousand tokens.
fn long() -> AssistRequest {
    request("doc-qa", &document(6), 1200)
}

fn one_slot() -> ServiceOptions {
    ServiceOptions { slots: 1, ..options() }
}

#[test]
fn an_answer_that_nobody_reads_waits_without_a_slot_and_goes_on_when_it_is_read() {
    // The answer is read while it is written.
    let (service, mut host) = by_hand(one_slot());
    let mut stream = service.assist(&long()).unwrap();
    let mut want = Vec::new();
    while let Some(pass) = host.turn() {
        host.commit(pass);
        want.extend(drain(&mut stream));
    }
    assert!(tokens(&want).len() > 3 * UNREAD_TOKENS_MAX, "{} tokens", tokens(&want).len());

    let (service, mut host) = by_hand(one_slot());
    let free = host.free_kv_tokens();
    let mut stream = service.assist(&long()).unwrap();
    let mut have = Vec::new();
    let mut waits = 0;
    loop {
        run_all(&mut host);
        let written = drain(&mut stream);
        let ended = written.iter().any(|event| matches!(event, AssistEvent::End(_)));
        have.extend(written);
        if ended {
            break;
        }
        // It has written as many tokens as may be unread. Now that all are read, it continues at the next
        // turn.
        waits += 1;
        assert_eq!(tokens(&have).len(), waits * UNREAD_TOKENS_MAX);
        let stats = service.stats();
        assert_eq!((stats.running, stats.waiting, stats.parked, stats.kv_held_tokens), (0, 0, 1, 0));
        assert_eq!(host.free_kv_tokens(), free, "its blocks are free for others");
        // The one slot serves another request meanwhile.
        let other = answer(&service, &mut host, &request("doc-qa", &document(3), 5));
        assert_eq!(end(&other).usage.completion_tokens, 5);
    }
    assert!(waits >= 3, "{waits}");
    assert_eq!(tokens(&have), tokens(&want), "not one token is another");
    assert_eq!(end(&have).usage.completion_tokens, end(&want).usage.completion_tokens);
    assert_eq!((service.stats().parked, service.stats().running), (0, 0));
}

#[test]
fn it_goes_on_once_half_of_it_is_read() {
    let (service, mut host) = by_hand(one_slot());
    let mut stream = service.assist(&long()).unwrap();
    run_all(&mut host);
    // First the mask, then tokens.
    for _ in 0..UNREAD_TOKENS_MAX / 2 {
        assert!(host.turn().is_none());
        stream.try_next().unwrap();
    }
    assert!(host.turn().is_none(), "one less than half is read");
    stream.try_next().unwrap();
    assert_eq!(run_all(&mut host), UNREAD_TOKENS_MAX / 2, "as many as are read");
    assert_eq!(service.stats().parked, 1);
}

#[test]
fn who_leaves_an_answer_unread_leaves_nothing_behind() {
    let (service, mut host) = by_hand(one_slot());
    let free = host.free_kv_tokens();
    let stream = service.assist(&long()).unwrap();
    let mut cancelled = service.assist(&long()).unwrap();
    run_all(&mut host);
    assert_eq!(service.stats().parked, 2);
    drop(stream);
    cancelled.cancel();
    assert!(host.turn().is_none());
    let stats = service.stats();
    assert_eq!((stats.parked, stats.running, stats.waiting, stats.closed_total), (0, 0, 0, 2));
    assert_eq!(host.free_kv_tokens(), free);
    let events = drain(&mut cancelled);
    assert_eq!(end(&events).reason, EndReason::Cancelled);
    assert_eq!(end(&events).usage.completion_tokens as usize, UNREAD_TOKENS_MAX);
}

#[test]
fn a_scene_bounds_what_a_request_may_have_written() {
    let settings = SceneSettings { assist_max: 40, ..SceneSettings::with_system("") };
    let fixed = SceneSettings { assist_tokens: Some(20), ..settings.clone() };
    let scene = |id: &str, settings| Scene { id: id.into(), version: 1, settings };
    let book = SceneBook::new([scene("short", settings), scene("fixed", fixed)]);
    let (service, mut host) = CloudService::new(setup(), book, options()).unwrap();
    for (scene, asked, want, bound_by) in [
        ("short", Some(65_536), 40, "answer_length"),
        ("short", Some(41), 40, "answer_length"),
        ("short", Some(40), 40, "fixed"),
        ("short", Some(7), 7, "fixed"),
        ("fixed", None, 20, "fixed"),
        ("fixed", Some(30), 30, "fixed"),
        ("fixed", Some(50), 40, "answer_length"),
    ] {
        let request = AssistRequest { assist_tokens: asked, ..request(scene, &document(6), 1) };
        let events = answer(&service, &mut host, &request);
        let first = events.iter().find_map(|event| match event {
            AssistEvent::First(first) => Some(first),
            _ => None,
        });
        let first = first.unwrap();
        assert_eq!(
            (first.assist_tokens, first.assist_bound_by.as_str()),
            (want, bound_by),
            "{scene} {asked:?}"
        );
        assert_eq!(end(&events).usage.completion_tokens, u64::from(want), "{scene} {asked:?}");
    }
    assert_eq!(service.scene("short").unwrap().settings.assist_max, 40, "a device can know it before");
}

#[tokio::test]
async fn a_device_that_was_away_finds_the_rest_of_its_answer() {
    let server = Server::with(one_slot(), None, Default::default(), Default::default()).await;
    let mut asked = long();
    let whole = server.post("/v1/assist", &serde_json::to_value(&asked).unwrap()).await;
    let want = tokens(&whole.events());
    assert!(want.len() > 2 * UNREAD_TOKENS_MAX);
    asked.resume = true;
    let body = serde_json::to_string(&asked).unwrap();
    let mut open = server.open("POST", "/v1/assist", &[], body.as_bytes()).await;
    open.until("event: first").await;
    drop(open);
    let parked = async {
        while server.service.stats().parked == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(HANG, parked).await.expect("it waits for its reader");
    assert_eq!(server.service.stats().running, 0);
    let path = format!("/v1/assist/{}", asked.request_id);
    let rest = server.send("GET", &path, &[("last-event-id", "9")], b"").await;
    assert_eq!(tokens(&rest.events()), want[10..], "nothing is lost");
    assert_eq!(end(&rest.events()).reason, end(&whole.events()).reason);
    server.idle().await;
}

#[tokio::test]
async fn a_tenant_s_place_is_free_as_soon_as_its_reader_hears_of_the_end() {
    let one_at_a_time = TenantSettings { concurrency_max: Some(1), ..TenantSettings::default() };
    let (server, [key]) = isolation::server(["acme"], one_at_a_time).await;
    let bearer = format!("Bearer {}", key.reveal());
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    for at in 0..6 {
        let mut asked = request("doc-qa", &document(2), 3);
        // With and without being kept for a reader that comes back.
        (asked.resume, asked.request_id) = (at % 2 == 0, uuid::Uuid::from_u128(at));
        let body = serde_json::to_string(&asked).unwrap();
        let mut open = server.open("POST", "/v1/assist", &headers, body.as_bytes()).await;
        open.until("event: end").await;
    }
}

#[tokio::test]
async fn a_service_that_ends_waits_for_an_answer_that_is_read_late() {
    let server = Server::with(one_slot(), None, Default::default(), Default::default()).await;
    let mut stream = server.service.assist(&long()).unwrap();
    let parked = async {
        while server.service.stats().parked == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(HANG, parked).await.expect("nobody reads");
    server.service.drain();
    let mut events = Vec::new();
    let reading = async {
        while let Some(event) = stream.next().await {
            events.push(event);
        }
    };
    tokio::time::timeout(HANG, reading).await.expect("it ends");
    assert_eq!(end(&events).reason, EndReason::Cap);
    assert_eq!(tokens(&events).len(), 1200);
    server.stop().await;
}
