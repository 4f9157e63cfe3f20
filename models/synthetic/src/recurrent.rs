//! The recurrent layers of a model with random weights: their metadata and tensors.

use baton_engine::family::RecurrentRule;
use baton_engine::gguf::GgufWriter;
use baton_kernels_cpu::Format;

use crate::layers::std;
use crate::{ExtraValue, SyntheticError, SyntheticModel, Weights};

impl SyntheticModel {
    /// Whether the layer is recurrent; every layer is asked, also in families without such layers.
    pub(crate) fn is_recurrent(&self, layer: u32) -> bool {
        self.rules().recurrent.is_some() && !(layer + 1).is_multiple_of(self.recurrent.interval)
    }

    /// Sets the metadata of recurrent layers, if the family has them.
    pub(crate) fn recurrent_keys(&self, writer: &mut GgufWriter<'_>) {
        let key = |name: &str| format!("{}.{name}", self.family);
        let with = &self.recurrent;
        match self.rules().recurrent {
            Some(RecurrentRule::ShortConv) => {
                let heads = |layer| if self.is_recurrent(layer) { 0 } else { self.n_kv_heads };
                let counts: Vec<u32> = (0..self.n_layers).map(heads).collect();
                writer.set(&key("attention.head_count_kv"), counts);
                writer.set(&key("shortconv.l_cache"), with.taps);
            }
            Some(RecurrentRule::DeltaNet { grouped }) => {
                for (name, value) in [
                    ("full_attention_interval", with.interval),
                    ("ssm.conv_kernel", with.taps),
                    ("ssm.inner_size", with.value_heads * with.d_head),
                    ("ssm.state_size", with.d_head),
                    ("ssm.time_step_rank", with.value_heads),
                    ("ssm.group_count", with.key_heads),
                ] {
                    writer.set(&key(name), value);
                }
                if !grouped {
                    let sections = (0..3).map(|section| (self.pairs() + 2 - section) / 3);
                    let sections: Vec<u32> = sections.chain([0]).collect();
                    writer.set(&key("rope.dimension_sections"), sections);
                }
            }
            _ => {}
        }
    }

    /// Returns the number of rotated pairs of a head.
    fn pairs(&self) -> u32 {
        let dims = self.extra.iter().find_map(|(name, value)| match value {
            ExtraValue::U32(dims) if *name == "rope.dimension_count" => Some(*dims),
            _ => None,
        });
        dims.unwrap_or(self.d_head) / 2
    }

    /// Writes what a recurrent layer has instead of attention.
    pub(crate) fn recurrent_layer(
        &self,
        weights: &mut Weights<'_>,
        rule: RecurrentRule,
        name: &impl Fn(&str) -> String,
    ) -> Result<(), SyntheticError> {
        let (e, with) = (self.d_model, &self.recurrent);
        let (n, values) = (with.value_heads, with.value_heads * with.d_head);
        // Converters leave the taps of convolutions in F32.
        let taps_std = 1.0 / f64::from(with.taps).sqrt();
        let RecurrentRule::DeltaNet { grouped } = rule else {
            weights.matrix(&name("shortconv.in_proj.weight"), 3 * e, e, std(e))?;
            weights.shaped(&name("shortconv.conv.weight"), &[with.taps, e], Format::F32, taps_std)?;
            return weights.matrix(&name("shortconv.out_proj.weight"), e, e, std(e));
        };
        let channels = 2 * with.key_heads * with.d_head + values;
        weights.matrix(&name("attn_qkv.weight"), channels, e, std(e))?;
        weights.matrix(&name("attn_gate.weight"), values, e, std(e))?;
        weights.shaped(&name("ssm_conv1d.weight"), &[with.taps, channels], Format::F32, taps_std)?;
        weights.vector(&name("ssm_dt.bias"), n, 0.0, 0.5)?;
        weights.vector(&name("ssm_a"), n, -0.4, 0.1)?;
        if grouped {
            weights.matrix(&name("ssm_ba.weight"), 2 * n, e, std(e))?;
        } else {
            weights.matrix(&name("ssm_beta.weight"), n, e, std(e))?;
            weights.matrix(&name("ssm_alpha.weight"), n, e, std(e))?;
        }
        weights.vector(&name("ssm_norm.weight"), with.d_head, 1.0, 0.2)?;
        weights.matrix(&name("ssm_out.weight"), e, values, std(values))
    }
}
