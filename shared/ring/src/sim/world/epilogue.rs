//! The course of a run: the caller's script, then a time without faults in which the ring must be whole
//! again.

use std::time::Duration;

use crate::core::head::{self, Outputs, Own, RingFault};
use crate::sim::caller::Next;
use crate::sim::script::Cancel;

use super::{What, World, id, index, node};

/// How long the home is left alone after the last fault: longer than a device stops, or needs to begin anew.
const QUIET: Duration = Duration::from_secs(5);
/// Between two looks whether the ring is whole again.
const LOOK: Duration = Duration::from_millis(500);
/// Longest time until it must be.
const WHOLE: Duration = Duration::from_secs(200);

/// What happens after the script.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::sim) enum Stage {
    /// The script is under way.
    #[default]
    Script,
    /// Faults are over.
    Quiet,
    /// The ring becomes whole.
    Mends,
    /// The last step is under way.
    LastStep,
    /// There is no script: requests come from outside.
    Outside,
}

/// How far the run has come.
#[derive(Debug, Default)]
pub(in crate::sim) struct Epilogue {
    pub(in crate::sim) stage: Stage,
    began: Duration,
    asked: Duration,
    events: Option<u64>,
    /// The end of the latest request.
    answered: Option<Result<Outputs, RingFault>>,
}

impl World {
    /// Gives the core a request.
    pub(super) fn ask(&mut self, event: head::Event, cancel: Option<Cancel>) {
        if !self.caller.waits() {
            self.caller.asks(&event);
        }
        self.request += 1;
        self.epilogue.asked = self.now;
        self.epilogue.events = None;
        self.engine.batch = self.caller.batch();
        self.engine.outputs.clear();
        self.checks.begins();
        match cancel.filter(|_| self.caller.steps_now()) {
            Some(Cancel::After(time)) => self.after(time, What::Cancel { request: self.request }),
            Some(Cancel::Events(events)) => self.epilogue.events = Some(self.deliveries + events),
            None => {}
        }
        self.step_head(event);
    }

    /// Looks whether the present request takes too long, and whether its caller still wants it.
    pub(super) fn in_time(&mut self) {
        if !self.caller.waits() {
            return;
        }
        if self.epilogue.events.take_if(|events| *events <= self.deliveries).is_some() {
            self.cancel(self.request);
        }
        let bound = self.checks.bound(&self.scenario.home);
        if self.now > self.epilogue.asked + bound && !self.devices[0].stopped {
            self.checks.break_it(format!("C5: a request is not done after {bound:?}"));
        }
    }

    /// What the head's device has left.
    pub(in crate::sim) fn own(&self) -> Own {
        Own { free_tokens: self.engine.engine.free_tokens(), memory_bytes: Some(4e9) }
    }

    /// The present request is done.
    pub(super) fn done(&mut self, done: &Result<Outputs, RingFault>) {
        if self.head_works() {
            self.checks.break_it("C3: a request is done while the engine works".to_owned());
        }
        let step = self.caller.steps_now();
        let trusted = !std::mem::take(&mut self.checks.spoiled);
        let outputs = std::mem::take(&mut self.engine.outputs);
        if let Err(words) = self.caller.done(done, &outputs, trusted) {
            self.checks.break_it(words);
        }
        match done {
            Ok(_) if step => self.checks.committed(),
            Ok(_) => {}
            Err(fault) => self.checks.failed(fault, &self.scenario),
        }
        self.ledger_is_right();
        if self.epilogue.stage == Stage::LastStep && step {
            match done {
                Ok(_) => self.at_the_end(),
                Err(fault) => self.checks.break_it(format!("C8: the last step fails: {fault:?}")),
            }
            self.over = true;
            return;
        }
        self.epilogue.answered = Some(done.clone());
        self.after(Duration::ZERO, What::Caller);
    }

    /// From now on requests come from outside.
    pub(in crate::sim) fn serve_outside(&mut self) {
        self.epilogue.stage = Stage::Outside;
    }

    /// Asks from outside; returns how the request ends.
    ///
    /// # Errors
    /// [`RingFault`] if it fails.
    pub(in crate::sim) fn asked(&mut self, event: head::Event) -> Result<Outputs, RingFault> {
        self.epilogue.answered = None;
        self.ask(event, None);
        self.answer()
    }

    /// Runs until the present request has ended; returns how.
    ///
    /// # Errors
    /// [`RingFault`] if it fails, or if a check does not hold.
    pub(in crate::sim) fn answer(&mut self) -> Result<Outputs, RingFault> {
        while self.epilogue.answered.is_none() && self.goes_on() {}
        self.epilogue.answered.take().unwrap_or(Err(RingFault::Cancelled))
    }

    /// Runs until this time.
    pub(in crate::sim) fn pass_until(&mut self, at: Duration) {
        while self.next_at().is_some_and(|next| next <= at) && self.goes_on() {}
        self.now = self.now.max(at);
    }

    /// The caller goes on.
    pub(super) fn caller_goes_on(&mut self) {
        match self.epilogue.stage {
            Stage::Script => match self.caller.next(self.own()) {
                Next::Ask(event, cancel) => self.ask(*event, cancel),
                Next::Join(worker) => {
                    self.join(worker + 1);
                    self.after(Duration::ZERO, What::Caller);
                }
                Next::Wait(time) => self.after(time, What::Caller),
                Next::End => {
                    self.begun.fill(true);
                    self.epilogue.stage = Stage::Quiet;
                    self.net.slower.fill(1);
                    for device in 1..self.devices.len() {
                        self.devices[device].refuses = 0;
                        self.devices[device].bad.next = None;
                        self.devices[device].bad.kept = None;
                        if self.devices[device].bad.lasting.is_some() {
                            self.kill(device);
                        }
                    }
                    self.devices[0].refuses = 0;
                    self.after(QUIET, What::Caller);
                }
            },
            Stage::Quiet => {
                self.epilogue.stage = Stage::Mends;
                self.epilogue.began = self.now;
                self.mend();
            }
            Stage::Mends => {
                let late = self.now > self.epilogue.began + WHOLE;
                if self.is_whole() || (late && !self.are_enough()) {
                    self.last_step();
                } else if late {
                    let present: Vec<usize> = self.head.present().into_iter().map(index).collect();
                    self.checks.break_it(format!("C8: the ring is not whole; there are {present:?}"));
                } else {
                    self.mend();
                }
            }
            Stage::LastStep | Stage::Outside => {}
        }
    }

    fn join(&mut self, device: usize) {
        if self.devices[device].worker.is_some() {
            self.step_head(head::Event::Join(node(device)));
        }
    }

    /// Devices that must be in the ring in the end.
    fn must_be_there(&self) -> impl Iterator<Item = usize> {
        let there = |device: &usize| self.devices[*device].worker.is_some() && !self.checks.barred[*device];
        (1..self.devices.len()).filter(there)
    }

    fn is_whole(&self) -> bool {
        let present = self.head.present();
        let joining = self.head.joining();
        self.must_be_there().all(|device| present.contains(&id(device))) && joining.is_empty()
    }

    /// Whether the model fits on the devices that must be there.
    fn are_enough(&self) -> bool {
        let computing = self.must_be_there().filter(|device| !self.scenario.home.relays[device - 1]).count();
        computing >= self.scenario.home.needs
    }

    /// Devices that are there and not in the ring appear.
    pub(in crate::sim) fn join_missing(&mut self) {
        let present = self.head.present();
        let missing: Vec<usize> =
            self.must_be_there().filter(|device| !present.contains(&id(*device))).collect();
        missing.into_iter().for_each(|device| self.join(device));
    }

    fn mend(&mut self) {
        self.join_missing();
        let own = self.own();
        self.after(LOOK, What::Idle(own));
    }

    /// The time has come to look after the ring once more.
    pub(super) fn idle(&mut self, own: Own) {
        self.ask(head::Event::Idle(own), None);
    }

    fn last_step(&mut self) {
        self.epilogue.stage = Stage::LastStep;
        let enough = self.are_enough() && self.engine.engine.free_tokens() >= self.caller.live().count();
        match self.caller.last_step().filter(|_| enough) {
            Some(event) => self.ask(event, None),
            None => self.over = true,
        }
    }

    /// The run is at its end: nothing is left of what the core did for itself.
    fn at_the_end(&mut self) {
        let live = self.caller.live().map(|(seq, ids)| (seq, ids.len().saturating_sub(1))).collect();
        let epoch = self.head.epoch();
        self.checks.at_rest(
            epoch,
            &live,
            self.devices.iter().map(|device| device.worker.as_ref().map(|own| &own.core)),
        );
        let barred: Vec<usize> =
            self.head.present().into_iter().map(index).filter(|device| self.checks.barred[*device]).collect();
        if !barred.is_empty() {
            self.checks.break_it(format!("C8: barred devices are in the ring: {barred:?}"));
        }
        self.end_head();
    }

    /// The head's tokens are those of the reference.
    fn ledger_is_right(&mut self) {
        let wrong =
            self.caller.live().find(|(seq, ids)| self.head.ids(*seq) != Some(ids)).map(|(seq, ids)| {
                let found = self.head.ids(seq).map(<[u32]>::len);
                format!("C7: {seq:?} has {found:?} tokens, must have {}", ids.len())
            });
        if let Some(words) = wrong {
            self.checks.break_it(words);
        }
    }
}
