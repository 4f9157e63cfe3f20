//! LoRA adapters of the PEFT library: low-rank changes. They are added to the weights before quantization, or
//! written to a file of their own.
//!
//! `W + weight * scale * B A`, with `scale = lora_alpha / r`, or `lora_alpha / sqrt(r)` for rank-stabilized
//! ones. Sources: Hu 2021, "LoRA", section 4.1; Kalajdzievski 2023, "rsLoRA". Anything beyond that (other
//! magnitudes, replaced modules, trained biases, changed embeddings) is refused, never ignored.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use candle_core::{DType, Device, Tensor};

use crate::error::ImportError;
use crate::json::JsonFile;
use crate::safetensors::TensorFiles;

/// Prefix of the modules' names.
const PREFIX: &str = "base_model.model.";

/// The two factors of one change.
#[derive(Debug, Clone)]
struct Pair {
    a: String,
    b: String,
    rank: usize,
    /// The product of all scales of this change.
    scale: f64,
}

/// An opened adapter.
#[derive(Debug)]
pub(crate) struct Adapter {
    alpha: f64,
    files: TensorFiles,
    /// By the name of the matrix in the model's folder.
    pairs: BTreeMap<String, Pair>,
}

/// The change of one matrix as numbers.
#[derive(Debug)]
pub(crate) struct Halves {
    /// `[r, cols]`.
    pub(crate) a: Vec<f32>,
    /// `[rows, r]`.
    pub(crate) b: Vec<f32>,
    pub(crate) rank: usize,
    /// The product of all scales of this change.
    pub(crate) scale: f64,
}

/// The change of one matrix: `[rows, r]` and `[r, cols]`.
#[derive(Debug)]
pub(crate) struct Change {
    a: Tensor,
    b: Tensor,
    scale: f64,
}

impl Adapter {
    /// Opens the adapter in `dir`; `shapes` gives rows and columns of the model's matrices.
    pub(crate) fn open(
        dir: &Path,
        weight: f32,
        shapes: &BTreeMap<&str, (usize, usize)>,
    ) -> Result<Adapter, ImportError> {
        let json = JsonFile::open(dir.join("adapter_config.json"))?;
        check_kind(&json)?;
        let path = dir.join("adapter_model.safetensors");
        if !path.is_file() {
            return Err(ImportError::MissingFile { path });
        }
        let files = TensorFiles::open(&path)?;
        let alpha = json.f64("lora_alpha")?;
        let alphas = json.opt_object("alpha_pattern")?;
        let stabilized = json.opt_bool("use_rslora")?.unwrap_or(false);
        let mut pairs = BTreeMap::new();
        for name in files.names() {
            let Some((module, half)) = split_name(name) else {
                let what = "want `…lora_A.weight` or `…lora_B.weight` of a linear layer".to_owned();
                return Err(ImportError::AdapterTensor { name: name.to_owned(), what });
            };
            if half == "B" {
                continue;
            }
            let (a, matrix) = (name.to_owned(), format!("{module}.weight"));
            let b = a.replace(".lora_A.", ".lora_B.");
            let rank = check_shapes(&files, &a, &b, shapes.get(matrix.as_str()).copied())?;
            let alpha = alpha_of(module, alphas.as_ref())?.unwrap_or(alpha);
            let divisor = if stabilized { (rank as f64).sqrt() } else { rank as f64 };
            pairs.insert(matrix, Pair { a, b, rank, scale: f64::from(weight) * alpha / divisor });
        }
        let n_halves = files.names().count();
        if pairs.is_empty() || n_halves != 2 * pairs.len() {
            let (name, n) = (path.display().to_string(), pairs.len());
            let what =
                format!("{n} `lora_A` among {n_halves} tensors, want as many as `lora_B`, and at least 1");
            return Err(ImportError::AdapterTensor { name, what });
        }
        Ok(Adapter { alpha, files, pairs })
    }

    /// Returns `lora_alpha`, which applies to every change without an alpha of its own.
    pub(crate) fn alpha(&self) -> f64 {
        self.alpha
    }

    /// Returns the two factors of the change of a matrix of `[rows, cols]`, or `None` if the adapter does not
    /// change it.
    pub(crate) fn halves(
        &self,
        matrix: &str,
        (rows, cols): (usize, usize),
    ) -> Result<Option<Halves>, ImportError> {
        let Some(Pair { a, b, rank, scale }) = self.pairs.get(matrix) else { return Ok(None) };
        let (a, b) = (self.files.rows(a, 0..*rank, cols)?, self.files.rows(b, 0..rows, *rank)?);
        Ok(Some(Halves { a, b, rank: *rank, scale: *scale }))
    }

    /// Returns the number of matrices that the adapter changes.
    pub(crate) fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Returns the change of a matrix of `[rows, cols]`, or `None` if the adapter does not change it.
    pub(crate) fn change(
        &self,
        matrix: &str,
        (rows, cols): (usize, usize),
    ) -> Result<Option<Change>, ImportError> {
        let Some(Halves { a, b, rank, scale }) = self.halves(matrix, (rows, cols))? else { return Ok(None) };
        let tensor = |values: Vec<f32>, shape: (usize, usize)| {
            Tensor::from_vec(values, shape, &Device::Cpu)
                .map_err(|err| ImportError::Convert { name: matrix.to_owned(), err })
        };
        let (a, b) = (tensor(a, (rank, cols))?, tensor(b, (rows, rank))?);
        Ok(Some(Change { a, b, scale }))
    }
}

impl Change {
    /// Adds the change to the values of some rows.
    pub(crate) fn add_to(&self, values: &mut [f32], rows: Range<usize>) -> candle_core::Result<()> {
        let b = self.b.narrow(0, rows.start, rows.len())?;
        let product =
            (b.matmul(&self.a)? * self.scale)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        values.iter_mut().zip(product).for_each(|(value, change)| *value += change);
        Ok(())
    }
}

/// Refuses an adapter that is not a plain LoRA.
fn check_kind(json: &JsonFile) -> Result<(), ImportError> {
    if json.opt_str("peft_type")?.unwrap_or("LORA") != "LORA" {
        return Err(json.unsupported("peft_type", "LORA"));
    }
    for key in ["fan_in_fan_out", "use_dora", "lora_bias", "use_qalora"] {
        if json.opt_bool(key)? == Some(true) {
            return Err(json.unsupported(key, "false"));
        }
    }
    if json.opt_str("bias")?.unwrap_or("none") != "none" {
        return Err(json.unsupported("bias", "none"));
    }
    for key in ["modules_to_save", "layer_replication", "trainable_token_indices", "target_parameters"] {
        let is_empty = |value: &serde_json::Value| {
            value.as_array().is_some_and(Vec::is_empty)
                || value.as_object().is_some_and(serde_json::Map::is_empty)
        };
        if json.get(key).is_some_and(|value| !is_empty(value)) {
            return Err(json.unsupported(key, "empty"));
        }
    }
    Ok(())
}

/// Splits a tensor's name into its module in the model and its factor, `A` or `B`.
fn split_name(name: &str) -> Option<(&str, &'static str)> {
    let name = name.strip_prefix(PREFIX)?;
    [
        ("A", ".lora_A.weight"),
        ("A", ".lora_A.default.weight"),
        ("B", ".lora_B.weight"),
        ("B", ".lora_B.default.weight"),
    ]
    .into_iter()
    .find_map(|(half, end)| name.strip_suffix(end).map(|module| (module, half)))
}

/// Returns the rank of a pair whose shapes fit the matrix of `shape`.
fn check_shapes(
    files: &TensorFiles,
    a: &str,
    b: &str,
    shape: Option<(usize, usize)>,
) -> Result<usize, ImportError> {
    let wrong = |name: &str, what: String| Err(ImportError::AdapterTensor { name: name.to_owned(), what });
    let Some((rows, cols)) = shape else {
        return wrong(a, "the model has no linear layer of this name".to_owned());
    };
    let (Some(stored_a), Some(stored_b)) = (files.find(a), files.find(b)) else {
        return wrong(b, "is missing, its `lora_A` is there".to_owned());
    };
    stored_a.dtype(a)?;
    stored_b.dtype(b)?;
    let rank = match stored_a.shape.as_slice() {
        &[rank, found] if found == cols && rank > 0 => rank,
        found => return wrong(a, format!("has shape {found:?}, must be [r, {cols}]")),
    };
    if stored_b.shape != [rows, rank] {
        return wrong(b, format!("has shape {:?}, must be [{rows}, {rank}]", stored_b.shape));
    }
    Ok(rank)
}

/// Returns the alpha of a module that has its own. Keys are the ends of names; PEFT also allows patterns,
/// which no tool writes.
fn alpha_of(module: &str, alphas: Option<&JsonFile>) -> Result<Option<f64>, ImportError> {
    let Some(alphas) = alphas else { return Ok(None) };
    for key in alphas.map().keys() {
        if !key.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
            return Err(alphas.unsupported(key, "under a key that is the end of a module's name"));
        }
        if module == key || module.strip_suffix(key.as_str()).is_some_and(|rest| rest.ends_with('.')) {
            return alphas.f64(key).map(Some);
        }
    }
    Ok(None)
}
