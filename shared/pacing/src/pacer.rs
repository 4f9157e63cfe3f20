//! The speed controller: how many tokens to show now, and when to check again.
//!
//! A pure state machine over counts and times: `step(event, now) -> (total tokens shown, next wake-up)`. It
//! forecasts when each later token will arrive, from cloud arrivals, the takeover and the device's own
//! decoding. It shows tokens at the even pace that would be optimal if the forecast came true, and plans
//! again at every event. It sees no text and does not compare tokens.
//!
//! What always holds:
//! - it shows only tokens that have arrived, and the count never falls;
//! - the first token is shown at once, and so is a token that arrives when all earlier ones are shown;
//! - a planned gap is at most [`GAP_GROWTH`] times the one before, so that it grows gradually, unless
//!   [`PaceEvent::Steady`] gives it;
//! - while a token is left to show, it asks for a wake-up, so it always finishes;
//! - in [`PaceMode::Instant`] every token is shown when it arrives.

use crate::Millis;

mod forecast;

use forecast::{Allowance, Rate};

/// A planned gap grows by at most this factor from token to token.
pub const GAP_GROWTH: f64 = 1.3;
/// A planned gap is at least this share of the one before.
pub const GAP_SHRINK: f64 = 0.85;
/// The cautious forecast may stretch gaps up to this share of `tau`, even if an even pace allows shorter
/// ones.
const CAUTION_CAP: f64 = 0.97;
/// Maximum planned gap, whatever the estimates say.
const GAP_MAX_MS: f64 = 30_000.0;
/// Times closer than this count as equal, because timers and additions round.
const TICK_MS: f64 = 1e-6;

/// The reader of the text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PaceMode {
    /// A person reads along, so gaps are even.
    #[default]
    Paced,
    /// A program reads, so there is no delay.
    Instant,
}

/// The settings of the controller for one answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PacerConfig {
    /// `tau`: the largest tolerable gap, in milliseconds.
    pub tau_ms: f64,
    /// The reader of the text.
    pub mode: PaceMode,
    /// The device's estimate of its own `TPOT_d`, in milliseconds.
    pub decode_ms: f64,
}

/// An event. All counts are tokens of the answer, from its start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PaceEvent {
    /// Tokens `0..count` have arrived, from the cloud or the device. A smaller count than before is ignored.
    Available {
        /// Number of tokens that have arrived.
        count: usize,
    },
    /// The cloud writes no token of index `count` or above. `count` is `L` when `L` becomes known, and less
    /// if the cloud breaks off. Before the first such event, every token counts as the cloud's.
    CloudEnds {
        /// Number of tokens by the cloud.
        count: usize,
    },
    /// The newest estimate of the arrival of the device's own first token (see [`crate::TakeoverEstimate`]).
    /// Send it with every progress report, and preferably at every wake-up too.
    Handover {
        /// The estimated time, on the same clock as `now`.
        ready_at: Millis,
    },
    /// A new estimate of `TPOT_d`, in milliseconds.
    DecodeMs(f64),
    /// Every planned gap is this long from now on, in milliseconds, whatever is forecast: what has arrived is
    /// a buffer for what is late. Zero ends it.
    Steady(f64),
    /// The answer is complete.
    Finished {
        /// Number of tokens in the answer.
        count: usize,
    },
    /// Time has passed.
    Tick,
}

/// The result of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PaceStep {
    /// Total tokens shown after this step; never less than before.
    pub show: usize,
    /// The latest time of the next call; `None` if no token is left to show.
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
    /// When the newest token arrived.
    arrived_at: Millis,
    /// When the last shown token was due; the plan continues from that time.
    shown_at: Millis,
    /// The gap planned before the last shown token; 0 if there is none.
    pace_ms: f64,
    /// The planned gap, if it is not forecast; else zero.
    steady_ms: f64,
    /// The wake-up that the last step asked for.
    wake_at: Option<Millis>,
    cloud: Rate,
    device: Rate,
}

impl Pacer {
    /// Makes a controller before the first event. Negative and non-finite numbers in `config` count as zero.
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
            steady_ms: 0.0,
            wake_at: None,
            cloud: Rate::unknown(),
            device: Rate::new(sane(config.decode_ms)),
        }
    }

    /// Handles one event at `now`. Time is monotonic: an earlier or non-finite `now` counts as the latest
    /// time seen.
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
        // The latest time at which the next token should have been shown. A driver that woke up late may
        // catch up by one gap. Neither a late token nor a faster plan causes a burst.
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

    /// Returns the number of tokens shown so far.
    #[must_use]
    pub fn shown(&self) -> usize {
        self.shown
    }

    /// Returns whether the answer is complete and fully shown.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.finished.is_some_and(|count| self.shown >= count)
    }

    /// Returns the number of tokens that may be shown now.
    fn limit(&self) -> usize {
        self.finished.map_or(self.available, |count| self.available.min(count)).max(self.shown)
    }

    fn take(&mut self, event: PaceEvent, now: Millis) {
        match event {
            PaceEvent::Available { count } if count > self.available => self.arrive(count, now),
            PaceEvent::CloudEnds { count } => self.cloud_end = Some(count),
            PaceEvent::Handover { ready_at } if ready_at.is_finite() => self.ready_at = Some(ready_at),
            PaceEvent::DecodeMs(ms) if ms.is_finite() && ms >= 0.0 => self.device.set(ms),
            PaceEvent::Steady(ms) => self.steady_ms = sane(ms),
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
                // Only from the device's second token on, because it was prefilling before its first.
                self.device.observe(span_ms, count - self.available);
            }
        }
        self.available = count;
        self.arrived_at = now;
    }

    /// Plans the gap between the last shown token and the next one, at `now`.
    fn planned_gap_ms(&self, now: Millis) -> f64 {
        if self.steady_ms > 0.0 {
            return self.steady_ms.min(GAP_MAX_MS);
        }
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

    /// Returns a gap that is always allowed, because growth by a factor cannot start from a gap near zero.
    fn least_growth_ms(&self) -> f64 {
        0.1 * self.tau_ms
    }
}

/// Replaces a negative or non-finite number from outside by zero.
fn sane(ms: f64) -> f64 {
    if ms.is_finite() && ms > 0.0 { ms } else { 0.0 }
}
