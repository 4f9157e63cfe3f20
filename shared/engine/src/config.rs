//! The properties of a model that a GGUF file's metadata states, checked once.
//!
//! Reads metadata only; [`crate::weights`] checks tensors against the result. Invariant: the numbers of a
//! [`ModelConfig`] are non-zero, divide as the forward pass needs, and their products fit `usize`.

use crate::family::{self, Family, Presence};
use crate::gguf::{Gguf, GgufError, Metadata};
use crate::rope::{Rope, RopeScaling};

/// Attention that sees only the newest tokens and a few first ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Newest tokens that a query sees, including itself; > 0.
    pub tokens: usize,
    /// First tokens of the sequence that every query also sees. Source: StreamingLLM, Xiao 2023.
    pub sinks: usize,
}

/// The mixture of experts in every feed-forward layer of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: usize,
    /// Experts per token, 1 to `count`.
    pub used: usize,
    /// Width of one expert.
    pub d_ff: usize,
    /// Width of the expert that every token uses, if there is one.
    pub shared_d_ff: Option<usize>,
    /// Whether the chosen experts' probabilities are divided by their sum.
    pub normalized: bool,
}

/// Layers that see only a sliding window and have their own rotary frequencies.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalLayers {
    /// Of this many consecutive layers, all but the last are local; > 0.
    pub period: usize,
    /// Their rotary positions.
    pub rope: Rope,
}

/// The shape of one model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelConfig {
    /// The properties that the architecture implies.
    pub family: &'static Family,
    /// Transformer layers.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Width of one head.
    pub d_head: usize,
    /// Width of the feed-forward layer.
    pub d_ff: usize,
    /// Rows of the embedding table.
    pub vocab_len: usize,
    /// The most tokens of one sequence.
    pub context_len: usize,
    /// Rotary positions, except those of local layers.
    pub rope: Rope,
    /// The most tokens of one sequence before the rotary positions were scaled; `context_len` if they were
    /// not.
    pub original_context_len: usize,
    /// Added to the mean square by RMS norms.
    pub norm_eps: f32,
    /// The factor of query-key products.
    pub attention_scale: f32,
    /// Sliding-window attention, if the model has it: in every layer, or only in local ones.
    pub window: Option<SlidingWindow>,
    /// Which layers are local; `None` if all are alike.
    pub local: Option<LocalLayers>,
    /// The experts of the feed-forward layers; `None` if they are dense.
    pub experts: Option<Experts>,
}

/// Why a model's metadata was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A key is missing or has another type.
    #[error("read metadata")]
    Metadata(#[from] GgufError),
    /// The architecture is not in [`family::FAMILIES`].
    #[error("architecture `{0}` is not supported")]
    UnknownArchitecture(String),
    /// A number is outside its range.
    #[error("`{key}` is {value}, must be {want}")]
    OutOfRange {
        /// The metadata key.
        key: String,
        /// Its value.
        value: String,
        /// The allowed range, in words.
        want: String,
    },
    /// The forward pass does not support a value.
    #[error("`{key}` = {value} is not supported")]
    Unsupported {
        /// The metadata key.
        key: String,
        /// Its value.
        value: String,
    },
}

impl ModelConfig {
    /// Reads the shape of the model in `gguf`; `vocab_len` is the number of rows of its embedding table.
    ///
    /// # Errors
    /// [`ConfigError`] if something is missing, out of range or not supported.
    pub fn from_gguf(gguf: &Gguf, vocab_len: usize) -> Result<Self, ConfigError> {
        let metadata = gguf.metadata();
        let architecture = metadata.str("general.architecture")?;
        let family = family::find(architecture)
            .ok_or_else(|| ConfigError::UnknownArchitecture(architecture.to_owned()))?;
        let keys = Keys { metadata: &metadata, prefix: family.name };
        keys.refuse_unsupported()?;
        let d_model = keys.count("embedding_length")?;
        let n_heads = keys.count("attention.head_count")?;
        let n_kv_heads = keys.opt_count("attention.head_count_kv")?.unwrap_or(n_heads);
        keys.check("attention.head_count_kv", n_kv_heads, n_heads.is_multiple_of(n_kv_heads), || {
            format!("a divisor of the {n_heads} query heads")
        })?;
        let d_head = keys.d_head(d_model, n_heads)?;
        let vocab_bound = u32::MAX as usize;
        keys.check("vocab_size", vocab_len, (1..=vocab_bound).contains(&vocab_len), || {
            format!("1 to {vocab_bound}")
        })?;
        let n_layers = keys.count("block_count")?;
        let d_ff = keys.count("feed_forward_length")?;
        let context_len = keys.count("context_length")?;
        let original_context_len =
            keys.opt_count("rope.scaling.original_context_length")?.unwrap_or(context_len);
        let rope = keys.rope(d_head, original_context_len)?;
        let window = keys
            .opt_u32("attention.sliding_window")?
            .filter(|tokens| *tokens > 0)
            .map(|tokens| SlidingWindow { tokens: tokens as usize, sinks: 0 });
        Ok(Self {
            n_layers,
            n_heads,
            n_kv_heads,
            d_model,
            d_head,
            d_ff,
            vocab_len,
            context_len,
            original_context_len,
            norm_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
            attention_scale: keys.attention_scale(family, n_layers, d_model / n_heads, d_head)?,
            local: keys.local_layers(family, window.is_some(), &rope)?,
            experts: keys.experts(family, d_ff)?,
            rope,
            window,
            family,
        })
    }

    /// Whether the layer sees only a sliding window, while other layers see everything.
    pub fn is_local(&self, layer: usize) -> bool {
        self.local.as_ref().is_some_and(|local| layer % local.period != local.period - 1)
    }

    /// Returns the sliding window of a layer, if it has one.
    pub fn window_at(&self, layer: usize) -> Option<SlidingWindow> {
        self.window.filter(|_| self.local.is_none() || self.is_local(layer))
    }

    /// Returns the width of all query heads together.
    pub fn d_q(&self) -> usize {
        self.n_heads * self.d_head
    }

    /// Returns the width of all key heads together, which is also that of all value heads.
    pub fn d_kv(&self) -> usize {
        self.n_kv_heads * self.d_head
    }
}

/// Typed access to the keys of one architecture.
struct Keys<'a> {
    metadata: &'a Metadata<'a>,
    prefix: &'static str,
}

/// More than any model has, yet small enough that products of two fit `usize` and that rope's f64 angles are
/// exact.
const COUNT_MAX: u32 = 1 << 28;

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    fn opt_u32(&self, name: &str) -> Result<Option<u32>, ConfigError> {
        Ok(self.metadata.opt_u32(&self.key(name))?)
    }

    fn count(&self, name: &str) -> Result<usize, ConfigError> {
        let value = self.metadata.u32(&self.key(name))?;
        self.in_count_range(name, value)
    }

    fn opt_count(&self, name: &str) -> Result<Option<usize>, ConfigError> {
        self.opt_u32(name)?.map(|value| self.in_count_range(name, value)).transpose()
    }

    fn in_count_range(&self, name: &str, value: u32) -> Result<usize, ConfigError> {
        let holds = (1..=COUNT_MAX).contains(&value);
        self.check(name, value as usize, holds, || format!("1 to {COUNT_MAX}"))?;
        Ok(value as usize)
    }

    fn check(
        &self,
        name: &str,
        value: usize,
        holds: bool,
        want: impl FnOnce() -> String,
    ) -> Result<(), ConfigError> {
        if holds { Ok(()) } else { Err(self.out_of_range(name, value.to_string(), want())) }
    }

    fn out_of_range(&self, name: &str, value: String, want: String) -> ConfigError {
        ConfigError::OutOfRange { key: self.key(name), value, want }
    }

    fn positive(&self, name: &str) -> Result<f32, ConfigError> {
        let value = self.metadata.f32(&self.key(name))?;
        self.check_positive(name, value)
    }

    fn opt_positive(&self, name: &str) -> Result<Option<f32>, ConfigError> {
        self.metadata.opt_f32(&self.key(name))?.map(|value| self.check_positive(name, value)).transpose()
    }

    fn check_positive(&self, name: &str, value: f32) -> Result<f32, ConfigError> {
        if value.is_finite() && value > 0.0 {
            Ok(value)
        } else {
            Err(self.out_of_range(name, value.to_string(), "finite and > 0".to_owned()))
        }
    }

    /// Refuses values that ask for a computation the engine does not do. Each key is listed with the values
    /// that change nothing.
    fn refuse_unsupported(&self) -> Result<(), ConfigError> {
        for (name, harmless) in [
            ("attention.max_alibi_bias", [0.0, 0.0]),
            ("attention.clamp_kqv", [0.0, 0.0]),
            ("attn_logit_softcapping", [0.0, 0.0]),
            ("final_logit_softcapping", [0.0, 0.0]),
            ("rope.scaling.yarn_log_multiplier", [0.0, 0.0]),
            // 1 spares the fast pairs from scaling completely; below 0 means "not set".
            ("rope.scaling.yarn_ext_factor", [-1.0, 1.0]),
            ("rope.scaling.yarn_attn_factor", [1.0, 1.0]),
            ("expert_weights_scale", [0.0, 1.0]),
        ] {
            let key = self.key(name);
            let set = self.metadata.opt_f32(&key)?;
            if let Some(value) = set.filter(|value| !harmless.contains(value)) {
                return Err(ConfigError::Unsupported { key, value: value.to_string() });
            }
        }
        // Gating function 1 is softmax.
        for (name, harmless) in
            [("expert_group_count", 0..2), ("leading_dense_block_count", 0..1), ("expert_gating_func", 0..2)]
        {
            if let Some(value) = self.opt_u32(name)?.filter(|value| !harmless.contains(value)) {
                return Err(ConfigError::Unsupported { key: self.key(name), value: value.to_string() });
            }
        }
        Ok(())
    }

    fn experts(&self, family: &Family, d_ff: usize) -> Result<Option<Experts>, ConfigError> {
        let given = self.opt_u32("expert_count")?.filter(|count| *count > 0);
        let rule = match (family.experts, given) {
            (None, Some(count)) => {
                let key = self.key("expert_count");
                return Err(ConfigError::Unsupported { key, value: count.to_string() });
            }
            (None, None) => return Ok(None),
            (Some(rule), None) if rule.presence != Presence::Required => return Ok(None),
            (Some(rule), _) => rule,
        };
        let count = self.count("expert_count")?;
        let used = self.count("expert_used_count")?;
        self.check("expert_used_count", used, used <= count, || format!("at most the {count} experts"))?;
        let own_width = if rule.own_width { self.opt_count("expert_feed_forward_length")? } else { None };
        let shared_width = self.opt_count("expert_shared_feed_forward_length")?;
        Ok(Some(Experts {
            count,
            used,
            d_ff: match own_width {
                Some(width) => width,
                None if rule.own_width => (d_ff / used).max(1),
                None => d_ff,
            },
            shared_d_ff: rule.shared.then(|| shared_width.unwrap_or(d_ff)),
            normalized: rule.normalized,
        }))
    }

    fn local_layers(
        &self,
        family: &Family,
        windowed: bool,
        global: &Rope,
    ) -> Result<Option<LocalLayers>, ConfigError> {
        let Some(rule) = family.local.filter(|_| windowed) else { return Ok(None) };
        let period = self.opt_count("attention.sliding_window_pattern")?.unwrap_or(rule.period as usize);
        let freq_base = self.opt_positive("rope.freq_base_swa")?.unwrap_or(rule.freq_base);
        let rope = Rope { freq_base, scaling: RopeScaling::None, ..global.clone() };
        Ok(Some(LocalLayers { period, rope }))
    }

    fn attention_scale(
        &self,
        family: &Family,
        n_layers: usize,
        d_of_model: usize,
        d_head: usize,
    ) -> Result<f32, ConfigError> {
        let given = self.metadata.opt_f32(&self.key("attention.scale"))?.filter(|scale| *scale != 0.0);
        if let Some(scale) = given {
            return self.check_positive("attention.scale", scale);
        }
        let by_model = family.model_scale_layers.is_some_and(|layers| layers as usize == n_layers);
        let width = if by_model { d_of_model.max(1) } else { d_head };
        Ok((1.0 / (width as f64).sqrt()) as f32)
    }

    fn d_head(&self, d_model: usize, n_heads: usize) -> Result<usize, ConfigError> {
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

    fn rope(&self, d_head: usize, original_context_len: usize) -> Result<Rope, ConfigError> {
        let rot_dims = self.opt_count("rope.dimension_count")?.unwrap_or(d_head);
        let holds = rot_dims.is_multiple_of(2) && rot_dims <= d_head;
        self.check("rope.dimension_count", rot_dims, holds, || format!("even and at most {d_head}"))?;
        let freq_base = self.opt_positive("rope.freq_base")?.unwrap_or(10_000.0);
        let magnitude = self.opt_positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let scaling = self.rope_scaling(freq_base, original_context_len)?;
        Ok(Rope { rot_dims, freq_base, scaling, magnitude, freq_divisors: None })
    }

    fn rope_scaling(&self, freq_base: f32, original_context_len: usize) -> Result<RopeScaling, ConfigError> {
        let kind_key = self.key("rope.scaling.type");
        let kind = self.metadata.opt_str(&kind_key)?;
        match kind {
            // A factor without a kind is linear, as in llama.cpp. The second key is used by old files. 0
            // means none.
            None => {
                for name in ["rope.scaling.factor", "rope.scale_linear"] {
                    if let Some(factor) = self.metadata.opt_f32(&self.key(name))? {
                        let is_none = factor == 0.0;
                        let linear =
                            || Ok(RopeScaling::Linear { factor: self.check_positive(name, factor)? });
                        return if is_none { Ok(RopeScaling::None) } else { linear() };
                    }
                }
                Ok(RopeScaling::None)
            }
            // The divisors of "longrope" are tensors.
            Some("none" | "longrope") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear { factor: self.positive("rope.scaling.factor")? }),
            Some("llama3") => self.llama3_scaling(),
            Some("yarn") => self.yarn_scaling(freq_base, original_context_len),
            Some(kind) => Err(ConfigError::Unsupported { key: kind_key, value: kind.to_owned() }),
        }
    }

    fn yarn_scaling(&self, freq_base: f32, original_context_len: usize) -> Result<RopeScaling, ConfigError> {
        let beta_fast = self.opt_positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0);
        let beta_slow = self.opt_positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0);
        for (name, value, limit, what) in [
            ("rope.scaling.yarn_beta_fast", beta_fast, beta_slow, "the turns of a stretched pair"),
            ("rope.freq_base", freq_base, 1.0, "so that pairs differ"),
        ] {
            if value <= limit {
                return Err(self.out_of_range(name, value.to_string(), format!("> {limit}, {what}")));
            }
        }
        Ok(RopeScaling::Yarn {
            factor: self.positive("rope.scaling.factor")?,
            beta_fast,
            beta_slow,
            original_context: original_context_len as u32,
        })
    }

    fn llama3_scaling(&self) -> Result<RopeScaling, ConfigError> {
        let low_freq_factor = self.opt_positive("rope.scaling.low_freq_factor")?.unwrap_or(1.0);
        let high_freq_factor = self.opt_positive("rope.scaling.high_freq_factor")?.unwrap_or(4.0);
        if high_freq_factor <= low_freq_factor {
            let want = format!("> {low_freq_factor}, the factor of low frequencies");
            return Err(self.out_of_range(
                "rope.scaling.high_freq_factor",
                high_freq_factor.to_string(),
                want,
            ));
        }
        Ok(RopeScaling::Llama3 {
            factor: self.positive("rope.scaling.factor")?,
            low_freq_factor,
            high_freq_factor,
            original_context: self.count("rope.scaling.original_context_length")? as u32,
        })
    }
}
