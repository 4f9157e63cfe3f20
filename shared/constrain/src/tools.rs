//! Describes tools to a model: by its template, or in the system message.
//!
//! Three forms: that of Hermes and Qwen (`<tool_call>` around a JSON object), that of Llama 3 (a bare JSON
//! object), and our own for templates without tools. In our own form, the system message tells the model to
//! write calls like Hermes. Never: runs anything. Always: the same tools and messages give the same prompt.

mod grammar;

use baton_engine::prompt::{
    Prompt, PromptError, PromptSegment, Turn, TurnText, assemble, assemble_with_tools,
};
use baton_engine::template::ChatTemplate;
use baton_engine::tokenizer::Tokenizer;
use baton_protocol::{Markup, PastCall, Role, Segment, Tool};
use serde_json::{Map, Value, json};

pub use self::grammar::grammar;
pub(crate) use self::grammar::is_free;

/// Marks of calls that are not read here: those of Qwen3-Coder, GLM, MiniMax and Apriel. A model that was
/// told of tools by such a template would write calls that come back as text.
const NOT_READ: [&str; 4] = ["<function=", "<arg_key>", "<invoke name=", "<tool_calls>"];

/// How tools are described to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolForm {
    /// How the model writes calls.
    pub markup: Markup,
    /// Whether the template formats tools, calls and results; if not, they are formatted here as text.
    pub by_template: bool,
}

impl ToolForm {
    /// Returns the form that a model's template was made for, if its calls can be read here; else our own.
    pub fn of(template: &ChatTemplate) -> ToolForm {
        let is_read = !NOT_READ.iter().any(|mark| template.mentions(mark));
        let knows_tools = template.mentions("tools") && is_read;
        if knows_tools && template.mentions("<tool_call>") {
            ToolForm { markup: Markup::Tagged, by_template: true }
        } else if knows_tools && template.mentions("ipython") {
            ToolForm { markup: Markup::Bare, by_template: true }
        } else {
            ToolForm { markup: Markup::Tagged, by_template: false }
        }
    }

    /// Returns the messages and tools in the form that the template expects. The turns have the segments in
    /// their order.
    pub fn lay_out(self, segments: &[Segment], tools: &[Tool]) -> (Vec<Turn>, Vec<Value>) {
        let messages = messages(segments);
        if self.by_template {
            (messages.map(turn).collect(), tools.iter().map(definition).collect())
        } else {
            (plain_turns(messages, tools), Vec::new())
        }
    }
}

/// Returns the prompt of a conversation, with tools or without. It ends at the beginning of the answer, and
/// knows the tokens of each segment.
///
/// # Errors
/// [`PromptError`] if the template refuses the messages.
pub fn prompt(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    segments: &[Segment],
    tools: &[Tool],
) -> Result<Prompt, PromptError> {
    if tools.is_empty() && !segments.iter().any(Segment::is_about_tools) {
        let parts: Vec<PromptSegment<'_>> = segments
            .iter()
            .map(|segment| PromptSegment { role: segment.role.as_str(), text: &segment.text })
            .collect();
        return assemble(tokenizer, template, &parts);
    }
    let (turns, tools) = ToolForm::of(template).lay_out(segments, tools);
    assemble_with_tools(tokenizer, template, &turns, &tools, None)
}

/// Returns the segments of each message. Neighbours of one role are one message; calls end a message, and the
/// result of a call begins one.
fn messages(segments: &[Segment]) -> impl Iterator<Item = &[Segment]> {
    segments.chunk_by(|one, next| one.role == next.role && one.calls.is_empty() && next.call_id.is_none())
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
fn turn(message: &[Segment]) -> Turn {
    let mut turn = text_turn(message[0].role.as_str(), message);
    let calls = calls(message);
    if !calls.is_empty() {
        let call = |call: &PastCall| {
            let arguments = arguments(&call.arguments);
            json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": arguments } })
        };
        turn.fields.insert("tool_calls".to_owned(), calls.iter().map(call).collect());
    }
    if let Some(id) = &message[0].call_id {
        turn.fields.insert("tool_call_id".to_owned(), id.as_str().into());
    }
    turn
}

/// Makes a message of the segments' texts.
fn text_turn(role: &str, message: &[Segment]) -> Turn {
    let text = |segment: &Segment| TurnText { text: segment.text.clone(), is_segment: true };
    Turn { role: role.to_owned(), texts: message.iter().map(text).collect(), fields: Map::new() }
}

/// Returns the calls of a message.
fn calls(message: &[Segment]) -> &[PastCall] {
    message.last().map_or(&[], |last| &last.calls)
}

/// Returns arguments as a JSON object if they are one, else as text.
fn arguments(text: &str) -> Value {
    serde_json::from_str::<Value>(text).ok().filter(Value::is_object).unwrap_or_else(|| text.into())
}

/// Writes calls and results as text, and tools into the system message, for templates that do not know them.
fn plain_turns<'a>(messages: impl Iterator<Item = &'a [Segment]>, tools: &[Tool]) -> Vec<Turn> {
    let mut turns: Vec<Turn> = messages.map(plain_turn).collect();
    if !tools.is_empty() {
        let instructions = instructions(tools);
        match turns.first_mut() {
            Some(first) if first.role == "system" => {
                let is_empty = first.texts.iter().all(|part| part.text.is_empty());
                first.push(if is_empty { instructions } else { format!("\n\n{instructions}") });
            }
            _ => {
                let mut system = Turn { role: "system".to_owned(), ..Turn::default() };
                system.push(instructions);
                turns.insert(0, system);
            }
        }
    }
    turns
}

fn plain_turn(message: &[Segment]) -> Turn {
    if message[0].role == Role::Tool {
        let mut turn = Turn { role: "user".to_owned(), ..Turn::default() };
        turn.push("<tool_response>\n");
        turn.texts.extend(text_turn("", message).texts);
        turn.push("\n</tool_response>");
        return turn;
    }
    let mut turn = text_turn(message[0].role.as_str(), message);
    let mut is_empty = turn.texts.iter().all(|part| part.text.is_empty());
    for call in calls(message) {
        let (name, arguments) = (Value::from(call.name.as_str()), spaced(&arguments(&call.arguments)));
        let lead = if is_empty { "" } else { "\n" };
        turn.push(format!(
            "{lead}<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"
        ));
        is_empty = false;
    }
    turn
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
