//! Models whose layers differ: local layers with heads of their own, and what single layers have. Their
//! metadata and tensors.

use baton_engine::family::Presence;
use baton_engine::gguf::GgufWriter;

use crate::layers::std;
use crate::{SyntheticError, SyntheticModel, Weights};

/// The layers of a [`SyntheticModel`], in families whose files list them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyntheticLayers {
    /// Of so many consecutive layers, all but the last are local.
    pub interval: u32,
    /// Width of a local layer's heads.
    pub d_head: u32,
    /// Key and value heads of local layers.
    pub n_kv_heads: u32,
    /// Whether the other layers lack the projection to values.
    pub values_of_keys: bool,
    /// Last layers that use the keys and values of earlier ones. Their dense networks are twice as wide.
    pub shared: u32,
    /// Width of the input that each layer has of its own; 0 if there is none.
    pub input_width: u32,
}

/// What the attention of one layer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayerHeads {
    pub(crate) d_head: u32,
    pub(crate) n_kv_heads: u32,
    pub(crate) keys: bool,
    pub(crate) values: bool,
}

impl SyntheticModel {
    /// Whether the family's files list what its layers have.
    fn is_listed(&self) -> bool {
        self.rules().local.is_some_and(|rule| rule.listed)
    }

    fn is_local(&self, layer: u32) -> bool {
        !(layer + 1).is_multiple_of(self.layers.interval)
    }

    fn shares(&self, layer: u32) -> bool {
        layer + self.layers.shared >= self.n_layers
    }

    /// Returns what the attention of a layer has.
    pub(crate) fn heads_at(&self, layer: u32) -> LayerHeads {
        let (d_head, n_kv_heads) = (self.d_head, self.n_kv_heads);
        if !self.is_listed() {
            return LayerHeads { d_head, n_kv_heads, keys: true, values: true };
        }
        let (with, keys) = (&self.layers, !self.shares(layer));
        if self.is_local(layer) {
            return LayerHeads { d_head: with.d_head, n_kv_heads: with.n_kv_heads, keys, values: keys };
        }
        LayerHeads { d_head, n_kv_heads, keys, values: keys && !with.values_of_keys }
    }

    /// Returns the width of a layer's dense network.
    pub(crate) fn d_ff_at(&self, layer: u32) -> u32 {
        if self.is_listed() && self.shares(layer) { 2 * self.d_ff } else { self.d_ff }
    }

    /// Returns the divisors of rotary frequencies: those of the model, or if the family needs some, those by
    /// which a quarter of the pairs turn.
    pub(crate) fn divisors(&self) -> Option<Vec<f32>> {
        let required = self.rules().rope_divisors == Presence::Required;
        let pairs = self.d_head / 2;
        let divisor = |pair| if 4 * pair < pairs { 1.0 } else { 1e30 };
        self.rope_divisors.clone().or_else(|| required.then(|| (0..pairs).map(divisor).collect()))
    }

    /// Sets the metadata of the layers, if the family's files list them.
    pub(crate) fn layered_keys(&self, writer: &mut GgufWriter<'_>) {
        if !self.is_listed() {
            return;
        }
        let (key, with) = (|name: &str| format!("{}.{name}", self.family), &self.layers);
        let local: Vec<bool> = (0..self.n_layers).map(|layer| self.is_local(layer)).collect();
        writer.set(&key("attention.sliding_window_pattern"), local);
        let kv_heads: Vec<u32> = (0..self.n_layers).map(|layer| self.heads_at(layer).n_kv_heads).collect();
        writer.set(&key("attention.head_count_kv"), kv_heads);
        if with.shared > 0 {
            let widths: Vec<u32> = (0..self.n_layers).map(|layer| self.d_ff_at(layer)).collect();
            writer.set(&key("feed_forward_length"), widths);
        }
        for (name, value) in [
            ("attention.key_length_swa", with.d_head),
            ("attention.value_length_swa", with.d_head),
            ("rope.dimension_count_swa", with.d_head),
            ("attention.shared_kv_layers", with.shared),
            ("embedding_length_per_layer_input", with.input_width),
        ] {
            writer.set(&key(name), value);
        }
        writer.set(&key("rope.freq_base_swa"), 10_000f32);
    }

    /// Writes what the inputs of all layers are made with, if the model has them.
    pub(crate) fn inputs_of_layers(&self, weights: &mut Weights<'_>) -> Result<(), SyntheticError> {
        let width = self.layers.input_width;
        if !self.is_listed() || width == 0 {
            return Ok(());
        }
        let (e, all) = (self.d_model, width * self.n_layers);
        // Rows of the table are multiplied by the root of the width.
        let std_of_table = 1.0 / f64::from(width).sqrt();
        weights.matrix("per_layer_token_embd.weight", self.vocab_len, all, std_of_table)?;
        weights.matrix("per_layer_model_proj.weight", all, e, std(e))?;
        weights.vector("per_layer_proj_norm.weight", width, 1.0, 0.2)
    }

    /// Writes what a layer has after its two halves.
    pub(crate) fn layer_extras(
        &self,
        weights: &mut Weights<'_>,
        name: &impl Fn(&str) -> String,
    ) -> Result<(), SyntheticError> {
        if !self.rules().layer_extras {
            return Ok(());
        }
        let (e, width) = (self.d_model, self.layers.input_width);
        if width > 0 {
            weights.matrix(&name("inp_gate.weight"), width, e, std(e))?;
            weights.matrix(&name("proj.weight"), e, width, std(width))?;
            weights.vector(&name("post_norm.weight"), e, 1.0, 0.2)?;
        }
        weights.vector(&name("layer_output_scale.weight"), 1, 0.8, 0.1)
    }

    /// Writes the norms and factors of experts beside a dense network of `count` experts.
    pub(crate) fn beside_experts(
        &self,
        weights: &mut Weights<'_>,
        name: &impl Fn(&str) -> String,
        count: u32,
    ) -> Result<(), SyntheticError> {
        for norm in ["pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"] {
            weights.vector(&name(&format!("{norm}.weight")), self.d_model, 1.0, 0.2)?;
        }
        // The router's input is divided by the root of its width.
        let scale = f64::from(self.d_model).sqrt();
        weights.vector(&name("ffn_gate_inp.scale"), self.d_model, scale, 0.2 * scale)?;
        weights.vector(&name("ffn_down_exps.scale"), count, 1.0, 0.2)
    }
}
