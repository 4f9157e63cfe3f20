//! A LoRA adapter of the PEFT library as a GGUF file that is used with its model, unmerged.
//!
//! The file has llama.cpp's form (`general.type = adapter`); names and the order of rows are those of the
//! model's own file. Halves whose rows are no whole blocks of the wanted format are F16. A file has one
//! alpha. Other factors of a change (a rank-stabilized scale, its own alpha, the requested weight) are
//! multiplied into its `B`, so that a plain adapter's numbers are only rounded.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_engine::adapter::{
    A_SUFFIX, ALPHA_KEY, Adapter as OpenedAdapter, B_SUFFIX, GENERAL_TYPE, TYPE, TYPE_KEY, format_of_half,
    targets,
};
use baton_engine::gguf::GgufWriter;
use baton_engine::{Model, ModelConfig};
use baton_kernels_cpu::{Format, RopeStyle, quantize_row};

use crate::AdapterDir;
use crate::adapter::{Adapter, Halves};
use crate::error::ImportError;
use crate::write::{Output, in_pairs};

/// Which adapter to write, for which model, and where to write it.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterOptions {
    /// The adapter's folder and weight.
    pub adapter: AdapterDir,
    /// The GGUF file of the model that it was trained on, in any quantization.
    pub model: PathBuf,
    /// The format of both halves of each change, one of the engine's
    /// [`FORMATS`](baton_engine::adapter::FORMATS).
    pub format: Format,
    /// The file to write.
    pub out: PathBuf,
    /// Whether an existing file is replaced.
    pub replace: bool,
}

/// The result of writing an adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterSummary {
    /// `general.architecture` of the file.
    pub architecture: &'static str,
    /// `general.name` of the file: the name of the folder.
    pub name: String,
    /// `adapter.lora.alpha`.
    pub alpha: f32,
    /// Number of matrices that it changes.
    pub matrices: usize,
    /// The highest rank among its changes.
    pub rank_max: usize,
    /// The length of the file.
    pub file_bytes: u64,
}

/// The format of halves if nothing else is said: half of F16's bytes, and errors far below those of a
/// quantized model.
pub const ADAPTER_FORMAT: Format = Format::Q8_0;

/// The position of a matrix of the folder in the file.
struct Place {
    rows: usize,
    cols: usize,
    /// Its name in the model's file, without `.weight`.
    name: String,
    /// Width of the heads whose rows are reordered from halves to neighbouring pairs.
    pairs_in: Option<usize>,
}

/// Writes a PEFT folder as a GGUF adapter. Asks `stopped` before each matrix whether to stop. Cost: memory
/// for the adapter, twice.
///
/// # Errors
/// [`ImportError`] if the folder lacks something, holds something unsupported, or does not fit the model;
/// [`ImportError::Cancelled`] if `stopped` returns true. Nothing is left at `out` or beside it.
pub fn import_adapter(
    options: &AdapterOptions,
    stopped: &dyn Fn() -> bool,
) -> Result<AdapterSummary, ImportError> {
    let output = Output::create(&options.out, options.replace)?;
    let model = Model::open(&options.model)
        .map_err(|err| ImportError::BaseModel { path: options.model.clone(), err: Box::new(err) })?;
    let config = model.config();
    let places = places(config);
    let shapes: BTreeMap<&str, (usize, usize)> =
        places.iter().map(|(matrix, place)| (matrix.as_str(), (place.rows, place.cols))).collect();
    let AdapterDir { dir, weight } = &options.adapter;
    let adapter = Adapter::open(dir, *weight, &shapes)?;
    // llama.cpp reads 0 as "no scaling".
    let alpha = if adapter.alpha() == 0.0 { 1.0 } else { adapter.alpha() };
    let name = folder_name(dir)?;
    let mut writer = GgufWriter::new();
    writer.set("general.type", GENERAL_TYPE).set(TYPE_KEY, TYPE);
    writer.set("general.architecture", config.family.name).set("general.name", name.as_str());
    writer.set(ALPHA_KEY, alpha as f32);
    let fail = |err| ImportError::Write { path: options.out.clone(), err };
    for (matrix, place) in &places {
        if stopped() {
            return Err(ImportError::Cancelled);
        }
        let Some(halves) = adapter.halves(matrix, (place.rows, place.cols))? else { continue };
        let Halves { a, mut b, rank, scale } = halves;
        let factor = scale * rank as f64 / alpha;
        if factor != 1.0 {
            b.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
        }
        if let Some(d_head) = place.pairs_in {
            b = in_pairs(&b, d_head, rank);
        }
        let halves = [(A_SUFFIX, a, [place.cols, rank]), (B_SUFFIX, b, [rank, place.rows])];
        for (suffix, values, dims) in halves {
            let name = format!("{}.weight{suffix}", place.name);
            let format = format_of_half(options.format, dims[0]);
            let mut bytes = Vec::new();
            for row in values.chunks(dims[0]) {
                quantize_row(format, row, &mut bytes)
                    .map_err(|err| ImportError::Encode { name: name.clone(), err })?;
            }
            writer.tensor(&name, &dims.map(|dim| dim as u64), format, bytes).map_err(fail)?;
        }
    }
    writer.write_file(output.path()).map_err(fail)?;
    let (opened, file_bytes) = check(output.path(), &model)?;
    let summary = AdapterSummary {
        architecture: config.family.name,
        name,
        alpha: alpha as f32,
        matrices: opened.matrices(),
        rank_max: opened.rank_max(),
        file_bytes,
    };
    drop(opened);
    if stopped() {
        return Err(ImportError::Cancelled);
    }
    output.keep()?;
    Ok(summary)
}

/// Opens the file with the engine, and makes sure that it is on the disk.
fn check(path: &Path, model: &Arc<Model>) -> Result<(Arc<OpenedAdapter>, u64), ImportError> {
    let opened =
        OpenedAdapter::open(path, model).map_err(|err| ImportError::AdapterRefused(Box::new(err)))?;
    let synced = File::open(path).and_then(|file| file.sync_all().and_then(|()| file.metadata()));
    let metadata = synced.map_err(|err| ImportError::Read { path: path.to_owned(), err })?;
    Ok((opened, metadata.len()))
}

/// Returns the model's matrices by their names in a Hugging Face folder, for the classes of
/// [`crate::supported`].
fn places(config: &ModelConfig) -> BTreeMap<String, Place> {
    let mut places = BTreeMap::new();
    // Files of this family hold the rows of query and key heads as neighbouring pairs.
    // A class that rotates only a part of each head pairs neighbours itself.
    let whole = config.rope.rot_dims == config.d_head;
    let pairs = config.family.rope_style == RopeStyle::Adjacent && whole;
    for layer in 0..config.n_layers {
        for target in targets(config) {
            let module = match target.name {
                "attn_q" => "self_attn.q_proj",
                "attn_k" => "self_attn.k_proj",
                "attn_v" => "self_attn.v_proj",
                "attn_qkv" => "self_attn.qkv_proj",
                "attn_output" => "self_attn.o_proj",
                "ffn_gate" => "mlp.gate_proj",
                "ffn_up" if config.family.fused_gate => "mlp.gate_up_proj",
                "ffn_up" => "mlp.up_proj",
                "ffn_down" => "mlp.down_proj",
                // No class has another; a change of it is refused as unknown.
                _ => continue,
            };
            let turns = matches!(target.name, "attn_q" | "attn_k");
            let place = Place {
                rows: target.rows,
                cols: target.cols,
                name: format!("blk.{layer}.{}", target.name),
                pairs_in: (pairs && turns).then_some(config.d_head),
            };
            places.insert(format!("model.layers.{layer}.{module}.weight"), place);
        }
    }
    places
}

fn folder_name(dir: &Path) -> Result<String, ImportError> {
    let dir = dir.canonicalize().map_err(|err| ImportError::Read { path: dir.to_owned(), err })?;
    Ok(dir.file_name().map_or_else(|| "adapter".to_owned(), |name| name.to_string_lossy().into_owned()))
}
