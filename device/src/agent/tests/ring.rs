//! A ring that is lost for good: the agent, which knows nothing of rings, lets the cloud finish the answer.

use std::sync::Arc;

use baton_engine::{Engine, Sequences};
use baton_registry::envelope::SigningKey;
use baton_ring::core::head::PlanFor;
use baton_ring::host::RingHandle;
use baton_ring::host::RingHead;
use baton_ring::sim::home::{Home, engine_options, plan};
use baton_ring::wire::frame::Frame;
use baton_ring::wire::link::Purpose as Link;
use baton_ring::wire::memory::Fate;

use super::receipt::check_receipt;
use super::{FakeCloud, ask, codes, question, stream};
use crate::agent::{Agent, DeviceModel};
use crate::client::CloudClient;
use crate::conversations::Conversations;
use crate::local::LocalOptions;
use crate::local::tests::ring::{home_of, model};
use crate::receipt::Purpose;
use crate::relay::{RelayMode, Source};
use crate::worker::EngineWorker;

const TEXT: &str = "Say what the ring says, at some length.";
/// The cloud's first reply, so that the ring has the answer to itself.
const BUSY: &str = "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n\
                    {\"error\":{\"code\":\"overloaded\",\"message\":\"busy\"}}";

fn agent<S: Sequences + 'static>(engine: S, cloud: Option<&FakeCloud>) -> Agent {
    let worker = EngineWorker::start(engine, LocalOptions::new(1024)).unwrap();
    let cloud = cloud.map(|cloud| CloudClient::new(&cloud.url, None).unwrap());
    Agent::new(Some(DeviceModel::new(worker, model())), model().tokenizer().clone(), cloud, "test")
}

/// Makes a ring of one worker and a head that can hold only two of five layers.
fn ring(home: &Home) -> (RingHead, RingHandle) {
    let head = home.head(|of: &PlanFor| match of.workers.len() {
        0 => Err("the head holds 2 of 5 layers".to_owned()),
        _ => Ok(plan(1, &[("head", 2), ("w1", 3)])),
    });
    let handle = head.handle();
    (head, handle)
}

/// Ends the worker at this frame of the ring.
fn dies_with(home: &Home, number: usize) {
    let (hub, mut seen) = (Arc::clone(&home.hub), 0);
    home.hub.hook(move |passing| {
        // Audits also go round, as many as there is time for.
        let counts = || matches!(Frame::decode(passing.frame), Ok(Frame::Step(step)) if step.audit.is_none());
        seen += usize::from(passing.purpose == Link::Ring && counts());
        if seen == number {
            hub.kill(1);
        }
        Fate::Pass
    });
}

/// Returns the answer of a single device.
async fn alone() -> String {
    let agent = agent(Engine::new(model(), engine_options(1024)).unwrap(), None);
    let (report, _) = ask(&agent, question(TEXT, RelayMode::DeviceOnly)).await;
    assert_eq!(report.error, None);
    assert!(report.answer.chars().count() > 4, "{:?}", report.answer);
    report.answer
}

fn body(request: &str) -> serde_json::Value {
    serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[tokio::test]
async fn a_ring_that_is_lost_for_good_hands_its_answer_to_the_cloud() {
    let want = alone().await;
    let folder = tempfile::tempdir().unwrap();
    let kept = Conversations::open(&folder.path().join("records.db")).await.unwrap();
    let mut lengths = Vec::new();
    // While the prompt is computed, at the verification, and between tokens.
    for number in [1, 2, 4, 7, 10, 15, 20] {
        let home = home_of(1);
        let busy = || BUSY.to_owned();
        let cloud = FakeCloud::answering(vec![busy(), stream(&["ON ", "AND", " ON."]), busy()]).await;
        let (engine, handle) = ring(&home);
        let key = Some(SigningKey::from_seed(&[3; 32]).unwrap());
        let agent = agent(engine, Some(&cloud)).with_records(kept.clone(), "baton ask", &cloud.url, key);
        dies_with(&home, number);
        let (report, shown) = ask(&agent, question(TEXT, RelayMode::Relay)).await;
        let what = format!("dies with frame {number}: {report:?}");
        assert_eq!((report.ending, &report.answer), ("stop", &shown), "{what}");
        assert_eq!(codes(&report), ["cloud_overloaded", "cloud_continues"], "{what}");
        let why = report.notes[1].to_string();
        assert!(why.contains("`w1`") && why.contains("the head holds 2 of 5 layers"), "{why}");
        let requests = cloud.requests();
        assert_eq!(requests.len(), 2, "{what}");
        let asked = body(&requests[1]);
        let accepted = asked["continue_from"].as_str().unwrap_or_default();
        assert!(want.starts_with(accepted), "{accepted:?} of {want:?}");
        assert_eq!(report.answer, format!("{accepted}ON AND ON."), "{what}");
        assert_eq!(asked["assist_tokens"], 12 - report.tokens_from_device, "{what}");
        assert_eq!(report.tokens_from_cloud, 3, "{what}");
        lengths.push(report.tokens_from_device);
        let receipt = check_receipt(&kept, &report, &requests, &[Purpose::Answer, Purpose::Continue]).await;
        let by_cloud = receipt.tokens.last().map(|last| (last.by, last.tokens()));
        assert_eq!(by_cloud, Some((Source::Cloud, 3)), "{what}");
        // The worker comes back: the ring answers again.
        home.hub.hook(|_| Fate::Pass);
        home.hub.revive(1);
        handle.join(Home::node(1));
        let (report, _) = ask(&agent, question(TEXT, RelayMode::Relay)).await;
        assert_eq!((&report.answer, codes(&report)), (&want, vec!["cloud_overloaded"]), "after {what}");
    }
    assert_eq!(lengths[0], 0, "{lengths:?}");
    assert!(lengths.is_sorted() && lengths.iter().any(|&n| n > 3), "cut at several tokens: {lengths:?}");
}

#[tokio::test]
async fn without_a_cloud_the_error_names_cause_and_cure_and_what_was_written_stays() {
    let want = alone().await;
    let home = home_of(1);
    let (engine, _) = ring(&home);
    let agent = agent(engine, None);
    dies_with(&home, 12);
    for asked in 0..2 {
        let (report, shown) = ask(&agent, question(TEXT, RelayMode::Relay)).await;
        let error = report.error.clone().unwrap();
        assert_eq!((report.ending, error.code), ("error", "device_failed"));
        for words in ["`w1`", "start what is missing again", "the head holds 2 of 5 layers", "--cloud URL"] {
            assert!(error.message.contains(words), "`{words}` in: {}", error.message);
        }
        assert_eq!(report.answer, shown);
        assert!(want.starts_with(&shown) && shown.is_empty() == (asked == 1), "{shown:?} of {want:?}");
    }
}
