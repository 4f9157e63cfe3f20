//! Real programs as child processes: finds them, starts them, and ends them.

use std::{
    ffi::OsString,
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

/// Longest time for a program to print its address: a guard against hangs, not a measurement.
const START_LIMIT: Duration = Duration::from_secs(120);

/// Longest time for a program to stop: a guard against hangs, longer than any drain.
const STOP_LIMIT: Duration = Duration::from_secs(90);

/// Longest time for a killed program to end; it may be reading from a slow disk.
const GONE_LIMIT: Duration = Duration::from_secs(20);

/// Returns the path of a program of this workspace, beside the running executable.
///
/// # Errors
/// Fails if the program has not been built; the message names the command that builds it.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("find the running program")?;
    let mut folder = own.parent().context("the running program has no folder")?;
    if folder.ends_with("deps") {
        folder = folder.parent().context("the build folder has no parent")?;
    }
    let path = folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    if !path.is_file() {
        bail!("`{}` is not built; run: cargo build --release --workspace --bins", path.display());
    }
    Ok(path)
}

/// Makes a command of a program of this workspace that computes on the CPU alone, as [`without_gpu`].
///
/// # Errors
/// The errors of [`program`].
pub fn cpu_program(name: &str) -> anyhow::Result<std::process::Command> {
    let mut command = std::process::Command::new(program(name)?);
    without_gpu(&mut command);
    Ok(command)
}

/// Lets a program of this workspace compute on the CPU alone. Its answers and times then depend neither on
/// this machine's GPU nor on the caller's settings of one. `--gpu`, or `BATON_GPU` set later, chooses one.
/// Nor do they depend on what earlier runs have kept of their prompts: `BATON_PREFIX_MEMORY` is off, too.
/// Names stay as they are (`BATON_NO_NAMES`), because the demo models were trained on documents full of
/// invented names, and cannot answer if placeholders stand for them.
pub fn without_gpu(command: &mut std::process::Command) -> &mut std::process::Command {
    command.env("BATON_PREFIX_MEMORY", "off").env("BATON_NO_NAMES", "true");
    command.env("BATON_GPU", "off").env_remove("BATON_VRAM").env_remove("BATON_GPU_OFFLOAD")
}

/// Returns the folder with the demo models: `models` of this checkout.
#[must_use]
pub fn models_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models")
}

/// Returns the lines that a program prints.
///
/// # Errors
/// Fails if its output was taken before, or is not a pipe.
pub fn lines(child: &mut Child) -> anyhow::Result<Lines<BufReader<ChildStdout>>> {
    Ok(BufReader::new(child.stdout.take().context("the program has no output, or it was taken")?).lines())
}

/// A running program. When dropped it is killed and has ended, so that it writes nothing to a folder that is
/// removed next.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Starts the program.
    ///
    /// # Errors
    /// Fails if it cannot be started.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let child = command.kill_on_drop(true).spawn();
        let name = command.as_std().get_program().to_string_lossy();
        Ok(Self(child.with_context(|| format!("start {name}"))?))
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.start_kill();
        let begun = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) && begun.elapsed() < GONE_LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A running `baton serve`, killed when dropped.
#[derive(Debug)]
pub struct AgentProcess {
    child: Running,
    url: String,
}

impl AgentProcess {
    /// Starts the agent with this command and waits until it listens.
    ///
    /// # Errors
    /// Fails if it does not start, ends before it listens, or does not listen in time.
    pub async fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
        let mut lines = lines(&mut child)?;
        let listening = async {
            while let Some(line) = lines.next_line().await? {
                if let Some(url) = line.strip_prefix("listening on ") {
                    return Ok(url.to_owned());
                }
            }
            bail!("baton serve ended before it listened; its message is above")
        };
        let url = tokio::time::timeout(START_LIMIT, listening).await;
        let url = url.context("baton serve does not listen in time")??;
        // The rest of its output is read too, so that it never waits for a reader.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { child, url })
    }

    /// Returns the URL on which it listens.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the process id.
    ///
    /// # Errors
    /// Fails if it has ended.
    pub fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("baton serve has ended")
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// Fails if it does not end in time.
    pub async fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        let ended = tokio::time::timeout(STOP_LIMIT, self.child.wait()).await;
        ended.context("baton serve does not stop in time")?.context("wait for baton serve")
    }

    /// Returns its exit status, if it has ended.
    ///
    /// # Errors
    /// Fails if the system does not report it.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().context("look at baton serve")
    }
}

/// A running `baton-cloud serve`, killed when dropped.
#[derive(Debug)]
pub struct CloudProcess {
    child: Running,
    address: String,
}

impl CloudProcess {
    /// Starts the cloud service on a free port of the loopback interface, with its own database in memory.
    ///
    /// # Errors
    /// Fails if the program is not built, does not start, or ends before it prints its address.
    pub async fn start(model: &Path, options: &[OsString]) -> anyhow::Result<Self> {
        Self::start_on(model, ":memory:", options).await
    }

    /// Like [`Self::start`], over a database that other processes may open too.
    ///
    /// # Errors
    /// The errors of [`Self::start`].
    pub async fn start_on(model: &Path, database: &str, options: &[OsString]) -> anyhow::Result<Self> {
        Self::start_at("127.0.0.1:0", database, model, options).await
    }

    /// Like [`Self::start_on`], at an address that another process may have used before.
    ///
    /// # Errors
    /// The errors of [`Self::start`].
    pub async fn start_at(
        listen: &str,
        database: &str,
        model: &Path,
        options: &[OsString],
    ) -> anyhow::Result<Self> {
        Self::listening(Self::command(model, options)?.args(["--listen", listen, "--database", database]))
            .await
    }

    /// Like [`Self::start_on`], with more variables in its environment.
    ///
    /// # Errors
    /// The errors of [`Self::start`].
    pub async fn start_with(
        variables: &[(&str, &str)],
        model: &Path,
        database: &str,
        options: &[OsString],
    ) -> anyhow::Result<Self> {
        let mut command = Self::command(model, options)?;
        command.args(["--listen", "127.0.0.1:0", "--database", database]);
        Self::listening(command.envs(variables.iter().copied())).await
    }

    /// Like [`Self::start`], with its log in a file, from the level `info` on.
    ///
    /// # Errors
    /// The errors of [`Self::start`].
    pub async fn start_logged(
        model: &Path,
        options: &[OsString],
        log: std::fs::File,
    ) -> anyhow::Result<Self> {
        let mut command = Self::command(model, options)?;
        command.args(["--listen", "127.0.0.1:0", "--database", ":memory:"]);
        Self::listening(command.env("RUST_LOG", "info").stderr(log)).await
    }

    fn command(model: &Path, options: &[OsString]) -> anyhow::Result<Command> {
        let mut command = Command::from(cpu_program("baton-cloud")?);
        command.arg("serve").arg("--model").arg(model).arg("--json").args(options);
        // The second is the same setting as in the container image.
        command.env("RUST_LOG", "error").env("MALLOC_ARENA_MAX", "4");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        Ok(command)
    }

    /// Starts the service and waits until it has printed its address.
    async fn listening(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = Running::start(command)?;
        let mut lines = lines(&mut child)?;
        let line = tokio::time::timeout(START_LIMIT, lines.next_line())
            .await
            .context("baton-cloud printed no address in time")?
            .context("read from baton-cloud")?;
        let Some(line) = line else { bail!("baton-cloud ended before it listened; its message is above") };
        let hello: serde_json::Value =
            serde_json::from_str(&line).with_context(|| format!("read the address from `{line}`"))?;
        let address = hello["listening"].as_str().context("baton-cloud named no address")?;
        let address = address.trim_start_matches("http://").trim_start_matches("https://").to_owned();
        Ok(Self { child, address })
    }

    /// Returns `host:port` of the service.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the process id.
    ///
    /// # Errors
    /// Fails if it has ended.
    pub fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("baton-cloud has ended")
    }

    /// Returns the process's anonymous memory in bytes, which the system cannot free by dropping file pages;
    /// Linux only.
    ///
    /// # Errors
    /// Fails if it has ended, or the system does not say.
    pub fn memory_bytes(&self) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/status", self.pid()?);
        let status = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib: u64 = line
            .and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
            .with_context(|| format!("{path} names no RssAnon"))?;
        Ok(kib * 1024)
    }

    /// Kills the process at once, as a power cut would.
    ///
    /// # Errors
    /// Fails if the process could not be killed.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("kill baton-cloud")
    }

    /// Asks the process to stop, as Kubernetes does, and waits until it has ended.
    ///
    /// # Errors
    /// Fails if it has ended already, or does not end in time.
    pub async fn terminate(&mut self) -> anyhow::Result<ExitStatus> {
        let pid = self.child.id().context("baton-cloud has ended already")?;
        let sent = Command::new("kill").args(["-TERM", &pid.to_string()]).status().await;
        sent.context("run kill")?;
        let ended = tokio::time::timeout(STOP_LIMIT, self.child.wait()).await;
        ended.context("baton-cloud does not stop in time")?.context("wait for baton-cloud")
    }
}
