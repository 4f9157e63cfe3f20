//! A worker: a device that computes layers for another device's ring, and waits for the next head afterwards.
//!
//! It serves one head at a time, over one control link. A newer part ends whatever the older one is doing.
//! Frames are events, and none is dropped unless it is of an older epoch. The core never waits: neither for
//! a link nor for the engine or the disk.

mod base;
mod check;
mod edge;
mod fetch;
mod giving;
mod part;
mod session;
#[cfg(test)]
mod tests;
pub mod types;

use std::collections::BTreeMap;
use std::time::Duration;

use super::{DeviceId, DiskId, Epoch, LinkEvent, LinkId, Planted, Purpose, SeqNo, WorkId};
use crate::wire::frame::{Failure, FailureCode, Frame};
use base::{Base, Job};
use session::Session;
pub use types::{
    DiskEvent, DiskWork, Effect, Event, Meters, PartOf, WorkerDone, WorkerNews, WorkerSetup, WorkerWork,
};

/// The state of a worker.
#[derive(Debug)]
pub struct WorkerCore {
    base: Base,
    session: Option<Session>,
}

impl WorkerCore {
    /// Returns a worker that waits for a head.
    pub fn new(setup: WorkerSetup, now: Duration) -> Self {
        Self { base: Base::new(setup, now), session: None }
    }

    /// Returns the worker with this bug.
    #[must_use]
    pub fn planted(mut self, planted: Planted) -> Self {
        self.base.planted = planted;
        self
    }

    /// Takes an event; `now` is the time since the host began. Returns what is to be done, in order.
    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        self.base.now = now;
        let alive = match event {
            Event::Link(event) => self.linked(event),
            Event::Gave(link) => self.in_session(|session, base| session.gave(link, base)),
            Event::Computed { work, done, took } => self.computed(work, done, took),
            Event::Disk(id, event) => self.disk(id, event),
            Event::Tick(meters) => {
                self.base.meters = meters;
                true
            }
            Event::End => false,
        };
        let alive = alive && self.in_session(Session::on_time);
        if !alive && let Some(mut session) = self.session.take() {
            session.end(&mut self.base);
        }
        if self.base.are_free()
            && let Some(session) = &mut self.session
        {
            session.begin_next(&mut self.base);
        }
        if let Some(session) = &mut self.session {
            session.compute_next(&mut self.base);
        }
        let mut effects = self.base.effects();
        effects.push(Effect::WakeAt(self.session.as_ref().and_then(|session| session.wake_at(&self.base))));
        effects
    }

    /// Lets the session act, if there is one. Returns whether it goes on.
    fn in_session(&mut self, act: impl FnOnce(&mut Session, &mut Base) -> bool) -> bool {
        self.session.as_mut().is_none_or(|session| act(session, &mut self.base))
    }

    fn linked(&mut self, event: LinkEvent) -> bool {
        match event {
            LinkEvent::Arrived { link, from, purpose: Purpose::Control } => {
                self.head_arrived(link, from);
                true
            }
            LinkEvent::Arrived { link, from, purpose } => {
                match &mut self.session {
                    Some(session) => session.arrived(link, from, purpose, &mut self.base),
                    None => self.base.close(link),
                }
                true
            }
            LinkEvent::Opened(link, opened) => {
                self.in_session(|session, base| session.opened(link, opened, base))
            }
            LinkEvent::Heard(link, frame) => {
                self.in_session(|session, base| session.heard(link, frame, base))
            }
            LinkEvent::Gone(link, gone) => self.in_session(|session, base| session.gone(link, &gone, base)),
        }
    }

    /// If the same head connects again, it has lost its old link; another head must wait.
    fn head_arrived(&mut self, link: LinkId, head: DeviceId) {
        if self.session.as_ref().is_some_and(|session| session.head() != head) {
            let words = format!("`{}` serves another ring", self.base.setup.hello.name);
            let failure = Failure { epoch: Epoch(0), code: FailureCode::Busy, words };
            self.base.send(link, Frame::Failed(failure));
            return self.base.close(link);
        }
        if let Some(mut old) = self.session.take() {
            old.end(&mut self.base);
        }
        self.session = Some(Session::begin(link, head, &mut self.base));
    }

    fn computed(&mut self, work: WorkId, done: WorkerDone, took: Duration) -> bool {
        let Some(busy) = self.base.busy.take_if(|busy| busy.work == work) else { return true };
        match &busy.job {
            Job::Forget => self.base.forgotten(),
            Job::Begin(held) if done == WorkerDone::Begun => self.base.begun(held.clone()),
            Job::Begin(_) | Job::Pass { .. } => {}
        }
        if matches!(done, WorkerDone::Panicked(_)) {
            self.base.forgotten();
        }
        match (done, busy.stale) {
            (WorkerDone::Passed(step), true) => self.base.push(Effect::Discard(step)),
            (_, true) | (WorkerDone::Forgotten, _) => {}
            (done, false) => {
                return self.in_session(|session, base| session.computed(busy.job, done, took, base));
            }
        }
        true
    }

    fn disk(&mut self, id: DiskId, event: DiskEvent) -> bool {
        let Some((_, wanted)) = self.base.disk.filter(|(own, _)| *own == id) else { return true };
        if !matches!(event, DiskEvent::Progress { .. }) {
            self.base.disk = None;
        }
        if wanted { self.in_session(|session, base| session.disk(event, base)) } else { true }
    }

    /// Returns the lengths of the sequences of the part that is served.
    pub fn lengths(&self) -> BTreeMap<SeqNo, usize> {
        let ledger = self.session.as_ref().and_then(Session::ledger);
        ledger.map_or_else(BTreeMap::new, |ledger| ledger.lengths())
    }

    /// Returns how many operations of the part were applied.
    pub fn applied(&self) -> u64 {
        self.session.as_ref().and_then(Session::ledger).map_or(0, |ledger| ledger.applied())
    }
}
