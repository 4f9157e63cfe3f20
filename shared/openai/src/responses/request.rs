//! A Responses request, translated to the one request of all dialects.

use baton_protocol::Role;
use serde_json::{Map, Value, json};

use super::field;
use super::wire::{
    ChosenFunction, FunctionChoice, FunctionItem, Input, Item, ItemText, ResponsesRequest, TextFormat,
};
use super::writer::{Echo, ResponsesWriter};
use crate::capabilities::Capabilities;
use crate::dialect::Dialect;
use crate::error::FieldError;
use crate::request::{NO_TOOLS, Prompt, checked_messages, parsed, translated};
use crate::tools::{ChatMessage, PastCall, ToolChoice};
use crate::wire::unknown::NoOther;
use crate::wire::{
    ChatCompletionRequest, FunctionBody, FunctionName, NamedChoice, NamedSchema, ResponseFormat, ToolBody,
    ToolChoiceBody,
};
use crate::writer::{Asked, Work};

/// The only thing that may be asked for beside the answer. It has no effect.
const ENCRYPTED: &str = "reasoning.encrypted_content";
/// Why a field is refused that would need an earlier response.
const NOTHING_KEPT: &str = "nothing is kept between two requests; send the whole conversation in `input`";
/// The most bytes of instructions, or of all tools, that a reply repeats. They are held as long as the answer
/// is written.
const ECHO_BYTES_MAX: usize = 64 << 10;
/// The most bytes of the metadata, as JSON.
const METADATA_BYTES_MAX: usize = 64 << 10;
/// What a model does whose client does not ask for more or less.
const USUAL: &str = "medium";

/// Reads a request for a response.
///
/// # Errors
/// [`FieldError`] with the name of the wrong field.
pub fn read_responses(json: &[u8], can: &Capabilities) -> Result<Work, FieldError> {
    let wire: ResponsesRequest = parsed(json)?;
    refuse(&wire)?;
    let text = echoed_format(wire.text.as_ref().and_then(|text| text.format.as_ref()));
    let tools = wire.tools.unwrap_or_default();
    let has_tools = !tools.is_empty();
    let mut echo = Echo {
        instructions: wire.instructions.clone().filter(|text| text.len() <= ECHO_BYTES_MAX),
        max_output_tokens: wire.max_output_tokens,
        text,
        tools: echoed_tools(&tools),
        user: wire.user,
        metadata: metadata(wire.metadata)?,
        ..Echo::default()
    };
    let tools = tools.into_iter().enumerate().map(|(at, item)| tool(at, item));
    let common = ChatCompletionRequest {
        model: wire.model,
        max_tokens: wire.max_output_tokens,
        temperature: wire.temperature,
        top_p: wire.top_p,
        stream: wire.stream,
        tools: Some(tools.collect::<Result<Vec<_>, _>>()?),
        tool_choice: wire.tool_choice.map(choice).transpose()?,
        parallel_tool_calls: wire.parallel_tool_calls,
        response_format: wire.text.and_then(|text| text.format).map(format).transpose()?,
        truncation: wire.truncation,
        store: wire.store,
        ..ChatCompletionRequest::default()
    };
    let messages = messages(wire.instructions, wire.input, can);
    let request =
        translated(common, can, || Ok(Prompt::Chat(messages?))).map_err(|err| err.renamed(field))?;
    echo.temperature = f64::from(request.sampling.temperature);
    echo.top_p = request.sampling.top_p.map_or(1.0, f64::from);
    echo.truncation = if request.shorten { "auto" } else { "disabled" };
    echo.parallel = request.tools.as_ref().is_none_or(|tools| tools.parallel);
    echo.tool_choice = match request.tools.as_ref().map(|tools| &tools.choice) {
        Some(ToolChoice::Required) => json!("required"),
        Some(ToolChoice::Named(name)) => json!({ "type": "function", "name": name }),
        Some(ToolChoice::Auto) => json!("auto"),
        None => json!(if has_tools { "none" } else { "auto" }),
    };
    Ok(Asked::new(request, Dialect::OpenAi, move |facts| Box::new(ResponsesWriter::new(facts, echo))).into())
}

fn refuse(wire: &ResponsesRequest) -> Result<(), FieldError> {
    let effort = wire.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
    let verbosity = wire.text.as_ref().and_then(|text| text.verbosity.as_deref());
    let is_usual = |word: Option<&str>| word.is_none_or(|word| word == USUAL);
    let is_null = |value: &Option<Value>| value.as_ref().is_none_or(Value::is_null);
    let includes = wire.include.iter().flatten().all(|what| what == ENCRYPTED);
    let rules = [
        ("previous_response_id", wire.previous_response_id.is_none(), NOTHING_KEPT),
        ("conversation", is_null(&wire.conversation), NOTHING_KEPT),
        ("background", wire.background != Some(true), "is not supported; the answer comes in the reply"),
        ("prompt", is_null(&wire.prompt), "is not supported; send the text in `input`"),
        ("include", includes, "only `reasoning.encrypted_content` is known"),
        ("top_logprobs", wire.top_logprobs.is_none_or(|top| top == 0), "log probabilities are not supported"),
        ("max_tool_calls", wire.max_tool_calls.is_none(), "is not supported; only you call functions"),
        ("reasoning.effort", is_usual(effort), "only `medium` is supported: the model thinks as it does"),
        ("text.verbosity", is_usual(verbosity), "only `medium` is supported"),
        ("stream_options", wire.stream_options.is_none() || wire.stream == Some(true), "needs `stream`"),
    ];
    match rules.into_iter().find(|(_, fine, _)| !fine) {
        Some((name, _, message)) => Err(FieldError::new(name, message)),
        None => Ok(()),
    }
}

fn metadata(given: Option<Value>) -> Result<Value, FieldError> {
    let given = given.unwrap_or_else(|| json!({}));
    match given.to_string().len() {
        0..=METADATA_BYTES_MAX => Ok(given),
        bytes => {
            let message = format!("has {bytes} bytes, at most {METADATA_BYTES_MAX} are allowed");
            Err(FieldError::new("metadata", message))
        }
    }
}

fn echoed_tools(items: &[FunctionItem]) -> Vec<Value> {
    let bytes = |item: &FunctionItem| {
        let schema = item.parameters.as_ref().map_or(0, |schema| schema.to_string().len());
        schema + item.description.as_ref().map_or(0, String::len)
    };
    if items.iter().map(bytes).sum::<usize>() > ECHO_BYTES_MAX {
        return Vec::new();
    }
    let echoed = |item: &FunctionItem| {
        json!({
            "type": item.kind, "name": item.name, "description": item.description,
            "parameters": item.parameters, "strict": item.strict.unwrap_or(false),
        })
    };
    items.iter().map(echoed).collect()
}

fn echoed_format(format: Option<&TextFormat>) -> Value {
    let mut echoed = json!({ "type": "text" });
    if let Some(format) = format {
        echoed["type"] = json!(format.kind);
        if let Some(schema) = &format.schema {
            echoed["schema"] = schema.clone();
            echoed["name"] = json!(format._name);
        }
    }
    json!({ "format": echoed })
}

fn tool(at: usize, item: FunctionItem) -> Result<ToolBody, FieldError> {
    let field = |name: &str| format!("tools[{at}].{name}");
    if item.kind != "function" {
        let message = "only `function` is supported: this service runs no tools";
        return Err(FieldError::new(field("type"), message));
    }
    no_other(&format!("tools[{at}]"), &item.other)?;
    let name = item.name.ok_or_else(|| FieldError::new(field("name"), "is missing"))?;
    let FunctionItem { description, parameters, strict, .. } = item;
    let function = FunctionBody { name, description, parameters, strict, _other: NoOther };
    Ok(ToolBody { kind: item.kind, function: Some(function), _other: NoOther })
}

fn choice(choice: FunctionChoice) -> Result<ToolChoiceBody, FieldError> {
    match choice {
        FunctionChoice::Word(word) => Ok(ToolChoiceBody::Word(word)),
        FunctionChoice::Named(ChosenFunction { kind, name, other }) => {
            if kind == "function" {
                no_other("tool_choice", &other)?;
            }
            let function = name.map(|name| FunctionName { name, _other: NoOther });
            Ok(ToolChoiceBody::Named(NamedChoice { kind, function, _other: NoOther }))
        }
    }
}

fn format(format: TextFormat) -> Result<ResponseFormat, FieldError> {
    let is_schema = format.kind == "json_schema";
    if !is_schema && format.schema.is_some() {
        return Err(FieldError::new("text.format.schema", "needs `type` to be `json_schema`"));
    }
    let named = is_schema.then(|| NamedSchema {
        _name: None,
        _description: None,
        schema: format.schema,
        _strict: None,
        _other: NoOther,
    });
    Ok(ResponseFormat { kind: format.kind, json_schema: named, _other: NoOther })
}

fn messages(
    instructions: Option<String>,
    input: Input,
    can: &Capabilities,
) -> Result<Vec<ChatMessage>, FieldError> {
    let mut messages = Vec::new();
    messages.extend(instructions.map(|text| ChatMessage::new(Role::System, text)));
    match input {
        Input::Text(text) => messages.push(ChatMessage::new(Role::User, text)),
        Input::Items(items) => {
            for (at, item) in items.into_iter().enumerate() {
                add(&format!("input[{at}]"), item, can, &mut messages)?;
            }
        }
    }
    checked_messages(messages, can)
}

/// Appends an item. Calls belong to the assistant's message before them.
fn add(
    place: &str,
    item: Item,
    can: &Capabilities,
    messages: &mut Vec<ChatMessage>,
) -> Result<(), FieldError> {
    let kind = item.kind.as_deref().unwrap_or("message");
    let missing = |name: &str| FieldError::new(format!("{place}.{name}"), "is missing");
    if matches!(kind, "function_call" | "function_call_output") && !can.tools {
        return Err(FieldError::new(place, format!("{NO_TOOLS}; leave such items out")));
    }
    match kind {
        "message" => {
            no_other(place, &item.other)?;
            let role = role(place, item.role.as_deref())?;
            let content = item.content.ok_or_else(|| missing("content"))?;
            messages.push(ChatMessage::new(role, text(&format!("{place}.content"), content)?));
        }
        "function_call" => {
            no_other(place, &item.other)?;
            let call = PastCall {
                id: item.call_id.ok_or_else(|| missing("call_id"))?,
                name: item.name.ok_or_else(|| missing("name"))?,
                arguments: item.arguments.ok_or_else(|| missing("arguments"))?,
            };
            match messages.last_mut() {
                Some(last) if last.role == Role::Assistant => last.calls.push(call),
                _ => {
                    let message = ChatMessage::new(Role::Assistant, "");
                    messages.push(ChatMessage { calls: vec![call], ..message });
                }
            }
        }
        "function_call_output" => {
            no_other(place, &item.other)?;
            let id = item.call_id.ok_or_else(|| missing("call_id"))?;
            let output = item.output.ok_or_else(|| missing("output"))?;
            let message = ChatMessage::new(Role::Tool, text(&format!("{place}.output"), output)?);
            messages.push(ChatMessage { call_id: Some(id), ..message });
        }
        "reasoning" => (),
        "item_reference" => return Err(FieldError::new(place, NOTHING_KEPT)),
        _ => {
            let message = "only items of type `message`, `function_call`, `function_call_output` and \
                `reasoning` are supported";
            return Err(FieldError::new(format!("{place}.type"), message));
        }
    }
    Ok(())
}

fn role(place: &str, role: Option<&str>) -> Result<Role, FieldError> {
    match role {
        Some("system" | "developer") => Ok(Role::System),
        Some("user") => Ok(Role::User),
        Some("assistant") => Ok(Role::Assistant),
        Some(_) => {
            let want = "must be `system`, `developer`, `user` or `assistant`";
            Err(FieldError::new(format!("{place}.role"), want))
        }
        None => Err(FieldError::new(format!("{place}.role"), "is missing")),
    }
}

fn text(place: &str, content: ItemText) -> Result<String, FieldError> {
    let parts = match content {
        ItemText::Text(text) => return Ok(text),
        ItemText::Parts(parts) => parts,
    };
    let mut joined = String::new();
    for (at, part) in parts.into_iter().enumerate() {
        let place = format!("{place}[{at}]");
        match (part.kind.as_str(), part.text) {
            ("input_text" | "output_text", Some(text)) => {
                no_other(&place, &part.other)?;
                joined.push_str(&text);
            }
            ("input_text" | "output_text", None) => {
                return Err(FieldError::new(format!("{place}.text"), "is missing"));
            }
            _ => {
                let message = "only parts of type `input_text` and `output_text` are supported";
                return Err(FieldError::new(place, message));
            }
        }
    }
    Ok(joined)
}

/// Refuses a field that an object of this type does not have, unless it is null.
fn no_other(place: &str, other: &Map<String, Value>) -> Result<(), FieldError> {
    match other.iter().find(|(_, value)| !value.is_null()) {
        Some((name, _)) => {
            let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
            Err(FieldError::new(format!("{place}.{name}"), "is not supported"))
        }
        None => Ok(()),
    }
}
