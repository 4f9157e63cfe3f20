//! What the cores of a simulated home want, and the works of engines, planner and hosts.

use std::time::Duration;

use baton_plan::{Plan, Share};
use baton_random::{SplitMix64, mix};

use crate::core::head::{self, PlanFor};
use crate::core::worker::{self, WorkerNews};
use crate::core::{Give, Gone, LinkEvent, LinkId, Note, WorkId};
use crate::sim::compute::{HeadEngine, WorkerEngine, disk};
use crate::sim::disk::{LIST, piece, pieces};
use crate::sim::trace;
use crate::wire::frame::{Frame, PieceData};

use super::{Running, What, Work, World};

/// How often a head's host looks whether the caller still wants its step.
const POLL: Duration = Duration::from_millis(20);
/// How long an engine needs to end a work early.
const LAYER: Duration = Duration::from_micros(30);

impl World {
    /// The head's core takes an event; what it wants is done.
    pub(super) fn step_head(&mut self, event: head::Event) {
        let effects = self.head.step(event, self.now);
        let last = effects.len().saturating_sub(1);
        for (at, effect) in effects.into_iter().enumerate() {
            self.trace(trace::head(&effect));
            let wakes = matches!(effect, head::Effect::WakeAt(_));
            if wakes != (at == last) {
                self.checks.break_it("C9: `WakeAt` is not the last effect".to_owned());
            }
            self.checks.head_effect(&effect);
            self.head_effect(effect);
        }
        self.checks.formed(self.head.epoch());
    }

    fn head_effect(&mut self, effect: head::Effect) {
        match effect {
            head::Effect::Link(effect) => self.link_effect(0, effect),
            head::Effect::Give(link, give) => self.give(0, link, give),
            head::Effect::Compute(id, work) => {
                let took = self.engine.time(&work, self.scenario.home.pace[0]);
                self.compute(0, id, Work::Head(work), took);
            }
            head::Effect::Plan(of) => {
                let plan = self.plan(&of);
                let answer = plan.map(|plan| head::Planned { plan, pace: head::Pace::default() });
                self.after(Duration::ZERO, What::Head(Box::new(head::Event::Planned(answer))));
            }
            head::Effect::Draft(of) => {
                let plan = self.plan(&of);
                self.after(Duration::ZERO, What::Head(Box::new(head::Event::Drafted(plan))));
            }
            head::Effect::Judge(_) => {
                self.plans += 1;
                let anew = mix(self.scenario.seed, self.plans) % 100 < self.scenario.home.replans as u64;
                self.after(Duration::ZERO, What::Head(Box::new(head::Event::Judged(anew))));
            }
            head::Effect::Done(done) => self.done(&done),
            head::Effect::WakeAt(at) => self.wake_at(0, at),
            head::Effect::Note(note) => self.note(&note),
            head::Effect::KeepWays | head::Effect::Discard(_) => {}
        }
    }

    /// A worker's core takes an event; what it wants is done.
    pub(super) fn step_worker(&mut self, device: usize, event: worker::Event) {
        let Some(worker) = &mut self.devices[device].worker else { return };
        let effects = worker.core.step(event, self.now);
        let last = effects.len().saturating_sub(1);
        for (at, effect) in effects.into_iter().enumerate() {
            self.trace(trace::worker(device, &effect));
            let wakes = matches!(effect, worker::Effect::WakeAt(_));
            if wakes != (at == last) {
                self.checks.break_it("C9: `WakeAt` is not the last effect".to_owned());
            }
            self.worker_effect(device, effect);
        }
        if let Some(worker) = &self.devices[device].worker {
            self.checks.worker(device, &worker.core);
        }
    }

    fn worker_effect(&mut self, device: usize, effect: worker::Effect) {
        match effect {
            worker::Effect::Link(effect) => self.link_effect(device, effect),
            worker::Effect::Give(link, give) => self.give(device, link, give),
            worker::Effect::Compute(id, work) => {
                let took = WorkerEngine::time(&work, self.scenario.home.pace[device], self.opens(device));
                self.compute(device, id, Work::Worker(work), took);
            }
            worker::Effect::Interrupt => self.interrupt(device),
            worker::Effect::Disk(id, work) => {
                let opens = self.opens(device);
                let (took, event) = disk(&mut self.devices[device].disk, work, opens);
                let life = self.devices[device].life;
                let busy = self.devices[device].disk_until.max(self.now) + took;
                self.devices[device].disk_until = busy;
                self.devices[device].disk_works += 1;
                if self.devices[device].disk_works > 4 {
                    self.checks.break_it("C4: more than four pieces wait for the disk".to_owned());
                }
                self.at(busy, What::Disk { device, life, id, event });
            }
            worker::Effect::Abort(id) => self.devices[device].aborted = Some(id),
            worker::Effect::Tell(WorkerNews::Ready { epoch, .. }) => self.checks.ready(device, epoch),
            worker::Effect::Tell(_) | worker::Effect::Note(_) | worker::Effect::Discard(_) => {}
            worker::Effect::WakeAt(at) => self.wake_at(device, at),
        }
    }

    /// How long one device takes to look at its disk, or to open the model; another time for each.
    fn opens(&self, device: usize) -> Duration {
        let share = mix(self.scenario.seed ^ 0x0b, device as u64) % 100;
        self.scenario.home.opens * share as u32 / 100 + Duration::from_millis(1)
    }

    fn wake_at(&mut self, device: usize, at: Option<Duration>) {
        let (state, now) = (&mut self.devices[device], self.now);
        state.wake += 1;
        let (serial, life) = (state.wake, state.life);
        let Some(at) = at else { return };
        // A stopped device hears late of a time that was to come.
        if at + Duration::from_secs(6) < now {
            self.checks.break_it(format!("C9: device {device} wants to wake in the past"));
        }
        self.at(at.max(now), What::Tick { device, life, serial });
    }

    fn compute(&mut self, device: usize, id: WorkId, work: Work, took: Duration) {
        let running = Running { id, work, took, interrupted: false };
        if self.devices[device].running.replace(running).is_some() {
            self.checks.break_it(format!("C9: device {device} has two works at once"));
        }
        let life = self.devices[device].life;
        self.after(took, What::Computed { device, life, work: id });
    }

    /// The work under way ends early.
    fn interrupt(&mut self, device: usize) {
        let life = self.devices[device].life;
        let Some(running) = &mut self.devices[device].running else { return };
        running.interrupted = true;
        let work = running.id;
        self.after(LAYER, What::Computed { device, life, work });
    }

    /// An engine has done its work.
    pub(super) fn computed(&mut self, device: usize, id: WorkId) {
        let Some(running) = self.devices[device].running.take_if(|running| running.id == id) else { return };
        let Running { work, took, interrupted, .. } = running;
        let by_chance = mix(self.scenario.seed ^ id.0, self.deliveries) as usize;
        // A work that ends just now may still be done as a whole.
        let most = (interrupted && !by_chance.is_multiple_of(4)).then_some(by_chance / 4 % 3);
        let engine = match work {
            Work::Head(work) => {
                let done = self.engine.run(work, most);
                self.step_head(head::Event::Computed { work: id, done, took });
                Some(&self.engine.engine)
            }
            Work::Worker(work) => {
                let state = &mut self.devices[device];
                let Some(worker) = &mut state.worker else { return };
                let done = worker.engine.run(work, &state.disk, most);
                if std::mem::take(&mut worker.engine.spoiled) {
                    self.checks.spoiled = true;
                }
                if let Some(words) = worker.engine.broken.take() {
                    self.checks.break_it(format!("device {device}: {words}"));
                }
                self.step_worker(device, worker::Event::Computed { work: id, done, took });
                self.devices[device].worker.as_ref().and_then(|worker| worker.engine.engine.as_ref())
            }
        };
        if let Some(words) =
            engine.and_then(|engine| engine.disorder.as_ref()).filter(|_| !self.checks.disorder)
        {
            self.checks.break_it(format!("C1: the engine of device {device}: {words}"));
        }
    }

    /// The caller does not want its step any more: the engine hears it at once, the core somewhat later.
    pub(super) fn cancel(&mut self, request: u64) {
        if self.request != request || !self.caller.steps_now() {
            return;
        }
        let running = self.devices[0].running.as_ref().map(|running| &running.work);
        let hears = matches!(running, Some(Work::Head(work)) if HeadEngine::hears(work));
        let busy = running.is_some();
        if hears {
            self.interrupt(0);
        }
        let wait = if busy { POLL } else { Duration::ZERO };
        self.after(wait, What::TellCancel { request });
    }

    /// A plan for these workers, another one each time.
    fn plan(&mut self, of: &PlanFor) -> Result<Plan, String> {
        self.plans += 1;
        let home = &self.scenario.home;
        let mut random = SplitMix64::new(mix(self.scenario.seed ^ 0x91a2, self.plans));
        let computing: Vec<&str> = of
            .workers
            .iter()
            .filter(|hello| hello.device.is_some())
            .map(|hello| hello.name.as_str())
            .collect();
        if computing.len() < home.needs {
            return Err("the model does not fit".to_owned());
        }
        let share = |device: &str, layers| Share {
            device: device.to_owned(),
            layers,
            gpu_layers: 0,
            prefetch_bytes: 0.0,
            relays: Vec::new(),
        };
        // Each worker that takes part has a layer at least; the rest is given out by chance.
        let mut shares = vec![share("head", 0)];
        let alone = home.needs == 0 && random.percent(4);
        if !alone {
            shares.extend(computing.iter().take(home.n_layers).map(|name| share(name, 1)));
        }
        let rest = home.n_layers - (shares.len() - 1);
        let least = if shares.len() == 1 || random.percent(70) { 0 } else { 1 };
        for _ in 0..rest {
            let at = (random.below(shares.len() + least)).min(shares.len() - 1);
            shares[at].layers += 1;
        }
        if random.percent(50) {
            random.shuffle(&mut shares[1..]);
        }
        let relays = of.workers.iter().filter(|hello| hello.device.is_none());
        for relay in relays.filter(|_| !alone) {
            let at = random.below(shares.len());
            shares[at].relays.push(relay.name.clone());
        }
        Ok(Plan { layers: home.n_layers, rounds: 1 + random.below(home.rounds), shares })
    }

    /// A device's host sends by itself what was asked for.
    fn give(&mut self, device: usize, link: LinkId, give: Give) {
        let n_layers = self.scenario.home.n_layers;
        let life = self.devices[device].life;
        let from_disk = Duration::from_millis(1);
        let state = &self.devices[device];
        let frames: Vec<Frame> = match give {
            Give::List => vec![Frame::Manifest(LIST.to_vec())],
            Give::Which { .. } => vec![Frame::HasPieces(state.disk.which(n_layers))],
            Give::Pieces { first, count } => {
                let there = |index: &u32| *index < pieces(n_layers) && state.disk.has(*index);
                let frame = |index| Frame::Piece(PieceData { index, bytes: piece(index) });
                (first..first.saturating_add(count)).take_while(there).map(frame).collect()
            }
        };
        let all = match give {
            Give::Pieces { count, .. } => count as usize == frames.len(),
            _ => true,
        };
        // Answers over a link leave in the order of the questions.
        let mut at =
            self.devices[device].given_until.get(&link).map_or(self.now, |until| self.now.max(*until));
        for frame in frames {
            at += from_disk;
            self.at(at, What::Given { device, life, link, frame });
        }
        if !all {
            at += from_disk;
            self.at(at, What::NotGiven { device, life, link });
        }
        self.devices[device].given_until.insert(link, at);
    }

    /// The host sends one of the frames that were asked for.
    pub(super) fn given(&mut self, device: usize, link: LinkId, frame: Frame) {
        let Some(port) = self.devices[device].ports.get(&link).copied() else { return };
        self.send(device, port, frame);
        match device {
            0 => self.step_head(head::Event::Gave(link)),
            _ => self.step_worker(device, worker::Event::Gave(link)),
        }
    }

    /// What was asked for is not here: the host ends the link.
    pub(super) fn not_given(&mut self, device: usize, link: LinkId) {
        let Some(port) = self.devices[device].ports.remove(&link) else { return };
        self.end_link(port.link, port.side, "it does not have these pieces");
        let gone = Gone::Closed("a piece is not here".to_owned());
        self.step_link(device, LinkEvent::Gone(link, gone));
    }

    /// All links of the head end, as with its program.
    pub(in crate::sim) fn end_head(&mut self) {
        let links: Vec<LinkId> = self.devices[0].ports.keys().copied().collect();
        self.step_head(head::Event::End);
        let left: Vec<LinkId> = self.devices[0].ports.keys().copied().collect();
        let opening = |link: &LinkId| !self.devices[0].ports[link].open;
        if left.iter().any(|link| links.contains(link) && !opening(link)) {
            self.checks.break_it("C11: the head has ended, and a link is open".to_owned());
        }
    }

    fn note(&mut self, note: &Note) {
        if self.options.tells {
            self.tell(note.to_string());
        }
        self.checks.note(note);
    }

    /// Whether the head's engine works.
    pub(super) fn head_works(&self) -> bool {
        self.devices[0].running.is_some()
    }
}
