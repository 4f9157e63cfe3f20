//! The caller of a simulated ring: it works off the script, and holds every answer to a reference.
//!
//! The reference is an engine with all layers that is told the same without a ring. It never touches a
//! device.

use std::time::Duration;

use baton_engine::Wanted;
use baton_random::mix;

use crate::core::SeqNo;
use crate::core::head::{Batch, BatchSeq, Event, Outputs, Own, RingFault, SeqAsk};
use crate::wire::frame::{Operation, Span};

use super::engine::FakeEngine;
use super::script::{Ask, Cancel, Part};

/// Tokens of the vocabulary.
pub(super) const VOCAB: u64 = 50;
/// Most tokens that a script holds at once; more steps are left out.
const TOKENS_MAX: usize = 4_000;

/// A token takes so long only if the ring is formed anew meanwhile.
const LONG: Duration = Duration::from_millis(140);

/// What the caller waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pending {
    Connect,
    Create,
    Fork(SeqNo, usize),
    Truncate(SeqNo, usize),
    Release(SeqNo),
    Reuse(SeqNo, Vec<u32>),
    Step(Vec<BatchSeq>),
    Invalid,
    Care,
}

/// What the caller does next.
#[derive(Debug)]
pub(super) enum Next {
    /// A request, and when it is no longer wanted.
    Ask(Box<Event>, Option<Cancel>),
    /// A device appears.
    Join(usize),
    /// Nothing for this time.
    Wait(Duration),
    /// The script is at its end.
    End,
}

#[derive(Debug)]
struct Greedy {
    seq: SeqNo,
    left: usize,
    token: u32,
    cancel: Option<Cancel>,
}

/// The caller.
#[derive(Debug)]
pub(super) struct Caller {
    script: std::vec::IntoIter<(usize, Ask)>,
    seed: u64,
    at: usize,
    live: Vec<SeqNo>,
    reference: FakeEngine,
    greedy: Option<Greedy>,
    pending: Option<Pending>,
    /// Steps that were computed.
    pub(super) steps: u64,
    /// Requests that failed.
    pub(super) failed: u64,
}

impl Caller {
    /// A caller that has asked nothing yet.
    pub(super) fn new(script: Vec<(usize, Ask)>, seed: u64, n_layers: usize) -> Self {
        Self {
            script: script.into_iter(),
            seed,
            at: 0,
            live: Vec::new(),
            reference: FakeEngine::new(n_layers, (0..n_layers).collect(), usize::MAX),
            greedy: None,
            pending: None,
            steps: 0,
            failed: 0,
        }
    }

    /// Whether a request is under way.
    pub(super) fn waits(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether a step is under way.
    pub(super) fn steps_now(&self) -> bool {
        matches!(self.pending, Some(Pending::Step(_)))
    }

    /// The batch of the present step.
    pub(super) fn batch(&self) -> Vec<BatchSeq> {
        match &self.pending {
            Some(Pending::Step(batch)) => batch.clone(),
            _ => Vec::new(),
        }
    }

    /// Live sequences and their tokens.
    pub(super) fn live(&self) -> impl Iterator<Item = (SeqNo, &[u32])> {
        self.live.iter().map(|seq| (*seq, self.reference.ids(*seq).unwrap_or_default()))
    }

    /// Notes that a request is made.
    pub(super) fn asks(&mut self, event: &Event) {
        self.pending = Some(match event {
            Event::Connect(_) => Pending::Connect,
            Event::Step(batch) => Pending::Step(batch.seqs.clone()),
            Event::Sequence(ask) => match ask.clone() {
                SeqAsk::Create { .. } => Pending::Create,
                SeqAsk::Fork { from, tokens } => Pending::Fork(from, tokens),
                SeqAsk::Truncate { seq, tokens } => Pending::Truncate(seq, tokens),
                SeqAsk::Release(seq) => Pending::Release(seq),
                SeqAsk::Reuse { seq, ids } => Pending::Reuse(seq, ids),
                SeqAsk::AddAdapter => Pending::Invalid,
            },
            _ => Pending::Care,
        });
    }

    fn seq(&self, slot: usize) -> Option<SeqNo> {
        (!self.live.is_empty()).then(|| self.live[slot % self.live.len()])
    }

    fn len(&self, seq: SeqNo) -> usize {
        self.reference.ids(seq).map_or(0, <[u32]>::len)
    }

    fn tokens(&self, count: usize) -> Vec<u32> {
        let token = |i: usize| (mix(self.seed ^ self.at as u64, i as u64) % VOCAB) as u32;
        (0..count).map(token).collect()
    }

    /// A step of one token of every live sequence; none without sequences.
    pub(super) fn last_step(&mut self) -> Option<Event> {
        self.at = usize::MAX;
        let ids = self.tokens(1);
        let part = |seq: &SeqNo| BatchSeq { seq: *seq, ids: ids.clone(), wanted: Wanted::Last };
        let batch: Vec<BatchSeq> = self.live.iter().map(part).collect();
        (!batch.is_empty()).then_some(Event::Step(Batch { seqs: batch }))
    }

    /// What comes next in the script. `own` is what the head's device has left.
    pub(super) fn next(&mut self, own: Own) -> Next {
        if let Some(greedy) = self.greedy.as_mut().filter(|greedy| greedy.left > 0) {
            greedy.left -= 1;
            let batch = vec![BatchSeq { seq: greedy.seq, ids: vec![greedy.token], wanted: Wanted::Last }];
            // A short time ends one token in the middle of the answer; a long one, whichever takes so long.
            let long = matches!(greedy.cancel, Some(Cancel::After(time)) if time > LONG);
            let cancel = if long || greedy.left % 3 == 0 { greedy.cancel } else { None };
            greedy.cancel = greedy.cancel.filter(|_| long || cancel.is_none());
            return Next::Ask(Box::new(Event::Step(Batch { seqs: batch })), cancel);
        }
        self.greedy = None;
        let Some((at, ask)) = self.script.next() else { return Next::End };
        self.at = at;
        self.begin(ask, own).unwrap_or(Next::Wait(Duration::ZERO))
    }

    fn begin(&mut self, ask: Ask, own: Own) -> Option<Next> {
        let ask = match ask {
            Ask::Create if self.live.len() < 8 => SeqAsk::Create { adapter: false },
            Ask::Fork(slot, share) if self.live.len() < 8 => {
                let from = self.seq(slot)?;
                let tokens = self.len(from) * share / 100;
                if tokens > own.free_tokens {
                    return None;
                }
                SeqAsk::Fork { from, tokens }
            }
            Ask::Truncate(slot, share) => {
                let seq = self.seq(slot)?;
                SeqAsk::Truncate { seq, tokens: self.len(seq) * share / 100 }
            }
            Ask::Release(slot) if self.live.len() > 1 => SeqAsk::Release(self.seq(slot)?),
            Ask::Reuse(slot, of) => {
                let (seq, of) = (self.seq(slot)?, self.seq(of)?);
                let from = self.len(seq).min(self.len(of));
                let ids = self.reference.ids(of)?[from..].to_vec();
                if ids.len() > own.free_tokens {
                    return None;
                }
                SeqAsk::Reuse { seq, ids }
            }
            Ask::Invalid(which) => {
                let ask = self.invalid(which)?;
                self.pending = Some(Pending::Invalid);
                ask
            }
            Ask::Step(parts, cancel) => {
                let seqs = self.batch_of(&parts)?;
                return Some(Next::Ask(Box::new(Event::Step(Batch { seqs })), cancel));
            }
            Ask::Greedy(slot, left, cancel) => {
                let seq = self.seq(slot)?;
                let token = self.tokens(1)[0];
                self.greedy = Some(Greedy { seq, left, token, cancel });
                return Some(self.next(own));
            }
            Ask::Between => return Some(Next::Ask(Box::new(Event::Between(own)), None)),
            Ask::Idle => return Some(Next::Ask(Box::new(Event::Idle(own)), None)),
            Ask::Join(worker) => return Some(Next::Join(worker)),
            Ask::Pause(time) => return Some(Next::Wait(time)),
            Ask::Create | Ask::Fork(..) | Ask::Release(_) => return None,
        };
        Some(Next::Ask(Box::new(Event::Sequence(ask)), None))
    }

    fn invalid(&self, which: usize) -> Option<SeqAsk> {
        let seq = self.seq(0)?;
        let tokens = self.len(seq) + 1;
        Some(match which {
            0 => SeqAsk::Truncate { seq: SeqNo(u64::MAX), tokens: 0 },
            1 => SeqAsk::Truncate { seq, tokens },
            _ => SeqAsk::Fork { from: seq, tokens },
        })
    }

    fn batch_of(&self, parts: &[Part]) -> Option<Vec<BatchSeq>> {
        let mut batch: Vec<BatchSeq> = Vec::new();
        let ids = self.tokens(parts.iter().map(|part| part.tokens).sum());
        let held: usize = self.live().map(|(_, ids)| ids.len()).sum();
        if held + ids.len() > TOKENS_MAX {
            return None;
        }
        let mut rest = ids.as_slice();
        for part in parts {
            let seq = self.seq(part.slot)?;
            let (own, left) = rest.split_at(part.tokens);
            rest = left;
            if !batch.iter().any(|other| other.seq == seq) {
                batch.push(BatchSeq { seq, ids: own.to_vec(), wanted: part.wanted });
            }
        }
        Some(batch)
    }

    /// Takes the end of the present request; `outputs` are those of the head's engine. `trusted` is false if
    /// a device computed wrong and may not have been found yet.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(super) fn done(
        &mut self,
        done: &Result<Outputs, RingFault>,
        outputs: &[u64],
        trusted: bool,
    ) -> Result<(), String> {
        let Some(pending) = self.pending.take() else {
            return Err("C3: an answer without a request".to_owned());
        };
        let outcome = match done {
            Ok(outcome) => *outcome,
            Err(fault) => return self.refused(&pending, fault),
        };
        let words = match (&pending, outcome) {
            (Pending::Create, Outputs::Seq(seq)) => {
                self.live.push(seq);
                self.tell(&Operation::Create { seq })
            }
            (Pending::Fork(from, tokens), Outputs::Seq(seq)) => {
                self.live.push(seq);
                self.tell(&Operation::Fork { from: *from, tokens: *tokens as u64, seq })
            }
            (Pending::Truncate(seq, tokens), Outputs::None) => {
                self.tell(&Operation::Truncate { seq: *seq, tokens: *tokens as u64 })
            }
            (Pending::Release(seq), Outputs::None) => {
                self.live.retain(|live| live != seq);
                self.tell(&Operation::Release { seq: *seq })
            }
            (Pending::Reuse(seq, ids), Outputs::Gained(gained)) => {
                if gained >= ids.len().max(1) {
                    return Err(format!("C1: {gained} tokens gained of {}", ids.len()));
                }
                let known = vec![BatchSeq { seq: *seq, ids: ids[..gained].to_vec(), wanted: Wanted::None }];
                return self.compute(&known).map(|_| ());
            }
            (Pending::Step(batch), Outputs::None) => return self.computed(batch, outputs, trusted),
            (Pending::Connect | Pending::Care, Outputs::None) => Ok(()),
            (Pending::Invalid, _) => Err("an invalid request is taken".to_owned()),
            (pending, outcome) => Err(format!("{outcome:?} answers {pending:?}")),
        };
        words.map_err(|words| format!("C1: {words}"))
    }

    fn refused(&mut self, pending: &Pending, fault: &RingFault) -> Result<(), String> {
        self.failed += 1;
        if let Some(greedy) = &mut self.greedy {
            greedy.left = 0;
        }
        let sequence = matches!(fault, RingFault::Sequence(_));
        match pending {
            Pending::Step(_) => Ok(()),
            Pending::Invalid if sequence => Ok(()),
            Pending::Connect | Pending::Care if !sequence => Ok(()),
            pending => Err(format!("C1: {pending:?} fails: {fault:?}")),
        }
    }

    fn tell(&mut self, operation: &Operation) -> Result<(), String> {
        self.reference.apply(operation).map_err(|err| format!("{operation:?}: {err:?}"))
    }

    fn compute(&mut self, batch: &[BatchSeq]) -> Result<Vec<u64>, String> {
        let span = |part: &BatchSeq| Span {
            seq: part.seq,
            start: self.len(part.seq) as u64,
            wanted: part.wanted,
            ids: part.ids.clone(),
        };
        let spans: Vec<Span> = batch.iter().filter(|part| !part.ids.is_empty()).map(span).collect();
        self.reference.step(&spans).map_err(|err| format!("the reference refuses {batch:?}: {err:?}"))
    }

    fn computed(&mut self, batch: &[BatchSeq], outputs: &[u64], trusted: bool) -> Result<(), String> {
        let right = self.compute(batch)?;
        self.steps += 1;
        if let (Some(greedy), Some(last)) = (&mut self.greedy, right.last()) {
            greedy.token = (last % VOCAB) as u32;
        }
        if right == outputs || !trusted {
            return Ok(());
        }
        let at = right.iter().zip(outputs).position(|(a, b)| a != b);
        Err(format!("C1: {} outputs, must be {}; the first other one: {at:?}", outputs.len(), right.len()))
    }
}
