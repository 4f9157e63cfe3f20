//! A worker as the head sees it: its control channel, its heartbeats, what it has failed at.
//!
//! One thread for each reads the channel, answers requests for weights, sends heartbeats, and notices silence. It
//! decides nothing: whether a device stays in the ring is the head's to say.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::super::edges::{self, EdgeBook, MEASURE};
use super::super::frame::{Failure, Frame, Heartbeat, Hello, NextNode, PieceOf, WayTo};
use super::super::link::{FrameReceiver, FrameSender, Key, Link, LinkError, Network, Purpose};
use super::super::weights::{BATCH, Manifest, WeightsError};
use super::{RingError, chain};

/// Heartbeats that may be missed.
const MISSED_MAX: u32 = 3;
/// Between two looks at the time.
const SLICE: Duration = Duration::from_millis(20);

/// The model's file, for those who lack parts of it.
#[derive(Debug)]
pub(super) struct Shelf {
    pub(super) manifest: Manifest,
    pub(super) path: PathBuf,
    pub(super) file: File,
}

impl Shelf {
    /// A piece, as the list says.
    fn piece(&self, index: u32) -> Result<Vec<u8>, WeightsError> {
        let bytes = self.manifest.piece(&self.file, &self.path, index)?;
        // Otherwise the worker would seem to be at fault.
        let rotten = |_| WeightsError::Rotten { path: self.path.clone(), pieces: 1 };
        self.manifest.check(index, &bytes).map_err(rotten)?;
        Ok(bytes)
    }
}

/// What is known of a worker at the moment.
#[derive(Debug, Clone)]
pub(super) struct State {
    /// Its latest heartbeat.
    pub(super) beat: Heartbeat,
    /// The newest epoch that it is ready for.
    pub(super) ready: u64,
    /// Whether it has what it was to fetch before it has a part.
    pub(super) provided: bool,
    /// Its latest failure.
    pub(super) failure: Option<Failure>,
    /// Why it is gone.
    pub(super) lost: Option<String>,
    /// When it was last given a piece of the model, here or by another worker.
    pub(super) fed: Instant,
    /// The way that it measured last.
    pub(super) edge: Option<WayTo>,
}

/// A worker. Dropping it ends its control channel.
pub(super) struct Member {
    pub(super) node: NextNode,
    pub(super) hello: Hello,
    shared: Arc<Shared>,
}

struct Shared {
    sender: Mutex<Box<dyn FrameSender>>,
    state: Mutex<State>,
    ended: AtomicBool,
    patience: Duration,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Member {
    /// Opens the control channel to a worker, hears who it is, and measures the way to it, unless that is known.
    pub(super) fn connect(
        network: &dyn Network,
        node: &NextNode,
        shelf: &Arc<Shelf>,
        book: &EdgeBook,
        (heartbeat, patience): (Duration, Duration),
    ) -> Result<Self, RingError> {
        let unreachable = |err| RingError::Member { address: node.address.clone(), err };
        let link = network.connect(node, Purpose::Control, patience).map_err(unreachable)?;
        let Link { mut sender, mut receiver, .. } = link;
        let begun = Instant::now();
        let hello = loop {
            let bytes = receiver.receive(patience).map_err(unreachable)?;
            match Frame::decode(&bytes) {
                Ok(Frame::Hello(hello)) => break hello,
                Ok(Frame::Heartbeat(_)) if begun.elapsed() < patience => {}
                Ok(Frame::Failed(failure)) => return Err(RingError::Refused { words: failure.words }),
                Ok(_) => return Err(unreachable(LinkError::Refused)),
                Err(err) => return Err(unreachable(LinkError::Network(Box::new(err)))),
            }
        };
        let own = network.own().key;
        weigh(book, (own, node.key), sender.as_mut(), receiver.as_mut()).map_err(unreachable)?;
        let state = State {
            beat: Heartbeat::default(),
            ready: 0,
            provided: false,
            failure: None,
            lost: None,
            fed: Instant::now(),
            edge: None,
        };
        let shared = Arc::new(Shared {
            sender: Mutex::new(sender),
            state: Mutex::new(state),
            ended: AtomicBool::new(false),
            patience,
        });
        let (own, shelf) = (Arc::clone(&shared), Arc::clone(shelf));
        std::thread::Builder::new()
            .name("baton-ring-member".into())
            .spawn(move || attend(&own, receiver, &shelf, heartbeat))
            .map_err(RingError::Threads)?;
        Ok(Self { node: node.clone(), hello, shared })
    }

    pub(super) fn name(&self) -> &str {
        &self.hello.name
    }

    pub(super) fn state(&self) -> State {
        locked(&self.shared.state).clone()
    }

    /// Why the worker is gone, if it is.
    pub(super) fn lost(&self) -> Option<String> {
        locked(&self.shared.state).lost.clone()
    }

    /// What it failed at in this epoch.
    pub(super) fn failure(&self, epoch: u64) -> Option<Failure> {
        locked(&self.shared.state).failure.clone().filter(|failure| failure.epoch == epoch)
    }

    pub(super) fn send(&self, frame: &Frame) -> Result<(), LinkError> {
        self.shared.send(frame)
    }
}

/// Measures a way where it is not known or has drifted.
fn weigh(
    book: &EdgeBook,
    (own, other): (Key, Key),
    sender: &mut dyn FrameSender,
    receiver: &mut dyn FrameReceiver,
) -> Result<(), LinkError> {
    let latency_s = edges::latency(sender, receiver, MEASURE)?;
    if !book.holds(own, other, latency_s) {
        book.put(own, other, edges::measure(sender, receiver, MEASURE)?);
    }
    Ok(())
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
    }
}

impl Shared {
    fn send(&self, frame: &Frame) -> Result<(), LinkError> {
        locked(&self.sender).send(&frame.encode(), self.patience)
    }

    fn lose(&self, words: String) {
        locked(&self.state).lost.get_or_insert(words);
    }

    /// Takes a frame; the words say why the channel ends.
    fn take(&self, bytes: &[u8], shelf: &Shelf) -> Result<(), String> {
        match Frame::decode(bytes).map_err(|err| err.to_string())? {
            Frame::Heartbeat(beat) => locked(&self.state).beat = beat,
            Frame::Ready { epoch } => locked(&self.state).ready = epoch,
            Frame::Provided => locked(&self.state).provided = true,
            Frame::Failed(failure) => locked(&self.state).failure = Some(failure),
            Frame::Edge(way) => locked(&self.state).edge = Some(way),
            Frame::Fed => locked(&self.state).fed = Instant::now(),
            Frame::FetchManifest => {
                self.send(&Frame::Manifest(shelf.manifest.bytes())).map_err(|err| err.to_string())?;
                locked(&self.state).fed = Instant::now();
            }
            Frame::FetchPieces { first, count } if count <= BATCH => {
                for index in first..first.saturating_add(count) {
                    let bytes = shelf.piece(index).map_err(|err| chain(&err))?;
                    let sent = self.send(&Frame::Piece(PieceOf { index, bytes }));
                    sent.map_err(|err| err.to_string())?;
                    locked(&self.state).fed = Instant::now();
                }
            }
            _ => return Err("it sent a frame that is the head's to send".into()),
        }
        Ok(())
    }
}

fn attend(shared: &Shared, mut receiver: Box<dyn FrameReceiver>, shelf: &Shelf, heartbeat: Duration) {
    let (mut heard, mut beaten) = (Instant::now(), None::<Instant>);
    while !shared.ended.load(Ordering::Acquire) {
        match receiver.receive(SLICE.min(heartbeat)) {
            Ok(bytes) => {
                if let Err(words) = shared.take(&bytes, shelf) {
                    return shared.lose(words);
                }
                // After what was asked for was sent, which may have taken long.
                heard = Instant::now();
            }
            Err(LinkError::TimedOut) if heard.elapsed() > heartbeat * MISSED_MAX => {
                return shared.lose(format!("silent for {} ms", heard.elapsed().as_millis()));
            }
            Err(LinkError::TimedOut) => {}
            Err(err) => return shared.lose(err.to_string()),
        }
        if beaten.is_none_or(|beaten| beaten.elapsed() >= heartbeat) {
            beaten = Some(Instant::now());
            if let Err(err) = shared.send(&Frame::Heartbeat(Heartbeat::default())) {
                return shared.lose(err.to_string());
            }
        }
    }
}
