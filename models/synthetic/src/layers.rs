//! The layers of a model with random weights, with the tensors that its family requires.
//!
//! The list of tensors follows [`baton_engine::family`]; names are those of GGUF files. The order of the
//! tensors decides every weight, so it never changes for a family that has recorded results.

use baton_engine::family::{self, ExpertRule, Family, Presence};
use baton_engine::gguf::GgufWriter;
use baton_kernels_cpu::Format;

use crate::{SyntheticError, SyntheticModel, Weights};

/// Returns the standard deviation of a matrix of `cols` columns that keeps the length of a vector it
/// multiplies.
fn std(cols: u32) -> f64 {
    1.4 / f64::from(cols).sqrt()
}

impl SyntheticModel {
    /// Returns the rules of the family, or those of llama if the family is unknown.
    fn rules(&self) -> &'static Family {
        family::find(self.family).unwrap_or(&family::FAMILIES[0])
    }

    /// Returns the factor that the family multiplies embeddings by.
    pub(crate) fn embedding_scale(&self) -> f64 {
        if self.rules().scaled_embedding { f64::from(self.d_model).sqrt() } else { 1.0 }
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
        if self.expert_rule().is_some_and(|rule| rule.shared) {
            set("expert_shared_feed_forward_length", experts.shared_d_ff);
        }
    }

    /// Writes all tensors of one layer.
    pub(crate) fn layer(&self, weights: &mut Weights<'_>, layer: u32) -> Result<(), SyntheticError> {
        let (e, rules) = (self.d_model, self.rules());
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");
        self.attention(weights, &name)?;
        weights.vector(&name("ffn_norm.weight"), e, 1.0, 0.2)?;
        if self.experts.is_some() {
            self.mixture(weights, &name)?;
        } else if rules.fused {
            let f = self.d_ff;
            weights.matrix(&name("ffn_up.weight"), 2 * f, e, std(e))?;
            weights.matrix(&name("ffn_down.weight"), e, f, std(f))?;
        } else {
            self.gated(weights, &name, "", &[self.d_ff])?;
        }
        if rules.post_norms {
            weights.vector(&name("post_ffw_norm.weight"), e, 1.0, 0.2)?;
        }
        Ok(())
    }

    fn attention(
        &self,
        weights: &mut Weights<'_>,
        name: &impl Fn(&str) -> String,
    ) -> Result<(), SyntheticError> {
        let (e, rules) = (self.d_model, self.rules());
        let (q, kv) = (self.n_heads * self.d_head, self.n_kv_heads * self.d_head);
        weights.vector(&name("attn_norm.weight"), e, 1.0, 0.2)?;
        if rules.fused {
            weights.matrix(&name("attn_qkv.weight"), q + 2 * kv, e, std(e))?;
        } else {
            weights.matrix(&name("attn_q.weight"), q, e, std(e))?;
            weights.matrix(&name("attn_k.weight"), kv, e, std(e))?;
            weights.matrix(&name("attn_v.weight"), kv, e, std(e))?;
        }
        weights.matrix(&name("attn_output.weight"), e, q, std(q))?;
        if rules.qkv_bias == Presence::Required {
            weights.vector(&name("attn_q.bias"), q, 0.0, 0.5)?;
            weights.vector(&name("attn_k.bias"), kv, 0.0, 0.5)?;
            weights.vector(&name("attn_v.bias"), kv, 0.0, 0.5)?;
        }
        if rules.head_norms {
            weights.vector(&name("attn_q_norm.weight"), self.d_head, 1.0, 0.2)?;
            weights.vector(&name("attn_k_norm.weight"), self.d_head, 1.0, 0.2)?;
        }
        if rules.post_norms {
            weights.vector(&name("post_attention_norm.weight"), e, 1.0, 0.2)?;
        }
        Ok(())
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
        self.gated(weights, name, "_exps", &[f, experts.count])?;
        if rule.is_some_and(|rule| rule.shared) {
            weights.vector(&name("ffn_gate_inp_shexp.weight"), e, 0.0, std(e))?;
            self.gated(weights, name, "_shexp", &[experts.shared_d_ff])?;
        }
        Ok(())
    }
}
