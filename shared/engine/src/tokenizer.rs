//! Tokenizers: text to token ids and back, as the model's file describes it.
//!
//! There are four kinds: byte-level BPE (`gpt2`), scored BPE (`llama`, SentencePiece) and BPE of characters
//! (`gemma4`) of GGUF metadata, and any tokenizer.json of BPE or Unigram kind. User text never becomes a
//! control token: [`encode`] and [`encode_spans`] cannot return one; only [`encode_template`] reads control
//! tokens. Always holds: the spans of a text's tokens are in order and cover it, and encoding never fails. A
//! byte without a token is dropped.
//!
//! [`encode`]: Tokenizer::encode
//! [`encode_spans`]: Tokenizer::encode_spans
//! [`encode_template`]: Tokenizer::encode_template

mod blocks;
mod bpe;
mod bytes;
mod chars;
mod error;
mod joined;
mod json;
mod pre;
mod special;
mod spm;
mod strip;
#[cfg(test)]
pub(crate) mod tests;
mod vectors;
mod vocab;

use std::ops::Range;
use std::path::Path;

use sha2::{Digest as _, Sha256};

pub use error::TokenizerError;
pub(crate) use joined::{Piece, Placed, cover};
pub use strip::{STRIP_LEFT_KEY, STRIP_RIGHT_KEY};
pub use vectors::{VectorError, VectorFailure, VectorReport, check_vectors};

use crate::gguf::{Gguf, Metadata};
use bpe::ByteLevelBpe;
use bytes::ByteAlphabet;
use chars::CharBpe;
use json::JsonEncoder;
use pre::PreTokenizer;
use special::TokenSearch;
use spm::{SPACE, ScoredBpe, piece_bytes};
use strip::Strips;
use vocab::{SpecialIds, TokenKind, Vocab};

/// A token of a model's vocabulary.
pub type TokenId = u32;

/// Bytes of text that [`Tokenizer::exceeds`] encodes at a time.
const SLICE_BYTES: usize = 64 << 10;
/// The most tokens by which a slice may exceed the same part of the whole text.
const SLICE_TOKENS_MORE: usize = 16;

/// The encoder of one kind.
#[derive(Debug)]
enum Encoder {
    ByteLevel(Box<ByteLevelBpe>),
    Scored(Box<ScoredBpe>),
    Chars(Box<CharBpe>),
    Json(Box<JsonEncoder>),
}

/// Special tokens, by their texts. A tokenizer.json does not name them; its neighbour tokenizer_config.json
/// does.
#[derive(Debug, Clone, Copy, Default)]
pub struct JsonOptions<'a> {
    /// The token that begins a text.
    pub bos: Option<&'a str>,
    /// The token that ends an answer; the usual end-of-turn tokens are recognized by their texts.
    pub eos: Option<&'a str>,
    /// Whether a prompt begins with `bos` even if the template does not write it.
    pub adds_bos: bool,
}

/// A model's tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: Encoder,
    vocab: Vocab,
    /// Searches control and user-defined tokens, in templates.
    in_templates: TokenSearch,
    /// Searches user-defined tokens, in any text.
    in_text: TokenSearch,
    adds_bos: bool,
    /// Whether a space is added before each text.
    space_prefix: bool,
    strips: Strips,
    digest: [u8; 32],
    digest_hex: String,
}

impl Tokenizer {
    /// Builds the tokenizer that a model file's metadata describes (keys `tokenizer.ggml.*`).
    ///
    /// # Errors
    /// If a key is missing, has the wrong type or an array of wrong length. If the model or pre-tokenizer is
    /// not supported, or ids are outside the vocabulary. If a SentencePiece vocabulary cannot write every
    /// text.
    pub fn from_gguf(gguf: &Gguf) -> Result<Tokenizer, TokenizerError> {
        let m = gguf.metadata();
        let model = m.str("tokenizer.ggml.model")?;
        let texts = m.str_array("tokenizer.ggml.tokens")?;
        let kinds = kinds(&m, &texts)?;
        let special = special_ids(&m, model, texts.len())?;
        let mut digest = Digest::new(model);
        digest.list("tokens", texts.iter().map(|t| t.as_bytes()));
        digest.list("types", kinds.iter().map(|&k| [k as u8]));
        let tokenizer = match model {
            "gpt2" => {
                let pre_name = m.opt_str("tokenizer.ggml.pre")?.unwrap_or("default");
                let pre = PreTokenizer::named(pre_name)?;
                let merges = m.str_array("tokenizer.ggml.merges")?;
                digest.list("pre", [pre_name]);
                digest.list("merges", &merges);
                let alphabet = ByteAlphabet::new();
                let decode = |text: &str, kind| match kind {
                    TokenKind::Normal | TokenKind::Byte => alphabet.decode(text),
                    _ => None,
                };
                let or_text =
                    |text: &str, kind| decode(text, kind).unwrap_or_else(|| text.as_bytes().to_vec());
                let vocab = Vocab::new(texts.iter().copied(), kinds, special, or_text)?;
                let adds_bos = m.opt_bool("tokenizer.ggml.add_bos_token")?.unwrap_or(pre.adds_bos);
                let strips = Strips::read(&m, &vocab, &texts)?;
                let encoder = Encoder::ByteLevel(Box::new(ByteLevelBpe::new(&texts, &vocab, &merges, pre)?));
                Tokenizer::new(
                    encoder,
                    vocab,
                    &texts,
                    TextSettings { adds_bos, space_prefix: false, strips },
                    digest,
                )?
            }
            "llama" => {
                let scores = m.f32_array("tokenizer.ggml.scores")?;
                check_len("tokenizer.ggml.scores", scores.len(), texts.len())?;
                let space_prefix = m.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
                digest.list("scores", scores.iter().map(|s| s.to_le_bytes()));
                digest.list("space_prefix", [[u8::from(space_prefix)]]);
                let vocab = Vocab::new(texts.iter().copied(), kinds, special, piece_bytes)?;
                let adds_bos = m.opt_bool("tokenizer.ggml.add_bos_token")?.unwrap_or(true);
                let encoder = Encoder::Scored(Box::new(ScoredBpe::new(&texts, &vocab, &scores)?));
                let strips = Strips::read(&m, &vocab, &texts)?;
                let settings = TextSettings { adds_bos, space_prefix, strips };
                Tokenizer::new(encoder, vocab, &texts, settings, digest)?
            }
            "gemma4" => {
                let merges = m.str_array("tokenizer.ggml.merges")?;
                digest.list("merges", &merges);
                let vocab = Vocab::new(texts.iter().copied(), kinds, special, piece_bytes)?;
                let strips = Strips::read(&m, &vocab, &texts)?;
                let encoder = Encoder::Chars(Box::new(CharBpe::new(&texts, &vocab, &merges)?));
                // Some files say that no begin token is added; llama.cpp adds it all the same.
                let settings = TextSettings { adds_bos: true, space_prefix: false, strips };
                Tokenizer::new(encoder, vocab, &texts, settings, digest)?
            }
            found => {
                return Err(TokenizerError::UnsupportedModel { found: found.chars().take(80).collect() });
            }
        };
        Ok(tokenizer)
    }

    /// Reads the tokenizer.json at `path`.
    ///
    /// # Errors
    /// If the file cannot be read, is not a BPE or Unigram tokenizer, or lacks a token named in `options`.
    pub fn from_json(path: impl AsRef<Path>, options: JsonOptions<'_>) -> Result<Tokenizer, TokenizerError> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|err| TokenizerError::Open { path: path.to_owned(), err })?;
        Tokenizer::from_json_bytes(&bytes, options)
    }

    /// As [`Tokenizer::from_json`], for a file already in memory.
    ///
    /// # Errors
    /// As [`Tokenizer::from_json`].
    pub fn from_json_bytes(bytes: &[u8], options: JsonOptions<'_>) -> Result<Tokenizer, TokenizerError> {
        let (encoder, vocab, texts) = json::read(bytes, options.bos, options.eos)?;
        let mut digest = Digest::new("json");
        digest.list("description", [encoder.description()?]);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let adds_bos = options.adds_bos && vocab.special.bos.is_some();
        let settings = TextSettings { adds_bos, space_prefix: false, strips: Strips::default() };
        Tokenizer::new(Encoder::Json(Box::new(encoder)), vocab, &texts, settings, digest)
    }

    fn new(
        encoder: Encoder,
        vocab: Vocab,
        texts: &[&str],
        settings: TextSettings,
        mut digest: Digest,
    ) -> Result<Tokenizer, TokenizerError> {
        let TextSettings { adds_bos, space_prefix, strips } = settings;
        strips.digest(&mut digest);
        let of_kind = |wanted: &'static [TokenKind]| {
            let is_wanted = |id| vocab.kind(id).is_some_and(|kind| wanted.contains(&kind));
            texts.iter().copied().zip(0..).filter(move |&(_, id)| is_wanted(id))
        };
        let in_templates = TokenSearch::new(of_kind(&[TokenKind::Control, TokenKind::UserDefined]))?;
        let in_text = TokenSearch::new(of_kind(&[TokenKind::UserDefined]))?;
        let digest: [u8; 32] = digest.0.finalize().into();
        let digest_hex = hex::encode(digest);
        Ok(Tokenizer {
            encoder,
            vocab,
            in_templates,
            in_text,
            adds_bos,
            space_prefix,
            strips,
            digest,
            digest_hex,
        })
    }

    /// Returns the tokens of user text; never a control token.
    pub fn encode(&self, text: &str) -> Vec<TokenId> {
        self.encode_pieces(&[Piece { text, is_template: false }]).into_iter().map(|token| token.id).collect()
    }

    /// Whether user texts certainly have more than `limit` tokens in total. Encodes only as much of them as
    /// needed.
    ///
    /// May return false for texts slightly above the limit: they are encoded in slices, and each slice may
    /// have a few tokens more than the whole text would. Memory: that of one slice, some MiB.
    pub fn exceeds<'t>(&self, texts: impl IntoIterator<Item = &'t str>, limit: usize) -> bool {
        let mut tokens = 0;
        for text in texts {
            let mut at = 0;
            while at < text.len() {
                let end = text.ceil_char_boundary(at.saturating_add(SLICE_BYTES).min(text.len()));
                tokens += self.encode(&text[at..end]).len().saturating_sub(SLICE_TOKENS_MORE);
                if tokens > limit {
                    return true;
                }
                at = end;
            }
        }
        false
    }

    /// Returns the tokens of user text, each with the bytes of the text it stands for.
    ///
    /// Each range begins where the previous one ends, and together they are the text. They may cut a
    /// character (byte tokens) and may be empty (SentencePiece's space before the text).
    pub fn encode_spans(&self, text: &str) -> (Vec<TokenId>, Vec<Range<usize>>) {
        self.spans(text, true)
    }

    /// As [`Tokenizer::encode_spans`], for text that a model has written, or is to have written, after a
    /// prompt.
    ///
    /// If the text begins with a space, SentencePiece adds none: what a model writes begins with its own.
    pub fn encode_answer(&self, text: &str) -> (Vec<TokenId>, Vec<Range<usize>>) {
        self.spans(text, !text.starts_with(' '))
    }

    fn spans(&self, text: &str, space_first: bool) -> (Vec<TokenId>, Vec<Range<usize>>) {
        let placed = self.encode_pieces_from(&[Piece { text, is_template: false }], space_first);
        let (ids, mut spans): (Vec<TokenId>, Vec<_>) = placed.into_iter().map(|t| (t.id, t.bytes)).unzip();
        cover(&mut spans, text.len());
        (ids, spans)
    }

    /// Returns the tokens of a template's own text, in which texts of control tokens become control tokens.
    pub fn encode_template(&self, piece: &str) -> Vec<TokenId> {
        let pieces = [Piece { text: piece, is_template: true }];
        self.encode_pieces(&pieces).into_iter().map(|token| token.id).collect()
    }

    /// Returns whether a text that a template writes is one token, such as a control token.
    pub fn is_token(&self, text: &str) -> bool {
        matches!(self.encode_template(text)[..], [id] if self.token_bytes(id) == text.as_bytes())
    }

    /// Returns the bytes of a token: a piece of text, or a control token's name. Empty for unknown ids.
    pub fn token_bytes(&self, id: TokenId) -> &[u8] {
        self.vocab.bytes(id)
    }

    /// Whether pieces of a prompt are encoded one by one, so that no word crosses their ends.
    pub(crate) fn encodes_pieces_alone(&self) -> bool {
        matches!(self.encoder, Encoder::Json(_))
    }

    /// Whether the token is a control token: user text never becomes it, and it is never shown.
    pub fn is_control(&self, id: TokenId) -> bool {
        self.vocab.is_control(id)
    }

    /// Whether the token ends an answer: end of sequence, of turn or of message.
    pub fn is_end(&self, id: TokenId) -> bool {
        self.vocab.is_end(id)
    }

    /// Returns the token that begins a text.
    pub fn bos(&self) -> Option<TokenId> {
        self.vocab.special.bos
    }

    /// Returns the token that ends a text.
    pub fn eos(&self) -> Option<TokenId> {
        self.vocab.special.eos
    }

    /// Whether a prompt begins with [`Tokenizer::bos`] even if its template does not write it.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos && self.bos().is_some()
    }

    /// Returns the number of tokens.
    pub fn vocab_len(&self) -> usize {
        self.vocab.len()
    }

    /// Returns the most bytes of user text that one token can stand for. Text of more than `n` times as many
    /// bytes has more than `n` tokens.
    ///
    /// SentencePiece writes `▁`, of three bytes, for a space and also accepts it in texts; an unknown
    /// character is one token. A tokenizer.json, or a vocabulary without tokens for some bytes, may drop
    /// text; dropped text still counts here.
    pub fn token_bytes_max(&self) -> usize {
        let longest = self.vocab.text_bytes_max();
        match &self.encoder {
            Encoder::ByteLevel(_) | Encoder::Json(_) => longest,
            Encoder::Scored(_) | Encoder::Chars(_) => (longest * SPACE.len_utf8()).max(char::MAX.len_utf8()),
        }
    }

    /// Returns the SHA-256 of everything that decides how text is encoded; equal digests mean equal ids.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Returns [`Tokenizer::digest`] in lower-case hexadecimal.
    pub fn digest_hex(&self) -> &str {
        &self.digest_hex
    }
}

/// Settings of a tokenizer apart from its encoder.
struct TextSettings {
    adds_bos: bool,
    space_prefix: bool,
    strips: Strips,
}

/// A digest of named lists; each length is hashed before its bytes, so that different inputs cannot collide.
struct Digest(Sha256);

impl Digest {
    fn new(model: &str) -> Digest {
        let mut digest = Digest(Sha256::new());
        digest.list("baton tokenizer 1", [model]);
        digest
    }

    fn list<T: AsRef<[u8]>>(&mut self, name: &str, items: impl IntoIterator<Item = T>) {
        self.item(name.as_bytes());
        let mut count = 0u64;
        for item in items {
            self.item(item.as_ref());
            count += 1;
        }
        self.0.update(u64::MAX.to_le_bytes());
        self.0.update(count.to_le_bytes());
    }

    fn item(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }
}

fn check_len(key: &'static str, found: usize, want: usize) -> Result<(), TokenizerError> {
    if found == want { Ok(()) } else { Err(TokenizerError::LengthMismatch { key, found, want }) }
}

/// Returns each token's kind. Old files have no types; their control tokens are recognized by their shape.
fn kinds(m: &Metadata<'_>, texts: &[&str]) -> Result<Vec<TokenKind>, TokenizerError> {
    let Some(numbers) = m.opt_i32_array("tokenizer.ggml.token_type")? else {
        let kind = |text: &&str| match vocab::has_control_shape(text) {
            true => TokenKind::Control,
            false => TokenKind::Normal,
        };
        return Ok(texts.iter().map(kind).collect());
    };
    check_len("tokenizer.ggml.token_type", numbers.len(), texts.len())?;
    let kind = |(&found, id)| TokenKind::from_number(found).ok_or(TokenizerError::BadTokenType { id, found });
    numbers.iter().zip(0u32..).map(kind).collect()
}

/// Returns the tokens that metadata names. For SentencePiece files that name none, the usual ones are
/// assumed.
fn special_ids(m: &Metadata<'_>, model: &str, len: usize) -> Result<SpecialIds, TokenizerError> {
    let usual = |id: TokenId| Some(id).filter(|&id| model == "llama" && (id as usize) < len);
    let id = |key: &'static str| match m.opt_u32(key)? {
        Some(id) if id as usize >= len => Err(TokenizerError::IdOutOfRange { key, id, len }),
        found => Ok(found),
    };
    let ends = [id("tokenizer.ggml.eot_token_id")?, id("tokenizer.ggml.eom_token_id")?];
    Ok(SpecialIds {
        bos: id("tokenizer.ggml.bos_token_id")?.or(usual(1)),
        eos: id("tokenizer.ggml.eos_token_id")?.or(usual(2)),
        ends: ends.into_iter().flatten().collect(),
    })
}
