//! The layers of a model of random weights, as its family has them.
//!
//! Which tensors there are follows [`crate::family`]; names are those of GGUF files. The order of the tensors
//! decides every weight, so it never changes for a family that has been recorded.

use baton_kernels_cpu::Format;

use super::{SyntheticError, SyntheticModel, Weights};
use crate::family::{self, ExpertRule, Family, Presence};
use crate::gguf::GgufWriter;

/// The deviation of matrices that keeps the length of what goes through them.
fn std(cols: u32) -> f64 {
    1.4 / f64::from(cols).sqrt()
}

impl SyntheticModel {
    /// What the family implies; of an unknown family what llama implies.
    fn rules(&self) -> &'static Family {
        family::find(self.family).unwrap_or(&family::FAMILIES[0])
    }

    /// What the family multiplies embeddings by.
    pub(super) fn embedding_scale(&self) -> f64 {
        if self.rules().scaled_embedding { f64::from(self.d_model).sqrt() } else { 1.0 }
    }

    /// The family as the model's name says it. Of a model called "phi3", llama.cpp expects Phi-3's vocabulary.
    pub(super) fn display_name(&self) -> &'static str {
        if self.family == "phi3" { "phi" } else { self.family }
    }

    fn expert_rule(&self) -> Option<ExpertRule> {
        self.rules().experts
    }

    /// The metadata of experts, where there are any.
    pub(super) fn expert_keys(&self, writer: &mut GgufWriter<'_>) {
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

    /// All tensors of one layer.
    pub(super) fn layer(&self, weights: &mut Weights<'_>, layer: u32) -> Result<(), SyntheticError> {
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

    /// A network's matrices; `wide` is its width, then how many of them there are where they are stacked.
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
