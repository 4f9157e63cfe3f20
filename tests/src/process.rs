//! Real programs as child processes: where they are, how they start, and that they end.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, bail};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

/// How long a program may take to print its address: a hang guard, not a measurement.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How long a program may take to stop: a hang guard beyond every drain.
const STOP_LIMIT: Duration = Duration::from_secs(90);

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
        bail!(
            "`{}` is not built; run: cargo build --release -p baton-cloud -p baton-device --bins",
            path.display()
        );
    }
    Ok(path)
}

/// The folder with the demo models: `models` of this checkout.
#[must_use]
pub fn models_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models")
}

/// A running `baton-cloud serve`, killed when dropped.
#[derive(Debug)]
pub struct CloudProcess {
    child: Child,
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
        let mut child = Command::new(program("baton-cloud")?)
            .arg("serve")
            .arg("--model")
            .arg(model)
            .args(["--listen", listen, "--database", database, "--json"])
            .args(options)
            .env("RUST_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .context("start baton-cloud")?;
        let stdout = child.stdout.take().context("baton-cloud has no standard output")?;
        let mut lines = BufReader::new(stdout).lines();
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
