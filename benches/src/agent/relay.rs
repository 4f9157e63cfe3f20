//! A cold turn with tools through the relay, beside the same turn by the cloud alone.
//!
//! Both programs compute on this machine, one thread each, so that neither slows the other down. The device
//! is as slow as the emulated phone. The cloud starts anew for each turn, so that it knows no prefix. Each
//! has the demo's model with a longer context.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};
use baton_e2e::demo::emulation::PHONE;
use baton_engine::Model;
use baton_pacing::refit::median;
use serde_json::{Value, json};

use super::served::Served;
use super::transcript::transcript;
use crate::engine::http;
use crate::host::clients::{Program, program};
use crate::report::Report;

/// Most times the cloud's own first token that the first token through the relay may take.
const SLOWDOWN_MAX: f64 = 1.1;
/// Transcripts that are asked both ways.
const TRANSCRIPTS: u64 = 3;
/// Room for a transcript and its answer.
const KV_TOKENS: &str = "32768";

/// Measures the first token of cold turns, by the cloud alone and through the relay.
pub(super) fn measure(model: &Path, tokens: usize, answer: usize, report: &mut Report) -> Result<()> {
    let opened = Model::open(model).context("open the model")?;
    let phone: Vec<String> =
        PHONE.options().iter().map(|option| option.to_string_lossy().into_owned()).collect();
    let (mut rows, mut slowdowns) = (Vec::new(), Vec::new());
    for seed in 0..TRANSCRIPTS {
        let body = turn(&transcript(seed, tokens, opened.tokenizer()), answer);
        let (alone_ms, _) = first_ms(cloud(model)?.address(), &body)?;
        let cloud = cloud(model)?;
        let url = format!("http://{}", cloud.address());
        let mut options =
            ["--cloud", &url, "--yes", "--mode", "relay", "--threads", "1", "--prefix-memory", "off"]
                .to_vec();
        options.extend(phone.iter().map(String::as_str));
        let served = Served::start_by(model, &options, tempfile::tempdir()?)?;
        let (relay_ms, source) = first_ms(served.address(), &body)?;
        let wrote = |who: &str| source[who].as_u64().unwrap_or(0).to_string();
        rows.push(vec![
            seed.to_string(),
            format!("{alone_ms:.0}"),
            format!("{relay_ms:.0}"),
            wrote("cloud_tokens"),
            wrote("device_tokens"),
        ]);
        slowdowns.push(relay_ms / alone_ms);
        report.check_at_least(
            format!("cold turn {seed} through the relay: tokens by the cloud"),
            source["cloud_tokens"].as_f64().unwrap_or(0.0),
            1.0,
        );
    }
    report.table(
        "cold turns of agents with tools: first token, ms",
        &["transcript", "cloud alone", "relay", "tokens by cloud", "by device"],
        &rows,
    );
    report.check_at_most(
        "cold turns: first token through the relay beside the cloud alone, times",
        median(slowdowns).unwrap_or(f64::NAN),
        SLOWDOWN_MAX,
    );
    Ok(())
}

/// Starts a cloud that knows nothing yet.
fn cloud(model: &Path) -> Result<Program> {
    let options = ["--threads", "1", "--kv-tokens", KV_TOKENS].map(str::to_owned);
    Program::cloud(&program("baton-cloud", None)?, model, &options)
}

/// Returns the request of a transcript's first turn.
fn turn(transcript: &Value, answer: usize) -> Value {
    let call = |call: &Value| {
        json!({ "id": call["id"], "type": "function",
            "function": { "name": call["name"], "arguments": call["input"].to_string() } })
    };
    let message = |message: &Value| {
        let mut said = json!({ "role": message["role"], "content": message["text"] });
        if message["role"] == "tool" {
            said["tool_call_id"] = message["id"].clone();
        }
        if let Some(calls) = message["calls"].as_array() {
            said["tool_calls"] = calls.iter().map(call).collect();
        }
        said
    };
    let function = |tool: &Value| json!({ "type": "function", "function": tool });
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut messages = vec![json!({ "role": "system", "content": transcript["system"] })];
    messages.extend(list(&transcript["turns"][0]).iter().map(message));
    let tools: Vec<Value> = list(&transcript["tools"]).iter().map(function).collect();
    json!({ "model": "default", "messages": messages, "tools": tools, "temperature": 0, "max_tokens": answer,
        "stream": true })
}

/// Returns the milliseconds to the first token, and who wrote the answer, if the program says so.
fn first_ms(address: &str, body: &Value) -> Result<(f64, Value)> {
    let (begun, mut first, mut source) = (Instant::now(), None, Value::Null);
    http::events(address, "/v1/chat/completions", body, |event| {
        let delta = &event["choices"][0]["delta"];
        let is_text = delta["content"].as_str().is_some_and(|text| !text.is_empty());
        if is_text || delta["tool_calls"].is_array() {
            first.get_or_insert_with(|| begun.elapsed());
        }
        if event["baton"]["source"].is_object() {
            source = event["baton"]["source"].clone();
        }
    })?;
    let first = first.context("the answer has no token")?;
    Ok((first.as_secs_f64() * 1e3, source))
}
