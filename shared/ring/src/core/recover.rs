//! The tokens of all live sequences, and what is done about faults: waiting for their cause, and computing
//! sequences again on another ring.
//!
//! Keys and values depend on the tokens alone. So if the tokens of every sequence run through a new ring, the
//! text goes on as if nothing had happened. This room sends nothing itself: it fills the pump's log and
//! begins its steps.
//!
//! Always holds:
//!
//! - The ledger has every token of every live sequence, whether or not a device has keys and values for it.
//! - `cached` is true only if the present route has them for all.
//! - Replay does not change the ledger.

mod asks;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use baton_engine::Wanted;

use super::form::Formed;
use super::head::{BatchSeq, Fault, Fx, HeadDone, HeadWork, RingFault};
use super::ledger::{Ledger, LedgerError};
use super::planted::{Bug, Planted};
use super::pump::{Committed, Ending, Kind, Pump, PumpNews};
use super::{SeqNo, StepNo};
use crate::wire::frame::{Operation, Span};
use asks::Asking;

/// Tokens of a sequence that are computed again in one step.
const REPLAY_TOKENS: usize = 512;
/// How long to wait after a broken link for a device that reports the cause.
const SETTLE: Duration = Duration::from_millis(200);

/// What has become of the replay.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ReplayNews {
    /// It goes on.
    Waiting,
    /// All sequences are cached.
    Done,
    /// The ring broke.
    Fault(Fault),
    /// It cannot be done, or the caller's control ended it.
    Failed(RingFault),
}

/// Sequences that are computed again.
#[derive(Debug)]
struct Replay {
    /// Not begun yet.
    left: VecDeque<SeqNo>,
    at: Option<At>,
}

/// The one that is computed again now.
#[derive(Debug, Clone, Copy)]
struct At {
    seq: SeqNo,
    /// Tokens that are cached; none as long as the engine looks for a known prefix.
    done: Option<usize>,
}

/// A fault, and until when to wait for a more certain one.
#[derive(Debug)]
struct Settling {
    fault: Fault,
    until: Duration,
}

/// In which work the ring broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Within {
    /// In the caller's step.
    Step,
    /// While sequences were computed again.
    Replay,
}

/// Sequences and faults.
#[derive(Debug)]
pub(super) struct Recover {
    ledger: Ledger,
    next_seq: u64,
    /// Whether the present route has keys and values of all tokens.
    cached: bool,
    replay: Option<Replay>,
    settling: Option<Settling>,
    /// How often the ring broke within the caller's present step, and within the present replay.
    broke: [usize; 2],
    recoveries: u64,
    asking: Option<Asking>,
    planted: Planted,
}

impl Recover {
    pub(super) fn new(planted: Planted) -> Self {
        Self {
            ledger: Ledger::with_ids(),
            next_seq: 0,
            cached: false,
            replay: None,
            settling: None,
            broke: [0; 2],
            recoveries: 0,
            asking: None,
            planted,
        }
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns whether the present route has keys and values of all tokens.
    pub(super) fn is_cached(&self) -> bool {
        self.cached
    }

    /// Returns how often sequences were computed again on another route.
    pub(super) fn recoveries(&self) -> u64 {
        self.recoveries
    }
}

/// Faults.
impl Recover {
    /// A request begins.
    pub(super) fn begin_request(&mut self) {
        self.broke = [0; 2];
    }

    /// Another route is to be formed. `counts` is false for the first one of all.
    pub(super) fn begin_ready(&mut self, counts: bool) {
        self.broke[1] = 0;
        self.recoveries += u64::from(counts);
    }

    /// The ring broke. A certain fault ends the wait for one.
    pub(super) fn fault(&mut self, fault: Fault, now: Duration) {
        let waits = !fault.is_certain() && !self.planted.is(Bug::BlamedAtOnce);
        let until = if waits { now + SETTLE } else { now };
        match &mut self.settling {
            Some(settling) if !settling.fault.is_certain() && fault.is_certain() => {
                *settling = Settling { fault, until };
            }
            Some(_) => {}
            None => self.settling = Some(Settling { fault, until }),
        }
    }

    /// Returns until when to wait for the cause of a fault, if there is a fault.
    pub(super) fn settles_at(&self) -> Option<Duration> {
        self.settling.as_ref().map(|settling| settling.until)
    }

    /// Returns the fault whose wait has ended.
    pub(super) fn settled(&mut self) -> Option<Fault> {
        self.settling.take().map(|settling| settling.fault)
    }

    /// Counts a break of the ring. Returns the error if there were too many for so many members.
    pub(super) fn broke(&mut self, within: Within, members: usize, fault: &Fault) -> Option<RingFault> {
        let broke = &mut self.broke[usize::from(within == Within::Replay)];
        *broke += 1;
        let words = fault.words().to_owned();
        (*broke > 2 * (members + 2)).then_some(RingFault::GaveUp { times: *broke, words })
    }

    /// The route is down: nobody has keys and values.
    pub(super) fn fell(&mut self) {
        self.cached = false;
        self.replay = None;
    }

    /// The caller cancelled while sequences were computed again: the next step begins with that.
    pub(super) fn cancelled(&mut self) {
        self.cached = self.planted.is(Bug::CancelledReplayDone) && self.replay.is_some();
        self.replay = None;
    }
}

/// The caller's steps.
impl Recover {
    /// Returns the spans of a step of these sequences.
    ///
    /// # Errors
    /// [`RingFault::Sequence`] if one is not known.
    pub(super) fn spans(&self, seqs: &[BatchSeq]) -> Result<Vec<Span>, RingFault> {
        let span = |entry: &BatchSeq| {
            let len = self.ledger.len(entry.seq).ok_or(LedgerError::Unknown(entry.seq))?;
            Ok(Span { seq: entry.seq, start: len as u64, wanted: entry.wanted, ids: entry.ids.clone() })
        };
        seqs.iter().map(span).collect()
    }

    /// A step of the caller or of a probe begins.
    pub(super) fn begun(&mut self, step: StepNo, spans: &[Span]) {
        if self.planted.is(Bug::TokensEarly) {
            self.append(step, spans.to_vec());
        }
    }

    /// Such a step was committed.
    pub(super) fn committed(&mut self, committed: Committed) {
        if !self.planted.is(Bug::TokensEarly) {
            self.append(committed.step, committed.spans);
        }
    }

    /// Appends the tokens of a step. The engine has accepted it, and it has the same sequences, so this
    /// cannot fail.
    fn append(&mut self, step: StepNo, spans: Vec<Span>) {
        if spans.is_empty() {
            return;
        }
        let opened = self.ledger.apply(&Operation::Open { step, spans });
        let done = opened.and_then(|()| self.ledger.apply(&Operation::Commit { step }));
        debug_assert_eq!(done, Ok(()), "the ledger is as the engine");
    }
}

/// Replay.
impl Recover {
    /// Computes every live sequence again on the present route, unless the caller has cancelled that.
    pub(super) fn drive(
        &mut self,
        pump: &mut Pump,
        formed: Option<&Formed>,
        cancelled: bool,
        now: Duration,
        fx: &mut Fx,
    ) -> ReplayNews {
        if cancelled {
            pump.end(Ending::Cancelled);
        }
        if self.replay.is_none() {
            self.begin_replay(pump, formed);
        }
        loop {
            match pump.drive(formed, now, fx) {
                PumpNews::Waiting if pump.is_under_way() => return ReplayNews::Waiting,
                PumpNews::Fault(fault) => return ReplayNews::Fault(fault),
                PumpNews::Ended(Ending::Cancelled) => return ReplayNews::Failed(RingFault::Cancelled),
                PumpNews::Ended(_) | PumpNews::Back { .. } => return ReplayNews::Failed(RingFault::Replay),
                PumpNews::Committed(committed) => self.part_done(&committed),
                PumpNews::Waiting => {}
            }
            if self.asking.is_some() {
                return ReplayNews::Waiting;
            }
            if cancelled {
                return ReplayNews::Failed(RingFault::Cancelled);
            }
            if !self.next_part(pump, formed, now, fx) {
                self.replay = None;
                self.cached = true;
                return ReplayNews::Done;
            }
        }
    }

    fn begin_replay(&mut self, pump: &mut Pump, formed: Option<&Formed>) {
        let skips = self.planted.is(Bug::EmptyNotCreated);
        let left: VecDeque<SeqNo> = self.ledger.seqs().collect();
        let there = |seq: &&SeqNo| !(skips && self.ledger.len(**seq) == Some(0));
        if formed.is_some() {
            left.iter().filter(there).for_each(|seq| pump.note(Operation::Create { seq: *seq }));
        }
        self.replay = Some(Replay { left, at: None });
    }

    /// Begins the next part. Returns whether there is one.
    fn next_part(&mut self, pump: &mut Pump, formed: Option<&Formed>, now: Duration, fx: &mut Fx) -> bool {
        let short = usize::from(self.planted.is(Bug::LastTokenLost));
        loop {
            let Some(replay) = &mut self.replay else { return false };
            let Some(At { seq, done }) = replay.at else {
                let Some(seq) = replay.left.pop_front() else { return false };
                let ids = self.ledger.ids(seq).unwrap_or_default();
                if ids.is_empty() {
                    continue;
                }
                // This never finds the last token, because then nothing would be left to compute.
                let look = Operation::Reuse { seq, ids: ids.to_vec(), gained: 0 };
                replay.at = Some(At { seq, done: None });
                self.asking = Some(Asking::Prefix);
                fx.compute(HeadWork::Sequence(look));
                return true;
            };
            let (ids, done) = (self.ledger.ids(seq).unwrap_or_default(), done.unwrap_or_default());
            let end = ids.len().saturating_sub(short).min(done + REPLAY_TOKENS);
            let Some(part) = ids.get(done..end).filter(|part| !part.is_empty()) else {
                replay.at = None;
                continue;
            };
            let span = Span { seq, start: done as u64, wanted: Wanted::None, ids: part.to_vec() };
            pump.begin(Kind::Replay, vec![span], formed, now, fx);
            return true;
        }
    }

    fn part_done(&mut self, committed: &Committed) {
        let tokens: usize = committed.spans.iter().map(|span| span.ids.len()).sum();
        if let Some(Replay { at: Some(at), .. }) = &mut self.replay {
            at.done = Some(at.done.unwrap_or_default() + tokens);
        }
    }

    /// The engine has looked for a known prefix of the sequence that is computed again.
    fn prefix_found(&mut self, done: &HeadDone, pump: &mut Pump, ring: bool) {
        let gained = if let HeadDone::Gained(gained) = done { *gained } else { 0 };
        let Some(Replay { at: Some(at), .. }) = &mut self.replay else { return };
        at.done = Some(gained);
        let ids = self.ledger.ids(at.seq).unwrap_or_default();
        // A look-up that finds nothing changes nothing.
        if ring && gained > 0 {
            pump.note(Operation::Reuse { seq: at.seq, ids: ids.to_vec(), gained: gained as u64 });
        }
    }
}
