//! Tokenizers: text to token ids and back, as the model's file describes them.
//!
//! Three kinds: byte-level BPE (`gpt2`) and scored BPE (`llama`, SentencePiece) of GGUF metadata, and
//! any tokenizer.json of BPE or Unigram kind. Never makes a control token of user text: [`encode`]
//! and [`encode_spans`] cannot, whatever the text; only [`encode_template`] reads control tokens.
//! Always holds: the spans of a text's tokens are in order and cover it; encoding is total. A byte that the vocabulary
//! has no token for costs that byte.
//!
//! [`encode`]: Tokenizer::encode
//! [`encode_spans`]: Tokenizer::encode_spans
//! [`encode_template`]: Tokenizer::encode_template

mod blocks;
mod bpe;
mod bytes;
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
use json::JsonEncoder;
use pre::PreTokenizer;
use special::TokenSearch;
use spm::{SPACE, ScoredBpe, piece_bytes};
use strip::Strips;
use vocab::{SpecialIds, TokenKind, Vocab};

/// A token of a model's vocabulary.
pub type TokenId = u32;

/// Bytes of text that [`Tokenizer::exceeds`] looks at in one go.
const SLICE_BYTES: usize = 64 << 10;
/// Tokens that a slice may have more than the text has there.
const SLICE_TOKENS_MORE: usize = 16;

/// How text becomes tokens.
#[derive(Debug)]
enum Encoder {
    ByteLevel(Box<ByteLevelBpe>),
    Scored(Box<ScoredBpe>),
    Json(Box<JsonEncoder>),
}

/// The names of special tokens that a tokenizer.json does not hold (its neighbour tokenizer_config.json
/// does): by the token's text.
#[derive(Debug, Clone, Copy, Default)]
pub struct JsonOptions<'a> {
    /// The token that begins a text.
    pub bos: Option<&'a str>,
    /// The token that ends an answer; the usual end-of-turn tokens are known by their texts.
    pub eos: Option<&'a str>,
    /// Whether a prompt begins with `bos` even where the template does not write it.
    pub adds_bos: bool,
}

/// A model's tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: Encoder,
    vocab: Vocab,
    /// Control and user-defined tokens, for templates.
    in_templates: TokenSearch,
    /// User-defined tokens, for every text.
    in_text: TokenSearch,
    adds_bos: bool,
    /// Whether text is read as if a space came before it.
    space_prefix: bool,
    strips: Strips,
    digest: [u8; 32],
    digest_hex: String,
}

impl Tokenizer {
    /// Builds the tokenizer that a model file's metadata describes (keys `tokenizer.ggml.*`).
    ///
    /// # Errors
    /// A key is missing or has the wrong type, an array the wrong length; a model or pre-tokenizer that
    /// is not supported; ids outside the vocabulary; a SentencePiece vocabulary that cannot write every text.
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
                    Habits { adds_bos, space_prefix: false, strips },
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
                Tokenizer::new(encoder, vocab, &texts, Habits { adds_bos, space_prefix, strips }, digest)?
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
    /// The file cannot be read, is no tokenizer of BPE or Unigram kind, or lacks a token named in
    /// `options`.
    pub fn from_json(path: impl AsRef<Path>, options: JsonOptions<'_>) -> Result<Tokenizer, TokenizerError> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|err| TokenizerError::Open { path: path.to_owned(), err })?;
        Tokenizer::from_json_bytes(&bytes, options)
    }

    /// Like [`Tokenizer::from_json`], of a file already in memory.
    ///
    /// # Errors
    /// As there.
    pub fn from_json_bytes(bytes: &[u8], options: JsonOptions<'_>) -> Result<Tokenizer, TokenizerError> {
        let (encoder, vocab, texts) = json::read(bytes, options.bos, options.eos)?;
        let mut digest = Digest::new("json");
        digest.list("description", [encoder.description()?]);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let adds_bos = options.adds_bos && vocab.special.bos.is_some();
        let habits = Habits { adds_bos, space_prefix: false, strips: Strips::default() };
        Tokenizer::new(Encoder::Json(Box::new(encoder)), vocab, &texts, habits, digest)
    }

    fn new(
        encoder: Encoder,
        vocab: Vocab,
        texts: &[&str],
        habits: Habits,
        mut digest: Digest,
    ) -> Result<Tokenizer, TokenizerError> {
        let Habits { adds_bos, space_prefix, strips } = habits;
        strips.digest(&mut digest);
        let of_kind = |wanted: &'static [TokenKind]| {
            let is_wanted = |id| vocab.kind(id).is_some_and(|kind| wanted.contains(&kind));
            texts.iter().copied().zip(0..).filter(move |&(_, id)| is_wanted(id))
        };
        let in_templates = TokenSearch::new(of_kind(&[TokenKind::Control, TokenKind::UserDefined]))?;
        let in_text = TokenSearch::new(of_kind(&[TokenKind::UserDefined]))?;
        let digest: [u8; 32] = digest.0.finalize().into();
        let digest_hex = digest.iter().map(|byte| format!("{byte:02x}")).collect();
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

    /// The tokens of user text; never a control token, whatever the text.
    pub fn encode(&self, text: &str) -> Vec<TokenId> {
        self.encode_pieces(&[Piece { text, is_template: false }]).into_iter().map(|token| token.id).collect()
    }

    /// Whether user texts have certainly more than `limit` tokens together; tokenizes no more of them than tells so.
    ///
    /// Texts that have a few more may be let through: they are looked at in slices, each of which may have some tokens
    /// that the whole has not. Memory: that of one slice, some MiB.
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

    /// The tokens of user text, each with the bytes of the text that it stands for.
    ///
    /// The ranges are in order, one begins where the one before ends, and together they are the text.
    /// They may cut a character (byte tokens) and may be empty (SentencePiece's space before the text).
    pub fn encode_spans(&self, text: &str) -> (Vec<TokenId>, Vec<Range<usize>>) {
        self.spans(text, true)
    }

    /// Like [`Tokenizer::encode_spans`], of text that a model has written, or is to have written, behind a prompt.
    ///
    /// What a SentencePiece model writes begins with its own space: no other one is read before it.
    pub fn encode_answer(&self, text: &str) -> (Vec<TokenId>, Vec<Range<usize>>) {
        self.spans(text, !text.starts_with(' '))
    }

    fn spans(&self, text: &str, space_first: bool) -> (Vec<TokenId>, Vec<Range<usize>>) {
        let placed = self.encode_pieces_from(&[Piece { text, is_template: false }], space_first);
        let (ids, mut spans): (Vec<TokenId>, Vec<_>) = placed.into_iter().map(|t| (t.id, t.bytes)).unzip();
        cover(&mut spans, text.len());
        (ids, spans)
    }

    /// The tokens of a template's own text, in which the texts of control tokens are control tokens.
    pub fn encode_template(&self, piece: &str) -> Vec<TokenId> {
        let pieces = [Piece { text: piece, is_template: true }];
        self.encode_pieces(&pieces).into_iter().map(|token| token.id).collect()
    }

    /// The bytes of a token: a piece of text, or a control token's name. Empty for unknown ids.
    pub fn token_bytes(&self, id: TokenId) -> &[u8] {
        self.vocab.bytes(id)
    }

    /// Whether the token steers the model: it is never made of user text and never shown.
    pub fn is_control(&self, id: TokenId) -> bool {
        self.vocab.is_control(id)
    }

    /// Whether the token ends an answer: end of sequence, of turn or of message.
    pub fn is_end(&self, id: TokenId) -> bool {
        self.vocab.is_end(id)
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<TokenId> {
        self.vocab.special.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<TokenId> {
        self.vocab.special.eos
    }

    /// Whether a prompt begins with [`Tokenizer::bos`] even where its template does not write it.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos && self.bos().is_some()
    }

    /// The number of tokens.
    pub fn vocab_len(&self) -> usize {
        self.vocab.len()
    }

    /// The most bytes of user text that one token can stand for: text of more than `n` times as many bytes has more
    /// than `n` tokens.
    ///
    /// SentencePiece writes `▁`, of three bytes, for a space, and takes it in texts for one; a character that it does not
    /// know is one token. A tokenizer.json may leave out text, and a vocabulary without tokens for some bytes does:
    /// such text counts all the same.
    pub fn token_bytes_max(&self) -> usize {
        let longest = self.vocab.text_bytes_max();
        match &self.encoder {
            Encoder::ByteLevel(_) | Encoder::Json(_) => longest,
            Encoder::Scored(_) => (longest * SPACE.len_utf8()).max(char::MAX.len_utf8()),
        }
    }

    /// SHA-256 over everything that decides how text is encoded; equal digests mean equal ids.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// [`Tokenizer::digest`] in lower-case hexadecimal.
    pub fn digest_hex(&self) -> &str {
        &self.digest_hex
    }
}

/// What a tokenizer does beside cutting text.
struct Habits {
    adds_bos: bool,
    space_prefix: bool,
    strips: Strips,
}

/// A digest over named lists, each length written before its bytes so that no two inputs collide.
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

/// Each token's kind. Files without types are old ones: control tokens are then known by their shape.
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

/// The tokens that metadata names. SentencePiece files that name none mean its usual ones.
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
