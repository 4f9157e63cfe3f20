//! The fields of a chat completion request, as OpenAI's clients send them.
//!
//! Fields that are here only to be refused by name, or taken without effect, say so.

use serde::Deserialize;
use serde_json::{Map, Value};

/// A chat completion request.
#[derive(Debug, Deserialize)]
pub(super) struct Wire {
    pub(super) model: Option<String>,
    pub(super) messages: Vec<Message>,
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<StreamOptions>,
    pub(super) max_tokens: Option<u64>,
    pub(super) max_completion_tokens: Option<u64>,
    pub(super) temperature: Option<f64>,
    pub(super) top_p: Option<f64>,
    pub(super) top_k: Option<u32>,
    pub(super) min_p: Option<f64>,
    pub(super) repetition_penalty: Option<f64>,
    pub(super) seed: Option<i64>,
    pub(super) stop: Option<Stop>,
    /// Must be 1.
    pub(super) n: Option<u64>,
    pub(super) response_format: Option<ResponseFormat>,
    /// `auto`: a prompt that does not fit is shortened; `disabled`: it is refused.
    pub(super) truncation: Option<String>,
    /// Must be 0: a cloud that takes part does not know it.
    pub(super) frequency_penalty: Option<f64>,
    /// Must be 0: a cloud that takes part does not know it.
    pub(super) presence_penalty: Option<f64>,
    /// Must be false.
    pub(super) logprobs: Option<bool>,
    /// Must be 0.
    pub(super) top_logprobs: Option<u64>,
    /// Must be empty.
    pub(super) logit_bias: Option<Map<String, Value>>,
    /// Must be empty.
    pub(super) tools: Option<Vec<Value>>,
    /// Must be `none` or `auto`: there are no tools.
    pub(super) tool_choice: Option<Value>,
    /// Must be empty.
    pub(super) functions: Option<Vec<Value>>,
    /// Must be `none` or `auto`.
    pub(super) function_call: Option<Value>,
    /// Must be `text` alone.
    pub(super) modalities: Option<Vec<String>>,
    /// Must not be true: answers are never stored.
    pub(super) store: Option<bool>,
    // These describe the caller, or what only other services do; they change nothing here.
    #[serde(rename = "parallel_tool_calls")]
    pub(super) _parallel_tool_calls: Option<bool>,
    #[serde(rename = "user")]
    pub(super) _user: Option<String>,
    #[serde(rename = "metadata")]
    pub(super) _metadata: Option<Value>,
    #[serde(rename = "service_tier")]
    pub(super) _service_tier: Option<String>,
    #[serde(rename = "safety_identifier")]
    pub(super) _safety_identifier: Option<String>,
    #[serde(rename = "prompt_cache_key")]
    pub(super) _prompt_cache_key: Option<String>,
    /// All others: refused by name, unless they are null.
    #[serde(flatten)]
    pub(super) other: Map<String, Value>,
}

/// A message.
#[derive(Debug, Deserialize)]
pub(super) struct Message {
    pub(super) role: String,
    /// May be absent in messages of the assistant.
    pub(super) content: Option<Content>,
    /// Must be empty.
    pub(super) tool_calls: Option<Vec<Value>>,
    // What comes back in an answer's message, or describes it, and changes nothing here.
    #[serde(rename = "name")]
    pub(super) _name: Option<String>,
    #[serde(rename = "tool_call_id")]
    pub(super) _tool_call_id: Option<String>,
    #[serde(rename = "refusal")]
    pub(super) _refusal: Option<String>,
    #[serde(rename = "annotations")]
    pub(super) _annotations: Option<Vec<Value>>,
    /// All others: refused by name, unless they are null.
    #[serde(flatten)]
    pub(super) other: Map<String, Value>,
}

/// A text, or parts of type `text`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of a message.
#[derive(Debug, Deserialize)]
pub(super) struct Part {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) text: Option<String>,
}

/// One string or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Stop {
    One(String),
    Many(Vec<String>),
}

/// Options of a stream.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StreamOptions {
    pub(super) include_usage: Option<bool>,
    /// Baton's own: chunks without choices say in `x_progress` how far the prompt is.
    pub(super) include_progress: Option<bool>,
    /// No effect.
    #[serde(rename = "include_obfuscation")]
    pub(super) _include_obfuscation: Option<bool>,
}

/// What the answer must be: only `text`.
#[derive(Debug, Deserialize)]
pub(super) struct ResponseFormat {
    #[serde(rename = "type")]
    pub(super) kind: String,
}
