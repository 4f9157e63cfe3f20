//! One draft on its way through the model: a job of the host, and its result.

use std::time::Duration;

use baton_engine::Sampler;
use baton_engine::tokenizer::TokenId;
use baton_generate::answer::{Accepted, Answer, AnswerOptions, TextMode};
use baton_generate::host::HostHandle;
use baton_generate::job::{Job, JobEvent, Opened, Order, Sink};
use baton_generate::scheduler::{CloseReason, Closed, Goal, JobSpec};
use baton_generate::unread::CancelFlag;
use baton_protocol::VerifyTiming;
use tokio::sync::oneshot;
use tracing::error;

use super::OpenAnswer;
use crate::gate::{Payer, Reservation, TokenNeed};
use crate::service::{Served, ServiceError, Terms};

/// Time after which a draft whose deadline passed may be sent again, in milliseconds.
const LATE_RETRY_MS: u64 = 100;

/// What a check has found.
#[derive(Debug)]
pub(super) struct Checked {
    /// The tokens behind those that were known: accepted ones, then the model's own.
    pub(super) tokens: Vec<TokenId>,
    /// How many of them were drafted.
    pub(super) accepted: usize,
    /// Whether the answer ends behind them.
    pub(super) ended: bool,
    pub(super) timing: VerifyTiming,
}

/// A draft that is ready to be checked.
pub(super) struct Check<'a> {
    served: &'a Served,
    answer: Answer,
    open: &'a OpenAnswer,
    known: usize,
    prompt_tokens: usize,
    draft: Vec<TokenId>,
    at_least: usize,
    reservation: Option<Reservation>,
}

impl<'a> Check<'a> {
    /// Prepares the check of `draft`, which follows the `known` tokens.
    pub(super) fn begin(
        served: &'a Served,
        open: &'a OpenAnswer,
        (known, draft): (&[TokenId], &[TokenId]),
        at_least: usize,
        payer: Option<&Payer>,
    ) -> Result<Check<'a>, ServiceError> {
        let prompt = [&open.prompt[..], known].concat();
        let prompt_tokens = prompt.len();
        let context = served.context_tokens();
        let room = context.saturating_sub(prompt_tokens);
        if room == 0 {
            return Err(ServiceError::PromptTooLong { tokens: prompt_tokens, limit: context - 1 });
        }
        let wanted = at_least.max(draft.len() + 1).min(room);
        let reservation = payer.map(|payer| {
            payer.reserve(TokenNeed { name: None, prompt_tokens: 0, max_tokens: wanted as u64 })
        });
        let reservation = reservation.transpose()?;
        // The tenant's day may have less left.
        let granted = reservation.as_ref().map_or(u64::MAX, Reservation::max_tokens);
        let max_tokens = wanted.min(usize::try_from(granted).unwrap_or(usize::MAX)).max(1);
        // The last token is the model's own.
        let draft = draft[..draft.len().min(max_tokens - 1)].to_vec();
        let at_least = at_least.min(max_tokens);
        let answer = Answer::new(AnswerOptions {
            tokenizer: served.model.tokenizer().clone(),
            vocab_len: served.model.config().vocab_len,
            sampler: Sampler::new(open.sampling)?,
            prompt,
            continued: known.to_vec(),
            max_tokens,
            room_tokens: context,
            text: TextMode::Ids,
            constraint: None,
            logprobs: None,
            window: None,
            evidence: None,
        });
        Ok(Check { served, answer, open, known: known.len(), prompt_tokens, draft, at_least, reservation })
    }

    /// Returns the job, what it is told, and where its result arrives. A draft of no tokens needs no check:
    /// the model just writes on.
    pub(super) fn into_job(self, terms: Terms, deadline: Option<Duration>) -> (Job, Vec<Order>, CheckResult) {
        let Check { served, answer, open, known, prompt_tokens, draft, at_least, reservation } = self;
        let id = served.handle.new_id();
        let cancel = CancelFlag::default();
        let (to, result) = oneshot::channel();
        let max_tokens = at_least.max(draft.len() + 1);
        let (goal, orders) = if draft.is_empty() {
            (Goal::Write, Vec::new())
        } else {
            let orders = vec![Order::Accept(Accepted::Ids(draft)), Order::Agree { at_least }];
            (Goal::Hold { upto: prompt_tokens - 1 }, orders)
        };
        let sink = CheckSink { to: Some(to), known, passes: 0, written: 0, reservation };
        let spec = JobSpec {
            id,
            prompt_tokens,
            max_tokens,
            floor_tokens: max_tokens,
            tail_tokens: usize::from(goal == Goal::Write),
            pass_tokens: usize::MAX,
            bytes: prompt_tokens * size_of::<TokenId>(),
            deadline: terms.deadline.or(deadline).map(|within| served.clock.now() + within),
            share: terms.share,
            goal,
        };
        let job = Job {
            spec,
            answer,
            scope: open.prefixes,
            adapter: open.adapter,
            cancel: cancel.clone(),
            sink: Box::new(sink),
        };
        (job, orders, CheckResult { result, cancel, host: served.handle.clone() })
    }
}

/// The result of a check that runs. Dropping it cancels the check.
#[derive(Debug)]
pub(super) struct CheckResult {
    result: oneshot::Receiver<Result<Checked, CloseReason>>,
    cancel: CancelFlag,
    host: HostHandle,
}

impl Drop for CheckResult {
    fn drop(&mut self) {
        if !self.result.is_terminated() {
            self.cancel.set();
            self.host.cancelled();
        }
    }
}

impl CheckResult {
    /// Waits for the result.
    pub(super) async fn wait(&mut self) -> Result<Checked, ServiceError> {
        found((&mut self.result).await.ok())
    }

    /// Returns the result if it is there.
    pub(super) fn look(&mut self) -> Option<Result<Checked, ServiceError>> {
        match self.result.try_recv() {
            Ok(checked) => Some(found(Some(checked))),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(found(None)),
        }
    }
}

/// Returns what a check has found. None: the host has ended before it.
fn found(checked: Option<Result<Checked, CloseReason>>) -> Result<Checked, ServiceError> {
    match checked {
        Some(Ok(checked)) => Ok(checked),
        Some(Err(CloseReason::Expired)) => {
            Err(ServiceError::Late { first_ms: 0, left_ms: 0, retry_after_ms: LATE_RETRY_MS })
        }
        Some(Err(CloseReason::Stopped)) | None => Err(ServiceError::Stopping),
        Some(Err(_)) => Err(ServiceError::CheckFailed),
    }
}

/// Gathers what comes of a check.
struct CheckSink {
    to: Option<oneshot::Sender<Result<Checked, CloseReason>>>,
    /// Tokens of the answer before the draft.
    known: usize,
    passes: u32,
    /// The model's own tokens.
    written: usize,
    reservation: Option<Reservation>,
}

impl Sink for CheckSink {
    fn opened(&mut self, _opened: Opened) {}

    fn event(&mut self, event: JobEvent) {
        match event {
            JobEvent::Computed { .. } => self.passes += 1,
            JobEvent::Written(_) => {
                // The first token comes from the pass that checks the draft.
                self.passes += u32::from(self.written > 0);
                self.written += 1;
            }
            JobEvent::Begun { .. } | JobEvent::Held | JobEvent::Verified(_) | JobEvent::Scores(_) => {}
        }
    }

    fn flush(&mut self, _now: Duration) {}

    fn closed(mut self: Box<Self>, closed: &Closed, answer: Answer) {
        let tokens = answer.tokens().get(self.known..).unwrap_or_default().to_vec();
        if let Some(reservation) = &mut self.reservation {
            tokens.iter().for_each(|_| reservation.write());
        }
        let result = match closed.reason {
            CloseReason::Stop | CloseReason::Cap => Ok(Checked {
                accepted: tokens.len() - self.written.min(tokens.len()),
                ended: closed.reason == CloseReason::Stop,
                tokens,
                timing: VerifyTiming {
                    queue_ms: closed.times.queue_ms,
                    slot_ms: closed.times.slot_ms,
                    passes: self.passes,
                },
            }),
            reason => {
                if let (CloseReason::Failed, Some(fault)) = (reason, answer.fault()) {
                    error!(
                        job = closed.id.0,
                        err = fault as &dyn std::error::Error,
                        "a draft is not checked"
                    );
                }
                Err(reason)
            }
        };
        if let Some(to) = self.to.take() {
            // Nobody waits any more if the device has gone.
            let _unheard = to.send(result);
        }
    }
}
