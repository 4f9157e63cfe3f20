//! Measured rates by figure and program, and their medians.

use std::collections::BTreeMap;

use baton_pacing::refit::median;

/// Rates by figure and program, one per alternation; `None` if a program was not measured in an alternation.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    rates: BTreeMap<(String, String), Vec<Option<f64>>>,
}

impl Samples {
    /// Adds the rate that `program` reached at `figure` in alternation `at`.
    pub(crate) fn add(&mut self, figure: &str, program: &str, at: usize, rate: f64) {
        let rates = self.rates.entry((figure.to_owned(), program.to_owned())).or_default();
        rates.resize(rates.len().max(at + 1), None);
        rates[at] = Some(rate);
    }

    /// Returns the rate in one alternation.
    pub(crate) fn rate(&self, figure: &str, program: &str, at: usize) -> Option<f64> {
        self.rates.get(&(figure.to_owned(), program.to_owned()))?.get(at).copied().flatten()
    }

    /// Returns the median over alternations.
    pub(crate) fn median(&self, figure: &str, program: &str) -> Option<f64> {
        let rates = self.rates.get(&(figure.to_owned(), program.to_owned()))?;
        median(rates.iter().copied().flatten())
    }

    /// Returns the median over alternations of `program`'s rate divided by the best rate of `others`.
    pub(crate) fn ratio(&self, figure: &str, program: &str, others: &[&str]) -> Option<f64> {
        let alternations = self.rates.get(&(figure.to_owned(), program.to_owned()))?.len();
        median((0..alternations).filter_map(|at| {
            let best = others.iter().filter_map(|other| self.rate(figure, other, at)).reduce(f64::max)?;
            Some(self.rate(figure, program, at)? / best)
        }))
    }

    /// Returns whether `program` was so much slower than one of `others` in the first alternation that it
    /// does not have to be measured again.
    pub(crate) fn is_behind(&self, figure: &str, program: &str, others: &[&str]) -> bool {
        const MARGIN: f64 = 1.15;
        let first = |name: &str| self.rate(figure, name, 0);
        let Some(own) = first(program) else { return false };
        others.iter().filter_map(|other| first(other)).any(|rate| rate > MARGIN * own)
    }
}

/// Returns the percentile by nearest rank: the smallest value that at least `share` of the values do not
/// exceed.
pub(crate) fn percentile(mut values: Vec<f64>, share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_pair_what_was_measured_together() {
        let mut samples = Samples::default();
        for (at, (ours, first, second)) in
            [(10.0, 5.0, 4.0), (30.0, 10.0, 20.0), (8.0, 8.0, 2.0)].into_iter().enumerate()
        {
            samples.add("f", "ours", at, ours);
            samples.add("f", "a", at, first);
            samples.add("f", "b", at, second);
        }
        assert_eq!(samples.ratio("f", "ours", &["a", "b"]), Some(1.5));
        assert_eq!(samples.ratio("f", "ours", &["c"]), None);
        assert_eq!(samples.median("f", "ours"), Some(10.0));
    }

    #[test]
    fn the_one_behind_is_left_out() {
        let mut samples = Samples::default();
        samples.add("f", "a", 0, 100.0);
        samples.add("f", "b", 0, 80.0);
        assert!(samples.is_behind("f", "b", &["a"]));
        assert!(!samples.is_behind("f", "a", &["b"]));
        assert!(!samples.is_behind("g", "b", &["a"]));
        samples.add("f", "b", 0, 90.0);
        assert!(!samples.is_behind("f", "b", &["a"]));
    }
}
