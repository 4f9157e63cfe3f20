//! Progress for a person who waits: how far the cloud or this device is, and how long it will take.
//!
//! It is shown only while there is nothing else to show. A cloud that reports progress counts as alive only
//! if it computes at least a sixteenth of its prompt between reports. So a cloud cannot hold a device for
//! ever with reports alone.

use super::device::DeviceState;
use super::event::{Progress, Source};
use super::{RelayCore, RelayEffect};
use baton_pacing::Millis;
use baton_protocol::{ProgressEvent, ProgressStage};

/// Least time between two reports, even if there is something new, in milliseconds.
const FRESH_MS: f64 = 200.0;
/// Longest time without a report, in milliseconds.
const AGAIN_MS: f64 = 2_000.0;
/// A cloud's prompt counts as progressing in steps of one part in this many.
const STEP_SHARE: u64 = 16;

/// The cloud's last progress event, and when something was last shown.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    cloud: Option<(Millis, ProgressEvent)>,
    /// Tokens of its whole prompt, and the number of computed tokens at its last sign of life.
    counted: Option<(u64, u64)>,
    told_at: Option<Millis>,
    /// Since when this device's prompt waits for its turn.
    queued_at: Option<Millis>,
    /// Something is new since then.
    fresh: bool,
}

impl Waiting {
    /// Notes that this device made progress.
    pub(super) fn refresh(&mut self) {
        self.fresh = true;
    }

    /// Takes a progress event of the cloud; returns whether its prompt progressed enough to be a sign of
    /// life.
    fn hear(&mut self, event: ProgressEvent, now: Millis) -> bool {
        (self.cloud, self.fresh) = (Some((now, event)), true);
        if event.stage != ProgressStage::Prefill {
            return false;
        }
        let (total, last) = self.counted.unwrap_or((event.total, 0));
        let goes_on = event.total == total && event.computed >= last + (total / STEP_SHARE).max(1);
        self.counted = Some((total, if goes_on { event.computed } else { last }));
        goes_on
    }

    /// Forgets the cloud's progress, because the wait for it ended or starts again.
    pub(super) fn forget_cloud(&mut self) {
        (self.cloud, self.counted) = (None, None);
    }
}

/// Returns whether `ms` after `at` is over. It adds as [`RelayCore::tell_at`] does, because a difference
/// may be rounded to less: then the core would wake at once, again and again.
fn is_past(at: Millis, ms: f64, now: Millis) -> bool {
    now >= at + Millis::new(ms)
}

impl RelayCore {
    pub(super) fn on_progress(&mut self, event: ProgressEvent, now: Millis) {
        if self.cloud.waiting() && self.waiting.hear(event, now) {
            self.cloud.last_at = now;
        }
    }

    /// Returns when to show progress next; `None` if nothing is waited for.
    pub(super) fn tell_at(&self, now: Millis) -> Option<Millis> {
        if self.progress(now).is_some() {
            return self.waiting.told_at.map(|at| at + Millis::new(AGAIN_MS));
        }
        self.waiting.queued_at.filter(|_| self.nothing_to_show()).map(|at| at + Millis::new(FRESH_MS))
    }

    /// Shows progress, if there is something new or nothing was shown for long.
    pub(super) fn tell(&mut self, now: Millis, fx: &mut Vec<RelayEffect>) {
        self.note_queue(now);
        let Some(progress) = self.progress(now) else { return };
        let silent_for = |ms| self.waiting.told_at.is_none_or(|at| is_past(at, ms, now));
        if silent_for(AGAIN_MS) || (self.waiting.fresh && silent_for(FRESH_MS)) {
            self.waiting.told_at = Some(now);
            self.waiting.fresh = false;
            fx.push(RelayEffect::Progress(progress));
        }
    }

    /// Returns the progress of the side that will probably be first, cloud or device; `None` if there is text
    /// to show.
    fn progress(&self, now: Millis) -> Option<Progress> {
        if !self.nothing_to_show() {
            return None;
        }
        let eta = |progress: &Progress| progress.eta_ms.unwrap_or(f64::INFINITY);
        let both = [self.cloud_progress(now), self.device_progress(now)];
        both.into_iter().flatten().min_by(|a, b| eta(a).total_cmp(&eta(b)))
    }

    fn nothing_to_show(&self) -> bool {
        self.ending.is_none() && self.display.shown() >= self.answer.len()
    }

    /// Notes whether this device's prompt waits for other answers.
    fn note_queue(&mut self, now: Millis) {
        let asked = matches!(self.device.state, DeviceState::Prompt | DeviceState::Verifying);
        let waits = asked && self.device.progress(now).is_none();
        self.waiting.queued_at = waits.then(|| self.waiting.queued_at.unwrap_or(now));
    }

    fn cloud_progress(&self, now: Millis) -> Option<Progress> {
        let (at, event) = self.waiting.cloud.filter(|_| self.cloud.waiting())?;
        let ProgressEvent { stage, computed, total, eta_ms } = event;
        let eta_ms = eta_ms.map(|ms| (ms - (now - at).as_f64()).max(0.0));
        Some(Progress { source: Source::Cloud, stage, computed, total, eta_ms })
    }

    fn device_progress(&self, now: Millis) -> Option<Progress> {
        if !matches!(self.device.state, DeviceState::Prompt | DeviceState::Verifying) {
            return None;
        }
        let Some((computed, total, ready_at)) = self.device.progress(now) else {
            let long = is_past(self.waiting.queued_at?, FRESH_MS, now);
            let (stage, source) = (ProgressStage::Queue, Source::Device);
            let waits = Progress { source, stage, computed: 0, total: 0, eta_ms: None };
            return long.then_some(waits);
        };
        let eta_ms = Some((ready_at - now).as_f64().max(0.0));
        Some(Progress { source: Source::Device, stage: ProgressStage::Prefill, computed, total, eta_ms })
    }
}
