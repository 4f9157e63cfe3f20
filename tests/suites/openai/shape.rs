//! The shape of replies: every key, its type, and how the parts of an answer fit together.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::programs::Reply;
use super::table::Refusal;

/// What an answer says, whichever way it was sent.
#[derive(Debug, PartialEq)]
pub(crate) struct Summary {
    pub content: String,
    /// Name and arguments of each call.
    pub calls: Vec<(String, String)>,
    pub finish_reason: String,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// Log probabilities, one entry for each token.
    pub places: Vec<Value>,
    /// It has the field `baton`.
    pub baton: bool,
}

impl Summary {
    /// What is the same in both programs. Tokens that hold the text of a stop string are counted by the
    /// cloud alone.
    pub(crate) fn text(&self) -> (&str, &str, u64) {
        (&self.content, &self.finish_reason, self.prompt_tokens)
    }
}

/// Names of an object's fields.
#[track_caller]
pub(crate) fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}")).keys().map(String::as_str).collect()
}

/// Checks that an object has exactly these fields, and perhaps further ones of `also`.
#[track_caller]
fn has_keys(value: &Value, want: &[&str], also: &[&str], place: &str) {
    let have: BTreeSet<&str> = keys(value).into_iter().filter(|key| !also.contains(key)).collect();
    assert_eq!(have, want.iter().copied().collect(), "{place}: {value}");
}

/// Checks a refusal: its status, and all fields of OpenAI's error.
#[track_caller]
pub(crate) fn check_refusal(reply: &Reply, want: Refusal, place: &str) {
    let Reply { status, content_type, text } = reply;
    assert_eq!((*status, content_type.as_str()), (want.status, "application/json"), "{place}: {text}");
    let body: Value = serde_json::from_str(text).unwrap_or_else(|err| panic!("{place}: {err}: {text}"));
    has_keys(&body, &["error"], &[], place);
    let error = &body["error"];
    has_keys(error, &["message", "type", "param", "code"], &["retry_after_ms"], place);
    let have = (error["type"].as_str(), error["param"].as_str(), error["code"].as_str());
    assert_eq!(have, (Some("invalid_request_error"), want.param, Some(want.code)), "{place}: {error}");
    let message = error["message"].as_str().unwrap_or_default();
    assert!(!message.is_empty() && !message.contains(char::is_control), "{place}: {message:?}");
}

/// Checks what all parts of an answer have in common.
#[track_caller]
fn check_head(value: &Value, object: &str, model: &str, place: &str) {
    assert_eq!((&value["object"], &value["model"]), (&json!(object), &json!(model)), "{place}: {value}");
    assert!(value["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")), "{place}: {value}");
    assert!(value["created"].as_u64().is_some_and(|seconds| seconds > 0), "{place}: {value}");
}

/// Checks the usage; returns the tokens of the prompt and of the answer.
#[track_caller]
fn check_usage(usage: &Value, place: &str) -> (u64, u64) {
    has_keys(
        usage,
        &["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"],
        &[],
        place,
    );
    has_keys(&usage["prompt_tokens_details"], &["cached_tokens"], &[], place);
    let count = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{place}: {usage}"));
    let (prompt, completion) = (count(&usage["prompt_tokens"]), count(&usage["completion_tokens"]));
    assert_eq!(count(&usage["total_tokens"]), prompt + completion, "{place}: {usage}");
    assert!(
        prompt > 0 && count(&usage["prompt_tokens_details"]["cached_tokens"]) <= prompt,
        "{place}: {usage}"
    );
    (prompt, completion)
}

/// Log probabilities of an answer or a chunk.
#[track_caller]
fn places(logprobs: &Value, place: &str) -> Vec<Value> {
    if logprobs.is_null() {
        return Vec::new();
    }
    has_keys(logprobs, &["content", "refusal"], &[], place);
    let entries = logprobs["content"].as_array().unwrap_or_else(|| panic!("{place}: {logprobs}"));
    for entry in entries {
        has_keys(entry, &["token", "logprob", "bytes", "top_logprobs"], &[], place);
    }
    entries.clone()
}

/// Checks an answer in one piece.
#[track_caller]
pub(crate) fn check_whole(model: &str, reply: &Reply, place: &str) -> Summary {
    let Reply { status, content_type, text } = reply;
    assert_eq!((*status, content_type.as_str()), (200, "application/json"), "{place}: {text}");
    let body: Value = serde_json::from_str(text).unwrap_or_else(|err| panic!("{place}: {err}: {text}"));
    has_keys(&body, &["id", "object", "created", "model", "choices", "usage"], &["baton"], place);
    check_head(&body, "chat.completion", model, place);
    assert_eq!(body["choices"].as_array().map(Vec::len), Some(1), "{place}: {body}");
    let choice = &body["choices"][0];
    has_keys(choice, &["index", "message", "logprobs", "finish_reason"], &[], place);
    let message = &choice["message"];
    has_keys(message, &["role", "content", "refusal"], &["tool_calls"], place);
    let fixed = (&choice["index"], &message["role"], &message["refusal"]);
    assert_eq!(fixed, (&json!(0), &json!("assistant"), &Value::Null), "{place}: {choice}");
    let called = |call: &Value| {
        has_keys(call, &["id", "type", "function"], &[], place);
        let part = |name: &str| call["function"][name].as_str().unwrap_or_default().to_owned();
        (part("name"), part("arguments"))
    };
    let calls: Vec<(String, String)> =
        message["tool_calls"].as_array().into_iter().flatten().map(called).collect();
    assert_eq!(message["content"].is_null(), !calls.is_empty(), "{place}: {message}");
    let (prompt_tokens, completion_tokens) = check_usage(&body["usage"], place);
    Summary {
        content: message["content"].as_str().unwrap_or_default().to_owned(),
        calls,
        finish_reason: choice["finish_reason"].as_str().unwrap_or_default().to_owned(),
        prompt_tokens,
        completion_tokens,
        places: places(&choice["logprobs"], place),
        baton: body["baton"].get("mask").is_some(),
    }
}

/// The JSON of every `data:` line; checks that `[DONE]` is the last and that no event has a name.
#[track_caller]
fn chunks(text: &str, place: &str) -> Vec<Value> {
    let is_frame = |frame: &&str| frame.starts_with("data: ") || frame.starts_with(':');
    let frames: Vec<&str> = text.split_terminator("\n\n").collect();
    assert!(frames.iter().all(is_frame), "{place}: {text}");
    let mut data: Vec<&str> = frames.into_iter().filter_map(|frame| frame.strip_prefix("data: ")).collect();
    assert_eq!(data.pop(), Some("[DONE]"), "{place}: {text}");
    let chunk =
        |data: &str| serde_json::from_str(data).unwrap_or_else(|err| panic!("{place}: {err}: {data}"));
    data.into_iter().map(chunk).collect()
}

/// Checks an answer that was streamed with its usage.
#[track_caller]
pub(crate) fn check_stream(model: &str, reply: &Reply, place: &str) -> Summary {
    let Reply { status, content_type, text } = reply;
    assert_eq!((*status, content_type.as_str()), (200, "text/event-stream"), "{place}: {text}");
    let chunks = chunks(text, place);
    let (last, parts) = chunks.split_last().unwrap_or_else(|| panic!("{place}: {text}"));
    for chunk in &chunks {
        has_keys(chunk, &["id", "object", "created", "model", "choices", "usage"], &["baton"], place);
        check_head(chunk, "chat.completion.chunk", model, place);
        assert_eq!(chunk["id"], last["id"], "{place}: one answer has one id");
    }
    assert_eq!(last["choices"], json!([]), "{place}: the last chunk is the usage");
    let (prompt_tokens, completion_tokens) = check_usage(&last["usage"], place);
    let first = parts.first().unwrap_or_else(|| panic!("{place}: {text}"));
    let role = json!({ "role": "assistant", "content": "", "refusal": null });
    assert_eq!(first["choices"][0]["delta"], role, "{place}: the first chunk has the role");
    let mut summary = Summary {
        content: String::new(),
        calls: Vec::new(),
        finish_reason: String::new(),
        prompt_tokens,
        completion_tokens,
        places: Vec::new(),
        baton: parts.iter().any(|part| part["baton"].get("mask").is_some()),
    };
    let mut reasons = Vec::new();
    for part in parts {
        assert!(part["usage"].is_null(), "{place}: {part}");
        let choice = &part["choices"][0];
        has_keys(choice, &["index", "delta", "logprobs", "finish_reason"], &[], place);
        summary.content.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        summary.places.extend(places(&choice["logprobs"], place));
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            add_call(&mut summary.calls, call, place);
        }
        reasons.extend(choice["finish_reason"].as_str());
    }
    assert_eq!(reasons.len(), 1, "{place}: one chunk has the reason: {reasons:?}");
    summary.finish_reason = reasons[0].to_owned();
    summary
}

/// Adds a part of a call: the first one has its id and name.
#[track_caller]
fn add_call(calls: &mut Vec<(String, String)>, part: &Value, place: &str) {
    let function = &part["function"];
    if let Some(name) = function["name"].as_str() {
        has_keys(part, &["index", "id", "type", "function"], &[], place);
        calls.push((name.to_owned(), String::new()));
    } else {
        has_keys(part, &["index", "function"], &[], place);
    }
    assert_eq!(part["index"].as_u64(), Some(calls.len() as u64 - 1), "{place}: {part}");
    let arguments = function["arguments"].as_str().unwrap_or_else(|| panic!("{place}: {part}"));
    calls.last_mut().expect("a call has begun").1.push_str(arguments);
}
