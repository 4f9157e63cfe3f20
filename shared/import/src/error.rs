//! What can be wrong with a model folder, an adapter, or the place where a model is to be written.

use std::io;
use std::path::PathBuf;

use baton_engine::gguf::GgufWriteError;
use baton_engine::tokenizer::TokenizerError;
use baton_engine::{AdapterError, ModelError};

/// Why a model was not imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A file cannot be read.
    #[error("read `{path}`")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        err: io::Error,
    },
    /// A file that a model folder has to hold is absent.
    #[error("`{path}` is missing")]
    MissingFile {
        /// The file.
        path: PathBuf,
    },
    /// A file is longer than any of its kind.
    #[error("`{path}` has more than {max} bytes")]
    FileTooLong {
        /// The file.
        path: PathBuf,
        /// The limit.
        max: u64,
    },
    /// A file is not JSON.
    #[error("parse `{path}`")]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        #[source]
        err: serde_json::Error,
    },
    /// A JSON file holds no object.
    #[error("`{path}` holds no json object")]
    NotAnObject {
        /// The file.
        path: PathBuf,
    },
    /// A key that is needed is absent.
    #[error("`{path}` lacks `{key}`")]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A value that is malformed, or that this importer or the engine does not know.
    #[error("`{key}` in `{path}` is {found}, want {want}")]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Its value, shortened.
        found: String,
        /// What is supported.
        want: String,
    },
    /// A model class that is not in the table.
    #[error("architecture `{found}` is not supported; these are: {supported}")]
    UnknownArchitecture {
        /// The class in `config.json`.
        found: String,
        /// The classes that are.
        supported: String,
    },
    /// The engine of this build lacks the family.
    #[error("the engine does not run `{architecture}` models")]
    NoFamily {
        /// The name of the family in GGUF files.
        architecture: &'static str,
    },
    /// The folder has no safetensors weights.
    #[error("`{dir}` has neither `{single}` nor `{index}`")]
    NoWeights {
        /// The folder.
        dir: PathBuf,
        /// The file of a whole model.
        single: &'static str,
        /// The index of a model in several files.
        index: &'static str,
    },
    /// A safetensors file is malformed.
    #[error("`{path}` is no safetensors file: {what}")]
    BadSafetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong, with limit and value.
        what: String,
    },
    /// A tensor is stored in a type that is no weight of full precision.
    #[error("tensor `{name}` has type {found}; F32, F16 and BF16 are supported")]
    UnsupportedType {
        /// The tensor.
        name: String,
        /// Its type.
        found: String,
    },
    /// A tensor that the model needs is absent.
    #[error("tensor `{name}` is missing")]
    MissingTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor that would be left out, so that results would be wrong.
    #[error("tensor `{name}` is not part of a {architecture} model")]
    UnknownTensor {
        /// The tensor.
        name: String,
        /// The model's family.
        architecture: &'static str,
    },
    /// A tensor's shape is not the one that `config.json` implies.
    #[error("tensor `{name}` has shape {found:?}, must be {want:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape, rows first.
        found: Vec<usize>,
        /// The shape implied.
        want: Vec<usize>,
    },
    /// A weight that is not finite, or too large for the format.
    #[error("tensor `{name}` holds {value}, which {format} cannot")]
    Value {
        /// The tensor.
        name: String,
        /// The value.
        value: f32,
        /// The format's name.
        format: &'static str,
    },
    /// A format that the engine of this build cannot compute with.
    #[error("tensor `{name}` would be stored as {format}, which the engine does not compute with")]
    NoFormat {
        /// The tensor.
        name: String,
        /// The format's name.
        format: &'static str,
    },
    /// The library of quantizations failed.
    #[error("convert tensor `{name}`")]
    Convert {
        /// The tensor.
        name: String,
        /// What the library said.
        #[source]
        err: candle_core::Error,
    },
    /// A tensor of an adapter that is not one half of a low-rank change of a matrix of the model.
    #[error("adapter tensor `{name}`: {what}")]
    AdapterTensor {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// The folder has no tokenizer of a supported kind.
    #[error("tokenizer in `{path}` is not supported: {what}")]
    Tokenizer {
        /// The file or folder.
        path: PathBuf,
        /// What was found, and what is supported.
        what: String,
    },
    /// The tokenizer of the folder cannot be read.
    #[error("read the tokenizer of the model folder")]
    ReadTokenizer(#[source] TokenizerError),
    /// The file's tokenizer and the folder's give different ids.
    #[error("tokenizer of the file differs from tokenizer.json: {text:?} is {found:?}, want {want:?}")]
    TokenizerDiffers {
        /// The text.
        text: String,
        /// Ids of the file's tokenizer from the first that differs.
        found: Vec<u32>,
        /// Ids of the folder's from there.
        want: Vec<u32>,
    },
    /// Something is already where the model is to be written.
    #[error("`{path}` is already there")]
    OutExists {
        /// The file.
        path: PathBuf,
    },
    /// The disk is too full for the file.
    #[error("the disk has no room for the {bytes} bytes of `{path}`")]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The file cannot be written.
    #[error("write `{path}`")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the writer said.
        #[source]
        err: GgufWriteError,
    },
    /// The engine cannot open the file that was made of the folder.
    #[error("the engine refuses the imported model")]
    Refused(#[source] Box<ModelError>),
    /// The model that an adapter is for cannot be opened.
    #[error("open model `{path}`")]
    BaseModel {
        /// The file.
        path: PathBuf,
        /// What the engine said.
        #[source]
        err: Box<ModelError>,
    },
    /// The engine cannot open the adapter that was made of the folder.
    #[error("the engine refuses the imported adapter")]
    AdapterRefused(#[source] Box<AdapterError>),
    /// The import was stopped.
    #[error("cancelled")]
    Cancelled,
}
