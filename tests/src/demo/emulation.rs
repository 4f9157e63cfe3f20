//! The speeds of the emulated phone and cloud; they are defined only here.
//!
//! A pass takes `max(real, model)`, never less than the real time; `prefill_base_ms` counts once for each
//! prompt.

use std::ffi::OsString;

use baton_engine::pace_emulation::PassCost;

/// A model of a machine's speed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Milliseconds for each prompt, whatever its length.
    pub prefill_base_ms: f64,
    /// Milliseconds for each prompt token (k in the paper).
    pub prefill_ms_per_token: f64,
    /// Milliseconds for each written token (TPOT).
    pub decode_ms: f64,
}

/// A phone: 400 prompt tokens a second, 22 written ones.
pub const PHONE: Speed = Speed { prefill_base_ms: 0.0, prefill_ms_per_token: 2.5, decode_ms: 45.0 };

/// A cloud: 10,000 prompt tokens a second after 60 ms of queue and network, 50 written ones.
pub const CLOUD: Speed = Speed { prefill_base_ms: 60.0, prefill_ms_per_token: 0.1, decode_ms: 20.0 };

impl Speed {
    /// Returns the options that make either program run at this speed.
    #[must_use]
    pub fn options(&self) -> Vec<OsString> {
        let pairs = [
            ("--emulate-prefill-base-ms", self.prefill_base_ms),
            ("--emulate-prefill-ms-per-token", self.prefill_ms_per_token),
            ("--emulate-decode-ms", self.decode_ms),
        ];
        pairs
            .iter()
            .flat_map(|(name, value)| [OsString::from(name), OsString::from(value.to_string())])
            .collect()
    }

    /// Returns the same speed as the engine's cost model, for runs in virtual time.
    #[must_use]
    pub const fn pass_cost(self) -> PassCost {
        PassCost {
            base_ms: self.prefill_base_ms,
            prefill_ms_per_token: self.prefill_ms_per_token,
            decode_ms: self.decode_ms,
        }
    }

    /// Describes the speed in one line.
    #[must_use]
    pub fn describe(&self) -> String {
        format!(
            "{} ms + {} ms a prompt token, {} ms a written token",
            self.prefill_base_ms, self.prefill_ms_per_token, self.decode_ms
        )
    }
}
