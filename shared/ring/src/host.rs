//! What runs a device of the ring: the only clocks, threads, locks and sockets of the runtime.
//!
//! A core stands behind one lock ([`Monitor`]). The thread that has an event takes the lock, steps the core,
//! puts the frames into the queues of their links, and lets go of the lock. Only then it acts: it
//! sends, starts
//! threads, and wakes those that wait. Nothing that takes long is done under the lock.
//!
//! Always holds:
//!
//! - A link is made known to the core before its reader starts, so its frames come in order and never too
//!   early.
//! - A link that was closed, or is gone, is taken out under the lock. What its threads still bring is
//!   dropped.
//! - A socket is never read or written under the lock.

mod compute;
mod disk;
mod give;
mod head;
mod links;
mod machine;
mod ports;
mod worker;

pub use head::{
    Drafter, Names, Pacer, Planner, Reviser, RingError, RingHandle, RingHead, RingOptions, WeakRingHandle,
};
pub use machine::{Machine, OpenShare};
pub use worker::{EventSink, WorkerEvent, WorkerOptions, serve};

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::core::note::NoteLevel;
use crate::core::worker::Meters;
use crate::core::{DeviceId, Give, LinkEffect, LinkEvent, LinkId, Node, Note, Purpose};
use crate::locked;
use crate::wire::frame::{Frame, Step};
use crate::wire::link::Network;
use give::Giver;
use ports::Port;

/// Time between two looks at the free memory.
const MEMORY_LOOK: Duration = Duration::from_secs(5);

/// A core, as the monitor runs it.
pub(crate) trait Core: Send + 'static {
    /// What it is told.
    type Event: Send;
    /// What it asks for.
    type Effect;
    /// What its host's threads take from the monitor: work, and what is to be told.
    type Desk: Default + Send;
    /// What the program is told.
    type News: Send;

    /// Takes an event.
    fn step(&mut self, event: Self::Event, now: Duration) -> Vec<Self::Effect>;
    /// Makes an event of a link.
    fn link(event: LinkEvent) -> Self::Event;
    /// Makes the event of a frame that a giver has sent.
    fn gave(link: LinkId) -> Self::Event;
    /// Makes the event of time.
    fn tick(meters: Meters) -> Self::Event;
    /// Separates what every monitor does from what only this host does.
    fn sort(effect: Self::Effect) -> Sorted<Self::Effect>;
    /// Puts an effect of this host on the desk. Returns whom to wake.
    fn put(&self, effect: Self::Effect, desk: &mut Self::Desk) -> Wakes;
    /// Takes what is to be told from the desk, the oldest first.
    fn news(desk: &mut Self::Desk) -> Option<Self::News>;
}

/// An effect, by who carries it out.
pub(crate) enum Sorted<E> {
    /// The monitor, on a link.
    Link(LinkEffect),
    /// The monitor's givers.
    Give(LinkId, Give),
    /// The monitor's timer.
    WakeAt(Option<Duration>),
    /// The log.
    Note(Note),
    /// Freed after the lock.
    Discard(Box<Step>),
    /// The host.
    Own(E),
}

/// Whom an effect on the desk wakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wakes {
    /// Nobody.
    Nobody,
    /// The thread of the engine.
    Engine,
    /// The thread of the disk.
    Disk,
    /// The program: there is news.
    Program,
}

/// Which thread steps the core, and so which links it may write itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// One that must not wait for a link.
    Other,
    /// The reader of this link.
    Reader(LinkId),
    /// The engine's, which may write the links of the ring.
    Engine,
}

impl By {
    fn may_write(self, port: &Port) -> bool {
        match self {
            Self::Other => false,
            Self::Reader(link) => port.id == link,
            Self::Engine => port.purpose == Purpose::Ring,
        }
    }
}

/// Changes a frame before the core sees it. Called without the lock.
pub(crate) type OnFrame = Box<dyn Fn(&DeviceId, &mut Frame) + Send + Sync>;

/// What a monitor needs beside its core.
pub(crate) struct Around<N> {
    /// How devices are reached.
    pub(crate) network: Arc<dyn Network>,
    /// Who gives pieces of models.
    pub(crate) giver: Box<dyn Giver>,
    /// Changes frames.
    pub(crate) on_frame: OnFrame,
    /// Tells the program, in order.
    pub(crate) tell: Box<dyn Fn(N) + Send + Sync>,
    /// Tells the bytes that a model may use; 0 if not known.
    pub(crate) memory: Box<dyn Fn() -> u64 + Send + Sync>,
    /// How long a frame may take on a link of the ring.
    pub(crate) hop: Duration,
    /// How long a frame may take on other links.
    pub(crate) patience: Duration,
}

/// What is behind the lock.
struct Inner<C: Core> {
    core: C,
    desk: C::Desk,
    ports: BTreeMap<LinkId, Arc<Port>>,
    /// Links that are being opened.
    dialing: BTreeSet<LinkId>,
    /// Links that other devices have opened so far.
    incoming: u64,
    wake: Option<Duration>,
    /// Until when the timer waits; `None`: until it is woken.
    armed: Option<Duration>,
    ended: bool,
}

/// One core and everything around it.
pub(crate) struct Monitor<C: Core> {
    inner: Mutex<Inner<C>>,
    engine: Condvar,
    disk: Condvar,
    timer: Condvar,
    begun: Instant,
    around: Around<C::News>,
    /// Taken by the thread that tells, so that news comes in order.
    telling: Mutex<()>,
    /// How long a frame may take on a link of the ring, in microseconds.
    hop_us: AtomicU64,
}

/// What is left to do after the lock.
#[derive(Default)]
struct After {
    touched: Vec<Arc<Port>>,
    overflowed: Vec<LinkId>,
    dials: Vec<(LinkId, Node, Purpose, Duration)>,
    gives: Vec<(Arc<Port>, Give)>,
    notes: Vec<Note>,
    #[expect(clippy::vec_box, reason = "as the core gives them; only freed here")]
    discarded: Vec<Box<Step>>,
    wakes: [bool; 3],
    tells: bool,
}

impl<C: Core> Monitor<C> {
    /// Makes a monitor. Its core is not stepped until somebody has an event.
    pub(crate) fn new(core: C, around: Around<C::News>) -> Self {
        let hop_us = AtomicU64::new(around.hop.as_micros() as u64);
        let inner = Inner {
            core,
            desk: C::Desk::default(),
            ports: BTreeMap::new(),
            dialing: BTreeSet::new(),
            incoming: 0,
            wake: None,
            armed: None,
            ended: false,
        };
        Self {
            inner: Mutex::new(inner),
            engine: Condvar::new(),
            disk: Condvar::new(),
            timer: Condvar::new(),
            begun: Instant::now(),
            around,
            telling: Mutex::new(()),
            hop_us,
        }
    }

    /// Tells the core something.
    pub(crate) fn step(self: &Arc<Self>, by: By, event: C::Event) {
        self.step_if(by, |_| Some(event));
    }

    /// Tells the core something that depends on the present state. Returns whether it was told.
    fn step_if(self: &Arc<Self>, by: By, event: impl FnOnce(&mut Inner<C>) -> Option<C::Event>) -> bool {
        let mut after = After::default();
        {
            let mut inner = locked(&self.inner);
            if inner.ended {
                return false;
            }
            let Some(event) = event(&mut inner) else { return false };
            let effects = inner.core.step(event, self.begun.elapsed());
            for effect in effects {
                self.perform(&mut inner, effect, &mut after);
            }
        }
        self.follow(by, after);
        true
    }

    /// Does what is done under the lock.
    fn perform(&self, inner: &mut Inner<C>, effect: C::Effect, after: &mut After) {
        match C::sort(effect) {
            Sorted::Link(effect) => self.perform_link(inner, effect, after),
            Sorted::Give(link, give) => {
                if let Some(port) = inner.ports.get(&link) {
                    after.gives.push((Arc::clone(port), give));
                }
            }
            Sorted::WakeAt(at) => {
                inner.wake = at;
                after.wakes[2] |= at.is_some_and(|at| inner.armed.is_none_or(|armed| at < armed));
            }
            Sorted::Note(note) => after.notes.push(note),
            Sorted::Discard(step) => after.discarded.push(step),
            Sorted::Own(effect) => match inner.core.put(effect, &mut inner.desk) {
                Wakes::Nobody => {}
                Wakes::Engine => after.wakes[0] = true,
                Wakes::Disk => after.wakes[1] = true,
                Wakes::Program => after.tells = true,
            },
        }
    }

    fn perform_link(&self, inner: &mut Inner<C>, effect: LinkEffect, after: &mut After) {
        match effect {
            LinkEffect::Connect { link, to, purpose, within } => {
                inner.dialing.insert(link);
                after.dials.push((link, to, purpose, within));
            }
            // No link is used, so this does not wait.
            LinkEffect::Allow(devices) => self.around.network.allow(&devices),
            LinkEffect::Send(link, frame) => {
                if let Some(port) = inner.ports.get(&link) {
                    match port.put(frame) {
                        true => after.touched.push(Arc::clone(port)),
                        false => after.overflowed.push(link),
                    }
                }
            }
            LinkEffect::Close(link) => {
                inner.dialing.remove(&link);
                if let Some(port) = inner.ports.remove(&link) {
                    port.close();
                    after.touched.push(port);
                }
            }
            LinkEffect::Hold(link) | LinkEffect::Release(link) => {
                if let Some(port) = inner.ports.get(&link) {
                    port.hold(matches!(effect, LinkEffect::Hold(_)));
                }
            }
        }
    }

    /// Does what is done without the lock.
    fn follow(self: &Arc<Self>, by: By, after: After) {
        let After { touched, overflowed, dials, gives, notes, discarded, wakes, tells } = after;
        for (wakes, condvar) in wakes.into_iter().zip([&self.engine, &self.disk, &self.timer]) {
            if wakes {
                condvar.notify_all();
            }
        }
        for note in notes {
            log(&note);
        }
        if tells {
            let _turn = locked(&self.telling);
            while let Some(news) = self.desk(C::news) {
                (self.around.tell)(news);
            }
        }
        for port in touched {
            self.send_what_waits(by, &port);
        }
        for link in overflowed {
            self.lose(link, crate::core::Gone::Closed("it takes no frames".to_owned()));
        }
        for (link, to, purpose, within) in dials {
            self.dial(link, to, purpose, within);
        }
        for (port, give) in gives {
            self.give(&port, give);
        }
        drop(discarded);
    }

    /// Ends everything: the core is told `last`, links are closed, and threads that wait are woken.
    pub(crate) fn end(self: &Arc<Self>, last: C::Event) {
        let told = self.step_if(By::Other, |_| Some(last));
        if !told {
            return;
        }
        let ports = {
            let mut inner = locked(&self.inner);
            inner.ended = true;
            std::mem::take(&mut inner.ports)
        };
        ports.values().for_each(|port| port.abandon());
        for condvar in [&self.engine, &self.disk, &self.timer] {
            condvar.notify_all();
        }
    }

    /// Returns whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        locked(&self.inner).ended
    }

    /// Looks at the core.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&C) -> T) -> T {
        look(&locked(&self.inner).core)
    }

    /// Looks at the desk.
    pub(crate) fn desk<T>(&self, look: impl FnOnce(&mut C::Desk) -> T) -> T {
        look(&mut locked(&self.inner).desk)
    }

    /// Waits until `take` finds something on the desk, at most so long. Returns `None` after this time, and
    /// at the end.
    pub(crate) fn wait_for<T>(
        &self,
        who: Wakes,
        within: Option<Duration>,
        mut take: impl FnMut(&mut C::Desk) -> Option<T>,
    ) -> Option<T> {
        let until = within.map(|within| Instant::now() + within);
        let condvar = if who == Wakes::Disk { &self.disk } else { &self.engine };
        let mut inner = locked(&self.inner);
        loop {
            if let Some(found) = take(&mut inner.desk) {
                return Some(found);
            }
            if inner.ended {
                return None;
            }
            inner = match until {
                None => condvar.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    condvar.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Sets how long a frame may take on links of the ring, also on those that are open.
    pub(crate) fn set_hop(&self, hop: Duration) {
        self.hop_us.store(hop.as_micros() as u64, Ordering::Release);
        let inner = locked(&self.inner);
        for port in inner.ports.values().filter(|port| port.purpose == Purpose::Ring) {
            port.set_limit(hop);
        }
    }

    fn limit(&self, purpose: Purpose) -> Duration {
        match purpose {
            Purpose::Ring => Duration::from_micros(self.hop_us.load(Ordering::Acquire)),
            Purpose::Control | Purpose::Weights | Purpose::Edge => self.around.patience,
        }
    }

    /// Tells the core the time whenever it wants to know, until the end. This thread never waits for a link.
    pub(crate) fn keep_time(self: &Arc<Self>) {
        let mut memory = (0, None::<Instant>);
        let mut inner = locked(&self.inner);
        while !inner.ended {
            let now = self.begun.elapsed();
            match inner.wake {
                Some(at) if at <= now => {
                    inner.wake = None;
                    drop(inner);
                    self.step(By::Other, C::tick(self.meters(&mut memory)));
                    inner = locked(&self.inner);
                }
                wake => inner = self.wait_until(inner, wake, now),
            }
        }
    }

    fn wait_until<'a>(
        &self,
        mut inner: MutexGuard<'a, Inner<C>>,
        at: Option<Duration>,
        now: Duration,
    ) -> MutexGuard<'a, Inner<C>> {
        inner.armed = at;
        let mut inner = match at {
            None => self.timer.wait(inner).unwrap_or_else(PoisonError::into_inner),
            Some(at) => {
                let waited = self.timer.wait_timeout(inner, at.saturating_sub(now));
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        // While it is awake, it looks at `wake` by itself.
        inner.armed = Some(Duration::ZERO);
        inner
    }

    fn meters(&self, (bytes, looked): &mut (u64, Option<Instant>)) -> Meters {
        if looked.is_none_or(|looked| looked.elapsed() >= MEMORY_LOOK) {
            *looked = Some(Instant::now());
            *bytes = (self.around.memory)();
        }
        let mut meters = Meters { memory_bytes: *bytes, ..Meters::default() };
        let inner = locked(&self.inner);
        for port in inner.ports.values().filter(|port| port.purpose == Purpose::Ring) {
            let moved = port.moved();
            meters.bytes_in += moved.bytes_in;
            meters.bytes_out += moved.bytes_out;
            meters.send_us += moved.send_us;
            meters.unsent += moved.unsent;
        }
        meters
    }
}

/// Does something of which a panic must not end the thread. Returns the panic's message for people.
pub(crate) fn caught<T>(who: &str, run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let words = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        format!("{who} panicked: {}", words.unwrap_or("without a message"))
    })
}

/// Starts a thread of the runtime.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map(|_| ())
}

fn log(note: &Note) {
    match note.level() {
        NoteLevel::Debug => tracing::debug!("{note}"),
        NoteLevel::Info => tracing::info!("{note}"),
        NoteLevel::Warn => tracing::warn!("{note}"),
        NoteLevel::Error => tracing::error!("{note}"),
    }
}
