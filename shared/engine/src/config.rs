//! The properties of a model that a GGUF file's metadata states, checked once.
//!
//! Reads metadata only; [`crate::weights`] checks tensors against the result. Invariant: the numbers of a
//! [`ModelConfig`] are non-zero, divide as the forward pass needs, and their products fit `usize`.

pub use baton_kernels_cpu::ExpertGroups;
use baton_kernels_cpu::Routing;

use crate::family::{self, Family, Gating};
use crate::gguf::{Gguf, GgufError};
use crate::kv::BLOCK_TOKENS;
use crate::rope::Rope;

mod experts;
mod keys;
mod latent;
mod layers;
mod recurrent;
mod rotation;

use keys::Keys;

pub use layers::{Heads, LocalLayers, LocalPattern};
pub use recurrent::{DeltaNet, Recurrent, RecurrentKind};

/// Attention that sees only the newest tokens and a few first ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Newest tokens that a query sees, including itself; > 0.
    pub tokens: usize,
    /// First tokens of the sequence that every query also sees. Source: StreamingLLM, Xiao 2023.
    pub sinks: usize,
}

impl SlidingWindow {
    /// Whether a query at `position` or later may see a key of the block that begins at `first`.
    pub(crate) fn sees_block(&self, position: usize, first: usize) -> bool {
        let oldest = (position + 1).saturating_sub(self.tokens);
        first < self.sinks || first + BLOCK_TOKENS > oldest
    }

    /// Adds to chosen positions, which ascend, those that a token behind `cached` ones sees. A sequence that
    /// keeps all of them goes on as if nothing were missing in the window.
    pub fn with_seen(&self, chosen: &[usize], cached: usize) -> Vec<usize> {
        let (first, last) = self.behind(cached);
        let between = chosen.iter().copied().filter(|position| (first..last).contains(position));
        (0..first).chain(between).chain(last..cached).collect()
    }

    /// Returns what a token behind `cached` ones sees of them: those before the first number, and those from
    /// the second on.
    pub(crate) fn behind(&self, cached: usize) -> (usize, usize) {
        let first = self.sinks.min(cached);
        (first, (cached + 1).saturating_sub(self.tokens).clamp(first, cached))
    }
}

/// The mixture of experts in the feed-forward layers of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: usize,
    /// Experts per token, 1 to `count`.
    pub used: usize,
    /// Width of one expert.
    pub d_ff: usize,
    /// Width of the expert that every token uses, if there is one.
    pub shared_d_ff: Option<usize>,
    /// How the router's numbers become factors.
    pub gating: Gating,
    /// Whether the chosen experts' factors are divided by their sum.
    pub normalized: bool,
    /// The factor of the chosen experts' factors, > 0.
    pub scale: f32,
    /// Groups of experts, if a token uses only some of them.
    pub groups: Option<ExpertGroups>,
    /// The first layer with experts; the layers before it are dense.
    pub first_layer: usize,
}

impl Experts {
    /// Returns how they are chosen.
    pub fn routing(&self) -> Routing {
        let Self { used, gating, normalized, scale, groups, .. } = *self;
        Routing { used, gating, normalized, scale, groups }
    }
}

/// Queries that become longer with their position: by `1 + scale ln(1 + floor(position / step))`. Source:
/// Meta 2025, the reference code of Llama 4.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature {
    /// The factor of the logarithm, > 0.
    pub scale: f32,
    /// Positions of one step, > 0.
    pub step: usize,
}

impl Temperature {
    /// Returns the factor of a query.
    pub fn factor(&self, position: usize) -> f32 {
        let steps = (position / self.step) as f64;
        (1.0 + f64::from(self.scale) * steps.ln_1p()) as f32
    }
}

/// Attention whose keys and values are made from one short vector a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latent {
    /// Width of the vector that queries are made from; `None` if they are made from the residual stream.
    pub q_rank: Option<usize>,
    /// Width of the vector that keys and values are made from.
    pub kv_rank: usize,
    /// Dimensions of a key head that are not rotated.
    pub d_plain: usize,
    /// Dimensions of a key that are rotated, the same for all heads; even.
    pub d_turned: usize,
    /// Dimensions of a value head.
    pub d_value: usize,
    /// Whether the cache holds the short vector and queries are turned to its space, as newer files are made
    /// for. Then all query heads share one key head. Otherwise the cache holds the keys and values of each
    /// head.
    pub absorbed: bool,
}

impl Latent {
    /// Returns the width of a query head and of a key head before the change of space.
    pub fn d_key(&self) -> usize {
        self.d_plain + self.d_turned
    }
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
    /// Key and value heads, except those of local layers; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Width of one head in the cache, except in local layers. With latent attention, values are narrower and
    /// end in zeros.
    pub d_head: usize,
    /// Attention whose keys and values are made from one short vector a token, if the model has it.
    pub latent: Option<Latent>,
    /// Width of the dense network of a feed-forward layer; of the widest one, if they differ.
    pub d_ff: usize,
    /// Width of each layer's dense network; empty if they are alike.
    pub d_ffs: Vec<usize>,
    /// Width of the input that each layer has of its own from every token; `None` if there is none.
    pub input_width: Option<usize>,
    /// Layers with keys and values of their own, the first ones. The others use those of the last one of
    /// their kind.
    pub keyed_layers: usize,
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
    /// The factor of embeddings; 1 if the model has none.
    pub embedding_scale: f32,
    /// The factor of the result of each half of a layer; 1 if the model has none.
    pub residual_scale: f32,
    /// The factor of logits; 1 if the model has none.
    pub logit_scale: f32,
    /// The bound of logits, if the model has one: they are `cap tanh(x / cap)`.
    pub logit_cap: Option<f32>,
    /// Tokens that the model must never choose, all below `vocab_len`.
    pub suppressed: Vec<u32>,
    /// The factor of query-key products.
    pub attention_scale: f32,
    /// The bound of attention scores, if the model has one: they are `cap tanh(x / cap)`.
    pub attention_cap: Option<f32>,
    /// Queries that become longer with their position.
    pub temperature: Option<Temperature>,
    /// Of this many consecutive layers, the last does not rotate its queries and keys; `None` if all do.
    pub unrotated_period: Option<usize>,
    /// Sliding-window attention, if the model has it: in every layer, or only in local ones.
    pub window: Option<SlidingWindow>,
    /// Which layers are local; `None` if all are alike.
    pub local: Option<LocalLayers>,
    /// The experts of the feed-forward layers; `None` if all layers are dense.
    pub experts: Option<Experts>,
    /// Layers that have a state instead of keys and values; `None` if all layers are of attention.
    pub recurrent: Option<Recurrent>,
    /// Layers after the last one in the file. They guess further tokens and are not used.
    pub unused_layers: usize,
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
        keys.refuse_unsupported(family)?;
        let d_model = keys.count("embedding_length")?;
        let n_heads = keys.count("attention.head_count")?;
        let (n_layers, unused_layers) = keys.layers(family)?;
        let listed = keys.listed(family, n_layers, n_heads)?;
        let (n_kv_heads, with_keys) = match &listed {
            Some(listed) => (listed.n_kv_heads, None),
            None => keys.kv_heads(family, n_layers, n_heads)?,
        };
        keys.check_kv_heads(n_kv_heads, n_heads)?;
        let latent = if family.latent { Some(keys.latent(n_heads, n_kv_heads)?) } else { None };
        let d_head = match &latent {
            Some(latent) if latent.absorbed => latent.kv_rank + latent.d_turned,
            Some(latent) => latent.d_key(),
            None => keys.d_head(d_model, n_heads)?,
        };
        keys.check_vocab(vocab_len)?;
        let (d_ff, d_ffs) = keys.d_ffs(family, n_layers)?;
        let context_len = keys.count("context_length")?;
        let original_context_len =
            keys.opt_count("rope.scaling.original_context_length")?.unwrap_or(context_len);
        let rope = keys.rope(family, d_head, original_context_len)?;
        keys.check_rope_sections(family, rope.rot_dims / 2)?;
        let heads = Heads { count: n_heads, kv: n_kv_heads, width: d_head };
        let window = keys.window(family)?.map(|tokens| SlidingWindow { tokens, sinks: 0 });
        let local = match window {
            Some(_) => keys.local_layers(family, listed, heads, &rope)?,
            None => None,
        };
        let d_key = latent.map_or(d_head, |latent| latent.d_key());
        let [embedding_scale, residual_scale, logit_scale] = keys.multipliers(family, d_model)?;
        Ok(Self {
            n_layers,
            n_heads,
            n_kv_heads,
            d_model,
            d_head,
            latent,
            d_ff,
            d_ffs,
            input_width: keys.input_width(family, n_layers)?,
            keyed_layers: keys.keyed_layers(family, n_layers, local.as_ref())?,
            vocab_len,
            context_len,
            original_context_len,
            norm_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
            embedding_scale,
            residual_scale,
            logit_scale,
            logit_cap: keys.positive_if(family.logit_cap, "final_logit_softcapping")?,
            suppressed: keys.suppressed(family, vocab_len)?,
            attention_scale: keys.attention_scale(family, n_layers, d_model / n_heads, d_key)?
                * keys.yarn_scale(family, &rope)?,
            attention_cap: keys.positive_if(family.attention_cap, "attn_logit_softcapping")?,
            temperature: keys.temperature(family)?,
            unrotated_period: keys.unrotated_period(family)?,
            local,
            experts: keys.experts(family, d_ff, n_layers)?,
            recurrent: keys.recurrent(family, with_keys, n_layers, d_model)?,
            unused_layers,
            rope,
            window,
            family,
        })
    }

    /// Whether the layer rotates its queries and keys.
    pub fn is_rotated(&self, layer: usize) -> bool {
        self.unrotated_period.is_none_or(|period| !(layer + 1).is_multiple_of(period))
    }

    /// Returns the experts of a layer; `None` if it is dense.
    pub fn experts_at(&self, layer: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| layer >= experts.first_layer)
    }

    /// Whether the layer has attention, and not a recurrent state.
    pub fn has_attention(&self, layer: usize) -> bool {
        self.recurrent.as_ref().is_none_or(|recurrent| !recurrent.layers[layer])
    }

    /// Returns whether a layer attends to the whole sequence. If none does, true for each with attention.
    pub fn sees_all(&self, layer: usize) -> bool {
        let is_wide = |layer: usize| self.has_attention(layer) && self.window_at(layer).is_none();
        is_wide(layer) || self.has_attention(layer) && !(0..self.n_layers).any(is_wide)
    }

    /// Returns the sliding window of a layer, if it has one.
    pub fn window_at(&self, layer: usize) -> Option<SlidingWindow> {
        self.window.filter(|_| self.local.is_none() || self.is_local(layer))
    }

    /// Returns the largest sliding window of a layer, if one has one.
    pub fn largest_window(&self) -> Option<SlidingWindow> {
        (0..self.n_layers).filter_map(|layer| self.window_at(layer)).max_by_key(|window| window.tokens)
    }

    /// Returns the width of all query heads together, except in local layers.
    pub fn d_q(&self) -> usize {
        self.n_heads * self.d_head
    }

    /// Returns the width of all key heads together, which is also that of all value heads, except in local
    /// layers.
    pub fn d_kv(&self) -> usize {
        self.n_kv_heads * self.d_head
    }
}
