//! Real engines: llama.cpp's server with the demo model, and vLLM if somebody runs one.
//!
//! Greedy texts of two engines may part at near ties. So tokens are compared with those of the same engine,
//! asked directly.

use std::time::Duration;

use baton_e2e::{http, llama::LlamaServer, pair::messages, process::models_folder, setting::Setting};
use baton_protocol::EndReason;
use serde_json::{Value, json};

use super::{ASSIST_TOKENS, RECALL_MIN, assist, cloud, model, questions, recalled, request};

/// Questions whose answers devices finish too; each takes seconds on the emulated phone.
const FINISHED: u64 = 6;
/// Returns whether this run is to ask real engines, else says so.
fn is_named() -> bool {
    let named = std::env::var_os("BATON_TEST_ALL").is_some_and(|value| !value.is_empty());
    if !named {
        println!("skipped: upstream: real engines: `./x test upstream` asks them");
    }
    named
}

#[tokio::test]
async fn llama_cpp_writes_a_hundred_beginnings_and_devices_finish() {
    if !is_named() {
        return;
    }
    let model = models_folder().join("demo-cloud.gguf");
    match LlamaServer::start(&model, 2, 8192).await {
        Ok(server) => hundred(server.url(), "llamacpp").await,
        Err(why) => println!("skipped: upstream: llama.cpp: {why}"),
    }
}

#[tokio::test]
async fn vllm_writes_a_hundred_beginnings_and_devices_finish() {
    if !is_named() {
        return;
    }
    match std::env::var("BATON_VLLM") {
        Ok(url) => hundred(&url, "vllm").await,
        Err(_) => println!(
            "skipped: upstream: vLLM: BATON_VLLM is not the address of one that serves the demo model"
        ),
    }
}

/// Asks a hundred questions, compares with the engine asked directly, and has devices finish some.
async fn hundred(engine: &str, owner: &str) {
    let models: Value = get(engine, "v1/models").await;
    assert_eq!(models["data"][0]["owned_by"], owner, "another engine answers at that address");
    let name = models["data"][0]["id"].as_str().expect("a model has a name").to_owned();
    let cloud = cloud(&[engine.to_owned()], &[]).await;
    let (mut kept, mut gold, mut equal) = (0, 0, 0);
    let asked = questions(100);
    for one in &asked {
        let request = request(one);
        let reply = assist(&cloud, &request, None).await;
        let end = reply.end.unwrap_or_else(|| panic!("{:?}", reply.error));
        assert!(matches!(end.reason, EndReason::Cap | EndReason::Stop));
        assert!(reply.ids.len() <= ASSIST_TOKENS as usize);
        let (found, all) = recalled(one, &request, reply.kept.as_ref().expect("the scorer makes a mask"));
        kept += found;
        gold += all;
        equal += usize::from(reply.text == directly(engine, &name, &request).await);
    }
    let recall = kept as f64 / gold as f64;
    println!(
        "{owner}: gold sentences kept {kept} of {gold} ({recall:.3}); equal to the engine asked directly: {equal} of {}",
        asked.len()
    );
    assert!(recall >= RECALL_MIN, "{recall}");
    // Near ties may fall otherwise in another batch.
    assert!(equal * 100 >= asked.len() * 95, "{equal} of {} are equal", asked.len());
    assert_eq!(running(engine).await, 0, "the engine is free");
    let url = format!("http://{}", cloud.address());
    for seed in 0..FINISHED {
        let setting = Setting::new(&model(), seed, 600).expect("there is such a document");
        let length = ASSIST_TOKENS.to_string();
        let report = setting.ask(&url, &["--assist-tokens", &length]).await.expect("an answer");
        assert!(report.notes.is_empty(), "{:?}", report.notes);
        assert_eq!(report.tokens_from_cloud, ASSIST_TOKENS as usize);
        assert!(report.tokens_from_device > 0);
    }
}

/// Returns the first tokens of the engine's own answer to the same messages, as text.
async fn directly(engine: &str, name: &str, request: &baton_protocol::AssistRequest) -> String {
    let messages = messages(&request.segments);
    let body = json!({ "model": name, "messages": messages, "max_tokens": ASSIST_TOKENS, "temperature": 0,
        "top_k": -1, "top_p": 1.0, "min_p": 0.0 });
    let reply = http::client().post(format!("{engine}/v1/chat/completions")).json(&body).send().await;
    let reply: Value = reply.expect("the engine replies").json().await.expect("JSON");
    reply["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}

async fn get(engine: &str, path: &str) -> Value {
    let reply = http::client().get(format!("{engine}/{path}")).send().await.expect("the engine replies");
    reply.json().await.expect("JSON")
}

/// Waits until the engine's own metrics say that nothing runs; returns what they said last.
async fn running(engine: &str) -> u64 {
    let mut last = u64::MAX;
    for _ in 0..200 {
        let reply = http::client().get(format!("{engine}/metrics")).send().await.expect("the engine replies");
        let text = reply.text().await.expect("text");
        let is_it = |line: &&str| {
            line.starts_with("llamacpp:requests_processing") || line.starts_with("vllm:num_requests_running")
        };
        let line = text.lines().find(is_it).expect("the engine counts its requests");
        last = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a number") as u64;
        if last == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    last
}
