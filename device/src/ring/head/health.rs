//! Whether every device of the ring computes: a token of its own sequence goes round while no answer runs.
//!
//! A device can live, answer on its control channel, and compute nothing any more; only a token that does not come back
//! shows it. The token is a step like any other: its operations stand in the one log, so that all devices go on holding
//! the same sequences, and its deadline is a step's. Its sequence is forgotten at once, and it goes only where the
//! cache has a free block, so that it takes nothing from others but at most the oldest block that nobody uses. Whether what comes
//! back is right as well, [`super::audit`] finds out.

use std::time::{Duration, Instant};

use baton_engine::{StepSeq, Wanted};

use super::{Broken, RingHead, Route, chain};
use crate::local::Sequences as _;

/// How often a head looks at what has happened while no answer runs.
pub(super) const IDLE: Duration = Duration::from_secs(1);
/// Between two tokens, at least so many times as long as one takes: devices that read weights from disks for each token
/// are not kept busy by this; yet at most so many times the usual pause.
const PAUSE: u32 = 50;

impl RingHead {
    /// Sends a token round, if it is time to; a ring that fails at it is formed again without the culprit.
    pub(super) fn check_health(&mut self) {
        let pause = self.options.health.max((self.probe_took * PAUSE).min(self.options.health * PAUSE));
        if self.probed.elapsed() < pause || !matches!(self.route, Route::Ring(_)) {
            return;
        }
        if self.engine.free_tokens() == 0 {
            return;
        }
        let Ok(seq) = self.create_with(None) else { return };
        let entry = StepSeq { seq, ids: &[0], logits: Wanted::None, capture: None };
        let begun = Instant::now();
        let done = self.try_step(&[entry], &mut ());
        self.release(seq);
        match done {
            Ok(_) => {
                self.strikes.clear();
                self.show(1);
            }
            Err(Broken::Step(err)) => tracing::warn!(err = %chain(&err), "no token for the ring's health"),
            Err(Broken::Ring(fault)) => {
                tracing::warn!(words = fault.words(), "a token did not come round the ring");
                self.fall(&fault);
                self.recover_or_warn();
            }
        }
        self.probed = Instant::now();
        self.probe_took = begun.elapsed();
    }
}
