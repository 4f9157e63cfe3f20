//! What must hold before a request is done, in order, and how each entry is worked off.
//!
//! An entry waits, or it is done, or others take its place. What takes longer than a few lines belongs to a
//! room.

use std::collections::VecDeque;
use std::time::Duration;

use super::types::{Batch, BatchSeq, Effect, HeadDone, HeadWork, Outputs, Own, RingFault, SeqAsk};
use super::{Fault, HeadCore, Progress};
use crate::core::form::Route;
use crate::core::layout::Layout;
use crate::core::pump::{Ending, Kind, PumpNews};
use crate::core::{DeviceId, Node, Note, SeqNo};

/// Whose call a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Connect,
    Step,
    Sequence,
    Between,
    Idle,
}

/// One call of the caller.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) asked: Asked,
    pub(super) agenda: VecDeque<Todo>,
    batch: Vec<BatchSeq>,
    pub(super) own: Own,
    pub(super) cancelled: bool,
    outputs: Outputs,
    /// The sequence of a probe or an audit.
    pub(super) own_seq: Option<SeqNo>,
}

/// Something that must hold.
#[derive(Debug)]
pub(super) enum Todo {
    /// The pieces of the model's file are known.
    ReadModel,
    /// These devices were greeted.
    Admit(Vec<Node>),
    /// Those that are being greeted were.
    Admitted,
    /// All pairs were asked for the path between them.
    Pairs,
    /// A route is formed, and has all sequences. `begun`: another route is being formed.
    Ready { begun: bool },
    /// Nothing is wrong with the ring.
    Faults,
    /// Members that were lost are gone.
    Bury,
    /// Devices that have fetched their weights are members.
    Welcome,
    /// Devices that shall join were looked at.
    Adopt,
    /// These devices have come, and are members or fetch their weights.
    Came(Vec<DeviceId>),
    /// The ring was formed anew with these devices.
    TakeIn(Vec<DeviceId>),
    /// If that failed they are gone.
    TakenIn(Vec<DeviceId>),
    /// These devices are told which weights to fetch. `asked`: a plan is being made.
    Draft { came: Vec<DeviceId>, asked: bool },
    /// The caller's step is done.
    Pump,
    /// A sequence was changed.
    Sequence(SeqAsk),
    /// There is a sequence for a probe or an audit.
    Create,
    /// There is none any more.
    Release,
    /// A token went round the ring lately.
    Probe,
    /// It went round.
    ProbeStep,
    /// Layers were audited lately.
    Audit,
    /// The next layer is audited.
    AuditNext,
    /// The rows of an audit are back.
    AuditStep { place: usize, layer: usize },
    /// They are right.
    Compare { place: usize, layer: usize },
    /// They are wrong: it is known who is at fault.
    Suspect { place: usize, layer: usize },
    /// An own layer was read again.
    OwnFile,
    /// The plan still fits. `asked`: that is being judged.
    Judge { asked: bool },
}

/// What the first entry waited for.
#[derive(Debug)]
pub(super) enum Answer {
    Computed(HeadDone),
    Sequence(Result<Outputs, RingFault>),
    Drafted(Result<baton_plan::Plan, String>),
    Judged(bool),
}

/// What became of an entry.
#[derive(Debug)]
pub(super) enum Turn {
    /// It waits for an event.
    Waiting,
    /// It holds.
    Done,
    /// These take its place.
    Then(Vec<Todo>),
    /// The ring broke.
    Fault(Fault),
    /// It cannot hold.
    Failed(RingFault),
}

impl Request {
    fn new(asked: Asked, agenda: impl IntoIterator<Item = Todo>) -> Self {
        Self {
            asked,
            agenda: agenda.into_iter().collect(),
            batch: Vec::new(),
            own: Own::default(),
            cancelled: false,
            outputs: Outputs::None,
            own_seq: None,
        }
    }

    pub(super) fn connect(nodes: Vec<Node>) -> Self {
        let admit = (!nodes.is_empty()).then_some([Todo::ReadModel, Todo::Admit(nodes)]);
        let agenda = admit.into_iter().flatten().chain([Todo::Pairs, Todo::Ready { begun: false }]);
        Self::new(Asked::Connect, agenda)
    }

    pub(super) fn step(batch: Batch) -> Self {
        let agenda = [Todo::Ready { begun: false }, Todo::Pump];
        Self { batch: batch.seqs, ..Self::new(Asked::Step, agenda) }
    }

    pub(super) fn sequence(ask: SeqAsk) -> Self {
        Self::new(Asked::Sequence, [Todo::Sequence(ask)])
    }

    pub(super) fn between(own: Own) -> Self {
        use Todo::{Adopt, Audit, Bury, Faults, Judge, Welcome};
        let agenda = [Faults, Bury, Welcome, Adopt, Audit, Judge { asked: false }];
        Self { own, ..Self::new(Asked::Between, agenda) }
    }

    pub(super) fn idle(own: Own) -> Self {
        use Todo::{Adopt, Audit, Bury, Faults, Judge, Probe, Welcome};
        let agenda = [Faults, Bury, Welcome, Adopt, Probe, Audit, Judge { asked: false }];
        Self { own, ..Self::new(Asked::Idle, agenda) }
    }

    /// The caller does not want it any more; only a step can be cancelled.
    pub(super) fn cancel(&mut self) {
        self.cancelled |= self.asked == Asked::Step;
    }

    pub(super) fn put_in_front(&mut self, todos: Vec<Todo>) {
        todos.into_iter().rev().for_each(|todo| self.agenda.push_front(todo));
    }
}

impl HeadCore {
    /// Works off the agenda as far as it goes now.
    pub(super) fn drive(&mut self, now: Duration) {
        let Some(mut request) = self.request.take() else { return };
        match self.work_off(&mut request, now) {
            Some(done) => self.fx.push(Effect::Done(done)),
            None => self.request = Some(request),
        }
    }

    /// Returns the outcome of the request, or none if it waits.
    fn work_off(&mut self, request: &mut Request, now: Duration) -> Option<Result<Outputs, RingFault>> {
        loop {
            match self.fall(request, now) {
                Turn::Waiting => return None,
                Turn::Failed(err) => {
                    let todo = request.agenda.pop_front();
                    if let Some(done) = self.failed(todo, err, request) {
                        return Some(done);
                    }
                    continue;
                }
                _ => {}
            }
            let Some(mut todo) = request.agenda.pop_front() else { return Some(Ok(request.outputs)) };
            match self.turn(&mut todo, request, now) {
                Turn::Waiting => {
                    request.agenda.push_front(todo);
                    return None;
                }
                Turn::Done => {}
                Turn::Then(todos) => request.put_in_front(todos),
                Turn::Fault(fault) => {
                    request.agenda.push_front(todo);
                    self.recover.fault(fault, now);
                }
                Turn::Failed(err) => {
                    if let Some(done) = self.failed(Some(todo), err, request) {
                        return Some(done);
                    }
                }
            }
        }
    }

    fn turn(&mut self, todo: &mut Todo, request: &mut Request, now: Duration) -> Turn {
        match todo {
            Todo::ReadModel => self.read_model(),
            Todo::Admit(nodes) => self.admit(std::mem::take(nodes), request.asked),
            Todo::Admitted => self.admitted(request.asked),
            Todo::Pairs => match self.roster.pairs(now, &mut self.fx) {
                Progress::Waiting => Turn::Waiting,
                Progress::Done(()) => Turn::Done,
            },
            Todo::Ready { begun } => self.ready(*begun, request, now),
            Todo::Faults => self.trouble().map_or(Turn::Done, Turn::Fault),
            Todo::Bury => {
                self.roster.bury(&mut self.fx);
                Turn::Done
            }
            Todo::Welcome => self.welcome(now),
            Todo::Adopt => self.adopt(),
            Todo::Came(came) => {
                let came = std::mem::take(came);
                // If there is no ring, nobody can be delayed.
                Turn::Then(vec![match self.form.route() {
                    Route::Down => Todo::TakeIn(came),
                    Route::Alone(_) | Route::Ring(_) => Todo::Draft { came, asked: false },
                }])
            }
            Todo::TakeIn(came) => {
                self.set_down();
                Turn::Then(vec![Todo::Ready { begun: false }, Todo::TakenIn(std::mem::take(came))])
            }
            Todo::TakenIn(_) => Turn::Done,
            Todo::Draft { came, asked } => self.draft(came, asked, now),
            Todo::Pump => self.pump(request, now),
            Todo::Sequence(ask) => match self.sequence(ask) {
                None => Turn::Waiting,
                Some(Ok(outputs)) => {
                    request.outputs = outputs;
                    Turn::Done
                }
                Some(Err(err)) => Turn::Failed(err),
            },
            Todo::Create => match self.sequence(&SeqAsk::Create { adapter: false }) {
                None => Turn::Waiting,
                Some(done) => {
                    request.own_seq = if let Ok(Outputs::Seq(seq)) = done { Some(seq) } else { None };
                    Turn::Done
                }
            },
            Todo::Release => {
                let Some(seq) = request.own_seq else { return Turn::Done };
                if self.sequence(&SeqAsk::Release(seq)).is_none() {
                    return Turn::Waiting;
                }
                request.own_seq = None;
                Turn::Done
            }
            Todo::Probe => self.probe(request, now),
            Todo::ProbeStep => self.probe_step(request, now),
            Todo::Audit => self.audit(request, now),
            Todo::AuditNext => self.audit_next(),
            Todo::AuditStep { place, layer } => self.audit_step(*place, *layer, request, now),
            Todo::Compare { place, layer } => self.compare(*place, *layer, now),
            Todo::Suspect { place, layer } => self.suspect(*place, *layer),
            Todo::OwnFile => self.own_file(),
            Todo::Judge { asked } => self.judge(asked, request),
        }
    }

    /// Has the engine do a work for the present entry, and returns its outcome once it is there. `work` is
    /// called once.
    pub(super) fn own_work(&mut self, work: impl FnOnce(&mut Self) -> HeadWork) -> Option<HeadDone> {
        if let Some(Answer::Computed(done)) = self.answer.take() {
            return Some(done);
        }
        if !self.fx.is_busy() {
            let work = work(self);
            self.fx.compute(work);
        }
        None
    }

    /// Changes a sequence, and returns the outcome once it is there.
    fn sequence(&mut self, ask: &SeqAsk) -> Option<Result<Outputs, RingFault>> {
        let done = match self.answer.take() {
            Some(Answer::Sequence(done)) => Some(done),
            _ if self.recover.is_asking() => None,
            _ => {
                let alone = matches!(self.form.route(), Route::Alone(_));
                self.recover.ask(ask, alone, &mut self.fx).transpose()
            }
        };
        if matches!((ask, &done), (SeqAsk::AddAdapter, Some(Ok(_)))) {
            self.roster.adapter_came();
        }
        done
    }

    fn read_model(&mut self) -> Turn {
        if self.roster.model().is_some() {
            return Turn::Done;
        }
        match self.own_work(|_| HeadWork::ReadModel) {
            None => Turn::Waiting,
            Some(HeadDone::Model(facts)) => {
                self.roster.read(facts);
                Turn::Done
            }
            Some(_) => Turn::Failed(RingFault::Host),
        }
    }

    fn admit(&mut self, nodes: Vec<Node>, asked: Asked) -> Turn {
        if self.roster.model().is_none() {
            let words = "this device cannot give the model's weights";
            let note = |node: Node| Note::NotIn { address: node.address, words: words.to_owned() };
            nodes.into_iter().map(note).for_each(|note| self.fx.note(note));
            return Turn::Done;
        }
        self.roster.begin_admit(nodes, asked == Asked::Connect);
        Turn::Then(vec![Todo::Admitted])
    }

    fn admitted(&mut self, asked: Asked) -> Turn {
        match self.roster.admit(&mut self.fx) {
            Progress::Waiting => Turn::Waiting,
            Progress::Done(Err(name)) => Turn::Failed(RingFault::TwoNames { name }),
            Progress::Done(Ok(came)) if asked == Asked::Connect || came.is_empty() => Turn::Done,
            Progress::Done(Ok(came)) => Turn::Then(vec![Todo::Pairs, Todo::Came(came)]),
        }
    }

    fn welcome(&mut self, now: Duration) -> Turn {
        let came = self.roster.welcome(now, &mut self.fx);
        if came.is_empty() { Turn::Done } else { Turn::Then(vec![Todo::Pairs, Todo::TakeIn(came)]) }
    }

    fn adopt(&mut self) -> Turn {
        let nodes = self.roster.take_newcomers();
        if nodes.is_empty() { Turn::Done } else { Turn::Then(vec![Todo::ReadModel, Todo::Admit(nodes)]) }
    }

    fn draft(&mut self, came: &[DeviceId], asked: &mut bool, now: Duration) -> Turn {
        if !std::mem::replace(asked, true) {
            self.fx.push(Effect::Draft(self.roster.plan_for()));
            return Turn::Waiting;
        }
        let Some(Answer::Drafted(plan)) = self.answer.take() else { return Turn::Waiting };
        let layout = plan.and_then(|plan| {
            Layout::of_plan(&plan, &self.name, self.n_layers).map_err(|err| err.to_string())
        });
        match layout {
            Ok(layout) => self.roster.provide(came, &layout, now, &mut self.fx),
            Err(words) => {
                self.roster.leave(came, &mut self.fx);
                self.fx.note(Note::NoRingWith { words });
            }
        }
        Turn::Done
    }

    /// The caller's step.
    fn pump(&mut self, request: &Request, now: Duration) -> Turn {
        if !self.pump.is_under_way() {
            if request.cancelled {
                return Turn::Failed(RingFault::Cancelled);
            }
            match self.recover.spans(&request.batch) {
                Ok(spans) => {
                    self.recover.begun(self.pump.next_step(), &spans);
                    self.pump.begin(Kind::Caller, spans, self.form.formed(), now, &mut self.fx);
                }
                Err(err) => return Turn::Failed(err),
            }
        } else if request.cancelled {
            self.pump.end(Ending::Cancelled);
        }
        match self.pumped(now) {
            PumpNews::Waiting => Turn::Waiting,
            PumpNews::Committed(committed) => {
                self.recover.committed(committed);
                self.roster.step_done();
                Turn::Done
            }
            PumpNews::Ended(Ending::Cancelled) => Turn::Failed(RingFault::Cancelled),
            PumpNews::Ended(_) | PumpNews::Back { .. } => Turn::Failed(RingFault::Refused),
            PumpNews::Fault(fault) => Turn::Fault(fault),
        }
    }

    /// Goes on with the step under way, and finds what is wrong with the ring.
    pub(super) fn pumped(&mut self, now: Duration) -> PumpNews {
        if let (false, Some(fault)) = (self.pump.is_committing(), self.trouble()) {
            return PumpNews::Fault(fault);
        }
        let news = self.pump.drive(self.form.formed(), now, &mut self.fx);
        match (&news, self.stalled(now)) {
            (PumpNews::Waiting, Some(fault)) => PumpNews::Fault(fault),
            _ => news,
        }
    }
}
