//! The relay: produces one answer, which the cloud begins and this device finishes.
//!
//! [`RelayCore::step`] takes an event and the time, and returns effects. It owns no clock, socket, thread or
//! random source, and never blocks. The driver performs the effects; tests perform them in virtual time.
//!
//! What always holds:
//! - Shown text only grows, token by token, without a repeat or a gap, whatever the cloud sends or fails to
//!   send.
//! - There is exactly one [`RelayEffect::Finish`], and no effect after it.
//! - The device goes on from exactly the tokens that it verified. So the text after a takeover is its own
//!   continuation of the accepted prefix.
//! - Only a contiguous prefix of the cloud's tokens is used, and none past the agreed number. Only events
//!   that lengthen that prefix, or compute a prompt, count as a sign of life.
//! - A device or ring that fails in the middle costs no token if the cloud may be asked. The cloud is asked
//!   once to go on after exactly the accepted text.

mod bursts;
mod cloud;
mod device;
mod event;
mod form;
mod inbox;
mod kv;
mod note;
mod outcome;
mod pace;
mod progress;
#[cfg(test)]
mod tests;
mod transcript;
mod verify;

pub(crate) use cloud::fault_of;
pub use event::{KvNews, Progress, RelayEffect, RelayEvent, Source};
pub use form::FormGuard;
pub use kv::KvTerms;
pub use note::{AnswerError, CloudFault, Note};
pub(crate) use note::{CLOUD_OVERLOADED, INVALID, TOO_LONG, time_text};
pub use outcome::{CloudMark, CloudTiming, Ending, KvTrace, Outcome, Shown, Timeline, Verification};
pub use transcript::TextRules;

use crate::local::{AnswerSpec, EngineCommand, PromptId};
use baton_pacing::{DeviceCost, Millis, PaceMode};
use baton_protocol::{Corrector, SentenceMap, VerifyPolicy};
use cloud::CloudSide;
use device::{DeviceSide, DeviceState};
use kv::KvState;
use pace::Display;
use progress::Waiting;
use transcript::Transcript;
use verify::Verifier;

/// How long a finished answer waits for the cloud's `end` event after its last token, in milliseconds.
const END_GRACE_MS: f64 = 100.0;
/// Upper limit of tau from a scene or a cloud; nobody reads at one token in several seconds.
const TAU_MS_MAX: f64 = 1_000.0;

/// Limits a tau that came over the wire.
fn believed_tau_ms(said: f64) -> f64 {
    if said.is_finite() { said.clamp(1.0, TAU_MS_MAX) } else { TAU_MS_MAX }
}

/// Who may write the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RelayMode {
    /// The cloud begins, and the device takes over.
    #[default]
    Relay,
    /// The cloud writes the whole answer; the device writes only if the cloud fails.
    CloudOnly,
    /// The device writes the whole answer.
    DeviceOnly,
}

/// The core's fixed settings.
#[derive(Clone)]
pub struct RelayConfig {
    /// Who may write the answer.
    pub mode: RelayMode,
    /// Whether there is a device model.
    pub has_device: bool,
    /// How the shown text is paced.
    pub pace: PaceMode,
    /// Largest tolerable gap in milliseconds, until the cloud's first event gives another value.
    pub tau_ms: f64,
    /// Whether the cloud may send a mask; if not, the device prefills the whole prompt from the start.
    pub refine: bool,
    /// Whose token is used if both wrote one, until the cloud's first event says otherwise.
    pub corrector: Corrector,
    /// The user's choice of corrector, which overrides the cloud's.
    pub corrector_override: Option<Corrector>,
    /// Whether the cloud is to check what the device writes.
    pub verify: VerifyPolicy,
    /// This device's measured cost.
    pub cost: DeviceCost,
    /// If the cloud is silent this long, in milliseconds, the device starts on the whole prompt as well. The
    /// device's predicted time to first token applies if it is shorter.
    pub hedge_after_ms: f64,
    /// How long to wait for the first token if no device can take over, in milliseconds.
    pub first_timeout_ms: f64,
    /// The same limit between two tokens.
    pub idle_timeout_ms: f64,
    /// Whether the cloud may be asked to go on if the device cannot.
    pub may_continue: bool,
    /// On which terms the cloud's keys and values are taken in place of a prefill; `None` if the scene offers
    /// none.
    pub kv: Option<KvTerms>,
    /// First free prompt id; the core uses ids from here on.
    pub first_prompt: PromptId,
}

/// The state machine of one answer.
pub struct RelayCore {
    config: RelayConfig,
    spec: AnswerSpec,
    map: SentenceMap,
    answer: Transcript,
    /// The form that the cloud's tokens must have.
    guard: Option<FormGuard>,
    cloud: CloudSide,
    device: DeviceSide,
    /// The drafts that the cloud checks, if it does.
    verifier: Option<Verifier>,
    kv: KvState,
    display: Display,
    waiting: Waiting,
    timeline: Timeline,
    begun_at: Option<Millis>,
    ending: Option<Ending>,
    finished: bool,
}

impl RelayCore {
    /// Makes a core for one question. Cost: `O(bytes)`, because it splits the prompt into sentences.
    pub fn new(config: RelayConfig, spec: AnswerSpec, rules: TextRules) -> Self {
        let map = SentenceMap::new(&spec.segments);
        let timeline = Timeline { tau_ms: believed_tau_ms(config.tau_ms), ..Timeline::default() };
        Self {
            map,
            answer: Transcript::new(rules),
            guard: None,
            cloud: CloudSide::new(spec.tokens_max, config.corrector_override.unwrap_or(config.corrector)),
            device: DeviceSide::new(&config, spec.segments.clone()),
            verifier: None,
            kv: KvState::default(),
            display: Display::default(),
            waiting: Waiting::default(),
            timeline,
            begun_at: None,
            ending: None,
            finished: false,
            config,
            spec,
        }
    }

    /// Makes the core check the cloud's tokens by this form.
    #[must_use]
    pub fn with_guard(mut self, guard: Option<FormGuard>) -> Self {
        self.guard = guard;
        self
    }

    /// Takes one event at `now` (monotonic milliseconds, any origin) and returns what to do.
    pub fn step(&mut self, event: RelayEvent, now: Millis) -> Vec<RelayEffect> {
        let mut fx = Vec::new();
        if self.finished || (self.begun_at.is_none() && !matches!(event, RelayEvent::Begin)) {
            return fx;
        }
        match event {
            RelayEvent::Begin => self.begin(now, &mut fx),
            RelayEvent::Cloud(event) => self.on_cloud(event, now, &mut fx),
            RelayEvent::CloudLost(fault) => self.cloud_lost(fault, now, &mut fx),
            RelayEvent::Checked(checked) => self.on_checked(checked, now, &mut fx),
            RelayEvent::Kv(news) => self.on_kv(news, now, &mut fx),
            RelayEvent::Engine(report) => self.on_report(report, now, &mut fx),
            RelayEvent::EngineLost => self.engine_lost(now, &mut fx),
            RelayEvent::Timer => {}
            RelayEvent::Cancel => return self.cancel(fx),
        }
        self.on_time(now, &mut fx);
        self.maybe_verify(&mut fx);
        self.check_drafts(now, &mut fx);
        self.pace(now, &mut fx);
        if !self.finished {
            self.tell(now, &mut fx);
            let wake = self.wake_at(now);
            fx.push(RelayEffect::WakeAt(wake));
        }
        fx
    }

    /// Returns the times and counts so far.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Returns whether anything of the cloud's is still wanted: its stream, checks of drafts, or its keys and
    /// values.
    pub fn wants_cloud(&self) -> bool {
        self.cloud.active() || self.verifies() || self.kv.is_fetching()
    }

    /// Returns whether nothing of the answer has come yet, and this device could answer without a loss of
    /// what it has computed: it has not read the whole prompt.
    pub fn may_answer_alone(&self) -> bool {
        let is_new = self.cloud.waiting() && self.answer.len() == 0 && self.ending.is_none();
        is_new && self.device_can_take_over() && !self.device.ready && !self.device.is_refined()
    }

    /// Returns whether [`RelayEffect::Finish`] was returned.
    pub fn finished(&self) -> bool {
        self.finished
    }

    fn begin(&mut self, now: Millis, fx: &mut Vec<RelayEffect>) {
        if self.begun_at.is_some() {
            return;
        }
        self.begun_at = Some(now);
        if self.config.mode != RelayMode::DeviceOnly {
            self.cloud.asked(now);
            fx.push(RelayEffect::Ask);
        }
        match self.config.mode {
            RelayMode::Relay => {
                self.open(self.config.refine, fx);
                self.cloud.hedge_at =
                    (self.config.has_device).then_some(now + Millis::new(self.config.hedge_after_ms));
            }
            RelayMode::CloudOnly => {}
            RelayMode::DeviceOnly => self.open(false, fx),
        }
    }

    /// Returns the time since the question.
    fn since(&self, now: Millis) -> Millis {
        now - self.begun_at.unwrap_or(now)
    }

    /// Acts on the time alone: hedge, stall, timeouts.
    fn on_time(&mut self, now: Millis, fx: &mut Vec<RelayEffect>) {
        if self.ending.is_some() {
            return;
        }
        if self.cloud.waiting() && self.cloud.hedge_at.is_some_and(|at| now >= at) {
            self.cloud.hedge_at = None;
            self.use_whole_prompt(fx);
        }
        if self.stall_at().is_some_and(|at| now >= at) {
            let waited_ms = (now - self.cloud.last_at).as_f64() as u64;
            fx.push(RelayEffect::CancelCloud);
            self.cloud_lost(CloudFault::Silent { waited_ms }, now, fx);
        }
        if self.timeout_at().is_some_and(|at| now >= at) {
            let waited_ms = (now - self.cloud.last_at).as_f64() as u64;
            fx.push(RelayEffect::CancelCloud);
            self.cloud_lost(CloudFault::Silent { waited_ms }, now, fx);
        }
    }

    fn wake_at(&self, now: Millis) -> Option<Millis> {
        let hedge = self.cloud.hedge_at.filter(|_| self.cloud.waiting());
        let times = [
            self.display.wake_at(),
            hedge,
            self.stall_at(),
            self.timeout_at(),
            self.end_grace(),
            self.tell_at(now),
            self.check_at(now),
        ];
        times.into_iter().flatten().reduce(Millis::min)
    }

    /// Returns when to cut off a cloud that stopped sending, because the device is ready and little text is
    /// left to show.
    fn stall_at(&self) -> Option<Millis> {
        let ready = self.device.ready && self.device_can_take_over();
        if self.ending.is_some() || !self.cloud.streaming() || !ready {
            return None;
        }
        let verify_ms = self.device.verify_ms(self.answer.len());
        let left = self.answer.len().saturating_sub(self.display.shown()) + 1;
        let dry_at = self.display.last_at() + Millis::new(left as f64 * self.timeline.tau_ms - verify_ms);
        let own_ms = self.timeline.tau_ms.max(self.config.cost.decode_ms);
        Some(dry_at.max(self.cloud.last_at + Millis::new(self.cloud.silence_ms(own_ms))))
    }

    /// Returns when to give up a silent cloud although no device is ready to take over.
    fn timeout_at(&self) -> Option<Millis> {
        if self.ending.is_some() {
            return None;
        }
        if self.cloud.waiting() {
            let device_may_win = self.config.mode == RelayMode::Relay && self.device.usable();
            return (!device_may_win).then(|| self.cloud.last_at + Millis::new(self.config.first_timeout_ms));
        }
        self.cloud.streaming().then(|| self.cloud.last_at + Millis::new(self.config.idle_timeout_ms))
    }

    /// Ends the answer: it has all its tokens, which now only have to be shown.
    fn complete(&mut self, ending: Ending, held_text: &str, fx: &mut Vec<RelayEffect>) {
        if self.ending.is_some() {
            return;
        }
        if matches!(ending, Ending::Cancelled | Ending::Failed(_)) {
            // The beginning of a character is no text.
            self.answer.drop_incomplete();
        }
        self.answer.finish(held_text);
        self.timeline.stopped_text = self.answer.stopped_text();
        let ending = if self.answer.stopped() && ending == Ending::Length { Ending::Stop } else { ending };
        self.ending = Some(ending);
        // A stream that has sent all its tokens still has its `end`, which reports costs, so it stays open.
        if self.cloud.active() && !self.cloud_complete() {
            self.cloud.close();
            fx.push(RelayEffect::CancelCloud);
        }
        self.end_checks(fx);
        if self.device.stop() {
            fx.push(RelayEffect::Engine(EngineCommand::Stop));
        }
    }

    fn fail(&mut self, error: AnswerError, fx: &mut Vec<RelayEffect>) {
        let error = match (error, self.device.too_long) {
            (AnswerError::Device { .. }, Some((tokens, limit))) => AnswerError::TooLong { tokens, limit },
            (AnswerError::DeviceAndCloud { fault, .. }, Some((tokens, limit))) if fault.is_too_long() => {
                AnswerError::TooLong { tokens, limit }
            }
            (error, _) => error,
        };
        self.complete(Ending::Failed(error), "", fx);
    }

    fn cancel(&mut self, mut fx: Vec<RelayEffect>) -> Vec<RelayEffect> {
        // If the whole answer is shown, it only waits for the cloud's `end`, and there is nothing to cancel.
        if self.ending.is_none() || self.display.shown() < self.answer.len() {
            self.ending = None;
            self.complete(Ending::Cancelled, "", &mut fx);
        }
        self.finish(&mut fx);
        fx
    }

    /// Returns until when a finished answer waits for the cloud's `end`.
    fn end_grace(&self) -> Option<Millis> {
        let all_shown = self.display.shown() == self.answer.len();
        let waits = self.ending.is_some() && all_shown && self.cloud.streaming();
        waits.then(|| self.cloud.last_at + Millis::new(END_GRACE_MS))
    }

    fn finish(&mut self, fx: &mut Vec<RelayEffect>) {
        let Some(ending) = self.ending.clone() else { return };
        if self.cloud.active() {
            self.cloud.close();
            fx.push(RelayEffect::CancelCloud);
        }
        self.finished = true;
        let shown = self.display.shown();
        if shown == self.answer.len() && !self.answer.tail().is_empty() {
            fx.push(RelayEffect::Tail { text: self.answer.tail().to_owned() });
        }
        fx.push(RelayEffect::WakeAt(None));
        fx.push(RelayEffect::Finish(Box::new(Outcome {
            ending,
            answer: self.answer.text(shown),
            timeline: self.timeline.clone(),
        })));
    }

    /// Returns whether the device can still take the answer over.
    fn device_can_take_over(&self) -> bool {
        self.device.usable()
            && !matches!(
                self.device.state,
                DeviceState::Verifying | DeviceState::Decoding | DeviceState::Over
            )
    }
}
