//! What outlives a head's session: the engine's and the disk's present work, counters, and the effects of
//! one step.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use super::types::{DiskWork, Effect, Meters, WorkerNews, WorkerSetup, WorkerWork};
use crate::core::layout::gpu_layers_of;
use crate::core::{Digest, DiskId, Epoch, LinkEffect, LinkId, Node, Note, Planted, Purpose, WorkId};
use crate::wire::frame::{Configure, Frame, Heartbeat};

/// The model that the host has open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) file: PathBuf,
    model: Digest,
    layers: Vec<usize>,
    gpu_layers: Vec<usize>,
    reads_ahead: bool,
}

impl Held {
    pub(super) fn of(file: PathBuf, configure: &Configure, layers: &[usize]) -> Self {
        let (model, reads_ahead) = (configure.model, configure.reads_ahead);
        let gpu_layers = gpu_layers(configure);
        Self { file, model, layers: layers.to_vec(), gpu_layers, reads_ahead }
    }

    pub(super) fn fits(&self, configure: &Configure, layers: &[usize]) -> bool {
        self.model == configure.model
            && self.layers == layers
            && self.gpu_layers == gpu_layers(configure)
            && self.reads_ahead == configure.reads_ahead
    }
}

fn gpu_layers(configure: &Configure) -> Vec<usize> {
    gpu_layers_of(&configure.windows, usize::from(configure.place))
}

/// What the engine works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Job {
    /// It opens a model and makes an engine.
    Begin(Held),
    /// It computes these layers; `single` if of one row.
    Pass { layers: Range<usize>, single: bool },
    /// It drops engine and model.
    Forget,
}

/// The engine's present work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Busy {
    pub(super) work: WorkId,
    pub(super) job: Job,
    /// Whether its part is over, so that nobody waits for the result.
    pub(super) stale: bool,
}

/// What has been done in an epoch, for heartbeats. `refused` counts over all epochs of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) epoch: Epoch,
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) refused: u64,
    pub(super) compute_us: u64,
    pub(super) wait_us: u64,
    pub(super) singles: u64,
    pub(super) singles_us: u64,
}

/// Shared by all rooms of a worker; passed to them with every event.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) setup: WorkerSetup,
    pub(super) planted: Planted,
    pub(super) now: Duration,
    pub(super) counters: Counters,
    pub(super) meters: Meters,
    pub(super) busy: Option<Busy>,
    /// The disk's present work, and whether somebody waits for its result.
    pub(super) disk: Option<(DiskId, bool)>,
    pub(super) held: Option<Held>,
    /// Whether the host may have a model open.
    may_hold: bool,
    /// Whether the model has to be dropped as soon as the engine is free.
    forget: bool,
    /// Whether the disk has to forget what it checked, as soon as it is free.
    forget_checked: bool,
    effects: Vec<Effect>,
    links: u64,
    works: u64,
    disks: u64,
}

impl Base {
    pub(super) fn new(setup: WorkerSetup, now: Duration) -> Self {
        Self {
            setup,
            planted: Planted::default(),
            now,
            counters: Counters::default(),
            meters: Meters::default(),
            busy: None,
            disk: None,
            held: None,
            may_hold: false,
            forget: false,
            forget_checked: false,
            effects: Vec::with_capacity(8),
            links: 0,
            works: 0,
            disks: 0,
        }
    }

    pub(super) fn effects(&mut self) -> Vec<Effect> {
        std::mem::replace(&mut self.effects, Vec::with_capacity(8))
    }

    pub(super) fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    pub(super) fn link(&mut self, effect: LinkEffect) {
        self.push(Effect::Link(effect));
    }

    pub(super) fn connect(&mut self, to: Node, purpose: Purpose, within: Duration) -> LinkId {
        let link = LinkId(self.links);
        self.links += 2;
        self.link(LinkEffect::Connect { link, to, purpose, within });
        link
    }

    pub(super) fn send(&mut self, link: LinkId, frame: Frame) {
        self.link(LinkEffect::Send(link, frame));
    }

    pub(super) fn close(&mut self, link: LinkId) {
        self.link(LinkEffect::Close(link));
    }

    pub(super) fn tell(&mut self, news: WorkerNews) {
        self.push(Effect::Tell(news));
    }

    pub(super) fn note(&mut self, note: Note) {
        self.push(Effect::Note(note));
    }

    /// Lets the engine work; it is free.
    pub(super) fn compute(&mut self, job: Job, work: WorkerWork) {
        let id = WorkId(self.works);
        self.works += 1;
        self.may_hold |= matches!(job, Job::Begin(_));
        self.busy = Some(Busy { work: id, job, stale: false });
        self.push(Effect::Compute(id, work));
    }

    /// Ends the engine's present work; nobody waits for its result any more.
    pub(super) fn interrupt(&mut self) {
        if let Some(busy) = self.busy.as_mut().filter(|busy| !busy.stale && busy.job != Job::Forget) {
            busy.stale = true;
            self.push(Effect::Interrupt);
        }
    }

    /// Lets the disk work; it is free.
    pub(super) fn work_on_disk(&mut self, work: DiskWork) -> DiskId {
        let id = DiskId(self.disks);
        self.disks += 1;
        self.disk = Some((id, true));
        self.push(Effect::Disk(id, work));
        id
    }

    /// Ends the disk's present work; nobody waits for its result any more.
    pub(super) fn abort(&mut self) {
        if let Some((id, wanted @ true)) = &mut self.disk {
            *wanted = false;
            let id = *id;
            self.push(Effect::Abort(id));
        }
    }

    /// Lets the model be dropped as soon as the engine is free, if there may be one.
    pub(super) fn forget(&mut self) {
        self.forget |= self.may_hold;
        self.held = None;
    }

    /// The host has this model open now.
    pub(super) fn begun(&mut self, held: Held) {
        self.held = Some(held);
    }

    pub(super) fn forget_checked(&mut self) {
        self.forget_checked = true;
    }

    /// The model was dropped.
    pub(super) fn forgotten(&mut self) {
        (self.may_hold, self.held) = (false, None);
    }

    /// Starts what had to wait for engine or disk. Returns whether both are free for the next part.
    pub(super) fn are_free(&mut self) -> bool {
        if self.disk.is_none() && std::mem::take(&mut self.forget_checked) {
            self.work_on_disk(DiskWork::ForgetChecked);
            self.disk = self.disk.map(|(id, _)| (id, false));
        }
        if self.busy.is_none() && std::mem::take(&mut self.forget) {
            self.compute(Job::Forget, WorkerWork::Forget);
        }
        self.busy.is_none() && self.disk.is_none()
    }

    /// Begins the counts of an epoch.
    pub(super) fn count_anew(&mut self, epoch: Epoch) {
        self.counters = Counters { epoch, refused: self.counters.refused, ..Counters::default() };
        self.meters = Meters { memory_bytes: self.meters.memory_bytes, ..Meters::default() };
    }

    pub(super) fn beat(&self) -> Frame {
        let Counters { epoch, received, sent, refused, compute_us, wait_us, singles, singles_us } =
            self.counters;
        let Meters { bytes_in, bytes_out, send_us, unsent, memory_bytes } = self.meters;
        // The figure is for plans, and no plan has a device without a profile.
        let memory_bytes = if self.setup.hello.device.is_some() { memory_bytes } else { 0 };
        Frame::Heartbeat(Heartbeat {
            epoch,
            received,
            // What the next device does not take was not passed on.
            sent: sent.saturating_sub(unsent),
            refused,
            compute_us,
            wait_us,
            send_us,
            bytes_in,
            bytes_out,
            singles,
            singles_us,
            memory_bytes,
        })
    }
}

/// Closes all of these links.
pub(super) fn close_all(links: impl IntoIterator<Item = LinkId>, base: &mut Base) {
    links.into_iter().for_each(|link| base.close(link));
}

/// Gives frames that nobody wants to the host.
pub(super) fn discard(steps: &mut VecDeque<crate::wire::frame::Step>, base: &mut Base) {
    steps.drain(..).for_each(|step| base.push(Effect::Discard(Box::new(step))));
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
