//! The fields of requests for answers, as Ollama's clients send them.
//!
//! Only the types are checked here. Fields that have no effect say so. Always: a field that is not listed is
//! refused by name, at any depth, unless it is null.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::options::OptionsBody;
use crate::wire::ToolBody;
use crate::wire::unknown::NoOther;

/// A request of `/api/chat`.
#[derive(Debug, Deserialize)]
pub(super) struct ChatBody {
    pub(super) model: Option<String>,
    pub(super) messages: Option<Vec<MessageBody>>,
    pub(super) tools: Option<Vec<ToolBody>>,
    pub(super) format: Option<Value>,
    pub(super) options: Option<OptionsBody>,
    pub(super) stream: Option<bool>,
    pub(super) think: Option<Value>,
    pub(super) truncate: Option<bool>,
    pub(super) shift: Option<bool>,
    pub(super) logprobs: Option<bool>,
    pub(super) top_logprobs: Option<u64>,
    pub(super) keep_alive: Option<Value>,
    #[serde(flatten)]
    pub(super) _other: NoOther,
}

/// A request of `/api/generate`.
#[derive(Debug, Deserialize)]
pub(super) struct GenerateBody {
    pub(super) model: Option<String>,
    pub(super) prompt: Option<String>,
    pub(super) system: Option<String>,
    pub(super) suffix: Option<String>,
    pub(super) template: Option<String>,
    pub(super) context: Option<Vec<Value>>,
    pub(super) images: Option<Vec<Value>>,
    pub(super) raw: Option<bool>,
    pub(super) format: Option<Value>,
    pub(super) options: Option<OptionsBody>,
    pub(super) stream: Option<bool>,
    pub(super) think: Option<Value>,
    pub(super) truncate: Option<bool>,
    pub(super) shift: Option<bool>,
    pub(super) logprobs: Option<bool>,
    pub(super) top_logprobs: Option<u64>,
    pub(super) keep_alive: Option<Value>,
    #[serde(flatten)]
    pub(super) _other: NoOther,
}

/// A message.
#[derive(Debug, Deserialize)]
pub(super) struct MessageBody {
    /// `system`, `user`, `assistant` or `tool`.
    pub(super) role: String,
    pub(super) content: Option<String>,
    pub(super) images: Option<Vec<Value>>,
    pub(super) tool_calls: Option<Vec<CallBody>>,
    /// Name of the function whose result this is.
    pub(super) tool_name: Option<String>,
    /// Id of the call whose result this is.
    pub(super) tool_call_id: Option<String>,
    /// Thinking of an earlier answer; it is left out of the prompt.
    #[serde(rename = "thinking")]
    pub(super) _thinking: Option<String>,
    #[serde(flatten)]
    pub(super) _other: NoOther,
}

/// A call that the assistant made.
#[derive(Debug, Deserialize)]
pub(super) struct CallBody {
    pub(super) id: Option<String>,
    pub(super) function: CalledBody,
    /// No effect.
    #[serde(rename = "type")]
    pub(super) _kind: Option<String>,
    #[serde(flatten)]
    pub(super) _other: NoOther,
}

/// A function and the arguments of a call.
#[derive(Debug, Deserialize)]
pub(super) struct CalledBody {
    pub(super) name: String,
    #[serde(default)]
    pub(super) arguments: Map<String, Value>,
    /// No effect.
    #[serde(rename = "index")]
    pub(super) _index: Option<u64>,
    #[serde(flatten)]
    pub(super) _other: NoOther,
}
