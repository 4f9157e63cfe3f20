//! Decides how many tokens of prompt and answer this device holds: the model's whole context, if there is
//! memory for it.
//!
//! The KV cache takes memory block by block as prompts grow, so unused room costs nothing. What always holds:
//! weights that fit into memory without the cache still fit beside it.

use std::fmt;
use std::path::Path;

use baton_engine::ModelConfig;
use baton_engine::engine::KvFormat;

use crate::machine::profile::this_memory;
use crate::machine::residency::{BUFFER_BYTES, MemoryFor, text_bytes};
use crate::machine::shape::{ShapeError, config_of, shape_of};

/// Tokens that are always held; if memory is short, weights are read from the disk.
pub const TOKENS_MIN: usize = 8_192;
/// Share of the memory left by the weights that the cache may take.
const CACHE_SHARE: f64 = 0.5;

/// What limits the number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldBy {
    /// The context that the model was trained for.
    Context,
    /// The free memory.
    Memory,
    /// The option `--kv-tokens`.
    Option,
}

impl fmt::Display for HeldBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Context => "its model's context",
            Self::Memory => "by its memory; --kv-tokens sets another number",
            Self::Option => "set by --kv-tokens",
        })
    }
}

/// How many tokens a device holds, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Tokens of prompt and answer.
    pub tokens: usize,
    /// What limits them.
    pub by: HeldBy,
}

impl Held {
    /// Returns `asked` if it is given; otherwise as much of the context of the model at `path` as there is
    /// memory for, with keys and values in the format `kv`.
    ///
    /// # Errors
    /// [`ShapeError`] if the file is not a model.
    pub fn of(
        path: &Path,
        memory: MemoryFor,
        kv: KvFormat,
        asked: Option<usize>,
    ) -> Result<Self, ShapeError> {
        let ModelConfig { context_len, .. } = config_of(path)?;
        if let Some(asked) = asked {
            let by = if asked < context_len { HeldBy::Option } else { HeldBy::Context };
            return Ok(Self { tokens: asked, by });
        }
        // If this system's memory cannot be measured, nothing is known to limit the cache.
        let Ok((_, found)) = this_memory() else { return Ok(Self::within(context_len, 0.0, 1.0)) };
        let shape = shape_of(path, kv)?;
        let layers = shape.layers as f64;
        let whole = shape.layer_bytes * layers + shape.output_bytes;
        let weights = if let MemoryFor::Bytes(bytes) = memory { whole.min(bytes as f64) } else { whole };
        let beside = (BUFFER_BYTES + text_bytes(shape.vocab)) as f64;
        let left = found.available_bytes as f64 - weights - beside;
        Ok(Self::within(context_len, left, shape.kv_bytes * layers))
    }

    /// Returns as much of a context as fits into a share of the `left` bytes, at `token_bytes` bytes a token.
    fn within(context: usize, left: f64, token_bytes: f64) -> Self {
        let fits = (left.max(0.0) * CACHE_SHARE / token_bytes.max(1.0)) as usize;
        let tokens = fits.max(TOKENS_MIN).min(context);
        Self { tokens, by: if tokens == context { HeldBy::Context } else { HeldBy::Memory } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_kernels_cpu::Format;
    use baton_synthetic::SyntheticModel;

    #[test]
    fn a_context_is_held_as_far_as_there_is_memory() {
        for (context, left, token_bytes, tokens, by) in [
            (32_768, 64e9, 65_536.0, 32_768, HeldBy::Context),
            (131_072, 4e9, 65_536.0, 30_517, HeldBy::Memory),
            (131_072, 0.0, 65_536.0, TOKENS_MIN, HeldBy::Memory),
            (131_072, -3e9, 65_536.0, TOKENS_MIN, HeldBy::Memory),
            (2_048, -3e9, 65_536.0, 2_048, HeldBy::Context),
        ] {
            assert_eq!(Held::within(context, left, token_bytes), Held { tokens, by }, "{context} {left}");
        }
    }

    #[test]
    fn a_model_with_a_long_context_is_not_cut_by_a_default() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let mut model = SyntheticModel::small("llama", Format::F32, 1);
        model.context_len = 32_768;
        std::fs::write(&path, model.to_gguf().unwrap()).unwrap();
        let held = |asked| Held::of(&path, MemoryFor::Auto, KvFormat::F16, asked).unwrap();
        assert_eq!(held(None), Held { tokens: 32_768, by: HeldBy::Context });
        assert_eq!(held(Some(512)), Held { tokens: 512, by: HeldBy::Option });
        assert_eq!(held(Some(40_000)).by, HeldBy::Context, "more than the model can hold is no bound");
    }
}
