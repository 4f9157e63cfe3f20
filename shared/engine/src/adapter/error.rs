//! Why a file is not an adapter of a model.

use baton_kernels_cpu::KernelError;

use crate::gguf::GgufError;

/// Why a file is not an adapter that the engine can run with a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// The file cannot be read as GGUF, or lacks a key or tensor.
    #[error("read adapter file")]
    Gguf(#[from] GgufError),
    /// The file states another type, kind or family.
    #[error("`{key}` is `{found}`, must be `{want}`")]
    Kind {
        /// The metadata key.
        key: &'static str,
        /// Its value; empty if it is absent.
        found: String,
        /// The value wanted.
        want: &'static str,
    },
    /// The file has a key that would change how the adapter works.
    #[error("adapters with `{key}` are not supported")]
    Unsupported {
        /// The metadata key.
        key: &'static str,
    },
    /// The file gives no alpha.
    #[error("metadata key `adapter.lora.alpha` is missing")]
    NoAlpha,
    /// Alpha is not finite.
    #[error("`adapter.lora.alpha` is {0}, must be finite")]
    Alpha(f32),
    /// The model is a mixture of experts.
    #[error("adapters of a {family} model with experts are not supported")]
    Experts {
        /// The model's family.
        family: &'static str,
    },
    /// The model has recurrent layers.
    #[error("adapters of a {family} model, which has recurrent layers, are not supported")]
    Recurrent {
        /// The model's family.
        family: &'static str,
    },
    /// The model's layers differ in shape.
    #[error("adapters of a {family} model, whose layers differ in shape, are not supported")]
    Layers {
        /// The model's family.
        family: &'static str,
    },
    /// A tensor is not half of a change of one of the model's projections.
    #[error("tensor `{name}` is no `blk.N.NAME.weight.lora_a` or `.lora_b` with NAME one of {known}")]
    UnknownTensor {
        /// The tensor.
        name: String,
        /// The names that the model's family has.
        known: String,
    },
    /// The tensor is for a layer that the model does not have.
    #[error("tensor `{name}`: the model has {n_layers} layers")]
    NoSuchLayer {
        /// The tensor.
        name: String,
        /// The model's layers.
        n_layers: usize,
    },
    /// A half has no counterpart, or there are no tensors.
    #[error(
        "adapter has {halves} tensors, of which {matrices} are `lora_a`; want as many `lora_b`, and at least 1"
    )]
    Unpaired {
        /// `lora_a` tensors.
        matrices: usize,
        /// All tensors.
        halves: usize,
    },
    /// A half does not fit the model's matrix.
    #[error("tensor `{name}` has dimensions {found:?}, must be {want}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its dimensions, columns first.
        found: Vec<u64>,
        /// The dimensions that the model implies.
        want: String,
    },
    /// The rank is larger than the matrix itself can have.
    #[error("tensor `{name}` has rank {rank}, at most {max} makes sense")]
    Rank {
        /// The tensor.
        name: String,
        /// Its rank.
        rank: usize,
        /// The lesser side of the model's matrix.
        max: usize,
    },
    /// The type is not one of [`FORMATS`](super::FORMATS).
    #[error("tensor `{name}` has type {found}, must be F32, F16 or Q8_0")]
    Type {
        /// The tensor.
        name: String,
        /// Its type.
        found: &'static str,
    },
    /// The bytes do not make a matrix.
    #[error("tensor `{name}`")]
    Matrix {
        /// The tensor.
        name: String,
        /// The error of the kernels.
        #[source]
        err: KernelError,
    },
    /// A number is not finite.
    #[error("tensor `{name}` holds {value} at {at}")]
    Value {
        /// The tensor.
        name: String,
        /// The number.
        value: f32,
        /// Its index.
        at: usize,
    },
    /// The adapter was opened for another model than the engine's.
    #[error("adapter `{name}` was opened for another model")]
    OtherModel {
        /// The adapter.
        name: String,
    },
    /// The engine cannot hold more adapters.
    #[error("an engine holds at most {max} adapters")]
    TooMany {
        /// The limit.
        max: usize,
    },
}
