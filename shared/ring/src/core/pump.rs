//! Runs one step round the ring: chunks are embedded here, pass the windows of all places round by round, and
//! come back.
//!
//! Chunks of one step follow each other, so that every device has one to work on. Their number under way is
//! bounded by the number of places. A chunk that comes back in another order or with another shape is
//! refused. A head alone runs a step as one work of its engine.
//!
//! Always holds:
//!
//! - One work of the engine at a time, and one step.
//! - Chunks leave in the order of their rows, and those of later rounds in the order in which they came back.
//! - An `Open` in the log is followed by exactly one `Commit` or `Cancel` of the same step before the next
//!   `Open`.

mod chunks;
mod news;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use super::form::Formed;
use super::head::{BatchSeq, Effect, Fault, From, Fx, HeadDone, HeadSetup, HeadWork, Pace};
use super::rows::Rows;
use super::{Bug, Planted, States, StepNo};
use crate::wire::frame::{Activations, Audit, Frame, Operation, Span, Step};

pub(super) use chunks::flying_max;
use chunks::{chunk_rows, own_layers, stall_limit};
pub use news::UnderWay;
pub(super) use news::{Committed, Ending, Figures, Kind, PumpNews};

/// A chunk under way.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Flight {
    step: StepNo,
    round: u16,
    rows: Range<usize>,
    /// Layers that it has passed when it comes back.
    back: usize,
}

/// The engine work under way.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Busy {
    Whole,
    Opening,
    Embedding,
    /// `done`: layers that the rows have passed after the work.
    Rows {
        rows: Range<usize>,
        done: usize,
    },
    Closing {
        commit: bool,
    },
}

/// The step under way.
#[derive(Debug)]
struct Cargo {
    kind: Kind,
    step: StepNo,
    rows: Rows,
    spans: Vec<Span>,
    /// Whether the head computes everything.
    alone: bool,
    /// Rows of a chunk.
    chunk: usize,
    /// The first row that was not sent yet.
    next_row: usize,
    /// Rows that have passed all layers.
    done_rows: usize,
    begun: Duration,
    own_before: u64,
    /// When the ring last moved: a chunk came back or was sent, or engine work ended.
    moved: Duration,
    ending: Option<Ending>,
    /// What enters an audit's layer.
    begins: Option<States>,
    /// What came out of it.
    have: Option<States>,
}

/// One step round the ring.
#[derive(Debug)]
pub(super) struct Pump {
    n_layers: usize,
    width: usize,
    activations: Activations,
    chunk_rows: (usize, usize),
    floor: Duration,
    token: Duration,
    planted: Planted,
    pace: Pace,
    /// The latest step; grows over epochs too.
    step: StepNo,
    /// What the other devices have not been told yet.
    log: Vec<Operation>,
    /// Chunks under way, oldest first, those of cancelled steps included.
    flying: VecDeque<Flight>,
    /// Chunks that came back and were not looked at yet; never more than are under way.
    returned: VecDeque<Box<Step>>,
    /// Whether more came back than were sent.
    too_many: bool,
    /// What is known of the head's GPU, which has failed.
    lost: Option<String>,
    cargo: Option<Cargo>,
    busy: Option<Busy>,
    /// What [`Self::drive`] says next.
    news: Option<PumpNews>,
    figures: Figures,
    /// The head's own part in steps of one row, in this epoch: how many, and microseconds.
    singles: (u64, u64),
    /// Operations ever logged in this epoch.
    logged: u64,
}

impl Pump {
    pub(super) fn new(setup: &HeadSetup, planted: Planted) -> Self {
        Self {
            n_layers: setup.n_layers,
            width: setup.width,
            activations: setup.activations,
            chunk_rows: setup.chunk_rows,
            floor: setup.floor,
            token: setup.token,
            planted,
            pace: Pace::default(),
            step: StepNo::default(),
            log: Vec::new(),
            flying: VecDeque::new(),
            returned: VecDeque::new(),
            too_many: false,
            lost: None,
            cargo: None,
            busy: None,
            news: None,
            figures: Figures::default(),
            singles: (0, 0),
            logged: 0,
        }
    }

    /// Adds an operation for the other devices. To be called only if there are any.
    pub(super) fn note(&mut self, operation: Operation) {
        self.logged += 1;
        self.log.push(operation);
    }

    /// Forgets the ring of the epoch before. No step is under way.
    pub(super) fn new_epoch(&mut self) {
        if !self.planted.is(Bug::OldLogKept) {
            self.log.clear();
        }
        self.logged = 0;
        self.flying.clear();
        self.returned.clear();
        self.too_many = false;
        self.lost = None;
        self.news = None;
    }

    /// Begins the figures of a formed epoch.
    pub(super) fn formed(&mut self, pace: Pace) {
        self.pace = pace;
        self.singles = (0, 0);
        self.figures = Figures { epoch_steps: 0, step_us: 0, own_us: 0, ..self.figures };
    }

    /// Begins a step of these sequences, alone or in a formed ring. No step is under way.
    pub(super) fn begin(
        &mut self,
        kind: Kind,
        spans: Vec<Span>,
        formed: Option<&Formed>,
        now: Duration,
        fx: &mut Fx,
    ) {
        let rows = Rows::of(&spans);
        let alone = formed.is_none();
        let places = formed.map_or(1, |formed| formed.places.len() + 1);
        let step = self.next_step();
        let replay = (kind != Kind::Caller).then(|| spans.first().map(own_sequence)).flatten();
        let empty = spans.is_empty();
        self.cargo = Some(Cargo {
            kind,
            step,
            chunk: chunk_rows(rows.len(), places, self.chunk_rows),
            rows,
            spans,
            alone,
            next_row: 0,
            done_rows: 0,
            begun: now,
            own_before: self.figures.own_us,
            moved: now,
            ending: None,
            begins: None,
            have: None,
        });
        if alone {
            self.work(Busy::Whole, HeadWork::Whole { replay }, fx);
        } else if empty {
            self.committed();
        } else {
            self.work(Busy::Opening, HeadWork::Open { step, replay }, fx);
        }
    }

    fn work(&mut self, busy: Busy, work: HeadWork, fx: &mut Fx) {
        self.busy = Some(busy);
        fx.compute(work);
    }

    /// Takes a frame of this epoch that came over the ring. One more than are under way is a fault, which
    /// [`Self::drive`] says.
    pub(super) fn heard(&mut self, step: Box<Step>, now: Duration, fx: &mut Fx) {
        if self.returned.len() >= self.flying.len() {
            self.too_many = true;
            return fx.push(Effect::Discard(step));
        }
        if let Some(cargo) = &mut self.cargo {
            cargo.moved = now;
        }
        self.returned.push_back(step);
    }

    /// Takes the outcome of the engine work under way.
    pub(super) fn computed(
        &mut self,
        done: HeadDone,
        took: Duration,
        formed: Option<&Formed>,
        now: Duration,
        fx: &mut Fx,
    ) {
        let (Some(busy), Some(cargo)) = (self.busy.take(), &mut self.cargo) else { return };
        cargo.moved = now;
        match (busy, done) {
            (Busy::Whole, HeadDone::Done) => {
                self.figures.own_us += took.as_micros() as u64;
                self.figures.step_us += took.as_micros() as u64;
                self.committed();
            }
            (Busy::Whole, HeadDone::Cancelled) => self.ended(Ending::Cancelled),
            (Busy::Opening, HeadDone::Done) => self.opened(),
            (Busy::Whole | Busy::Opening, _) => self.ended(Ending::Refused),
            (Busy::Embedding, HeadDone::States(begins)) => self.send_audit(begins, formed, fx),
            (Busy::Rows { rows, done }, HeadDone::States(states)) if done < self.n_layers => {
                self.figures.own_us += took.as_micros() as u64;
                self.send_on(rows, done, states, formed, fx);
            }
            (Busy::Rows { rows, done }, HeadDone::Done) if done == self.n_layers => {
                self.figures.own_us += took.as_micros() as u64;
                cargo.done_rows += rows.len();
            }
            (Busy::Rows { .. }, HeadDone::Lost(words)) => self.lost = Some(words),
            (Busy::Rows { .. }, HeadDone::Cancelled) => {
                cargo.ending.get_or_insert(Ending::Cancelled);
            }
            (Busy::Rows { .. } | Busy::Embedding, _) => {
                cargo.ending.get_or_insert(Ending::Refused);
            }
            (Busy::Closing { commit }, _) => self.closed(commit, now),
        }
    }

    fn opened(&mut self) {
        let Some(cargo) = &self.cargo else { return };
        self.step = cargo.step;
        let open = Operation::Open { step: cargo.step, spans: cargo.spans.clone() };
        self.note(open);
    }

    fn closed(&mut self, commit: bool, now: Duration) {
        let Some(cargo) = &mut self.cargo else { return };
        let step = cargo.step;
        if commit {
            self.figures.step_us += now.saturating_sub(cargo.begun).as_micros() as u64;
            if cargo.rows.len() == 1 {
                self.singles.0 += 1;
                self.singles.1 += self.figures.own_us - cargo.own_before;
            }
            self.note(Operation::Commit { step });
            return self.committed();
        }
        let ending = cargo.ending.unwrap_or(Ending::Faulted);
        let back = cargo.begins.take().zip(cargo.have.take());
        if !self.planted.is(Bug::CancelNotTold) {
            self.note(Operation::Cancel { step });
        }
        self.ended(ending);
        if let (Ending::Audited, Some((begins, have))) = (ending, back) {
            self.news = Some(PumpNews::Back { begins, have });
        }
    }

    fn committed(&mut self) {
        let Some(cargo) = self.cargo.take() else { return };
        self.figures.steps += 1;
        self.figures.epoch_steps += 1;
        self.figures.tokens += cargo.rows.len() as u64;
        let committed = Committed { kind: cargo.kind, step: cargo.step, spans: cargo.spans };
        self.news = Some(PumpNews::Committed(committed));
    }

    fn ended(&mut self, why: Ending) {
        self.cargo = None;
        self.news = Some(PumpNews::Ended(why));
    }

    /// Ends the step under way as soon as the engine is free; [`Self::drive`] then says so. A step whose
    /// commit is under way is committed.
    pub(super) fn end(&mut self, why: Ending) {
        if let Some(cargo) = &mut self.cargo {
            cargo.ending = Some(why);
        }
    }

    /// Does what can be done now for the step under way.
    pub(super) fn drive(&mut self, formed: Option<&Formed>, now: Duration, fx: &mut Fx) -> PumpNews {
        loop {
            if let Some(news) = self.news.take() {
                return news;
            }
            let (Some(cargo), None) = (&mut self.cargo, &self.busy) else { return PumpNews::Waiting };
            let commit = cargo.ending.is_none();
            if !commit || cargo.done_rows == cargo.rows.len() {
                self.work(Busy::Closing { commit }, HeadWork::Close { commit }, fx);
                return PumpNews::Waiting;
            }
            let Some(formed) = formed else { return PumpNews::Waiting };
            if let Some(words) = &self.lost {
                // The head is never lost: the ring forms again, and computes everything again.
                return PumpNews::Fault(Fault::Lost { place: 0, words: words.clone() });
            }
            if self.too_many {
                let words = "more chunks came back than were sent".to_owned();
                return PumpNews::Fault(wrong(formed, words));
            }
            let goes_on = match self.returned.pop_front() {
                Some(step) => self.take(step, formed, fx),
                None => Ok(self.send_next(formed, fx)),
            };
            match goes_on {
                Ok(true) => {}
                Ok(false) => return PumpNews::Waiting,
                Err(fault) => return PumpNews::Fault(fault),
            }
            if let Some(cargo) = &mut self.cargo {
                cargo.moved = now;
            }
        }
    }

    /// Begins with the next rows, if there are any and not too many chunks are under way.
    fn send_next(&mut self, formed: &Formed, fx: &mut Fx) -> bool {
        let Some(cargo) = &mut self.cargo else { return false };
        let limit = flying_max(formed.places.len() + 1);
        let full = self.flying.len() >= limit && !self.planted.is(Bug::NoSendLimit);
        let total = cargo.rows.len();
        if full || cargo.next_row >= total {
            return false;
        }
        // The rows of an audit go as one.
        let chunk = if matches!(cargo.kind, Kind::Audit { .. }) { total } else { cargo.chunk };
        let rows = cargo.next_row..total.min(cargo.next_row + chunk);
        cargo.next_row = rows.end;
        if let Kind::Audit { .. } = cargo.kind {
            self.work(Busy::Embedding, HeadWork::Embed { rows }, fx);
        } else {
            let layers = own_layers(&formed.layout, 0);
            self.run(rows, From::Tokens, layers, fx);
        }
        true
    }

    /// Runs the head's own layers, and computes logits if they are the last.
    fn run(&mut self, rows: Range<usize>, from: From, layers: Range<usize>, fx: &mut Fx) {
        let (done, logits) = (layers.end, layers.end == self.n_layers);
        let work = HeadWork::Rows { rows: rows.clone(), from, layers, logits };
        self.work(Busy::Rows { rows, done }, work, fx);
    }

    /// Takes a chunk that came back: the head computes its windows that begin here, or the chunk goes on at
    /// once.
    fn take(&mut self, step: Box<Step>, formed: &Formed, fx: &mut Fx) -> Result<bool, Fault> {
        let Some((rows, done, states)) = self.check_back(step, formed, fx)? else { return Ok(true) };
        let Some(cargo) = &mut self.cargo else { return Ok(false) };
        if let Kind::Audit { .. } = cargo.kind {
            cargo.have = Some(states);
            cargo.ending = Some(Ending::Audited);
            return Ok(true);
        }
        let layers = own_layers(&formed.layout, done);
        if layers.is_empty() && done < self.n_layers {
            self.send_on(rows, done, states, Some(formed), fx);
        } else {
            self.run(rows, From::States(states), layers, fx);
        }
        Ok(true)
    }

    /// Checks a chunk that came back. Returns `None` if it belongs to a cancelled step.
    fn check_back(
        &mut self,
        step: Box<Step>,
        formed: &Formed,
        fx: &mut Fx,
    ) -> Result<Option<(Range<usize>, usize, States)>, Fault> {
        let back = usize::from(step.layers_done);
        let flight = Flight { step: step.step, round: step.round, rows: step.rows.clone(), back };
        let expected = self.flying.pop_front();
        if expected.as_ref() != Some(&flight) && !self.planted.is(Bug::AnyOrder) {
            return Err(wrong(formed, format!("{flight:?} came back, must be {expected:?}")));
        }
        let present = self
            .cargo
            .as_ref()
            .filter(|cargo| cargo.step == step.step || self.planted.is(Bug::OldStepCounts));
        let Some(cargo) = present else {
            fx.push(Effect::Discard(step));
            return Ok(None);
        };
        let rows = if back == self.n_layers { cargo.rows.wanted(&step.rows) } else { step.rows.len() };
        let found = (step.states.rows(), step.states.width());
        if found != (rows, self.width) {
            let want = (rows, self.width);
            return Err(wrong(formed, format!("hidden states of {found:?}, must be {want:?}")));
        }
        if !step.states.finite() && !self.planted.is(Bug::NotFiniteUsed) {
            return Err(wrong(formed, "a hidden state is no number".to_owned()));
        }
        Ok(Some((step.rows, back, step.states)))
    }

    /// Sends rows to the other devices after the head's own layers.
    fn send_on(
        &mut self,
        rows: Range<usize>,
        done: usize,
        states: States,
        formed: Option<&Formed>,
        fx: &mut Fx,
    ) {
        let Some(formed) = formed else { return };
        let Some(cargo) = self.cargo.as_ref().filter(|cargo| cargo.ending.is_none()) else { return };
        let Some(window) = formed.layout.from(done) else { return };
        let back = formed.layout.back(window.round, done);
        // A layout has fewer than 65536 rounds and layers.
        let flight = Flight { step: cargo.step, round: window.round as u16, rows, back };
        self.send(flight, done, None, states, formed, fx);
    }

    /// Sends the rows of an audit.
    fn send_audit(&mut self, begins: States, formed: Option<&Formed>, fx: &mut Fx) {
        let (Some(formed), Some(cargo)) = (formed, &mut self.cargo) else { return };
        let Kind::Audit { place, layer } = cargo.kind else { return };
        if cargo.ending.is_some() {
            return;
        }
        cargo.begins = Some(begins.clone());
        let flight = Flight { step: cargo.step, round: 0, rows: 0..cargo.rows.len(), back: layer + 1 };
        // A layout has fewer than 65536 places and layers.
        let audit = Audit { place: place as u16, begin: layer as u16, end: layer as u16 + 1 };
        self.send(flight, layer, Some(audit), begins, formed, fx);
    }

    fn send(
        &mut self,
        flight: Flight,
        done: usize,
        audit: Option<Audit>,
        states: States,
        formed: &Formed,
        fx: &mut Fx,
    ) {
        let step = Step {
            epoch: formed.epoch,
            step: flight.step,
            round: flight.round,
            layers_done: done as u16,
            audit,
            rows: flight.rows.clone(),
            operations: std::mem::take(&mut self.log),
            activations: self.activations,
            states,
        };
        self.flying.push_back(flight);
        match formed.out {
            Some(out) => fx.send(out, Frame::Step(step)),
            // It ended while the engine worked; what follows from that is decided elsewhere.
            None => fx.push(Effect::Discard(Box::new(step))),
        }
    }

    /// For this time, this device looked at nothing: that is no standstill of the ring.
    pub(super) fn was_late(&mut self, late: Duration) {
        self.cargo.iter_mut().for_each(|cargo| cargo.moved += late);
    }

    /// Returns when the step under way has not moved for too long, and the limit. Does not count while the
    /// engine works.
    pub(super) fn stall_at(&self) -> Option<(Duration, Duration)> {
        let cargo = self.cargo.as_ref().filter(|cargo| !cargo.alone)?;
        if self.busy.is_some() {
            return None;
        }
        let first = self.figures.epoch_steps == 0;
        let limit = stall_limit((self.floor, self.token), self.pace, cargo.chunk, first);
        Some((cargo.moved + limit, limit))
    }

    /// Returns the number of the step that would begin now.
    pub(super) fn next_step(&self) -> StepNo {
        StepNo(self.step.0 + 1)
    }

    /// Returns whether the engine works for this room.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.is_some()
    }

    /// Returns whether a step is under way, or has ended and nobody was told yet.
    pub(super) fn is_under_way(&self) -> bool {
        self.cargo.is_some() || self.news.is_some()
    }

    /// Returns whether the step under way can no longer be cancelled.
    pub(super) fn is_committing(&self) -> bool {
        matches!(self.busy, Some(Busy::Closing { commit: true })) || self.news.is_some()
    }

    /// Counts a frame that was refused.
    pub(super) fn refused(&mut self) {
        self.figures.refused += 1;
    }

    pub(super) fn figures(&self) -> Figures {
        self.figures
    }

    /// Returns the head's own part in steps of one row, in this epoch: how many, and microseconds.
    pub(super) fn singles(&self) -> (u64, u64) {
        self.singles
    }

    pub(super) fn under_way(&self) -> UnderWay {
        let (flying, returned) = (self.flying.len(), self.returned.len());
        UnderWay { logged: self.logged, untold: self.log.len(), flying, returned }
    }
}

/// Returns the fault of the last place, whose frames come back.
fn wrong(formed: &Formed, words: String) -> Fault {
    Fault::Wrong { place: formed.places.len(), words }
}

fn own_sequence(span: &Span) -> BatchSeq {
    BatchSeq { seq: span.seq, ids: span.ids.clone(), wanted: span.wanted }
}
