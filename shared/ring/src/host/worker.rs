//! A worker as a program runs it: it waits for a head and serves its part of the plan until the head is gone.
//! Then it waits for the next head.
//!
//! Its threads: the one that called [`serve`] takes links; one computes, one reads and writes the
//! disk, one keeps the time. Each link has a reader, and a writer as soon as it has more than small frames.

use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_plan::Device;

use super::compute::WorkerEngine;
use super::disk::{DiskTask, DiskWorker};
use super::give::LocalGiver;
use super::machine::Machine;
use super::{Around, By, Core, Monitor, OnFrame, Sorted, Wakes, spawn};
use crate::core::worker::{Effect, Event, Meters, WorkerCore, WorkerSetup, WorkerWork};
use crate::core::{DeviceId, DiskId, LinkEvent, LinkId, Purpose, WorkId};
use crate::weights::{CheckedPieces, Places};
use crate::wire::frame::{Frame, Hello};
use crate::wire::link::{LinkError, Network};

pub use crate::core::worker::WorkerNews as WorkerEvent;

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
    /// The machine that it runs on.
    pub machine: Arc<dyn Machine>,
    /// Which parts of its models were read and found correct in this run of the program.
    pub checked: CheckedPieces,
    /// How long opening a link, or sending one frame of the control channel, may take.
    pub patience: Duration,
    /// How long a head may be silent before it counts as gone.
    pub silence: Duration,
}

impl WorkerOptions {
    /// Returns the usual times, with the given name, folder and machine.
    pub fn new(name: impl Into<String>, folder: impl Into<PathBuf>, machine: Arc<dyn Machine>) -> Self {
        Self {
            name: name.into(),
            device: None,
            folder: folder.into(),
            files: Vec::new(),
            threads: None,
            machine,
            checked: CheckedPieces::default(),
            patience: Duration::from_secs(10),
            silence: Duration::from_secs(15),
        }
    }
}

/// Receives [`WorkerEvent`]s, from several threads but one at a time.
pub type EventSink = Arc<dyn Fn(WorkerEvent) + Send + Sync>;

/// What a worker's threads take from its monitor.
#[derive(Default)]
pub(crate) struct WorkerHost {
    pub(super) work: Option<(WorkId, WorkerWork)>,
    pub(super) disk: VecDeque<DiskTask>,
    /// Works of the disk that are to end early.
    pub(super) aborted: BTreeSet<DiskId>,
    /// Set while the present work of the engine is to end early.
    pub(super) interrupt: Arc<AtomicBool>,
    news: VecDeque<WorkerEvent>,
}

impl Core for WorkerCore {
    type Event = Event;
    type Effect = Effect;
    type Desk = WorkerHost;
    type News = WorkerEvent;

    fn step(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        Self::step(self, event, now)
    }

    fn link(event: LinkEvent) -> Event {
        Event::Link(event)
    }

    fn gave(link: LinkId) -> Event {
        Event::Gave(link)
    }

    fn tick(meters: Meters) -> Event {
        Event::Tick(meters)
    }

    fn sort(effect: Effect) -> Sorted<Effect> {
        match effect {
            Effect::Link(effect) => Sorted::Link(effect),
            Effect::Give(link, give) => Sorted::Give(link, give),
            Effect::WakeAt(at) => Sorted::WakeAt(at),
            Effect::Note(note) => Sorted::Note(note),
            Effect::Discard(step) => Sorted::Discard(step),
            own => Sorted::Own(own),
        }
    }

    fn put(&self, effect: Effect, desk: &mut WorkerHost) -> Wakes {
        match effect {
            Effect::Compute(id, work) => {
                desk.interrupt.store(false, Ordering::Release);
                desk.work = Some((id, work));
                Wakes::Engine
            }
            Effect::Interrupt => {
                desk.interrupt.store(true, Ordering::Release);
                Wakes::Nobody
            }
            Effect::Disk(id, work) => {
                desk.disk.push_back((id, work));
                Wakes::Disk
            }
            Effect::Abort(id) => {
                desk.aborted.insert(id);
                Wakes::Nobody
            }
            Effect::Tell(news) => {
                desk.news.push_back(news);
                Wakes::Program
            }
            // The monitor has taken these.
            Effect::Link(_) | Effect::Give(..) | Effect::Note(_) | Effect::Discard(_) | Effect::WakeAt(_) => {
                Wakes::Nobody
            }
        }
    }

    fn news(desk: &mut WorkerHost) -> Option<WorkerEvent> {
        desk.news.pop_front()
    }
}

/// Serves heads for which `is_head` returns true, one at a time, until `stop` is set.
///
/// # Errors
/// [`LinkError`] if the network accepts no more links, or threads cannot be started.
pub fn serve(
    network: &Arc<dyn Network>,
    options: &WorkerOptions,
    is_head: &dyn Fn(&DeviceId) -> bool,
    said: &EventSink,
    stop: &AtomicBool,
) -> Result<(), LinkError> {
    let monitor = monitor_of(network, options, said);
    let ended = start(&monitor, options).and_then(|()| {
        let admits = |peer: &DeviceId, purpose: Purpose| {
            let admitted = purpose != Purpose::Control || is_head(peer);
            if !admitted {
                tracing::warn!(?peer, "a device that is no head of this worker asked for control");
            }
            admitted
        };
        monitor.accept_all(&admits, &|| stop.load(Ordering::Acquire))
    });
    monitor.desk(|desk| desk.interrupt.store(true, Ordering::Release));
    monitor.end(Event::End);
    ended
}

fn monitor_of(
    network: &Arc<dyn Network>,
    options: &WorkerOptions,
    said: &EventSink,
) -> Arc<Monitor<WorkerCore>> {
    let hello = Hello { name: options.name.clone(), device: options.device.clone() };
    let WorkerOptions { patience, silence, .. } = *options;
    let setup = WorkerSetup { own: network.own(), hello, patience, silence };
    let (said, machine) = (Arc::clone(said), Arc::clone(&options.machine));
    Arc::new_cyclic(|weak: &std::sync::Weak<Monitor<WorkerCore>>| {
        let weak = weak.clone();
        let on_frame: OnFrame = Box::new(move |_, frame| {
            if let (Frame::Configure(configure), Some(monitor)) = (frame, weak.upgrade()) {
                monitor.set_hop(configure.hop);
            }
        });
        let around = Around {
            network: Arc::clone(network),
            giver: Box::new(LocalGiver::new(options.files.clone(), options.folder.clone())),
            on_frame,
            tell: Box::new(move |news| said(news)),
            memory: Box::new(move || machine.model_bytes().unwrap_or(0)),
            hop: patience,
            patience,
        };
        Monitor::new(WorkerCore::new(setup, Duration::ZERO), around)
    })
}

/// Starts the worker's threads, which end with the monitor.
fn start(monitor: &Arc<Monitor<WorkerCore>>, options: &WorkerOptions) -> Result<(), LinkError> {
    let failed = |err: std::io::Error| LinkError::Network(Box::new(err));
    let timed = Arc::clone(monitor);
    spawn("ring-time", move || timed.keep_time()).map_err(failed)?;
    let places = Places {
        files: options.files.clone(),
        folder: options.folder.clone(),
        checked: options.checked.clone(),
    };
    let disk = Arc::clone(monitor);
    spawn("ring-disk", move || DiskWorker::new(places).run(&disk)).map_err(failed)?;
    let interrupt = monitor.desk(|desk| Arc::clone(&desk.interrupt));
    let engine = WorkerEngine::new(Arc::clone(&options.machine), options.threads, interrupt);
    let computing = Arc::clone(monitor);
    spawn("ring-engine", move || compute(&computing, engine)).map_err(failed)
}

fn compute(monitor: &Arc<Monitor<WorkerCore>>, mut engine: WorkerEngine) {
    while let Some((work, task)) =
        monitor.wait_for(Wakes::Engine, None, |desk: &mut WorkerHost| desk.work.take())
    {
        let (done, took) = engine.run(task);
        monitor.step(By::Engine, Event::Computed { work, done, took });
    }
}
