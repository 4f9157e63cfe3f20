//! Tests whether every device of the ring computes: a token of a separate sequence goes round while no
//! answer runs.
//!
//! A device can live, answer on its control channel, and yet compute nothing any more. Only a token that
//! does not come back shows that. The token is a step like any other and has the deadline of a step. Its
//! operations are in the same log, so all devices keep holding the same sequences. Its sequence is released
//! at once. It is sent only if the cache has a free block, so it displaces at most the oldest unused block.
//! [`super::audit`] tests whether results are also correct.

use std::time::{Duration, Instant};

use baton_engine::{StepSeq, Wanted};

use super::{Broken, RingHead, Route, chain};
use crate::local::Sequences as _;

/// How often a head looks at what has happened while no answer runs.
pub(super) const IDLE: Duration = Duration::from_secs(1);
/// The pause between two tokens is at least this many times as long as one token takes, so that devices
/// that read weights from disks are not kept busy. It is at most this many times the usual pause.
const PAUSE: u32 = 50;

impl RingHead {
    /// Sends a token round the ring, if it is due. If that fails, the ring is formed again without the
    /// device at fault.
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
                self.end_epoch(&fault);
                self.recover_or_warn();
            }
        }
        self.probed = Instant::now();
        self.probe_took = begun.elapsed();
    }
}
