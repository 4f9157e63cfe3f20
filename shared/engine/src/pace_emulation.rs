//! Emulated speed of a pass: stretches a pass on this machine to the time that another machine would need.
//!
//! Pure arithmetic: reads no clock and does not wait. The driver measures a pass, asks here how much longer
//! it should have taken, and waits that long. The cloud and the device program use it, and always label it as
//! emulation. Invariant: a pass is never shortened, `real + wait = max(real, modelled)`.

use std::time::Duration;

/// The time that a modelled machine needs for a pass, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PassCost {
    /// Once per prompt, charged to the pass that begins it.
    pub base_ms: f64,
    /// For each prefilled token.
    pub prefill_ms_per_token: f64,
    /// For a pass that decodes, with any number of rows: decoding is limited by reading the weights.
    pub decode_ms: f64,
}

/// The contents of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassContent {
    /// Prompts whose first tokens are in this pass.
    pub prompts_begun: usize,
    /// Prefilled tokens, over all sequences.
    pub prefill_tokens: usize,
    /// Sequences that decode one token.
    pub decode_rows: usize,
}

/// The error for a cost that is not a valid time.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("emulated `{name}` is {value} ms, must be 0 to {max}")]
pub struct PassCostError {
    /// The name of the cost.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
    /// The largest allowed value.
    pub max: f64,
}

/// A minute per token is slower than any machine worth emulating.
const COST_MS_MAX: f64 = 60_000.0;

impl PassCost {
    /// Checks that every cost is finite, not negative and at most a minute.
    ///
    /// # Errors
    /// [`PassCostError`] for the first cost that is not.
    pub fn check(&self) -> Result<(), PassCostError> {
        let costs = [
            ("base_ms", self.base_ms),
            ("prefill_ms_per_token", self.prefill_ms_per_token),
            ("decode_ms", self.decode_ms),
        ];
        match costs.into_iter().find(|(_, value)| !(0.0..=COST_MS_MAX).contains(value)) {
            Some((name, value)) => Err(PassCostError { name, value, max: COST_MS_MAX }),
            None => Ok(()),
        }
    }

    /// Whether nothing is emulated.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the time that the modelled machine needs for the pass. A pass that prefills and decodes costs
    /// both.
    pub fn modelled(&self, content: PassContent) -> Duration {
        let decode_ms = if content.decode_rows > 0 { self.decode_ms } else { 0.0 };
        let ms = self.base_ms * content.prompts_begun as f64
            + self.prefill_ms_per_token * content.prefill_tokens as f64
            + decode_ms;
        Duration::try_from_secs_f64(ms / 1e3).unwrap_or(Duration::ZERO)
    }

    /// Returns how much longer than `real` the pass must take.
    pub fn wait(&self, content: PassContent, real: Duration) -> Duration {
        self.modelled(content).saturating_sub(real)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHONE: PassCost = PassCost { base_ms: 10.0, prefill_ms_per_token: 2.5, decode_ms: 45.0 };

    #[track_caller]
    fn check(content: (usize, usize, usize), real_ms: u64, want_ms: u64) {
        let (prompts_begun, prefill_tokens, decode_rows) = content;
        let content = PassContent { prompts_begun, prefill_tokens, decode_rows };
        let wait = PHONE.wait(content, Duration::from_millis(real_ms));
        assert_eq!(wait, Duration::from_millis(want_ms), "{content:?} after {real_ms} ms");
    }

    #[test]
    fn a_pass_takes_what_is_modelled_or_what_is_real_whichever_is_longer() {
        check((0, 0, 1), 5, 40);
        check((0, 0, 8), 45, 0);
        check((0, 0, 8), 46, 0);
        check((1, 128, 0), 30, 300);
        check((0, 128, 2), 0, 365);
        check((0, 0, 0), 0, 0);
    }

    #[test]
    fn costs_that_are_no_time_are_refused() {
        assert_eq!(PHONE.check(), Ok(()));
        assert!(!PHONE.is_none() && PassCost::default().is_none());
        for bad in [-1.0, f64::NAN, f64::INFINITY, 60_001.0] {
            assert!(PassCost { decode_ms: bad, ..PHONE }.check().is_err(), "{bad} was taken");
        }
    }
}
