//! Tools and forms of answers: what a model may call, what it has called, and which texts it may write.
//!
//! Never: runs anything, or knows how a model is told of tools.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::request::{RequestError, check_len, check_name, limits};

/// What a function's name may be.
pub const TOOL_NAME_FORM: &str = "1 to 128 letters, digits, `_`, `-`, `.`, `:` or `/`";

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// Its name, of the form [`TOOL_NAME_FORM`].
    pub name: String,
    /// What it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON schema of its arguments, which are an object.
    pub parameters: Value,
    /// Whether the arguments must match the schema even if the call is optional.
    #[serde(default)]
    pub strict: bool,
}

/// Whether the model must call a tool, and which.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// The model must call at least one tool.
    Required,
    /// The model must call this tool.
    Named(String),
}

/// The tools of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolUse {
    /// The tools; at least one.
    #[serde(rename = "functions")]
    pub tools: Vec<Tool>,
    /// Whether the model must call a tool.
    #[serde(default)]
    pub choice: ToolChoice,
    /// Whether an answer may contain several calls.
    #[serde(default)]
    pub parallel: bool,
}

/// A call that the model made earlier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PastCall {
    /// Id of the call; its result refers to it.
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// Its arguments, as text.
    pub arguments: String,
}

/// The form that an answer must have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerFormat {
    /// Any text.
    #[default]
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON that matches this schema.
    JsonSchema(Value),
}

impl AnswerFormat {
    /// Returns whether any text has the form.
    pub fn is_text(&self) -> bool {
        *self == Self::Text
    }
}

/// How calls look in the text of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

impl ToolUse {
    /// Returns the bytes of all names, descriptions and schemas.
    pub(crate) fn text_bytes(&self) -> usize {
        self.tools.iter().map(Tool::text_bytes).sum()
    }

    /// Checks names, numbers of items, and that the tool that must be called is there.
    pub(crate) fn check(&self) -> Result<(), RequestError> {
        check_len("tools.functions", self.tools.len(), limits::TOOLS_MAX)?;
        if self.tools.is_empty() {
            return Err(RequestError::Empty { field: "tools.functions".to_owned() });
        }
        let mut names = BTreeSet::new();
        for (at, tool) in self.tools.iter().enumerate() {
            tool.check(at)?;
            if !names.insert(tool.name.as_str()) {
                let field = format!("tools.functions[{at}].name");
                return Err(RequestError::Form { field, want: "different from earlier names" });
            }
        }
        match &self.choice {
            ToolChoice::Named(name) if !names.contains(name.as_str()) => {
                Err(RequestError::Form { field: "tools.choice".to_owned(), want: "the name of a function" })
            }
            _ => Ok(()),
        }
    }
}

impl Tool {
    /// Returns whether a function can be called so: it has the form [`TOOL_NAME_FORM`].
    pub fn is_name(name: &str) -> bool {
        let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-' | b'.' | b':' | b'/');
        (1..=limits::TOOL_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits)
    }

    fn text_bytes(&self) -> usize {
        let described = self.description.as_ref().map_or(0, String::len);
        self.name.len() + described + self.parameters.to_string().len()
    }

    fn check(&self, at: usize) -> Result<(), RequestError> {
        if !Tool::is_name(&self.name) {
            let field = format!("tools.functions[{at}].name");
            return Err(RequestError::Form { field, want: TOOL_NAME_FORM });
        }
        if !self.parameters.is_object() {
            let field = format!("tools.functions[{at}].parameters");
            return Err(RequestError::Form { field, want: "an object" });
        }
        Ok(())
    }
}

impl PastCall {
    pub(crate) fn text_bytes(&self) -> usize {
        self.id.len() + self.name.len() + self.arguments.len()
    }

    pub(crate) fn check(&self, field: &str) -> Result<(), RequestError> {
        check_name(&format!("{field}.id"), &self.id)?;
        check_name(&format!("{field}.name"), &self.name)
    }
}

impl AnswerFormat {
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Self::Text | Self::JsonObject => 0,
            Self::JsonSchema(schema) => schema.to_string().len(),
        }
    }
}
