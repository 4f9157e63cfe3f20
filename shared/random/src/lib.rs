//! Pseudo-random numbers that depend on a seed alone: SplitMix64.
//!
//! Not for keys, tokens or anything that nobody may guess: whoever knows one draw knows all that follow. It
//! never reads the system's randomness, a clock or the environment. Always holds: the same seed gives the
//! same numbers on every machine and with every compiler. The sampler, generated documents, models of random
//! weights and recorded figures depend on it, so no function here may change its results.
//!
//! Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".

/// What the state grows by with each draw: 2^64 over the golden ratio, made odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of draws. Equal seeds give equal streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// The stream of a seed. The first draws of neighbouring seeds are unrelated.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 random bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        finalized(self.state)
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        unit(self.next_u64())
    }

    /// A number in `0..bound`, by the high half of a product. The bias is below `bound / 2^64`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "a bound of 0 has no numbers below it");
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// A number in `0..bound`, by the remainder of a division: another one than [`Self::below`] draws. For
    /// seeded cases that were recorded with it.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn remainder(&mut self, bound: usize) -> usize {
        (self.next_u64() % bound as u64) as usize
    }

    /// True with probability `percent` / 100.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Shuffles in place (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }

    /// The numbers `0..len` in random order.
    pub fn permutation(&mut self, len: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..len).collect();
        self.shuffle(&mut order);
        order
    }
}

/// Draw number `index` (from 0) of the stream of `seed`, without those before it: 64 bits that depend on
/// nothing else.
pub const fn mix(seed: u64, index: u64) -> u64 {
    finalized(seed.wrapping_add(index.wrapping_add(1).wrapping_mul(STEP)))
}

/// A number in `[0, 1)` of random bits: the upper 53 of them.
pub fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

const fn finalized(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_those_of_the_published_generator() {
        // The first draws of seed 1234567, as Vigna's C program prints them.
        let mut random = SplitMix64::new(1_234_567);
        let want = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(want.map(|_| random.next_u64()), want);
    }

    #[test]
    fn any_draw_is_found_without_those_before_it() {
        for seed in [0, 1, u64::MAX] {
            let mut random = SplitMix64::new(seed);
            for index in 0..100 {
                assert_eq!(mix(seed, index), random.next_u64(), "seed {seed}, draw {index}");
            }
        }
    }

    #[test]
    fn numbers_are_within_their_bounds() {
        let mut random = SplitMix64::new(7);
        for bound in [1, 2, 3, 100, usize::MAX] {
            for _ in 0..100 {
                assert!(random.below(bound) < bound && random.remainder(bound) < bound);
                assert!((0.0..1.0).contains(&random.unit()));
            }
        }
        assert_eq!((unit(0), unit(u64::MAX)), (0.0, 1.0 - f64::EPSILON / 2.0));
        assert!((0..100).all(|_| random.percent(100) && !random.percent(0)));
    }

    #[test]
    fn a_permutation_holds_every_number_once() {
        let mut random = SplitMix64::new(3);
        let mut order = random.permutation(100);
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
        assert!(random.permutation(0).is_empty());
    }
}
