//! Which arm a unit gets, and under which cell it is counted. Both depend on hashes alone.
//!
//! Always: the same unit gets the same arm on every replica and after every restart. A changed weight moves
//! units only to the arm or away from it (weighted rendezvous hashing: Schindelhauer and Schomaker 2005,
//! "Weighted distributed hash tables").

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::plan::Arm;

/// Buckets of each arm. The sums of a bucket stand for all units of the arm that fall into it.
pub const BUCKETS: usize = 256;
/// Marks in each bucket, by which different units are counted.
pub const MARKS: u32 = 63;
/// One of this many units is in the sample that counts large numbers of units.
pub const SAMPLED_ONE_IN: u8 = 64;

/// What is assigned to an arm as a whole: a device, or one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit([u8; 32]);

/// Where a unit is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// Its bucket, below [`BUCKETS`].
    pub bucket: u8,
    /// Its mark, below [`MARKS`].
    pub mark: u8,
    /// Whether it is in the sample.
    pub is_sampled: bool,
}

impl Unit {
    /// Returns the unit of a device. Devices of two owners differ, whatever they are called.
    #[must_use]
    pub fn device(owner: u128, device: &str) -> Unit {
        Unit::of(owner, b"device", device.as_bytes())
    }

    /// Returns the unit of one request that names no device.
    #[must_use]
    pub fn request(owner: u128, request: Uuid) -> Unit {
        Unit::of(owner, b"request", request.as_bytes())
    }

    fn of(owner: u128, kind: &[u8], name: &[u8]) -> Unit {
        let digest = Sha256::new_with_prefix(owner.to_le_bytes()).chain_update(kind).chain_update([0]);
        Unit(digest.chain_update(name).finalize().into())
    }

    /// Returns the hash of this unit for one purpose of an experiment.
    fn hash(&self, experiment: &str, purpose: &str) -> [u8; 32] {
        let digest = Sha256::new_with_prefix(self.0).chain_update(experiment).chain_update([0]);
        digest.chain_update(purpose).finalize().into()
    }

    /// Returns the index of the unit's arm. Among n units the arm of weight w of W gets about n w / W.
    ///
    /// # Panics
    /// If there is no arm.
    #[must_use]
    pub fn arm(&self, experiment: &str, arms: &[Arm]) -> usize {
        let score = |arm: &Arm| {
            let hash = self.hash(experiment, &format!("arm {}", arm.name));
            let bits = u64::from_le_bytes(std::array::from_fn(|at| hash[at]));
            // Uniform in (0, 1): 53 bits and a half.
            let uniform = ((bits >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
            // Exponential with rate `weight`: the smallest of several is that of an arm with probability
            // weight / sum of weights.
            -uniform.ln() / f64::from(arm.weight)
        };
        let scores = arms.iter().map(score).enumerate();
        let first = scores.min_by(|(_, a), (_, b)| a.total_cmp(b));
        first.expect("an experiment has arms").0
    }

    /// Returns where the unit is counted.
    #[must_use]
    pub fn cell(&self, experiment: &str) -> Cell {
        let hash = self.hash(experiment, "cell");
        let mark = u32::from_le_bytes([hash[1], hash[2], hash[3], hash[4]]) % MARKS;
        let mark = u8::try_from(mark).expect("a mark is below 63");
        Cell { bucket: hash[0], mark, is_sampled: hash[5] < u8::MAX / SAMPLED_ONE_IN + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Map;

    fn arms(weights: &[u32]) -> Vec<Arm> {
        let arm =
            |(at, &weight): (usize, &u32)| Arm { name: format!("a{at}"), weight, overrides: Map::new() };
        weights.iter().enumerate().map(arm).collect()
    }

    fn units(count: usize) -> impl Iterator<Item = Unit> {
        (0..count).map(|device| Unit::device(1, &format!("device-{device}")))
    }

    /// Checks the shares of many units by a chi-square test at 4.5 standard errors of each arm.
    #[track_caller]
    fn check(experiment: &str, weights: &[u32]) {
        let (arms, total) = (arms(weights), f64::from(weights.iter().sum::<u32>()));
        const UNITS: usize = 40_000;
        let mut counts = vec![0_u32; arms.len()];
        units(UNITS).for_each(|unit| counts[unit.arm(experiment, &arms)] += 1);
        for (count, weight) in counts.iter().zip(weights) {
            let share = f64::from(*weight) / total;
            let sd = (UNITS as f64 * share * (1.0 - share)).sqrt();
            let off = (f64::from(*count) - UNITS as f64 * share).abs();
            assert!(off <= 4.5 * sd, "{experiment} {weights:?}: {counts:?}");
        }
    }

    #[test]
    fn shares_are_those_of_the_weights() {
        for (at, weights) in
            [&[1, 1][..], &[1, 9], &[50, 30, 20], &[1, 1, 1, 1, 1, 1, 1, 1], &[10_000, 1]].iter().enumerate()
        {
            check(&format!("experiment-{at}"), weights);
        }
    }

    #[test]
    fn a_weight_moves_units_only_to_its_arm_or_away() {
        let (before, mut after) = (arms(&[3, 3, 3]), arms(&[3, 3, 3]));
        after[1].weight = 4;
        let mut moved = 0;
        for unit in units(5_000) {
            let (old, new) = (unit.arm("e", &before), unit.arm("e", &after));
            assert!(old == new || new == 1, "a unit moved from {old} to {new}");
            moved += usize::from(old != new);
        }
        // 1/3 of the units had the arm, 4/10 have it now.
        assert!((250..=420).contains(&moved), "{moved} units moved");
    }

    #[test]
    fn the_order_of_arms_does_not_matter() {
        let there = arms(&[5, 2, 7]);
        let back: Vec<Arm> = there.iter().rev().cloned().collect();
        for unit in units(1_000) {
            assert_eq!(there[unit.arm("e", &there)].name, back[unit.arm("e", &back)].name);
        }
    }

    #[test]
    fn experiments_and_cells_are_independent_of_each_other() {
        let arms = arms(&[1, 1]);
        let mut both = [[0_u32; 2]; 2];
        let mut sampled = 0_u32;
        let mut buckets = [0_u32; BUCKETS];
        for unit in units(20_000) {
            both[unit.arm("one", &arms)][unit.arm("two", &arms)] += 1;
            let cell = unit.cell("one");
            assert!(u32::from(cell.mark) < MARKS);
            buckets[usize::from(cell.bucket)] += 1;
            sampled += u32::from(cell.is_sampled);
        }
        assert!(both.iter().flatten().all(|count| (4_700..=5_300).contains(count)), "{both:?}");
        assert!(buckets.iter().all(|count| (35..=130).contains(count)), "{buckets:?}");
        assert!((230..=400).contains(&sampled), "{sampled}");
    }

    #[test]
    fn units_of_two_owners_and_kinds_differ() {
        let id = Uuid::from_u128(7);
        assert_ne!(Unit::device(1, "a"), Unit::device(2, "a"));
        assert_ne!(Unit::device(1, &id.to_string()), Unit::request(1, id));
        assert_eq!(Unit::request(1, id), Unit::request(1, id));
    }
}
