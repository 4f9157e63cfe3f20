//! The head of a ring, as a pure core: what happened goes in, what is to be done comes out.
//!
//! [`HeadCore`] owns the rooms (roster, form, pump, recover, health) and passes events to them. A request of
//! the caller is an agenda: an ordered list of what must hold before the request is done. After every event
//! the core works on the first entry that does not hold.
//!
//! It never looks at a clock, and never waits. Always holds:
//!
//! - At most one request and one work of the engine are under way.
//! - Each request but `End` ends with exactly one [`Effect::Done`], when no engine work is under way.
//! - A failed or cancelled request leaves the tokens of every sequence as they were.

mod agenda;
mod checks;
mod fx;
mod ready;
#[cfg(test)]
pub(in crate::core) mod tests;
mod types;

use std::time::Duration;

use baton_engine::tokenizer::TokenId;

pub(in crate::core) use fx::{Fault, Fx, Progress};
pub use types::{
    Batch, BatchSeq, CacheSetup, Effect, Event, From, HeadDone, HeadSetup, HeadWork, ModelFacts, Outputs,
    Own, Pace, PlanFor, Planned, RingFault, SeqAsk, Shown,
};

use super::form::{Came, Form};
use super::health::Health;
use super::layout::Layout;
use super::pump::Pump;
pub use super::pump::UnderWay;
use super::recover::Recover;
use super::roster::Roster;
use super::stats::{DeviceStats, RingStats};
use super::ways::Ways;
use super::{DeviceId, Epoch, LinkEvent, Planted, Purpose, SeqNo};
use agenda::{Answer, Request};

/// The head of a ring.
#[derive(Debug)]
pub struct HeadCore {
    name: String,
    n_layers: usize,
    /// Most rows of a chunk.
    chunk_rows_max: usize,
    fx: Fx,
    roster: Roster,
    form: Form,
    pump: Pump,
    recover: Recover,
    health: Health,
    request: Option<Request>,
    /// What the first entry of the agenda waited for.
    answer: Option<Answer>,
    /// What the figures are of: the latest route.
    shown: Option<(Epoch, Layout)>,
    /// The time of the latest event.
    looked_at: Duration,
    ended: bool,
}

impl HeadCore {
    /// Makes the core of a head without a ring. `now` is the time since the host began, as in every later
    /// event.
    pub fn new(setup: HeadSetup, now: Duration) -> Self {
        Self::with_bug(setup, Planted::default(), now)
    }

    /// Makes a core with a planted bug.
    pub fn with_bug(setup: HeadSetup, planted: Planted, now: Duration) -> Self {
        Self {
            n_layers: setup.n_layers,
            chunk_rows_max: setup.chunk_rows.1,
            fx: Fx::default(),
            roster: Roster::new(&setup, planted),
            form: Form::new(&setup, planted),
            pump: Pump::new(&setup, planted),
            recover: Recover::new(planted),
            health: Health::new(&setup, now),
            request: None,
            answer: None,
            shown: None,
            looked_at: now,
            ended: false,
            name: setup.name,
        }
    }

    /// Takes an event, and returns what is to be done. `now` never goes back.
    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        if !self.ended {
            // With members there is a tick at short intervals. If none came, this device was late itself.
            let since = now.saturating_sub(self.looked_at);
            let late = since.saturating_sub(self.roster.tick() * 2);
            self.pump.was_late(late);
            self.form.was_late(late);
            self.looked_at = now;
            self.take(event, now);
        }
        if self.ended {
            self.fx.push(Effect::WakeAt(None));
            return self.fx.take();
        }
        self.roster.on_time(now, &mut self.fx);
        self.drive(now);
        let wake = self.wake_at().map(|at| at.max(now));
        self.fx.push(Effect::WakeAt(wake));
        self.fx.take()
    }

    fn take(&mut self, event: Event, now: Duration) {
        match event {
            Event::Connect(nodes) => self.begin(Request::connect(nodes)),
            Event::Step(batch) => self.begin(Request::step(batch)),
            Event::Sequence(ask) => self.begin(Request::sequence(ask)),
            Event::Between(own) => self.begin(Request::between(own)),
            Event::Idle(own) => self.begin(Request::idle(own)),
            Event::End => self.end(),
            Event::Cancel => self.request.iter_mut().for_each(Request::cancel),
            Event::Computed { work, done, took } => {
                if self.fx.computed(work) && !self.form.computed(work, &done) {
                    self.computed(done, took, now);
                }
            }
            Event::Planned(answer) => self.form.planned(answer),
            Event::Drafted(answer) => self.answer = Some(Answer::Drafted(answer)),
            Event::Judged(anew) => self.answer = Some(Answer::Judged(anew)),
            Event::Link(event) => self.on_link(event, now),
            Event::Gave(link) => self.roster.gave(link, now),
            Event::Join(node) => self.roster.join(node),
            Event::Tick => {}
        }
    }

    /// Begins a request. While one is under way no other may begin.
    fn begin(&mut self, request: Request) {
        debug_assert!(self.request.is_none(), "one request at a time");
        self.recover.begin_request();
        self.request = Some(request);
    }

    fn end(&mut self) {
        self.ended = true;
        self.request = None;
        self.form.end(&mut self.fx);
        self.roster.end(&mut self.fx);
    }

    /// The engine has done a work that is not the forming's.
    fn computed(&mut self, done: HeadDone, took: Duration, now: Duration) {
        let (form, fx) = (&self.form, &mut self.fx);
        if self.pump.is_busy() {
            // Nothing is sent over a ring that is broken.
            let formed = form.formed().filter(|_| form.broken().is_none());
            self.pump.computed(done, took, formed, now, fx);
        } else if self.recover.is_asking() {
            let changed = self.recover.computed(done, &mut self.pump, form.formed().is_some());
            self.answer = changed.map(Answer::Sequence);
        } else {
            self.answer = Some(Answer::Computed(done));
        }
    }

    fn on_link(&mut self, event: LinkEvent, now: Duration) {
        let fx = &mut self.fx;
        match event {
            LinkEvent::Opened(link, opened) if self.roster.owns(link) => {
                self.roster.opened(link, opened, now, fx);
            }
            LinkEvent::Opened(link, opened) => self.form.opened(link, opened, now, fx),
            LinkEvent::Arrived { link, from, purpose: Purpose::Ring } => self.form.arrived(link, from, fx),
            LinkEvent::Arrived { link, .. } => fx.close(link),
            LinkEvent::Heard(link, frame) if self.roster.owns(link) => {
                self.roster.heard(link, frame, now, fx);
            }
            LinkEvent::Heard(link, frame) => match self.form.heard(link, frame, fx) {
                Came::Step(step) => self.pump.heard(step, now, fx),
                Came::Refused => self.pump.refused(),
                Came::Nothing | Came::Fault(_) => {}
            },
            LinkEvent::Gone(link, gone) if self.roster.owns(link) => {
                self.roster.gone(link, gone.words().to_owned(), now, fx);
            }
            LinkEvent::Gone(link, gone) => {
                self.form.gone(link, &gone, now);
            }
        }
    }

    /// When something must be looked at again at the latest. Nothing but the rooms' own limits depends on
    /// time.
    fn wake_at(&self) -> Option<Duration> {
        let free = !self.fx.is_busy();
        let settles = self.recover.settles_at().filter(|_| free);
        // A stall that is known is a fault that settles.
        let settling = self.recover.settles_at().is_some();
        let stalls = self.pump.stall_at().filter(|_| !settling).map(|(at, _)| at);
        [self.roster.wake_at(), self.form.wake_at(&self.roster), settles, stalls].into_iter().flatten().min()
    }
}

/// What other threads may ask.
impl HeadCore {
    /// Returns the present figures of the ring.
    pub fn stats(&self) -> RingStats {
        let figures = self.pump.figures();
        let (epoch, layout) = match &self.shown {
            Some((epoch, layout)) => (epoch.0, Some(layout)),
            None => (0, None),
        };
        let rounds =
            layout.map(|layout| layout.windows.iter().map(|window| window.round + 1).max().unwrap_or(1));
        let each = |us: u64| us as f64 / 1e3 / figures.epoch_steps.max(1) as f64;
        let names = layout.map_or(&[][..], |layout| &layout.names);
        let mut devices: Vec<DeviceStats> = names
            .iter()
            .enumerate()
            .map(|(place, name)| self.device(place, name, figures.epoch_steps))
            .collect();
        if let Some(head) = devices.first_mut() {
            head.compute_ms = each(figures.own_us);
            head.wait_ms = each(figures.step_us.saturating_sub(figures.own_us));
        }
        RingStats {
            epoch,
            rounds: rounds.unwrap_or_default(),
            devices,
            steps: figures.steps,
            tokens: figures.tokens,
            epoch_steps: figures.epoch_steps,
            step_ms: each(figures.step_us),
            refused: figures.refused,
            recoveries: self.recover.recoveries(),
            fetching: self.roster.fetching(),
            lost: self.roster.lost().cloned().collect(),
        }
    }

    /// Returns what a device of the latest route has told, once a step was done.
    fn device(&self, place: usize, name: &str, steps: u64) -> DeviceStats {
        let layers = self.shown.as_ref().map(|(_, layout)| layout.layers_of(place)).unwrap_or_default();
        let formed = self.form.formed().filter(|_| steps > 0);
        let beat = formed.zip(place.checked_sub(1)).and_then(|(formed, at)| {
            let beat = self.roster.beat(*formed.places.get(at)?)?;
            (beat.epoch == formed.epoch).then_some(*beat)
        });
        DeviceStats::of(name, place, layers, &beat.unwrap_or_default(), steps)
    }

    /// Returns the members, whether or not the plan uses them, and the devices that fetch their weights.
    pub fn present(&self) -> Vec<DeviceId> {
        self.roster.present()
    }

    /// Returns the devices that will be looked at as soon as no answer runs.
    pub fn joining(&self) -> Vec<DeviceId> {
        self.roster.joining()
    }

    /// Returns whether devices wait for a moment without an answer.
    pub fn wants_pause(&self) -> bool {
        self.roster.wants_pause()
    }

    /// Returns how many tokens a pass should have at least: enough for each device to have several chunks of
    /// it.
    pub fn pass_tokens_min(&self) -> usize {
        self.form.formed().map_or(1, |formed| 2 * self.chunk_rows_max * (formed.places.len() + 1))
    }

    /// Returns the tokens of a live sequence; none if it is not known. A failed request leaves them as they
    /// were.
    pub fn ids(&self, seq: SeqNo) -> Option<&[TokenId]> {
        self.recover.ledger().ids(seq)
    }

    /// Returns the live sequences in order of their numbers, those of a probe or an audit under way included.
    pub fn seqs(&self) -> impl Iterator<Item = SeqNo> {
        self.recover.ledger().seqs()
    }

    /// Returns the epoch of the formed ring; none if the head is alone or no ring is formed.
    pub fn epoch(&self) -> Option<Epoch> {
        self.form.formed().map(|formed| formed.epoch)
    }

    /// Returns whether the devices of the present route have keys and values of all tokens.
    pub fn is_cached(&self) -> bool {
        self.recover.is_cached()
    }

    /// Returns how much the ring has under way, for checks of its bounds.
    pub fn under_way(&self) -> UnderWay {
        self.pump.under_way()
    }

    /// Returns what is known of the network paths between devices.
    pub fn ways(&self) -> &Ways {
        self.roster.ways()
    }
}
