//! What is taken, translated and refused.

use serde_json::{Value, json};

use super::*;
use crate::tools::ToolChoice;

fn base(extra: Value) -> Value {
    let mut request = json!({ "model": "m", "messages": [{ "role": "user", "content": "hello" }] });
    for (key, value) in extra.as_object().unwrap() {
        request[key] = value.clone();
    }
    request
}

#[track_caller]
fn taken(extra: Value) -> ChatRequest {
    let request = base(extra);
    parse(request.to_string().as_bytes()).unwrap_or_else(|err| panic!("{request}: {err:?}"))
}

#[track_caller]
fn whole(extra: Value) -> CompletionRequest {
    match taken(extra).work {
        ChatWork::Whole(completion) => *completion,
        ChatWork::Assisted(..) => panic!("not asked for"),
    }
}

#[track_caller]
fn refused(extra: Value, param: &str) {
    let err = parse(base(extra.clone()).to_string().as_bytes()).unwrap_err();
    assert_eq!(err.param(), Some(param), "{extra}: {err:?}");
}

fn weather() -> Value {
    json!([{ "type": "function", "function": { "name": "weather", "parameters": { "type": "object" } } }])
}

#[test]
fn messages_become_segments() {
    let messages = json!([
        { "role": "system", "content": "s" },
        { "role": "developer", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
        { "role": "user", "content": "u", "name": "someone" },
        { "role": "assistant", "content": "x", "refusal": null, "annotations": [], "audio": null },
    ]);
    let want = [(Role::System, "s"), (Role::System, "ab"), (Role::User, "u"), (Role::Assistant, "x")];
    let want = want.map(|(role, text)| ChatMessage::new(role, text));
    assert_eq!(whole(json!({ "messages": messages })).messages, want);
}

#[test]
fn calls_and_results_are_matched() {
    let call = json!({ "id": "c1", "type": "function", "function": { "name": "f", "arguments": "{}" } });
    let asked = json!({ "role": "assistant", "content": null, "tool_calls": [call] });
    let with = |last: Value| json!({ "messages": [{ "role": "user", "content": "u" }, asked, last] });
    let messages = whole(with(json!({ "role": "tool", "tool_call_id": "c1", "content": "r" }))).messages;
    let call = PastCall { id: "c1".into(), name: "f".into(), arguments: "{}".into() };
    assert_eq!((messages[1].calls.as_slice(), messages[2].call_id.as_deref()), (&[call][..], Some("c1")));
    refused(
        with(json!({ "role": "tool", "tool_call_id": "c2", "content": "r" })),
        "messages[2].tool_call_id",
    );
    refused(with(json!({ "role": "tool", "content": "r" })), "messages[2].tool_call_id");
    refused(
        with(json!({ "role": "user", "content": "r", "tool_calls": [{ "id": "c", "function":
        { "name": "f", "arguments": "" } }] })),
        "messages[2].tool_calls",
    );
    refused(
        with(json!({ "role": "user", "tool_call_id": "c1", "content": "r" })),
        "messages[2].tool_call_id",
    );
}

#[test]
fn nothing_of_a_part_or_a_format_is_ignored() {
    let parts = |part: Value| json!({ "messages": [{ "role": "user", "content": [part] }] });
    let cached =
        whole(parts(json!({ "type": "text", "text": "a", "cache_control": { "type": "ephemeral" } })));
    assert_eq!(cached.messages[0].text, "a");
    refused(
        parts(json!({ "type": "text", "text": "a", "image_url": { "url": "x" } })),
        "messages[0].content[0].image_url",
    );
    refused(parts(json!({ "type": "image_url", "image_url": { "url": "x" } })), "messages[0].content[0]");
    let format = json!({ "type": "json_object", "json_schema": { "name": "n", "schema": {} } });
    refused(json!({ "response_format": format }), "response_format.json_schema");
}

#[test]
fn both_limits_and_both_kinds_of_stop_are_taken() {
    let request = whole(json!({ "max_tokens": 9, "max_completion_tokens": 7, "stop": "x" }));
    assert_eq!((request.max_tokens, request.sampling.stop), (Some(7), vec!["x".to_owned()]));
    assert_eq!(whole(json!({ "stop": ["x", "y"] })).sampling.stop.len(), 2);
    let request = taken(json!({ "stream": true, "stream_options": { "include_usage": true } }));
    assert!(request.stream && request.include_usage);
}

#[test]
fn fields_that_ask_for_nothing_are_taken() {
    let request =
        whole(json!({ "n": 1, "tools": [], "tool_choice": "none", "logprobs": false, "logit_bias": {},
        "frequency_penalty": 0, "presence_penalty": 0.0, "response_format": { "type": "text" },
        "modalities": ["text"], "user": "u", "metadata": { "a": "b" }, "store": false, "functions": [],
        "service_tier": "auto", "parallel_tool_calls": true, "top_k": null, "stream": null }));
    assert!(request.tools.is_none() && request.logprobs.is_none() && request.format == AnswerFormat::Text);
    assert!(whole(json!({ "tools": weather(), "tool_choice": "none" })).tools.is_none());
}

#[test]
fn what_changes_the_answer_arrives() {
    let request = whole(json!({ "frequency_penalty": 0.5, "presence_penalty": -1, "logprobs": true,
        "top_logprobs": 3, "response_format": { "type": "json_object" }, "top_p": 0 }));
    assert_eq!(request.penalties, Penalties { frequency: 0.5, presence: -1.0 });
    assert!(request.logprobs.is_some() && request.format == AnswerFormat::JsonObject);
    assert!(request.sampling.top_p == Some(0.0));
    let schema = json!({ "type": "object" });
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema, "strict": true } });
    assert_eq!(whole(json!({ "response_format": format })).format, AnswerFormat::JsonSchema(schema));
    let named = json!({ "type": "function", "function": { "name": "weather" } });
    for (choice, want, parallel) in [
        (json!("auto"), ToolChoice::Auto, true),
        (json!("required"), ToolChoice::Required, false),
        (named, ToolChoice::Named("weather".into()), false),
    ] {
        let tools = whole(json!({ "tools": weather(), "tool_choice": choice })).tools.unwrap();
        assert_eq!((tools.choice, tools.parallel), (want, parallel));
    }
}

#[test]
fn a_scene_makes_it_an_assist_request() {
    let work = taken(
        json!({ "max_tokens": 40, "baton": { "scene": "doc-qa", "assist_tokens": 50, "refine": [0] } }),
    )
    .work;
    let ChatWork::Assisted(request, max_tokens) = work else { panic!("{work:?}") };
    assert_eq!((request.scene.as_str(), request.assist_tokens, max_tokens), ("doc-qa", Some(50), Some(40)));
    assert_eq!(request.segments, [Segment::refinable(Role::User, "hello")]);
    refused(json!({ "baton": { "scene": "s", "refine": [1] } }), "baton.refine[0]");
    refused(json!({ "baton": { "scene": "" } }), "baton.scene");
    refused(json!({ "baton": { "scene": "s", "assist_tokens": 0 } }), "baton.assist_tokens");
    refused(json!({ "baton": { "scene": "s", "ratio": 2 } }), "baton.ratio");
    refused(json!({ "baton": { "scene": "s" }, "tools": weather() }), "tools");
    refused(
        json!({ "baton": { "scene": "s" }, "response_format": { "type": "json_object" } }),
        "response_format",
    );
}

#[test]
fn a_limit_is_no_wish_for_l() {
    for limit in [16, 1024, 100_000] {
        let asked = json!({ "max_tokens": limit, "baton": { "scene": "doc-qa" } });
        let work = taken(asked).work;
        let ChatWork::Assisted(request, max_tokens) = work else { panic!("{work:?}") };
        assert_eq!((request.assist_tokens, max_tokens), (None, Some(limit)));
    }
}

#[test]
fn what_is_not_done_is_refused() {
    refused(json!({ "n": 2 }), "n");
    refused(json!({ "tools": [{ "type": "web" }] }), "tools[0].type");
    refused(json!({ "tools": [{ "type": "function" }] }), "tools[0].function");
    refused(
        json!({ "tools": [{ "type": "function", "function": { "name": "a b" } }] }),
        "tools[0].function.name",
    );
    let twice = [weather()[0].clone(), weather()[0].clone()];
    refused(json!({ "tools": twice }), "tools[1].function.name");
    let list =
        json!([{ "type": "function", "function": { "name": "a", "parameters": { "type": "array" } } }]);
    refused(json!({ "tools": list }), "tools[0].function.parameters");
    refused(json!({ "tool_choice": "required" }), "tool_choice");
    refused(json!({ "tools": weather(), "tool_choice": "any" }), "tool_choice");
    let other = json!({ "type": "function", "function": { "name": "b" } });
    refused(json!({ "tools": weather(), "tool_choice": other }), "tool_choice.function.name");
    refused(json!({ "tools": weather(), "response_format": { "type": "json_object" } }), "response_format");
    refused(json!({ "response_format": { "type": "xml" } }), "response_format.type");
    refused(json!({ "response_format": { "type": "json_schema" } }), "response_format.json_schema");
    let bare = json!({ "type": "json_schema", "json_schema": { "name": "x" } });
    refused(json!({ "response_format": bare }), "response_format.json_schema.schema");
    refused(json!({ "top_logprobs": 2 }), "top_logprobs");
    refused(json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs");
    refused(json!({ "logit_bias": { "5": 1 } }), "logit_bias");
    refused(json!({ "store": true }), "store");
    refused(json!({ "functions": [{}] }), "functions");
    refused(json!({ "function_call": { "name": "f" } }), "function_call");
    refused(json!({ "stream_options": { "include_usage": true } }), "stream_options");
    refused(json!({ "audio": {} }), "audio");
    refused(json!({ "messages": [] }), "messages");
    refused(json!({ "messages": [{ "role": "wizard", "content": "x" }] }), "messages[0].role");
    refused(json!({ "messages": [{ "role": "user" }] }), "messages[0].content");
    let image = json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }]);
    refused(json!({ "messages": image }), "messages[0].content[0]");
}

#[test]
fn numbers_have_ranges() {
    refused(json!({ "temperature": 2.5 }), "temperature");
    refused(json!({ "temperature": -1 }), "temperature");
    refused(json!({ "temperature": "hot" }), "temperature");
    refused(json!({ "top_p": 1.5 }), "top_p");
    refused(json!({ "top_k": 0 }), "top_k");
    refused(json!({ "max_tokens": 0 }), "max_tokens");
    refused(json!({ "max_tokens": -1 }), "max_tokens");
    refused(json!({ "max_tokens": 1.5 }), "max_tokens");
    refused(json!({ "repetition_penalty": 0 }), "repetition_penalty");
    refused(json!({ "frequency_penalty": 2.5 }), "frequency_penalty");
    refused(json!({ "presence_penalty": -3 }), "presence_penalty");
    refused(json!({ "stop": [""] }), "stop[0]");
    let infinite = br#"{"model":"m","messages":[],"temperature":1e400}"#;
    assert!(parse(infinite).is_err());
    assert!(parse(b"{} {}").is_err());
    assert!(parse(b"").is_err());
    assert!(parse(b"\xff").is_err());
}
