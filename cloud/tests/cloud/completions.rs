//! Tests schemas, tools, log probabilities and the field `baton` on the chat API, and the document of all
//! routes.

use serde_json::{Value, json};

use crate::client::Server;
use crate::world::document;

async fn ask(server: &Server, extra: Value) -> Value {
    let mut request = json!({
        "model": "tiny",
        "messages": [{ "role": "user", "content": "Say something." }],
        "temperature": 0,
        "max_tokens": 400,
    });
    for (key, value) in extra.as_object().unwrap() {
        request[key] = value.clone();
    }
    if request["stream"] == true {
        let chunks = server.post("/v1/chat/completions", &request).await.chat_chunks();
        return Value::Array(chunks);
    }
    let reply = server.post("/v1/chat/completions", &request).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

fn joined(chunks: &Value, part: impl Fn(&Value) -> Option<String>) -> String {
    chunks.as_array().unwrap().iter().filter_map(|chunk| part(&chunk["choices"][0]["delta"])).collect()
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": { "name": { "type": "string", "maxLength": 8 }, "age": { "type": "integer", "minimum": 0, "maximum": 99 } },
        "required": ["name", "age"],
        "additionalProperties": false
    })
}

fn weather() -> Value {
    let parameters = json!({ "type": "object", "properties": { "city": { "enum": ["Ulm", "Bern"] } },
        "required": ["city"], "additionalProperties": false });
    json!([{ "type": "function", "function": { "name": "weather", "parameters": parameters } }])
}

#[tokio::test]
async fn a_schema_is_followed_whole_and_streamed_alone_and_beside_others() {
    let server = Server::start().await;
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "p", "schema": schema(), "strict": true } });
    let asked = json!({ "response_format": format, "temperature": 1.4, "seed": 4 });
    let whole = ask(&server, asked.clone()).await;
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    let text = choice["message"]["content"].as_str().unwrap();
    let person: Value = serde_json::from_str(text).unwrap();
    assert!(
        person["name"].as_str().unwrap().chars().count() <= 8 && person["age"].as_u64().unwrap() <= 99,
        "{text}"
    );
    assert_eq!(person.as_object().unwrap().len(), 2);
    let mut streamed = asked.clone();
    streamed["stream"] = json!(true);
    let plain = json!({ "temperature": 1.4, "seed": 5, "max_tokens": 60 });
    let (chunks, again, _) = tokio::join!(ask(&server, streamed), ask(&server, asked), ask(&server, plain));
    assert_eq!(joined(&chunks, |delta| delta["content"].as_str().map(str::to_owned)), text);
    assert_eq!(again["choices"][0]["message"]["content"], text, "the same beside other answers");
    let object =
        ask(&server, json!({ "response_format": { "type": "json_object" }, "max_tokens": 20 })).await;
    assert!(object["choices"][0]["message"]["content"].as_str().unwrap().starts_with('{'));
}

/// Checks that citations name whole sentences of the first message, and text of the answer.
fn check_citations(citations: &Value, document: &str, answer: &str) {
    let citations = citations.as_array().unwrap();
    assert!(!citations.is_empty(), "{answer}");
    let range = |range: &Value| {
        let at = |end: usize| range[end].as_u64().unwrap() as usize;
        at(0)..at(1)
    };
    let sentences = baton_protocol::sentences(document);
    let sentences: Vec<&str> = sentences.into_iter().map(|range| document[range].trim()).collect();
    for citation in citations {
        assert!(!answer[range(&citation["answer"])].trim().is_empty());
        let sources = citation["sources"].as_array().unwrap();
        assert!((1..=2).contains(&sources.len()));
        for source in sources {
            assert_eq!(source["message"], 1);
            assert!(sentences.contains(&&document[range(&source["bytes"])]), "{source}");
            assert!((0.0..=1.0).contains(&source["score"].as_f64().unwrap()));
        }
    }
}

#[tokio::test]
async fn an_answer_cites_sentences_of_the_messages_whole_and_streamed() {
    let server = Server::start().await;
    let text = "Dor has bells. The toys of Fen are kites! Alb sings.\n\nWhat are the toys of Fen?";
    let document = text.split("\n\n").next().unwrap();
    let messages =
        json!([{ "role": "system", "content": "Be brief. Cite." }, { "role": "user", "content": text }]);
    let asked = json!({ "messages": messages, "citations": true, "max_tokens": 60 });
    let whole = ask(&server, asked.clone()).await;
    let answer = whole["choices"][0]["message"]["content"].as_str().unwrap();
    check_citations(&whole["baton"]["citations"], document, answer);
    let mut streamed = asked.clone();
    streamed["stream"] = json!(true);
    let chunks = ask(&server, streamed).await;
    let last = chunks.as_array().unwrap().iter().rfind(|chunk| !chunk["baton"].is_null()).unwrap();
    assert_eq!(last["baton"]["citations"], whole["baton"]["citations"]);
    let plain = ask(&server, json!({ "messages": messages, "max_tokens": 60 })).await;
    assert_eq!(plain["choices"][0]["message"]["content"], answer, "citations change no text");
    assert!(plain["baton"].is_null());
    let request = json!({ "model": "tiny", "messages": messages, "citations": true, "tools": weather() });
    let refused = server.post("/v1/chat/completions", &request).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("citations")));
}

#[tokio::test]
async fn a_demanded_call_comes_as_one() {
    let server = Server::start().await;
    let whole = ask(&server, json!({ "tools": weather(), "tool_choice": "required" })).await;
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &Value::Null)
    );
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(
        (calls.len(), &calls[0]["type"], &calls[0]["function"]["name"]),
        (1, &json!("function"), &json!("weather"))
    );
    let arguments = calls[0]["function"]["arguments"].as_str().unwrap();
    let city = &serde_json::from_str::<Value>(arguments).unwrap()["city"];
    assert!(city == "Ulm" || city == "Bern", "{arguments}");
    let chunks = ask(&server, json!({ "tools": weather(), "tool_choice": "required", "stream": true })).await;
    let deltas: Vec<&Value> =
        chunks.as_array().unwrap().iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    let first = deltas.iter().find_map(|delta| delta.get("tool_calls")).unwrap();
    assert_eq!((&first[0]["index"], &first[0]["function"]["name"]), (&json!(0), &json!("weather")));
    assert!(first[0]["id"].as_str().unwrap().starts_with("call_"));
    let streamed =
        joined(&chunks, |delta| delta["tool_calls"][0]["function"]["arguments"].as_str().map(str::to_owned));
    assert_eq!(streamed, arguments);
    assert_eq!(chunks.as_array().unwrap().last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    let mut message = choice["message"].clone();
    message["content"] = json!("");
    let id = &calls[0]["id"];
    let back = json!([{ "role": "user", "content": "Sun?" }, message, { "role": "tool", "tool_call_id": id, "content": "rain" }]);
    let after =
        ask(&server, json!({ "messages": back, "tools": weather(), "tool_choice": "none", "max_tokens": 4 }))
            .await;
    assert!(after["choices"][0]["message"].get("tool_calls").is_none());
    assert!(
        after["usage"]["prompt_tokens"].as_u64()
            > whole["usage"]["prompt_tokens"].as_u64().map(|tokens| tokens / 4)
    );
}

#[tokio::test]
async fn log_probabilities_come_with_every_token() {
    let server = Server::start().await;
    let asked = json!({ "logprobs": true, "top_logprobs": 2, "max_tokens": 9 });
    let whole = ask(&server, asked.clone()).await;
    let places = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(Some(places.len() as u64), whole["usage"]["completion_tokens"].as_u64());
    for place in places {
        let top = place["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["logprob"]), (2, &place["logprob"]), "greedy takes the likeliest");
        assert!(place["logprob"].as_f64().unwrap() <= 0.0);
        assert!(top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64());
    }
    let mut streamed = asked;
    streamed["stream"] = json!(true);
    let chunks = ask(&server, streamed).await;
    let streamed: Vec<&Value> = chunks
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .collect();
    assert_eq!(streamed, places.iter().collect::<Vec<_>>());
    assert!(ask(&server, json!({ "max_tokens": 2 })).await["choices"][0]["logprobs"].is_null());
}

#[tokio::test]
async fn penalties_change_the_answer() {
    let server = Server::start().await;
    let plain = ask(&server, json!({ "max_tokens": 40 })).await;
    let varied =
        ask(&server, json!({ "max_tokens": 40, "frequency_penalty": 2, "presence_penalty": 2 })).await;
    assert_ne!(plain["choices"][0]["message"]["content"], varied["choices"][0]["message"]["content"]);
}

#[tokio::test]
async fn a_scene_on_the_chat_api_gives_mask_l_and_handoff() {
    let server = Server::start().await;
    let messages = json!([{ "role": "system", "content": "You answer from the document." },
        { "role": "user", "content": document(12) }, { "role": "user", "content": "\n\nQuestion: What does item 7 cost?" }]);
    let baton = json!({ "scene": "doc-qa", "assist_tokens": 6, "refine": [1] });
    let asked = json!({ "messages": messages, "baton": baton, "max_tokens": null });
    let whole = ask(&server, asked.clone()).await;
    assert_eq!(
        (&whole["choices"][0]["finish_reason"], &whole["baton"]["assist_tokens"]),
        (&json!("length"), &json!(6))
    );
    assert_eq!(whole["baton"]["mask"]["unit"], "sentence");
    assert_eq!(whole["baton"]["handoff"], json!({ "reason": "cap", "next_index": 6 }));
    let mut streamed = asked;
    streamed["stream"] = json!(true);
    let chunks = ask(&server, streamed).await;
    let chunks = chunks.as_array().unwrap();
    assert_eq!(
        (&chunks[0]["baton"]["assist_tokens"], &chunks[0]["baton"]["mask"]),
        (&json!(6), &whole["baton"]["mask"])
    );
    let (last, rest) = chunks.split_last().unwrap();
    assert_eq!(last["baton"]["handoff"]["next_index"], 6);
    assert_eq!(rest.iter().filter(|chunk| chunk.get("baton").is_some()).count(), 1);
    let plain = ask(&server, json!({ "max_tokens": 2, "stream": true })).await;
    assert!(
        plain.as_array().unwrap().iter().all(|chunk| chunk.get("baton").is_none()),
        "only where it was asked for"
    );
    let unknown = server
        .post(
            "/v1/chat/completions",
            &json!({ "model": "tiny", "messages": messages,
        "baton": { "scene": "nothing" } }),
        )
        .await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test]
async fn a_limit_lowers_l_and_is_no_wish_for_it() {
    let server = Server::start().await;
    let told = async |baton: Value, limit: u64| {
        let messages = json!([{ "role": "user", "content": document(12) },
            { "role": "user", "content": "Question: What does item 7 cost?" }]);
        let whole = ask(&server, json!({ "messages": messages, "baton": baton, "max_tokens": limit })).await;
        let bound_by = whole["baton"]["assist_bound_by"].as_str().unwrap_or_default().to_owned();
        (whole["baton"]["assist_tokens"].as_u64().unwrap(), bound_by)
    };
    for limit in [1024, 100_000] {
        let (tokens, bound_by) = told(json!({ "scene": "doc-qa", "refine": [0] }), limit).await;
        assert!(bound_by != "fixed", "the optimizer's L: {tokens}, {bound_by}");
    }
    let wish = json!({ "scene": "doc-qa", "assist_tokens": 6 });
    assert_eq!(told(wish.clone(), 100_000).await, (6, "fixed".to_owned()));
    assert_eq!(told(wish, 3).await, (3, "answer_length".to_owned()));
}

#[tokio::test]
async fn a_response_is_the_answer_of_a_chat() {
    let server = Server::start().await;
    let chat = ask(&server, json!({ "max_tokens": 8 })).await;
    let mut body =
        json!({ "model": "tiny", "input": "Say something.", "temperature": 0, "max_output_tokens": 8 });
    let whole = server.post("/v1/responses", &body).await.json();
    let text = &chat["choices"][0]["message"]["content"];
    assert_eq!(&whole["output"][0]["content"][0]["text"], text, "{whole}");
    assert_eq!(whole["usage"]["output_tokens"], chat["usage"]["completion_tokens"]);
    body["stream"] = json!(true);
    let streamed = server.post("/v1/responses", &body).await;
    assert_eq!(streamed.header("content-type"), Some("text/event-stream"));
    let events = named_events(&streamed.body());
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let joined: String = deltas.filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!((json!(joined), &events[0]["type"]), (text.clone(), &json!("response.created")));
    let last = &events.last().unwrap()["response"];
    assert_eq!((&last["status"], &last["usage"]), (&whole["status"], &whole["usage"]));

    let function = json!({ "type": "function", "name": "weather", "strict": true,
        "parameters": weather()[0]["function"]["parameters"] });
    body["tools"] = json!([function]);
    (body["tool_choice"], body["max_output_tokens"]) = (json!("required"), json!(200));
    let events = named_events(&server.post("/v1/responses", &body).await.body());
    let item = &events.last().unwrap()["response"]["output"][0];
    assert_eq!((&item["type"], &item["name"]), (&json!("function_call"), &json!("weather")), "{item}");
    let arguments: Value = serde_json::from_str(item["arguments"].as_str().unwrap()).unwrap();
    assert!(["Ulm", "Bern"].contains(&arguments["city"].as_str().unwrap()), "{arguments}");

    body["previous_response_id"] = json!("resp_1");
    let refused = server.post("/v1/responses", &body).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("previous_response_id")));
    let refused = server.post("/v1/embeddings", &json!({ "model": "tiny", "input": "a" })).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("model")));
}

/// Returns the data of all events that have a name.
fn named_events(body: &str) -> Vec<Value> {
    let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[tokio::test]
async fn the_document_holds_every_route() {
    let server = Server::start().await;
    let reply = server.get("/openapi.json").await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
    let document = reply.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let mut paths: Vec<&str> = document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    paths.sort_unstable();
    assert_eq!(
        paths,
        [
            "/healthz",
            "/openapi.json",
            "/readyz",
            "/tokenize",
            "/v1/assist",
            "/v1/assist/{id}",
            "/v1/assist/{id}/kv",
            "/v1/assist/{id}/verify",
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/embeddings",
            "/v1/feedback",
            "/v1/models",
            "/v1/models/{id}",
            "/v1/registry/blobs/sha256/{digest}",
            "/v1/registry/sync",
            "/v1/responses",
            "/v1/scenes",
            "/v1/scenes/{id}",
            "/v1/stats",
        ]
    );
    // Every reference has a target.
    let text = document.to_string();
    for (at, _) in text.match_indices("\"$ref\":\"#") {
        let pointer = text[at + 9..].split('"').next().unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer} leads nowhere");
    }
    assert!(document["components"]["schemas"]["FirstBody"]["properties"]["assist_tokens"].is_object());
    assert!(document["components"]["securitySchemes"]["key"].is_object());
}
