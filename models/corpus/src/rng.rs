//! The generator's random source: SplitMix64 (Steele, Lea and Flood 2014), so that a seed means the same
//! document on every machine and with every version of the standard library.

/// A SplitMix64 stream. Equal seeds give equal streams.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// Starts a stream. The first values of neighbouring seeds are unrelated.
    pub fn new(seed: u64) -> Self {
        Self { state: seed ^ 0x6a09_e667_f3bc_c909 }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`, by the high half of a product (the bias is below 2^-50 for the bounds used here).
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "a bound of 0 has no numbers below it");
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
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
