//! A sequence in a slot, and how far it is.
//!
//! Pure. Always: what it holds in the KV cache follows from its phase and its request.

use std::time::Duration;

use super::request::Request;
use super::{Effect, Goal};

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) request: Request,
    pub(super) phase: Phase,
    pub(super) since: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Opening,
    Prefill {
        /// Tokens in the KV cache.
        done: usize,
        /// Whether the block that they end in belongs to another sequence's prefix. Then one more block is
        /// needed to continue.
        borrowed: bool,
    },
    /// What is to be held is computed.
    Held {
        /// Tokens in the KV cache.
        done: usize,
        /// As above.
        borrowed: bool,
    },
    /// The given part of the answer is computed.
    Decide {
        /// Tokens in the KV cache.
        done: usize,
    },
    Decode,
}

impl Slot {
    /// Returns the tokens in the KV cache. The token written last is added by the next pass.
    pub(super) fn held(&self) -> usize {
        match self.phase {
            Phase::Opening => 0,
            Phase::Prefill { done, .. } | Phase::Held { done, .. } | Phase::Decide { done } => done,
            Phase::Decode => self.request.feed_tokens() - 1,
        }
    }

    /// Returns the number of tokens to compute before its goal is reached or it writes.
    pub(super) fn missing_prompt(&self) -> usize {
        match self.phase {
            Phase::Opening | Phase::Prefill { .. } => self.request.target_tokens() - self.held(),
            Phase::Held { .. } | Phase::Decide { .. } | Phase::Decode => 0,
        }
    }

    /// Goes on from `done` tokens in the KV cache. Returns the effect if that is all that is to be held.
    pub(super) fn begin(&mut self, done: usize, kv_block: usize) -> Option<Effect> {
        assert!(
            done <= self.request.known_max(),
            "a known prefix never covers the scoring window: {done} known of {:?}",
            self.request
        );
        let borrowed = !done.is_multiple_of(kv_block);
        if matches!(self.request.spec.goal, Goal::Hold { upto } if upto == done) {
            self.phase = Phase::Held { done, borrowed };
            return Some(Effect::Held(self.request.spec.id));
        }
        self.phase = Phase::Prefill { done, borrowed };
        None
    }

    /// Returns whether it waits for what to do next.
    pub(super) fn waits(&self) -> bool {
        matches!(self.phase, Phase::Held { .. } | Phase::Decide { .. })
    }

    /// Returns the blocks that it needs before it can grow: one if its last block is not its own.
    pub(super) fn own_block(&self) -> usize {
        match self.phase {
            Phase::Prefill { borrowed, .. } | Phase::Held { borrowed, .. } => usize::from(borrowed),
            Phase::Opening | Phase::Decide { .. } | Phase::Decode => 0,
        }
    }

    /// Returns whether it has something to compute before it writes.
    pub(super) fn prefilling(&self) -> bool {
        matches!(self.phase, Phase::Prefill { .. })
    }
}
