//! The reader of one answer in the cloud: from tokens to events.
//!
//! Never: decides what runs, or touches the engine. Always: there is one event for each token index, in
//! order, and one terminal event. The mask comes before the first token, in the same packet.

use std::sync::Arc;
use std::time::Duration;

use baton_engine::tokenizer::TokenId;
use baton_engine::{AdapterId, AttentionScores, BLOCK_TOKENS, PrefixScope};
use baton_generate::answer::{Answer, Written};
use baton_generate::clock::Clock;
use baton_generate::hooks::Fault;
use baton_generate::job::{Export, Job, JobEvent, Opened, Reading, Sink};
use baton_generate::scheduler::{CloseReason, Closed, JobSpec, SlotTimes};
use baton_pacing::BoundBy;
use baton_protocol::{
    AssistEvent, EndEvent, EndReason, ErrorBody, ErrorCode, FirstEvent, MaskEvent, SlotTiming, TokenEvent,
    Usage, VerifyOffer,
};
use tokio::sync::oneshot;
use tracing::{debug, error, info, warn};

use crate::gate::{Payer, QuotaError, RequestName, Reservation, TokenNeed};
use crate::observe::report::Observer;
use crate::service::citations::Citations;
use crate::service::figures::Figures;
use crate::service::handoff::Offer;
use crate::service::refining::MaskJob;
use crate::service::stream::{Batch, EventSink};
use crate::service::submit::ForEngine;
use crate::service::upstream::{ScoreJob, Scored};
use crate::service::verify::OpenAnswer;

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

/// A request that is ready to be queued.
pub(crate) struct Prepared {
    pub(crate) spec: JobSpec,
    pub(crate) answer: Answer,
    /// Which later requests may reuse the cached prefix of this prompt.
    pub(crate) prefixes: PrefixScope,
    /// The adapter that the answer is computed with.
    pub(crate) adapter: Option<AdapterId>,
    pub(crate) reader: CloudReader,
    /// If another engine writes the answer: what it needs.
    pub(crate) upstream: Option<Box<ForEngine>>,
}

/// The job that scores a prompt, and where its mask arrives.
pub(crate) type Scorer = (Job, oneshot::Receiver<Scored>);

impl Prepared {
    /// Reserves quota for the answer. L is lowered if the tenant has less quota left.
    pub(crate) fn reserve(&mut self, payer: &Payer, name: Option<RequestName>) -> Result<(), QuotaError> {
        let reservation = payer.reserve(TokenNeed {
            name,
            prompt_tokens: self.spec.prompt_tokens as u64,
            max_tokens: self.spec.max_tokens as u64,
        })?;
        self.cap(usize::try_from(reservation.max_tokens()).unwrap_or(usize::MAX), BOUND_BY_QUOTA);
        self.reader.reservation = Some(reservation);
        Ok(())
    }

    /// Lowers L to the most tokens that the caller accepts.
    pub(crate) fn limit(&mut self, max_tokens: usize) {
        self.cap(max_tokens, BoundBy::AnswerLength.as_str());
    }

    fn cap(&mut self, tokens: usize, bound_by: &str) {
        if tokens < self.spec.max_tokens {
            self.spec.max_tokens = tokens;
            self.answer.lower(tokens);
            self.reader.promise(tokens, bound_by);
        }
        self.spec.floor_tokens = self.spec.floor_tokens.min(self.spec.max_tokens);
    }

    /// Returns the bytes that the request holds while it waits: its ids, and the text for its mask.
    pub(crate) fn held_bytes(&self) -> usize {
        let text = match &self.reader.mask {
            MaskSource::None | MaskSource::Ready(_) => 0,
            MaskSource::Scores(mask) => mask.held_bytes(),
        };
        self.spec.prompt_tokens * size_of::<TokenId>() + text
    }

    /// Returns the reader of an answer that another engine writes, and the job that scores the prompt, if the
    /// mask needs scores. That job writes one token, which nobody reads.
    pub(crate) fn into_scorer(
        mut self,
        score: Option<(ScoreJob, oneshot::Receiver<Scored>)>,
    ) -> (Box<CloudReader>, Option<Scorer>) {
        let scorer = score.map(|(sink, mask)| {
            self.answer.lower(1);
            let job = Job {
                spec: JobSpec { max_tokens: 1, floor_tokens: 1, ..self.spec },
                answer: self.answer,
                scope: self.prefixes,
                adapter: self.adapter,
                cancel: self.reader.sink.cancel().clone(),
                sink: Box::new(sink),
            };
            (job, mask)
        });
        (Box::new(self.reader), scorer)
    }

    /// Returns the job of the engine's host.
    pub(crate) fn into_job(self) -> Job {
        Job {
            spec: self.spec,
            answer: self.answer,
            scope: self.prefixes,
            adapter: self.adapter,
            cancel: self.reader.sink.cancel().clone(),
            sink: Box::new(self.reader),
        }
    }
}

/// Turns what happens to a job into the events of its stream.
#[derive(Debug)]
pub(crate) struct CloudReader {
    pub(crate) observer: Observer,
    pub(crate) mask: MaskSource,
    /// The first event, without its token.
    pub(crate) first: FirstEvent,
    pub(crate) prompt_tokens: usize,
    pub(crate) max_tokens: usize,
    pub(crate) arrived_at: Duration,
    pub(crate) clock: Clock,
    pub(crate) figures: Arc<Figures>,
    /// Where the answer's citations go, if it has any.
    citations: Option<Citations>,
    pub(crate) sink: EventSink,
    /// Offers keys and values to the device, until the mask is known.
    offer: Option<Offer>,
    /// Keys and values that are to leave the engine.
    export: Option<Export>,
    /// The tenant's quota reserved for this answer, if there is one.
    reservation: Option<Reservation>,
    /// The answer, if a device goes on with it and has its drafts checked.
    open: Option<Arc<OpenAnswer>>,
    /// When the job got its first slot.
    opened_at: Option<Duration>,
    /// Prompt tokens that were in the cache when the job got its first slot, in whole blocks.
    cached: usize,
    /// Tokens written so far.
    written: usize,
    /// Events to send when the pass is over.
    outbox: Batch,
}

/// What a [`CloudReader`] is made of.
pub(crate) struct ReaderParts {
    pub(crate) observer: Observer,
    pub(crate) mask: MaskSource,
    pub(crate) first: FirstEvent,
    pub(crate) prompt_tokens: usize,
    pub(crate) max_tokens: usize,
    pub(crate) clock: Clock,
    pub(crate) figures: Arc<Figures>,
    pub(crate) citations: Option<Citations>,
    pub(crate) offer: Option<Offer>,
    pub(crate) sink: EventSink,
}

impl CloudReader {
    pub(crate) fn new(parts: ReaderParts) -> CloudReader {
        let ReaderParts {
            observer,
            mask,
            first,
            prompt_tokens,
            max_tokens,
            clock,
            figures,
            citations,
            offer,
            sink,
        } = parts;
        CloudReader {
            observer,
            mask,
            first,
            prompt_tokens,
            max_tokens,
            arrived_at: clock.now(),
            clock,
            figures,
            citations,
            sink,
            offer,
            export: None,
            reservation: None,
            open: None,
            opened_at: None,
            cached: 0,
            written: 0,
            outbox: Vec::new(),
        }
    }

    /// Keeps the answer for the device, and tells it so.
    pub(crate) fn opens(&mut self, open: Arc<OpenAnswer>, offer: VerifyOffer) {
        self.first.verify = Some(offer);
        self.open = Some(open);
    }

    /// Says which L the device is promised, if it is lower than before.
    fn promise(&mut self, tokens: usize, bound_by: &str) {
        if tokens < self.max_tokens {
            self.max_tokens = tokens;
            self.first.assist_tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
            self.first.assist_bound_by = bound_by.to_owned();
        }
    }

    /// Takes the mask that another engine's answer has waited for.
    pub(crate) fn mask_made(&mut self, mask: MaskEvent, elapsed: Duration) {
        self.mask = MaskSource::Ready(Box::new(mask));
        self.refined_in(elapsed);
    }

    /// Goes on without a mask: the device then uses the whole prompt.
    pub(crate) fn no_mask(&mut self) {
        self.mask = MaskSource::None;
    }

    /// The tokens of this answer have no ids of the tokenizer that is known here.
    pub(crate) fn has_no_ids(&mut self) {
        self.first.tokenizer_sha256 = None;
    }

    /// Takes the counts of the engine that wrote the answer.
    pub(crate) fn counted(&mut self, prompt_tokens: u64, cached_tokens: u64) {
        if prompt_tokens > 0 {
            self.prompt_tokens = usize::try_from(prompt_tokens).unwrap_or(self.prompt_tokens);
            self.cached = usize::try_from(cached_tokens).unwrap_or(0);
            if let Some(live) = &self.observer.live {
                live.counted(self.prompt_tokens);
            }
        }
    }

    /// Says which engine writes the answer.
    pub(crate) fn written_by(&self, engine: &str) {
        if let Some(live) = &self.observer.live {
            live.written_by(engine);
        }
    }

    fn refined_in(&mut self, elapsed: Duration) {
        self.first.timing.refine_ms = elapsed.as_secs_f64() * 1e3;
        self.observer.refine_elapsed(elapsed);
        self.figures.refined(elapsed);
    }

    /// Queues the mask before the first token. `scores` are those of the last prompt chunk.
    fn put_mask(&mut self, scores: Option<&AttentionScores>) {
        match std::mem::replace(&mut self.mask, MaskSource::None) {
            // A whole prompt can be handed over too.
            MaskSource::None => self.offer_kv((0..self.prompt_tokens.saturating_sub(1)).collect()),
            MaskSource::Ready(mask) => {
                self.observer.refined(&mask);
                self.outbox.push(AssistEvent::Mask(*mask));
            }
            MaskSource::Scores(mask) => {
                let started = self.clock.now();
                let made = match scores.filter(|_| self.offer.is_some()) {
                    Some(scores) => mask.run_with_positions(scores),
                    None => mask.run(scores).map(|event| (event, Vec::new())),
                };
                match made {
                    Ok((event, positions)) => {
                        self.observer.refined(&event);
                        self.outbox.push(AssistEvent::Mask(event));
                        self.offer_kv(positions);
                    }
                    // The device then uses the whole prompt (r = 1): slower, but correct.
                    Err(err) => warn!(request = self.observer.request, %err, "no mask for this answer"),
                }
                self.refined_in(self.clock.now().saturating_sub(started));
            }
        }
    }

    /// Offers the keys and values of these positions to the device, if it wants some, and of those that a
    /// sliding window sees.
    fn offer_kv(&mut self, chosen: Vec<usize>) {
        let Some(offer) = self.offer.take() else { return };
        let cached = self.prompt_tokens.saturating_sub(1);
        let positions = match offer.model.window {
            Some(window) => window.with_seen(&chosen, cached),
            None => chosen,
        };
        if let Some((ticket, export)) = offer.open(positions) {
            (self.first.kv, self.export) = (Some(ticket), Some(export));
        }
    }

    fn put(&mut self, written: Written) {
        if self.written == 0 {
            self.put_mask(None);
        }
        let index = u32::try_from(written.index).expect("a context is shorter than 2^32");
        let (id, text) = (written.id, written.text.unwrap_or_default());
        if let Some(citations) = &self.citations {
            citations.wrote(&text);
        }
        if let Some(reservation) = &mut self.reservation {
            reservation.write();
        }
        let event = if self.written == 0 {
            AssistEvent::First(Box::new(FirstEvent { index, id, text, ..self.first.clone() }))
        } else {
            AssistEvent::Token(TokenEvent { index, id, text })
        };
        self.written += 1;
        self.outbox.push(event);
    }

    /// Sets the times until the first token, if the pass that is over has produced it.
    fn stamp_first(&mut self, queue_ms: f64, prefill_ms: f64) {
        for event in &mut self.outbox {
            if let AssistEvent::First(first) = event {
                first.timing.queue_ms = queue_ms;
                first.timing.prefill_ms = prefill_ms;
                first.timing.decode_ms = self.figures.measured().decode_ms;
                let since_arrival = Duration::from_secs_f64((queue_ms + prefill_ms).max(0.0) / 1e3);
                self.observer.first_token(since_arrival, first.assist_tokens);
            }
        }
    }

    fn send(&mut self) {
        let batch = std::mem::take(&mut self.outbox);
        self.sink.send(batch);
    }

    fn log_fault(&self, closed: &Closed, fault: Option<&Fault>) {
        let job = closed.id.0;
        match fault.filter(|_| closed.reason == CloseReason::Failed) {
            Some(Fault::Constraint(err)) => {
                debug!(
                    job,
                    err = err as &dyn std::error::Error,
                    "the answer cannot go on as it was asked for"
                );
            }
            Some(err) => error!(job, err = err as &dyn std::error::Error, "the answer cannot go on"),
            None => {}
        }
    }

    fn log_end(&self, closed: &Closed) {
        let job = closed.id.0;
        // Answers that only warm up a model belong to nobody.
        if !self.observer.is_of_nobody() {
            info!(
                job,
                request = self.observer.request,
                tenant = self.observer.tenant,
                model = self.observer.model,
                scene = self.observer.scene.as_deref().unwrap_or_default(),
                reason = ?closed.reason,
                prompt_tokens = self.prompt_tokens,
                cached_prefix_tokens = self.cached,
                tokens = closed.tokens,
                queue_ms = closed.times.queue_ms,
                slot_ms = closed.times.slot_ms,
                "answer ended"
            );
        }
    }

    /// Returns the terminal event. `failure` is the error of an answer that has failed.
    fn end(&self, closed: &Closed, failure: Option<ErrorBody>) -> AssistEvent {
        let error = |code, message: String| AssistEvent::Error(ErrorBody::new(code, message));
        let reason = match closed.reason {
            CloseReason::Stop => EndReason::Stop,
            CloseReason::Cap => EndReason::Cap,
            CloseReason::Cancelled => EndReason::Cancelled,
            CloseReason::Failed => {
                let internal =
                    || ErrorBody::new(ErrorCode::Internal, "the cloud could not go on with this answer");
                return AssistEvent::Error(failure.unwrap_or_else(internal));
            }
            CloseReason::Expired => {
                let waited_ms = closed.times.queue_ms.round();
                let message = format!("no slot became free within the deadline; it waited {waited_ms} ms");
                return error(ErrorCode::Timeout, message);
            }
            CloseReason::Stopped => {
                let body =
                    ErrorBody::new(ErrorCode::Unavailable, "the service stopped before the answer's end");
                return AssistEvent::Error(body.with_retry_after_ms(RETRY_ELSEWHERE_MS));
            }
        };
        let SlotTimes { queue_ms, prefill_ms, decode_ms, slot_ms } = closed.times;
        let usage = Usage {
            prompt_tokens: self.prompt_tokens as u64,
            cached_prefix_tokens: self.cached as u64,
            completion_tokens: self.written as u64,
        };
        let timing = Some(SlotTiming { queue_ms, prefill_ms, decode_ms, slot_ms });
        AssistEvent::End(EndEvent { reason, usage, timing })
    }
}

impl Sink for CloudReader {
    /// Callers learn only the number of whole blocks that were cached. An exact number would reveal how much
    /// of a guess at an earlier prompt is right.
    fn opened(&mut self, opened: Opened) {
        let now = self.clock.now();
        self.opened_at = Some(now);
        self.cached = opened.cached - opened.cached % BLOCK_TOKENS;
        self.promise(opened.max_tokens, BoundBy::Load.as_str());
        if let Some(live) = &self.observer.live {
            live.opened(now, self.max_tokens);
        }
    }

    fn exports(&mut self) -> Option<Export> {
        self.export.take()
    }

    fn computing(&mut self, prompt_tokens: usize) {
        if let Some(reservation) = &mut self.reservation {
            reservation.compute(prompt_tokens as u64);
        }
    }

    fn event(&mut self, event: JobEvent) {
        match event {
            JobEvent::Scores(scores) => self.put_mask(Some(&scores)),
            JobEvent::Written(written) => self.put(written),
            JobEvent::Begun { .. } | JobEvent::Computed { .. } | JobEvent::Held | JobEvent::Verified(_) => {}
        }
    }

    fn flush(&mut self, now: Duration) {
        let ms = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64() * 1e3;
        let opened_at = self.opened_at.unwrap_or(now);
        self.stamp_first(ms(self.arrived_at, opened_at), ms(opened_at, now));
        if let Some(live) = &self.observer.live {
            live.wrote(now, self.written);
        }
        self.send();
    }

    fn room(&self) -> usize {
        self.sink.unread().room()
    }

    fn reading(&mut self) -> Option<Reading> {
        self.sink.unread().reading()
    }

    fn is_continued(&self) -> bool {
        self.open.is_some()
    }

    fn closed(self: Box<Self>, closed: &Closed, mut answer: Answer) {
        // Known before the device sees the end, because it may send a draft at once.
        if let Some(open) = &self.open {
            open.begun(answer.tokens(), closed.reason);
        }
        if let Some(citations) = &self.citations {
            citations.ended(&mut answer);
        }
        let fault = answer.fault();
        self.log_fault(closed, fault);
        let is_of_request = matches!(fault, Some(Fault::Constraint(_)));
        let failure = fault.filter(|_| is_of_request);
        let failure = failure.map(|fault| ErrorBody::new(ErrorCode::InvalidRequest, fault.to_string()));
        self.finish(closed, failure);
    }
}

impl CloudReader {
    /// Ends the answer. `failure` is the error that its reader gets if it has failed.
    pub(crate) fn finish(mut self: Box<Self>, closed: &Closed, failure: Option<ErrorBody>) {
        self.stamp_first(closed.times.queue_ms, closed.times.prefill_ms);
        self.observer.ended(closed, self.cached, self.sink.cancel().is_set());
        self.log_end(closed);
        // Dropped before the end is sent, because the reader may send a new request as soon as it sees the
        // end.
        if let Some(mut reservation) = self.reservation.take()
            && matches!(closed.reason, CloseReason::Failed | CloseReason::Stopped)
            && failure.as_ref().is_none_or(|body| body.error.code != ErrorCode::InvalidRequest)
        {
            reservation.forgive_prompt();
        }
        let end = self.end(closed, failure);
        self.outbox.push(end);
        self.send();
    }
}
