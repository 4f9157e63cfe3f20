//! Tools and messages: what a model may call, what it has called, and the results of its calls.
//!
//! Never: runs anything.

use baton_protocol::{Role, Segment};

pub use baton_protocol::{Markup, PastCall, Tool, ToolChoice, ToolUse};

/// A message of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// The role of the speaker.
    pub role: Role,
    /// The text.
    pub text: String,
    /// Calls that the assistant made in this message.
    pub calls: Vec<PastCall>,
    /// Id of the call whose result this message is.
    pub call_id: Option<String>,
    /// What the assistant thought before the text. No template sees it yet.
    pub thinking: Option<String>,
}

impl ChatMessage {
    /// Makes a message of text only.
    pub fn new(role: Role, text: impl Into<String>) -> ChatMessage {
        ChatMessage { role, text: text.into(), calls: Vec::new(), call_id: None, thinking: None }
    }

    /// Returns whether this message has calls or the result of one. A prompt of plain texts cannot contain
    /// it.
    pub fn is_about_tools(&self) -> bool {
        !self.calls.is_empty() || self.call_id.is_some()
    }

    /// Returns whether it has neither text nor calls.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.calls.is_empty()
    }
}

/// The message as one part of a prompt; all of it stays.
impl From<ChatMessage> for Segment {
    fn from(message: ChatMessage) -> Segment {
        let ChatMessage { role, text, calls, call_id, thinking: _ } = message;
        Segment { calls, call_id, ..Segment::fixed(role, text) }
    }
}
