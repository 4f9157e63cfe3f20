//! Forecasts when later tokens will arrive, and computes the even pace that follows.

use super::Pacer;
use crate::Millis;

/// Weight of a single new interval in the running mean.
const RATE_GAIN: f64 = 0.2;
/// Tokens kept in reserve after the takeover, against uneven decoding on the device.
const RESERVE_TOKENS: usize = 2;
/// Factor on the device's gap while more tokens than the reserve are left.
const DRAIN: f64 = 0.92;
/// Factor on the device's gap while fewer tokens than the reserve are left, as far as `tau` allows.
const REFILL: f64 = 1.1;

/// A mean interval between tokens, in milliseconds.
#[derive(Debug, Clone)]
pub(super) struct Rate {
    mean_ms: f64,
    known: bool,
}

impl Rate {
    pub(super) fn unknown() -> Self {
        Self { mean_ms: 0.0, known: false }
    }

    pub(super) fn new(mean_ms: f64) -> Self {
        Self { mean_ms, known: true }
    }

    pub(super) fn set(&mut self, mean_ms: f64) {
        *self = Self::new(mean_ms);
    }

    /// Updates the mean: `count` tokens arrived within `span_ms`.
    pub(super) fn observe(&mut self, span_ms: f64, count: usize) {
        let interval_ms = span_ms / count.max(1) as f64;
        if !self.known {
            *self = Self::new(interval_ms);
            return;
        }
        let gain = 1.0 - (1.0 - RATE_GAIN).powi(i32::try_from(count).unwrap_or(i32::MAX));
        self.mean_ms += gain * (interval_ms - self.mean_ms);
    }

    pub(super) fn mean_ms(&self) -> f64 {
        self.mean_ms
    }
}

/// The delays that a cautious forecast adds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowance {
    /// A cloud token may be this much later.
    cloud_late_ms: f64,
    /// The takeover may be later by this share of its remaining time.
    handover_late: f64,
    /// A device token may be later by this share of its interval.
    device_late: f64,
}

impl Allowance {
    /// No delays.
    pub(super) const NONE: Self = Self { cloud_late_ms: 0.0, handover_late: 0.0, device_late: 0.0 };

    /// Delays for ordinary jitter and a slightly late takeover. Stalls cannot be planned for.
    pub(super) fn cautious(tau_ms: f64) -> Self {
        Self { cloud_late_ms: 2.0 * tau_ms, handover_late: 0.3, device_late: 0.3 }
    }
}

impl Pacer {
    /// Returns the smallest even gap from the last shown token for which no token is late, if the forecast
    /// holds. It is the hindsight optimum `max (a_i - s) / (gaps up to i)` over all later tokens `i`.
    /// Arrivals are forecast as straight lines, so only their ends count.
    pub(super) fn even_gap_ms(&self, now: Millis, allow: Allowance) -> f64 {
        let mut gap_ms = 0.0_f64;
        let mut reach = |index: usize, at_ms: f64| {
            let gaps = (index + 1).saturating_sub(self.shown).max(1) as f64;
            gap_ms = gap_ms.max((at_ms - self.shown_at.as_f64()) / gaps);
        };
        if self.finished.is_some_and(|count| self.available >= count) {
            // No more tokens arrive: the rest is shown at the device's pace.
            return self.device.mean_ms() * DRAIN;
        }
        let handover_ms = self.handover_ms(now, allow);
        if self.cloud_writes() {
            let next_ms = self.next_from_cloud_ms(now, allow, handover_ms);
            reach(self.available, next_ms);
            if let Some(end) = self.cloud_end {
                let last_ms = next_ms + self.cloud.mean_ms() * (end - 1 - self.available) as f64;
                reach(end - 1, last_ms);
            }
        }
        match self.cloud_end {
            None => gap_ms.max(self.cloud.mean_ms()),
            Some(end) if self.available <= end => {
                if let Some(at_ms) = handover_ms {
                    reach(end, at_ms);
                }
                gap_ms.max(self.device.mean_ms())
            }
            Some(_) => {
                let interval_ms = self.device.mean_ms();
                let late_ms = allow.device_late * interval_ms;
                let next_ms = now.as_f64().max(self.arrived_at.as_f64() + interval_ms) + late_ms;
                reach(self.available, next_ms);
                gap_ms.max(self.device_pace_ms())
            }
        }
    }

    /// Returns whether more tokens of the cloud are expected.
    fn cloud_writes(&self) -> bool {
        self.cloud_end.is_none_or(|end| self.available < end)
    }

    /// Forecasts the device's own first token.
    fn handover_ms(&self, now: Millis, allow: Allowance) -> Option<f64> {
        let ready_ms = self.ready_at?.max(now).as_f64();
        Some(ready_ms + allow.handover_late * (ready_ms - now.as_f64()))
    }

    /// Forecasts the next cloud token. A token that is overdue is expected after the same delay again, but
    /// not after the takeover, which does not need the cloud.
    fn next_from_cloud_ms(&self, now: Millis, allow: Allowance, handover_ms: Option<f64>) -> f64 {
        let expected_ms = self.arrived_at.as_f64() + self.cloud.mean_ms();
        let overdue_ms = (now.as_f64() - expected_ms).max(0.0);
        let next_ms = expected_ms.max(now.as_f64() + overdue_ms) + allow.cloud_late_ms;
        handover_ms.map_or(next_ms, |at_ms| next_ms.min(at_ms))
    }

    /// Returns the gap between the device's own tokens: the interval of their arrival. It is slightly shorter
    /// while more than the reserve is left, and slightly longer while less is left, as far as `tau` allows.
    fn device_pace_ms(&self) -> f64 {
        let interval_ms = self.device.mean_ms();
        let reserve = self.available - self.shown;
        if reserve > RESERVE_TOKENS {
            interval_ms * DRAIN
        } else if reserve < RESERVE_TOKENS {
            interval_ms.max((interval_ms * REFILL).min(super::CAUTION_CAP * self.tau_ms))
        } else {
            interval_ms
        }
    }
}
