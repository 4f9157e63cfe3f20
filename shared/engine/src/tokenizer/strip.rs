//! Control tokens that remove the white space next to them (`lstrip` and `rstrip` of Hugging Face's added
//! tokens).
//!
//! GGUF has no key for this. Baton's importer writes two arrays of ids. In other files Phi-3's tokens follow
//! the rule of llama.cpp: if the model's name says Phi-3, all special tokens but three remove the white space
//! after them. Names vary ("Phi 3.5 Mini Instruct"), so a SentencePiece vocabulary of the phi3 family counts
//! too.

use std::collections::HashSet;

use super::error::TokenizerError;
use super::vocab::{TokenKind, Vocab};
use super::{Digest, TokenId};
use crate::gguf::Metadata;

/// The key for tokens that remove white space before them: an array of ids.
pub const STRIP_LEFT_KEY: &str = "baton.tokenizer.strip_left";
/// The key for tokens that remove white space after them: an array of ids.
pub const STRIP_RIGHT_KEY: &str = "baton.tokenizer.strip_right";

/// Special tokens of Phi-3 that keep the white space after them.
const PHI3_KEEPS: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

/// The tokens that remove white space.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Strips {
    pub(super) left: HashSet<TokenId>,
    pub(super) right: HashSet<TokenId>,
}

impl Strips {
    /// Reads the file's own keys; without them, decides by the model's name.
    ///
    /// # Errors
    /// If ids are outside the vocabulary, or an array has another type.
    pub(super) fn read(m: &Metadata<'_>, vocab: &Vocab, texts: &[&str]) -> Result<Strips, TokenizerError> {
        let ids = |key: &'static str| -> Result<Option<HashSet<TokenId>>, TokenizerError> {
            let Some(ids) = m.opt_u32_array(key)? else { return Ok(None) };
            match ids.iter().find(|&&id| id as usize >= texts.len()) {
                Some(&id) => Err(TokenizerError::IdOutOfRange { key, id, len: texts.len() }),
                None => Ok(Some(ids.into_iter().collect())),
            }
        };
        let (left, right) = (ids(STRIP_LEFT_KEY)?, ids(STRIP_RIGHT_KEY)?);
        if left.is_some() || right.is_some() {
            return Ok(Strips { left: left.unwrap_or_default(), right: right.unwrap_or_default() });
        }
        if !is_phi3(m)? {
            return Ok(Strips::default());
        }
        let special = |id| {
            let kind = vocab.kind(id);
            matches!(kind, Some(TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown))
        };
        let right = (0..).zip(texts).filter(|&(id, text)| special(id) && !PHI3_KEEPS.contains(text));
        Ok(Strips { left: HashSet::new(), right: right.map(|(id, _)| id).collect() })
    }

    /// Adds them to the tokenizer's digest, if there are any.
    pub(super) fn digest(&self, digest: &mut Digest) {
        for (name, ids) in [("strip left", &self.left), ("strip right", &self.right)] {
            let mut ids: Vec<TokenId> = ids.iter().copied().collect();
            ids.sort_unstable();
            if !ids.is_empty() {
                digest.list(name, ids.iter().map(|id| id.to_le_bytes()));
            }
        }
    }
}

fn is_phi3(m: &Metadata<'_>) -> Result<bool, TokenizerError> {
    let name = m.opt_str("general.name")?.unwrap_or_default().to_lowercase();
    let scored = m.str("tokenizer.ggml.model")? == "llama";
    Ok(name.contains("phi-3")
        || name.contains("phi3")
        || scored && m.opt_str("general.architecture")? == Some("phi3"))
}
