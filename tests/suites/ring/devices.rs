//! Devices of a home as processes: a head's state folder, and workers that serve it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::wire::Wire;
use anyhow::{Context as _, bail};
use baton_e2e::home::{event, lines};
use baton_e2e::process::{models_folder, program};
use serde_json::{Value, json};
use tokio::io::{BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// A hang guard for whatever one program is to do.
const HANG: Duration = Duration::from_secs(120);

/// The model that rings run: five layers.
pub fn model() -> PathBuf {
    models_folder().join("demo-device.gguf")
}

/// A worker's process.
pub struct Worker {
    pub child: Child,
    /// Where it listens.
    pub address: SocketAddr,
    name: String,
    folder: PathBuf,
    lines: Lines<BufReader<ChildStdout>>,
}

/// A head and its workers. Workers are killed when this is dropped.
pub struct Home {
    scratch: tempfile::TempDir,
    pub workers: Vec<Worker>,
}

fn baton() -> anyhow::Result<Command> {
    let mut command = Command::new(program("baton")?);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).env("RUST_LOG", "error");
    Ok(command)
}

impl Home {
    /// A ring of a head and workers of these names, each paired by a code of its own.
    pub async fn of(names: &[&str]) -> anyhow::Result<Self> {
        let scratch = tempfile::tempdir()?;
        let head = scratch.path().join("head");
        // The head writes hashes beside its model.
        std::fs::copy(model(), scratch.path().join("model.gguf")).context("copy the model")?;
        let devices = names.len().to_string();
        let mut init = baton()?
            .args(["ring", "init", "--json", "--no-mdns", "--name", "head", "--listen", "127.0.0.1:0"])
            .args(["--devices", &devices, "--state"])
            .arg(&head)
            .spawn()?;
        let mut said = lines(&mut init)?;
        let listening = event(&mut said, "listening").await?;
        let address = listening["address"].as_str().context("no address")?.to_owned();
        let mut workers = Vec::new();
        for name in names {
            let code = event(&mut said, "code").await?["code"].as_str().context("no code")?.to_owned();
            workers.push(Worker::join(name, &scratch.path().join(name), &code, &address).await?);
        }
        event(&mut said, "ended").await?;
        tokio::time::timeout(HANG, init.wait()).await??;
        Ok(Self { scratch, workers })
    }

    /// The arguments that make this device the ring's head.
    pub fn head_arguments(&self) -> Vec<String> {
        let state = self.scratch.path().join("head").display().to_string();
        let config = self.scratch.path().join("config").display().to_string();
        ["--ring-state", &state, "--ring-listen", "127.0.0.1:0", "--ring-no-mdns", "--config-dir", &config]
            .map(str::to_owned)
            .into()
    }

    /// The head's model.
    fn model(&self) -> PathBuf {
        self.scratch.path().join("model.gguf")
    }

    /// The ring under this plan: what its bench prints.
    pub async fn bench(
        &self,
        shares: &[(&str, usize)],
        rounds: usize,
        tokens: usize,
    ) -> anyhow::Result<Value> {
        let mut child = self.begin(shares, rounds, tokens)?;
        finish(&mut child).await
    }

    /// The same, begun.
    pub fn begin(&self, shares: &[(&str, usize)], rounds: usize, tokens: usize) -> anyhow::Result<Child> {
        let plan = self.plan(shares, rounds)?;
        let mut command = bench(&self.model(), tokens)?;
        command.args(self.head_arguments()).arg("--ring-plan").arg(plan);
        Ok(command.spawn()?)
    }

    /// A file with this plan.
    fn plan(&self, shares: &[(&str, usize)], rounds: usize) -> anyhow::Result<PathBuf> {
        let share = |(name, layers): &(&str, usize)| json!({ "device": name, "layers": layers, "gpu_layers": 0, "prefetch_bytes": 0.0 });
        let layers: usize = shares.iter().map(|(_, layers)| layers).sum();
        let shares: Vec<Value> = shares.iter().map(share).collect();
        let plan = self.scratch.path().join("plan.json");
        std::fs::write(&plan, json!({ "layers": layers, "rounds": rounds, "shares": shares }).to_string())?;
        Ok(plan)
    }

    /// Puts a proxy before a worker: from now on head and other workers reach it there.
    pub async fn through(&self, worker: usize) -> anyhow::Result<Wire> {
        let Worker { name, address, .. } = &self.workers[worker];
        let wire = Wire::to(*address).await?;
        let file = self.scratch.path().join("head/peers.json");
        let mut stored: Value = serde_json::from_slice(&std::fs::read(&file).context("read the peers")?)?;
        for peer in stored["peers"].as_array_mut().context("no peers")? {
            if peer["name"] == name.as_str() {
                peer["addresses"] = json!([wire.address()]);
            }
        }
        std::fs::write(&file, stored.to_string()).context("write the peers")?;
        Ok(wire)
    }

    /// The agent of this ring, serving under this plan as long as its devices are there.
    pub async fn serve(&self, shares: &[(&str, usize)], rounds: usize) -> anyhow::Result<Served> {
        let plan = self.plan(shares, rounds)?;
        let mut command = baton()?;
        command.args(["serve", "--listen", "127.0.0.1:0", "--no-cloud", "--threads", "1", "--ring"]);
        command.arg("--model").arg(self.model()).args(self.head_arguments()).arg("--ring-plan").arg(plan);
        Served::of(command).await
    }

    /// The workers' parts of models, and when they were written to.
    pub fn fetched(&self) -> anyhow::Result<Vec<(PathBuf, std::time::SystemTime)>> {
        let mut found = Vec::new();
        for worker in &self.workers {
            for entry in std::fs::read_dir(worker.folder.join("models")).context("list a worker's models")? {
                let path = entry?.path();
                if path.extension().is_some_and(|extension| extension == "gguf") {
                    found.push((path.clone(), std::fs::metadata(&path)?.modified()?));
                }
            }
        }
        found.sort();
        if found.len() != self.workers.len() {
            bail!("{} of {} workers have fetched something", found.len(), self.workers.len());
        }
        Ok(found)
    }
}

impl Worker {
    async fn join(name: &str, folder: &Path, code: &str, head: &str) -> anyhow::Result<Self> {
        Self::start(name, folder, "127.0.0.1:0", &[code, "--head", head]).await
    }

    async fn start(name: &str, folder: &Path, listen: &str, more: &[&str]) -> anyhow::Result<Self> {
        let mut child = baton()?
            .args(["ring", "join", "--json", "--no-mdns", "--name", name, "--listen", listen])
            .args(["--threads", "1", "--state"])
            .arg(folder)
            .args(more)
            .spawn()?;
        let mut lines = lines(&mut child)?;
        let waiting = event(&mut lines, "waiting").await?;
        let address = waiting["address"].as_str().context("no address")?.parse()?;
        Ok(Self { child, address, name: name.to_owned(), folder: folder.to_owned(), lines })
    }

    /// Kills the worker.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        tokio::time::timeout(HANG, self.child.kill()).await.context("the worker does not die")??;
        Ok(())
    }

    /// Starts it again where it was, after it was killed.
    pub async fn again(&mut self) -> anyhow::Result<()> {
        *self = Self::start(&self.name, &self.folder, &self.address.to_string(), &[]).await?;
        Ok(())
    }

    /// Waits until the worker says this.
    pub async fn says(&mut self, kind: &str) -> anyhow::Result<Value> {
        event(&mut self.lines, kind).await
    }
}

/// A device agent that serves.
pub struct Served {
    address: String,
    client: reqwest::Client,
    child: Child,
}

impl Served {
    /// One device's, without a ring.
    pub async fn alone() -> anyhow::Result<Self> {
        let mut command = baton()?;
        command.args(["serve", "--listen", "127.0.0.1:0", "--no-cloud", "--threads", "1", "--model"]);
        command.arg(model());
        Self::of(command).await
    }

    async fn of(mut command: Command) -> anyhow::Result<Self> {
        let mut child = command.spawn()?;
        let mut said = lines(&mut child)?;
        let line =
            tokio::time::timeout(HANG, said.next_line()).await.context("the agent does not listen")??;
        let line = line.context("the agent has ended")?;
        let address = line.strip_prefix("listening on ").with_context(|| format!("heard `{line}`"))?;
        Ok(Self { address: address.to_owned(), client: baton_e2e::http::client(), child })
    }

    /// The answer to a question, greedily.
    pub async fn answer(&self, question: &str, tokens: usize) -> anyhow::Result<String> {
        let body = json!({
            "messages": [{ "role": "user", "content": question }], "temperature": 0, "max_tokens": tokens,
        });
        let asked = self.client.post(format!("{}/v1/chat/completions", self.address)).json(&body).send();
        let response = tokio::time::timeout(HANG, asked).await.context("the answer hangs")??;
        let answer: Value = response.error_for_status()?.json().await?;
        Ok(answer["choices"][0]["message"]["content"].as_str().context("no text")?.to_owned())
    }

    /// The ring's figures.
    pub async fn stats(&self) -> anyhow::Result<Value> {
        let response = self.client.get(format!("{}/ring.json", self.address)).send().await?;
        Ok(response.error_for_status()?.json::<Value>().await?["stats"].clone())
    }

    /// Waits until so many devices are in the ring.
    pub async fn has_devices(&mut self, devices: usize) -> anyhow::Result<Value> {
        let begun = std::time::Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
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

/// What came of a guess at a head's code.
pub struct Guess {
    pub joined: bool,
    /// What the program that guessed says.
    pub words: String,
    /// Devices that the head has pinned afterwards.
    pub pinned: usize,
}

/// A head shows a code, and a device tries another one.
pub async fn guess() -> anyhow::Result<Guess> {
    let scratch = tempfile::tempdir()?;
    let state = scratch.path().join("head");
    let mut init = baton()?
        .args(["ring", "init", "--json", "--no-mdns", "--name", "head", "--listen", "127.0.0.1:0", "--state"])
        .arg(&state)
        .spawn()?;
    let mut said = lines(&mut init)?;
    let listening = event(&mut said, "listening").await?;
    let address = listening["address"].as_str().context("no address")?.to_owned();
    let shown: u32 = event(&mut said, "code").await?["code"].as_str().context("no code")?.parse()?;
    let guess = format!("{:06}", (shown + 1) % 1_000_000);
    let mut join = baton()?;
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

fn bench(model: &Path, tokens: usize) -> anyhow::Result<Command> {
    let mut command = baton()?;
    let tokens = tokens.to_string();
    command.args([
        "ring",
        "bench",
        "--json",
        "--threads",
        "1",
        "--prompt",
        "96",
        "--tokens",
        &tokens,
        "--model",
    ]);
    command.arg(model);
    Ok(command)
}

/// What one device writes.
pub async fn alone(tokens: usize) -> anyhow::Result<Value> {
    let mut child = bench(&model(), tokens)?.arg("--alone").spawn()?;
    finish(&mut child).await
}

/// The object that a bench prints at its end.
pub async fn finish(child: &mut Child) -> anyhow::Result<Value> {
    let mut said = lines(child)?;
    let line = tokio::time::timeout(HANG, said.next_line()).await.context("the bench hangs")??;
    let status = tokio::time::timeout(HANG, child.wait()).await.context("the bench does not end")??;
    if !status.success() {
        bail!("the head has ended with {status}");
    }
    serde_json::from_str(&line.context("the bench printed nothing")?).context("read the bench")
}

/// The text of an answer, of one device or of a ring.
pub async fn ask(home: Option<&Home>, question: &str) -> anyhow::Result<String> {
    let mut command = baton()?;
    command.args([
        "ask",
        "--no-cloud",
        "--instant",
        "--json",
        "--max-tokens",
        "48",
        "--threads",
        "1",
        "--model",
    ]);
    command.arg(home.map_or_else(model, Home::model));
    if let Some(home) = home {
        command.arg("--ring").args(home.head_arguments());
    }
    command.arg(models_folder().join("README.md")).arg(question);
    let output = tokio::time::timeout(HANG, command.output()).await.context("the answer hangs")??;
    let text = String::from_utf8(output.stdout).context("the answer is text")?;
    let report: Value = serde_json::from_str(text.lines().last().context("no answer")?)?;
    Ok(report["answer"].as_str().context("the report has no answer")?.to_owned())
}
