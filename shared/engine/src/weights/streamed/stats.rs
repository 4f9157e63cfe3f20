//! What residency and streaming have cost so far.

use std::time::Duration;

/// Figures of [`StreamedWeights`](super::StreamedWeights), readable while it runs. What one token costs is the difference
/// of two readings, divided by the passes between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidencyStats {
    /// Bytes of the matrices that are computed with here, experts and all. The embedding table counts only where it is
    /// the projection to logits too.
    pub weight_bytes: u64,
    /// Bytes of them that may stay in memory. The least that a token can read is the difference of
    /// the two.
    pub budget_bytes: u64,
    /// Of the budget, what reading ahead may hold in the page cache.
    pub prefetch_bytes: u64,
    /// Bytes of them that do.
    pub resident_bytes: u64,
    /// Bytes that are read for every token; experts come on top, as tokens are sent to them.
    pub streamed_bytes: u64,
    /// Of the resident bytes, those that are still to be read into memory for the first time.
    pub cold_bytes: u64,
    /// Walks over the layers so far, each for one token or for many at once.
    pub passes: u64,
    /// Reads so far.
    pub reads: u64,
    /// Bytes that they brought, with up to a block at each end of what was wanted.
    pub bytes_read: u64,
    /// Reads whose bytes were not used: the walk went elsewhere.
    pub reads_in_vain: u64,
    /// Time that passes stood still for a read: what did not hide behind computing.
    pub waited: Duration,
    /// Time with at least one read under way.
    pub reading: Duration,
    /// Page faults of the whole process that waited for a disk; `None` where the system does not say. Without pressure
    /// from other programs a pass adds none, or the one of its token's row of the embedding table.
    pub major_faults: Option<u64>,
    /// Whether reads go past the page cache; else they are given back to the system after each read.
    pub direct: bool,
}

/// Page faults of this process that waited for a disk.
pub(super) fn major_faults() -> Option<u64> {
    if cfg!(any(target_os = "linux", target_os = "android")) {
        major_faults_in(&std::fs::read_to_string("/proc/self/stat").ok()?)
    } else {
        None
    }
}

/// Of `/proc/PID/stat`: its twelfth field (proc_pid_stat(5)); the second is a name that may hold anything.
fn major_faults_in(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(9)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_the_twelfth_field() {
        let stat = "42 (a (b) c) S 1 2 3 4 5 6 700 8 1234 10 11 12";
        assert_eq!(major_faults_in(stat), Some(1234));
        assert_eq!(major_faults_in("42 (a) S 1 2"), None);
        if cfg!(target_os = "linux") {
            assert!(major_faults().is_some());
        }
    }
}
