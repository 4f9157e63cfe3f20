//! The keys of rotary positions and of what depends on a token's position.

use super::keys::Keys;
use super::{ConfigError, Temperature};
use crate::family::{Family, Presence, TemperatureRule, YarnLogRule};
use crate::rope::{Rope, RopeScaling};

impl Keys<'_> {
    pub(super) fn rope(
        &self,
        family: &Family,
        d_head: usize,
        original_context_len: usize,
    ) -> Result<Rope, ConfigError> {
        let rot_dims = self.opt_count("rope.dimension_count")?.unwrap_or(d_head);
        let holds = rot_dims.is_multiple_of(2) && rot_dims <= d_head;
        self.check("rope.dimension_count", rot_dims, holds, || format!("even and at most {d_head}"))?;
        let freq_base = self.opt_positive("rope.freq_base")?.unwrap_or(10_000.0);
        let magnitude = self.opt_positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let scaling = self.rope_scaling(freq_base, original_context_len)?;
        let magnitude = magnitude / self.yarn_divisor(family.yarn_log, scaling)?;
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

    fn yarn_multiplier(&self) -> Result<Option<f32>, ConfigError> {
        self.positive_if(Presence::Optional, "rope.scaling.yarn_log_multiplier")
    }

    /// Returns what YaRN's lengthening of rotations is divided by.
    fn yarn_divisor(&self, rule: YarnLogRule, scaling: RopeScaling) -> Result<f32, ConfigError> {
        let RopeScaling::Yarn { factor, .. } = scaling else { return Ok(1.0) };
        if rule == YarnLogRule::Never {
            return Ok(1.0);
        }
        let Some(multiplier) = self.yarn_multiplier()? else { return Ok(1.0) };
        let multiplier = if rule == YarnLogRule::Divides { multiplier } else { 1.0 };
        Ok((1.0 + 0.1 * f64::from(multiplier) * f64::from(factor.max(1.0)).ln()) as f32)
    }

    /// Returns the factor of query-key products that YaRN implies beside the width of a head.
    pub(super) fn yarn_scale(&self, family: &Family, rope: &Rope) -> Result<f32, ConfigError> {
        if family.yarn_log != YarnLogRule::ScalesAttention {
            return Ok(1.0);
        }
        let logarithm = match rope.scaling {
            RopeScaling::Yarn { factor, .. } => f64::from(factor.max(1.0)).ln(),
            RopeScaling::None => 0.0,
            // Nobody has defined what it means for these families.
            _ => {
                let key = self.key("rope.scaling.factor");
                return Err(ConfigError::Unsupported { key, value: "without YaRN".to_owned() });
            }
        };
        let multiplier = f64::from(self.yarn_multiplier()?.unwrap_or(0.0));
        Ok((rope.length() * (1.0 + multiplier * logarithm)).powi(2) as f32)
    }

    /// Returns how queries become longer with their position, if they do.
    pub(super) fn temperature(&self, family: &Family) -> Result<Option<Temperature>, ConfigError> {
        let Some(rule) = family.temperature else { return Ok(None) };
        let scale = self.positive_if(Presence::Optional, "attention.temperature_scale")?;
        let Some(scale) = scale else { return Ok(None) };
        let step = self.count(match rule {
            TemperatureRule::OriginalContext => "rope.scaling.original_context_length",
            TemperatureRule::Stated => "attention.temperature_length",
        })?;
        Ok(Some(Temperature { scale, step }))
    }

    /// Returns of how many consecutive layers the last is not rotated. Some converters write that no layer
    /// is.
    pub(super) fn unrotated_period(&self, family: &Family) -> Result<Option<usize>, ConfigError> {
        let key = self.key("rope.scaling.finetuned");
        if family.multipliers && self.metadata.opt_bool(&key)? == Some(false) {
            return Ok(Some(1));
        }
        Ok(family.unrotated_period.map(|period| period as usize))
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
