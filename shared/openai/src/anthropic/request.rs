//! A Messages request, translated to the one request of all dialects.
//!
//! Blocks of a message are paragraphs: texts and documents are joined by blank lines. Each result of a tool
//! is a message of its own.

use baton_protocol::Role;
use serde_json::{Map, Value};

use super::field;
use super::wire::{
    Block, Content, MessageBody, MessagesRequest, Source, ThinkingBody, ToolBody, ToolChoiceBody,
};
use super::writer::MessagesWriter;
use crate::capabilities::Capabilities;
use crate::dialect::Dialect;
use crate::error::FieldError;
use crate::request::{ChatRequest, NO_TOOLS, Prompt, checked_messages, parsed, translated};
use crate::tools::{ChatMessage, PastCall};
use crate::wire::text_or::TextOr;
use crate::wire::unknown::NoOther;
use crate::wire::{
    ChatCompletionRequest, FunctionBody, FunctionName, NamedChoice, Stop, ToolBody as FunctionTool,
    ToolChoiceBody as Choice,
};
use crate::writer::{Asked, Work};

/// Between two blocks of a message.
const BETWEEN_BLOCKS: &str = "\n\n";
/// The largest temperature.
const TEMPERATURE_MAX: f64 = 1.0;

/// Reads a request for a message.
///
/// # Errors
/// [`FieldError`] with the name of the wrong field.
pub fn read_messages(json: &[u8], can: &Capabilities) -> Result<Work, FieldError> {
    let wire: MessagesRequest = parsed(json)?;
    if wire.max_tokens.is_none() {
        return Err(FieldError::new("max_tokens", "is missing"));
    }
    let shows_thinking = shows_thinking(wire.thinking.as_ref())?;
    let request = request(wire, can)?;
    let stops = request.sampling.stop.clone();
    let mut asked = Asked::new(request, Dialect::Anthropic, move |facts| {
        Box::new(MessagesWriter::new(facts, shows_thinking, stops))
    });
    asked.counts_prompt = true;
    Ok(asked.into())
}

/// Reads a request for the number of a prompt's tokens.
///
/// # Errors
/// [`FieldError`] with the name of the wrong field.
pub fn read_count(json: &[u8], can: &Capabilities) -> Result<ChatRequest, FieldError> {
    let wire: MessagesRequest = parsed(json)?;
    shows_thinking(wire.thinking.as_ref())?;
    request(wire, can)
}

fn request(wire: MessagesRequest, can: &Capabilities) -> Result<ChatRequest, FieldError> {
    if let Some(temperature) = wire.temperature.filter(|value| !(0.0..=TEMPERATURE_MAX).contains(value)) {
        let message = format!("is {temperature}, must be 0 to {TEMPERATURE_MAX}");
        return Err(FieldError::new("temperature", message));
    }
    let (choice, parallel) = choice(wire.tool_choice)?;
    let tools = wire.tools.unwrap_or_default().into_iter().enumerate();
    let tools = tools.map(|(at, body)| tool(at, body)).collect::<Result<Vec<_>, _>>()?;
    let common = ChatCompletionRequest {
        model: wire.model,
        max_tokens: wire.max_tokens,
        temperature: wire.temperature,
        top_p: wire.top_p,
        top_k: wire.top_k,
        stop: wire.stop_sequences.map(Stop::Many),
        stream: wire.stream,
        tools: Some(tools),
        tool_choice: choice,
        parallel_tool_calls: parallel,
        ..ChatCompletionRequest::default()
    };
    let messages = messages(wire.system, wire.messages, can);
    translated(common, can, || Ok(Prompt::Chat(messages?))).map_err(|err| err.renamed(field))
}

/// Returns whether thinking is part of the reply: only if the request asks for it.
fn shows_thinking(thinking: Option<&ThinkingBody>) -> Result<bool, FieldError> {
    let Some(thinking) = thinking else { return Ok(false) };
    let is_shown = match thinking.display.as_deref() {
        None | Some("summarized" | "full") => true,
        Some("omitted") => false,
        Some(_) => return Err(FieldError::new("thinking.display", "must be `summarized` or `omitted`")),
    };
    match thinking.kind.as_str() {
        "enabled" | "adaptive" => Ok(is_shown),
        "disabled" => Ok(false),
        _ => Err(FieldError::new("thinking.type", "must be `enabled`, `adaptive` or `disabled`")),
    }
}

fn tool(at: usize, tool: ToolBody) -> Result<FunctionTool, FieldError> {
    if tool.kind.as_deref().is_some_and(|kind| kind != "custom") {
        return Err(FieldError::new(format!("tools[{at}].type"), "only `custom` is supported"));
    }
    no_other(&format!("tools[{at}]"), &tool.other)?;
    let ToolBody { name, description, input_schema: parameters, strict, .. } = tool;
    let function = FunctionBody { name, description, parameters, strict, _other: NoOther };
    Ok(FunctionTool { kind: "function".to_owned(), function: Some(function), _other: NoOther })
}

/// Returns whether a tool must be called, and whether several may be.
fn choice(choice: Option<ToolChoiceBody>) -> Result<(Option<Choice>, Option<bool>), FieldError> {
    let Some(choice) = choice else { return Ok((None, None)) };
    let parallel = choice.disable_parallel_tool_use.map(|disabled| !disabled);
    let word = |word: &str| Choice::Word(word.to_owned());
    let choice = match (choice.kind.as_str(), choice.name) {
        ("auto", None) => word("auto"),
        ("none", None) => word("none"),
        ("any", None) => word("required"),
        ("tool", Some(name)) => {
            let function = FunctionName { name, _other: NoOther };
            Choice::Named(NamedChoice {
                kind: "function".to_owned(),
                function: Some(function),
                _other: NoOther,
            })
        }
        ("tool", None) => return Err(FieldError::new("tool_choice.name", "is missing")),
        ("auto" | "none" | "any", Some(_)) => {
            return Err(FieldError::new("tool_choice.name", "needs `type` to be `tool`"));
        }
        _ => return Err(FieldError::new("tool_choice.type", "must be `auto`, `any`, `tool` or `none`")),
    };
    Ok((Some(choice), parallel))
}

fn messages(
    system: Option<Content>,
    bodies: Vec<MessageBody>,
    can: &Capabilities,
) -> Result<Vec<ChatMessage>, FieldError> {
    let mut messages = Vec::with_capacity(bodies.len() + 1);
    if let Some(system) = system {
        messages.push(ChatMessage::new(Role::System, text("system", system)?));
    }
    if bodies.last().is_some_and(|last| last.role == "assistant") {
        let message = "the last message is the assistant's: continuing it is not supported";
        return Err(FieldError::new("messages", message));
    }
    for (at, MessageBody { role, content, .. }) in bodies.into_iter().enumerate() {
        let place = format!("messages[{at}]");
        match role.as_str() {
            "user" => user(&format!("{place}.content"), content, can, &mut messages)?,
            "assistant" => messages.push(assistant(&format!("{place}.content"), content, can)?),
            _ => return Err(FieldError::new(format!("{place}.role"), "must be `user` or `assistant`")),
        }
    }
    checked_messages(messages, can)
}

/// Appends the messages of a person: one for each result of a tool, and one for the texts between them.
fn user(
    place: &str,
    content: Content,
    can: &Capabilities,
    messages: &mut Vec<ChatMessage>,
) -> Result<(), FieldError> {
    let blocks = match content {
        TextOr::Text(text) => {
            messages.push(ChatMessage::new(Role::User, text));
            return Ok(());
        }
        TextOr::Other(blocks) => blocks,
    };
    let mut texts = Vec::new();
    for (at, block) in blocks.into_iter().enumerate() {
        let place = format!("{place}[{at}]");
        if block.kind == "tool_result" {
            let result = result(&place, block, can)?;
            said(&mut texts, messages);
            messages.push(result);
        } else {
            texts.push(plain(&place, block)?);
        }
    }
    said(&mut texts, messages);
    Ok(())
}

/// Appends a message of these texts, unless there are none.
fn said(texts: &mut Vec<String>, messages: &mut Vec<ChatMessage>) {
    if !texts.is_empty() {
        messages.push(ChatMessage::new(Role::User, std::mem::take(texts).join(BETWEEN_BLOCKS)));
    }
}

fn assistant(place: &str, content: Content, can: &Capabilities) -> Result<ChatMessage, FieldError> {
    let blocks = match content {
        TextOr::Text(text) => return Ok(ChatMessage::new(Role::Assistant, text)),
        TextOr::Other(blocks) => blocks,
    };
    let (mut texts, mut calls) = (Vec::new(), Vec::new());
    for (at, block) in blocks.into_iter().enumerate() {
        let place = format!("{place}[{at}]");
        match block.kind.as_str() {
            "thinking" | "redacted_thinking" => (),
            "tool_use" if !can.tools => {
                return Err(FieldError::new(place, format!("{NO_TOOLS}; leave such blocks out")));
            }
            "tool_use" => {
                no_other(&place, &block.other)?;
                let missing = |name: &str| FieldError::new(format!("{place}.{name}"), "is missing");
                let id = block.id.ok_or_else(|| missing("id"))?;
                let name = block.name.ok_or_else(|| missing("name"))?;
                let arguments = block.input.unwrap_or_else(|| Value::Object(Map::new())).to_string();
                calls.push(PastCall { id, name, arguments });
            }
            _ => texts.push(plain(&place, block)?),
        }
    }
    Ok(ChatMessage { calls, ..ChatMessage::new(Role::Assistant, texts.join(BETWEEN_BLOCKS)) })
}

fn result(place: &str, block: Block, can: &Capabilities) -> Result<ChatMessage, FieldError> {
    if !can.tools {
        return Err(FieldError::new(place, format!("{NO_TOOLS}; leave such blocks out")));
    }
    no_other(place, &block.other)?;
    let id =
        block.tool_use_id.ok_or_else(|| FieldError::new(format!("{place}.tool_use_id"), "is missing"))?;
    let mut said = match block.content {
        Some(content) => text(&format!("{place}.content"), content)?,
        None => String::new(),
    };
    if block.is_error == Some(true) {
        // Chat templates have no place for this, so the model is told in words.
        said.insert_str(0, "Error: ");
    }
    Ok(ChatMessage { call_id: Some(id), ..ChatMessage::new(Role::Tool, said) })
}

/// Returns the text of a place where only texts and documents may stand.
fn text(place: &str, content: Content) -> Result<String, FieldError> {
    match content {
        TextOr::Text(text) => Ok(text),
        TextOr::Other(blocks) => {
            let blocks = blocks.into_iter().enumerate();
            let texts = blocks.map(|(at, block)| plain(&format!("{place}[{at}]"), block));
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join(BETWEEN_BLOCKS))
        }
    }
}

/// Returns the text of a block of type `text` or `document`.
fn plain(place: &str, block: Block) -> Result<String, FieldError> {
    match block.kind.as_str() {
        "text" => {
            no_other(place, &block.other)?;
            block.text.ok_or_else(|| FieldError::new(format!("{place}.text"), "is missing"))
        }
        "document" => document(place, block),
        _ => Err(FieldError::new(place, "only blocks of type `text` and `document` are supported here")),
    }
}

fn document(place: &str, block: Block) -> Result<String, FieldError> {
    no_other(place, &block.other)?;
    let cites = |citations: Value| citations.get("enabled").is_some_and(|enabled| enabled == true);
    if block.citations.is_some_and(cites) {
        return Err(FieldError::new(format!("{place}.citations"), "citations are not supported"));
    }
    let source = block.source.ok_or_else(|| FieldError::new(format!("{place}.source"), "is missing"))?;
    let Source { kind, data, content, other, .. } = source;
    let said = match (kind.as_str(), data, content) {
        ("text", Some(data), None) => data,
        ("content", None, Some(content)) => text(&format!("{place}.source.content"), content)?,
        _ => {
            let message = "only documents of type `text` and `content` are supported";
            return Err(FieldError::new(format!("{place}.source"), message));
        }
    };
    no_other(&format!("{place}.source"), &other)?;
    let parts = block.title.into_iter().chain(block.context).chain([said]);
    Ok(parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n"))
}

/// Refuses a field that a block of this type does not have, unless it is null.
fn no_other(place: &str, other: &Map<String, Value>) -> Result<(), FieldError> {
    match other.iter().find(|(_, value)| !value.is_null()) {
        Some((name, _)) => {
            let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
            Err(FieldError::new(format!("{place}.{name}"), "is not supported"))
        }
        None => Ok(()),
    }
}
