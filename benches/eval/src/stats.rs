//! Means with intervals, by the bootstrap over clusters.
//!
//! Questions about one document share its difficulty. So whole documents are drawn with replacement, and the
//! mean over their questions is taken. The interval contains the middle 95 % of 2,000 such means (Efron 1979;
//! Koehn 2004 for paired differences). Pure and seeded: the same values give the same interval.

use std::collections::BTreeMap;

use baton_corpus::stream;
use serde::Serialize;

/// Number of draws of the bootstrap.
const DRAWS: usize = 2_000;
/// Seed of the draws; an arbitrary constant.
const SEED: u64 = 20_260_101;

/// A mean with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Number of values.
    pub n: usize,
}

/// One value and the cluster that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Cluster.
    pub cluster: u64,
    /// Value; for a paired comparison, the difference.
    pub value: f64,
}

/// Returns the mean of the samples with its interval, or `None` if there are no samples.
///
/// Cost: `O(2000 clusters)`.
pub fn estimate(samples: &[Sample]) -> Option<Estimate> {
    if samples.is_empty() {
        return None;
    }
    let mut clusters: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for sample in samples {
        let (sum, count) = clusters.entry(sample.cluster).or_default();
        *sum += sample.value;
        *count += 1.0;
    }
    let clusters: Vec<(f64, f64)> = clusters.into_values().collect();
    let mut rng = stream(SEED);
    let mut means: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let drawn = (0..clusters.len()).map(|_| clusters[rng.below(clusters.len())]);
            let (sum, count) = drawn.fold((0.0, 0.0), |(sum, count), (s, c)| (sum + s, count + c));
            sum / count
        })
        .collect();
    means.sort_by(f64::total_cmp);
    let n = samples.len();
    let mean = samples.iter().map(|sample| sample.value).sum::<f64>() / n as f64;
    Some(Estimate { mean, low: means[DRAWS / 40], high: means[DRAWS - 1 - DRAWS / 40], n })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[(u64, f64)]) -> Vec<Sample> {
        values.iter().map(|&(cluster, value)| Sample { cluster, value }).collect()
    }

    #[test]
    fn the_interval_of_a_coin_is_the_binomial_one() {
        let coin: Vec<(u64, f64)> = (0..400).map(|i| (i, f64::from(u8::from(i % 4 == 0)))).collect();
        let got = estimate(&samples(&coin)).unwrap();
        // 0.25 +- 1.96 sqrt(0.25 * 0.75 / 400) = 0.25 +- 0.0424
        assert_eq!((got.mean, got.n), (0.25, 400));
        assert!((got.low - 0.2076).abs() < 0.006 && (got.high - 0.2924).abs() < 0.006, "{got:?}");
        assert_eq!(got, estimate(&samples(&coin)).unwrap(), "seeded");
    }

    #[test]
    fn values_of_one_cluster_count_once() {
        let apart: Vec<(u64, f64)> = (0..200).map(|i| (i, (i % 2) as f64)).collect();
        let together: Vec<(u64, f64)> = (0..200).map(|i| (i / 20 * 2 + i % 2, (i % 2) as f64)).collect();
        let width = |values| {
            let got = estimate(&samples(values)).unwrap();
            got.high - got.low
        };
        assert!(width(&together) > 2.0 * width(&apart));
    }

    #[test]
    fn equal_values_have_no_width_and_no_values_no_mean() {
        let got = estimate(&samples(&[(1, 0.5), (2, 0.5)])).unwrap();
        assert_eq!((got.mean, got.low, got.high), (0.5, 0.5, 0.5));
        assert_eq!(estimate(&[]), None);
    }
}
