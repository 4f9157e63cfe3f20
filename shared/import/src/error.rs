//! Errors of a model folder, an adapter, or the place where a model is to be written.

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
        /// The system's error.
        #[source]
        err: io::Error,
    },
    /// A file that a model folder must hold is missing.
    #[error("`{path}` is missing")]
    MissingFile {
        /// The file.
        path: PathBuf,
    },
    /// A file exceeds the size limit.
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
        /// The parser's error.
        #[source]
        err: serde_json::Error,
    },
    /// A JSON file holds no object.
    #[error("`{path}` holds no json object")]
    NotAnObject {
        /// The file.
        path: PathBuf,
    },
    /// A required key is absent.
    #[error("`{path}` lacks `{key}`")]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A value is malformed, or the importer or the engine does not support it.
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
    /// A model class is not supported.
    #[error("architecture `{found}` is not supported; these are: {supported}")]
    UnknownArchitecture {
        /// The class in `config.json`.
        found: String,
        /// The classes that are supported.
        supported: String,
    },
    /// The engine of this build does not support the family.
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
    /// A file is not valid safetensors.
    #[error("`{path}` is no safetensors file: {what}")]
    BadSafetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong, with limit and value.
        what: String,
    },
    /// A tensor is not stored as F32, F16 or BF16.
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
    /// A tensor would be left out, which would make results wrong.
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
    /// A weight is not finite, or too large for the format.
    #[error("tensor `{name}` holds {value}, which {format} cannot")]
    Value {
        /// The tensor.
        name: String,
        /// The value.
        value: f32,
        /// The format's name.
        format: &'static str,
    },
    /// The engine of this build cannot compute with a format.
    #[error("tensor `{name}` would be stored as {format}, which the engine does not compute with")]
    NoFormat {
        /// The tensor.
        name: String,
        /// The format's name.
        format: &'static str,
    },
    /// The quantization library failed.
    #[error("convert tensor `{name}`")]
    Convert {
        /// The tensor.
        name: String,
        /// The library's error.
        #[source]
        err: candle_core::Error,
    },
    /// A number of an adapter has no place in the wanted format.
    #[error("write adapter tensor `{name}`")]
    Encode {
        /// The tensor.
        name: String,
        /// The error of the kernels.
        #[source]
        err: baton_kernels_cpu::KernelError,
    },
    /// A tensor of an adapter is not one half of a low-rank change of a matrix of the model.
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
    /// The file's tokenizer and the folder's tokenizer give different ids.
    #[error("tokenizer of the file differs from tokenizer.json: {text:?} is {found:?}, want {want:?}")]
    TokenizerDiffers {
        /// The text.
        text: String,
        /// Ids of the file's tokenizer, from the first difference on.
        found: Vec<u32>,
        /// Ids of the folder's tokenizer from there on.
        want: Vec<u32>,
    },
    /// A file already exists where the model is to be written.
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
        /// The writer's error.
        #[source]
        err: GgufWriteError,
    },
    /// The engine cannot open the file made from the folder.
    #[error("the engine refuses the imported model")]
    Refused(#[source] Box<ModelError>),
    /// The model that an adapter is for cannot be opened.
    #[error("open model `{path}`")]
    BaseModel {
        /// The file.
        path: PathBuf,
        /// The engine's error.
        #[source]
        err: Box<ModelError>,
    },
    /// The engine cannot open the adapter made from the folder.
    #[error("the engine refuses the imported adapter")]
    AdapterRefused(#[source] Box<AdapterError>),
    /// The import was stopped.
    #[error("cancelled")]
    Cancelled,
}
