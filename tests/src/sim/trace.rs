//! A hash of everything that happened, to see that a run is repeated exactly.

use baton_random::mix;

/// The hash so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Trace(u64);

impl Trace {
    /// Adds numbers.
    pub(super) fn add(&mut self, kind: &str, numbers: &[u64]) {
        self.text(kind);
        for number in numbers {
            self.0 = mix(self.0, *number);
        }
    }

    /// Adds a text.
    pub(super) fn text(&mut self, text: &str) {
        for chunk in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = mix(self.0, u64::from_le_bytes(word));
        }
    }

    /// Returns the hash.
    pub(super) fn hash(self) -> u64 {
        self.0
    }
}
