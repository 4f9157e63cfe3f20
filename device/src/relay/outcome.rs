//! The end of an answer, and its timeline.

use super::event::Source;
use super::note::AnswerError;
use baton_pacing::Millis;
use baton_protocol::{ArmEvent, SlotTiming, Timing, Usage, VerifyReply};
use serde::{Deserialize, Serialize};

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
    /// Returns the stable name for programs.
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
    /// Times reported with the first token.
    #[serde(flatten)]
    pub first: Timing,
    /// Times reported at the end: how long the answer held a slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<SlotTiming>,
}

/// What a cloud answered with, as it says itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloudMark {
    /// The version of the scene.
    pub scene_version: u32,
    /// Name of its model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Adapter of that model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Digest of its tokenizer, 64 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer_sha256: Option<String>,
}

/// What came of the drafts that the cloud checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// Requests sent.
    pub requests: usize,
    /// Passes of the cloud's model, as it reports them.
    pub passes: u64,
    /// Drafted tokens that were judged.
    pub drafted: usize,
    /// Those that the cloud would have written too.
    pub accepted: usize,
    /// Drafts of which a token was rejected.
    pub rejected: usize,
    /// Tokens that the cloud wrote behind drafts.
    pub written: usize,
    /// Time in the cloud's slots, in milliseconds, as it reports it.
    pub slot_ms: u64,
    /// Index of the first token that was not verified, if the line was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unverified_from: Option<usize>,
}

impl Verification {
    /// Counts a reply to a draft.
    pub(super) fn took(&mut self, reply: &VerifyReply, drafted: usize) {
        let accepted = (reply.accepted as usize).min(drafted);
        self.passes += u64::from(reply.timing.passes);
        self.slot_ms += reply.timing.slot_ms.max(0.0).round() as u64;
        self.drafted += accepted + usize::from(accepted < drafted);
        self.accepted += accepted;
        self.written += reply.next.len();
    }
}

/// What became of the cloud's keys and values.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct KvTrace {
    /// How they are written; `None` if none were offered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<&'static str>,
    /// Bytes offered.
    pub bytes: u64,
    /// Prompt tokens that they are of.
    pub tokens: usize,
    /// Bytes that came.
    pub fetched_bytes: u64,
    /// How long that took, in milliseconds.
    pub fetch_ms: f64,
    /// Bytes a second from the first frame on, if enough came behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line_bytes_per_s: Option<f64>,
    /// Whether the device went on from them.
    pub used: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The times and counts of one answer. Times are milliseconds since the question was asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Timeline {
    /// When the first cloud token came.
    pub ttft_cloud_ms: Option<f64>,
    /// When the first text was shown.
    pub ttft_user_ms: Option<f64>,
    /// When the device had its KV cache for the prompt (all but the last token, and without the cloud's
    /// tokens).
    pub prompt_ready_ms: Option<f64>,
    /// When the device had its own first token: prompt and cloud tokens verified (TTFT_d).
    pub ttft_device_ms: Option<f64>,
    /// When the last token was shown.
    pub total_ms: Option<f64>,
    /// All shown tokens.
    pub shown: Vec<Shown>,
    /// Agreed number of cloud tokens (the paper's L).
    pub assist_tokens: Option<usize>,
    /// What limits L, as reported by the cloud.
    pub assist_bound_by: Option<String>,
    /// Largest tolerable gap, in milliseconds.
    pub tau_ms: f64,
    /// Tokens of the whole prompt, counted by the device's tokenizer.
    pub prompt_tokens: Option<usize>,
    /// Tokens of the prompt that the device used.
    pub prompt_tokens_refined: Option<usize>,
    /// Tokens of the used prompt that were already in the device's KV cache.
    pub prompt_tokens_cached: Option<usize>,
    /// Share of the content that was kept, as reported by the cloud.
    pub refined_ratio: Option<f64>,
    /// Share of the prompt that was kept, as reported by the cloud.
    pub prompt_ratio: Option<f64>,
    /// Bytes of the sentence mask.
    pub mask_bytes: Option<usize>,
    /// What became of the cloud's keys and values, in a scene that offers some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv: Option<KvTrace>,
    /// Share of the cloud's tokens that the device would have written too.
    pub agreement: Option<f64>,
    /// What came of verification, if the answer was verified behind L.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
    /// The times that the cloud reported.
    pub cloud_timing: Option<CloudTiming>,
    /// The usage that the cloud reported.
    pub cloud_usage: Option<Usage>,
    /// What the cloud answered with, as it says.
    #[serde(skip)]
    pub cloud: Option<CloudMark>,
    /// The experiment of the cloud that the answer takes part in.
    #[serde(skip)]
    pub experiment: Option<ArmEvent>,
    /// The model's text (redacted) up to the token that completed a stop string, if one ended the answer.
    #[serde(skip)]
    pub stopped_text: Option<String>,
}

impl Timeline {
    /// Counts the shown tokens of one writer.
    pub fn tokens_from(&self, source: Source) -> usize {
        self.shown.iter().filter(|s| s.source == source).count()
    }

    /// Returns whether the device has read the whole prompt.
    pub fn is_read_whole(&self) -> bool {
        let is_whole = self.prompt_tokens.is_some() && self.prompt_tokens == self.prompt_tokens_refined;
        // What the cloud has computed is not read here.
        let is_read = self.kv.as_ref().is_none_or(|kv| !kv.used);
        is_whole && is_read && self.prompt_ready_ms.is_some()
    }

    /// Returns the index behind the last token that the cloud has verified, if it wrote none itself; 0 if it
    /// verifies none.
    pub fn verified_until(&self) -> usize {
        self.verification.map_or(0, |checked| checked.unverified_from.unwrap_or(usize::MAX))
    }

    /// Returns the times between successive shown tokens, in milliseconds.
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
    /// Its whole text as it was shown.
    pub answer: String,
    /// Its times and counts.
    pub timeline: Timeline,
}
