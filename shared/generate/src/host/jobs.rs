//! What happens to one job between passes: it gets a slot or gives way, does what it is told, and ends.

use baton_engine::tokenizer::TokenId;
use baton_engine::{BLOCK_TOKENS, SeqId, SequenceError, Sequences};
use tracing::{debug, error};

use super::idle::{Idle, common};
use super::{Entry, Host, chain};
use crate::answer::{Accepted, Answer, Decided, Keep, Written};
use crate::evidence::Evidence;
use crate::hooks::Fault;
use crate::job::{JobEvent, Opened, Order};
use crate::planted::{self, Bug};
use crate::scheduler::{CloseReason, Closed, Effect, Event, Goal, JobId};

impl Entry {
    /// Returns the ids from `held` on that may come from the prefix tree, and one more if there is
    /// one. The engine never reuses the last of the ids that it is given.
    pub(super) fn beginning(&self, held: usize) -> Vec<TokenId> {
        let end = (self.answer.reusable_tokens(self.goal) + 1).min(self.answer.feed_tokens());
        self.answer.feed(held..end.max(held))
    }

    /// Returns whether the answer has no token of its own yet.
    pub(super) fn is_unwritten(&self) -> bool {
        self.answer.feed_tokens() == self.answer.prompt().len()
    }

    /// Returns whether an order to decide must wait, because the accepted part is not verified. A part that
    /// was verified before a preemption stays so.
    fn is_verifying(&self) -> bool {
        matches!(self.goal, Goal::Verify { .. }) && self.answer.verified().is_none()
    }

    /// Returns the next order that can be done now.
    fn next_order(&mut self) -> Option<Order> {
        match self.orders.front()? {
            Order::Decide { .. } | Order::Agree { .. } if self.is_verifying() => None,
            _ => self.orders.pop_front(),
        }
    }
}

impl<S: Sequences> Host<S> {
    /// Gives a job a sequence; returns what the scheduler wants then.
    pub(super) fn open(&mut self, id: JobId) -> Vec<Effect> {
        self.find_late(id);
        let Some(entry) = self.jobs.get_mut(&id) else {
            error!(job = id.0, "a sequence without its request");
            return self.handle.step(Event::Fail(id)).0;
        };
        let reusable = entry.answer.reusable_tokens(entry.goal);
        let owner = (entry.scope, entry.adapter);
        let ids = entry.beginning(0);
        let found = self
            .idle
            .open(&mut self.engine, owner, &ids, reusable)
            .and_then(|(seq, cached)| Ok((seq, self.idle.settle(&mut self.engine, seq, cached)?)));
        let (seq, cached) = match found {
            Ok(found) => found,
            Err(err) => {
                error!(job = id.0, err = &err as &dyn std::error::Error, "no sequence for a request");
                entry.answer.fail(Fault::Engine(chain(&err)));
                return self.handle.step(Event::Fail(id)).0;
            }
        };
        (entry.seq, entry.is_thin, entry.begun, entry.verified) = (Some(seq), false, false, false);
        if !std::mem::replace(&mut entry.opened, true) {
            let max_tokens = self.handle.ask(|core| core.max_tokens(id)).unwrap_or(entry.max_tokens);
            entry.sink.opened(Opened { cached, max_tokens });
            if max_tokens < entry.max_tokens {
                entry.answer.lower(max_tokens);
            }
        }
        if entry.is_unwritten() {
            entry.sink.event(JobEvent::Begun { tokens: entry.answer.prompt().len(), cached });
        } else if planted::is(Bug::TokenRepeated)
            && let Some(id) = entry.answer.tokens().last().copied()
        {
            let index = entry.answer.tokens().len() - 1;
            entry.sink.event(JobEvent::Written(Written { index, id, text: None }));
        }
        let room = self.room();
        let (effects, now) = self.handle.step(Event::Opened { id, cached, room });
        self.flush(id, now);
        effects
    }

    /// Takes the sequence of a job, which goes on later.
    pub(super) fn preempt(&mut self, id: JobId) {
        if let Some(seq) = self.jobs.get_mut(&id).and_then(|entry| entry.seq.take()) {
            debug!(job = id.0, free_tokens = self.engine.free_tokens(), "gives way");
            self.engine.release(seq);
        }
        if let Some(entry) = self.jobs.get_mut(&id) {
            (entry.verified, entry.is_thin) = (false, false);
        }
    }

    /// Ends a job.
    pub(super) fn close(&mut self, closed: Closed) {
        self.find_late(closed.id);
        let Some(entry) = self.jobs.remove(&closed.id) else { return };
        if let Some(proposer) = &mut self.proposer {
            proposer.forget(closed.id);
        }
        if let Some(seq) = entry.seq {
            let since = self.clock.now();
            let idle = Idle { seq, scope: entry.scope, adapter: entry.adapter, since };
            match closed.reason {
                CloseReason::Cancelled if planted::is(Bug::SlotLeaked) => {}
                _ if !entry.sink.is_continued() => self.engine.release(seq),
                // It cannot be cut to what it shares with a later prompt.
                _ if entry.is_thin => self.engine.release(seq),
                CloseReason::Stop | CloseReason::Cap | CloseReason::Cancelled => {
                    self.idle.keep(&mut self.engine, idle);
                }
                CloseReason::Expired | CloseReason::Stopped | CloseReason::Failed => {
                    self.engine.release(seq);
                }
            }
            // Reported before its reader receives the end.
            self.report_kv();
        }
        entry.sink.closed(&closed, entry.answer);
    }

    /// Does what jobs were told.
    pub(super) fn follow_orders(&mut self) {
        let told: Vec<JobId> =
            self.jobs.iter().filter(|(_, entry)| !entry.orders.is_empty()).map(|(id, _)| *id).collect();
        for id in told {
            while let Some(order) = self.jobs.get_mut(&id).and_then(Entry::next_order) {
                if let Err(fault) = self.follow(id, order) {
                    debug!(job = id.0, %fault, "an order that cannot be followed");
                    self.fail(id, fault);
                }
            }
        }
    }

    fn follow(&mut self, id: JobId, order: Order) -> Result<(), Fault> {
        match order {
            Order::Prompt { ids, evidence, max_tokens, goal, pass_tokens } => {
                let prompt_tokens = ids.len();
                let kept = self.set_prompt(id, (ids, evidence), goal, max_tokens)?;
                self.told(id, Event::Prompt { id, prompt_tokens, max_tokens, pass_tokens, kept, goal });
            }
            Order::Accept(accepted) => {
                let accepted = self.accept(id, accepted)?;
                self.told(id, Event::Accept { id, accepted });
            }
            Order::Decide { keep, index } => {
                let wrong = planted::is(Bug::WrongIndex) && keep != Keep::All;
                let index = index + usize::from(wrong);
                let event = self.decide(id, |answer, out| answer.decide(keep, index, out))?;
                self.told(id, event);
            }
            Order::Agree { at_least } => {
                let event = self.decide(id, |answer, out| answer.agree(at_least, out))?;
                self.told(id, event);
            }
            Order::Take(take) => self.take_rows(id, take)?,
        }
        Ok(())
    }

    /// Tells the scheduler what an order has changed, and gives out what came of it.
    pub(super) fn told(&mut self, id: JobId, event: Event) {
        let (effects, now) = self.handle.step(event);
        for effect in effects {
            self.perform_one(effect, now);
        }
        self.flush(id, now);
    }

    /// Gives a job another prompt; returns how many of its tokens are in the cache.
    fn set_prompt(
        &mut self,
        id: JobId,
        (ids, evidence): (Vec<TokenId>, Option<Evidence>),
        goal: Goal,
        max_tokens: usize,
    ) -> Result<usize, Fault> {
        let Some(entry) = self.jobs.get_mut(&id) else { return Ok(0) };
        if matches!(entry.goal, Goal::Write) || entry.verified {
            return Err(Fault::Engine("the answer is decided already and takes no other prompt".to_owned()));
        }
        entry.answer.set_prompt(ids, evidence);
        entry.sink.another_prompt();
        (entry.goal, entry.max_tokens, entry.begun, entry.told) = (goal, max_tokens, false, false);
        let Some(mut seq) = entry.seq else { return Ok(0) };
        if std::mem::take(&mut entry.is_thin) {
            self.engine.release(seq);
            seq = self
                .engine
                .create_in(entry.scope, entry.adapter)
                .map_err(|err| Fault::Engine(chain(&err)))?;
            entry.seq = Some(seq);
        }
        let kept = kept_of(&mut self.engine, seq, entry)
            .and_then(|kept| self.idle.settle(&mut self.engine, seq, kept))
            .map_err(|err| Fault::Engine(chain(&err)))?;
        entry.sink.event(JobEvent::Begun { tokens: entry.answer.prompt().len(), cached: kept });
        Ok(kept)
    }

    /// Gives a job the other side's part; returns its tokens.
    fn accept(&mut self, id: JobId, accepted: Accepted) -> Result<usize, Fault> {
        let Some(entry) = self.jobs.get_mut(&id) else { return Ok(0) };
        if !matches!(entry.goal, Goal::Hold { .. }) {
            return Err(Fault::Engine("the answer waits for no accepted part".to_owned()));
        }
        let held = entry.seq.map_or(0, |seq| self.engine.len(seq).unwrap_or(0));
        if held >= entry.answer.feed_tokens() {
            return Err(Fault::Engine("the token before the accepted part is computed already".to_owned()));
        }
        let accepted = entry.answer.accept(accepted)?;
        (entry.goal, entry.verified, entry.told) = (Goal::Verify { accepted }, false, false);
        Ok(accepted)
    }

    /// Goes on from the verified part; returns what to tell the scheduler.
    fn decide(
        &mut self,
        id: JobId,
        how: impl FnOnce(&mut Answer, &mut Vec<Written>) -> Decided,
    ) -> Result<Event, Fault> {
        let unknown = || Fault::Engine("there is nothing to decide".to_owned());
        let entry = self.jobs.get_mut(&id).ok_or_else(unknown)?;
        if !matches!(entry.goal, Goal::Verify { .. }) {
            return Err(unknown());
        }
        let mut written = Vec::new();
        let decided = how(&mut entry.answer, &mut written);
        (entry.goal, entry.verified) = (Goal::Write, false);
        if let Some(seq) = entry.seq {
            let kept = entry.answer.prompt().len() + decided.kept;
            cut(&mut self.engine, seq, kept).map_err(|err| Fault::Engine(chain(&err)))?;
        }
        for token in written {
            entry.sink.event(JobEvent::Written(token));
        }
        Ok(Event::Decided { id, kept: decided.kept, tokens: decided.tokens, end: decided.end })
    }

    /// Looks for a job that arrived between the last look and this turn.
    fn find_late(&mut self, id: JobId) {
        if !self.jobs.contains_key(&id) {
            let arrived = self.handle.take_arrived();
            self.take_in(arrived);
        }
    }
}

/// Cuts a sequence to at most `tokens` tokens. It may have fewer, if it is being computed again.
fn cut(engine: &mut impl Sequences, seq: SeqId, tokens: usize) -> Result<(), SequenceError> {
    let held = engine.len(seq)?;
    engine.truncate(seq, held.min(tokens))
}

/// Cuts a sequence to what it shares with the job's new prompt; returns how many tokens it has then.
fn kept_of(engine: &mut impl Sequences, seq: SeqId, entry: &Entry) -> Result<usize, SequenceError> {
    let wanted = entry.answer.feed(0..entry.answer.reusable_tokens(entry.goal));
    let kept = match planted::is(Bug::OldPromptKept) {
        true => engine.len(seq)?.min(wanted.len()),
        false => common(engine.ids(seq)?, &wanted),
    };
    engine.truncate(seq, kept)?;
    if kept < wanted.len() && kept.is_multiple_of(BLOCK_TOKENS) {
        return Ok(kept + engine.reuse_prefix(seq, &entry.beginning(kept)));
    }
    Ok(kept)
}
