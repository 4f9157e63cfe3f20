//! A simulation in virtual time: delivers scripted cloud events, runs an engine's passes, and checks
//! invariants at every step.

use super::super::*;
use crate::local::{Accepted, Driven, EngineCommand, EngineEnd, EngineReport, Keep, Scope, Verified};
use baton_engine::Sequences;
use baton_engine::pace_emulation::{PassContent, PassCost};
use baton_protocol::{AssistEvent, Segment};
use std::collections::VecDeque;

/// What one pass did.
#[derive(Debug, Default)]
pub(super) struct Passed {
    pub(super) reports: Vec<EngineReport>,
    pub(super) content: PassContent,
}

/// An engine that runs one pass at a time.
pub(super) trait VirtualEngine {
    fn command(&mut self, command: EngineCommand) -> Vec<EngineReport>;
    /// Looks at what it was told; returns the reports that need no pass.
    fn turn(&mut self) -> Vec<EngineReport> {
        Vec::new()
    }
    fn has_work(&self) -> bool;
    fn pass(&mut self) -> Passed;
}

/// A device that really computes.
pub(super) struct RealEngine<S: Sequences> {
    device: Driven<S>,
    /// What the pass that waits for its time has computed.
    content: Option<PassContent>,
}

impl<S: Sequences> RealEngine<S> {
    pub(super) fn new(device: Driven<S>) -> Self {
        Self { device, content: None }
    }
}

impl<S: Sequences> VirtualEngine for RealEngine<S> {
    fn command(&mut self, command: EngineCommand) -> Vec<EngineReport> {
        self.device.command(command)
    }
    fn turn(&mut self) -> Vec<EngineReport> {
        self.content = self.device.turn(&mut ());
        self.device.reports()
    }
    fn has_work(&self) -> bool {
        self.content.is_some()
    }
    fn pass(&mut self) -> Passed {
        self.device.commit();
        Passed { reports: self.device.reports(), content: self.content.take().unwrap_or_default() }
    }
}

/// An engine that reports like the local engine, without computing anything.
pub(super) struct ScriptedEngine {
    token: fn(usize) -> u32,
    end_at: usize,
    tokens_max: usize,
    prompt: PromptId,
    total: usize,
    done: usize,
    prefix_only: bool,
    accepted: Option<usize>,
    decide: Option<usize>,
    next: Option<usize>,
    open: bool,
    /// Fails in the pass that would reach this many prompt tokens.
    fail_at: Option<usize>,
    /// Fails when it would write the token with this index.
    fail_at_token: Option<usize>,
}

const CHUNK: usize = 16;

impl ScriptedEngine {
    pub(super) fn new(token: fn(usize) -> u32, end_at: usize) -> Self {
        Self {
            token,
            end_at,
            tokens_max: 0,
            prompt: PromptId(0),
            total: 0,
            done: 0,
            prefix_only: false,
            accepted: None,
            decide: None,
            next: None,
            open: false,
            fail_at: None,
            fail_at_token: None,
        }
    }

    /// Makes the engine fail in the pass that would reach this many prompt tokens, or when it would write the
    /// token with this index.
    pub(super) fn failing(self, prompt_tokens: Option<usize>, token: Option<usize>) -> Self {
        Self { fail_at: prompt_tokens, fail_at_token: token, ..self }
    }

    /// Counts one token for every two bytes.
    fn tokens(segments: &[Segment]) -> usize {
        segments.iter().map(|s| s.text.len() / 2).sum::<usize>().max(1)
    }

    fn write(&mut self, index: usize) -> EngineReport {
        let prompt = self.prompt;
        if self.fail_at_token == Some(index) {
            (self.open, self.next) = (false, None);
            return EngineReport::Failed { prompt, reason: "the ring is lost".into() };
        }
        let why = match index {
            i if i >= self.tokens_max => EngineEnd::TokensMax,
            i if i >= self.end_at => EngineEnd::EndToken,
            _ => {
                self.next = Some(index + 1);
                return EngineReport::Token { prompt, index, id: (self.token)(index), text: None };
            }
        };
        self.next = None;
        EngineReport::Ended { prompt, why, text: String::new() }
    }
}

impl VirtualEngine for ScriptedEngine {
    fn command(&mut self, command: EngineCommand) -> Vec<EngineReport> {
        match command {
            EngineCommand::Open { prompt, spec, scope } => {
                let tokens = Self::tokens(&spec.segments);
                let prefix_tokens = Self::tokens(&spec.segments[..1]);
                self.open = true;
                (self.prompt, self.prefix_only, self.done) = (prompt, scope == Scope::Prefix, 0);
                (self.accepted, self.decide, self.next) = (None, None, None);
                self.tokens_max = spec.tokens_max;
                self.total = if self.prefix_only { prefix_tokens } else { tokens };
                let total = self.total;
                vec![
                    EngineReport::Opened { prompt, tokens, prefix_tokens },
                    EngineReport::Prompt { prompt, tokens: total, cached: 0, shortened: None },
                ]
            }
            EngineCommand::Draft { .. } => unreachable!("no scripted cloud offers to check drafts"),
            EngineCommand::Prefill { prompt, segments, .. } => {
                assert!(self.open, "prefill without an answer");
                (self.prompt, self.prefix_only, self.total) = (prompt, false, Self::tokens(&segments));
                (self.accepted, self.decide, self.next) = (None, None, None);
                self.done = self.done.min(Self::tokens(&segments[..1]));
                vec![EngineReport::Prompt { prompt, tokens: self.total, cached: self.done, shortened: None }]
            }
            EngineCommand::Take { prompt, .. } => {
                vec![EngineReport::NotTaken { prompt, reason: "it computes nothing".into() }]
            }
            EngineCommand::Verify { prompt, accepted } => {
                assert_eq!(prompt, self.prompt);
                self.accepted = Some(match accepted {
                    Accepted::Ids(ids) => ids.len(),
                    Accepted::Text(text) => text.chars().count(),
                });
                Vec::new()
            }
            EngineCommand::Decode { prompt, keep, index } => {
                assert_eq!(prompt, self.prompt);
                let accepted = self.decide.take().expect("decode follows verification");
                let kept = if let Keep::Tokens(n) = keep { n } else { accepted };
                assert_eq!(kept, index);
                vec![self.write(index)]
            }
            EngineCommand::Stop => {
                self.open = false;
                (self.accepted, self.decide, self.next) = (None, None, None);
                Vec::new()
            }
        }
    }

    fn has_work(&self) -> bool {
        let prefill = self.done + usize::from(!self.prefix_only) < self.total;
        self.open && (self.next.is_some() || (self.decide.is_none() && (prefill || self.accepted.is_some())))
    }

    fn pass(&mut self) -> Passed {
        let prompt = self.prompt;
        let content =
            |prefill_tokens, decode_rows| PassContent { prompts_begun: 0, prefill_tokens, decode_rows };
        if let Some(index) = self.next {
            let report = self.write(index);
            return Passed { reports: vec![report], content: content(0, 1) };
        }
        let target = if self.prefix_only { self.total } else { self.total - 1 };
        if self.fail_at.is_some_and(|at| self.done + CHUNK > at) {
            self.open = false;
            let reports = vec![EngineReport::Failed { prompt, reason: "out of memory".into() }];
            return Passed { reports, ..Passed::default() };
        }
        if self.done < target {
            let n = CHUNK.min(target - self.done);
            self.done += n;
            let mut reports =
                vec![EngineReport::Progress { prompt, done: self.done, total: self.total, pass_tokens: n }];
            if self.done == target && !self.prefix_only && self.accepted.is_none() {
                reports.push(EngineReport::Ready { prompt });
            }
            return Passed { reports, content: content(n, 0) };
        }
        let accepted = self.accepted.take().expect("there is work");
        self.decide = Some(accepted);
        let own = (0..=accepted).map(self.token).collect();
        let verified = Verified { own, compared: accepted, agreed: 0, differs_at_bytes: Vec::new() };
        let reports = vec![EngineReport::Verified { prompt, verified }];
        Passed { reports, content: content(accepted + 1, 0) }
    }
}

/// The cost of a phone.
pub(super) const COST: PassCost = PassCost { base_ms: 0.0, prefill_ms_per_token: 2.5, decode_ms: 45.0 };

/// Events with their times in milliseconds, in order.
pub(super) type Script = Vec<(f64, RelayEvent)>;

/// One answer in virtual time.
pub(super) struct Sim<E> {
    pub(super) core: RelayCore,
    engine: E,
    now: f64,
    /// By what factor a pass takes longer than on a phone.
    pub(super) slowness: f64,
    /// The scripted events; times count from the question.
    script: VecDeque<(f64, RelayEvent)>,
    /// The events after the cloud was asked to go on.
    pub(super) continuation: Vec<(f64, RelayEvent)>,
    /// The same, made for the token with which it is asked to go on.
    pub(super) answers_from: Option<fn(usize) -> Script>,
    busy: Option<(f64, Vec<EngineReport>)>,
    waiting: VecDeque<EngineCommand>,
    wake: Option<f64>,
    text: String,
    shown: usize,
    notes: Vec<Note>,
    pub(super) progress: Vec<(f64, Progress)>,
    outcome: Option<Outcome>,
    /// The keys and values that were to be fetched.
    pub(super) fetched: Option<baton_protocol::KvTicket>,
    asked: bool,
    closed: bool,
    ended: bool,
    pub(super) engine_commands: usize,
    pub(super) engine_stopped: bool,
    pub(super) accepted: Option<String>,
}

impl<E: VirtualEngine> Sim<E> {
    pub(super) fn new(core: RelayCore, engine: E, mut script: Vec<(f64, RelayEvent)>) -> Self {
        script.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self {
            core,
            engine,
            now: 0.0,
            slowness: 1.0,
            script: script.into(),
            continuation: Vec::new(),
            answers_from: None,
            busy: None,
            waiting: VecDeque::new(),
            wake: None,
            text: String::new(),
            shown: 0,
            notes: Vec::new(),
            progress: Vec::new(),
            outcome: None,
            fetched: None,
            asked: false,
            closed: false,
            ended: false,
            engine_commands: 0,
            engine_stopped: false,
            accepted: None,
        }
    }

    pub(super) fn notes(&self) -> Vec<&'static str> {
        self.notes.iter().map(Note::code).collect()
    }

    /// Returns the milliseconds since the question.
    pub(super) fn now(&self) -> f64 {
        self.now
    }

    pub(super) fn cloud_closed(&self) -> bool {
        self.closed || self.ended || !self.asked
    }

    /// Runs to the end; panics on a broken invariant or an answer that does not end.
    pub(super) fn run(&mut self) -> Outcome {
        self.step(RelayEvent::Begin);
        self.start_pass();
        for _ in 0..100_000 {
            if let Some(outcome) = &self.outcome {
                return outcome.clone();
            }
            self.advance();
        }
        panic!("the answer does not end; shown {:?}", self.text);
    }

    fn advance(&mut self) {
        let script_at = self.script.front().map(|s| s.0);
        let busy_at = self.busy.as_ref().map(|b| b.0);
        let next = [script_at, busy_at, self.wake].into_iter().flatten().reduce(f64::min);
        let next = next.unwrap_or_else(|| panic!("nothing will ever happen; shown {:?}", self.text));
        self.now = self.now.max(next);
        if script_at == Some(next) {
            let (_, event) = self.script.pop_front().expect("looked at above");
            let from_cloud = matches!(event, RelayEvent::Cloud(_) | RelayEvent::CloudLost(_));
            if !(from_cloud && self.closed) {
                self.ended |=
                    matches!(event, RelayEvent::Cloud(AssistEvent::End(_)) | RelayEvent::CloudLost(_));
                self.step(event);
            }
        } else if busy_at == Some(next) {
            let (_, reports) = self.busy.take().expect("looked at above");
            for report in reports {
                self.step(RelayEvent::Engine(report));
            }
            while let Some(command) = self.waiting.pop_front() {
                self.apply(command);
            }
        } else {
            self.wake = None;
            self.step(RelayEvent::Timer);
        }
        self.start_pass();
    }

    fn start_pass(&mut self) {
        while self.busy.is_none() {
            let told = self.engine_commands;
            for report in self.engine.turn() {
                self.step(RelayEvent::Engine(report));
            }
            if told == self.engine_commands {
                break;
            }
        }
        if self.busy.is_none() && self.engine.has_work() {
            let outcome = self.engine.pass();
            let took = self.slowness * COST.modelled(outcome.content).as_secs_f64() * 1e3;
            self.busy = Some((self.now + took, outcome.reports));
        }
    }

    fn apply(&mut self, command: EngineCommand) {
        for report in self.engine.command(command) {
            self.step(RelayEvent::Engine(report));
        }
    }

    fn step(&mut self, event: RelayEvent) {
        if self.outcome.is_some() {
            return;
        }
        let effects = self.core.step(event, Millis::new(self.now));
        let finishes = effects.iter().position(|e| matches!(e, RelayEffect::Finish(_)));
        assert!(finishes.is_none_or(|at| at + 1 == effects.len()), "an effect after the end: {effects:?}");
        for effect in effects {
            match effect {
                RelayEffect::Check(_) | RelayEffect::DropCheck => {
                    unreachable!("no scripted cloud offers to check drafts")
                }
                RelayEffect::Ask => self.asked = true,
                RelayEffect::AskToContinue { accepted, .. } => {
                    self.closed = false;
                    // No event of the first stream comes in the second.
                    self.script.retain(|(_, event)| matches!(event, RelayEvent::Cancel | RelayEvent::Timer));
                    let mut later = std::mem::take(&mut self.continuation);
                    if let Some(answer) = self.answers_from {
                        later = answer(accepted.chars().count());
                    }
                    self.accepted = Some(accepted);
                    self.script.extend(later.into_iter().map(|(after, event)| (self.now + after, event)));
                    self.script.make_contiguous().sort_by(|a, b| a.0.total_cmp(&b.0));
                }
                RelayEffect::CancelCloud => self.closed = true,
                RelayEffect::FetchKv(ticket) => self.fetched = Some(ticket),
                RelayEffect::DropKv => self.script.retain(|(_, event)| !matches!(event, RelayEvent::Kv(_))),
                RelayEffect::Engine(command) => {
                    self.engine_commands += 1;
                    self.engine_stopped |= matches!(command, EngineCommand::Stop);
                    if matches!(command, EngineCommand::Stop | EngineCommand::Open { .. }) {
                        self.busy = None;
                        self.waiting.clear();
                    }
                    if self.busy.is_some() { self.waiting.push_back(command) } else { self.apply(command) }
                }
                RelayEffect::Show { index, text, .. } => {
                    assert_eq!(index, self.shown, "shown in order, without repeat or gap");
                    self.shown += 1;
                    self.text.push_str(&text);
                }
                RelayEffect::Tail { text } => self.text.push_str(&text),
                RelayEffect::Note(note) => {
                    let is_alone = matches!(note, Note::CloudTooSlow | Note::WithoutCloud { .. });
                    assert!(!(is_alone && self.core.wants_cloud()), "{note}: and the cloud is still wanted");
                    self.notes.push(note);
                }
                RelayEffect::Progress(progress) => self.progress.push((self.now, progress)),
                RelayEffect::WakeAt(at) => self.wake = at.map(Millis::as_f64),
                RelayEffect::Finish(outcome) => {
                    assert_eq!(outcome.answer, self.text, "the outcome is what was shown");
                    assert_eq!(outcome.timeline.shown.len(), self.shown);
                    assert!(!self.core.wants_cloud(), "nothing is wanted behind the end");
                    self.outcome = Some(*outcome);
                }
            }
        }
    }
}
