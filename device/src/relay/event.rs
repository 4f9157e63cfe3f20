//! What goes into the relay core and what comes out of it.

use super::note::{CloudFault, Note};
use super::outcome::Outcome;
use crate::local::{EngineCommand, EngineReport};
use baton_pacing::Millis;
use baton_protocol::{AssistEvent, ProgressStage};
use serde::Serialize;

/// Who wrote a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The cloud.
    Cloud,
    /// This device.
    Device,
}

/// How far an answer is that has nothing to show now.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Progress {
    /// Who is waited for.
    pub source: Source,
    /// What for: a turn in the cloud's queue, or a prompt to be computed.
    pub stage: ProgressStage,
    /// Prompt tokens that are computed.
    pub computed: u64,
    /// Prompt tokens in all.
    pub total: u64,
    /// How long the next token will take from now, in milliseconds, if that can be said.
    pub eta_ms: Option<f64>,
}

/// What happened.
#[derive(Debug, Clone)]
pub enum RelayEvent {
    /// The question is asked: time zero of the answer. First event, once.
    Begin,
    /// The cloud said something.
    Cloud(AssistEvent),
    /// The cloud is gone: refused, unreachable, broken, or its stream closed without an `end`.
    CloudLost(CloudFault),
    /// The engine reports.
    Engine(EngineReport),
    /// The engine is gone and reports no more.
    EngineLost,
    /// The time asked for by [`RelayEffect::WakeAt`] has come. Early or extra ones do no harm.
    Timer,
    /// The person does not want the answer any more.
    Cancel,
}

/// What the driver must do, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum RelayEffect {
    /// Send the prepared request to the cloud.
    Ask,
    /// Ask the cloud to go on after `accepted` (model text, redacted), without a cap: the device cannot.
    /// Indices of the new stream count from 0.
    AskToContinue {
        /// The answer so far.
        accepted: String,
        /// Tokens it may still write.
        tokens_max: usize,
    },
    /// Drop the cloud's stream; nothing that still arrives is used.
    CancelCloud,
    /// Give this to the engine.
    Engine(EngineCommand),
    /// Show this text; `index` counts the answer's tokens. The text may be empty.
    Show {
        /// Token index, 0-based.
        index: usize,
        /// Text as the person sees it.
        text: String,
        /// Who wrote it.
        source: Source,
    },
    /// Show this last bit of text that was held back.
    Tail {
        /// Text as the person sees it.
        text: String,
    },
    /// Tell the person.
    Note(Note),
    /// Tell the person who waits how far it is; again at least every two seconds.
    Progress(Progress),
    /// Send [`RelayEvent::Timer`] at this time; replaces the time asked for before. `None`: no timer.
    WakeAt(Option<Millis>),
    /// The one terminal event; nothing follows.
    Finish(Box<Outcome>),
}
