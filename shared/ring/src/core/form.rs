//! Forms rings: asks for a plan for the present devices, sends each its part, opens links, and begins an
//! epoch.
//!
//! Every failure is the fault of one device or link ([`Fault`]). That device leaves the ring; if only a link
//! broke, it gets one more try. So each failed try leaves fewer devices or fewer tries, and forming always
//! ends.
//!
//! This room sends no step and knows no sequence. Always holds:
//!
//! - The epoch of a ring is greater than that of each try before; no epoch is used twice.
//! - The links of a formed ring carry its epoch: a link that entered another one is never taken.
//! - Nothing blocks: a link that opens, a device that says nothing and one that is fed for ever have limits.

mod enter;
#[cfg(test)]
mod tests;

use std::time::Duration;

use super::arrivals::Arrivals;
use super::head::{
    CacheSetup, Effect, Fault, Fx, HeadDone, HeadSetup, ModelFacts, Pace, Planned, Progress, RingFault,
};
use super::layout::Layout;
use super::planted::Planted;
use super::roster::{Roster, STRIKES_MAX};
use super::{DeviceId, Epoch, Gone, LinkId, Node, WorkId};
use crate::wire::frame::{Activations, Frame, Step};
use enter::Entering;

/// Bytes per second of the slowest link over which the head waits for weights: 2 Mbit/s. Without this limit,
/// a device that reports progress but is never ready would keep the ring from being formed for ever.
const FETCH_BYTES_PER_S: u64 = 256_000;
/// How often the same bytes may be moved: pieces fetched from another worker may have to be fetched again
/// from the head.
const FETCHES: u64 = 2;

/// Returns how long fetching so many bytes may take, without the time to connect.
fn fetch_time(bytes: u64) -> Duration {
    Duration::from_secs(bytes.saturating_mul(FETCHES) / FETCH_BYTES_PER_S)
}

/// Returns how long fetching so many layers may take in all, even with progress. `quiet` is the longest time
/// without any.
pub(super) fn fetch_limit(
    model: Option<&ModelFacts>,
    quiet: Duration,
    layers: usize,
    n_layers: usize,
) -> Duration {
    let (file, header) = model.map_or((0, 0), |model| (model.file_len, model.header_bytes));
    let share = layers as f64 / n_layers.max(1) as f64;
    quiet + fetch_time(header.saturating_add((file as f64 * share) as u64))
}

/// A ring of several devices.
#[derive(Debug, Clone)]
pub(super) struct Formed {
    /// Its epoch.
    pub(super) epoch: Epoch,
    /// Its plan.
    pub(super) layout: Layout,
    /// The devices at the places from 1 on.
    pub(super) places: Vec<DeviceId>,
    /// The link to place 1; none once it has ended.
    pub(super) out: Option<LinkId>,
    /// The link from the last place; none once it has ended.
    pub(super) back: Option<LinkId>,
}

/// Where steps are computed.
#[derive(Debug)]
pub(super) enum Route {
    /// Nowhere, until the ring is formed again.
    Down,
    /// The head computes everything.
    Alone(Layout),
    /// By all devices of the ring.
    Ring(Formed),
}

/// What came over a link of the ring.
#[derive(Debug, PartialEq)]
pub(super) enum Came {
    /// Nothing that concerns another room.
    Nothing,
    /// A step of the present epoch.
    Step(Box<Step>),
    /// A step of another epoch, or over a link that is not the present one.
    Refused,
    /// What must not come. It is also kept ([`Form::broken`]).
    Fault(Fault),
}

/// What every device of a ring is told.
#[derive(Debug)]
struct Facts {
    own: Node,
    name: String,
    n_layers: usize,
    width: usize,
    cache: CacheSetup,
    activations: Activations,
    reads_ahead: bool,
    heartbeat: Duration,
    hop: Duration,
    patience: Duration,
}

/// Forms rings, one epoch after the other.
#[derive(Debug)]
pub(super) struct Form {
    facts: Facts,
    /// Grows by one for each try that sends parts.
    epoch: Epoch,
    route: Route,
    /// Only while the route is down.
    attempt: Option<Attempt>,
    arrivals: Arrivals,
    pace: Pace,
    /// What went wrong with the links of the present ring: the first fault, or the first certain one.
    broken: Option<Fault>,
    planted: Planted,
}

/// Tries to form a ring.
#[derive(Debug)]
struct Attempt {
    tries_left: usize,
    tries: usize,
    /// What went wrong last.
    words: String,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The next try begins.
    Begin,
    /// A plan is made; the answer, once it is there.
    Planning(Option<Result<Planned, String>>),
    /// Devices get their parts and open their links.
    Entering(Entering),
    /// The head's engine changes to its layers; then this is the route.
    Resetting { work: WorkId, done: Option<bool>, into: Route },
}

/// What follows from a look at the attempt.
enum Turn {
    /// Look again.
    On,
    /// Wait for an event.
    Waiting,
    /// The attempt has ended.
    End(Result<(), RingFault>),
}

impl Attempt {
    /// Begins an attempt with so many members.
    fn new(members: usize) -> Self {
        let tries = 2 + STRIKES_MAX as usize * (members + 1);
        Self { tries_left: tries, tries, words: String::new(), stage: Stage::Begin }
    }
}

/// The present route.
impl Form {
    /// Makes the room of a head without a ring.
    pub(super) fn new(setup: &HeadSetup, planted: Planted) -> Self {
        let facts = Facts {
            own: setup.own.clone(),
            name: setup.name.clone(),
            n_layers: setup.n_layers,
            width: setup.width,
            cache: setup.engine,
            activations: setup.activations,
            reads_ahead: setup.reads_ahead,
            heartbeat: setup.heartbeat,
            hop: setup.hop,
            patience: setup.patience,
        };
        Self {
            facts,
            epoch: Epoch::default(),
            route: Route::Down,
            attempt: None,
            arrivals: Arrivals::new(planted),
            pace: Pace::default(),
            broken: None,
            planted,
        }
    }

    /// Returns where steps are computed.
    pub(super) fn route(&self) -> &Route {
        &self.route
    }

    /// Returns the formed ring, if there is one of several devices.
    pub(super) fn formed(&self) -> Option<&Formed> {
        match &self.route {
            Route::Ring(formed) => Some(formed),
            Route::Alone(_) | Route::Down => None,
        }
    }

    /// Returns the layout that is run.
    pub(super) fn layout(&self) -> Option<&Layout> {
        match &self.route {
            Route::Ring(formed) => Some(&formed.layout),
            Route::Alone(layout) => Some(layout),
            Route::Down => None,
        }
    }

    /// Returns the newest epoch.
    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns how fast the present plan should be.
    pub(super) fn pace(&self) -> Pace {
        self.pace
    }

    /// Returns what went wrong with the links of the formed ring, if anything did.
    pub(super) fn broken(&self) -> Option<&Fault> {
        self.broken.as_ref()
    }

    /// Ends the present route: its links are closed. Returns the ring, whose places can be blamed.
    pub(super) fn fall(&mut self, fx: &mut Fx) -> Option<Formed> {
        let route = std::mem::replace(&mut self.route, Route::Down);
        self.broken = None;
        Self::close(&route, fx);
        match route {
            Route::Ring(formed) => Some(formed),
            Route::Alone(_) | Route::Down => None,
        }
    }

    /// Ends the present route and an attempt, if there is one, and closes every link of the ring.
    pub(super) fn end(&mut self, fx: &mut Fx) {
        if let Some(attempt) = self.attempt.take() {
            match attempt.stage {
                Stage::Entering(entering) => entering.end(fx),
                Stage::Resetting { into, .. } => Self::close(&into, fx),
                Stage::Begin | Stage::Planning(_) => {}
            }
        }
        self.fall(fx);
        self.arrivals.clear().into_iter().for_each(|link| fx.close(link));
    }

    /// Closes the links of a route that have not ended.
    fn close(route: &Route, fx: &mut Fx) {
        if let Route::Ring(formed) = route {
            [formed.out, formed.back].into_iter().flatten().for_each(|link| fx.close(link));
        }
    }

    /// Returns the ring that is formed or is about to be.
    fn ring(&mut self) -> Option<&mut Formed> {
        let route = match &mut self.attempt {
            Some(Attempt { stage: Stage::Resetting { into, .. }, .. }) => into,
            _ => &mut self.route,
        };
        match route {
            Route::Ring(formed) => Some(formed),
            Route::Alone(_) | Route::Down => None,
        }
    }

    fn entering(&mut self) -> Option<&mut Entering> {
        match &mut self.attempt {
            Some(Attempt { stage: Stage::Entering(entering), .. }) => Some(entering),
            _ => None,
        }
    }
}

/// Links of the ring.
impl Form {
    /// The link to place 1 was opened, or was not.
    pub(super) fn opened(&mut self, link: LinkId, opened: Result<(), String>, now: Duration, fx: &mut Fx) {
        let epoch = self.epoch;
        if let Some(entering) = self.entering() {
            entering.opened(link, opened.is_ok(), epoch, now, fx);
        }
    }

    /// Another device has opened a link of the ring. It waits until it is used.
    pub(super) fn arrived(&mut self, link: LinkId, from: DeviceId, fx: &mut Fx) {
        if let Some(oldest) = self.arrivals.add(link, from) {
            fx.close(oldest);
        }
    }

    /// A frame came over a link of the ring.
    pub(super) fn heard(&mut self, link: LinkId, frame: Frame, fx: &mut Fx) -> Came {
        if let Some(formed) = self.ring() {
            if formed.out == Some(link) {
                // Nothing is expected there, and nothing there can harm.
                return Came::Nothing;
            }
            if formed.back == Some(link) {
                let (epoch, last) = (formed.epoch, formed.places.len());
                return self.came_back(frame, epoch, last);
            }
        }
        if let Frame::Enter { epoch, .. } = &frame
            && self.arrivals.entered(link, *epoch)
        {
            return Came::Nothing;
        }
        if self.entering().is_some_and(|entering| entering.out_is(link)) {
            return Came::Nothing;
        }
        // Nothing else may come before the ring is formed.
        self.arrivals.remove(link);
        if let Some(entering) = self.entering() {
            entering.drop_back(link);
        }
        fx.close(link);
        if matches!(frame, Frame::Step(_)) { Came::Refused } else { Came::Nothing }
    }

    fn came_back(&mut self, frame: Frame, epoch: Epoch, last: usize) -> Came {
        match frame {
            Frame::Step(step) if step.epoch == epoch && self.attempt.is_none() => Came::Step(Box::new(step)),
            Frame::Step(step) if step.epoch != epoch => Came::Refused,
            _ => {
                let words = "a frame that is no step of this ring".to_owned();
                Came::Fault(self.breaks(Fault::Wrong { place: last, words }))
            }
        }
    }

    /// A link of the ring has ended. Returns the fault if it was one of the formed ring.
    pub(super) fn gone(&mut self, link: LinkId, gone: &Gone, now: Duration) -> Option<Fault> {
        self.arrivals.remove(link);
        if let Some(entering) = self.entering() {
            entering.gone(link, now);
            return None;
        }
        let formed = self.ring()?;
        let last = formed.places.len();
        let words = gone.words().to_owned();
        let fault = if formed.out == Some(link) {
            formed.out = None;
            Fault::Link { place: 1, words }
        } else if formed.back == Some(link) {
            formed.back = None;
            match gone {
                Gone::NoFrame(_) => Fault::Wrong { place: last, words },
                Gone::Closed(_) => Fault::Link { place: last, words },
            }
        } else {
            return None;
        };
        Some(self.breaks(fault))
    }

    /// Keeps what went wrong: a certain fault comes before one that may only follow from it.
    fn breaks(&mut self, fault: Fault) -> Fault {
        let keep = self.broken.as_ref().is_some_and(|broken| broken.is_certain() || !fault.is_certain());
        if !keep {
            self.broken = Some(fault.clone());
        }
        fault
    }
}

/// Forming.
impl Form {
    /// Goes on with forming a ring; the route must be down. Sequences are empty afterwards. A cancelled
    /// attempt ends before devices get their parts, or while they enter.
    pub(super) fn drive(
        &mut self,
        roster: &mut Roster,
        cancelled: bool,
        now: Duration,
        fx: &mut Fx,
    ) -> Progress<Result<(), RingFault>> {
        let mut attempt = self.attempt.take().unwrap_or_else(|| Attempt::new(roster.members()));
        loop {
            match self.turn(&mut attempt, roster, cancelled, now, fx) {
                Turn::On => {}
                Turn::Waiting => {
                    self.attempt = Some(attempt);
                    return Progress::Waiting;
                }
                Turn::End(end) => return Progress::Done(end),
            }
        }
    }

    /// The planner has answered.
    pub(super) fn planned(&mut self, answer: Result<Planned, String>) {
        if let Some(Attempt { stage: Stage::Planning(waiting), .. }) = &mut self.attempt {
            *waiting = Some(answer);
        }
    }

    /// The engine has done a work. Returns whether it was this room's.
    pub(super) fn computed(&mut self, work: WorkId, done: &HeadDone) -> bool {
        match &mut self.attempt {
            Some(Attempt { stage: Stage::Resetting { work: own, done: was, .. }, .. }) if *own == work => {
                *was = Some(matches!(done, HeadDone::Done));
                true
            }
            _ => false,
        }
    }

    /// For this time, this device looked at nothing: devices that enter get as much more.
    pub(super) fn was_late(&mut self, late: Duration) {
        if let Some(entering) = self.entering() {
            entering.was_late(late);
        }
    }

    /// When [`Self::drive`] must go on at the latest.
    pub(super) fn wake_at(&self, roster: &Roster) -> Option<Duration> {
        match &self.attempt {
            Some(Attempt { stage: Stage::Entering(entering), .. }) => entering.wake_at(roster),
            _ => None,
        }
    }

    fn turn(
        &mut self,
        attempt: &mut Attempt,
        roster: &mut Roster,
        cancelled: bool,
        now: Duration,
        fx: &mut Fx,
    ) -> Turn {
        match std::mem::replace(&mut attempt.stage, Stage::Begin) {
            Stage::Begin => {
                if attempt.tries_left == 0 {
                    let (times, words) = (attempt.tries, std::mem::take(&mut attempt.words));
                    return Turn::End(Err(RingFault::GaveUp { times, words }));
                }
                attempt.tries_left -= 1;
                roster.bury(fx);
                fx.push(Effect::Plan(roster.plan_for()));
                attempt.stage = Stage::Planning(None);
                Turn::Waiting
            }
            Stage::Planning(None) => {
                attempt.stage = Stage::Planning(None);
                Turn::Waiting
            }
            Stage::Planning(Some(answer)) => {
                match self.begin(answer, attempt, roster, (cancelled, now), fx) {
                    Ok(stage) => {
                        attempt.stage = stage;
                        Turn::On
                    }
                    Err(err) => Turn::End(Err(err)),
                }
            }
            Stage::Entering(entering) if cancelled => {
                entering.end(fx);
                Turn::End(Err(RingFault::Cancelled))
            }
            Stage::Entering(entering) => self.enter(entering, attempt, roster, now, fx),
            Stage::Resetting { work, done: None, into } => {
                attempt.stage = Stage::Resetting { work, done: None, into };
                Turn::Waiting
            }
            Stage::Resetting { done: Some(true), into, .. } => {
                self.route = into;
                Turn::End(Ok(()))
            }
            Stage::Resetting { into, .. } => {
                Self::close(&into, fx);
                self.broken = None;
                Turn::End(Err(RingFault::Host))
            }
        }
    }
}
