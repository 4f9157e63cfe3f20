//! Rotary positions: from `config.json` to GGUF keys, and to tensors of divisors for the scalings that need
//! them.
//!
//! Old files have `rope_theta` and `rope_scaling`; new ones have `rope_parameters` with both. Source:
//! `llama3` scaling as in `transformers`' `modeling_rope_utils`, computed once here because GGUF files hold
//! the result.

use baton_engine::gguf::MetaValue;

use crate::architecture::{Architecture, Window};
use crate::error::ImportError;
use crate::hf_config::HfConfig;
use crate::json::JsonFile;

/// The rotary positions of a file.
#[derive(Debug, Default)]
pub(crate) struct RopeParts {
    /// Keys after the architecture's prefix.
    pub(crate) metadata: Vec<(&'static str, MetaValue)>,
    /// Tensors of divisors.
    pub(crate) tensors: Vec<(&'static str, Vec<f32>)>,
}

impl RopeParts {
    /// Reads a model's rotary positions; heads are `d_head` wide.
    pub(crate) fn new(
        config: &HfConfig,
        architecture: &Architecture,
        d_head: u32,
    ) -> Result<RopeParts, ImportError> {
        let json = &config.json;
        let both = match json.opt_object("rope_parameters")? {
            Some(parameters) => Some(parameters),
            None => json.opt_object("rope_scaling")?,
        };
        let (scaling, local) = match &both {
            Some(both) => match both.opt_object("full_attention")? {
                Some(full) => (Some(full), both.opt_object("sliding_attention")?),
                None => (Some(both.clone()), None),
            },
            None => (None, None),
        };
        let of =
            |scaling: &Option<JsonFile>, key| scaling.as_ref().map_or(Ok(None), |json| json.opt_f64(key));
        let theta = of(&scaling, "rope_theta")?.or(json.opt_f64("rope_theta")?).unwrap_or(10_000.0);
        let rotated = match of(&scaling, "partial_rotary_factor")?.or(json.opt_f64("partial_rotary_factor")?)
        {
            Some(share) => rotated_dims(json, share, d_head)?,
            None => d_head,
        };
        let mut parts = RopeParts::default();
        parts.set("rope.dimension_count", rotated);
        parts.set("rope.freq_base", theta as f32);
        if architecture.window == Window::Alternating {
            let local = of(&local, "rope_theta")?.or(json.opt_f64("rope_local_base_freq")?);
            parts.set("rope.freq_base_swa", local.unwrap_or(10_000.0) as f32);
        }
        if let Some(scaling) = scaling {
            parts.scaling(config, architecture, &scaling, Angles { theta, rotated })?;
        }
        Ok(parts)
    }

    fn set(&mut self, key: &'static str, value: impl Into<MetaValue>) {
        self.metadata.push((key, value.into()));
    }

    fn scaling(
        &mut self,
        config: &HfConfig,
        architecture: &Architecture,
        scaling: &JsonFile,
        angles: Angles,
    ) -> Result<(), ImportError> {
        let key = if scaling.get("rope_type").is_some() { "rope_type" } else { "type" };
        match scaling.opt_str(key)?.unwrap_or("default") {
            "default" => Ok(()),
            "linear" => {
                self.set("rope.scaling.type", "linear");
                self.set("rope.scaling.factor", scaling.f64("factor")? as f32);
                Ok(())
            }
            "llama3" if architecture.gguf == "llama" => {
                let divisors = llama3_divisors(scaling, angles)?;
                self.tensors.push(("rope_freqs.weight", divisors));
                Ok(())
            }
            "yarn" => self.yarn(config, scaling),
            "su" | "longrope" if architecture.gguf == "phi3" => self.longrope(config, scaling, angles),
            _ => {
                Err(scaling
                    .unsupported(key, format!("a scaling that the engine has for {}", architecture.gguf)))
            }
        }
    }

    fn yarn(&mut self, config: &HfConfig, scaling: &JsonFile) -> Result<(), ImportError> {
        refuse_magnitudes(scaling, &["attention_factor", "mscale", "mscale_all_dim"])?;
        let original = match scaling.opt_count("original_max_position_embeddings")? {
            Some(original) => original,
            None => config.json.count("max_position_embeddings")?,
        };
        self.set("rope.scaling.type", "yarn");
        self.set("rope.scaling.factor", scaling.f64("factor")? as f32);
        self.set("rope.scaling.original_context_length", original);
        for (from, to) in
            [("beta_fast", "rope.scaling.yarn_beta_fast"), ("beta_slow", "rope.scaling.yarn_beta_slow")]
        {
            if let Some(beta) = scaling.opt_f64(from)? {
                self.set(to, beta as f32);
            }
        }
        Ok(())
    }

    fn longrope(&mut self, config: &HfConfig, scaling: &JsonFile, angles: Angles) -> Result<(), ImportError> {
        refuse_magnitudes(scaling, &["attention_factor", "short_mscale", "long_mscale"])?;
        let json = &config.json;
        let longest = f64::from(json.count("max_position_embeddings")?);
        let original = match scaling.opt_count("original_max_position_embeddings")? {
            Some(original) => original,
            None => json.count("original_max_position_embeddings")?,
        };
        let scale = longest / f64::from(original);
        let magnitude = if scale > 1.0 { (1.0 + scale.ln() / f64::from(original).ln()).sqrt() } else { 1.0 };
        self.set("rope.scaling.attn_factor", magnitude as f32);
        self.set("rope.scaling.original_context_length", original);
        let want = angles.rotated as usize / 2;
        for (key, tensor) in
            [("long_factor", "rope_factors_long.weight"), ("short_factor", "rope_factors_short.weight")]
        {
            let factors = scaling.opt_f64s(key)?.unwrap_or_default();
            if factors.len() != want || factors.iter().any(|factor| *factor <= 0.0) {
                return Err(scaling.unsupported(key, format!("{want} numbers above 0")));
            }
            self.tensors.push((tensor, factors.iter().map(|&factor| factor as f32).collect()));
        }
        Ok(())
    }
}

/// The unscaled rotation.
#[derive(Debug, Clone, Copy)]
struct Angles {
    theta: f64,
    /// Dimensions of a head that are rotated.
    rotated: u32,
}

/// Refuses magnitude factors of the rotated heads that a file sets itself.
fn refuse_magnitudes(scaling: &JsonFile, keys: &[&str]) -> Result<(), ImportError> {
    match keys.iter().find(|key| scaling.get(key).is_some()) {
        Some(key) => Err(scaling.unsupported(key, "absent: the factor that follows from the stretching")),
        None => Ok(()),
    }
}

fn rotated_dims(json: &JsonFile, share: f64, d_head: u32) -> Result<u32, ImportError> {
    let dims = (share * f64::from(d_head)) as u32;
    if share > 0.0 && share <= 1.0 && dims >= 2 && dims.is_multiple_of(2) {
        return Ok(dims);
    }
    Err(json.unsupported("partial_rotary_factor", format!("a share that leaves an even part of {d_head}")))
}

/// Returns the divisor of each pair's frequency: 1 for fast pairs, `factor` for slow ones, a blend between.
fn llama3_divisors(scaling: &JsonFile, angles: Angles) -> Result<Vec<f32>, ImportError> {
    let get = |key, default| Ok::<f64, ImportError>(scaling.opt_f64(key)?.unwrap_or(default));
    let factor = get("factor", 8.0)?;
    let (low, high) = (get("low_freq_factor", 1.0)?, get("high_freq_factor", 4.0)?);
    let original = get("original_max_position_embeddings", 8192.0)?;
    if factor <= 0.0 || low <= 0.0 || high <= low {
        return Err(scaling.unsupported("high_freq_factor", format!("above the low_freq_factor {low}")));
    }
    let divisor = |pair: u32| {
        let exponent = f64::from(2 * pair) / f64::from(angles.rotated);
        let wavelength = 2.0 * std::f64::consts::PI * angles.theta.powf(exponent);
        if wavelength < original / high {
            1.0
        } else if wavelength > original / low {
            factor
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    Ok((0..angles.rotated / 2).map(|pair| divisor(pair) as f32).collect())
}
