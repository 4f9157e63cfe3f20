//! Requests as Open WebUI's server sends them, by its connections of both kinds: to an OpenAI API and to an
//! Ollama. They have the fields and headers of its version 0.6; it cannot be started here.

use std::time::Duration;

use baton_e2e::http::client;
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};

use super::{KEY, agent};

/// Guards a reply against hangs.
const HANG: Duration = Duration::from_secs(60);
const AGENT: &str = "Python/3.11 aiohttp/3.12.15";

/// Sends a request as its server does.
async fn send(request: RequestBuilder) -> Response {
    let request = request.bearer_auth(KEY).header("user-agent", AGENT).timeout(HANG);
    let user = [
        ("x-openwebui-user-name", "A%20Reader"),
        ("x-openwebui-user-id", "3f0c7f3e-6f5a-4a05-9d4b-2f6f0d0a7c11"),
        ("x-openwebui-user-email", "reader@example.com"),
        ("x-openwebui-user-role", "admin"),
        ("x-openwebui-chat-id", "b2a9b3a4-91a5-4b58-8f3d-5a4f1f3f2b10"),
    ];
    let request = user.into_iter().fold(request, |request, (name, value)| request.header(name, value));
    request.send().await.expect("the agent replies")
}

async fn read(response: Response) -> Value {
    let (status, text) = (response.status(), response.text().await.expect("read the reply"));
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap_or_else(|err| panic!("{err}: {text}"))
}

/// Returns the text, the calls and the usage of a stream of chat chunks.
fn streamed(text: &str) -> (String, Vec<Value>, Value) {
    let mut data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data.pop(), Some("[DONE]"), "{text}");
    let (mut said, mut calls, mut usage) = (String::new(), Vec::new(), Value::Null);
    for chunk in data {
        let chunk: Value = serde_json::from_str(chunk).unwrap_or_else(|err| panic!("{err}: {chunk}"));
        let delta = &chunk["choices"][0]["delta"];
        said.push_str(delta["content"].as_str().unwrap_or_default());
        calls.extend(delta["tool_calls"].as_array().into_iter().flatten().cloned());
        if chunk["usage"].is_object() {
            usage = chunk["usage"].clone();
        }
    }
    (said, calls, usage)
}

#[tokio::test]
async fn as_an_openai_connection() {
    let folder = tempfile::tempdir().expect("make a folder");
    let (agent, client) = (agent(&folder).await, client());
    let url = |path: &str| format!("{}/v1{path}", agent.url());
    let models = read(send(client.get(url("/models"))).await).await;
    assert_eq!(models["data"][0]["id"], "baton", "{models}");

    let chat = |more: Value| {
        let mut body = json!({
            "stream": true, "model": "baton",
            "messages": [
                { "role": "system", "content": "You are a helpful assistant. Today is 2026-11-26." },
                { "role": "user", "content": "Name a colour." }
            ],
            "temperature": 0, "top_p": 0.9, "seed": 7, "max_tokens": 12, "stream_options": { "include_usage": true }
        });
        body.as_object_mut().expect("it is an object").extend(more.as_object().expect("as this is").clone());
        body
    };
    let text = send(client.post(url("/chat/completions")).json(&chat(json!({})))).await.text().await;
    let (said, calls, usage) = streamed(&text.expect("read the stream"));
    assert!(!said.is_empty() && calls.is_empty(), "{said:?} {calls:?}");
    assert!(usage["completion_tokens"].as_u64().is_some_and(|tokens| (1..=12).contains(&tokens)), "{usage}");

    // Its tasks: a title, tags and follow-up questions, each a whole reply.
    let task = json!({
        "model": "baton", "stream": false, "max_tokens": 1000,
        "messages": [{ "role": "user", "content": "### Task:\nGenerate a concise, 3-5 word title with an emoji \
            summarizing the chat history.\n### Output:\nJSON format: { \"title\": \"your concise title here\" }\n\
            ### Chat History:\n<chat_history>\nUSER: Name a colour.\nASSISTANT: Blue.\n</chat_history>" }]
    });
    let reply = read(send(client.post(url("/chat/completions")).json(&task)).await).await;
    assert!(reply["choices"][0]["message"]["content"].is_string(), "{reply}");

    // Tools that its server calls itself (native function calling).
    let tools = json!({ "tools": [{ "type": "function", "function": {
        "name": "get_current_time", "description": "Returns the time.",
        "parameters": { "type": "object", "properties": { "zone": { "type": "string" } }, "required": ["zone"] }
    } }], "tool_choice": "required", "max_tokens": 60 });
    let text = send(client.post(url("/chat/completions")).json(&chat(tools))).await.text().await;
    let (_, calls, _) = streamed(&text.expect("read the stream"));
    assert_eq!(calls[0]["function"]["name"], "get_current_time", "{calls:?}");

    // A picture is refused by its name, in an error that it can show.
    let picture = json!({ "messages": [{ "role": "user", "content": [
        { "type": "text", "text": "What is this?" },
        { "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBORw0KGgo=" } }
    ] }] });
    let refused = send(client.post(url("/chat/completions")).json(&chat(picture))).await;
    assert_eq!(refused.status(), 400);
    let refused: Value = refused.json().await.expect("it is JSON");
    assert!(
        refused["error"]["message"].as_str().is_some_and(|why| why.contains("only text can be read")),
        "{refused}"
    );
}

#[tokio::test]
async fn as_an_ollama_connection_that_is_stopped() {
    let folder = tempfile::tempdir().expect("make a folder");
    let (agent, client) = (agent(&folder).await, client());
    let url = |path: &str| format!("{}/api{path}", agent.url());
    let version = read(send(client.get(url("/version"))).await).await;
    assert!(version["version"].is_string(), "{version}");
    for path in ["/tags", "/ps"] {
        let listed = read(send(client.get(url(path))).await).await;
        assert!(listed["models"].is_array(), "{path}: {listed}");
    }
    let chat = |tokens: u64| {
        json!({
            "model": "baton:latest", "stream": true, "keep_alive": "5m",
            "messages": [{ "role": "user", "content": "Count up." }],
            "options": { "temperature": 0, "num_predict": tokens, "num_ctx": 2048, "seed": 1 }
        })
    };
    // The reader presses stop: its server closes the connection in the middle of the answer.
    let mut long = send(client.post(url("/chat")).json(&chat(4_000))).await;
    let first = long.chunk().await.expect("read the stream").expect("it has begun");
    assert!(first.starts_with(b"{"), "{first:?}");
    drop(long);
    // The agent goes on with the next one.
    let text = send(client.post(url("/chat")).json(&chat(8))).await.text().await.expect("read the stream");
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect();
    let last = lines.last().expect("there are lines");
    assert_eq!(last["done"], true, "{last}");
    assert!(last["eval_count"].as_u64().is_some_and(|tokens| (1..=8).contains(&tokens)), "{last}");
    assert!(
        lines.iter().any(|line| line["message"]["content"].as_str().is_some_and(|said| !said.is_empty()))
    );
}
