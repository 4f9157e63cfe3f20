//! What the device tells the cloud about an answer of an experiment: three figures, no text.

use crate::relay::Timeline;
use serde::Serialize;
use uuid::Uuid;

/// The longest time that the cloud takes, in milliseconds; a longer one is sent as this.
const TIME_MS_MAX: f64 = 600_000.0;

/// The figures of one answer, for `POST /v1/feedback`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Feedback {
    /// The assist request.
    pub request_id: Uuid,
    /// The name that the cloud gave to the answer.
    pub token: String,
    /// When the first token was shown, in milliseconds since the question.
    pub ttft_ms: f64,
    /// The largest time between two shown tokens, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap_ms: Option<f64>,
    /// Share of the cloud's tokens that the device would have written too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreement: Option<f64>,
}

impl Feedback {
    /// Returns the figures of an answer; `None` if the cloud wants none, or nothing was shown.
    pub fn of(request_id: Uuid, timeline: &Timeline) -> Option<Feedback> {
        let token = timeline.experiment.as_ref()?.feedback.clone()?;
        let bounded = |ms: f64| ms.clamp(0.0, TIME_MS_MAX);
        let gap_ms = timeline.gaps_ms().into_iter().reduce(f64::max).map(bounded);
        let ttft_ms = bounded(timeline.ttft_user_ms?);
        Some(Feedback { request_id, token, ttft_ms, gap_ms, agreement: timeline.agreement })
    }
}
