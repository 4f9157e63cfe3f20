//! Errors of a tokenizer's description.

use std::io;
use std::path::PathBuf;

use crate::gguf::GgufError;

/// Why a tokenizer could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A metadata key is missing or has the wrong type.
    #[error("read tokenizer metadata")]
    Metadata(#[from] GgufError),
    /// The tokenizer model is not `gpt2`, `llama` or `gemma4`, such as those of embedding models (`bert`,
    /// `t5`).
    #[error("tokenizer model is `{found}`, want `gpt2`, `llama` or `gemma4`")]
    UnsupportedModel {
        /// The value of `tokenizer.ggml.model`, or of `model.type` in tokenizer.json.
        found: String,
    },
    /// The pre-tokenizer is not in the table.
    #[error("pre-tokenizer `{found}` is not supported")]
    UnsupportedPre {
        /// The value of `tokenizer.ggml.pre`.
        found: String,
    },
    /// The vocabulary is empty or has more tokens than 31 bits can count.
    #[error("vocabulary has {len} tokens, want 1 to {max}")]
    BadVocabLen {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// An array does not have the vocabulary's length.
    #[error("`{key}` has {found} entries, the vocabulary has {want}")]
    LengthMismatch {
        /// The key of the array.
        key: &'static str,
        /// Its length.
        found: usize,
        /// The vocabulary's length.
        want: usize,
    },
    /// A token has a type number that GGUF does not define.
    #[error("token {id} has type {found}, want 0 to 6")]
    BadTokenType {
        /// The token.
        id: u32,
        /// Its type number.
        found: i32,
    },
    /// Metadata refers to a token that does not exist.
    #[error("`{key}` is {id}, the vocabulary has {len} tokens")]
    IdOutOfRange {
        /// The key.
        key: &'static str,
        /// The token.
        id: u32,
        /// The vocabulary's length.
        len: usize,
    },
    /// A SentencePiece vocabulary has neither a token for a byte nor an unknown token.
    #[error("vocabulary has no token for byte {byte:#04x}")]
    MissingByte {
        /// The byte.
        byte: u8,
    },
    /// A merge does not consist of two tokens that make a third.
    #[error("merge {index} is `{text}`, which the vocabulary cannot make")]
    BadMerge {
        /// Its index in the list.
        index: usize,
        /// The merge.
        text: String,
    },
    /// A token is so long that texts with it could not be merged in blocks.
    #[error("token {id} has {len} bytes, at most {max} are read")]
    TokenTooLong {
        /// The token.
        id: u32,
        /// Its length as written in words.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A score is not a number.
    #[error("score of token {id} is not a number")]
    BadScore {
        /// The token.
        id: u32,
    },
    /// The control tokens are too many or too long for the search.
    #[error("build the search for control tokens")]
    ControlTokens(#[source] Box<regex::Error>),
    /// A tokenizer.json could not be read.
    #[error("open `{path}`")]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        err: io::Error,
    },
    /// The `tokenizers` library refused a tokenizer.json, or a model built from GGUF metadata.
    #[error("build the tokenizer")]
    Library(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A token named for tokenizer.json is not in its vocabulary.
    #[error("token `{text}` is not in the vocabulary")]
    UnknownToken {
        /// Its text.
        text: String,
    },
}
