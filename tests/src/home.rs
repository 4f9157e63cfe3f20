//! Devices of a home as processes: a head's state folder, workers that serve it, and what lies between them.
//!
//! Devices are paired by their codes and find each other by address. Each may be started by a program of its own
//! choice (one that binds it to a CPU, or puts it into a control group), and every way between two may be a [`Link`]
//! that is slow. Wall clock only as a hang guard. When a home is dropped, its workers are gone before its folder is.

mod worker;

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use baton_plan::Plan;
use baton_plan::plan::Share;
use serde_json::{Value, json};
use tokio::io::{BufReader, Lines};
use tokio::process::{ChildStdout, Command};

pub use self::worker::Worker;
use crate::demo::ask::{Ask, Report};
use crate::link::Link;
use crate::process::{AgentProcess, Running, lines, models_folder, program};

/// A hang guard for whatever one program is to do.
const HANG: Duration = Duration::from_secs(120);
/// The head's address where links lead to it: one of the loopback addresses that nothing else is bound to.
const HEAD: &str = "127.77.0.1:0";

/// The demo's model: five layers.
#[must_use]
pub fn model() -> PathBuf {
    models_folder().join("demo-device.gguf")
}

/// How one device's program is started.
#[derive(Debug, Clone, Default)]
pub struct Seat {
    /// The device's name.
    pub name: String,
    /// The program that starts it, with arguments; none to start it as it is.
    pub launcher: Vec<OsString>,
    /// More arguments: of `baton ring join` for a worker, of the programs that compute for a head.
    pub arguments: Vec<OsString>,
}

impl Seat {
    /// A device of this name, started as it is.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// The device bound to one CPU.
    #[must_use]
    pub fn on_cpu(mut self, cpu: usize) -> Self {
        self.launcher.extend(["taskset".into(), "-c".into(), cpu.to_string().into()]);
        self
    }

    /// One more argument.
    #[must_use]
    pub fn with(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// `baton` as this device starts it, with its output to read.
    ///
    /// # Errors
    /// It is not built.
    pub fn baton(&self) -> anyhow::Result<Command> {
        let program = program("baton")?;
        let mut command = match self.launcher.split_first() {
            Some((launcher, words)) => {
                let mut command = Command::new(launcher);
                command.args(words).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).env("RUST_LOG", "error");
        Ok(command)
    }
}

/// What `baton ring bench` is to do.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens to write.
    pub tokens: usize,
    /// Sequences at a time.
    pub sequences: usize,
    /// The head's threads.
    pub threads: usize,
    /// How long it may take: a hang guard.
    pub limit: Duration,
}

impl Task {
    /// A prompt of 96 tokens, one sequence, one thread.
    #[must_use]
    pub fn of_tokens(tokens: usize) -> Self {
        Self { prompt: 96, tokens, sequences: 1, threads: 1, limit: HANG }
    }
}

/// Who computes what.
#[derive(Debug, Clone)]
pub enum Planned {
    /// This plan.
    Given(Plan),
    /// What the planner finds.
    Searched,
}

impl Planned {
    /// These devices, the head first, so many layers each, in so many rounds; nothing is kept for reading ahead.
    #[must_use]
    pub fn shares(shares: &[(&str, usize)], rounds: usize) -> Self {
        let share = |(name, layers): &(&str, usize)| Share {
            device: (*name).to_owned(),
            layers: *layers,
            gpu_layers: 0,
            prefetch_bytes: 0.0,
            relays: Vec::new(),
        };
        let layers = shares.iter().map(|(_, layers)| layers).sum();
        Self::Given(Plan { layers, rounds, shares: shares.iter().map(share).collect() })
    }
}

/// A head and its workers.
#[derive(Debug)]
pub struct Home {
    // Dropped in this order: what runs ends before its folder is removed.
    /// The workers, in the order in which they were named.
    pub workers: Vec<Worker>,
    /// The ways to the workers, in the same order, and last the one to the head; none where devices meet directly.
    pub links: Vec<Link>,
    head: Seat,
    model: PathBuf,
    scratch: tempfile::TempDir,
}

/// The next event of this kind that a program prints.
///
/// # Errors
/// The program ends, prints something else than events, or prints none of this kind in time.
pub async fn event(lines: &mut Lines<BufReader<ChildStdout>>, kind: &str) -> anyhow::Result<Value> {
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

impl Home {
    /// A ring of this head and these workers over this model, each paired by a code of its own. All have their folders
    /// in one of the home's, below `folder`.
    ///
    /// # Errors
    /// A program is not built or does not do its part.
    pub async fn below(folder: &Path, model: PathBuf, head: Seat, seats: &[Seat]) -> anyhow::Result<Self> {
        let scratch = tempfile::tempdir_in(folder).context("make a folder for the home")?;
        Self::paired(scratch, model, head, seats).await
    }

    /// The same over a copy of the model: a head writes hashes beside its own.
    ///
    /// # Errors
    /// As for [`Self::below`].
    pub async fn with_copy(folder: &Path, model: &Path, head: Seat, seats: &[Seat]) -> anyhow::Result<Self> {
        let scratch = tempfile::tempdir_in(folder).context("make a folder for the home")?;
        let copy = scratch.path().join("model.gguf");
        tokio::fs::copy(model, &copy).await.context("copy the model")?;
        Self::paired(scratch, copy, head, seats).await
    }

    async fn paired(
        scratch: tempfile::TempDir,
        model: PathBuf,
        head: Seat,
        seats: &[Seat],
    ) -> anyhow::Result<Self> {
        let mut home = Self { workers: Vec::new(), links: Vec::new(), head, model, scratch };
        let devices = seats.len().to_string();
        let mut command = Seat::new("head").baton()?;
        command
            .args([
                "ring",
                "init",
                "--json",
                "--no-mdns",
                "--name",
                &home.head.name,
                "--listen",
                "127.0.0.1:0",
            ])
            .args(["--devices", &devices, "--state"])
            .arg(home.state());
        let mut init = Running::start(&mut command)?;
        let mut said = lines(&mut init)?;
        let listening = event(&mut said, "listening").await?;
        let address = listening["address"].as_str().context("no address")?.to_owned();
        for seat in seats {
            let code = event(&mut said, "code").await?["code"].as_str().context("no code")?.to_owned();
            let folder = home.scratch.path().join(&seat.name);
            home.workers.push(Worker::join(seat, &folder, &code, &address).await?);
        }
        event(&mut said, "ended").await?;
        tokio::time::timeout(HANG, init.wait()).await??;
        Ok(home)
    }

    /// Puts a link before every device, so that each hop of the ring goes through one; without delay at first. Linux
    /// only: it takes more than one loopback address.
    ///
    /// # Errors
    /// A port cannot be had, or the head's list of devices cannot be written.
    pub fn with_links(mut self) -> anyhow::Result<Self> {
        for worker in &self.workers {
            let link = Link::open(worker.address)?;
            self.lead_through(worker, link.address())?;
            self.links.push(link);
        }
        // Free now, and at an address of its own: nobody takes it before the head does.
        let head: SocketAddr = TcpListener::bind(HEAD).and_then(|free| free.local_addr()).context("bind")?;
        let link = Link::open(head)?;
        let options = ["--ring-listen", &head.to_string(), "--ring-address", &link.address().to_string()];
        self.head.arguments.extend(options.map(OsString::from));
        self.links.push(link);
        Ok(self)
    }

    /// From now on head and other workers reach this one there, and nowhere else.
    ///
    /// # Errors
    /// The head's list of devices cannot be read or written.
    pub fn lead_through(&self, worker: &Worker, address: SocketAddr) -> anyhow::Result<()> {
        let file = self.state().join("peers.json");
        let text = std::fs::read(&file).context("read the peers")?;
        let mut stored: Value = serde_json::from_slice(&text).context("read the peers")?;
        let peers = stored["peers"].as_array_mut().context("no peers")?;
        let peer = peers.iter_mut().find(|peer| peer["name"] == worker.name.as_str());
        peer.with_context(|| format!("no peer `{}`", worker.name))?["addresses"] = json!([address]);
        std::fs::write(&file, stored.to_string()).context("write the peers")
    }

    /// The head's model.
    #[must_use]
    pub fn model(&self) -> &Path {
        &self.model
    }

    /// The folder of the head's state.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.scratch.path().join("head")
    }

    /// The arguments that make this device the ring's head.
    ///
    /// # Errors
    /// A given plan cannot be written to its file.
    fn head_arguments(&self, planned: &Planned) -> anyhow::Result<Vec<OsString>> {
        // Devices are looked for where they were met alone, so that links are not gone round.
        let mut arguments: Vec<OsString> =
            vec!["--ring-no-mdns".into(), "--ring-state".into(), self.state().into()];
        if self.links.is_empty() {
            arguments.extend(["--ring-listen".into(), "127.0.0.1:0".into()]);
        }
        arguments.extend(self.head.arguments.iter().cloned());
        if let Planned::Given(plan) = planned {
            let file = self.scratch.path().join("plan.json");
            std::fs::write(&file, serde_json::to_vec(plan)?).context("write the plan")?;
            arguments.extend(["--ring-plan".into(), file.into()]);
        }
        Ok(arguments)
    }

    /// The head's folder for settings.
    fn config(&self) -> anyhow::Result<PathBuf> {
        let folder = self.scratch.path().join("config");
        std::fs::create_dir_all(&folder).context("make a folder for settings")?;
        Ok(folder)
    }

    /// The head as an agent that serves, with one thread.
    ///
    /// # Errors
    /// It does not come to listen.
    pub async fn serve(&self, planned: &Planned, more: &[&str]) -> anyhow::Result<AgentProcess> {
        let mut command = self.head.baton()?;
        command.args(["serve", "--ring", "--listen", "127.0.0.1:0", "--threads", "1", "--model"]);
        command.arg(&self.model).args(self.head_arguments(planned)?);
        command.arg("--config-dir").arg(self.config()?).args(more);
        AgentProcess::start(&mut command).await
    }

    /// What the head's agent answers to a question about a document, with one thread and without a cloud.
    ///
    /// # Errors
    /// As [`Ask::run`].
    pub async fn ask(
        &self,
        document: &Path,
        question: &str,
        planned: &Planned,
        more: &[&str],
    ) -> anyhow::Result<Report> {
        let mut options: Vec<OsString> =
            ["--no-cloud", "--instant", "--threads", "1", "--ring"].map(OsString::from).into();
        options.extend(self.head_arguments(planned)?);
        options.extend(more.iter().map(OsString::from));
        let scratch = self.config()?;
        let ask = Ask { document, question, model: &self.model, scratch: &scratch, options, live: false };
        tokio::time::timeout(HANG, ask.run()).await.context("the answer hangs")?
    }

    /// What this task takes on the ring.
    ///
    /// # Errors
    /// The head fails.
    pub async fn run(&self, task: &Task, planned: &Planned) -> anyhow::Result<Value> {
        finish_within(&mut self.start(task, planned)?, task.limit).await
    }

    /// The same, begun.
    ///
    /// # Errors
    /// The head does not start.
    pub fn start(&self, task: &Task, planned: &Planned) -> anyhow::Result<Running> {
        let mut command = self.head.bench(&self.model, task)?;
        command.args(self.head_arguments(planned)?);
        Running::start(&mut command)
    }

    /// What this task takes on the head alone.
    ///
    /// # Errors
    /// The head fails.
    pub async fn alone(&self, task: &Task) -> anyhow::Result<Value> {
        let mut command = self.head.bench(&self.model, task)?;
        command.arg("--alone").args(self.head_arguments(&Planned::Searched)?);
        finish_within(&mut Running::start(&mut command)?, task.limit).await
    }
}

impl Seat {
    fn bench(&self, model: &Path, task: &Task) -> anyhow::Result<Command> {
        let mut command = self.baton()?;
        command.args(["ring", "bench", "--json", "--model"]).arg(model);
        let numbers = [
            ("--threads", task.threads),
            ("--prompt", task.prompt),
            ("--tokens", task.tokens),
            ("--sequences", task.sequences),
        ];
        numbers.iter().for_each(|(name, number)| {
            command.args([name, number.to_string().as_str()]);
        });
        Ok(command)
    }
}

/// What a task takes on a device that is in no ring.
///
/// # Errors
/// The device fails.
pub async fn alone(model: &Path, task: &Task) -> anyhow::Result<Value> {
    let mut command = Seat::new("alone").bench(model, task)?;
    finish_within(&mut Running::start(command.arg("--alone"))?, task.limit).await
}

/// The object that a bench prints at its end, which may take so long.
///
/// # Errors
/// The program fails, or takes longer.
pub async fn finish_within(child: &mut Running, limit: Duration) -> anyhow::Result<Value> {
    let answer = answer(child, limit).await;
    let status = tokio::time::timeout(HANG, child.wait()).await.context("the bench does not end")??;
    if !status.success() {
        bail!("the head has ended with {status}");
    }
    answer
}

/// The object, as soon as it is printed; the program is about to end then.
///
/// # Errors
/// It is not printed, or not within `limit`.
pub async fn answer(child: &mut Running, limit: Duration) -> anyhow::Result<Value> {
    let mut said = lines(child)?;
    let line = tokio::time::timeout(limit, said.next_line()).await.context("the bench hangs")??;
    serde_json::from_str(&line.context("the bench printed nothing")?).context("read the bench")
}
