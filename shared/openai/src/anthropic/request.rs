//! A Messages request, translated to the one request of all dialects.
//!
//! Blocks of a message are paragraphs: texts and documents are joined by blank lines. Each result of a tool
//! is a message of its own.

use baton_protocol::Role;
use serde_json::{Map, Value};

use super::field;
use super::wire::{
    Block, Content, MessageBody, MessagesRequest, OutputFormat, Source, ThinkingBody, ToolBody,
    ToolChoiceBody,
};
use super::writer::MessagesWriter;
use crate::capabilities::Capabilities;
use crate::dialect::Dialect;
use crate::error::FieldError;
use crate::ignored::Ignored;
use crate::request::{
    ChatRequest, NO_TOOLS, Prompt, Unreadable, checked_messages, is_last_turn, parsed, translated,
};
use crate::tools::{ChatMessage, PastCall};
use crate::wire::text_or::TextOr;
use crate::wire::{
    ChatCompletionRequest, FunctionBody, FunctionName, NamedChoice, NamedSchema, ResponseFormat, Stop,
    ToolBody as FunctionTool, ToolChoiceBody as Choice,
};
use crate::writer::{Asked, Work};

/// Between two blocks of a message.
const BETWEEN_BLOCKS: &str = "\n\n";
/// Blocks of thinking, which are left out of the prompt.
const THINKING: [&str; 2] = ["thinking", "redacted_thinking"];

/// Reads a request for a message.
///
/// # Errors
/// [`FieldError`] with the name of the wrong field.
pub fn read_messages(json: &[u8], can: &Capabilities) -> Result<Work, FieldError> {
    let (wire, ignored) = parsed::<MessagesRequest>(json)?;
    if wire.max_tokens.is_none() {
        return Err(FieldError::new("max_tokens", "is missing"));
    }
    let shows_thinking = wire.thinking.as_ref().is_some_and(shows_thinking);
    let request = request(wire, can, ignored)?;
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
    let (wire, ignored) = parsed::<MessagesRequest>(json)?;
    request(wire, can, ignored)
}

fn request(wire: MessagesRequest, can: &Capabilities, ignored: Ignored) -> Result<ChatRequest, FieldError> {
    let (choice, parallel) = choice(wire.tool_choice)?;
    let tools = wire.tools.unwrap_or_default().into_iter().enumerate();
    let tools = tools.map(|(at, body)| tool(at, body)).collect::<Result<Vec<_>, _>>()?;
    let format = wire.output_config.and_then(|config| config.format).or(wire.output_format);
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
        response_format: format.map(response_format),
        ..ChatCompletionRequest::default()
    };
    let system = wire.system;
    let bodies = wire.messages;
    translated(common, can, ignored, field, |ignored| {
        messages(system, bodies, can, ignored).map(Prompt::Chat)
    })
}

fn response_format(format: OutputFormat) -> ResponseFormat {
    let named = format.schema.map(|schema| NamedSchema { schema: Some(schema) });
    ResponseFormat { kind: format.kind, json_schema: named }
}

/// Returns whether thinking is part of the reply: only if the request asks for it.
fn shows_thinking(thinking: &ThinkingBody) -> bool {
    thinking.kind != "disabled" && thinking.display.as_deref() != Some("omitted")
}

fn tool(at: usize, tool: ToolBody) -> Result<FunctionTool, FieldError> {
    let ToolBody { kind, name, description, input_schema: parameters, strict } = tool;
    if let Some(kind) = kind.filter(|kind| kind != "custom") {
        return Ok(FunctionTool { kind, function: None });
    }
    let name = name.ok_or_else(|| FieldError::new(format!("tools[{at}].name"), "is missing"))?;
    let function = FunctionBody { name, description, parameters, strict };
    Ok(FunctionTool { kind: "function".to_owned(), function: Some(function) })
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
            let function = Some(FunctionName { name });
            Choice::Named(NamedChoice { kind: "function".to_owned(), function })
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
    ignored: &mut Ignored,
) -> Result<Vec<ChatMessage>, FieldError> {
    let mut messages = Vec::with_capacity(bodies.len() + 1);
    if let Some(system) = system {
        messages.push(ChatMessage::new(Role::System, text("system", system, false, ignored)?));
    }
    if bodies.last().is_some_and(|last| last.role == "assistant") {
        let message = "the last message is the assistant's: continuing it is not supported";
        return Err(FieldError::new("messages", message));
    }
    let roles: Vec<String> = bodies.iter().map(|body| body.role.clone()).collect();
    for (at, MessageBody { role, content }) in bodies.into_iter().enumerate() {
        let place = format!("messages[{at}].content");
        let is_last = is_last_turn(roles[at + 1..].iter().map(String::as_str));
        match role.as_str() {
            "user" => user(&place, content, is_last, can, &mut messages, ignored)?,
            "assistant" => messages.push(assistant(&place, content, can, ignored)?),
            "system" => messages.push(ChatMessage::new(Role::System, text(&place, content, false, ignored)?)),
            _ => {
                let want = "must be `user`, `assistant` or `system`";
                return Err(FieldError::new(format!("messages[{at}].role"), want));
            }
        }
    }
    checked_messages(messages, can, ignored)
}

/// Appends the messages of a person: one for each result of a tool, and one for the texts between them.
fn user(
    place: &str,
    content: Content,
    is_last: bool,
    can: &Capabilities,
    messages: &mut Vec<ChatMessage>,
    ignored: &mut Ignored,
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
            let result = result(&place, block, can, ignored)?;
            append_user(&mut texts, messages);
            messages.push(result);
        } else {
            texts.push(plain(&place, block, is_last, ignored)?);
        }
    }
    append_user(&mut texts, messages);
    Ok(())
}

/// Appends a message of these texts, unless there are none.
fn append_user(texts: &mut Vec<String>, messages: &mut Vec<ChatMessage>) {
    texts.retain(|text| !text.is_empty());
    if !texts.is_empty() {
        messages.push(ChatMessage::new(Role::User, std::mem::take(texts).join(BETWEEN_BLOCKS)));
    }
}

fn assistant(
    place: &str,
    content: Content,
    can: &Capabilities,
    ignored: &mut Ignored,
) -> Result<ChatMessage, FieldError> {
    let blocks = match content {
        TextOr::Text(text) => return Ok(ChatMessage::new(Role::Assistant, text)),
        TextOr::Other(blocks) => blocks,
    };
    let mut texts = Vec::new();
    let mut calls = Vec::new();
    for (at, block) in blocks.into_iter().enumerate() {
        let place = format!("{place}[{at}]");
        match block.kind.as_str() {
            kind if THINKING.contains(&kind) => (),
            "tool_use" if !can.tools => {
                return Err(FieldError::new(place, format!("{NO_TOOLS}; leave such blocks out")));
            }
            "tool_use" => {
                let missing = |name: &str| FieldError::new(format!("{place}.{name}"), "is missing");
                let id = block.id.ok_or_else(|| missing("id"))?;
                let name = block.name.ok_or_else(|| missing("name"))?;
                let arguments = block.input.unwrap_or_else(|| Value::Object(Map::new())).to_string();
                calls.push(PastCall { id, name, arguments });
            }
            _ => texts.push(plain(&place, block, false, ignored)?),
        }
    }
    texts.retain(|text| !text.is_empty());
    Ok(ChatMessage { calls, ..ChatMessage::new(Role::Assistant, texts.join(BETWEEN_BLOCKS)) })
}

fn result(
    place: &str,
    block: Block,
    can: &Capabilities,
    ignored: &mut Ignored,
) -> Result<ChatMessage, FieldError> {
    if !can.tools {
        return Err(FieldError::new(place, format!("{NO_TOOLS}; leave such blocks out")));
    }
    let id =
        block.tool_use_id.ok_or_else(|| FieldError::new(format!("{place}.tool_use_id"), "is missing"))?;
    let mut output = match block.content {
        Some(content) => text(&format!("{place}.content"), content, false, ignored)?,
        None => String::new(),
    };
    if block.is_error == Some(true) {
        // Chat templates have no place for this, so the model is told in words.
        output.insert_str(0, "Error: ");
    }
    Ok(ChatMessage { call_id: Some(id), ..ChatMessage::new(Role::Tool, output) })
}

/// Returns the text of a place where only texts and documents may stand.
fn text(place: &str, content: Content, is_last: bool, ignored: &mut Ignored) -> Result<String, FieldError> {
    match content {
        TextOr::Text(text) => Ok(text),
        TextOr::Other(blocks) => {
            let blocks = blocks.into_iter().enumerate();
            let texts = blocks.map(|(at, block)| plain(&format!("{place}[{at}]"), block, is_last, ignored));
            let mut texts = texts.collect::<Result<Vec<_>, _>>()?;
            texts.retain(|text| !text.is_empty());
            Ok(texts.join(BETWEEN_BLOCKS))
        }
    }
}

/// Returns the text of a block of type `text` or `document`, or the text that stands for another block.
fn plain(place: &str, block: Block, is_last: bool, ignored: &mut Ignored) -> Result<String, FieldError> {
    let readable = "`text` and `document`";
    match block.kind.as_str() {
        "text" => block.text.ok_or_else(|| FieldError::new(format!("{place}.text"), "is missing")),
        "document" => document(place, block, is_last, ignored),
        kind => Unreadable { place, kind, is_last, readable }.text(ignored),
    }
}

fn document(place: &str, block: Block, is_last: bool, ignored: &mut Ignored) -> Result<String, FieldError> {
    let cites = |citations: Value| citations.get("enabled").is_some_and(|enabled| enabled == true);
    if block.citations.is_some_and(cites) {
        return Err(FieldError::new(format!("{place}.citations"), "citations are not supported"));
    }
    let source = block.source.ok_or_else(|| FieldError::new(format!("{place}.source"), "is missing"))?;
    let Source { kind, data, content } = source;
    let content = match (kind.as_str(), data, content) {
        ("text", Some(data), None) => data,
        ("content", None, Some(content)) => {
            text(&format!("{place}.source.content"), content, is_last, ignored)?
        }
        _ => {
            let place = format!("{place}.source");
            let readable = "`text` and `content`";
            Unreadable { place: &place, kind: "document", is_last, readable }.text(ignored)?
        }
    };
    let parts = block.title.into_iter().chain(block.context).chain([content]);
    Ok(parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n"))
}
