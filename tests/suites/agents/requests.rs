//! Requests that agents sent, with their texts replaced: none is refused.
//!
//! They lie in `tests/agents`, one file for each agent and version: a list of paths and bodies.
//! `./x test agents record NAME` runs an agent and writes its file (by `BATON_AGENTS_RECORD`, a folder, and
//! `BATON_AGENTS_ONLY`, the agent). `BATON_AGENTS` and `BATON_CASES` have folders with further requests;
//! without them those tests say that they are skipped.

use std::path::{Path, PathBuf};

use baton_e2e::clients::scripts;
use serde_json::{Value, json};

use crate::played::{HI, greeting};
use crate::real::Agent;
use crate::recorder::Exchange;

/// Longer texts are replaced.
const TEXT_CHARS_MAX: usize = 24;

/// Writes what an agent sent to the folder of records, if there is one.
pub(crate) fn record(agent: Agent, exchanged: &[Exchange]) {
    let Some(folder) = std::env::var_os("BATON_AGENTS_RECORD").map(PathBuf::from) else { return };
    let sent = exchanged.iter().filter(|exchange| exchange.method == "POST");
    let sent = sent.filter_map(|exchange| {
        let mut body: Value = serde_json::from_str(&exchange.body).ok()?;
        replace_texts(&mut body);
        Some(json!({ "path": exchange.path, "body": body }).to_string())
    });
    let lines: Vec<String> = sent.collect();
    let text = format!("[\n{}\n]\n", lines.join(",\n"));
    let name = format!("{}@{}.json", agent.name(), agent.version());
    std::fs::write(folder.join(&name), text).expect("write a record");
    println!("ok {name}: {} requests are kept", lines.len());
}

fn replace_texts(value: &mut Value) {
    match value {
        Value::String(text) if text.chars().count() > TEXT_CHARS_MAX => *text = "text".to_owned(),
        Value::Array(items) => items.iter_mut().for_each(replace_texts),
        Value::Object(fields) => fields.values_mut().for_each(replace_texts),
        _ => (),
    }
}

/// Returns the JSON files of a folder, in the order of their names.
fn files(folder: &Path) -> Vec<(String, Value)> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|err| panic!("{}: {err}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|kind| kind == "json"));
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("read a request");
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        (name, serde_json::from_str(&text).unwrap_or_else(|err| panic!("{}: {err}", path.display())))
    };
    paths.into_iter().map(read).collect()
}

/// Sends a request; returns the status, the names of ignored fields, and the reply.
async fn post(url: &str, path: &str, body: &Value) -> (u16, String, String) {
    let reply = baton_e2e::http::client().post(format!("{url}{path}")).json(body).send().await;
    let reply = reply.expect("the program replies");
    let ignored = reply.headers().get("x-baton-ignored").and_then(|value| value.to_str().ok());
    let ignored = ignored.unwrap_or_default().to_owned();
    (reply.status().as_u16(), ignored, reply.text().await.expect("the reply ends"))
}

#[tokio::test]
async fn what_agents_sent_is_taken() {
    let played = greeting().await;
    let mut count = 0;
    for (name, requests) in files(&scripts().with_file_name("agents")) {
        for request in requests.as_array().expect("a list") {
            let path = request["path"].as_str().expect("a path");
            let (status, ignored, reply) = post(played.url(), path, &request["body"]).await;
            assert_eq!(status, 200, "{name} {path}: {reply}");
            let is_count = path.contains("count_tokens");
            assert!(is_count || reply.contains("script."), "{name} {path}: {reply}");
            println!("ok {name} {path}; ignored: {ignored}");
            count += 1;
        }
    }
    assert!(count >= 18, "{count} requests");
}

#[tokio::test]
async fn what_was_seen_elsewhere_is_taken() {
    let Some(folder) = std::env::var_os("BATON_AGENTS").map(PathBuf::from) else {
        return println!("skipped: agents: BATON_AGENTS has no folder of requests");
    };
    let played = greeting().await;
    for (name, seen) in files(&folder) {
        let mut body = seen["body"].clone();
        if body["tools"].is_string() {
            body["tools"] = json!([]);
        }
        let path = match name.split('-').next() {
            Some("claude") => "/v1/messages",
            Some("codex") => "/v1/responses",
            _ => "/v1/chat/completions",
        };
        let (status, ignored, reply) = post(played.url(), path, &body).await;
        assert_eq!(status, 200, "{name}: {reply}");
        println!("ok {name}; ignored: {ignored}");
    }
}

#[tokio::test]
async fn cases_of_public_trackers_are_taken() {
    let Some(folder) = std::env::var_os("BATON_CASES").map(PathBuf::from) else {
        return println!("skipped: agents: BATON_CASES has no folder of requests");
    };
    let played = greeting().await;
    for (name, case) in files(&folder) {
        let path = case["path"].as_str().unwrap_or_default();
        if !path.starts_with("/v1/") && !path.starts_with("/api/") {
            continue;
        }
        let (status, ignored, reply) = post(played.url(), path, &case["body"]).await;
        assert_eq!(status, 200, "{name}: {reply}");
        println!("ok {name}; ignored: {ignored}");
    }
}

#[tokio::test]
async fn what_has_no_effect_is_named_in_the_reply() {
    let played = greeting().await;
    let body = json!({ "model": "baton", "max_tokens": 9, "messages": [{ "role": "user", "content": "hi" }],
        "of_next_week": true });
    for (path, body) in [
        ("/v1/chat/completions", body.clone()),
        ("/v1/messages", body.clone()),
        ("/v1/responses", json!({ "model": "baton", "input": "hi", "of_next_week": true })),
        ("/api/chat", {
            let mut body = body.clone();
            body["stream"] = json!(false);
            body
        }),
    ] {
        let (status, ignored, reply) = post(played.url(), path, &body).await;
        let reply: Value =
            serde_json::from_str(&reply).unwrap_or_else(|err| panic!("{path}: {err}: {reply}"));
        assert!(status == 200 && ignored.split(", ").any(|name| name == "of_next_week"), "{path}: {ignored}");
        let named = reply["baton"]["ignored"].as_array().expect("a list");
        assert!(named.contains(&json!("of_next_week")), "{path}: {reply}");
        assert!(reply.to_string().contains(HI), "{path}: {reply}");
    }
    let wish = json!({ "model": "baton", "n": 2, "messages": [{ "role": "user", "content": "hi" }] });
    assert_eq!(post(played.url(), "/v1/chat/completions", &wish).await.0, 400);
}
