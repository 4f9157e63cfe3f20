//! A head's core, its engine, and workers that do what a good worker does, unless a test says otherwise.
//!
//! Everything is delivered in order. Whether the engine or a link is next is chosen by random numbers.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use baton_engine::Wanted;
use baton_plan::{Plan, Share};
use baton_random::SplitMix64;

use super::super::*;
use super::{fake, setup};
use crate::core::echo;
use crate::core::layout::Layout;
use crate::core::{Bug, Gone, LinkEffect, LinkId, Node, Note, WorkId};
use crate::wire::frame::{Configure, Failure, FailureCode, Frame, Hello, MeasuredLink, Operation, Step};

/// What a test does to the frames of a ring when they come back.
pub(in crate::core) type Bend = Box<dyn FnMut(Step) -> Vec<Step>>;

/// What a test lets happen within a request.
pub(in crate::core) type Then = Box<dyn FnOnce(&mut Home)>;

/// One worker.
#[derive(Default)]
struct Worker {
    device: fake::Device,
    control: Option<LinkId>,
    /// The part of its latest epoch.
    part: Option<Configure>,
    dead: bool,
}

/// A head and its workers.
pub(in crate::core) struct Home {
    pub(in crate::core) core: HeadCore,
    pub(in crate::core) now: Duration,
    pub(in crate::core) engine: fake::Device,
    workers: BTreeMap<DeviceId, Worker>,
    work: Option<(WorkId, HeadWork)>,
    queue: VecDeque<Event>,
    /// The ring's links at the head: to the first place, and from the last.
    out: Option<LinkId>,
    back: Option<LinkId>,
    links: u64,
    done: Option<Result<Outputs, RingFault>>,
    wake: Option<Duration>,
    batch: Vec<BatchSeq>,
    pub(in crate::core) logits: Vec<u64>,
    pub(in crate::core) notes: Vec<Note>,
    pub(in crate::core) rng: SplitMix64,
    pub(in crate::core) n_layers: usize,
    pub(in crate::core) rounds: usize,
    /// No plan can be made.
    pub(in crate::core) planless: bool,
    /// What the host says when it is asked to judge.
    pub(in crate::core) judged: bool,
    /// What the head's own file has.
    pub(in crate::core) rotten: bool,
    /// Tokens that fit into the engine.
    pub(in crate::core) room: usize,
    pub(in crate::core) bend: Option<Bend>,
    /// Frames of the ring that came back.
    pub(in crate::core) frames: usize,
    /// Events since the request began.
    pub(in crate::core) events: usize,
    /// What happens after so many events.
    pub(in crate::core) then: Option<(usize, Then)>,
    pub(in crate::core) judgements: Vec<Vec<Shown>>,
}

pub(in crate::core) fn node(at: u8) -> Node {
    Node { device: DeviceId([at; 32]), address: format!("w{at}") }
}

impl Home {
    /// A head and `workers` workers that it does not know yet.
    pub(in crate::core) fn new(workers: u8, n_layers: usize, rounds: usize, seed: u64) -> Self {
        let ids = (1..=workers).map(|at| (DeviceId([at; 32]), Worker::default()));
        Self {
            core: HeadCore::new(setup("head", n_layers), Duration::ZERO),
            now: Duration::ZERO,
            engine: fake::Device::default(),
            workers: ids.collect(),
            work: None,
            queue: VecDeque::new(),
            out: None,
            back: None,
            links: 0,
            done: None,
            wake: None,
            batch: Vec::new(),
            logits: Vec::new(),
            notes: Vec::new(),
            rng: SplitMix64::new(seed),
            n_layers,
            rounds,
            planless: false,
            judged: false,
            rotten: false,
            room: 100_000,
            bend: None,
            frames: 0,
            events: 0,
            then: None,
            judgements: Vec::new(),
        }
    }

    /// The same, connected to all workers.
    pub(in crate::core) fn connected(workers: u8, n_layers: usize, rounds: usize, seed: u64) -> Self {
        let mut home = Self::new(workers, n_layers, rounds, seed);
        assert_eq!(home.run(Event::Connect((1..=workers).map(node).collect())), Ok(Outputs::None));
        home
    }

    /// The same, with a planted bug.
    pub(in crate::core) fn with_bug(bug: Bug, workers: u8, n_layers: usize) -> Self {
        let mut home = Self::new(workers, n_layers, 1, 5);
        home.core = HeadCore::with_bug(setup("head", n_layers), Planted::bug(bug), Duration::ZERO);
        assert_eq!(home.run(Event::Connect((1..=workers).map(node).collect())), Ok(Outputs::None));
        home
    }

    /// Runs a request to its end.
    pub(in crate::core) fn run(&mut self, request: Event) -> Result<Outputs, RingFault> {
        self.events = 0;
        if let Event::Step(batch) = &request {
            self.batch.clone_from(&batch.seqs);
            self.logits.clear();
        }
        self.step(request);
        for _ in 0..200_000 {
            if let Some(done) = self.done.take() {
                assert!(self.work.is_none(), "no engine work is under way");
                return done;
            }
            if self.then.as_ref().is_some_and(|(at, _)| self.events >= *at)
                && let Some((_, then)) = self.then.take()
            {
                then(self);
                continue;
            }
            self.events += 1;
            let both = self.work.is_some() && !self.queue.is_empty();
            let engine_first = both && self.rng.below(2) == 0;
            if self.work.is_some() && (self.queue.is_empty() || engine_first) {
                self.compute();
            } else if let Some(event) = self.queue.pop_front() {
                self.now += Duration::from_micros(50);
                self.step(event);
            } else {
                let wake = self.wake.expect("a request that waits for something");
                self.now = self.now.max(wake);
                self.step(Event::Tick);
            }
        }
        panic!("the request does not end: {:?}", self.core);
    }

    /// Steps of these sequences. Returns the logits.
    pub(in crate::core) fn batch(
        &mut self,
        seqs: &[(SeqNo, Vec<u32>, Wanted)],
    ) -> Result<Vec<u64>, RingFault> {
        let entry = |(seq, ids, wanted): &(SeqNo, Vec<u32>, Wanted)| BatchSeq {
            seq: *seq,
            ids: ids.clone(),
            wanted: *wanted,
        };
        self.run(Event::Step(Batch { seqs: seqs.iter().map(entry).collect() }))?;
        Ok(std::mem::take(&mut self.logits))
    }

    pub(in crate::core) fn ask(&mut self, ask: SeqAsk) -> Result<Outputs, RingFault> {
        self.run(Event::Sequence(ask))
    }

    pub(in crate::core) fn create(&mut self) -> SeqNo {
        match self.ask(SeqAsk::Create { adapter: false }) {
            Ok(Outputs::Seq(seq)) => seq,
            other => panic!("{other:?}"),
        }
    }

    pub(in crate::core) fn between(&mut self) {
        assert_eq!(self.run(Event::Between(self.own())), Ok(Outputs::None));
    }

    pub(in crate::core) fn idle(&mut self) {
        assert_eq!(self.run(Event::Idle(self.own())), Ok(Outputs::None));
    }

    fn own(&self) -> Own {
        Own { free_tokens: 100, memory_bytes: Some(1e9) }
    }

    /// Lets time pass in which nothing is asked; heartbeats are answered.
    pub(in crate::core) fn pass_time(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(50);
            self.step(Event::Tick);
            while let Some(event) = self.queue.pop_front() {
                self.step(event);
            }
        }
    }

    pub(in crate::core) fn cancel(&mut self) {
        self.step(Event::Cancel);
    }

    /// The device ends: its links are gone.
    pub(in crate::core) fn kill(&mut self, at: u8) {
        let worker = self.workers.get_mut(&DeviceId([at; 32])).expect("a worker");
        worker.dead = true;
        let links = [worker.control.take(), self.out, self.back];
        let part = worker.part.take();
        let in_ring = part.is_some_and(|part| Some(part.epoch) == self.core.epoch());
        if let Some(control) = links[0] {
            self.queue.push_back(gone(control));
        }
        if in_ring {
            // What was on its way through it is lost.
            self.cut();
        }
    }

    /// The ring's links end.
    pub(in crate::core) fn cut(&mut self) {
        self.queue.retain(|event| !matches!(event, Event::Link(LinkEvent::Heard(_, Frame::Step(_)))));
        for link in [self.out.take(), self.back.take()].into_iter().flatten() {
            self.queue.push_back(gone(link));
        }
    }

    /// The device says that it cannot go on.
    pub(in crate::core) fn fail(&mut self, at: u8, code: FailureCode) {
        let worker = &self.workers[&DeviceId([at; 32])];
        let (Some(control), Some(part)) = (worker.control, &worker.part) else { return };
        let failure = Failure { epoch: part.epoch, code, words: "a test".to_owned() };
        self.queue.push_back(heard(control, Frame::Failed(failure)));
    }

    pub(in crate::core) fn revive(&mut self, at: u8) {
        self.workers.insert(DeviceId([at; 32]), Worker::default());
    }

    pub(in crate::core) fn computes_wrong(&mut self, at: u8) {
        self.workers.get_mut(&DeviceId([at; 32])).expect("a worker").device.wrong_layer = Some(0);
    }

    /// Tells the workers what they were not told, and checks that they hold the same sequences as the head.
    pub(in crate::core) fn check_workers(&mut self) {
        let seq = self.create();
        assert!(self.batch(&[(seq, vec![1], Wanted::Last)]).is_ok());
        let epoch = self.core.epoch().expect("a ring");
        let parts = self
            .workers
            .values()
            .filter(|worker| worker.part.as_ref().is_some_and(|part| part.epoch == epoch));
        let mut want = self.engine.ids();
        want.remove(&seq);
        let mut count = 0;
        for worker in parts {
            let mut held = worker.device.ids();
            held.remove(&seq);
            assert_eq!(held, want);
            count += 1;
        }
        assert_eq!(count + 1, self.core.stats().devices.len());
        assert_eq!(self.ask(SeqAsk::Release(seq)), Ok(Outputs::None));
    }

    pub(in crate::core) fn step(&mut self, event: Event) {
        let effects = self.core.step(event, self.now);
        let mut ended = false;
        for effect in effects {
            assert!(
                !ended || matches!(effect, Effect::WakeAt(_) | Effect::Note(_) | Effect::Link(_)),
                "{effect:?}"
            );
            match effect {
                Effect::Link(effect) => self.link(effect),
                Effect::Give(..) | Effect::KeepWays | Effect::Discard(_) => {}
                Effect::Compute(id, work) => {
                    assert!(self.work.replace((id, work)).is_none(), "one at a time")
                }
                Effect::Plan(of) => {
                    let plan = self.plan(&of).map(|plan| Planned { plan, pace: Pace::default() });
                    self.queue.push_back(Event::Planned(plan));
                }
                Effect::Draft(of) => {
                    let plan = self.plan(&of);
                    self.queue.push_back(Event::Drafted(plan));
                }
                Effect::Judge(shown) => {
                    self.judgements.push(shown);
                    self.queue.push_back(Event::Judged(std::mem::take(&mut self.judged)));
                }
                Effect::Note(note) => self.notes.push(note),
                Effect::Done(done) => {
                    assert!(self.done.replace(done).is_none(), "one end");
                    ended = true;
                }
                Effect::WakeAt(wake) => {
                    assert!(wake.is_none_or(|wake| wake >= self.now));
                    self.wake = wake;
                }
            }
        }
    }

    fn plan(&self, of: &PlanFor) -> Result<Plan, String> {
        if self.planless {
            return Err("a test".to_owned());
        }
        let names = std::iter::once("head").chain(of.workers.iter().map(|hello| hello.name.as_str()));
        let count = 1 + of.workers.len();
        let each = self.n_layers / self.rounds;
        let share = |(at, name): (usize, &str)| Share {
            device: name.to_owned(),
            layers: self.rounds * (each / count + usize::from(at < each % count)),
            gpu_layers: 0,
            prefetch_bytes: 0.0,
            relays: Vec::new(),
        };
        Ok(Plan {
            layers: self.n_layers,
            rounds: self.rounds,
            shares: names.enumerate().map(share).collect(),
        })
    }

    fn compute(&mut self) {
        let Some((work, what)) = self.work.take() else { return };
        let done = self.computed(what);
        self.now += Duration::from_millis(1);
        self.step(Event::Computed { work, done, took: Duration::from_millis(1) });
    }

    fn spans(&self, replay: Option<&BatchSeq>) -> Vec<(SeqNo, Vec<u32>, Wanted)> {
        let of = |entry: &BatchSeq| (entry.seq, entry.ids.clone(), entry.wanted);
        replay.map_or_else(|| self.batch.iter().map(of).collect(), |entry| vec![of(entry)])
    }

    fn fits(&self, seqs: &[(SeqNo, Vec<u32>, Wanted)]) -> bool {
        let held: usize = self.engine.ids().values().map(Vec::len).sum();
        held + seqs.iter().map(|(_, ids, _)| ids.len()).sum::<usize>() <= self.room
    }

    fn computed(&mut self, work: HeadWork) -> HeadDone {
        match work {
            HeadWork::ReadModel => {
                HeadDone::Model(ModelFacts { digest: [1; 32], file_len: 1000, header_bytes: 10 })
            }
            HeadWork::AddAdapter => HeadDone::Done,
            HeadWork::Sequence(operation @ Operation::Reuse { .. }) => {
                HeadDone::Gained(self.engine.apply(&operation))
            }
            HeadWork::Sequence(operation) => {
                self.engine.apply(&operation);
                HeadDone::Done
            }
            HeadWork::Whole { replay } => {
                let seqs = self.spans(replay.as_ref());
                if !self.fits(&seqs) {
                    return HeadDone::Refused;
                }
                self.logits = self.engine.whole(&seqs, self.n_layers);
                HeadDone::Done
            }
            HeadWork::Open { step, replay } => {
                let seqs = self.spans(replay.as_ref());
                if !self.fits(&seqs) {
                    return HeadDone::Refused;
                }
                self.logits.clear();
                let held = self.engine.ids();
                let span = |(seq, ids, wanted): (SeqNo, Vec<u32>, Wanted)| {
                    let start = held[&seq].len() as u64;
                    crate::wire::frame::Span { seq, start, wanted, ids }
                };
                self.engine.begin(step, &seqs.into_iter().map(span).collect::<Vec<_>>());
                HeadDone::Done
            }
            HeadWork::Embed { rows } => HeadDone::States(self.engine.embed(&rows)),
            HeadWork::Rows { rows, from, layers, logits } => {
                let from = match from {
                    From::Tokens => self.engine.embed(&rows),
                    From::States(states) => states,
                };
                let out = if layers.is_empty() { from } else { self.engine.layers(&rows, layers, &from) };
                if !logits {
                    return HeadDone::States(out);
                }
                self.logits.extend(self.engine.logits(&rows, &out));
                HeadDone::Done
            }
            HeadWork::Layer { layer, ids, begins } => {
                let mut auditor = fake::Device::default();
                let seq = SeqNo(0);
                auditor.apply(&Operation::Create { seq });
                let rows = 0..ids.len();
                let span = crate::wire::frame::Span { seq, start: 0, wanted: Wanted::All, ids };
                auditor.begin(crate::core::StepNo(1), &[span]);
                HeadDone::States(auditor.layers(&rows, layer..layer + 1, &begins))
            }
            HeadWork::Close { commit } => {
                let step = self.engine.open().expect("an open step");
                self.engine.end(step, commit);
                HeadDone::Done
            }
            HeadWork::Reset { .. } => {
                self.engine.reset();
                HeadDone::Done
            }
            HeadWork::CheckFile { .. } if self.rotten => HeadDone::Rotten("a test".to_owned()),
            HeadWork::CheckFile { .. } => HeadDone::Done,
        }
    }

    fn link(&mut self, effect: LinkEffect) {
        match effect {
            LinkEffect::Connect { link, to, purpose, .. } => {
                let worker = self.workers.get_mut(&to.device).filter(|worker| !worker.dead);
                let Some(worker) = worker else {
                    let refused = Err("it does not answer".to_owned());
                    return self.queue.push_back(Event::Link(LinkEvent::Opened(link, refused)));
                };
                self.queue.push_back(Event::Link(LinkEvent::Opened(link, Ok(()))));
                if purpose == Purpose::Control {
                    worker.control = Some(link);
                    let hello = Hello { name: to.address, device: None };
                    self.queue.push_back(heard(link, Frame::Hello(hello)));
                } else {
                    self.out = Some(link);
                }
            }
            LinkEffect::Send(link, frame) if self.out == Some(link) => {
                if let Frame::Step(step) = frame {
                    self.round(step);
                }
            }
            LinkEffect::Send(link, frame) => self.control(link, frame),
            LinkEffect::Close(link) => {
                for own in [&mut self.out, &mut self.back] {
                    *own = own.filter(|own| *own != link);
                }
                self.workers.values_mut().for_each(|worker| {
                    worker.control = worker.control.filter(|control| *control != link);
                });
                let of = |event: &Event| match event {
                    Event::Link(LinkEvent::Heard(of, _) | LinkEvent::Gone(of, _)) => *of == link,
                    _ => false,
                };
                self.queue.retain(|event| !of(event));
            }
            LinkEffect::Allow(_) | LinkEffect::Hold(_) | LinkEffect::Release(_) => {}
        }
    }

    /// A frame on a control channel.
    fn control(&mut self, link: LinkId, frame: Frame) {
        let found = self.workers.iter_mut().find(|(_, worker)| worker.control == Some(link));
        let Some((device, worker)) = found else { return };
        match frame {
            Frame::Heartbeat(beat) => self.queue.push_back(heard(link, Frame::Heartbeat(beat))),
            Frame::Echo(asked) => self.queue.push_back(heard(link, echo::answer(&asked))),
            Frame::MeasureEdge(to) => {
                let edge = MeasuredLink { to: to.device, speed: None };
                self.queue.push_back(heard(link, Frame::Edge(edge)));
            }
            Frame::Provide(_) => self.queue.push_back(heard(link, Frame::Provided)),
            Frame::Configure(part) => {
                let wrong_layer = worker.device.wrong_layer;
                worker.device = fake::Device::default();
                worker.device.wrong_layer = wrong_layer;
                let epoch = part.epoch;
                self.queue.push_back(heard(link, Frame::Ready { epoch }));
                if part.next.device == DeviceId([0; 32]) {
                    let (link, from) = (LinkId(self.links * 2 + 1), *device);
                    self.links += 1;
                    self.back = Some(link);
                    self.queue.push_back(Event::Link(LinkEvent::Arrived {
                        link,
                        from,
                        purpose: Purpose::Ring,
                    }));
                    self.queue.push_back(heard(link, Frame::Enter { epoch, place: part.place }));
                }
                worker.part = Some(*part);
            }
            _ => {}
        }
    }

    /// A frame goes round the ring.
    fn round(&mut self, mut step: Step) {
        let parts = self
            .workers
            .values_mut()
            .filter(|worker| worker.part.as_ref().is_some_and(|part| part.epoch == step.epoch));
        let mut places: Vec<&mut Worker> = parts.collect();
        places.sort_by_key(|worker| worker.part.as_ref().map(|part| part.place));
        for worker in places {
            let Some(part) = &worker.part else { continue };
            let layout = Layout {
                names: Vec::new(),
                windows: part.windows.clone(),
                prefetch_bytes: Vec::new(),
                n_layers: usize::from(part.n_layers),
            };
            for operation in &step.operations {
                let gained = worker.device.apply(operation);
                if let Operation::Reuse { gained: want, .. } = operation {
                    assert_eq!(gained as u64, *want, "all devices find the same prefix");
                }
            }
            worker.device.pass(&mut step, &layout, usize::from(part.place));
        }
        step.operations.clear();
        self.frames += 1;
        let back = match &mut self.bend {
            Some(bend) => bend(step),
            None => vec![step],
        };
        let Some(link) = self.back else { return };
        back.into_iter().for_each(|step| self.queue.push_back(heard(link, Frame::Step(step))));
    }
}

fn heard(link: LinkId, frame: Frame) -> Event {
    Event::Link(LinkEvent::Heard(link, frame))
}

fn gone(link: LinkId) -> Event {
    Event::Link(LinkEvent::Gone(link, Gone::Closed("it ended".to_owned())))
}
