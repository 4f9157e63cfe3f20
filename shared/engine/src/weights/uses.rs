//! How much parts of a model are used, so that those used most stay in memory.
//!
//! A use counts half as much after [`HALF_LIFE`] passes. All counts fall alike, so the order of two parts
//! changes only if one is used. What is kept here is the logarithm of the count, with what it will have
//! fallen added, which stays the same between uses.

use std::collections::HashMap;
use std::hash::Hash;

/// Passes after which a use counts half as much.
const HALF_LIFE: f64 = 32.0;

/// The uses of parts so far.
#[derive(Debug)]
pub(crate) struct Uses<K> {
    ranks: HashMap<K, f64>,
    passes: f64,
}

impl<K> Default for Uses<K> {
    fn default() -> Self {
        Self { ranks: HashMap::new(), passes: 0.0 }
    }
}

impl<K: Eq + Hash> Uses<K> {
    /// Adds to the number of passes.
    pub(crate) fn pass(&mut self, passes: f64) {
        self.passes += passes;
    }

    /// Counts a use, and returns the part's rank: the more a part is used, the higher. One more means twice
    /// as much.
    pub(crate) fn count(&mut self, part: K) -> f64 {
        let fallen = self.passes / HALF_LIFE;
        let rank = self.ranks.entry(part).or_insert(f64::NEG_INFINITY);
        *rank = ((*rank - fallen).exp2() + 1.0).log2() + fallen;
        *rank
    }

    /// Returns a part's rank; the lowest if it was never used.
    pub(crate) fn rank(&self, part: &K) -> f64 {
        self.ranks.get(part).copied().unwrap_or(f64::NEG_INFINITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    #[test]
    fn what_is_used_more_or_later_is_higher() {
        let mut uses = Uses::default();
        assert_eq!(uses.rank(&"never"), f64::NEG_INFINITY);
        let once = uses.count("once");
        let first = uses.count("often");
        assert_eq!(once.to_bits(), first.to_bits());
        let twice = uses.count("often");
        assert!((twice - once - 1.0).abs() < 1e-12, "twice as much: {once}, {twice}");
        // A use counts as much as two that are a half-life old.
        uses.pass(HALF_LIFE);
        assert!((uses.count("late") - uses.rank(&"often")).abs() < 1e-12);
    }

    proptest! {
        /// The reference sums all uses, each halved by its age.
        #[test]
        fn ranks_are_those_of_sums_of_aged_uses(
            steps in prop::collection::vec((0usize..5, 0u32..40), 1..200),
        ) {
            let mut uses = Uses::default();
            let (mut all, mut now) = (Vec::new(), 0.0);
            for (part, passes) in steps {
                uses.pass(f64::from(passes));
                now += f64::from(passes);
                uses.count(part);
                all.push((part, now));
            }
            for part in 0..5 {
                let own = all.iter().filter(|(of, _)| *of == part);
                let sum: f64 = own.map(|(_, at)| ((at - now) / HALF_LIFE).exp2()).sum();
                let have = (uses.rank(&part) - now / HALF_LIFE).exp2();
                prop_assert!((have - sum).abs() <= 1e-9 * sum.max(1e-300), "{part}: {have}, {sum}");
            }
        }
    }
}
