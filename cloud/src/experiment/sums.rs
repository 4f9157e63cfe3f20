//! Sums of one arm, of a size that does not depend on traffic. Replicas add theirs up.
//!
//! Units are hashed into [`BUCKETS`] buckets, and each bucket has one count and one sum for each metric. All
//! answers of a device are in one bucket. So the spread between buckets contains what answers of one device
//! have in common, and intervals are those of devices and not of answers. A mean over answers is a ratio of
//! two sums over units. Its variance is that of the delta method (Deng, Knoblich and Lu 2018, "Applying the
//! delta method in metric analytics"). Sums by buckets have the same expected variance as sums by units
//! (Chamandy, Muralidharan, Najmi and Naidu 2012, "Estimating uncertainty for massive data streams").
//!
//! Different units are counted by marks: each unit sets one of [`MARKS`] bits of its bucket (linear counting:
//! Whang, Vander-Zanden and Taylor 1990).

use super::assign::{BUCKETS, Cell, MARKS, SAMPLED_ONE_IN};
use super::metric::Metric;

/// Number of metrics.
pub const METRICS: usize = Metric::ALL.len();
/// Places for marks in an arm.
const PLACES: f64 = (BUCKETS as u32 * MARKS) as f64;
/// Linear counting is exact enough up to this share of marks that are set: about 2.3 units for each place.
const OCCUPIED_MAX: f64 = 0.9;

/// A count and a sum of one metric.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sum {
    /// Answers that have the metric.
    pub count: u64,
    /// Sum of their values, in the metric's unit.
    pub total: f64,
}

/// The sums of one bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BucketSums {
    /// Marks of all units, one bit each.
    pub marks: u64,
    /// Marks of the units that are in the sample.
    pub sampled_marks: u64,
    /// One sum for each metric, in the order of [`Metric::ALL`].
    pub metrics: [Sum; METRICS],
}

impl BucketSums {
    /// Notes that a unit of this cell takes part.
    pub fn mark(&mut self, cell: Cell) {
        let mark = 1 << cell.mark;
        self.marks |= mark;
        if cell.is_sampled {
            self.sampled_marks |= mark;
        }
    }

    /// Adds one value. A value that no answer can have is left out.
    pub fn add(&mut self, metric: Metric, value: f64) {
        if let Some(value) = metric.counted(value) {
            let sum = &mut self.metrics[metric as usize];
            sum.count += 1;
            sum.total += value;
        }
    }

    /// Adds the sums of another replica, or of another time.
    pub fn merge(&mut self, other: &BucketSums) {
        self.marks |= other.marks;
        self.sampled_marks |= other.sampled_marks;
        for (sum, more) in self.metrics.iter_mut().zip(other.metrics) {
            sum.count = sum.count.saturating_add(more.count);
            sum.total += more.total;
        }
    }
}

/// The mean of one metric over the answers of an arm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// The mean, in the metric's unit.
    pub mean: f64,
    /// Its variance.
    pub variance: f64,
    /// Answers.
    pub count: u64,
    /// Buckets with at least one answer.
    pub buckets: usize,
}

/// How many units took part, as counted by marks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnitCount {
    /// The estimated number.
    pub units: f64,
    /// How many times larger the variance of a count is than without the error of counting by marks.
    pub inflation: f64,
}

/// The sums of one arm.
#[derive(Debug, Clone, PartialEq)]
pub struct ArmSums {
    buckets: Vec<BucketSums>,
}

impl Default for ArmSums {
    fn default() -> ArmSums {
        ArmSums { buckets: vec![BucketSums::default(); BUCKETS] }
    }
}

impl ArmSums {
    /// Returns the sums of a bucket, to add to.
    pub fn bucket(&mut self, bucket: u8) -> &mut BucketSums {
        &mut self.buckets[usize::from(bucket)]
    }

    /// Adds the sums of another replica, or of another time.
    pub fn merge(&mut self, other: &ArmSums) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(sums, more)| sums.merge(more));
    }

    /// Returns how many answers have a metric, and the sum of its values.
    #[must_use]
    pub fn total(&self, metric: Metric) -> (u64, f64) {
        let sums = self.buckets.iter().map(|bucket| bucket.metrics[metric as usize]);
        sums.fold((0, 0.0), |(count, total), sum| (count.saturating_add(sum.count), total + sum.total))
    }

    /// Returns the mean of a metric and its variance; `None` if fewer than two buckets have an answer.
    #[must_use]
    pub fn mean(&self, metric: Metric) -> Option<Mean> {
        let sums = || self.buckets.iter().map(|bucket| bucket.metrics[metric as usize]);
        let buckets = sums().filter(|sum| sum.count > 0).count();
        let (count, total) = self.total(metric);
        if buckets < 2 {
            return None;
        }
        let answers = count as f64;
        let mean = total / answers;
        // A bucket's sum less what the mean predicts for its answers. These residuals have the sum 0.
        let squares: f64 = sums().map(|sum| (sum.total - mean * sum.count as f64).powi(2)).sum();
        let mut variance = squares / answers.powi(2) * (buckets as f64 / (buckets - 1) as f64);
        if metric.is_binary() {
            // Few events in few buckets have little or no spread by chance. One more success and one more
            // failure bound it from below (Agresti and Coull 1998 add such answers too).
            let share = (total + 1.0) / (answers + 2.0);
            variance = variance.max(share * (1.0 - share) / answers);
        }
        Some(Mean { mean, variance, count, buckets })
    }

    /// Returns the number of different units; `None` if there are too many to count by marks.
    #[must_use]
    pub fn units(&self) -> Option<UnitCount> {
        self.counted(|bucket| bucket.marks)
    }

    /// Returns the number of different units in the sample, which has one of [`SAMPLED_ONE_IN`] units.
    #[must_use]
    pub fn sampled_units(&self) -> Option<UnitCount> {
        self.counted(|bucket| bucket.sampled_marks)
    }

    /// Returns the best estimate of the number of units, however many there are.
    #[must_use]
    pub fn units_about(&self) -> f64 {
        let sampled = || self.sampled_units().map(|sample| sample.units * f64::from(SAMPLED_ONE_IN));
        self.units().map(|count| count.units).or_else(sampled).unwrap_or(f64::INFINITY)
    }

    fn counted(&self, marks: impl Fn(&BucketSums) -> u64) -> Option<UnitCount> {
        let set: u32 = self.buckets.iter().map(|bucket| marks(bucket).count_ones()).sum();
        let occupied = f64::from(set) / PLACES;
        if occupied > OCCUPIED_MAX {
            return None;
        }
        // Units for each place. The variance of the count is PLACES (e^load - load - 1).
        let load = -(-occupied).ln_1p();
        let inflation = if load > 0.0 { 1.0 + (load.exp_m1() - load) / load } else { 1.0 };
        Some(UnitCount { units: PLACES * load, inflation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::assign::Unit;
    use baton_random::SplitMix64;

    /// Makes sums of units that each have some answers; also returns mean and variance computed from units.
    fn arm(seed: u64, units: usize) -> (ArmSums, f64, f64) {
        let mut rng = SplitMix64::new(seed);
        let mut sums = ArmSums::default();
        let mut by_unit = Vec::new();
        for unit in 0..units {
            let cell = Unit::device(1, &format!("{seed}-{unit}")).cell("e");
            let level = 100.0 + 200.0 * rng.unit();
            let answers = 1 + rng.below(9);
            let total: f64 = (0..answers).map(|_| level * (0.5 + rng.unit())).sum();
            let bucket = sums.bucket(cell.bucket);
            bucket.mark(cell);
            let sum = &mut bucket.metrics[Metric::TtftMs as usize];
            (sum.count, sum.total) = (sum.count + answers as u64, sum.total + total);
            by_unit.push((answers as f64, total));
        }
        let (count, total) = by_unit.iter().fold((0.0, 0.0), |(n, y), (answers, sum)| (n + answers, y + sum));
        let mean = total / count;
        let squares: f64 = by_unit.iter().map(|(answers, sum)| (sum - mean * answers).powi(2)).sum();
        (sums, mean, squares / (count * count) * units as f64 / (units - 1) as f64)
    }

    #[test]
    fn the_variance_by_buckets_is_that_by_units() {
        let mut ratios = 0.0;
        for seed in 0..40 {
            let (sums, mean, variance) = arm(seed, 2_000);
            let have = sums.mean(Metric::TtftMs).unwrap();
            assert!((have.mean / mean - 1.0).abs() < 1e-12, "{have:?} {mean}");
            let ratio = have.variance / variance;
            // 255 degrees of freedom: the variance has a relative error of sqrt(2 / 255) = 0.089.
            assert!((0.6..1.5).contains(&ratio), "seed {seed}: {ratio}");
            ratios += ratio / 40.0;
        }
        assert!((0.95..1.05).contains(&ratios), "on average {ratios}");
    }

    #[test]
    fn units_are_counted_and_answers_are_not() {
        for units in [1_usize, 100, 3_000, 30_000] {
            let (mut sums, ..) = arm(5, units);
            let again = sums.clone();
            sums.merge(&again);
            let have = sums.units().unwrap();
            let sd = (have.inflation - 1.0).mul_add(units as f64, 1.0).sqrt();
            assert!((have.units - units as f64).abs() < 4.0 * sd, "{units}: {have:?}");
        }
        let (many, ..) = arm(6, 60_000);
        assert_eq!(many.units(), None);
        assert!((many.units_about() / 60_000.0 - 1.0).abs() < 0.15, "{}", many.units_about());
        assert_eq!(ArmSums::default().units_about(), 0.0);
    }

    #[test]
    fn replicas_add_up_in_any_order() {
        let (one, ..) = arm(1, 300);
        let (two, ..) = arm(2, 300);
        let (mut there, mut back) = (one.clone(), two.clone());
        there.merge(&two);
        back.merge(&one);
        let (there, back) = (there.mean(Metric::TtftMs).unwrap(), back.mean(Metric::TtftMs).unwrap());
        assert_eq!((there.count, there.buckets), (back.count, back.buckets));
        assert!((there.mean / back.mean - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_share_without_events_still_has_a_variance() {
        let mut sums = ArmSums::default();
        for bucket in 0..200 {
            sums.bucket(bucket).add(Metric::Failures, 0.0);
        }
        let mean = sums.mean(Metric::Failures).unwrap();
        assert_eq!(mean.mean, 0.0);
        assert!(mean.variance > 2e-5, "{mean:?}");
        assert_eq!(sums.mean(Metric::Rating), None);
    }
}
