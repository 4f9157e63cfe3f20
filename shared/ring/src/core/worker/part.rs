//! A worker's part in one epoch: weights, engine, links, then frames.
//!
//! A newer part ends an older one at any point. A frame is used only as far as it was checked; an invalid
//! one ends the part, and its sender is named. Frames are computed one at a time and sent on in the order
//! in which they came.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use super::base::{Base, Held, Job, close_all, discard, micros};
use super::check::check;
use super::edge::AGAIN;
use super::types::{WorkerDone, WorkerNews, WorkerWork};
use crate::core::arrivals::Arrivals;
use crate::core::layout::layers_of;
use crate::core::ledger::Ledger;
use crate::core::{Bug, DeviceId, LinkEffect, LinkId, Purpose};
use crate::wire::frame::{Configure, Failure, FailureCode, Frame, Step};

/// The link from the device before is held as soon as so many frames wait; one more may come.
pub(super) const QUEUE_MAX: usize = 2;

/// The link to the next device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Out {
    Again { at: Duration },
    Opening(LinkId),
    Open(LinkId),
}

impl Out {
    fn link(self) -> Option<LinkId> {
        match self {
            Self::Again { .. } => None,
            Self::Opening(link) | Self::Open(link) => Some(link),
        }
    }
}

/// Links are opened.
#[derive(Debug)]
struct Linking {
    begun: Duration,
    out: Out,
    back: Option<LinkId>,
}

/// Frames are computed.
#[derive(Debug)]
struct Serving {
    out: LinkId,
    back: LinkId,
    ledger: Ledger,
    held: bool,
    idle_since: Duration,
}

#[derive(Debug)]
enum Stage {
    /// Its weights are looked for and fetched.
    Weights,
    /// The engine is made.
    Beginning,
    Linking(Linking),
    Serving(Serving),
}

/// The present part.
#[derive(Debug)]
struct Part {
    configure: Box<Configure>,
    layers: Vec<usize>,
    stage: Stage,
}

/// The part of a session, and what arrives for it.
#[derive(Debug)]
pub(super) struct Parts {
    control: LinkId,
    part: Option<Part>,
    /// Frames that wait to be computed.
    queue: VecDeque<Step>,
    arrivals: Arrivals,
}

impl Parts {
    pub(super) fn new(control: LinkId, base: &Base) -> Self {
        Self { control, part: None, queue: VecDeque::new(), arrivals: Arrivals::new(base.planted) }
    }

    /// Begins a part; the older one has ended, engine and disk are free. Returns whether weights are needed.
    pub(super) fn begin(&mut self, configure: Box<Configure>, base: &mut Base) -> bool {
        let layers = layers_of(&configure.windows, usize::from(configure.place));
        self.part = Some(Part { configure, layers, stage: Stage::Weights });
        let Some(part) = &self.part else { return false };
        if part.layers.is_empty() {
            self.link(base);
            return false;
        }
        if let Some(held) = base.held.clone().filter(|held| held.fits(&part.configure, &part.layers)) {
            self.make_engine(held.file, true, base);
            return false;
        }
        // What is mapped must keep still while more of the file is written.
        base.forget();
        true
    }

    /// Returns the part whose weights are needed: the model, and who may have some.
    pub(super) fn wants_weights(&self) -> Option<(&Configure, &[usize])> {
        let part = self.part.as_ref().filter(|part| matches!(part.stage, Stage::Weights))?;
        Some((&part.configure, &part.layers))
    }

    /// Returns whether there is a part, whatever it is doing.
    pub(super) fn is_busy(&self) -> bool {
        self.part.is_some()
    }

    /// Makes the engine from this file; the engine is free.
    pub(super) fn make_engine(&mut self, file: PathBuf, same: bool, base: &mut Base) {
        let Some(part) = &mut self.part else { return };
        let (configure, layers) = (part.configure.clone(), part.layers.clone());
        part.stage = Stage::Beginning;
        let held = Held::of(file.clone(), &configure, &layers);
        base.compute(Job::Begin(held), WorkerWork::Begin { file, configure, layers, same });
    }

    /// Opens the links.
    fn link(&mut self, base: &mut Base) {
        let Some(part) = &mut self.part else { return };
        let out = Out::Opening(connect(part, base));
        part.stage = Stage::Linking(Linking { begun: base.now, out, back: None });
        self.take_back(base);
    }

    /// Takes the link from the device before, if it has come. That device may still fetch weights; the head
    /// decides how long.
    fn take_back(&mut self, base: &mut Base) {
        let Some(Part { configure, stage: Stage::Linking(linking), .. }) = &mut self.part else { return };
        if linking.back.is_none() {
            let taken = self.arrivals.take(configure.before, configure.epoch);
            linking.back = taken.link;
            base.counters.refused += taken.old.len() as u64;
            close_all(taken.old, base);
        }
        self.serve_if_linked(base);
    }

    fn serve_if_linked(&mut self, base: &mut Base) {
        let Some(Part { configure, layers, stage }) = &mut self.part else { return };
        let Stage::Linking(Linking { out: Out::Open(out), back: Some(back), .. }) = *stage else { return };
        let ledger = Ledger::lengths_only().planted(base.planted);
        *stage = Stage::Serving(Serving { out, back, ledger, held: false, idle_since: base.now });
        let (epoch, place) = (configure.epoch, usize::from(configure.place));
        base.count_anew(epoch);
        base.send(self.control, Frame::Ready { epoch });
        base.tell(WorkerNews::Ready { epoch, place, layers: layers.clone() });
        self.compute_next(base);
    }

    /// Ends the part without a word: a newer one comes, or the session is over.
    pub(super) fn end(&mut self, base: &mut Base) {
        self.end_without(None, base);
    }

    /// As [`Self::end`], but a link that is gone is not closed.
    fn end_without(&mut self, gone: Option<LinkId>, base: &mut Base) {
        let links = [self.out(), self.back()].into_iter().flatten();
        close_all(links.filter(|link| Some(*link) != gone), base);
        self.part = None;
        base.interrupt();
        if !base.planted.is(Bug::OldFramesComputed) {
            discard(&mut self.queue, base);
        }
    }

    /// The session is over.
    pub(super) fn end_all(&mut self, base: &mut Base) {
        self.end(base);
        discard(&mut self.queue, base);
        close_all(self.arrivals.clear(), base);
    }

    /// Ends the part and tells the head and people why. What is open of the model stays.
    pub(super) fn fail(&mut self, code: FailureCode, words: impl Into<String>, base: &mut Base) {
        self.fail_without(None, (code, words.into()), base);
    }

    /// As [`Self::fail`], but a link that is gone is not closed.
    fn fail_without(&mut self, gone: Option<LinkId>, why: (FailureCode, String), base: &mut Base) {
        let Some(part) = &self.part else { return };
        let (epoch, (code, words)) = (part.configure.epoch, why);
        base.send(self.control, Frame::Failed(Failure { epoch, code, words: words.clone() }));
        base.tell(WorkerNews::Failed { epoch, words });
        self.end_without(gone, base);
    }

    fn out(&self) -> Option<LinkId> {
        match &self.part.as_ref()?.stage {
            Stage::Linking(linking) => linking.out.link(),
            Stage::Serving(serving) => Some(serving.out),
            Stage::Weights | Stage::Beginning => None,
        }
    }

    fn back(&self) -> Option<LinkId> {
        match &self.part.as_ref()?.stage {
            Stage::Linking(linking) => linking.back,
            Stage::Serving(serving) => Some(serving.back),
            Stage::Weights | Stage::Beginning => None,
        }
    }

    pub(super) fn owns(&self, link: LinkId) -> bool {
        self.out() == Some(link) || self.back() == Some(link) || self.arrivals.holds(link)
    }

    pub(super) fn arrived(&mut self, link: LinkId, from: DeviceId, base: &mut Base) {
        close_all(self.arrivals.add(link, from), base);
    }

    pub(super) fn opened(&mut self, link: LinkId, opened: Result<(), String>, base: &mut Base) {
        let (now, patience) = (base.now, base.setup.patience);
        let Some(Part { configure, stage: Stage::Linking(linking), .. }) = &mut self.part else { return };
        match opened {
            Ok(()) => {
                linking.out = Out::Open(link);
                base.send(link, Frame::Enter { epoch: configure.epoch, place: configure.place });
                self.serve_if_linked(base);
            }
            Err(words) => {
                // The next device may not know of this one yet.
                linking.out = Out::Again { at: now + AGAIN };
                if now >= linking.begun + patience {
                    self.fail(FailureCode::Next, words, base);
                }
            }
        }
    }

    /// A link is gone. `no_frame` if something came that is no frame.
    pub(super) fn gone(&mut self, link: LinkId, no_frame: bool, words: &str, base: &mut Base) {
        let (is_back, is_out) = (self.back() == Some(link), self.out() == Some(link));
        if !is_back && !is_out {
            self.arrivals.remove(link);
            return;
        }
        let code = match (is_back, no_frame) {
            (true, true) => FailureCode::Refused,
            (true, false) => FailureCode::Before,
            (false, _) => FailureCode::Next,
        };
        self.fail_without(Some(link), (code, words.to_owned()), base);
    }

    /// Takes a frame of a ring link.
    pub(super) fn heard(&mut self, link: LinkId, frame: Frame, base: &mut Base) {
        if self.arrivals.holds(link) {
            return self.entered(link, &frame, base);
        }
        let is_back = self.back() == Some(link);
        let Some(part) = &mut self.part else { return };
        match (&mut part.stage, frame) {
            (Stage::Serving(serving), Frame::Step(step)) if is_back => {
                let any = base.planted.is(Bug::OldFramesComputed);
                if step.epoch != part.configure.epoch && !any {
                    base.counters.refused += 1;
                    return base.push(super::types::Effect::Discard(Box::new(step)));
                }
                base.counters.received += 1;
                self.queue.push_back(step);
                if self.queue.len() >= QUEUE_MAX && !serving.held {
                    serving.held = true;
                    base.link(LinkEffect::Hold(link));
                }
                self.compute_next(base);
            }
            _ if is_back => {
                self.fail(FailureCode::Refused, "a frame that is no step, or came too early", base)
            }
            _ => self.fail(FailureCode::Next, "the next device sent a frame back", base),
        }
    }

    /// Takes the first frame of a link that waits.
    fn entered(&mut self, link: LinkId, frame: &Frame, base: &mut Base) {
        match frame {
            Frame::Enter { epoch, .. } if self.arrivals.entered(link, *epoch) => self.take_back(base),
            _ => {
                self.arrivals.remove(link);
                base.counters.refused += 1;
                base.close(link);
            }
        }
    }

    /// Takes frames that wait, as long as the engine is free.
    pub(super) fn compute_next(&mut self, base: &mut Base) {
        while base.busy.is_none() {
            let Some(Part { configure, layers, stage: Stage::Serving(serving) }) = &mut self.part else {
                return;
            };
            let Some(step) = self.queue.pop_front() else { return };
            if serving.held && self.queue.len() < QUEUE_MAX {
                serving.held = false;
                base.link(LinkEffect::Release(serving.back));
            }
            base.counters.wait_us += micros(base.now.saturating_sub(serving.idle_since));
            let own = match check(configure, &mut serving.ledger, &step) {
                Ok(own) => own,
                Err(words) => {
                    let words = format!("the device before sent a frame that does not fit: {words}");
                    base.push(super::types::Effect::Discard(Box::new(step)));
                    return self.fail(FailureCode::Refused, words, base);
                }
            };
            // This device only relays, so it has no engine.
            if layers.is_empty() {
                self.send_on(step, base);
                continue;
            }
            let single = step.rows.len() == 1;
            let work = WorkerWork::Pass { step: Box::new(step), layers: own.clone() };
            base.compute(Job::Pass { layers: own, single }, work);
        }
    }

    fn send_on(&mut self, step: Step, base: &mut Base) {
        if let Some(Part { stage: Stage::Serving(serving), .. }) = &mut self.part {
            base.send(serving.out, Frame::Step(step));
            base.counters.sent += 1;
            serving.idle_since = base.now;
        }
    }

    /// Takes the result of the engine's work for this part.
    pub(super) fn computed(&mut self, job: Job, done: WorkerDone, took: Duration, base: &mut Base) {
        match (job, done) {
            (Job::Begin(_), WorkerDone::Begun) => self.link(base),
            (Job::Pass { layers, single }, WorkerDone::Passed(step)) => {
                let took = micros(took);
                base.counters.compute_us += took;
                if single {
                    base.counters.singles += 1;
                    base.counters.singles_us += took;
                }
                self.passed(layers, *step, base);
            }
            (Job::Pass { .. }, WorkerDone::Gains { want, found }) => {
                let words = format!(
                    "the device before sent a frame that does not fit: {want} tokens of a prefix, this device has \
                     {found}"
                );
                self.fail(FailureCode::Refused, words, base);
            }
            (Job::Pass { .. }, WorkerDone::Refused(words)) => {
                let words = format!("the device before sent a frame that does not fit: {words}");
                self.fail(FailureCode::Refused, words, base);
            }
            (_, WorkerDone::Weights(words)) => self.fail(FailureCode::Weights, words, base),
            (_, WorkerDone::Engine(words) | WorkerDone::Refused(words)) => {
                self.fail(FailureCode::Engine, words, base);
            }
            (_, other) => self.fail(FailureCode::Engine, format!("the engine gave {other:?}"), base),
        }
    }

    fn passed(&mut self, layers: std::ops::Range<usize>, mut step: Step, base: &mut Base) {
        if !layers.is_empty() {
            if !step.states.finite() {
                let words =
                    format!("layers {} to {} gave a value that is no number", layers.start, layers.end);
                return self.fail(FailureCode::Engine, words, base);
            }
            step.layers_done = layers.end as u16;
        }
        self.send_on(step, base);
        self.compute_next(base);
    }

    pub(super) fn on_time(&mut self, base: &mut Base) {
        let Some(part) = &mut self.part else { return };
        if let Stage::Linking(Linking { out: Out::Again { at }, .. }) = part.stage
            && base.now >= at
        {
            let link = connect(part, base);
            if let Stage::Linking(linking) = &mut part.stage {
                linking.out = Out::Opening(link);
            }
        }
    }

    pub(super) fn wake_at(&self) -> Option<Duration> {
        match self.part.as_ref()?.stage {
            Stage::Linking(Linking { out: Out::Again { at }, .. }) => Some(at),
            _ => None,
        }
    }

    /// Returns the ledger of the part that is served.
    pub(super) fn ledger(&self) -> Option<&Ledger> {
        match &self.part.as_ref()?.stage {
            Stage::Serving(serving) => Some(&serving.ledger),
            _ => None,
        }
    }
}

fn connect(part: &Part, base: &mut Base) -> LinkId {
    let within = base.setup.patience;
    base.connect(part.configure.next.clone(), Purpose::Ring, within)
}
