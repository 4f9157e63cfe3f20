//! LoRA adapters at run time: low-rank changes of a layer's projections, computed in addition to the weights.
//!
//! A projection `y = W x` with an adapter becomes `y = W x + s B (A x)`, with `A: [r, cols]`, `B: [rows, r]`
//! and `s = alpha / r`. Source: Hu 2021, "LoRA", section 4.1. Files are in llama.cpp's form: GGUF with
//! `general.type = adapter`, `adapter.type = lora`, `adapter.lora.alpha`, and tensors
//! `blk.N.NAME.weight.lora_a` and `.lora_b` in F32, F16 or Q8_0.
//!
//! Never: changes weights, or computes anything for sequences without the adapter. What always holds: an
//! opened adapter fits its model. Any file gives either an adapter or a typed error. Memory use is that of
//! the file.

mod error;
mod target;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_kernels_cpu::{Format, Matrix, dequantize_row};

use crate::gguf::{Gguf, GgufError, TensorView};
use crate::model::Model;
use crate::weights::{MatrixAt, Weight};

pub use error::AdapterError;
pub(crate) use target::Projection;
pub use target::{Target, targets};

use target::PROJECTIONS;

/// The value of `general.type` in an adapter's file.
pub const GENERAL_TYPE: &str = "adapter";
/// The key for the kind of adapter.
pub const TYPE_KEY: &str = "adapter.type";
/// The kind of adapter that the engine runs.
pub const TYPE: &str = "lora";
/// The key for alpha.
pub const ALPHA_KEY: &str = "adapter.lora.alpha";
/// Suffix of the name of `A`, after the name of the weight.
pub const A_SUFFIX: &str = ".lora_a";
/// Suffix of the name of `B`, after the name of the weight.
pub const B_SUFFIX: &str = ".lora_b";
/// Formats of `A` and `B`.
pub const FORMATS: [Format; 3] = [Format::F32, Format::F16, Format::Q8_0];
/// The key for tokens that switch an adapter on. Such adapters work differently and are refused.
const INVOCATION_KEY: &str = "adapter.alora.invocation_tokens";
/// Rows read at a time when numbers are checked.
const CHECK_ROWS: usize = 64;

/// The change of one projection, by its position in the file.
#[derive(Debug, Clone, Copy)]
struct ChangeAt {
    /// `[r, cols]`.
    a: MatrixAt,
    /// `[rows, r]`.
    b: MatrixAt,
    /// Factor of the product.
    factor: f32,
}

/// The changes of a layer, by [`Projection`].
type LayerAt = [Option<ChangeAt>; PROJECTIONS];

/// The change of one projection.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    /// `[r, cols]`.
    pub(crate) a: Weight<'a>,
    /// `[rows, r]`.
    pub(crate) b: Weight<'a>,
    /// Factor of the product.
    pub(crate) factor: f32,
}

/// An opened LoRA adapter of one model.
pub struct Adapter {
    model: Arc<Model>,
    gguf: Gguf,
    name: String,
    /// `[n_layers]`.
    layers: Vec<LayerAt>,
    matrices: usize,
    rank_max: usize,
}

impl Adapter {
    /// Opens an adapter's file and checks it against the model. Cost: one read of the file.
    ///
    /// # Errors
    /// [`AdapterError`] if the file is not a valid adapter of the model.
    pub fn open(path: &Path, model: &Arc<Model>) -> Result<Arc<Adapter>, AdapterError> {
        Adapter::from_gguf(Gguf::open(path)?, model)
    }

    /// Makes an adapter from an opened file, which may be bytes in memory.
    ///
    /// # Errors
    /// [`AdapterError`] if the file is not a valid adapter of the model.
    pub fn from_gguf(gguf: Gguf, model: &Arc<Model>) -> Result<Arc<Adapter>, AdapterError> {
        let config = model.config();
        let alpha = check_kind(&gguf, config.family.name)?;
        if config.experts.is_some() {
            return Err(AdapterError::Experts { family: config.family.name });
        }
        if config.recurrent.is_some() {
            return Err(AdapterError::Recurrent { family: config.family.name });
        }
        if config.family.layer_extras {
            return Err(AdapterError::Layers { family: config.family.name });
        }
        let targets = targets(config);
        let mut layers: Vec<LayerAt> = vec![[None; PROJECTIONS]; config.n_layers];
        let (mut matrices, mut halves, mut rank_max) = (0, 0, 0);
        for tensor in gguf.tensors() {
            halves += 1;
            let Some(weight) = tensor.name().strip_suffix(A_SUFFIX) else {
                // `B` is counted here and compared with the number of `A` below; its position is looked up
                // from there.
                find_target(tensor.name(), tensor.name().strip_suffix(B_SUFFIX), &targets, config.n_layers)?;
                continue;
            };
            let (layer, target) = find_target(tensor.name(), Some(weight), &targets, config.n_layers)?;
            let pair = Pair::read(&gguf, weight, target)?;
            let factor = if alpha == 0.0 { 1.0 } else { alpha / pair.rank as f32 };
            for (projection, rows) in &target.parts {
                let change = ChangeAt { a: pair.a, b: pair.b.rows(rows.clone()), factor };
                layers[layer][*projection as usize] = Some(change);
            }
            matrices += 1;
            rank_max = rank_max.max(pair.rank);
        }
        if matrices == 0 || halves != 2 * matrices {
            return Err(AdapterError::Unpaired { matrices, halves });
        }
        let name = name(&gguf)?;
        Ok(Arc::new(Adapter { model: Arc::clone(model), gguf, name, layers, matrices, rank_max }))
    }

    /// Checks that its file is complete and unchanged, as [`Model::intact`] does.
    pub(crate) fn intact(&self) -> Result<(), GgufError> {
        self.gguf.intact()
    }

    /// Returns the model that it changes.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Returns the name in its metadata, else the file's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the file's path, if it was opened by path.
    pub fn path(&self) -> Option<&Path> {
        self.gguf.path()
    }

    /// Returns a digest that tells the adapter from others ([`Gguf::fingerprint`]).
    pub fn fingerprint(&self) -> [u8; 32] {
        self.gguf.fingerprint()
    }

    /// Returns the number of matrices of the model that it changes.
    pub fn matrices(&self) -> usize {
        self.matrices
    }

    /// Returns the highest rank among its changes.
    pub fn rank_max(&self) -> usize {
        self.rank_max
    }

    /// Returns the bytes of the changes of a layer.
    pub(crate) fn layer_bytes(&self, layer: usize) -> u64 {
        let changes = self.layers.get(layer).into_iter().flatten().flatten();
        changes.map(|at| (at.a.bytes(&self.gguf).len() + at.b.bytes(&self.gguf).len()) as u64).sum()
    }

    /// Returns the change of a projection, or `None` if there is none.
    pub(crate) fn change(&self, layer: usize, projection: Projection) -> Option<Change<'_>> {
        let at = self.layers.get(layer)?[projection as usize].as_ref()?;
        let matrix = |at: &MatrixAt| {
            let matrix = Matrix::new(at.format, at.rows, at.cols, at.bytes(&self.gguf));
            Weight::from(matrix.expect("both halves were checked at open"))
        };
        Some(Change { a: matrix(&at.a), b: matrix(&at.b), factor: at.factor })
    }
}

/// Prints the shape only.
impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Adapter { name, matrices, rank_max, .. } = self;
        f.debug_struct("Adapter")
            .field("name", name)
            .field("matrices", matrices)
            .field("rank_max", rank_max)
            .finish_non_exhaustive()
    }
}

/// Checks the kind and family that the file states; returns alpha.
fn check_kind(gguf: &Gguf, family: &'static str) -> Result<f32, AdapterError> {
    let metadata = gguf.metadata();
    let want = |key: &'static str, want: &'static str| {
        let found = metadata.opt_str(key)?.unwrap_or_default();
        if found == want {
            return Ok(());
        }
        let found = found.chars().take(80).collect();
        Err(AdapterError::Kind { key, found, want })
    };
    want("general.type", GENERAL_TYPE)?;
    want(TYPE_KEY, TYPE)?;
    want("general.architecture", family)?;
    if metadata.contains(INVOCATION_KEY) {
        return Err(AdapterError::Unsupported { key: INVOCATION_KEY });
    }
    let alpha = metadata.opt_f32(ALPHA_KEY)?.ok_or(AdapterError::NoAlpha)?;
    if alpha.is_finite() { Ok(alpha) } else { Err(AdapterError::Alpha(alpha)) }
}

/// Returns the layer and the matrix that a tensor belongs to.
fn find_target<'a>(
    tensor: &str,
    weight: Option<&str>,
    targets: &'a [Target],
    n_layers: usize,
) -> Result<(usize, &'a Target), AdapterError> {
    let parts = || {
        let (layer, rest) = weight?.strip_prefix("blk.")?.split_once('.')?;
        let name = rest.strip_suffix(".weight")?;
        // Only the usual form of a number is accepted: no sign, no leading zero.
        let number: usize = layer.parse().ok().filter(|number: &usize| number.to_string() == layer)?;
        Some((number, targets.iter().find(|target| target.name == name)?))
    };
    let unknown = || {
        let known = targets.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
        AdapterError::UnknownTensor { name: tensor.to_owned(), known }
    };
    let (layer, target) = parts().ok_or_else(unknown)?;
    if layer >= n_layers {
        return Err(AdapterError::NoSuchLayer { name: tensor.to_owned(), n_layers });
    }
    Ok((layer, target))
}

/// The two halves of a matrix's change.
struct Pair {
    a: MatrixAt,
    b: MatrixAt,
    rank: usize,
}

impl Pair {
    fn read(gguf: &Gguf, weight: &str, target: &Target) -> Result<Pair, AdapterError> {
        let a = gguf.tensor(&format!("{weight}{A_SUFFIX}"))?;
        let b = gguf.tensor(&format!("{weight}{B_SUFFIX}"))?;
        let shape = |view: &TensorView<'_>, want: String| AdapterError::Shape {
            name: view.name.to_owned(),
            found: view.dims.to_vec(),
            want,
        };
        let rank = match a.dims {
            [cols, rank] if *cols == target.cols as u64 => *rank,
            _ => return Err(shape(&a, format!("[{}, rank]", target.cols))),
        };
        let rank_max = target.rows.min(target.cols);
        let rank = usize::try_from(rank).unwrap_or(usize::MAX);
        if rank > rank_max {
            return Err(AdapterError::Rank { name: a.name.to_owned(), rank, max: rank_max });
        }
        if b.dims != [rank as u64, target.rows as u64] {
            return Err(shape(&b, format!("[{rank}, {}]", target.rows)));
        }
        Ok(Pair { a: half(&a, rank, target.cols)?, b: half(&b, target.rows, rank)?, rank })
    }
}

/// Returns the format of a half with rows of `cols` numbers: `wanted`, or F16 if its blocks do not fit, as
/// llama.cpp's converter does.
#[must_use]
pub fn format_of_half(wanted: Format, cols: usize) -> Format {
    if cols.is_multiple_of(wanted.block_len()) { wanted } else { Format::F16 }
}

/// Checks the type and every number of a half.
fn half(view: &TensorView<'_>, rows: usize, cols: usize) -> Result<MatrixAt, AdapterError> {
    let name = || view.name.to_owned();
    if !FORMATS.contains(&view.format) {
        return Err(AdapterError::Type { name: name(), found: view.format.name() });
    }
    let bad = |err| AdapterError::Matrix { name: name(), err };
    Matrix::new(view.format, rows, cols, view.data).map_err(bad)?;
    let band = CHECK_ROWS * cols;
    let mut values = vec![0.0; band.min(rows * cols)];
    let (block, block_bytes) = (view.format.block_len(), view.format.block_bytes());
    for (at, bytes) in view.data.chunks(band / block * block_bytes).enumerate() {
        let values = &mut values[..bytes.len() / block_bytes * block];
        dequantize_row(view.format, bytes, values).map_err(bad)?;
        if let Some(wrong) = values.iter().position(|value| !value.is_finite()) {
            let value = values[wrong];
            return Err(AdapterError::Value { name: name(), value, at: at * band + wrong });
        }
    }
    Ok(MatrixAt { format: view.format, rows, cols, place: view.place, first_row: 0 })
}

fn name(gguf: &Gguf) -> Result<String, AdapterError> {
    let from_path = || gguf.path().map(PathBuf::from)?.file_stem()?.to_str().map(str::to_owned);
    Ok(match gguf.metadata().opt_str("general.name")?.filter(|name| !name.is_empty()) {
        Some(name) => name.to_owned(),
        None => from_path().unwrap_or_else(|| "unnamed".to_owned()),
    })
}
