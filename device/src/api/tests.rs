//! The served API on loopback: answers, guards, bad requests.

use super::*;
use crate::agent::DeviceModel;
use crate::local::LocalEngine;
use crate::local::tests::model;
use crate::worker::EngineWorker;
use baton_engine::EngineOptions;
use baton_engine::pace_emulation::PassCost;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// A served API over a device alone with a model of random weights.
async fn serve(key: Option<&str>) -> String {
    let options = EngineOptions {
        threads: std::num::NonZeroUsize::new(1),
        kv_tokens: 1024,
        ..EngineOptions::default()
    };
    let engine = LocalEngine::new(model(), options).unwrap();
    let device = DeviceModel::new(EngineWorker::start(engine, PassCost::default()).unwrap(), model());
    let state = ApiState {
        agent: Agent::new(Some(device), model().tokenizer().clone(), None, "test"),
        scene: crate::scene::built_in("chat"),
        mode: RelayMode::DeviceOnly,
        pace: PaceMode::Instant,
        model_name: "baton".into(),
        key: key.map(str::to_owned),
        ring: None,
        hosts: Vec::new(),
        places: Arc::new(Semaphore::new(ANSWERS_MAX)),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router(Arc::new(state))).await });
    url
}

fn client() -> reqwest::Client {
    let _already_installed = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().tls_certs_only([]).build().unwrap()
}

async fn post(url: &str, body: &Value) -> (u16, String) {
    let response = client().post(format!("{url}/v1/chat/completions")).json(body).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[tokio::test]
async fn whole_and_streamed_answers_are_the_same() {
    let url = serve(None).await;
    let mut body =
        json!({ "model": "baton", "max_tokens": 12, "messages": [{ "role": "user", "content": "Say it." }] });
    let (status, text) = post(&url, &body).await;
    assert_eq!(status, 200, "{text}");
    let whole: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(whole["object"], "chat.completion");
    let answer = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let reason = whole["choices"][0]["finish_reason"].as_str().unwrap().to_owned();
    assert!(["stop", "length"].contains(&reason.as_str()));
    assert!(whole["usage"]["prompt_tokens"].as_u64().unwrap() > 0);

    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    let (status, text) = post(&url, &body).await;
    assert_eq!(status, 200);
    let data: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("data: ")).collect();
    assert_eq!(data.last(), Some(&"[DONE]"));
    let chunks: Vec<Value> =
        data[..data.len() - 1].iter().map(|d| serde_json::from_str(d).unwrap()).collect();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    assert!(chunks.iter().all(|c| c["id"] == chunks[0]["id"] && c["model"] == "baton"));
    let streamed: String =
        chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(streamed, answer);
    let reasons: Vec<&str> =
        chunks.iter().filter_map(|c| c["choices"][0]["finish_reason"].as_str()).collect();
    assert_eq!(reasons, [reason]);
    let last = chunks.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_refused() {
    let url = serve(None).await;
    let get = |name: &'static str, value: &'static str| {
        let request = client().get(format!("{url}/v1/models")).header(name, value);
        async move { request.send().await.unwrap().status().as_u16() }
    };
    assert_eq!(get("accept", "*/*").await, 200);
    assert_eq!(get("host", "localhost:9").await, 200);
    assert_eq!(get("host", "evil.example").await, 403);
    assert_eq!(get("host", "localhost.evil.example:80").await, 403);
    assert_eq!(get("origin", "http://localhost:3000").await, 200);
    assert_eq!(get("origin", "https://evil.example").await, 403);
    assert_eq!(get("origin", "null").await, 403);
}

#[tokio::test]
async fn a_key_is_asked_for_where_one_is_set() {
    let url = serve(Some("k1")).await;
    for (key, want) in [(None, 401), (Some("k2"), 401), (Some("k1"), 200)] {
        let mut request = client().get(format!("{url}/v1/models"));
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        assert_eq!(request.send().await.unwrap().status().as_u16(), want, "key {key:?}");
    }
    assert_eq!(client().get(format!("{url}/healthz")).send().await.unwrap().status().as_u16(), 200);
}

#[tokio::test]
async fn bad_requests_say_what_is_wrong() {
    let url = serve(None).await;
    let user = json!([{ "role": "user", "content": "q" }]);
    for (body, want) in [
        (json!({}), "messages"),
        (json!({ "messages": user, "tools": [] }), "tools"),
        (json!({ "messages": user, "model": "gpt" }), "serves the model"),
        (json!({ "messages": user, "max_tokens": 0 }), "max_tokens"),
        (json!({ "messages": user, "stop": [""] }), "stop"),
    ] {
        let (status, text) = post(&url, &body).await;
        assert_eq!(status, 400, "{text}");
        let error: Value = serde_json::from_str(&text).unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains(want), "{text}");
        assert_eq!(error["error"]["type"], "invalid_request_error");
    }
}

#[tokio::test]
async fn a_prompt_that_does_not_fit_is_refused_or_shortened_where_that_is_asked_for() {
    let url = serve(None).await;
    let long = "The harbour keeps a list. Item 7 is green. ".repeat(100) + "\n\nWhat colour is item 7?";
    let mut body = json!({ "messages": [{ "role": "user", "content": long }], "max_tokens": 4 });
    let fixed = json!({ "messages": [{ "role": "system", "content": long }], "truncation": "auto" });
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    // Refused with a status, streamed or not, and also where it cannot be shortened.
    for body in [&body, &streamed, &fixed] {
        let (status, text) = post(&url, body).await;
        assert_eq!(status, 400, "{text}");
        let error = serde_json::from_str::<Value>(&text).unwrap()["error"].take();
        assert_eq!(
            (&error["code"], &error["type"]),
            (&json!("context_length_exceeded"), &json!("invalid_request_error"))
        );
        assert_eq!(error["param"], "messages");
        let numbers: Vec<u64> = error["message"]
            .as_str()
            .unwrap()
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|digits| digits.parse().ok())
            .collect();
        assert!(numbers.len() == 2 && numbers[0] > 2000 && numbers[1] < 1024, "{error}");
    }
    body["truncation"] = json!("auto");
    let (status, text) = post(&url, &body).await;
    assert_eq!(status, 200, "{text}");
    let told = |value: &Value| value["baton"]["notes"][0]["code"].clone();
    assert_eq!(told(&serde_json::from_str(&text).unwrap()), "prompt_shortened", "{text}");
    body["stream"] = json!(true);
    let (status, text) = post(&url, &body).await;
    let chunks = text.lines().filter_map(|line| line.strip_prefix("data: {"));
    let mut chunks = chunks.map(|json| serde_json::from_str::<Value>(&format!("{{{json}")).unwrap());
    assert!(status == 200 && chunks.any(|chunk| told(&chunk) == "prompt_shortened"), "{text}");
}

#[test]
fn only_loopback_is_served_without_a_key() {
    for (address, key, ok) in [
        ("127.0.0.1:0", None, true),
        ("[::1]:80", None, true),
        ("0.0.0.0:80", None, false),
        ("0.0.0.0:80", Some(""), false),
        ("192.168.1.2:80", None, false),
        ("0.0.0.0:80", Some("k"), true),
    ] {
        assert_eq!(check_address(address.parse().unwrap(), key).is_ok(), ok, "{address} {key:?}");
    }
}

#[test]
fn an_answer_that_fails_keeps_what_was_written() {
    use crate::agent::AnswerReport;
    use crate::relay::{AnswerError, Ending, Outcome, Timeline};
    let report = |answer: &str| {
        let error = AnswerError::Device { reason: "the ring is lost".into() };
        let (ending, answer, timeline) = (Ending::Failed(error), answer.to_owned(), Timeline::default());
        AnswerReport::new(Outcome { ending, answer, timeline }, Vec::new(), None)
    };
    for (written, want) in [("So far so", json!("So far so")), ("", Value::Null)] {
        let body = super::chat::failure(&report(written), written).unwrap().body();
        assert_eq!((&body["error"]["written"], &body["error"]["code"]), (&want, &json!("device_failed")));
        assert!(body["error"]["message"].as_str().unwrap().contains("the ring is lost"), "{body}");
    }
}
