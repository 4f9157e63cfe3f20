//! Progress of an answer that has no token yet, for the person who waits.

use serde::{Deserialize, Serialize};

use crate::range::{NumberRange, OutOfRange};
use crate::request::limits;

/// How much of the prompt is computed; sent about every two seconds until the first token.
///
/// A device that does not know the event skips it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ProgressEvent {
    /// What the answer waits for.
    pub stage: ProgressStage,
    /// Prompt tokens computed so far.
    pub computed: u64,
    /// Prompt tokens in all.
    pub total: u64,
    /// Time until the first token, in milliseconds, if it can be estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_ms: Option<f64>,
}

/// What an answer waits for before its first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgressStage {
    /// A free slot.
    Queue,
    /// The computation of its prompt.
    Prefill,
}

impl ProgressEvent {
    /// Checks the ranges of all numbers.
    ///
    /// # Errors
    /// [`OutOfRange`] naming the field.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let tokens = NumberRange::new(0.0, limits::TEXT_BYTES_MAX as f64);
        tokens.check("total", self.total as f64)?;
        NumberRange::new(0.0, self.total as f64).check("computed", self.computed as f64)?;
        NumberRange::new(0.0, 86_400_000.0).check_opt("eta_ms", self.eta_ms)
    }
}
