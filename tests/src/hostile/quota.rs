//! A tenant who asks for more tokens than the day's quota: many requests at the same time, and one request
//! sent again and again.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::process::Command;

use super::bodies::{Reply, reply};
use crate::process::{CloudProcess, cpu_program, models_folder};

/// Starts a service whose callers, the tenant `default`, may use this many tokens a day; its database is in
/// `folder`.
///
/// # Errors
/// Fails if the program is not built, or does not start.
pub async fn limited_service(folder: &Path, tokens: u64, options: &[&str]) -> anyhow::Result<CloudProcess> {
    let database = format!("sqlite://{}", folder.join("quota.db").display());
    let set = Command::from(cpu_program("baton-cloud")?)
        .args(["tenants", "set", "default", "--tokens-per-day", &tokens.to_string(), "--database", &database])
        .output()
        .await
        .context("run baton-cloud tenants")?;
    ensure!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    let options: Vec<OsString> = options.iter().map(OsString::from).collect();
    CloudProcess::start_on(&models_folder().join("demo-cloud.gguf"), &database, &options).await
}

/// Makes a question about a letter of this many sentences (about 9 tokens each), for an answer of `tokens`.
#[must_use]
pub fn question(sentences: usize, tokens: u32) -> Value {
    let text = "The harbour keeps a list of all ships. ".repeat(sentences);
    json!({
        "protocol": 1, "request_id": uuid::Uuid::new_v4(), "scene": "doc-qa-full", "model": "default",
        "segments": [{ "role": "user", "text": text, "refine": false }], "assist_tokens": tokens,
    })
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// The reply's status.
    pub status: u16,
    /// Prompt and answer tokens, as the service reported at the end.
    pub tokens: u64,
}

/// Asks, and reads the answer to its end.
///
/// # Errors
/// Fails if there is no reply.
pub async fn ask(server: SocketAddr, question: &Value) -> anyhow::Result<Told> {
    let body = question.to_string();
    let Reply { status, text } = reply(server, "/v1/assist", body.as_bytes(), false).await?;
    let end = text.split("event: end\ndata: ").nth(1).and_then(|rest| rest.lines().next());
    let usage = end.map(serde_json::from_str::<Value>).transpose().context("read the end")?;
    let count = |name: &str| usage.as_ref().and_then(|end| end["usage"][name].as_u64()).unwrap_or(0);
    Ok(Told { status, tokens: count("prompt_tokens") + count("completion_tokens") })
}
