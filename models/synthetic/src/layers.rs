//! The layers of a model with random weights, with the tensors that its family requires.
//!
//! The list of tensors follows [`baton_engine::family`]; names are those of GGUF files. The order of the
//! tensors decides every weight, so it never changes for a family that has recorded results.

use baton_engine::family::{self, ExpertRule, Family, Presence, SharedRule};
use baton_engine::gguf::GgufWriter;
use baton_kernels_cpu::Format;

use crate::{SyntheticError, SyntheticLatent, SyntheticModel, Weights};

/// Returns the standard deviation of a matrix of `cols` columns that keeps the length of a vector it
/// multiplies.
pub(crate) fn std(cols: u32) -> f64 {
    1.4 / f64::from(cols).sqrt()
}

impl SyntheticModel {
    /// Returns the rules of the family, or those of llama if the family is unknown.
    pub(crate) fn rules(&self) -> &'static Family {
        family::find(self.family).unwrap_or(&family::FAMILIES[0])
    }

    /// Returns the factor that the family multiplies embeddings by.
    pub(crate) fn embedding_scale(&self) -> f64 {
        if self.rules().scaled_embedding { f64::from(self.d_model).sqrt() } else { 1.0 }
    }

    /// Returns the name of the last norm.
    pub(crate) fn output_norm(&self) -> &'static str {
        self.rules().output_norm
    }

    /// Returns the family as written in the model's name. It avoids "phi3", for which llama.cpp expects
    /// Phi-3's vocabulary.
    pub(crate) fn display_name(&self) -> &'static str {
        if self.family == "phi3" { "phi" } else { self.family }
    }

    fn expert_rule(&self) -> Option<ExpertRule> {
        self.rules().experts
    }

    /// Sets the metadata of experts, if the model has experts.
    pub(crate) fn expert_keys(&self, writer: &mut GgufWriter<'_>) {
        let Some(experts) = self.experts else { return };
        let mut set = |name: &str, value: u32| {
            writer.set(&format!("{}.{name}", self.family), value);
        };
        set("expert_count", experts.count);
        set("expert_used_count", experts.used);
        if self.expert_rule().is_some_and(|rule| rule.own_width) {
            set("expert_feed_forward_length", experts.d_ff);
        }
        match self.expert_rule() {
            Some(ExpertRule { shared: SharedRule::Plain, stated: true, .. }) => {
                set("expert_shared_count", experts.shared_d_ff / experts.d_ff);
            }
            Some(rule) if rule.shared != SharedRule::Never => {
                set("expert_shared_feed_forward_length", experts.shared_d_ff);
            }
            _ => {}
        }
    }

    /// Sets the other metadata that the family's files must have.
    pub(crate) fn family_keys(&self, writer: &mut GgufWriter<'_>) {
        let rules = self.rules();
        let windowed = rules.local.is_some_and(|rule| rule.window == Presence::Required);
        for (name, value, required) in [
            ("attn_logit_softcapping", 50.0f32, rules.attention_cap == Presence::Required),
            ("final_logit_softcapping", 30.0, rules.logit_cap == Presence::Required),
            ("embedding_scale", 3.0, rules.multipliers),
            ("residual_scale", 0.5, rules.multipliers),
            ("logit_scale", 4.0, rules.multipliers),
        ] {
            if required {
                writer.set(&format!("{}.{name}", self.family), value);
            }
        }
        let mut set = |name: &str, value: u32| {
            writer.set(&format!("{}.{name}", self.family), value);
        };
        if windowed {
            set("attention.sliding_window", 64);
        }
        if self.dense_layers > 0 {
            set("leading_dense_block_count", self.dense_layers);
        }
        let Some(latent) = self.latent else { return };
        let d_key = latent.d_plain + latent.d_turned;
        set("attention.kv_lora_rank", latent.kv_rank);
        set("rope.dimension_count", latent.d_turned);
        if latent.q_rank > 0 {
            set("attention.q_lora_rank", latent.q_rank);
        }
        if latent.absorbed {
            set("attention.head_count_kv", 1);
            set("attention.key_length", latent.kv_rank + latent.d_turned);
            set("attention.value_length", latent.kv_rank);
            set("attention.key_length_mla", d_key);
            set("attention.value_length_mla", latent.d_value);
        } else {
            set("attention.head_count_kv", self.n_heads);
            set("attention.key_length", d_key);
            set("attention.value_length", latent.d_value);
        }
    }

    /// Returns whether the model has a bias that the family's files hold as `presence` says.
    fn has_bias(&self, presence: Presence) -> bool {
        presence == Presence::Required || (self.biased && presence == Presence::Optional)
    }

    /// Writes all tensors of one layer.
    pub(crate) fn layer(&self, weights: &mut Weights<'_>, layer: u32) -> Result<(), SyntheticError> {
        let (e, rules) = (self.d_model, self.rules());
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");
        weights.vector(&name("attn_norm.weight"), e, 1.0, 0.2)?;
        match rules.recurrent.filter(|_| self.is_recurrent(layer)) {
            Some(rule) => self.recurrent_layer(weights, rule, &name)?,
            None => self.attention(weights, layer, &name)?,
        }
        weights.vector(&name(&format!("{}.weight", rules.ffn_norm)), e, 1.0, 0.2)?;
        let f = self.d_ff_at(layer);
        if self.experts.is_some() && layer >= self.dense_layers {
            if self.expert_rule().is_some_and(|rule| rule.beside) {
                self.gated(weights, &name, "", &[f])?;
            }
            self.mixture(weights, &name)?;
        } else if rules.fused_gate {
            weights.matrix(&name("ffn_up.weight"), 2 * f, e, std(e))?;
            weights.matrix(&name("ffn_down.weight"), e, f, std(f))?;
        } else {
            self.gated(weights, &name, "", &[f])?;
            if self.has_bias(rules.ffn_bias) {
                for (tensor, len) in [("gate", self.d_ff), ("up", self.d_ff), ("down", e)] {
                    weights.vector(&name(&format!("ffn_{tensor}.bias")), len, 0.0, 0.2)?;
                }
            }
        }
        if rules.post_norms {
            weights.vector(&name("post_ffw_norm.weight"), e, 1.0, 0.2)?;
        }
        self.layer_extras(weights, &name)
    }

    fn attention(
        &self,
        weights: &mut Weights<'_>,
        layer: u32,
        name: &impl Fn(&str) -> String,
    ) -> Result<(), SyntheticError> {
        let (e, rules) = (self.d_model, self.rules());
        let heads = self.heads_at(layer);
        let (q, kv) = (self.n_heads * heads.d_head, heads.n_kv_heads * heads.d_head);
        if let Some(latent) = self.latent {
            return self.latent(weights, name, latent);
        }
        let gated_q = if rules.gated_attention { 2 * q } else { q };
        if rules.fused_qkv {
            weights.matrix(&name("attn_qkv.weight"), q + 2 * kv, e, std(e))?;
        } else {
            weights.matrix(&name("attn_q.weight"), gated_q, e, std(e))?;
            if heads.keys {
                weights.matrix(&name("attn_k.weight"), kv, e, std(e))?;
            }
            if heads.values {
                weights.matrix(&name("attn_v.weight"), kv, e, std(e))?;
            }
        }
        weights.matrix(&name("attn_output.weight"), e, q, std(q))?;
        if self.has_bias(rules.qkv_bias) {
            weights.vector(&name("attn_q.bias"), q, 0.0, 0.5)?;
            weights.vector(&name("attn_k.bias"), kv, 0.0, 0.5)?;
            weights.vector(&name("attn_v.bias"), kv, 0.0, 0.5)?;
        }
        if self.has_bias(rules.output_bias) {
            weights.vector(&name("attn_output.bias"), e, 0.0, 0.2)?;
        }
        if rules.sinks {
            weights.vector(&name("attn_sinks.weight"), self.n_heads, 0.0, 1.0)?;
        }
        if rules.head_norms {
            // Without a factor, the products of heads of this length are as large as with the usual one.
            let length = if rules.unscaled_products { f64::from(heads.d_head).powf(-0.25) } else { 1.0 };
            weights.vector(&name("attn_q_norm.weight"), heads.d_head, length, 0.2 * length)?;
            if heads.keys {
                weights.vector(&name("attn_k_norm.weight"), heads.d_head, length, 0.2 * length)?;
            }
        }
        if rules.post_norms {
            weights.vector(&name("post_attention_norm.weight"), e, 1.0, 0.2)?;
        }
        Ok(())
    }

    fn latent(
        &self,
        weights: &mut Weights<'_>,
        name: &impl Fn(&str) -> String,
        latent: SyntheticLatent,
    ) -> Result<(), SyntheticError> {
        let (e, h, r) = (self.d_model, self.n_heads, latent.kv_rank);
        let (p, u, q) = (latent.d_plain, latent.d_value, latent.q_rank);
        let d = p + latent.d_turned;
        if q > 0 {
            weights.matrix(&name("attn_q_a.weight"), q, e, std(e))?;
            weights.vector(&name("attn_q_a_norm.weight"), q, 1.0, 0.2)?;
            weights.matrix(&name("attn_q_b.weight"), h * d, q, std(q))?;
        } else {
            weights.matrix(&name("attn_q.weight"), h * d, e, std(e))?;
        }
        weights.matrix(&name("attn_kv_a_mqa.weight"), r + latent.d_turned, e, std(e))?;
        weights.vector(&name("attn_kv_a_norm.weight"), r, 1.0, 0.2)?;
        if latent.absorbed {
            weights.stack(&name("attn_k_b.weight"), &[p, r, h], std(r))?;
            weights.stack(&name("attn_v_b.weight"), &[r, u, h], std(r))?;
        } else {
            weights.matrix(&name("attn_kv_b.weight"), h * (p + u), r, std(r))?;
        }
        weights.matrix(&name("attn_output.weight"), e, h * u, std(h * u))
    }

    /// Writes the three matrices of a gated feed-forward network. `wide`: its width, then the number of
    /// stacked networks if they are stacked.
    fn gated(
        &self,
        weights: &mut Weights<'_>,
        name: &impl Fn(&str) -> String,
        suffix: &str,
        wide: &[u32],
    ) -> Result<(), SyntheticError> {
        let (e, f) = (self.d_model, wide[0]);
        let across = [&[e], wide].concat();
        let back = [&[f, e], &wide[1..]].concat();
        weights.stack(&name(&format!("ffn_gate{suffix}.weight")), &across, std(e))?;
        weights.stack(&name(&format!("ffn_up{suffix}.weight")), &across, std(e))?;
        weights.stack(&name(&format!("ffn_down{suffix}.weight")), &back, std(f))
    }

    fn mixture(
        &self,
        weights: &mut Weights<'_>,
        name: &impl Fn(&str) -> String,
    ) -> Result<(), SyntheticError> {
        let Some(experts) = self.experts else { return Ok(()) };
        let (e, rule) = (self.d_model, self.expert_rule());
        let own_width = rule.is_some_and(|rule| rule.own_width);
        let f = if own_width { experts.d_ff } else { self.d_ff };
        // Converters leave routers in F32.
        weights.shaped(&name("ffn_gate_inp.weight"), &[e, experts.count], Format::F32, std(e))?;
        if rule.is_some_and(|rule| rule.beside) {
            weights.stack(&name("ffn_gate_up_exps.weight"), &[e, 2 * f, experts.count], std(e))?;
            weights.stack(&name("ffn_down_exps.weight"), &[f, e, experts.count], std(f))?;
            return self.beside_experts(weights, name, experts.count);
        }
        self.gated(weights, name, "_exps", &[f, experts.count])?;
        if rule.is_some_and(|rule| rule.shared == SharedRule::Gated) {
            weights.vector(&name("ffn_gate_inp_shexp.weight"), e, 0.0, std(e))?;
        }
        if rule.is_some_and(|rule| rule.shared != SharedRule::Never) {
            self.gated(weights, name, "_shexp", &[experts.shared_d_ff])?;
        }
        if rule.is_some_and(|rule| rule.biased) {
            weights.vector(&name("ffn_gate_inp.bias"), experts.count, 0.0, 0.2)?;
            for (tensor, len) in [("gate", f), ("up", f), ("down", e)] {
                let name = name(&format!("ffn_{tensor}_exps.bias"));
                weights.shaped(&name, &[len, experts.count], Format::F32, 0.2)?;
            }
        }
        if self.biased && rule.is_some_and(|rule| rule.stated) {
            weights.vector(&name("exp_probs_b.bias"), experts.count, 0.0, 0.2)?;
        }
        Ok(())
    }
}
