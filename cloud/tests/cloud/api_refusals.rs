//! Tests that every bad input gives a typed 4xx with an OpenAI-shaped body, never a panic or a hang.

use baton_cloud::api::ApiLimits;
use baton_edge::HttpLimits;
use serde_json::{Value, json};

use crate::client::Server;
use crate::world::{document, options, request};

fn good() -> Value {
    serde_json::to_value(request("doc-qa", &document(10), 3)).unwrap()
}

async fn check(
    server: &Server,
    change: impl FnOnce(&mut Value),
    status: u16,
    code: &str,
    param: Option<&str>,
) {
    let mut body = good();
    change(&mut body);
    let reply = server.post("/v1/assist", &body).await;
    let error = &reply.json()["error"];
    let shown = serde_json::to_string(error).unwrap();
    assert_eq!((reply.status, error["code"].as_str()), (status, Some(code)), "{shown}");
    assert_eq!(error["param"].as_str(), param, "{shown}");
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{shown}");
    assert!(error["type"].as_str().is_some_and(|kind| kind.ends_with("_error")), "{shown}");
    assert!(reply.header("x-request-id").is_some());
}

#[tokio::test]
async fn fields_out_of_range() {
    let server = Server::start().await;
    let server = &server;
    check(server, |b| b["scene"] = json!("nothing"), 404, "unknown_scene", Some("scene")).await;
    check(server, |b| b["scene"] = json!(""), 400, "invalid_request", Some("scene")).await;
    check(server, |b| b["scene_version"] = json!(99), 409, "scene_changed", Some("scene_version")).await;
    check(server, |b| b["scene_version"] = json!(-1), 400, "invalid_request", Some("scene_version")).await;
    check(server, |b| b["model"] = json!("gpt"), 404, "unknown_model", Some("model")).await;
    check(server, |b| b["protocol"] = json!(2), 400, "unsupported_protocol", Some("protocol")).await;
    for ratio in [json!(0), json!(-1), json!(1.01), json!(0.1)] {
        check(server, |b| b["refine"]["ratio"] = ratio, 400, "invalid_request", Some("refine.ratio")).await;
    }
    for tokens in [json!(0), json!(-1), json!(65_537), json!(1e10), json!("many")] {
        check(server, |b| b["assist_tokens"] = tokens, 400, "invalid_request", Some("assist_tokens")).await;
    }
    for temperature in [json!(-0.5), json!(11), json!("hot")] {
        let param = Some("sampling.temperature");
        check(server, |b| b["sampling"]["temperature"] = temperature, 400, "invalid_request", param).await;
    }
    let device = json!({ "class": "phone", "model": "m", "prefill_ms_per_token": -1, "decode_ms": 45 });
    let param = Some("device.prefill_ms_per_token");
    check(server, |b| b["device"] = device, 400, "invalid_request", param).await;
    check(server, |b| b["surprise"] = json!(1), 400, "invalid_request", Some("surprise")).await;
    assert_eq!(server.service.stats().closed_total, 0, "nothing of this reached the scheduler");
}

#[tokio::test]
async fn contents_that_cannot_be_answered() {
    let server = Server::start().await;
    let server = &server;
    check(server, |b| b["segments"] = json!([]), 400, "invalid_request", Some("segments")).await;
    let blank = |b: &mut Value| b["segments"][1]["text"] = json!("  \n ");
    check(server, blank, 400, "invalid_request", Some("segments[1].text")).await;
    let role = |b: &mut Value| b["segments"][1]["role"] = json!("wizard");
    check(server, role, 400, "invalid_request", Some("segments[1].role")).await;
    check(server, |b| b["segments"][1]["text"] = json!(document(300)), 400, "prompt_too_long", None).await;
}

/// A body, its headers, and the expected status.
type Case<'a> = (&'a [u8], &'a [(&'a str, &'a str)], u16);

#[tokio::test]
async fn bodies_that_are_no_requests() {
    let limits = ApiLimits { body_bytes_max: 20_000, inflated_bytes_max: 20_000, ..ApiLimits::default() };
    let server = Server::with(options(), None, HttpLimits::default(), limits).await;
    let long = format!("{{\"scene\":\"{}\"}}", "x".repeat(30_000));
    let infinite = good().to_string().replacen("\"temperature\":0.0", "\"temperature\":1e400", 1);
    assert!(infinite.contains("1e400"));
    let cases: [Case<'_>; 8] = [
        (b"", &[], 400),
        (b"{", &[], 400),
        (b"[1,2]", &[], 400),
        (b"\xff\xfe", &[], 400),
        (infinite.as_bytes(), &[], 400),
        (long.as_bytes(), &[], 413),
        (b"not gzip", &[("content-encoding", "gzip")], 400),
        (b"{}", &[("content-encoding", "br")], 415),
    ];
    for path in ["/v1/assist", "/v1/chat/completions"] {
        for (body, headers, status) in cases {
            let reply = server.send("POST", path, headers, body).await;
            assert_eq!(
                reply.status,
                status,
                "{path}: {}",
                String::from_utf8_lossy(&body[..body.len().min(60)])
            );
            assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
        }
    }
}

#[tokio::test]
async fn paths_and_methods_that_are_not_there() {
    let server = Server::start().await;
    for (method, path, status) in [
        ("GET", "/v1/nothing", 404),
        ("GET", "/", 404),
        ("GET", "/v1/assist", 405),
        ("DELETE", "/v1/scenes/doc-qa", 405),
        ("POST", "/healthz", 405),
    ] {
        let reply = server.send(method, path, &[], b"").await;
        assert_eq!(reply.status, status, "{method} {path}");
        assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    }
}
