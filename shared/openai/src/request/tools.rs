//! Checks the tools, and the form that the answer must have.

use std::collections::BTreeSet;

use baton_protocol::{TOOL_NAME_FORM, limits};
use serde_json::{Value, json};

use super::AnswerFormat;
use crate::error::FieldError;
use crate::ignored::Ignored;
use crate::tools::{Tool, ToolChoice, ToolUse};
use crate::wire::{FunctionBody, FunctionName, ResponseFormat, ToolBody, ToolChoiceBody};

/// The type of the tools that are called.
const FUNCTION: &str = "function";

/// Returns the tools that the answer may call, or `None` if there are none or none may be called.
pub(super) fn tool_use(
    tools: Option<Vec<ToolBody>>,
    choice: Option<ToolChoiceBody>,
    parallel: Option<bool>,
    ignored: &mut Ignored,
) -> Result<Option<ToolUse>, FieldError> {
    let tools = tools.unwrap_or_default();
    if tools.len() > limits::TOOLS_MAX {
        let message = format!("has {} items, at most {} are allowed", tools.len(), limits::TOOLS_MAX);
        return Err(FieldError::new("tools", message));
    }
    let mut names = BTreeSet::new();
    let mut checked = Vec::with_capacity(tools.len());
    for (at, tool) in tools.into_iter().enumerate() {
        if tool.kind != FUNCTION {
            // Nobody here or at the client runs such a tool.
            ignored.add(format!("tools[].{}", tool.kind));
            continue;
        }
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
        Some(ToolChoiceBody::Word(word)) => chosen("tool_choice", &word)?,
        Some(ToolChoiceBody::Object(choice)) => match choice.kind.as_str() {
            FUNCTION => Some(ToolChoice::Named(named(choice.function, &names)?)),
            "allowed_tools" => {
                let field = "tool_choice.allowed_tools";
                let allowed = choice.allowed_tools.ok_or_else(|| FieldError::new(field, "is missing"))?;
                let is_allowed = |tool: &Tool| {
                    let mut functions = allowed.tools.iter().filter_map(|tool| tool.function.as_ref());
                    functions.any(|function| function.name == tool.name)
                };
                checked.retain(is_allowed);
                chosen("tool_choice.allowed_tools.mode", allowed.mode.as_deref().unwrap_or("auto"))?
            }
            word => chosen("tool_choice.type", word)?,
        },
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

/// Returns the choice that a word makes; `None` if no tool may be called.
fn chosen(field: &str, word: &str) -> Result<Option<ToolChoice>, FieldError> {
    match word {
        "auto" => Ok(Some(ToolChoice::Auto)),
        "none" => Ok(None),
        "required" => Ok(Some(ToolChoice::Required)),
        _ => Err(FieldError::new(field, "must be `auto`, `none`, `required` or a function")),
    }
}

/// Returns the name of the function that must be called.
fn named(function: Option<FunctionName>, names: &BTreeSet<String>) -> Result<String, FieldError> {
    let name = function.ok_or_else(|| FieldError::new("tool_choice.function", "is missing"))?.name;
    match names.contains(&name) {
        true => Ok(name),
        false => Err(FieldError::new("tool_choice.function.name", "is none of the tools")),
    }
}

fn function(at: usize, tool: ToolBody) -> Result<Tool, FieldError> {
    let field = |name: &str| format!("tools[{at}].{name}");
    let function = tool.function.ok_or_else(|| FieldError::new(field("function"), "is missing"))?;
    let FunctionBody { name, description, parameters, strict } = function;
    if !Tool::is_name(&name) {
        return Err(FieldError::new(field("function.name"), format!("must be {TOOL_NAME_FORM}")));
    }
    let parameters = match parameters {
        None | Some(Value::Null) => {
            json!({ "type": "object", "properties": {}, "additionalProperties": false })
        }
        Some(schema) => of_an_object(schema).ok_or_else(|| {
            FieldError::new(field("function.parameters"), "must be a schema of type `object`")
        })?,
    };
    Ok(Tool { name, description, parameters, strict: strict.unwrap_or(false) })
}

/// Returns a schema of arguments that says that they are an object, or `None` if it says something else. A
/// schema that says it by other words than `type` stays as it is.
fn of_an_object(mut schema: Value) -> Option<Value> {
    let fields = schema.as_object_mut()?;
    let says_otherwise = ["$ref", "anyOf", "oneOf", "allOf"].iter().any(|name| fields.contains_key(*name));
    match fields.get("type") {
        None | Some(Value::Null) if says_otherwise => (),
        None | Some(Value::Null) => drop(fields.insert("type".to_owned(), json!("object"))),
        Some(Value::Array(kinds)) if kinds.iter().any(|kind| kind == "object") => {
            fields.insert("type".to_owned(), json!("object"));
        }
        Some(kind) if kind == "object" => (),
        Some(_) => return None,
    }
    Some(schema)
}

/// Returns the form that the answer must have.
pub(super) fn format(format: Option<ResponseFormat>) -> Result<AnswerFormat, FieldError> {
    let Some(format) = format else { return Ok(AnswerFormat::Text) };
    if format.kind != "json_schema" && format.json_schema.is_some() {
        let message = "needs `type` to be `json_schema`";
        return Err(FieldError::new("response_format.json_schema", message));
    }
    if format.kind == "text" && format.schema.is_some() {
        return Err(FieldError::new("response_format.schema", "needs `type` to be `json_schema`"));
    }
    match format.kind.as_str() {
        "text" => Ok(AnswerFormat::Text),
        "json_object" => Ok(format.schema.map_or(AnswerFormat::JsonObject, AnswerFormat::JsonSchema)),
        "json_schema" => {
            let missing = |field| FieldError::new(field, "is missing");
            let named = match (format.json_schema, format.schema) {
                (Some(named), schema) => named.schema.or(schema),
                (None, Some(schema)) => Some(schema),
                (None, None) => return Err(missing("response_format.json_schema")),
            };
            let schema = named.ok_or_else(|| missing("response_format.json_schema.schema"))?;
            Ok(AnswerFormat::JsonSchema(schema))
        }
        _ => Err(FieldError::new("response_format.type", "must be `text`, `json_object` or `json_schema`")),
    }
}
