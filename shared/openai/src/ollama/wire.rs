//! The fields of requests for answers, as Ollama's clients send them.
//!
//! Only the types are checked here. A field that is not listed is taken and has no effect; [`crate::ignored`]
//! names it.

use serde::Deserialize;
use serde_json::Value;

use super::options::OptionsBody;
use crate::wire::{Content, ToolBody};

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
    pub(super) logprobs: Option<bool>,
    pub(super) top_logprobs: Option<u64>,
    pub(super) keep_alive: Option<Value>,
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
    pub(super) logprobs: Option<bool>,
    pub(super) top_logprobs: Option<u64>,
    pub(super) keep_alive: Option<Value>,
}

/// A message.
#[derive(Debug, Deserialize)]
pub(super) struct MessageBody {
    /// `system`, `user`, `assistant` or `tool`.
    pub(super) role: String,
    pub(super) content: Option<Content>,
    /// What the assistant thought before the text.
    pub(super) thinking: Option<String>,
    pub(super) images: Option<Vec<Value>>,
    pub(super) tool_calls: Option<Vec<CallBody>>,
    /// Name of the function whose result this is.
    pub(super) tool_name: Option<String>,
    /// The older name of `tool_name`.
    pub(super) name: Option<String>,
    /// Id of the call whose result this is.
    pub(super) tool_call_id: Option<String>,
}

/// A call that the assistant made.
#[derive(Debug, Deserialize)]
pub(super) struct CallBody {
    pub(super) id: Option<String>,
    pub(super) function: CalledBody,
}

/// A function and the arguments of a call.
#[derive(Debug, Deserialize)]
pub(super) struct CalledBody {
    pub(super) name: String,
    /// An object, or its JSON as text.
    pub(super) arguments: Option<Value>,
}
