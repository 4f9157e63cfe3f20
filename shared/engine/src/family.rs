//! Model families as data: one row of flags each, over one forward pass.
//!
//! A family is what the architecture key of a GGUF file implies and its other metadata does not say: how
//! rotary positions pair the dimensions of a head, and which biases exist. Adding a family of the same shape is
//! adding a row.

use baton_kernels_cpu::RopeStyle;

/// Whether a kind of tensor belongs to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Presence {
    /// The file must hold it.
    Required,
    /// Used where the file holds it.
    Optional,
}

/// What an architecture implies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// `general.architecture` of the file, and the prefix of its keys.
    pub name: &'static str,
    /// How rotary positions pair the dimensions of a head.
    pub rope_style: RopeStyle,
    /// Biases of the query, key and value projections.
    pub qkv_bias: Presence,
}

/// Llama 1 to 3.x, Mistral, and what was distilled into them.
const LLAMA: Family = Family { name: "llama", rope_style: RopeStyle::Adjacent, qkv_bias: Presence::Optional };

/// Qwen2 and Qwen2.5, and what was distilled into them.
const QWEN2: Family = Family { name: "qwen2", rope_style: RopeStyle::Halves, qkv_bias: Presence::Required };

/// Every family that the engine runs.
pub const FAMILIES: &[Family] = &[LLAMA, QWEN2];

/// The family of an architecture key.
pub fn find(architecture: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == architecture)
}
