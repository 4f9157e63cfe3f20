//! The list of tokens: text, kind and score, by id.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::ImportError;
use crate::json::JsonFile;

/// A token's kind, with GGUF's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// Score of added tokens, which are found before anything is merged.
const SCORE_ADDED: f32 = -1000.0;
/// Score of rows of the embedding table without a token.
const SCORE_UNUSED: f32 = -10_000.0;
/// How SentencePiece writes a space.
const SPACE: char = '▁';

/// All tokens by id.
#[derive(Debug)]
pub(super) struct Pieces {
    pub(super) texts: Vec<String>,
    pub(super) types: Vec<Kind>,
    pub(super) scores: Vec<f32>,
    dir: PathBuf,
}

/// A token that was added to a vocabulary, or marked in it.
#[derive(Debug, Clone)]
pub(super) struct AddedToken {
    pub(super) id: usize,
    pub(super) text: String,
    special: bool,
    /// Whether it removes the white space before it, and after it.
    strips: [bool; 2],
}

impl Pieces {
    /// Returns a list in which every row of the embedding table is free.
    pub(super) fn new(vocab_len: usize, dir: &Path) -> Pieces {
        Pieces {
            texts: (0..vocab_len).map(|id| format!("[PAD{id}]")).collect(),
            types: vec![Kind::Unused; vocab_len],
            scores: vec![SCORE_UNUSED; vocab_len],
            dir: dir.to_owned(),
        }
    }

    /// Sets a token.
    ///
    /// # Errors
    /// If the embedding table has no row for it.
    pub(super) fn set(&mut self, id: usize, text: String, kind: Kind, score: f32) -> Result<(), ImportError> {
        let len = self.texts.len();
        if id >= len {
            let what = format!("token {id} is `{text}`, the embedding table has {len} rows");
            return Err(ImportError::Tokenizer { path: self.dir.clone(), what });
        }
        (self.texts[id], self.types[id], self.scores[id]) = (text, kind, score);
        Ok(())
    }

    /// Sets an added token. One that looks like a control token becomes one, whatever the file says.
    pub(super) fn add(&mut self, token: &AddedToken) -> Result<(), ImportError> {
        if self.types.get(token.id) == Some(&Kind::Unknown) {
            return Ok(());
        }
        if token.special || looks_special(&token.text) {
            return self.set(token.id, token.text.clone(), Kind::Control, SCORE_ADDED);
        }
        self.set(token.id, token.text.replace(SPACE, " "), Kind::UserDefined, SCORE_ADDED)
    }
}

/// Returns the ids of tokens that remove white space before them, and of those that remove it after them.
pub(super) fn strips(added: &[AddedToken]) -> [Vec<u32>; 2] {
    [0, 1].map(|side| {
        let ids = added.iter().filter(|token| token.strips[side]).map(|token| token.id as u32);
        ids.collect()
    })
}

impl AddedToken {
    /// Returns those of `tokenizer.json`, and those that only `tokenizer_config.json` names.
    pub(super) fn all(
        json: Option<&JsonFile>,
        settings: Option<&JsonFile>,
    ) -> Result<Vec<AddedToken>, ImportError> {
        let mut all: Vec<AddedToken> = Vec::new();
        if let Some(json) = json
            && let Some(tokens) = json.get("added_tokens")
        {
            let read = |token: &Value| AddedToken::read(token.get("id")?.as_u64()?, token);
            let tokens =
                tokens.as_array().and_then(|tokens| tokens.iter().map(read).collect::<Option<Vec<_>>>());
            all = tokens.ok_or_else(|| json.unsupported("added_tokens", "a list of tokens"))?;
        }
        if let Some(settings) = settings
            && let Some(tokens) = settings.opt_object("added_tokens_decoder")?
        {
            for (id, token) in tokens.map() {
                let token = id.parse().ok().and_then(|id| AddedToken::read(id, token));
                let token = token.ok_or_else(|| tokens.unsupported(id, "a token"))?;
                if all.iter().all(|known| known.id != token.id) {
                    all.push(token);
                }
            }
        }
        Ok(all)
    }

    fn read(id: u64, token: &Value) -> Option<AddedToken> {
        let special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
        Some(AddedToken {
            id: usize::try_from(id).ok()?,
            text: token.get("content")?.as_str()?.to_owned(),
            special,
            strips: ["lstrip", "rstrip"].map(|key| token.get(key).and_then(Value::as_bool).unwrap_or(false)),
        })
    }
}

/// Whether a text is one that models use as a control token though their files call it plain.
fn looks_special(text: &str) -> bool {
    let framed = |open: &str, close: &str| text.starts_with(open) && text.ends_with(close);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || framed("<|", "|>")
        || framed("<｜", "｜>")
        || framed("<unused", ">")
}
