//! Grammars of answers that call tools: where a call is demanded, or its arguments must follow their schema.

use serde_json::{Value, json};

use super::{Markup, Tool, ToolChoice, ToolUse};
use crate::constrain::{ConstraintError, Grammar, compact};

/// The most calls of one answer that must call.
const CALLS_MAX: usize = 8;

/// What an answer must be, so that it calls as it was told to; none where it may be anything.
///
/// # Errors
/// [`ConstraintError::NotASchema`] where the parameters of a tool are no object.
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
        // Text of any kind until a call begins; then the call is whole.
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

/// Lazy: the shortest text that ends with the tag. What ends the answer holds no tag.
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

/// A literal of the grammar; its escapes are JSON's.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
