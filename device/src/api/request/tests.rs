//! What a chat request may hold, and what is refused by name.

use super::*;
use baton_protocol::{MARKS_MAX, NAME_BYTES_MAX};
use serde_json::json;

fn with(extra: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "q" }] });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[track_caller]
fn taken(body: &Value) -> ChatRequest {
    parse(body.to_string().as_bytes()).unwrap_or_else(|err| panic!("{body}: {err}"))
}

#[track_caller]
fn refused(body: &Value, param: &str, want: &str) {
    let error = parse(body.to_string().as_bytes()).unwrap_err();
    let ApiError::BadRequest { message, param: named } = &error else { panic!("{body}: {error}") };
    assert_eq!(named.as_deref().unwrap_or_default(), param, "{body}: {message}");
    assert!(message.contains(want), "{body}: {message}");
}

#[test]
fn understood_fields() {
    let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
    let request = taken(&json!({
        "model": "m",
        "messages": [
            { "role": "developer", "content": "s" },
            { "role": "user", "content": parts, "name": "ann" },
            { "role": "assistant", "content": null, "tool_calls": [], "refusal": null },
        ],
        "stream": true, "stream_options": { "include_usage": true, "include_progress": true },
        "max_completion_tokens": 7, "max_tokens": 9, "stop": "x", "seed": -3, "user": "u",
    }));
    assert_eq!(request.messages[0], ChatMessage { role: Role::System, text: "s".into() });
    assert_eq!((request.messages[1].text.as_str(), request.messages[2].text.as_str()), ("ab", ""));
    assert!(request.stream && request.include_usage && request.include_progress);
    assert_eq!((request.tokens_max, request.sampling.seed), (7, -3_i64 as u64));
    assert_eq!(request.sampling.stop, ["x"]);
    for (truncation, shorten) in [(json!(null), false), (json!("disabled"), false), (json!("auto"), true)] {
        assert_eq!(taken(&with(json!({ "truncation": truncation }))).shorten, shorten);
    }
}

#[test]
fn what_asks_for_nothing_is_taken() {
    for neutral in [
        json!({ "presence_penalty": 0, "frequency_penalty": 0.0 }),
        json!({ "tools": [], "tool_choice": "none", "parallel_tool_calls": true }),
        json!({ "tool_choice": "auto", "functions": [], "function_call": "auto" }),
        json!({ "logit_bias": {}, "logprobs": false, "top_logprobs": 0 }),
        json!({ "n": 1, "store": false, "modalities": ["text"], "stop": [], "top_p": 1, "temperature": 1 }),
        json!({ "response_format": { "type": "text" }, "stream": false, "stream_options": null }),
        json!({ "metadata": {}, "user": "u", "service_tier": "auto", "prompt_cache_key": "k" }),
        json!({ "logprobs": null, "tools": null, "reasoning_effort": null, "audio": null, "brand_new": null }),
        json!({ "top_p": 0, "temperature": 0, "safety_identifier": "s" }),
    ] {
        taken(&with(neutral));
    }
}

#[test]
fn defaults_are_openais_and_a_seed_repeats() {
    let (one, two) = (taken(&with(json!({}))), taken(&with(json!({}))));
    assert_eq!((one.sampling.temperature, one.sampling.top_p), (1.0, None));
    assert_ne!(one.sampling.seed, two.sampling.seed, "another answer each time");
    assert_eq!(taken(&with(json!({ "seed": 3 }))).sampling.seed, 3);
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    for (extra, param, want) in [
        (json!({ "tools": [{ "type": "function" }] }), "tools", "not supported"),
        (json!({ "tool_choice": "required" }), "tool_choice", "no tools"),
        (json!({ "logprobs": true }), "logprobs", "not supported"),
        (json!({ "top_logprobs": 2 }), "top_logprobs", "must be 0"),
        (json!({ "logit_bias": { "5": -100 } }), "logit_bias", "not supported"),
        (json!({ "presence_penalty": 0.5 }), "presence_penalty", "must be 0"),
        (json!({ "frequency_penalty": -1 }), "frequency_penalty", "must be 0"),
        (json!({ "n": 2 }), "n", "only 1"),
        (json!({ "store": true }), "store", "never stored"),
        (json!({ "modalities": ["audio"] }), "modalities", "only `text`"),
        (json!({ "response_format": { "type": "json_object" } }), "response_format", "only `text`"),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": {} } }),
            "response_format",
            "only",
        ),
        (json!({ "stream_options": { "include_usage": true } }), "stream_options", "needs `stream`"),
        (json!({ "reasoning_effort": "high" }), "reasoning_effort", "not supported"),
        (json!({ "truncation": "middle" }), "truncation", "must be"),
        (json!({ "max_token": 5 }), "max_token", "not supported"),
    ] {
        refused(&with(extra), param, want);
    }
}

#[test]
fn numbers_out_of_range_are_named() {
    for (extra, param) in [
        (json!({ "top_p": 5 }), "top_p"),
        (json!({ "top_p": -0.1 }), "top_p"),
        (json!({ "temperature": 2.1 }), "temperature"),
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "top_k": 0 }), "top_k"),
        (json!({ "min_p": 1.5 }), "min_p"),
        (json!({ "repetition_penalty": 0 }), "repetition_penalty"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "max_tokens": -1 }), "max_tokens"),
        (json!({ "max_completion_tokens": 1e9 as u64 }), "max_completion_tokens"),
        (json!({ "stop": [""] }), "stop[0]"),
        (json!({ "stop": vec!["x"; 17] }), "stop"),
        (json!({ "stop": "x".repeat(2000) }), "stop[0]"),
        (json!({ "seed": 1.5 }), "seed"),
    ] {
        refused(&with(extra), param, "");
    }
}

#[test]
fn messages_are_checked() {
    let with = |message: Value| json!({ "messages": [message] });
    refused(&json!({ "messages": [] }), "messages", "0 messages");
    refused(&with(json!({ "role": "user", "content": "" })), "messages", "empty");
    refused(&with(json!({ "role": "user", "content": null })), "messages[0].content", "missing");
    refused(&with(json!({ "role": "wizard", "content": "q" })), "messages[0].role", "must be");
    let image = json!({ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] });
    refused(&with(image), "messages[0].content[0]", "text");
    let calls = json!({ "role": "assistant", "content": "", "tool_calls": [{}] });
    refused(&with(calls), "messages[0].tool_calls", "not supported");
    refused(
        &with(json!({ "role": "user", "content": "q", "audio": {} })),
        "messages[0].audio",
        "not supported",
    );
}

#[test]
fn a_body_that_costs_more_than_its_length_is_refused_by_its_shape() {
    let small = format!(r#"{{"x":[{}[0]]}}"#, "[0],".repeat(MARKS_MAX / 2));
    let long = format!(r#"{{"{}":1}}"#, "n".repeat(NAME_BYTES_MAX + 1));
    for (body, want) in [(small, "values and fields"), (long, "has a name of")] {
        let error = parse(body.as_bytes()).unwrap_err();
        let ApiError::BadRequest { message, param } = &error else { panic!("{error}") };
        assert!(message.contains(want) && param.is_none(), "{param:?}: {message}");
    }
}

#[test]
fn what_is_no_json_says_so() {
    for body in ["{", "", "{\"messages\":[]}x", "\u{1b}[2J"] {
        let error = parse(body.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("not JSON") && !error.contains('\u{1b}'), "{error}");
    }
    refused(&json!({}), "", "messages");
}
