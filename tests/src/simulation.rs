//! Simulates one answer in virtual time: the device's relay core, its engine, and the cloud's service,
//! without sockets.
//!
//! Both engines really compute, on real models. Only time is simulated, with the same cost model that the
//! programs use for emulation. Deterministic: equal inputs give equal runs. Never waits.

use std::{
    collections::BinaryHeap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use baton_cloud::{
    Clock,
    scene::Scene,
    scene::book::SceneBook,
    service::stream::AssistStream,
    service::{CloudService, DraftCheck, ModelSetup, ServiceOptions, Terms},
};
use baton_device::{
    local::{Driven, EngineCommand, EngineReport},
    relay::{CloudFault, Note, Outcome, RelayCore, RelayEffect, RelayEvent},
};
use baton_engine::{Engine, EngineError, EngineOptions, Model, Sequences, pace_emulation::PassCost};
use baton_generate::host::{Host, Pass};
use baton_pacing::Millis;
use baton_protocol::{AssistEvent, AssistRequest, RefineOptions, VerifyRequest};

use crate::at::At;

/// Most steps of an answer before it counts as hanging; a long answer needs a few thousand.
const STEPS_MAX: usize = 200_000;

/// The cloud, with a clock of virtual time.
pub struct SimulatedCloud {
    service: CloudService,
    host: Host<Box<dyn Sequences>>,
    clock_ns: Arc<AtomicU64>,
    cost: PassCost,
}

impl SimulatedCloud {
    /// Makes a service over `model` with these scenes; a pass takes virtual time as `cost` says.
    ///
    /// # Errors
    /// Fails if the engine cannot be set up.
    pub fn new(
        model: Arc<Model>,
        scenes: Vec<Scene>,
        cost: PassCost,
        change: impl FnOnce(&mut ServiceOptions),
    ) -> anyhow::Result<Self> {
        Self::over(model, scenes, cost, change, |model, options| Ok(Box::new(Engine::new(model, options)?)))
    }

    /// As [`Self::new`], over an engine that `engine` makes.
    ///
    /// # Errors
    /// Fails if the engine cannot be set up.
    pub fn over(
        model: Arc<Model>,
        scenes: Vec<Scene>,
        cost: PassCost,
        change: impl FnOnce(&mut ServiceOptions),
        engine: impl FnMut(Arc<Model>, EngineOptions) -> Result<Box<dyn Sequences>, EngineError>,
    ) -> anyhow::Result<Self> {
        let clock_ns = Arc::new(AtomicU64::new(0));
        let shown = Arc::clone(&clock_ns);
        let mut options = ServiceOptions {
            clock: Clock::from_fn(move || Duration::from_nanos(shown.load(Ordering::Relaxed))),
            emulation: Some(cost),
            ..ServiceOptions::default()
        };
        change(&mut options);
        let setups = vec![ModelSetup::named("default", model)];
        let made = CloudService::over(setups, SceneBook::new(scenes), options, engine);
        let (service, mut hosts) = made.context("set up the cloud")?;
        let host = hosts.pop().context("the cloud has no model")?;
        Ok(Self { service, host, clock_ns, cost })
    }

    /// Returns the service.
    #[must_use]
    pub fn service(&self) -> &CloudService {
        &self.service
    }

    /// Returns all events of one request; the cloud has no other request.
    ///
    /// # Errors
    /// Fails if the request is refused, or the answer does not end.
    pub fn answer(&mut self, request: &AssistRequest) -> anyhow::Result<Vec<AssistEvent>> {
        let mut stream = self.service.assist(request).context("the cloud refuses the request")?;
        let mut events = Vec::new();
        for _ in 0..STEPS_MAX {
            while let Some(event) = stream.try_next() {
                let last = matches!(event, AssistEvent::End(_) | AssistEvent::Error(_));
                events.push(event);
                if last {
                    return Ok(events);
                }
            }
            let Some(pass) = self.host.turn() else { bail!("the cloud rests before its answer ends") };
            let spent = self.cost.modelled(pass.content());
            self.clock_ns.fetch_add(spent.as_nanos() as u64, Ordering::Relaxed);
            self.host.commit(pass);
        }
        bail!("the cloud's answer does not end")
    }
}

/// The point at which the connection to the cloud breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineFault {
    /// It does not break.
    None,
    /// Before the token with this index arrives; 0 means that nothing arrives at all.
    CutAt(usize),
    /// The same, but only once.
    CutOnceAt(usize),
    /// The cloud cannot be reached.
    Unreachable,
}

/// The simulated connection.
#[derive(Debug, Clone, Copy)]
pub struct Line {
    /// Latency of one direction, in milliseconds. Requests are there at once, replies after this time.
    pub latency_ms: f64,
    /// Time that the bytes of a request take, in milliseconds.
    pub upload_ms: f64,
    /// The point at which it breaks.
    pub fault: LineFault,
}

/// The result of one answer.
#[derive(Debug)]
pub struct Told {
    /// Its end.
    pub outcome: Outcome,
    /// Text as it was shown, piece by piece.
    pub shown: Vec<(usize, String)>,
    /// The notes that were shown.
    pub notes: Vec<Note>,
    /// The commands to the engine, in order.
    pub commands: Vec<EngineCommand>,
    /// Ids that the device wrote, with their indices.
    pub device_tokens: Vec<(usize, u32)>,
    /// The text after which the cloud was asked to go on.
    pub continued_from: Option<String>,
}

/// Returns the fault of a refusal.
fn fault(message: &str) -> CloudFault {
    CloudFault::Refused { status: 0, code: "refused".to_owned(), message: message.to_owned() }
}

#[derive(Debug)]
enum Happening {
    Relay(Box<RelayEvent>),
    /// The request has come.
    Asked(Box<AssistRequest>),
    CloudPass(Box<Pass>),
    DevicePass,
    Timer(u64),
}

/// A device that computes for real, in virtual time.
pub type SimulatedDevice = Driven<Box<dyn Sequences>>;

/// One answer between a relay core, a device engine and a cloud.
pub struct Simulation<'a> {
    cloud: &'a mut SimulatedCloud,
    device: &'a mut SimulatedDevice,
    device_cost: PassCost,
    line: Line,
    now_ns: u64,
    order: u64,
    queue: BinaryHeap<At<Happening>>,
    stream: Option<AssistStream>,
    check: Option<DraftCheck>,
    cloud_busy: bool,
    device_busy: bool,
    timer: u64,
    told: Told,
}

impl<'a> Simulation<'a> {
    /// Runs `core` to its end; `request` is the device's prepared request.
    ///
    /// # Errors
    /// Fails if the answer does not end, or goes on after its end.
    pub fn run(
        cloud: &'a mut SimulatedCloud,
        device: &'a mut SimulatedDevice,
        device_cost: PassCost,
        line: Line,
        mut core: RelayCore,
        request: &AssistRequest,
    ) -> anyhow::Result<Told> {
        let now_ns = cloud.clock_ns.load(Ordering::Relaxed);
        let outcome = Outcome {
            ending: baton_device::relay::Ending::Cancelled,
            answer: String::new(),
            timeline: baton_device::relay::Timeline::default(),
        };
        let mut simulation = Simulation {
            cloud,
            device,
            device_cost,
            line,
            now_ns,
            order: 0,
            queue: BinaryHeap::new(),
            stream: None,
            check: None,
            cloud_busy: false,
            device_busy: false,
            timer: 0,
            told: Told {
                outcome,
                shown: Vec::new(),
                notes: Vec::new(),
                commands: Vec::new(),
                device_tokens: Vec::new(),
                continued_from: None,
            },
        };
        simulation.run_to_the_end(&mut core, request)?;
        Ok(simulation.told)
    }

    fn run_to_the_end(&mut self, core: &mut RelayCore, request: &AssistRequest) -> anyhow::Result<()> {
        self.tell(core, request, RelayEvent::Begin);
        for _ in 0..STEPS_MAX {
            if core.finished() {
                return self.settle();
            }
            self.start_passes(core, request);
            let Some(At { ns, what, .. }) = self.queue.pop() else {
                bail!("nothing is left to happen and the answer has not ended");
            };
            self.now_ns = ns;
            self.cloud.clock_ns.store(ns, Ordering::Relaxed);
            match what {
                Happening::Relay(event) => self.tell(core, request, *event),
                Happening::Asked(asked) => self.asked(&asked),
                Happening::Timer(set) if set == self.timer => self.tell(core, request, RelayEvent::Timer),
                Happening::Timer(_) => {}
                Happening::CloudPass(pass) => {
                    self.cloud_busy = false;
                    self.cloud.host.commit(*pass);
                    self.receive();
                    self.receive_check();
                }
                Happening::DevicePass => {
                    self.device_busy = false;
                    self.device.commit();
                    self.hear(core, request);
                }
            }
        }
        bail!("the answer does not end")
    }

    /// Checks that the cloud is free again after the end, once the running pass is over.
    fn settle(&mut self) -> anyhow::Result<()> {
        (self.stream, self.check) = (None, None);
        self.device.commit();
        while let Some(At { what, .. }) = self.queue.pop() {
            if let Happening::CloudPass(pass) = what {
                self.cloud.host.commit(*pass);
            }
        }
        if self.cloud.host.turn().is_some() {
            bail!("the cloud still computes after the answer has ended");
        }
        let stats = self.cloud.service.stats();
        if stats.running != 0 || stats.waiting != 0 {
            bail!("the cloud keeps {} running and {} waiting answers", stats.running, stats.waiting);
        }
        Ok(())
    }

    fn at(&mut self, ns: u64, what: Happening) {
        self.order += 1;
        self.queue.push(At { ns: ns.max(self.now_ns), order: self.order, what });
    }

    fn after_ms(&self, ms: f64) -> u64 {
        self.now_ns + (ms * 1e6) as u64
    }

    /// Starts a pass on each side that is free and has work; its result comes when its virtual time has
    /// passed.
    fn start_passes(&mut self, core: &mut RelayCore, request: &AssistRequest) {
        if !self.cloud_busy
            && let Some(pass) = self.cloud.host.turn()
        {
            self.cloud_busy = true;
            let ns = self.now_ns + self.cloud.cost.modelled(pass.content()).as_nanos() as u64;
            self.at(ns, Happening::CloudPass(Box::new(pass)));
        }
        self.receive();
        self.receive_check();
        while !self.device_busy && !core.finished() {
            let told = self.told.commands.len();
            if let Some(content) = self.device.turn(&mut ()) {
                self.device_busy = true;
                let ns = self.now_ns + self.device_cost.modelled(content).as_nanos() as u64;
                self.at(ns, Happening::DevicePass);
            }
            // What was told may be answered without a pass, and that may bring another command.
            self.hear(core, request);
            if self.told.commands.len() == told {
                break;
            }
        }
    }

    /// Sends the cloud's events over the connection.
    fn receive(&mut self) {
        let arrival = self.after_ms(self.line.latency_ms);
        while let Some(event) = self.stream.as_mut().and_then(AssistStream::try_next) {
            let index = match &event {
                AssistEvent::First(first) => Some(first.index as usize),
                AssistEvent::Token(token) => Some(token.index as usize),
                // The mask is sent with the first token, and the end with the last.
                AssistEvent::Mask(_) => Some(0),
                AssistEvent::Progress(_) | AssistEvent::End(_) | AssistEvent::Error(_) => None,
            };
            let cut = match (self.line.fault, index) {
                (LineFault::CutAt(cut) | LineFault::CutOnceAt(cut), Some(index)) => index >= cut,
                (LineFault::CutAt(_) | LineFault::CutOnceAt(_), None) => true,
                _ => false,
            };
            if cut {
                self.stream = None;
                if matches!(self.line.fault, LineFault::CutOnceAt(_)) {
                    self.line.fault = LineFault::None;
                }
                self.at(arrival, Happening::Relay(Box::new(RelayEvent::CloudLost(CloudFault::Disconnected))));
                return;
            }
            let last = matches!(event, AssistEvent::End(_) | AssistEvent::Error(_));
            self.at(arrival, Happening::Relay(Box::new(RelayEvent::Cloud(event))));
            if last {
                self.stream = None;
            }
        }
    }

    /// Sends the reply to a draft over the connection.
    fn receive_check(&mut self) {
        let Some(reply) = self.check.as_mut().and_then(DraftCheck::try_reply) else { return };
        self.check = None;
        let reply = reply.map_err(|err| fault(&err.to_string()));
        let arrival = self.after_ms(self.line.latency_ms);
        self.at(arrival, Happening::Relay(Box::new(RelayEvent::Checked(reply))));
    }

    /// Has the cloud check a draft. A connection that breaks at a token breaks before a reply that holds it.
    fn check(&mut self, request: &AssistRequest, draft: VerifyRequest) {
        let least = draft.from as usize + draft.draft.len() + 1;
        let is_cut = match self.line.fault {
            LineFault::CutAt(cut) | LineFault::CutOnceAt(cut) => least > cut,
            LineFault::Unreachable => true,
            LineFault::None => false,
        };
        if is_cut && self.line.fault != LineFault::None {
            if matches!(self.line.fault, LineFault::CutOnceAt(_)) {
                self.line.fault = LineFault::None;
            }
            let arrival = self.after_ms(self.line.latency_ms);
            let lost = RelayEvent::Checked(Err(CloudFault::Disconnected));
            return self.at(arrival, Happening::Relay(Box::new(lost)));
        }
        let terms = Terms::default();
        match self.cloud.service.verify(request.request_id, draft, terms, None) {
            Ok(check) => self.check = Some(check),
            Err(err) => {
                let arrival = self.after_ms(self.line.latency_ms);
                let refused = RelayEvent::Checked(Err(fault(&err.to_string())));
                self.at(arrival, Happening::Relay(Box::new(refused)));
            }
        }
    }

    fn tell(&mut self, core: &mut RelayCore, request: &AssistRequest, event: RelayEvent) {
        let now = Millis::new(self.now_ns as f64 / 1e6);
        for effect in core.step(event, now) {
            match effect {
                RelayEffect::Ask => self.ask(request),
                RelayEffect::AskToContinue { accepted, tokens_max } => {
                    self.told.continued_from = Some(accepted.clone());
                    let more = AssistRequest {
                        continue_from: Some(accepted),
                        assist_tokens: u32::try_from(tokens_max).ok(),
                        device: None,
                        refine: RefineOptions { ratio: Some(1.0), mode: Some("none".to_owned()) },
                        ..request.clone()
                    };
                    self.ask(&more);
                }
                RelayEffect::Check(draft) => self.check(request, draft),
                RelayEffect::DropCheck => self.check = None,
                RelayEffect::CancelCloud => self.stream = None,
                RelayEffect::Engine(command) => self.command(core, request, command),
                RelayEffect::Show { index, text, .. } => self.told.shown.push((index, text)),
                // No scene here offers keys and values.
                RelayEffect::Progress(_) | RelayEffect::FetchKv(_) | RelayEffect::DropKv => {}
                RelayEffect::Tail { text } => self.told.shown.push((usize::MAX, text)),
                RelayEffect::Note(note) => self.told.notes.push(note),
                RelayEffect::WakeAt(at) => {
                    self.timer += 1;
                    if let Some(at) = at {
                        let set = self.timer;
                        self.at((at.as_f64() * 1e6).ceil() as u64, Happening::Timer(set));
                    }
                }
                RelayEffect::Finish(outcome) => self.told.outcome = *outcome,
            }
        }
    }

    fn ask(&mut self, request: &AssistRequest) {
        if self.line.upload_ms > 0.0 {
            let at = self.after_ms(self.line.upload_ms);
            return self.at(at, Happening::Asked(Box::new(request.clone())));
        }
        self.asked(request);
    }

    fn asked(&mut self, request: &AssistRequest) {
        let lost = |reason: String| RelayEvent::CloudLost(CloudFault::Unreachable { reason });
        let at = self.after_ms(2.0 * self.line.latency_ms);
        if self.line.fault == LineFault::Unreachable {
            return self.at(at, Happening::Relay(Box::new(lost("connection refused".to_owned()))));
        }
        match self.cloud.service.assist(request) {
            Ok(stream) => self.stream = Some(stream),
            Err(err) => self.at(at, Happening::Relay(Box::new(lost(err.to_string())))),
        }
    }

    fn command(&mut self, core: &mut RelayCore, request: &AssistRequest, command: EngineCommand) {
        self.told.commands.push(command.clone());
        let reports = self.device.command(command);
        self.report(core, request, reports);
    }

    /// Gives the relay what the device has reported.
    fn hear(&mut self, core: &mut RelayCore, request: &AssistRequest) {
        let reports = self.device.reports();
        self.report(core, request, reports);
    }

    fn report(&mut self, core: &mut RelayCore, request: &AssistRequest, reports: Vec<EngineReport>) {
        for report in reports {
            if let EngineReport::Token { index, id, .. } = &report {
                self.told.device_tokens.push((*index, *id));
            }
            self.tell(core, request, RelayEvent::Engine(report));
        }
    }
}
