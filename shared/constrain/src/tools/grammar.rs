//! Makes grammars of answers that call tools, if a call is required or its arguments must match their schema.

use baton_protocol::{Markup, Tool, ToolChoice, ToolUse};
use serde_json::{Value, json};

use crate::{ConstraintError, Grammar, compact};

/// The most calls in an answer that must call a tool.
const CALLS_MAX: usize = 8;

/// Returns the grammar of an answer that calls tools as required, or `None` if the answer may be any text.
///
/// # Errors
/// [`ConstraintError::NotASchema`] if the parameters of a tool are not an object.
pub fn grammar(markup: Markup, tools: &ToolUse) -> Result<Option<Grammar>, ConstraintError> {
    let forced = |tool: &&Tool| match &tools.choice {
        ToolChoice::Named(name) => tool.name == *name,
        ToolChoice::Auto | ToolChoice::Required => true,
    };
    let callable: Vec<&Tool> = tools.tools.iter().filter(forced).collect();
    let free = tools.choice == ToolChoice::Auto;
    if free && !callable.iter().any(|tool| tool.strict) {
        return Ok(None);
    }
    let several = tools.parallel && !matches!(tools.choice, ToolChoice::Named(_));
    let mut text = match (free, markup) {
        (false, _) => start(markup, several).to_owned(),
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
        let schema = if tool.strict || !free {
            compact(&tool.parameters)?
        } else {
            compact(&json!({ "type": "object" }))?
        };
        text.push_str(&format!("arguments_{at}: %json {schema}\n"));
    }
    Ok(Some(Grammar::Lark(text)))
}

/// Lazy: the shortest text that ends with the tag. The text at the end of the answer contains no tag.
const FREE_TEXT: &str = "lead[lazy]: /(.|\\n)*/ \"<tool_call>\"\n\
    rest: REST\nREST: /(.|\\n)*/ & ~/(.|\\n)*<tool_call>(.|\\n)*/\n";

fn start(markup: Markup, several: bool) -> String {
    let between = match markup {
        Markup::Tagged => "\\n",
        Markup::Bare => "; ",
    };
    if several {
        format!("start: call (\"{between}\" call){{0,{}}}\n", CALLS_MAX - 1)
    } else {
        "start: call\n".to_owned()
    }
}

/// Returns a literal of the grammar; its escapes are JSON's.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
