//! Applies changed files and settings while the program runs: connection limits, limits of the queue,
//! certificates.
//!
//! Reads them again on SIGHUP, and when a file's time or size changes. Never: applies half of a change. If
//! settings or a certificate and its key are wrong, the old ones stay in force and the log says so.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use baton_edge::HttpLimits;
use baton_edge::tls::Tls;
use tokio::signal::unix::Signal;
use tracing::{error, info, warn};

use crate::config::Config;
use crate::service::CloudService;

/// How often the time and size of files are checked.
const PERIOD: Duration = Duration::from_secs(2);

/// The settings in force, and what is needed to replace them.
pub(crate) struct Reload<F> {
    pub(crate) config: Config,
    /// Reads the settings again.
    pub(crate) again: F,
    pub(crate) service: CloudService,
    pub(crate) limits: Arc<ArcSwap<HttpLimits>>,
    pub(crate) tls: Option<Arc<Tls>>,
}

/// When a file was changed last, and its size.
type Stamp = Option<(SystemTime, u64)>;

impl<F: Fn() -> anyhow::Result<Config>> Reload<F> {
    /// Watches for SIGHUP and changed files. Never returns.
    pub(crate) async fn run(mut self, mut hangup: Signal) {
        let mut seen = self.stamps();
        loop {
            let asked = tokio::select! {
                Some(()) = hangup.recv() => true,
                () = tokio::time::sleep(PERIOD) => false,
            };
            let now = self.stamps();
            if asked || now != seen {
                seen = now;
                self.take_over();
            }
        }
    }

    fn stamps(&self) -> Vec<Stamp> {
        let mut files: Vec<&PathBuf> = self.config.file.iter().collect();
        if let Some(tls) = &self.tls {
            files.extend([&tls.files().cert, &tls.files().key]);
        }
        files.into_iter().map(|path| stamp(path)).collect()
    }

    fn take_over(&mut self) {
        if let Some(tls) = &self.tls {
            match tls.reload() {
                Ok(()) => info!(cert = %tls.files().cert.display(), "the certificate was read again"),
                Err(err) => {
                    error!(
                        err = &err as &dyn std::error::Error,
                        "the certificate cannot be read again: the old one stays"
                    );
                }
            }
        }
        match (self.again)() {
            Ok(new) => self.settle(new),
            Err(err) => error!(err = format!("{err:#}"), "the old settings stay"),
        }
    }

    fn settle(&mut self, new: Config) {
        for (setting, live) in self.config.changes(&new) {
            if live {
                info!(setting, "taken over");
            } else {
                warn!(setting, "changed, but is read only at start-up: restart to apply it");
            }
        }
        self.service.set_backlog(new.queue, new.backlog, new.deadline);
        let connections_max = self.config.edge.http.connections_max;
        let in_force = self.limits.load().connections_max;
        self.limits.store(Arc::new(HttpLimits { connections_max: in_force, ..new.edge.http }));
        // Settings that were not applied keep their old values.
        self.config.queue = new.queue;
        self.config.backlog = new.backlog;
        self.config.deadline = new.deadline;
        self.config.edge.http = HttpLimits { connections_max, ..new.edge.http };
    }
}

fn stamp(path: &Path) -> Stamp {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}
