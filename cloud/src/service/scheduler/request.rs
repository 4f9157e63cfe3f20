//! The state of one request, wherever it is: waiting, in a slot, or preempted and waiting again.
//!
//! Pure. Always: what it wrote is kept while it waits, so that its reader only sees a pause.

use std::time::Duration;

use super::{CloseReason, Closed, JobSpec, Outcome, SlotTimes};

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
        }
    }

    /// Returns the number of tokens to compute before the next one can be sampled: the prompt and what is
    /// written.
    pub(super) fn feed_tokens(&self) -> usize {
        self.spec.prompt_tokens + self.written
    }

    /// Returns how many of the last tokens one pass must contain together. Scores are captured only when the
    /// first token is sampled.
    pub(super) fn tail_tokens(&self) -> usize {
        if self.written == 0 { self.spec.tail_tokens } else { 1 }
    }

    /// Records a sampled token; returns a reason if it ends the answer.
    pub(super) fn wrote(&mut self, outcome: Outcome, now: Duration) -> Option<CloseReason> {
        self.first_at.get_or_insert(now);
        match outcome {
            Outcome::Token | Outcome::LastToken => {
                self.written += 1;
                let cap = self.written >= self.spec.max_tokens;
                match outcome {
                    Outcome::LastToken => Some(CloseReason::Stop),
                    _ => cap.then_some(CloseReason::Cap),
                }
            }
            Outcome::EndOfText => Some(CloseReason::Stop),
            Outcome::Failed => Some(CloseReason::Failed),
        }
    }

    /// Ends the request. `slot_time` includes its last slot already.
    pub(super) fn closed(self, reason: CloseReason, now: Duration) -> Closed {
        let ms = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() * 1e3;
        let opened = self.opened_at.unwrap_or(now);
        let first = self.first_at.unwrap_or(now);
        let times = SlotTimes {
            queue_ms: ms(self.queued_at, opened),
            prefill_ms: ms(opened, first),
            decode_ms: ms(first, now),
            slot_ms: self.slot_time.as_secs_f64() * 1e3,
        };
        Closed { id: self.spec.id, reason, tokens: self.written, times }
    }
}
