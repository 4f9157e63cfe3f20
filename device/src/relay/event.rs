//! The events and effects of the relay core.

use super::note::{CloudFault, Note};
use super::outcome::Outcome;
use crate::local::{EngineCommand, EngineReport};
use baton_engine::KvRows;
use baton_pacing::Millis;
use baton_protocol::{AssistEvent, KvTicket, ProgressStage, VerifyReply, VerifyRequest};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Who wrote a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The cloud.
    Cloud,
    /// This device.
    Device,
}

/// Progress of an answer that has nothing to show now.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Progress {
    /// Who the answer waits for.
    pub source: Source,
    /// What it waits for: a turn in the cloud's queue, or the computation of a prompt.
    pub stage: ProgressStage,
    /// Prompt tokens computed so far.
    pub computed: u64,
    /// Prompt tokens in all.
    pub total: u64,
    /// Time until the next token, in milliseconds, if it can be estimated.
    pub eta_ms: Option<f64>,
}

/// News of keys and values that are fetched.
#[derive(Debug, Clone)]
pub enum KvNews {
    /// So many bytes have come and are sound.
    Come {
        /// Bytes of whole frames.
        bytes: u64,
    },
    /// All have come.
    Whole(Arc<KvRows>),
    /// They will not come, or are not sound.
    Failed {
        /// Why.
        reason: String,
    },
}

/// An event for the core.
#[derive(Debug, Clone)]
pub enum RelayEvent {
    /// The question is asked, which is time zero of the answer. This is the first event, sent once.
    Begin,
    /// An event from the cloud.
    Cloud(AssistEvent),
    /// The cloud is lost: it refused, is unreachable or broken, or its stream closed without an `end`.
    CloudLost(CloudFault),
    /// The reply to [`RelayEffect::Check`], or what went wrong with it.
    Checked(Result<VerifyReply, CloudFault>),
    /// News of [`RelayEffect::FetchKv`].
    Kv(KvNews),
    /// A report from the engine.
    Engine(EngineReport),
    /// The engine is gone and reports no more.
    EngineLost,
    /// The time of [`RelayEffect::WakeAt`] has come. Early or extra timers do no harm.
    Timer,
    /// The user cancelled the answer.
    Cancel,
}

/// What the driver must do, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum RelayEffect {
    /// Send the prepared request to the cloud.
    Ask,
    /// Ask the cloud to go on after `accepted` (the model's redacted text) up to the end, because the device
    /// cannot. Indices of the new stream count from 0.
    AskToContinue {
        /// The answer so far.
        accepted: String,
        /// Most tokens that it may still write.
        tokens_max: usize,
    },
    /// Ask the cloud to check this draft. One request is in flight at a time.
    Check(VerifyRequest),
    /// Drop that request; no reply to it is used.
    DropCheck,
    /// Drop the cloud's stream; nothing that still arrives is used.
    CancelCloud,
    /// Fetch these keys and values from the cloud.
    FetchKv(KvTicket),
    /// Give up the fetch; nothing that still arrives is used.
    DropKv,
    /// Send this command to the engine.
    Engine(EngineCommand),
    /// Show this text; `index` counts the answer's tokens. The text may be empty.
    Show {
        /// Token index, from 0.
        index: usize,
        /// The text to show.
        text: String,
        /// Who wrote it.
        source: Source,
    },
    /// Show this last text, which was held back.
    Tail {
        /// The text to show.
        text: String,
    },
    /// Show this note.
    Note(Note),
    /// Show this progress; repeated at least every two seconds.
    Progress(Progress),
    /// Send [`RelayEvent::Timer`] at this time; replaces any earlier request. `None` means no timer.
    WakeAt(Option<Millis>),
    /// The last effect; nothing follows it.
    Finish(Box<Outcome>),
}
