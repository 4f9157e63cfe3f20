//! Which way turns go, and what the report says of it.

use super::receipt::check_receipt;
use super::*;
use crate::agent::{RouteOptions, RouteReport};
use crate::conversations::Conversations;
use crate::receipt::Purpose;
use crate::settings::Settings;
use baton_registry::envelope::SigningKey;

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

/// As [`told`], by a cloud that hands over: the device goes on behind its tokens.
fn handing_over(prompt_tokens: u64) -> String {
    told(prompt_tokens).replace("\"reason\":\"stop\"", "\"reason\":\"cap\"")
}

/// Makes an agent that chooses routes, with a device that takes this long for a token of a prompt.
fn choosing(cloud: &str, settings: &Settings, prefill_ms_per_token: f64) -> Agent {
    let options = EngineOptions {
        threads: std::num::NonZeroUsize::new(1),
        kv_tokens: 1024,
        ..EngineOptions::default()
    };
    let engine = Engine::new(model(), options).unwrap();
    // A device that begins at once could be before a cloud whose first token is only being read.
    let slow = PassCost { base_ms: 200.0, prefill_ms_per_token, decode_ms: DECODE_MS };
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

/// Waits until the device has read ahead, if it does.
async fn rested(agent: &Agent) {
    let reads = agent.reading().is_some();
    if reads {
        agent.reading_ended().await;
    }
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

#[tokio::test]
async fn an_audit_answers_a_turn_again_by_the_other_routes() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings::open(Some(folder.path().to_owned()));
    let cloud = FakeCloud::start(handing_over(200)).await;
    let kept = Conversations::open(&folder.path().join("records.db")).await.unwrap();
    let key = SigningKey::from_seed(&[3; 32]).unwrap();
    let agent = choosing(&cloud.url, &settings, 0.001).with_audits(1.0);
    let agent = agent.with_records(kept.clone(), "baton serve", &cloud.url, Some(key));
    let asked = |text: &str| Question { tokens_max: 6, ..question(text, RelayMode::Relay) };
    let text = "Say it. ".repeat(30);
    ask(&agent, asked(&text)).await;
    rested(&agent).await;
    assert_eq!(agent.audit().await, None, "there is nothing to compare with an unmeasured cloud");

    let private = format!("{text} Mail canary.jane@example.com.");
    let (report, _) = ask(&agent, asked(&private)).await;
    assert_eq!((route(&report).chosen, cloud.requests().len()), ("device", 1), "{report:?}");
    check_receipt(&kept, &report, &[], &[]).await;
    let audit = agent.audit().await.expect("the turn is audited");
    let routes: Vec<&str> = audit.measured.iter().map(|of| of.route).collect();
    assert_eq!((routes, audit.requests, audit.tokens), (vec!["device", "relay", "cloud"], 2, 6));
    let weighted: Vec<f64> = audit.measured.iter().map(|of| of.weighted_ms).collect();
    let best = weighted.iter().copied().fold(f64::INFINITY, f64::min);
    assert_eq!(audit.regret, Some(weighted[0] / best - 1.0));
    assert_eq!(agent.audit().await, None, "a turn is audited once");
    // The device had sent nothing. What the audit sent stands in the record, without the private value.
    let record = kept.recorded_by_key(report.record.as_deref().unwrap()).await.unwrap();
    let sent = record.sent.unwrap().to_string();
    assert!(sent.contains("[EMAIL_1]") && !sent.contains("canary"), "{sent}");
    assert_eq!(record.answered.report["audit"]["requests"], 2);
    let requests = cloud.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|request| !request.contains("canary")));
    check_receipt(&kept, &report, &requests[1..], &[Purpose::Audit; 2]).await;
}

#[tokio::test]
async fn a_question_ends_an_audit() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings::open(Some(folder.path().to_owned()));
    let cloud = FakeCloud::start(handing_over(200)).await;
    let agent = choosing(&cloud.url, &settings, 0.001).with_audits(1.0);
    let text = "Say it. ".repeat(30);
    ask(&agent, question(&text, RelayMode::Relay)).await;
    let (routed, _) = ask(&agent, question(&text, RelayMode::Relay)).await;
    assert_eq!(route(&routed).chosen, "device", "{routed:?}");
    // The audit takes seconds: the relay's device writes nine tokens.
    let next = async {
        while cloud.requests().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        ask(&agent, question("Say it.", RelayMode::DeviceOnly)).await
    };
    let (audit, (answered, _)) = tokio::join!(agent.audit(), next);
    assert_eq!(audit, None);
    let (want, _) = ask(&agent, question("Say it.", RelayMode::DeviceOnly)).await;
    assert_eq!((answered.answer, answered.ending), (want.answer, want.ending));
}

#[tokio::test]
async fn an_audit_knows_no_more_of_the_prompt_than_the_turn_did() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings::open(Some(folder.path().to_owned()));
    let cloud = FakeCloud::start(handing_over(240)).await;
    let agent = choosing(&cloud.url, &settings, 20.0).with_audits(1.0);
    let asked = |text: &str| Question { tokens_max: 6, ..question(text, RelayMode::Relay) };
    ask(&agent, asked(&"Say it. ".repeat(30))).await;
    let (report, _) = ask(&agent, asked(&"Tell it. ".repeat(25))).await;
    let RouteReport { chosen, cached_tokens, prompt_tokens, .. } = *route(&report);
    assert_ne!(chosen, "device", "{report:?}");
    // Meanwhile the device reads all of it.
    rested(&agent).await;
    let audit = agent.audit().await.expect("the turn is audited");
    let device = audit.measured.iter().find(|of| of.route == "device").expect("the device was measured");
    let unread_ms = 20.0 * (prompt_tokens - cached_tokens) as f64;
    assert!(device.first_ms > 0.9 * unread_ms, "{} ms of {unread_ms} ms", device.first_ms);
    assert!(audit.regret.is_some(), "{audit:?}");
}
