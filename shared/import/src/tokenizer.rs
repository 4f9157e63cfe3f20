//! The vocabulary of a model folder, as the `tokenizer.ggml.*` keys of a GGUF file.
//!
//! There are two kinds: byte-level BPE of `tokenizer.json`, and SentencePiece BPE of `tokenizer.model` or of
//! a `tokenizer.json` made from one. Always holds: a vocabulary read from `tokenizer.json` is compared with
//! that file on texts of every kind before the import ends, so a pre-tokenizer is never merely assumed. A
//! `tokenizer.model` that changes texts before it splits them is refused, since GGUF files cannot express
//! that.

mod byte_level;
mod check;
mod pieces;
mod sentencepiece;
mod special;

use std::path::Path;

use baton_engine::Tokenizer;
use baton_engine::gguf::GgufWriter;
use baton_engine::tokenizer::{STRIP_LEFT_KEY, STRIP_RIGHT_KEY};

use crate::error::ImportError;
use crate::hf_config::HfConfig;
use crate::json::{JsonFile, read_file};
use pieces::{AddedToken, Pieces};
use special::Special;

/// The most bytes of a tokenizer's file.
const BYTES_MAX: u64 = 512 << 20;

/// The contents of a tokenizer's files.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// `tokenizer.ggml.model`.
    pub(crate) model: &'static str,
    /// `tokenizer.ggml.pre`.
    pub(crate) pre: &'static str,
    pieces: Pieces,
    /// Pairs that are merged, best first; only of the byte-level kind.
    merges: Option<Vec<String>>,
    /// Whether SentencePiece adds a space before a text.
    space_prefix: Option<bool>,
    special: Special,
    /// Tokens that remove the white space before them, and after them.
    strips: [Vec<u32>; 2],
    /// The tokenizer of the `tokenizer.json` that the vocabulary was read from.
    original: Option<Tokenizer>,
}

impl Vocabulary {
    /// Reads the vocabulary of a folder whose embedding table has `vocab_len` rows.
    ///
    /// # Errors
    /// If there is no tokenizer, one of another kind, one that its own library refuses, or one that does not
    /// fit the table.
    pub(crate) fn read(dir: &Path, config: &HfConfig, vocab_len: usize) -> Result<Vocabulary, ImportError> {
        let path = dir.join("tokenizer.json");
        let bytes = read_file(&path, BYTES_MAX)?;
        let json = bytes.as_deref().map(|bytes| JsonFile::parse(path, bytes)).transpose()?;
        let settings = JsonFile::open_if_there(dir.join("tokenizer_config.json"))?;
        let added = AddedToken::all(json.as_ref(), settings.as_ref())?;
        let special = Special::read(dir, config, json.as_ref(), settings.as_ref(), &added)?;
        let pieces = Pieces::new(vocab_len, dir);
        let mut vocabulary = Vocabulary {
            model: "llama",
            pre: "default",
            pieces,
            merges: None,
            space_prefix: None,
            special,
            strips: pieces::strips(&added),
            original: None,
        };
        match &json {
            Some(json) if byte_level::is_byte_level(json) => {
                vocabulary.read_byte_level(json)?;
                vocabulary.original = bytes.as_deref().map(check::original).transpose()?;
            }
            _ => {
                let model = dir.join("tokenizer.model");
                if let Some(bytes) = read_file(&model, BYTES_MAX)? {
                    let dummy_prefix = sentencepiece::read_model(&model, &bytes, &mut vocabulary.pieces)?;
                    vocabulary.space_prefix = Some(dummy_prefix);
                } else if let Some(json) = &json {
                    vocabulary.space_prefix = Some(sentencepiece::read_json(json, &mut vocabulary.pieces)?);
                    vocabulary.original = bytes.as_deref().map(check::original).transpose()?;
                } else {
                    return Err(ImportError::MissingFile { path: dir.join("tokenizer.json") });
                }
            }
        }
        added.iter().try_for_each(|token| vocabulary.pieces.add(token))?;
        vocabulary.special.check(&vocabulary.pieces)?;
        Ok(vocabulary)
    }

    fn read_byte_level(&mut self, json: &JsonFile) -> Result<(), ImportError> {
        self.model = "gpt2";
        self.pre = byte_level::pre_tokenizer(json)?;
        self.merges = Some(byte_level::read(json, &mut self.pieces)?);
        Ok(())
    }

    /// Returns the number of tokens, including those that only fill the embedding table.
    pub(crate) fn len(&self) -> usize {
        self.pieces.texts.len()
    }

    /// Writes the vocabulary's keys.
    pub(crate) fn write(&self, writer: &mut GgufWriter<'_>) {
        writer.set("tokenizer.ggml.model", self.model).set("tokenizer.ggml.pre", self.pre);
        writer.set("tokenizer.ggml.tokens", self.pieces.texts.clone());
        if self.model == "llama" {
            writer.set("tokenizer.ggml.scores", self.pieces.scores.clone());
        }
        let types: Vec<i32> = self.pieces.types.iter().map(|&kind| kind as i32).collect();
        writer.set("tokenizer.ggml.token_type", types);
        if let Some(merges) = &self.merges {
            writer.set("tokenizer.ggml.merges", merges.clone());
        }
        if let Some(space_prefix) = self.space_prefix {
            writer.set("tokenizer.ggml.add_space_prefix", space_prefix);
        }
        for (key, ids) in [STRIP_LEFT_KEY, STRIP_RIGHT_KEY].into_iter().zip(&self.strips) {
            if !ids.is_empty() {
                writer.set(key, ids.clone());
            }
        }
        self.special.write(writer);
    }

    /// Compares the finished file's tokenizer with the `tokenizer.json` it was read from, if it was.
    ///
    /// # Errors
    /// [`ImportError::TokenizerDiffers`] with a text that the two split differently.
    pub(crate) fn check(&self, made: &Tokenizer) -> Result<(), ImportError> {
        self.original.as_ref().map_or(Ok(()), |original| check::same_ids(made, original))
    }
}
