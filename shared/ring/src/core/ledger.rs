//! The sequences of a ring: their lengths, and on the head their tokens.
//!
//! Every device applies the same operations in the same order, so all ledgers are equal after the same
//! number of operations. The tokens of a step are added when it is committed and not before.

use std::collections::BTreeMap;

use baton_engine::TokenId;

use super::rows::Rows;
use super::{Bug, Planted, SeqNo, StepNo};
use crate::wire::frame::{Operation, Span};

/// Most sequences of a worker at once: far more than a head has answers.
pub const SEQUENCES_MAX: usize = 4096;

/// Why an operation does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// There is no such sequence.
    #[error("sequence {0} is not known")]
    Unknown(SeqNo),
    /// There is such a sequence already.
    #[error("sequence {0} is there already")]
    Known(SeqNo),
    /// More tokens than the sequence has.
    #[error("{wanted} tokens of a sequence of {len}")]
    PastEnd {
        /// Tokens that were named.
        wanted: usize,
        /// Tokens of the sequence.
        len: usize,
    },
    /// More sequences than a device takes.
    #[error("more than {SEQUENCES_MAX} sequences")]
    TooMany,
    /// A step is open, so no other begins and no sequence changes.
    #[error("step {0} is open")]
    StepOpen(StepNo),
    /// This step is not open.
    #[error("step {0} is not open")]
    NotOpen(StepNo),
    /// A span begins where its sequence does not end.
    #[error("sequence {seq} begins at {at}, has {len} tokens")]
    Begins {
        /// The sequence.
        seq: SeqNo,
        /// Where the span begins.
        at: u64,
        /// Tokens of the sequence.
        len: usize,
    },
    /// A sequence has two spans.
    #[error("sequence {0} is in the step twice")]
    Twice(SeqNo),
    /// A span without tokens.
    #[error("no tokens for sequence {0}")]
    Empty(SeqNo),
}

/// One sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Entry {
    len: usize,
    /// As many as `len`; nothing if only lengths are recorded.
    ids: Vec<TokenId>,
}

/// A step that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Open {
    step: StepNo,
    rows: Rows,
    /// Tokens are left out if only lengths are recorded.
    spans: Vec<(SeqNo, usize, Vec<TokenId>)>,
}

/// The sequences, and the step that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ledger {
    seqs: BTreeMap<SeqNo, Entry>,
    open: Option<Open>,
    with_ids: bool,
    applied: u64,
    planted: Planted,
}

impl Ledger {
    /// Returns an empty ledger that records tokens: the head's.
    pub fn with_ids() -> Self {
        Self { seqs: BTreeMap::new(), open: None, with_ids: true, applied: 0, planted: Planted::default() }
    }

    /// Returns an empty ledger that records lengths: a worker's, of at most [`SEQUENCES_MAX`] sequences.
    pub fn lengths_only() -> Self {
        Self { with_ids: false, ..Self::with_ids() }
    }

    /// Returns the ledger with this bug.
    #[must_use]
    pub fn planted(self, planted: Planted) -> Self {
        Self { planted, ..self }
    }

    fn entry(&self, seq: SeqNo) -> Result<&Entry, LedgerError> {
        self.seqs.get(&seq).ok_or(LedgerError::Unknown(seq))
    }

    fn within(&self, seq: SeqNo, tokens: u64) -> Result<(), LedgerError> {
        let len = self.entry(seq)?.len;
        match usize::try_from(tokens) {
            Ok(tokens) if tokens <= len => Ok(()),
            wanted => Err(LedgerError::PastEnd { wanted: wanted.unwrap_or(usize::MAX), len }),
        }
    }

    fn is_new(&self, seq: SeqNo) -> Result<(), LedgerError> {
        if self.seqs.contains_key(&seq) {
            return Err(LedgerError::Known(seq));
        }
        if !self.with_ids && self.seqs.len() >= SEQUENCES_MAX {
            return Err(LedgerError::TooMany);
        }
        Ok(())
    }

    /// Checks whether an operation fits.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn check(&self, operation: &Operation) -> Result<(), LedgerError> {
        let ends = matches!(operation, Operation::Commit { .. } | Operation::Cancel { .. });
        if let (Some(open), false) = (&self.open, ends) {
            return Err(LedgerError::StepOpen(open.step));
        }
        match operation {
            Operation::Create { seq } => self.is_new(*seq),
            Operation::Fork { from, tokens, seq } => {
                self.within(*from, *tokens)?;
                self.is_new(*seq)
            }
            Operation::Truncate { seq, tokens } => self.within(*seq, *tokens),
            Operation::Release { seq } => self.entry(*seq).map(drop),
            Operation::Reuse { seq, ids, gained } => {
                self.entry(*seq)?;
                let fits = usize::try_from(*gained).is_ok_and(|gained| gained <= ids.len());
                let wanted = usize::try_from(*gained).unwrap_or(usize::MAX);
                if fits { Ok(()) } else { Err(LedgerError::PastEnd { wanted, len: ids.len() }) }
            }
            Operation::Open { spans, .. } => self.check_spans(spans),
            Operation::Commit { step } | Operation::Cancel { step } => match &self.open {
                Some(open) if open.step == *step => Ok(()),
                _ => Err(LedgerError::NotOpen(*step)),
            },
        }
    }

    fn check_spans(&self, spans: &[Span]) -> Result<(), LedgerError> {
        for (at, span) in spans.iter().enumerate() {
            let len = self.entry(span.seq)?.len;
            if spans[..at].iter().any(|other| other.seq == span.seq) {
                return Err(LedgerError::Twice(span.seq));
            }
            if span.ids.is_empty() {
                return Err(LedgerError::Empty(span.seq));
            }
            if span.start != len as u64 && !self.planted.is(Bug::SpanElsewhere) {
                return Err(LedgerError::Begins { seq: span.seq, at: span.start, len });
            }
        }
        Ok(())
    }

    /// Applies an operation. `Open` is remembered; `Commit` appends its tokens.
    ///
    /// # Errors
    /// [`LedgerError`]; nothing is changed then.
    pub fn apply(&mut self, operation: &Operation) -> Result<(), LedgerError> {
        self.check(operation)?;
        self.applied += 1;
        match operation {
            Operation::Create { seq } => {
                self.seqs.insert(*seq, Entry::default());
            }
            Operation::Fork { from, tokens, seq } => {
                let mut entry = self.entry(*from)?.clone();
                entry.cut(*tokens as usize);
                self.seqs.insert(*seq, entry);
            }
            Operation::Truncate { seq, tokens } => self.change(*seq, |entry| entry.cut(*tokens as usize)),
            Operation::Release { seq } => {
                self.seqs.remove(seq);
            }
            Operation::Reuse { seq, ids, gained } => {
                let gained = *gained as usize;
                let ids = if self.with_ids { &ids[..gained] } else { &[] };
                self.change(*seq, |entry| entry.grow(gained, ids));
            }
            Operation::Open { step, spans } => {
                let kept = |ids: &[TokenId]| if self.with_ids { ids.to_vec() } else { Vec::new() };
                let of = |span: &Span| (span.seq, span.ids.len(), kept(&span.ids));
                let spans = (Rows::of(spans), spans.iter().map(of).collect());
                self.open = Some(Open { step: *step, rows: spans.0, spans: spans.1 });
            }
            Operation::Commit { .. } => {
                for (seq, len, ids) in self.open.take().map_or_else(Vec::new, |open| open.spans) {
                    self.change(seq, |entry| entry.grow(len, &ids));
                }
            }
            Operation::Cancel { .. } => self.open = None,
        }
        Ok(())
    }

    /// Changes a sequence that was checked to be there.
    fn change(&mut self, seq: SeqNo, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.seqs.get_mut(&seq) {
            change(entry);
        }
    }

    /// Returns the tokens of a sequence.
    pub fn len(&self, seq: SeqNo) -> Option<usize> {
        self.seqs.get(&seq).map(|entry| entry.len)
    }

    /// Returns whether there are no sequences.
    pub fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }

    /// Returns the tokens of a sequence; nothing if only lengths are recorded.
    pub fn ids(&self, seq: SeqNo) -> Option<&[TokenId]> {
        self.seqs.get(&seq).map(|entry| entry.ids.as_slice())
    }

    /// Returns all sequences, in ascending order.
    pub fn seqs(&self) -> impl Iterator<Item = SeqNo> {
        self.seqs.keys().copied()
    }

    /// Returns the lengths of all sequences.
    pub fn lengths(&self) -> BTreeMap<SeqNo, usize> {
        self.seqs.iter().map(|(seq, entry)| (*seq, entry.len)).collect()
    }

    /// Returns the step that is open.
    pub fn open(&self) -> Option<(StepNo, &Rows)> {
        self.open.as_ref().map(|open| (open.step, &open.rows))
    }

    /// Returns how many operations were applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }
}

impl Entry {
    fn cut(&mut self, tokens: usize) {
        self.len = tokens;
        self.ids.truncate(tokens);
    }

    fn grow(&mut self, tokens: usize, ids: &[TokenId]) {
        self.len += tokens;
        self.ids.extend_from_slice(ids);
    }
}

#[cfg(test)]
mod tests;
