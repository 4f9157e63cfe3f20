//! The curves behind a plan: `TTFT_d` over `r`, the gap over `L`, and the ranges that the optimizer may
//! choose from.
//!
//! They are for people who set `r` and `L`. The equations are those of [`crate::optimize`]: at a plan's own
//! `r` and `L`, the curves give exactly the plan's predictions.

use crate::equations::gap_ms;
use crate::optimizer::{AssistBounds, OptimizerInput};

/// The allowed range of `r`: from the scene's smallest (or fixed) `r` to the largest that still saves time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RatioInterval {
    /// `xi`, or the fixed `r` if there is one.
    pub least: f64,
    /// Constraint (5): the largest `r` whose `TTFT_d` is no worse than prefilling everything from t = 0.
    pub most: f64,
}

impl OptimizerInput {
    /// Returns `TTFT_d` in milliseconds for a prompt refined to `ratio`. If `ratio` is at least 1, the device
    /// prefills the whole prompt from t = 0.
    #[must_use]
    pub fn ttft_d_ms(&self, ratio: f64) -> f64 {
        self.takeover(ratio).ttft_d_ms()
    }

    /// Returns the gap in milliseconds between tokens up to the takeover, at `ratio` and with `assist_tokens`
    /// (at least 1).
    #[must_use]
    pub fn gap_at_ms(&self, ratio: f64, assist_tokens: u32) -> f64 {
        gap_ms(&self.takeover(ratio), assist_tokens.max(1))
    }

    /// Returns the bounds of `L` at `ratio`.
    #[must_use]
    pub fn assist_bounds(&self, ratio: f64) -> AssistBounds {
        self.bounds(&self.takeover(ratio))
    }

    /// Returns the allowed range of `r`, or `None` if refining saves nothing.
    #[must_use]
    pub fn ratio_interval(&self) -> Option<RatioInterval> {
        let least = self.scene.ratio.unwrap_or(self.scene.xi).max(self.scene.xi);
        if least >= 1.0 || self.prompt.content_tokens == 0 {
            return None;
        }
        self.ratio_max().filter(|&most| most >= least).map(|most| RatioInterval { least, most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceCost;
    use crate::explain::tests::phone::phone;
    use crate::optimizer::{PromptShape, ScenePolicy, Verdict, optimize};

    fn input(prefill_ms_per_token: f64, content_tokens: u32, xi: f64) -> OptimizerInput {
        let phone = phone();
        OptimizerInput {
            prompt: PromptShape { fixed_tokens: 50, content_tokens, prefix_tokens: 20, cached_tokens: 0 },
            device: DeviceCost {
                prefill_ms_per_token,
                prefill_ms_per_token2: 1e-5,
                decode_ms: 45.0,
                decompress_ms: 5.0,
            },
            scene: ScenePolicy { xi, assist_floor: 1, answer_tokens_max: 4_096, ..phone.scene },
            ..phone
        }
    }

    #[test]
    fn at_the_plan_the_curves_are_the_plan() {
        for (prefill, content, xi) in
            [(2.5, 4_000, 0.25), (0.8, 1_000, 0.5), (2.5, 30_000, 0.1), (0.01, 900, 0.3)]
        {
            let input = input(prefill, content, xi);
            let plan = optimize(&input).unwrap();
            assert_eq!(input.ttft_d_ms(plan.ratio), plan.predicted.ttft_d_ms);
            assert_eq!(input.gap_at_ms(plan.ratio, plan.assist_tokens), plan.predicted.gap_ms);
            assert_eq!(input.assist_bounds(plan.ratio), plan.bounds);
            match (plan.verdict, input.ratio_interval()) {
                (Verdict::Relay, Some(interval)) => {
                    assert!((interval.least..=interval.most).contains(&plan.ratio), "{interval:?}");
                }
                (verdict, interval) => assert_eq!((verdict == Verdict::Relay, interval), (false, None)),
            }
        }
    }

    #[test]
    fn the_largest_ratio_saves_nothing_more() {
        let input = input(2.5, 4_000, 0.25);
        let most = input.ratio_interval().expect("a slow device and a long prompt").most;
        let alone = optimize(&input).unwrap().predicted.device_alone_ms;
        assert!((input.ttft_d_ms(most) - alone).abs() < 1e-6 * alone);
        assert!(input.ttft_d_ms(most * 0.9) < alone);
    }
}
