//! Shows one trace through the real speed controller, on a virtual clock.

use baton_pacing::{
    GapStats, Millis, PaceEvent, PaceMode, PaceStep, Pacer, PacerConfig, TakeoverEstimate,
    best_gap_in_hindsight,
};

use super::PARAMS;
use super::trace::{Event, Trace};
use crate::random::Random;

/// The display of one answer, as a user would see it.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// When each token was shown.
    pub shown_at: Vec<Millis>,
    /// Statistics of its gaps.
    pub gaps: GapStats,
    /// The minimum of the largest gap in hindsight.
    pub hindsight_ms: f64,
    /// Number of steps that took tokens back or showed tokens that had not arrived.
    pub repeats: usize,
    /// Number of tokens that were never shown.
    pub skips: usize,
    /// Time from the last token's arrival until it is shown.
    pub lag_ms: f64,
}

/// The controller, its estimate and the tokens shown so far.
struct Display {
    pacer: Pacer,
    estimate: TakeoverEstimate,
    prompt_tokens: usize,
    cloud_tokens: usize,
    available: usize,
    wake_at: Option<Millis>,
    shown_at: Vec<Millis>,
    repeats: usize,
}

/// Runs the controller over all events of `trace`, and then until it asks for no more wake-ups.
pub(super) fn play(trace: &Trace, random: &mut Random) -> Seen {
    let planned = trace.plan.assist_tokens as usize;
    let mut display = Display {
        pacer: Pacer::new(PacerConfig {
            tau_ms: PARAMS.tau_ms,
            mode: PaceMode::Paced,
            decode_ms: trace.estimate.decode_ms,
        }),
        estimate: TakeoverEstimate::new(
            trace.estimate,
            trace.prefill_start,
            trace.held_tokens,
            trace.target_tokens,
        ),
        prompt_tokens: trace.target_tokens - planned,
        cloud_tokens: planned,
        available: 0,
        wake_at: None,
        shown_at: Vec::with_capacity(trace.available_at.len()),
        repeats: 0,
    };
    let total = trace.available_at.len();
    for &(at, event) in &trace.events {
        display.wake_until(at, random);
        display.take(event, at, total);
    }
    display.wake_until(Millis::new(f64::INFINITY), random);
    display.finish(trace)
}

impl Display {
    /// Wakes the controller at the times it asked for, slightly late like real timers, until the next event.
    fn wake_until(&mut self, until: Millis, random: &mut Random) {
        while let Some(due) = self.wake_at {
            let now = due + Millis::new(random.uniform(PARAMS.timer_late_ms));
            if now >= until {
                return;
            }
            self.wake_at = None;
            let event = self.handover(now);
            self.step(event, now);
        }
    }

    fn take(&mut self, event: Event, now: Millis, total: usize) {
        match event {
            Event::Progress(tokens) => {
                self.estimate.progress(tokens, now);
                if self.available > 0 {
                    let event = self.handover(now);
                    self.step(event, now);
                }
            }
            Event::CloudEnds(count) => {
                self.cloud_tokens = count;
                self.estimate.set_target(self.prompt_tokens + count);
                self.step(PaceEvent::CloudEnds { count }, now);
            }
            Event::Available(count) => {
                if count == 1 {
                    self.step(PaceEvent::CloudEnds { count: self.cloud_tokens }, now);
                    let event = self.handover(now);
                    self.step(event, now);
                }
                self.available = count;
                self.step(PaceEvent::Available { count }, now);
                if count == total {
                    self.step(PaceEvent::Finished { count }, now);
                }
            }
        }
    }

    /// Returns the newest estimate of the takeover, or a tick after the takeover.
    fn handover(&self, now: Millis) -> PaceEvent {
        if self.available > self.cloud_tokens {
            PaceEvent::Tick
        } else {
            PaceEvent::Handover { ready_at: self.estimate.ready_at(now) }
        }
    }

    fn step(&mut self, event: PaceEvent, now: Millis) {
        let PaceStep { show, wake_at } = self.pacer.step(event, now);
        if show < self.shown_at.len() || show > self.available {
            self.repeats += 1;
        }
        while self.shown_at.len() < show {
            self.shown_at.push(now);
        }
        self.wake_at = wake_at;
    }

    fn finish(self, trace: &Trace) -> Seen {
        let total = trace.available_at.len();
        let last = |times: &[Millis]| times.last().copied().unwrap_or_default();
        let lag = last(&self.shown_at) - last(&trace.available_at);
        Seen {
            gaps: GapStats::of(&self.shown_at),
            hindsight_ms: best_gap_in_hindsight(&trace.available_at).as_f64(),
            repeats: self.repeats,
            skips: total.abs_diff(self.shown_at.len()),
            lag_ms: lag.as_f64(),
            shown_at: self.shown_at,
        }
    }
}
