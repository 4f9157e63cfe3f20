//! A set of tokens, one bit per token: the tokens with which an answer may continue.
//!
//! Pure. Never: knows why a token is in it. Always: holds exactly the ids that were inserted, whatever their
//! size.

use crate::tokenizer::TokenId;

const BITS: usize = u32::BITS as usize;

/// A set of tokens of a vocabulary.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenSet {
    /// Token `i` is bit `i % 32` of word `i / 32`.
    words: Vec<u32>,
}

impl TokenSet {
    /// Returns an empty set with room for a vocabulary of `vocab_len` tokens.
    pub fn new(vocab_len: usize) -> TokenSet {
        TokenSet { words: vec![0; vocab_len.div_ceil(BITS)] }
    }

    /// Returns the set with these words: token `i` is bit `i % 32` of word `i / 32`.
    pub fn from_words(words: Vec<u32>) -> TokenSet {
        TokenSet { words }
    }

    /// Inserts a token; the set grows if the id is beyond the vocabulary it was made for.
    pub fn insert(&mut self, id: TokenId) {
        let word = id as usize / BITS;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (id as usize % BITS);
    }

    /// Whether a token is in it.
    pub fn contains(&self, id: TokenId) -> bool {
        self.words.get(id as usize / BITS).is_some_and(|word| word & (1 << (id as usize % BITS)) != 0)
    }

    /// Returns the number of tokens in it.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no token is in it.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }
}

impl FromIterator<TokenId> for TokenSet {
    fn from_iter<I: IntoIterator<Item = TokenId>>(ids: I) -> TokenSet {
        let mut set = TokenSet::default();
        ids.into_iter().for_each(|id| set.insert(id));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_put_in() {
        let set: TokenSet = [0, 31, 32, 95].into_iter().collect();
        let held: Vec<TokenId> = (0..200).filter(|&id| set.contains(id)).collect();
        assert_eq!(held, [0, 31, 32, 95]);
        assert_eq!((set.len(), set.is_empty()), (4, false));
        assert_eq!(TokenSet::from_words(vec![1 << 31 | 1, 1, 1 << 31]), set);
        assert!(TokenSet::new(64).is_empty() && !TokenSet::new(64).contains(TokenId::MAX));
    }
}
