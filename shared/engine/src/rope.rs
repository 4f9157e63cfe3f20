//! Rotary position embedding: the angle by which each pair of dimensions is rotated at each position.
//!
//! Angles are computed in f64 from the absolute position alone, so a token's rotation does not depend on its
//! batch or chunk. Source: RoFormer, Su 2021, section 3.4. The Llama 3 scaling is that of Meta's reference
//! code (`apply_scaling`). YaRN is that of Peng et al. 2023, with ggml's rounding of the ramp's ends.

use std::f64::consts::TAU;
use std::sync::OnceLock;

use baton_kernels_gpu::Buffer;

/// How a model scales its rotary frequencies for contexts longer than it was first trained at.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Frequencies as they are.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// The scaling factor, > 0.
        factor: f32,
    },
    /// Low frequencies divided by `factor`, high ones kept, a linear blend between.
    Llama3 {
        /// The scaling factor of the low frequencies, > 0.
        factor: f32,
        /// Wavelengths above `original_context / low_freq_factor` are scaled in full.
        low_freq_factor: f32,
        /// Wavelengths below `original_context / high_freq_factor` are kept; > `low_freq_factor`.
        high_freq_factor: f32,
        /// Tokens that the model was first trained at.
        original_context: u32,
    },
    /// Pairs with many turns within the original context are kept, those with few are divided by `factor`,
    /// with a ramp between. All rotations are lengthened by `1 + 0.1 ln(factor)`. Source: YaRN, Peng 2023,
    /// sections 3.2 to 3.4.
    Yarn {
        /// The scaling factor, > 0.
        factor: f32,
        /// A pair with at least this many turns within the original context is kept; > `beta_slow`.
        beta_fast: f32,
        /// A pair with fewer turns is scaled in full; > 0.
        beta_slow: f32,
        /// Tokens that the model was first trained at.
        original_context: u32,
    },
}

/// The rotary embedding of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Rotated dimensions of each head, the first ones; even.
    pub rot_dims: usize,
    /// Base of the geometric series of frequencies.
    pub freq_base: f32,
    /// The scaling.
    pub scaling: RopeScaling,
    /// Factor of every cosine and sine, > 0: models with scaled frequencies attend more sharply. YaRN's own
    /// factor is applied in addition.
    pub magnitude: f32,
    /// Divisors from the file's `rope_freqs.weight` or `rope_factors_*.weight`, one per pair, if the file has
    /// them.
    pub freq_divisors: Option<Vec<f32>>,
}

impl Rope {
    /// Returns the radians per position of every pair, `[rot_dims / 2]`.
    pub fn frequencies(&self) -> Vec<f64> {
        let pairs = self.rot_dims / 2;
        (0..pairs)
            .map(|pair| {
                let exponent = -(2.0 * pair as f64) / self.rot_dims as f64;
                let freq = f64::from(self.freq_base).powf(exponent);
                let freq = self.scale(pair, freq);
                self.freq_divisors.as_ref().map_or(freq, |divisors| freq / f64::from(divisors[pair]))
            })
            .collect()
    }

    /// Computes cosines and sines for every position given, each `[positions, rot_dims / 2]`.
    pub fn table(&self, positions: impl Iterator<Item = usize>) -> RopeTable {
        let frequencies = self.frequencies();
        let length = self.length();
        let mut table =
            RopeTable { pairs: frequencies.len(), cos: Vec::new(), sin: Vec::new(), on_gpu: OnceLock::new() };
        for position in positions {
            for freq in &frequencies {
                let (sin, cos) = (position as f64 * freq).sin_cos();
                table.cos.push((length * cos) as f32);
                table.sin.push((length * sin) as f32);
            }
        }
        table
    }

    /// Returns the factor by which a rotation multiplies lengths.
    pub(crate) fn length(&self) -> f64 {
        let stretch = match self.scaling {
            RopeScaling::Yarn { factor, .. } => 1.0 + 0.1 * f64::from(factor.max(1.0)).ln(),
            _ => 1.0,
        };
        f64::from(self.magnitude) * stretch
    }

    fn scale(&self, pair: usize, freq: f64) -> f64 {
        match self.scaling {
            RopeScaling::None => freq,
            RopeScaling::Linear { factor } => freq / f64::from(factor),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
                let turns = f64::from(original_context) * freq / TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                kept * freq + (1.0 - kept) * freq / f64::from(factor)
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_context } => {
                // The pair, as a real number, with `turns` turns within the original context.
                let pair_of = |turns: f32| {
                    let ratio = f64::from(original_context) / (f64::from(turns) * TAU);
                    self.rot_dims as f64 * ratio.ln() / (2.0 * f64::from(self.freq_base).ln())
                };
                let low = pair_of(beta_fast).floor().max(0.0);
                let high = pair_of(beta_slow).ceil().min(self.rot_dims as f64 - 1.0);
                let stretched = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                (1.0 - stretched) * freq + stretched * freq / f64::from(factor)
            }
        }
    }
}

/// The rotations of one pass's rows.
#[derive(Debug)]
pub struct RopeTable {
    pairs: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
    /// Cosines and sines in the memory of a GPU, if one has used them.
    on_gpu: OnceLock<[Buffer; 2]>,
}

impl RopeTable {
    /// Returns the number of pairs that a row turns, `rot_dims / 2`.
    pub(crate) fn pairs(&self) -> usize {
        self.pairs
    }

    /// Returns cosines and sines in a GPU's memory; `upload` is called for each, once.
    pub(crate) fn on_gpu(&self, upload: impl Fn(&[f32]) -> Buffer) -> &[Buffer; 2] {
        self.on_gpu.get_or_init(|| [upload(&self.cos), upload(&self.sin)])
    }

    /// Returns cosines and sines of one row, `[rot_dims / 2]` each.
    pub fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let at = row * self.pairs..(row + 1) * self.pairs;
        (&self.cos[at.clone()], &self.sin[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> Rope {
        Rope { rot_dims: 8, freq_base: 10_000.0, scaling, magnitude: 1.0, freq_divisors: None }
    }

    #[track_caller]
    fn check_close(have: f64, want: f64) {
        assert!((have - want).abs() <= 1e-12 * want.abs(), "have {have}, want {want}");
    }

    #[test]
    fn plain_frequencies_are_the_geometric_series() {
        for (have, want) in rope(RopeScaling::None).frequencies().into_iter().zip([1.0, 0.1, 0.01, 0.001]) {
            check_close(have, want);
        }
    }

    #[test]
    fn linear_scaling_and_divisors_divide() {
        let linear = rope(RopeScaling::Linear { factor: 4.0 });
        check_close(linear.frequencies()[1], 0.025);
        let divided = Rope { freq_divisors: Some(vec![1.0, 2.0, 4.0, 8.0]), ..rope(RopeScaling::None) };
        check_close(divided.frequencies()[3], 0.001 / 8.0);
    }

    #[test]
    fn llama3_keeps_high_stretches_low_and_blends_between() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        };
        let llama3 = rope(scaling);
        check_close(llama3.scale(0, 1.0), 1.0);
        check_close(llama3.scale(0, 1e-5), 1e-5 / 8.0);
        // A wavelength of 8192 / 2 tokens is a third of the way from scaled to kept.
        let middle = TAU / 4096.0;
        check_close(llama3.scale(0, middle), middle * (1.0 / 3.0 + 2.0 / 3.0 / 8.0));
    }

    #[test]
    fn yarn_keeps_the_first_pairs_stretches_the_last_and_lengthens() {
        let yarn = |rot_dims| Rope {
            rot_dims,
            ..rope(RopeScaling::Yarn { factor: 4.0, beta_fast: 32.0, beta_slow: 1.0, original_context: 4096 })
        };
        // Pairs 20.9 and 45.03 of 64 have 32 turns and one turn, so the ramp runs from 20 to 46.
        let (plain, stretched) =
            (Rope { rot_dims: 128, ..rope(RopeScaling::None) }.frequencies(), yarn(128).frequencies());
        for (pair, stretch) in [(0, 0.0), (20, 0.0), (33, 0.5), (46, 1.0), (63, 1.0)] {
            check_close(stretched[pair], plain[pair] * (1.0 - 0.75 * stretch));
        }
        let table = yarn(128).table(std::iter::once(0));
        check_close(f64::from(table.row(0).0[5]), f64::from((1.0 + 0.1 * 4f64.ln()) as f32));
        // A ramp of zero length still has finite ends.
        assert!(yarn(2).frequencies().iter().all(|freq| freq.is_finite()));
    }

    #[test]
    fn the_magnitude_lengthens_every_rotation() {
        let table = Rope { magnitude: 1.5, ..rope(RopeScaling::None) }.table(std::iter::once(3));
        let (cos, sin) = table.row(0);
        for pair in 0..4 {
            assert!((cos[pair].hypot(sin[pair]) - 1.5).abs() < 1e-6);
        }
    }

    #[test]
    fn a_row_turns_by_its_position() {
        let table = rope(RopeScaling::None).table([5usize, 0].into_iter());
        let (cos, sin) = table.row(0);
        check_close(f64::from(cos[0]), f64::from(5f64.cos() as f32));
        check_close(f64::from(sin[1]), f64::from(0.5f64.sin() as f32));
        assert_eq!(table.row(1).0, &[1.0; 4]);
    }
}
