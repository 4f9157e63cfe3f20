//! Hands a prepared request to whoever writes the answer: the host of the model's own engine, or an engine of
//! its own kind elsewhere, while the host makes the mask.

use std::sync::atomic::Ordering;
use std::time::Duration;

use baton_engine::stop::StopStrings;
use baton_generate::host::{NotTaken, Stage};
use baton_generate::scheduler::Refusal;
use tracing::debug;

use crate::service::reader::{MaskSource, Prepared};
use crate::service::upstream::{Ask, Job, NoEngine, NoLease, ScoreJob, Upstream};
use crate::service::{CloudService, Served, ServiceError, Terms};

/// What an engine elsewhere needs for an answer.
#[derive(Debug)]
pub(crate) struct ForEngine {
    pub(crate) ask: Ask,
    pub(crate) stop: StopStrings,
    /// Whether the answer is complete at its cap, because no device continues it.
    pub(crate) ends_at_cap: bool,
}

impl CloudService {
    /// Hands the request over.
    ///
    /// # Errors
    /// [`ServiceError`] if there is no room, the deadline cannot be met, or the service is stopping.
    pub(super) fn submit(
        &self,
        served: &Served,
        mut prepared: Prepared,
        terms: Terms,
    ) -> Result<(), ServiceError> {
        let deadline = terms.deadline.or(self.deadline());
        prepared.spec.deadline = deadline.map(|within| prepared.reader.arrived_at + within);
        prepared.spec.bytes = prepared.held_bytes();
        prepared.spec.share = terms.share;
        prepared.reader.observer.request = terms.request;
        prepared.reader.observer.tenant = terms.tenant;
        self.list(&mut prepared);
        match (&served.upstream, prepared.upstream.take()) {
            (Some(upstream), Some(asked)) => self.submit_upstream(served, upstream, prepared, *asked),
            _ => served.handle.submit(prepared.into_job()).map_err(|refused| self.refused(refused)),
        }
    }

    /// Has an engine write the answer, and the own one score the prompt.
    fn submit_upstream(
        &self,
        served: &Served,
        upstream: &std::sync::Arc<Upstream>,
        mut prepared: Prepared,
        asked: ForEngine,
    ) -> Result<(), ServiceError> {
        if served.handle.stage() != Stage::Open {
            return Err(self.refused(NotTaken::Draining));
        }
        let ForEngine { mut ask, stop, ends_at_cap } = asked;
        ask.has_tenants = self.inner.has_tenants.load(Ordering::Relaxed);
        let lease = upstream.lease(&ask, &[]).map_err(|none| self.no_lease(&served.name, none))?;
        let spec = prepared.spec;
        let mask = match std::mem::replace(&mut prepared.reader.mask, MaskSource::None) {
            MaskSource::Scores(mask) => Some(mask),
            other => {
                prepared.reader.mask = other;
                None
            }
        };
        let (reader, scorer) =
            prepared.into_scorer(mask.map(|mask| ScoreJob::new(mask, served.clock.clone())));
        let mask = scorer.and_then(|(job, mask)| match served.handle.submit(job) {
            Ok(()) => Some(mask),
            Err(refused) => {
                // The answer is worth more than its mask.
                debug!(%refused, "the scorer takes no prompt");
                self.inner.metrics.engine_mask(&served.name, "refused");
                None
            }
        });
        let job = Job {
            id: spec.id,
            ask,
            lease,
            reader,
            mask,
            stop,
            ends_at_cap,
            tokenizer: served.model.tokenizer().clone(),
            prompt_tokens: spec.prompt_tokens,
            max_tokens: spec.max_tokens,
            deadline: spec.deadline,
        };
        tokio::spawn(job.run());
        Ok(())
    }

    fn no_lease(&self, model: &str, none: NoLease) -> ServiceError {
        let model = model.to_owned();
        match none {
            NoLease::Unsupported { field, message } => ServiceError::EngineCannot { field, message },
            NoLease::None(NoEngine::Full { retry_after }) => {
                self.inner.metrics.rejected("engines_full");
                ServiceError::EnginesFull { model, retry_after_ms: retry_after_ms(retry_after) }
            }
            NoLease::None(NoEngine::Down { retry_after }) => {
                self.inner.metrics.rejected("engines_down");
                ServiceError::EnginesDown { model, retry_after_ms: retry_after_ms(retry_after) }
            }
        }
    }

    /// Returns the deadline of requests that set none.
    pub(super) fn deadline(&self) -> Option<Duration> {
        *self.inner.deadline.lock().expect("no holder of this lock panics")
    }

    pub(super) fn refused(&self, refused: NotTaken) -> ServiceError {
        match refused {
            NotTaken::Draining | NotTaken::Gone => {
                self.inner.metrics.rejected("stopping");
                ServiceError::Stopping
            }
            NotTaken::Refused(Refusal::TooLarge { need, limit }) => ServiceError::KvTooSmall { need, limit },
            NotTaken::Refused(Refusal::Full { limit, waiting, backlog, retry_after, .. }) => {
                self.inner.metrics.rejected("queue_full");
                let retry_after_ms = retry_after_ms(retry_after);
                ServiceError::Overloaded { waiting, backlog, limit, retry_after_ms }
            }
            NotTaken::Refused(Refusal::Late { first, left, retry_after }) => {
                self.inner.metrics.rejected("deadline");
                ServiceError::Late {
                    first_ms: whole_ms(first),
                    left_ms: whole_ms(left),
                    retry_after_ms: retry_after_ms(retry_after),
                }
            }
        }
    }
}

/// Limits the time to retry: not so short that all clients come at once, and not so long that clients ignore
/// it.
fn retry_after_ms(after: Duration) -> u64 {
    whole_ms(after).clamp(100, 60_000)
}

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
