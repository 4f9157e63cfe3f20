//! What the two programs accept and refuse: one table, with a column for each program.

use baton_protocol::{MARKS_MAX, NAME_BYTES_MAX, Role};
use serde_json::{Value, json};

use super::*;
use crate::tools::{PastCall, ToolChoice};

/// The expected result of a request.
#[derive(Debug, Clone, Copy)]
enum Want {
    /// It is accepted.
    Yes,
    /// It is refused with this field (an empty text means no field), in a sentence that contains these words.
    No(&'static str, &'static str),
}

use Want::{No, Yes};

fn with(extra: Value) -> Value {
    let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hello" }] });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn read(extra: Value, can: &Capabilities) -> ChatRequest {
    let body = with(extra);
    parse(body.to_string().as_bytes(), can).unwrap_or_else(|err| panic!("{body}: {err}"))
}

fn cloud(extra: Value) -> ChatRequest {
    read(extra, &Capabilities::CLOUD)
}

fn device(extra: Value) -> ChatRequest {
    read(extra, &Capabilities::DEVICE)
}

#[track_caller]
fn check_one(body: &[u8], can: &Capabilities, want: Want) {
    let shown = String::from_utf8_lossy(&body[..body.len().min(200)]);
    match (parse(body, can), want) {
        (Ok(_), Yes) => (),
        (Err(err), No(param, words)) => {
            assert_eq!(err.param().unwrap_or_default(), param, "{shown}: {err}");
            assert!(err.to_string().contains(words), "{shown}: {err}");
            assert!(!err.to_string().contains(char::is_control), "{shown}: {err}");
        }
        (got, want) => panic!("{shown}: {got:?}, want {want:?}"),
    }
}

/// Checks rows of: fields, the cloud's result, the device's result.
#[track_caller]
fn check(rows: impl IntoIterator<Item = (Value, Want, Want)>) {
    for (extra, cloud, device) in rows {
        let body = with(extra).to_string();
        check_one(body.as_bytes(), &Capabilities::CLOUD, cloud);
        check_one(body.as_bytes(), &Capabilities::DEVICE_OF_CLOUD, device);
    }
}

/// Checks rows for which both programs have the same result.
#[track_caller]
fn check_both(rows: impl IntoIterator<Item = (Value, Want)>) {
    check(rows.into_iter().map(|(extra, want)| (extra, want, want)));
}

fn weather() -> Value {
    json!([{ "type": "function", "function": { "name": "weather", "parameters": { "type": "object" } } }])
}

#[test]
fn what_asks_for_nothing_is_accepted_by_both() {
    let rows = [
        json!({}),
        json!({ "n": 1, "tools": [], "tool_choice": "none", "logprobs": false, "logit_bias": {} }),
        json!({ "frequency_penalty": 0, "presence_penalty": 0.0, "response_format": { "type": "text" } }),
        json!({ "tools": null, "tool_choice": null, "parallel_tool_calls": true, "functions": [] }),
        json!({ "tool_choice": "auto", "function_call": "auto" }),
        json!({ "function_call": "none", "top_logprobs": 0, "logprobs": null }),
        json!({ "n": null, "store": false, "modalities": ["text"], "stop": [], "top_p": 1, "temperature": 1 }),
        json!({ "stream": false, "stream_options": null, "response_format": null, "top_k": null }),
        json!({ "metadata": { "a": "b" }, "user": "u", "service_tier": "auto", "prompt_cache_key": "k" }),
        json!({ "reasoning_effort": null, "audio": null, "brand_new": null, "baton": null }),
        json!({ "top_p": 0, "temperature": 0, "safety_identifier": "s", "truncation": "disabled" }),
        json!({ "truncation": null, "stream": true, "stream_options": { "include_obfuscation": false } }),
        json!({ "stream": true, "stream_options": { "brand_new": null } }),
        json!({ "stream": true, "stream_options": { "continuous_usage_stats": true }, "ignore_eos": true }),
        json!({ "min_tokens": 4, "skip_special_tokens": false, "chat_template_kwargs": { "a": 1 } }),
        json!({ "continue_final_message": false, "citations": false }),
    ];
    check_both(rows.map(|extra| (extra, Yes)));
    check_both([(json!({ "citations": true, "tools": [] }), Yes)]);
    assert!(cloud(json!({ "citations": true })).citations && !cloud(json!({})).citations);
    let request = cloud(json!({ "tools": weather(), "tool_choice": "none", "logprobs": false }));
    assert!(request.tools.is_none() && request.logprobs.is_none() && request.format == AnswerFormat::Text);
}

#[test]
fn what_only_the_cloud_offers_is_refused_by_the_device_in_one_form() {
    let no_tools = "this service does not support tools";
    let named = json!({ "type": "function", "function": { "name": "weather" } });
    let schema =
        json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": { "type": "object" } } });
    check([
        (json!({ "tools": weather() }), Yes, No("tools", no_tools)),
        (json!({ "tools": weather(), "tool_choice": named }), Yes, No("tools", no_tools)),
        (
            json!({ "tool_choice": "required" }),
            No("tool_choice", "needs `tools`"),
            No("tool_choice", no_tools),
        ),
        (
            json!({ "response_format": { "type": "json_object" } }),
            Yes,
            No("response_format", "leave it at `text`"),
        ),
        (json!({ "response_format": schema }), Yes, No("response_format", "cannot hold an answer to JSON")),
        (json!({ "baton": { "scene": "s" } }), Yes, No("baton", "does not assist by scenes; leave it out")),
        (
            json!({ "citations": true, "tools": weather() }),
            No("citations", "not with `tools`"),
            No("tools", no_tools),
        ),
        (
            json!({ "citations": true, "baton": { "scene": "s" } }),
            No("citations", "not with `baton`"),
            No("baton", "leave it out"),
        ),
        (json!({ "model": null }), No("model", "is missing"), Yes),
        (json!({ "model": "" }), No("model", "is missing"), Yes),
        (
            json!({ "messages": vec![json!({ "role": "user", "content": "a" }); 1025] }),
            Yes,
            No("messages", "at most 1024"),
        ),
    ]);
}

#[test]
fn what_neither_does_is_refused_by_name() {
    check_both([
        (json!({ "n": 2 }), No("n", "only 1")),
        (json!({ "logit_bias": { "5": -100 } }), No("logit_bias", "not supported")),
        (json!({ "functions": [{}] }), No("functions", "was replaced by `tools`")),
        (json!({ "function_call": { "name": "f" } }), No("function_call", "was replaced by `tool_choice`")),
        (json!({ "modalities": ["text", "audio"] }), No("modalities", "only `text`")),
        (json!({ "truncation": "middle" }), No("truncation", "must be `auto` or `disabled`")),
        (json!({ "response_format": { "type": "xml" } }), No("response_format.type", "must be")),
        (
            json!({ "response_format": { "type": "text", "json_schema": { "schema": {} } } }),
            No("response_format.json_schema", "needs `type`"),
        ),
        (json!({ "guided_json": {} }), No("guided_json", "use `response_format`")),
        (json!({ "guided_json": null, "brand_new": null }), Yes),
        (json!({ "stop_token_ids": [1] }), No("stop_token_ids", "use `stop`")),
        (json!({ "messages": [{ "role": "user" }] }), No("messages[0].content", "is missing")),
        (json!({ "messages": [{ "content": "a" }] }), No("messages[0].role", "is missing")),
        (json!({ "messages": null }), No("messages", "invalid type: null")),
    ]);
}

/// Returns the names of fields without effect.
fn names(request: &ChatRequest) -> String {
    request.ignored.header().unwrap_or_default()
}

#[test]
fn a_field_that_cannot_make_the_answer_wrong_is_taken_and_named() {
    for (extra, want) in [
        (json!({}), ""),
        (json!({ "user": "u", "metadata": {}, "service_tier": "auto", "of_next_week": null }), ""),
        (json!({ "of_next_week": 1 }), "of_next_week"),
        (json!({ "reasoning_effort": "high", "verbosity": "low" }), "reasoning_effort, verbosity"),
        (json!({ "chat_template_kwargs": { "enable_thinking": false } }), "chat_template_kwargs"),
        (json!({ "store": true, "stream_options": { "include_usage": true } }), "store, stream_options"),
        (json!({ "stream": true, "stream_options": { "usage": true } }), "stream_options.usage"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "a", "loud": 1 }] }] }),
            "messages[].content[].loud",
        ),
        (
            json!({ "messages": [{ "role": "user", "content": "a" },
                { "role": "assistant", "content": "b", "reasoning_content": "c", "refusal": null },
                { "role": "user", "content": "d", "tool_call_id": "c1" }] }),
            "messages[].reasoning_content, messages[].tool_call_id",
        ),
    ] {
        for read in [cloud, device] {
            assert_eq!(names(&read(extra.clone())), want, "{extra}");
        }
    }
    let penalties = json!({ "frequency_penalty": -1, "presence_penalty": 0 });
    assert_eq!(
        (names(&cloud(penalties.clone())), names(&device(penalties))),
        (String::new(), "frequency_penalty".into())
    );
    let shorter = json!({ "truncation": "auto" });
    assert_eq!(
        (names(&cloud(shorter.clone())), names(&device(shorter))),
        ("truncation".into(), String::new())
    );
    assert_eq!(cloud(json!({ "max_tokens": 10.0 })).max_tokens, Some(10));
    assert_eq!(cloud(json!({ "seed": u64::MAX })).sampling.seed, u64::MAX);
    for (tokens, want) in [(-1, usize::MAX), (128_000, 128_000)] {
        let extra = json!({ "max_tokens": tokens, "top_k": -1 });
        assert_eq!(cloud(extra.clone()).max_tokens, Some(want));
        assert_eq!((device(extra.clone()).max_tokens, device(extra).sampling.top_k), (Some(65_536), None));
    }
}

#[test]
fn what_the_model_cannot_read_is_refused_only_in_the_last_turn() {
    let image =
        json!([{ "type": "text", "text": "a.png" }, { "type": "image_url", "image_url": { "url": "x" } }]);
    let history = json!([{ "role": "user", "content": image }, { "role": "assistant", "content": "A cat." },
        { "role": "user", "content": "Sure?" }]);
    let request = device(json!({ "messages": history }));
    assert_eq!(request.prompt.messages()[0].text, "a.png\n[an image, which cannot be shown here]");
    assert_eq!(names(&request), "messages[].content[].image_url");
    let last = json!({ "messages": [{ "role": "assistant", "content": "?" }, { "role": "user", "content": image }] });
    check_both([(last, No("messages[1].content[1]", "this is `image_url`"))]);
}

#[test]
fn tools_that_nobody_runs_are_left_out_and_any_schema_of_an_object_is_taken() {
    let tool = |parameters: Value| json!({ "type": "function", "function": { "name": "f", "parameters": parameters } });
    let search = json!({ "type": "web_search_preview" });
    let request =
        cloud(json!({ "tools": [search, tool(json!({}))], "response_format": { "type": "json_object" } }));
    let tools = request.tools.as_ref().unwrap();
    assert_eq!((tools.tools.len(), &tools.tools[0].parameters), (1, &json!({ "type": "object" })));
    assert_eq!(
        (names(&request), &request.format),
        ("tools[].web_search_preview".into(), &AnswerFormat::JsonObject)
    );
    for (schema, want) in [
        (json!({ "type": ["object", "null"] }), json!({ "type": "object" })),
        (json!({ "anyOf": [{ "type": "object" }] }), json!({ "anyOf": [{ "type": "object" }] })),
        (json!({ "$ref": "#/$defs/a" }), json!({ "$ref": "#/$defs/a" })),
    ] {
        assert_eq!(cloud(json!({ "tools": [tool(schema)] })).tools.unwrap().tools[0].parameters, want);
    }
    assert!(cloud(json!({ "tools": [search] })).tools.is_none());
    let many = |count: usize| {
        let named = |at| json!({ "type": "function", "function": { "name": format!("f{at}") } });
        json!({ "tools": (0..count).map(named).collect::<Vec<_>>() })
    };
    assert_eq!(cloud(many(512)).tools.unwrap().tools.len(), 512);
    check_one(with(many(513)).to_string().as_bytes(), &Capabilities::CLOUD, No("tools", "at most 512"));
}

#[test]
fn numbers_out_of_range_are_named() {
    check_both([
        (json!({ "temperature": 2.1 }), No("temperature", "is 2.1, must be 0 to 2")),
        (json!({ "temperature": -1 }), No("temperature", "")),
        (json!({ "temperature": "hot" }), No("temperature", "invalid type")),
        (json!({ "top_p": 1.5 }), No("top_p", "")),
        (json!({ "top_p": -0.1 }), No("top_p", "")),
        (json!({ "min_p": 1.5 }), No("min_p", "")),
        (json!({ "repetition_penalty": 0 }), No("repetition_penalty", "")),
        (json!({ "max_tokens": 0 }), No("max_tokens", "is 0, must be")),
        (json!({ "max_tokens": 1.5 }), No("max_tokens", "")),
        (json!({ "stop": vec!["x"; 17] }), No("stop", "length 17")),
        (json!({ "stop": "x".repeat(2000) }), No("stop[0]", "")),
        (json!({ "seed": 1.5 }), No("seed", "")),
    ]);
    let ranges = [
        (json!({ "frequency_penalty": 2.5 }), "frequency_penalty"),
        (json!({ "presence_penalty": -3 }), "presence_penalty"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
    ];
    for (extra, param) in ranges {
        check_one(with(extra).to_string().as_bytes(), &Capabilities::CLOUD, No(param, "must be"));
    }
}

#[test]
fn messages_are_checked() {
    let one = |message: Value| json!({ "messages": [message] });
    let part = |part: Value| one(json!({ "role": "user", "content": [part] }));
    let call = json!({ "id": "c", "function": { "name": "f", "arguments": "" } });
    let only_text = "only text can be read, this is `image_url`";
    check_both([
        (json!({ "messages": [] }), No("messages", "has ")),
        (one(json!({ "role": "user", "content": "" })), No("messages", "all messages are empty")),
        (one(json!({ "role": "user", "content": null })), No("messages[0].content", "is missing")),
        (one(json!({ "role": "wizard", "content": "q" })), No("messages[0].role", "must be")),
        (
            one(json!({ "role": "user", "content": "q", "audio": {} })),
            No("messages[0].audio", "only text can be read"),
        ),
        (one(json!({ "role": "user", "content": "q", "mood": null })), Yes),
        (
            one(json!({ "role": "user", "content": 5 })),
            No("messages[0].content", "a text, a list or an object"),
        ),
        (
            part(json!({ "type": "image_url", "image_url": { "url": "x" } })),
            No("messages[0].content[0]", only_text),
        ),
        (part(json!({ "type": "text" })), No("messages[0].content[0].text", "is missing")),
        (part(json!({ "type": "text", "text": "a", "cache_control": { "type": "ephemeral" } })), Yes),
        (one(json!({ "role": "assistant", "content": "x", "refusal": null, "annotations": [] })), Yes),
    ]);
    let user = "only messages of the assistant have calls";
    let (calls, no_tools) = ("messages[0].tool_calls", "this service does not support tools");
    check([(
        one(json!({ "role": "user", "content": "r", "tool_calls": [call] })),
        No(calls, user),
        No(calls, no_tools),
    )]);
}

#[test]
fn results_of_tools_answer_an_earlier_call() {
    let call = json!({ "id": "c1", "type": "function", "function": { "name": "f", "arguments": "{}" } });
    let asked = json!({ "role": "assistant", "content": null, "tool_calls": [call] });
    let then = |last: Value| json!({ "messages": [{ "role": "user", "content": "u" }, asked, last] });
    let result = |id: &str| then(json!({ "role": "tool", "tool_call_id": id, "content": "r" }));
    let messages = cloud(result("c1")).prompt.into_messages();
    let call = PastCall { id: "c1".into(), name: "f".into(), arguments: "{}".into() };
    assert_eq!((messages[1].calls.as_slice(), messages[2].call_id.as_deref()), (&[call][..], Some("c1")));
    let no_tools = No("messages[1].tool_calls", "this service does not support tools; leave it empty");
    let lone = json!({ "messages": [{ "role": "tool", "tool_call_id": "c1", "content": "r" }] });
    check([(result("c2"), Yes, no_tools), (lone, Yes, No("messages[0].role", "does not support tools"))]);
    let nameless = cloud(then(json!({ "role": "tool", "content": "r" }))).prompt.into_messages();
    assert_eq!(nameless[2].call_id.as_deref(), Some("c1"), "it is the result of the only open call");
    let orphan = cloud(result("c2"));
    let want = ChatMessage::new(Role::User, "Result of the call c2:\nr");
    assert_eq!((&orphan.prompt.messages()[2], names(&orphan)), (&want, "messages[].tool_call_id".into()));
}

#[test]
fn messages_become_texts() {
    let messages = json!([
        { "role": "system", "content": "s" },
        { "role": "developer", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
        { "role": "user", "content": "u", "name": "someone" },
        { "role": "assistant", "content": null, "tool_calls": [], "refusal": null },
    ]);
    let want = [(Role::System, "s"), (Role::System, "a\nb"), (Role::User, "u"), (Role::Assistant, "")];
    let want = want.map(|(role, text)| ChatMessage::new(role, text));
    assert_eq!(cloud(json!({ "messages": messages })).prompt.messages(), want);
    assert_eq!(device(json!({ "messages": messages })).prompt.messages(), want);
}

#[test]
fn tools_and_formats_are_checked() {
    let twice = [weather()[0].clone(), weather()[0].clone()];
    let tool = |function: Value| json!({ "tools": [{ "type": "function", "function": function }] });
    let schema = "response_format.json_schema.schema";
    let other = json!({ "type": "function", "function": { "name": "b" } });
    for (extra, param) in [
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].function"),
        (tool(json!({ "name": "a b" })), "tools[0].function.name"),
        (tool(json!({ "name": "a", "parameters": { "type": "array" } })), "tools[0].function.parameters"),
        (json!({ "tools": twice }), "tools[1].function.name"),
        (json!({ "tools": weather(), "tool_choice": "any" }), "tool_choice"),
        (json!({ "tools": weather(), "tool_choice": other }), "tool_choice.function.name"),
        (json!({ "tools": weather(), "tool_choice": { "type": "function" } }), "tool_choice.function"),
        (json!({ "response_format": { "type": "json_schema" } }), "response_format.json_schema"),
        (json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x" } } }), schema),
        (json!({ "baton": { "scene": "s" }, "tools": weather() }), "tools"),
        (
            json!({ "baton": { "scene": "s" }, "response_format": { "type": "json_object" } }),
            "response_format",
        ),
        (json!({ "baton": { "scene": "s" }, "logprobs": true }), "logprobs"),
        (json!({ "baton": { "scene": "s" }, "presence_penalty": 1 }), "presence_penalty"),
        (json!({ "baton": { "scene": "s", "refine": [1] } }), "baton.refine[0]"),
        (json!({ "baton": { "scene": "s", "mood": 1 } }), "baton.mood"),
        (json!({ "baton": {} }), "baton.scene"),
    ] {
        check_one(with(extra).to_string().as_bytes(), &Capabilities::CLOUD, No(param, ""));
    }
}

#[test]
fn what_changes_the_answer_arrives() {
    let request = cloud(json!({ "frequency_penalty": 0.5, "presence_penalty": -1, "logprobs": true,
        "top_logprobs": 3, "response_format": { "type": "json_object" }, "top_p": 0 }));
    assert_eq!(request.penalties, Penalties { frequency: 0.5, presence: -1.0 });
    assert_eq!(
        (request.logprobs, request.format, request.sampling.top_p),
        (Some(3), AnswerFormat::JsonObject, Some(0.0))
    );
    let schema = json!({ "type": "object" });
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema, "strict": true } });
    assert_eq!(cloud(json!({ "response_format": format })).format, AnswerFormat::JsonSchema(schema));
    let named = json!({ "type": "function", "function": { "name": "weather" } });
    for (choice, want, parallel) in [
        (json!("auto"), ToolChoice::Auto, true),
        (json!("required"), ToolChoice::Required, false),
        (named, ToolChoice::Named("weather".into()), false),
    ] {
        let tools = cloud(json!({ "tools": weather(), "tool_choice": choice })).tools.unwrap();
        assert_eq!((tools.choice, tools.parallel), (want, parallel));
    }
    for (truncation, shorten) in [(json!(null), false), (json!("disabled"), false), (json!("auto"), true)] {
        assert_eq!(device(json!({ "truncation": truncation })).shorten, shorten);
    }
}

#[test]
fn limits_stops_and_streams_are_the_same_in_both() {
    let options = json!({ "include_usage": true, "include_progress": true });
    let extra = json!({ "max_tokens": 9, "max_completion_tokens": 7, "stop": "x", "seed": -3, "stream": true,
        "stream_options": options });
    for read in [cloud, device] {
        let request = read(extra.clone());
        assert_eq!((request.max_tokens, request.sampling.seed), (Some(7), -3_i64 as u64));
        assert_eq!(request.sampling.stop, ["x"]);
        assert!(request.stream && request.include_usage && request.include_progress);
        assert_eq!(read(json!({ "stop": ["x", "y"] })).sampling.stop.len(), 2);
    }
}

#[test]
fn defaults_are_openais_and_a_seed_repeats() {
    for read in [cloud, device] {
        let (one, two) = (read(json!({})), read(json!({})));
        assert_eq!((one.sampling.temperature, one.sampling.top_p), (1.0, None));
        assert_ne!(one.sampling.seed, two.sampling.seed, "another answer each time");
        assert_eq!(read(json!({ "seed": 3 })).sampling.seed, 3);
    }
    assert_eq!((cloud(json!({})).max_tokens, device(json!({})).max_tokens), (None, Some(512)));
    assert_eq!(device(json!({ "model": null })).model, MODEL_DEFAULT);
}

#[test]
fn a_body_that_costs_more_than_its_length_is_refused_by_its_shape() {
    let small = format!(r#"{{"x":[{}[0]]}}"#, "[0],".repeat(MARKS_MAX / 2));
    let long = format!(r#"{{"{}":1}}"#, "n".repeat(NAME_BYTES_MAX + 1));
    for can in [Capabilities::CLOUD, Capabilities::DEVICE] {
        check_one(small.as_bytes(), &can, No("", "values and fields"));
        check_one(long.as_bytes(), &can, No("", "has a name of"));
    }
}

#[test]
fn what_is_no_json_or_no_request_says_so() {
    let no_json = No("", "the body is not JSON");
    for (body, want) in [
        (&b"{"[..], no_json),
        (b"", no_json),
        (b"{\"model\":\"m\",\"messages\":[]}x", no_json),
        (b"{} {}", No("messages", "is missing")),
        (b"\x1b[2J", no_json),
        (b"\xff", no_json),
        (b"{\"model\":\"m\",\"messages\":[],\"temperature\":1e400}", no_json),
        (b"[1,2]", No("", "the body is not a request")),
        (b"{}", No("messages", "is missing")),
        (b"{\"messages\":[],\"\x1b[2J\":1}", no_json),
    ] {
        check_one(body, &Capabilities::CLOUD, want);
        check_one(body, &Capabilities::DEVICE, want);
    }
}
