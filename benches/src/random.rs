//! Seeded draws from the distributions that the benches need.

use baton_random::{SplitMix64, mix};

/// A stream of draws that depends only on its seed.
#[derive(Debug, Clone)]
pub(crate) struct Random(SplitMix64);

impl Random {
    /// Makes the stream of `seed`, `stream` and `index`. Each trace has its own stream, so that it does not
    /// depend on other traces.
    pub(crate) fn new(seed: u64, stream: u64, index: u64) -> Self {
        Self(SplitMix64::new(mix(mix(seed, 0) ^ stream, 0) ^ index))
    }

    /// Draws uniformly from [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    /// Draws uniformly from a range.
    pub(crate) fn uniform(&mut self, (low, high): (f64, f64)) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Draws a number whose logarithm is uniform.
    pub(crate) fn log_uniform(&mut self, (low, high): (f64, f64)) -> f64 {
        self.uniform((low.ln(), high.ln())).exp()
    }

    /// Draws an integer uniformly, both ends included.
    pub(crate) fn count(&mut self, (low, high): (u32, u32)) -> u32 {
        low + (self.unit() * f64::from(high - low + 1)) as u32
    }

    /// Draws from the exponential distribution with this mean; zero if the mean is zero.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Draws 1 plus a normal deviate with standard deviation `sd` (Box-Muller), limited to three standard
    /// deviations.
    pub(crate) fn around_one(&mut self, sd: f64) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.unit()).cos();
        1.0 + sd * normal.clamp(-3.0, 3.0)
    }

    /// Returns true with this probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_stated_means_and_repeat() {
        let mut random = Random::new(7, 1, 2);
        let n = 100_000;
        let mean = |mut draw: Box<dyn FnMut() -> f64>| (0..n).map(|_| draw()).sum::<f64>() / f64::from(n);
        let mut other = random.clone();
        assert_eq!(random.unit(), other.unit());
        assert!((mean(Box::new(move || random.exponential(12.0))) - 12.0).abs() < 0.2);
        let mut second = other.clone();
        assert!((mean(Box::new(move || other.around_one(0.04))) - 1.0).abs() < 0.001);
        assert!((mean(Box::new(move || f64::from(second.count((1, 3))))) - 2.0).abs() < 0.02);
    }
}
