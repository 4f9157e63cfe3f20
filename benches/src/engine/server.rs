//! Runs both programs as HTTP servers on the loopback interface, and streams answers from them.

use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use baton_e2e::process::without_gpu;
use serde_json::{Value, json};

use super::http;

/// Maximum time for a server to load its model: a hang guard.
const START_MAX: Duration = Duration::from_secs(300);

/// The model's name in Baton's API.
pub(crate) const MODEL_NAME: &str = "bench";

/// A running server, killed when dropped.
pub(crate) struct Server {
    child: Child,
    address: String,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Baton,
    LlamaCpp,
}

/// Starts `baton-cloud serve` on a free port with an empty database. Returns the process and its address.
pub(crate) fn baton_cloud(program: &Path, model: &Path, options: &[String]) -> Result<(Child, String)> {
    let mut child = without_gpu(&mut Command::new(program))
        .args(["serve", "--listen", "127.0.0.1:0", "--database", ":memory:", "--json", "--model"])
        .arg(model)
        .args(options)
        .env("RUST_LOG", "error")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", program.display()))?;
    let address = address_of(&mut child);
    if address.is_err() {
        let _ended = child.kill().and_then(|()| child.wait());
    }
    Ok((child, address?))
}

/// Reads the address that `baton-cloud` prints when it listens.
fn address_of(child: &mut Child) -> Result<String> {
    let stdout = child.stdout.take().context("baton-cloud has no standard output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).context("read the address of baton-cloud")?;
    let hello: Value =
        serde_json::from_str(&line).with_context(|| format!("read the address from `{line}`"))?;
    let address = hello["listening"].as_str().context("baton-cloud named no address")?;
    Ok(address.trim_start_matches("http://").to_owned())
}

impl Server {
    /// Starts `baton-cloud serve`.
    pub(crate) fn baton(
        program: &Path,
        model: &Path,
        threads: usize,
        streams: usize,
        tokens: usize,
    ) -> Result<Self> {
        let options = [
            ("--threads", threads.to_string()),
            ("--slots", streams.to_string()),
            ("--kv-tokens", tokens.to_string()),
            ("--model-name", MODEL_NAME.to_owned()),
            // Batching is measured, and llama-server proposes no tokens.
            ("--speculate", "off".to_owned()),
        ];
        let options: Vec<String> =
            options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
        let (child, address) = baton_cloud(program, model, &options)?;
        Ok(Self { child, address, kind: Kind::Baton })
    }

    /// Starts `llama-server` with `flags`.
    pub(crate) fn llama_cpp(
        program: &Path,
        model: &Path,
        threads: usize,
        tokens: usize,
        flags: &[&str],
    ) -> Result<Self> {
        // llama-server takes a port as an option; it would not print a port that it chose itself.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|bound| bound.local_addr());
        let address = free.context("find a free port")?;
        let cpus = format!("0-{}", threads - 1);
        let child = Command::new(program)
            .arg("-m")
            .arg(model)
            .args(["--host", "127.0.0.1", "--port", &address.port().to_string()])
            .args(["-t", &threads.to_string(), "-c", &tokens.to_string()])
            .args(["-Cr", &cpus, "--cpu-strict", "1", "--log-disable", "--cache-ram", "0"])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let mut server = Self { child, address: address.to_string(), kind: Kind::LlamaCpp };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < START_MAX {
            if let Some(status) = self.child.try_wait().context("look after llama-server")? {
                bail!("llama-server ended with {status} before it listened");
            }
            if TcpStream::connect(&self.address).is_ok() && self.answer("a", 1, |_| ()).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("llama-server did not answer within {} s", START_MAX.as_secs());
    }

    /// Streams an answer of `tokens` tokens to a prompt in which each letter is one token. `heard` is called
    /// at each piece of text. Returns the numbers of tokens in the prompt and in the answer as counted by the
    /// server.
    pub(crate) fn answer(
        &self,
        prompt: &str,
        tokens: usize,
        mut heard: impl FnMut(Instant),
    ) -> Result<(u64, u64)> {
        let mut counts = (None, None);
        let mut error = None;
        let (path, body) = self.request(prompt, tokens);
        http::events(&self.address, path, &body, |event| {
            let [text, prompt_tokens, answer_tokens] = match self.kind {
                Kind::Baton => {
                    let usage = &event["usage"];
                    [
                        &event["choices"][0]["delta"]["content"],
                        &usage["prompt_tokens"],
                        &usage["completion_tokens"],
                    ]
                }
                Kind::LlamaCpp => [&event["content"], &event["tokens_evaluated"], &event["tokens_predicted"]],
            };
            if text.as_str().is_some_and(|text| !text.is_empty()) {
                heard(Instant::now());
            }
            if event.get("error").is_some_and(|error| !error.is_null()) {
                error = Some(event.to_string());
            }
            counts = (prompt_tokens.as_u64().or(counts.0), answer_tokens.as_u64().or(counts.1));
        })?;
        if let Some(error) = error {
            bail!("the server broke off: {error}");
        }
        Ok((counts.0.context("no prompt length was sent")?, counts.1.context("no answer length was sent")?))
    }

    fn request(&self, prompt: &str, tokens: usize) -> (&'static str, Value) {
        match self.kind {
            Kind::Baton => (
                "/v1/chat/completions",
                json!({
                    "messages": [{ "role": "user", "content": prompt }], "max_tokens": tokens, "temperature": 0,
                    "stream": true, "stream_options": { "include_usage": true }, "model": MODEL_NAME,
                }),
            ),
            Kind::LlamaCpp => (
                "/completion",
                json!({
                    "prompt": prompt, "n_predict": tokens, "temperature": 0, "stream": true, "ignore_eos": true,
                    "cache_prompt": false,
                }),
            ),
        }
    }

    /// Returns the number of tokens that the chat template adds to a prompt.
    pub(crate) fn template_tokens(&self) -> usize {
        match self.kind {
            Kind::Baton => 4, // The beginning, the role, the end of the message, the role of the answer.
            Kind::LlamaCpp => 0,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Errors are ignored, because the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
