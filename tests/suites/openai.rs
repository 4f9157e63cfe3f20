//! One table of chat requests and expected answers, against both real programs: by raw HTTP and by
//! openai-python. Both programs run the same model, so an answer of one equals the answer of the other.
//!
//! The two programs differ only as the table says for each of them: in what they offer. If Python or its
//! registry is missing, that part is skipped, and the suite says so. No test checks a time.

#[path = "openai/programs.rs"]
mod programs;
#[path = "openai/shape.rs"]
mod shape;
#[path = "openai/table.rs"]
mod table;
#[path = "openai/templates.rs"]
mod templates;

use std::process::Command;

use baton_e2e::clients::{CASES_LIMIT, cases, python, run, scripts};
use serde_json::{Value, json};

use programs::{KEY, Program};
use shape::{Summary, check_refusal, check_stream, check_whole};
use table::{Refusal, Row, Want, raw_rows, rows};

/// Asks for one row, in one piece and as a stream, and compares the reply with what is expected. Returns the
/// answer, if one is expected.
async fn asked(program: &Program, row: &Row, want: Want) -> Option<Summary> {
    let place = format!("{} by {}", row.name, program.name);
    let whole = program.chat(&row.body).await;
    let mut body = row.body.clone();
    body["stream"] = json!(true);
    match want {
        Want::Refusal(refusal) => {
            check_refusal(&whole, refusal, &place);
            // A field that needs `stream` is right in a stream, and a long prompt may be refused after its
            // head.
            if refusal.code == "invalid_request" && body.get("stream_options").is_none() {
                check_refusal(&program.chat(&body).await, refusal, &format!("{place}, streamed"));
            }
            None
        }
        Want::Answer => {
            let summary = check_whole(program.model, &whole, &place);
            body["stream_options"] = json!({ "include_usage": true });
            let streamed = check_stream(program.model, &program.chat(&body).await, &place);
            assert_eq!(streamed, summary, "{place}: the chunks are not the whole answer");
            check_wishes(program, &row.body, &summary, &place);
            Some(summary)
        }
    }
}

/// Checks that an answer holds what was asked for.
#[track_caller]
fn check_wishes(program: &Program, body: &Value, summary: &Summary, place: &str) {
    let limits = [&body["max_tokens"], &body["max_completion_tokens"]];
    let limit = limits.into_iter().filter_map(Value::as_u64).min().unwrap_or(u64::MAX);
    assert!(summary.completion_tokens <= limit, "{place}: {summary:?}");
    assert_eq!(
        summary.finish_reason == "tool_calls",
        body["tool_choice"] == "required",
        "{place}: {summary:?}"
    );
    let places = summary.places.len() as u64;
    let has_places = body["logprobs"] == true && program.name == "cloud";
    let want = if has_places { summary.completion_tokens } else { 0 };
    assert_eq!(places, want, "{place}: one entry for each token");
    assert_eq!(summary.baton, body["baton"].is_object(), "{place}: {summary:?}");
}

#[tokio::test]
async fn both_programs_answer_and_refuse_alike() {
    let (cloud, device) = programs::start().await;
    let rows = rows();
    for row in &rows {
        let by_cloud = asked(&cloud, row, row.cloud).await;
        let by_device = asked(&device, row, row.device).await;
        if let (Some(by_cloud), Some(by_device)) = (by_cloud, by_device) {
            assert_eq!(by_cloud.text(), by_device.text(), "{}: two answers", row.name);
        }
    }
    println!("ok {} rows by raw HTTP", rows.len());
}

/// A text that the model's own template wrote has the same continuation as the conversation has an answer.
#[tokio::test]
async fn both_programs_continue_a_text_alike() {
    let (cloud, device) = programs::start().await;
    let (said, text) = programs::laid_out("Say something about rivers.");
    let common = json!({ "model": "default", "max_tokens": 8, "temperature": 0 });
    let with = |extra: Value| {
        let mut body = common.clone();
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        body
    };
    for program in [&cloud, &device] {
        let place = program.name;
        let chat = program.chat(&with(json!({ "messages": said }))).await;
        let answer = check_whole(program.model, &chat, place).content;
        let whole = program.text(&with(json!({ "prompt": text }))).await.json(place);
        assert_eq!(whole["choices"][0]["text"], answer.as_str(), "{place}: {whole}");
        assert_eq!((&whole["object"], &whole["model"]), (&json!("text_completion"), &json!(program.model)));
        assert!(
            whole["usage"]["completion_tokens"].as_u64().is_some_and(|n| (1..=8).contains(&n)),
            "{whole}"
        );
        let echoed = with(json!({ "prompt": [text], "echo": true, "stream": true,
            "stream_options": { "include_usage": true } }));
        let chunks = program.text(&echoed).await.chunks(place);
        let streamed: String =
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
        assert_eq!(streamed, format!("{text}{answer}"), "{place}");
        let last = chunks.last().expect("there are chunks");
        assert_eq!(last["usage"], whole["usage"], "{place}");
        let refused = program.text(&with(json!({ "prompt": ["one", "two"] }))).await;
        let want = Refusal { status: 400, param: Some("prompt"), code: "invalid_request" };
        check_refusal(&refused, want, place);
    }
    let scored = cloud.text(&with(json!({ "prompt": text, "logprobs": 2 }))).await.json("cloud");
    let logprobs = &scored["choices"][0]["logprobs"];
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let entries = logprobs[list].as_array().map(Vec::len).unwrap_or_default();
        assert_eq!(json!(entries), scored["usage"]["completion_tokens"], "{list}: {scored}");
    }
    assert_eq!(logprobs["top_logprobs"][0].as_object().map(serde_json::Map::len), Some(2), "{scored}");
}

#[tokio::test]
async fn what_is_no_request_is_refused_alike() {
    let (cloud, device) = programs::start().await;
    for program in [&cloud, &device] {
        for row in raw_rows() {
            let reply = program.send(&row).await;
            check_refusal(&reply, row.want, &format!("{} by {}", row.name, program.name));
        }
        let stranger = program.with_key("nonsense").chat(&rows()[0].body).await;
        let want = Refusal { status: 401, param: None, code: "invalid_api_key" };
        check_refusal(&stranger, want, program.name);
        assert!(stranger.text.contains("Incorrect API key provided: "), "{}", stranger.text);
    }
}

#[tokio::test]
async fn both_programs_show_models_alike() {
    let (cloud, device) = programs::start().await;
    let mut kinds = Vec::new();
    for program in [&cloud, &device] {
        let list = program.get("/v1/models").await;
        let cards = list["data"].as_array().expect("a list");
        assert_eq!((&list["object"], cards.len()), (&json!("list"), 1), "{list}");
        for id in [program.model, "default"] {
            assert_eq!(program.get(&format!("/v1/models/{id}")).await, cards[0], "{id} by {}", program.name);
        }
        assert_eq!((&cards[0]["id"], &cards[0]["object"]), (&json!(program.model), &json!("model")));
        assert!(cards[0]["context_length"].as_u64().is_some_and(|tokens| tokens > 0), "{list}");
        let fields: Vec<String> = shape::keys(&cards[0]).into_iter().map(str::to_owned).collect();
        kinds.push((fields, cards[0]["tokenizer_sha256"].clone()));
    }
    assert_eq!(kinds[0], kinds[1], "cards of one model have the same fields");
}

/// What the rows expect of one program, as the script reads it.
fn script_table(rows: &[Row], want: impl Fn(&Row) -> Want) -> Value {
    let row = |row: &Row| {
        let want = match want(row) {
            Want::Answer => Value::Null,
            Want::Refusal(Refusal { status, param, code }) => {
                json!({ "status": status, "type": "invalid_request_error", "param": param, "code": code })
            }
        };
        json!({ "name": row.name.replace(' ', "_"), "body": row.body, "want": want })
    };
    rows.iter().map(row).collect()
}

#[tokio::test]
async fn openai_python_finds_the_same() {
    let programs = match python() {
        Ok(programs) => programs,
        Err(why) => return println!("skipped: openai: {why}"),
    };
    let (cloud, device) = programs::start().await;
    let (folder, rows) = (tempfile::tempdir().expect("make a folder"), rows());
    let tables =
        [(&cloud, script_table(&rows, |row| row.cloud)), (&device, script_table(&rows, |row| row.device))];
    for (program, table) in tables {
        let path = folder.path().join(format!("{}.json", program.name));
        std::fs::write(&path, table.to_string()).expect("write the table");
        let mut command = Command::new(programs.join("python"));
        command.arg(scripts().join("python/table.py")).args([&program.url, KEY]).arg(&path);
        let ended = run(&mut command, &format!("openai-{}", program.name), CASES_LIMIT);
        let ended = ended.unwrap_or_else(|why| panic!("{why}"));
        let lines = cases(&ended, rows.len()).unwrap_or_else(|why| panic!("{}: {why}", program.name));
        println!("ok {} rows by openai-python, {}", lines.len(), program.name);
    }
}
