//! Statistics of residency and streaming.

use std::time::Duration;

/// Statistics of [`StreamedWeights`](super::StreamedWeights), readable while it runs. The cost of one token
/// is the difference of two readings, divided by the number of passes between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResidencyStats {
    /// Bytes of the matrices that this device computes with, including experts. The embedding table counts
    /// only if it is also the projection to logits.
    pub weight_bytes: u64,
    /// Bytes of them that may stay in memory. The least that a token can read is the difference of the two.
    pub budget_bytes: u64,
    /// The part of the budget that reading ahead may use in the page cache.
    pub prefetch_bytes: u64,
    /// Bytes of them that stay in memory.
    pub resident_bytes: u64,
    /// Bytes that are read for every token; experts are read in addition, as tokens are routed to them.
    pub streamed_bytes: u64,
    /// Of the resident bytes, those that have not been read into memory yet.
    pub cold_bytes: u64,
    /// Passes over the layers so far, each for one token or for many at once.
    pub passes: u64,
    /// Bytes of all experts of a mixture.
    pub all_expert_bytes: u64,
    /// Bytes among those that stay that hold experts used most; 0 if all experts stay or none.
    pub kept_bytes: u64,
    /// Bytes of those experts that are in this process's memory now. No file backs them, and a smaller budget
    /// gives them back.
    pub held_expert_bytes: u64,
    /// Bytes of experts that passes needed so far and that were not in memory: the least that could be read
    /// of them.
    pub expert_bytes: u64,
    /// Bytes of experts that passes needed so far, and that had stayed because they are used most.
    pub kept_expert_bytes: u64,
    /// Reads so far.
    pub reads: u64,
    /// Bytes read, including up to one block at each end of a wanted range.
    pub bytes_read: u64,
    /// Reads whose bytes were not used, because the walk went elsewhere.
    pub reads_in_vain: u64,
    /// Time that passes waited for reads: the part not hidden behind computing.
    pub waited: Duration,
    /// Time with at least one read in progress.
    pub reading: Duration,
    /// Page faults of the whole process that waited for a disk; `None` if the system does not report them.
    /// Without pressure from other programs a pass adds none, or one for its token's row of the embedding
    /// table.
    pub major_faults: Option<u64>,
    /// Whether reads go past the page cache. If not, pages are dropped after each read.
    pub direct: bool,
}
