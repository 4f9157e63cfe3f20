//! Changes to sequences that a request asks for.
//!
//! The ledger is asked first, then the engine; the ledger changes when the engine has done it. As long as no
//! route has keys and values, the engine's sequences are empty, and only the ledger has the tokens.

use super::Recover;
use crate::core::SeqNo;
use crate::core::head::{Fx, HeadDone, HeadWork, Outputs, RingFault, SeqAsk};
use crate::core::ledger::LedgerError;
use crate::core::pump::Pump;
use crate::wire::frame::Operation;

/// What the engine was asked.
#[derive(Debug)]
pub(super) enum Asking {
    /// A change, which the ledger takes over as this operation.
    Change(Operation),
    /// To take an adapter in.
    Adapter,
    /// Whether it knows a prefix of the sequence that is computed again.
    Prefix,
}

impl Recover {
    /// Returns whether the engine works for this room.
    pub(in crate::core) fn is_asking(&self) -> bool {
        self.asking.is_some()
    }

    /// Begins a change. Returns the outcome if no engine is needed. `alone`: the head computes everything.
    ///
    /// # Errors
    /// [`RingFault::Adapters`]; [`RingFault::Sequence`] if a sequence is not known or too short.
    pub(in crate::core) fn ask(
        &mut self,
        ask: &SeqAsk,
        alone: bool,
        fx: &mut Fx,
    ) -> Result<Option<Outputs>, RingFault> {
        match ask {
            SeqAsk::AddAdapter | SeqAsk::Create { adapter: true } if !alone => Err(RingFault::Adapters),
            SeqAsk::AddAdapter => {
                self.asking = Some(Asking::Adapter);
                fx.compute(HeadWork::AddAdapter);
                Ok(None)
            }
            SeqAsk::Create { .. } => {
                let seq = self.number();
                let create = Operation::Create { seq };
                self.change(create.clone(), create, fx)
            }
            SeqAsk::Fork { from, tokens } => {
                let seq = self.number();
                let fork = |tokens| Operation::Fork { from: *from, tokens, seq };
                let there = if self.cached { *tokens as u64 } else { 0 };
                self.change(fork(there), fork(*tokens as u64), fx)
            }
            SeqAsk::Truncate { seq, tokens } => {
                let truncate = Operation::Truncate { seq: *seq, tokens: *tokens as u64 };
                self.ledger.check(&truncate)?;
                if self.ledger.len(*seq) == Some(*tokens) {
                    return Ok(Some(Outputs::None));
                }
                if !self.cached {
                    self.ledger.apply(&truncate)?;
                    return Ok(Some(Outputs::None));
                }
                self.change(truncate.clone(), truncate, fx)
            }
            SeqAsk::Release(seq) if self.ledger.len(*seq).is_none() => Ok(Some(Outputs::None)),
            SeqAsk::Release(seq) => {
                let release = Operation::Release { seq: *seq };
                self.change(release.clone(), release, fx)
            }
            SeqAsk::Reuse { seq, ids } => {
                self.ledger.len(*seq).ok_or(LedgerError::Unknown(*seq))?;
                if !self.cached {
                    return Ok(Some(Outputs::Gained(0)));
                }
                let reuse = Operation::Reuse { seq: *seq, ids: ids.clone(), gained: 0 };
                self.change(reuse.clone(), reuse, fx)
            }
        }
    }

    fn number(&mut self) -> SeqNo {
        let seq = SeqNo(self.next_seq);
        self.next_seq += 1;
        seq
    }

    /// Has the engine do `work`, and the ledger then `operation`.
    fn change(
        &mut self,
        work: Operation,
        operation: Operation,
        fx: &mut Fx,
    ) -> Result<Option<Outputs>, RingFault> {
        self.ledger.check(&operation)?;
        self.asking = Some(Asking::Change(operation));
        fx.compute(HeadWork::Sequence(work));
        Ok(None)
    }

    /// Takes the outcome of the engine's work. Returns that of the change, if it was for one. `ring`: other
    /// devices hold the same sequences.
    pub(in crate::core) fn computed(
        &mut self,
        done: HeadDone,
        pump: &mut Pump,
        ring: bool,
    ) -> Option<Result<Outputs, RingFault>> {
        match (self.asking.take()?, done) {
            (Asking::Prefix, done) => {
                self.prefix_found(&done, pump, ring);
                None
            }
            (Asking::Adapter, HeadDone::Done) => Some(Ok(Outputs::None)),
            (Asking::Change(operation), HeadDone::Done) => Some(self.changed(operation, pump, ring)),
            (Asking::Change(Operation::Reuse { seq, ids, .. }), HeadDone::Gained(gained)) => {
                // A look-up that finds nothing changes nothing.
                if gained > 0 {
                    let reuse = Operation::Reuse { seq, ids, gained: gained as u64 };
                    if let Err(err) = self.changed(reuse, pump, ring) {
                        return Some(Err(err));
                    }
                }
                Some(Ok(Outputs::Gained(gained)))
            }
            _ => Some(Err(RingFault::Refused)),
        }
    }

    fn changed(&mut self, operation: Operation, pump: &mut Pump, ring: bool) -> Result<Outputs, RingFault> {
        self.ledger.apply(&operation)?;
        let outputs = match &operation {
            Operation::Create { seq } | Operation::Fork { seq, .. } => Outputs::Seq(*seq),
            _ => Outputs::None,
        };
        if ring {
            pump.note(operation);
        }
        Ok(outputs)
    }
}
