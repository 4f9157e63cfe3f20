//! LoRA adapters of random numbers, for any model whose layers are dense.

use baton_kernels_cpu::{Format, quantize_row};

use super::SyntheticError;
use super::weights::SplitMix64;
use crate::adapter::{A_SUFFIX, ALPHA_KEY, B_SUFFIX, GENERAL_TYPE, TYPE, TYPE_KEY, Target, targets};
use crate::config::ModelConfig;
use crate::gguf::GgufWriter;

/// The shape and seed of an adapter of random numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SyntheticAdapter {
    /// Rank of every change.
    pub rank: u32,
    /// `adapter.lora.alpha`.
    pub alpha: f32,
    /// How much a change moves what it is added to: its deviation against that of inputs, with `alpha` as the rank.
    pub strength: f64,
    /// The format of both halves.
    pub format: Format,
    /// Decides every number.
    pub seed: u64,
}

impl SyntheticAdapter {
    /// An adapter that changes every projection of every layer enough to change what a model says.
    pub fn of_seed(seed: u64) -> SyntheticAdapter {
        SyntheticAdapter { rank: 4, alpha: 4.0, strength: 0.5, format: Format::F32, seed }
    }

    /// The adapter as the bytes of a GGUF file, for a model of this shape.
    ///
    /// # Errors
    /// [`SyntheticError`] where the format cannot hold rows of the rank.
    pub fn to_gguf(&self, config: &ModelConfig) -> Result<Vec<u8>, SyntheticError> {
        let mut writer = GgufWriter::new();
        writer.set("general.type", GENERAL_TYPE).set(TYPE_KEY, TYPE);
        writer.set("general.architecture", config.family.name);
        writer.set("general.name", format!("synthetic adapter seed {}", self.seed));
        writer.set(ALPHA_KEY, self.alpha);
        let mut random = SplitMix64(self.seed);
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
        // Variances multiply: A keeps that of its input, B gives the wanted one from `rank` numbers.
        let a_std = 1.0 / (target.cols as f64).sqrt();
        let b_std = self.strength / (rank as f64).sqrt();
        let halves = [(A_SUFFIX, rank, target.cols, a_std), (B_SUFFIX, target.rows, rank, b_std)];
        for (suffix, rows, cols, std) in halves {
            let name = format!("blk.{layer}.{}.weight{suffix}", target.name);
            let mut bytes = Vec::new();
            for _ in 0..rows {
                let values: Vec<f32> = (0..cols).map(|_| (std * random.unit()) as f32).collect();
                quantize_row(self.format, &values, &mut bytes)
                    .map_err(|err| SyntheticError::Quantize { name: name.clone(), err })?;
            }
            writer.tensor(&name, &[cols as u64, rows as u64], self.format, bytes)?;
        }
        Ok(())
    }
}
