//! A Messages request, translated to the one request of all dialects.
//!
//! Blocks of a message are paragraphs: texts and documents are joined by blank lines. Each result of a tool
//! is a message of its own.

use baton_protocol::Role;
use serde_json::{Map, Value};

use super::field;
use super::wire::{Block, MessageBody, MessagesRequest, Source, ThinkingBody, ToolBody, ToolChoiceBody};
use super::writer::MessagesWriter;
use crate::capabilities::Capabilities;
use crate::dialect::Dialect;
use crate::error::FieldError;
use crate::ignored::Ignored;
use crate::request::{
    ChatRequest, NO_TOOLS, Prompt, Unreadable, checked_messages, is_last_turn, kind_of, parsed, text_of_part,
    translated, typed,
};
use crate::tools::{ChatMessage, PastCall};
use crate::wire::{
    ChatCompletionRequest, Content, FunctionBody, FunctionName, ResponseFormat, Stop,
    ToolBody as FunctionTool, ToolChoiceBody as Choice, ToolChoiceObject,
};
use crate::writer::{Asked, Work};

/// Between two blocks of a message.
const BETWEEN_BLOCKS: &str = "\n\n";

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
        response_format: format.map(|format| ResponseFormat::new(format.kind, format.schema)),
        ..ChatCompletionRequest::default()
    };
    let system = wire.system;
    let bodies = wire.messages;
    let mut request = translated(common, can, ignored, field, |ignored| {
        messages(system, bodies, can, ignored).map(Prompt::Chat)
    })?;
    request.continue_last()?;
    Ok(request)
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
            let kind = "function".to_owned();
            Choice::Object(ToolChoiceObject { kind, function, ..ToolChoiceObject::default() })
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
    let roles: Vec<String> = bodies.iter().map(|body| body.role.clone()).collect();
    for (at, MessageBody { role, content }) in bodies.into_iter().enumerate() {
        let place = format!("messages[{at}].content");
        let is_last = is_last_turn(roles[at + 1..].iter().map(String::as_str));
        let content = match content {
            Some(content) => content,
            None if is_last && role == "user" => return Err(FieldError::new(place, "is missing")),
            None => Content::Text(String::new()),
        };
        match role.as_str() {
            "user" => user(&place, content, is_last, can, &mut messages, ignored)?,
            "assistant" => messages.push(assistant(&place, content, can, ignored)?),
            "system" | "developer" => {
                messages.push(ChatMessage::new(Role::System, text(&place, content, false, ignored)?));
            }
            _ => {
                let want = "must be `user`, `assistant` or `system`";
                return Err(FieldError::new(format!("messages[{at}].role"), want));
            }
        }
    }
    checked_messages(messages, can, "messages[].content[].tool_use_id", ignored)
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
        Content::Text(text) => {
            messages.push(ChatMessage::new(Role::User, text));
            return Ok(());
        }
        Content::Parts(blocks) => blocks,
    };
    let mut texts = Vec::new();
    for (at, block) in blocks.into_iter().enumerate() {
        let place = format!("{place}[{at}]");
        if kind_of(&block) == "tool_result" {
            let result = result(&place, typed(&place, block, ignored)?, can, ignored)?;
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
    let text = joined(std::mem::take(texts));
    if !text.is_empty() {
        messages.push(ChatMessage::new(Role::User, text));
    }
}

/// Joins the texts of blocks; empty ones are left out.
fn joined(mut texts: Vec<String>) -> String {
    texts.retain(|text| !text.is_empty());
    texts.join(BETWEEN_BLOCKS)
}

fn assistant(
    place: &str,
    content: Content,
    can: &Capabilities,
    ignored: &mut Ignored,
) -> Result<ChatMessage, FieldError> {
    let blocks = match content {
        Content::Text(text) => return Ok(ChatMessage::new(Role::Assistant, text)),
        Content::Parts(blocks) => blocks,
    };
    let mut texts = Vec::new();
    let mut thoughts = Vec::new();
    let mut calls = Vec::new();
    for (at, block) in blocks.into_iter().enumerate() {
        let place = format!("{place}[{at}]");
        match kind_of(&block) {
            "thinking" => {
                let block: Block = typed(&place, block, ignored)?;
                thoughts.push(block.thinking.unwrap_or_default());
            }
            "redacted_thinking" => (),
            "tool_use" if !can.tools => {
                return Err(FieldError::new(place, format!("{NO_TOOLS}; leave such blocks out")));
            }
            "tool_use" => {
                let Block { id, name, input, .. } = typed(&place, block, ignored)?;
                let name = name.ok_or_else(|| FieldError::new(format!("{place}.name"), "is missing"))?;
                let arguments = input.unwrap_or_else(|| Value::Object(Map::new())).to_string();
                calls.push(PastCall { id: id.unwrap_or(place), name, arguments });
            }
            _ => texts.push(plain(&place, block, false, ignored)?),
        }
    }
    let thinking = Some(joined(thoughts)).filter(|thinking| !thinking.is_empty());
    Ok(ChatMessage { calls, thinking, ..ChatMessage::new(Role::Assistant, joined(texts)) })
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
    let mut output = match block.content {
        Some(content) => text(&format!("{place}.content"), content, false, ignored)?,
        None => String::new(),
    };
    if block.is_error == Some(true) {
        // Chat templates have no place for this, so the model is told in words.
        output.insert_str(0, "Error: ");
    }
    Ok(ChatMessage { call_id: block.tool_use_id, ..ChatMessage::new(Role::Tool, output) })
}

/// Returns the text of a place where only texts and documents may stand.
fn text(place: &str, content: Content, is_last: bool, ignored: &mut Ignored) -> Result<String, FieldError> {
    match content {
        Content::Text(text) => Ok(text),
        Content::Parts(blocks) => {
            let blocks = blocks.into_iter().enumerate();
            let texts = blocks.map(|(at, block)| plain(&format!("{place}[{at}]"), block, is_last, ignored));
            Ok(joined(texts.collect::<Result<_, _>>()?))
        }
    }
}

/// Returns the text of a block: that of a document or of a search's result, or what a part of its type is in
/// every dialect.
fn plain(place: &str, block: Value, is_last: bool, ignored: &mut Ignored) -> Result<String, FieldError> {
    match kind_of(&block) {
        "document" => document(place, typed(place, block, ignored)?, is_last, ignored),
        "search_result" => {
            let Block { source, title, content, .. } = typed(place, block, ignored)?;
            let content = content.unwrap_or_else(|| Content::Text(String::new()));
            let content = text(&format!("{place}.content"), content, is_last, ignored)?;
            let source = source.as_ref().and_then(Value::as_str).map(str::to_owned);
            Ok(lines([title, source, Some(content)]))
        }
        _ => text_of_part(place, block, is_last, ignored),
    }
}

fn document(place: &str, block: Block, is_last: bool, ignored: &mut Ignored) -> Result<String, FieldError> {
    let Block { source, title, context, citations, .. } = block;
    if citations.is_some_and(|citations| citations["enabled"] == true) {
        ignored.add_at(place, "citations");
    }
    let place = format!("{place}.source");
    let source = source.ok_or_else(|| FieldError::new(&*place, "is missing"))?;
    let kind = kind_of(&source).to_owned();
    let content = match typed(&place, source, ignored)? {
        Source { data: Some(data), .. } if kind == "text" => data,
        Source { content: Some(content), .. } if kind == "content" => {
            text(&format!("{place}.content"), content, is_last, ignored)?
        }
        _ => Unreadable { place: &place, kind: "document", is_last }.text(ignored)?,
    };
    Ok(lines([title, context, Some(content)]))
}

/// Joins what is there, line by line.
fn lines<const N: usize>(texts: [Option<String>; N]) -> String {
    texts.into_iter().flatten().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
}
