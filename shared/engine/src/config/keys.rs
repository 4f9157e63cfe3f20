//! Typed access to a file's keys, and those that are about whole layers.

use super::ConfigError;
use crate::family::{Family, Presence, YarnLogRule};
use crate::gguf::Metadata;

/// Typed access to the keys of one architecture.
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata<'a>,
    pub(super) prefix: &'static str,
}

/// More than any model has, yet small enough that products of two fit `usize` and that rope's f64 angles are
/// exact.
pub(super) const COUNT_MAX: u32 = 1 << 28;

impl Keys<'_> {
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    pub(super) fn opt_u32(&self, name: &str) -> Result<Option<u32>, ConfigError> {
        Ok(self.metadata.opt_u32(&self.key(name))?)
    }

    pub(super) fn count(&self, name: &str) -> Result<usize, ConfigError> {
        let value = self.metadata.u32(&self.key(name))?;
        self.in_count_range(name, value)
    }

    pub(super) fn opt_count(&self, name: &str) -> Result<Option<usize>, ConfigError> {
        self.opt_u32(name)?.map(|value| self.in_count_range(name, value)).transpose()
    }

    pub(super) fn in_count_range(&self, name: &str, value: u32) -> Result<usize, ConfigError> {
        let holds = (1..=COUNT_MAX).contains(&value);
        self.check(name, value as usize, holds, || format!("1 to {COUNT_MAX}"))?;
        Ok(value as usize)
    }

    /// Checks that every key head has as many query heads.
    pub(super) fn check_kv_heads(&self, n_kv_heads: usize, n_heads: usize) -> Result<(), ConfigError> {
        self.check("attention.head_count_kv", n_kv_heads, n_heads.is_multiple_of(n_kv_heads), || {
            format!("a divisor of the {n_heads} query heads")
        })
    }

    /// Checks that tokens have ids of 32 bits.
    pub(super) fn check_vocab(&self, vocab_len: usize) -> Result<(), ConfigError> {
        let bound = u32::MAX as usize;
        self.check("vocab_size", vocab_len, (1..=bound).contains(&vocab_len), || format!("1 to {bound}"))
    }

    pub(super) fn check(
        &self,
        name: &str,
        value: usize,
        holds: bool,
        want: impl FnOnce() -> String,
    ) -> Result<(), ConfigError> {
        if holds { Ok(()) } else { Err(self.out_of_range(name, value.to_string(), want())) }
    }

    pub(super) fn out_of_range(&self, name: &str, value: String, want: String) -> ConfigError {
        ConfigError::OutOfRange { key: self.key(name), value, want }
    }

    pub(super) fn positive(&self, name: &str) -> Result<f32, ConfigError> {
        let value = self.metadata.f32(&self.key(name))?;
        self.check_positive(name, value)
    }

    pub(super) fn opt_positive(&self, name: &str) -> Result<Option<f32>, ConfigError> {
        self.metadata.opt_f32(&self.key(name))?.map(|value| self.check_positive(name, value)).transpose()
    }

    pub(super) fn check_positive(&self, name: &str, value: f32) -> Result<f32, ConfigError> {
        if value.is_finite() && value > 0.0 {
            Ok(value)
        } else {
            Err(self.out_of_range(name, value.to_string(), "finite and > 0".to_owned()))
        }
    }

    /// Returns a number > 0 that the family's files hold or may hold. 0 means none.
    pub(super) fn positive_if(&self, presence: Presence, name: &str) -> Result<Option<f32>, ConfigError> {
        match presence {
            Presence::Never => Ok(None),
            Presence::Required => self.positive(name).map(Some),
            Presence::Optional => match self.metadata.opt_f32(&self.key(name))? {
                None | Some(0.0) => Ok(None),
                Some(value) => self.check_positive(name, value).map(Some),
            },
        }
    }

    /// Refuses values that ask for a computation the engine does not do for the family. Each key is listed
    /// with the values that change nothing.
    pub(super) fn refuse_unsupported(&self, family: &Family) -> Result<(), ConfigError> {
        let stated = family.experts.is_some_and(|rule| rule.stated);
        for (name, harmless, is_read) in [
            ("attention.max_alibi_bias", [0.0, 0.0], false),
            ("attention.clamp_kqv", [0.0, 0.0], false),
            ("attn_logit_softcapping", [0.0, 0.0], family.attention_cap != Presence::Never),
            ("final_logit_softcapping", [0.0, 0.0], family.logit_cap != Presence::Never),
            ("embedding_scale", [0.0, 1.0], family.multipliers),
            ("residual_scale", [0.0, 1.0], family.multipliers),
            ("logit_scale", [0.0, 1.0], family.multipliers),
            ("attention.scale", [0.0, 1.0], !family.unscaled_products),
            ("attention.temperature_scale", [0.0, 0.0], family.temperature.is_some()),
            ("rope.scaling.yarn_log_multiplier", [0.0, 0.0], family.yarn_log != YarnLogRule::Never),
            // 1 spares the fast pairs from scaling completely; below 0 means "not set".
            ("rope.scaling.yarn_ext_factor", [-1.0, 1.0], false),
            ("rope.scaling.yarn_attn_factor", [1.0, 1.0], false),
            ("expert_weights_scale", [0.0, 1.0], stated),
        ] {
            let key = self.key(name);
            let set = if is_read { None } else { self.metadata.opt_f32(&key)? };
            if let Some(value) = set.filter(|value| !harmless.contains(value)) {
                return Err(ConfigError::Unsupported { key, value: value.to_string() });
            }
        }
        // Gating function 1 is softmax.
        for (name, harmless) in
            [("expert_group_count", 0..2), ("leading_dense_block_count", 0..1), ("expert_gating_func", 0..2)]
        {
            let set = if stated { None } else { self.opt_u32(name)? };
            if let Some(value) = set.filter(|value| !harmless.contains(value)) {
                return Err(ConfigError::Unsupported { key: self.key(name), value: value.to_string() });
            }
        }
        Ok(())
    }

    /// Returns the factors of embeddings, of each half's result and of logits.
    pub(super) fn multipliers(&self, family: &Family, d_model: usize) -> Result<[f32; 3], ConfigError> {
        let embedding = if family.scaled_embedding { (d_model as f32).sqrt() } else { 1.0 };
        if !family.multipliers {
            return Ok([embedding, 1.0, 1.0]);
        }
        let stated =
            |name| Ok::<f32, ConfigError>(self.positive_if(Presence::Optional, name)?.unwrap_or(1.0));
        Ok([
            embedding * stated("embedding_scale")?,
            stated("residual_scale")?,
            1.0 / self.positive("logit_scale")?,
        ])
    }

    /// Returns the tokens of the sliding window, if the file has one.
    pub(super) fn window(&self, family: &Family) -> Result<Option<usize>, ConfigError> {
        const NAME: &str = "attention.sliding_window";
        if family.local.is_some_and(|rule| rule.window == Presence::Required) {
            return self.count(NAME).map(Some);
        }
        Ok(self.opt_u32(NAME)?.filter(|tokens| *tokens > 0).map(|tokens| tokens as usize))
    }

    /// Returns the tokens that the model must never choose.
    pub(super) fn suppressed(&self, family: &Family, vocab_len: usize) -> Result<Vec<u32>, ConfigError> {
        const KEY: &str = "tokenizer.ggml.suppress_tokens";
        let listed = if family.suppresses { self.metadata.opt_u32_array(KEY)? } else { None };
        let listed = listed.unwrap_or_default();
        match listed.iter().find(|id| **id as usize >= vocab_len) {
            Some(id) => Err(ConfigError::OutOfRange {
                key: KEY.to_owned(),
                value: id.to_string(),
                want: format!("below the {vocab_len} tokens"),
            }),
            None => Ok(listed),
        }
    }

    pub(super) fn attention_scale(
        &self,
        family: &Family,
        n_layers: usize,
        d_of_model: usize,
        d_head: usize,
    ) -> Result<f32, ConfigError> {
        if family.unscaled_products {
            return Ok(1.0);
        }
        let given = self.metadata.opt_f32(&self.key("attention.scale"))?.filter(|scale| *scale != 0.0);
        if let Some(scale) = given {
            return self.check_positive("attention.scale", scale);
        }
        let by_model = family.model_scale_layers.is_some_and(|layers| layers as usize == n_layers);
        let width = if by_model { d_of_model.max(1) } else { d_head };
        Ok((1.0 / (width as f64).sqrt()) as f32)
    }

    pub(super) fn d_head(&self, d_model: usize, n_heads: usize) -> Result<usize, ConfigError> {
        let d_head = match self.opt_count("attention.key_length")? {
            Some(d_head) => d_head,
            None => {
                self.check("embedding_length", d_model, d_model.is_multiple_of(n_heads), || {
                    format!("a multiple of the {n_heads} heads")
                })?;
                d_model / n_heads
            }
        };
        self.check("attention.key_length", d_head, d_head.is_multiple_of(2), || "even".to_owned())?;
        let d_value = self.opt_count("attention.value_length")?.unwrap_or(d_head);
        self.check("attention.value_length", d_value, d_value == d_head, || {
            format!("{d_head}, the width of a key")
        })?;
        Ok(d_head)
    }
}
