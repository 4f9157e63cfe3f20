//! LoRA adapters of random numbers, for any model whose layers are dense.

use baton_engine::adapter::{
    A_SUFFIX, ALPHA_KEY, B_SUFFIX, GENERAL_TYPE, TYPE, TYPE_KEY, Target, format_of_half, targets,
};
use baton_engine::config::ModelConfig;
use baton_engine::gguf::GgufWriter;
use baton_kernels_cpu::{Format, quantize_row};
use baton_random::SplitMix64;

use crate::SyntheticError;
use crate::weights::normal;

/// The shape and seed of an adapter of random numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SyntheticAdapter {
    /// Rank of every low-rank update.
    pub rank: u32,
    /// `adapter.lora.alpha`.
    pub alpha: f32,
    /// Standard deviation of an update's output relative to its input, if `alpha` equals the rank.
    pub strength: f64,
    /// The format of the A and B matrices; F16 for rows that are no whole blocks of it.
    pub format: Format,
    /// Seed of every number.
    pub seed: u64,
}

impl SyntheticAdapter {
    /// Returns an adapter that changes every projection of every layer enough to change the model's answers.
    pub fn of_seed(seed: u64) -> SyntheticAdapter {
        SyntheticAdapter { rank: 4, alpha: 4.0, strength: 0.5, format: Format::F32, seed }
    }

    /// Returns the adapter as the bytes of a GGUF file, for a model of this shape.
    ///
    /// # Errors
    /// [`SyntheticError`] if a format cannot be written.
    pub fn to_gguf(&self, config: &ModelConfig) -> Result<Vec<u8>, SyntheticError> {
        let mut writer = GgufWriter::new();
        writer.set("general.type", GENERAL_TYPE).set(TYPE_KEY, TYPE);
        writer.set("general.architecture", config.family.name);
        writer.set("general.name", format!("synthetic adapter seed {}", self.seed));
        writer.set(ALPHA_KEY, self.alpha);
        let mut random = SplitMix64::new(self.seed);
        let targets = targets(config);
        for layer in 0..config.n_layers {
            for target in &targets {
                self.halves(&mut writer, layer, target, &mut random)?;
            }
        }
        Ok(writer.to_bytes()?)
    }

    fn halves(
        &self,
        writer: &mut GgufWriter<'_>,
        layer: usize,
        target: &Target,
        random: &mut SplitMix64,
    ) -> Result<(), SyntheticError> {
        let rank = self.rank as usize;
        // Variances multiply: A keeps the variance of its input, and B turns `rank` numbers into the wanted
        // variance.
        let a_std = 1.0 / (target.cols as f64).sqrt();
        let b_std = self.strength / (rank as f64).sqrt();
        let halves = [(A_SUFFIX, rank, target.cols, a_std), (B_SUFFIX, target.rows, rank, b_std)];
        for (suffix, rows, cols, std) in halves {
            let name = format!("blk.{layer}.{}.weight{suffix}", target.name);
            let (mut bytes, format) = (Vec::new(), format_of_half(self.format, cols));
            for _ in 0..rows {
                let values: Vec<f32> = (0..cols).map(|_| (std * normal(random)) as f32).collect();
                quantize_row(format, &values, &mut bytes)
                    .map_err(|err| SyntheticError::Quantize { name: name.clone(), err })?;
            }
            writer.tensor(&name, &[cols as u64, rows as u64], format, bytes)?;
        }
        Ok(())
    }
}
