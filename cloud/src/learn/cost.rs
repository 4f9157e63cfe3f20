//! The cost of this cloud: medians of its own passes, or the emulated figures.
//!
//! Pure: the caller measures, and this module keeps the last [`SAMPLES`] values of each kind. Always: figures
//! are finite and not negative.

use std::time::Duration;

use baton_engine::pace_emulation::PassCost;
use baton_pacing::refit::median;

/// Number of measurements of one kind that a median is taken over.
const SAMPLES: usize = 64;
/// A pass with fewer prompt tokens says little about the cost per token, and is left out.
const PREFILL_TOKENS_MIN: usize = 16;

/// What one pass computed, and how long it took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PassSample {
    /// Prompt tokens.
    pub prefill_tokens: usize,
    /// Sequences that decoded a token.
    pub decode_rows: usize,
    /// How long it took.
    pub elapsed: Duration,
}

/// Current figures, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// For each prompt, besides its tokens.
    pub base_ms: f64,
    /// For each prompt token.
    pub prefill_ms_per_token: f64,
    /// For each pass that decodes.
    pub decode_ms: f64,
    /// For ranking sentences and encoding the mask.
    pub refine_ms: f64,
}

/// Keeps measurements and returns their medians.
#[derive(Debug)]
pub struct Costs {
    emulation: Option<PassCost>,
    prefill: Samples,
    decode: Samples,
    refine: Samples,
}

impl Costs {
    /// Makes an empty record. Until the first passes have run, the figures are those of a small model on two
    /// cores.
    pub fn new(emulation: Option<PassCost>) -> Costs {
        Costs { emulation, prefill: Samples::new(0.2), decode: Samples::new(5.0), refine: Samples::new(1.0) }
    }

    /// Records a pass. Leaves out a pass that both prefills and decodes, because its time cannot be divided
    /// between them. Leaves out a pass that took no time, which happens if a test's clock stands still.
    pub fn record_pass(&mut self, pass: PassSample) {
        let ms = pass.elapsed.as_secs_f64() * 1e3;
        if ms <= 0.0 {
            return;
        }
        match (pass.prefill_tokens, pass.decode_rows) {
            (0, 1..) => self.decode.push(ms),
            (tokens @ PREFILL_TOKENS_MIN.., 0) => self.prefill.push(ms / tokens as f64),
            _ => (),
        }
    }

    /// Records a refinement.
    pub fn record_refine(&mut self, elapsed: Duration) {
        self.refine.push(elapsed.as_secs_f64() * 1e3);
    }

    /// Returns the current figures. With emulation, a pass takes the longer of its real and its emulated
    /// time.
    pub fn current(&self) -> Measured {
        let real = Measured {
            base_ms: 0.0,
            prefill_ms_per_token: self.prefill.median(),
            decode_ms: self.decode.median(),
            refine_ms: self.refine.median(),
        };
        match &self.emulation {
            None => real,
            Some(cost) => Measured {
                base_ms: cost.base_ms,
                prefill_ms_per_token: real.prefill_ms_per_token.max(cost.prefill_ms_per_token),
                decode_ms: real.decode_ms.max(cost.decode_ms),
                refine_ms: real.refine_ms,
            },
        }
    }
}

/// The newest values of one kind, the oldest overwritten.
#[derive(Debug)]
struct Samples {
    values: Vec<f64>,
    next: usize,
    default: f64,
}

impl Samples {
    fn new(default: f64) -> Samples {
        Samples { values: Vec::with_capacity(SAMPLES), next: 0, default }
    }

    fn push(&mut self, value: f64) {
        if self.values.len() < SAMPLES {
            self.values.push(value);
        } else {
            self.values[self.next] = value;
        }
        self.next = (self.next + 1) % SAMPLES;
    }

    fn median(&self) -> f64 {
        median(self.values.iter().copied()).unwrap_or(self.default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(prefill_tokens: usize, decode_rows: usize, ms: u64) -> PassSample {
        PassSample { prefill_tokens, decode_rows, elapsed: Duration::from_millis(ms) }
    }

    #[test]
    fn medians_follow_the_newest_passes() {
        let mut costs = Costs::new(None);
        costs.record_pass(pass(100, 0, 50));
        costs.record_pass(pass(0, 3, 7));
        costs.record_pass(pass(100, 3, 9999));
        costs.record_pass(pass(1, 0, 9999));
        costs.record_pass(pass(0, 3, 0));
        let now = costs.current();
        assert_eq!((now.base_ms, now.prefill_ms_per_token, now.decode_ms), (0.0, 0.5, 7.0));
        for _ in 0..SAMPLES {
            costs.record_pass(pass(0, 1, 20));
        }
        assert_eq!(costs.current().decode_ms, 20.0);
    }

    #[test]
    fn emulation_counts_where_it_is_slower() {
        let cost = PassCost { base_ms: 60.0, prefill_ms_per_token: 0.1, decode_ms: 0.0 };
        let mut costs = Costs::new(Some(cost));
        costs.record_pass(pass(100, 0, 1));
        costs.record_pass(pass(0, 1, 2));
        let now = costs.current();
        assert_eq!((now.base_ms, now.prefill_ms_per_token, now.decode_ms), (60.0, 0.1, 2.0));
    }
}
