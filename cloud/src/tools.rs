//! Tools: what a model may call, how its template says so, and how calls look in what it writes.
//!
//! Three forms: that of Hermes and Qwen (`<tool_call>` around a JSON object), that of Llama 3 (a bare JSON object), and,
//! for templates that know no tools, our own, which tells the model in the system message to write Hermes's.
//! Never: runs anything. Always: the same tools and messages give the same prompt.

mod grammar;
mod parse;

use baton_engine::prompt::Turn;
use baton_engine::template::ChatTemplate;
use baton_protocol::Role;
use serde_json::{Map, Value, json};

pub use self::grammar::grammar;
pub use self::parse::{ToolParser, ToolPiece};

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name: letters, digits, `_`, `-`.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON schema of its arguments, which are an object.
    pub parameters: Value,
    /// Arguments must follow the schema even where the model chooses freely to call.
    pub strict: bool,
}

/// Whether and what the model must call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// As it likes.
    Auto,
    /// At least one of the tools.
    Required,
    /// This one.
    Named(String),
}

/// The tools of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolUse {
    /// At least one.
    pub tools: Vec<Tool>,
    /// Whether one must be called.
    pub choice: ToolChoice,
    /// Several calls may stand in one answer.
    pub parallel: bool,
}

/// A call that the model made earlier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastCall {
    /// Names the call; a result refers to it.
    pub id: String,
    /// The function.
    pub name: String,
    /// Its arguments, as text.
    pub arguments: String,
}

/// A message of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who speaks.
    pub role: Role,
    /// The text.
    pub text: String,
    /// Calls of the assistant.
    pub calls: Vec<PastCall>,
    /// The call whose result this is.
    pub call_id: Option<String>,
}

impl ChatMessage {
    /// A message that is only text.
    pub fn new(role: Role, text: impl Into<String>) -> ChatMessage {
        ChatMessage { role, text: text.into(), calls: Vec::new(), call_id: None }
    }

    /// Whether a prompt of plain texts cannot hold it.
    pub fn is_about_tools(&self) -> bool {
        !self.calls.is_empty() || self.call_id.is_some()
    }
}

/// How calls look in the text of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Markup {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`.
    Tagged,
    /// `{"name": …, "parameters": …}` and nothing else, several with `;` between them.
    Bare,
}

impl Markup {
    /// The field that holds the arguments.
    fn arguments_field(self) -> &'static str {
        match self {
            Markup::Tagged => "arguments",
            Markup::Bare => "parameters",
        }
    }
}

/// How a model is told of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolForm {
    /// How it writes calls.
    pub markup: Markup,
    /// The template lays tools, calls and results out; else the system message does.
    pub by_template: bool,
}

impl ToolForm {
    /// The form that a model's template was made for.
    pub fn of(template: &ChatTemplate) -> ToolForm {
        let knows_tools = template.mentions("tools");
        if knows_tools && template.mentions("<tool_call>") {
            ToolForm { markup: Markup::Tagged, by_template: true }
        } else if knows_tools && template.mentions("ipython") {
            ToolForm { markup: Markup::Bare, by_template: true }
        } else {
            ToolForm { markup: Markup::Tagged, by_template: false }
        }
    }

    /// The messages and tools as the template is to see them.
    pub fn lay_out(self, messages: &[ChatMessage], tools: &[Tool]) -> (Vec<Turn>, Vec<Value>) {
        if self.by_template {
            (messages.iter().map(turn).collect(), tools.iter().map(definition).collect())
        } else {
            (plain_turns(messages, tools), Vec::new())
        }
    }
}

/// A tool as templates and clients know it.
fn definition(tool: &Tool) -> Value {
    let mut function = Map::new();
    function.insert("name".to_owned(), tool.name.as_str().into());
    if let Some(description) = &tool.description {
        function.insert("description".to_owned(), description.as_str().into());
    }
    function.insert("parameters".to_owned(), tool.parameters.clone());
    json!({ "type": "function", "function": function })
}

/// A message for a template that knows tools; arguments are objects there, not text.
fn turn(message: &ChatMessage) -> Turn {
    let mut turn = Turn::new(message.role.as_str(), message.text.as_str());
    if !message.calls.is_empty() {
        let call = |call: &PastCall| {
            let arguments = arguments(&call.arguments);
            json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": arguments } })
        };
        turn.fields.insert("tool_calls".to_owned(), message.calls.iter().map(call).collect());
    }
    if let Some(id) = &message.call_id {
        turn.fields.insert("tool_call_id".to_owned(), id.as_str().into());
    }
    turn
}

/// Arguments as an object where they are one, else as the text that they are.
fn arguments(text: &str) -> Value {
    serde_json::from_str::<Value>(text).ok().filter(Value::is_object).unwrap_or_else(|| text.into())
}

/// Calls and results as text, tools in the system message: for templates that know nothing of them.
fn plain_turns(messages: &[ChatMessage], tools: &[Tool]) -> Vec<Turn> {
    let mut turns: Vec<Turn> = messages.iter().map(plain_turn).collect();
    if !tools.is_empty() {
        let instructions = instructions(tools);
        match turns.first_mut() {
            Some(first) if first.role == "system" && first.text.is_empty() => first.text = instructions,
            Some(first) if first.role == "system" => {
                first.text.push_str("\n\n");
                first.text.push_str(&instructions);
            }
            _ => turns.insert(0, Turn::new("system", instructions)),
        }
    }
    turns
}

fn plain_turn(message: &ChatMessage) -> Turn {
    if message.role == Role::Tool {
        return Turn::new("user", format!("<tool_response>\n{}\n</tool_response>", message.text));
    }
    let mut text = message.text.clone();
    for call in &message.calls {
        if !text.is_empty() {
            text.push('\n');
        }
        let (name, arguments) = (Value::from(call.name.as_str()), spaced(&arguments(&call.arguments)));
        text.push_str(&format!(
            "<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"
        ));
    }
    Turn::new(message.role.as_str(), text)
}

fn instructions(tools: &[Tool]) -> String {
    let mut text = "You may call functions. To call one, write nothing but\n<tool_call>\n{\"name\": \"…\", \"arguments\": {…}}\n\
        </tool_call>\nonce for each call. Results come back in <tool_response> blocks. The functions:"
        .to_owned();
    for tool in tools {
        text.push('\n');
        text.push_str(&spaced(&definition(tool)));
    }
    text
}

/// JSON with a space after `,` and `:`, as templates and constrained answers write it.
fn spaced(value: &Value) -> String {
    let list = |items: Vec<String>, open: char, close: char| format!("{open}{}{close}", items.join(", "));
    match value {
        Value::Array(items) => list(items.iter().map(spaced).collect(), '[', ']'),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| {
                format!("{}: {}", Value::from(name.as_str()), spaced(value))
            };
            list(fields.iter().map(field).collect(), '{', '}')
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
