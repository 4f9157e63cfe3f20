//! Recovers from a break of the ring inside a step: forms another ring, rebuilds the same sequences, and
//! repeats the step.
//!
//! The head's engine knows every token of every live sequence. A new epoch begins without keys and values,
//! so the tokens of every sequence run through the new ring; then the broken step follows. The caller sees
//! only that the step took longer. Keys and values depend on the tokens alone, so the text goes on as if
//! nothing had happened.
//!
//! The caller may also cancel meanwhile, which ends the step as at any other time. If the ring cannot be
//! formed, or the step is cancelled, sequences keep their tokens ([`TokensToRebuild`]), and the next step
//! begins with them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use baton_engine::tokenizer::TokenId;
use baton_engine::{KvError, SeqId, SeqOutput, StepControl, StepError, StepSeq, Wanted};

use super::super::frame::Operation;
use super::super::stats::LostDevice;
use super::configure::Fault;
use super::{Broken, Epoch, RingError, RingHead, Route, locked};
use crate::local::{SequenceError, Sequences as _};

/// Tokens of a sequence that are computed again in one step.
const REBUILD_TOKENS: usize = 512;

/// How long to wait after a broken link for a device that reports the cause, and between two checks.
const SETTLE: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(2);

/// Tokens of all live sequences whose keys and values no device holds.
///
/// As long as this exists, it replaces the engine's own sequences, and no step runs before the ring is
/// formed.
pub(super) struct TokensToRebuild(BTreeMap<SeqId, Vec<TokenId>>);

impl TokensToRebuild {
    /// Adds a sequence without tokens.
    pub(super) fn create(&mut self, seq: SeqId) {
        self.0.insert(seq, Vec::new());
    }

    /// Adds a sequence with the first tokens of `seq`.
    pub(super) fn fork(&mut self, seq: SeqId, n_tokens: usize, child: SeqId) -> Result<(), KvError> {
        let ids = self.first(seq, n_tokens)?.to_vec();
        self.0.insert(child, ids);
        Ok(())
    }

    /// Shortens a sequence to its first tokens.
    pub(super) fn truncate(&mut self, seq: SeqId, n_tokens: usize) -> Result<(), KvError> {
        self.first(seq, n_tokens)?;
        self.0.entry(seq).or_default().truncate(n_tokens);
        Ok(())
    }

    /// Removes a sequence.
    pub(super) fn release(&mut self, seq: SeqId) {
        self.0.remove(&seq);
    }

    /// Returns all tokens of a sequence.
    pub(super) fn ids(&self, seq: SeqId) -> Result<&[TokenId], KvError> {
        self.0.get(&seq).map(Vec::as_slice).ok_or(KvError::UnknownSequence(seq))
    }

    /// Returns the first tokens of a sequence.
    pub(super) fn first(&self, seq: SeqId, wanted: usize) -> Result<&[TokenId], KvError> {
        let ids = self.ids(seq)?;
        ids.get(..wanted).ok_or(KvError::PastEnd { wanted, len: ids.len() })
    }
}

/// Fails if the step was cancelled. `total` is the number of the model's layers.
pub(super) fn still_wanted(control: &mut dyn StepControl, total: usize) -> Result<(), StepError> {
    match control.after_layer(0, total).is_break() {
        true => Err(StepError::Cancelled { done: 0, total }),
        false => Ok(()),
    }
}

/// Waits briefly for a device to report why a link broke. A device that refuses a frame also ends its
/// links, and the broken links are noticed first.
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
    /// Runs a step, and forms new rings as often as needed.
    pub(super) fn step_through(
        &mut self,
        batch: &[StepSeq<'_>],
        control: &mut dyn StepControl,
    ) -> Result<Vec<SeqOutput>, SequenceError> {
        let tokens: usize = batch.iter().map(|entry| entry.ids.len()).sum();
        let mut broke = 0;
        loop {
            if matches!(self.route, Route::Down) {
                self.recover(control)?;
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
                    self.end_epoch(&fault);
                    if broke > self.tries() {
                        let words = fault.words().to_owned();
                        return Err(RingError::GaveUp { times: broke, words }.into());
                    }
                    self.recover(control)?;
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
            return self.run_alone(batch, control);
        }
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        self.run_ring(batch, control)
    }

    /// Ends the epoch and handles its fault.
    pub(super) fn end_epoch(&mut self, fault: &Fault) {
        if let Route::Ring(epoch) = std::mem::replace(&mut self.route, Route::Down) {
            let certain = certain(&epoch, self.epoch, fault);
            self.blame(certain.as_ref().unwrap_or(fault), &epoch.places);
        }
    }

    /// Forms a ring of the remaining devices and computes every live sequence again.
    ///
    /// # Errors
    /// [`RingError`], also if the step is cancelled; sequences keep their tokens.
    pub(super) fn recover(&mut self, control: &mut dyn StepControl) -> Result<(), RingError> {
        let live = self.to_rebuild.take().unwrap_or_else(|| self.held());
        locked(&self.shared.stats).recoveries += 1;
        let done = self.recover_with(&live, control);
        done.map_err(|err| {
            self.route = Route::Down;
            self.to_rebuild = Some(live);
            self.explained(err)
        })
    }

    /// Returns the tokens of the engine's sequences.
    fn held(&self) -> TokensToRebuild {
        let ids = |seq: &SeqId| self.engine.ids(*seq).map(|ids| (*seq, ids.to_vec())).ok();
        TokensToRebuild(self.numbers.keys().filter_map(ids).collect())
    }

    fn recover_with(
        &mut self,
        live: &TokensToRebuild,
        control: &mut dyn StepControl,
    ) -> Result<(), RingError> {
        let mut broke = 0;
        loop {
            self.form(control)?;
            match self.rebuild(live, control) {
                Ok(()) => return Ok(()),
                Err(Broken::Step(err)) => return Err(RingError::Rebuild(err)),
                Err(Broken::Ring(fault)) => {
                    broke += 1;
                    self.end_epoch(&fault);
                    if broke > self.tries() {
                        let words = fault.words().to_owned();
                        return Err(RingError::GaveUp { times: broke, words });
                    }
                }
            }
        }
    }

    fn rebuild(&mut self, live: &TokensToRebuild, control: &mut dyn StepControl) -> Result<(), Broken> {
        let total = self.engine.model().config().n_layers;
        for seq in live.0.keys() {
            let seq = self.number(*seq);
            self.note(Operation::Create { seq });
        }
        for (seq, ids) in &live.0 {
            // This never covers the last token, because then nothing would be left to compute; that one is
            // computed below.
            let mut done = self.reuse_prefix(*seq, ids);
            while done < ids.len() {
                still_wanted(control, total)?;
                let part = &ids[done..ids.len().min(done + REBUILD_TOKENS)];
                let entry = StepSeq { seq: *seq, ids: part, logits: Wanted::None, capture: None };
                self.try_step(&[entry], control)?;
                self.show(part.len());
                done += part.len();
            }
        }
        Ok(())
    }

    /// Adds to an error which devices are missing, if any are.
    fn explained(&self, err: RingError) -> RingError {
        if matches!(err, RingError::Rebuild(StepError::Cancelled { .. })) {
            return err;
        }
        let there = |name: &str| self.members.iter().any(|member| member.name() == name);
        // For a device that was lost more than once, the last time counts.
        let stats = locked(&self.shared.stats);
        let missing: BTreeMap<&str, &LostDevice> = stats
            .lost
            .iter()
            .filter(|lost| !there(&lost.name))
            .map(|lost| (lost.name.as_str(), lost))
            .collect();
        if missing.is_empty() {
            return err;
        }
        let lost: Vec<String> =
            missing.values().map(|lost| format!("`{}` ({})", lost.name, lost.words)).collect();
        RingError::Missing { lost: lost.join(", "), err: Box::new(err) }
    }
}
