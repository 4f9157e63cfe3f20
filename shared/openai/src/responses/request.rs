//! A Responses request, translated to the one request of all dialects.

use baton_protocol::Role;
use serde_json::{Value, json};

use super::field;
use super::tools::{CallForms, arguments_of, choice, full_name, functions};
use super::wire::{Input, Item, ResponsesRequest, TextFormat, ToolItem};
use super::writer::{Echo, ResponsesWriter};
use crate::capabilities::Capabilities;
use crate::dialect::Dialect;
use crate::error::FieldError;
use crate::ignored::Ignored;
use crate::request::{
    NO_TOOLS, Prompt, checked_messages, is_last_turn, kind_of, parsed, text_of, translated, typed,
};
use crate::tools::{ChatMessage, PastCall, ToolChoice};
use crate::wire::{ChatCompletionRequest, Content, ResponseFormat};
use crate::writer::{Asked, Work};

/// Why a field is refused that would need an earlier response.
const NOTHING_KEPT: &str = "nothing is kept between two requests; send the whole conversation in `input`";
/// The most bytes of instructions, or of all tools, that a reply repeats. They are held as long as the answer
/// is written.
const ECHO_BYTES_MAX: usize = 64 << 10;
/// The most bytes of the metadata, as JSON.
const METADATA_BYTES_MAX: usize = 64 << 10;

/// Reads a request for a response.
///
/// # Errors
/// [`FieldError`] with the name of the wrong field.
pub fn read_responses(json: &[u8], can: &Capabilities) -> Result<Work, FieldError> {
    let (wire, mut ignored) = parsed::<ResponsesRequest>(json)?;
    refuse(&wire)?;
    let text = echoed_format(wire.text.as_ref().and_then(|text| text.format.as_ref()));
    let tools = wire.tools.unwrap_or_default();
    let has_tools = !tools.is_empty();
    let mut echo = Echo {
        instructions: wire.instructions.clone().filter(|text| text.len() <= ECHO_BYTES_MAX),
        max_output_tokens: wire.max_output_tokens.and_then(|tokens| u64::try_from(tokens).ok()),
        text,
        tools: echoed_tools(&tools),
        user: wire.user,
        metadata: metadata(wire.metadata, &mut ignored),
        ..Echo::default()
    };
    let mut forms = CallForms::new();
    let common = ChatCompletionRequest {
        model: wire.model,
        max_tokens: wire.max_output_tokens,
        temperature: wire.temperature,
        top_p: wire.top_p,
        stream: wire.stream,
        tools: Some(functions(tools, &mut forms)?),
        tool_choice: wire.tool_choice.map(choice),
        parallel_tool_calls: wire.parallel_tool_calls,
        response_format: wire
            .text
            .and_then(|text| text.format)
            .map(|format| ResponseFormat::new(format.kind, format.schema)),
        truncation: wire.truncation,
        store: wire.store,
        ..ChatCompletionRequest::default()
    };
    let instructions = wire.instructions;
    let input = wire.input;
    let request = translated(common, can, ignored, field, |ignored| {
        messages(instructions, input, can, ignored).map(Prompt::Chat)
    })?;
    echo.forms = forms;
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
    let is_null = |value: &Option<Value>| value.as_ref().is_none_or(Value::is_null);
    let rules = [
        ("previous_response_id", wire.previous_response_id.is_none(), NOTHING_KEPT),
        ("conversation", is_null(&wire.conversation), NOTHING_KEPT),
        ("prompt", is_null(&wire.prompt), "is not supported; send the text in `input`"),
    ];
    match rules.into_iter().find(|(_, fine, _)| !fine) {
        Some((name, _, message)) => Err(FieldError::new(name, message)),
        None => Ok(()),
    }
}

/// Returns the metadata that the reply repeats.
fn metadata(given: Option<Value>, ignored: &mut Ignored) -> Value {
    let given = given.unwrap_or_else(|| json!({}));
    match given.to_string().len() {
        0..=METADATA_BYTES_MAX => given,
        _ => {
            ignored.add("metadata");
            json!({})
        }
    }
}

fn echoed_tools(items: &[ToolItem]) -> Vec<Value> {
    let bytes = |item: &ToolItem| {
        let schema = item.parameters.as_ref().map_or(0, |schema| schema.to_string().len());
        schema + item.description.as_ref().map_or(0, String::len)
    };
    if items.iter().map(bytes).sum::<usize>() > ECHO_BYTES_MAX {
        return Vec::new();
    }
    let echoed = |item: &ToolItem| {
        json!({
            "type": item.kind, "name": item.name, "description": item.description,
            "parameters": item.parameters, "strict": item.strict.unwrap_or(false),
        })
    };
    items.iter().filter(|item| item.kind == "function").map(echoed).collect()
}

fn echoed_format(format: Option<&TextFormat>) -> Value {
    let mut echoed = json!({ "type": "text" });
    if let Some(format) = format {
        echoed["type"] = json!(format.kind);
        if let Some(schema) = &format.schema {
            echoed["schema"] = schema.clone();
            echoed["name"] = json!(format.name);
        }
    }
    json!({ "format": echoed })
}

fn messages(
    instructions: Option<String>,
    input: Input,
    can: &Capabilities,
    ignored: &mut Ignored,
) -> Result<Vec<ChatMessage>, FieldError> {
    let mut messages = Vec::new();
    messages.extend(instructions.map(|text| ChatMessage::new(Role::System, text)));
    match input {
        Input::Text(text) => messages.push(ChatMessage::new(Role::User, text)),
        Input::Items(items) => {
            let speakers: Vec<String> = items.iter().map(speaker).collect();
            let mut thoughts = Vec::new();
            for (at, item) in items.into_iter().enumerate() {
                let is_last = is_last_turn(speakers[at + 1..].iter().map(String::as_str));
                let place = format!("input[{at}]");
                if kind_of(&item) == "reasoning" {
                    thoughts.extend(thought(&place, typed(&place, item, ignored)?, ignored)?);
                    continue;
                }
                add(&place, item, is_last, can, &mut messages, ignored)?;
                let thoughts = std::mem::take(&mut thoughts);
                if let Some(last) = messages.last_mut().filter(|last| last.role == Role::Assistant) {
                    let all: Vec<String> = last.thinking.take().into_iter().chain(thoughts).collect();
                    last.thinking = (!all.is_empty()).then(|| all.join("\n"));
                }
            }
        }
    }
    checked_messages(messages, can, "input[].call_id", ignored)
}

/// Returns the role of an item's speaker: calls are the assistant's.
fn speaker(item: &Value) -> String {
    match kind_of(item) {
        kind if kind.ends_with("_call") => "assistant".to_owned(),
        _ => item["role"].as_str().unwrap_or_default().to_owned(),
    }
}

/// Returns the text of reasoning, or what sums it up.
fn thought(place: &str, item: Item, ignored: &mut Ignored) -> Result<Option<String>, FieldError> {
    for (name, parts) in [("content", item.content), ("summary", item.summary)] {
        let parts = parts.unwrap_or_else(|| Content::Text(String::new()));
        let text = text_of(&format!("{place}.{name}"), parts, false, ignored)?;
        if !text.is_empty() {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

/// Appends an item. Calls belong to the assistant's message before them.
fn add(
    place: &str,
    item: Value,
    is_last: bool,
    can: &Capabilities,
    messages: &mut Vec<ChatMessage>,
    ignored: &mut Ignored,
) -> Result<(), FieldError> {
    let kind = kind_of(&item).to_owned();
    let about_tools =
        ["function_call", "custom_tool_call", "function_call_output", "custom_tool_call_output"];
    if about_tools.contains(&&*kind) && !can.tools {
        return Err(FieldError::new(place, format!("{NO_TOOLS}; leave such items out")));
    }
    let missing = |name: &str| FieldError::new(format!("{place}.{name}"), "is missing");
    match kind.as_str() {
        "function_call" | "custom_tool_call" => {
            let item: Item = typed(place, item, ignored)?;
            let arguments = match (item.input, item.arguments) {
                (Some(input), _) => arguments_of(&input),
                (None, Some(Value::String(text))) => text,
                (None, Some(arguments)) => arguments.to_string(),
                (None, None) if kind == "custom_tool_call" => return Err(missing("input")),
                (None, None) => return Err(missing("arguments")),
            };
            let call = PastCall {
                id: item.call_id.ok_or_else(|| missing("call_id"))?,
                name: full_name(item.namespace.as_deref(), item.name.ok_or_else(|| missing("name"))?),
                arguments,
            };
            match messages.last_mut() {
                Some(last) if last.role == Role::Assistant => last.calls.push(call),
                _ => {
                    let message = ChatMessage::new(Role::Assistant, "");
                    messages.push(ChatMessage { calls: vec![call], ..message });
                }
            }
        }
        "function_call_output" | "custom_tool_call_output" => {
            let item: Item = typed(place, item, ignored)?;
            let output = item.output.ok_or_else(|| missing("output"))?;
            let text = text_of(&format!("{place}.output"), output, false, ignored)?;
            messages.push(ChatMessage { call_id: item.call_id, ..ChatMessage::new(Role::Tool, text) });
        }
        "message" | "" => {
            let item: Item = typed(place, item, ignored)?;
            let role = role(place, item.role.as_deref())?;
            let content = match item.content {
                Some(content) => content,
                None if is_last && role == Role::User => return Err(missing("content")),
                None => Content::Text(String::new()),
            };
            let is_last = is_last && role == Role::User;
            let text = text_of(&format!("{place}.content"), content, is_last, ignored)?;
            messages.push(ChatMessage::new(role, text));
        }
        "item_reference" => return Err(FieldError::new(place, NOTHING_KEPT)),
        kind => {
            ignored.add_at("input[]", kind);
            messages.extend(output_of(place, item, ignored)?.map(|text| ChatMessage::new(Role::User, text)));
        }
    }
    Ok(())
}

/// Returns the output of a call that the model does not know as a call, as text of the user; `None` if the
/// item has none. What is neither a text nor a part is written as JSON.
fn output_of(place: &str, mut item: Value, ignored: &mut Ignored) -> Result<Option<String>, FieldError> {
    let Some(output) = item.get_mut("output").map(Value::take) else { return Ok(None) };
    let parts = match output {
        Value::Null => return Ok(None),
        Value::Array(items) => items,
        other => vec![other],
    };
    let readable = |part: Value| match part {
        Value::Object(fields) if !fields.contains_key("type") => Value::Object(fields).to_string().into(),
        part => part,
    };
    let parts = Content::Parts(parts.into_iter().map(readable).collect());
    let text = text_of(&format!("{place}.output"), parts, false, ignored)?;
    let id = item["call_id"].as_str().or(item["id"].as_str()).unwrap_or_default();
    Ok(Some(format!("Result of the call {id}:\n{text}")))
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
