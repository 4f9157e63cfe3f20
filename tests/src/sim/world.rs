//! The world: one heap of happenings in virtual time, the machines, and the network between them.

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_cloud::store::UsageDelta;
use baton_device::relay::{CloudFault, RelayEvent};
use baton_protocol::{AssistEvent, AssistRequest, VerifyReply, VerifyRequest};
use baton_random::mix;
use uuid::Uuid;

use super::answer::{Answer, ConnNo};
use super::cloud::Cloud;
use super::device::{Begun, Device};
use super::drafts::DraftNo;
use super::handoff::{Come, FetchNo, Fetches};
use super::network::{Conn, ToClient};
use super::scenario::{Fault, Scenario};
use super::trace::Trace;
use super::{Options, Outcome};
use crate::at::At;

/// Nanoseconds of a millisecond.
pub(super) const MS: u64 = 1_000_000;
/// How often replicas exchange usage.
const EXCHANGE_NS: u64 = 2_000 * MS;
/// An answer must end within this time from its beginning, or from the last token that its device has shown
/// in any answer. A slow ring takes longer for a long answer, and others wait for their turn.
const ANSWER_NS: u64 = 240_000 * MS;
/// Everything must be over by then.
const END_NS: u64 = 1_200_000 * MS;
/// Most happenings of a run.
const HAPPENINGS_MAX: u64 = 400_000;
/// Most steps of machines while no time passes.
const STEPS_MAX: u64 = 20_000;

/// Something that will happen.
pub(super) enum What {
    /// A question is asked.
    Ask(usize),
    /// A relay's timer.
    Timer { question: usize, set: u64 },
    /// A paused reader reads again.
    Reads(usize),
    /// A request arrives at the cloud.
    Post { question: usize, conn: ConnNo, nth: usize, continued: bool, request: Arc<AssistRequest> },
    /// A request to go on with a stream arrives at the cloud.
    Get { question: usize, conn: ConnNo, nth: usize, seen: u32, request: Arc<AssistRequest> },
    /// The cloud is told that a request is not wanted any more.
    End { request: Arc<AssistRequest> },
    /// The limit of a try to resume is over.
    Limit { question: usize, conn: ConnNo, fault: CloudFault },
    /// Something arrives at a client.
    Arrive { question: usize, conn: ConnNo, what: ToClient },
    /// The cloud notices that a reader is gone.
    Gone(ConnNo),
    /// A draft arrives at the cloud.
    Draft {
        question: usize,
        draft: DraftNo,
        /// Which draft of the question it is.
        nth: usize,
        of: Arc<AssistRequest>,
        request: Arc<VerifyRequest>,
    },
    /// What came of a draft arrives at the device.
    Checked { question: usize, draft: DraftNo, checked: Result<VerifyReply, CloudFault> },
    /// The cloud notices that nobody waits for a draft.
    DraftGone(DraftNo),
    /// A fetch of keys and values arrives at the cloud.
    Fetch { question: usize, no: FetchNo, nth: usize, from: u64, request: Uuid },
    /// A piece of them arrives at the device.
    Come { question: usize, no: FetchNo, what: Come },
    /// The cloud notices that a fetch was given up.
    FetchGone(FetchNo),
    /// A pass of the cloud is over.
    CloudPass(u32),
    /// A pass of a device is over.
    DevicePass { device: usize, life: u32 },
    /// A fault begins.
    Fault(usize),
    /// The cloud begins again.
    CloudUp,
    /// The database answers again.
    DatabaseUp,
    /// Usage is taken to be sent.
    Exchange,
    /// The database commits what was sent in this life of the cloud.
    Commit { life: u32, sent: Vec<UsageDelta> },
}

/// A program on a device, and how often it was started.
pub(super) struct Machine {
    pub(super) device: Device,
    pub(super) life: u32,
    /// When it last showed a token.
    pub(super) shown_ns: u64,
}

/// Everything that there is.
pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) options: Options,
    pub(super) now: u64,
    clock: Arc<AtomicU64>,
    order: u64,
    heap: BinaryHeap<At<What>>,
    pub(super) cloud: Cloud,
    pub(super) machines: Vec<Machine>,
    /// By the question's number.
    pub(super) answers: BTreeMap<usize, Answer>,
    pub(super) conns: BTreeMap<ConnNo, Conn>,
    pub(super) next_conn: ConnNo,
    pub(super) next_draft: DraftNo,
    pub(super) fetches: Fetches,
    pub(super) next_fetch: FetchNo,
    pub(super) trace: Trace,
    pub(super) broken: Option<String>,
    happened: u64,
    /// Steps of machines since time last passed.
    steps: u64,
    /// Answers of a device that was killed.
    pub(super) killed: usize,
}

impl World {
    pub(super) fn new(scenario: Scenario, options: Options) -> World {
        let clock = Arc::new(AtomicU64::new(0));
        let cloud = Cloud::new(&scenario.cloud, &clock);
        let machine =
            |shape| Machine { device: Device::new(shape, &clock, 0, options.ring_bug), life: 0, shown_ns: 0 };
        let machines = scenario.devices.iter().map(machine).collect();
        let mut world = World {
            scenario,
            options,
            now: 0,
            clock,
            order: 0,
            heap: BinaryHeap::new(),
            cloud,
            machines,
            answers: BTreeMap::new(),
            conns: BTreeMap::new(),
            next_conn: 0,
            next_draft: 0,
            fetches: Fetches::new(),
            next_fetch: 0,
            trace: Trace::default(),
            broken: None,
            happened: 0,
            steps: 0,
            killed: 0,
        };
        world.plan_all();
        world
    }

    fn plan_all(&mut self) {
        let questions: Vec<(usize, u64)> =
            self.scenario.questions.iter().map(|question| (question.number, question.at_ms)).collect();
        for (number, at_ms) in &questions {
            self.at(at_ms * MS, What::Ask(*number));
        }
        let begun = |number: usize| questions.iter().find(|(no, _)| *no == number).map_or(0, |(_, at)| *at);
        for (place, fault) in self.scenario.faults.clone().into_iter().enumerate() {
            let at_ms = match fault {
                Fault::Line { .. }
                | Fault::Check { .. }
                | Fault::Kv { .. }
                | Fault::Unreachable { .. }
                | Fault::Twice { .. } => continue,
                Fault::Leave { question, after_ms } | Fault::Pause { question, after_ms, .. } => {
                    begun(question) + after_ms
                }
                Fault::Cloud { at_ms, .. }
                | Fault::Device { at_ms, .. }
                | Fault::Engine { at_ms, .. }
                | Fault::Wall { at_ms, .. }
                | Fault::Database { at_ms, .. } => at_ms,
            };
            self.at(at_ms * MS, What::Fault(place));
        }
        self.at(EXCHANGE_NS, What::Exchange);
    }

    /// Runs until everything is over or a check does not hold.
    pub(super) fn run(&mut self) {
        while self.broken.is_none() && !self.is_over() {
            let Some(At { ns, what, .. }) = self.heap.pop() else {
                return self.fail("I3: nothing is left to happen, and answers have not ended".to_owned());
            };
            if ns > self.now {
                self.steps = 0;
            }
            self.now = ns;
            self.clock.store(ns, Ordering::Relaxed);
            self.happened += 1;
            self.happen(what);
            self.pump();
            if self.happened > HAPPENINGS_MAX || self.now > END_NS {
                self.fail(format!("I3: {} happenings in {} ms", self.happened, self.now / MS));
            }
        }
        if self.broken.is_none() {
            self.check_rest();
        }
    }

    /// Returns the clock of all machines.
    pub(super) fn clock(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.clock)
    }

    pub(super) fn outcome(&self) -> Outcome {
        Outcome {
            broken: self.broken.clone(),
            time: Duration::from_nanos(self.now),
            events: self.happened,
            answers: self.answers.values().filter(|answer| answer.finished()).count() as u64,
            trace: self.trace.hash(),
        }
    }

    /// Whether every question has ended and no machine has anything left to do.
    fn is_over(&mut self) -> bool {
        let asked = self.answers.len() + self.killed >= self.scenario.questions.len();
        asked
            && self.answers.values().all(Answer::finished)
            && self.cloud.up.as_ref().is_none_or(super::cloud::Up::is_idle)
            && self.machines.iter().all(|machine| machine.device.rests())
            && self.cloud.rests()
    }

    pub(super) fn fail(&mut self, words: String) {
        if self.options.tells {
            eprintln!("{:>9} us  BROKEN {words}", self.now / 1_000);
        }
        self.broken.get_or_insert(words);
    }

    /// Notes a step of a machine. Fails if there are too many before time passes.
    pub(super) fn step(&mut self) {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            self.fail(format!("I3: {} steps, and no time passes", self.steps));
        }
    }

    /// Notes a check.
    pub(super) fn check(&mut self, checked: Result<(), String>) {
        if let Err(words) = checked {
            self.fail(words);
        }
    }

    pub(super) fn tell(&self, words: impl FnOnce() -> String) {
        if self.options.tells {
            eprintln!("{:>9} us  {}", self.now / 1_000, words());
        }
    }

    pub(super) fn at(&mut self, ns: u64, what: What) {
        self.order += 1;
        self.heap.push(At { ns: ns.max(self.now), order: self.order, what });
    }

    /// Returns a latency of one direction, which varies.
    pub(super) fn latency(&self, question: usize, salt: u64) -> u64 {
        let device = self.scenario.questions.iter().find(|q| q.number == question).map_or(0, |q| q.device);
        let shape = &self.scenario.devices[device];
        let random = mix(mix(self.scenario.seed, question as u64), salt);
        1_000 * (shape.latency_us + random % (shape.jitter_us + 1))
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Ask(number) => self.ask(number),
            What::Timer { question, set } => {
                if self.answers.get(&question).is_some_and(|answer| answer.timer == set) {
                    self.relay(question, RelayEvent::Timer);
                }
            }
            What::Reads(question) => self.reads(question),
            What::Post { question, conn, nth, continued, request } => {
                self.post(question, conn, nth, continued, &request);
            }
            What::Get { question, conn, nth, seen, request } => self.get(question, conn, nth, seen, &request),
            What::End { request } => self.cloud.end(&request),
            What::Limit { question, conn, fault } => self.limit(question, conn, fault),
            What::Arrive { question, conn, what } => self.arrive(question, conn, what),
            What::Gone(conn) => self.gone(conn),
            What::Draft { question, draft, nth, of, request } => {
                self.post_draft((question, draft), nth, (&of, &request));
            }
            What::Checked { question, draft, checked } => self.checked(question, draft, checked),
            What::Fetch { question, no, nth, from, request } => {
                self.post_fetch(question, (no, nth), from, request);
            }
            What::Come { question, no, what } => self.came(question, no, what),
            What::FetchGone(no) => drop(self.fetches.remove(&no)),
            What::DraftGone(draft) => self.cloud.drop_draft(draft),
            What::CloudPass(life) if life == self.cloud.life => {
                let done = self.cloud.commit();
                self.check(done);
            }
            What::DevicePass { device, life } if life == self.machines[device].life => {
                self.machines[device].device.commit();
            }
            What::CloudPass(_) | What::DevicePass { .. } => {}
            What::Fault(place) => self.fault(place),
            What::CloudUp => {
                if self.cloud.up.is_none() && !self.cloud.start() {
                    // It does not listen before it knows what was used.
                    self.at(self.now + 500 * MS, What::CloudUp);
                }
            }
            What::DatabaseUp => self.cloud.database.away = false,
            What::Exchange => self.exchange(),
            What::Commit { life, sent } => {
                if life == self.cloud.life && self.cloud.up.is_some() {
                    self.cloud.exchange(&sent);
                    let checked = self.cloud.check_books();
                    self.check(checked);
                }
            }
        }
    }

    /// Lets every machine go on that can.
    fn pump(&mut self) {
        while self.broken.is_none() && self.device_turns() | self.cloud_turn() {
            self.step();
        }
        self.feed_all();
        self.feed_checked();
        self.feed_kv();
    }

    /// Lets the cloud begin a pass; returns whether it did.
    fn cloud_turn(&mut self) -> bool {
        let turned = self.cloud.turn();
        let begins = matches!(turned, Ok(Some(_)));
        match turned {
            Ok(Some(content)) => {
                let ns = self.scenario.cloud.cost.modelled(content).as_nanos() as u64;
                let life = self.cloud.life;
                self.trace
                    .add("cloud", &[self.now, content.prefill_tokens as u64, content.decode_rows as u64]);
                self.at(self.now + ns, What::CloudPass(life));
            }
            Ok(None) => {}
            Err(words) => self.fail(words),
        }
        if self.cloud.is_drained() {
            self.end_of_draining();
        }
        begins
    }

    /// Lets every device begin a pass and hear its engine; returns whether anything came of it.
    fn device_turns(&mut self) -> bool {
        let mut moved = false;
        for at in 0..self.machines.len() {
            let turned = self.machines[at].device.turn();
            let begun = match turned {
                Ok(begun) => begun,
                Err(words) => {
                    self.fail(words);
                    None
                }
            };
            if let Some(Begun { content, ns }) = begun {
                let life = self.machines[at].life;
                let numbers =
                    [self.now, at as u64, content.prefill_tokens as u64, content.decode_rows as u64];
                self.trace.add("device", &numbers);
                self.at(self.now + ns, What::DevicePass { device: at, life });
                moved = true;
            }
            moved |= self.reports(at);
        }
        moved
    }

    /// Gives the engine's reports to the relays of a device; returns whether there were any.
    fn reports(&mut self, device: usize) -> bool {
        let mut heard = false;
        for question in self.machines[device].device.questions() {
            if self.answers.get(&question).is_none_or(|answer| self.now < answer.paused_until) {
                continue;
            }
            while let Some(report) = self.machines[device].device.report(question) {
                if let Some(answer) = self.answers.get_mut(&question) {
                    answer.seen.report(&report);
                }
                heard = true;
                self.relay(question, RelayEvent::Engine(report));
                if self.answers.get(&question).is_none_or(|answer| self.now < answer.paused_until) {
                    break;
                }
            }
        }
        heard
    }

    fn exchange(&mut self) {
        let sent = self.cloud.deltas();
        let life = self.cloud.life;
        let takes = MS * (1 + mix(self.scenario.seed, self.now) % 150);
        if self.cloud.up.is_some() {
            self.at(self.now + takes, What::Commit { life, sent });
        }
        let now = self.now;
        let last = |answer: &Answer| answer.begun_ns.max(self.machines[answer.question.device].shown_ns);
        let late = self.answers.values().find(|answer| !answer.finished() && now > last(answer) + ANSWER_NS);
        if let Some(answer) = late {
            let number = answer.question.number;
            self.fail(format!(
                "I3: question {number} has not ended, and its device has shown nothing for {} s",
                ANSWER_NS / MS / 1_000
            ));
        }
        self.at(self.now + EXCHANGE_NS, What::Exchange);
    }

    /// Checks what must hold once everything is over.
    fn check_rest(&mut self) {
        let rest = self.cloud.check_rest();
        self.check(rest);
        for machine in 0..self.machines.len() {
            let rest = self.machines[machine].device.check_rest();
            self.check(rest);
        }
        self.check_answers();
    }

    /// Notes an event for the trace.
    pub(super) fn trace_event(&mut self, question: usize, event: &AssistEvent) {
        let index = event.index().map_or(u64::MAX, u64::from);
        self.trace.add(event.name(), &[self.now, question as u64, index]);
    }
}
