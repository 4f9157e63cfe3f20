//! What a person who waits is told: how far the cloud or this device is, and how long it will take.
//!
//! Told only while there is nothing to show. A cloud that says how far it is counts as alive only while it computes: by
//! a sixteenth of its prompt at a time, so that no words of its own can hold a device for ever.

use super::device::DeviceState;
use super::event::{Progress, Source};
use super::{RelayCore, RelayEffect};
use baton_pacing::Millis;
use baton_protocol::{ProgressEvent, ProgressStage};

/// Between two reports that say something new.
const FRESH_MS: f64 = 200.0;
/// Nothing is silent for longer.
const AGAIN_MS: f64 = 2_000.0;
/// A cloud's prompt counts as going on by such a share of it.
const STEP_SHARE: u64 = 16;

/// What was heard of the cloud's progress, and when something was told.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    cloud: Option<(Millis, ProgressEvent)>,
    /// Tokens of its whole prompt and those that counted last as a sign of life.
    counted: Option<(u64, u64)>,
    told_at: Option<Millis>,
    /// Something new since then.
    fresh: bool,
}

impl Waiting {
    /// There is something new of this device.
    pub(super) fn refresh(&mut self) {
        self.fresh = true;
    }

    /// Takes what the cloud says in; whether its prompt went on.
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

    /// The cloud is not waited for any more, or anew.
    pub(super) fn forget_cloud(&mut self) {
        (self.cloud, self.counted) = (None, None);
    }
}

impl RelayCore {
    pub(super) fn on_progress(&mut self, event: ProgressEvent, now: Millis) {
        if self.cloud.waiting() && self.waiting.hear(event, now) {
            self.cloud.last_at = now;
        }
    }

    /// When the person must be told again; `None` if nothing is waited for, or that was never told.
    pub(super) fn tell_at(&self, now: Millis) -> Option<Millis> {
        let told_at = self.waiting.told_at?;
        self.progress(now).map(|_| told_at + Millis::new(AGAIN_MS))
    }

    /// Tells the person how far it is, if there is something new or it was long silent.
    pub(super) fn tell(&mut self, now: Millis, fx: &mut Vec<RelayEffect>) {
        let Some(progress) = self.progress(now) else { return };
        let silent_ms = self.waiting.told_at.map_or(f64::INFINITY, |at| (now - at).as_f64());
        if silent_ms >= AGAIN_MS || (self.waiting.fresh && silent_ms >= FRESH_MS) {
            self.waiting.told_at = Some(now);
            self.waiting.fresh = false;
            fx.push(RelayEffect::Progress(progress));
        }
    }

    /// How far it is that is waited for: of cloud and device the one that will be first, as far as is known.
    fn progress(&self, now: Millis) -> Option<Progress> {
        if self.ending.is_some() || self.display.shown() < self.answer.len() {
            return None;
        }
        let eta = |progress: &Progress| progress.eta_ms.unwrap_or(f64::INFINITY);
        let both = [self.cloud_progress(now), self.device_progress(now)];
        both.into_iter().flatten().min_by(|a, b| eta(a).total_cmp(&eta(b)))
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
        let (computed, total, ready_at) = self.device.progress(now)?;
        let eta_ms = Some((ready_at - now).as_f64().max(0.0));
        Some(Progress { source: Source::Device, stage: ProgressStage::Prefill, computed, total, eta_ms })
    }
}
