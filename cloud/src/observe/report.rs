//! Reports one request to the metrics, to the record of requests, and to a trace.
//!
//! Never: sees text. Always: reports the end of a request once.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use baton_protocol::MaskEvent;

use crate::observe::metrics::{Ended, Metrics};
use crate::observe::requests::{LiveRequest, RequestEnd, RequestKey};
use crate::observe::trace::{RequestTrace, TraceParent, Traces};
use baton_generate::scheduler::{CloseReason, Closed};

/// Reports one request.
#[derive(Debug)]
pub(crate) struct Observer {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) traces: Option<Traces>,
    /// The caller's span.
    pub(crate) parent: Option<TraceParent>,
    /// The request's id; empty if it has none.
    pub(crate) request: String,
    /// By which its client ends it; `None` if it cannot.
    pub(crate) key: Option<RequestKey>,
    /// The request's tenant; empty if it has none.
    pub(crate) tenant: String,
    /// The scene; `None` for the chat API.
    pub(crate) scene: Option<String>,
    /// Experiment and arm, as `EXPERIMENT/ARM`; `None` if it takes part in none.
    pub(crate) arm: Option<String>,
    pub(crate) model: String,
    pub(crate) prompt_tokens: usize,
    pub(crate) refine: Duration,
    /// Its place in the record of requests, once it waits there.
    pub(crate) live: Option<LiveRequest>,
}

impl Observer {
    /// Returns whether the request has neither an id nor a tenant, because this program made it for itself.
    pub(crate) fn is_of_nobody(&self) -> bool {
        self.request.is_empty() && self.tenant.is_empty()
    }

    pub(crate) fn refined(&mut self, mask: &MaskEvent) {
        self.metrics.refined(self.scene.as_deref(), mask, self.prompt_tokens);
    }

    pub(crate) fn refine_elapsed(&mut self, elapsed: Duration) {
        self.refine = elapsed;
        self.metrics.refine_elapsed(elapsed);
    }

    /// Reports the first token; `assist_tokens` is the L that a device was promised.
    pub(crate) fn first_token(&self, since_arrival: Duration, assist_tokens: u32) {
        if let Some(scene) = &self.scene {
            self.metrics.assisted(scene, assist_tokens);
        }
        self.metrics.first_token(self.scene.as_deref(), &self.model, since_arrival);
    }

    pub(crate) fn ended(&self, closed: &Closed, cached_tokens: usize, disconnected: bool) {
        let outcome = match closed.reason {
            CloseReason::Stop => "stop",
            CloseReason::Cap => "cap",
            CloseReason::Cancelled => "cancelled",
            CloseReason::Failed => "failed",
            CloseReason::Expired => "expired",
            CloseReason::Stopped => "stopped",
        };
        let ms = |ms: f64| Duration::from_secs_f64(ms.max(0.0) / 1e3);
        let (queue, prefill) = (ms(closed.times.queue_ms), ms(closed.times.prefill_ms));
        let decode = ms(closed.times.decode_ms);
        let is_cancelled_here = self.live.as_ref().is_some_and(LiveRequest::is_cancelled);
        if let Some(live) = &self.live {
            live.ended(RequestEnd { outcome, tokens: closed.tokens, queue, prefill, decode });
        }
        self.metrics.ended(Ended {
            scene: self.scene.as_deref(),
            model: &self.model,
            outcome,
            disconnected: disconnected && closed.reason == CloseReason::Cancelled && !is_cancelled_here,
            prompt_tokens: self.prompt_tokens,
            tokens: closed.tokens,
            queue,
            prefill,
            decode,
        });
        if let Some(traces) = &self.traces {
            traces.record(&RequestTrace {
                parent: self.parent,
                request: self.request.clone(),
                scene: self.scene.clone(),
                arm: self.arm.clone(),
                model: self.model.clone(),
                ended_at: SystemTime::now(),
                queue,
                prefill,
                refine: self.refine,
                decode,
                prompt_tokens: self.prompt_tokens,
                cached_tokens,
                tokens: closed.tokens,
                outcome,
            });
        }
    }
}
