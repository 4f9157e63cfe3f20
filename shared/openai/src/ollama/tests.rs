//! Requests as Ollama's clients send them, and replies as they read them.

use std::time::{Duration, UNIX_EPOCH};

use baton_protocol::{ErrorCode, Role, Usage};
use serde_json::{Value, json};

use super::models::{ModelFacts, PullRequest, ps, pull_status, read_pull, read_show, show, tags, version};
use super::*;
use crate::capabilities::Capabilities;
use crate::dialect::Dialect;
use crate::error::FieldError;
use crate::reply::{Ending, FinishReason, Message, Piece, Times};
use crate::request::{AnswerFormat, ChatRequest, Prompt};
use crate::tool_calls::ToolPiece;
use crate::tools::{ChatMessage, PastCall};
use crate::writer::{AnswerFacts, AnswerWriter, Asked, Read, Work};

fn with(extra: Value, base: Value) -> Vec<u8> {
    let mut body = base;
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body.to_string().into_bytes()
}

fn chat(extra: Value) -> Vec<u8> {
    with(extra, json!({ "model": "m", "messages": [{ "role": "user", "content": "Hello" }] }))
}

fn generate(extra: Value) -> Vec<u8> {
    with(extra, json!({ "model": "m", "prompt": "Hello" }))
}

fn asked(read: Read, body: &[u8], can: &Capabilities) -> Result<Asked, FieldError> {
    match read(body, can)? {
        Work::Answer(asked) => Ok(*asked),
        other => panic!("{other:?}"),
    }
}

fn device(extra: Value) -> ChatRequest {
    asked(read_chat, &chat(extra), &Capabilities::DEVICE).unwrap().request
}

#[test]
fn options_are_translated() {
    let options = json!({ "temperature": 0.2, "top_k": 20, "top_p": 0.5, "min_p": 0.1, "seed": 7,
        "repeat_penalty": 1.1, "num_predict": 5, "stop": ["END"], "num_ctx": 4096, "num_thread": 4,
        "num_gpu": 99, "mirostat": 0, "repeat_last_n": -1 });
    let body = chat(json!({ "model": "m:latest", "options": options, "keep_alive": "5m", "stream": false }));
    let asked = asked(read_chat, &body, &Capabilities::DEVICE).unwrap();
    assert_eq!((asked.context_min, asked.dialect), (Some(4096), Dialect::Ollama));
    let request = asked.request;
    assert_eq!((request.model.as_str(), request.stream, request.max_tokens), ("m", false, Some(5)));
    let sampling = request.sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.seed), (0.2, Some(20), 7));
    assert_eq!((sampling.top_p, sampling.min_p, sampling.repetition_penalty), (Some(0.5), Some(0.1), 1.1));
    assert_eq!(sampling.stop, ["END"]);
}

#[test]
fn defaults_are_ollamas() {
    let request = device(json!({}));
    assert_eq!((request.stream, request.shorten, request.max_tokens), (true, true, Some(65_536)));
    let free = device(json!({ "options": { "num_predict": -1, "seed": -1, "top_k": 0 }, "truncate": false }));
    assert_eq!((free.max_tokens, free.shorten, free.sampling.top_k), (Some(65_536), false, None));
}

#[test]
fn a_prompt_is_a_conversation_or_a_text() {
    let read = |extra| asked(read_generate, &generate(extra), &Capabilities::DEVICE).unwrap().request.prompt;
    let want = vec![ChatMessage::new(Role::System, "S"), ChatMessage::new(Role::User, "Hello")];
    assert_eq!(read(json!({ "system": "S", "suffix": "", "context": [] })), Prompt::Chat(want));
    let text = Prompt::Text { text: "Hello".into(), suffix: None, echo: false };
    assert_eq!(read(json!({ "raw": true })), text);
}

#[test]
fn a_request_without_a_prompt_asks_for_the_model() {
    let bodies = [
        (read_chat as Read, chat(json!({ "messages": [] })), "message"),
        (read_generate as Read, generate(json!({ "prompt": "", "keep_alive": -1 })), "response"),
    ];
    for (read, body, field) in bodies {
        let Work::Nothing { model, reply, unloads: false } = read(&body, &Capabilities::DEVICE).unwrap()
        else {
            panic!()
        };
        let reply: Value = serde_json::from_str(&reply).unwrap();
        assert_eq!(
            (model.as_str(), &reply["done"], &reply["done_reason"]),
            ("m", &json!(true), &json!("load"))
        );
        assert!(reply.get(field).is_some(), "{reply}");
    }
    for none in [json!(0), json!(0.0), json!("0"), json!("0s"), json!("0m")] {
        let unload = chat(json!({ "messages": [], "keep_alive": none }));
        let Work::Nothing { reply, unloads: true, .. } = read_chat(&unload, &Capabilities::DEVICE).unwrap()
        else {
            panic!("{none} unloads")
        };
        let reply: Value = serde_json::from_str(&reply).unwrap();
        assert_eq!(reply["done_reason"], "unload");
    }
}

#[track_caller]
fn refused(read: Read, body: Vec<u8>, param: &str, words: &str) {
    let err = read(&body, &Capabilities::DEVICE_OF_CLOUD).unwrap_err();
    assert_eq!(err.param(), Some(param), "{err}");
    assert!(err.to_string().contains(words) && err.to_string().contains(param), "{err}");
}

#[test]
fn what_cannot_be_translated_is_refused_by_name() {
    let option = |options: Value| chat(json!({ "options": options }));
    for (options, param, words) in [
        (json!({ "temperature": "hot" }), "options.temperature", "invalid type"),
        (json!({ "num_predict": 1.5 }), "options.num_predict", "integer"),
        (json!({ "stop": vec!["x"; 17] }), "options.stop", "17"),
    ] {
        refused(read_chat, option(options), param, words);
    }
    let said = |message: Value| chat(json!({ "messages": [message] }));
    refused(read_chat, chat(json!({ "model": "" })), "model", "is missing");
    refused(read_chat, chat(json!({ "format": "xml" })), "format", "`json`");
    refused(read_chat, chat(json!({ "format": "json" })), "format", "cannot hold an answer to JSON");
    let tool = json!([{ "type": "function", "function": { "name": "f" } }]);
    refused(read_chat, chat(json!({ "tools": tool })), "tools", "does not support tools");
    let image = json!({ "role": "user", "content": "a", "images": ["aa"] });
    refused(read_chat, said(image), "messages[0].images", "this is `image`");
    let result = json!({ "role": "tool", "content": "a", "tool_name": "f" });
    refused(read_chat, said(result), "messages[0].role", "does not support tools");
    refused(read_chat, said(json!({ "role": "x", "content": "a" })), "messages[0].role", "must be");
    for (extra, param) in [
        (json!({ "suffix": "s", "system": "s" }), "system"),
        (json!({ "template": "t" }), "template"),
        (json!({ "context": [1] }), "context"),
        (json!({ "images": ["aa"] }), "images"),
        (json!({ "raw": true, "system": "s" }), "system"),
    ] {
        refused(read_generate, generate(extra), param, "");
    }
}

#[test]
fn calls_and_results_belong_together() {
    let messages = json!([
        { "role": "user", "content": "a" },
        { "role": "assistant", "content": "", "tool_calls": [
            { "function": { "name": "f", "arguments": { "a": 1 } } },
            { "function": { "name": "g", "arguments": {} } },
        ] },
        { "role": "tool", "tool_name": "g", "content": "two" },
        { "role": "tool", "content": "one" },
    ]);
    let request =
        asked(read_chat, &chat(json!({ "messages": messages })), &Capabilities::CLOUD).unwrap().request;
    let messages = request.prompt.messages();
    let call = PastCall { id: "call_1".into(), name: "f".into(), arguments: r#"{"a":1}"#.into() };
    assert_eq!((&messages[1].calls[0], messages[1].calls.len()), (&call, 2));
    let ids: Vec<Option<&str>> = messages[2..].iter().map(|message| message.call_id.as_deref()).collect();
    assert_eq!(ids, [Some("call_2"), Some("call_1")]);
    let lost = chat(json!({ "messages": [{ "role": "tool", "content": "one", "tool_name": "f" }] }));
    let lost = asked(read_chat, &lost, &Capabilities::CLOUD).unwrap().request;
    assert_eq!(lost.prompt.messages(), [ChatMessage::new(Role::User, "Result of the call f:\none")]);
    let schema = chat(json!({ "format": { "type": "object" } }));
    let asked = asked(read_chat, &schema, &Capabilities::CLOUD).unwrap();
    assert_eq!(asked.request.format, AnswerFormat::JsonSchema(json!({ "type": "object" })));
}

fn ending() -> Ending {
    let usage = Usage { prompt_tokens: 40, cached_prefix_tokens: 32, completion_tokens: 5 };
    let times = Times {
        total: Duration::from_millis(30),
        prompt: Duration::from_millis(10),
        answer: Duration::from_millis(15),
    };
    Ending { times, ..Ending::new(FinishReason::Length, usage) }
}

fn writer(read: Read, body: &[u8]) -> Box<dyn AnswerWriter> {
    asked(read, body, &Capabilities::CLOUD).unwrap().writer.with(AnswerFacts::of("m"))
}

/// Returns the lines of an answer made of these parts.
fn streamed(mut writer: Box<dyn AnswerWriter>, pieces: &[Piece]) -> Vec<Value> {
    let mut out = String::new();
    writer.begin(None, &mut out);
    writer.progress(&json!({ "stage": "prefill", "computed": 3, "total": 40 }), &mut out);
    pieces.iter().for_each(|piece| writer.piece(piece.clone(), &mut out));
    writer.end(ending(), &mut out);
    writer.done(&mut out);
    out.split_terminator('\n').map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_lines_put_together_are_the_whole_answer() {
    let pieces = [Piece::text("<think>Let me.</think>"), Piece::text("So"), Piece::text(".")];
    for (read, body, think) in [
        (read_chat as Read, chat(json!({})), true),
        (read_chat as Read, chat(json!({ "think": false })), false),
        (read_generate as Read, generate(json!({ "think": true })), true),
    ] {
        let lines = streamed(writer(read, &body), &pieces);
        let mut message = Message::default();
        message.take(pieces.clone());
        let mut whole: Value = serde_json::from_str(&writer(read, &body).whole(message, ending())).unwrap();
        let text = |line: &Value, field: &str| {
            let own = if field == "content" { "response" } else { field };
            line["message"][field].as_str().or(line[own].as_str()).unwrap_or_default().to_owned()
        };
        let joined = |field: &str| lines.iter().map(|line| text(line, field)).collect::<String>();
        assert_eq!((joined("content"), text(&whole, "content").as_str()), ("So.".into(), "So."));
        let thinking = if think { "Let me." } else { "" };
        assert_eq!((joined("thinking").as_str(), text(&whole, "thinking").as_str()), (thinking, thinking));
        let (last, rest) = lines.split_last().unwrap();
        assert!(rest.iter().all(|line| line["done"] == false && line.get("done_reason").is_none()));
        assert_eq!((&rest[0]["x_progress"]["computed"], text(&rest[0], "content").as_str()), (&json!(3), ""));
        for (field, want) in [
            ("done", json!(true)),
            ("done_reason", json!("length")),
            ("total_duration", json!(30_000_000)),
            ("load_duration", json!(0)),
            ("prompt_eval_count", json!(40)),
            ("prompt_eval_duration", json!(10_000_000)),
            ("eval_count", json!(5)),
            ("eval_duration", json!(15_000_000)),
            ("model", json!("m")),
        ] {
            assert_eq!((&last[field], whole[field].take()), (&want, want.clone()), "{field}");
        }
        assert!(last["created_at"].as_str().unwrap().ends_with('Z'), "{last}");
    }
}

#[test]
fn calls_come_whole() {
    let pieces = [
        ToolPiece::Call { index: 0, name: "f".into() },
        ToolPiece::Arguments { index: 0, text: "{\"a\"".into() },
        ToolPiece::Arguments { index: 0, text: ":1}".into() },
        ToolPiece::Call { index: 1, name: "g".into() },
    ];
    let pieces: Vec<Piece> = pieces.into_iter().map(Piece::from).collect();
    let lines = streamed(writer(read_chat, &chat(json!({}))), &pieces);
    let calls: Vec<&Value> =
        lines.iter().filter_map(|line| line["message"]["tool_calls"].as_array()).flatten().collect();
    let want = [("f", json!({ "a": 1 })), ("g", json!({}))]
        .map(|(name, arguments)| json!({ "function": { "name": name, "arguments": arguments } }));
    assert_eq!(calls, want.iter().collect::<Vec<_>>());
}

#[test]
fn errors_are_one_field() {
    let reply = ErrorReply::new(ErrorCode::UnknownModel, "no such model");
    assert_eq!(error(&reply), json!({ "error": "no such model" }));
    let (mut writer, mut out) = (writer(read_chat, &chat(json!({}))), String::new());
    writer.error(&reply, &mut out);
    assert_eq!(out, "{\"error\":\"no such model\"}\n");
    assert!(writer.ping().contains("\"done\":false") && writer.ping().ends_with("}\n"));
}

#[test]
fn models_are_described() {
    let model = ModelFacts {
        name: "baton".into(),
        family: Some("llama".into()),
        format: Some("Q8_0".into()),
        weights: 134_515_008,
        context_tokens: Some(2048),
        bytes: 9,
        sha256: None,
        modified: UNIX_EPOCH,
        licence: None,
        thinks: true,
        calls_tools: false,
    };
    let models = std::slice::from_ref(&model);
    let card = &tags(models)["models"][0];
    assert_eq!((&card["name"], &card["model"], &card["size"]), (&json!("baton"), &json!("baton"), &json!(9)));
    let details = &card["details"];
    assert_eq!((&details["parameter_size"], &details["families"]), (&json!("134.5M"), &json!(["llama"])));
    assert_eq!(ps(models)["models"][0]["context_length"], 2048);
    let shown = show(&model);
    assert_eq!(shown["model_info"]["llama.context_length"], 2048);
    assert_eq!(shown["capabilities"], json!(["completion", "thinking"]));
    assert_eq!(version()["version"], VERSION);
}

#[test]
fn models_are_named_as_ollama_names_them() {
    let pull = |extra: Value| read_pull(extra.to_string().as_bytes());
    let from = |source: &str, stream| Ok(PullRequest { source: source.to_owned(), stream });
    assert_eq!(pull(json!({ "model": "hf.co/a/b:Q4_K_M" })), from("hf:a/b:Q4_K_M", true));
    assert_eq!(pull(json!({ "name": "hf.co/a/b:latest", "stream": false })), from("hf:a/b", false));
    assert_eq!(pull(json!({ "model": "pypi:a==1" })), from("pypi:a==1", true));
    for (extra, param) in [
        (json!({ "model": "llama3.2" }), "model"),
        (json!({ "model": "/etc/passwd" }), "model"),
        (json!({}), "model"),
        (json!({ "model": "hf.co/a/b", "insecure": true }), "insecure"),
    ] {
        assert_eq!(pull(extra).unwrap_err().param(), Some(param));
    }
    assert_eq!(read_show(br#"{"model":"m:latest","verbose":true}"#).unwrap(), "m");
    let line = pull_status("pulling m", Some((1, 2)));
    let line: Value = serde_json::from_str(line.trim_end()).unwrap();
    assert_eq!(line, json!({ "status": "pulling m", "total": 2, "completed": 1 }));
}
