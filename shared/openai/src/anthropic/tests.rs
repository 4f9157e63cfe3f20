//! Requests as Anthropic's clients send them, and replies as they read them.

use baton_protocol::{ErrorBody, ErrorCode, Role, Usage};
use serde_json::{Value, json};

use super::*;
use crate::capabilities::Capabilities;
use crate::error::FieldError;
use crate::reply::{Ending, FinishReason, Message, Piece};
use crate::request::{AnswerFormat, ChatRequest, Prompt};
use crate::tool_calls::ToolPiece;
use crate::tools::{ChatMessage, PastCall, ToolChoice};
use crate::writer::{AnswerFacts, AnswerWriter, Asked, Work};

fn body(extra: Value) -> Vec<u8> {
    let mut body =
        json!({ "model": "m", "max_tokens": 9, "messages": [{ "role": "user", "content": "Hello" }] });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body.to_string().into_bytes()
}

fn asked(extra: Value, can: &Capabilities) -> Result<Asked, FieldError> {
    match read_messages(&body(extra), can)? {
        Work::Answer(asked) => Ok(*asked),
        other => panic!("{other:?}"),
    }
}

fn read(extra: Value) -> ChatRequest {
    asked(extra.clone(), &Capabilities::CLOUD).unwrap_or_else(|err| panic!("{extra}: {err}")).request
}

#[test]
fn a_request_is_translated() {
    let request = read(json!({ "system": [{ "type": "text", "text": "Be brief." }], "stream": true,
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "stop_sequences": ["END"],
        "metadata": { "user_id": "u" }, "service_tier": "auto", "mcp_servers": null }));
    let want = [ChatMessage::new(Role::System, "Be brief."), ChatMessage::new(Role::User, "Hello")];
    assert_eq!(request.prompt, Prompt::Chat(want.to_vec()));
    assert_eq!((request.max_tokens, request.stream, request.shorten), (Some(9), true, false));
    let sampling = request.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (0.5, Some(0.9), Some(40)));
    assert_eq!(sampling.stop, ["END"]);
    assert_eq!(read(json!({})).sampling.temperature, 1.0);
    assert_eq!(read(json!({ "system": "S" })).prompt.messages()[0], ChatMessage::new(Role::System, "S"));
}

#[test]
fn blocks_are_paragraphs_and_results_are_messages() {
    let request = read(json!({ "messages": [
        { "role": "user", "content": [
            { "type": "document", "title": "T", "context": "C", "citations": { "enabled": false },
              "source": { "type": "text", "media_type": "text/plain", "data": "Long." } },
            { "type": "text", "text": "Which?", "cache_control": { "type": "ephemeral" } },
        ] },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "hm", "signature": "s" },
            { "type": "text", "text": "I look.", "citations": null },
            { "type": "tool_use", "id": "t1", "name": "f", "input": { "a": 1 } },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t1", "is_error": true,
              "content": [{ "type": "text", "text": "none" }] },
            { "type": "text", "text": "Well?" },
        ] },
    ] }));
    let call = PastCall { id: "t1".into(), name: "f".into(), arguments: r#"{"a":1}"#.into() };
    let thinking = Some("hm".into());
    let want = [
        ChatMessage::new(Role::User, "T\nC\nLong.\n\nWhich?"),
        ChatMessage { calls: vec![call], thinking, ..ChatMessage::new(Role::Assistant, "I look.") },
        ChatMessage { call_id: Some("t1".into()), ..ChatMessage::new(Role::Tool, "Error: none") },
        ChatMessage::new(Role::User, "Well?"),
    ];
    assert_eq!(request.prompt, Prompt::Chat(want.to_vec()));
}

fn tool() -> Value {
    json!([{ "name": "f", "description": "d", "input_schema": { "type": "object" } }])
}

#[test]
fn tools_and_their_choice_are_translated() {
    let uses = |choice: Value| read(json!({ "tools": tool(), "tool_choice": choice })).tools;
    let auto = uses(json!({ "type": "auto", "disable_parallel_tool_use": true })).unwrap();
    assert_eq!((auto.choice, auto.parallel, auto.tools[0].name.as_str()), (ToolChoice::Auto, false, "f"));
    assert_eq!(uses(json!({ "type": "any" })).unwrap().choice, ToolChoice::Required);
    let named = uses(json!({ "type": "tool", "name": "f" })).unwrap();
    assert_eq!(named.choice, ToolChoice::Named("f".into()));
    assert!(uses(json!({ "type": "none" })).is_none());
}

#[track_caller]
fn refused(extra: Value, param: &str, words: &str) {
    let err = asked(extra.clone(), &Capabilities::CLOUD).unwrap_err();
    assert_eq!(err.param(), Some(param), "{extra}: {err}");
    assert!(err.to_string().contains(words) && err.to_string().contains(param), "{extra}: {err}");
}

#[test]
fn what_cannot_be_translated_is_refused_by_name() {
    let said = |block: Value| json!({ "messages": [{ "role": "user", "content": [block] }] });
    refused(json!({ "max_tokens": null }), "max_tokens", "is missing");
    refused(json!({ "max_tokens": 0 }), "max_tokens", "at least 1");
    refused(json!({ "model": null }), "model", "is missing");
    refused(json!({ "temperature": 2.5 }), "temperature", "must be 0 to 2");
    refused(json!({ "top_p": 2 }), "top_p", "must be 0 to 1");
    refused(json!({ "stop_sequences": ["x".repeat(2000)] }), "stop_sequences[0]", "");
    refused(json!({ "messages": [] }), "messages", "has no message");
    refused(json!({ "messages": [{ "role": "wizard", "content": "" }] }), "messages[0].role", "must be");
    let image = json!({ "type": "image", "source": { "type": "base64", "data": "aa" } });
    refused(said(image), "messages[0].content[0]", "this is `image`");
    let pdf = json!({ "type": "document", "source": { "type": "base64", "data": "aa", "media_type": "p" } });
    refused(said(pdf), "messages[0].content[0].source", "this is `document`");
    let prefilled = json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }]);
    let must = json!({ "messages": prefilled, "tools": tool(), "tool_choice": { "type": "any" } });
    refused(must, "messages", "cannot continue it");
    refused(json!({ "output_format": { "type": "xml" } }), "output_config.format.type", "must be");
    refused(json!({ "tools": [{ "name": "f g" }] }), "tools[0].name", "letters");
    let text = json!([{ "name": "f", "input_schema": { "type": "string" } }]);
    refused(json!({ "tools": text }), "tools[0].input_schema", "type `object`");
    let other = json!({ "type": "tool", "name": "g" });
    refused(json!({ "tools": tool(), "tool_choice": other }), "tool_choice.name", "none of the tools");
    refused(json!({ "tool_choice": { "type": "tool" } }), "tool_choice.name", "is missing");
}

#[test]
fn what_agents_send_is_taken_and_named() {
    let request = read(json!({
        "messages": [{ "role": "user", "content": "hi" }, { "role": "system", "content": "Agents: none." }],
        "thinking": { "type": "adaptive" }, "context_management": { "edits": [] },
        "output_config": { "effort": "high" }, "mcp_servers": [{ "type": "url" }],
        "tools": [
            { "name": "Read", "input_schema": {}, "eager_input_streaming": true, "defer_loading": false },
            { "type": "web_search_20250305", "name": "web_search" },
            { "type": "mcp_toolset", "mcp_server_name": "m" },
        ],
    }));
    assert_eq!(request.prompt.messages()[1], ChatMessage::new(Role::System, "Agents: none."));
    assert_eq!(request.tools.unwrap().tools.len(), 1);
    let want = [
        "context_management",
        "mcp_servers",
        "output_config.effort",
        "tools[].defer_loading",
        "tools[].eager_input_streaming",
        "tools[].mcp_server_name",
        "tools[].mcp_toolset",
        "tools[].web_search_20250305",
    ];
    assert_eq!(request.ignored.names().collect::<Vec<_>>(), want);
    let schema = json!({ "type": "object", "properties": {} });
    let format = json!({ "type": "json_schema", "schema": schema });
    for extra in [json!({ "output_config": { "format": format } }), json!({ "output_format": format })] {
        assert_eq!(read(extra).format, AnswerFormat::JsonSchema(schema.clone()));
    }
}

#[test]
fn an_object_in_place_of_a_list_is_its_only_item() {
    let failed = json!({ "type": "web_search_tool_result", "tool_use_id": "s",
        "content": { "type": "web_search_tool_result_error", "error_code": "unavailable" } });
    let request = read(json!({ "messages": [
        { "role": "user", "content": { "type": "text", "text": "a" } },
        { "role": "assistant", "content": [failed] },
        { "role": "user", "content": "b" },
    ] }));
    let texts: Vec<&str> = request.prompt.messages().iter().map(|message| message.text.as_str()).collect();
    assert_eq!(texts, ["a", "[web_search_tool_result, which cannot be shown here]", "b"]);
}

#[test]
fn an_image_in_the_result_of_a_tool_becomes_a_text() {
    let image =
        json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "aa" } });
    let request = read(json!({ "messages": [
        { "role": "user", "content": "read a.png" },
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "t1", "name": "Read", "input": {} }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t1", "content": [image] }] },
    ] }));
    assert_eq!(request.prompt.messages()[2].text, "[an image, which cannot be shown here]");
    assert_eq!(request.ignored.header().as_deref(), Some("messages[].content[].content[].image"));
}

#[test]
fn a_device_without_a_model_of_its_own_refuses_tools() {
    let call = json!([{ "role": "user", "content": "a" },
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "t", "name": "f", "input": {} }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t" }] }]);
    for (extra, param) in
        [(json!({ "tools": tool() }), "tools"), (json!({ "messages": call }), "messages[1].content[0]")]
    {
        let err = asked(extra, &Capabilities::DEVICE_OF_CLOUD).unwrap_err();
        assert_eq!(err.param(), Some(param), "{err}");
        assert!(err.to_string().contains("does not support tools"), "{err}");
    }
    let plain = asked(json!({ "tools": [], "model": null }), &Capabilities::DEVICE).unwrap();
    assert_eq!((plain.request.model.as_str(), plain.counts_prompt), ("default", true));
}

#[test]
fn counting_needs_no_limit() {
    let counted = read_count(&body(json!({ "max_tokens": null })), &Capabilities::DEVICE).unwrap();
    assert_eq!(counted.prompt.messages().len(), 1);
}

fn ending(finish_reason: FinishReason) -> Ending {
    let usage = Usage { prompt_tokens: 40, cached_prefix_tokens: 32, completion_tokens: 5 };
    Ending::new(finish_reason, usage)
}

fn writer(extra: Value) -> Box<dyn AnswerWriter> {
    let facts = AnswerFacts { model: "m".into(), prompt_tokens: 40, is_thinking: false };
    asked(extra, &Capabilities::CLOUD).unwrap().writer.with(facts)
}

/// Returns the events of an answer made of these parts; checks that each has its name.
fn streamed(mut writer: Box<dyn AnswerWriter>, pieces: &[Piece], ending: Ending) -> Vec<Value> {
    let mut out = String::new();
    writer.begin(None, &mut out);
    writer.progress(&json!({ "stage": "prefill" }), &mut out);
    pieces.iter().for_each(|piece| writer.piece(piece.clone(), &mut out));
    writer.end(ending, &mut out);
    writer.done(&mut out);
    let event = |frame: &str| {
        let (name, data) = frame.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{frame}");
        data
    };
    out.split_terminator("\n\n").map(event).collect()
}

/// Puts events together as Anthropic's clients do.
fn put_together(events: &[Value]) -> Value {
    let mut message = Value::Null;
    for event in events {
        let at = event["index"].as_u64().unwrap_or_default() as usize;
        match event["type"].as_str().unwrap() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                assert_eq!(message["content"].as_array().unwrap().len(), at);
                message["content"].as_array_mut().unwrap().push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                for (of, field) in [("text", "text"), ("thinking", "thinking"), ("partial_json", "json")] {
                    if let Some(more) = delta[of].as_str() {
                        let so_far = message["content"][at][field].as_str().unwrap_or_default();
                        message["content"][at][field] = json!(format!("{so_far}{more}"));
                    }
                }
            }
            "content_block_stop" => {
                let block = message["content"][at].as_object_mut().unwrap();
                if let Some(input) = block.remove("json") {
                    block.insert("input".into(), serde_json::from_str(input.as_str().unwrap()).unwrap());
                }
            }
            "message_delta" => {
                for field in ["stop_reason", "stop_sequence"] {
                    message[field] = event["delta"][field].clone();
                }
                message["usage"] = event["usage"].clone();
            }
            "message_stop" | "ping" => (),
            other => panic!("{other}"),
        }
    }
    message
}

#[test]
fn the_events_put_together_are_the_whole_message() {
    let shows = json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } });
    let mut pieces = vec![Piece::text("<think>Let "), Piece::text("me.</thi"), Piece::text("nk>\n\nSo")];
    let calls = [
        ToolPiece::Text(": ".into()),
        ToolPiece::Call { index: 0, name: "f".into() },
        ToolPiece::Arguments { index: 0, text: "{\"a\"".into() },
        ToolPiece::Arguments { index: 0, text: ":1}".into() },
        ToolPiece::Call { index: 1, name: "g".into() },
        ToolPiece::Arguments { index: 1, text: "{}".into() },
    ];
    pieces.extend(calls.into_iter().map(Piece::from));
    for (extra, thinks) in [(shows, true), (json!({}), false)] {
        let events = streamed(writer(extra.clone()), &pieces, ending(FinishReason::ToolCalls));
        assert_eq!(events.last().unwrap()["type"], "message_stop");
        assert!(events.iter().any(|event| event["type"] == "ping"));
        let mut streamed = put_together(&events);
        let mut message = Message::default();
        message.take(pieces.clone());
        let whole = writer(extra).whole(message, ending(FinishReason::ToolCalls));
        let mut whole: Value = serde_json::from_str(&whole).unwrap();
        let kinds: Vec<&str> = whole["content"]
            .as_array()
            .unwrap()
            .iter()
            .map(|block| block["type"].as_str().unwrap())
            .collect();
        let want: &[&str] = if thinks {
            &["thinking", "text", "tool_use", "tool_use"]
        } else {
            &["text", "tool_use", "tool_use"]
        };
        assert_eq!(kinds, want);
        for message in [&mut streamed, &mut whole] {
            assert!(message["id"].as_str().unwrap().starts_with("msg_"));
            message["id"] = Value::Null;
        }
        assert_eq!(streamed, whole);
        assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("tool_use"), &Value::Null));
        let usage = json!({ "input_tokens": 8, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 32, "output_tokens": 5 });
        assert_eq!(whole["usage"], usage);
    }
}

#[test]
fn the_reason_is_anthropics() {
    for (reason, stop, want, sequence) in [
        (FinishReason::Stop, None, "end_turn", Value::Null),
        (FinishReason::Stop, Some("END"), "stop_sequence", json!("END")),
        (FinishReason::Stop, Some("<|im_end|>"), "end_turn", Value::Null),
        (FinishReason::Length, None, "max_tokens", Value::Null),
    ] {
        let ending = Ending { stop: stop.map(str::to_owned), ..ending(reason) };
        let events = streamed(writer(json!({ "stop_sequences": ["END"] })), &[], ending);
        let message = put_together(&events);
        assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!(want), &sequence));
        assert_eq!((&message["content"], &message["role"]), (&json!([]), &json!("assistant")));
    }
}

#[test]
fn errors_have_anthropics_types_and_statuses() {
    for (code, status, want_status, want_kind) in [
        (ErrorCode::InvalidRequest, 400, 400, "invalid_request_error"),
        (ErrorCode::InvalidRequest, 404, 404, "not_found_error"),
        (ErrorCode::InvalidRequest, 413, 413, "request_too_large"),
        (ErrorCode::InvalidRequest, 415, 415, "invalid_request_error"),
        (ErrorCode::Unauthorized, 401, 401, "authentication_error"),
        (ErrorCode::Forbidden, 403, 403, "permission_error"),
        (ErrorCode::UnknownModel, 404, 404, "not_found_error"),
        (ErrorCode::Overloaded, 429, 429, "rate_limit_error"),
        (ErrorCode::Unavailable, 503, 529, "overloaded_error"),
        (ErrorCode::Internal, 502, 500, "api_error"),
    ] {
        let (status, body) = error(status, &ErrorReply::from(&ErrorBody::new(code, "why")));
        assert_eq!((status, &body["error"]["type"]), (want_status, &json!(want_kind)));
        assert_eq!(body["type"], "error");
    }
    let (_, long) = error(400, &ErrorReply::new(ErrorCode::PromptTooLong, "9 of 8"));
    assert_eq!(long["error"]["message"], "prompt is too long: 9 of 8");
    let (mut writer, mut out) = (writer(json!({})), String::new());
    writer.error(&ErrorReply::new(ErrorCode::Internal, "why"), &mut out);
    assert!(out.starts_with("event: error\ndata: {") && out.contains("api_error"), "{out}");
}
