//! The gaps of an answer as it was shown, and the smallest gap that was possible in hindsight.

use crate::Millis;

/// Statistics over the gaps between the shown tokens of one answer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GapStats {
    /// The largest gap, in milliseconds; 0 if there are fewer than two tokens.
    pub max_ms: f64,
    /// The 99th percentile (nearest rank), in milliseconds.
    pub p99_ms: f64,
    /// The standard deviation over all gaps, in milliseconds.
    pub sd_ms: f64,
    /// The mean, in milliseconds.
    pub mean_ms: f64,
}

impl GapStats {
    /// Computes the statistics from the times at which tokens 0, 1, 2, ... were shown. Allocates once.
    #[must_use]
    pub fn of(shown_at: &[Millis]) -> Self {
        let mut gaps: Vec<f64> = shown_at.windows(2).map(|pair| (pair[1] - pair[0]).as_f64()).collect();
        if gaps.is_empty() {
            return Self::default();
        }
        gaps.sort_unstable_by(f64::total_cmp);
        let n = gaps.len() as f64;
        let mean_ms = gaps.iter().sum::<f64>() / n;
        let variance = gaps.iter().map(|gap| (gap - mean_ms).powi(2)).sum::<f64>() / n;
        let rank = (0.99 * n).ceil() as usize;
        Self {
            max_ms: gaps[gaps.len() - 1],
            p99_ms: gaps[rank.clamp(1, gaps.len()) - 1],
            sd_ms: variance.sqrt(),
            mean_ms,
        }
    }
}

/// Returns the minimum of the largest gap over all schedules that know in advance when each token arrives and
/// that show the first token at once.
///
/// It is the value of the linear program `min G` subject to `s_0 = a_0`, `s_i >= a_i`,
/// `0 <= s_i - s_(i-1) <= G`. Since `s_i <= a_0 + i G`, it holds that `G >= (a_i - a_0) / i` for every `i`;
/// and `s_i = a_0 + i G` with the largest of these bounds is feasible. Cost: `O(t)`.
#[must_use]
pub fn best_gap_in_hindsight(available_at: &[Millis]) -> Millis {
    let Some(&first) = available_at.first() else { return Millis::ZERO };
    let best = available_at
        .iter()
        .enumerate()
        .skip(1)
        .map(|(i, &at)| (at - first).as_f64() / i as f64)
        .fold(0.0, f64::max);
    Millis::new(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(ms: &[f64]) -> Vec<Millis> {
        ms.iter().copied().map(Millis::new).collect()
    }

    #[test]
    fn statistics_of_known_gaps() {
        let stats = GapStats::of(&times(&[0.0, 10.0, 20.0, 50.0]));
        assert_eq!(stats.max_ms, 30.0);
        assert_eq!(stats.p99_ms, 30.0);
        assert!((stats.mean_ms - 50.0 / 3.0).abs() < 1e-12);
        assert!((stats.sd_ms - 9.428_090_415_820_634).abs() < 1e-9);
        assert_eq!(GapStats::of(&times(&[5.0])), GapStats::default());
    }

    #[test]
    fn hindsight_is_the_steepest_line_from_the_first_token() {
        assert_eq!(best_gap_in_hindsight(&times(&[100.0, 110.0, 120.0, 430.0])), Millis::new(110.0));
        assert_eq!(best_gap_in_hindsight(&times(&[100.0, 250.0, 260.0])), Millis::new(150.0));
        assert_eq!(best_gap_in_hindsight(&[]), Millis::ZERO);
    }
}
