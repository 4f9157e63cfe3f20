//! The messages of a request.
//!
//! Always: a message of role `tool` answers a call of an earlier message. A result of no known call is laid
//! out as text of the user.

use std::collections::{BTreeSet, VecDeque};

use baton_protocol::Role;
use serde_json::Value;

use super::parts::{Unreadable, is_last_turn, text_of};
use super::unsupported::NO_TOOLS;
use crate::capabilities::Capabilities;
use crate::error::FieldError;
use crate::ignored::Ignored;
use crate::tools::{ChatMessage, PastCall};
use crate::wire::{ChatMessageBody, PastCallBody, PastFunction};

/// The id of a result, as this API names it.
const RESULT_ID: &str = "messages[].tool_call_id";

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
    checked(messages, can, RESULT_ID, ignored)
}

/// Checks the number of messages, and finds the call of each result. `result_id` is how the dialect names the
/// id of a result.
pub(crate) fn checked(
    mut messages: Vec<ChatMessage>,
    can: &Capabilities,
    result_id: &str,
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
                    ignored.add(result_id);
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
    mut body: ChatMessageBody,
    is_last: bool,
    can: &Capabilities,
    ignored: &mut Ignored,
) -> Result<ChatMessage, FieldError> {
    let field = |name: &str| format!("messages[{at}].{name}");
    let role = match body.role.as_str() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" | "function" if can.tools => Role::Tool,
        "tool" | "function" => {
            return Err(FieldError::new(field("role"), format!("{NO_TOOLS}; leave such messages out")));
        }
        _ => {
            let want = "must be `system`, `developer`, `user`, `assistant` or `tool`";
            return Err(FieldError::new(field("role"), want));
        }
    };
    let older = body.function_call.take();
    let older = older.map(|function| PastCallBody { id: None, kind: None, function: Some(function) });
    let calls = body.tool_calls.take().into_iter().flatten().chain(older).collect();
    let calls = calls_of(&field("tool_calls"), role, calls, can, ignored)?;
    if role != Role::Tool && body.tool_call_id.is_some() {
        ignored.add(RESULT_ID);
    }
    let thinking = thinking(&body, ignored).filter(|_| role == Role::Assistant);
    let is_last = is_last && role == Role::User;
    let mut text = match body.content {
        Some(content) => text_of(&field("content"), content, is_last, ignored)?,
        None if is_last => return Err(FieldError::new(field("content"), "is missing")),
        None => String::new(),
    };
    if body.audio.is_some_and(|audio| !audio.is_null()) {
        text.push_str(&Unreadable { place: &field("audio"), kind: "audio", is_last }.text(ignored)?);
    }
    let call_id = body.tool_call_id.filter(|_| role == Role::Tool);
    Ok(ChatMessage { calls, call_id, thinking, ..ChatMessage::new(role, text) })
}

/// Returns the thinking of an earlier answer, by the names that engines and routers give it.
fn thinking(body: &ChatMessageBody, ignored: &mut Ignored) -> Option<String> {
    let part = |part: &Value| Some(part["text"].as_str().or(part["summary"].as_str())?.to_owned());
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(part).collect(),
        _ => String::new(),
    };
    let names = [
        ("reasoning_content", &body.reasoning_content),
        ("reasoning", &body.reasoning),
        ("reasoning_details", &body.reasoning_details),
    ];
    let given = names.into_iter().filter_map(|(name, value)| Some((name, text(value.as_ref()?))));
    let (name, text) = given.into_iter().find(|(_, text)| !text.is_empty())?;
    ignored.add_at("messages[]", name);
    Some(text)
}

fn calls_of(
    field: &str,
    role: Role,
    bodies: Vec<PastCallBody>,
    can: &Capabilities,
    ignored: &mut Ignored,
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
    let mut calls = Vec::with_capacity(bodies.len());
    for (at, PastCallBody { id, kind, function }) in bodies.into_iter().enumerate() {
        let Some(PastFunction { name, arguments }) = function else {
            ignored.add_at(&format!("{field}[]"), kind.as_deref().unwrap_or("function"));
            continue;
        };
        let arguments = match arguments {
            Some(Value::String(text)) => text,
            None | Some(Value::Null) => "{}".to_owned(),
            Some(other) => other.to_string(),
        };
        let id = id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("{field}[{at}]"));
        calls.push(PastCall { id, name, arguments });
    }
    Ok(calls)
}
