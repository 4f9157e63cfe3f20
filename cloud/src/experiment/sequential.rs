//! Intervals that hold at every look together, so that nobody has to choose in advance when to look.
//!
//! A console is looked at all the time. A usual interval of 95 % misses the truth at some look much more
//! often than in 5 % of experiments. These intervals are always valid: the probability that any of them, at
//! any time, misses the truth is at most `alpha`. The method is the mixture sequential probability ratio test
//! (Robbins 1970; Johari, Koomen, Pekelis and Walsh 2017, "Peeking at A/B tests"). It averages the likelihood
//! ratio of an effect over a normal prior with variance tau^2. The average is a martingale if there is no
//! effect, so it reaches 1 / alpha with a probability of at most alpha (Ville's inequality).
//!
//! Figures are not normal, only their means are nearly so. The guarantee is therefore asymptotic
//! (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024, "Time-uniform central limit theory and asymptotic
//! confidence sequences"), and nothing is said before [`BUCKETS_MIN`] buckets have answers.

use super::metric::{Metric, Scale};
use super::sums::Mean;

/// The prior standard deviation of effects on times, as the logarithm of a ratio: about 10 %.
const TIME_EFFECT_SD: f64 = 0.1;
/// The prior standard deviation of effects on shares: 5 points.
const SHARE_EFFECT_SD: f64 = 0.05;
/// Buckets of each arm that must have answers before anything is said: about 100 devices fill so many.
pub const BUCKETS_MIN: usize = 80;

/// An effect against the control, with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effect {
    /// For times the relative change of the mean (-0.1: 10 % less), for shares the difference.
    pub change: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Returns the smallest squared distance, over its variance, that is significant at any time.
///
/// `variance_share` is the variance of the estimate over that of the prior. `dimensions` is the number of
/// independent parts of the estimate: 1 for one number, and the number of arms less one for their shares.
#[must_use]
pub fn bound(variance_share: f64, alpha: f64, dimensions: usize) -> f64 {
    let evidence = 2.0 * -alpha.ln() + dimensions as f64 * (1.0 / variance_share).ln_1p();
    (1.0 + variance_share) * evidence
}

/// Compares an arm with the control. Returns `None` if there is too little to say anything, or if a mean of
/// times is 0.
#[must_use]
pub fn compare(metric: Metric, control: &Mean, arm: &Mean, alpha: f64) -> Option<Effect> {
    if control.buckets.min(arm.buckets) < BUCKETS_MIN {
        return None;
    }
    let radius =
        |variance: f64, prior_sd: f64| (variance * bound(variance / prior_sd.powi(2), alpha, 1)).sqrt();
    match metric.scale() {
        Scale::Time => {
            if control.mean <= 0.0 || arm.mean <= 0.0 {
                return None;
            }
            let log = (arm.mean / control.mean).ln();
            let variance = arm.variance / arm.mean.powi(2) + control.variance / control.mean.powi(2);
            let radius = radius(positive(variance)?, TIME_EFFECT_SD);
            let change = |log: f64| log.exp_m1();
            Some(Effect { change: change(log), low: change(log - radius), high: change(log + radius) })
        }
        Scale::Share => {
            let change = arm.mean - control.mean;
            let radius = radius(positive(arm.variance + control.variance)?, SHARE_EFFECT_SD);
            Some(Effect { change, low: change - radius, high: change + radius })
        }
    }
}

/// Returns the variance if it is a positive number. Answers that are all alike say nothing about others.
fn positive(variance: f64) -> Option<f64> {
    (variance.is_finite() && variance > 0.0).then_some(variance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_random::SplitMix64;

    fn mean(mean: f64, variance: f64) -> Mean {
        Mean { mean, variance, count: 1_000, buckets: 200 }
    }

    #[test]
    fn the_bound_is_where_the_likelihood_ratio_reaches_one_over_alpha() {
        for (variance, prior, alpha) in [(1.0, 1.0, 0.05), (0.01, 1.0, 0.001), (4.0, 0.5, 0.01)] {
            let square = bound(variance / prior, alpha, 1);
            // By numbers: the mean of exp(theta x / v - theta^2 / 2 v) over theta ~ N(0, prior).
            let x = (square * variance).sqrt();
            let (steps, reach) = (40_000, 12.0 * f64::sqrt(prior));
            let width = 2.0 * reach / f64::from(steps);
            let ratio: f64 = (0..steps)
                .map(|step| {
                    let theta = -reach + (f64::from(step) + 0.5) * width;
                    let density =
                        (-theta * theta / (2.0 * prior)).exp() / (2.0 * std::f64::consts::PI * prior).sqrt();
                    density * (theta * x / variance - theta * theta / (2.0 * variance)).exp() * width
                })
                .sum();
            assert!((ratio * alpha - 1.0).abs() < 1e-3, "{variance} {prior} {alpha}: {ratio}");
        }
    }

    #[test]
    fn a_random_walk_crosses_as_rarely_as_promised() {
        // Sums of Gaussian steps, looked at after each one: the variance of the mean after n is 1 / n.
        let alpha = 0.05;
        let mut crossed = 0;
        for seed in 0..2_000 {
            let mut rng = SplitMix64::new(seed);
            let mut sum = 0.0;
            let crosses = (1..=1_000).any(|step| {
                let (u, angle) = (1.0 - rng.unit(), rng.unit() * std::f64::consts::TAU);
                sum += (-2.0 * u.ln()).sqrt() * angle.cos();
                let n = f64::from(step);
                (sum / n).powi(2) * n > bound(1.0 / (n * 0.01), alpha, 1)
            });
            crossed += u32::from(crosses);
        }
        // The bound is nearly reached as time goes on; within 1,000 steps it must be below 5 % of 2,000.
        assert!((5..=100).contains(&crossed), "{crossed} of 2000 cross");
    }

    #[test]
    fn times_are_compared_by_ratio_and_shares_by_difference() {
        let time = compare(Metric::TtftMs, &mean(200.0, 4.0), &mean(180.0, 4.0), 0.05).unwrap();
        assert!((time.change + 0.1).abs() < 1e-12 && time.low < time.change && time.change < time.high);
        assert!(time.high < 0.0, "{time:?}");
        let share = compare(Metric::Rating, &mean(0.5, 1e-4), &mean(0.6, 1e-4), 0.05).unwrap();
        assert!((share.change - 0.1).abs() < 1e-12 && share.low > 0.0, "{share:?}");
    }

    #[test]
    fn too_little_says_nothing() {
        let few = Mean { buckets: BUCKETS_MIN - 1, ..mean(200.0, 4.0) };
        assert_eq!(compare(Metric::TtftMs, &few, &mean(180.0, 4.0), 0.05), None);
        assert_eq!(compare(Metric::TtftMs, &mean(0.0, 4.0), &mean(180.0, 4.0), 0.05), None);
        assert_eq!(compare(Metric::GapMs, &mean(1.0, 0.0), &mean(1.0, 0.0), 0.05), None);
        assert_eq!(compare(Metric::GapMs, &mean(1.0, f64::NAN), &mean(1.0, 0.1), 0.05), None);
    }
}
