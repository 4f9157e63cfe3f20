//! What differs between a model's layers: which are local, their heads, and what single layers have.

use baton_kernels_cpu::KvFormat;

use super::keys::Keys;
use super::{ConfigError, ModelConfig};
use crate::family::Family;
use crate::rope::{Rope, RopeScaling};

const PATTERN: &str = "attention.sliding_window_pattern";
const KV_HEADS: &str = "attention.head_count_kv";
const SHARED: &str = "attention.shared_kv_layers";
const D_FF: &str = "feed_forward_length";

/// The heads of a layer's attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub count: usize,
    /// Key and value heads; divides `count`.
    pub kv: usize,
    /// Width of one head in the cache.
    pub width: usize,
}

impl Heads {
    /// Returns the number of query heads that share a key head.
    pub fn group(&self) -> usize {
        self.count / self.kv
    }

    /// Returns the width of all query heads together.
    pub fn d_q(&self) -> usize {
        self.count * self.width
    }

    /// Returns the width of all key heads together, which is also that of all value heads.
    pub fn d_kv(&self) -> usize {
        self.kv * self.width
    }
}

/// Which layers are local.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalPattern {
    /// Of this many consecutive layers, all but the last are local; > 0.
    Period(usize),
    /// For every layer, whether it is local.
    Listed(Vec<bool>),
}

/// Layers that see only a sliding window, and have their own rotary frequencies and heads.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalLayers {
    /// Which they are.
    pub pattern: LocalPattern,
    /// Their rotary positions.
    pub rope: Rope,
    /// Their heads.
    pub heads: Heads,
}

impl LocalLayers {
    /// Whether the layer is local.
    pub fn contains(&self, layer: usize) -> bool {
        match &self.pattern {
            LocalPattern::Period(period) => layer % period != period - 1,
            LocalPattern::Listed(layers) => layers.get(layer) == Some(&true),
        }
    }
}

/// Local layers that a file lists.
pub(super) struct Listed {
    pub(super) layers: Vec<bool>,
    /// Their heads.
    heads: Heads,
    /// Key and value heads of the other layers.
    pub(super) n_kv_heads: usize,
}

impl ModelConfig {
    /// Whether the layer sees only a sliding window, while other layers see everything.
    pub fn is_local(&self, layer: usize) -> bool {
        self.local.as_ref().is_some_and(|local| local.contains(layer))
    }

    /// Returns the heads of a layer's attention.
    pub fn heads_at(&self, layer: usize) -> Heads {
        match &self.local {
            Some(local) if local.contains(layer) => local.heads,
            _ => Heads { count: self.n_heads, kv: self.n_kv_heads, width: self.d_head },
        }
    }

    /// Returns the width of a layer's attention output before its projection.
    pub fn d_mixed(&self, layer: usize) -> usize {
        self.latent.map_or(self.heads_at(layer).d_q(), |latent| self.n_heads * latent.d_value)
    }

    /// Returns the width of a layer's dense network.
    pub fn d_ff_at(&self, layer: usize) -> usize {
        self.d_ffs.get(layer).copied().unwrap_or(self.d_ff)
    }

    /// Returns the layer whose keys and values a layer uses: itself, or the last one of its kind that has
    /// its own.
    pub fn kv_layer(&self, layer: usize) -> usize {
        match self.keyed_layers {
            keyed if layer < keyed => layer,
            keyed if self.is_local(layer) => keyed - 2,
            keyed => keyed - 1,
        }
    }

    /// Returns the bytes of one token's keys and values in all layers. A recurrent layer counts like one of
    /// attention, since its checkpoints take that room.
    pub fn kv_token_bytes(&self, format: KvFormat) -> usize {
        let keyed = (0..self.n_layers).filter(|layer| self.kv_layer(*layer) == *layer);
        let of_layer = |heads: Heads| heads.kv * format.token_bytes(heads.width);
        keyed.map(|layer| of_layer(self.heads_at(layer))).sum()
    }

    /// Whether a layer needs more than the hidden states: tokens, or the keys and values of another one.
    pub fn has_tied_layers(&self) -> bool {
        self.input_width.is_some() || self.keyed_layers < self.n_layers
    }
}

impl Keys<'_> {
    /// Returns the local layers that the file lists, if the family's files do.
    pub(super) fn listed(
        &self,
        family: &Family,
        n_layers: usize,
        n_heads: usize,
    ) -> Result<Option<Listed>, ConfigError> {
        if !family.local.is_some_and(|rule| rule.listed) {
            return Ok(None);
        }
        let layers = self.metadata.bool_array(&self.key(PATTERN))?;
        self.check(PATTERN, layers.len(), layers.len() == n_layers, || format!("{n_layers} entries"))?;
        let of = |local| self.kv_heads_of(&layers, local, n_heads);
        let (kv, n_kv_heads) = (of(true)?, of(false)?);
        let width = self.count("attention.key_length_swa")?;
        self.check("attention.key_length_swa", width, width.is_multiple_of(2), || "even".to_owned())?;
        let value = self.count("attention.value_length_swa")?;
        self.check("attention.value_length_swa", value, value == width, || {
            format!("{width}, the width of a key")
        })?;
        Ok(Some(Listed { layers, heads: Heads { count: n_heads, kv, width }, n_kv_heads }))
    }

    /// Returns the number of key and value heads of the layers that are local, or are not. The file has one
    /// number, or one for each layer.
    fn kv_heads_of(&self, layers: &[bool], local: bool, n_heads: usize) -> Result<usize, ConfigError> {
        if !self.metadata.is_array(&self.key(KV_HEADS)) {
            return Ok(self.opt_count(KV_HEADS)?.unwrap_or(n_heads));
        }
        let counts = self.metadata.u32_array(&self.key(KV_HEADS))?;
        self.check(KV_HEADS, counts.len(), counts.len() == layers.len(), || {
            format!("{} entries", layers.len())
        })?;
        let mut own = counts.iter().zip(layers).filter(|(_, is)| **is == local).map(|(count, _)| *count);
        let Some(first) = own.next() else { return Ok(1) };
        let kind = if local { "local layers" } else { "layers that are not local" };
        match own.find(|count| *count != first) {
            Some(other) => Err(self.out_of_range(
                KV_HEADS,
                format!("{first} and {other}"),
                format!("one for all {kind}"),
            )),
            None => self.in_count_range(KV_HEADS, first),
        }
    }

    /// Returns the local layers of a model, given its other layers' heads and rotary positions.
    pub(super) fn local_layers(
        &self,
        family: &Family,
        listed: Option<Listed>,
        heads: Heads,
        global: &Rope,
    ) -> Result<Option<LocalLayers>, ConfigError> {
        let Some(rule) = family.local else { return Ok(None) };
        let stated = self.opt_positive("rope.freq_base_swa")?;
        let mut rope = match rule.freq_base {
            Some(default) => {
                Rope { freq_base: stated.unwrap_or(default), scaling: RopeScaling::None, ..global.clone() }
            }
            None => Rope { freq_base: stated.unwrap_or(global.freq_base), ..global.clone() },
        };
        let Some(Listed { layers, heads, .. }) = listed else {
            let period = self.opt_count(PATTERN)?.unwrap_or(rule.period as usize);
            return Ok(Some(LocalLayers { pattern: LocalPattern::Period(period), rope, heads }));
        };
        const ROTATED: &str = "rope.dimension_count_swa";
        rope.rot_dims = self.opt_count(ROTATED)?.unwrap_or(rope.rot_dims);
        let holds = rope.rot_dims.is_multiple_of(2) && rope.rot_dims <= heads.width;
        self.check(ROTATED, rope.rot_dims, holds, || format!("even and at most {}", heads.width))?;
        self.check_kv_heads(heads.kv, heads.count)?;
        Ok(Some(LocalLayers { pattern: LocalPattern::Listed(layers), rope, heads }))
    }

    /// Returns the width of the widest dense network, and that of each layer's if the file says so.
    pub(super) fn d_ffs(&self, family: &Family, n_layers: usize) -> Result<(usize, Vec<usize>), ConfigError> {
        if !family.layer_extras || !self.metadata.is_array(&self.key(D_FF)) {
            return Ok((self.d_ff(family)?, Vec::new()));
        }
        let widths = self.metadata.u32_array(&self.key(D_FF))?;
        self.check(D_FF, widths.len(), widths.len() == n_layers, || format!("{n_layers} entries"))?;
        let widths = widths.iter().map(|width| self.in_count_range(D_FF, *width));
        let widths = widths.collect::<Result<Vec<_>, _>>()?;
        Ok((widths.iter().copied().max().unwrap_or(1), widths))
    }

    /// Returns the width of the input that each layer has of its own, if there is one.
    pub(super) fn input_width(&self, family: &Family, n_layers: usize) -> Result<Option<usize>, ConfigError> {
        const NAME: &str = "embedding_length_per_layer_input";
        let given = if family.layer_extras { self.opt_u32(NAME)?.filter(|width| *width > 0) } else { None };
        let Some(width) = given else { return Ok(None) };
        let width = self.in_count_range(NAME, width)?;
        let most = super::keys::COUNT_MAX as usize / n_layers;
        self.check(NAME, width, width <= most, || format!("at most {most}"))?;
        Ok(Some(width))
    }

    /// Returns how many layers have keys and values of their own; the others come after them.
    pub(super) fn keyed_layers(
        &self,
        family: &Family,
        n_layers: usize,
        local: Option<&LocalLayers>,
    ) -> Result<usize, ConfigError> {
        let shared = if family.layer_extras { self.opt_u32(SHARED)?.unwrap_or(0) as usize } else { 0 };
        if shared == 0 {
            return Ok(n_layers);
        }
        // The two layers whose keys and values the others use.
        let is_local = |layer| local.is_some_and(|local| local.contains(layer));
        let keyed = n_layers.saturating_sub(shared);
        let holds = keyed >= 2 && is_local(keyed - 2) && !is_local(keyed - 1);
        self.check(SHARED, shared, holds, || {
            "0, or such that the layers before begin with a local one and another, counted from the last two"
                .to_owned()
        })?;
        Ok(keyed)
    }
}
