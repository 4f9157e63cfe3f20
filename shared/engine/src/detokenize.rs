//! Turns tokens back into text while they arrive.
//!
//! Never shows half a character: bytes that may still become a character are held back, and bytes that cannot
//! are shown as U+FFFD at once. The concatenated output is the lossy UTF-8 decoding of the tokens' bytes,
//! however the tokens were grouped. Control tokens show nothing.

use std::sync::Arc;

use crate::tokenizer::{TokenId, Tokenizer};

/// Turns the tokens of one answer into text.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    /// The first bytes of an incomplete character, at most three between calls.
    held: Vec<u8>,
}

impl Detokenizer {
    /// Begins an answer.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Detokenizer {
        Detokenizer { tokenizer, held: Vec::new() }
    }

    /// Returns the text that this token completes; empty if a character is still incomplete.
    pub fn push(&mut self, id: TokenId) -> String {
        if self.tokenizer.is_control(id) {
            return String::new();
        }
        self.held.extend_from_slice(self.tokenizer.token_bytes(id));
        take_complete(&mut self.held)
    }

    /// Ends the answer; returns U+FFFD if a character stayed incomplete.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        rest
    }

    /// Returns the number of bytes held back for an incomplete character (0 to 3).
    pub fn held_bytes(&self) -> usize {
        self.held.len()
    }
}

/// Takes all bytes except those that may still become a character.
fn take_complete(held: &mut Vec<u8>) -> String {
    let mut text = String::with_capacity(held.len());
    let mut at = 0;
    loop {
        match std::str::from_utf8(&held[at..]) {
            Ok(rest) => {
                text.push_str(rest);
                at = held.len();
                break;
            }
            Err(err) => {
                let valid = at + err.valid_up_to();
                text.push_str(std::str::from_utf8(&held[at..valid]).expect("valid up to there"));
                at = valid;
                let Some(bad) = err.error_len() else { break };
                text.push(char::REPLACEMENT_CHARACTER);
                at += bad;
            }
        }
    }
    held.drain(..at);
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tokenizer::tests::{byte_level_gguf, scored_gguf, tokenizer};

    fn stream(tokenizer: &Arc<Tokenizer>, ids: &[TokenId]) -> (Vec<String>, String) {
        let mut detokenizer = Detokenizer::new(tokenizer.clone());
        let texts = ids.iter().map(|&id| detokenizer.push(id)).collect();
        (texts, detokenizer.finish())
    }

    #[test]
    fn characters_come_out_whole() {
        let t = Arc::new(tokenizer(&byte_level_gguf("gpt-2")));
        let ids = t.encode("a😀b");
        let (texts, rest) = stream(&t, &ids);
        assert_eq!((texts, rest.as_str()), (["a", "", "", "", "😀", "b"].map(String::from).to_vec(), ""));
        let (texts, rest) = stream(&t, &ids[..3]);
        assert_eq!((texts.concat().as_str(), rest.as_str()), ("a", "\u{fffd}"));
        let (texts, _) = stream(&t, &[ids[2], ids[0]]);
        assert_eq!(texts, ["\u{fffd}", "a"], "a byte that begins no character is certain at once");
        let mut d = Detokenizer::new(t.clone());
        assert_eq!((d.push(ids[1]), d.held_bytes()), (String::new(), 1));
    }

    #[test]
    fn control_tokens_show_nothing() {
        let t = Arc::new(tokenizer(&byte_level_gguf("gpt-2")));
        let end = t.eos().unwrap();
        assert_eq!(stream(&t, &[t.encode("h")[0], end, u32::MAX]).0.concat(), "h");
    }

    #[test]
    fn byte_fallback_is_lossless() {
        let t = Arc::new(tokenizer(&scored_gguf()));
        assert_eq!(stream(&t, &t.encode("the 😀é")).0.concat(), " the 😀é");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_stream_is_the_lossy_reading(bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0x80u8..=0xbf, 0xc2u8..=0xf4], 0..40)) {
            let t = Arc::new(tokenizer(&byte_level_gguf("gpt-2")));
            let ids: Vec<TokenId> = bytes.iter().map(|&b| (0..256).find(|&id| t.token_bytes(id) == [b]).unwrap()).collect();
            let (texts, rest) = stream(&t, &ids);
            prop_assert_eq!(texts.concat() + &rest, String::from_utf8_lossy(&bytes));
        }
    }
}
