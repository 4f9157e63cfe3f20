//! Checks the tools, and the form that the answer must have.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::AnswerFormat;
use crate::error::FieldError;
use crate::tools::{Tool, ToolChoice, ToolUse};
use crate::wire::{FunctionBody, ResponseFormat, ToolBody, ToolChoiceBody};

const TOOLS_MAX: usize = 128;
const NAME_BYTES_MAX: usize = 64;

/// Returns the tools that the answer may call, or `None` if there are none or none may be called.
pub(super) fn tool_use(
    tools: Option<Vec<ToolBody>>,
    choice: Option<ToolChoiceBody>,
    parallel: Option<bool>,
) -> Result<Option<ToolUse>, FieldError> {
    let tools = tools.unwrap_or_default();
    if tools.len() > TOOLS_MAX {
        return Err(FieldError::new(
            "tools",
            format!("has {} items, at most {TOOLS_MAX} are allowed", tools.len()),
        ));
    }
    let mut names = BTreeSet::new();
    let mut checked = Vec::with_capacity(tools.len());
    for (at, tool) in tools.into_iter().enumerate() {
        let tool = function(at, tool)?;
        if !names.insert(tool.name.clone()) {
            return Err(FieldError::new(
                format!("tools[{at}].function.name"),
                "is the name of an earlier tool",
            ));
        }
        checked.push(tool);
    }
    let choice = match choice {
        None => Some(ToolChoice::Auto),
        Some(ToolChoiceBody::Word(word)) => match word.as_str() {
            "auto" => Some(ToolChoice::Auto),
            "none" => None,
            "required" => Some(ToolChoice::Required),
            _ => {
                let want = "must be `auto`, `none`, `required` or a function";
                return Err(FieldError::new("tool_choice", want));
            }
        },
        Some(ToolChoiceBody::Named(named)) => {
            if named.kind != "function" {
                return Err(FieldError::new("tool_choice.type", "only `function` is supported"));
            }
            let name =
                named.function.ok_or_else(|| FieldError::new("tool_choice.function", "is missing"))?.name;
            if !names.contains(&name) {
                return Err(FieldError::new("tool_choice.function.name", "is none of the tools"));
            }
            Some(ToolChoice::Named(name))
        }
    };
    match choice {
        Some(ToolChoice::Required) if checked.is_empty() => {
            Err(FieldError::new("tool_choice", "needs `tools`"))
        }
        Some(choice) if !checked.is_empty() => {
            // If a call is required, one is enough unless more are asked for.
            let parallel = parallel.unwrap_or(choice == ToolChoice::Auto);
            Ok(Some(ToolUse { tools: checked, choice, parallel }))
        }
        _ => Ok(None),
    }
}

fn function(at: usize, tool: ToolBody) -> Result<Tool, FieldError> {
    let field = |name: &str| format!("tools[{at}].{name}");
    if tool.kind != "function" {
        return Err(FieldError::new(field("type"), "only `function` is supported"));
    }
    let function = tool.function.ok_or_else(|| FieldError::new(field("function"), "is missing"))?;
    let FunctionBody { name, description, parameters, strict, .. } = function;
    let is_name = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-');
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_name) {
        return Err(FieldError::new(field("function.name"), "must be 1 to 64 letters, digits, `_` or `-`"));
    }
    let parameters = match parameters {
        None | Some(Value::Null) => {
            json!({ "type": "object", "properties": {}, "additionalProperties": false })
        }
        Some(schema) if schema.get("type").is_some_and(|kind| kind == "object") => schema,
        Some(_) => {
            return Err(FieldError::new(field("function.parameters"), "must be a schema of type `object`"));
        }
    };
    Ok(Tool { name, description, parameters, strict: strict.unwrap_or(false) })
}

/// Returns the form that the answer must have.
pub(super) fn format(format: Option<ResponseFormat>) -> Result<AnswerFormat, FieldError> {
    let Some(format) = format else { return Ok(AnswerFormat::Text) };
    if format.kind != "json_schema" && format.json_schema.is_some() {
        let message = "needs `type` to be `json_schema`";
        return Err(FieldError::new("response_format.json_schema", message));
    }
    match format.kind.as_str() {
        "text" => Ok(AnswerFormat::Text),
        "json_object" => Ok(AnswerFormat::JsonObject),
        "json_schema" => {
            let missing = |field| FieldError::new(field, "is missing");
            let named = format.json_schema.ok_or_else(|| missing("response_format.json_schema"))?;
            let schema = named.schema.ok_or_else(|| missing("response_format.json_schema.schema"))?;
            Ok(AnswerFormat::JsonSchema(schema))
        }
        _ => Err(FieldError::new("response_format.type", "must be `text`, `json_object` or `json_schema`")),
    }
}
