//! The state of one request, wherever it is: waiting, in a slot, or preempted and waiting again.
//!
//! Pure. Always: what it wrote is kept while it waits, so that its reader only sees a pause.

use std::time::Duration;

use super::orders::NewPrompt;
use super::speculate::Acceptance;
use super::{AnswerEnd, CloseReason, Closed, Goal, JobSpec, Outcome, SlotTimes};
use crate::speculation::SpeculationStats;

#[derive(Debug)]
pub(super) struct Request {
    pub(super) spec: JobSpec,
    /// Order of arrival.
    pub(super) arrival: u64,
    pub(super) queued_at: Duration,
    /// When it got its first slot.
    pub(super) opened_at: Option<Duration>,
    pub(super) first_at: Option<Duration>,
    pub(super) written: usize,
    /// Time in slots that it has left already.
    pub(super) slot_time: Duration,
    /// How often its proposals were right; from the first pass on that may hold some.
    pub(super) acceptance: Option<Acceptance>,
    pub(super) speculation: SpeculationStats,
}

impl Request {
    pub(super) fn new(spec: JobSpec, arrival: u64, now: Duration) -> Request {
        Request {
            spec,
            arrival,
            queued_at: now,
            opened_at: None,
            first_at: None,
            written: 0,
            slot_time: Duration::ZERO,
            acceptance: None,
            speculation: SpeculationStats::default(),
        }
    }

    /// Returns the number of tokens to compute before the next one can be sampled: the prompt and what is
    /// written.
    pub(super) fn feed_tokens(&self) -> usize {
        self.spec.prompt_tokens + self.written
    }

    /// Returns the number of tokens to compute for its goal.
    pub(super) fn target_tokens(&self) -> usize {
        match self.spec.goal {
            Goal::Write => self.feed_tokens(),
            Goal::Hold { upto } => upto,
            Goal::Verify { accepted } => self.feed_tokens() + accepted,
        }
    }

    /// Returns how many of the last tokens one pass must contain together. Scores are captured only when the
    /// first token is sampled, or when what is to be held is reached.
    pub(super) fn tail_tokens(&self) -> usize {
        match self.spec.goal {
            Goal::Hold { .. } => self.spec.tail_tokens,
            Goal::Write if self.written == 0 => self.spec.tail_tokens.max(1),
            Goal::Write | Goal::Verify { .. } => 1,
        }
    }

    /// Returns the most tokens that may be in the cache before a pass computes for its goal.
    pub(super) fn known_max(&self) -> usize {
        match self.spec.goal {
            Goal::Verify { .. } => self.feed_tokens() - 1,
            Goal::Write | Goal::Hold { .. } => self.target_tokens().saturating_sub(self.tail_tokens()),
        }
    }

    /// Returns the tokens that need room before the next answer token needs some.
    pub(super) fn whole_tokens(&self) -> usize {
        self.target_tokens().max(self.feed_tokens())
    }

    /// Returns how many more tokens the answer may get, at most `most`.
    pub(super) fn rest_tokens(&self, most: usize) -> usize {
        let given = if let Goal::Verify { accepted } = self.spec.goal { accepted } else { 0 };
        self.spec.max_tokens.saturating_sub(self.written + given).min(most)
    }

    /// Takes another prompt.
    pub(super) fn replace_prompt(&mut self, new: NewPrompt) {
        self.spec.prompt_tokens = new.prompt_tokens;
        self.spec.max_tokens = new.max_tokens;
        self.spec.floor_tokens = new.max_tokens;
        self.spec.pass_tokens = new.pass_tokens;
        self.spec.goal = new.goal;
        // A scoring window is about the first prompt.
        self.spec.tail_tokens = 0;
    }

    /// Records what a pass brought; returns a reason if the answer ends.
    pub(super) fn wrote(&mut self, outcome: Outcome, now: Duration) -> Option<CloseReason> {
        self.first_at.get_or_insert(now);
        self.written += outcome.written;
        outcome.end.map(reason)
    }

    /// Ends the request. `slot_time` includes its last slot already.
    pub(super) fn closed(self, reason: CloseReason, now: Duration, speculates: bool) -> Closed {
        let ms = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() * 1e3;
        let opened = self.opened_at.unwrap_or(now);
        let first = self.first_at.unwrap_or(now);
        let times = SlotTimes {
            queue_ms: ms(self.queued_at, opened),
            prefill_ms: ms(opened, first),
            decode_ms: ms(first, now),
            slot_ms: self.slot_time.as_secs_f64() * 1e3,
        };
        let speculation = speculates.then_some(self.speculation);
        Closed { id: self.spec.id, reason, tokens: self.written, times, speculation }
    }
}

/// Returns how a sequence ends whose answer ends like this.
pub(super) fn reason(end: AnswerEnd) -> CloseReason {
    match end {
        AnswerEnd::Stop => CloseReason::Stop,
        AnswerEnd::Cap => CloseReason::Cap,
        AnswerEnd::Failed => CloseReason::Failed,
    }
}
