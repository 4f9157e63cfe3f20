//! Times of the cloud's recent answers, as this device measured them. They show when to stop waiting for the
//! cloud, how much time the network adds, and what the next answer of the cloud will take.
//!
//! Pure. Holds only times and counts of the newest [`KEPT`] answers, no text of questions or answers.

use crate::relay::Timeline;
use baton_pacing::CloudCost;
use baton_pacing::refit::{fit_line, median};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Number of answers that are remembered.
const KEPT: usize = 64;
/// Number of answers needed for a percentile.
const PERCENTILE_NEEDED: usize = 8;
/// Hedging delay until the cloud's usual time to first token is known.
const HEDGE_AFTER_MS: f64 = 4_000.0;
/// Longest time that a network can add, according to the protocol.
const NETWORK_MS_MAX: f64 = 60_000.0;
/// Answers whose waiting time before prefill counts: the cloud's load changes within minutes.
const QUEUES: usize = 8;
/// Seconds after which the times of an answer say nothing about the next one.
const VALID_S: u64 = 24 * 3600;
/// A prompt may be so many times as long as the longest one of the measured answers. The time of a longer one
/// is not known.
const LONGER_MAX: f64 = 4.0;
/// Seconds after which the line is measured again, by a fetch that may be given up.
const LINE_VALID_S: u64 = 300;
/// Tokens of an answer, until any was written.
const ANSWER_TOKENS: f64 = 200.0;

/// The times of one answer of the cloud.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Sample {
    /// When it ended, in seconds since 1970.
    at_s: u64,
    /// Time to first token.
    first_ms: f64,
    /// What the cloud itself reports, if it does.
    own: Option<Own>,
}

/// What the cloud reports of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Own {
    queue_ms: f64,
    prefill_ms: f64,
    decode_ms: f64,
    /// Prompt tokens that it computed.
    tokens: f64,
    /// Bytes of the request's texts.
    bytes: f64,
}

impl Sample {
    /// Returns what the network added to the time to first token.
    fn network_ms(&self) -> Option<f64> {
        let own = self.own.as_ref()?;
        Some((self.first_ms - own.queue_ms - own.prefill_ms).clamp(0.0, NETWORK_MS_MAX))
    }
}

/// Times of the newest answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recent {
    cloud: VecDeque<Sample>,
    /// Tokens of the newest whole answers, whoever wrote them.
    answer_tokens: VecDeque<f64>,
    /// When keys and values came last, and how many bytes a second.
    #[serde(default)]
    line: Option<(u64, f64)>,
}

/// What the next answer of the cloud is expected to take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CloudExpected {
    pub(super) cost: CloudCost,
    /// Most prompt tokens for which it holds.
    pub(super) tokens_max: f64,
}

impl Recent {
    /// Adds an answer. `bytes`: of the texts of its request; `now_s`: seconds since 1970.
    pub(super) fn add(&mut self, timeline: &Timeline, bytes: Option<usize>, now_s: u64) {
        if !timeline.shown.is_empty() {
            push(&mut self.answer_tokens, timeline.shown.len() as f64);
        }
        if let Some(rate) = timeline.kv.as_ref().and_then(|kv| kv.line_bytes_per_s) {
            self.line = Some((now_s, rate));
        }
        let Some(first_ms) = timeline.ttft_cloud_ms else { return };
        let own = timeline.cloud_timing.as_ref().and_then(|cloud| {
            // If the cloud reports no times of its own, the network's part is not known.
            let is_told = cloud.first.queue_ms + cloud.first.prefill_ms > 0.0;
            let usage = timeline.cloud_usage.unwrap_or_default();
            is_told.then(|| Own {
                queue_ms: cloud.first.queue_ms,
                prefill_ms: cloud.first.prefill_ms,
                decode_ms: cloud.first.decode_ms,
                tokens: usage.prompt_tokens.saturating_sub(usage.cached_prefix_tokens) as f64,
                bytes: bytes.unwrap_or(0) as f64,
            })
        });
        push(&mut self.cloud, Sample { at_s: now_s, first_ms, own });
    }

    /// Returns how long to wait for the cloud before the device also starts. This is the 95th percentile of
    /// the times to first token (nearest rank), or a default while there are too few answers.
    pub(super) fn hedge_after_ms(&self) -> f64 {
        if self.cloud.len() < PERCENTILE_NEEDED {
            return HEDGE_AFTER_MS;
        }
        let mut sorted: Vec<f64> = self.cloud.iter().map(|sample| sample.first_ms).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let rank = (0.95 * sorted.len() as f64).ceil() as usize;
        sorted[rank.clamp(1, sorted.len()) - 1]
    }

    /// Returns the median time that the network adds to the time to first token. It is the time measured
    /// here, less queue and prefill (with refining) as the cloud reports them.
    pub(super) fn network_ms(&self) -> Option<f64> {
        median(self.cloud.iter().filter_map(Sample::network_ms))
    }

    /// Returns how many bytes a second came over the line, if that was measured lately.
    pub(super) fn line_bytes_per_s(&self, now_s: u64) -> Option<f64> {
        let (_, rate) = self.line.filter(|(at_s, _)| now_s.saturating_sub(*at_s) <= LINE_VALID_S)?;
        Some(rate).filter(|rate| rate.is_finite() && *rate > 0.0)
    }

    /// Returns the usual length of an answer, in tokens.
    pub(super) fn answer_tokens(&self) -> f64 {
        median(self.answer_tokens.iter().copied()).unwrap_or(ANSWER_TOKENS).max(1.0)
    }

    /// Returns what an answer of the cloud is expected to take if its request has texts of so many bytes.
    /// `None` if no answer of the last day says it.
    pub(super) fn cloud(&self, bytes: f64, now_s: u64) -> Option<CloudExpected> {
        let valid: Vec<(&Sample, Own)> = self
            .cloud
            .iter()
            .filter(|sample| now_s.saturating_sub(sample.at_s) <= VALID_S)
            .filter_map(|sample| Some((sample, sample.own?)))
            .filter(|(_, own)| own.tokens >= 1.0 && own.decode_ms > 0.0)
            .collect();
        let longest = valid.iter().map(|(_, own)| own.tokens).reduce(f64::max)?;
        let prefills: Vec<(f64, f64)> = valid.iter().map(|(_, own)| (own.tokens, own.prefill_ms)).collect();
        // Of few answers the longest prompts count: in short ones, much of the time is not the tokens'.
        let long = prefills.iter().filter(|(tokens, _)| 2.0 * tokens >= longest);
        let each = || median(long.map(|(tokens, ms)| ms / tokens)).unwrap_or(0.0);
        let prefill = fit_line(&prefills).map_or_else(|| (0.0, each()), |line| (line.intercept, line.slope));
        let networks: Vec<(f64, f64)> =
            valid.iter().filter_map(|(sample, own)| Some((own.bytes, sample.network_ms()?))).collect();
        let level = || median(networks.iter().map(|(_, ms)| *ms)).unwrap_or(0.0);
        let rtt_ms = fit_line(&networks).map_or_else(level, |line| line.intercept + line.slope * bytes);
        let queues = valid.iter().rev().take(QUEUES).map(|(_, own)| own.queue_ms);
        let cost = CloudCost {
            ttft_base_ms: prefill.0,
            prefill_ms_per_token: prefill.1,
            decode_ms: median(valid.iter().map(|(_, own)| own.decode_ms))?,
            rtt_ms,
            queue_ms: median(queues)?,
            compress_ms: 0.0,
        };
        Some(CloudExpected { cost, tokens_max: LONGER_MAX * longest })
    }
}

fn push<T>(newest: &mut VecDeque<T>, value: T) {
    if newest.len() >= KEPT {
        newest.pop_front();
    }
    newest.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::CloudTiming;
    use baton_protocol::{Timing, Usage};

    fn answer(ttft_ms: f64, queue_ms: f64, prefill_ms: f64) -> Timeline {
        let first = Timing { queue_ms, prefill_ms, decode_ms: 20.0, ..Timing::default() };
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
            recent.add(&answer(ttft, queue, prefill), None, 0);
        }
        assert_eq!(recent.network_ms(), Some(30.0));
        // Without timing, nothing is added; a cloud whose clock runs fast adds 0, never less.
        recent.add(&answer(800.0, 0.0, 0.0), None, 0);
        recent.add(&Timeline::default(), None, 0);
        recent.add(&answer(100.0, 0.0, 400.0), None, 0);
        assert_eq!(recent.network_ms(), Some(27.5));
    }

    #[test]
    fn hedging_waits_for_enough_answers() {
        let mut recent = Recent::default();
        for index in 0..PERCENTILE_NEEDED - 1 {
            recent.add(&answer(100.0 + index as f64, 0.0, 50.0), None, 0);
            assert_eq!(recent.hedge_after_ms(), HEDGE_AFTER_MS);
        }
        recent.add(&answer(900.0, 0.0, 50.0), None, 0);
        assert_eq!(recent.hedge_after_ms(), 900.0);
        for _ in 0..2 * KEPT {
            recent.add(&answer(120.0, 0.0, 50.0), None, 0);
        }
        assert_eq!(recent.hedge_after_ms(), 120.0);
    }

    /// An answer to a prompt of so many tokens, by a cloud of known costs.
    fn measured(tokens: u64, known: u64) -> (Timeline, usize) {
        let (prefill_ms, bytes) = (60.0 + 0.1 * (tokens - known) as f64, 4 * tokens as usize);
        let first_ms = 15.0 + prefill_ms + 40.0 + 0.002 * bytes as f64;
        let usage = Usage { prompt_tokens: tokens, cached_prefix_tokens: known, completion_tokens: 20 };
        (Timeline { cloud_usage: Some(usage), ..answer(first_ms, 15.0, prefill_ms) }, bytes)
    }

    #[test]
    fn the_costs_of_a_cloud_are_found_from_its_answers() {
        let mut recent = Recent::default();
        assert_eq!(recent.cloud(1_000.0, 10), None);
        let (timeline, bytes) = measured(500, 0);
        recent.add(&timeline, Some(bytes), 10);
        // One answer says what a token costs, with all that does not depend on the length.
        let one = recent.cloud(2_000.0, 10).unwrap();
        // A prompt that the cloud knew but for a few tokens says little of long ones.
        let (known, bytes) = measured(500, 470);
        let mut two = recent.clone();
        two.add(&known, Some(bytes), 11);
        assert_eq!(two.cloud(2_000.0, 11).unwrap().cost.prefill_ms_per_token, one.cost.prefill_ms_per_token);
        assert_eq!((one.cost.ttft_base_ms, one.tokens_max), (0.0, 2_000.0));
        assert!((one.cost.ttft_ms(500.0) - timeline.ttft_cloud_ms.unwrap()).abs() < 1e-9);
        for (tokens, known) in [(900, 0), (4_000, 1_000), (2_000, 0), (8_000, 16)] {
            let (timeline, bytes) = measured(tokens, known);
            recent.add(&timeline, Some(bytes), 20);
        }
        let many = recent.cloud(40_000.0, 20).unwrap();
        let cost = many.cost;
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-6 * want, "{got}, want {want}");
        near(cost.ttft_base_ms, 60.0);
        near(cost.prefill_ms_per_token, 0.1);
        near(cost.rtt_ms, 40.0 + 0.002 * 40_000.0);
        near(cost.queue_ms, 15.0);
        near(cost.decode_ms, 20.0);
        near(many.tokens_max, 4.0 * 7_984.0);
        assert_eq!(recent.cloud(1.0, 20 + VALID_S + 1), None, "times of yesterday");
    }

    #[test]
    fn what_is_kept_on_the_disk_is_read_again() {
        let mut recent = Recent::default();
        let (timeline, bytes) = measured(500, 0);
        recent.add(&timeline, Some(bytes), 10);
        let kept = serde_json::to_string(&recent).unwrap();
        assert_eq!(serde_json::from_str::<Recent>(&kept).unwrap(), recent);
    }

    #[test]
    fn answers_are_expected_to_be_as_long_as_the_last_ones() {
        let mut recent = Recent::default();
        assert_eq!(recent.answer_tokens(), ANSWER_TOKENS);
        let mut timeline = Timeline::default();
        for tokens in [10, 40, 50] {
            let shown = crate::relay::Shown { index: 0, at_ms: 0.0, source: crate::relay::Source::Device };
            timeline.shown = vec![shown; tokens];
            recent.add(&timeline, None, 0);
        }
        assert_eq!(recent.answer_tokens(), 40.0);
    }

    #[test]
    fn the_line_is_known_for_some_minutes_after_a_fetch() {
        use crate::relay::KvTrace;
        let mut recent = Recent::default();
        let fetched = |line_bytes_per_s| {
            let kv = Some(KvTrace { line_bytes_per_s, ..KvTrace::default() });
            Timeline { kv, ..Timeline::default() }
        };
        recent.add(&fetched(None), None, 10);
        assert_eq!(recent.line_bytes_per_s(10), None, "too few bytes");
        recent.add(&fetched(Some(2e6)), None, 20);
        assert_eq!(recent.line_bytes_per_s(20 + LINE_VALID_S), Some(2e6));
        assert_eq!(recent.line_bytes_per_s(21 + LINE_VALID_S), None);
        let older: Recent = serde_json::from_str(r#"{"cloud":[],"answer_tokens":[]}"#).unwrap();
        assert_eq!(older, Recent::default(), "files of before are read");
    }
}
