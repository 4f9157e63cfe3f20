//! Byte-level byte-pair encoding (GGUF model `gpt2`): words of the pre-tokenizer, written in the byte
//! alphabet and merged by the `tokenizers` library's BPE model.
//!
//! The merging model knows normal tokens only, so no text can become a control token. A byte that the vocabulary lacks
//! (some leave out rare ones) costs that byte: nothing merges across it, and the token beside it stands for it.

use std::collections::HashMap;

use tokenizers::Model as _;
use tokenizers::models::bpe::{BPE, Vocab as LibraryVocab};

use super::TokenId;
use super::blocks::{BLOCK_BYTES, Merged, check_token, merge_in_blocks};
use super::bytes::{ByteAlphabet, byte_to_char};
use super::error::TokenizerError;
use super::pre::PreTokenizer;
use super::vocab::{TokenKind, Vocab};

/// Encodes text by byte-pair merges.
pub(super) struct ByteLevelBpe {
    pre: PreTokenizer,
    alphabet: ByteAlphabet,
    model: BPE,
    /// The characters of bytes that have no token.
    missing: Vec<char>,
}

impl std::fmt::Debug for ByteLevelBpe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByteLevelBpe").field("model", &self.model).finish_non_exhaustive()
    }
}

impl ByteLevelBpe {
    /// Builds the encoder of the vocabulary's texts and of merges written as `left right`, best first.
    ///
    /// # Errors
    /// A token that is too long; a merge that the vocabulary cannot make. A merge of or into a token that is not made of text (a control token)
    /// is left out.
    pub(super) fn new(
        texts: &[&str],
        vocab: &Vocab,
        merges: &[&str],
        pre: PreTokenizer,
    ) -> Result<ByteLevelBpe, TokenizerError> {
        let mut ids = LibraryVocab::default();
        let mut not_text: HashMap<&str, TokenId> = HashMap::new();
        for (id, &text) in texts.iter().enumerate() {
            let id = id as TokenId;
            match vocab.kind(id) {
                Some(TokenKind::Normal | TokenKind::Byte) => {
                    check_token(id, text)?;
                    ids.insert(text.to_owned(), id);
                }
                _ => drop(not_text.insert(text, id)),
            }
        }
        let is_missing = |c: &char| !ids.contains_key(c.encode_utf8(&mut [0; 4]) as &str);
        let missing: Vec<char> = (0..=u8::MAX).map(byte_to_char).filter(is_missing).collect();
        let mut pairs = Vec::with_capacity(merges.len());
        for (index, &text) in merges.iter().enumerate() {
            let bad = || TokenizerError::BadMerge { index, text: text.chars().take(80).collect() };
            let (left, right) = split_merge(text).ok_or_else(bad)?;
            let made = [left, right, &[left, right].concat()].map(|t| {
                let known = ids.contains_key(t);
                (known, known || not_text.contains_key(t))
            });
            if made.iter().any(|&(_, exists)| !exists) {
                return Err(bad());
            }
            if made.iter().all(|&(is_text, _)| is_text) {
                pairs.push((left.to_owned(), right.to_owned()));
            }
        }
        // The library's cache of words is one for each thread, of any words: megabytes that a text can fill as it likes,
        // and a time that tells whether somebody else has used a word.
        let builder = BPE::builder().vocab_and_merges(ids, pairs).ignore_merges(pre.ignore_merges);
        let builder = builder.cache_capacity(0);
        let model = builder.build().map_err(TokenizerError::Library)?;
        Ok(ByteLevelBpe { pre, alphabet: ByteAlphabet::new(), model, missing })
    }

    /// Calls `token` with each token of the text and its number of bytes. The bytes add up to the text, but for those at
    /// its end that have no token.
    pub(super) fn encode(&self, text: &str, token: &mut impl FnMut(TokenId, usize)) {
        self.encode_in(BLOCK_BYTES, text, token);
    }

    /// The same, longer words in blocks of so many bytes.
    pub(super) fn encode_in(&self, block: usize, text: &str, token: &mut impl FnMut(TokenId, usize)) {
        let mut written = String::new();
        let mut lost = 0;
        self.pre.split(text, &mut |word| {
            self.alphabet.encode_into(word, &mut written);
            let whole = self.pre.ignore_merges && self.model.token_to_id(&written).is_some();
            if self.missing.is_empty() || whole {
                self.merge(block, &written, &mut lost, token);
                return;
            }
            for part in written.split_inclusive(self.missing.as_slice()) {
                let known = part.strip_suffix(self.missing.as_slice());
                self.merge(block, known.unwrap_or(part), &mut lost, token);
                lost += usize::from(known.is_some());
            }
        });
    }

    /// The tokens of a word whose bytes all have one; the first takes the lost bytes before it.
    fn merge(&self, block: usize, written: &str, lost: &mut usize, token: &mut impl FnMut(TokenId, usize)) {
        if written.is_empty() {
            return;
        }
        let mut at = 0;
        merge_in_blocks(written, block, &mut |part| self.merge_whole(part), &mut |(id, len)| {
            // One character as written is one byte of the text.
            token(id, written[at..at + len].chars().count() + std::mem::take(lost));
            at += len;
        });
    }

    /// The tokens of a word, written in the alphabet, with their bytes as written.
    fn merge_whole(&self, written: &str) -> Vec<Merged> {
        let tokens = self.model.tokenize(written);
        let tokens = tokens.expect("only an unknown token can fail, and every byte is known");
        tokens.into_iter().map(|t| (t.id, t.value.len())).collect()
    }
}

/// Cuts a merge at its space; a token may itself begin with a space in odd files, so not at the first
/// character.
fn split_merge(text: &str) -> Option<(&str, &str)> {
    let first = text.chars().next()?.len_utf8();
    let at = first + text[first..].find(' ')?;
    let (left, right) = (&text[..at], &text[at + 1..]);
    (!right.is_empty()).then_some((left, right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_are_cut_at_their_space() {
        assert_eq!(split_merge("a b"), Some(("a", "b")));
        assert_eq!(split_merge("Ġt he"), Some(("Ġt", "he")));
        assert_eq!(split_merge("  b"), Some((" ", "b")));
        for bad in ["", "ab", "a ", " "] {
            assert_eq!(split_merge(bad), None, "{bad:?}");
        }
    }
}
