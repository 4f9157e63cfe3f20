//! One answer while it is written: from sampled ids to events.
//!
//! Never: decides what runs (the scheduler does) or touches the engine. Always: there is one event for each
//! token index, in order. The texts of all events, joined, are the whole answer. Text that is held back
//! because it may begin a stop string is sent with the last token at the latest.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use baton_engine::detokenize::Detokenizer;
use baton_engine::sampling::{Sampler, check_logits};
use baton_engine::stop::StopStrings;
use baton_engine::tokenizer::{TokenId, Tokenizer};
use baton_engine::{AdapterId, AttentionScores, BLOCK_TOKENS, HeadId, PrefixScope};
use baton_pacing::BoundBy;
use baton_protocol::{
    AssistEvent, EndEvent, EndReason, ErrorBody, ErrorCode, FirstEvent, MaskEvent, SlotTiming, TokenEvent,
    Usage,
};

use crate::gate::{Payer, QuotaError, RequestName, Reservation, TokenNeed};
use crate::observe::report::Observer;
use crate::service::constrain::{Constraint, ConstraintError};
use crate::service::desk::Clock;
use crate::service::logprobs::Logprobs;
use crate::service::refining::MaskJob;
use crate::service::scheduler::{CloseReason, Closed, JobSpec, Outcome, SlotTimes};
use crate::service::stream::{Batch, EventSink};

/// If the service stops, the time after which a client may retry, in milliseconds: another replica is likely
/// to be up.
const RETRY_ELSEWHERE_MS: u64 = 1000;

/// Name of the bound if the tenant's daily quota limits L.
const BOUND_BY_QUOTA: &str = "quota";

/// The source of an answer's mask.
#[derive(Debug)]
pub(crate) enum MaskSource {
    /// There is no mask: r = 1.
    None,
    /// The mask was made without the model.
    Ready(Box<MaskEvent>),
    /// The mask is made from the attention of the question's tokens.
    Scores(Box<MaskJob>),
}

/// The scores that the last prompt chunk captures, in prompt positions.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    pub(crate) tokens: std::ops::Range<usize>,
    pub(crate) heads: Vec<HeadId>,
}

/// Everything that the engine's thread needs for one answer.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) spec: JobSpec,
    pub(crate) observer: Observer,
    pub(crate) prompt: Vec<TokenId>,
    /// Which later requests may reuse the cached prefix of this prompt.
    pub(crate) prefixes: PrefixScope,
    /// The adapter that the answer is computed with.
    pub(crate) adapter: Option<AdapterId>,
    pub(crate) window: Option<Window>,
    pub(crate) mask: MaskSource,
    /// The first event, without its token.
    pub(crate) first: FirstEvent,
    pub(crate) text: AnswerText,
    pub(crate) sampler: Sampler,
    /// The form that the answer must have.
    pub(crate) constraint: Option<Constraint>,
    /// Receives the log probabilities, if they were requested.
    pub(crate) logprobs: Option<Logprobs>,
    /// Answer tokens so far: first those that it continues from, then its own.
    pub(crate) answer: Vec<TokenId>,
    /// Number of tokens in `answer` that it continues from.
    pub(crate) continued: usize,
    /// Prompt tokens that were found in the prefix tree when the job got its first slot, in whole blocks.
    pub(crate) cached: usize,
    pub(crate) arrived_at: Duration,
    /// When the job got its first slot.
    pub(crate) opened_at: Option<Duration>,
    pub(crate) sink: EventSink,
    /// Events to send when the pass is over.
    pub(crate) outbox: Batch,
    /// Why the answer failed, if it could not follow its constraint.
    pub(crate) fault: Option<ConstraintError>,
    /// The tenant's quota reserved for this answer, if there is one.
    pub(crate) reservation: Option<Reservation>,
}

/// Turns the tokens of one answer into text: whole characters only, and nothing after a stop string.
#[derive(Debug)]
pub(crate) struct AnswerText {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) detokenizer: Detokenizer,
    pub(crate) stop: Option<StopStrings>,
    /// Whether the answer is complete at the cap, because no device continues it.
    pub(crate) ends_at_cap: bool,
}

impl AnswerText {
    /// Returns the text that is safe to show after `id`, and whether a stop string is complete.
    fn push(&mut self, id: TokenId) -> (String, bool) {
        let text = self.detokenizer.push(id);
        self.through_stop(text)
    }

    /// Returns the text that is still held back when the answer reaches its cap.
    ///
    /// If a device continues, it completes an incomplete character itself.
    fn at_cap(&mut self) -> String {
        if self.ends_at_cap {
            self.finish()
        } else {
            self.stop.as_mut().map(StopStrings::finish).unwrap_or_default()
        }
    }

    /// Returns the text that is still held back at the end of the answer.
    fn finish(&mut self) -> String {
        let text = self.detokenizer.finish();
        let (mut text, stopped) = self.through_stop(text);
        if !stopped && let Some(stop) = &mut self.stop {
            text.push_str(&stop.finish());
        }
        text
    }

    fn through_stop(&mut self, text: String) -> (String, bool) {
        match &mut self.stop {
            None => (text, false),
            Some(stop) => {
                let safe = stop.push(&text);
                (safe.text, safe.stopped)
            }
        }
    }
}

impl Job {
    /// Returns the number of tokens written by this answer itself.
    pub(crate) fn written(&self) -> usize {
        self.answer.len() - self.continued
    }

    /// Returns the tokens to compute before the next token: the prompt, and the answer's own tokens if they
    /// must be computed again.
    pub(crate) fn feed(&self) -> Cow<'_, [TokenId]> {
        match &self.answer[self.continued..] {
            [] => Cow::Borrowed(&self.prompt),
            own => Cow::Owned([&self.prompt, own].concat()),
        }
    }

    /// Returns how many tokens of [`Self::feed`] may come from the prefix tree; always fewer than all.
    pub(crate) fn reusable_tokens(&self) -> usize {
        // Scores are captured when the first token is sampled, never again.
        let computed = if self.written() == 0 { self.spec.tail_tokens } else { 1 };
        self.prompt.len() + self.written() - computed
    }

    /// Notes how many prompt tokens were found in the prefix tree when the job got its first slot.
    ///
    /// Callers learn only the number of whole blocks. An exact number would reveal how much of a guess at an
    /// earlier prompt is right.
    pub(crate) fn found(&mut self, tokens: usize) {
        self.cached = tokens - tokens % BLOCK_TOKENS;
    }

    /// Reserves quota for the answer. L is lowered if the tenant has less quota left.
    pub(crate) fn reserve(&mut self, payer: &Payer, name: Option<RequestName>) -> Result<(), QuotaError> {
        let reservation = payer.reserve(TokenNeed {
            name,
            prompt_tokens: self.prompt.len() as u64,
            max_tokens: self.spec.max_tokens as u64,
        })?;
        self.cap(usize::try_from(reservation.max_tokens()).unwrap_or(usize::MAX), BOUND_BY_QUOTA);
        self.spec.floor_tokens = self.spec.floor_tokens.min(self.spec.max_tokens);
        self.reservation = Some(reservation);
        Ok(())
    }

    /// Notes that a pass computes the prompt up to `end`, or the answer's own tokens after that.
    pub(crate) fn begin_prefill(&mut self, end: usize) {
        let end = end.min(self.prompt.len()) as u64;
        if let Some(reservation) = &mut self.reservation {
            reservation.compute(end);
        }
    }

    /// Samples the next token from `logits: [v]` and puts its event into the outbox.
    pub(crate) fn write(&mut self, logits: &[f32]) -> Outcome {
        let index = self.answer.len() as u64;
        if let Err(err) = check_logits(logits) {
            tracing::error!(
                job = self.spec.id.0,
                err = &err as &dyn std::error::Error,
                "no token can be chosen"
            );
            return Outcome::Failed;
        }
        let (id, complete) = match self.choose(logits, index) {
            Ok(chosen) => chosen,
            Err(err) => {
                tracing::debug!(
                    job = self.spec.id.0,
                    err = &err as &dyn std::error::Error,
                    "the answer cannot go on as it was asked for"
                );
                self.fault = Some(err);
                return Outcome::Failed;
            }
        };
        if self.text.tokenizer.is_end(id) {
            let held = self.text.finish();
            // The end token has its own event only if it completes text that was held back.
            if !held.is_empty() {
                self.record(logits, id);
                self.put(id, held);
                return Outcome::LastToken;
            }
            return Outcome::EndOfText;
        }
        let (mut text, stopped) = self.text.push(id);
        let capped = self.written() + 1 >= self.spec.max_tokens;
        if complete && !stopped {
            text.push_str(&self.text.finish());
        } else if capped && !stopped {
            text.push_str(&self.text.at_cap());
        }
        self.record(logits, id);
        self.put(id, text);
        if stopped || complete { Outcome::LastToken } else { Outcome::Token }
    }

    /// Chooses the next token; returns it, and whether nothing may follow it.
    fn choose(&mut self, logits: &[f32], index: u64) -> Result<(TokenId, bool), ConstraintError> {
        let Some(constraint) = &mut self.constraint else {
            return Ok((self.sampler.sample(logits, index, &self.answer), false));
        };
        let allowed = constraint.allowed()?;
        let chosen = self.sampler.sample_among(logits, index, &self.answer, &allowed);
        let id = chosen.ok_or_else(|| ConstraintError::Step { message: "no token fits".to_owned() })?;
        let complete = !self.text.tokenizer.is_end(id) && constraint.accept(id)?;
        Ok((id, complete))
    }

    fn record(&self, logits: &[f32], id: TokenId) {
        if let Some(logprobs) = &self.logprobs {
            logprobs.record(&self.sampler, logits, id);
        }
    }

    fn put(&mut self, id: TokenId, text: String) {
        let index = u32::try_from(self.answer.len()).expect("a context is shorter than 2^32");
        let first = self.written() == 0;
        self.answer.push(id);
        if let Some(reservation) = &mut self.reservation {
            reservation.write();
        }
        let event = if first {
            AssistEvent::First(Box::new(FirstEvent { index, id, text, ..self.first.clone() }))
        } else {
            AssistEvent::Token(TokenEvent { index, id, text })
        };
        self.outbox.push(event);
    }

    /// Queues the mask before the first token. `scores` are those of the last prompt chunk.
    ///
    /// Returns how long the refiner took by `clock`, if it had to run.
    pub(crate) fn put_mask(&mut self, scores: Option<&AttentionScores>, clock: &Clock) -> Option<Duration> {
        match std::mem::replace(&mut self.mask, MaskSource::None) {
            MaskSource::None => None,
            MaskSource::Ready(mask) => {
                self.observer.refined(&mask);
                self.outbox.push(AssistEvent::Mask(*mask));
                None
            }
            MaskSource::Scores(mask) => {
                let started = clock.now();
                match mask.run(scores) {
                    Ok(event) => {
                        self.observer.refined(&event);
                        self.outbox.push(AssistEvent::Mask(event));
                    }
                    // The device then uses the whole prompt (r = 1): slower, but correct.
                    Err(err) => tracing::warn!(job = self.spec.id.0, %err, "no mask for this answer"),
                }
                let elapsed = clock.now().saturating_sub(started);
                self.first.timing.refine_ms = elapsed.as_secs_f64() * 1e3;
                self.observer.refine_elapsed(elapsed);
                Some(elapsed)
            }
        }
    }

    /// Sends the events of the pass.
    pub(crate) fn flush(&mut self) {
        let batch = std::mem::take(&mut self.outbox);
        self.sink.send(batch);
    }

    /// Sends the remaining events and the one terminal event.
    pub(crate) fn close(mut self, closed: &Closed) {
        self.observer.ended(closed, self.cached, self.sink.cancel().is_set());
        // Answers that only warm up a model belong to nobody.
        if !self.observer.is_of_nobody() {
            tracing::info!(
                job = closed.id.0,
                request = self.observer.request,
                tenant = self.observer.tenant,
                model = self.observer.model,
                scene = self.observer.scene.as_deref().unwrap_or_default(),
                reason = ?closed.reason,
                prompt_tokens = self.prompt.len(),
                cached_prefix_tokens = self.cached,
                tokens = closed.tokens,
                queue_ms = closed.times.queue_ms,
                slot_ms = closed.times.slot_ms,
                "answer ended"
            );
        }
        if let Some(constraint) = &self.constraint {
            let cost = constraint.cost();
            tracing::debug!(
                job = closed.id.0,
                compile_us = cost.compiled.as_micros() as u64,
                steps_us = cost.steps_elapsed.as_micros() as u64,
                steps = cost.steps,
                "the answer was constrained"
            );
        }
        // Dropped before the end is sent, because the reader may send a new request as soon as it sees the
        // end.
        if let Some(mut reservation) = self.reservation.take()
            && matches!(closed.reason, CloseReason::Failed | CloseReason::Stopped)
            && self.fault.is_none()
        {
            reservation.forgive_prompt();
        }
        let reason = match closed.reason {
            CloseReason::Stop => EndReason::Stop,
            CloseReason::Cap => EndReason::Cap,
            CloseReason::Cancelled => EndReason::Cancelled,
            CloseReason::Failed => {
                if let Some(fault) = &self.fault {
                    let body = ErrorBody::new(ErrorCode::InvalidRequest, fault.to_string());
                    return self.close_with(body);
                }
                return self.close_with(ErrorBody::new(
                    ErrorCode::Internal,
                    "the cloud could not go on with this answer",
                ));
            }
            CloseReason::Expired => {
                let waited_ms = closed.times.queue_ms.round();
                let message = format!("no slot became free within the deadline; it waited {waited_ms} ms");
                return self.close_with(ErrorBody::new(ErrorCode::Timeout, message));
            }
            CloseReason::Stopped => {
                let body =
                    ErrorBody::new(ErrorCode::Unavailable, "the service stopped before the answer's end");
                return self.close_with(body.with_retry_after_ms(RETRY_ELSEWHERE_MS));
            }
        };
        let SlotTimes { queue_ms, prefill_ms, decode_ms, slot_ms } = closed.times;
        let usage = Usage {
            prompt_tokens: self.prompt.len() as u64,
            cached_prefix_tokens: self.cached as u64,
            completion_tokens: self.written() as u64,
        };
        let timing = Some(SlotTiming { queue_ms, prefill_ms, decode_ms, slot_ms });
        self.outbox.push(AssistEvent::End(EndEvent { reason, usage, timing }));
        self.flush();
    }

    /// Lowers L if the answer got its slot under load.
    pub(crate) fn lower(&mut self, max_tokens: Option<usize>) {
        if let Some(tokens) = max_tokens {
            self.cap(tokens, BoundBy::Load.as_str());
        }
    }

    /// Lowers L to the most tokens that the caller accepts.
    pub(crate) fn limit(&mut self, max_tokens: usize) {
        self.cap(max_tokens, BoundBy::AnswerLength.as_str());
        self.spec.floor_tokens = self.spec.floor_tokens.min(self.spec.max_tokens);
    }

    fn cap(&mut self, tokens: usize, bound_by: &str) {
        if tokens < self.spec.max_tokens {
            self.spec.max_tokens = tokens;
            self.first.assist_tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
            self.first.assist_bound_by = bound_by.to_owned();
        }
    }

    fn close_with(mut self, body: ErrorBody) {
        self.outbox.push(AssistEvent::Error(body));
        self.flush();
    }

    /// Returns the bytes that the job holds while it waits: its ids, and the text for its mask.
    pub(crate) fn held_bytes(&self) -> usize {
        let text = match &self.mask {
            MaskSource::None | MaskSource::Ready(_) => 0,
            MaskSource::Scores(mask) => mask.held_bytes(),
        };
        self.prompt.len() * size_of::<TokenId>() + text
    }

    /// Sets the times until the first token, once the pass that produced it is over.
    pub(crate) fn stamp_first(&mut self, now: Duration, decode_ms: f64) {
        let ms = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() * 1e3;
        let opened_at = self.opened_at.unwrap_or(now);
        for event in &mut self.outbox {
            if let AssistEvent::First(first) = event {
                first.timing.queue_ms = ms(self.arrived_at, opened_at);
                first.timing.prefill_ms = ms(opened_at, now);
                first.timing.decode_ms = decode_ms;
                self.observer.first_token(now.saturating_sub(self.arrived_at), first.assist_tokens);
            }
        }
    }
}
