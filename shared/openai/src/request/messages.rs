//! The messages of a request.
//!
//! Always: a message of role `tool` answers a call of an earlier message. A result of no known call is laid
//! out as text of the user.

use std::collections::{BTreeSet, VecDeque};

use baton_protocol::Role;
use serde_json::Value;

use super::parts::{Unreadable, is_last_turn};
use super::unsupported::NO_TOOLS;
use crate::capabilities::Capabilities;
use crate::error::FieldError;
use crate::ignored::Ignored;
use crate::tools::{ChatMessage, PastCall};
use crate::wire::{ChatMessageBody, Content, Part, PastCallBody};

/// Between two parts of a message.
const BETWEEN_PARTS: &str = "\n";

/// Reads the messages, in order.
pub(super) fn read(
    wire: Vec<ChatMessageBody>,
    can: &Capabilities,
    ignored: &mut Ignored,
) -> Result<Vec<ChatMessage>, FieldError> {
    let roles: Vec<String> = wire.iter().map(|body| body.role.clone()).collect();
    let mut messages: Vec<ChatMessage> = Vec::with_capacity(wire.len());
    for (at, body) in wire.into_iter().enumerate() {
        let is_last = is_last_turn(roles[at + 1..].iter().map(String::as_str));
        messages.push(message(at, body, is_last, can, ignored)?);
    }
    checked(messages, can, ignored)
}

/// Checks the number of messages, and finds the call of each result.
pub(crate) fn checked(
    mut messages: Vec<ChatMessage>,
    can: &Capabilities,
    ignored: &mut Ignored,
) -> Result<Vec<ChatMessage>, FieldError> {
    if messages.is_empty() {
        return Err(FieldError::new("messages", "has no message"));
    }
    if let Some(max) = can.messages_max.filter(|&max| messages.len() > max) {
        let message = format!("has {} messages, at most {max} are allowed", messages.len());
        return Err(FieldError::new("messages", message));
    }
    let mut calls: BTreeSet<String> = BTreeSet::new();
    let mut unanswered: VecDeque<String> = VecDeque::new();
    for message in &mut messages {
        if message.role == Role::Tool {
            let id = message.call_id.take().or_else(|| unanswered.front().cloned());
            unanswered.retain(|open| Some(open) != id.as_ref());
            match id {
                Some(id) if calls.contains(&id) => message.call_id = Some(id),
                id => {
                    ignored.add("messages[].tool_call_id");
                    *message = orphan(id.as_deref(), &message.text);
                }
            }
        }
        calls.extend(message.calls.iter().map(|call| call.id.clone()));
        unanswered.extend(message.calls.iter().map(|call| call.id.clone()));
    }
    match messages.iter().all(ChatMessage::is_empty) {
        true => Err(FieldError::new("messages", "all messages are empty")),
        false => Ok(messages),
    }
}

/// Returns the result of a call that no message has, as text of the user.
fn orphan(id: Option<&str>, text: &str) -> ChatMessage {
    let lead = id.map_or_else(|| "Result of a tool".to_owned(), |id| format!("Result of the call {id}"));
    ChatMessage::new(Role::User, format!("{lead}:\n{text}"))
}

fn message(
    at: usize,
    body: ChatMessageBody,
    is_last: bool,
    can: &Capabilities,
    ignored: &mut Ignored,
) -> Result<ChatMessage, FieldError> {
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
    if role != Role::Tool && body.tool_call_id.is_some() {
        ignored.add("messages[].tool_call_id");
    }
    let is_last = is_last && role == Role::User;
    let text = match body.content {
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => joined(&field("content"), parts, is_last, ignored)?,
        None if matches!(role, Role::Assistant | Role::Tool) => String::new(),
        None => return Err(FieldError::new(field("content"), "is missing")),
    };
    let call_id = body.tool_call_id.filter(|_| role == Role::Tool);
    Ok(ChatMessage { role, text, calls, call_id })
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
            let arguments = match call.function.arguments {
                Some(Value::String(text)) => text,
                None | Some(Value::Null) => "{}".to_owned(),
                Some(other) => other.to_string(),
            };
            let id = call.id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("{field}[{at}]"));
            Ok(PastCall { id, name: call.function.name, arguments })
        }
        Some(_) => Err(FieldError::new(format!("{field}[{at}].type"), "only `function` is supported")),
    };
    bodies.into_iter().enumerate().map(call).collect()
}

/// Joins the parts of a message to one text.
fn joined(field: &str, parts: Vec<Part>, is_last: bool, ignored: &mut Ignored) -> Result<String, FieldError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (at, part) in parts.into_iter().enumerate() {
        texts.push(match (part.kind.as_str(), part.text) {
            ("text" | "input_text" | "output_text", Some(text)) => text,
            ("text", None) => return Err(FieldError::new(format!("{field}[{at}].text"), "is missing")),
            (kind, _) => {
                let place = format!("{field}[{at}]");
                Unreadable { place: &place, kind, is_last, readable: "`text`" }.text(ignored)?
            }
        });
    }
    texts.retain(|text| !text.is_empty());
    Ok(texts.join(BETWEEN_PARTS))
}
