//! Real programs as child processes: where they are, how they start, and that they end.

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

/// How long a program may take to print its address: a hang guard, not a measurement.
const START_LIMIT: Duration = Duration::from_secs(120);

/// How long a program may take to stop: a hang guard beyond every drain.
const STOP_LIMIT: Duration = Duration::from_secs(90);

/// How long a killed program may take to be gone: it may be reading from a slow disk.
const GONE_LIMIT: Duration = Duration::from_secs(20);

/// The path of a program that this workspace builds, beside the running executable.
///
/// # Errors
/// The program has not been built; the message names the command that builds it.
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

/// The folder with the demo models: `models` of this checkout.
#[must_use]
pub fn models_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models")
}

/// What a program prints, line by line.
///
/// # Errors
/// Its output was taken before, or is not a pipe.
pub fn lines(child: &mut Child) -> anyhow::Result<Lines<BufReader<ChildStdout>>> {
    Ok(BufReader::new(child.stdout.take().context("the program has no output, or it was taken")?).lines())
}

/// A program that runs. When dropped it is killed, and gone: nothing of it writes to a folder that is removed next.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Starts it.
    ///
    /// # Errors
    /// It cannot be started.
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
    /// Starts the agent by this command and waits until it listens.
    ///
    /// # Errors
    /// It does not start, ends before it listens, or does not listen in time.
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
        // Whatever else it says is taken from it, so that it never waits for a reader.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { child, url })
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How it has ended, if it has.
    ///
    /// # Errors
    /// The system does not say.
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
    /// Starts the cloud service on a free port of the loopback interface, with a database of its own in memory.
    ///
    /// # Errors
    /// The program is not built, does not start, or ends before it prints its address.
    pub async fn start(model: &Path, options: &[OsString]) -> anyhow::Result<Self> {
        Self::start_on(model, ":memory:", options).await
    }

    /// The same over a database that others may open too.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub async fn start_on(model: &Path, database: &str, options: &[OsString]) -> anyhow::Result<Self> {
        Self::start_at("127.0.0.1:0", database, model, options).await
    }

    /// The same at an address that may have been another process' before.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub async fn start_at(
        listen: &str,
        database: &str,
        model: &Path,
        options: &[OsString],
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(program("baton-cloud")?);
        command
            .arg("serve")
            .arg("--model")
            .arg(model)
            .args(["--listen", listen, "--database", database, "--json"])
            .args(options)
            .env("RUST_LOG", "error")
            // As in the image.
            .env("MALLOC_ARENA_MAX", "4")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = Running::start(&mut command)?;
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

    /// `host:port` of the service.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The number that the system knows the process by.
    ///
    /// # Errors
    /// It has ended.
    pub fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("baton-cloud has ended")
    }

    /// Memory of the process that the system cannot take back by dropping pages of a file, in bytes; Linux only.
    ///
    /// # Errors
    /// It has ended, or the system does not say.
    pub fn memory_bytes(&self) -> anyhow::Result<u64> {
        let path = format!("/proc/{}/status", self.pid()?);
        let status = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib: u64 = line
            .and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
            .with_context(|| format!("{path} names no RssAnon"))?;
        Ok(kib * 1024)
    }

    /// Kills the process without a farewell, as a power cut would.
    ///
    /// # Errors
    /// The process could not be killed.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("kill baton-cloud")
    }

    /// Asks the process to stop, as Kubernetes does, and waits until it has.
    ///
    /// # Errors
    /// It has ended already, or does not end in time.
    pub async fn terminate(&mut self) -> anyhow::Result<ExitStatus> {
        let pid = self.child.id().context("baton-cloud has ended already")?;
        let sent = Command::new("kill").args(["-TERM", &pid.to_string()]).status().await;
        sent.context("run kill")?;
        let ended = tokio::time::timeout(STOP_LIMIT, self.child.wait()).await;
        ended.context("baton-cloud does not stop in time")?.context("wait for baton-cloud")
    }
}
