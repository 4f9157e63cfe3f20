//! A worker of a ring as a process that can be killed, and started again with the same state and address.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value;
use tokio::sync::mpsc;

use super::{HANG, Seat, event};
use crate::process::{Running, lines};

/// A worker's process.
#[derive(Debug)]
pub struct Worker {
    /// The process.
    pub child: Running,
    /// The address on which it listens.
    pub address: SocketAddr,
    /// Its name.
    pub name: String,
    /// The folder of its state and of its parts of models.
    pub folder: PathBuf,
    seat: Seat,
    /// The events that it prints. They are always read, so that it never waits for a reader.
    events: mpsc::UnboundedReceiver<Value>,
}

impl Worker {
    pub(super) async fn join(seat: &Seat, folder: &Path, code: &str, head: &str) -> anyhow::Result<Self> {
        Self::start(seat, folder, "127.0.0.1:0", &[code, "--head", head]).await
    }

    async fn start(seat: &Seat, folder: &Path, listen: &str, more: &[&str]) -> anyhow::Result<Self> {
        let mut command = seat.baton()?;
        command
            .args([
                "ring",
                "join",
                "--json",
                "--no-mdns",
                "--name",
                &seat.name,
                "--listen",
                listen,
                "--state",
            ])
            .arg(folder)
            .args(more)
            .args(&seat.arguments);
        let mut child = Running::start(&mut command)?;
        let mut lines = lines(&mut child)?;
        let waiting = event(&mut lines, "waiting").await?;
        let address =
            waiting["address"].as_str().context("no address")?.parse().context("read an address")?;
        let (said, events) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                // Lines that are not events are ignored. If nobody receives events any more, the lines are
                // still read.
                let _ = serde_json::from_str(&line).map(|event| said.send(event));
            }
        });
        let (name, folder) = (seat.name.clone(), folder.to_owned());
        Ok(Self { child, address, name, folder, seat: seat.clone(), events })
    }

    /// Kills the worker.
    ///
    /// # Errors
    /// Fails if it does not die.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        tokio::time::timeout(HANG, self.child.kill()).await.context("the worker does not die")??;
        Ok(())
    }

    /// Starts it again with the same state and address, after it was killed.
    ///
    /// # Errors
    /// Fails if it does not start.
    pub async fn again(&mut self) -> anyhow::Result<()> {
        *self = Self::start(&self.seat, &self.folder, &self.address.to_string(), &[]).await?;
        Ok(())
    }

    /// Returns the next event of this kind that it prints.
    ///
    /// # Errors
    /// Fails if it has ended, or prints no such event in time.
    pub async fn says(&mut self, kind: &str) -> anyhow::Result<Value> {
        let next = async {
            loop {
                let event = self.events.recv().await.context("the worker has ended")?;
                if event["event"] == kind {
                    return Ok(event);
                }
            }
        };
        tokio::time::timeout(HANG, next).await.with_context(|| format!("no event `{kind}` came"))?
    }
}
