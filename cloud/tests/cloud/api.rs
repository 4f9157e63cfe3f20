//! Tests the assist protocol over real sockets.

use std::io::Write;
use std::time::Duration;

use baton_cloud::api::ApiLimits;
use baton_cloud::service::ServiceOptions;
use baton_edge::HttpLimits;
use baton_engine::pace_emulation::PassCost;
use baton_protocol::{AssistEvent, AssistRequest, EndReason, SceneInfo, SentenceMap};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::{HANG, Server, frames};
use crate::world::{document, end, model, options, request, tokens};

fn body(request: &AssistRequest) -> Vec<u8> {
    serde_json::to_vec(request).unwrap()
}

/// Returns options with slow decode passes, so that a test can interrupt answers.
fn slow() -> ServiceOptions {
    let emulation = Some(PassCost { base_ms: 0.0, prefill_ms_per_token: 0.0, decode_ms: 25.0 });
    ServiceOptions { emulation, ..options() }
}

#[tokio::test]
async fn an_answer_is_one_stream_of_events() {
    let server = Server::start().await;
    let request = request("doc-qa", &document(40), 5);
    let reply = server.send("POST", "/v1/assist", &[], &body(&request)).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    let events = reply.events();
    let first_packet = frames(&reply.chunks[0]);
    assert!(first_packet[0].starts_with("event: mask\n") && first_packet[1].starts_with("event: first\n"));
    let AssistEvent::Mask(mask) = &events[0] else { panic!("{events:?}") };
    assert!(mask.open(&SentenceMap::new(&request.segments)).unwrap().contains(&true));
    assert_eq!(tokens(&events).len(), 5);
    let end = end(&events);
    assert_eq!((end.reason, end.usage.completion_tokens), (EndReason::Cap, 5));
    let timing = end.timing.unwrap();
    assert!(timing.slot_ms > 0.0 && timing.slot_ms >= timing.prefill_ms, "{timing:?}");
    server.idle().await;
    let stats = server.get("/v1/stats").await.json();
    assert_eq!((&stats["slots_used"], &stats["requests_ended_total"]), (&json!(0), &json!(1)));
    assert_eq!(stats["kv_tokens_free"], stats["kv_tokens"]);
    assert!((stats["slot_ms_total"].as_f64().unwrap() - timing.slot_ms).abs() < 1e-6);
    server.stop().await;
}

#[tokio::test]
async fn bodies_may_be_compressed() {
    let server = Server::start().await;
    let request = request("doc-qa", &document(30), 3);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&body(&request)).unwrap();
    let gzip = encoder.finish().unwrap();
    let packed = server.send("POST", "/v1/assist", &[("content-encoding", "gzip")], &gzip).await;
    let plain = server.send("POST", "/v1/assist", &[], &body(&request)).await;
    assert_eq!(tokens(&packed.events()), tokens(&plain.events()));
    assert!(gzip.len() < body(&request).len() / 2);
}

#[tokio::test]
async fn a_reader_that_goes_away_frees_its_slot() {
    let server = Server::with(slow(), None, HttpLimits::default(), ApiLimits::default()).await;
    let request = request("doc-qa", &document(5), 1500);
    let mut open = server.open("POST", "/v1/assist", &[], &body(&request)).await;
    open.until("event: token").await;
    assert_eq!(server.service.stats().running, 1);
    drop(open);
    server.idle().await;
    let stats = server.service.stats();
    assert_eq!((stats.kv_held_tokens, stats.closed_total), (0, 1));
    assert!(
        stats.slot_ms_total < 20_000.0,
        "1,500 tokens would hold it for 37 s, it was {} ms",
        stats.slot_ms_total
    );
}

#[tokio::test]
async fn a_full_service_answers_429() {
    let options = ServiceOptions { slots: 1, queue: 0, ..slow() };
    let server = Server::with(options, None, HttpLimits::default(), ApiLimits::default()).await;
    let request = request("doc-qa", &document(5), 1500);
    let mut open = server.open("POST", "/v1/assist", &[], &body(&request)).await;
    open.until("event: first").await;
    let refused = server.send("POST", "/v1/assist", &[], &body(&request)).await;
    assert_eq!(refused.status, 429);
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    let error = &refused.json()["error"];
    assert_eq!((&error["code"], &error["type"]), (&json!("overloaded"), &json!("rate_limit_error")));
    assert!(error["retry_after_ms"].as_u64().unwrap() >= 100);
    drop(open);
    server.idle().await;
    let mut short = request;
    short.assist_tokens = Some(2);
    assert_eq!(server.send("POST", "/v1/assist", &[], &body(&short)).await.status, 200);
}

#[tokio::test]
async fn silence_between_tokens_is_bridged_by_comments() {
    let emulation = Some(PassCost { base_ms: 0.0, prefill_ms_per_token: 0.0, decode_ms: 200.0 });
    let limits = ApiLimits { keep_alive: Duration::from_millis(20), ..ApiLimits::default() };
    let options = ServiceOptions { emulation, ..options() };
    let server = Server::with(options, None, HttpLimits::default(), limits).await;
    let reply = server.send("POST", "/v1/assist", &[], &body(&request("doc-qa", &document(3), 2))).await;
    let body = reply.body();
    let between = &body[body.find("event: first").unwrap()..body.find("event: token").unwrap()];
    assert!(between.contains(": ping\n\n"), "{body}");
    let events = reply.events();
    let first = events.iter().position(|event| matches!(event, AssistEvent::First(_))).unwrap();
    assert_eq!(tokens(&events[first..]).len(), 2);
}

#[tokio::test]
async fn scenes_are_cached_by_their_tag() {
    let server = Server::start().await;
    let reply = server.get("/v1/scenes/doc-qa").await;
    assert_eq!(reply.status, 200);
    let info: SceneInfo = serde_json::from_value(reply.json()).unwrap();
    let settings = &info.settings;
    assert_eq!((info.id.as_str(), info.version, settings.ratio), ("doc-qa", 1, Some(0.25)));
    assert_eq!(
        (settings.model.as_deref(), settings.question_prefix.as_str()),
        (Some("tiny"), "\n\nQuestion: ")
    );
    assert_eq!(info.tokenizer_sha256.as_deref(), Some(model().tokenizer().digest_hex()));
    let tag = reply.header("etag").unwrap().to_owned();
    let again = server.send("GET", "/v1/scenes/doc-qa", &[("if-none-match", &tag)], b"").await;
    assert_eq!((again.status, again.body().as_str()), (304, ""));
    let other = server.send("GET", "/v1/scenes/chat", &[("if-none-match", &tag)], b"").await;
    assert_eq!(other.status, 200);
    let list = server.get("/v1/scenes").await.json();
    assert_eq!(list["data"].as_array().unwrap().len(), 3);
    assert_eq!(server.get("/v1/scenes/nothing").await.status, 404);
}

#[tokio::test]
async fn health_models_and_names() {
    let server = Server::start().await;
    assert_eq!(server.get("/healthz").await.json()["status"], "ok");
    assert_eq!(server.get("/readyz").await.json()["status"], "ready");
    let models = server.get("/v1/models").await.json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("tiny")));
    assert_eq!(server.get("/v1/models/tiny").await.json()["context_length"], 2048);
    assert_eq!(server.get("/v1/models/gpt").await.status, 404);
    let named = server.send("GET", "/healthz", &[("x-request-id", "mine-1")], b"").await;
    assert_eq!(named.header("x-request-id"), Some("mine-1"));
    let unnamed = server.send("GET", "/healthz", &[("x-request-id", "not plain")], b"").await;
    assert_eq!(unnamed.header("x-request-id").unwrap().len(), 36);
    server.service.drain();
    let draining = server.get("/readyz").await;
    assert_eq!((draining.status, draining.header("retry-after")), (503, Some("1")));
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_key_guards_everything_but_health() {
    let server = Server::with(options(), Some("secret"), HttpLimits::default(), ApiLimits::default()).await;
    for path in ["/v1/scenes", "/v1/scenes/doc-qa", "/v1/models", "/v1/stats"] {
        let refused = server.get(path).await;
        assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")), "{path}");
        let code = if path == "/v1/models" { "invalid_api_key" } else { "unauthorized" };
        assert_eq!(refused.json()["error"]["code"], code, "{path}");
        let let_in = server.send("GET", path, &[("authorization", "Bearer secret")], b"").await;
        assert_eq!(let_in.status, 200, "{path}");
    }
    for path in ["/v1/assist", "/v1/chat/completions"] {
        let refused = server.send("POST", path, &[("authorization", "Bearer wrong")], b"{}").await;
        assert_eq!(refused.status, 401, "{path}");
    }
    assert_eq!(server.get("/healthz").await.status, 200);
    assert_eq!(server.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn a_server_that_stops_lets_running_answers_end() {
    let server = Server::with(slow(), None, HttpLimits::default(), ApiLimits::default()).await;
    let mut open = server.open("POST", "/v1/assist", &[], &body(&request("doc-qa", &document(3), 20))).await;
    open.until("event: first").await;
    let (reply, ()) = tokio::join!(open.read_all(), server.stop());
    assert_eq!(end(&reply.events()).reason, EndReason::Cap);
    assert_eq!(tokens(&reply.events()).len(), 20);
}

#[tokio::test]
async fn a_server_that_stops_does_not_wait_for_ever() {
    let limits = HttpLimits { drain_timeout: Duration::from_millis(50), ..HttpLimits::default() };
    let server = Server::with(slow(), None, limits, ApiLimits::default()).await;
    let mut open =
        server.open("POST", "/v1/assist", &[], &body(&request("doc-qa", &document(3), 1500))).await;
    open.until("event: first").await;
    let service = server.service.clone();
    server.stop().await;
    let idle = async {
        while service.stats().running > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(HANG, idle).await.expect("cut off means cancelled");
}

#[tokio::test]
async fn who_says_nothing_is_not_waited_for() {
    let http = HttpLimits { header_timeout: Duration::from_millis(50), ..HttpLimits::default() };
    let api = ApiLimits { body_timeout: Duration::from_millis(50), ..ApiLimits::default() };
    let server = Server::with(options(), None, http, api).await;
    let mut silent = tokio::net::TcpStream::connect(server.address).await.unwrap();
    silent.write_all(b"GET /healthz HTTP/1.1\r\nhost:").await.unwrap();
    let mut read = Vec::new();
    tokio::time::timeout(HANG, silent.read_to_end(&mut read))
        .await
        .expect("the head is not waited for")
        .unwrap();
    let mut half = tokio::net::TcpStream::connect(server.address).await.unwrap();
    half.write_all(b"POST /v1/assist HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{").await.unwrap();
    let mut read = Vec::new();
    let _ =
        tokio::time::timeout(HANG, half.read_to_end(&mut read)).await.expect("the body is not waited for");
    assert!(String::from_utf8_lossy(&read).starts_with("HTTP/1.1 408"), "{}", String::from_utf8_lossy(&read));
}
