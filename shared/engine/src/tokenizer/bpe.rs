//! Byte-level byte-pair encoding (GGUF model `gpt2`): words of the pre-tokenizer, written in the byte
//! alphabet and merged by the `tokenizers` library's BPE model.
//!
//! The merging model knows normal tokens only, so no text can become a control token; it knows all bytes
//! of UTF-8, so no text is lost.

use std::collections::HashMap;

use tokenizers::Model as _;
use tokenizers::models::bpe::{BPE, Vocab as LibraryVocab};

use super::TokenId;
use super::bytes::{ByteAlphabet, byte_to_char};
use super::error::TokenizerError;
use super::pre::PreTokenizer;
use super::vocab::{TokenKind, Vocab};

/// Encodes text by byte-pair merges.
pub(super) struct ByteLevelBpe {
    pre: PreTokenizer,
    alphabet: ByteAlphabet,
    model: BPE,
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
    /// A byte without a token; a merge that the vocabulary cannot make. A merge of or into a token that
    /// is not made of text (a control token) is left out.
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
                Some(TokenKind::Normal | TokenKind::Byte) => drop(ids.insert(text.to_owned(), id)),
                _ => drop(not_text.insert(text, id)),
            }
        }
        // Bytes that no UTF-8 text has may be missing, and are in some vocabularies.
        let in_text = |b: &u8| !matches!(b, 0xc0 | 0xc1 | 0xf5..);
        let missing = |b: &u8| !ids.contains_key(byte_to_char(*b).to_string().as_str());
        if let Some(byte) = (0..=u8::MAX).filter(in_text).find(missing) {
            return Err(TokenizerError::MissingByte { byte });
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
        let builder = BPE::builder().vocab_and_merges(ids, pairs).ignore_merges(pre.ignore_merges);
        let model = builder.build().map_err(TokenizerError::Library)?;
        Ok(ByteLevelBpe { pre, alphabet: ByteAlphabet::new(), model })
    }

    /// Calls `token` with each token of the text and its number of bytes; the bytes add up to the text.
    pub(super) fn encode(&self, text: &str, token: &mut impl FnMut(TokenId, usize)) {
        let mut written = String::new();
        self.pre.split(text, &mut |word| {
            self.alphabet.encode_into(word, &mut written);
            let tokens = self.model.tokenize(&written);
            let tokens = tokens.expect("only an unknown token can fail, and every byte is known");
            for t in tokens {
                token(t.id, t.value.chars().count());
            }
        });
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
