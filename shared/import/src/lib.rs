//! Import: a Hugging Face model folder, and LoRA adapters if any, to one GGUF file that the engine runs.
//!
//! Reads `config.json`, safetensors weights (F32, F16, BF16), the tokenizer and the chat template; merges adapters;
//! quantizes by candle-core; writes tensors and metadata as llama.cpp's `convert_hf_to_gguf.py` names them, so that
//! other programs read the file too; or writes an adapter alone, for use beside its model. Never downloads, never runs code of the folder, never changes it.
//!
//! Always holds: memory is bounded by a band of one matrix, whatever the model's size; the output is written under
//! another name and renamed when the engine has opened it, so an import that fails or is cancelled leaves nothing.

mod adapter;
mod architecture;
mod error;
mod hf_config;
mod json;
mod lora;
mod mix;
mod plan;
mod rope;
mod safetensors;
mod tokenizer;
mod write;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use baton_engine::Model;
use baton_engine::gguf::GgufWriter;

pub use architecture::supported;
pub use error::ImportError;
pub use lora::{AdapterOptions, AdapterSummary, import_adapter};
pub use mix::{Quantization, UnknownQuantization};

use adapter::Adapter;
use hf_config::HfConfig;
use plan::Plan;
use safetensors::TensorFiles;
use tokenizer::Vocabulary;
use write::{Output, Sources};

/// A LoRA adapter: a folder of the PEFT library.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterDir {
    /// The folder with `adapter_config.json` and `adapter_model.safetensors`.
    pub dir: PathBuf,
    /// How much of it is added; 1: as it was trained.
    pub weight: f32,
}

/// What to import, and to where.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportOptions {
    /// The model's folder.
    pub dir: PathBuf,
    /// The file to write.
    pub out: PathBuf,
    /// Whether a file that is already there is replaced.
    pub replace: bool,
    /// The formats of the weights.
    pub quantization: Quantization,
    /// Adapters to merge; their changes add up.
    pub adapters: Vec<AdapterDir>,
}

/// How far an import is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The tensor being written.
    pub tensor: &'a str,
    /// Its place among all, from 0.
    pub tensor_idx: usize,
    /// All tensors.
    pub n_tensors: usize,
    /// Bytes of weights written so far.
    pub bytes_done: u64,
    /// Bytes of weights of the whole file.
    pub bytes_total: u64,
}

/// What an import made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// `general.architecture` of the file.
    pub architecture: &'static str,
    /// `general.name` of the file.
    pub name: String,
    /// `tokenizer.ggml.model`, and `tokenizer.ggml.pre`.
    pub tokenizer: (&'static str, &'static str),
    /// Tokens of the vocabulary.
    pub vocab_len: usize,
    /// Tensors of the file.
    pub n_tensors: usize,
    /// Weights of the model.
    pub n_weights: u64,
    /// The length of the file.
    pub file_bytes: u64,
    /// Tensors of each format, by its name.
    pub formats: BTreeMap<&'static str, usize>,
    /// Matrices that each adapter changed, in the order in which adapters were given.
    pub adapted: Vec<usize>,
}

/// Imports a model folder to a GGUF file; `progress` is told of each band of weights and may stop the import.
///
/// Cost: reads the weights once and quantizes them on all cores; at most a few hundred MB of memory.
///
/// # Errors
/// [`ImportError`]: what the folder or an adapter lacks, holds that is not supported, or disagrees about;
/// [`ImportError::Cancelled`] where `progress` breaks. Nothing is left at `out` or beside it.
pub fn import(
    options: &ImportOptions,
    progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
) -> Result<Summary, ImportError> {
    let output = Output::create(&options.out, options.replace)?;
    let config = HfConfig::open(&options.dir)?;
    let architecture = architecture::find(&config)?;
    if baton_engine::family::find(architecture.gguf).is_none() {
        return Err(ImportError::NoFamily { architecture: architecture.gguf });
    }
    let files = TensorFiles::open_model(&options.dir)?;
    let mut plan = Plan::new(architecture, &config, &files)?;
    plan.choose_formats(options.quantization)?;
    let adapters = open_adapters(&options.adapters, &plan)?;
    let vocabulary = Vocabulary::read(&options.dir, &config, plan.vocab_len)?;
    let name = model_name(&options.dir, &config)?;
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", architecture.gguf).set("general.type", "model");
    writer.set("general.name", name.as_str());
    writer.set("general.file_type", options.quantization.file_type());
    writer.set("general.quantization_version", 2u32);
    plan.metadata.write(&mut writer);
    vocabulary.write(&mut writer);
    let sources = Sources { plan: &plan, files: &files, adapters: &adapters };
    let file_bytes = output.write(writer, &sources, progress)?;
    let model = Model::open(output.path()).map_err(|err| ImportError::Refused(Box::new(err)))?;
    vocabulary.check(model.tokenizer())?;
    drop(model);
    output.keep()?;
    Ok(Summary {
        architecture: architecture.gguf,
        name,
        tokenizer: (vocabulary.model, vocabulary.pre),
        vocab_len: vocabulary.len(),
        n_tensors: plan.tensors.len(),
        n_weights: plan.tensors.iter().map(|tensor| tensor.dims.iter().product::<u64>()).sum(),
        file_bytes,
        formats: plan.formats(),
        adapted: adapters.iter().map(Adapter::len).collect(),
    })
}

fn open_adapters(dirs: &[AdapterDir], plan: &Plan) -> Result<Vec<Adapter>, ImportError> {
    let shapes = plan.matrices();
    dirs.iter().map(|adapter| Adapter::open(&adapter.dir, adapter.weight, &shapes)).collect()
}

/// The name that the model was published under, else its folder's.
fn model_name(dir: &Path, config: &HfConfig) -> Result<String, ImportError> {
    let published = config.json.opt_str("_name_or_path")?.unwrap_or_default();
    let last = published.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    if !last.is_empty() && last != "." {
        return Ok(last.to_owned());
    }
    let dir = dir.canonicalize().map_err(|err| ImportError::Read { path: dir.to_owned(), err })?;
    let name = dir.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(name.unwrap_or_else(|| "imported".to_owned()))
}
