//! Makes grammars of answers that call tools, if a call is required or its arguments must match their schema.

use baton_protocol::{AnswerFormat, Markup, Tool, ToolChoice, ToolUse};
use serde_json::{Value, json};

use crate::form::schema;
use crate::{ConstraintError, Grammar, compact};

/// The most calls in an answer that must call a tool.
const CALLS_MAX: usize = 8;

/// Returns whether an answer is free text except for its calls.
pub(crate) fn is_free(tools: Option<&ToolUse>, format: &AnswerFormat) -> bool {
    format.is_text() && tools.is_none_or(|tools| tools.choice == ToolChoice::Auto)
}

/// Returns the grammar of an answer that calls tools as required, or `None` if the answer may be any text. An
/// answer that need not call tools and has a format is calls, or text of this format.
///
/// # Errors
/// [`ConstraintError::NotASchema`] if the parameters of a tool are not an object.
pub fn grammar(
    markup: Markup,
    tools: &ToolUse,
    format: &AnswerFormat,
) -> Result<Option<Grammar>, ConstraintError> {
    let forced = |tool: &&Tool| match &tools.choice {
        ToolChoice::Named(name) => tool.name == *name,
        ToolChoice::Auto | ToolChoice::Required => true,
    };
    let callable: Vec<&Tool> = tools.tools.iter().filter(forced).collect();
    let free = is_free(Some(tools), format);
    let is_choice = tools.choice == ToolChoice::Auto && !free;
    if free && !callable.iter().any(|tool| tool.strict) {
        return Ok(None);
    }
    if is_choice && markup == Markup::Bare {
        return Ok(Some(Grammar::Json(call_or_answer(&callable, &schema(format)))));
    }
    let several = tools.parallel && !matches!(tools.choice, ToolChoice::Named(_));
    let mut text = match (free, markup) {
        (false, _) => start(markup, several, is_choice),
        // Any text until a call begins; then the call must be complete.
        (true, Markup::Tagged) if several => "start: (lead call_body)* rest\n".to_owned() + FREE_TEXT,
        (true, Markup::Tagged) => "start: (lead call_body)? rest\n".to_owned() + FREE_TEXT,
        (true, Markup::Bare) => "start: call | rest\nrest: REST\nREST: /([^{](.|\\n)*)?/\n".to_owned(),
    };
    let (open, close) = match markup {
        Markup::Tagged => ("<tool_call>\n", "\n</tool_call>"),
        Markup::Bare => ("", ""),
    };
    if !free || markup == Markup::Bare {
        text.push_str(&format!("call: {} call_body\n", quoted(open)).replace("\"\" ", ""));
    }
    let names: Vec<String> = (0..callable.len()).map(|at| format!("tool_{at}")).collect();
    text.push_str(&format!("call_body: {}\n", names.join(" | ")));
    let field = markup.arguments_field();
    for (at, tool) in callable.iter().enumerate() {
        let lead = if free && markup == Markup::Tagged { "\n" } else { "" };
        let before = format!("{lead}{{\"name\": {}, \"{field}\": ", Value::from(tool.name.as_str()));
        let (before, after) = (quoted(&before), quoted(&format!("}}{close}")));
        text.push_str(&format!("tool_{at}: {before} arguments_{at} {after}\n"));
        let schema = if tool.strict || !(free || is_choice) {
            compact(&tool.parameters)?
        } else {
            compact(&json!({ "type": "object" }))?
        };
        text.push_str(&format!("arguments_{at}: %json {schema}\n"));
    }
    if is_choice {
        text.push_str(&format!("answer: %json {}\n", compact(&schema(format))?));
    }
    Ok(Some(Grammar::Lark(text)))
}

/// Returns the schema of one bare call, or of an answer. Both are objects, so one schema must tell them
/// apart. A call's parameters are any object: their schema's references would lead elsewhere.
fn call_or_answer(callable: &[&Tool], answer: &Value) -> Value {
    let call = |tool: &&Tool| {
        json!({
            "type": "object", "required": ["name", "parameters"], "additionalProperties": false,
            "properties": { "name": { "const": tool.name }, "parameters": { "type": "object" } },
        })
    };
    let mut whole = json!({});
    let mut answer = answer.clone();
    for definitions in ["$defs", "definitions"] {
        if let Some(moved) = answer.as_object_mut().and_then(|fields| fields.remove(definitions)) {
            whole[definitions] = moved;
        }
    }
    whole["anyOf"] = callable.iter().map(call).chain([answer]).collect();
    whole
}

/// Lazy: the shortest text that ends with the tag. The text at the end of the answer contains no tag.
const FREE_TEXT: &str = "lead[lazy]: /(.|\\n)*/ \"<tool_call>\"\n\
    rest: REST\nREST: /(.|\\n)*/ & ~/(.|\\n)*<tool_call>(.|\\n)*/\n";

fn start(markup: Markup, several: bool, is_choice: bool) -> String {
    let between = match markup {
        Markup::Tagged => "\\n",
        Markup::Bare => "; ",
    };
    let calls = match several {
        true => format!("call (\"{between}\" call){{0,{}}}", CALLS_MAX - 1),
        false => "call".to_owned(),
    };
    match is_choice {
        true => format!("start: calls | answer\ncalls: {calls}\n"),
        false => format!("start: {calls}\n"),
    }
}

/// Returns a literal of the grammar; its escapes are JSON's.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
