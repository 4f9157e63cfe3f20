//! Devices of a home as processes: a head's state folder, and workers that serve it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use baton_e2e::process::{models_folder, program};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
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

/// The next event of this kind.
async fn event(lines: &mut Lines<BufReader<ChildStdout>>, kind: &str) -> anyhow::Result<Value> {
    let next = async {
        loop {
            let line = lines.next_line().await?.context("the program has ended")?;
            let event: Value = serde_json::from_str(&line).with_context(|| format!("read `{line}`"))?;
            if event["event"] == kind {
                return Ok(event);
            }
        }
    };
    tokio::time::timeout(HANG, next).await.with_context(|| format!("no event `{kind}` came"))?
}

fn lines(child: &mut Child) -> anyhow::Result<Lines<BufReader<ChildStdout>>> {
    Ok(BufReader::new(child.stdout.take().context("no output")?).lines())
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
        ["--ring-state", &state, "--ring-listen", "127.0.0.1:0", "--config-dir", &config]
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
        let share = |(name, layers): &(&str, usize)| json!({ "device": name, "layers": layers, "gpu_layers": 0, "prefetch_bytes": 0.0 });
        let layers: usize = shares.iter().map(|(_, layers)| layers).sum();
        let shares: Vec<Value> = shares.iter().map(share).collect();
        let plan = self.scratch.path().join("plan.json");
        std::fs::write(&plan, json!({ "layers": layers, "rounds": rounds, "shares": shares }).to_string())?;
        let mut command = bench(&self.model(), tokens)?;
        command.args(self.head_arguments()).arg("--ring-plan").arg(plan);
        Ok(command.spawn()?)
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
        let mut child = baton()?
            .args(["ring", "join", code, "--json", "--name", name, "--head", head])
            .args(["--listen", "127.0.0.1:0", "--threads", "1", "--state"])
            .arg(folder)
            .spawn()?;
        let mut lines = lines(&mut child)?;
        event(&mut lines, "waiting").await?;
        Ok(Self { child, folder: folder.to_owned(), lines })
    }

    /// Waits until the worker says this.
    pub async fn says(&mut self, kind: &str) -> anyhow::Result<Value> {
        event(&mut self.lines, kind).await
    }
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
