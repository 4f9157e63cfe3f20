//! Shows accepted tokens: drives the speed controller and shows what it releases.

use super::{RelayCore, RelayEffect, RelayMode};
use baton_pacing::{Millis, PaceEvent, PaceStep, Pacer, PacerConfig};

/// What was shown, and the controller that decides about the rest.
#[derive(Debug, Default)]
pub(super) struct Display {
    pacer: Option<Pacer>,
    step: Option<PaceStep>,
    shown: usize,
    last_at: Millis,
    told_available: usize,
    told_cloud_end: Option<usize>,
    told_finished: bool,
    told_space_ms: f64,
}

impl Display {
    pub(super) fn shown(&self) -> usize {
        self.shown
    }

    /// Returns when the last token was shown.
    pub(super) fn last_at(&self) -> Millis {
        self.last_at
    }

    pub(super) fn wake_at(&self) -> Option<Millis> {
        self.step.and_then(|s| s.wake_at)
    }
}

impl RelayCore {
    /// Tells the controller what is new, and shows what it releases.
    pub(super) fn pace(&mut self, now: Millis, fx: &mut Vec<RelayEffect>) {
        let count = self.answer.len();
        if count > 0 {
            for event in self.pace_events(count, now) {
                self.pace_step(event, now, fx);
            }
        }
        let waits_for_end = self.end_grace().is_some_and(|until| now < until);
        if self.ending.is_some() && self.display.shown == count && !waits_for_end {
            self.finish(fx);
        }
    }

    fn pace_events(&mut self, count: usize, now: Millis) -> Vec<PaceEvent> {
        let mut events = Vec::with_capacity(4);
        let cloud_end =
            if self.cloud.active() && !self.cloud_complete() { self.cloud.cap } else { self.cloud_len() };
        // Also if L is the length of the answer: then no takeover is paced for.
        let is_long = self.cloud.streaming() && self.cloud.cap >= self.spec.tokens_max;
        let cloud_writes_all = (self.config.mode == RelayMode::CloudOnly || is_long) && self.cloud.active();
        if cloud_writes_all || self.cloud.continuing() || !self.device.usable() {
            // Without a takeover, pacing treats every token as the cloud's.
        } else if self.display.told_cloud_end.is_none_or(|told| cloud_end < told) {
            self.display.told_cloud_end = Some(cloud_end);
            events.push(PaceEvent::CloudEnds { count: cloud_end });
        }
        if let Some(ready_at) = self.device.handover_at(cloud_end, self.cloud.expected_end(count), now) {
            events.push(PaceEvent::Handover { ready_at: ready_at + Millis::new(self.first_check_ms()) });
        }
        let space_ms = self.space_ms().unwrap_or(0.0);
        if space_ms != self.display.told_space_ms {
            self.display.told_space_ms = space_ms;
            events.push(PaceEvent::Steady(space_ms));
        }
        if count > self.display.told_available {
            self.display.told_available = count;
            events.push(PaceEvent::Available { count });
        }
        if self.ending.is_some() && !self.display.told_finished {
            self.display.told_finished = true;
            events.push(PaceEvent::Finished { count });
        }
        if events.is_empty() {
            events.push(PaceEvent::Tick);
        }
        events
    }

    /// Returns the number of tokens that the cloud wrote; they are a prefix of the answer.
    fn cloud_len(&self) -> usize {
        (0..self.answer.len()).take_while(|&i| self.answer.source(i) == super::Source::Cloud).count()
    }

    fn pace_step(&mut self, event: PaceEvent, now: Millis, fx: &mut Vec<RelayEffect>) {
        let config = PacerConfig {
            tau_ms: self.timeline.tau_ms,
            mode: self.config.pace,
            decode_ms: self.config.cost.decode_ms,
        };
        let step = self.display.pacer.get_or_insert_with(|| Pacer::new(config)).step(event, now);
        self.display.step = Some(step);
        let at = self.since(now);
        for index in self.display.shown..step.show.min(self.answer.len()) {
            let source = self.answer.source(index);
            self.timeline.show(index, source, at);
            fx.push(RelayEffect::Show { index, text: self.answer.display(index).to_owned(), source });
            self.display.shown = index + 1;
            self.display.last_at = now;
        }
    }
}
