//! One head's session on a worker: its control link, and what the head asks for over it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::base::{Base, Job};
use super::edge::Edge;
use super::fetch::{Fetch, FetchNews};
use super::giving::Giving;
use super::part::Parts;
use super::types::{DiskEvent, WorkerDone, WorkerNews};
use crate::core::echo::answer;
use crate::core::ledger::Ledger;
use crate::core::{DeviceId, Epoch, Gone, LinkEffect, LinkId, Note, Purpose};
use crate::wire::frame::{Configure, Failure, FailureCode, Frame, Provide};

/// Time between heartbeats before a part sets it.
const HEARTBEAT: Duration = Duration::from_millis(300);
/// Least time between heartbeats.
const HEARTBEAT_MIN: Duration = Duration::from_millis(20);
/// Bounds of the time between two looks at the head's silence.
const TICK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// What waits until engine and disk have ended their older work.
#[derive(Debug)]
enum Next {
    Part(Box<Configure>),
    Provide(Box<Provide>),
}

/// A head's session.
#[derive(Debug)]
pub(super) struct Session {
    control: LinkId,
    control_open: bool,
    head: DeviceId,
    /// How long the head has been silent, without this device's own lateness.
    quiet: Duration,
    looked_at: Duration,
    beat_at: Duration,
    heartbeat: Duration,
    /// The newest part's epoch.
    last: Epoch,
    parts: Parts,
    next: Option<Next>,
    /// What is fetched without a part.
    providing: Option<Box<Provide>>,
    /// Weights under way, for the part or for `providing`.
    fetch: Option<Fetch>,
    /// Answers of the head that nobody waits for any more.
    late: u32,
    edge: Edge,
    giving: Giving,
    /// Devices that may open links here.
    guests: BTreeSet<DeviceId>,
}

impl Session {
    pub(super) fn begin(control: LinkId, head: DeviceId, base: &mut Base) -> Self {
        base.counters = super::base::Counters::default();
        base.count_anew(Epoch(0));
        base.tell(WorkerNews::Head { head });
        base.send(control, Frame::Hello(base.setup.hello.clone()));
        Self {
            control,
            control_open: true,
            head,
            quiet: Duration::ZERO,
            looked_at: base.now,
            beat_at: base.now,
            heartbeat: HEARTBEAT,
            last: Epoch(0),
            parts: Parts::new(control, base),
            next: None,
            providing: None,
            fetch: None,
            late: 0,
            edge: Edge::default(),
            giving: Giving::default(),
            guests: BTreeSet::new(),
        }
    }

    /// Ends everything that the session has under way.
    pub(super) fn end(&mut self, base: &mut Base) {
        self.stop_fetching(base);
        self.parts.end_all(base);
        self.edge.end(base);
        self.giving.end(base);
        if self.control_open {
            base.close(self.control);
        }
        base.forget();
        base.tell(WorkerNews::HeadGone { head: self.head });
    }

    pub(super) fn head(&self) -> DeviceId {
        self.head
    }

    pub(super) fn ledger(&self) -> Option<&Ledger> {
        self.parts.ledger()
    }

    fn stop_fetching(&mut self, base: &mut Base) {
        if let Some(mut fetch) = self.fetch.take() {
            self.late = self.late.saturating_add(fetch.owed());
            fetch.abandon(base);
        }
        self.providing = None;
    }

    pub(super) fn arrived(&mut self, link: LinkId, from: DeviceId, purpose: Purpose, base: &mut Base) {
        match purpose {
            Purpose::Ring => self.parts.arrived(link, from, base),
            Purpose::Weights => self.giving.arrived(link, base),
            Purpose::Edge => self.edge.arrived(link, from, base),
            Purpose::Control => base.close(link),
        }
    }

    pub(super) fn opened(&mut self, link: LinkId, opened: Result<(), String>, base: &mut Base) -> bool {
        if self.fetch.as_ref().is_some_and(|fetch| fetch.owns(link)) {
            let news = self.fetch.as_mut().map(|fetch| fetch.opened(link, opened, base));
            return self.fetched(news, base);
        }
        if self.edge.owns(link) {
            self.edge.opened(link, opened.is_ok(), self.control, base);
        } else if self.parts.owns(link) {
            self.parts.opened(link, opened, base);
        }
        true
    }

    /// Takes a frame. Returns whether the session goes on.
    pub(super) fn heard(&mut self, link: LinkId, frame: Frame, base: &mut Base) -> bool {
        if link == self.control {
            self.quiet = Duration::ZERO;
            return self.head_sent(frame, base);
        }
        if self.fetch.as_ref().is_some_and(|fetch| fetch.owns(link)) {
            let news = self.fetch.as_mut().map(|fetch| fetch.heard(link, frame, base));
            return self.fetched(news, base);
        }
        if self.parts.owns(link) {
            self.parts.heard(link, frame, base);
        } else if self.edge.owns(link) {
            self.edge.heard(link, &frame, self.control, base);
        } else if self.giving.owns(link) {
            self.giving.heard(link, &frame, base);
        } else if let Frame::Step(step) = frame {
            base.push(super::types::Effect::Discard(Box::new(step)));
        }
        true
    }

    pub(super) fn gone(&mut self, link: LinkId, gone: &Gone, base: &mut Base) -> bool {
        if link == self.control {
            if let Gone::NoFrame(words) = gone {
                base.note(Note::BadHead { words: words.clone() });
            }
            self.control_open = false;
            if let Some(fetch) = &mut self.fetch {
                fetch.lose_control();
            }
            return false;
        }
        if self.fetch.as_ref().is_some_and(|fetch| fetch.owns(link)) {
            let news = self.fetch.as_mut().map(|fetch| fetch.gone(link, gone.words(), base));
            return self.fetched(news, base);
        }
        if self.parts.owns(link) {
            self.parts.gone(link, matches!(gone, Gone::NoFrame(_)), gone.words(), base);
        } else if self.edge.owns(link) {
            self.edge.gone(link, self.control, base);
        } else {
            self.giving.gone(link);
        }
        true
    }

    pub(super) fn gave(&mut self, link: LinkId, base: &mut Base) -> bool {
        self.giving.gave(link, base.now);
        true
    }

    /// Takes a frame of the head.
    fn head_sent(&mut self, frame: Frame, base: &mut Base) -> bool {
        match frame {
            Frame::Heartbeat(_) => {}
            // Answered at once, because the time is measured.
            Frame::Echo(echo) => base.send(self.control, answer(&echo)),
            Frame::Configure(configure) => self.configured(configure, base),
            Frame::Provide(provide) => self.asked_to_provide(provide, base),
            Frame::MeasureEdge(to) => self.edge.measure(to, base),
            Frame::AwaitEdge { from } => {
                self.guests.insert(from);
                self.allow(base);
                self.edge.wait_for(from, base);
            }
            Frame::Failed(failure) => self.distrusted(failure.words, base),
            frame @ (Frame::Manifest(_) | Frame::Piece(_)) => return self.weights_came(frame, base),
            _ => return not_from_a_head(base),
        }
        true
    }

    fn allow(&self, base: &mut Base) {
        base.link(LinkEffect::Allow(self.guests.iter().copied().collect()));
    }

    /// Takes a new part. The older one ends, whatever it is doing.
    fn configured(&mut self, configure: Box<Configure>, base: &mut Base) {
        let epoch = configure.epoch;
        if epoch <= self.last {
            let words = format!("epoch {epoch} is not newer than {}", self.last);
            return self.failed(epoch, FailureCode::Engine, words, base);
        }
        self.last = epoch;
        self.edge.part_begins(base);
        self.stop_fetching(base);
        self.parts.end(base);
        self.heartbeat = configure.heartbeat.max(HEARTBEAT_MIN);
        self.beat_at = self.beat_at.min(base.now + self.heartbeat);
        self.guests = configure.others.iter().map(|node| node.device).chain([configure.before]).collect();
        self.allow(base);
        self.next = Some(Next::Part(configure));
    }

    /// Fetches what a part will need, while the ring goes on without this device.
    fn asked_to_provide(&mut self, provide: Box<Provide>, base: &mut Base) {
        if self.parts.is_busy() || matches!(self.next, Some(Next::Part(_))) {
            // The file that the part maps must not change.
            let words = "it has a part already".to_owned();
            return self.failed(Epoch(0), FailureCode::Weights, words, base);
        }
        self.stop_fetching(base);
        if provide.layers.is_empty() {
            self.next = None;
            return base.send(self.control, Frame::Provided);
        }
        self.next = Some(Next::Provide(provide));
    }

    /// The head found that this device computes wrong: everything is read again before it is used.
    fn distrusted(&mut self, words: String, base: &mut Base) {
        base.note(Note::Distrusted { words: words.clone() });
        let unfinished = self.parts.is_busy() && self.parts.ledger().is_none();
        self.stop_fetching(base);
        if unfinished {
            self.parts.fail(FailureCode::Weights, words, base);
        } else {
            self.parts.end(base);
            base.tell(WorkerNews::Failed { epoch: self.last, words });
        }
        base.forget();
        base.forget_checked();
    }

    fn failed(&mut self, epoch: Epoch, code: FailureCode, words: String, base: &mut Base) {
        base.send(self.control, Frame::Failed(Failure { epoch, code, words: words.clone() }));
        base.tell(WorkerNews::Failed { epoch, words });
    }

    fn weights_came(&mut self, frame: Frame, base: &mut Base) -> bool {
        if self.late > 0 {
            self.late -= 1;
            return true;
        }
        let news = self.fetch.as_mut().map_or(FetchNews::NotAsked, |fetch| fetch.head_sent(frame, base));
        self.fetched(Some(news), base)
    }

    /// Takes the news of the fetch. Returns whether the session goes on.
    fn fetched(&mut self, news: Option<FetchNews>, base: &mut Base) -> bool {
        match news {
            None | Some(FetchNews::Going) => true,
            Some(FetchNews::NotAsked) => not_from_a_head(base),
            Some(FetchNews::Done(path)) => {
                self.fetch = None;
                if self.providing.take().is_some() {
                    base.send(self.control, Frame::Provided);
                } else {
                    self.parts.make_engine(path, false, base);
                }
                true
            }
            Some(FetchNews::Failed(words)) => {
                let owed = self.fetch.take().map_or(0, |fetch| fetch.owed());
                self.late = self.late.saturating_add(owed);
                if self.providing.take().is_some() {
                    self.failed(Epoch(0), FailureCode::Weights, words, base);
                } else {
                    self.parts.fail(FailureCode::Weights, words, base);
                }
                true
            }
        }
    }

    /// Takes the result of the engine's work. Returns whether the session goes on: not after a panic, since
    /// nothing is known of what it left behind.
    pub(super) fn computed(&mut self, job: Job, done: WorkerDone, took: Duration, base: &mut Base) -> bool {
        if let WorkerDone::Panicked(words) = done {
            self.failed(self.last, FailureCode::Engine, words, base);
            return false;
        }
        self.parts.computed(job, done, took, base);
        true
    }

    pub(super) fn disk(&mut self, event: DiskEvent, base: &mut Base) -> bool {
        let news = self.fetch.as_mut().map(|fetch| fetch.disk(event, base));
        self.fetched(news, base)
    }

    /// Begins what had to wait until engine and disk are free, as they are now.
    pub(super) fn begin_next(&mut self, base: &mut Base) {
        match self.next.take() {
            Some(Next::Part(configure)) => {
                self.parts.begin(configure, base);
            }
            Some(Next::Provide(provide)) => {
                base.forget();
                self.providing = Some(provide);
            }
            None => {}
        }
        if self.fetch.is_some() || !base.are_free() {
            return;
        }
        if let Some(provide) = &self.providing {
            let layers = provide.layers.iter().copied().map(usize::from).collect();
            self.fetch = Some(Fetch::begin(self.control, (provide.model, layers), &provide.others, base));
        } else if let Some((configure, layers)) = self.parts.wants_weights() {
            let wanted = (configure.model, layers.to_vec());
            self.fetch = Some(Fetch::begin(self.control, wanted, &configure.others, base));
        }
    }

    pub(super) fn compute_next(&mut self, base: &mut Base) {
        self.parts.compute_next(base);
    }

    fn tick(&self) -> Duration {
        (self.heartbeat / 4).clamp(TICK.0, TICK.1)
    }

    /// Does what is due. Returns whether the session goes on.
    pub(super) fn on_time(&mut self, base: &mut Base) -> bool {
        let (now, tick) = (base.now, self.tick());
        if now >= self.looked_at + tick {
            // A link that is not read says nothing of the head.
            if !self.fetch.as_ref().is_some_and(Fetch::holds_control) {
                self.quiet += (now - self.looked_at).min(tick * 2);
            }
            self.looked_at = now;
        }
        if self.quiet > base.setup.silence {
            return false;
        }
        if now >= self.beat_at {
            self.beat_at = now + self.heartbeat;
            base.send(self.control, base.beat());
        }
        self.parts.on_time(base);
        self.edge.on_time(self.control, base);
        self.giving.on_time(base);
        let news = self.fetch.as_mut().map(|fetch| fetch.on_time(base));
        self.fetched(news, base)
    }

    pub(super) fn wake_at(&self, base: &Base) -> Option<Duration> {
        let fetch = self.fetch.as_ref().and_then(Fetch::wake_at);
        let rooms =
            [fetch, self.parts.wake_at(), self.edge.wake_at(), self.giving.wake_at(base.setup.patience)];
        let own = [self.beat_at, self.looked_at + self.tick()];
        rooms.into_iter().flatten().chain(own).min()
    }
}

fn not_from_a_head(base: &mut Base) -> bool {
    base.note(Note::BadHead { words: "it sent a frame that nobody asked for".to_owned() });
    false
}
