//! What is done about the ring while no answer runs: a token for its health, audits, the own file, and a
//! judgement of the plan. All need a formed ring.

use std::time::Duration;

use baton_engine::Wanted;
use baton_engine::tokenizer::TokenId;

use super::agenda::{Answer, Asked, Request, Todo, Turn};
use super::types::{BatchSeq, Effect, HeadDone, HeadWork};
use super::{Fault, HeadCore};
use crate::core::Note;
use crate::core::pump::{Kind, PumpNews};
use crate::wire::frame::{Failure, FailureCode};

impl HeadCore {
    /// A token goes round, if it is due and the cache has a free block.
    pub(super) fn probe(&mut self, request: &Request, now: Duration) -> Turn {
        let there = self.form.formed().is_some() && request.own.free_tokens > 0;
        if there && self.health.begin_probe(now) {
            return Turn::Then(vec![Todo::Create, Todo::ProbeStep, Todo::Release]);
        }
        Turn::Done
    }

    pub(super) fn probe_step(&mut self, request: &Request, now: Duration) -> Turn {
        if !self.begin_own(Kind::Probe, &[0], Wanted::None, request, now) {
            return Turn::Done;
        }
        match self.pumped(now) {
            PumpNews::Waiting => return Turn::Waiting,
            PumpNews::Fault(fault) => return Turn::Fault(fault),
            PumpNews::Committed(committed) => {
                self.recover.committed(committed);
                self.roster.step_done();
            }
            PumpNews::Ended(_) | PumpNews::Back { .. } => self.refused(),
        }
        self.health.end_probe(now);
        Turn::Done
    }

    /// Begins a step of the core's own sequence, unless it is under way. Returns false if there is no
    /// sequence.
    fn begin_own(
        &mut self,
        kind: Kind,
        ids: &[TokenId],
        wanted: Wanted,
        request: &Request,
        now: Duration,
    ) -> bool {
        if self.pump.is_under_way() {
            return true;
        }
        let Some(seq) = request.own_seq else { return false };
        let Ok(spans) = self.recover.spans(&[BatchSeq { seq, ids: ids.to_vec(), wanted }]) else {
            return false;
        };
        if kind == Kind::Probe {
            self.recover.begun(self.pump.next_step(), &spans);
        }
        self.pump.begin(kind, spans, self.form.formed(), now, &mut self.fx);
        true
    }

    fn refused(&mut self) {
        self.fx.note(Note::CheckBroke { words: "this device's engine refuses it".to_owned() });
    }

    /// Layers are audited, if that is due.
    pub(super) fn audit(&mut self, request: &Request, now: Duration) -> Turn {
        let idle = request.asked == Asked::Idle;
        if self.form.formed().is_none() || !self.health.audit_is_due(idle, now) {
            return Turn::Done;
        }
        self.health.begin_audits(now);
        let audit = (request.own.free_tokens > 0).then_some(Todo::AuditNext);
        Turn::Then(audit.into_iter().chain(idle.then_some(Todo::OwnFile)).collect())
    }

    pub(super) fn audit_next(&mut self) -> Turn {
        let Some(formed) = self.form.formed() else { return Turn::Done };
        let Some((place, layer)) = self.health.next_audit(&formed.layout) else { return Turn::Done };
        let step = Todo::AuditStep { place, layer };
        Turn::Then(vec![Todo::Create, step, Todo::Release, Todo::Compare { place, layer }])
    }

    pub(super) fn audit_step(
        &mut self,
        place: usize,
        layer: usize,
        request: &Request,
        now: Duration,
    ) -> Turn {
        let ids = self.health.audit_ids().to_vec();
        if !self.begin_own(Kind::Audit { place, layer }, &ids, Wanted::All, request, now) {
            return Turn::Done;
        }
        match self.pumped(now) {
            PumpNews::Waiting => return Turn::Waiting,
            PumpNews::Fault(fault) => return Turn::Fault(fault),
            PumpNews::Back { begins, have } => self.health.keep(begins, have),
            PumpNews::Committed(_) | PumpNews::Ended(_) => self.refused(),
        }
        Turn::Done
    }

    /// Compares what a device made of an audit's rows with what this one makes of them.
    pub(super) fn compare(&mut self, place: usize, layer: usize, now: Duration) -> Turn {
        let Some(evidence) = self.health.evidence() else { return Turn::Done };
        let (ids, begins) = (evidence.ids.clone(), evidence.begins.clone());
        match self.own_work(|_| HeadWork::Layer { layer, ids, begins }) {
            None => Turn::Waiting,
            Some(HeadDone::States(want)) => {
                let on_gpu = self.form.formed().is_some_and(|formed| formed.layout.is_on_gpu(layer));
                if !self.health.is_right(&want, on_gpu) {
                    return Turn::Then(vec![Todo::Suspect { place, layer }]);
                }
                let Some(formed) = self.form.formed() else { return Turn::Done };
                let goes_on = self.health.goes_on(&formed.layout, now);
                if goes_on { Turn::Then(vec![Todo::AuditNext]) } else { Turn::Done }
            }
            Some(_) => {
                self.refused();
                Turn::Done
            }
        }
    }

    /// A device computed wrong, unless it is the head's own file that has changed.
    pub(super) fn suspect(&mut self, place: usize, layer: usize) -> Turn {
        let check = HeadWork::CheckFile { layers: vec![layer], anew: true };
        match self.own_work(|_| check) {
            None => return Turn::Waiting,
            Some(HeadDone::Rotten(words)) => return self.rotten(words),
            Some(_) => {}
        }
        let Some(formed) = self.form.formed() else { return Turn::Done };
        let Some(device) = place.checked_sub(1).and_then(|at| formed.places.get(at)).copied() else {
            return Turn::Done;
        };
        let name = self.roster.name(device).unwrap_or_default();
        let words = format!("`{name}` computes layer {layer} wrong: its results are not the head's own");
        let failure = Failure { epoch: formed.epoch, code: FailureCode::Engine, words: words.clone() };
        self.roster.distrust(device, failure, &mut self.fx);
        Turn::Fault(Fault::Wrong { place, words })
    }

    /// One of the head's own layers is read again in the model's file.
    pub(super) fn own_file(&mut self) -> Turn {
        if self.form.formed().is_none() {
            return Turn::Done;
        }
        let check = |core: &mut Self| {
            let layout = core.form.layout().cloned();
            let layers = layout.map(|layout| core.health.next_own_layer(&layout)).unwrap_or_default();
            HeadWork::CheckFile { layers, anew: false }
        };
        match self.own_work(check) {
            None => Turn::Waiting,
            Some(HeadDone::Rotten(words)) => self.rotten(words),
            Some(_) => Turn::Done,
        }
    }

    /// The head's own file has changed: no ring is formed any more.
    fn rotten(&mut self, words: String) -> Turn {
        self.fx.note(Note::Damaged { words: words.clone() });
        self.health.rotten(words);
        self.set_down();
        Turn::Then(vec![Todo::Ready { begun: false }])
    }

    /// The host judges whether the plan still fits. If not, there is a new one.
    pub(super) fn judge(&mut self, asked: &mut bool, request: &Request) -> Turn {
        let Some(formed) = self.form.formed() else { return Turn::Done };
        if !std::mem::replace(asked, true) {
            let shown = self.health.shown(formed, &self.roster, self.pump.singles(), &request.own);
            self.fx.push(Effect::Judge(shown));
            return Turn::Waiting;
        }
        match self.answer.take() {
            Some(Answer::Judged(true)) => {
                self.fx.note(Note::PlannedAnew);
                self.set_down();
                Turn::Then(vec![Todo::Ready { begun: false }])
            }
            Some(_) => Turn::Done,
            None => Turn::Waiting,
        }
    }
}
