//! `baton ps` and `baton stop`: what a running `baton serve` has in memory, and how to free it.

use anyhow::{Context as _, bail};
use baton_terminal::{chain, outln};
use clap::Args;
use reqwest::{RequestBuilder, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::cloud_address;
use crate::models::http_client;

/// Where a running `baton serve` is.
#[derive(Debug, Args)]
pub(super) struct AddressArgs {
    /// Address of the running `baton serve`
    #[arg(long, default_value = "http://127.0.0.1:8017", value_name = "URL", value_parser = cloud_address)]
    pub(super) url: String,
    /// Its key, if it has one
    #[arg(long, env = "BATON_KEY", value_name = "KEY", hide_env_values = true)]
    pub(super) key: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct RunningArgs {
    #[command(flatten)]
    address: AddressArgs,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Deserialize)]
struct Loaded {
    models: Vec<Model>,
}

#[derive(Debug, Deserialize)]
struct Model {
    name: String,
    size: u64,
    context_length: Option<u64>,
}

impl AddressArgs {
    /// Asks the program.
    ///
    /// # Errors
    /// If nobody answers there, or with an error.
    pub(super) async fn ask(
        &self,
        make: impl FnOnce(&reqwest::Client, &str) -> RequestBuilder,
    ) -> anyhow::Result<Response> {
        let client = http_client(self.url.starts_with("https:")).context("make a client")?;
        let mut request = make(&client, &self.url);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let response = request.send().await.map_err(|err| {
            let why = chain(&err.without_url());
            anyhow::anyhow!(
                "no `baton serve` answers at {}: {why}; start it, or name its address by --url",
                self.url
            )
        })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let said: Value = response.json().await.unwrap_or_default();
        let said = said["error"].as_str().unwrap_or("it says no more");
        bail!("{} answered {status}: {said}", self.url)
    }
}

/// Prints which models are in memory.
pub(super) async fn ps(args: RunningArgs) -> anyhow::Result<()> {
    let response = args.address.ask(|client, url| client.get(format!("{url}/api/ps"))).await?;
    let reply: Value = response.json().await.context("read the reply")?;
    if args.json {
        return Ok(outln!("{reply}")?);
    }
    let loaded: Loaded = serde_json::from_value(reply).context("read the reply")?;
    if loaded.models.is_empty() {
        return Ok(outln!("no model is in memory; the next question loads it")?);
    }
    for Model { name, size, context_length } in loaded.models {
        let context =
            context_length.map(|tokens| format!(", {tokens} tokens of context")).unwrap_or_default();
        outln!("{name}: a file of {:.1} MB{context}", size as f64 / 1e6)?;
    }
    Ok(())
}

/// Frees the memory of the model.
pub(super) async fn stop(args: RunningArgs) -> anyhow::Result<()> {
    let unload = json!({ "model": "baton", "keep_alive": 0 });
    args.address.ask(|client, url| client.post(format!("{url}/api/generate")).json(&unload)).await?;
    let response = args.address.ask(|client, url| client.get(format!("{url}/api/ps"))).await?;
    let loaded: Loaded = response.json().await.context("read the reply")?;
    let is_free = loaded.models.is_empty();
    if args.json {
        outln!("{}", json!({ "unloaded": is_free }))?;
    } else if is_free {
        outln!("the model has left the memory; the next question loads it again")?;
    }
    if !is_free {
        bail!("the model stays in memory: an answer is under way, or a ring of devices computes");
    }
    Ok(())
}
