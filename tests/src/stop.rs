//! Handles signals to stop. The current work is dropped, so that destructors end and remove whatever it has
//! begun. Work that never awaits goes on until it does.

use std::fmt;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// The program was told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    signal: &'static str,
    number: u8,
}

impl Stopped {
    /// Returns the exit code that a shell reports for a program ended by this signal.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        128 + self.number
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "stopped by {}", self.signal)
    }
}

impl std::error::Error for Stopped {}

/// A listener for SIGINT and SIGTERM.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<Option<Stopped>>);

impl Stop {
    /// Listens while the executor runs. The second signal ends the program at once.
    ///
    /// # Errors
    /// Fails if the system does not let this program listen.
    pub fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("listen for signals");
        let (mut interrupt, mut terminate) =
            (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
        let (said, heard) = watch::channel(None);
        tokio::spawn(async move {
            said.send_replace(Some(next(&mut interrupt, &mut terminate).await));
            let again = next(&mut interrupt, &mut terminate).await;
            std::process::exit(again.exit_code().into());
        });
        Ok(Self(heard))
    }

    /// Runs the work unless the program is told to stop, which drops the work.
    ///
    /// # Errors
    /// The work's own errors, and [`Stopped`].
    pub async fn unless<T>(&self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        let mut heard = self.0.clone();
        let stopped = async {
            match heard.wait_for(Option::is_some).await.map(|stopped| *stopped) {
                Ok(Some(stopped)) => stopped,
                // The listener is gone.
                Ok(None) | Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            stopped = stopped => Err(stopped.into()),
            done = work => done,
        }
    }
}

async fn next(interrupt: &mut Signal, terminate: &mut Signal) -> Stopped {
    tokio::select! {
        _ = interrupt.recv() => Stopped { signal: "SIGINT", number: 2 },
        _ = terminate.recv() => Stopped { signal: "SIGTERM", number: 15 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_ends_by_itself_or_by_the_word() {
        let (said, heard) = watch::channel(None);
        let stop = Stop(heard);
        assert_eq!(stop.unless(async { Ok(7) }).await.unwrap(), 7);
        said.send_replace(Some(Stopped { signal: "SIGTERM", number: 15 }));
        let err = stop.unless(std::future::pending::<anyhow::Result<()>>()).await.unwrap_err();
        let err = err.context("measure hops");
        assert_eq!(err.downcast_ref::<Stopped>().map(|stopped| stopped.exit_code()), Some(143));
        assert_eq!(format!("{err:#}"), "measure hops: stopped by SIGTERM");
    }
}
