//! Describes tools to a model: by its template, or in the system message.
//!
//! Three forms: that of Hermes and Qwen (`<tool_call>` around a JSON object), that of Llama 3 (a bare JSON
//! object), and our own for templates without tools. In our own form, the system message tells the model to
//! write calls like Hermes. Never: runs anything. Always: the same tools and messages give the same prompt.

mod grammar;

use baton_engine::prompt::{PromptError, PromptSegment, Turn, assemble, assemble_with_tools};
use baton_engine::template::ChatTemplate;
use baton_engine::tokenizer::{TokenId, Tokenizer};
use baton_openai::tools::Markup;
use baton_openai::{ChatMessage, PastCall, Tool};
use baton_protocol::Role;
use serde_json::{Map, Value, json};

pub use self::grammar::grammar;

/// How tools are described to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolForm {
    /// How the model writes calls.
    pub markup: Markup,
    /// Whether the template formats tools, calls and results; if not, they are formatted here as text.
    pub by_template: bool,
}

impl ToolForm {
    /// Returns the form that a model's template was made for.
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

    /// Returns the messages and tools in the form that the template expects.
    pub fn lay_out(self, messages: &[ChatMessage], tools: &[Tool]) -> (Vec<Turn>, Vec<Value>) {
        if self.by_template {
            (messages.iter().map(turn).collect(), tools.iter().map(definition).collect())
        } else {
            (plain_turns(messages, tools), Vec::new())
        }
    }
}

/// Returns the ids of a conversation, with tools or without. They end at the beginning of the answer.
///
/// # Errors
/// [`PromptError`] if the template refuses the messages.
pub fn prompt(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[ChatMessage],
    tools: &[Tool],
) -> Result<Vec<TokenId>, PromptError> {
    if tools.is_empty() && !messages.iter().any(ChatMessage::is_about_tools) {
        let parts: Vec<PromptSegment<'_>> = messages
            .iter()
            .map(|message| PromptSegment { role: message.role.as_str(), text: &message.text })
            .collect();
        return Ok(assemble(tokenizer, template, &parts)?.ids);
    }
    let (turns, tools) = ToolForm::of(template).lay_out(messages, tools);
    assemble_with_tools(tokenizer, template, &turns, &tools)
}

/// Returns a tool's definition as templates and clients know it.
fn definition(tool: &Tool) -> Value {
    let mut function = Map::new();
    function.insert("name".to_owned(), tool.name.as_str().into());
    if let Some(description) = &tool.description {
        function.insert("description".to_owned(), description.as_str().into());
    }
    function.insert("parameters".to_owned(), tool.parameters.clone());
    json!({ "type": "function", "function": function })
}

/// Makes a message for a template that knows tools. There, arguments are objects, not text.
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

/// Returns arguments as a JSON object if they are one, else as text.
fn arguments(text: &str) -> Value {
    serde_json::from_str::<Value>(text).ok().filter(Value::is_object).unwrap_or_else(|| text.into())
}

/// Writes calls and results as text, and tools into the system message, for templates that do not know them.
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

/// Writes JSON with a space after `,` and `:`, like templates and constrained answers.
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
