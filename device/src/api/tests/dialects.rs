//! Tests the other dialects over HTTP: Anthropic's messages, Ollama's API, OpenAI's responses.

use super::*;

/// Asks; returns the status, the content type and the text.
pub(super) async fn ask(url: &str, path: &str, body: &Value) -> (u16, String, String) {
    let reply = client().post(format!("{url}{path}")).json(body).send().await.unwrap();
    let kind = reply.headers()["content-type"].to_str().unwrap().to_owned();
    (reply.status().as_u16(), kind, reply.text().await.unwrap())
}

/// Asks for a JSON body.
pub(super) async fn ask_json(url: &str, path: &str, body: &Value) -> (u16, Value) {
    let (status, kind, text) = ask(url, path, body).await;
    assert_eq!(kind, "application/json", "{path}: {text}");
    (status, serde_json::from_str(&text).unwrap())
}

/// Returns the data of all named events.
pub(super) fn events(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

pub(super) fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn joined<'a>(values: &'a [Value], field: impl Fn(&'a Value) -> &'a Value) -> String {
    values.iter().filter_map(|value| field(value).as_str()).collect()
}

pub(super) fn with(base: &Value, extra: Value) -> Value {
    let mut body = base.clone();
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// The answer of the chat API to a greedy question.
async fn greedy(url: &str) -> (Value, String) {
    let said = json!([{ "role": "user", "content": "Say it." }]);
    let body = json!({ "messages": said, "max_tokens": 12, "temperature": 0 });
    let (_, reply) = ask_json(url, "/v1/chat/completions", &body).await;
    let text = reply["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    (said, text)
}

#[tokio::test]
async fn messages_are_answered_whole_and_streamed() {
    let url = serve(None).await;
    let (said, answer) = greedy(&url).await;
    let body = json!({ "model": "baton", "max_tokens": 12, "temperature": 0, "messages": said });
    let (status, whole) = ask_json(&url, "/v1/messages", &body).await;
    assert_eq!(
        (status, &whole["type"], &whole["content"][0]["text"]),
        (200, &json!("message"), &json!(answer))
    );
    let source =
        json!({ "writer": "device", "cloud_tokens": 0, "device_tokens": whole["usage"]["output_tokens"] });
    assert_eq!(whole["baton"]["source"], source);
    let (status, counted) = ask_json(&url, "/v1/messages/count_tokens", &body).await;
    let usage = &whole["usage"];
    let prompt = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!((status, &counted), (200, &json!({ "input_tokens": prompt })));

    let (status, kind, text) = ask(&url, "/v1/messages", &with(&body, json!({ "stream": true }))).await;
    assert_eq!((status, kind.as_str()), (200, "text/event-stream"));
    let events = events(&text);
    assert_eq!(joined(&events, |event| &event["delta"]["text"]), answer);
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], prompt);
    let last = events.iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(last["delta"]["stop_reason"], whole["stop_reason"]);
    assert_eq!(last["usage"]["output_tokens"], usage["output_tokens"]);
    assert_eq!(events.last().unwrap()["type"], "message_stop");

    // The answer ends before the stop sequence, which is named.
    let middle = answer.char_indices().nth(answer.chars().count() / 2).unwrap().0;
    let stop = answer[middle..].chars().next().unwrap().to_string();
    let stopped = with(&body, json!({ "stop_sequences": [stop, "never said"] }));
    let (_, stopped) = ask_json(&url, "/v1/messages", &stopped).await;
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    let before = answer.split(stop.as_str()).next().unwrap();
    assert_eq!(stopped["content"][0]["text"].as_str().unwrap_or_default(), before);
}

#[tokio::test]
async fn messages_are_refused_in_anthropics_form() {
    let url = serve(None).await;
    let body = json!({ "max_tokens": 2, "messages": [{ "role": "user", "content": "q" }] });
    let long = "The harbour keeps a list. ".repeat(400);
    for (path, extra, status, kind, words) in [
        ("/v1/messages", json!({ "model": "claude" }), 404, "not_found_error", "`baton`"),
        ("/v1/messages", json!({ "max_tokens": null }), 400, "invalid_request_error", "max_tokens"),
        ("/v1/messages", json!({ "tools": [{ "name": "f g" }] }), 400, "invalid_request_error", "tools"),
        ("/v1/messages", json!({ "system": long }), 400, "invalid_request_error", "prompt is too long"),
        ("/v1/messages", json!({ "system": long, "stream": true }), 400, "invalid_request_error", "too long"),
        ("/v1/messages/count_tokens", json!({ "top_p": 9 }), 400, "invalid_request_error", "top_p"),
        ("/v1/messages/batches", json!({}), 404, "not_found_error", "no such path"),
    ] {
        let (got, reply) = ask_json(&url, path, &with(&body, extra)).await;
        assert_eq!((got, &reply["type"], &reply["error"]["type"]), (status, &json!("error"), &json!(kind)));
        let message = reply["error"]["message"].as_str().unwrap();
        assert!(message.contains(words) && !message.contains("truncation"), "{message}");
    }
}

#[tokio::test]
async fn the_key_may_come_as_anthropics_clients_send_it() {
    let url = serve(Some("k1")).await;
    let body = json!({ "max_tokens": 2, "messages": [{ "role": "user", "content": "q" }] });
    for (key, status) in [("k1", 200), ("k2", 401)] {
        let request = client().post(format!("{url}/v1/messages")).header("anthropic-version", "2023-06-01");
        let reply = request.header("x-api-key", key).json(&body).send().await.unwrap();
        assert_eq!(reply.status().as_u16(), status);
        let reply: Value = reply.json().await.unwrap();
        let kind = if status == 200 { &reply["type"] } else { &reply["error"]["type"] };
        assert_eq!(kind, if status == 200 { "message" } else { "authentication_error" });
    }
}

#[tokio::test]
async fn ollamas_clients_are_answered_whole_and_streamed() {
    let url = serve(None).await;
    let (said, answer) = greedy(&url).await;
    let options = json!({ "temperature": 0, "num_predict": 12, "num_ctx": 512 });
    let common = json!({ "model": "baton:latest", "options": options, "keep_alive": "5m" });
    for (path, own, field) in [
        ("/api/chat", json!({ "messages": said }), "/message/content"),
        ("/api/generate", json!({ "prompt": "Say it." }), "/response"),
    ] {
        let body = with(&common, own);
        let (status, whole) = ask_json(&url, path, &with(&body, json!({ "stream": false }))).await;
        assert_eq!((status, whole.pointer(field)), (200, Some(&json!(answer))), "{whole}");
        assert_eq!((&whole["done"], &whole["model"]), (&json!(true), &json!("baton")));
        for count in ["prompt_eval_count", "eval_count", "total_duration", "prompt_eval_duration"] {
            assert!(whole[count].as_u64().is_some_and(|count| count > 0), "{count}: {whole}");
        }
        let (status, kind, text) = ask(&url, path, &body).await;
        assert_eq!((status, kind.as_str()), (200, "application/x-ndjson"));
        let lines = lines(&text);
        assert_eq!(joined(&lines, |line| line.pointer(field).unwrap()), answer);
        let (last, rest) = lines.split_last().unwrap();
        assert!(rest.iter().all(|line| line["done"] == false), "{text}");
        assert_eq!((&last["done"], &last["eval_count"]), (&json!(true), &whole["eval_count"]));
        let nothing = with(&common, json!({ "stream": false }));
        let (status, loaded) = ask_json(&url, path, &nothing).await;
        assert_eq!((status, &loaded["done_reason"]), (200, &json!("load")));
    }
}

#[tokio::test]
async fn ollamas_clients_are_refused_in_their_form() {
    let url = serve(None).await;
    let said = json!({ "model": "baton", "messages": [{ "role": "user", "content": "q" }] });
    for (path, body, status, words) in [
        ("/api/chat", with(&said, json!({ "model": "llama3.2" })), 404, "`llama3.2`"),
        ("/api/chat", with(&said, json!({ "tools": [{ "type": "function" }] })), 400, "tools"),
        ("/api/embed", json!({ "model": "baton", "input": "a" }), 400, "no embedding model"),
        ("/api/embeddings", json!({ "model": "baton", "prompt": "a" }), 400, "no embedding model"),
        ("/api/pull", json!({ "model": "hf.co/a/b" }), 400, "keeps no models"),
        ("/api/pull", json!({ "model": "llama3.2" }), 400, "hf.co/"),
        ("/api/show", json!({ "model": "llama3.2" }), 404, "`llama3.2`"),
        ("/api/create", json!({ "model": "x" }), 400, "`baton model import`"),
        ("/api/copy", json!({ "source": "x", "destination": "y" }), 400, "not copied"),
        ("/api/push", json!({ "model": "x" }), 400, "not published"),
    ] {
        let (got, reply) = ask_json(&url, path, &body).await;
        let message = reply["error"].as_str().unwrap_or_else(|| panic!("{path}: {reply}"));
        assert_eq!((got, message.contains(words)), (status, true), "{path}: {message}");
    }
    let unloaded = with(&said, json!({ "messages": [], "keep_alive": 0 }));
    let (status, reply) = ask_json(&url, "/api/chat", &unloaded).await;
    assert_eq!((status, &reply["done_reason"]), (200, &json!("unload")));
}

#[tokio::test]
async fn ollamas_clients_see_the_model() {
    let url = serve(None).await;
    let get = async |path: &str| -> Value {
        client().get(format!("{url}{path}")).send().await.unwrap().json().await.unwrap()
    };
    assert_eq!(get("/api/version").await["version"], baton_openai::ollama::VERSION);
    for path in ["/api/tags", "/api/ps"] {
        let models = get(path).await;
        let models = models["models"].as_array().unwrap();
        assert_eq!((models.len(), &models[0]["name"]), (1, &json!("baton")), "{path}");
    }
    let (status, shown) = ask_json(&url, "/api/show", &json!({ "model": "baton" })).await;
    assert_eq!((status, &shown["capabilities"]), (200, &json!(["completion", "tools"])));
}

#[tokio::test]
async fn responses_are_made_whole_and_streamed() {
    let url = serve(None).await;
    let (_, answer) = greedy(&url).await;
    let body = json!({ "model": "default", "input": "Say it.", "max_output_tokens": 12, "temperature": 0 });
    let (status, whole) = ask_json(&url, "/v1/responses", &body).await;
    assert_eq!((status, &whole["object"]), (200, &json!("response")));
    assert_eq!(whole["output"][0]["content"][0]["text"], json!(answer), "{whole}");
    let reply = client().post(format!("{url}/v1/responses")).json(&body).send().await.unwrap();
    let wrote = whole["usage"]["output_tokens"].as_u64().unwrap();
    assert_eq!(reply.headers()["x-baton-source"], format!("device;cloud=0;device={wrote}").as_str());
    let (status, kind, text) = ask(&url, "/v1/responses", &with(&body, json!({ "stream": true }))).await;
    assert_eq!((status, kind.as_str()), (200, "text/event-stream"));
    let events = events(&text);
    let deltas: Vec<Value> =
        events.iter().filter(|event| event["type"] == "response.output_text.delta").cloned().collect();
    assert_eq!(joined(&deltas, |event| &event["delta"]), answer);
    let last = events.last().unwrap();
    assert_eq!(last["type"], format!("response.{}", whole["status"].as_str().unwrap()));
    assert_eq!(last["response"]["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    assert_eq!(last["response"]["baton"]["source"]["device_tokens"], wrote);
    for (extra, param) in [
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "conversation": "conv_1" }), "conversation"),
    ] {
        let (status, reply) = ask_json(&url, "/v1/responses", &with(&body, extra)).await;
        assert_eq!((status, &reply["error"]["param"]), (400, &json!(param)));
    }
    let (status, refused) =
        ask_json(&url, "/v1/embeddings", &json!({ "model": "baton", "input": "a" })).await;
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("model")), "{refused}");
}

#[tokio::test]
async fn who_waits_for_a_long_prompt_is_told_in_every_dialect() {
    let emulate = PassCost { base_ms: 0.0, prefill_ms_per_token: 2.0, decode_ms: 0.0 };
    let url = serve_with(None, emulate).await;
    let said = json!([{ "role": "user", "content": "word ".repeat(150) }]);
    let body = json!({ "max_tokens": 2, "stream": true, "messages": said });
    let (status, _, text) = ask(&url, "/v1/messages", &body).await;
    assert!(status == 200 && text.contains("event: ping\n"), "{text}");
    let body = json!({ "model": "baton", "options": { "num_predict": 2 }, "messages": said });
    let (_, _, text) = ask(&url, "/api/chat", &body).await;
    let told: Vec<Value> = lines(&text).into_iter().filter(|line| line.get("x_progress").is_some()).collect();
    let last = told.last().expect("a line of progress");
    assert!(last["x_progress"]["total"].as_u64().is_some_and(|total| total > 300), "{last}");
    assert_eq!((&last["message"]["content"], &last["done"]), (&json!(""), &json!(false)));
}
