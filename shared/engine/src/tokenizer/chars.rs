//! Byte-pair encoding over the characters of whole lines (GGUF model `gemma4`), by the BPE model of the
//! `tokenizers` library.
//!
//! Spaces are written `▁`. A text is cut only between line breaks and what is between them. A run of line
//! breaks that is a token stays whole. A character without a token becomes byte tokens. Source:
//! `LLAMA_VOCAB_PRE_TYPE_GEMMA4` of llama.cpp. As in [`super::bpe`], no text can become a control token.

use tokenizers::Model as _;
use tokenizers::models::bpe::BPE;

use super::TokenId;
use super::blocks::{BLOCK_BYTES, Merged, merge_in_blocks};
use super::bpe::merging;
use super::error::TokenizerError;
use super::spm::SPACE;
use super::vocab::Vocab;

/// Encodes lines by byte-pair merges.
pub(super) struct CharBpe {
    model: BPE,
}

impl std::fmt::Debug for CharBpe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CharBpe").field("model", &self.model).finish_non_exhaustive()
    }
}

impl CharBpe {
    /// Builds the encoder from the vocabulary's texts and from merges written as `left right`, best first.
    ///
    /// # Errors
    /// As [`super::bpe::merging`], and if a byte has no token.
    pub(super) fn new(texts: &[&str], vocab: &Vocab, merges: &[&str]) -> Result<CharBpe, TokenizerError> {
        let (ids, pairs) = merging(texts, vocab, merges)?;
        let is_missing = |byte: &u8| !ids.contains_key(&format!("<0x{byte:02X}>"));
        if let Some(byte) = (0..=u8::MAX).find(is_missing) {
            return Err(TokenizerError::MissingByte { byte });
        }
        let builder = BPE::builder().vocab_and_merges(ids, pairs).byte_fallback(true).cache_capacity(0);
        Ok(CharBpe { model: builder.build().map_err(TokenizerError::Library)? })
    }

    /// Calls `token` with each token of the text and its number of bytes, which add up to the text.
    pub(super) fn encode(&self, text: &str, token: &mut impl FnMut(TokenId, usize)) {
        self.encode_in(BLOCK_BYTES, text, token);
    }

    /// As [`Self::encode`], with longer lines in blocks of `block` bytes.
    pub(super) fn encode_in(&self, block: usize, text: &str, token: &mut impl FnMut(TokenId, usize)) {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let is_break = first == '\n';
            let end = rest.find(|c: char| (c == '\n') != is_break).unwrap_or(rest.len());
            let (part, after) = rest.split_at(end);
            rest = after;
            match self.model.token_to_id(part).filter(|_| is_break) {
                Some(id) => token(id, part.len()),
                None => self.merge(block, part, token),
            }
        }
    }

    /// Merges a line, or a run of line breaks.
    fn merge(&self, block: usize, text: &str, token: &mut impl FnMut(TokenId, usize)) {
        let written = text.replace(' ', SPACE.encode_utf8(&mut [0; 4]));
        let mut source = text.chars();
        // Bytes written for the source's next character that earlier tokens have taken.
        let mut taken = 0;
        merge_in_blocks(&written, block, &mut |part| self.merge_whole(part), &mut |(id, len)| {
            let (mut bytes, mut left) = (0, len);
            while let Some(c) = source.clone().next().filter(|_| left > 0) {
                let width = if c == ' ' { SPACE.len_utf8() } else { c.len_utf8() };
                let now = left.min(width - taken);
                left -= now;
                taken += now;
                // A space is never cut: it has a token, or three byte tokens, of which the last one is it.
                bytes += if c != ' ' { now } else { usize::from(taken == width) };
                if taken == width {
                    taken = 0;
                    source.next();
                }
            }
            token(id, bytes);
        });
    }

    /// Returns the tokens of written text, with their bytes as written.
    fn merge_whole(&self, written: &str) -> Vec<Merged> {
        let tokens = self.model.tokenize(written);
        let tokens = tokens.expect("only an unknown token can fail, and every byte is known");
        tokens.into_iter().map(|t| (t.id, t.offsets.1 - t.offsets.0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Tokenizer;
    use crate::gguf::{Gguf, GgufError, GgufWriter};

    /// The merges of the test's vocabulary; their characters are tokens too, except `é`.
    const MERGES: [&str; 11] =
        ["l l", "h e", "▁ ▁", "▁▁ ▁▁", "he ll", "▁ hell", "hell o", "▁ w", "\n \n", "\n\n \n", "< 0"];

    fn vocabulary() -> GgufWriter<'static> {
        let mut tokens =
            ["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>", "<|channel>"].map(str::to_owned).to_vec();
        let mut types = vec![3, 3, 3, 2, 3, 4];
        tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        types.resize(tokens.len(), 6);
        tokens.extend("▁\nhelow<0x>".chars().map(String::from));
        tokens.extend(MERGES.map(|merge| merge.replacen(' ', "", 1)));
        types.resize(tokens.len(), 1);
        let mut writer = GgufWriter::new();
        writer.set("tokenizer.ggml.model", "gemma4");
        writer.set("tokenizer.ggml.bos_token_id", 2u32).set("tokenizer.ggml.eos_token_id", 1u32);
        writer.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.token_type", types);
        writer.set("tokenizer.ggml.merges", MERGES.to_vec()).set("tokenizer.ggml.add_bos_token", false);
        writer
    }

    fn tokenizer(writer: &GgufWriter<'_>) -> Result<Tokenizer, super::TokenizerError> {
        let gguf: Result<Gguf, GgufError> = Gguf::from_bytes(writer.to_bytes().unwrap());
        Tokenizer::from_gguf(&gguf.unwrap())
    }

    /// Checks the texts of the tokens and the bytes they stand for; byte tokens are written as numbers.
    #[track_caller]
    fn check(text: &str, want: &[&str]) {
        let tokenizer = tokenizer(&vocabulary()).unwrap();
        let (ids, spans) = tokenizer.encode_spans(text);
        let of = |id: &u32| match id {
            6..262 => (id - 6).to_string(),
            id => String::from_utf8(tokenizer.token_bytes(*id).to_vec()).unwrap(),
        };
        assert_eq!(ids.iter().map(of).collect::<Vec<_>>(), want, "{text:?}");
        let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.token_bytes(*id).to_vec()).collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), text.replace('▁', " "));
        assert_eq!(spans.iter().map(std::ops::Range::len).sum::<usize>(), text.len(), "{text:?}");
    }

    #[test]
    fn lines_merge_by_rank_across_words() {
        check("hello hello", &["hello", " hell", "o"]);
        check("he  wo", &["he", "  ", "w", "o"]);
        check("     w", &["    ", " w"]);
        check("▁hell é", &[" hell", " ", "195", "169"]);
        check("", &[]);
    }

    #[test]
    fn line_breaks_are_apart_and_whole_where_they_are_tokens() {
        check("o\n\n\nhe", &["o", "\n\n\n", "he"]);
        check("\n\n\n\n\n", &["\n\n", "\n\n\n"]);
        check("w \n w", &["w", " ", "\n", " w"]);
    }

    #[test]
    fn control_tokens_and_byte_tokens_are_not_made_from_text() {
        check("<0x0", &["<0", "x", "0"]);
        check("<turn|>", &["<", "116", "117", "114", "110", "124", ">"]);
        check("<|channel>o", &["<|channel>", "o"]);
        let tokenizer = tokenizer(&vocabulary()).unwrap();
        assert_eq!(tokenizer.encode_template("<turn|>\n"), [4, 263]);
        assert!(tokenizer.adds_bos() && tokenizer.is_end(4) && tokenizer.is_end(1));
    }

    #[test]
    fn vocabularies_that_lose_bytes_are_refused() {
        let mut writer = vocabulary();
        let mut types = vec![3; 6];
        types.resize(5 + 256, 6);
        types.resize(262 + 11 + MERGES.len(), 1);
        types[261] = 3;
        writer.set("tokenizer.ggml.token_type", types);
        let err = tokenizer(&writer).unwrap_err().to_string();
        assert_eq!(err, "vocabulary has no token for byte 0xff");
    }

    proptest! {
        #[test]
        fn blocks_and_spans_cover_every_text(text in "[he lowé▁\n<]{0,200}", block in 40..120usize) {
            let tokenizer = tokenizer(&vocabulary()).unwrap();
            let super::super::Encoder::Chars(encoder) = &tokenizer.encoder else { panic!("kind") };
            let tokens_in = |block| {
                let mut tokens = Vec::new();
                encoder.encode_in(block, &text, &mut |id, len| tokens.push((id, len)));
                tokens
            };
            let whole = tokens_in(1 << 20);
            prop_assert_eq!(whole.iter().map(|(_, len)| len).sum::<usize>(), text.len());
            prop_assert_eq!(tokens_in(block), whole);
        }
    }
}
