//! One answer as a JSON object, for `--json`, the demo and tests.

use crate::relay::{Ending, Note, Outcome, Source, Timeline};
use baton_engine::speculation::SpeculationStats;
use baton_pacing::{GapStats, Millis};
use serde::Serialize;

/// Everything about one answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AnswerReport {
    /// The text as the person saw it.
    pub answer: String,
    /// `stop`, `length`, `cancelled` or `error`.
    pub ending: &'static str,
    /// What failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorText>,
    /// What the person was told.
    pub notes: Vec<Note>,
    /// Tokens by the cloud.
    pub tokens_from_cloud: usize,
    /// Tokens by this device.
    pub tokens_from_device: usize,
    /// Largest time between two shown tokens.
    pub gap_max_ms: f64,
    /// 99th percentile of the times between shown tokens.
    pub gap_p99_ms: f64,
    /// Standard deviation of the times between shown tokens.
    pub gap_sd_ms: f64,
    /// Bytes of the request body as sent.
    pub request_bytes: Option<usize>,
    /// What came of proposed tokens; absent where none are proposed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation: Option<SpeculationReport>,
    /// Times and counts.
    #[serde(flatten)]
    pub timeline: Timeline,
}

/// Proposed tokens of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SpeculationReport {
    /// Decoding passes of this device.
    pub passes: u64,
    /// Tokens that they wrote.
    pub tokens: u64,
    /// Tokens proposed.
    pub proposed: u64,
    /// Of these, tokens that the model wrote.
    pub accepted: u64,
    /// What plain decoding would have taken, by what was taken.
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
    /// Stable name.
    pub code: &'static str,
    /// One sentence.
    pub message: String,
}

impl AnswerReport {
    /// The report of an answer that ended.
    pub fn new(outcome: Outcome, notes: Vec<Note>, request_bytes: Option<usize>) -> Self {
        let Outcome { ending, answer, timeline } = outcome;
        let shown_at: Vec<Millis> = timeline.shown.iter().map(|s| Millis::new(s.at_ms)).collect();
        let gaps = GapStats::of(&shown_at);
        let error = match &ending {
            Ending::Failed(err) => Some(ErrorText { code: err.code(), message: err.to_string() }),
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
            speculation: None,
            timeline,
        }
    }
}
