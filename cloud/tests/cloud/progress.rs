//! Tests that clients get progress while they wait for the first token, and that every stream has a running
//! checksum.

use std::time::Duration;

use baton_cloud::api::ApiLimits;
use baton_cloud::service::ServiceOptions;
use baton_edge::HttpLimits;
use baton_engine::pace_emulation::PassCost;
use baton_generate::scheduler::{MixedTokens, StepBudget};
use baton_protocol::{AssistEvent, AssistRequest, ProgressEvent, ProgressStage, StreamChecksum};
use serde_json::{Value, json};

use crate::client::{Reply, Server, frames};
use crate::world::{document, options, request, tokens};

/// Starts a service with one slot that computes prompts slowly, in small chunks, and reports progress often.
async fn server() -> Server {
    let emulation = Some(PassCost { base_ms: 0.0, prefill_ms_per_token: 2.0, decode_ms: 20.0 });
    let budget = StepBudget { chunk_tokens: 64, mixed: MixedTokens::Fixed(16) };
    let options = ServiceOptions { emulation, budget, slots: 1, ..options() };
    let limits = ApiLimits { progress_every: Duration::from_millis(20), ..ApiLimits::default() };
    Server::with(options, None, HttpLimits::default(), limits).await
}

fn progress(reply: &Reply) -> Vec<ProgressEvent> {
    let told = |event| if let AssistEvent::Progress(progress) = event { Some(progress) } else { None };
    reply.events().into_iter().filter_map(told).collect()
}

fn body(request: &AssistRequest) -> Vec<u8> {
    serde_json::to_vec(request).expect("a request is JSON")
}

#[tokio::test]
async fn a_long_prompt_says_how_far_it_is() {
    for resume in [false, true] {
        // A new server for each, because a second request would find the first one's cached prefix.
        let server = server().await;
        let mut request = request("doc-qa", &document(40), 2);
        request.resume = resume;
        request.request_id = uuid::Uuid::new_v4();
        let reply = server.send("POST", "/v1/assist", &[], &body(&request)).await;
        let told = progress(&reply);
        assert!(told.len() > 2, "{told:?}");
        assert!(told.iter().all(|p| p.total == told[0].total && p.computed < p.total), "{told:?}");
        assert!(told.windows(2).all(|two| two[0].computed <= two[1].computed), "{told:?}");
        assert!(
            told.iter().any(|p| p.stage == ProgressStage::Prefill && p.eta_ms.is_some_and(|ms| ms > 0.0))
        );
        let (last, events) = (told.last().unwrap(), reply.events());
        assert!(last.computed > 0, "{last:?}");
        let first = events.iter().position(|event| matches!(event, AssistEvent::First(_))).unwrap();
        assert!(events[first..].iter().all(|event| !matches!(event, AssistEvent::Progress(_))));
        assert_eq!(tokens(&events).len(), 2);
        server.idle().await;
    }
}

#[tokio::test]
async fn the_queue_says_that_one_waits() {
    let server = server().await;
    let long = request("doc-qa", &document(5), 400);
    let mut running = server.open("POST", "/v1/assist", &[], &body(&long)).await;
    running.until("event: token").await;
    let next = request("doc-qa", &document(8), 2);
    let mut waiting = server.open("POST", "/v1/assist", &[], &body(&next)).await;
    waiting.until("\"stage\":\"queue\"").await;
    drop(running);
    let told = progress(&waiting.read_all().await);
    assert_eq!((told[0].stage, told[0].computed), (ProgressStage::Queue, 0));
    assert!(told[0].eta_ms.is_some_and(|ms| ms > 0.0), "{told:?}");
}

#[tokio::test]
async fn chat_clients_get_a_comment_and_who_asks_a_chunk() {
    let ask = async |options: Value| {
        // A new service for each: a second request would find the first one's cached prefix, and be too
        // quick.
        let server = server().await;
        let text = "The harbour keeps a list of all ships. ".repeat(40);
        let body = json!({
            "model": "default", "messages": [{ "role": "user", "content": text }], "max_tokens": 2,
            "stream": true, "stream_options": options,
        });
        let reply = server.post("/v1/chat/completions", &body).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(reply.body().contains(": progress {\"stage\":"), "{}", reply.body());
        server.idle().await;
        reply.chat_chunks()
    };
    let told = |chunk: &Value| chunk.get("x_progress").is_some();
    assert!(!ask(json!({})).await.iter().any(told));
    let chunks = ask(json!({ "include_progress": true })).await;
    let chunk = chunks.iter().find(|chunk| told(chunk)).expect("a chunk of progress");
    assert_eq!(chunk["choices"], json!([]));
    assert!(chunk["x_progress"]["total"].as_u64().unwrap() > 40, "{chunk}");
}

#[tokio::test]
async fn every_event_carries_the_checksum_of_the_stream_so_far() {
    let server = server().await;
    let mut request = request("doc-qa", &document(20), 4);
    request.resume = true;
    let sent = body(&request);
    let check = |reply: &Reply, mut sum: StreamChecksum| {
        for frame in frames(&reply.body()) {
            let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            assert!(frame.contains("\"crc\":\""), "{frame}");
            assert_eq!(sum.check(field("event: "), field("data: ")), Ok(()), "{frame}");
        }
        reply.events().len()
    };
    let reply = server.send("POST", "/v1/assist", &[], &sent).await;
    assert!(check(&reply, StreamChecksum::new(&sent)) > 5);
    // A resumed stream has its own checksum.
    let path = format!("/v1/assist/{}", request.request_id);
    let rest = server.send("GET", &path, &[("last-event-id", "1")], b"").await;
    assert_eq!(check(&rest, StreamChecksum::of_resumed(request.request_id, Some(1))), 3);
}
