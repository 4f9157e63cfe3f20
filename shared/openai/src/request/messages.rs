//! The messages of a request.
//!
//! Always: a message of role `tool` answers a call of an earlier message.

use std::collections::BTreeSet;

use baton_protocol::Role;

use super::unsupported::NO_TOOLS;
use crate::capabilities::Capabilities;
use crate::error::FieldError;
use crate::tools::{ChatMessage, PastCall};
use crate::wire::{ChatMessageBody, Content, Part, PastCallBody};

/// The most characters of a field's name that an error repeats.
const NAME_CHARS_MAX: usize = 64;

/// Reads the messages, in order.
pub(super) fn read(wire: Vec<ChatMessageBody>, can: &Capabilities) -> Result<Vec<ChatMessage>, FieldError> {
    match can.messages_max {
        Some(max) if wire.is_empty() || wire.len() > max => {
            let message = format!("has {} messages, must have 1 to {max}", wire.len());
            return Err(FieldError::new("messages", message));
        }
        None if wire.is_empty() => return Err(FieldError::new("messages", "has no message")),
        _ => (),
    }
    let mut messages: Vec<ChatMessage> = Vec::with_capacity(wire.len());
    let mut calls: BTreeSet<String> = BTreeSet::new();
    for (at, body) in wire.into_iter().enumerate() {
        let message = message(at, body, can)?;
        if let Some(id) = &message.call_id
            && !calls.contains(id)
        {
            let field = format!("messages[{at}].tool_call_id");
            return Err(FieldError::new(field, "no earlier message has a call of this id"));
        }
        calls.extend(message.calls.iter().map(|call| call.id.clone()));
        messages.push(message);
    }
    match messages.iter().all(ChatMessage::is_empty) {
        true => Err(FieldError::new("messages", "all messages are empty")),
        false => Ok(messages),
    }
}

/// Checks messages that were translated from another dialect.
pub(crate) fn checked(
    messages: Vec<ChatMessage>,
    can: &Capabilities,
) -> Result<Vec<ChatMessage>, FieldError> {
    if messages.is_empty() {
        return Err(FieldError::new("messages", "has no message"));
    }
    if let Some(max) = can.messages_max.filter(|&max| messages.len() > max) {
        let message = format!("has {} messages, at most {max} are allowed", messages.len());
        return Err(FieldError::new("messages", message));
    }
    let mut calls: BTreeSet<&str> = BTreeSet::new();
    for message in &messages {
        if message.call_id.as_deref().is_some_and(|id| !calls.contains(id)) {
            return Err(FieldError::new("messages", "a result answers a call that no earlier message has"));
        }
        calls.extend(message.calls.iter().map(|call| call.id.as_str()));
    }
    match messages.iter().all(ChatMessage::is_empty) {
        true => Err(FieldError::new("messages", "all messages are empty")),
        false => Ok(messages),
    }
}

fn message(at: usize, body: ChatMessageBody, can: &Capabilities) -> Result<ChatMessage, FieldError> {
    let field = |name: &str| format!("messages[{at}].{name}");
    let role = match body.role.as_str() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" if can.tools => Role::Tool,
        "tool" => return Err(FieldError::new(field("role"), format!("{NO_TOOLS}; leave such messages out"))),
        _ => {
            let want = "must be `system`, `developer`, `user`, `assistant` or `tool`";
            return Err(FieldError::new(field("role"), want));
        }
    };
    for (name, value) in [("function_call", &body.function_call), ("audio", &body.audio)] {
        if value.as_ref().is_some_and(|value| !value.is_null()) {
            return Err(FieldError::new(field(name), "is not supported"));
        }
    }
    let calls = calls(&field("tool_calls"), role, body.tool_calls.unwrap_or_default(), can)?;
    match (role == Role::Tool, body.tool_call_id.is_some()) {
        (true, false) => return Err(FieldError::new(field("tool_call_id"), "is missing")),
        (false, true) => {
            let message = "only messages of role `tool` answer a call";
            return Err(FieldError::new(field("tool_call_id"), message));
        }
        _ => (),
    }
    let text = match body.content {
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => joined(&field("content"), parts)?,
        None if role == Role::Assistant => String::new(),
        None => return Err(FieldError::new(field("content"), "is missing")),
    };
    Ok(ChatMessage { role, text, calls, call_id: body.tool_call_id })
}

fn calls(
    field: &str,
    role: Role,
    bodies: Vec<PastCallBody>,
    can: &Capabilities,
) -> Result<Vec<PastCall>, FieldError> {
    if bodies.is_empty() {
        return Ok(Vec::new());
    }
    if !can.tools {
        return Err(FieldError::new(field, format!("{NO_TOOLS}; leave it empty")));
    }
    if role != Role::Assistant {
        return Err(FieldError::new(field, "only messages of the assistant have calls"));
    }
    let call = |(at, call): (usize, PastCallBody)| match call.kind.as_deref() {
        None | Some("function") => {
            Ok(PastCall { id: call.id, name: call.function.name, arguments: call.function.arguments })
        }
        Some(_) => Err(FieldError::new(format!("{field}[{at}].type"), "only `function` is supported")),
    };
    bodies.into_iter().enumerate().map(call).collect()
}

/// Joins the parts of a message to one text.
fn joined(field: &str, parts: Vec<Part>) -> Result<String, FieldError> {
    let mut text = String::new();
    for (at, part) in parts.into_iter().enumerate() {
        let unknown = part.other.iter().find(|(_, value)| !value.is_null()).map(|(name, _)| name);
        match (part.kind.as_str(), part.text, unknown) {
            ("text", Some(part), None) => text.push_str(&part),
            ("text", Some(_), Some(name)) => {
                let name: String = name.chars().take(NAME_CHARS_MAX).collect();
                return Err(FieldError::new(format!("{field}[{at}].{name}"), "is not supported"));
            }
            _ => {
                let message = "only parts of type `text` are supported";
                return Err(FieldError::new(format!("{field}[{at}]"), message));
            }
        }
    }
    Ok(text)
}
