//! The models and prompts of the comparison: decided by seeds, the same on every machine.

use anyhow::{Context as _, Result};
use baton_engine::synthetic::SyntheticModel;
use baton_kernels_cpu::Format;

/// A model of random weights.
pub struct Case {
    /// Family and format, also the stem of its file.
    pub name: String,
    /// Format of its matrices.
    pub format: Format,
    shape: SyntheticModel,
}

impl Case {
    /// The model as a GGUF file.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        self.shape.to_gguf().with_context(|| format!("make model {}", self.name))
    }
}

const FORMATS: [Format; 5] = [Format::F32, Format::F16, Format::Q8_0, Format::Q4K, Format::Q6K];

/// Every family in every format. Llama with an output matrix of its own, Qwen2 with tied embeddings.
pub fn random_models() -> Vec<Case> {
    let mut cases = Vec::new();
    for family in ["llama", "qwen2"] {
        for format in FORMATS {
            let seed = 1000 + cases.len() as u64;
            let shape = SyntheticModel {
                n_layers: 4,
                n_heads: 8,
                n_kv_heads: 2,
                d_head: 32,
                d_ff: 768,
                tied: family == "qwen2",
                ..SyntheticModel::small(family, format, seed)
            };
            cases.push(Case { name: format!("{family}-{}", format.name()), format, shape });
        }
    }
    cases
}

/// Token ids of the comparison with candle: bytes, each prompt of its own.
pub fn prompts() -> Vec<Vec<u32>> {
    (0..4).map(|seed| prompt(seed, 128)).collect()
}

/// A prompt of byte tokens.
pub fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 7_368_787) >> 9) % 256).collect()
}
