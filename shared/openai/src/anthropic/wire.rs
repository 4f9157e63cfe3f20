//! The fields of a Messages request, as Anthropic's clients send them.
//!
//! Only the types are checked here. A field that is not listed is taken and has no effect; [`crate::ignored`]
//! names it.

use serde::Deserialize;
use serde_json::Value;

use crate::wire::Content;
use crate::wire::whole::whole;

/// A request for a message, or for the number of its tokens.
#[derive(Debug, Deserialize)]
pub(super) struct MessagesRequest {
    pub(super) model: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    pub(super) max_tokens: Option<i64>,
    pub(super) messages: Vec<MessageBody>,
    pub(super) system: Option<Content>,
    pub(super) stop_sequences: Option<Vec<String>>,
    pub(super) stream: Option<bool>,
    pub(super) temperature: Option<f64>,
    #[serde(default, deserialize_with = "whole")]
    pub(super) top_k: Option<i64>,
    pub(super) top_p: Option<f64>,
    pub(super) tools: Option<Vec<ToolBody>>,
    pub(super) tool_choice: Option<ToolChoiceBody>,
    pub(super) thinking: Option<ThinkingBody>,
    pub(super) output_config: Option<OutputConfig>,
    /// The form of the answer, where earlier clients wrote it.
    pub(super) output_format: Option<OutputFormat>,
}

/// How the answer is to be.
#[derive(Debug, Deserialize)]
pub(super) struct OutputConfig {
    pub(super) format: Option<OutputFormat>,
}

/// The form of the answer.
#[derive(Debug, Deserialize)]
pub(super) struct OutputFormat {
    /// `json_schema`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) schema: Option<Value>,
}

/// A message.
#[derive(Debug, Deserialize)]
pub(super) struct MessageBody {
    /// `user`, `assistant` or `system`.
    pub(super) role: String,
    /// A text, or blocks.
    pub(super) content: Option<Content>,
}

/// A block of a type that is known. Which fields a type has is checked later.
#[derive(Debug, Deserialize)]
pub(super) struct Block {
    /// Of `thinking`.
    pub(super) thinking: Option<String>,
    /// Of `tool_use`.
    pub(super) id: Option<String>,
    /// Of `tool_use`.
    pub(super) name: Option<String>,
    /// Of `tool_use`.
    pub(super) input: Option<Value>,
    /// Of `tool_result`.
    pub(super) tool_use_id: Option<String>,
    /// Of `tool_result` and `search_result`: a text, or blocks.
    pub(super) content: Option<Content>,
    /// Of `tool_result`.
    pub(super) is_error: Option<bool>,
    /// Of `document` a [`Source`], of `search_result` a text.
    pub(super) source: Option<Value>,
    /// Of `document` and `search_result`.
    pub(super) title: Option<String>,
    /// Of `document`.
    pub(super) context: Option<String>,
    /// Of `document`, and of `text` in an answer.
    pub(super) citations: Option<Value>,
}

/// What a document holds.
#[derive(Debug, Deserialize)]
pub(super) struct Source {
    /// Of `text`.
    pub(super) data: Option<String>,
    /// Of `content`.
    pub(super) content: Option<Content>,
}

/// A tool.
#[derive(Debug, Deserialize)]
pub(super) struct ToolBody {
    /// `custom` or absent; others are tools that Anthropic runs or describes, which are left out.
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) name: Option<String>,
    pub(super) description: Option<String>,
    pub(super) input_schema: Option<Value>,
    pub(super) strict: Option<bool>,
}

/// Whether the model must call a tool.
#[derive(Debug, Deserialize)]
pub(super) struct ToolChoiceBody {
    /// `auto`, `any`, `tool` or `none`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// Of `tool`.
    pub(super) name: Option<String>,
    pub(super) disable_parallel_tool_use: Option<bool>,
}

/// Whether the answer shows its thinking.
#[derive(Debug, Deserialize)]
pub(super) struct ThinkingBody {
    /// `enabled`, `adaptive` or `disabled`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// `omitted` leaves the thinking out.
    pub(super) display: Option<String>,
}
