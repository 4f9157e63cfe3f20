//! Proposals from the sequence itself: the tokens that followed the last occurrence of its end.
//!
//! Answers about a document quote it. If the end of the answer occurs earlier in prompt or answer, the tokens
//! after that occurrence are likely to follow again. Pure. Always: the longest match wins; of equally long
//! ones the last. A pass never reads more than [`FOLLOWED_MAX`] new tokens; an answer whose index is not
//! complete yet gets no proposals.

use std::collections::{BTreeMap, HashMap};

use baton_engine::tokenizer::TokenId;
use baton_engine::{StepControl, StepError};

use super::{Proposer, Want};
use crate::scheduler::JobId;

/// The longest match that is compared.
const MATCH_MAX: usize = 16;
/// The most occurrences that are compared, the last ones first.
const PLACES_MAX: usize = 64;
/// The most tokens that are added to indexes in one pass, over all answers.
const FOLLOWED_MAX: usize = 8192;

/// One index for each answer.
#[derive(Debug, Default)]
pub struct Lookups {
    of: BTreeMap<JobId, Lookup>,
}

impl Proposer for Lookups {
    fn propose(
        &mut self,
        wants: &[Want<'_>],
        _control: &mut dyn StepControl,
    ) -> Result<Vec<Vec<TokenId>>, StepError> {
        let mut left = FOLLOWED_MAX;
        let proposed = wants.iter().map(|want| {
            let lookup = self.of.entry(want.id).or_default();
            match lookup.follow(want.writing.prompt, want.writing.own, &mut left) {
                true => lookup.proposals(want.k),
                false => Vec::new(),
            }
        });
        Ok(proposed.collect())
    }

    fn forget(&mut self, id: JobId) {
        self.of.remove(&id);
    }
}

/// Pairs of a sequence's tokens and their places: the number of tokens up to the end of the pair.
///
/// Cost: about 30 bytes per token; a proposal compares at most [`PLACES_MAX`] places.
#[derive(Debug, Default)]
struct Lookup {
    ids: Vec<TokenId>,
    /// The last place of each pair.
    last: HashMap<[TokenId; 2], u32>,
    /// For each token the place before of the pair that it ends; 0 if there is none.
    before: Vec<u32>,
}

impl Lookup {
    /// Appends at most `left` new tokens of prompt and answer, and takes them off `left`. Reads another
    /// sequence from the beginning. Returns whether it knows all tokens.
    fn follow(&mut self, prompt: &[TokenId], own: &[TokenId], left: &mut usize) -> bool {
        let len = prompt.len() + own.len();
        let (of_prompt, of_own) = self.ids.split_at(self.ids.len().min(prompt.len()));
        if !(prompt.starts_with(of_prompt) && own.starts_with(of_own)) {
            *self = Lookup::default();
        }
        let known = self.ids.len();
        let new = (len - known).min(*left);
        *left -= new;
        for &id in prompt.iter().chain(own).skip(known).take(new) {
            self.ids.push(id);
            let at = u32::try_from(self.ids.len()).unwrap_or(u32::MAX);
            let before = self.ids.last_chunk().and_then(|&pair| self.last.insert(pair, at));
            self.before.push(before.unwrap_or(0));
        }
        self.ids.len() == len
    }

    /// Returns up to `k` tokens that followed the longest earlier match of the sequence's end; empty if its
    /// last two tokens never occurred together before. A match that reaches the end continues with the
    /// proposal itself.
    fn proposals(&self, k: usize) -> Vec<TokenId> {
        let ids = &self.ids;
        let length = |at: usize| {
            let (earlier, end) = (ids[..at].iter().rev(), ids.iter().rev());
            earlier.zip(end).take(MATCH_MAX).take_while(|(a, b)| a == b).count()
        };
        let earlier = |at: usize| {
            let before = at.checked_sub(1).and_then(|last| self.before.get(last)).copied();
            before.map(|before| before as usize).filter(|before| *before > 0)
        };
        let mut best: Option<(usize, usize)> = None;
        for at in std::iter::successors(earlier(ids.len()), |at| earlier(*at)).take(PLACES_MAX) {
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
}

#[cfg(test)]
mod tests;
