//! The table: requests, and what each program makes of them.

use reqwest::Method;
use serde_json::{Value, json};

/// One request.
pub(crate) struct Row {
    pub name: &'static str,
    pub body: Value,
    pub cloud: Want,
    pub device: Want,
}

/// What comes of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Want {
    /// An answer.
    Answer,
    /// An error that the client can correct.
    Refusal(Refusal),
}

/// An error of OpenAI's type `invalid_request_error`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refusal {
    pub status: u16,
    pub param: Option<&'static str>,
    pub code: &'static str,
}

/// A request that is not a chat request, or not one that both programs can read.
pub(crate) struct RawRow {
    pub name: &'static str,
    pub method: Method,
    pub path: &'static str,
    pub content_type: &'static str,
    pub body: &'static str,
    pub want: Refusal,
}

use Want::Answer;

/// A field that is refused.
const fn no(param: &'static str) -> Want {
    Want::Refusal(Refusal { status: 400, param: Some(param), code: "invalid_request" })
}

/// A greedy request with a short answer; its fields, unless `extra` has them.
fn row(name: &'static str, extra: Value, cloud: Want, device: Want) -> Row {
    let mut body = json!({
        "model": "default", "max_tokens": 8, "temperature": 0, "seed": 7,
        "messages": [{ "role": "user", "content": "Say something about rivers." }],
    });
    let fields = body.as_object_mut().expect("it is an object");
    fields.extend(extra.as_object().expect("fields are an object").clone());
    Row { name, body, cloud, device }
}

/// All rows.
pub(crate) fn rows() -> Vec<Row> {
    let mut rows = answered_by_both();
    rows.extend(offered_by_one());
    rows.extend(refused_by_both());
    rows.extend(messages_refused_by_both());
    rows.extend(refused_for_the_model());
    rows
}

fn answered_by_both() -> Vec<Row> {
    let history = json!([
        { "role": "system", "content": "You help." },
        { "role": "user", "content": "Hello", "name": "ann" },
        { "role": "assistant", "content": "Hello.", "refusal": null, "annotations": [], "tool_calls": [] },
        { "role": "user", "content": [{ "type": "text", "text": "Say " }, { "type": "text", "text": "more." }] },
    ]);
    let nothing = json!({
        "n": 1, "tools": [], "tool_choice": "none", "parallel_tool_calls": true, "logprobs": false, "top_logprobs": 0,
        "frequency_penalty": 0, "presence_penalty": 0, "response_format": { "type": "text" }, "logit_bias": {},
        "functions": [], "function_call": "auto", "modalities": ["text"], "store": false, "user": "u",
        "metadata": { "a": "b" }, "service_tier": "auto", "safety_identifier": "s", "prompt_cache_key": "k",
        "truncation": "disabled", "reasoning_effort": null, "baton": null, "brand_new": null,
    });
    let rows = [
        ("a greedy answer", json!({})),
        ("a sampled answer", json!({ "temperature": 1.3, "top_p": 0.9, "seed": 11, "max_tokens": 24 })),
        (
            "further ways to sample",
            json!({ "temperature": 1, "top_k": 20, "min_p": 0.02, "repetition_penalty": 1.2 }),
        ),
        ("a chat with a history", json!({ "messages": history })),
        (
            "instructions of a developer",
            json!({ "messages": [
            { "role": "developer", "content": "Be brief." }, { "role": "user", "content": "Hello" }] }),
        ),
        ("fields that ask for nothing", nothing),
        ("the smaller of two limits", json!({ "max_tokens": 9, "max_completion_tokens": 3 })),
        ("a stop string that never comes", json!({ "stop": "never said" })),
        ("stop strings that come at once", json!({ "stop": ["a", "e", "i", "o", "u", " "] })),
    ];
    rows.into_iter().map(|(name, extra)| row(name, extra, Answer, Answer)).collect()
}

/// What one program offers and the other does not, and what they bound otherwise.
fn offered_by_one() -> Vec<Row> {
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string", "enum": ["Ulm", "Bern"] } },
        "required": ["city"], "additionalProperties": false });
    let tool = json!({ "type": "function", "function": { "name": "weather", "parameters": parameters } });
    let schema = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": parameters, "strict": true } });
    let call =
        json!({ "id": "c1", "type": "function", "function": { "name": "weather", "arguments": "{}" } });
    let result = json!({ "role": "tool", "tool_call_id": "c1", "content": "It rains." });
    let asked =
        json!([{ "role": "user", "content": "Sun?" }, { "role": "assistant", "tool_calls": [call] }, result]);
    let vowels = json!(["a", "e", "i", "o", "u", " "]);
    vec![
        row(
            "a call that is required",
            json!({ "tools": [tool], "tool_choice": "required", "max_tokens": 200 }),
            Answer,
            Answer,
        ),
        row(
            "tools that may not be called",
            json!({ "tools": [tool], "tool_choice": "none" }),
            Answer,
            Answer,
        ),
        row("the result of a call", json!({ "messages": asked }), Answer, Answer),
        row("a result without a call", json!({ "messages": [result] }), Answer, Answer),
        row("a JSON object", json!({ "response_format": { "type": "json_object" } }), Answer, Answer),
        row("a schema", json!({ "response_format": schema, "max_tokens": 60 }), Answer, Answer),
        row("log probabilities", json!({ "logprobs": true, "top_logprobs": 2 }), Answer, Answer),
        row("a scene", json!({ "baton": { "scene": "chat", "assist_tokens": 4 } }), Answer, no("baton")),
        row("an answer that cites", json!({ "citations": true }), Answer, Answer),
        row("no model", json!({ "model": null }), no("model"), Answer),
        row("a high limit", json!({ "max_tokens": 65_537, "stop": vowels }), Answer, Answer),
        row(
            "a limit of all that fits",
            json!({ "max_tokens": -1, "top_k": 0, "stop": vowels }),
            Answer,
            Answer,
        ),
    ]
}

fn refused_by_both() -> Vec<Row> {
    let rows = [
        ("two choices", json!({ "n": 2 }), "n"),
        ("a bias", json!({ "logit_bias": { "5": -100 } }), "logit_bias"),
        ("functions", json!({ "functions": [{ "name": "f" }] }), "functions"),
        ("a function call", json!({ "function_call": { "name": "f" } }), "function_call"),
        ("a call without tools", json!({ "tool_choice": "required" }), "tool_choice"),
        ("sound", json!({ "modalities": ["text", "audio"] }), "modalities"),
        ("another truncation", json!({ "truncation": "middle" }), "truncation"),
        ("another format", json!({ "response_format": { "type": "xml" } }), "response_format.type"),
        ("a form in the words of another engine", json!({ "guided_regex": "a+" }), "guided_regex"),
        ("a high temperature", json!({ "temperature": 2.5 }), "temperature"),
        ("a temperature in words", json!({ "temperature": "hot" }), "temperature"),
        ("a mass above one", json!({ "top_p": 1.5 }), "top_p"),
        ("a share above one", json!({ "min_p": 1.5 }), "min_p"),
        ("a penalty of zero", json!({ "repetition_penalty": 0 }), "repetition_penalty"),
        ("no tokens", json!({ "max_tokens": 0 }), "max_tokens"),
        ("half a token", json!({ "max_tokens": 1.5 }), "max_tokens"),
        ("no tokens by the other name", json!({ "max_completion_tokens": 0 }), "max_completion_tokens"),
        ("many stop strings", json!({ "stop": vec!["x"; 17] }), "stop"),
        ("half a seed", json!({ "seed": 1.5 }), "seed"),
    ];
    rows.into_iter().map(|(name, extra, param)| row(name, extra, no(param), no(param))).collect()
}

fn messages_refused_by_both() -> Vec<Row> {
    let message = |message: Value| json!({ "messages": [message] });
    let image = json!({ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "x" } }] });
    let rows = [
        ("no messages", json!({ "messages": [] }), "messages"),
        ("messages that are empty", message(json!({ "role": "user", "content": "" })), "messages"),
        ("a message without content", message(json!({ "role": "user" })), "messages[0].content"),
        ("a message without a role", message(json!({ "content": "Hello" })), "messages[0].role"),
        ("an unknown role", message(json!({ "role": "wizard", "content": "Hello" })), "messages[0].role"),
        ("a picture", message(image), "messages[0].content[0]"),
    ];
    rows.into_iter().map(|(name, extra, param)| row(name, extra, no(param), no(param))).collect()
}

/// What another model would answer.
fn refused_for_the_model() -> Vec<Row> {
    let other = Want::Refusal(Refusal { status: 404, param: Some("model"), code: "model_not_found" });
    let long = Refusal { status: 400, param: Some("messages"), code: "context_length_exceeded" };
    let long = Want::Refusal(long);
    let words = "word ".repeat(20_000);
    let words = json!({ "messages": [{ "role": "user", "content": words }] });
    vec![
        row("another model", json!({ "model": "gpt-none" }), other, other),
        row("a prompt that does not fit", words, long, long),
    ]
}

/// Requests that no client library sends.
pub(crate) fn raw_rows() -> Vec<RawRow> {
    let chat = "/v1/chat/completions";
    let json = "application/json";
    let of = |status, param, code| Refusal { status, param, code };
    let post = |name, content_type, body, want| RawRow {
        name,
        method: Method::POST,
        path: chat,
        content_type,
        body,
        want,
    };
    let other = |name, method, path, want| RawRow { name, method, path, content_type: json, body: "", want };
    let invalid = of(400, None, "invalid_request");
    vec![
        post("no JSON", json, "{", invalid),
        post("nothing", json, "", invalid),
        post("a list", json, "[1, 2]", invalid),
        post("more than one value", json, r#"{"model":"default","messages":[]} {}"#, invalid),
        post("no fields", json, "{}", of(400, Some("messages"), "invalid_request")),
        other("another path", Method::GET, "/v1/nothing", of(404, None, "invalid_request")),
        other("another method", Method::DELETE, "/v1/models", of(405, None, "invalid_request")),
        other("another model", Method::GET, "/v1/models/gpt", of(404, Some("model"), "model_not_found")),
    ]
}
