//! The relay: one answer, begun by the cloud and finished by this device.
//!
//! [`RelayCore::step`] takes an event and the time, and gives effects; it owns no clock, socket, thread or random
//! source, and never blocks. The driver performs the effects; tests perform them in virtual time.
//!
//! What always holds:
//! - shown text only grows, token by token, without a repeat or a gap, whatever the cloud sends or fails to send;
//! - exactly one [`RelayEffect::Finish`], and no effect after it;
//! - the device goes on from exactly the tokens it verified, so the text after a takeover is its own continuation of
//!   the accepted prefix;
//! - only a contiguous prefix of the cloud's tokens is used, and none past the agreed number; only what lengthens that
//!   prefix, or computes a prompt, counts as a sign of life;
//! - a device that fails in the middle, whatever computes there, costs no token where the cloud may be asked: it is asked
//!   once to go on after exactly the text that was accepted.

mod answer;
mod cloud;
mod device;
mod event;
mod inbox;
mod note;
mod outcome;
mod pace;
mod progress;
#[cfg(test)]
mod tests;

pub use answer::TextRules;
pub(crate) use cloud::fault_of;
pub use event::{Progress, RelayEffect, RelayEvent, Source};
pub(crate) use note::TOO_LONG;
pub use note::{AnswerError, CloudFault, Note};
pub use outcome::{CloudTiming, Ending, Outcome, Shown, Timeline};

use crate::local::{AnswerSpec, EngineCommand, PromptId};
use answer::Answer;
use baton_pacing::{DeviceCost, Millis, PaceMode};
use baton_protocol::{Corrector, SentenceMap};
use cloud::CloudSide;
use device::{DeviceSide, DeviceState};
use pace::Display;
use progress::Waiting;

/// How long a finished answer waits for the cloud's `end` event after its last token.
const END_GRACE_MS: f64 = 100.0;
/// The largest tolerable gap that a scene or a cloud is believed: nobody reads at one token in several seconds.
const TAU_MS_MAX: f64 = 1_000.0;

/// The largest tolerable gap, from a number that came over the wire.
fn believed_tau_ms(said: f64) -> f64 {
    if said.is_finite() { said.clamp(1.0, TAU_MS_MAX) } else { TAU_MS_MAX }
}

/// Who may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RelayMode {
    /// The cloud begins, the device takes over.
    #[default]
    Relay,
    /// The cloud writes all; the device only if the cloud fails.
    CloudOnly,
    /// The device alone.
    DeviceOnly,
}

/// What the core is told once.
#[derive(Clone)]
pub struct RelayConfig {
    /// Who may write.
    pub mode: RelayMode,
    /// Whether a device model is there.
    pub has_device: bool,
    /// For whom the text is shown.
    pub pace: PaceMode,
    /// Largest tolerable gap, until the cloud's first event says otherwise.
    pub tau_ms: f64,
    /// Whether a mask may come; if not, the device prefills the whole prompt from the start.
    pub refine: bool,
    /// Whose token stands where both wrote one, until the cloud's first event says otherwise.
    pub corrector: Corrector,
    /// The user's own choice of corrector, which wins over the cloud's.
    pub corrector_override: Option<Corrector>,
    /// This device's own measured cost.
    pub cost: DeviceCost,
    /// A silent cloud is hedged after this long, or after the device's own predicted time to first token.
    pub hedge_after_ms: f64,
    /// A cloud without a device behind it is given up after this long without a first token.
    pub first_timeout_ms: f64,
    /// The same, between tokens.
    pub idle_timeout_ms: f64,
    /// Whether the cloud may be asked to go on when the device cannot.
    pub may_continue: bool,
    /// First free prompt name; the core uses names from here on.
    pub first_prompt: PromptId,
}

/// The state machine of one answer.
pub struct RelayCore {
    config: RelayConfig,
    spec: AnswerSpec,
    map: SentenceMap,
    answer: Answer,
    cloud: CloudSide,
    device: DeviceSide,
    display: Display,
    waiting: Waiting,
    timeline: Timeline,
    begun_at: Option<Millis>,
    ending: Option<Ending>,
    finished: bool,
}

impl RelayCore {
    /// A core for one question. Cost: segments the prompt into sentences, `O(bytes)`.
    pub fn new(config: RelayConfig, spec: AnswerSpec, rules: TextRules) -> Self {
        let map = SentenceMap::new(&spec.segments);
        let timeline = Timeline { tau_ms: believed_tau_ms(config.tau_ms), ..Timeline::default() };
        Self {
            map,
            answer: Answer::new(rules),
            cloud: CloudSide::new(spec.tokens_max, config.corrector_override.unwrap_or(config.corrector)),
            device: DeviceSide::new(&config, spec.segments.clone()),
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

    /// Takes one event at `now` (monotonic milliseconds, any origin) and says what to do.
    pub fn step(&mut self, event: RelayEvent, now: Millis) -> Vec<RelayEffect> {
        let mut fx = Vec::new();
        if self.finished || (self.begun_at.is_none() && !matches!(event, RelayEvent::Begin)) {
            return fx;
        }
        match event {
            RelayEvent::Begin => self.begin(now, &mut fx),
            RelayEvent::Cloud(event) => self.on_cloud(event, now, &mut fx),
            RelayEvent::CloudLost(fault) => self.cloud_lost(fault, now, &mut fx),
            RelayEvent::Engine(report) => self.on_report(report, now, &mut fx),
            RelayEvent::EngineLost => self.engine_lost(now, &mut fx),
            RelayEvent::Timer => {}
            RelayEvent::Cancel => return self.cancel(fx),
        }
        self.on_time(now, &mut fx);
        self.maybe_verify(&mut fx);
        self.pace(now, &mut fx);
        if !self.finished {
            self.tell(now, &mut fx);
            let wake = self.wake_at(now);
            fx.push(RelayEffect::WakeAt(wake));
        }
        fx
    }

    /// Times and counts so far.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Whether [`RelayEffect::Finish`] was given.
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

    /// Milliseconds since the question.
    fn since(&self, now: Millis) -> Millis {
        now - self.begun_at.unwrap_or(now)
    }

    /// What time alone brings: hedge, stall, timeouts.
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
        ];
        times.into_iter().flatten().reduce(Millis::min)
    }

    /// When a cloud that stopped sending is cut off, because the device is ready and little is left to show.
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

    /// When a cloud that is silent is given up although no device is ready to take over.
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

    /// The answer has all its tokens; what is left is to show them.
    fn complete(&mut self, ending: Ending, held_text: &str, fx: &mut Vec<RelayEffect>) {
        if self.ending.is_some() {
            return;
        }
        self.answer.finish(held_text);
        let ending = if self.answer.stopped() && ending == Ending::Length { Ending::Stop } else { ending };
        self.ending = Some(ending);
        // A stream whose tokens are all there has only its `end` left, which says what it cost: let it come.
        if self.cloud.active() && !self.cloud_complete() {
            self.cloud.close();
            fx.push(RelayEffect::CancelCloud);
        }
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
        // An answer that is all shown only waits for the cloud's `end`: there is nothing to cancel.
        if self.ending.is_none() || self.display.shown() < self.answer.len() {
            self.ending = None;
            self.complete(Ending::Cancelled, "", &mut fx);
        }
        self.finish(&mut fx);
        fx
    }

    /// Until when a finished answer waits for the cloud's `end`.
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

    /// Whether the device is in a state from which it can still take the answer over.
    fn device_can_take_over(&self) -> bool {
        self.device.usable()
            && !matches!(
                self.device.state,
                DeviceState::Verifying | DeviceState::Decoding | DeviceState::Over
            )
    }
}
