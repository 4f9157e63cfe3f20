//! A Responses request, translated to the one request of all dialects.

use baton_protocol::Role;
use serde_json::{Value, json};

use super::field;
use super::tools::{CallForms, arguments_of, choice, full_name, functions};
use super::wire::{Input, Item, ItemText, ResponsesRequest, TextFormat, ToolItem};
use super::writer::{Echo, ResponsesWriter};
use crate::capabilities::Capabilities;
use crate::dialect::Dialect;
use crate::error::FieldError;
use crate::ignored::Ignored;
use crate::request::{NO_TOOLS, Prompt, Unreadable, checked_messages, is_last_turn, parsed, translated};
use crate::tools::{ChatMessage, PastCall, ToolChoice};
use crate::wire::{ChatCompletionRequest, NamedSchema, ResponseFormat};
use crate::writer::{Asked, Work};

/// Why a field is refused that would need an earlier response.
const NOTHING_KEPT: &str = "nothing is kept between two requests; send the whole conversation in `input`";
/// The most bytes of instructions, or of all tools, that a reply repeats. They are held as long as the answer
/// is written.
const ECHO_BYTES_MAX: usize = 64 << 10;
/// The most bytes of the metadata, as JSON.
const METADATA_BYTES_MAX: usize = 64 << 10;
/// Between two parts of a text.
const BETWEEN_PARTS: &str = "\n";

/// Reads a request for a response.
///
/// # Errors
/// [`FieldError`] with the name of the wrong field.
pub fn read_responses(json: &[u8], can: &Capabilities) -> Result<Work, FieldError> {
    let (wire, ignored) = parsed::<ResponsesRequest>(json)?;
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
        metadata: metadata(wire.metadata)?,
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
        response_format: wire.text.and_then(|text| text.format).map(format).transpose()?,
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
        ("top_logprobs", wire.top_logprobs.is_none_or(|top| top == 0), "log probabilities are not supported"),
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

fn format(format: TextFormat) -> Result<ResponseFormat, FieldError> {
    let is_schema = format.kind == "json_schema";
    if !is_schema && format.schema.is_some() {
        return Err(FieldError::new("text.format.schema", "needs `type` to be `json_schema`"));
    }
    let named = is_schema.then(|| NamedSchema { schema: format.schema });
    Ok(ResponseFormat { kind: format.kind, json_schema: named })
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
            for (at, item) in items.into_iter().enumerate() {
                let is_last = is_last_turn(speakers[at + 1..].iter().map(String::as_str));
                add(&format!("input[{at}]"), item, is_last, can, &mut messages, ignored)?;
            }
        }
    }
    checked_messages(messages, can, ignored)
}

/// Returns the role of an item's speaker: calls are the assistant's.
fn speaker(item: &Item) -> String {
    match item.kind.as_deref() {
        Some("function_call" | "custom_tool_call") => "assistant".to_owned(),
        _ => item.role.clone().unwrap_or_default(),
    }
}

/// Appends an item. Calls belong to the assistant's message before them.
fn add(
    place: &str,
    item: Item,
    is_last: bool,
    can: &Capabilities,
    messages: &mut Vec<ChatMessage>,
    ignored: &mut Ignored,
) -> Result<(), FieldError> {
    let kind = item.kind.as_deref().unwrap_or("message");
    let missing = |name: &str| FieldError::new(format!("{place}.{name}"), "is missing");
    let is_call = matches!(kind, "function_call" | "custom_tool_call");
    let is_output = matches!(kind, "function_call_output" | "custom_tool_call_output");
    if (is_call || is_output) && !can.tools {
        return Err(FieldError::new(place, format!("{NO_TOOLS}; leave such items out")));
    }
    if is_call {
        let name = item.name.ok_or_else(|| missing("name"))?;
        let arguments = match item.input.filter(|_| kind == "custom_tool_call") {
            Some(input) => Some(arguments_of(&input)),
            None => item.arguments,
        };
        let call = PastCall {
            id: item.call_id.ok_or_else(|| missing("call_id"))?,
            name: full_name(item.namespace.as_deref(), name),
            arguments: arguments.ok_or_else(|| missing("arguments"))?,
        };
        match messages.last_mut() {
            Some(last) if last.role == Role::Assistant => last.calls.push(call),
            _ => {
                let message = ChatMessage::new(Role::Assistant, "");
                messages.push(ChatMessage { calls: vec![call], ..message });
            }
        }
        return Ok(());
    }
    if is_output {
        let id = item.call_id.ok_or_else(|| missing("call_id"))?;
        let output = item.output.ok_or_else(|| missing("output"))?;
        let message = ChatMessage::new(Role::Tool, text(&format!("{place}.output"), output, false, ignored)?);
        messages.push(ChatMessage { call_id: Some(id), ..message });
        return Ok(());
    }
    match kind {
        "message" => {
            let role = role(place, item.role.as_deref())?;
            let content = item.content.ok_or_else(|| missing("content"))?;
            let is_last = is_last && role == Role::User;
            messages
                .push(ChatMessage::new(role, text(&format!("{place}.content"), content, is_last, ignored)?));
        }
        "reasoning" => (),
        "item_reference" => return Err(FieldError::new(place, NOTHING_KEPT)),
        kind => ignored.add(format!("input[].{kind}")),
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

fn text(place: &str, content: ItemText, is_last: bool, ignored: &mut Ignored) -> Result<String, FieldError> {
    let parts = match content {
        ItemText::Text(text) => return Ok(text),
        ItemText::Parts(parts) => parts,
    };
    let readable = "`input_text` and `output_text`";
    let mut texts = Vec::with_capacity(parts.len());
    for (at, part) in parts.into_iter().enumerate() {
        let place = format!("{place}[{at}]");
        texts.push(match (part.kind.as_str(), part.text) {
            ("input_text" | "output_text" | "text", Some(text)) => text,
            ("input_text" | "output_text", None) => {
                return Err(FieldError::new(format!("{place}.text"), "is missing"));
            }
            (kind, _) => Unreadable { place: &place, kind, is_last, readable }.text(ignored)?,
        });
    }
    texts.retain(|text| !text.is_empty());
    Ok(texts.join(BETWEEN_PARTS))
}
