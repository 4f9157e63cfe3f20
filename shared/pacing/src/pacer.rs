//! The speed controller: how many tokens a person has seen by now, and when to look again.
//!
//! A pure state machine over counts and times: `step(event, now) -> (tokens shown in all, next wake)`.
//! It forecasts when each coming token will be there (cloud arrivals, the takeover, the device's own
//! decoding) and shows tokens at the even pace that would be best in hindsight if the forecast came true;
//! it re-plans at every event. It sees neither text nor who is right about a token.
//!
//! What always holds:
//! - it shows only what is there, and the count never falls;
//! - the first token is shown at once, as is any token for which nothing was left to show;
//! - a planned gap is at most [`GAP_GROWTH`] times the one before: it stretches gradually;
//! - while something is left to show it asks to be woken, so it always finishes;
//! - in [`PaceMode::Instant`] everything is shown as it comes.

use crate::Millis;

mod forecast;

use forecast::{Allowance, Rate};

/// A planned gap grows by at most this factor from token to token.
pub const GAP_GROWTH: f64 = 1.3;
/// A planned gap shrinks at most to this share of the one before.
pub const GAP_SHRINK: f64 = 0.85;
/// Robustness may cost gaps of up to this share of `tau`, where an even pace would allow shorter ones.
const CAUTION_CAP: f64 = 0.97;
/// No plan stretches a gap beyond this, whatever the estimates say.
const GAP_MAX_MS: f64 = 30_000.0;
/// Times closer than this are the same: timers and additions round.
const TICK_MS: f64 = 1e-6;

/// For whom the text is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PaceMode {
    /// A person reads along: even gaps.
    #[default]
    Paced,
    /// A program reads: no delay at all.
    Instant,
}

/// What the controller is told once, at the start of an answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PacerConfig {
    /// `tau`: the largest gap that is tolerable, in milliseconds.
    pub tau_ms: f64,
    /// For whom.
    pub mode: PaceMode,
    /// The device's estimate of its own `TPOT_d`, in milliseconds.
    pub decode_ms: f64,
}

/// What happened. All counts are tokens of the answer, from its start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PaceEvent {
    /// Tokens `0..count` are there, whoever wrote them. A smaller count than before is ignored.
    Available {
        /// Tokens there.
        count: usize,
    },
    /// The cloud writes no token of index `count` or above: `L` when it is first known, less when the cloud
    /// is cut off. Until the first of these, every token is taken to be the cloud's.
    CloudEnds {
        /// Tokens by the cloud.
        count: usize,
    },
    /// The newest estimate of when the device's own first token will be there (see
    /// [`crate::TakeoverEstimate`]); sent with every progress report, and best at every wake as well.
    Handover {
        /// On the same clock as `now`.
        ready_at: Millis,
    },
    /// A new estimate of `TPOT_d`, in milliseconds.
    DecodeMs(f64),
    /// The answer has `count` tokens and no more.
    Finished {
        /// Tokens of the answer.
        count: usize,
    },
    /// Time has passed.
    Tick,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PaceStep {
    /// Tokens shown in all after this step: never less than before.
    pub show: usize,
    /// When to call again at the latest; `None` while there is nothing left to show.
    pub wake_at: Option<Millis>,
}

/// The controller of one answer.
#[derive(Debug, Clone)]
pub struct Pacer {
    tau_ms: f64,
    mode: PaceMode,
    available: usize,
    shown: usize,
    cloud_end: Option<usize>,
    finished: Option<usize>,
    ready_at: Option<Millis>,
    /// When the newest token came.
    arrived_at: Millis,
    /// When the last token was due; the plan continues from there.
    shown_at: Millis,
    /// The gap planned for the last token shown; 0 before there is one.
    pace_ms: f64,
    /// The wake asked for by the last step.
    wake_at: Option<Millis>,
    cloud: Rate,
    device: Rate,
}

impl Pacer {
    /// A controller before the first event. Odd numbers in `config` (negative, not finite) count as zero.
    #[must_use]
    pub fn new(config: PacerConfig) -> Self {
        Self {
            tau_ms: sane(config.tau_ms),
            mode: config.mode,
            available: 0,
            shown: 0,
            cloud_end: None,
            finished: None,
            ready_at: None,
            arrived_at: Millis::ZERO,
            shown_at: Millis::ZERO,
            pace_ms: 0.0,
            wake_at: None,
            cloud: Rate::unknown(),
            device: Rate::new(sane(config.decode_ms)),
        }
    }

    /// Takes one event at `now` (monotonic; an earlier or undefined `now` counts as the last one seen).
    pub fn step(&mut self, event: PaceEvent, now: Millis) -> PaceStep {
        let now = if now.is_finite() {
            now.max(self.arrived_at).max(self.shown_at)
        } else {
            self.arrived_at.max(self.shown_at)
        };
        let was_dry = self.shown == self.available;
        self.take(event, now);
        let limit = self.limit();
        if self.mode == PaceMode::Instant {
            self.shown = limit;
            return PaceStep { show: self.shown, wake_at: None };
        }
        // When the next token should have been shown at the latest: a driver that slept may catch up by one gap,
        // but neither a token that came late nor a plan that got faster starts a burst.
        let mut expected = if was_dry { now } else { self.wake_at.map_or(now, |at| at.min(now)) };
        self.wake_at = None;
        while self.shown < limit {
            let gap_ms = if self.shown == 0 { 0.0 } else { self.planned_gap_ms(now) };
            let due = if self.shown == 0 { now } else { self.shown_at + Millis::new(gap_ms) };
            if due.as_f64() > now.as_f64() + TICK_MS {
                self.wake_at = Some(due);
                break;
            }
            self.shown_at = due.max(expected).max(now - Millis::new(gap_ms)).min(now);
            self.pace_ms = gap_ms;
            self.shown += 1;
            expected = Millis::ZERO;
        }
        PaceStep { show: self.shown, wake_at: self.wake_at }
    }

    /// Tokens shown so far.
    #[must_use]
    pub fn shown(&self) -> usize {
        self.shown
    }

    /// Whether the answer is finished and all of it shown.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.finished.is_some_and(|count| self.shown >= count)
    }

    /// Tokens that may be shown now.
    fn limit(&self) -> usize {
        self.finished.map_or(self.available, |count| self.available.min(count)).max(self.shown)
    }

    fn take(&mut self, event: PaceEvent, now: Millis) {
        match event {
            PaceEvent::Available { count } if count > self.available => self.arrive(count, now),
            PaceEvent::CloudEnds { count } => self.cloud_end = Some(count),
            PaceEvent::Handover { ready_at } if ready_at.is_finite() => self.ready_at = Some(ready_at),
            PaceEvent::DecodeMs(ms) if ms.is_finite() && ms >= 0.0 => self.device.set(ms),
            PaceEvent::Finished { count } => self.finished = Some(count),
            PaceEvent::Available { .. }
            | PaceEvent::Handover { .. }
            | PaceEvent::DecodeMs(_)
            | PaceEvent::Tick => {}
        }
    }

    fn arrive(&mut self, count: usize, now: Millis) {
        let by_cloud = self.cloud_end.map_or(count, |end| count.min(end));
        if self.available > 0 {
            let span_ms = (now - self.arrived_at).as_f64();
            if self.available < by_cloud {
                self.cloud.observe(span_ms, by_cloud - self.available);
            } else if self.cloud_end.is_some_and(|end| self.available > end) {
                // From the device's second token on: before its first, it was prefilling.
                self.device.observe(span_ms, count - self.available);
            }
        }
        self.available = count;
        self.arrived_at = now;
    }

    /// The gap to leave between the last token shown and the next one, as planned at `now`.
    fn planned_gap_ms(&self, now: Millis) -> f64 {
        let even = self.even_gap_ms(now, Allowance::NONE);
        let cautious = self.even_gap_ms(now, Allowance::cautious(self.tau_ms));
        let wanted = even.max(cautious.min(CAUTION_CAP * self.tau_ms));
        let gradual = if self.shown == 1 {
            wanted
        } else {
            wanted.max(GAP_SHRINK * self.pace_ms).min((GAP_GROWTH * self.pace_ms).max(self.least_growth_ms()))
        };
        gradual.min(GAP_MAX_MS)
    }

    /// From a pace near zero, growth by a factor would never start.
    fn least_growth_ms(&self) -> f64 {
        0.1 * self.tau_ms
    }
}

/// Numbers from outside: what is negative or no number is zero.
fn sane(ms: f64) -> f64 {
    if ms.is_finite() && ms > 0.0 { ms } else { 0.0 }
}
