//! The suite's rings: the demo's model, workers with one thread each, and functions that ask them.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use baton_e2e::demo::ask::Ask;
use baton_e2e::home::{self, Home, Planned, Seat, Task, event, finish_within, model};
use baton_e2e::process::{AgentProcess, Running, lines, models_folder};
use serde_json::{Value, json};

/// Longest time for one step of a program: a guard against hangs.
const HANG: Duration = Duration::from_secs(120);

/// Milliseconds between heartbeats. Three of them are longer than a busy machine may delay a program, so that
/// a device is lost only if a test disturbs it.
const HEARTBEAT: &str = "1000";

/// Makes a ring of a head and workers of these names.
pub(crate) async fn ring(names: &[&str]) -> anyhow::Result<Home> {
    ring_headed_by("head", names).await
}

/// Makes a ring of a head of this name and workers.
pub(crate) async fn ring_headed_by(head: &str, names: &[&str]) -> anyhow::Result<Home> {
    let workers: Vec<Seat> = names.iter().map(|name| Seat::new(*name).with("--threads").with("1")).collect();
    let head = Seat::new(head).with("--ring-heartbeat").with(HEARTBEAT);
    Home::with_copy(&std::env::temp_dir(), &model(), head, &workers).await
}

/// Runs a bench on the ring with this plan; returns what it prints.
pub(crate) async fn bench(
    home: &Home,
    shares: &[(&str, usize)],
    rounds: usize,
    tokens: usize,
) -> anyhow::Result<Value> {
    home.run(&Task::of_tokens(tokens), &Planned::shares(shares, rounds)).await
}

/// Starts a bench on the ring with this plan.
pub(crate) fn begin(
    home: &Home,
    shares: &[(&str, usize)],
    rounds: usize,
    tokens: usize,
) -> anyhow::Result<Running> {
    home.start(&Task::of_tokens(tokens), &Planned::shares(shares, rounds))
}

/// Returns the object that a bench prints at its end.
pub(crate) async fn finish(head: &mut Running) -> anyhow::Result<Value> {
    finish_within(head, HANG).await
}

/// Runs the bench on one device.
pub(crate) async fn alone(tokens: usize) -> anyhow::Result<Value> {
    home::alone(&model(), &Task::of_tokens(tokens)).await
}

/// Returns the text of an answer, from one device or from a ring.
pub(crate) async fn ask(home: Option<&Home>, question: &str) -> anyhow::Result<String> {
    let document = models_folder().join("README.md");
    let length = ["--max-tokens", "48"];
    if let Some(home) = home {
        return Ok(home.ask(&document, question, &Planned::Searched, &length).await?.answer);
    }
    let scratch = tempfile::tempdir()?;
    let options =
        ["--no-cloud", "--instant", "--threads", "1"].iter().chain(&length).map(Into::into).collect();
    let (model, document) = (model(), document.as_path());
    let ask = Ask { document, question, model: &model, scratch: scratch.path(), options, live: false };
    let report = tokio::time::timeout(HANG, ask.run()).await.context("the answer hangs")??;
    Ok(report.answer)
}

/// Returns the workers' files with parts of models, and when each was last written.
pub(crate) fn fetched(home: &Home) -> anyhow::Result<Vec<(PathBuf, std::time::SystemTime)>> {
    let mut found = Vec::new();
    for worker in &home.workers {
        for entry in std::fs::read_dir(worker.folder.join("models")).context("list a worker's models")? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "gguf") {
                found.push((path.clone(), std::fs::metadata(&path)?.modified()?));
            }
        }
    }
    found.sort();
    if found.len() != home.workers.len() {
        bail!("{} of {} workers have fetched something", found.len(), home.workers.len());
    }
    Ok(found)
}

/// A device agent that serves the chat API.
pub(crate) struct Served {
    agent: AgentProcess,
    client: reqwest::Client,
}

impl Served {
    /// Starts the agent of one device, without a ring.
    pub(crate) async fn alone() -> anyhow::Result<Self> {
        let mut command = Seat::new("alone").baton()?;
        command.args(["serve", "--listen", "127.0.0.1:0", "--no-cloud", "--threads", "1", "--model"]);
        command.arg(model());
        Ok(Self { agent: AgentProcess::start(&mut command).await?, client: baton_e2e::http::client() })
    }

    /// Starts a ring's head, which uses this plan while its devices are present.
    pub(crate) async fn of(home: &Home, shares: &[(&str, usize)], rounds: usize) -> anyhow::Result<Self> {
        let agent = home.serve(&Planned::shares(shares, rounds), &["--no-cloud"]).await?;
        Ok(Self { agent, client: baton_e2e::http::client() })
    }

    /// Returns the answer to a question, decoded greedily.
    pub(crate) async fn answer(&self, question: &str, tokens: usize) -> anyhow::Result<String> {
        let body = json!({
            "messages": [{ "role": "user", "content": question }], "temperature": 0, "max_tokens": tokens,
        });
        let asked = self.client.post(format!("{}/v1/chat/completions", self.agent.url())).json(&body).send();
        let response = tokio::time::timeout(HANG, asked).await.context("the answer hangs")??;
        let answer: Value = response.error_for_status()?.json().await?;
        Ok(answer["choices"][0]["message"]["content"].as_str().context("no text")?.to_owned())
    }

    /// Returns the ring's statistics.
    pub(crate) async fn stats(&self) -> anyhow::Result<Value> {
        let response = self.client.get(format!("{}/ring.json", self.agent.url())).send().await?;
        Ok(response.error_for_status()?.json::<Value>().await?["stats"].clone())
    }

    /// Waits until this many devices are in the ring.
    pub(crate) async fn has_devices(&mut self, devices: usize) -> anyhow::Result<Value> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.agent.ended()? {
                bail!("the head has ended with {status}");
            }
            let stats = self.stats().await?;
            if stats["devices"].as_array().map(Vec::len) == Some(devices) {
                return Ok(stats);
            }
            if begun.elapsed() > HANG {
                bail!("not {devices} devices: {stats}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The result of a guess at a head's code.
pub(crate) struct Guess {
    pub joined: bool,
    /// The output of the guessing program.
    pub words: String,
    /// Number of devices that the head has paired with afterwards.
    pub pinned: usize,
}

/// Starts a head that shows a code; a device tries another code.
pub(crate) async fn guess() -> anyhow::Result<Guess> {
    let scratch = tempfile::tempdir()?;
    let state = scratch.path().join("head");
    let mut init = Seat::new("head").baton()?;
    init.args([
        "ring",
        "init",
        "--json",
        "--no-mdns",
        "--name",
        "head",
        "--listen",
        "127.0.0.1:0",
        "--state",
    ]);
    let mut init = Running::start(init.arg(&state))?;
    let mut said = lines(&mut init)?;
    let listening = event(&mut said, "listening").await?;
    let address = listening["address"].as_str().context("no address")?.to_owned();
    let shown: u32 = event(&mut said, "code").await?["code"].as_str().context("no code")?.parse()?;
    let guess = format!("{:06}", (shown + 1) % 1_000_000);
    let mut join = Seat::new("guest").baton()?;
    join.args(["ring", "join", &guess, "--json", "--no-mdns", "--pair-only", "--head", &address])
        .args(["--listen", "127.0.0.1:0", "--state"])
        .arg(scratch.path().join("guest"))
        .stderr(Stdio::piped());
    let output = tokio::time::timeout(HANG, join.output()).await.context("the guess hangs")??;
    event(&mut said, "failed").await?;
    let pinned = match std::fs::read(state.join("peers.json")) {
        Ok(bytes) => serde_json::from_slice::<Value>(&bytes)?["peers"].as_array().map_or(0, Vec::len),
        Err(_) => 0,
    };
    Ok(Guess {
        joined: output.status.success(),
        words: String::from_utf8_lossy(&output.stderr).into_owned(),
        pinned,
    })
}
