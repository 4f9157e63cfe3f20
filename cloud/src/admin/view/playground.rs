//! A question of the playground, and what the cloud answered: sentences, tokens, times.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A question about a document, to try out a scene.
#[derive(Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlaygroundInput {
    /// The scene.
    pub scene: String,
    /// The document, 1 to 65,536 bytes.
    pub document: String,
    /// The question, 1 to 4,096 bytes.
    pub question: String,
    /// The largest share of the document to keep (r), 0.01 to 1; null for what the scene says.
    #[serde(default)]
    #[schema(minimum = 0.01, maximum = 1)]
    pub ratio: Option<f32>,
    /// How sentences are ranked: `attention`, `bm25` or `none`; null for what the scene says.
    #[serde(default)]
    pub mode: Option<String>,
    /// The tokens that the cloud writes (L), 1 to 65,536; null for what the scene says.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 65_536)]
    pub assist_tokens: Option<u32>,
    /// The class of the device that would take over; null for none.
    #[serde(default)]
    pub device_class: Option<String>,
}

/// The answer to a question of the playground.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct PlaygroundView {
    /// The id of the request, as in the log and among the requests.
    pub request: String,
    /// The scene.
    pub scene: String,
    /// Its version.
    pub scene_version: u32,
    /// The model that answered.
    pub model: String,
    /// How sentences were ranked: `attention`, `bm25` or `none`.
    pub mode: String,
    /// The document, sentence by sentence.
    pub sentences: Vec<SentenceView>,
    /// What was kept of the document.
    pub refined: RefinedView,
    /// What the cloud wrote.
    pub answer: AnswerView,
    /// How long it took.
    pub timing: TimingView,
    /// What a device of the class would need; null if none was chosen.
    pub device: Option<DeviceTimesView>,
}

/// A sentence of the document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct SentenceView {
    /// Its text, with white space behind it.
    pub text: String,
    /// Whether the mask keeps it.
    pub kept: bool,
}

/// What was kept of the document.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RefinedView {
    /// The largest share of the document's tokens that could be kept (r).
    pub ratio: f32,
    /// What decided r: `request`, `scene`, `xi`, `optimizer`, `mode` (none), or `refine` (the scene keeps
    /// all).
    pub ratio_bound_by: String,
    /// Whether there was a mask. Without one everything is kept.
    pub has_mask: bool,
    /// The share of the document's tokens that is kept.
    pub ratio_kept: f32,
    /// Sentences that are kept.
    pub sentences_kept: usize,
    /// Tokens of the whole prompt.
    pub prompt_tokens: u64,
    /// Tokens of the refined prompt, by the tokenizer of the cloud's model.
    pub refined_prompt_tokens: u64,
    /// The refined prompt as a device would read it.
    pub prompt: Vec<PromptPart>,
}

/// A part of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct PromptPart {
    /// `system` or `user`.
    pub role: String,
    /// Its text.
    pub text: String,
}

/// What the cloud wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct AnswerView {
    /// The text of its tokens.
    pub text: String,
    /// How many tokens it wrote.
    pub tokens: u64,
    /// The most tokens that it would write (L).
    pub assist_tokens: u32,
    /// What decided L.
    pub assist_bound_by: String,
    /// Whether a device would take over here. If not, the answer is complete.
    pub device_takes_over: bool,
}

/// The times of the cloud, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct TimingView {
    /// From arrival to the start of the prefill.
    pub queue_ms: f64,
    /// The prefill of the whole prompt.
    pub prefill_ms: f64,
    /// Making the mask.
    pub refine_ms: f64,
    /// From the first token to the last; null if it was not measured.
    pub decode_ms: Option<f64>,
    /// Prompt tokens that an earlier question had left in the cache.
    pub cached_tokens: u64,
}

/// Times that are expected of a device of a class, in milliseconds, if it has read nothing yet.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct DeviceTimesView {
    /// The class.
    pub device_class: String,
    /// The prefill of the refined prompt.
    pub refined_prefill_ms: f64,
    /// The prefill of the whole prompt.
    pub whole_prefill_ms: f64,
    /// Each token that it writes.
    pub decode_ms: f64,
}
