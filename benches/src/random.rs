//! Seeded draws: SplitMix64 (Steele, Lea, Flood 2014) and the few distributions that traces need.

/// A stream of draws that depends on its seed alone.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The stream of `seed`, `stream` and `index`: one for each trace, so that traces do not depend on
    /// each other or on their number.
    pub fn new(seed: u64, stream: u64, index: u64) -> Self {
        let mut random = Self(seed);
        random.0 = random.next() ^ stream;
        random.0 = random.next() ^ index;
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform in a range.
    pub fn uniform(&mut self, (low, high): (f64, f64)) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform in the logarithm.
    pub fn log_uniform(&mut self, (low, high): (f64, f64)) -> f64 {
        self.uniform((low.ln(), high.ln())).exp()
    }

    /// A whole number, both ends included.
    pub fn count(&mut self, (low, high): (u32, u32)) -> u32 {
        low + (self.unit() * f64::from(high - low + 1)) as u32
    }

    /// Exponential with this mean; zero for a mean of zero.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// 1 plus a normal deviate of standard deviation `sd` (Box-Muller), cut off at three of them.
    pub fn around_one(&mut self, sd: f64) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.unit()).cos();
        1.0 + sd * normal.clamp(-3.0, 3.0)
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
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
