//! Merges long words block by block: the same tokens as merging them whole, in bounded memory.
//!
//! Merging takes some hundred bytes per character of a word, and a word may be as long as a text (a text
//! without spaces; for SentencePiece any text). So a word is cut into blocks between two tokens. A cut is
//! right if merging the two tokens next to it, alone, gives these two again. Merges are applied by rank, then
//! from the left. Merges within each token therefore happen as in the whole word, and a merge across the cut
//! would also happen between the two alone. Tokens in which every two neighbours are such a pair are those of
//! the whole word.

use super::TokenId;
use super::error::TokenizerError;

/// Bytes of a block; shorter words are merged whole.
pub(super) const BLOCK_BYTES: usize = 16 << 10;
/// The most bytes of a token as written in words, so that a block has at least two tokens.
pub(super) const TOKEN_BYTES_MAX: usize = BLOCK_BYTES / 2 - 1;
/// The most cuts that are tried in one block.
const CUTS_MAX: usize = 64;
/// Tokens at a block's end that the next block may change; the first cut tried is before them.
const LOOSE_TOKENS: usize = 8;

/// Refuses a token that is too long for cutting words around it; `written` is its form in words.
pub(super) fn check_token(id: TokenId, written: &str) -> Result<(), TokenizerError> {
    let (len, max) = (written.len(), TOKEN_BYTES_MAX);
    if len > max { Err(TokenizerError::TokenTooLong { id, len, max }) } else { Ok(()) }
}

/// A token and the number of bytes of the word that it stands for.
pub(super) type Merged = (TokenId, usize);

/// Merges `word` in blocks of `block` bytes; calls `token` with each token.
///
/// `merge` merges a whole word; every token must have fewer than half of `block` bytes ([`check_token`]).
/// Cuts are at character boundaries, and tokens that share a character stay together. A block that cannot be
/// cut is merged with all that follows. If no cut of a block is right (no known vocabulary does this), the
/// last one is taken, and the tokens are those of two words.
pub(super) fn merge_in_blocks(
    word: &str,
    block: usize,
    merge: &mut impl FnMut(&str) -> Vec<Merged>,
    token: &mut impl FnMut(Merged),
) {
    let mut at = 0;
    let mut tokens = merge(&word[..end_of_block(word, at, block)]);
    loop {
        let end = end_of_block(word, at, block);
        if end == word.len() {
            return tokens.into_iter().for_each(token);
        }
        let units = units(&word[at..end], &tokens);
        let Some((cut, next)) = next_block(word, at, block, &units, merge) else {
            return merge(&word[at..]).into_iter().for_each(token);
        };
        tokens.truncate(units[cut].first_token);
        tokens.drain(..).for_each(&mut *token);
        at += units[cut].start;
        tokens = next;
    }
}

fn end_of_block(word: &str, at: usize, block: usize) -> usize {
    word.floor_char_boundary(at.saturating_add(block).min(word.len()))
}

/// A token that begins at a character boundary, with the tokens after it that do not.
#[derive(Debug, Clone, Copy)]
struct Unit {
    /// Start in bytes of the block.
    start: usize,
    first_token: usize,
}

fn units(block: &str, tokens: &[Merged]) -> Vec<Unit> {
    let (mut units, mut start) = (Vec::new(), 0);
    for (first_token, &(_, len)) in tokens.iter().enumerate() {
        if block.is_char_boundary(start) {
            units.push(Unit { start, first_token });
        }
        start += len;
    }
    units
}

/// Returns the unit that the next block begins with, and that block's tokens. Returns `None` if no unit
/// begins after the first byte.
///
/// A SentencePiece token of no bytes may come first; a cut after it would make no progress.
fn next_block(
    word: &str,
    at: usize,
    block: usize,
    units: &[Unit],
    merge: &mut impl FnMut(&str) -> Vec<Merged>,
) -> Option<(usize, Vec<Merged>)> {
    let lowest = units.iter().position(|unit| unit.start > 0)?;
    let first = units.len().saturating_sub(1 + LOOSE_TOKENS).max(lowest);
    let mut tried = None;
    for cut in (lowest..=first).rev().take(CUTS_MAX) {
        let from = at + units[cut].start;
        let ahead = &word[from..end_of_block(word, from, block)];
        let next = merge(ahead);
        let left = &word[at + units[cut - 1].start..from];
        let right = &ahead[..self::units(ahead, &next).get(1).map_or(ahead.len(), |unit| unit.start)];
        let is_right = merge(&[left, right].concat()) == [merge(left), merge(right)].concat();
        if is_right {
            return Some((cut, next));
        }
        tried.get_or_insert((cut, next));
    }
    tried
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Merges by rank, then from the left, following the definition literally. Ids are ranks after the
    /// letters.
    fn merge(merges: &[(TokenId, TokenId)], word: &str) -> Vec<Merged> {
        let ranks: HashMap<(TokenId, TokenId), usize> =
            merges.iter().enumerate().rev().map(|(rank, &pair)| (pair, rank)).collect();
        let mut tokens: Vec<Merged> = word.chars().map(|c| (c as TokenId, c.len_utf8())).collect();
        loop {
            let pairs = tokens.windows(2).enumerate();
            let best = pairs.filter_map(|(at, pair)| Some((*ranks.get(&(pair[0].0, pair[1].0))?, at))).min();
            let Some((rank, at)) = best else { return tokens };
            let len = tokens[at].1 + tokens[at + 1].1;
            tokens.splice(at..at + 2, [(1000 + rank as TokenId, len)]);
        }
    }

    /// Returns merges of earlier tokens, as training makes them, with tokens of at most 8 letters.
    fn vocabulary(picks: &[(usize, usize)]) -> Vec<(TokenId, TokenId)> {
        let mut ids: Vec<(TokenId, usize)> = "abcé".chars().map(|c| (c as TokenId, 1)).collect();
        let mut merges = Vec::new();
        for &(left, right) in picks {
            let (left, right) = (ids[left % ids.len()], ids[right % ids.len()]);
            if left.1 + right.1 <= 8 {
                ids.push((1000 + merges.len() as TokenId, left.1 + right.1));
                merges.push((left.0, right.0));
            }
        }
        merges
    }

    fn blocks(merges: &[(TokenId, TokenId)], word: &str, block: usize) -> (Vec<Merged>, usize) {
        let (mut tokens, mut longest) = (Vec::new(), 0);
        let mut whole = |text: &str| {
            longest = longest.max(text.len());
            merge(merges, text)
        };
        merge_in_blocks(word, block, &mut whole, &mut |token| tokens.push(token));
        (tokens, longest)
    }

    #[test]
    fn runs_of_one_letter_are_cut_between_whole_tokens() {
        let merges = vocabulary(&[(0, 0), (4, 4), (5, 5)]);
        for len in 0..200 {
            let word = "a".repeat(len);
            assert_eq!(blocks(&merges, &word, 100).0, merge(&merges, &word), "{len}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn blocks_give_the_tokens_of_the_whole_word(
            picks in prop::collection::vec((0usize..40, 0usize..40), 0..40),
            word in "(a|b|c|é){0,600}|(ab|ba|aab){0,300}",
            block in 96usize..200,
        ) {
            let merges = vocabulary(&picks);
            let (tokens, longest) = blocks(&merges, &word, block);
            let bytes: usize = tokens.iter().map(|(_, len)| len).sum();
            prop_assert_eq!(bytes, word.len());
            prop_assert!(longest <= block.max(word.len().min(block)));
            prop_assert_eq!(tokens, merge(&merges, &word));
        }
    }
}
