//! One head's session on a worker: its control channel, and the epoch that is served.
//!
//! One thread executes the messages of the control channel in order. A newer part ends whatever the older
//! one is doing: fetching, connecting or computing. The session ends with its control channel, or if the
//! head is silent for too long.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use baton_engine::{Engine, EngineOptions, Model};

use super::compute::{Counters, Work};
use super::fetch::FromHead;
use super::peers::FromRing;
use super::piece_server::PieceServer;
use super::{EventSink, WorkerEvent, WorkerOptions};
use crate::residency::{self, Layers, Share};
use crate::ring::edges;
use crate::ring::frame::{Configure, Failure, FailureCode, Frame, Hello, NodeAddress, Provide, Step};
use crate::ring::layout::layers_of;
use crate::ring::link::{
    FrameReceiver, FrameSender, Key, Link, LinkError, Network, Outbox, Purpose, add_waiting,
};
use crate::ring::locked;
use crate::ring::profile::{own_bytes, this_memory};
use crate::ring::weights::{
    Digest, Manifest, PIECE_BYTES, Part, PieceSource as _, Stage, WeightsError, check_whole, provide,
};
use baton_terminal::chain;

/// Frames of the control channel that may wait.
const CONTROL_QUEUE: usize = 4;
/// Frames of the ring that may wait to be computed.
const RING_QUEUE: usize = 2;
/// Wait between two checks of what else has happened.
const SLICE: Duration = Duration::from_millis(20);
/// Time between two looks at the free memory.
const MEMORY_LOOK: Duration = Duration::from_secs(5);
/// Time between heartbeats before a plan sets it.
const HEARTBEAT: Duration = Duration::from_millis(300);

/// Sends frames to the head; shared by the threads that do so.
pub(super) struct HeadSender {
    sender: Mutex<Box<dyn FrameSender>>,
    patience: Duration,
}

impl HeadSender {
    pub(super) fn send(&self, frame: &Frame) -> Result<(), LinkError> {
        let mut sender = locked(&self.sender);
        sender.send(&frame.encode(), self.patience)
    }
}

/// What the session's threads share.
pub(super) struct Shared {
    pub(super) outgoing: HeadSender,
    counters: Arc<Counters>,
    /// Ring links that have arrived and were not yet taken.
    arrivals: Mutex<Vec<Link>>,
    /// Links for measuring paths that have arrived and were not yet taken.
    pub(super) edges: Mutex<Vec<Link>>,
    /// Incremented by each part and each measurement: ends the answers to the measurement before.
    pub(super) turn: AtomicU64,
    heartbeat: Mutex<Duration>,
    /// Devices that fetch weights from here now.
    pub(super) served: AtomicUsize,
    pub(super) ended: AtomicBool,
}

/// A head's session. Dropping it ends it.
pub(super) struct Session {
    head: Key,
    shared: Arc<Shared>,
    piece_server: PieceServer,
    thread: Option<JoinHandle<()>>,
}

impl Session {
    pub(super) fn start(
        network: &Arc<dyn Network>,
        link: Link,
        options: &WorkerOptions,
        said: &EventSink,
    ) -> std::io::Result<Self> {
        let Link { peer: head, sender, receiver } = link;
        let shared = Arc::new(Shared {
            outgoing: HeadSender { sender: Mutex::new(sender), patience: options.patience },
            counters: Arc::default(),
            arrivals: Mutex::default(),
            edges: Mutex::default(),
            turn: AtomicU64::new(0),
            heartbeat: Mutex::new(HEARTBEAT),
            served: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        });
        let (own, piece_server) = (Arc::clone(&shared), PieceServer::of(options));
        let (network, options, said) = (Arc::clone(network), options.clone(), Arc::clone(said));
        let thread = std::thread::Builder::new().name("baton-ring-session".into()).spawn(move || {
            said(WorkerEvent::Head { key: head });
            let (frames, inbox) = sync_channel(CONTROL_QUEUE);
            std::thread::scope(|scope| {
                let (beating, planned_with) = (&own, options.device.is_some());
                scope.spawn(move || beat(beating, planned_with));
                let (heard, silence) = (&own, options.silence);
                scope.spawn(move || listen(heard, receiver, frames, silence));
                let said = Arc::clone(&said);
                SessionLoop {
                    network,
                    options,
                    said,
                    shared: &own,
                    inbox,
                    open_model: None,
                    epoch_threads: None,
                    newer: None,
                    early: None,
                    last: 0,
                }
                .run();
                own.ended.store(true, Ordering::Release);
            });
            said(WorkerEvent::HeadGone { key: head });
        })?;
        Ok(Self { head, shared, piece_server, thread: Some(thread) })
    }

    pub(super) fn head(&self) -> Key {
        self.head
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.shared.ended.load(Ordering::Acquire)
    }

    /// Serves pieces to a device of the ring over this link.
    pub(super) fn serve_pieces(&self, link: Link) {
        self.piece_server.serve_pieces(&self.shared, link);
    }

    /// Adds a ring link that has arrived.
    pub(super) fn arrived(&self, link: Link) {
        add_waiting(&mut locked(&self.shared.arrivals), link);
    }

    /// Adds a link over which a device of the ring measures the path to this one.
    pub(super) fn measured_over(&self, link: Link) {
        add_waiting(&mut locked(&self.shared.edges), link);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has already printed why.
            let _ended = thread.join();
        }
    }
}

/// Sends heartbeats until the session ends. If plans include this device, they contain the memory that a
/// model may use here.
fn beat(shared: &Shared, planned_with: bool) {
    let mut looked = None::<Instant>;
    while !shared.ended.load(Ordering::Acquire) {
        if planned_with && looked.is_none_or(|looked| looked.elapsed() >= MEMORY_LOOK) {
            looked = Some(Instant::now());
            // The memory that this program uses now would be free for another plan.
            let bytes = this_memory().map_or(0, |(_, memory)| memory.available_bytes + own_bytes());
            shared.counters.memory_bytes.store(bytes, Ordering::Release);
        }
        if shared.outgoing.send(&Frame::Heartbeat(shared.counters.beat())).is_err() {
            shared.ended.store(true, Ordering::Release);
        }
        let end = Instant::now() + *locked(&shared.heartbeat);
        while Instant::now() < end && !shared.ended.load(Ordering::Acquire) {
            std::thread::sleep(SLICE.min(end.saturating_duration_since(Instant::now())));
        }
    }
}

/// Reads the control channel until the head is gone.
fn listen(
    shared: &Shared,
    mut receiver: Box<dyn FrameReceiver>,
    frames: SyncSender<Frame>,
    silence: Duration,
) {
    let mut heard = Instant::now();
    while !shared.ended.load(Ordering::Acquire) {
        match receiver.receive(SLICE) {
            Ok(bytes) => {
                heard = Instant::now();
                match Frame::decode(&bytes) {
                    Ok(Frame::Heartbeat(_)) => {}
                    // Answered at once, because the time is measured.
                    Ok(Frame::Echo(echo)) => {
                        if shared.outgoing.send(&edges::answer(&echo)).is_err() {
                            break;
                        }
                    }
                    // The session's thread may have ended already.
                    Ok(frame) => {
                        if frames.send(frame).is_err() {
                            break;
                        }
                    }
                    Err(err) => {
                        tracing::warn!(%err, "the head sent what is no frame");
                        break;
                    }
                }
            }
            Err(LinkError::TimedOut) if heard.elapsed() < silence => {}
            Err(_) => break,
        }
    }
    shared.ended.store(true, Ordering::Release);
}

/// An open model.
struct OpenModel {
    digest: Digest,
    layers: Vec<usize>,
    reads_ahead: bool,
    model: Arc<Model>,
}

/// An epoch's threads.
struct EpochThreads {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl EpochThreads {
    fn end(self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads {
            // A thread that panicked has already printed why.
            let _ended = thread.join();
        }
    }
}

/// Why a part cannot be served.
struct PartFailure(FailureCode, String);

pub(super) struct SessionLoop<'a> {
    pub(super) network: Arc<dyn Network>,
    options: WorkerOptions,
    said: EventSink,
    pub(super) shared: &'a Arc<Shared>,
    inbox: Receiver<Frame>,
    open_model: Option<OpenModel>,
    epoch_threads: Option<EpochThreads>,
    newer: Option<Box<Configure>>,
    /// A ring link that arrived before its part, with its epoch and the key of its device.
    early: Option<((u64, Key), Box<dyn FrameReceiver>)>,
    /// The newest epoch.
    last: u64,
}

impl SessionLoop<'_> {
    fn run(mut self) {
        let hello = Hello { name: self.options.name.clone(), device: self.options.device.clone() };
        if self.shared.outgoing.send(&Frame::Hello(hello)).is_err() {
            return;
        }
        while !self.shared.ended.load(Ordering::Acquire) {
            let configure = match self.newer.take() {
                Some(configure) => configure,
                None => match self.inbox.recv_timeout(SLICE) {
                    Ok(Frame::Configure(configure)) => configure,
                    Ok(Frame::MeasureEdge(to)) => {
                        self.measure(to);
                        continue;
                    }
                    Ok(Frame::AwaitEdge { from }) => {
                        self.await_edge(from);
                        continue;
                    }
                    Ok(Frame::Provide(provide)) => {
                        self.provide(&provide);
                        continue;
                    }
                    Ok(Frame::Failed(failure)) => {
                        self.distrusted(failure.words);
                        continue;
                    }
                    // Late answers to requests of an older part.
                    Ok(_) | Err(std::sync::mpsc::RecvTimeoutError::Timeout) => continue,
                    Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
                },
            };
            self.take(*configure);
        }
        if let Some(epoch_threads) = self.epoch_threads.take() {
            epoch_threads.end();
        }
    }

    /// Handles the head's finding that this device computes wrong: everything is read again before it is
    /// used.
    fn distrusted(&mut self, words: String) {
        tracing::warn!(words, "the head does not take this device's results");
        self.open_model = None;
        self.options.checked.forget();
        (self.said)(WorkerEvent::Failed { epoch: self.last, words });
    }

    /// Starts a part. Reports that it is ready, or why not.
    fn take(&mut self, configure: Configure) {
        let epoch = configure.epoch;
        if epoch <= self.last {
            let words = format!("epoch {epoch} is not newer than {}", self.last);
            return fail(self.shared, &self.said, epoch, FailureCode::Engine, words);
        }
        self.last = epoch;
        self.end_measuring();
        if let Some(epoch_threads) = self.epoch_threads.take() {
            epoch_threads.end();
        }
        let layers = layers_of(&configure.windows, usize::from(configure.place));
        let place = usize::from(configure.place);
        let done = self.prepare(configure, &layers).and_then(|()| {
            let ready = self.shared.outgoing.send(&Frame::Ready { epoch });
            ready.map_err(|err| PartFailure(FailureCode::Engine, err.to_string()))
        });
        match done {
            Ok(()) => (self.said)(WorkerEvent::Ready { epoch, place, layers }),
            Err(PartFailure(code, words)) => fail(self.shared, &self.said, epoch, code, words),
        }
    }

    /// Fetches what a part will need, while the ring goes on without this device.
    fn provide(&mut self, provide: &Provide) {
        let done = match self.epoch_threads {
            // The file that the part maps must not change.
            Some(_) => Err("it has a part already".to_owned()),
            // This device only relays.
            None if provide.layers.is_empty() => Ok(()),
            None => {
                self.open_model = None;
                let layers: Vec<usize> = provide.layers.iter().copied().map(usize::from).collect();
                let file = self.file(provide.model, &provide.others, &layers);
                file.map(drop).map_err(|PartFailure(_, words)| words)
            }
        };
        match done {
            // If the head does not receive it, the control channel ends.
            Ok(()) => drop(self.shared.outgoing.send(&Frame::Provided)),
            // A part arrived meanwhile and is answered on its own.
            Err(_) if self.newer.is_some() => {}
            Err(words) => fail(self.shared, &self.said, 0, FailureCode::Weights, words),
        }
    }

    fn prepare(&mut self, configure: Configure, layers: &[usize]) -> Result<(), PartFailure> {
        *locked(&self.shared.heartbeat) = configure.heartbeat.max(SLICE);
        let others = configure.others.iter().map(|node| node.key);
        self.network.allow(&others.chain([configure.before]).collect::<Vec<Key>>());
        let engine = if layers.is_empty() { None } else { Some(self.engine(&configure, layers)?) };
        let sender = self.connect(&configure)?;
        let receiver = self.wait_for_link(&configure)?;
        self.shared.counters.begin(configure.epoch);
        self.start(configure, engine, sender, receiver)
    }

    /// Returns an engine of these layers, without sequences.
    fn engine(&mut self, configure: &Configure, layers: &[usize]) -> Result<Engine, PartFailure> {
        let reads_ahead = configure.reads_ahead;
        let same = |open_model: &OpenModel| {
            open_model.digest == configure.model
                && open_model.layers == layers
                && open_model.reads_ahead == reads_ahead
        };
        if !self.open_model.as_ref().is_some_and(same) {
            // A mapped file must not change while more of it is written.
            self.open_model = None;
            let path = self.file(configure.model, &configure.others, layers)?;
            // Ascending layers are in the order in which a token passes them.
            let kv_tokens = configure.kv_tokens as usize;
            let share = Share { kv_tokens, layers: Layers::Of(layers.to_vec()), reads_ahead };
            let model = residency::open(&path, self.options.memory, 0, &share);
            let model = model.map_err(|err| PartFailure(FailureCode::Weights, chain(&err)))?;
            self.open_model =
                Some(OpenModel { digest: configure.model, layers: layers.to_vec(), reads_ahead, model });
        }
        let open_model = self.open_model.as_ref().expect("set on the lines above");
        if let Some(weights) = open_model.model.streamed() {
            weights.set_prefetch(configure.prefetch_bytes);
        }
        let config = open_model.model.config();
        if (config.n_layers, config.d_model) != (usize::from(configure.n_layers), configure.width as usize) {
            let words = format!(
                "the plan is of {} layers of {} values, the model has {} of {}",
                configure.n_layers, configure.width, config.n_layers, config.d_model
            );
            return Err(PartFailure(FailureCode::Weights, words));
        }
        let options = EngineOptions {
            threads: self.options.threads,
            kv_tokens: configure.kv_tokens as usize,
            kv_format: configure.kv_format,
            window: configure.window,
            prefix_cache_percent: configure.prefix_percent,
            layers: Some(layers.to_vec()),
        };
        Engine::new(Arc::clone(&open_model.model), options)
            .map_err(|err| PartFailure(FailureCode::Engine, chain(&err)))
    }

    /// Returns a file with these layers: a whole one on this device, or this device's part. Everything that
    /// the layers need was hashed.
    fn file(
        &mut self,
        model: Digest,
        others: &[NodeAddress],
        layers: &[usize],
    ) -> Result<PathBuf, PartFailure> {
        let Self { network, options, said, shared, inbox, newer, .. } = self;
        let patience = options.patience;
        let head = FromHead { outgoing: &shared.outgoing, inbox, newer, patience };
        let mut source = FromRing::new(head, shared, network, (model, others));
        let mut progress = |stage, done, total| {
            said(match stage {
                Stage::Checking => WorkerEvent::Checking { done, total },
                Stage::Fetching => WorkerEvent::Fetching { done, total },
            });
        };
        let unable = |err: WeightsError| PartFailure(FailureCode::Weights, chain(&err));
        for path in &options.files {
            let done = match Manifest::of_file(path, PIECE_BYTES) {
                Ok(manifest) if manifest.digest() == model => {
                    let parts = [Part::Header, Part::Layers(layers)];
                    let go_on = &mut || source.go_on();
                    check_whole((path, &manifest), &parts, &options.checked, go_on, &mut progress)
                }
                Ok(_) => continue,
                Err(err) => Err(err),
            };
            match done {
                Ok(()) => return Ok(path.clone()),
                Err(err @ (WeightsError::Superseded | WeightsError::Source(_))) => return Err(unable(err)),
                // Pieces that it lacks come from other devices.
                Err(err) => tracing::warn!(path = %path.display(), err = %chain(&err), "a model is not used"),
            }
        }
        let place = (options.folder.as_path(), &options.checked);
        provide(place, model, layers, &mut source, &mut progress).map_err(unable)
    }

    /// Returns whether a newer part has arrived, or the session has ended.
    fn superseded(&mut self) -> bool {
        if let Ok(Frame::Configure(newer)) = self.inbox.try_recv() {
            self.newer = Some(newer);
        }
        self.newer.is_some() || self.shared.ended.load(Ordering::Acquire)
    }

    /// Opens the link to the next device, which may not know of this one yet.
    fn connect(&mut self, configure: &Configure) -> Result<Box<dyn FrameSender>, PartFailure> {
        let end = Instant::now() + self.options.patience;
        loop {
            let tried = self.network.connect(&configure.next, Purpose::Ring, self.options.patience);
            let tried = tried.and_then(|mut link| {
                let enter = Frame::Enter { epoch: configure.epoch, place: configure.place };
                link.sender.send(&enter.encode(), self.options.patience)?;
                Ok(link.sender)
            });
            match tried {
                Ok(sender) => return Ok(sender),
                Err(_) if self.superseded() => {
                    return Err(PartFailure(FailureCode::Engine, "a newer plan came".into()));
                }
                Err(err) if Instant::now() > end => return Err(PartFailure(FailureCode::Next, chain(&err))),
                Err(_) => std::thread::sleep(SLICE),
            }
        }
    }

    /// Takes the next link of this device; links of other devices belong to another part.
    fn come_from(&self, peer: Key) -> Option<Link> {
        let mut arrivals = locked(&self.shared.arrivals);
        let at = arrivals.iter().position(|link| link.peer == peer)?;
        Some(arrivals.remove(at))
    }

    /// Waits for the link from the device before, which may still be fetching weights; the head decides how
    /// long.
    fn wait_for_link(&mut self, configure: &Configure) -> Result<Box<dyn FrameReceiver>, PartFailure> {
        loop {
            if let Some((_, receiver)) =
                self.early.take_if(|(at, _)| *at == (configure.epoch, configure.before))
            {
                return Ok(receiver);
            }
            if let Some(mut link) = self.come_from(configure.before) {
                let first = link.receiver.receive(self.options.patience);
                let first = first.ok().and_then(|bytes| Frame::decode(&bytes).ok());
                match first {
                    Some(Frame::Enter { epoch, .. }) if epoch == configure.epoch => return Ok(link.receiver),
                    // For a part that has not reached this thread yet.
                    Some(Frame::Enter { epoch, .. }) if epoch > configure.epoch => {
                        let newer = self.early.take().filter(|((newest, _), _)| *newest > epoch);
                        self.early = newer.or(Some(((epoch, link.peer), link.receiver)));
                    }
                    _ => {
                        self.shared.counters.refused.fetch_add(1, Ordering::AcqRel);
                        continue;
                    }
                }
            }
            if self.superseded() {
                return Err(PartFailure(FailureCode::Engine, "a newer plan came".into()));
            }
            std::thread::sleep(SLICE / 4);
        }
    }

    fn start(
        &mut self,
        configure: Configure,
        engine: Option<Engine>,
        sender: Box<dyn FrameSender>,
        receiver: Box<dyn FrameReceiver>,
    ) -> Result<(), PartFailure> {
        let unable = |err: std::io::Error| PartFailure(FailureCode::Engine, err.to_string());
        let stop = Arc::new(AtomicBool::new(false));
        let out = Outbox::new(sender, configure.hop.max(SLICE)).map_err(unable)?;
        let (frames, inbox) = sync_channel(RING_QUEUE);
        let epoch = configure.epoch;
        let counters = Arc::clone(&self.shared.counters);
        let mut work = Work::new(configure, engine, counters, Arc::clone(&stop), out);
        let spawn = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let (own, said, stopped) = (Arc::clone(self.shared), Arc::clone(&self.said), Arc::clone(&stop));
        let computing = spawn("baton-ring-compute").spawn(move || {
            let done = work.run(&inbox);
            if let (Err(fault), false) = (&done, stopped.load(Ordering::Acquire)) {
                fail(&own, &said, epoch, fault.code(), chain(fault));
            }
        });
        let (own, said, stopped) = (Arc::clone(self.shared), Arc::clone(&self.said), Arc::clone(&stop));
        let receiving = spawn("baton-ring-in").spawn(move || {
            let done = receive(&own, receiver, &frames, epoch, &stopped);
            if let (Err(PartFailure(code, words)), false) = (done, stopped.load(Ordering::Acquire)) {
                fail(&own, &said, epoch, code, words);
            }
        });
        let threads = [computing, receiving].into_iter().collect::<std::io::Result<Vec<_>>>();
        self.epoch_threads = Some(EpochThreads { stop, threads: threads.map_err(unable)? });
        Ok(())
    }
}

/// Receives frames of this epoch, as long as there is room.
fn receive(
    shared: &Shared,
    mut receiver: Box<dyn FrameReceiver>,
    frames: &SyncSender<Step>,
    epoch: u64,
    stop: &AtomicBool,
) -> Result<(), PartFailure> {
    let counters = &shared.counters;
    while !stop.load(Ordering::Acquire) && !shared.ended.load(Ordering::Acquire) {
        let bytes = match receiver.receive(SLICE) {
            Ok(bytes) => bytes,
            Err(LinkError::TimedOut) => continue,
            Err(err) => return Err(PartFailure(FailureCode::Before, chain(&err))),
        };
        counters.bytes_in.fetch_add(bytes.len() as u64, Ordering::AcqRel);
        match Frame::decode(&bytes) {
            Ok(Frame::Step(step)) if step.epoch == epoch => {
                counters.received.fetch_add(1, Ordering::AcqRel);
                if frames.send(step).is_err() {
                    return Ok(());
                }
            }
            Ok(Frame::Step(_)) => {
                counters.refused.fetch_add(1, Ordering::AcqRel);
            }
            Ok(_) => return Err(PartFailure(FailureCode::Refused, "a frame that is no step".into())),
            Err(err) => return Err(PartFailure(FailureCode::Refused, chain(&err))),
        }
    }
    Ok(())
}

/// Reports to the head and to the event sink that this epoch is over here.
fn fail(shared: &Shared, said: &EventSink, epoch: u64, code: FailureCode, words: String) {
    // If the head does not receive it, the head's own deadline passes.
    let _unheard = shared.outgoing.send(&Frame::Failed(Failure { epoch, code, words: words.clone() }));
    said(WorkerEvent::Failed { epoch, words });
}
