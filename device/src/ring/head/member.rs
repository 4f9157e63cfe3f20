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
    /// When it must have what it was to fetch before it has a part, whatever comes until then.
    pub(super) due: Option<Instant>,
    /// The way that it measured last.
    pub(super) edge: Option<WayTo>,
}

impl State {
    /// Of a worker that has said nothing yet.
    fn new() -> State {
        State {
            beat: Heartbeat::default(),
            ready: 0,
            provided: false,
            failure: None,
            lost: None,
            fed: Instant::now(),
            due: None,
            edge: None,
        }
    }
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
        let (mut hello, Link { mut sender, mut receiver, .. }) = greeted(network, node, patience)?;
        let own = network.own().key;
        let weighed = weigh(book, (own, node.key), sender.as_mut(), receiver.as_mut());
        if let Err(err) = weighed {
            let err = chain(&unreachable(err));
            tracing::warn!(
                err,
                "the way to a device cannot be measured; it counts as the slowest that is known"
            );
            // Echoes may be under way on the old channel, or it has ended.
            drop((sender, receiver));
            let (again, link) = greeted(network, node, patience)?;
            (hello, sender, receiver) = (again, link.sender, link.receiver);
        }
        let state = State::new();
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

    /// Says until when it must have what it is to fetch.
    pub(super) fn expect_by(&self, due: Instant) {
        locked(&self.shared.state).due = Some(due);
    }
}

/// Opens the control channel to a worker, and hears who it is.
fn greeted(network: &dyn Network, node: &NextNode, patience: Duration) -> Result<(Hello, Link), RingError> {
    let unreachable = |err| RingError::Member { address: node.address.clone(), err };
    let mut link = network.connect(node, Purpose::Control, patience).map_err(unreachable)?;
    let begun = Instant::now();
    loop {
        let bytes = link.receiver.receive(patience).map_err(unreachable)?;
        match Frame::decode(&bytes) {
            Ok(Frame::Hello(hello)) => return Ok((hello, link)),
            Ok(Frame::Heartbeat(_)) if begun.elapsed() < patience => {}
            Ok(Frame::Failed(failure)) => return Err(RingError::Refused { words: failure.words }),
            Ok(_) => return Err(unreachable(LinkError::Refused)),
            Err(err) => return Err(unreachable(LinkError::Network(Box::new(err)))),
        }
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
    let slice = SLICE.min(heartbeat);
    let (mut quiet, mut beaten) = (Duration::ZERO, None::<Instant>);
    while !shared.ended.load(Ordering::Acquire) {
        let looked = Instant::now();
        match receiver.receive(slice) {
            Ok(bytes) => {
                if let Err(words) = shared.take(&bytes, shelf) {
                    return shared.lose(words);
                }
                quiet = Duration::ZERO;
            }
            Err(LinkError::TimedOut) => {
                // A look that took longer is this device's own lateness: what came meanwhile was not looked at yet.
                quiet += looked.elapsed().min(slice * 2);
                if quiet > heartbeat * MISSED_MAX {
                    return shared.lose(format!("silent for {} ms", quiet.as_millis()));
                }
            }
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

#[cfg(test)]
mod tests {
    use super::super::super::weights::PIECE_BYTES;
    use super::*;

    /// Takes whatever is sent.
    struct Taking;

    impl FrameSender for Taking {
        fn send(&mut self, _frame: &[u8], _timeout: Duration) -> Result<(), LinkError> {
            Ok(())
        }
    }

    /// Looks that this device is late for: nothing was there, and by the time that it goes on a heartbeat is.
    struct Late {
        looks: u32,
        late: Duration,
    }

    impl FrameReceiver for Late {
        fn receive(&mut self, _timeout: Duration) -> Result<Vec<u8>, LinkError> {
            self.looks += 1;
            match self.looks {
                7.. => Err(LinkError::Closed),
                look if look.is_multiple_of(2) => Ok(Frame::Heartbeat(Heartbeat::default()).encode()),
                _ => {
                    std::thread::sleep(self.late);
                    Err(LinkError::TimedOut)
                }
            }
        }
    }

    /// Says nothing, and keeps to the time of each look.
    struct Silent;

    impl FrameReceiver for Silent {
        fn receive(&mut self, timeout: Duration) -> Result<Vec<u8>, LinkError> {
            std::thread::sleep(timeout);
            Err(LinkError::TimedOut)
        }
    }

    /// Why a worker is lost that is heard so, with a heartbeat every 50 ms.
    fn lost(receiver: impl FrameReceiver + 'static) -> String {
        // A copy: the list of its pieces is kept beside it.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("demo.gguf");
        let demo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo-device.gguf");
        std::fs::copy(demo, &path).unwrap();
        let manifest = Manifest::of_file(&path, PIECE_BYTES).unwrap();
        let file = File::open(&path).unwrap();
        let state = State::new();
        let shared = Shared {
            sender: Mutex::new(Box::new(Taking)),
            state: Mutex::new(state),
            ended: AtomicBool::new(false),
            patience: Duration::from_secs(120),
        };
        let heartbeat = Duration::from_millis(50);
        attend(&shared, Box::new(receiver), &Shelf { manifest, path, file }, heartbeat);
        let state = shared.state.into_inner().unwrap();
        state.lost.unwrap()
    }

    #[test]
    fn a_worker_is_lost_by_its_own_silence_and_not_by_this_devices_lateness() {
        let late = Late { looks: 0, late: Duration::from_millis(400) };
        assert_eq!(lost(late), LinkError::Closed.to_string());
        assert!(lost(Silent).starts_with("silent for "));
    }
}
