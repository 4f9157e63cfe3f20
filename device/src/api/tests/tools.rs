//! Tests calls of tools, and answers that must have a form, over HTTP.

use super::dialects::{ask, ask_json, events, lines, with};
use super::*;

/// A schema that two texts match.
fn schema() -> Value {
    json!({ "type": "object", "properties": { "city": { "type": "string", "enum": ["Ulm", "Bern"] } },
        "required": ["city"], "additionalProperties": false })
}

fn matches(arguments: &Value) -> bool {
    let city = &arguments["city"];
    (*city == "Ulm" || *city == "Bern") && arguments.as_object().is_some_and(|fields| fields.len() == 1)
}

fn text(value: &Value) -> Value {
    serde_json::from_str(value.as_str().expect("arguments as text")).expect("JSON")
}

#[tokio::test]
async fn a_call_that_is_required_is_made_in_every_dialect() {
    let url = serve(None).await;
    let said = json!([{ "role": "user", "content": "Sun?" }]);
    let function = json!({ "name": "weather", "description": "of a city", "parameters": schema() });
    let openai = json!({ "temperature": 0, "max_tokens": 200, "messages": said, "tool_choice": "required",
        "parallel_tool_calls": false, "tools": [{ "type": "function", "function": function }] });
    let (status, whole) = ask_json(&url, "/v1/chat/completions", &openai).await;
    let choice = &whole["choices"][0];
    assert_eq!((status, &choice["finish_reason"]), (200, &json!("tool_calls")), "{whole}");
    let call = &choice["message"]["tool_calls"][0]["function"];
    let arguments = text(&call["arguments"]);
    assert!(call["name"] == "weather" && matches(&arguments), "{whole}");
    assert_eq!(whole["baton"]["source"]["writer"], "device");
    let (_, _, streamed) = ask(&url, "/v1/chat/completions", &with(&openai, json!({ "stream": true }))).await;
    let chunks: Vec<Value> =
        streamed.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    let deltas = chunks.iter().flat_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array());
    let joined: String = deltas.flatten().filter_map(|call| call["function"]["arguments"].as_str()).collect();
    assert_eq!(text(&json!(joined)), arguments, "{streamed}");

    let tool = json!({ "name": "weather", "description": "of a city", "input_schema": schema() });
    let choice = json!({ "type": "any", "disable_parallel_tool_use": true });
    let anthropic = json!({ "max_tokens": 200, "temperature": 0, "messages": said, "tools": [tool],
        "tool_choice": choice });
    let (status, whole) = ask_json(&url, "/v1/messages", &anthropic).await;
    assert_eq!((status, &whole["stop_reason"]), (200, &json!("tool_use")), "{whole}");
    assert_eq!(
        (&whole["content"][0]["name"], &whole["content"][0]["input"]),
        (&json!("weather"), &arguments)
    );
    let (_, _, streamed) = ask(&url, "/v1/messages", &with(&anthropic, json!({ "stream": true }))).await;
    let parts = events(&streamed);
    let joined: String = parts.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!(text(&json!(joined)), arguments, "{streamed}");
    let (_, counted) = ask_json(&url, "/v1/messages/count_tokens", &anthropic).await;
    let prompt = &whole["usage"];
    let tokens =
        prompt["input_tokens"].as_u64().unwrap() + prompt["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(counted["input_tokens"], tokens, "tools are counted");

    let tool =
        json!({ "type": "function", "name": "weather", "description": "of a city", "parameters": schema() });
    let responses = json!({ "input": "Sun?", "max_output_tokens": 200, "temperature": 0, "tools": [tool],
        "tool_choice": "required", "parallel_tool_calls": false });
    let (status, whole) = ask_json(&url, "/v1/responses", &responses).await;
    let call = &whole["output"][0];
    assert_eq!((status, &call["type"], &call["name"]), (200, &json!("function_call"), &json!("weather")));
    assert_eq!(text(&call["arguments"]), arguments);
}

#[tokio::test]
async fn ollamas_clients_may_send_tools_and_their_results() {
    let url = serve(None).await;
    let tool = json!({ "type": "function", "function": { "name": "weather", "parameters": schema() } });
    let call = json!({ "function": { "name": "weather", "arguments": { "city": "Ulm" } } });
    let said = json!([{ "role": "user", "content": "Sun?" }, { "role": "assistant", "tool_calls": [call] },
        { "role": "tool", "tool_name": "weather", "content": "rain" }]);
    let body = json!({ "model": "baton", "messages": said, "tools": [tool],
        "options": { "temperature": 0, "num_predict": 4 } });
    let (status, _, text) = ask(&url, "/api/chat", &body).await;
    assert_eq!((status, &lines(&text).last().unwrap()["done"]), (200, &json!(true)), "{text}");
    let (_, _, shown) = ask(&url, "/api/show", &json!({ "model": "baton" })).await;
    assert!(shown.contains("\"tools\""), "{shown}");
}

#[tokio::test]
async fn an_answer_has_the_form_that_was_asked_for() {
    let url = serve(None).await;
    let said = json!([{ "role": "user", "content": "Where?" }]);
    let format = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema() } });
    let body = json!({ "messages": said, "max_tokens": 100, "response_format": format });
    let (status, whole) = ask_json(&url, "/v1/chat/completions", &body).await;
    assert_eq!(status, 200, "{whole}");
    assert!(matches(&text(&whole["choices"][0]["message"]["content"])), "{whole}");
    let body = json!({ "model": "baton", "messages": said, "format": schema(), "stream": false });
    let (status, whole) = ask_json(&url, "/api/chat", &body).await;
    assert_eq!(status, 200, "{whole}");
    assert!(matches(&text(&whole["message"]["content"])), "{whole}");
    let never = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": { "enum": [] } } });
    let (status, refused) =
        ask_json(&url, "/v1/chat/completions", &json!({ "messages": said, "response_format": never })).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("response_format.json_schema.schema")));
}

#[tokio::test]
async fn only_a_model_on_this_device_calls_tools() {
    let url = serve_in(RelayMode::CloudOnly, None, PassCost::default()).await;
    let tool = json!([{ "type": "function", "function": { "name": "f" } }]);
    let body = json!({ "messages": [{ "role": "user", "content": "q" }], "tools": tool });
    let (status, refused) = ask_json(&url, "/v1/chat/completions", &body).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("tools")), "{refused}");
}
