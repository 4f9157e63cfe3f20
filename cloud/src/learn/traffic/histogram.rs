//! Counts by bucket, so that quantiles can be computed over sums of minutes and replicas.

use std::fmt::Write;

/// Counts of values up to each bound, and of values above the last.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
}

impl Histogram {
    /// Makes an empty histogram with these upper bounds, in ascending order.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1] }
    }

    /// Reads what [`Histogram::to_text`] wrote; returns `None` if it does not fit the bounds. The text may
    /// have fewer bounds, from before more were added at the end. Then its last count goes into the bucket
    /// after its last bound.
    #[must_use]
    pub fn parse(bounds: &'static [f64], text: &str) -> Option<Histogram> {
        let mut counts: Vec<u64> = text.split(' ').map(|count| count.parse().ok()).collect::<Option<_>>()?;
        if !(2..=bounds.len() + 1).contains(&counts.len()) {
            return None;
        }
        counts.resize(bounds.len() + 1, 0);
        Some(Histogram { bounds, counts })
    }

    /// Writes the counts, separated by spaces; the last one is of values above every bound.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (index, count) in self.counts.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(text, "{space}{count}").expect("writing to a string cannot fail");
        }
        text
    }

    /// Counts one value; ignores one that is not a number.
    pub fn record(&mut self, value: f64) {
        if value.is_nan() {
            return;
        }
        let at = self.bounds.partition_point(|&bound| bound < value);
        self.counts[at] += 1;
    }

    /// Adds the counts of another histogram with the same bounds.
    ///
    /// # Panics
    /// If the bounds differ, which would be our bug.
    pub fn merge(&mut self, other: &Histogram) {
        assert_eq!(self.bounds, other.bounds, "only histograms of the same figure are merged");
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    /// Returns the upper bounds of the buckets.
    #[must_use]
    pub fn bounds(&self) -> &'static [f64] {
        self.bounds
    }

    /// Returns the counts, one more than there are bounds.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Returns the number of values counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the `q` quantile, with values spread evenly within a bucket. Returns the last bound if the
    /// quantile is above it, and `None` if nothing was counted.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let total = self.total();
        if total == 0 {
            return None;
        }
        let rank = q.clamp(0.0, 1.0) * total as f64;
        let mut below = 0.0;
        for (index, &count) in self.counts.iter().enumerate() {
            let count = count as f64;
            if count > 0.0 && below + count >= rank {
                let Some(&high) = self.bounds.get(index) else { break };
                let low = if index == 0 { 0.0 } else { self.bounds[index - 1] };
                return Some(low + (high - low) * ((rank - below) / count).clamp(0.0, 1.0));
            }
            below += count;
        }
        self.bounds.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: &[f64] = &[10.0, 20.0, 40.0];

    #[test]
    fn quantiles_lie_in_their_buckets() {
        let mut histogram = Histogram::new(BOUNDS);
        assert_eq!(histogram.quantile(0.5), None);
        for value in [5.0, 10.0, 15.0, 30.0, f64::NAN] {
            histogram.record(value);
        }
        assert_eq!((histogram.to_text().as_str(), histogram.total()), ("2 1 1 0", 4));
        assert_eq!(histogram.quantile(0.5), Some(10.0));
        assert_eq!(histogram.quantile(0.75), Some(20.0));
        assert_eq!(histogram.quantile(1.0), Some(40.0));
        assert_eq!(histogram.quantile(0.25), Some(5.0));
        histogram.record(1e9);
        assert_eq!(histogram.quantile(1.0), Some(40.0), "above the last bound");
    }

    #[test]
    fn texts_are_read_again() {
        let mut histogram = Histogram::new(BOUNDS);
        histogram.record(12.0);
        let mut read = Histogram::parse(BOUNDS, &histogram.to_text()).unwrap();
        assert_eq!(read, histogram);
        read.merge(&histogram);
        // Written when there was one bound fewer.
        assert_eq!(Histogram::parse(BOUNDS, "1 2 3").unwrap().to_text(), "1 2 3 0");
        assert_eq!(read.to_text(), "0 2 0 0");
        for bad in ["", "1", "1 2 3 4 5", "1 2 3 x", "1 2 3 -1"] {
            assert_eq!(Histogram::parse(BOUNDS, bad), None, "{bad}");
        }
    }
}
