//! What came of proposed tokens.
//!
//! Pure counts. Always: `accepted <= proposed`, and times cover only passes whose plain time is known.

/// Results of proposing for one answer.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SpeculationStats {
    /// Passes in which the answer was continued.
    pub steps: u64,
    /// Of these, passes that held proposals for it.
    pub speculative_steps: u64,
    /// Tokens proposed.
    pub proposed: u64,
    /// Of these, tokens that the model confirmed.
    pub accepted: u64,
    /// Tokens written in these passes.
    pub written: u64,
    /// Tokens written in passes whose time is known.
    pub timed: u64,
    /// Time of these passes, in milliseconds.
    pub spent_ms: f64,
    /// Estimated milliseconds for the same tokens without proposals, beside as many answers.
    pub plain_ms: f64,
}

impl SpeculationStats {
    /// Returns the share of proposed tokens that were right.
    pub fn acceptance(&self) -> Option<f64> {
        (self.proposed > 0).then(|| self.accepted as f64 / self.proposed as f64)
    }

    /// Returns the time of plain decoding for the same tokens divided by the time taken.
    pub fn speed_up(&self) -> Option<f64> {
        (self.spent_ms > 0.0 && self.plain_ms > 0.0).then(|| self.plain_ms / self.spent_ms)
    }
}
