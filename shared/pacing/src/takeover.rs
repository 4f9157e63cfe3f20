//! Forecasts the device's own first token from its prefill progress.
//!
//! The amount of prefill work is known (tokens and the device's cost curve). The time for a unit of work is
//! measured, over at most the last half of the work. An overdue report counts as well, because a pass that
//! has not ended cannot have been fast.
//!
//! The estimate is made for planning. A pace that is slightly too fast at first can still be corrected, so
//! early measurements are rounded down. Nothing can be corrected at the end, so the remaining time has a
//! margin, which shrinks as passes end. It sees neither tokens nor text and reads no clock.

use std::collections::VecDeque;

use crate::{DeviceCost, Millis};

/// The speed is measured over the latest part of the work, of at most this share.
const WINDOW: f64 = 0.5;
/// Progress is reported at least once per this share of the work, or per [`REPORT_TOKENS`] if that is more. A
/// first report is overdue after that.
const REPORT_SHARE: f64 = 1.0 / 16.0;
/// Least tokens of a pass that is not the last one.
const REPORT_TOKENS: f64 = 32.0;
/// The durations of passes vary independently by a few per cent. The margin is this share of one pass, times
/// the square root of the number of passes left.
const UNSURE: f64 = 0.1;
/// The share of the margin that is always kept ahead of the clock, also when the takeover is overdue.
const UNSURE_OVERDUE: f64 = 0.25;
/// A measurement over `n` passes is lowered by this share divided by `n`.
const EARLY_DISCOUNT: f64 = 0.05;
/// Before the first report, the delay of an overdue pass is multiplied by this factor.
const OVERDUE_MORE: f64 = 1.2;
/// Weight of the device's own estimate against measurements, as a share of all work. It keeps the first tiny
/// report (one layer) from deciding alone.
const PRIOR: f64 = 1.0 / 512.0;

/// Returns the factor that lowers a measurement over `passes` passes.
fn discount(passes: f64) -> f64 {
    1.0 - EARLY_DISCOUNT / passes.max(1.0)
}

/// The forecast of one takeover, corrected by every report.
#[derive(Debug, Clone)]
pub struct TakeoverEstimate {
    cost: DeviceCost,
    held_tokens: usize,
    target_tokens: usize,
    /// The reports that are kept, as (time, tokens in the cache), oldest first; never empty.
    reports: VecDeque<(Millis, usize)>,
    /// The largest step between two reports, in tokens; 0 before the first report.
    step_tokens: usize,
}

impl TakeoverEstimate {
    /// Starts an estimate: prefill begins at `start` with `held_tokens` in the KV cache. The takeover happens
    /// when the cache holds `target_tokens` (the refined prompt and all `L` cloud tokens).
    #[must_use]
    pub fn new(cost: DeviceCost, start: Millis, held_tokens: usize, target_tokens: usize) -> Self {
        let target_tokens = target_tokens.max(held_tokens);
        let mut reports = VecDeque::with_capacity(80);
        reports.push_back((start, held_tokens));
        Self { cost, held_tokens, target_tokens, reports, step_tokens: 0 }
    }

    /// Handles a report that the KV cache holds `tokens` at `now`. Reports that go back, in tokens or in
    /// time, are ignored.
    pub fn progress(&mut self, tokens: usize, now: Millis) {
        let (last_at, last) = self.latest();
        if tokens <= last || now < last_at || !now.is_finite() {
            return;
        }
        self.step_tokens = self.step_tokens.max(tokens - last);
        self.target_tokens = self.target_tokens.max(tokens);
        let whole = self.work(self.target_tokens);
        // The newest report replaces the last one kept if both are close, because many small steps add no
        // information.
        if self.reports.len() > 1 {
            let before = self.reports[self.reports.len() - 2].1;
            if self.work(tokens) - self.work(before) < whole / 64.0 {
                self.reports.pop_back();
            }
        }
        self.reports.push_back((now, tokens));
        while self.reports.len() > 2 && self.work(tokens) - self.work(self.reports[1].1) >= WINDOW * whole {
            self.reports.pop_front();
        }
    }

    /// Changes the target, because the cloud wrote fewer tokens than planned or more work was added.
    pub fn set_target(&mut self, target_tokens: usize) {
        self.target_tokens = target_tokens.max(self.latest().1);
    }

    /// Returns the planned time of the takeover, as seen from `now`. It is never in the past while work is
    /// left.
    #[must_use]
    pub fn ready_at(&self, now: Millis) -> Millis {
        let (last_at, last) = self.latest();
        let left = self.work(self.target_tokens) - self.work(last);
        if left <= 0.0 {
            return last_at;
        }
        let measured = self.measured();
        let under_way = self.next_work(self.under_way_tokens());
        let passes_left = if under_way > 0.0 { left / under_way } else { 1.0 };
        let unsure = UNSURE * measured * under_way * passes_left.sqrt();
        let likely = (measured * left + unsure).max(self.at_least(now) * left);
        (last_at + Millis::new(likely)).max(now + Millis::new(UNSURE_OVERDUE * unsure))
    }

    /// Returns the measured ratio of real to estimated time; 1 before the first report.
    fn measured(&self) -> f64 {
        let (last_at, last) = self.latest();
        let (first_at, first) = self.reports[0];
        if last == first {
            return 1.0;
        }
        self.ratio(last_at - first_at, self.work(last) - self.work(first)) * discount(self.passes())
    }

    /// Returns the ratio of real to estimated time if the current pass ended at `now`: a lower bound.
    fn at_least(&self, now: Millis) -> f64 {
        let (first_at, first) = self.reports[0];
        let done = self.work(self.latest().1) - self.work(first);
        let bound = self.ratio(now - first_at, done + self.next_work(self.under_way_tokens()));
        let bound = bound * discount(self.passes() + 1.0);
        if self.passes() == 0.0 && bound > 1.0 { 1.0 + (bound - 1.0) * OVERDUE_MORE } else { bound }
    }

    /// Returns the ratio of real to estimated time of `work`. The device's own estimate has a small weight
    /// while the window reaches back to the start.
    fn ratio(&self, real: Millis, work: f64) -> f64 {
        let from_start = self.reports[0].1 == self.held_tokens;
        let whole = self.work(self.target_tokens).max(f64::MIN_POSITIVE);
        let prior = if from_start { PRIOR * whole } else { 0.0 };
        (real.as_f64() + prior) / (work + prior)
    }

    /// Returns the number of passes within the window.
    fn passes(&self) -> f64 {
        (self.latest().1 - self.reports[0].1) as f64 / self.step_tokens.max(1) as f64
    }

    /// Returns the tokens of the current pass: the largest step so far, at most the tokens left.
    fn under_way_tokens(&self) -> usize {
        let whole = self.target_tokens - self.held_tokens;
        let step = if self.step_tokens > 0 {
            self.step_tokens
        } else {
            (whole as f64 * REPORT_SHARE).max(REPORT_TOKENS).ceil() as usize
        };
        step.min(self.target_tokens - self.latest().1)
    }

    /// Returns the estimated milliseconds for the next `tokens`.
    fn next_work(&self, tokens: usize) -> f64 {
        let last = self.latest().1;
        self.work(last + tokens) - self.work(last)
    }

    fn latest(&self) -> (Millis, usize) {
        *self.reports.back().expect("reports start with one entry, and pops leave one")
    }

    /// Returns the estimated milliseconds of prefill from the held tokens up to `tokens`.
    fn work(&self, tokens: usize) -> f64 {
        let held = self.held_tokens as f64;
        self.cost.prefill_ms(held, (tokens as f64 - held).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: DeviceCost = DeviceCost {
        prefill_ms_per_token: 2.5,
        prefill_ms_per_token2: 1e-4,
        decode_ms: 45.0,
        decompress_ms: 1.0,
    };

    /// Runs a device that is `slowness` times slower than estimated. Returns the relative error of the
    /// forecast just before each of 16 reports.
    fn errors(slowness: f64) -> Vec<f64> {
        let mut estimate = TakeoverEstimate::new(COST, Millis::new(100.0), 40, 1_640);
        let end = 100.0 + slowness * COST.prefill_ms(40.0, 1_600.0);
        let at = |tokens: f64| Millis::new(100.0 + slowness * COST.prefill_ms(40.0, tokens));
        (1..=16)
            .map(|chunk| {
                let now = at(100.0 * f64::from(chunk));
                let error = (estimate.ready_at(now).as_f64() - end).abs() / (end - 100.0);
                estimate.progress(40 + 100 * chunk as usize, now);
                error
            })
            .collect()
    }

    #[test]
    fn a_wrong_estimate_is_corrected_by_the_first_reports() {
        for slowness in [0.5, 0.8, 1.0, 1.3, 2.0] {
            let errors = errors(slowness);
            // At slowness 0.5 the first error is 1, plus the first margin of 2.5 % of the estimate.
            assert!(errors[0] < 1.06, "before any report: {errors:?}");
            assert!(errors[1..].iter().all(|&error| error < 0.08), "slowness {slowness}: {errors:?}");
            assert!(errors[8..].iter().all(|&error| error < 0.03), "slowness {slowness}: {errors:?}");
        }
    }

    #[test]
    fn a_report_that_is_overdue_moves_the_estimate() {
        let estimate = TakeoverEstimate::new(COST, Millis::ZERO, 0, 1_600);
        let planned = COST.prefill_ms(0.0, 1_600.0);
        let first = estimate.ready_at(Millis::ZERO).as_f64();
        assert!(first >= planned && first < 1.03 * planned, "{first} of {planned}");
        // After twice the estimated time of the first sixteenth, there is still no report.
        let late = estimate.ready_at(Millis::new(planned / 8.0)).as_f64();
        assert!(late > 1.85 * planned && late < 2.3 * planned, "{late} of {planned}");
    }

    #[test]
    fn odd_reports_change_nothing() {
        let mut estimate = TakeoverEstimate::new(COST, Millis::ZERO, 0, 1_000);
        estimate.progress(500, Millis::new(1_250.0));
        let before = estimate.ready_at(Millis::new(1_250.0));
        estimate.progress(400, Millis::new(1_300.0));
        estimate.progress(600, Millis::new(100.0));
        estimate.progress(600, Millis::new(f64::NAN));
        assert_eq!(estimate.ready_at(Millis::new(1_250.0)), before);
        estimate.progress(1_000, Millis::new(2_500.0));
        assert_eq!(estimate.ready_at(Millis::new(9_000.0)), Millis::new(2_500.0));
    }

    #[test]
    fn fewer_cloud_tokens_bring_the_takeover_forward() {
        let mut estimate = TakeoverEstimate::new(COST, Millis::ZERO, 0, 1_000);
        let before = estimate.ready_at(Millis::ZERO);
        estimate.set_target(960);
        assert!(estimate.ready_at(Millis::ZERO) < before);
    }
}
