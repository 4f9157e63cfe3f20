//! The fields of a Messages request, as Anthropic's clients send them.
//!
//! Only the types are checked here. Fields that have no effect say so. Always: a field that is not listed is
//! refused by name, at any depth, unless it is null.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::wire::text_or::TextOr;
use crate::wire::unknown::NoOther;

/// A text, or blocks.
pub(super) type Content = TextOr<Vec<Block>>;

/// A request for a message, or for the number of its tokens.
#[derive(Debug, Deserialize)]
pub(super) struct MessagesRequest {
    pub(super) model: Option<String>,
    pub(super) max_tokens: Option<u64>,
    pub(super) messages: Vec<MessageBody>,
    pub(super) system: Option<Content>,
    pub(super) stop_sequences: Option<Vec<String>>,
    pub(super) stream: Option<bool>,
    pub(super) temperature: Option<f64>,
    pub(super) top_k: Option<u32>,
    pub(super) top_p: Option<f64>,
    pub(super) tools: Option<Vec<ToolBody>>,
    pub(super) tool_choice: Option<ToolChoiceBody>,
    pub(super) thinking: Option<ThinkingBody>,
    /// Describes the caller; no effect.
    #[serde(rename = "metadata")]
    pub(super) _metadata: Option<Value>,
    /// No effect.
    #[serde(rename = "service_tier")]
    pub(super) _service_tier: Option<String>,
    /// No effect: the prefix cache finds prefixes by their tokens.
    #[serde(rename = "cache_control")]
    pub(super) _cache_control: Option<Value>,
    #[serde(flatten)]
    pub(super) _other: NoOther,
}

/// A message.
#[derive(Debug, Deserialize)]
pub(super) struct MessageBody {
    /// `user` or `assistant`.
    pub(super) role: String,
    pub(super) content: Content,
    #[serde(flatten)]
    pub(super) _other: NoOther,
}

/// A block of any type. Which fields a type has is checked later.
#[derive(Debug, Deserialize)]
pub(super) struct Block {
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// Of `text`.
    pub(super) text: Option<String>,
    /// Of `tool_use`.
    pub(super) id: Option<String>,
    /// Of `tool_use`.
    pub(super) name: Option<String>,
    /// Of `tool_use`.
    pub(super) input: Option<Value>,
    /// Of `tool_result`.
    pub(super) tool_use_id: Option<String>,
    /// Of `tool_result`.
    pub(super) content: Option<TextOr<Vec<Block>>>,
    /// Of `tool_result`.
    pub(super) is_error: Option<bool>,
    /// Of `document`.
    pub(super) source: Option<Source>,
    /// Of `document`.
    pub(super) title: Option<String>,
    /// Of `document`.
    pub(super) context: Option<String>,
    /// Of `document`, and of `text` in an answer.
    pub(super) citations: Option<Value>,
    /// Of `thinking`; such blocks are left out.
    #[serde(rename = "thinking")]
    pub(super) _thinking: Option<String>,
    /// Of `thinking`.
    #[serde(rename = "signature")]
    pub(super) _signature: Option<String>,
    /// Of `redacted_thinking`.
    #[serde(rename = "data")]
    pub(super) _data: Option<String>,
    /// No effect: the prefix cache finds prefixes by their tokens.
    #[serde(rename = "cache_control")]
    pub(super) _cache_control: Option<Value>,
    /// Fields of other types. The check refuses the type first.
    #[serde(flatten)]
    pub(super) other: Map<String, Value>,
}

/// What a document holds.
#[derive(Debug, Deserialize)]
pub(super) struct Source {
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// Of `text`.
    pub(super) data: Option<String>,
    /// Of `content`.
    pub(super) content: Option<TextOr<Vec<Block>>>,
    /// Of `text`; no effect.
    #[serde(rename = "media_type")]
    pub(super) _media_type: Option<String>,
    /// Fields of other types. The check refuses the type first.
    #[serde(flatten)]
    pub(super) other: Map<String, Value>,
}

/// A tool.
#[derive(Debug, Deserialize)]
pub(super) struct ToolBody {
    /// `custom` or absent; others are tools that Anthropic runs.
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) name: String,
    pub(super) description: Option<String>,
    pub(super) input_schema: Option<Value>,
    pub(super) strict: Option<bool>,
    /// No effect: the prefix cache finds prefixes by their tokens.
    #[serde(rename = "cache_control")]
    pub(super) _cache_control: Option<Value>,
    /// Fields of other types. The check refuses the type first.
    #[serde(flatten)]
    pub(super) other: Map<String, Value>,
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
    #[serde(flatten)]
    pub(super) _other: NoOther,
}

/// Whether the answer shows its thinking.
#[derive(Debug, Deserialize)]
pub(super) struct ThinkingBody {
    /// `enabled`, `adaptive` or `disabled`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// No effect: a model thinks as long as it does, within `max_tokens`.
    #[serde(rename = "budget_tokens")]
    pub(super) _budget_tokens: Option<u64>,
    /// `omitted` leaves the thinking out.
    pub(super) display: Option<String>,
    #[serde(flatten)]
    pub(super) _other: NoOther,
}
