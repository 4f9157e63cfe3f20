//! What happens when the ring breaks inside a step: another ring, the same sequences, the step again.
//!
//! The head's engine knows every token of every live sequence. A new epoch begins without any keys and values, so every
//! sequence's tokens run through the new ring; the step that broke follows. Whoever asked for the step sees only that
//! it took longer. Keys and values are a function of the tokens alone, so that the text goes on as if nothing had
//! happened.

use std::time::{Duration, Instant};

use baton_engine::tokenizer::TokenId;
use baton_engine::{SeqId, SeqOutput, StepControl, StepSeq, Wanted};

use super::super::frame::Operation;
use super::configure::Fault;
use super::{Broken, Epoch, RingError, RingHead, Route, locked};
use crate::local::{SequenceError, Sequences as _};

/// Tokens of a sequence that are computed again in one step.
const REBUILD_TOKENS: usize = 512;

/// How long a broken link waits for the word of whoever broke it, and between two looks.
const SETTLE: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(2);

/// Why a link broke, where some device says so soon: who refuses a frame ends its links, and these are seen first.
fn certain(epoch: &Epoch, number: u64, fault: &Fault) -> Option<Fault> {
    let begun = Instant::now();
    while matches!(fault, Fault::Link { .. }) && begun.elapsed() < SETTLE {
        match epoch.trouble(number) {
            Some(found) if !matches!(found, Fault::Link { .. }) => return Some(found),
            _ => std::thread::sleep(LOOK),
        }
    }
    None
}

impl RingHead {
    /// A step, through as many rings as it takes.
    pub(super) fn step_through(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, SequenceError> {
        let tokens: usize = batch.iter().map(|entry| entry.ids.len()).sum();
        let mut broke = 0;
        loop {
            if matches!(self.route, Route::Down) {
                self.recover()?;
            }
            match self.try_step(batch, control) {
                Ok(outputs) => {
                    self.strikes.clear();
                    self.show(tokens);
                    return Ok(outputs);
                }
                Err(Broken::Step(err)) => return Err(err.into()),
                Err(Broken::Ring(fault)) => {
                    broke += 1;
                    self.fall(&fault);
                    if broke > self.tries() {
                        let words = fault.words().to_owned();
                        return Err(RingError::GaveUp { times: broke, words }.into());
                    }
                    self.recover()?;
                }
            }
        }
    }

    fn tries(&self) -> usize {
        2 * (self.members.len() + 2)
    }

    pub(super) fn try_step(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, Broken> {
        if matches!(self.route, Route::Alone) {
            return Ok(self.engine.step(batch, control)?);
        }
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        self.run_ring(batch, control)
    }

    /// The epoch is over; whose fault it was is drawn from.
    pub(super) fn fall(&mut self, fault: &Fault) {
        if let Route::Ring(epoch) = std::mem::replace(&mut self.route, Route::Down) {
            let certain = certain(&epoch, self.epoch, fault);
            self.blame(certain.as_ref().unwrap_or(fault), &epoch.places);
        }
    }

    /// Forms a ring of what is left and computes every live sequence again.
    ///
    /// # Errors
    /// [`RingError`]; sequences may then be shorter than they were.
    pub(super) fn recover(&mut self) -> Result<(), RingError> {
        let ids = |seq: &SeqId| self.engine.ids(*seq).map(|ids| (*seq, ids.to_vec())).ok();
        let live: Vec<(SeqId, Vec<TokenId>)> = self.numbers.keys().filter_map(ids).collect();
        locked(&self.board.stats).recoveries += 1;
        let mut broke = 0;
        loop {
            self.form()?;
            match self.rebuild(&live) {
                Ok(()) => return Ok(()),
                Err(Broken::Step(err)) => {
                    self.route = Route::Down;
                    return Err(RingError::Rebuild(err));
                }
                Err(Broken::Ring(fault)) => {
                    broke += 1;
                    self.fall(&fault);
                    if broke > self.tries() {
                        let words = fault.words().to_owned();
                        return Err(RingError::GaveUp { times: broke, words });
                    }
                }
            }
        }
    }

    fn rebuild(&mut self, live: &[(SeqId, Vec<TokenId>)]) -> Result<(), Broken> {
        for (seq, _) in live {
            let seq = self.number(*seq);
            self.note(Operation::Create { seq });
        }
        for (seq, ids) in live {
            // Never the last token, for which nothing would be left to compute; it is computed below.
            let mut done = self.reuse_prefix(*seq, ids);
            while done < ids.len() {
                let part = &ids[done..ids.len().min(done + REBUILD_TOKENS)];
                let entry = StepSeq { seq: *seq, ids: part, logits: Wanted::None, capture: None };
                self.try_step(&[entry], &mut ())?;
                self.show(part.len());
                done += part.len();
            }
        }
        Ok(())
    }
}
