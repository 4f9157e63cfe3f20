//! Learns from the times of passes how many prompt tokens a pass may hold.
//!
//! Pure: durations are passed in. While no sequence decodes, a pass takes the whole chunk, which computes
//! prompts fastest. In a mixed pass (prompts and running answers), prompt tokens are limited so that it takes
//! at most `max_stall` times a pass that only decodes. So no reader waits longer than that for the next
//! token. Always: at least [`MIXED_TOKENS_MIN`] tokens (prompts never starve) and at most the chunk.

use std::time::Duration;

use super::StepPlan;

/// The fewest prompt tokens in a mixed pass. For fewer, reading the weights costs more than it gains.
pub const MIXED_TOKENS_MIN: usize = 8;
/// Prompt tokens in a mixed pass until both kinds of pass have been measured.
pub const MIXED_TOKENS_UNMEASURED: usize = 64;
/// Number of newest measurements that a quantile is taken over.
const SAMPLES: usize = 32;
/// Number of mixed passes to measure before their cost per token replaces that of pure prefill.
const MIXED_NEEDED: usize = 4;
/// Costs below this are noise of the clock, in milliseconds per token.
const SLOPE_MS_MIN: f64 = 1e-6;

/// How prompt tokens are limited in a mixed pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MixedTokens {
    /// Always this many.
    Fixed(usize),
    /// As many as keep the pass below this multiple of a pass that only decodes; above 1.
    MaxStall(f64),
}

/// The most prompt tokens in a pass, over all sequences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepBudget {
    /// While no sequence decodes.
    pub chunk_tokens: usize,
    /// In a mixed pass.
    pub mixed: MixedTokens,
}

impl Default for StepBudget {
    /// 512 tokens alone; a mixed pass takes at most five times a decoding pass.
    fn default() -> Self {
        StepBudget { chunk_tokens: 512, mixed: MixedTokens::MaxStall(5.0) }
    }
}

/// Durations of past passes.
#[derive(Debug, Default)]
pub(super) struct PassTimes {
    /// Times of passes that only decode, in milliseconds, by the number of bits of their row count.
    decode: Vec<Recent>,
    /// Times of passes that only prefill, in milliseconds per token.
    prefill: Recent,
    /// Time that a prompt token adds to a pass that decodes, in milliseconds.
    mixed: Recent,
}

impl PassTimes {
    /// Records a pass; ignores one that took no time.
    pub(super) fn record(&mut self, plan: &StepPlan, took: Duration) {
        let ms = took.as_secs_f64() * 1e3;
        if ms <= 0.0 {
            return;
        }
        let (tokens, rows) = (plan.prefill_tokens(), plan.decode_rows());
        if tokens == 0 && rows > 0 {
            let bucket = bucket(rows);
            if self.decode.len() <= bucket {
                self.decode.resize_with(bucket + 1, Recent::default);
            }
            self.decode[bucket].push(ms);
        } else if tokens >= MIXED_TOKENS_MIN && rows == 0 {
            self.prefill.push(ms / tokens as f64);
        } else if tokens >= MIXED_TOKENS_MIN
            && let Some(decode_ms) = self.decode_ms(rows)
        {
            self.mixed.push((ms - decode_ms).max(0.0) / tokens as f64);
        }
    }

    /// Returns how many prompt tokens fit into a pass with `rows` decoding sequences, at least one.
    pub(super) fn mixed_tokens(&self, budget: StepBudget, rows: usize) -> usize {
        let tokens = match budget.mixed {
            MixedTokens::Fixed(tokens) => tokens,
            MixedTokens::MaxStall(stall) => match (self.decode_ms(rows), self.slope_ms()) {
                (Some(decode_ms), Some(slope_ms)) => {
                    let tokens = (stall - 1.0) * decode_ms / slope_ms.max(SLOPE_MS_MIN);
                    (tokens as usize).max(MIXED_TOKENS_MIN)
                }
                _ => MIXED_TOKENS_UNMEASURED,
            },
        };
        tokens.clamp(1, budget.chunk_tokens)
    }

    /// Returns the time of a prompt token while no sequence decodes, in milliseconds; `None` before the first
    /// such pass.
    pub(super) fn alone_ms(&self) -> Option<f64> {
        self.prefill.quantile(0.5)
    }

    /// Returns the time of a pass that decodes `rows` sequences. If there is no measurement, takes that of
    /// the nearest smaller number, else of the nearest larger one.
    fn decode_ms(&self, rows: usize) -> Option<f64> {
        let at = bucket(rows).min(self.decode.len());
        let seen = |times: &&Recent| !times.values.is_empty();
        let own = self.decode.get(at).filter(seen);
        let times = own
            .or_else(|| self.decode[..at].iter().rev().find(seen))
            .or_else(|| self.decode[at..].iter().find(seen))?;
        times.quantile(0.5)
    }

    /// Returns the cost of one more prompt token, with a tendency to the high side.
    fn slope_ms(&self) -> Option<f64> {
        let times = if self.mixed.values.len() >= MIXED_NEEDED { &self.mixed } else { &self.prefill };
        times.quantile(0.75)
    }
}

fn bucket(rows: usize) -> usize {
    (usize::BITS - rows.leading_zeros()) as usize
}

/// The newest values of one kind, the oldest overwritten.
#[derive(Debug, Default)]
struct Recent {
    values: Vec<f64>,
    next: usize,
}

impl Recent {
    fn push(&mut self, value: f64) {
        if self.values.len() < SAMPLES {
            self.values.push(value);
        } else {
            self.values[self.next] = value;
        }
        self.next = (self.next + 1) % SAMPLES;
    }

    fn quantile(&self, share: f64) -> Option<f64> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        sorted.get((share * last as f64).round() as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::{JobId, PrefillEnd, StepRow};

    fn plan(tokens: usize, rows: usize) -> StepPlan {
        let prefill = StepRow::Prefill { id: JobId(0), tokens: 0..tokens, end: PrefillEnd::More };
        let decode = (1..=rows).map(|id| StepRow::Decode { id: JobId(id as u64), proposed: 0 });
        StepPlan { rows: decode.chain((tokens > 0).then_some(prefill)).collect() }
    }

    fn ms(ms: f64) -> Duration {
        Duration::from_secs_f64(ms / 1e3)
    }

    const STALL: StepBudget = StepBudget { chunk_tokens: 512, mixed: MixedTokens::MaxStall(5.0) };

    #[test]
    fn a_pass_beside_answers_takes_at_most_the_stall() {
        let mut times = PassTimes::default();
        assert_eq!(times.mixed_tokens(STALL, 1), MIXED_TOKENS_UNMEASURED);
        times.record(&plan(512, 0), ms(1024.0));
        assert_eq!(times.mixed_tokens(STALL, 1), MIXED_TOKENS_UNMEASURED, "a step alone is not known yet");
        times.record(&plan(0, 1), ms(30.0));
        // 4 x 30 ms at 2 ms per token.
        assert_eq!(times.mixed_tokens(STALL, 1), 60);
        assert_eq!(times.mixed_tokens(STALL, 8), 60, "more rows than seen: the nearest smaller number");
        times.record(&plan(0, 8), ms(50.0));
        assert_eq!((times.mixed_tokens(STALL, 1), times.mixed_tokens(STALL, 8)), (60, 100));
        assert_eq!(times.mixed_tokens(STALL, 3), 60);
        // In a mixed pass, a token is measured to cost 3 ms.
        for _ in 0..MIXED_NEEDED {
            times.record(&plan(60, 8), ms(50.0 + 180.0));
        }
        assert_eq!(times.mixed_tokens(STALL, 8), 66);
    }

    #[test]
    fn what_was_learned_is_bounded_and_forgotten() {
        let mut times = PassTimes::default();
        times.record(&plan(0, 1), Duration::ZERO);
        times.record(&plan(64, 0), ms(64.0));
        assert_eq!(times.mixed_tokens(STALL, 1), MIXED_TOKENS_UNMEASURED, "no time says nothing");
        times.record(&plan(0, 2), ms(1000.0));
        assert_eq!(times.mixed_tokens(STALL, 1), 512, "at most the chunk");
        for _ in 0..SAMPLES {
            times.record(&plan(0, 2), ms(0.5));
        }
        assert_eq!(times.mixed_tokens(STALL, 2), MIXED_TOKENS_MIN, "at least a few");
        let fixed = StepBudget { mixed: MixedTokens::Fixed(40), ..STALL };
        assert_eq!(times.mixed_tokens(fixed, 2), 40);
        let small = StepBudget { chunk_tokens: 16, ..fixed };
        assert_eq!(times.mixed_tokens(small, 2), 16);
    }
}
