//! Sizes of the blocks in which weights move, and which of them to use.
//!
//! Pure. A small block is free again sooner, and fits small matrices better. So of the sizes that are about
//! as fast as the fastest, the smallest one is used.

use serde::{Deserialize, Serialize};

/// Rates that differ by less than this share count as equal. Two measurements of one size differ by as much.
const ALIKE: f64 = 0.05;

/// How fast blocks of one size move.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BlockRate {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bytes per second.
    pub bytes_per_s: f64,
}

impl BlockRate {
    /// Returns the size to use, or `None` if no rate is known.
    pub fn best(rates: &[Self]) -> Option<u64> {
        let fastest = rates.iter().map(|rate| rate.bytes_per_s).fold(0.0, f64::max);
        let is_alike = |rate: &&Self| rate.bytes_per_s > 0.0 && rate.bytes_per_s >= (1.0 - ALIKE) * fastest;
        rates.iter().filter(is_alike).map(|rate| rate.block_bytes).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rates: &[(u64, f64)], want: Option<u64>) {
        let rates: Vec<BlockRate> =
            rates.iter().map(|&(block_bytes, bytes_per_s)| BlockRate { block_bytes, bytes_per_s }).collect();
        assert_eq!(BlockRate::best(&rates), want, "{rates:?}");
    }

    #[test]
    fn the_smallest_of_the_fast_sizes_is_used() {
        check(&[(1, 50.0), (2, 96.0), (4, 100.0), (8, 98.0)], Some(2));
        check(&[(8, 98.0), (4, 100.0), (2, 94.0)], Some(4));
        check(&[(1, 7.0)], Some(1));
    }

    #[test]
    fn without_a_rate_there_is_no_size() {
        check(&[], None);
        check(&[(1, f64::NAN), (2, 0.0)], None);
        check(&[(1, f64::NAN), (2, 3.0)], Some(2));
    }
}
