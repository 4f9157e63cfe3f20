//! A device that computes layers for somebody else's ring: it waits for a head, takes its part of a plan, and serves it
//! until the head is gone; then it waits for the next.
//!
//! One ring at a time. Threads: this one accepts links; each head's session has one that reads its control channel,
//! one that carries out what it says, one that sends heartbeats whatever the others do; each epoch has one that
//! receives frames, one that computes and one that sends; a few more give pieces of the model to other workers. Between them are bounded queues: a frame is read only where
//! there is room for it. Never trusts a frame further than it was checked: what does not fit ends the epoch, with the
//! sender named.

mod compute;
mod edge;
mod feed;
mod fetch;
mod peers;
mod session;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_plan::Device;

use super::frame::{Failure, FailureCode, Frame};
use super::link::{Key, Link, LinkError, Network, Purpose};
use super::weights::Checked;
use crate::residency::MemoryFor;
use session::Session;

/// Between two looks at whether to stop.
const SLICE: Duration = Duration::from_millis(100);

/// How a worker is set up.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// What people call it; unique in its ring.
    pub name: String,
    /// What it measured of itself; none where it is only to relay.
    pub device: Option<Device>,
    /// Where its parts of models are kept.
    pub folder: PathBuf,
    /// Whole model files that it has, to be used before anything is fetched.
    pub files: Vec<PathBuf>,
    /// Threads that compute.
    pub threads: Option<NonZeroUsize>,
    /// Memory for weights; what does not fit is read from the disk for every token.
    pub memory: MemoryFor,
    /// What of its parts of models was read and found right, in this run of the program.
    pub checked: Checked,
    /// How long opening a link or sending one frame of the control channel may take.
    pub patience: Duration,
    /// How long a head may be silent before it counts as gone.
    pub silence: Duration,
}

impl WorkerOptions {
    /// The usual times; everything else as given.
    pub fn new(name: impl Into<String>, folder: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            device: None,
            folder: folder.into(),
            files: Vec::new(),
            threads: None,
            memory: MemoryFor::Auto,
            checked: Checked::default(),
            patience: Duration::from_secs(10),
            silence: Duration::from_secs(15),
        }
    }
}

/// What a worker has to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerEvent {
    /// A head has connected.
    Head {
        /// Its key.
        key: Key,
    },
    /// Weights that are here are read and hashed before they are computed with.
    Checking {
        /// Bytes that were read of those that were to be.
        done: u64,
        /// Bytes that were to be read.
        total: u64,
    },
    /// Weights are coming.
    Fetching {
        /// Bytes that are there of those that were missing.
        done: u64,
        /// Bytes that were missing.
        total: u64,
    },
    /// It serves this epoch.
    Ready {
        /// The epoch.
        epoch: u64,
        /// Its place in the ring.
        place: usize,
        /// Its layers.
        layers: Vec<usize>,
    },
    /// It cannot go on in this epoch, and waits for the next.
    Failed {
        /// The epoch.
        epoch: u64,
        /// Why.
        words: String,
    },
    /// The head is gone.
    HeadGone {
        /// Its key.
        key: Key,
    },
}

/// Who hears [`WorkerEvent`]s, from several threads.
pub type Said = Arc<dyn Fn(WorkerEvent) + Send + Sync>;

/// Serves heads that `is_head` knows, one at a time, until `stop` is set.
///
/// # Errors
/// [`LinkError`] where the network takes no more links.
pub fn serve(
    network: &Arc<dyn Network>,
    options: &WorkerOptions,
    is_head: &dyn Fn(&Key) -> bool,
    said: &Said,
    stop: &AtomicBool,
) -> Result<(), LinkError> {
    let mut session: Option<Session> = None;
    while !stop.load(Ordering::Acquire) {
        let (link, purpose) = match network.accept(SLICE) {
            Ok(accepted) => accepted,
            Err(LinkError::TimedOut) => continue,
            Err(err) => return Err(err),
        };
        match purpose {
            Purpose::Ring => {
                if let Some(session) = &session {
                    session.arrived(link);
                }
            }
            Purpose::Weights => {
                if let Some(session) = &session {
                    session.feed(link);
                }
            }
            Purpose::Edge => {
                if let Some(session) = &session {
                    session.measured_over(link);
                }
            }
            Purpose::Control if !is_head(&link.peer) => {
                tracing::warn!(peer = ?link.peer, "a device that is no head of this worker asked for control");
            }
            Purpose::Control => match session.take() {
                // The same head again has lost its old link; another one has to wait.
                Some(old) if old.is_alive() && old.head() != link.peer => {
                    refuse(link, options);
                    session = Some(old);
                }
                old => {
                    drop(old);
                    session = Session::start(network, link, options, said)
                        .inspect_err(|err| tracing::warn!(%err, "a session cannot be started"))
                        .ok();
                }
            },
        }
    }
    Ok(())
}

fn refuse(mut link: Link, options: &WorkerOptions) {
    let words = format!("`{}` serves another ring", options.name);
    let frame = Frame::Failed(Failure { epoch: 0, code: FailureCode::Busy, words }).encode();
    // Who does not hear it sees the link end.
    let _unheard = link.sender.send(&frame, options.patience);
}
