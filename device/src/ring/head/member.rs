//! A worker as the head sees it: its control channel, its heartbeats and its failures.
//!
//! One thread per worker reads the channel, answers requests for weights, sends heartbeats, and notices
//! silence. It decides nothing: the head decides whether a device stays in the ring.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::super::edges::{self, EdgeTable, MEASURE};
use super::super::frame::{Failure, Frame, Heartbeat, Hello, MeasuredLink, NodeAddress, PieceData};
use super::super::link::{FrameReceiver, FrameSender, Key, Link, LinkError, Network, Purpose};
use super::super::weights::{BATCH, Manifest, WeightsError};
use super::{RingError, chain, locked};

/// Heartbeats that may be missed.
const MISSED_MAX: u32 = 3;
/// Wait between two checks of the time.
const SLICE: Duration = Duration::from_millis(20);

/// The model's file, for devices that lack parts of it.
#[derive(Debug)]
pub(super) struct ModelFile {
    pub(super) manifest: Manifest,
    pub(super) path: PathBuf,
    pub(super) file: File,
}

impl ModelFile {
    /// Reads a piece and checks it against the list of pieces.
    fn piece(&self, index: u32) -> Result<Vec<u8>, WeightsError> {
        let bytes = self.manifest.piece(&self.file, &self.path, index)?;
        // Without this check the worker would seem to be at fault.
        let rotten = |_| WeightsError::Rotten { path: self.path.clone(), pieces: 1 };
        self.manifest.check(index, &bytes).map_err(rotten)?;
        Ok(bytes)
    }
}

/// What is known of a worker now.
#[derive(Debug, Clone)]
pub(super) struct State {
    /// Its latest heartbeat.
    pub(super) beat: Heartbeat,
    /// The newest epoch that it is ready for.
    pub(super) ready: u64,
    /// Whether it has fetched everything that it was told to provide.
    pub(super) provided: bool,
    /// Its latest failure.
    pub(super) failure: Option<Failure>,
    /// Why it is gone.
    pub(super) lost: Option<String>,
    /// When it last received a piece of the model, from here or from another worker.
    pub(super) progressed: Instant,
    /// When it must have fetched everything that it was told to provide, even if it makes progress.
    pub(super) due: Option<Instant>,
    /// The path that it measured last.
    pub(super) edge: Option<MeasuredLink>,
}

impl State {
    /// Returns the state of a worker that has sent nothing yet.
    fn new() -> State {
        State {
            beat: Heartbeat::default(),
            ready: 0,
            provided: false,
            failure: None,
            lost: None,
            progressed: Instant::now(),
            due: None,
            edge: None,
        }
    }
}

/// A worker. Dropping it ends its control channel.
pub(super) struct Member {
    pub(super) node: NodeAddress,
    pub(super) hello: Hello,
    shared: Arc<Shared>,
}

struct Shared {
    sender: Mutex<Box<dyn FrameSender>>,
    state: Mutex<State>,
    ended: AtomicBool,
    patience: Duration,
}

impl Member {
    /// Opens the control channel to a worker, reads its introduction, and measures the path to it unless
    /// that is known.
    pub(super) fn connect(
        network: &dyn Network,
        node: &NodeAddress,
        model_file: &Arc<ModelFile>,
        edges: &EdgeTable,
        (heartbeat, patience): (Duration, Duration),
    ) -> Result<Self, RingError> {
        let unreachable = |err| RingError::Member { address: node.address.clone(), err };
        let (mut hello, Link { mut sender, mut receiver, .. }) = open_control(network, node, patience)?;
        let own = network.own().key;
        let measured = measure_edge(edges, (own, node.key), sender.as_mut(), receiver.as_mut());
        if let Err(err) = measured {
            let err = chain(&unreachable(err));
            tracing::warn!(
                err,
                "the network path to a device cannot be measured; it counts as the slowest known one"
            );
            // Echoes may still be in transit on the old channel, or it has ended.
            drop((sender, receiver));
            let (again, link) = open_control(network, node, patience)?;
            (hello, sender, receiver) = (again, link.sender, link.receiver);
        }
        let state = State::new();
        let shared = Arc::new(Shared {
            sender: Mutex::new(sender),
            state: Mutex::new(state),
            ended: AtomicBool::new(false),
            patience,
        });
        let (own, model_file) = (Arc::clone(&shared), Arc::clone(model_file));
        std::thread::Builder::new()
            .name("baton-ring-member".into())
            .spawn(move || attend(&own, receiver, &model_file, heartbeat))
            .map_err(RingError::Threads)?;
        Ok(Self { node: node.clone(), hello, shared })
    }

    pub(super) fn name(&self) -> &str {
        &self.hello.name
    }

    pub(super) fn state(&self) -> State {
        locked(&self.shared.state).clone()
    }

    /// Returns why the worker is gone, if it is.
    pub(super) fn lost(&self) -> Option<String> {
        locked(&self.shared.state).lost.clone()
    }

    /// Returns its failure in this epoch, if any.
    pub(super) fn failure(&self, epoch: u64) -> Option<Failure> {
        locked(&self.shared.state).failure.clone().filter(|failure| failure.epoch == epoch)
    }

    pub(super) fn send(&self, frame: &Frame) -> Result<(), LinkError> {
        self.shared.send(frame)
    }

    /// Sets the time by which it must have fetched everything.
    pub(super) fn expect_by(&self, due: Instant) {
        locked(&self.shared.state).due = Some(due);
    }
}

/// Opens the control channel to a worker, and reads its introduction.
fn open_control(
    network: &dyn Network,
    node: &NodeAddress,
    patience: Duration,
) -> Result<(Hello, Link), RingError> {
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

/// Measures a path if it is not known or has drifted.
fn measure_edge(
    edges: &EdgeTable,
    (own, other): (Key, Key),
    sender: &mut dyn FrameSender,
    receiver: &mut dyn FrameReceiver,
) -> Result<(), LinkError> {
    let latency_s = edges::latency(sender, receiver, MEASURE)?;
    if !edges.holds(own, other, latency_s) {
        edges.put(own, other, edges::measure(sender, receiver, MEASURE)?);
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

    /// Handles a frame. An error says why the channel ends.
    fn take(&self, bytes: &[u8], model_file: &ModelFile) -> Result<(), String> {
        match Frame::decode(bytes).map_err(|err| err.to_string())? {
            Frame::Heartbeat(beat) => locked(&self.state).beat = beat,
            Frame::Ready { epoch } => locked(&self.state).ready = epoch,
            Frame::Provided => locked(&self.state).provided = true,
            Frame::Failed(failure) => locked(&self.state).failure = Some(failure),
            Frame::Edge(edge) => locked(&self.state).edge = Some(edge),
            Frame::FetchProgress => locked(&self.state).progressed = Instant::now(),
            Frame::FetchManifest => {
                self.send(&Frame::Manifest(model_file.manifest.bytes())).map_err(|err| err.to_string())?;
                locked(&self.state).progressed = Instant::now();
            }
            Frame::FetchPieces { first, count } if count <= BATCH => {
                for index in first..first.saturating_add(count) {
                    let bytes = model_file.piece(index).map_err(|err| chain(&err))?;
                    let sent = self.send(&Frame::Piece(PieceData { index, bytes }));
                    sent.map_err(|err| err.to_string())?;
                    locked(&self.state).progressed = Instant::now();
                }
            }
            _ => return Err("it sent a frame that is the head's to send".into()),
        }
        Ok(())
    }
}

fn attend(
    shared: &Shared,
    mut receiver: Box<dyn FrameReceiver>,
    model_file: &ModelFile,
    heartbeat: Duration,
) {
    let slice = SLICE.min(heartbeat);
    let (mut quiet, mut beaten) = (Duration::ZERO, None::<Instant>);
    while !shared.ended.load(Ordering::Acquire) {
        let looked = Instant::now();
        match receiver.receive(slice) {
            Ok(bytes) => {
                if let Err(words) = shared.take(&bytes, model_file) {
                    return shared.lose(words);
                }
                quiet = Duration::ZERO;
            }
            Err(LinkError::TimedOut) => {
                // If the wait took longer, this device itself was late, and has not yet read what arrived
                // meanwhile.
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

    /// Accepts everything that is sent.
    struct Taking;

    impl FrameSender for Taking {
        fn send(&mut self, _frame: &[u8], _timeout: Duration) -> Result<(), LinkError> {
            Ok(())
        }
    }

    /// Waits in which this device is late: nothing was there, but when it continues, a heartbeat is.
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

    /// Sends nothing, and keeps to the time of each wait.
    struct Silent;

    impl FrameReceiver for Silent {
        fn receive(&mut self, timeout: Duration) -> Result<Vec<u8>, LinkError> {
            std::thread::sleep(timeout);
            Err(LinkError::TimedOut)
        }
    }

    /// Returns why a worker with this receiver is lost, with a heartbeat every 50 ms.
    fn lost(receiver: impl FrameReceiver + 'static) -> String {
        // A copy, because the list of its pieces is stored beside it.
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
        attend(&shared, Box::new(receiver), &ModelFile { manifest, path, file }, heartbeat);
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
