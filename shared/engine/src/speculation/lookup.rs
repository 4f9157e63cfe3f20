//! Proposals from the sequence itself: the tokens that followed the last occurrence of its end.
//!
//! Answers about a document quote it. If the end of the answer occurs earlier in prompt or answer, the tokens
//! after that occurrence are likely to follow again. Pure. Always: the longest match wins; of equally long
//! ones the last.

use std::collections::HashMap;

use super::Writing;
use crate::tokenizer::TokenId;

/// The longest match that is compared.
const MATCH_MAX: usize = 16;
/// The most occurrences that are compared, the last ones first.
const PLACES_MAX: usize = 64;

/// Pairs of a sequence's tokens and their positions.
///
/// Cost: about 16 bytes per token; a proposal compares at most [`PLACES_MAX`] positions.
#[derive(Debug, Default)]
pub struct Lookup {
    ids: Vec<TokenId>,
    /// The position of the token after each pair, ascending.
    after: HashMap<[TokenId; 2], Vec<u32>>,
}

impl Lookup {
    /// Returns up to `k` tokens that followed the longest earlier match of the sequence's end; empty if its
    /// last two tokens never occurred together before. A match that reaches the end continues with the
    /// proposal itself.
    pub fn propose(&mut self, writing: Writing<'_>, k: usize) -> Vec<TokenId> {
        self.follow(writing.prompt, writing.answer);
        let ids = &self.ids;
        let Some(&[a, b]) = ids.last_chunk() else { return Vec::new() };
        let places = self.after.get(&[a, b]).map_or(&[][..], Vec::as_slice);
        let length = |at: usize| {
            let (earlier, end) = (ids[..at].iter().rev(), ids.iter().rev());
            earlier.zip(end).take(MATCH_MAX).take_while(|(a, b)| a == b).count()
        };
        // The last position is the end itself.
        let earlier = places.iter().rev().map(|at| *at as usize).filter(|at| *at < ids.len());
        let mut best: Option<(usize, usize)> = None;
        for at in earlier.take(PLACES_MAX) {
            let n = length(at);
            if best.is_none_or(|(most, _)| n > most) {
                best = Some((n, at));
            }
        }
        let Some((_, at)) = best else { return Vec::new() };
        let mut proposed = Vec::with_capacity(k);
        for from in at..at + k {
            let id = ids.get(from).copied().unwrap_or_else(|| proposed[from - ids.len()]);
            proposed.push(id);
        }
        proposed
    }

    /// Appends new tokens; reads another sequence from the beginning.
    fn follow(&mut self, prompt: &[TokenId], answer: &[TokenId]) {
        let whole = || prompt.iter().chain(answer);
        let known = self.ids.iter().zip(whole()).take_while(|(a, b)| a == b).count();
        if known < self.ids.len() {
            self.ids.clear();
            self.after.clear();
        }
        for id in whole().skip(self.ids.len()) {
            self.ids.push(*id);
            if let Some(&pair) = self.ids.last_chunk() {
                let at = u32::try_from(self.ids.len()).expect("a context is shorter than 2^32");
                self.after.entry(pair).or_default().push(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{Sampler, SamplingParams};
    use proptest::prelude::*;

    fn propose(lookup: &mut Lookup, prompt: &[TokenId], answer: &[TokenId], k: usize) -> Vec<TokenId> {
        let sampler = Sampler::new(SamplingParams::default()).unwrap();
        lookup.propose(Writing { prompt, answer, sampler: &sampler }, k)
    }

    #[track_caller]
    fn check(prompt: &[TokenId], answer: &[TokenId], k: usize, want: &[TokenId]) {
        assert_eq!(propose(&mut Lookup::default(), prompt, answer, k), want, "{prompt:?} {answer:?}");
    }

    #[test]
    fn the_longest_match_wins_and_the_last_of_equal_ones() {
        check(&[1, 2, 3, 4, 5], &[2, 3], 2, &[4, 5]);
        check(&[1, 2, 3, 4, 9, 2, 3, 7], &[2, 3], 1, &[7]);
        check(&[1, 2, 3, 4, 9, 2, 3, 7], &[1, 2, 3], 1, &[4]);
        check(&[1, 2, 3], &[9], 4, &[]);
        check(&[1, 2, 3, 4], &[], 4, &[]);
        check(&[], &[5], 4, &[]);
        check(&[5, 6, 7], &[5, 6], 9, &[7, 5, 6, 7, 5, 6, 7, 5, 6]);
        check(&[8, 8, 8], &[], 3, &[8, 8, 8]);
    }

    #[test]
    fn another_sequence_is_read_anew() {
        let mut lookup = Lookup::default();
        assert_eq!(propose(&mut lookup, &[1, 2, 3, 4], &[1, 2], 1), [3]);
        assert_eq!(propose(&mut lookup, &[1, 2, 3, 4], &[1, 2, 9, 1, 2], 1), [9]);
        assert_eq!(propose(&mut lookup, &[1, 2, 7, 4], &[1, 2], 1), [7]);
        assert!(propose(&mut lookup, &[1, 2], &[], 1).is_empty());
    }

    /// Compares every earlier position, by definition.
    fn naive(ids: &[TokenId], k: usize) -> Vec<TokenId> {
        let length =
            |at: usize| (1..=at.min(MATCH_MAX)).take_while(|n| ids[at - n] == ids[ids.len() - n]).count();
        let best = (2..ids.len()).filter(|at| length(*at) >= 2).max_by_key(|at| (length(*at), *at));
        let Some(at) = best else { return Vec::new() };
        let period = ids.len() - at;
        (0..k).map(|i| ids[at + i % period]).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn proposals_are_those_of_a_naive_search(
            ids in prop::collection::vec(0..4u32, 0..60),
            cut in 0..60usize,
            k in 1..12usize,
        ) {
            let (prompt, answer) = ids.split_at(cut.min(ids.len()));
            let mut lookup = Lookup::default();
            // An earlier sequence must not matter.
            propose(&mut lookup, prompt, &[], k);
            prop_assert_eq!(propose(&mut lookup, prompt, answer, k), naive(&ids, k));
        }
    }
}
