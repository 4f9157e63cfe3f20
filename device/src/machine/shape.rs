//! What a plan must know of a model: layers, bytes, and operations by weight format. It is read from the
//! directory of a GGUF file, without its weights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use baton_engine::ModelConfig;
use baton_engine::config::ConfigError;
use baton_engine::engine::KvFormat;
use baton_engine::gguf::{Gguf, GgufError, TensorInfo};
use baton_engine::weights::{TensorError, vocab_len};
use baton_plan::ModelShape;

const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";

/// Why a file's shape cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ShapeError {
    /// It is not a GGUF file.
    #[error("read `{}`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: GgufError,
    },
    /// It has no embedding.
    #[error("read `{}`", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: TensorError,
    },
    /// Its metadata are invalid.
    #[error("read `{}`", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: ConfigError,
    },
}

/// Reads the configuration of the model in this file.
///
/// # Errors
/// [`ShapeError`] naming the file.
pub fn config_of(path: &Path) -> Result<ModelConfig, ShapeError> {
    open(path).map(|(_, config)| config)
}

fn open(path: &Path) -> Result<(Gguf, ModelConfig), ShapeError> {
    let gguf = Gguf::open(path).map_err(|source| ShapeError::File { path: path.to_owned(), source })?;
    let vocab = vocab_len(&gguf).map_err(|source| ShapeError::Tensor { path: path.to_owned(), source })?;
    let config = ModelConfig::from_gguf(&gguf, vocab)
        .map_err(|source| ShapeError::Config { path: path.to_owned(), source })?;
    Ok((gguf, config))
}

/// Reads the shape of the model in this file, with keys and values in the format `kv`. In a mixture of
/// experts, operations count only the experts that a token passes.
///
/// # Errors
/// [`ShapeError`] naming the file.
pub fn shape_of(path: &Path, kv: KvFormat) -> Result<ModelShape, ShapeError> {
    let (gguf, config) = open(path)?;
    let name = gguf.metadata().opt_str("general.name").ok().flatten().map(str::to_owned);
    let name = name.unwrap_or_else(|| {
        path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
    });
    Ok(shape(&gguf, &config, name, kv))
}

fn shape(gguf: &Gguf, config: &ModelConfig, name: String, kv: KvFormat) -> ModelShape {
    let layers = config.n_layers;
    let (mut layer_bytes, mut expert_bytes, mut layer_flops) = (0.0, 0.0, BTreeMap::new());
    for tensor in gguf.tensors().filter(|tensor| tensor.name().starts_with("blk.")) {
        let bytes = tensor.data_len() as f64 / layers as f64;
        layer_bytes += bytes;
        expert_bytes += if is_of_experts(tensor) { bytes } else { 0.0 };
        // Norms and biases are vectors; only matrices are multiplied.
        if tensor.dims().len() > 1 {
            *layer_flops.entry(tensor.type_name().to_owned()).or_insert(0.0) +=
                flops(tensor, config) / layers as f64;
        }
    }
    let tensor = |name: &str| gguf.tensors().find(|tensor| tensor.name() == name);
    let output = tensor(OUTPUT).or_else(|| tensor(EMBEDDING));
    let bytes = |tensor: Option<&TensorInfo>| tensor.map_or(0.0, |tensor| tensor.data_len() as f64);
    ModelShape {
        name,
        layers,
        hidden: config.d_model,
        vocab: config.vocab_len,
        layer_bytes,
        expert_bytes,
        expert_share: expert_share(config),
        input_bytes: bytes(tensor(EMBEDDING)),
        output_bytes: bytes(output),
        kv_bytes: config.kv_token_bytes(kv) as f64 / layers as f64,
        layer_flops,
        output_flops: output
            .map(|tensor| (tensor.type_name().to_owned(), flops(tensor, config)))
            .into_iter()
            .collect(),
    }
}

/// Whether a tensor holds a layer's experts.
fn is_of_experts(tensor: &TensorInfo) -> bool {
    tensor.name().contains("_exps.")
}

/// Returns the share of a layer's experts that a token uses; 1 if there are none.
fn expert_share(config: &ModelConfig) -> f64 {
    config.experts.map_or(1.0, |experts| experts.used as f64 / experts.count as f64)
}

/// Returns one multiplication and one addition for each weight that a token uses.
fn flops(tensor: &TensorInfo, config: &ModelConfig) -> f64 {
    let weights: f64 = tensor.dims().iter().map(|dim| *dim as f64).product();
    2.0 * weights * if is_of_experts(tensor) { expert_share(config) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_engine::Model;
    use baton_kernels_cpu::Format;
    use baton_plan::Workload;
    use baton_synthetic::{SyntheticExperts, SyntheticModel};

    fn demo(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../models").join(name)
    }

    #[test]
    fn a_files_shape_is_that_of_the_model_in_it() {
        let path = demo("demo-cloud.gguf");
        let (shape, model) = (shape_of(&path, KvFormat::F16).unwrap(), Model::open(&path).unwrap());
        let config = model.config();
        assert_eq!(
            (shape.layers, shape.hidden, shape.vocab),
            (config.n_layers, config.d_model, config.vocab_len)
        );
        assert_eq!(shape.check(), Ok(()));
        assert_eq!(shape.kv_bytes, 2.0 * 2.0 * config.d_kv() as f64);
        let exact = shape_of(&path, KvFormat::F32).unwrap();
        assert_eq!(exact.kv_bytes, 2.0 * shape.kv_bytes);
        // Two operations per weight: every matrix of a layer by its sizes.
        let (d, ff) = (config.d_model as f64, config.d_ff as f64);
        let weights = d * (2.0 * config.d_q() as f64 + 2.0 * config.d_kv() as f64) + 3.0 * d * ff;
        let counted: f64 = shape.layer_flops.values().sum();
        assert!((counted - 2.0 * weights).abs() < 1.0, "{counted} {weights}");
        let file = std::fs::metadata(&path).unwrap().len() as f64;
        let tied = if shape.input_bytes == shape.output_bytes { 0.0 } else { shape.output_bytes };
        let counted = shape.layer_bytes * shape.layers as f64 + shape.input_bytes + tied;
        assert!(counted < file && counted > 0.8 * file, "{counted} of {file} bytes");
    }

    #[test]
    fn a_token_uses_few_of_a_mixtures_experts() {
        let experts = SyntheticExperts { count: 8, used: 2, d_ff: 64, shared_d_ff: 0 };
        let family = SyntheticModel::small("qwen3moe", Format::Q8_0, 3);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, SyntheticModel { experts: Some(experts), ..family }.to_gguf().unwrap())
            .unwrap();
        let shape = shape_of(file.path(), KvFormat::F16).unwrap();
        // Three matrices of each expert, 34 bytes for 32 weights.
        assert_eq!(shape.expert_bytes, 8.0 * 3.0 * 64.0 * 256.0 / 32.0 * 34.0);
        assert_eq!((shape.expert_share, shape.check()), (0.25, Ok(())));
        let one = Workload { context: 1, sequences: 1 };
        assert_eq!(shape.used_bytes(one), shape.layer_bytes - 0.75 * shape.expert_bytes);
        let dense = shape_of(&demo("demo-cloud.gguf"), KvFormat::F16).unwrap();
        assert_eq!((dense.expert_bytes, dense.used_bytes(one)), (0.0, dense.layer_bytes));
    }

    #[test]
    fn what_is_no_model_is_refused_by_name() {
        let error = shape_of(&demo("README.md"), KvFormat::F16).unwrap_err().to_string();
        assert!(error.contains("README.md"), "{error}");
        assert!(shape_of(&demo("missing.gguf"), KvFormat::F16).is_err());
    }
}
