//! The recurrent layers of a model: which they are, and the shape of their states.
//!
//! Invariant: the widths of a [`Recurrent`] are non-zero, and the length of a state fits `usize`.

use super::{ConfigError, Keys};
use crate::family::{Family, Presence, RecurrentRule};

/// The shape of a gated delta net. Queries, keys and values of a head have the same width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaNet {
    /// Heads of queries and keys; divides `value_heads`.
    pub key_heads: usize,
    /// Heads of values, with a state each.
    pub value_heads: usize,
    /// Width of one head.
    pub d_head: usize,
    /// Whether the value heads of one key head are neighbours; if not, value head `n` has key head
    /// `n % key_heads`.
    pub grouped: bool,
}

impl DeltaNet {
    /// Returns the width of all key heads together, which is also that of all query heads.
    pub fn d_keys(&self) -> usize {
        self.key_heads * self.d_head
    }

    /// Returns the width of all value heads together.
    pub fn d_values(&self) -> usize {
        self.value_heads * self.d_head
    }

    /// Returns the key head of a value head.
    pub fn key_head(&self, value_head: usize) -> usize {
        if self.grouped {
            value_head / (self.value_heads / self.key_heads)
        } else {
            value_head % self.key_heads
        }
    }
}

/// What recurrent layers compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecurrentKind {
    /// A convolution over the newest tokens, between two gates.
    ShortConv,
    /// A gated delta net behind a convolution.
    DeltaNet(DeltaNet),
}

/// The recurrent layers of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recurrent {
    /// For every layer, whether it is recurrent; some are, and some are not.
    pub layers: Vec<bool>,
    /// What they compute.
    pub kind: RecurrentKind,
    /// Tokens that a convolution sees, 2 to 64.
    pub taps: usize,
    /// Width of the convolution.
    pub channels: usize,
}

/// The most tokens that a convolution sees.
const TAPS_MAX: usize = 64;
/// The widest head of a delta net; its state is as wide squared.
const D_HEAD_MAX: usize = 1024;
/// The most layers of a model with recurrent layers.
const LAYERS_MAX: usize = 1 << 16;
/// The most numbers of the states of all layers together.
const STATE_LEN_MAX: usize = 1 << 36;

impl Recurrent {
    /// Returns how many layers are recurrent.
    pub fn count(&self) -> usize {
        self.layers.iter().filter(|recurrent| **recurrent).count()
    }

    /// Returns the numbers of a layer's state that are inputs of its convolution, `[taps - 1, channels]`.
    /// They come first.
    pub fn conv_len(&self) -> usize {
        (self.taps - 1) * self.channels
    }

    /// Returns the numbers of one layer's state.
    pub fn layer_len(&self) -> usize {
        self.conv_len()
            + match &self.kind {
                RecurrentKind::ShortConv => 0,
                RecurrentKind::DeltaNet(net) => net.value_heads * net.d_head * net.d_head,
            }
    }

    /// Returns the numbers of a sequence's state in all layers.
    pub fn state_len(&self) -> usize {
        self.count() * self.layer_len()
    }
}

impl Keys<'_> {
    /// Returns the number of layers, and how many more the file holds that are not used.
    pub(super) fn layers(&self, family: &Family) -> Result<(usize, usize), ConfigError> {
        const UNUSED: &str = "nextn_predict_layers";
        let all = self.count("block_count")?;
        let delta_net = matches!(family.recurrent, Some(RecurrentRule::DeltaNet { .. }));
        let unused = if delta_net { self.opt_u32(UNUSED)?.unwrap_or(0) as usize } else { 0 };
        self.check(UNUSED, unused, unused < all, || format!("below the {all} layers"))?;
        Ok((all - unused, unused))
    }

    /// Returns the number of key and value heads, and for every layer whether it has any, if the file says so
    /// for each layer.
    pub(super) fn kv_heads(
        &self,
        family: &Family,
        n_layers: usize,
        n_heads: usize,
    ) -> Result<(usize, Option<Vec<bool>>), ConfigError> {
        const KV_HEADS: &str = "attention.head_count_kv";
        if family.recurrent != Some(RecurrentRule::ShortConv) {
            return Ok((self.opt_count(KV_HEADS)?.unwrap_or(n_heads), None));
        }
        let counts = self.metadata.u32_array(&self.key(KV_HEADS))?;
        let given = || format!("{counts:?}").chars().take(80).collect::<String>();
        let heads = counts.iter().copied().find(|heads| *heads > 0);
        let alike = counts.iter().all(|count| *count == 0 || Some(*count) == heads);
        match heads {
            Some(heads) if counts.len() == n_layers && alike => {
                let heads = self.in_count_range(KV_HEADS, heads)?;
                Ok((heads, Some(counts.iter().map(|count| *count > 0).collect())))
            }
            _ => {
                let want = format!("0 or one other number for each of {n_layers} layers, not 0 for all");
                Err(self.out_of_range(KV_HEADS, given(), want))
            }
        }
    }

    /// Returns the width of a dense feed-forward layer; of an expert, if the family has no dense ones and the
    /// file does not say.
    pub(super) fn d_ff(&self, family: &Family) -> Result<usize, ConfigError> {
        let needless =
            family.experts.is_some_and(|rule| rule.presence == Presence::Required && rule.own_width);
        match self.opt_count("feed_forward_length")? {
            Some(d_ff) => Ok(d_ff),
            None if needless && family.recurrent.is_some() => self.count("expert_feed_forward_length"),
            None => self.count("feed_forward_length"),
        }
    }

    /// Refuses rotary sections with pairs that text does not rotate. Positions of text are the same in the
    /// first three sections, so these are then of no consequence; the fourth has none.
    pub(super) fn check_rope_sections(&self, family: &Family, pairs: usize) -> Result<(), ConfigError> {
        let key = self.key("rope.dimension_sections");
        if family.recurrent.is_none() || !self.metadata.contains(&key) {
            return Ok(());
        }
        let sections = self.metadata.u32_array(&key)?;
        let section = |at: usize| sections.get(at).map_or(0, |len| *len as usize);
        let all: usize = (0..4).map(section).sum();
        // Pairs take turns: of three, one is of each section, as far as the section reaches.
        let rotates = |pair: usize| all > 0 && pair % all < 3 * section(pair % all % 3);
        if sections.len() <= 4 && (0..pairs).all(rotates) {
            return Ok(());
        }
        Err(ConfigError::Unsupported { key, value: format!("{sections:?}").chars().take(80).collect() })
    }

    /// Reads the recurrent layers; `with_keys` says which layers have key heads.
    pub(super) fn recurrent(
        &self,
        family: &Family,
        with_keys: Option<Vec<bool>>,
        n_layers: usize,
        d_model: usize,
    ) -> Result<Option<Recurrent>, ConfigError> {
        let found = match family.recurrent {
            None => return Ok(None),
            Some(RecurrentRule::ShortConv) => Recurrent {
                layers: with_keys.unwrap_or_default().into_iter().map(|has| !has).collect(),
                kind: RecurrentKind::ShortConv,
                taps: self.taps("shortconv.l_cache")?,
                channels: d_model,
            },
            Some(RecurrentRule::DeltaNet { grouped }) => {
                let net = self.delta_net(grouped)?;
                Recurrent {
                    layers: self.every_other(n_layers)?,
                    kind: RecurrentKind::DeltaNet(net),
                    taps: self.taps("ssm.conv_kernel")?,
                    channels: 2 * net.d_keys() + net.d_values(),
                }
            }
        };
        // Every factor is at most 2^28 or was checked, so one layer's length fits.
        let len = found.layer_len();
        let fits = len.checked_mul(n_layers).is_some_and(|all| all <= STATE_LEN_MAX);
        self.check("block_count", n_layers, fits, || {
            format!("few enough for states of {len} numbers, {STATE_LEN_MAX} in all")
        })?;
        Ok(Some(found).filter(|found| found.count() > 0))
    }

    fn taps(&self, name: &str) -> Result<usize, ConfigError> {
        let taps = self.count(name)?;
        self.check(name, taps, (2..=TAPS_MAX).contains(&taps), || format!("2 to {TAPS_MAX}"))?;
        Ok(taps)
    }

    /// Of so many consecutive layers as the file says, all but the last are recurrent.
    fn every_other(&self, n_layers: usize) -> Result<Vec<bool>, ConfigError> {
        const INTERVAL: &str = "full_attention_interval";
        let list = self.key("attention.recurrent_layers");
        if self.metadata.contains(&list) {
            return Err(ConfigError::Unsupported { key: list, value: "a list of layers".to_owned() });
        }
        self.check("block_count", n_layers, n_layers <= LAYERS_MAX, || format!("1 to {LAYERS_MAX}"))?;
        let interval = self.opt_count(INTERVAL)?.unwrap_or(4);
        self.check(INTERVAL, interval, interval <= n_layers, || {
            format!("at most the {n_layers} layers, so that one has attention")
        })?;
        Ok((1..=n_layers).map(|layer| !layer.is_multiple_of(interval)).collect())
    }

    fn delta_net(&self, grouped: bool) -> Result<DeltaNet, ConfigError> {
        let d_head = self.count("ssm.state_size")?;
        self.check("ssm.state_size", d_head, d_head <= D_HEAD_MAX, || format!("1 to {D_HEAD_MAX}"))?;
        let key_heads = self.count("ssm.group_count")?;
        let value_heads = self.count("ssm.time_step_rank")?;
        self.check("ssm.group_count", key_heads, value_heads.is_multiple_of(key_heads), || {
            format!("a divisor of the {value_heads} value heads")
        })?;
        let inner = self.count("ssm.inner_size")?;
        self.check("ssm.inner_size", inner, inner == value_heads * d_head, || {
            format!("{value_heads} value heads of {d_head}")
        })?;
        Ok(DeltaNet { key_heads, value_heads, d_head, grouped })
    }
}
