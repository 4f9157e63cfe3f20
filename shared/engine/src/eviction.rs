//! The keys and values of a sequence that stay in the cache, head by head.
//!
//! Eviction policies (SnapKV, heavy hitters, streaming) choose positions; [`crate::Engine::evict`] makes a
//! sequence that holds only those. Keys keep the rotary angle of their original position, and new tokens
//! continue at the position after the last one, as if nothing were missing. Attention sees the same as with a
//! mask over the full cache. Every head keeps equally many, so that a slot means the same place in every
//! head.

use crate::config::SlidingWindow;
use crate::kv::KvError;

/// The kept positions of every KV head of every layer. If the sequence has lost some before, they are indices
/// of those it still has.
///
/// Always holds: all heads keep the same number, at least one, in ascending order without repeats.
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
    /// Keys and values of the sequence were lost with a GPU; a step computes them again.
    #[error("keys and values of the sequence were lost with the GPU")]
    Lost,
    /// The cache refuses: the sequence is unknown, or there is too little room.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// A head keeps nothing, or a different number than the first one.
    #[error("head {head} keeps {tokens} tokens, the first one keeps {first}, and at least 1 must stay")]
    Tokens {
        /// Index of the head over all layers.
        head: usize,
        /// How many it keeps.
        tokens: usize,
        /// How many the first head keeps.
        first: usize,
    },
    /// Positions are not ascending.
    #[error("head {head} keeps position {position} after one that is not before it")]
    Order {
        /// Index of the head over all layers.
        head: usize,
        /// The position.
        position: usize,
    },
    /// The number of heads differs from the model's.
    #[error("positions for {heads} KV heads, the model has {wanted} in all layers")]
    Heads {
        /// Heads given.
        heads: usize,
        /// Heads of the model.
        wanted: usize,
    },
    /// The cache does not hold the position.
    #[error("position {position} is to be kept, the sequence has {cached} tokens in the cache")]
    Position {
        /// The position.
        position: usize,
        /// Tokens in the cache.
        cached: usize,
    },
    /// A head does not keep what a sliding window sees. Windows count slots, which are positions only if
    /// nothing is missing between them.
    #[error(
        "head {head} must keep its first {first} tokens and those from {last} on, which a sliding window sees"
    )]
    SlidingWindow {
        /// Index of the head over all layers.
        head: usize,
        /// Tokens at the beginning.
        first: usize,
        /// The first of those at the end.
        last: usize,
    },
    /// The model has recurrent layers, whose states stand for all tokens.
    #[error("a {family} model has recurrent layers and cannot evict keys and values")]
    Recurrent {
        /// The model's family.
        family: &'static str,
    },
    /// The engine holds the keys and values of only some layers.
    #[error("an engine of {held} of the model's {n_layers} layers cannot evict keys and values")]
    SomeLayers {
        /// Layers that it holds.
        held: usize,
        /// Layers of the model.
        n_layers: usize,
    },
}

impl Kept {
    /// Takes the positions of each KV head, those of layer 0 first.
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

    /// Returns the number of tokens that every head keeps.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the positions that a head keeps; `head` counts over all layers.
    pub(crate) fn positions(&self, head: usize) -> &[usize] {
        &self.positions[head * self.tokens..(head + 1) * self.tokens]
    }

    /// Checks the positions against a model's heads, its window and a sequence's tokens.
    pub(crate) fn check(
        &self,
        wanted: usize,
        window: Option<SlidingWindow>,
        cached: usize,
    ) -> Result<(), EvictError> {
        let heads = self.positions.len().checked_div(self.tokens).unwrap_or(0);
        if heads != wanted {
            return Err(EvictError::Heads { heads, wanted });
        }
        if let Some(&position) = self.positions.iter().find(|position| **position >= cached) {
            return Err(EvictError::Position { position, cached });
        }
        let Some((first, last)) = window.map(|window| window.behind(cached)) else { return Ok(()) };
        // Positions ascend, so that as many as there are at an end are all of them.
        let keeps = |head: &usize| {
            let positions = self.positions(*head);
            positions.iter().take_while(|position| **position < first).count() == first
                && positions.iter().rev().take_while(|position| **position >= last).count() == cached - last
        };
        match (0..heads).find(|head| !keeps(head)) {
            Some(head) => Err(EvictError::SlidingWindow { head, first, last }),
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
        let got = Kept::new(&heads).and_then(|kept| kept.check(2, None, 10).map(|()| kept));
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

    #[test]
    fn what_a_window_sees_must_stay() {
        let check = |kept: &[usize], tokens, sinks| {
            let window = Some(SlidingWindow { tokens, sinks });
            Kept::new(&[kept.to_vec()]).unwrap().check(1, window, 10)
        };
        let refused = |first, last| Err(EvictError::SlidingWindow { head: 0, first, last });
        assert_eq!(check(&[0, 4, 7, 8, 9], 4, 1), Ok(()));
        assert_eq!(check(&[0, 4, 8, 9], 4, 1), refused(1, 7));
        assert_eq!(check(&[4, 7, 8, 9], 4, 1), refused(1, 7));
        assert_eq!(check(&[3], 1, 0), Ok(()), "a token that sees only itself");
        assert_eq!(check(&[9], 40, 0), refused(0, 0));
        assert_eq!(check(&(0..10).collect::<Vec<_>>(), 40, 90), Ok(()));
    }
}
