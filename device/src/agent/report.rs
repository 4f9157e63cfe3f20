//! Reports one answer as a JSON object, for `--json`, the demo and tests.

use super::evidence::AnswerCitation;
use super::route::RouteReport;
use crate::relay::{Ending, Note, Outcome, Source, Timeline};
use baton_generate::speculation::SpeculationStats;
use baton_pacing::{GapStats, Millis};
use serde::Serialize;

/// Everything about one answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AnswerReport {
    /// The text as it was shown.
    pub answer: String,
    /// `stop`, `length`, `cancelled` or `error`.
    pub ending: &'static str,
    /// What failed, if the ending is `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorText>,
    /// The notes that were shown.
    pub notes: Vec<Note>,
    /// Tokens written by the cloud.
    pub tokens_from_cloud: usize,
    /// Tokens written by this device.
    pub tokens_from_device: usize,
    /// Largest time between two shown tokens, in milliseconds.
    pub gap_max_ms: f64,
    /// 99th percentile of the times between shown tokens, in milliseconds.
    pub gap_p99_ms: f64,
    /// Standard deviation of the times between shown tokens, in milliseconds.
    pub gap_sd_ms: f64,
    /// Bytes of the request body as sent.
    pub request_bytes: Option<usize>,
    /// The key of its record on this device, if it was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// The choice of who answers; absent if the mode was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<RouteReport>,
    /// Results of speculative decoding; absent if no tokens are proposed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation: Option<SpeculationReport>,
    /// What each sentence of the answer stands on; absent if that was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub citations: Option<Vec<AnswerCitation>>,
    /// Times and counts.
    #[serde(flatten)]
    pub timeline: Timeline,
}

/// Results of speculative decoding for one answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SpeculationReport {
    /// Decoding passes of this device.
    pub passes: u64,
    /// Tokens written by these passes.
    pub tokens: u64,
    /// Tokens proposed.
    pub proposed: u64,
    /// Proposed tokens that the model accepted.
    pub accepted: u64,
    /// Estimated time of plain decoding, divided by the time taken.
    pub speed_up: Option<f64>,
}

impl From<SpeculationStats> for SpeculationReport {
    fn from(stats: SpeculationStats) -> Self {
        Self {
            passes: stats.steps,
            tokens: stats.written,
            proposed: stats.proposed,
            accepted: stats.accepted,
            speed_up: stats.speed_up(),
        }
    }
}

/// An error for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ErrorText {
    /// Stable name of the error.
    pub code: &'static str,
    /// One sentence for a person.
    pub message: String,
    /// When to ask again, in milliseconds, if the cloud says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

impl AnswerReport {
    /// Makes the report of an answer that has ended.
    pub fn new(outcome: Outcome, notes: Vec<Note>, request_bytes: Option<usize>) -> Self {
        let Outcome { ending, answer, timeline } = outcome;
        let shown_at: Vec<Millis> = timeline.shown.iter().map(|s| Millis::new(s.at_ms)).collect();
        let gaps = GapStats::of(&shown_at);
        let error = match &ending {
            Ending::Failed(err) => Some(ErrorText {
                code: err.code(),
                message: err.to_string(),
                retry_after_ms: err.retry_after_ms(),
            }),
            _ => None,
        };
        Self {
            answer,
            ending: ending.code(),
            error,
            notes,
            tokens_from_cloud: timeline.tokens_from(Source::Cloud),
            tokens_from_device: timeline.tokens_from(Source::Device),
            gap_max_ms: gaps.max_ms,
            gap_p99_ms: gaps.p99_ms,
            gap_sd_ms: gaps.sd_ms,
            request_bytes,
            record: None,
            route: None,
            speculation: None,
            citations: None,
            timeline,
        }
    }
}
