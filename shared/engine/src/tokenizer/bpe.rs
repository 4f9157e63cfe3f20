//! Byte-level byte-pair encoding (GGUF model `gpt2`). Words of the pre-tokenizer are written in the byte
//! alphabet and merged by the BPE model of the `tokenizers` library.
//!
//! The merging model knows only normal tokens, so no text can become a control token. A byte without a token
//! (some vocabularies leave out rare ones) is dropped: nothing merges across it, and the next token's span
//! includes it.

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
    /// The characters of bytes without a token.
    missing: Vec<char>,
}

impl std::fmt::Debug for ByteLevelBpe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByteLevelBpe").field("model", &self.model).finish_non_exhaustive()
    }
}

impl ByteLevelBpe {
    /// Builds the encoder from the vocabulary's texts and from merges written as `left right`, best first.
    ///
    /// # Errors
    /// If a token is too long, or the vocabulary cannot make a merge. Merges of or into a token that is not
    /// text (a control token) are left out.
    pub(super) fn new(
        texts: &[&str],
        vocab: &Vocab,
        merges: &[&str],
        pre: PreTokenizer,
    ) -> Result<ByteLevelBpe, TokenizerError> {
        let (ids, pairs) = merging(texts, vocab, merges)?;
        let is_missing = |c: &char| !ids.contains_key(c.encode_utf8(&mut [0; 4]) as &str);
        let missing: Vec<char> = (0..=u8::MAX).map(byte_to_char).filter(is_missing).collect();
        // The library's cache of words is per thread and shared by all users. A text could fill it with
        // megabytes, and its timing would reveal whether somebody else has used a word.
        let builder = BPE::builder().vocab_and_merges(ids, pairs).ignore_merges(pre.ignore_merges);
        let builder = builder.cache_capacity(0);
        let model = builder.build().map_err(TokenizerError::Library)?;
        Ok(ByteLevelBpe { pre, alphabet: ByteAlphabet::new(), model, missing })
    }

    /// Calls `token` with each token of the text and its number of bytes. The bytes add up to the text,
    /// except for bytes at its end that have no token.
    pub(super) fn encode(&self, text: &str, token: &mut impl FnMut(TokenId, usize)) {
        self.encode_in(BLOCK_BYTES, text, token);
    }

    /// As [`Self::encode`], with longer words in blocks of `block` bytes.
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

    /// Merges a word whose bytes all have a token; the first token takes the dropped bytes before it.
    fn merge(&self, block: usize, written: &str, lost: &mut usize, token: &mut impl FnMut(TokenId, usize)) {
        if written.is_empty() {
            return;
        }
        let mut at = 0;
        merge_in_blocks(written, block, &mut |part| self.merge_whole(part), &mut |(id, len)| {
            // One character in the alphabet is one byte of the text.
            token(id, written[at..at + len].chars().count() + std::mem::take(lost));
            at += len;
        });
    }

    /// Returns the tokens of a word, written in the alphabet, with their bytes as written.
    fn merge_whole(&self, written: &str) -> Vec<Merged> {
        let tokens = self.model.tokenize(written);
        let tokens = tokens.expect("only an unknown token can fail, and every byte is known");
        tokens.into_iter().map(|t| (t.id, t.value.len())).collect()
    }
}

/// Returns the texts that merges work on, with their tokens, and the merges, best first.
///
/// # Errors
/// If a token is too long, or the vocabulary cannot make a merge. Merges of or into a token that is not text
/// (a control token) are left out.
pub(super) fn merging(
    texts: &[&str],
    vocab: &Vocab,
    merges: &[&str],
) -> Result<(LibraryVocab, Vec<(String, String)>), TokenizerError> {
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
    Ok((ids, pairs))
}

/// Splits a merge at its space. In odd files a token may itself begin with a space, so the first character is
/// skipped.
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
