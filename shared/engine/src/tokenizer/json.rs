//! Tokenizers described by a tokenizer.json and run by the `tokenizers` library.
//!
//! There are two copies of the tokenizer: one reads control tokens (for templates), the other does not (for
//! user text). If the library refuses a text, or makes a control token of user text, the piece is halved
//! until it does neither, so encoding never fails. The library expects trusted files. So its panics count as
//! refusals, and merge dropout is off: equal texts must give equal ids.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;
use tokenizers::Tokenizer as Library;

use super::TokenId;
use super::bytes::ByteAlphabet;
use super::error::TokenizerError;
use super::spm::{byte_of, piece_bytes};
use super::vocab::{SpecialIds, TokenKind, VOCAB_LEN_MAX, Vocab, has_control_shape};

/// Encodes text as a tokenizer.json defines it.
#[derive(Debug)]
pub(super) struct JsonEncoder {
    user: Library,
    template: Library,
}

/// Reads a tokenizer.json: the encoder, its vocabulary, and the texts of all tokens by id.
///
/// # Errors
/// If the JSON is malformed, the model is not BPE or Unigram, or a token named in `bos` or `eos` does not
/// exist.
pub(super) fn read(
    bytes: &[u8],
    bos: Option<&str>,
    eos: Option<&str>,
) -> Result<(JsonEncoder, Vocab, Vec<String>), TokenizerError> {
    let library = |err: Box<dyn std::error::Error + Send + Sync>| TokenizerError::Library(err);
    let mut json: Value = serde_json::from_slice(bytes).map_err(|err| library(err.into()))?;
    let model = json.pointer("/model/type").and_then(Value::as_str).unwrap_or("BPE").to_owned();
    if !matches!(model.as_str(), "BPE" | "Unigram") {
        return Err(TokenizerError::UnsupportedModel { found: model.chars().take(80).collect() });
    }
    mark_control_shapes(&mut json);
    if let Some(dropout) = json.pointer_mut("/model/dropout") {
        *dropout = Value::Null;
    }
    let byte_level = json.get("decoder").is_some_and(says_byte_level)
        || json.get("pre_tokenizer").is_some_and(says_byte_level);
    let parsed = catch_unwind(AssertUnwindSafe(|| serde_json::from_value::<Library>(json)));
    let parsed = parsed.map_err(|_| library("the tokenizers library panicked".into()))?;
    let mut template = parsed.map_err(|err| library(err.into()))?;
    template.with_padding(None);
    template.with_truncation(None).map_err(library)?;
    let mut user = template.clone();
    user.set_encode_special_tokens(true);

    let (texts, kinds) = texts_and_kinds(&template)?;
    let id_of = |text: &str| {
        template.token_to_id(text).ok_or_else(|| TokenizerError::UnknownToken { text: text.to_owned() })
    };
    let special =
        SpecialIds { bos: bos.map(id_of).transpose()?, eos: eos.map(id_of).transpose()?, ends: Vec::new() };
    let alphabet = ByteAlphabet::new();
    let decode = |text: &str, kind: TokenKind| match kind {
        TokenKind::Normal if byte_level => alphabet.decode(text).unwrap_or_else(|| text.as_bytes().to_vec()),
        TokenKind::Normal if byte_of(text).is_some() => piece_bytes(text, TokenKind::Byte),
        TokenKind::Normal => piece_bytes(text, kind),
        _ => text.as_bytes().to_vec(),
    };
    let vocab = Vocab::new(texts.iter().map(String::as_str), kinds, special, decode)?;
    Ok((JsonEncoder { user, template }, vocab, texts))
}

/// Marks added tokens with the shape of a control token as control tokens, whatever the file says.
fn mark_control_shapes(json: &mut Value) {
    let added = json.get_mut("added_tokens").and_then(Value::as_array_mut);
    for token in added.into_iter().flatten() {
        let shaped = token.get("content").and_then(Value::as_str).is_some_and(has_control_shape);
        if let (true, Some(special)) = (shaped, token.get_mut("special")) {
            *special = Value::Bool(true);
        }
    }
}

fn says_byte_level(part: &Value) -> bool {
    match part {
        Value::Object(map) => {
            map.get("type").is_some_and(|t| t == "ByteLevel") || map.values().any(says_byte_level)
        }
        Value::Array(parts) => parts.iter().any(says_byte_level),
        _ => false,
    }
}

fn texts_and_kinds(library: &Library) -> Result<(Vec<String>, Vec<TokenKind>), TokenizerError> {
    let by_text = library.get_vocab(true);
    let added = library.get_added_tokens_decoder();
    let top = by_text.values().chain(added.keys()).max().map_or(0, |&id| id as usize + 1);
    // Ids come from the file: a table far larger than the vocabulary would waste memory.
    let max = (by_text.len() * 2 + 65_536).min(VOCAB_LEN_MAX);
    if by_text.is_empty() || top > max {
        return Err(TokenizerError::BadVocabLen { len: top, max });
    }
    let mut texts = vec![String::new(); top];
    let mut kinds = vec![TokenKind::Unused; top];
    for (text, id) in by_text {
        texts[id as usize] = text;
        kinds[id as usize] = TokenKind::Normal;
    }
    for (id, token) in added {
        kinds[id as usize] = if token.special { TokenKind::Control } else { TokenKind::UserDefined };
        texts[id as usize] = token.content;
    }
    Ok((texts, kinds))
}

impl JsonEncoder {
    /// Returns the input of the digest: the tokenizer as the library writes it.
    pub(super) fn description(&self) -> Result<String, TokenizerError> {
        self.template.to_string(false).map_err(TokenizerError::Library)
    }

    /// Calls `token` with each token and the number of bytes it stands for; they add up to the text. Only the
    /// template's copy makes control tokens.
    pub(super) fn encode(
        &self,
        text: &str,
        vocab: &Vocab,
        is_template: bool,
        token: &mut impl FnMut(TokenId, usize),
    ) {
        if text.is_empty() {
            return;
        }
        let library = if is_template { &self.template } else { &self.user };
        let refused = |id: TokenId| !is_template && vocab.kind(id) == Some(TokenKind::Control);
        let encoded = catch_unwind(AssertUnwindSafe(|| library.encode(text, false).ok()))
            .ok()
            .flatten()
            .filter(|e| !e.get_ids().iter().any(|&id| refused(id)));
        let Some(encoded) = encoded else { return self.encode_halves(text, vocab, is_template, token) };
        let (ids, offsets) = (encoded.get_ids(), encoded.get_offsets());
        let mut at = 0;
        for (i, (&id, &(_, end))) in ids.iter().zip(offsets).enumerate() {
            // Tokens of one character share its range: the first takes all of it. The last token takes what
            // the library left out.
            let end = if i + 1 == ids.len() { text.len() } else { end.clamp(at, text.len()) };
            token(id, end - at);
            at = end;
        }
    }

    fn encode_halves(
        &self,
        text: &str,
        vocab: &Vocab,
        is_template: bool,
        token: &mut impl FnMut(TokenId, usize),
    ) {
        let half = text.ceil_char_boundary(text.len() / 2);
        if half == text.len() {
            return; // A single character that the library refuses has no token.
        }
        self.encode(&text[..half], vocab, is_template, token);
        self.encode(&text[half..], vocab, is_template, token);
    }
}
