//! Tools and messages: what a model may call, what it has called, and the results of its calls.
//!
//! Never: runs anything.

use baton_protocol::Role;
use serde_json::Value;

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name: letters, digits, `_`, `-`.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON schema of its arguments, which are an object.
    pub parameters: Value,
    /// Whether the arguments must match the schema even if the call is optional.
    pub strict: bool,
}

/// Whether the model must call a tool, and which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// The model must call at least one tool.
    Required,
    /// The model must call this tool.
    Named(String),
}

/// The tools of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolUse {
    /// The tools; at least one.
    pub tools: Vec<Tool>,
    /// Whether the model must call a tool.
    pub choice: ToolChoice,
    /// Whether an answer may contain several calls.
    pub parallel: bool,
}

/// A call that the model made earlier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastCall {
    /// Id of the call; its result refers to it.
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// Its arguments, as text.
    pub arguments: String,
}

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
}

impl ChatMessage {
    /// Makes a message of text only.
    pub fn new(role: Role, text: impl Into<String>) -> ChatMessage {
        ChatMessage { role, text: text.into(), calls: Vec::new(), call_id: None }
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

/// How calls look in the text of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Markup {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`.
    Tagged,
    /// `{"name": …, "parameters": …}` as the whole answer; several calls are separated by `;`.
    Bare,
}

impl Markup {
    /// Returns the name of the field with the arguments.
    pub fn arguments_field(self) -> &'static str {
        match self {
            Markup::Tagged => "arguments",
            Markup::Bare => "parameters",
        }
    }
}
