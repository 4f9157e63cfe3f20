//! What a sequence is told after it was submitted: another prompt, a given part of its answer, a decision.
//!
//! Orders come between passes. Always: a sequence without a slot takes them too, and goes on from them when
//! it gets one again. An order that does not fit the sequence's phase is a fault of the driver.

use std::time::Duration;

use super::core::SchedulerCore;
use super::slot::Phase;
use super::{CloseReason, Effect, Goal, JobId};

/// A prompt that takes the place of another.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewPrompt {
    pub(super) prompt_tokens: usize,
    pub(super) max_tokens: usize,
    pub(super) pass_tokens: usize,
    pub(super) goal: Goal,
}

impl SchedulerCore {
    /// Gives a sequence another prompt, of which `kept` tokens are in its cache. A prompt that can never fit
    /// into the cache ends it.
    pub(super) fn prompt(&mut self, id: JobId, new: NewPrompt, kept: usize, now: Duration) -> Option<Effect> {
        assert!(
            self.in_flight.is_none() && new.prompt_tokens > 0 && new.max_tokens > 0 && new.pass_tokens > 0
        );
        if self.blocks(new.prompt_tokens + new.max_tokens) * self.limits.kv_block > self.limits.kv_tokens {
            return self.end(id, CloseReason::Failed, now);
        }
        let block = self.limits.kv_block;
        let slot = self.running.iter_mut().find(|slot| slot.request.spec.id == id);
        let request = match &slot {
            Some(_) => None,
            None => self.waiting.get_mut(id),
        };
        match (slot, request) {
            (Some(slot), _) => {
                let waits = matches!(slot.phase, Phase::Prefill { .. } | Phase::Held { .. });
                assert!(waits && slot.request.written == 0, "a prompt changes before the answer: {slot:?}");
                slot.request.replace_prompt(new);
                slot.begin(kept, block)
            }
            (None, Some(request)) => {
                request.replace_prompt(new);
                None
            }
            (None, None) => None,
        }
    }

    /// Lets a sequence compute a given part of its answer. A part that can never fit into the cache ends it.
    pub(super) fn accept(&mut self, id: JobId, accepted: usize, now: Duration) -> Option<Effect> {
        assert!(self.in_flight.is_none(), "orders come between passes");
        let slot = self.running.iter_mut().find(|slot| slot.request.spec.id == id);
        let (request, phase) = match slot {
            Some(slot) => (&mut slot.request, Some(&mut slot.phase)),
            None => (self.waiting.get_mut(id)?, None),
        };
        assert!(
            matches!(request.spec.goal, Goal::Hold { .. }) && request.written == 0,
            "a part of an answer is given once, to a sequence that holds its prompt: {request:?}"
        );
        request.spec.goal = Goal::Verify { accepted };
        if let Some(phase) = phase {
            let (Phase::Prefill { done, borrowed } | Phase::Held { done, borrowed }) = *phase else {
                panic!("a sequence that holds its prompt is in no other phase: {phase:?}")
            };
            assert!(done <= request.known_max(), "the token before the given part is computed with it");
            *phase = Phase::Prefill { done, borrowed };
        }
        let need = request.whole_tokens();
        if self.blocks(need) * self.limits.kv_block > self.limits.kv_tokens {
            return self.end(id, CloseReason::Failed, now);
        }
        None
    }

    /// Lets a sequence go on behind what was kept of the given part. It may have lost its blocks while the
    /// decision was made, or be computing the part again.
    pub(super) fn decided(&mut self, id: JobId, kept: usize, tokens: usize, now: Duration) {
        assert!(self.in_flight.is_none(), "orders come between passes");
        let block = self.limits.kv_block;
        let slot = self.running.iter_mut().find(|slot| slot.request.spec.id == id);
        let (request, phase) = match slot {
            Some(slot) => (&mut slot.request, Some(&mut slot.phase)),
            None => match self.waiting.get_mut(id) {
                Some(request) => (request, None),
                None => return,
            },
        };
        assert!(
            matches!(request.spec.goal, Goal::Verify { .. }),
            "what is decided about was given before: {request:?}"
        );
        let in_cache = request.spec.prompt_tokens + kept;
        request.spec.goal = Goal::Write;
        request.written = tokens;
        request.first_at.get_or_insert(now);
        match phase {
            Some(phase @ Phase::Decide { .. }) => *phase = Phase::Decode,
            Some(phase) => {
                let Phase::Prefill { done, borrowed } = *phase else {
                    panic!("a given part is computed before something is decided: {phase:?}")
                };
                let cut = done.min(in_cache);
                let borrowed = borrowed || (cut < done && !cut.is_multiple_of(block));
                *phase = Phase::Prefill { done: cut, borrowed };
            }
            None => (),
        }
    }
}
