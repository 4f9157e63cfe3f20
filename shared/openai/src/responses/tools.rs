//! The tools of a Responses request. The model knows functions only: a custom tool is a function of one text,
//! and a function of a namespace has a longer name. Calls get their own form back in the reply.

use std::collections::BTreeMap;

use baton_protocol::limits;
use serde_json::{Value, json};

use super::wire::{ChosenFunction, FunctionChoice, ToolItem};
use crate::error::FieldError;
use crate::wire::{
    AllowedTool, AllowedTools, FunctionBody, FunctionName, ToolBody, ToolChoiceBody, ToolChoiceObject,
};

/// Between a namespace and the name of a function.
const BETWEEN_NAMES: &str = "__";
/// The only argument of a custom tool.
const INPUT: &str = "input";

/// How a call stands in the reply, if it is none of a plain function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CallForm {
    /// A call of a function of a namespace.
    Namespaced {
        /// The namespace.
        namespace: String,
        /// The name of the function within it.
        name: String,
    },
    /// A call of a custom tool.
    Custom,
}

/// The forms of calls, by the names that the model knows.
pub(super) type CallForms = BTreeMap<String, CallForm>;

/// Returns the name by which the model knows a function of a namespace: the end of both names together, if
/// they are too long.
pub(super) fn full_name(namespace: Option<&str>, name: String) -> String {
    let Some(namespace) = namespace.filter(|namespace| !namespace.is_empty()) else { return name };
    let full = format!("{namespace}{BETWEEN_NAMES}{name}");
    let start = full.len().saturating_sub(limits::TOOL_NAME_BYTES_MAX);
    full.get(start..).map(str::to_owned).unwrap_or(full)
}

/// Returns the arguments of a call of a custom tool with this text.
pub(super) fn arguments_of(input: &str) -> String {
    json!({ INPUT: input }).to_string()
}

/// Returns the text of a call of a custom tool. Arguments of another form are the text.
pub(super) fn input_of(arguments: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(arguments).ok();
    parsed.as_ref().and_then(|parsed| parsed[INPUT].as_str()).unwrap_or(arguments).to_owned()
}

/// Translates tools to functions; adds the forms of their calls. Tools of unknown types stay, without a
/// function.
pub(super) fn functions(items: Vec<ToolItem>, forms: &mut CallForms) -> Result<Vec<ToolBody>, FieldError> {
    let mut tools = Vec::with_capacity(items.len());
    for (at, item) in items.into_iter().enumerate() {
        let place = format!("tools[{at}]");
        if item.kind != "namespace" {
            tools.push(tool(&place, item, None, forms)?);
            continue;
        }
        let namespace = name(&place, item.name)?;
        for (at, item) in item.tools.unwrap_or_default().into_iter().enumerate() {
            tools.push(tool(&format!("{place}.tools[{at}]"), item, Some(&namespace), forms)?);
        }
    }
    Ok(tools)
}

fn name(place: &str, name: Option<String>) -> Result<String, FieldError> {
    name.ok_or_else(|| FieldError::new(format!("{place}.name"), "is missing"))
}

fn tool(
    place: &str,
    item: ToolItem,
    namespace: Option<&str>,
    forms: &mut CallForms,
) -> Result<ToolBody, FieldError> {
    let ToolItem { kind, name: short, description, parameters, strict, format, .. } = item;
    let function = match kind.as_str() {
        "function" => {
            let short = name(place, short)?;
            let name = full_name(namespace, short.clone());
            if let Some(namespace) = namespace {
                let namespace = namespace.to_owned();
                forms.insert(name.clone(), CallForm::Namespaced { namespace, name: short });
            }
            FunctionBody { name, description, parameters, strict }
        }
        "custom" => {
            let name = full_name(namespace, name(place, short)?);
            forms.insert(name.clone(), CallForm::Custom);
            custom(name, description, format.as_ref())
        }
        _ => return Ok(ToolBody { kind, function: None }),
    };
    Ok(ToolBody { kind: "function".to_owned(), function: Some(function) })
}

/// Returns a custom tool as a function. The grammar of its text is told to the model, not enforced.
fn custom(name: String, description: Option<String>, format: Option<&Value>) -> FunctionBody {
    let grammar = format.and_then(|format| format["definition"].as_str());
    let grammar = grammar.map(|grammar| format!("The grammar of `{INPUT}`:\n{grammar}"));
    let described: Vec<String> = description.into_iter().chain(grammar).collect();
    let parameters = json!({
        "type": "object", "properties": { INPUT: { "type": "string" } }, "required": [INPUT],
        "additionalProperties": false,
    });
    FunctionBody {
        name,
        description: (!described.is_empty()).then(|| described.join("\n\n")),
        parameters: Some(parameters),
        strict: None,
    }
}

/// Translates the choice of a tool.
pub(super) fn choice(choice: FunctionChoice) -> ToolChoiceBody {
    match choice {
        FunctionChoice::Word(word) => ToolChoiceBody::Word(word),
        FunctionChoice::Object(ChosenFunction { kind, name, mode, tools }) => {
            let kind = if kind == "custom" { "function".to_owned() } else { kind };
            let named = |name: Option<String>| name.map(|name| FunctionName { name });
            let allowed = |tools: Vec<ChosenFunction>| {
                let tools =
                    tools.into_iter().map(|tool| AllowedTool { function: named(tool.name) }).collect();
                AllowedTools { mode, tools }
            };
            let allowed_tools = tools.map(allowed);
            ToolChoiceBody::Object(ToolChoiceObject { kind, function: named(name), allowed_tools })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_become_functions_and_calls_get_their_form_back() {
        let items = json!([
            { "type": "function", "name": "shell" },
            { "type": "namespace", "name": "agents", "tools": [{ "type": "function", "name": "wait" }] },
            { "type": "custom", "name": "apply_patch", "description": "Edits.",
              "format": { "type": "grammar", "syntax": "lark", "definition": "start: /.+/" } },
            { "type": "web_search" },
        ]);
        let mut forms = CallForms::new();
        let tools = functions(serde_json::from_value(items).unwrap(), &mut forms).unwrap();
        let names: Vec<Option<&str>> =
            tools.iter().map(|tool| tool.function.as_ref().map(|function| function.name.as_str())).collect();
        assert_eq!(names, [Some("shell"), Some("agents__wait"), Some("apply_patch"), None]);
        let described = tools[2].function.as_ref().unwrap().description.as_deref().unwrap();
        assert!(described.starts_with("Edits.") && described.ends_with("start: /.+/"), "{described}");
        let namespaced = CallForm::Namespaced { namespace: "agents".into(), name: "wait".into() };
        assert_eq!(forms.get("agents__wait"), Some(&namespaced));
        assert_eq!((forms.get("apply_patch"), forms.get("shell")), (Some(&CallForm::Custom), None));
        assert_eq!(input_of(&arguments_of("a\n\"b\"")), "a\n\"b\"");
        assert_eq!(input_of("no JSON"), "no JSON");
    }
}
