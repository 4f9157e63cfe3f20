//! Which keys and values of a sequence stay in the cache, head by head.
//!
//! Eviction policies (SnapKV, heavy hitters, streaming) choose positions; [`crate::Engine::evict`] makes a sequence that
//! holds only those. Keys keep the rotary angle of the position they were computed at, and tokens that follow go on at
//! the position after the last one, as if nothing were missing: what attention sees is what a mask over the full
//! cache would leave. Every head keeps equally many, so that a slot means the same place in every head.

use crate::kv::KvError;

/// The kept positions of every KV head of every layer; of a sequence that has lost some before, indices of those that
/// it still has.
///
/// Always holds: all heads keep equally many, at least one, in ascending order, none twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    tokens: usize,
    /// `[l, g, tokens]`.
    positions: Vec<usize>,
}

/// Why keys and values could not be evicted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EvictError {
    /// The cache refuses: an unknown sequence, or too little room.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// A head that keeps nothing, or not as many as the first one.
    #[error("head {head} keeps {tokens} tokens, the first one keeps {first}, and at least 1 must stay")]
    Tokens {
        /// Index of the head over all layers.
        head: usize,
        /// What it keeps.
        tokens: usize,
        /// What the first head keeps.
        first: usize,
    },
    /// Positions that are not ascending.
    #[error("head {head} keeps position {position} after one that is not before it")]
    Order {
        /// Index of the head over all layers.
        head: usize,
        /// The position.
        position: usize,
    },
    /// A number of heads that the model does not have.
    #[error("positions for {heads} KV heads, the model has {wanted} in all layers")]
    Heads {
        /// Heads given.
        heads: usize,
        /// Heads of the model.
        wanted: usize,
    },
    /// A position that the cache does not hold.
    #[error("position {position} is to be kept, the sequence has {cached} tokens in the cache")]
    Position {
        /// The position.
        position: usize,
        /// Tokens in the cache.
        cached: usize,
    },
    /// A sliding window counts positions, which slots of a thinned cache are not.
    #[error("a model with a sliding window cannot evict keys and values")]
    SlidingWindow,
    /// An engine that holds the keys and values of some layers only.
    #[error("an engine of {held} of the model's {n_layers} layers cannot evict keys and values")]
    SomeLayers {
        /// Layers that it holds.
        held: usize,
        /// The model's.
        n_layers: usize,
    },
}

impl Kept {
    /// The positions of each KV head: those of layer 0 first.
    ///
    /// # Errors
    /// [`EvictError::Tokens`], [`EvictError::Order`].
    pub fn new(heads: &[Vec<usize>]) -> Result<Self, EvictError> {
        let first = heads.first().map_or(0, Vec::len);
        for (head, positions) in heads.iter().enumerate() {
            if positions.is_empty() || positions.len() != first {
                return Err(EvictError::Tokens { head, tokens: positions.len(), first });
            }
            if let Some(pair) = positions.windows(2).find(|pair| pair[0] >= pair[1]) {
                return Err(EvictError::Order { head, position: pair[1] });
            }
        }
        Ok(Self { tokens: first, positions: heads.concat() })
    }

    /// Tokens that every head keeps.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// What a head keeps; `head` counts over all layers.
    pub(crate) fn positions(&self, head: usize) -> &[usize] {
        &self.positions[head * self.tokens..(head + 1) * self.tokens]
    }

    /// Checks against a model's heads and a sequence's tokens.
    pub(crate) fn check(&self, wanted: usize, cached: usize) -> Result<(), EvictError> {
        let heads = self.positions.len().checked_div(self.tokens).unwrap_or(0);
        if heads != wanted {
            return Err(EvictError::Heads { heads, wanted });
        }
        match self.positions.iter().find(|position| **position >= cached) {
            Some(&position) => Err(EvictError::Position { position, cached }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(heads: &[&[usize]], want: &str) {
        let heads: Vec<Vec<usize>> = heads.iter().map(|positions| positions.to_vec()).collect();
        let got = Kept::new(&heads).and_then(|kept| kept.check(2, 10).map(|()| kept));
        let got = match got {
            Ok(kept) => format!("{} {:?} {:?}", kept.tokens(), kept.positions(0), kept.positions(1)),
            Err(err) => err.to_string(),
        };
        assert_eq!(got, want);
    }

    #[test]
    fn positions_are_checked() {
        check(&[&[0, 3], &[1, 9]], "2 [0, 3] [1, 9]");
        check(&[], "positions for 0 KV heads, the model has 2 in all layers");
        check(&[&[0]], "positions for 1 KV heads, the model has 2 in all layers");
        check(&[&[], &[]], "head 0 keeps 0 tokens, the first one keeps 0, and at least 1 must stay");
        check(&[&[0, 1], &[0]], "head 1 keeps 1 tokens, the first one keeps 2, and at least 1 must stay");
        check(&[&[0], &[10]], "position 10 is to be kept, the sequence has 10 tokens in the cache");
        check(&[&[0, 1], &[4, 4]], "head 1 keeps position 4 after one that is not before it");
    }
}
