//! Times of the cloud's recent answers, as this device measured them. They show when to stop waiting for the
//! cloud, and how much time the network adds.
//!
//! Pure. Holds only the times of the newest [`KEPT`] answers, no text of questions or answers.

use crate::relay::Timeline;
use baton_pacing::refit::median;
use std::collections::VecDeque;

/// Number of answers that are remembered.
const KEPT: usize = 64;
/// Number of answers needed for a percentile.
const PERCENTILE_NEEDED: usize = 8;
/// Hedging delay until the cloud's usual time to first token is known.
const HEDGE_AFTER_MS: f64 = 4_000.0;
/// Longest time that a network can add, according to the protocol.
const NETWORK_MS_MAX: f64 = 60_000.0;

/// Times of the newest answers of the cloud.
#[derive(Debug, Default)]
pub(super) struct Recent {
    ttft_ms: VecDeque<f64>,
    network_ms: VecDeque<f64>,
}

impl Recent {
    /// Adds an answer, if the cloud wrote its first token.
    pub(super) fn add(&mut self, timeline: &Timeline) {
        let Some(ttft_ms) = timeline.ttft_cloud_ms else { return };
        push(&mut self.ttft_ms, ttft_ms);
        let Some(cloud) = &timeline.cloud_timing else { return };
        let own_ms = cloud.first.queue_ms + cloud.first.prefill_ms;
        // If the cloud reports no times of its own, the network's part is not known.
        if own_ms > 0.0 {
            push(&mut self.network_ms, (ttft_ms - own_ms).clamp(0.0, NETWORK_MS_MAX));
        }
    }

    /// Returns how long to wait for the cloud before the device also starts. This is the 95th percentile of
    /// the times to first token (nearest rank), or a default while there are too few answers.
    pub(super) fn hedge_after_ms(&self) -> f64 {
        if self.ttft_ms.len() < PERCENTILE_NEEDED {
            return HEDGE_AFTER_MS;
        }
        let mut sorted: Vec<f64> = self.ttft_ms.iter().copied().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let rank = (0.95 * sorted.len() as f64).ceil() as usize;
        sorted[rank.clamp(1, sorted.len()) - 1]
    }

    /// Returns the median time that the network adds to the time to first token. It is the time measured
    /// here, less queue and prefill (with refining) as the cloud reports them.
    pub(super) fn network_ms(&self) -> Option<f64> {
        median(self.network_ms.iter().copied())
    }
}

fn push(newest: &mut VecDeque<f64>, ms: f64) {
    if newest.len() == KEPT {
        newest.pop_front();
    }
    newest.push_back(ms);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::CloudTiming;
    use baton_protocol::Timing;

    fn answer(ttft_ms: f64, queue_ms: f64, prefill_ms: f64) -> Timeline {
        let first = Timing { queue_ms, prefill_ms, ..Timing::default() };
        Timeline {
            ttft_cloud_ms: Some(ttft_ms),
            cloud_timing: Some(CloudTiming { first, slot: None }),
            ..Timeline::default()
        }
    }

    #[test]
    fn the_network_is_what_the_cloud_did_not_take() {
        let mut recent = Recent::default();
        assert_eq!(recent.network_ms(), None);
        for (ttft, queue, prefill) in [(500.0, 100.0, 370.0), (420.0, 0.0, 395.0), (9_000.0, 0.0, 400.0)] {
            recent.add(&answer(ttft, queue, prefill));
        }
        assert_eq!(recent.network_ms(), Some(30.0));
        // Without timing, nothing is added; a cloud whose clock runs fast adds 0, never less.
        recent.add(&answer(800.0, 0.0, 0.0));
        recent.add(&Timeline::default());
        recent.add(&answer(100.0, 0.0, 400.0));
        assert_eq!(recent.network_ms(), Some(27.5));
    }

    #[test]
    fn hedging_waits_for_enough_answers() {
        let mut recent = Recent::default();
        for index in 0..PERCENTILE_NEEDED - 1 {
            recent.add(&answer(100.0 + index as f64, 0.0, 50.0));
            assert_eq!(recent.hedge_after_ms(), HEDGE_AFTER_MS);
        }
        recent.add(&answer(900.0, 0.0, 50.0));
        assert_eq!(recent.hedge_after_ms(), 900.0);
        for _ in 0..2 * KEPT {
            recent.add(&answer(120.0, 0.0, 50.0));
        }
        assert_eq!(recent.hedge_after_ms(), 120.0);
    }
}
