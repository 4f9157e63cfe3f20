//! Requests as OpenAI's clients send them, and responses as they read them.

use baton_protocol::{ErrorCode, Role, Usage};
use serde_json::{Value, json};

use super::read_responses;
use crate::capabilities::Capabilities;
use crate::error::{ErrorReply, FieldError};
use crate::reply::{Ending, FinishReason, Message, Piece};
use crate::request::{AnswerFormat, ChatRequest, Prompt};
use crate::tool_calls::ToolPiece;
use crate::tools::{ChatMessage, PastCall, ToolChoice};
use crate::writer::{AnswerFacts, AnswerWriter, Asked, Work};

fn asked(extra: Value, can: &Capabilities) -> Result<Asked, FieldError> {
    let mut body = json!({ "model": "m", "input": "Hello" });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    match read_responses(body.to_string().as_bytes(), can)? {
        Work::Answer(asked) => Ok(*asked),
        other => panic!("{other:?}"),
    }
}

fn read(extra: Value) -> ChatRequest {
    asked(extra.clone(), &Capabilities::CLOUD).unwrap_or_else(|err| panic!("{extra}: {err}")).request
}

fn tool() -> Value {
    json!([{ "type": "function", "name": "f", "parameters": { "type": "object" }, "strict": true }])
}

#[test]
fn a_request_is_translated() {
    let request = read(json!({ "instructions": "Be brief.", "max_output_tokens": 7, "temperature": 0.5,
        "top_p": 0.9, "stream": true, "stream_options": { "include_obfuscation": false }, "store": false,
        "include": ["reasoning.encrypted_content"], "reasoning": { "effort": "medium", "summary": "auto" },
        "text": { "format": { "type": "text" }, "verbosity": "medium" }, "metadata": { "a": "b" },
        "truncation": "disabled", "prompt_cache_key": "k", "previous_response_id": null, "tools": [] }));
    let want = vec![ChatMessage::new(Role::System, "Be brief."), ChatMessage::new(Role::User, "Hello")];
    assert_eq!((request.prompt, request.max_tokens, request.stream), (Prompt::Chat(want), Some(7), true));
    assert_eq!((request.sampling.temperature, request.sampling.top_p), (0.5, Some(0.9)));
    let schema =
        json!({ "type": "json_schema", "name": "n", "schema": { "type": "object" }, "strict": true });
    let request = read(json!({ "text": { "format": schema } }));
    assert_eq!(request.format, AnswerFormat::JsonSchema(json!({ "type": "object" })));
    let shortened = asked(json!({ "truncation": "auto" }), &Capabilities::DEVICE).unwrap().request;
    assert!(shortened.shorten);
}

#[test]
fn items_are_messages() {
    let request = read(json!({ "input": [
        { "role": "developer", "content": "Be brief." },
        { "type": "message", "role": "user", "content": [
            { "type": "input_text", "text": "He" }, { "type": "input_text", "text": "llo" },
        ] },
        { "type": "reasoning", "id": "rs_1", "summary": [], "content": [{ "type": "reasoning_text", "text": "hm" }] },
        { "type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [
            { "type": "output_text", "text": "I look.", "annotations": [], "logprobs": [] },
        ] },
        { "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}" },
        { "type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c2", "output": "two" },
        { "type": "function_call_output", "call_id": "c1", "output": [{ "type": "input_text", "text": "one" }] },
    ] }));
    let call = |id: &str, name: &str| PastCall { id: id.into(), name: name.into(), arguments: "{}".into() };
    let result =
        |id: &str, text: &str| ChatMessage { call_id: Some(id.into()), ..ChatMessage::new(Role::Tool, text) };
    let want = vec![
        ChatMessage::new(Role::System, "Be brief."),
        ChatMessage::new(Role::User, "He\nllo"),
        ChatMessage {
            calls: vec![call("c1", "f"), call("c2", "g")],
            thinking: Some("hm".into()),
            ..ChatMessage::new(Role::Assistant, "I look.")
        },
        result("c2", "two"),
        result("c1", "one"),
    ];
    assert_eq!(request.prompt, Prompt::Chat(want));
}

#[test]
fn functions_are_flat() {
    let request = read(json!({ "tools": tool(), "tool_choice": { "type": "function", "name": "f" } }));
    let tools = request.tools.unwrap();
    assert_eq!((tools.choice, tools.tools[0].strict), (ToolChoice::Named("f".into()), true));
    assert!(read(json!({ "tools": tool(), "tool_choice": "none" })).tools.is_none());
}

#[track_caller]
fn refused(extra: Value, param: &str, words: &str) {
    let err = asked(extra.clone(), &Capabilities::CLOUD).unwrap_err();
    assert_eq!(err.param(), Some(param), "{extra}: {err}");
    assert!(err.to_string().contains(words) && err.to_string().contains(param), "{extra}: {err}");
}

#[test]
fn what_cannot_be_translated_is_refused_by_name() {
    refused(json!({ "model": null }), "model", "is missing");
    refused(json!({ "previous_response_id": "resp_1" }), "previous_response_id", "nothing is kept");
    refused(json!({ "conversation": "conv_1" }), "conversation", "nothing is kept");
    refused(json!({ "prompt": { "id": "p" } }), "prompt", "is not supported");
    refused(json!({ "text": { "format": { "type": "xml" } } }), "text.format.type", "must be");
    let unnamed = json!({ "text": { "format": { "type": "json_schema" } } });
    refused(unnamed, "text.format.schema", "is missing");
    refused(json!({ "max_output_tokens": 0 }), "max_output_tokens", "at least 1");
    refused(json!({ "temperature": 3 }), "temperature", "0 to 2");
    refused(json!({ "input": [] }), "input", "has no message");
    refused(json!({ "tools": [{ "type": "function", "name": "f g" }] }), "tools[0].name", "letters");
    let allowed = json!({ "type": "allowed_tools", "mode": "often", "tools": [] });
    refused(json!({ "tools": tool(), "tool_choice": allowed }), "tool_choice.mode", "must be `auto`");
    let other = json!({ "type": "function", "name": "g" });
    refused(json!({ "tools": tool(), "tool_choice": other }), "tool_choice.name", "none of the tools");
    let item = |item: Value| json!({ "input": [item] });
    refused(item(json!({ "type": "item_reference", "id": "i" })), "input[0]", "nothing is kept");
    refused(item(json!({ "role": "robot", "content": "a" })), "input[0].role", "must be");
    refused(item(json!({ "role": "user" })), "input[0].content", "is missing");
    let image = json!([{ "type": "input_image", "image_url": "u" }]);
    refused(
        item(json!({ "role": "user", "content": image })),
        "input[0].content[0]",
        "this is `input_image`",
    );
}

#[test]
fn what_agents_send_is_taken_and_named() {
    let request = read(json!({
        "input": [
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "hi" }] },
            { "type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin" },
            { "type": "custom_tool_call_output", "call_id": "c1", "output": "Done" },
            { "type": "function_call", "call_id": "c2", "namespace": "n", "name": "wait", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "c2", "output": "ok" },
            { "type": "web_search_call", "id": "ws_1", "status": "completed" },
        ],
        "client_metadata": { "turn_id": "t" }, "reasoning": { "effort": "high", "summary": "auto" },
        "text": { "verbosity": "low" }, "store": true, "background": true, "include": ["a"],
        "tools": [
            { "type": "function", "name": "shell", "parameters": { "type": "object", "properties": {} } },
            { "type": "namespace", "name": "n", "tools": [{ "type": "function", "name": "wait" }] },
            { "type": "web_search", "external_web_access": false },
            { "type": "custom", "name": "apply_patch", "format": { "type": "grammar", "definition": "start: /.+/" } },
        ],
    }));
    let called: Vec<(&str, &str)> = request
        .prompt
        .messages()
        .iter()
        .flat_map(|message| &message.calls)
        .map(|call| (call.name.as_str(), call.arguments.as_str()))
        .collect();
    assert_eq!(called, [("apply_patch", r#"{"input":"*** Begin"}"#), ("n__wait", "{}")]);
    let tools: Vec<String> = request.tools.unwrap().tools.into_iter().map(|tool| tool.name).collect();
    assert_eq!(tools, ["shell", "n__wait", "apply_patch"]);
    let want = [
        "background",
        "client_metadata",
        "include",
        "input[].web_search_call",
        "reasoning",
        "store",
        "text.verbosity",
        "tools[].external_web_access",
        "tools[].web_search",
    ];
    assert_eq!(request.ignored.names().collect::<Vec<_>>(), want);
}

#[test]
fn calls_have_the_form_of_their_tools() {
    let tools = json!([
        { "type": "namespace", "name": "n", "tools": [{ "type": "function", "name": "wait" }] },
        { "type": "custom", "name": "apply_patch" },
    ]);
    let pieces = || {
        [
            ToolPiece::Call { index: 0, name: "n__wait".into() },
            ToolPiece::Arguments { index: 0, text: "{}".into() },
            ToolPiece::Call { index: 1, name: "apply_patch".into() },
            ToolPiece::Arguments { index: 1, text: "{\"input\": \"*** ".into() },
            ToolPiece::Arguments { index: 1, text: "Begin\"}".into() },
        ]
        .map(Piece::from)
    };
    let mut writer = writer(json!({ "tools": tools }));
    let mut out = String::new();
    writer.begin(None, &mut out);
    pieces().into_iter().for_each(|piece| writer.piece(piece, &mut out));
    writer.end(ending(FinishReason::ToolCalls), &mut out);
    let events = events(&out);
    let output = &events.last().unwrap()["response"]["output"];
    assert_eq!((&output[0]["type"], &output[0]["namespace"]), (&json!("function_call"), &json!("n")));
    assert_eq!((&output[0]["name"], &output[0]["arguments"]), (&json!("wait"), &json!("{}")));
    assert_eq!((&output[1]["type"], &output[1]["input"]), (&json!("custom_tool_call"), &json!("*** Begin")));
    let deltas: Vec<&Value> = events
        .iter()
        .filter(|event| event["type"] == "response.custom_tool_call_input.delta")
        .map(|event| &event["delta"])
        .collect();
    assert_eq!(deltas, ["*** Begin"]);
}

#[test]
fn a_device_without_a_model_of_its_own_refuses_tools() {
    let call = json!([{ "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" }]);
    for (extra, param) in [(json!({ "tools": tool() }), "tools"), (json!({ "input": call }), "input[0]")] {
        let err = asked(extra, &Capabilities::DEVICE_OF_CLOUD).unwrap_err();
        assert_eq!(err.param(), Some(param), "{err}");
        assert!(err.to_string().contains("does not support tools"), "{err}");
    }
}

fn ending(finish_reason: FinishReason) -> Ending {
    let usage = Usage { prompt_tokens: 40, cached_prefix_tokens: 32, completion_tokens: 5 };
    Ending::new(finish_reason, usage)
}

fn writer(extra: Value) -> Box<dyn AnswerWriter> {
    asked(extra, &Capabilities::CLOUD).unwrap().writer.with(AnswerFacts::of("m"))
}

/// Returns the events of a stream; checks their names and their numbers.
fn events(out: &str) -> Vec<Value> {
    let frames = out.split_terminator("\n\n").filter(|frame| !frame.starts_with(':'));
    let event = |(number, frame): (usize, &str)| {
        let (name, data) = frame.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{frame}");
        assert_eq!(data["sequence_number"], number, "{frame}");
        data
    };
    frames.enumerate().map(event).collect()
}

/// Returns the output of a response without the ids that differ from one to the next.
fn output(response: &Value) -> Value {
    let mut output = response["output"].clone();
    output.as_array_mut().unwrap().iter_mut().for_each(|item| item["id"] = Value::Null);
    output
}

#[test]
fn the_events_tell_the_whole_response() {
    let parts = [
        ToolPiece::Text("<think>Let me.</think>\n".into()),
        ToolPiece::Text("So".into()),
        ToolPiece::Text(": ".into()),
        ToolPiece::Call { index: 0, name: "f".into() },
        ToolPiece::Arguments { index: 0, text: "{\"a\"".into() },
        ToolPiece::Arguments { index: 0, text: ":1}".into() },
        ToolPiece::Call { index: 1, name: "g".into() },
        ToolPiece::Arguments { index: 1, text: "{}".into() },
    ];
    let pieces: Vec<Piece> = parts.into_iter().map(Piece::from).collect();
    let (mut streaming, mut out) = (writer(json!({ "tools": tool() })), String::new());
    streaming.begin(None, &mut out);
    streaming.progress(&json!({ "computed": 1 }), &mut out);
    pieces.iter().for_each(|piece| streaming.piece(piece.clone(), &mut out));
    streaming.end(ending(FinishReason::ToolCalls), &mut out);
    streaming.done(&mut out);
    assert!(out.contains("\n\n: progress {\"computed\":1}\n\n"), "{out}");
    let events = events(&out);
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..3], ["response.created", "response.in_progress", "response.output_item.added"]);
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    let response = &last["response"];

    let mut message = Message::default();
    message.take(pieces);
    let whole = writer(json!({ "tools": tool() })).whole(message, ending(FinishReason::ToolCalls));
    let whole: Value = serde_json::from_str(&whole).unwrap();
    assert_eq!(output(response), output(&whole));
    assert_eq!((&response["status"], &whole["status"]), (&json!("completed"), &json!("completed")));
    let types: Vec<&str> =
        whole["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["reasoning", "message", "function_call", "function_call"]);
    assert_eq!(whole["output"][1]["content"][0]["text"], "So: ");
    assert_eq!(whole["output"][2]["arguments"], r#"{"a":1}"#);
    assert_eq!((&whole["usage"]["input_tokens"], &whole["usage"]["total_tokens"]), (&json!(40), &json!(45)));
    assert_eq!(whole["usage"]["input_tokens_details"]["cached_tokens"], 32);

    // Each item's deltas put together are its text, and each item is told as it stands in the response.
    for (at, item) in response["output"].as_array().unwrap().iter().enumerate() {
        let own = |kind: &str| {
            let is_own = move |event: &&Value| event["output_index"] == at && event["type"] == kind;
            events.iter().filter(is_own).collect::<Vec<_>>()
        };
        let done = own("response.output_item.done");
        assert_eq!((done.len(), &done[0]["item"]), (1, item));
        let added = own("response.output_item.added");
        assert_eq!(
            (&added[0]["item"]["id"], &added[0]["item"]["status"]),
            (&item["id"], &json!("in_progress"))
        );
        let (kind, text) = match item["type"].as_str().unwrap() {
            "message" => ("response.output_text.delta", &item["content"][0]["text"]),
            "reasoning" => ("response.reasoning_text.delta", &item["content"][0]["text"]),
            _ => ("response.function_call_arguments.delta", &item["arguments"]),
        };
        let joined: String = own(kind).iter().map(|event| event["delta"].as_str().unwrap()).collect();
        assert_eq!(json!(joined), *text);
        assert!(own(kind).iter().all(|event| event["item_id"] == item["id"]));
    }
}

#[test]
fn a_response_repeats_its_request() {
    let extra = json!({ "instructions": "I", "max_output_tokens": 7, "metadata": { "a": "b" }, "user": "u",
        "tools": tool(), "tool_choice": "required", "temperature": 0 });
    let whole = writer(extra).whole(Message::default(), ending(FinishReason::Length));
    let whole: Value = serde_json::from_str(&whole).unwrap();
    for (field, want) in [
        ("object", json!("response")),
        ("status", json!("incomplete")),
        ("incomplete_details", json!({ "reason": "max_output_tokens" })),
        ("instructions", json!("I")),
        ("max_output_tokens", json!(7)),
        ("metadata", json!({ "a": "b" })),
        ("user", json!("u")),
        ("tool_choice", json!("required")),
        ("parallel_tool_calls", json!(false)),
        ("temperature", json!(0.0)),
        ("top_p", json!(1.0)),
        ("store", json!(false)),
        ("truncation", json!("disabled")),
        ("error", Value::Null),
        ("output", json!([])),
    ] {
        assert_eq!(whole[field], want, "{field}");
    }
    assert_eq!(whole["tools"][0]["name"], "f");
}

#[test]
fn a_failure_is_an_event() {
    let (mut writer, mut out) = (writer(json!({})), String::new());
    writer.begin(None, &mut out);
    writer.piece(Piece::text("So"), &mut out);
    writer.error(&ErrorReply::new(ErrorCode::Unavailable, "it stops"), &mut out);
    writer.done(&mut out);
    let events = events(&out);
    let last = events.last().unwrap();
    let response = &last["response"];
    assert_eq!((&last["type"], &response["status"]), (&json!("response.failed"), &json!("failed")));
    assert_eq!(response["error"], json!({ "code": "unavailable", "message": "it stops" }));
    assert_eq!(response["output"][0]["status"], "incomplete");
}
