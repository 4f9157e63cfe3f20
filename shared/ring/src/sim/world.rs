//! A simulated home: one heap of deliveries, a head, its workers, and the network between them.
//!
//! Time stands still while a core works and jumps to the next delivery. Nothing here uses a clock, a thread
//! or chance other than the seed's, so that a run can be repeated to the last effect.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use baton_random::mix;

use crate::core::head::{self, HeadCore, HeadWork};
use crate::core::worker::{self, DiskEvent, WorkerCore, WorkerWork};
use crate::core::{DeviceId, DiskId, Epoch, LinkEvent, LinkId, Node, Purpose, WorkId};
use crate::wire::frame::Frame;

use super::caller::Caller;
use super::check::Checks;
use super::compute::{HeadEngine, WorkerEngine};
use super::disk::FakeDisk;
use super::faults::Bad;
use super::network::Network;
use super::scenario::Scenario;
use super::{Options, Outcome, setup};

mod effects;
mod epilogue;
mod faulty;
mod links;

/// Most deliveries of one run.
const DELIVERIES_MAX: u64 = 400_000;

/// Something that happens at a time.
#[derive(Debug)]
pub(super) enum What {
    /// The wish for a link reaches a device.
    Dial { link: usize, to: usize },
    /// A link has taken as long to open as it may.
    DialEnd { link: usize },
    /// The answer of the other device reaches the one that opens a link.
    Opened { link: usize, outcome: Result<(), String> },
    /// Something arrives at one side of a link.
    Item { link: usize, side: usize },
    /// An engine has done a work.
    Computed { device: usize, life: u32, work: WorkId },
    /// A disk has done a work.
    Disk { device: usize, life: u32, id: DiskId, event: DiskEvent },
    /// A device's host sends a frame by itself.
    Given { device: usize, life: u32, link: LinkId, frame: Frame },
    /// A device's host cannot give what was asked for.
    NotGiven { device: usize, life: u32, link: LinkId },
    /// A device wanted to wake.
    Tick { device: usize, life: u32, serial: u64 },
    /// The head's planner has answered.
    Head(Box<head::Event>),
    /// The caller goes on.
    Caller,
    /// The caller does not want its step.
    Cancel { request: u64 },
    /// The head's core is told so.
    TellCancel { request: u64 },
    /// A fault begins.
    Fault(usize),
    /// A stopped device goes on.
    GoOn { device: usize },
    /// A device begins anew.
    Begin { device: usize },
    /// A device that fetches for ever says so.
    Fed { device: usize },
    /// A link that a misbehaving device has forged is there.
    Old { to: usize, accepted: LinkId, from: usize },
    /// The ring looks after itself once more.
    Idle(head::Own),
}

#[derive(Debug)]
struct Delivery {
    at: Duration,
    order: u64,
    what: What,
}

impl PartialEq for Delivery {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Delivery {}

impl PartialOrd for Delivery {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Delivery {
    /// The earliest is the greatest, as the heap gives out the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// One end of a link at a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Port {
    /// The link.
    pub(super) link: usize,
    /// Which side of it.
    pub(super) side: usize,
    /// Whether it is open, and not only wished for.
    pub(super) open: bool,
    /// The other device.
    pub(super) to: usize,
}

/// What an engine works on.
#[derive(Debug)]
pub(super) enum Work {
    Head(HeadWork),
    Worker(WorkerWork),
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) id: WorkId,
    pub(super) work: Work,
    pub(super) took: Duration,
    /// Whether it shall end early.
    pub(super) interrupted: bool,
}

/// The program of a worker, with all that it has.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) core: WorkerCore,
    pub(super) engine: WorkerEngine,
}

/// A device.
#[derive(Debug)]
pub(super) struct Device {
    /// `None` if it is dead, and on the head.
    pub(super) worker: Option<Worker>,
    pub(super) disk: FakeDisk,
    /// When its disk has done all that it was given, and how many works those are.
    pub(super) disk_until: Duration,
    pub(super) disk_works: usize,
    /// When its host has given all that it was asked for, by the link.
    pub(super) given_until: BTreeMap<LinkId, Duration>,
    /// The work of the disk that shall end early.
    pub(super) aborted: Option<DiskId>,
    pub(super) ports: BTreeMap<LinkId, Port>,
    pub(super) links: u64,
    pub(super) life: u32,
    pub(super) running: Option<Running>,
    pub(super) allowed: Vec<DeviceId>,
    pub(super) wake: u64,
    /// Whether it is stopped, and what waits until it goes on.
    pub(super) stopped: bool,
    pub(super) waiting: VecDeque<What>,
    pub(super) refuses: u64,
    pub(super) bad: BadDevice,
}

/// How a device misbehaves.
#[derive(Debug, Default)]
pub(super) struct BadDevice {
    /// What it does at the next frame that fits.
    pub(super) next: Option<Bad>,
    /// Whether it does so again and again.
    pub(super) always: bool,
    /// What it does from now on.
    pub(super) lasting: Option<Bad>,
    /// A frame that it keeps back or sends later.
    pub(super) kept: Option<Frame>,
    /// The latest epoch that it has entered.
    pub(super) entered: Epoch,
    /// Frames that it has sent, by purpose: control, ring, weights, edge.
    pub(super) sent: [u64; 4],
}

/// The simulated home.
#[derive(Debug)]
pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) options: Options,
    pub(super) now: Duration,
    order: u64,
    heap: BinaryHeap<Delivery>,
    pub(super) net: Network,
    pub(super) head: HeadCore,
    pub(super) engine: HeadEngine,
    /// The head first.
    pub(super) devices: Vec<Device>,
    pub(super) caller: Caller,
    pub(super) checks: Checks,
    pub(super) request: u64,
    pub(super) plans: u64,
    pub(super) epilogue: epilogue::Epilogue,
    /// Faults that have begun, or shall not begin any more.
    pub(super) begun: Vec<bool>,
    pub(super) over: bool,
    pub(super) deliveries: u64,
    pub(super) trace: u64,
    told: Vec<String>,
}

/// The key of a device.
pub(super) fn id(device: usize) -> DeviceId {
    DeviceId([device as u8 + 1; 32])
}

/// The device of a key.
pub(super) fn index(id: DeviceId) -> usize {
    usize::from(id.0[0]) - 1
}

/// Where a device can be reached.
pub(super) fn node(device: usize) -> Node {
    Node { device: id(device), address: format!("w{device}") }
}

impl World {
    /// A home before anything has happened.
    pub(super) fn new(scenario: Scenario, options: Options) -> Self {
        let home = &scenario.home;
        let seed = scenario.seed;
        let net = Network::new(seed, home.workers + 1, home.latency, home.jitter, home.byte_ns);
        let disk = |device: usize| {
            let hundredths = if device == 0 { 100 } else { home.pieces[device - 1] };
            FakeDisk::new(home.n_layers, hundredths, mix(seed, 77 + device as u64))
        };
        let mut world = Self {
            now: Duration::ZERO,
            order: 0,
            heap: BinaryHeap::new(),
            net,
            head: setup::head(home, seed, options.bug),
            engine: HeadEngine::new(home.n_layers, home.capacity),
            devices: (0..=home.workers).map(|device| Device::new(disk(device))).collect(),
            caller: Caller::new(scenario.script.clone(), seed, home.n_layers),
            checks: Checks::new(home.workers),
            request: 0,
            plans: 0,
            epilogue: epilogue::Epilogue::default(),
            begun: vec![false; scenario.faults.len()],
            over: false,
            deliveries: 0,
            trace: seed,
            told: Vec::new(),
            scenario,
            options,
        };
        (1..world.devices.len()).for_each(|device| world.begin(device));
        world.plan_faults();
        let nodes = (1..=world.scenario.home.first).map(node).collect();
        world.ask(head::Event::Connect(nodes), None);
        world
    }

    /// Runs until the script and what follows it have ended, or a check is broken.
    pub(super) fn run(&mut self) {
        while !self.over && self.goes_on() {}
    }

    /// Lets the next thing happen; returns whether everything is in order.
    fn goes_on(&mut self) -> bool {
        if self.checks.broken.is_some() {
            return false;
        }
        let Some(delivery) = self.heap.pop() else {
            self.checks.break_it("C5: nothing is left to happen".to_owned());
            return false;
        };
        self.now = delivery.at;
        self.deliveries += 1;
        self.deliver(delivery.what);
        if self.deliveries > DELIVERIES_MAX {
            self.checks.break_it("C5: the run does not end".to_owned());
        }
        self.in_time();
        self.checks.broken.is_none()
    }

    /// Returns when the next thing happens.
    fn next_at(&self) -> Option<Duration> {
        self.heap.peek().map(|delivery| delivery.at)
    }

    /// Lets something happen after some time.
    pub(super) fn after(&mut self, time: Duration, what: What) {
        self.at(self.now + time, what);
    }

    /// Lets something happen at a time.
    pub(super) fn at(&mut self, at: Duration, what: What) {
        self.order += 1;
        self.heap.push(Delivery { at, order: self.order, what });
    }

    /// Keeps words about what happens now, for those who look for a fault.
    pub(super) fn tell(&mut self, words: String) {
        self.told.push(format!("{:?} {words}", self.now));
    }

    /// Takes a number into the hash of all that happened.
    pub(super) fn trace(&mut self, value: u64) {
        self.trace = mix(self.trace, value);
    }

    /// The device that something happens to.
    fn receiver(&self, what: &What) -> Option<usize> {
        let end = |link: usize, side: usize| self.net.links()[link].ends[side].map(|end| end.device);
        match what {
            What::Dial { to, .. } => Some(*to),
            What::DialEnd { link } | What::Opened { link, .. } => end(*link, 0),
            What::Item { link, side } => end(*link, *side),
            What::Computed { device, .. }
            | What::Disk { device, .. }
            | What::Given { device, .. }
            | What::NotGiven { device, .. }
            | What::Tick { device, .. }
            | What::Fed { device } => Some(*device),
            What::Old { to, .. } => Some(*to),
            What::Head(_) | What::Caller | What::Idle(_) => Some(0),
            What::Cancel { .. } | What::TellCancel { .. } => Some(0),
            What::Fault(_) | What::GoOn { .. } | What::Begin { .. } => None,
        }
    }

    /// What came of the run.
    pub(super) fn outcome(self) -> Outcome {
        Outcome {
            broken: self.checks.broken,
            time: self.now,
            events: self.deliveries,
            steps: self.caller.steps,
            trace: self.trace,
            told: self.told,
        }
    }

    fn deliver(&mut self, what: What) {
        if let Some(device) = self.receiver(&what).filter(|device| self.devices[*device].stopped) {
            self.devices[device].waiting.push_back(what);
            return;
        }
        match what {
            What::Dial { link, to } => self.dialled(link, to),
            What::DialEnd { link } => self.opened(link, Err("it takes too long".to_owned())),
            What::Opened { link, outcome } => self.opened(link, outcome),
            What::Item { link, side } => self.arrive(link, side),
            What::Computed { device, life, work } if self.lives(device, life) => self.computed(device, work),
            What::Disk { device, life, id, event } if self.lives(device, life) => {
                let state = &mut self.devices[device];
                state.disk_works -= 1;
                let aborted = state.aborted.take_if(|aborted| *aborted == id).is_some();
                let event = if aborted { DiskEvent::Aborted } else { event };
                self.step_worker(device, worker::Event::Disk(id, event));
            }
            What::Given { device, life, link, frame } if self.lives(device, life) => {
                self.given(device, link, frame);
            }
            What::NotGiven { device, life, link } if self.lives(device, life) => self.not_given(device, link),
            What::Tick { device, life, serial } if self.lives(device, life) => self.tick(device, serial),
            What::Head(event) => self.step_head(*event),
            What::Caller => self.caller_goes_on(),
            What::Cancel { request } => self.cancel(request),
            What::TellCancel { request } => {
                if self.request == request && self.caller.steps_now() {
                    self.step_head(head::Event::Cancel);
                }
            }
            What::Fault(at) => self.fault(at),
            What::GoOn { device } => self.go_on(device),
            What::Begin { device } => self.begin(device),
            What::Fed { device } => self.fed(device),
            What::Old { to, accepted, from } => self.old_arrived(to, accepted, from),
            What::Idle(own) => self.idle(own),
            What::Computed { .. }
            | What::Disk { .. }
            | What::Given { .. }
            | What::NotGiven { .. }
            | What::Tick { .. } => {}
        }
    }

    /// Whether a device is still in this life.
    fn lives(&self, device: usize, life: u32) -> bool {
        self.devices[device].life == life && (device == 0 || self.devices[device].worker.is_some())
    }

    fn tick(&mut self, device: usize, serial: u64) {
        if self.devices[device].wake != serial {
            return;
        }
        match device {
            0 => self.step_head(head::Event::Tick),
            _ => self.step_worker(device, worker::Event::Tick(worker::Meters::default())),
        }
    }

    /// Tells a device's core of a link.
    pub(super) fn step_link(&mut self, device: usize, event: LinkEvent) {
        if self.options.tells && !matches!(event, LinkEvent::Heard(..)) {
            self.tell(format!("device {device}: {event:?}"));
        }
        match device {
            0 => self.step_head(head::Event::Link(event)),
            _ => self.step_worker(device, worker::Event::Link(event)),
        }
    }

    /// A worker's program begins.
    fn begin(&mut self, device: usize) {
        let home = &self.scenario.home;
        let core = setup::worker(home, device, self.options.bug, self.now);
        let engine = WorkerEngine::new(home.n_layers);
        self.devices[device].worker = Some(Worker { core, engine });
        self.checks.begins_anew(device);
        self.trace(device as u64);
    }

    /// A device is gone, with all of its links.
    pub(super) fn kill(&mut self, device: usize) {
        self.devices[device].worker = None;
        self.devices[device].life += 1;
        self.devices[device].running = None;
        self.devices[device].disk_works = 0;
        self.devices[device].given_until.clear();
        self.devices[device].aborted = None;
        self.devices[device].stopped = false;
        self.devices[device].waiting.clear();
        self.devices[device].allowed.clear();
        self.devices[device].bad = BadDevice::default();
        let ports = std::mem::take(&mut self.devices[device].ports);
        for port in ports.into_values() {
            self.end_link(port.link, port.side, "the device is gone");
        }
    }

    fn go_on(&mut self, device: usize) {
        self.devices[device].stopped = false;
        for what in std::mem::take(&mut self.devices[device].waiting) {
            self.at(self.now, what);
        }
    }

    /// Whether anybody can open a link for this purpose.
    pub(super) fn allows(&self, device: usize, from: usize, purpose: Purpose) -> bool {
        match purpose {
            Purpose::Control => from == 0 && device > 0,
            _ => from == 0 || self.devices[device].allowed.contains(&id(from)),
        }
    }
}

impl Device {
    fn new(disk: FakeDisk) -> Self {
        Self {
            worker: None,
            disk,
            disk_until: Duration::ZERO,
            disk_works: 0,
            given_until: BTreeMap::new(),
            aborted: None,
            ports: BTreeMap::new(),
            links: 0,
            life: 0,
            running: None,
            allowed: Vec::new(),
            wake: 0,
            stopped: false,
            waiting: VecDeque::new(),
            refuses: 0,
            bad: BadDevice::default(),
        }
    }
}
