//! How an answer ended, and its timeline.

use super::event::Source;
use super::note::AnswerError;
use baton_pacing::Millis;
use baton_protocol::{SlotTiming, Timing, Usage};
use serde::Serialize;

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// The model ended it, or a stop string came.
    Stop,
    /// The token limit or the device's context was reached.
    Length,
    /// The person cancelled it.
    Cancelled,
    /// It could not be finished; what was shown stays.
    Failed(AnswerError),
}

impl Ending {
    /// Stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Failed(_) => "error",
        }
    }
}

/// One shown token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Shown {
    /// Token index.
    pub index: usize,
    /// Milliseconds since the question.
    pub at_ms: f64,
    /// Who wrote it.
    pub source: Source,
}

/// The cloud's own times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct CloudTiming {
    /// As told with the first token.
    #[serde(flatten)]
    pub first: Timing,
    /// As told at the end: how long the answer held a slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<SlotTiming>,
}

/// The times and counts of one answer. Times are milliseconds since the question was asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Timeline {
    /// First cloud token received.
    pub ttft_cloud_ms: Option<f64>,
    /// Something shown for the first time.
    pub ttft_user_ms: Option<f64>,
    /// The device has its KV cache for the prompt (all but its last token, and the cloud's tokens).
    pub prompt_ready_ms: Option<f64>,
    /// The device's own first token is there: prompt and cloud tokens verified (TTFT_d).
    pub ttft_device_ms: Option<f64>,
    /// Last token shown.
    pub total_ms: Option<f64>,
    /// Every shown token.
    pub shown: Vec<Shown>,
    /// Agreed cloud tokens (the paper's L).
    pub assist_tokens: Option<usize>,
    /// What bounds L, as the cloud says.
    pub assist_bound_by: Option<String>,
    /// Largest tolerable gap.
    pub tau_ms: f64,
    /// Tokens of the whole prompt, by the device's tokenizer.
    pub prompt_tokens: Option<usize>,
    /// Tokens of the prompt that the device used.
    pub prompt_tokens_refined: Option<usize>,
    /// Tokens of the used prompt that the device's KV cache held already.
    pub prompt_tokens_cached: Option<usize>,
    /// Kept content / content, as the cloud says.
    pub refined_ratio: Option<f64>,
    /// Kept prompt / prompt, as the cloud says.
    pub prompt_ratio: Option<f64>,
    /// Bytes of the sentence mask.
    pub mask_bytes: Option<usize>,
    /// Share of the cloud's tokens that the device would have written too.
    pub agreement: Option<f64>,
    /// What the cloud reports of its own times.
    pub cloud_timing: Option<CloudTiming>,
    /// What the cloud reports of its usage.
    pub cloud_usage: Option<Usage>,
}

impl Timeline {
    /// Shown tokens by writer.
    pub fn tokens_from(&self, source: Source) -> usize {
        self.shown.iter().filter(|s| s.source == source).count()
    }

    /// Times between successive shown tokens, milliseconds.
    pub fn gaps_ms(&self) -> Vec<f64> {
        self.shown.windows(2).map(|w| w[1].at_ms - w[0].at_ms).collect()
    }

    pub(super) fn show(&mut self, index: usize, source: Source, at: Millis) {
        let at_ms = at.as_f64();
        self.ttft_user_ms.get_or_insert(at_ms);
        self.total_ms = Some(at_ms);
        self.shown.push(Shown { index, at_ms, source });
    }
}

/// The end of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Why it ended.
    pub ending: Ending,
    /// Its whole text as the person saw it.
    pub answer: String,
    /// Its times and counts.
    pub timeline: Timeline,
}
