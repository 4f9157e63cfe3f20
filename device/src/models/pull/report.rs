//! What a pull tells while it works, and how it is stopped.

use super::PullError;
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// What a pull tells while it works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It began.
    Start {
        /// The name that the model will have.
        name: String,
        /// Where it comes from.
        source: String,
        /// Bytes to download and unpack; 0 if that is not known.
        of: u64,
    },
    /// It went on. `done` never decreases, and is at most `of`.
    Progress {
        /// Bytes that were downloaded, unpacked or found from an earlier try.
        done: u64,
        /// Bytes to download and unpack.
        of: u64,
    },
    /// Something that the user should know.
    Note {
        /// The text.
        text: String,
    },
}

/// Takes events, on any thread.
pub type Report = Arc<dyn Fn(Event) + Send + Sync>;

/// Counts the progress of a pull over all its files. It never runs backwards, also if bytes are read again.
#[derive(Clone)]
pub(in crate::models) struct Meter {
    report: Report,
    counts: Arc<Counts>,
}

#[derive(Debug)]
struct Counts {
    /// Bytes of files that are finished.
    finished: AtomicU64,
    /// The most that was shown.
    shown: AtomicU64,
    of: u64,
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts.fmt(f)
    }
}

impl Meter {
    /// Counts up to `of` bytes.
    pub(in crate::models) fn new(report: Report, of: u64) -> Self {
        let counts = Counts { finished: AtomicU64::new(0), shown: AtomicU64::new(0), of };
        Self { report, counts: Arc::new(counts) }
    }

    /// Tells that the pull begins.
    pub(super) fn begin(&self, name: &str, source: &str) {
        let (name, source) = (name.to_owned(), source.to_owned());
        (self.report)(Event::Start { name, source, of: self.counts.of });
    }

    /// Tells a note.
    pub(in crate::models) fn note(&self, text: String) {
        (self.report)(Event::Note { text });
    }

    /// Tells that so many bytes of the present file are there.
    pub(in crate::models) fn at(&self, bytes: u64) {
        let Counts { finished, shown, of } = &*self.counts;
        let done = finished.load(Ordering::Relaxed).saturating_add(bytes).min(*of);
        let before = shown.fetch_max(done, Ordering::Relaxed);
        if done > before {
            (self.report)(Event::Progress { done, of: *of });
        }
    }

    /// Tells that `done` of `all` bytes of the rest were unpacked.
    pub(in crate::models) fn share(&self, done: u64, all: u64) {
        let rest = self.counts.of - self.counts.finished.load(Ordering::Relaxed).min(self.counts.of);
        self.at((rest as f64 * (done as f64 / all.max(1) as f64).min(1.0)) as u64);
    }

    /// Tells that a file of so many bytes is finished.
    pub(super) fn finish_file(&self, bytes: u64) {
        self.at(bytes);
        self.counts.finished.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Tells that everything is done.
    pub(super) fn whole(&self) {
        self.at(self.counts.of);
    }
}

/// Says when a pull shall stop.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Makes the pair of who stops and who is stopped. Without the sender, nothing is stopped any more.
    pub fn new() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// Returns [`PullError::Stopped`] if it is time to stop.
    pub(crate) fn check(&self) -> Result<(), PullError> {
        if *self.0.borrow() { Err(PullError::Stopped) } else { Ok(()) }
    }

    /// Waits for the work, or for the time to stop.
    pub(in crate::models) async fn or<T>(&self, work: impl Future<Output = T>) -> Result<T, PullError> {
        let mut told = self.0.clone();
        let stopped = async {
            if told.wait_for(|stop| *stop).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = stopped => Err(PullError::Stopped),
            done = work => Ok(done),
        }
    }

    /// Waits for a time.
    pub(in crate::models) async fn sleep(&self, time: Duration) -> Result<(), PullError> {
        self.or(tokio::time::sleep(time)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn progress_never_runs_backwards() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&told);
        let report: Report = Arc::new(move |event| {
            if let Event::Progress { done, of } = event {
                assert_eq!(of, 100);
                kept.lock().unwrap().push(done);
            }
        });
        let meter = Meter::new(report, 100);
        for at in [10, 30, 0, 5, 30, 31] {
            meter.at(at);
        }
        meter.finish_file(40);
        meter.at(5);
        meter.share(1, 2);
        meter.at(500);
        meter.whole();
        assert_eq!(*told.lock().unwrap(), [10, 30, 31, 40, 45, 70, 100]);
    }

    #[tokio::test]
    async fn a_stop_ends_what_waits() {
        let (sender, stop) = Stop::new();
        assert_eq!(stop.or(async { 1 }).await.unwrap(), 1);
        sender.send_replace(true);
        assert!(matches!(stop.sleep(Duration::from_secs(1000)).await, Err(PullError::Stopped)));
        assert!(stop.check().is_err());
        let (sender, stop) = Stop::new();
        drop(sender);
        assert!(stop.sleep(Duration::ZERO).await.is_ok(), "who is gone stops nothing");
    }
}
