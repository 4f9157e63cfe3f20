//! Tests the playground: what is asked there is answered as a device's request, and leaves nothing behind.

use std::time::Duration;

use baton_cloud::service::{CONSOLE, Terms};
use baton_protocol::AssistEvent;
use serde_json::{Value, json};

use super::pages::check_page;
use super::{API, Answer, Caller, World};
use crate::world::{by_hand, document, options, request, run_all, tokens};

const ASK: &str = "/playground";
const QUESTION: &str = "What does item 7 cost, and why?";

/// Makes a console of a service that computes by itself. The caller stops the service.
async fn serving() -> World {
    let (service, host) = by_hand(options());
    std::thread::spawn(move || host.serve());
    World::over(service, None, false).await.with_users().await
}

fn question(document: &str) -> Value {
    json!({ "scene": "doc-qa", "document": document, "question": QUESTION, "assist_tokens": 6 })
}

async fn ask(world: &World, caller: &Caller, body: &Value) -> Answer {
    world.call(caller, "POST", ASK, None, body).await
}

/// Returns all events that a device gets.
async fn device_events(world: &World, document: &str) -> Vec<AssistEvent> {
    let mut stream = world.service().assist_on(&request("doc-qa", document, 6), Terms::default()).unwrap();
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        events.push(event);
    }
    events
}

#[tokio::test]
async fn an_editor_sees_what_a_device_gets() {
    let world = serving().await;
    let edna = world.log_in("edna").await;
    let text = document(12);
    let events = device_events(&world, &text).await;
    let answer = ask(&world, &edna, &question(&text)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let view = answer.json();
    let AssistEvent::Mask(mask) = &events[0] else { panic!("{events:?}") };
    let sentences = view["sentences"].as_array().unwrap();
    let texts = |kept: Option<bool>| -> Vec<&str> {
        let found = sentences.iter().filter(|one| kept.is_none_or(|kept| one["kept"] == kept));
        found.map(|one| one["text"].as_str().unwrap()).collect()
    };
    assert_eq!(texts(None).concat(), text, "every sentence is there, in order");
    let kept = texts(Some(true));
    assert_eq!((sentences.len() as u64, kept.len() as u64), (mask.count, mask.kept));
    let refined = &view["refined"];
    assert_eq!(refined["sentences_kept"], mask.kept);
    let share = refined["ratio_kept"].as_f64().unwrap();
    assert!((share - f64::from(mask.ratio)).abs() < 1e-6 && (0.05..=0.26).contains(&share), "{share}");
    assert_eq!((&refined["ratio"], &refined["ratio_bound_by"]), (&json!(0.25), &json!("scene")));
    assert!(refined["refined_prompt_tokens"].as_u64() < refined["prompt_tokens"].as_u64(), "{refined}");
    let read = refined["prompt"][1]["text"].as_str().unwrap();
    assert!(kept.iter().all(|one| read.contains(one.trim())), "{read}");
    assert!(texts(Some(false)).iter().all(|one| !read.contains(one.trim())), "{read}");
    let written: String = tokens(&events).into_iter().map(|(_, text)| text).collect();
    let said = &view["answer"];
    assert_eq!((said["text"].as_str(), said["assist_tokens"].as_u64()), (Some(written.as_str()), Some(6)));
    assert!((1..=6).contains(&said["tokens"].as_u64().unwrap()), "{said}");
    assert_eq!(said["assist_bound_by"], "fixed");
    assert!(view["timing"]["prefill_ms"].as_f64() > Some(0.0), "{view}");
    let cached = view["timing"]["cached_tokens"].as_u64().unwrap();
    assert!(cached < 100, "the same words of somebody else are not found: {cached}");
    assert_eq!(view["device"], Value::Null);
    world.service().stop();
}

#[tokio::test]
async fn a_question_is_listed_and_teaches_nothing() {
    let world = serving().await;
    let edna = world.log_in("edna").await;
    let mut body = question(&document(12));
    body["device_class"] = json!("assumed");
    body["mode"] = json!("bm25");
    let audit = world.get(&edna, &format!("{API}/audit")).await.body;
    let view = ask(&world, &edna, &body).await.json();
    assert_eq!(view["mode"], "bm25");
    let whole = view["refined"]["prompt_tokens"].as_f64().unwrap();
    let device = &view["device"];
    assert_eq!(device["whole_prefill_ms"].as_f64(), Some(2.5 * whole), "{device}");
    assert!(device["refined_prefill_ms"].as_f64() < device["whole_prefill_ms"].as_f64(), "{device}");
    let listed = world.get(&edna, &format!("{API}/requests?tenant=%28console%29")).await.json();
    let seen = &listed["requests"][0];
    assert_eq!((&seen["id"], &seen["tenant"]), (&view["request"], &json!(CONSOLE)));
    assert_eq!((&seen["scene"], &seen["state"]), (&json!("doc-qa"), &json!("ended")));
    assert!(world.service().coefficients().devices.is_empty(), "no device has reported anything");
    assert!(world.service().unwritten_traffic().is_empty(), "it is in no sum");
    let after = world.get(&edna, &format!("{API}/audit")).await.body;
    assert_eq!(after, audit, "the audit log has nothing of it");
    world.service().stop();
}

#[tokio::test]
async fn everything_is_kept_if_the_scene_or_the_mode_says_so() {
    let world = serving().await;
    let edna = world.log_in("edna").await;
    for (field, value, bound_by) in
        [("scene", "doc-qa-full", "refine"), ("mode", "none", "mode"), ("ratio", "1", "request")]
    {
        let mut body = question(&document(8));
        body[field] = if field == "ratio" { json!(1.0) } else { json!(value) };
        let view = ask(&world, &edna, &body).await.json();
        let refined = &view["refined"];
        assert_eq!((&refined["has_mask"], &refined["ratio_bound_by"]), (&json!(false), &json!(bound_by)));
        assert_eq!(refined["ratio_kept"], 1.0);
        assert_eq!(refined["sentences_kept"], view["sentences"].as_array().unwrap().len());
        assert_eq!(refined["refined_prompt_tokens"], refined["prompt_tokens"]);
    }
    world.service().stop();
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let world = World::new().await;
    let edna = world.log_in("edna").await;
    for (field, value) in [
        ("scene", json!("nothing")),
        ("document", json!("a".repeat(65_537))),
        ("document", json!(" \n")),
        ("document", json!("Too many tokens. ".repeat(200))),
        ("question", json!("")),
        ("question", json!("a".repeat(4_097))),
        ("ratio", json!(0.1)),
        ("ratio", json!(2.0)),
        ("mode", json!("best")),
        ("assist_tokens", json!(0)),
        ("device_class", json!("toaster")),
    ] {
        let mut body = question(&document(8));
        body[field] = value;
        let answer = ask(&world, &edna, &body).await;
        assert_eq!((answer.status, &answer.json()["field"]), (422, &json!(field)), "{answer:?}");
    }
    let answer = ask(&world, &edna, &json!({ "scene": "doc-qa", "sentences": 2 })).await;
    assert_eq!((answer.status, &answer.json()["field"]), (400, &json!("sentences")), "{answer:?}");
    let fields = [("scene", "doc-qa"), ("document", "One. Two."), ("question", "Why?"), ("ratio", "some")];
    let page = world.form(&edna, "/admin/playground", &fields).await;
    check_page("an error", &page);
    assert_eq!(page.status, 422);
    assert!(page.body.contains("aria-describedby=\"error-ratio\"") && page.body.contains("One. Two."));
}

#[tokio::test]
async fn the_page_asks_its_sample_with_one_click() {
    let world = serving().await;
    let edna = world.log_in("edna").await;
    let page = world.get(&edna, "/admin/playground").await;
    let sample = page.body.split("name=\"document\"").nth(1).unwrap().split('>').nth(1).unwrap();
    let sample = sample.split("</textarea").next().unwrap().trim_start();
    assert!(page.body.contains("<option selected>doc-qa</option>"), "{}", page.body);
    let fields = [
        ("scene", "doc-qa"),
        ("document", sample),
        ("question", "What does a ticket for the ferry cost?"),
        ("ratio", ""),
        ("mode", ""),
        ("assist_tokens", "4"),
        ("device_class", "assumed"),
    ];
    let shown = world.form(&edna, "/admin/playground", &fields).await;
    assert_eq!(shown.status, 200, "{shown:?}");
    check_page("/admin/playground", &shown);
    let count = |text: &str| shown.body.matches(text).count();
    let (kept, dropped) = (count(">kept</span> <mark>"), count(">left out</span>"));
    assert!(kept >= 1 && kept + dropped == 10, "{kept} and {dropped}: {}", shown.body);
    assert!(count("would take over here") == 1 || count("The answer is complete") == 1, "{}", shown.body);
    assert!(count("A device of class assumed would read the refined prompt in") == 1, "{}", shown.body);
    assert_eq!(count("<details><summary>The prompt as the device would read it"), 1);
    world.service().stop();
}

#[tokio::test]
async fn a_viewer_has_no_playground() {
    let world = World::new().await;
    let (edna, vera) = (world.log_in("edna").await, world.log_in("vera").await);
    let link = "href=\"/admin/playground\"";
    assert!(!world.get(&vera, "/admin/scenes").await.body.contains(link));
    assert!(world.get(&edna, "/admin/scenes").await.body.contains(link));
    assert_eq!(ask(&world, &vera, &question("One. Two.")).await.status, 403);
    assert_eq!(world.get(&vera, "/admin/playground").await.status, 403);
    let fields = [("scene", "doc-qa"), ("document", "One. Two."), ("question", "Why?")];
    assert_eq!(world.form(&vera, "/admin/playground", &fields).await.status, 403);
}

#[tokio::test]
async fn whoever_stops_waiting_cancels_the_answer() {
    let (service, mut host) = by_hand(options());
    let world = World::over(service.clone(), None, false).await.with_users().await;
    let edna = world.log_in("edna").await;
    let list = format!("{API}/requests?tenant=%28console%29");
    let body = question(&document(8));
    let waits = async {
        while world.get(&edna, &list).await.json()["running"] != 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        answer = ask(&world, &edna, &body) => panic!("nothing computes: {answer:?}"),
        () = waits => {}
    }
    // A thread that was still preparing drops its stream too.
    tokio::time::sleep(Duration::from_millis(100)).await;
    run_all(&mut host);
    let ended = world.get(&edna, &list).await.json();
    assert_eq!((&ended["running"], &ended["requests"][0]["outcome"]), (&json!(0), &json!("cancelled")));
}
