//! One pass: proposals, rows, the engine's step, and what its logits become.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use baton_engine::pace_emulation::PassContent;
use baton_engine::tokenizer::TokenId;
use baton_engine::{
    MeanOver, SeqId, SeqOutput, SequenceError, Sequences, StepControl, StepError, StepSeq, Wanted,
};

use super::{Entry, Host, Pass, PassSample, Turns};
use crate::answer::{AnswerEnd, Outcome, Rows, Written};
use crate::job::JobEvent;
use crate::planted::{self, Bug};
use crate::scheduler::{JobId, PrefillEnd, StepPlan, StepRow};
use crate::speculation::Want;
use crate::unread::CancelFlag;

/// One sequence's part of a pass, with what the engine borrows.
struct Row {
    id: JobId,
    planned: StepRow,
    seq: SeqId,
    /// Tokens in the cache before the pass.
    held: usize,
    proposed: Vec<TokenId>,
    rows: Rows,
    begins: bool,
}

impl Row {
    fn step(&self) -> StepSeq<'_> {
        let Rows { ids, logits, capture } = &self.rows;
        StepSeq { seq: self.seq, ids, logits: *logits, capture: capture.as_ref() }
    }

    fn is_prompt(&self) -> bool {
        !matches!(self.planned, StepRow::Decode { .. })
    }
}

impl<S: Sequences> Host<S> {
    pub(super) fn compute(
        &mut self,
        plan: &StepPlan,
        outer: &mut dyn StepControl,
    ) -> Result<Pass, SequenceError> {
        let turns = self.turns.clone();
        let asked_at = turns.as_ref().map(|_| self.clock.now());
        let turn = turns.as_deref().map(Turns::take);
        // The cost of a pass does not include the wait for other models' passes.
        let (begun_at, started) = (self.clock.now(), Instant::now());
        let waited = asked_at.map_or(Duration::ZERO, |asked_at| begun_at.saturating_sub(asked_at));
        self.charge(plan);
        let flags: Vec<CancelFlag> = plan
            .rows
            .iter()
            .filter_map(|row| self.jobs.get(&row.id()))
            .map(|entry| entry.cancel.clone())
            .collect();
        let mut control = PassControl { flags: &flags, outer };
        let proposals = self.propose(plan, &mut control)?;
        let rows: Vec<Row> =
            plan.rows.iter().zip(proposals).filter_map(|(row, proposed)| self.row(row, proposed)).collect();
        let batch: Vec<StepSeq<'_>> = rows.iter().map(Row::step).collect();
        let mut outputs = self.engine.step(&batch, &mut control)?;
        if planted::is(Bug::ScoresSwapped) {
            swap_scores(&mut outputs);
        }
        drop(batch);
        drop(turn);
        let mut sample = sample_of(&rows);
        let content = PassContent {
            prompts_begun: rows.iter().filter(|row| row.begins).count(),
            prefill_tokens: sample.prefill_tokens + sample.proposed,
            decode_rows: sample.decode_rows,
        };
        let mut outcomes = Vec::new();
        let mut written = Vec::new();
        for (row, output) in rows.iter().zip(outputs) {
            if let Some(outcome) = self.take(row, output, &mut written)? {
                sample.written += outcome.written;
                outcomes.push((row.id, outcome));
            }
        }
        let elapsed = started.elapsed();
        let wait = self.emulation.map_or(Duration::ZERO, |cost| cost.wait(content, elapsed));
        let rows = rows.iter().map(|row| row.id).collect();
        Ok(Pass { content, sample, begun_at, elapsed, wait, waited, rows, flags, outcomes, is_cut: false })
    }

    /// Runs tokens through the model, for measuring.
    pub(super) fn probe_on(&mut self, seq: SeqId, tokens: usize) -> Option<()> {
        let ids = vec![0; tokens];
        let step = StepSeq { seq, ids: &ids, logits: Wanted::Last, capture: None };
        self.engine.step(&[step], &mut ()).ok().map(|_| ())
    }

    /// Tells readers what is computed, before it is: one that leaves during the pass pays for it.
    fn charge(&mut self, plan: &StepPlan) {
        for row in &plan.rows {
            let (StepRow::Prefill { id, tokens, .. } | StepRow::Verify { id, tokens, .. }) = row else {
                continue;
            };
            if let Some(entry) = self.jobs.get_mut(id) {
                entry.sink.computing(tokens.end.min(entry.answer.prompt().len()));
            }
        }
    }

    /// Returns the proposed tokens of each planned row.
    fn propose(
        &mut self,
        plan: &StepPlan,
        control: &mut dyn StepControl,
    ) -> Result<Vec<Vec<TokenId>>, StepError> {
        let mut proposals = vec![Vec::new(); plan.rows.len()];
        let Some(proposer) = &mut self.proposer else { return Ok(proposals) };
        let (mut wants, mut places) = (Vec::new(), Vec::new());
        for (place, row) in plan.rows.iter().enumerate() {
            let StepRow::Decode { id, proposed } = row else { continue };
            let Some(entry) = self.jobs.get(id).filter(|_| *proposed > 0) else { continue };
            let k = entry.sink.room().saturating_sub(1).min(*proposed);
            if let Some(writing) = entry.answer.writing().filter(|_| k > 0) {
                wants.push(Want { id: *id, writing, k });
                places.push((place, k));
            }
        }
        if wants.is_empty() {
            return Ok(proposals);
        }
        let proposed = proposer.propose(&wants, control)?;
        for ((place, k), mut ids) in places.into_iter().zip(proposed) {
            ids.truncate(k);
            proposals[place] = ids;
        }
        Ok(proposals)
    }

    fn row(&self, planned: &StepRow, proposed: Vec<TokenId>) -> Option<Row> {
        let id = planned.id();
        let entry = self.jobs.get(&id)?;
        let seq = entry.seq?;
        let mut rows = entry.answer.rows(planned, &proposed);
        if rows.capture.as_ref().is_some_and(|capture| capture.over == MeanOver::Heads)
            && !self.engine.captures()
        {
            rows.capture = None;
        }
        Some(Row {
            id,
            planned: planned.clone(),
            seq,
            held: self.engine.len(seq).ok()?,
            rows,
            proposed,
            begins: !entry.begun && !matches!(planned, StepRow::Decode { .. }),
        })
    }

    /// Takes one row's output; returns its outcome, if it has logits.
    fn take(
        &mut self,
        row: &Row,
        mut output: SeqOutput,
        written: &mut Vec<Written>,
    ) -> Result<Option<Outcome>, SequenceError> {
        let Some(entry) = self.jobs.get_mut(&row.id) else { return Ok(None) };
        entry.begun = true;
        // The scores are complete some layers before the token, so the mask could be made and given out
        // earlier. But this would save only a part of the last chunk, which is the same for any length of
        // prompt. It is 16 % of the time to the first token at 512 tokens, 4 % at 2,048 (`./x bench
        // refiner`).
        let scores = output.scores.take();
        if let Some(scores) = scores.and_then(|scores| entry.answer.attended(&row.planned, scores)) {
            entry.sink.event(JobEvent::Scores(scores));
        }
        let has_logits = row.rows.logits != Wanted::None;
        let outcome =
            has_logits.then(|| entry.answer.took_output(&row.planned, &row.proposed, &output, written));
        let accepted = outcome.map_or(0, |outcome| outcome.accepted);
        if accepted < row.proposed.len() {
            self.engine.truncate(row.seq, row.held + 1 + accepted)?;
        }
        if row.is_prompt() {
            let total = entry.answer.feed_tokens().min(entry.answer.prompt().len());
            let (tokens, held) = (row.rows.ids.len(), row.held);
            entry.sink.event(JobEvent::Computed { done: (held + tokens).min(total), total, tokens, held });
        }
        for token in written.drain(..) {
            if planted::is(Bug::TokenLost) && token.index == 6 {
                continue;
            }
            entry.sink.event(JobEvent::Written(token));
        }
        let failed = outcome.is_some_and(|outcome| outcome.end == Some(AnswerEnd::Failed));
        if !failed {
            entry.reached(&row.planned);
        }
        let prompt_tokens = entry.answer.prompt().len();
        // Before the answer can end, so that its sequence is still there.
        let is_whole = !failed && has_logits && row.is_prompt();
        if let Some(export) = is_whole.then(|| entry.sink.exports()).flatten() {
            self.begin_export(row.seq, prompt_tokens, export);
        }
        Ok(outcome)
    }
}

impl Entry {
    /// Tells the reader what the row has reached.
    fn reached(&mut self, row: &StepRow) {
        match row {
            StepRow::Prefill { end: PrefillEnd::Held, .. } => self.sink.event(JobEvent::Held),
            StepRow::Verify { last: true, .. } => {
                self.verified = true;
                // After a preemption the part is verified anew, which changes nothing for its reader.
                if let Some(verified) = self.answer.verified().filter(|_| !self.told) {
                    self.told = true;
                    self.sink.event(JobEvent::Verified(verified));
                }
            }
            _ => {}
        }
    }
}

/// Gives the scores of the first prompt that has some to the last one, and the other way round.
fn swap_scores(outputs: &mut [SeqOutput]) {
    let mut with = outputs.iter_mut().filter(|output| output.scores.is_some());
    if let (Some(first), Some(last)) = (with.next(), with.next_back()) {
        std::mem::swap(&mut first.scores, &mut last.scores);
    }
}

fn sample_of(rows: &[Row]) -> PassSample {
    let mut sample = PassSample::default();
    for row in rows {
        if row.is_prompt() {
            sample.prompts += 1;
            sample.prefill_tokens += row.rows.ids.len();
            sample.held_tokens += row.held;
        } else {
            sample.decode_rows += 1;
            sample.proposed += row.proposed.len();
        }
    }
    sample
}

/// Cancels a pass if all of its rows are cancelled or replaced, or if whoever runs the host says so.
struct PassControl<'a> {
    flags: &'a [CancelFlag],
    outer: &'a mut dyn StepControl,
}

impl StepControl for PassControl<'_> {
    fn after_layer(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        if self.outer.after_layer(done, total).is_break() {
            self.flags.iter().for_each(CancelFlag::set);
        }
        match self.flags.iter().all(CancelFlag::ends_pass) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_broken_off_only_when_nobody_waits_for_it() {
        let flags = [CancelFlag::default(), CancelFlag::default()];
        let mut watch = PassControl { flags: &flags, outer: &mut () };
        assert_eq!(watch.after_layer(1, 3), ControlFlow::Continue(()));
        flags[0].set();
        assert_eq!(watch.after_layer(2, 3), ControlFlow::Continue(()));
        flags[1].set();
        assert_eq!(watch.after_layer(3, 3), ControlFlow::Break(()));
        let flags = [flags[0].clone(), CancelFlag::default()];
        let mut watch = PassControl { flags: &flags, outer: &mut () };
        flags[1].replace();
        assert_eq!(watch.after_layer(1, 3), ControlFlow::Break(()));
        flags[1].replaced();
        assert_eq!(watch.after_layer(1, 3), ControlFlow::Continue(()));
    }

    #[test]
    fn whoever_runs_the_host_ends_every_row() {
        struct Stop;
        impl StepControl for Stop {
            fn after_layer(&mut self, _done: usize, _total: usize) -> ControlFlow<()> {
                ControlFlow::Break(())
            }
        }
        let flags = [CancelFlag::default(), CancelFlag::default()];
        let mut watch = PassControl { flags: &flags, outer: &mut Stop };
        assert_eq!(watch.after_layer(1, 3), ControlFlow::Break(()));
        assert!(flags.iter().all(CancelFlag::is_set));
    }
}
