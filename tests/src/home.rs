//! The devices of a home as processes: a head's state folder, workers that serve it, and the links between
//! them.
//!
//! Devices are paired by their codes and find each other by address. Each may be started by another program,
//! for example one that binds it to a CPU or puts it into a control group. Every connection between two
//! devices may be a slow [`Link`]. Wall-clock time is only a guard against hangs. When a home is dropped, its
//! workers end before its folder is removed.

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
use crate::process::{AgentProcess, Running, lines, models_folder, program, without_gpu};

/// Longest time for one step of a program: a guard against hangs.
const HANG: Duration = Duration::from_secs(120);
/// The head's address if there are links: a loopback address that nothing else is bound to.
const HEAD: &str = "127.77.0.1:0";

/// Returns the path of the demo's model; it has five layers.
#[must_use]
pub fn model() -> PathBuf {
    models_folder().join("demo-device.gguf")
}

/// How to start the program of one device.
#[derive(Debug, Clone, Default)]
pub struct Seat {
    /// The device's name.
    pub name: String,
    /// A program that starts it, with arguments; empty to start it directly.
    pub launcher: Vec<OsString>,
    /// More arguments: for a worker of `baton ring join`, for the head of the programs that compute.
    pub arguments: Vec<OsString>,
}

impl Seat {
    /// Makes a device of this name that is started directly.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Binds the device to one CPU.
    #[must_use]
    pub fn on_cpu(mut self, cpu: usize) -> Self {
        self.launcher.extend(["taskset".into(), "-c".into(), cpu.to_string().into()]);
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn with(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Makes the command that starts `baton` for this device, with its output piped.
    ///
    /// # Errors
    /// Fails if it is not built.
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
        without_gpu(command.as_std_mut());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).env("RUST_LOG", "error");
        Ok(command)
    }
}

/// A task for `baton ring bench`.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// Number of tokens of the prompt.
    pub prompt: usize,
    /// Number of tokens to write.
    pub tokens: usize,
    /// Number of sequences computed together.
    pub sequences: usize,
    /// Number of the head's threads.
    pub threads: usize,
    /// Longest time: a guard against hangs.
    pub limit: Duration,
}

impl Task {
    /// Makes a task with a prompt of 96 tokens, one sequence and one thread.
    #[must_use]
    pub fn of_tokens(tokens: usize) -> Self {
        Self { prompt: 96, tokens, sequences: 1, threads: 1, limit: HANG }
    }
}

/// The plan of a ring.
#[derive(Debug, Clone)]
pub enum Planned {
    /// This plan.
    Given(Plan),
    /// The plan that the planner finds.
    Searched,
}

impl Planned {
    /// Makes a plan of these devices, the head first, with this many layers each and this many rounds; no
    /// memory is kept for reading ahead.
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
    // Fields are dropped in this order: processes end before their folder is removed.
    /// The workers, in the given order.
    pub workers: Vec<Worker>,
    /// The links to the workers in the same order, then the link to the head; empty if devices connect
    /// directly.
    pub links: Vec<Link>,
    head: Seat,
    model: PathBuf,
    scratch: tempfile::TempDir,
}

/// Returns the next event of this kind that a program prints.
///
/// # Errors
/// Fails if the program ends, prints something that is not an event, or prints no event of this kind in time.
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
    /// Makes a ring of this head and these workers over this model, each paired by a code of its own. All
    /// device folders are inside one folder below `folder`.
    ///
    /// # Errors
    /// Fails if a program is not built or does not do its part.
    pub async fn below(folder: &Path, model: PathBuf, head: Seat, seats: &[Seat]) -> anyhow::Result<Self> {
        let scratch = tempfile::tempdir_in(folder).context("make a folder for the home")?;
        Self::paired(scratch, model, head, seats).await
    }

    /// Like [`Self::below`], with a copy of the model, because a head writes hashes beside its model.
    ///
    /// # Errors
    /// The errors of [`Self::below`].
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

    /// Puts a link in front of every device, so that each hop of the ring goes through one; without delay at
    /// first. Linux only, because it needs more than one loopback address.
    ///
    /// # Errors
    /// Fails if a port cannot be had, or the head's list of devices cannot be written.
    pub fn with_links(mut self) -> anyhow::Result<Self> {
        for worker in &self.workers {
            let link = Link::open(worker.address)?;
            self.lead_through(worker, link.address())?;
            self.links.push(link);
        }
        // The port is free, and nothing else uses this address, so nobody takes it before the head does.
        let head: SocketAddr = TcpListener::bind(HEAD).and_then(|free| free.local_addr()).context("bind")?;
        let link = Link::open(head)?;
        let options = ["--ring-listen", &head.to_string(), "--ring-address", &link.address().to_string()];
        self.head.arguments.extend(options.map(OsString::from));
        self.links.push(link);
        Ok(self)
    }

    /// Makes the head and the other workers reach this worker only at `address`.
    ///
    /// # Errors
    /// Fails if the head's list of devices cannot be read or written.
    pub fn lead_through(&self, worker: &Worker, address: SocketAddr) -> anyhow::Result<()> {
        let file = self.state().join("peers.json");
        let text = std::fs::read(&file).context("read the peers")?;
        let mut stored: Value = serde_json::from_slice(&text).context("read the peers")?;
        let peers = stored["peers"].as_array_mut().context("no peers")?;
        let peer = peers.iter_mut().find(|peer| peer["name"] == worker.name.as_str());
        peer.with_context(|| format!("no peer `{}`", worker.name))?["addresses"] = json!([address]);
        std::fs::write(&file, stored.to_string()).context("write the peers")
    }

    /// Returns the head's model.
    #[must_use]
    pub fn model(&self) -> &Path {
        &self.model
    }

    /// Returns the folder of the head's state.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.scratch.path().join("head")
    }

    /// Returns the arguments that make this device the ring's head.
    ///
    /// # Errors
    /// Fails if a given plan cannot be written to its file.
    fn head_arguments(&self, planned: &Planned) -> anyhow::Result<Vec<OsString>> {
        // Devices are looked for only at known addresses, so that the links are not bypassed.
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

    /// Returns the head's folder for settings, and makes it.
    fn config(&self) -> anyhow::Result<PathBuf> {
        let folder = self.scratch.path().join("config");
        std::fs::create_dir_all(&folder).context("make a folder for settings")?;
        Ok(folder)
    }

    /// Starts the head as an agent that serves, with one thread.
    ///
    /// # Errors
    /// Fails if it does not come to listen.
    pub async fn serve(&self, planned: &Planned, more: &[&str]) -> anyhow::Result<AgentProcess> {
        let mut command = self.head.baton()?;
        command.args(["serve", "--ring", "--listen", "127.0.0.1:0", "--threads", "1", "--model"]);
        command.arg(&self.model).args(self.head_arguments(planned)?);
        command.arg("--config-dir").arg(self.config()?).args(more);
        AgentProcess::start(&mut command).await
    }

    /// Asks the head's agent a question about a document, with one thread and without a cloud.
    ///
    /// # Errors
    /// The errors of [`Ask::run`].
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

    /// Runs this task on the ring; returns the figures.
    ///
    /// # Errors
    /// Fails if the head fails.
    pub async fn run(&self, task: &Task, planned: &Planned) -> anyhow::Result<Value> {
        finish_within(&mut self.start(task, planned)?, task.limit).await
    }

    /// Starts this task on the ring.
    ///
    /// # Errors
    /// Fails if the head does not start.
    pub fn start(&self, task: &Task, planned: &Planned) -> anyhow::Result<Running> {
        let mut command = self.head.bench(&self.model, task)?;
        command.args(self.head_arguments(planned)?);
        Running::start(&mut command)
    }

    /// Runs this task on the head alone; returns the figures.
    ///
    /// # Errors
    /// Fails if the head fails.
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

/// Runs a task on a device without a ring; returns the figures.
///
/// # Errors
/// Fails if the device fails.
pub async fn alone(model: &Path, task: &Task) -> anyhow::Result<Value> {
    let mut command = Seat::new("alone").bench(model, task)?;
    finish_within(&mut Running::start(command.arg("--alone"))?, task.limit).await
}

/// Returns the object that a bench prints at its end, and waits for that at most `limit`.
///
/// # Errors
/// Fails if the program fails, or takes longer.
pub async fn finish_within(child: &mut Running, limit: Duration) -> anyhow::Result<Value> {
    let answer = answer(child, limit).await;
    let status = tokio::time::timeout(HANG, child.wait()).await.context("the bench does not end")??;
    if !status.success() {
        bail!("the head has ended with {status}");
    }
    answer
}

/// Returns the object as soon as it is printed; the program then still has to end.
///
/// # Errors
/// Fails if it is not printed, or not within `limit`.
pub async fn answer(child: &mut Running, limit: Duration) -> anyhow::Result<Value> {
    let mut said = lines(child)?;
    let line = tokio::time::timeout(limit, said.next_line()).await.context("the bench hangs")??;
    serde_json::from_str(&line.context("the bench printed nothing")?).context("read the bench")
}
