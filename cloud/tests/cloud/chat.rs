//! Tests the OpenAI chat API over real sockets, in the form that its clients rely on.

use std::num::NonZeroUsize;

use baton_cloud::api::ApiLimits;
use baton_cloud::service::ServiceOptions;
use baton_edge::HttpLimits;
use serde_json::{Value, json};

use crate::client::Server;
use crate::world::{document, options};

fn chat(extra: Value) -> Value {
    let mut request = json!({
        "model": "tiny",
        "messages": [{ "role": "system", "content": "You help." }, { "role": "user", "content": "Say something." }],
        "temperature": 0,
        "max_tokens": 12,
    });
    for (key, value) in extra.as_object().unwrap() {
        request[key] = value.clone();
    }
    request
}

#[tokio::test]
async fn whole_and_streamed_say_the_same() {
    let server = Server::start().await;
    let whole = server.post("/v1/chat/completions", &chat(json!({}))).await;
    assert_eq!(whole.status, 200);
    let whole = whole.json();
    assert_eq!((&whole["object"], &whole["model"]), (&json!("chat.completion"), &json!("tiny")));
    assert!(whole["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let choice = &whole["choices"][0];
    assert_eq!((&choice["index"], &choice["message"]["role"]), (&json!(0), &json!("assistant")));
    assert_eq!(choice["finish_reason"], "length");
    let usage = &whole["usage"];
    assert_eq!(usage["completion_tokens"], 12);
    let sum = usage["prompt_tokens"].as_u64().unwrap() + 12;
    assert_eq!(usage["total_tokens"].as_u64(), Some(sum));
    assert!(usage["prompt_tokens_details"]["cached_tokens"].is_u64());

    let options = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let streamed = server.post("/v1/chat/completions", &chat(options)).await;
    assert_eq!(streamed.header("content-type"), Some("text/event-stream"));
    assert!(!streamed.body().contains("event:"), "named events break clients");
    let chunks = streamed.chat_chunks();
    let id = chunks[0]["id"].as_str().unwrap();
    for chunk in &chunks {
        assert_eq!((&chunk["id"], &chunk["object"]), (&json!(id), &json!("chat.completion.chunk")));
        assert_eq!(chunk["model"], "tiny");
    }
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(json!(text), choice["message"]["content"]);
    let (last, rest) = chunks.split_last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(12)));
    assert_eq!(rest.last().unwrap()["choices"][0]["finish_reason"], "length");
    assert!(rest.iter().all(|chunk| chunk["usage"].is_null()));
    let finished = rest.iter().filter(|chunk| !chunk["choices"][0]["finish_reason"].is_null()).count();
    assert_eq!(finished, 1);
}

#[tokio::test]
async fn without_usage_nothing_follows_the_end() {
    let server = Server::start().await;
    let request = chat(json!({ "stream": true, "max_tokens": null, "max_completion_tokens": 4 }));
    let chunks = server.post("/v1/chat/completions", &request).await.chat_chunks();
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn a_stop_string_ends_the_answer_unseen() {
    let server = Server::start().await;
    let sampled = json!({ "max_tokens": 60, "temperature": 1.5, "seed": 11 });
    let whole = server.post("/v1/chat/completions", &chat(sampled.clone())).await.json();
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    // A piece from the middle of the answer that does not occur before.
    let chars: Vec<char> = text.chars().collect();
    let (at, stop) = (1..chars.len() - 1)
        .map(|at| (at, chars[at..at + 2].iter().collect::<String>()))
        .find(|(at, stop)| {
            let before: String = chars[..*at].iter().collect();
            text.find(stop.as_str()) == Some(before.len()) && !stop.contains('\u{fffd}')
        })
        .unwrap_or_else(|| panic!("no piece of {text:?} can be a stop string"));
    let before: String = chars[..at].iter().collect();
    for stop in [json!(stop), json!(["never said", stop])] {
        let mut request = chat(sampled.clone());
        request["stop"] = stop;
        let stopped = server.post("/v1/chat/completions", &request).await.json();
        let choice = &stopped["choices"][0];
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!(before), &json!("stop"))
        );
        let mut streamed = request.clone();
        streamed["stream"] = json!(true);
        let chunks = server.post("/v1/chat/completions", &streamed).await.chat_chunks();
        let text: String =
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(text, before);
    }
}

#[tokio::test]
async fn a_seed_decides_a_sampled_answer() {
    let server = Server::start().await;
    let mut texts = Vec::new();
    for seed in [3, 3, 4] {
        let request = chat(json!({ "temperature": 1.8, "seed": seed, "max_tokens": 24 }));
        let reply = server.post("/v1/chat/completions", &request).await.json();
        texts.push(reply["choices"][0]["message"]["content"].as_str().unwrap().to_owned());
    }
    assert_eq!(texts[0], texts[1]);
    assert_ne!(texts[0], texts[2]);
}

#[tokio::test]
async fn what_is_not_done_is_refused_by_name() {
    let server = Server::start().await;
    let unknown = server.post("/v1/chat/completions", &chat(json!({ "model": "gpt-9" }))).await.json();
    assert_eq!(unknown["error"]["code"], "model_not_found");
    let long = json!({ "messages": [{ "role": "user", "content": "x ".repeat(3000) }] });
    let long = server.post("/v1/chat/completions", &chat(long)).await.json();
    assert_eq!(
        (&long["error"]["code"], &long["error"]["param"]),
        (&json!("context_length_exceeded"), &json!("messages"))
    );
    for (extra, status, param) in [
        (json!({ "n": 2 }), 400, Some("n")),
        (json!({ "tools": [{ "type": "function" }] }), 400, Some("tools[0].function")),
        (json!({ "logit_bias": { "3": 1 } }), 400, Some("logit_bias")),
        (json!({ "response_format": { "type": "xml" } }), 400, Some("response_format.type")),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": { "type": "x" } } } }),
            400,
            Some("response_format.json_schema.schema"),
        ),
        (json!({ "temperature": 3 }), 400, Some("temperature")),
        (json!({ "max_tokens": 0 }), 400, Some("max_tokens")),
        (json!({ "messages": [] }), 400, Some("messages")),
        (json!({ "model": "gpt-9" }), 404, Some("model")),
        (json!({ "messages": [{ "role": "user", "content": "x ".repeat(3000) }] }), 400, Some("messages")),
    ] {
        let reply = server.post("/v1/chat/completions", &chat(extra.clone())).await;
        let error = &reply.json()["error"];
        assert_eq!((reply.status, error["param"].as_str()), (status, param), "{extra}: {error}");
    }
}

#[tokio::test]
async fn the_context_that_is_told_is_the_one_that_holds() {
    let options = ServiceOptions { kv_tokens: NonZeroUsize::new(512), ..options() };
    let server = Server::with(options, None, HttpLimits::default(), ApiLimits::default()).await;
    assert_eq!(server.get("/v1/models/default").await.json()["context_length"], 512, "not the model's 2,048");
    let messages = json!([{ "role": "user", "content": document(40) }]);
    let reply = server.post("/v1/chat/completions", &json!({ "model": "tiny", "messages": messages })).await;
    let error = &reply.json()["error"];
    assert_eq!((reply.status, &error["code"]), (400, &json!("context_length_exceeded")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("the limit is 511"), "{error}");
}
