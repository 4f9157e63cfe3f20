//! Plans one pass: answers first, then given parts of answers and prompts, or proposed tokens.
//!
//! Always: every answer that decodes is in every pass, and a pass fits into the free blocks. If not even the
//! next tokens fit, the latest arrival gives way. Proposals take only what is left beside one more block for
//! every answer.

use std::time::Duration;

use super::core::{InFlight, SchedulerCore};
use super::plan::{ChunkRoom, PrefillEnd, StepPlan, StepRow, chunk_len};
use super::slot::{Phase, Slot};
use super::speculate::{Candidate, Spare};
use super::{CloseReason, Effect, Goal, JobId, Outcome};
use crate::speculation::K_MAX;

/// What is left of a pass for prompts.
#[derive(Debug)]
struct Left {
    /// Tokens of the budget.
    budget: usize,
    /// The whole budget.
    whole: usize,
    /// Free blocks.
    free: usize,
}

impl SchedulerCore {
    /// Plans the next pass.
    pub(super) fn run(&mut self, now: Duration) -> Vec<Effect> {
        let lean = std::mem::take(&mut self.lean);
        let mut plan = StepPlan::default();
        let mut free = self.room.free_tokens / self.limits.kv_block;
        for slot in self.running.iter().filter(|slot| slot.phase == Phase::Decode) {
            let Some(left) = free.checked_sub(self.growth(slot.held(), slot.held() + 1)) else {
                return self.make_room(now);
            };
            free = left;
            plan.rows.push(StepRow::Decode { id: slot.request.spec.id, proposed: 0 });
        }
        let prompts = self.running.iter().any(Slot::prefilling);
        if prompts {
            self.add_prompts(&mut plan, free);
        } else if !lean {
            self.add_proposals(&mut plan, free);
        }
        if plan.rows.is_empty() {
            return if prompts { self.make_room(now) } else { Vec::new() };
        }
        self.in_flight = Some(InFlight { plan: plan.clone(), planned_at: now });
        vec![Effect::Run(plan)]
    }

    /// Fills the pass's budget with given parts of answers, then with chunks of prompts, as far as `free`
    /// blocks allow.
    fn add_prompts(&self, plan: &mut StepPlan, free: usize) {
        let whole = match plan.rows.len() {
            0 => self.limits.budget.chunk_tokens.max(self.room.pass_tokens_min),
            rows => self.times.mixed_tokens(self.limits.budget, rows),
        };
        let mut left = Left { budget: whole, whole, free };
        let verifies = |slot: &&Slot| matches!(slot.request.spec.goal, Goal::Verify { .. });
        let prefilling = self.running.iter().filter(|slot| slot.prefilling());
        for slot in prefilling.clone().filter(verifies) {
            plan.rows.extend(self.verify_row(slot, &mut left));
        }
        let prompts = prefilling.filter(|slot| !verifies(slot));
        let mut behind = prompts.clone().count();
        for slot in prompts {
            behind -= 1;
            plan.rows.extend(self.prompt_row(slot, behind > 0, &mut left));
        }
    }

    /// Returns the next row of a given part of an answer. Logits begin at the last token before that part. A
    /// short rest of the prompt goes into the same pass as the part's beginning.
    fn verify_row(&self, slot: &Slot, left: &mut Left) -> Option<StepRow> {
        let (id, done) = (slot.request.spec.id, slot.held());
        let total = slot.request.target_tokens();
        let before = (slot.request.feed_tokens() - 1).saturating_sub(done);
        let room = left.budget.min(self.kv_room(slot, left.free));
        let most = (total - done).min(self.limits.logit_rows).min(room);
        let cap = self.pass_cap(slot);
        let (len, verify) = match before {
            0 => (most, true),
            _ if before <= cap && most > before => (most, true),
            _ => (before.min(cap).min(room), false),
        };
        if len == 0 {
            return None;
        }
        self.take(slot, len, left);
        let tokens = done..done + len;
        Some(match verify {
            true => StepRow::Verify { id, last: tokens.end == total, tokens },
            false => StepRow::Prefill { id, tokens, end: PrefillEnd::More },
        })
    }

    /// Returns the next chunk of a prompt.
    fn prompt_row(&self, slot: &Slot, others: bool, left: &mut Left) -> Option<StepRow> {
        let (request, done) = (&slot.request, slot.held());
        let total = request.target_tokens();
        let room = ChunkRoom {
            budget: left.budget,
            whole: left.whole,
            kv: self.kv_room(slot, left.free),
            cap: self.pass_cap(slot),
            others,
        };
        let len = chunk_len(total - done, request.tail_tokens(), room);
        if len == 0 {
            return None;
        }
        self.take(slot, len, left);
        let tokens = done..done + len;
        let end = match request.spec.goal {
            _ if tokens.end < total => PrefillEnd::More,
            Goal::Hold { .. } => PrefillEnd::Held,
            Goal::Write | Goal::Verify { .. } => PrefillEnd::Sampled,
        };
        Some(StepRow::Prefill { id: request.spec.id, tokens, end })
    }

    /// Returns the most prompt tokens of this sequence in one pass.
    fn pass_cap(&self, slot: &Slot) -> usize {
        slot.request.spec.pass_tokens.max(self.room.pass_tokens_min)
    }

    /// Returns by how many tokens a sequence can grow into its last block and `free` others.
    fn kv_room(&self, slot: &Slot, free: usize) -> usize {
        let done = slot.held();
        let in_block = done.next_multiple_of(self.limits.kv_block) - done;
        match free.checked_sub(slot.own_block()) {
            Some(free) => in_block + free * self.limits.kv_block,
            None => 0,
        }
    }

    fn take(&self, slot: &Slot, len: usize, left: &mut Left) {
        left.budget = left.budget.saturating_sub(len);
        let grown = slot.own_block() + self.growth(slot.held(), slot.held() + len);
        left.free = left.free.saturating_sub(grown);
    }

    /// Adds proposed tokens to a pass that only decodes.
    fn add_proposals(&mut self, plan: &mut StepPlan, free: usize) {
        let Some(proposing) = &mut self.proposing else { return };
        let (block, logit_rows) = (self.limits.kv_block, self.limits.logit_rows);
        for slot in self.running.iter_mut().filter(|slot| slot.phase == Phase::Decode) {
            slot.request.acceptance.get_or_insert_with(|| proposing.begin());
        }
        let decoding = self.running.iter().filter(|slot| slot.phase == Phase::Decode);
        let answers: Vec<Candidate<'_>> = decoding
            .filter_map(|slot| {
                let next = slot.held() + 1;
                let rest = slot.request.rest_tokens(usize::MAX).saturating_sub(1);
                Some(Candidate {
                    acceptance: slot.request.acceptance.as_ref()?,
                    arrival: slot.request.arrival,
                    most: rest.min(K_MAX).min(logit_rows - 1),
                    in_block: next.next_multiple_of(block) - next,
                })
            })
            .collect();
        let spare = Spare { blocks: free.saturating_sub(answers.len()), block };
        let numbers = proposing.plan(&answers, spare, self.waiting.is_empty());
        for (row, number) in plan.rows.iter_mut().zip(numbers) {
            if let StepRow::Decode { proposed, .. } = row {
                *proposed = number;
            }
        }
    }

    /// Learns from a pass what proposals are worth. A pass that holds prompts says nothing about them.
    pub(super) fn learn(&mut self, plan: &StepPlan, outcomes: &[(JobId, Outcome)], took: Duration) {
        let Some(proposing) = &mut self.proposing else { return };
        let batch = plan.decode_rows();
        let decodes = batch == plan.rows.len();
        let proposed = outcomes.iter().map(|(_, outcome)| outcome.proposed).sum();
        if decodes {
            proposing.begin_pass(batch, proposed);
        }
        let mut written = Vec::with_capacity(batch);
        for row in &plan.rows {
            let StepRow::Decode { id, .. } = row else { continue };
            let slot = self.running.iter_mut().find(|slot| slot.request.spec.id == *id);
            let outcome = outcomes.iter().find(|(of, _)| of == id);
            let (Some(slot), Some((_, outcome))) = (slot, outcome) else { continue };
            let stats = &mut slot.request.speculation;
            stats.steps += 1;
            stats.speculative_steps += u64::from(outcome.proposed > 0);
            stats.proposed += outcome.proposed as u64;
            stats.accepted += outcome.accepted as u64;
            stats.written += outcome.written as u64;
            if decodes && let Some(own) = &mut slot.request.acceptance {
                proposing.observe(batch, own, outcome.proposed, outcome.accepted);
                written.push((*id, outcome.written));
            }
        }
        let ms = took.as_secs_f64() * 1e3;
        let plain_ms = decodes.then(|| proposing.took(batch, proposed, ms)).flatten();
        let Some(plain_ms) = plain_ms else { return };
        for (id, tokens) in written {
            let Some(slot) = self.running.iter_mut().find(|slot| slot.request.spec.id == id) else {
                continue;
            };
            let stats = &mut slot.request.speculation;
            stats.timed += tokens as u64;
            stats.spent_ms += ms;
            stats.plain_ms += plain_ms * tokens as f64;
        }
    }

    /// Makes room in the KV cache for the next pass: preempts the latest arrival.
    pub(super) fn make_room(&mut self, now: Duration) -> Vec<Effect> {
        let Some(mut slot) = self.running.pop() else { return Vec::new() };
        let id = slot.request.spec.id;
        if self.running.is_empty() {
            // It was checked to fit alone when it came, so the engine has less room than it reported.
            self.running.push(slot);
            return self.end(id, CloseReason::Failed, now).into_iter().collect();
        }
        slot.request.slot_time += now.saturating_sub(slot.since);
        self.waiting.push_front(slot.request);
        self.preemptions_total += 1;
        vec![Effect::Preempt(id)]
    }
}
