//! Import: turns a Hugging Face model folder, and LoRA adapters if any, into one GGUF file that the engine
//! runs.
//!
//! Reads `config.json`, safetensors weights (F32, F16, BF16), the tokenizer and the chat template. Merges
//! adapters, quantizes with candle-core, and writes tensors and metadata under the names of llama.cpp's
//! `convert_hf_to_gguf.py`, so that other programs can read the file. It can also write an adapter alone, for
//! use with its model. Never downloads, never runs code from the folder, never changes the folder.
//!
//! Always holds: memory use is bounded by a band of one matrix, whatever the model's size. The output is
//! written under a temporary name and renamed after the engine has opened it, so an import that fails or is
//! cancelled leaves nothing.

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
pub use lora::{ADAPTER_FORMAT, AdapterOptions, AdapterSummary, import_adapter};
pub use mix::{Quantization, UnknownQuantization};

use adapter::Adapter;
use hf_config::HfConfig;
use plan::Plan;
use safetensors::TensorFiles;
use tokenizer::Vocabulary;
use write::{Output, Sources};

/// A LoRA adapter in a folder of the PEFT library.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterDir {
    /// The folder with `adapter_config.json` and `adapter_model.safetensors`.
    pub dir: PathBuf,
    /// Factor of its change; 1 adds it as it was trained.
    pub weight: f32,
}

/// What to import, and where to write it.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportOptions {
    /// The model's folder.
    pub dir: PathBuf,
    /// The file to write.
    pub out: PathBuf,
    /// Whether an existing file is replaced.
    pub replace: bool,
    /// The formats of the weights.
    pub quantization: Quantization,
    /// Adapters to merge; their changes add up.
    pub adapters: Vec<AdapterDir>,
}

/// The progress of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The tensor being written.
    pub tensor: &'a str,
    /// Its index among all tensors, from 0.
    pub tensor_idx: usize,
    /// The number of all tensors.
    pub n_tensors: usize,
    /// Bytes of weights written so far.
    pub bytes_done: u64,
    /// Bytes of weights of the whole file.
    pub bytes_total: u64,
}

/// The result of an import.
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
    /// Number of weights of the model.
    pub n_weights: u64,
    /// The length of the file.
    pub file_bytes: u64,
    /// Number of tensors of each format, by the format's name.
    pub formats: BTreeMap<&'static str, usize>,
    /// Number of matrices that each adapter changed, in the order of the adapters given.
    pub adapted: Vec<usize>,
}

/// Imports a model folder into a GGUF file. `progress` is called for each band of weights and may stop the
/// import.
///
/// Cost: reads the weights once and quantizes them on all cores; at most a few hundred MB of memory.
///
/// # Errors
/// [`ImportError`] if the folder or an adapter lacks something, holds something unsupported, or contradicts
/// itself; [`ImportError::Cancelled`] if `progress` breaks. Nothing is left at `out` or beside it.
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

/// Returns the name that the model was published under, else the name of its folder.
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
