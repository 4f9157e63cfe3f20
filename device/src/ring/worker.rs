//! A device that computes layers for another device's ring: it waits for a head and serves its part of the
//! plan until the head is gone. Then it waits for the next head.
//!
//! It serves one ring at a time. Its threads:
//!
//! - This one accepts links.
//! - Each head's session has one that reads the control channel, one that executes its messages, and one
//!   that sends heartbeats independently.
//! - Each epoch has one that receives frames, one that computes, and one that sends.
//! - A few more serve pieces of the model to other workers.
//!
//! Bounded queues connect them: a frame is read only if there is room for it. A frame is used only as far
//! as it was checked. An invalid frame ends the epoch, and its sender is named.

mod compute;
mod edge;
mod fetch;
mod peers;
mod piece_server;
mod session;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_plan::Device;

use super::frame::{Failure, FailureCode, Frame};
use super::link::{Key, Link, LinkError, Network, Purpose};
use super::weights::CheckedPieces;
use crate::residency::MemoryFor;
use session::Session;

/// Wait between two checks whether to stop.
const SLICE: Duration = Duration::from_millis(100);

/// How a worker is set up.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// Its name, unique in its ring.
    pub name: String,
    /// Its own measurements; `None` if it only relays.
    pub device: Option<Device>,
    /// Where its parts of models are stored.
    pub folder: PathBuf,
    /// Whole model files on this device, which are used before anything is fetched.
    pub files: Vec<PathBuf>,
    /// Threads that compute.
    pub threads: Option<NonZeroUsize>,
    /// Memory for weights; what does not fit is read from the disk for every token.
    pub memory: MemoryFor,
    /// Which parts of its models were read and found correct in this run of the program.
    pub checked: CheckedPieces,
    /// How long opening a link, or sending one frame of the control channel, may take.
    pub patience: Duration,
    /// How long a head may be silent before it counts as gone.
    pub silence: Duration,
}

impl WorkerOptions {
    /// Returns the usual times, with the given name and folder.
    pub fn new(name: impl Into<String>, folder: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            device: None,
            folder: folder.into(),
            files: Vec::new(),
            threads: None,
            memory: MemoryFor::Auto,
            checked: CheckedPieces::default(),
            patience: Duration::from_secs(10),
            silence: Duration::from_secs(15),
        }
    }
}

/// What a worker reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerEvent {
    /// A head has connected.
    Head {
        /// Its key.
        key: Key,
    },
    /// Weights that are present are read and hashed before they are used.
    Checking {
        /// Bytes read so far.
        done: u64,
        /// Bytes to read.
        total: u64,
    },
    /// Missing weights are being fetched.
    Fetching {
        /// Bytes that have arrived.
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
        /// The reason.
        words: String,
    },
    /// The head is gone.
    HeadGone {
        /// Its key.
        key: Key,
    },
}

/// Receives [`WorkerEvent`]s, from several threads.
pub type EventSink = Arc<dyn Fn(WorkerEvent) + Send + Sync>;

/// Serves heads for which `is_head` returns true, one at a time, until `stop` is set.
///
/// # Errors
/// [`LinkError`] if the network accepts no more links.
pub fn serve(
    network: &Arc<dyn Network>,
    options: &WorkerOptions,
    is_head: &dyn Fn(&Key) -> bool,
    said: &EventSink,
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
                    session.serve_pieces(link);
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
                // If the same head connects again, it has lost its old link; another head must wait.
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
    // If the head does not receive it, it sees the link end.
    let _unheard = link.sender.send(&frame, options.patience);
}
