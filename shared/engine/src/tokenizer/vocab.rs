//! The vocabulary: each token's bytes and kind, and which tokens end an answer.

use std::collections::HashSet;

use super::TokenId;
use super::error::TokenizerError;

/// The most tokens of a vocabulary.
pub(super) const VOCAB_LEN_MAX: usize = i32::MAX as usize;

/// The kind of a token (GGUF's `token_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// A piece of text.
    Normal,
    /// Stands for text without a token; hidden like a control token.
    Unknown,
    /// Controls the model; never made from user text, never shown.
    Control,
    /// Text that is found before anything else is split.
    UserDefined,
    /// Reserved; never made from text.
    Unused,
    /// One byte of text.
    Byte,
}

impl TokenKind {
    /// Returns the kind of a type number. Files without type numbers use 0, "undefined", for normal tokens.
    pub(super) fn from_number(number: i32) -> Option<TokenKind> {
        Some(match number {
            0 | 1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            _ => return None,
        })
    }
}

/// Control tokens that end a turn in common model families, in addition to those that metadata names.
const END_TEXTS: &[&str] = &[
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|EOT|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<eos>",
    "<｜end▁of▁sentence｜>",
];

/// Control tokens of chat formats that do not have the usual shape. `<s>` is none: Gemma has a user-defined
/// token for it, which is markup.
const TURN_TEXTS: &[&str] = &["<start_of_turn>", "<|turn>", "<bos>", "[INST]", "[/INST]"];

/// Whether a text has the shape of a control token: `<|…|>`, also with full-width bars.
///
/// Converters often mark such tokens as user-defined, which would allow user text to make them.
pub(super) fn has_control_shape(text: &str) -> bool {
    let inner = |open: &str, close: &str| text.strip_prefix(open).and_then(|t| t.strip_suffix(close));
    let inner = inner("<|", "|>").or_else(|| inner("<｜", "｜>"));
    inner.is_some_and(|t| t.chars().any(char::is_alphabetic))
}

/// The tokens that metadata names.
#[derive(Debug, Clone, Default)]
pub(super) struct SpecialIds {
    pub(super) bos: Option<TokenId>,
    pub(super) eos: Option<TokenId>,
    /// End of turn and end of message.
    pub(super) ends: Vec<TokenId>,
}

/// All tokens of a model.
#[derive(Debug)]
pub(super) struct Vocab {
    /// The bytes of all tokens, one after the other.
    bytes: Vec<u8>,
    /// The end of each token's bytes.
    ends_at: Vec<usize>,
    kinds: Vec<TokenKind>,
    pub(super) special: SpecialIds,
    end_ids: HashSet<TokenId>,
}

impl Vocab {
    /// Builds the vocabulary: `texts` are as the file writes them, `decode` turns a text into its bytes.
    ///
    /// The tokens that metadata names as begin or end become control tokens whatever their type.
    pub(super) fn new<'a>(
        texts: impl Iterator<Item = &'a str>,
        mut kinds: Vec<TokenKind>,
        special: SpecialIds,
        decode: impl Fn(&str, TokenKind) -> Vec<u8>,
    ) -> Result<Vocab, TokenizerError> {
        let len = kinds.len();
        if len == 0 || len > VOCAB_LEN_MAX {
            return Err(TokenizerError::BadVocabLen { len, max: VOCAB_LEN_MAX });
        }
        let named = special.bos.iter().chain(&special.eos).chain(&special.ends);
        named.for_each(|&id| kinds[id as usize] = TokenKind::Control);
        let (mut bytes, mut ends_at) = (Vec::new(), Vec::with_capacity(len));
        let mut end_ids: HashSet<TokenId> = special.eos.iter().chain(&special.ends).copied().collect();
        for (id, text) in texts.enumerate() {
            let by_text = END_TEXTS.contains(&text) || TURN_TEXTS.contains(&text);
            let controls = match kinds[id] {
                TokenKind::UserDefined => by_text || has_control_shape(text),
                // Some converters mark even the ends of turns as plain text.
                TokenKind::Normal => END_TEXTS.contains(&text) && has_control_shape(text),
                _ => false,
            };
            if controls {
                kinds[id] = TokenKind::Control;
            }
            if kinds[id] == TokenKind::Control && END_TEXTS.contains(&text) {
                end_ids.insert(id as TokenId);
            }
            bytes.extend(decode(text, kinds[id]));
            ends_at.push(bytes.len());
        }
        assert_eq!(ends_at.len(), len, "as many texts as kinds, checked by the caller");
        Ok(Vocab { bytes, ends_at, kinds, special, end_ids })
    }

    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Returns the token's bytes; empty if there is no such token.
    pub(super) fn bytes(&self, id: TokenId) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends_at.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends_at[id - 1] };
        &self.bytes[start..end]
    }

    /// Returns the length of the longest token that user text can become.
    pub(super) fn text_bytes_max(&self) -> usize {
        let is_text = |id: &TokenId| {
            matches!(self.kind(*id), Some(TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte))
        };
        let ids = 0..self.len() as TokenId;
        ids.filter(is_text).map(|id| self.bytes(id).len()).max().unwrap_or(0)
    }

    pub(super) fn kind(&self, id: TokenId) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// Whether the token is a control or unknown token: neither made from user text nor shown.
    pub(super) fn is_control(&self, id: TokenId) -> bool {
        matches!(self.kind(id), Some(TokenKind::Control | TokenKind::Unknown))
    }

    pub(super) fn is_end(&self, id: TokenId) -> bool {
        self.end_ids.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_shapes() {
        for yes in ["<|user|>", "<|end|>", "<｜fim▁hole｜>", "<|im_start|>"] {
            assert!(has_control_shape(yes), "{yes}");
        }
        for no in ["<|>", "<||>", "<| |>", "<think>", "|x|", "<|x", "x|>", "", "<|1|>"] {
            assert!(!has_control_shape(no), "{no}");
        }
    }
}
