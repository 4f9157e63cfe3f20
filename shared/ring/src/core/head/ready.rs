//! Another route when one broke: waiting for the cause, blame, forming, and computing sequences again.

use std::time::Duration;

use baton_terminal::chain;

use super::agenda::{Asked, Request, Todo, Turn};
use super::types::{Outputs, RingFault};
use super::{Fault, HeadCore, Progress};
use crate::core::Note;
use crate::core::form::Route;
use crate::core::pump::{Ending, PumpNews};
use crate::core::recover::{ReplayNews, Within};

impl HeadCore {
    /// Returns what is wrong with the formed ring, if anything is. What is certain comes first.
    pub(super) fn trouble(&self) -> Option<Fault> {
        let formed = self.form.formed()?;
        let broken = self.form.broken();
        let told = self.roster.trouble(&formed.places, formed.epoch);
        match (told, broken) {
            (Some(told), Some(broken)) if !told.is_certain() && broken.is_certain() => Some(broken.clone()),
            (Some(told), _) => Some(told),
            (None, broken) => broken.cloned(),
        }
    }

    /// Returns the fault if nothing has moved in the ring for too long.
    pub(super) fn stalled(&self, now: Duration) -> Option<Fault> {
        let (at, limit) = self.pump.stall_at()?;
        let formed = self.form.formed().filter(|_| now >= at)?;
        Some(self.roster.stalled(formed, limit))
    }

    /// The present route ends, and nobody is at fault. No step is under way.
    pub(super) fn set_down(&mut self) {
        self.form.end(&mut self.fx);
        self.recover.fell();
        self.pump.new_epoch();
    }

    /// Brings the ring down if it broke, once the cause is known or the wait for it has ended.
    pub(super) fn fall(&mut self, request: &mut Request, now: Duration) -> Turn {
        if self.recover.settles_at().is_none() {
            return Turn::Done;
        }
        if let Some(fault) = self.trouble().filter(Fault::is_certain) {
            self.recover.fault(fault, now);
        }
        let waits = self.recover.settles_at().is_some_and(|until| now < until && !request.cancelled);
        if waits || self.fx.is_busy() {
            return Turn::Waiting;
        }
        if self.pump.is_under_way() {
            self.pump.end(Ending::Faulted);
            let news = self.pump.drive(self.form.formed(), now, &mut self.fx);
            if matches!(news, PumpNews::Waiting) {
                return Turn::Waiting;
            }
        }
        let Some(fault) = self.recover.settled() else { return Turn::Done };
        let formed = self.form.fall(&mut self.fx);
        self.recover.fell();
        self.pump.new_epoch();
        if let Some(formed) = formed {
            self.roster.blame(&fault, &formed.places, &mut self.fx);
        }
        self.fallen(&fault, request, now)
    }

    /// Changes the agenda after the ring broke: what was interrupted begins anew, or is dropped.
    fn fallen(&mut self, fault: &Fault, request: &mut Request, now: Duration) -> Turn {
        let members = self.roster.members();
        let (within, anew) = match request.agenda.front() {
            Some(Todo::Ready { begun: true }) => (Some(Within::Replay), None),
            Some(Todo::Ready { begun: false }) => (Some(Within::Step), None),
            Some(Todo::Pump) => (Some(Within::Step), Some(0)),
            Some(Todo::ProbeStep | Todo::AuditStep { .. }) => {
                if let Some(Todo::ProbeStep) = request.agenda.pop_front() {
                    self.health.end_probe(now);
                }
                self.fx.note(Note::CheckBroke { words: fault.words().to_owned() });
                // Its sequence is released first.
                (None, Some(1))
            }
            _ => {
                request.agenda.pop_front();
                (None, Some(0))
            }
        };
        if let Some(err) = within.and_then(|within| self.recover.broke(within, members, fault)) {
            return Turn::Failed(err);
        }
        if let Some(at) = anew {
            request.agenda.insert(at.min(request.agenda.len()), Todo::Ready { begun: false });
        }
        Turn::Done
    }

    /// Forms a route if there is none, and computes every sequence again if it has none.
    pub(super) fn ready(&mut self, begun: bool, request: &Request, now: Duration) -> Turn {
        if let Some(fault) = self.trouble() {
            return Turn::Fault(fault);
        }
        let down = matches!(self.form.route(), Route::Down);
        if !down && self.recover.is_cached() {
            return Turn::Done;
        }
        if !begun {
            self.recover.begin_ready(request.asked != Asked::Connect);
            return Turn::Then(vec![Todo::Ready { begun: true }]);
        }
        if down {
            return self.form_route(request.cancelled, now);
        }
        let (formed, fx) = (self.form.formed(), &mut self.fx);
        match self.recover.drive(&mut self.pump, formed, request.cancelled, now, fx) {
            ReplayNews::Waiting => self.stalled(now).map_or(Turn::Waiting, Turn::Fault),
            ReplayNews::Done => Turn::Done,
            ReplayNews::Fault(fault) => Turn::Fault(fault),
            ReplayNews::Failed(err) => Turn::Failed(err),
        }
    }

    fn form_route(&mut self, cancelled: bool, now: Duration) -> Turn {
        if let Some(words) = self.health.damaged() {
            return Turn::Failed(RingFault::Damaged { words: words.to_owned() });
        }
        match self.form.drive(&mut self.roster, cancelled, now, &mut self.fx) {
            Progress::Waiting => Turn::Waiting,
            Progress::Done(Err(err)) => Turn::Failed(err),
            Progress::Done(Ok(())) => {
                self.pump.formed(self.form.pace());
                self.health.formed();
                self.shown = self.form.layout().map(|layout| (self.form.epoch(), layout.clone()));
                Turn::Then(vec![Todo::Ready { begun: true }])
            }
        }
    }

    /// An entry failed. Returns the outcome of the request, if that ends with it.
    pub(super) fn failed(
        &mut self,
        todo: Option<Todo>,
        err: RingFault,
        request: &mut Request,
    ) -> Option<Result<Outputs, RingFault>> {
        let mut err = err;
        if let Some(Todo::Ready { begun: true }) = todo {
            self.form.end(&mut self.fx);
            self.pump.new_epoch();
            if err == RingFault::Cancelled {
                self.recover.cancelled();
            } else {
                self.recover.fell();
                err = self.explained(err, request.asked);
            }
        }
        if !matches!(request.asked, Asked::Between | Asked::Idle) {
            return Some(Err(err));
        }
        let words = chain(&err);
        if let Some(Todo::TakenIn(came)) = request.agenda.front()
            && self.roster.leave(came, &mut self.fx)
        {
            self.fx.note(Note::NoRingWith { words });
            request.agenda.push_front(Todo::Ready { begun: false });
        } else {
            self.fx.note(Note::NotFormed { words });
        }
        None
    }

    /// Adds to an error which devices are missing, if any are. The first ring of all misses nobody.
    fn explained(&self, err: RingFault, asked: Asked) -> RingFault {
        match self.roster.missing().filter(|_| asked != Asked::Connect) {
            Some(lost) => RingFault::Missing { lost, err: Box::new(err) },
            None => err,
        }
    }
}
