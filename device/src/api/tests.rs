//! Tests the served API on loopback: answers, guards, bad requests.

mod dialects;
mod tools;

use super::*;
use crate::agent::DeviceModel;
use crate::local::LocalOptions;
use crate::local::tests::model;
use crate::worker::EngineWorker;
use baton_engine::pace_emulation::PassCost;
use baton_engine::template::Message;
use baton_engine::{Engine, EngineOptions};
use baton_openai::dialect::Dialect;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Serves the API over a device alone, with a model of random weights.
async fn serve(key: Option<&str>) -> String {
    serve_with(key, PassCost::default()).await
}

/// Serves the API over a device of this speed.
async fn serve_with(key: Option<&str>, emulate: PassCost) -> String {
    serve_in(RelayMode::DeviceOnly, key, emulate).await
}

/// Serves the API in this mode.
async fn serve_in(mode: RelayMode, key: Option<&str>, emulate: PassCost) -> String {
    let options = EngineOptions {
        threads: std::num::NonZeroUsize::new(1),
        kv_tokens: 1024,
        ..EngineOptions::default()
    };
    let engine = Engine::new(model(), options).unwrap();
    let local = LocalOptions { emulation: emulate, ..LocalOptions::new(1024) };
    let device = DeviceModel::new(EngineWorker::start(engine, local).unwrap(), model());
    let state = ApiState {
        agent: Agent::new(Some(device), model().tokenizer().clone(), None, "test"),
        scene: crate::scene::built_in("chat"),
        mode,
        pace: PaceMode::Instant,
        model_name: "baton".into(),
        key: key.map(str::to_owned),
        device_keys: vec!["stays".to_owned()],
        ring: None,
        hosts: Vec::new(),
        steadies: true,
        places: Arc::new(Semaphore::new(ANSWERS_MAX)),
        bodies: Bodies::default().within(std::time::Duration::from_secs(2)),
        served: ServedModel::default(),
        models: ModelStore::new(None),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (phase, phases) = tokio::sync::watch::channel(baton_edge::Phase::Serving);
    let server = baton_edge::Server::plain(listener, router(Arc::new(state)), Default::default());
    tokio::spawn(async move {
        let _phase = phase;
        baton_edge::serve(server, phases, || ()).await;
    });
    url
}

fn client() -> reqwest::Client {
    let _already_installed = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().tls_certs_only([]).build().unwrap()
}

async fn post(url: &str, body: &Value) -> (u16, String) {
    post_to(url, "/v1/chat/completions", body).await
}

async fn post_to(url: &str, path: &str, body: &Value) -> (u16, String) {
    let response = client().post(format!("{url}{path}")).json(body).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[tokio::test]
async fn whole_and_streamed_answers_are_the_same() {
    let url = serve(None).await;
    let mut body = json!({ "model": "baton", "max_tokens": 12, "seed": 4, "messages": [{ "role": "user", "content": "Say it." }] });
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
    let (last, rest) = chunks.split_last().unwrap();
    assert!(rest.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null)), "{rest:?}");
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
}

#[tokio::test]
async fn a_text_is_continued_as_it_is() {
    let url = serve(None).await;
    let messages = [Message { role: "user", content: "Say it." }];
    let text = model().template().render(&messages, true).unwrap();
    let ask = async |path: &str, extra: Value| {
        let mut body = json!({ "max_tokens": 12, "seed": 4 });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let reply = client().post(format!("{url}/v1/{path}")).json(&body).send().await.unwrap();
        assert_eq!(reply.status().as_u16(), 200);
        reply.text().await.unwrap()
    };
    let chat =
        ask("chat/completions", json!({ "messages": [{ "role": "user", "content": "Say it." }] })).await;
    let chat: Value = serde_json::from_str(&chat).unwrap();
    let answer = chat["choices"][0]["message"]["content"].as_str().unwrap();
    let whole = ask("completions", json!({ "prompt": text, "echo": true })).await;
    let whole: Value = serde_json::from_str(&whole).unwrap();
    let echoed = format!("{text}{answer}");
    assert_eq!(whole["choices"][0]["text"], echoed.as_str(), "the prompt is the template's");
    assert_eq!(whole["usage"]["total_tokens"], chat["usage"]["total_tokens"]);
    let stream = ask("completions", json!({ "prompt": text, "echo": true, "stream": true })).await;
    let chunks =
        stream.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    let chunks: Vec<Value> = chunks.map(|data| serde_json::from_str(data).unwrap()).collect();
    let streamed: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(streamed, echoed);
    assert!(chunks.iter().all(|chunk| chunk["object"] == "text_completion"));
}

#[tokio::test]
async fn an_answer_goes_on_where_the_client_began_it() {
    let url = serve(None).await;
    let ask = async |path: &str, extra: Value| {
        let mut body = json!({ "max_tokens": 12, "temperature": 0, "stream": false });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let (status, text) = post_to(&url, path, &body).await;
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let user = [Message { role: "user", content: "Say it." }];
    let text = model().template().render(&user, true).unwrap() + "It is";
    let want = ask("/v1/completions", json!({ "prompt": text })).await;
    let want = want["choices"][0]["text"].as_str().unwrap();
    let begun =
        json!([{ "role": "user", "content": "Say it." }, { "role": "assistant", "content": "It is" }]);
    let chat = json!({ "messages": begun, "continue_final_message": true });
    let chat = ask("/v1/chat/completions", chat).await;
    assert_eq!(chat["choices"][0]["message"]["content"], want);
    let message = ask("/v1/messages", json!({ "messages": begun })).await;
    assert_eq!(message["content"][0]["text"], want);
    let options = json!({ "num_predict": 12, "temperature": 0 });
    let line = ask("/api/chat", json!({ "model": "baton", "messages": begun, "options": options })).await;
    assert_eq!(line["message"]["content"], want);
    let anew = ask("/v1/chat/completions", json!({ "messages": begun })).await;
    let prompt_tokens = |reply: &Value| reply["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(prompt_tokens(&anew) > prompt_tokens(&chat), "else the answer is a turn of its own");
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
    // Another port of this machine is another origin: a program that listens there may serve a foreign page.
    for origin in ["http://localhost:3000", "http://127.0.0.1:1", "https://evil.example", "null", "file://"] {
        assert_eq!(get("origin", origin).await, 403, "{origin}");
    }
    for (site, want) in [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)] {
        assert_eq!(get("sec-fetch-site", site).await, want, "{site}");
    }
    let own: &'static str = Box::leak(url.clone().into_boxed_str());
    assert_eq!(get("origin", own).await, 200);
}

#[tokio::test]
async fn a_body_that_a_form_could_send_is_refused_from_browsers() {
    let url = serve(None).await;
    let body = json!({ "messages": [{ "role": "user", "content": "q" }], "max_tokens": 1 }).to_string();
    for (content_type, of_browser) in [
        (Some("text/plain"), 415),
        (Some("application/x-www-form-urlencoded"), 415),
        (None, 415),
        (Some("application/json; charset=utf-8"), 200),
    ] {
        for (agent, want) in [("Mozilla/5.0", of_browser), ("curl/8.5.0", 200)] {
            let request = client().post(format!("{url}/v1/chat/completions")).header("user-agent", agent);
            let mut request = request.body(body.clone());
            if let Some(content_type) = content_type {
                request = request.header("content-type", content_type);
            }
            let response = request.send().await.unwrap();
            assert_eq!(response.status().as_u16(), want, "{content_type:?} by {agent}");
            assert_eq!(response.headers()["x-content-type-options"], "nosniff");
        }
    }
}

#[tokio::test]
async fn slow_and_large_bodies_keep_nobody_out() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let url = serve(None).await;
    let address = url.strip_prefix("http://").unwrap().to_owned();
    let begin = async |length: usize| {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    };
    let mut slow = Vec::new();
    for _ in 0..2 * ANSWERS_MAX {
        slow.push(begin(1000).await);
    }
    let body = json!({ "messages": [{ "role": "user", "content": "q" }], "max_tokens": 1 });
    assert_eq!(post(&url, &body).await.0, 200, "beside more slow bodies than there are places");
    for mut stream in slow {
        let mut reply = Vec::new();
        // A reset after the reply is an end as well.
        let _ = stream.read_to_end(&mut reply).await;
        assert!(reply.starts_with(b"HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&reply));
    }
    let large = json!({ "messages": [{ "role": "user", "content": "x".repeat(BODY_BYTES_MAX) }] });
    let (status, text) = post(&url, &large).await;
    assert_eq!((status, text.contains("larger than")), (413, true), "{text}");
}

#[tokio::test]
async fn models_and_paths_that_are_not_there_say_so_in_json() {
    let url = serve(None).await;
    let ask = async |method: reqwest::Method, path: &str| {
        let request = client().request(method, format!("{url}{path}"));
        let response = request.header("content-type", "application/json").send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    for id in ["baton", "default"] {
        let (status, card) = ask(reqwest::Method::GET, &format!("/v1/models/{id}")).await;
        assert_eq!((status, &card["id"], &card["object"]), (200, &json!("baton"), &json!("model")));
        assert_eq!((&card["context_length"], &card["adapters"]), (&json!(1024), &json!([])));
        assert_eq!(card["tokenizer_sha256"], model().tokenizer().digest_hex());
    }
    let (status, body) = ask(reqwest::Method::GET, "/v1/models/gpt%1b").await;
    assert_eq!((status, &body["error"]["code"]), (404, &json!("model_not_found")), "{body}");
    let (status, body) = ask(reqwest::Method::GET, "/v1/nothing").await;
    assert_eq!((status, &body["error"]["type"]), (404, &json!("invalid_request_error")));
    let (status, body) = ask(reqwest::Method::DELETE, "/v1/models").await;
    assert_eq!((status, &body["error"]["param"]), (405, &Value::Null));
    let user = json!([{ "role": "user", "content": "q" }]);
    let (status, text) = post(&url, &json!({ "messages": user, "model": "gpt" })).await;
    let error: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")), "{text}");
    assert_eq!(error["error"]["param"], "model");
}

#[tokio::test]
async fn a_seed_repeats_an_answer_and_no_seed_does_not() {
    let url = serve(None).await;
    let ask = async |seed: Option<u64>| {
        let mut body = json!({ "messages": [{ "role": "user", "content": "Say it." }], "max_tokens": 16 });
        if let Some(seed) = seed {
            body["seed"] = json!(seed);
        }
        let (status, text) = post(&url, &body).await;
        assert_eq!(status, 200, "{text}");
        let reply: Value = serde_json::from_str(&text).unwrap();
        reply["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    assert_eq!(ask(Some(5)).await, ask(Some(5)).await);
    // With a model of random weights, many answers of sixteen tokens are never all equal by chance.
    let first = ask(None).await;
    for _ in 0..20 {
        if ask(None).await != first {
            return;
        }
    }
    panic!("regenerate always gives `{first}`");
}

#[tokio::test]
async fn who_waits_for_a_long_prompt_is_told() {
    let emulate = PassCost { base_ms: 0.0, prefill_ms_per_token: 2.0, decode_ms: 0.0 };
    let url = serve_with(None, emulate).await;
    let text = "word ".repeat(150);
    let body = json!({
        "messages": [{ "role": "user", "content": text }], "max_tokens": 2, "stream": true,
        "stream_options": { "include_progress": true },
    });
    let (status, text) = post(&url, &body).await;
    assert_eq!(status, 200, "{text}");
    let comment = text.lines().find(|line| line.starts_with(": progress {")).expect("a comment");
    assert!(comment.contains(r#""source":"device""#) && comment.contains("eta_ms"), "{comment}");
    let chunks = text.lines().filter_map(|line| line.strip_prefix("data: {"));
    let told: Vec<Value> = chunks
        .map(|chunk| serde_json::from_str(&format!("{{{chunk}")).unwrap())
        .filter(|chunk: &Value| chunk.get("x_progress").is_some())
        .collect();
    assert!(told.iter().all(|chunk| chunk["choices"] == json!([])), "{told:?}");
    assert!(told.last().unwrap()["x_progress"]["total"].as_u64().unwrap() > 300, "{told:?}");
}

#[tokio::test]
async fn a_program_with_a_key_of_this_device_is_answered_here_alone() {
    // This mode needs a cloud, and there is none.
    let url = serve_in(RelayMode::CloudOnly, Some("k1"), PassCost::default()).await;
    let body =
        json!({ "model": "baton", "messages": [{ "role": "user", "content": "Say." }], "max_tokens": 3 });
    for (key, want) in [("k1", 500), ("k2", 401), ("stays", 200)] {
        let asked = client().post(format!("{url}/v1/chat/completions")).bearer_auth(key).json(&body);
        let reply = asked.send().await.unwrap();
        assert_eq!(reply.status().as_u16(), want, "{key}");
        if want == 200 {
            let source = reply.headers()["x-baton-source"].to_str().unwrap();
            assert!(source.starts_with("device;cloud=0;"), "{source}");
        }
    }
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
        (json!({ "messages": user, "tools": [{}] }), "tools"),
        (json!({ "messages": user, "top_p": 5 }), "top_p"),
        (json!({ "messages": user, "max_tokens": 0 }), "max_tokens"),
        (json!({ "messages": user, "stop": vec!["x"; 17] }), "stop"),
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
    // Refused with a status, streamed or not, and also if it cannot be shortened.
    for body in [&body, &streamed, &fixed] {
        let (status, text) = post(&url, body).await;
        assert_eq!(status, 400, "{text}");
        let error = serde_json::from_str::<Value>(&text).unwrap()["error"].take();
        assert_eq!(
            (&error["code"], &error["type"]),
            (&json!("context_length_exceeded"), &json!("invalid_request_error"))
        );
        assert_eq!(error["param"], "messages");
        assert!(error["message"].as_str().unwrap().contains("`truncation`: `auto`"), "{error}");
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
        let err = super::chat::failure(&report(written), written, Dialect::OpenAi).unwrap();
        let body = serde_json::to_value(err.reply()).unwrap();
        assert_eq!((&body["error"]["written"], &body["error"]["code"]), (&want, &json!("device_failed")));
        assert!(body["error"]["message"].as_str().unwrap().contains("the ring is lost"), "{body}");
    }
}
