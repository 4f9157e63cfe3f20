//! Which way turns go, and what the report says of it.

use super::*;
use crate::agent::{RouteOptions, RouteReport};
use crate::settings::Settings;

/// Time to write a token, of the device and of the cloud. An answer of 12 tokens then takes 3.6 s. So even a
/// loaded machine reads the cloud's end, which says what it has computed, before the device's answer ends.
const DECODE_MS: f64 = 300.0;

/// A reply of a cloud that says what it took: 60 ms, 0.1 ms a prompt token, [`DECODE_MS`] for each written
/// one.
fn told(prompt_tokens: u64) -> String {
    let body = stream(&["So", " it", " is."]);
    let prefill_ms = 60.0 + 0.1 * prompt_tokens as f64;
    let timing = format!(
        "\"timing\":{{\"queue_ms\":0,\"prefill_ms\":{prefill_ms},\"refine_ms\":0,\"decode_ms\":{DECODE_MS}}},\"index\":0"
    );
    let usage = format!("\"usage\":{{\"prompt_tokens\":{prompt_tokens},");
    body.replacen("\"index\":0", &timing, 1).replace("\"usage\":{", &usage)
}

/// Makes an agent that chooses routes, with a device that takes this long for a token of a prompt.
fn choosing(cloud: &str, settings: &Settings, prefill_ms_per_token: f64) -> Agent {
    let options = EngineOptions {
        threads: std::num::NonZeroUsize::new(1),
        kv_tokens: 1024,
        ..EngineOptions::default()
    };
    let engine = Engine::new(model(), options).unwrap();
    let slow = PassCost { prefill_ms_per_token, decode_ms: DECODE_MS, ..PassCost::default() };
    let local = LocalOptions { emulation: slow, ..LocalOptions::new(1024) };
    let worker = EngineWorker::start(engine, local).unwrap();
    let client = CloudClient::new(cloud, None).unwrap();
    let device = DeviceModel::new(worker, model());
    Agent::new(Some(device), model().tokenizer().clone(), Some(client), "test").with_routes(
        RouteOptions { reads_ahead: true, is_metered: false },
        settings,
        cloud,
    )
}

fn route(report: &AnswerReport) -> &RouteReport {
    report.route.as_ref().expect("a route was chosen")
}

#[tokio::test]
async fn a_cloud_that_was_not_measured_is_tried_and_then_used_only_if_it_helps() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings::open(Some(folder.path().to_owned()));
    let cloud = FakeCloud::start(told(200)).await;
    let agent = choosing(&cloud.url, &settings, 0.001);
    let text = "Say it. ".repeat(30);
    let (first, _) = ask(&agent, question(&text, RelayMode::Relay)).await;
    assert_eq!((route(&first).chosen, route(&first).why), ("relay", "unmeasured"));
    assert_eq!(route(&first).forecasts.len(), 1, "only the device is known: {:?}", route(&first));
    assert_eq!(cloud.requests().len(), 1);
    assert!(first.request_bytes.is_some());

    // The device needs no time for this one, so nothing leaves it. A private value is not even noted.
    let again = format!("{text} Mail canary.jane@example.com.");
    let (second, _) = ask(&agent, question(&again, RelayMode::Relay)).await;
    assert_eq!((route(&second).chosen, route(&second).why), ("device", "least"));
    let routes: Vec<&str> = route(&second).forecasts.iter().map(|forecast| forecast.route).collect();
    assert_eq!(routes, ["device", "relay", "cloud"]);
    assert_eq!((second.tokens_from_cloud, second.request_bytes, codes(&second)), (0, None, vec![]));
    assert_eq!(cloud.requests().len(), 1);
}

#[tokio::test]
async fn what_was_measured_is_known_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings::open(Some(folder.path().to_owned()));
    let cloud = FakeCloud::start(told(200)).await;
    let text = "Say it. ".repeat(30);
    let (first, _) = ask(&choosing(&cloud.url, &settings, 0.001), question(&text, RelayMode::Relay)).await;
    assert_eq!(route(&first).why, "unmeasured");
    let slow = choosing(&cloud.url, &settings, 20.0);
    let (second, _) = ask(&slow, question(&text, RelayMode::Relay)).await;
    assert_eq!(route(&second).why, "least");
    assert_ne!(route(&second).chosen, "device", "{:?}", route(&second));
    assert!(second.tokens_from_cloud > 0);
    // A much longer prompt than any that was measured says nothing of its time.
    let long = "Say it. ".repeat(110);
    let (third, _) = ask(&slow, question(&long, RelayMode::Relay)).await;
    assert_eq!((route(&third).chosen, route(&third).why), ("relay", "unmeasured"), "{:?}", route(&third));
}

#[tokio::test]
async fn a_prompt_that_the_device_has_computed_costs_it_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings::open(Some(folder.path().to_owned()));
    let cloud = FakeCloud::start(told(240)).await;
    let agent = choosing(&cloud.url, &settings, 2.0);
    let text = "Say it. ".repeat(30);
    let (first, _) = ask(&agent, question(&text, RelayMode::DeviceOnly)).await;
    assert_eq!(first.ending, "length");
    let (second, _) = ask(&agent, question(&format!("{text}More."), RelayMode::Relay)).await;
    let (cached, tokens) = (route(&second).cached_tokens, route(&second).prompt_tokens);
    assert!(cached < tokens && cached + 40 > tokens, "{cached} of {tokens}");
    let expected = route(&second).forecasts[0].first_ms;
    assert!(expected < 40.0 * 2.5, "{expected} ms for {} tokens", tokens - cached);
    let (other, _) = ask(&agent, question("Something else entirely.", RelayMode::Relay)).await;
    assert!(route(&other).cached_tokens < 30, "{:?}", route(&other));
}

#[tokio::test]
async fn the_conversation_is_read_behind_an_answer_of_the_cloud() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings::open(Some(folder.path().to_owned()));
    let cloud = FakeCloud::start(told(240)).await;
    let text = "Say it. ".repeat(30);
    let next = |text: &str, answer: &str| {
        let mut next = question(text, RelayMode::Relay);
        next.segments.push(Segment::fixed(Role::Assistant, answer));
        next.segments.push(Segment::fixed(Role::User, "More."));
        next
    };
    let agent = choosing(&cloud.url, &settings, 0.001);
    let (first, _) = ask(&agent, question(&text, RelayMode::CloudOnly)).await;
    agent.reading_ended().await;
    let (second, _) = ask(&agent, next(&text, &first.answer)).await;
    let (cached, tokens) = (route(&second).cached_tokens, route(&second).prompt_tokens);
    assert!(cached > 240 && cached < tokens, "{cached} of {tokens}");
    // So the device answers, and finds what it has read.
    assert_eq!(route(&second).chosen, "device", "{:?}", route(&second));
    assert!(second.timeline.prompt_tokens_cached.is_some_and(|known| known + 32 >= cached), "{second:?}");

    // A question in the middle of a reading ends it, and is answered as without it.
    let slow = choosing(&cloud.url, &settings, 50.0);
    let (first, _) = ask(&slow, question(&text, RelayMode::CloudOnly)).await;
    let (other, _) = ask(&slow, question("Say it.", RelayMode::DeviceOnly)).await;
    let (want, _) = ask(&agent, question("Say it.", RelayMode::DeviceOnly)).await;
    assert_eq!((other.answer, other.ending), (want.answer, want.ending));
    assert!(first.tokens_from_cloud > 0);
    assert!(slow.reading().is_none());
}

#[tokio::test]
async fn a_mode_that_was_asked_for_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings::open(Some(folder.path().to_owned()));
    let cloud = FakeCloud::start(told(200)).await;
    let agent = choosing(&cloud.url, &settings, 0.001);
    for mode in [RelayMode::DeviceOnly, RelayMode::CloudOnly] {
        let (report, _) = ask(&agent, question("Say it.", mode)).await;
        assert_eq!(report.route, None);
        assert_eq!(report.tokens_from_cloud > 0, mode == RelayMode::CloudOnly);
    }
}
