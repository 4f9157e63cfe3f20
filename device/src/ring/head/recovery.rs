//! What happens when the ring breaks inside a step: another ring, the same sequences, the step again.
//!
//! The head's engine knows every token of every live sequence. A new epoch begins without any keys and values, so every
//! sequence's tokens run through the new ring; the step that broke follows. Whoever asked for the step sees only that
//! it took longer. Keys and values are a function of the tokens alone, so that the text goes on as if nothing had
//! happened. Whoever asked may also take it back meanwhile: that ends the step as at any other time. Where the ring cannot
//! be formed, or is not wanted any more, sequences keep their tokens ([`Owed`]), and the next step begins with them.

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

/// How long a broken link waits for the word of whoever broke it, and between two looks.
const SETTLE: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(2);

/// Tokens of all live sequences whose keys and values no device holds.
///
/// While there are any the engine's own sequences count for nothing, and steps go nowhere before the ring is formed.
pub(super) struct Owed(BTreeMap<SeqId, Vec<TokenId>>);

impl Owed {
    /// Another sequence, without tokens.
    pub(super) fn create(&mut self, seq: SeqId) {
        self.0.insert(seq, Vec::new());
    }

    /// Another sequence, with the first tokens of `seq`.
    pub(super) fn fork(&mut self, seq: SeqId, n_tokens: usize, child: SeqId) -> Result<(), KvError> {
        let ids = self.first(seq, n_tokens)?.to_vec();
        self.0.insert(child, ids);
        Ok(())
    }

    /// Cuts a sequence to its first tokens.
    pub(super) fn truncate(&mut self, seq: SeqId, n_tokens: usize) -> Result<(), KvError> {
        self.first(seq, n_tokens)?;
        self.0.entry(seq).or_default().truncate(n_tokens);
        Ok(())
    }

    /// Forgets a sequence.
    pub(super) fn release(&mut self, seq: SeqId) {
        self.0.remove(&seq);
    }

    /// All tokens of a sequence.
    pub(super) fn ids(&self, seq: SeqId) -> Result<&[TokenId], KvError> {
        self.0.get(&seq).map(Vec::as_slice).ok_or(KvError::UnknownSequence(seq))
    }

    /// The first tokens of a sequence.
    pub(super) fn first(&self, seq: SeqId, wanted: usize) -> Result<&[TokenId], KvError> {
        let ids = self.ids(seq)?;
        ids.get(..wanted).ok_or(KvError::PastEnd { wanted, len: ids.len() })
    }
}

/// Ends what is not wanted any more; `total`: layers of the model.
pub(super) fn still_wanted(control: &mut dyn StepControl, total: usize) -> Result<(), StepError> {
    match control.after_layer(0, total).is_break() {
        true => Err(StepError::Cancelled { done: 0, total }),
        false => Ok(()),
    }
}

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
                    self.fall(&fault);
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
    /// [`RingError`], also where it is not wanted any more; sequences keep their tokens.
    pub(super) fn recover(&mut self, control: &mut dyn StepControl) -> Result<(), RingError> {
        let live = self.owed.take().unwrap_or_else(|| self.held());
        locked(&self.board.stats).recoveries += 1;
        let done = self.recover_with(&live, control);
        done.map_err(|err| {
            self.route = Route::Down;
            self.owed = Some(live);
            self.explained(err)
        })
    }

    /// What the engine's sequences hold.
    fn held(&self) -> Owed {
        let ids = |seq: &SeqId| self.engine.ids(*seq).map(|ids| (*seq, ids.to_vec())).ok();
        Owed(self.numbers.keys().filter_map(ids).collect())
    }

    fn recover_with(&mut self, live: &Owed, control: &mut dyn StepControl) -> Result<(), RingError> {
        let mut broke = 0;
        loop {
            self.form(control)?;
            match self.rebuild(live, control) {
                Ok(()) => return Ok(()),
                Err(Broken::Step(err)) => return Err(RingError::Rebuild(err)),
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

    fn rebuild(&mut self, live: &Owed, control: &mut dyn StepControl) -> Result<(), Broken> {
        let total = self.engine.model().config().n_layers;
        for seq in live.0.keys() {
            let seq = self.number(*seq);
            self.note(Operation::Create { seq });
        }
        for (seq, ids) in &live.0 {
            // Never the last token, for which nothing would be left to compute; it is computed below.
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

    /// The same error, with who is missing where somebody is.
    fn explained(&self, err: RingError) -> RingError {
        if matches!(err, RingError::Rebuild(StepError::Cancelled { .. })) {
            return err;
        }
        let there = |name: &str| self.members.iter().any(|member| member.name() == name);
        // Of a device that was lost more than once, the last time counts.
        let stats = locked(&self.board.stats);
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
