//! The table of fields, which is replayed against the real programs too (`tests/suites/apis/fields.json`):
//! what becomes of each field in each dialect. Then what agents sent (`tests/agents`): nothing is refused.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::capabilities::Capabilities;
use crate::error::FieldError;
use crate::ignored::Ignored;
use crate::request::ChatRequest;
use crate::writer::{Read, Work};
use crate::{anthropic, ollama, responses, stream};

const TABLE: &str = include_str!("../../../tests/suites/apis/fields.json");

fn reader(dialect: &str) -> Read {
    match dialect {
        "chat" => stream::read_chat,
        "text" => stream::read_text,
        "responses" => responses::read_responses,
        "messages" => anthropic::read_messages,
        "ollama" => ollama::read_chat,
        "generate" => ollama::read_generate,
        other => panic!("no dialect `{other}`"),
    }
}

/// Reads the dialect's body with these fields. The seed, which may be random, is made equal.
fn read(table: &Value, row: &Value, send: &Value, can: &Capabilities) -> Result<ChatRequest, FieldError> {
    let dialect = row["in"].as_str().unwrap();
    let mut body = table["dialects"][dialect]["body"].clone();
    body.as_object_mut().unwrap().extend(send.as_object().unwrap().clone());
    match reader(dialect)(body.to_string().as_bytes(), can)? {
        Work::Answer(asked) => {
            let mut request = asked.request;
            request.sampling.seed = 7;
            Ok(request)
        }
        Work::Nothing { .. } => panic!("{row}: it asks for no answer"),
    }
}

fn names(ignored: &Ignored) -> Vec<&str> {
    ignored.names().collect()
}

/// Returns the names that a row says.
fn said(want: &Map<String, Value>) -> Vec<&str> {
    want.get("named").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

fn check(table: &Value, row: &Value, want: &Map<String, Value>, can: &Capabilities) {
    let read = |send: &Value| read(table, row, send, can);
    let got = read(&row["send"]);
    if let Some(field) = want.get("refused") {
        let err = got.expect_err("it is refused");
        assert_eq!(err.param(), field.as_str(), "{row}: {err}");
        return;
    }
    let got = got.unwrap_or_else(|err| panic!("{row}: {err}"));
    assert_eq!(names(&got.ignored), said(want), "{row}");
    let without_names = |request: ChatRequest| ChatRequest { ignored: Ignored::default(), ..request };
    let other = want.get("same").cloned().unwrap_or_else(|| Map::new().into());
    let other = without_names(read(&other).unwrap_or_else(|err| panic!("{other}: {err}")));
    let is_other = want.get("effect").is_some_and(|effect| effect == "request");
    assert_eq!(without_names(got) != other, is_other, "{row}");
}

#[test]
fn each_field_is_taken_with_effect_or_named_or_refused() {
    let table: Value = serde_json::from_str(TABLE).unwrap();
    let outcomes = ["effect", "same", "named", "nothing", "refused"];
    for row in table["rows"].as_array().unwrap() {
        let want = row.as_object().unwrap();
        let on_device = row.get("device").map_or(want, |device| device.as_object().unwrap());
        for want in [want, on_device] {
            assert!(outcomes.iter().any(|outcome| want.contains_key(*outcome)), "{row}");
        }
        if table["dialects"][row["in"].as_str().unwrap()]["of"] == "both" {
            check(&table, row, want, &Capabilities::CLOUD);
        }
        check(&table, row, on_device, &Capabilities::DEVICE);
    }
}

#[test]
fn a_field_of_next_week_is_taken_in_every_dialect() {
    let table: Value = serde_json::from_str(TABLE).unwrap();
    for dialect in table["dialects"].as_object().unwrap().keys() {
        let row = json!({ "in": dialect });
        for value in ["1", "\"a\"", "[1, {}]", "{\"a\": {\"b\": []}}", "true"] {
            let send = format!("{{\"of_next_week\": {value}}}");
            let send = serde_json::from_str(&send).unwrap();
            let got = read(&table, &row, &send, &Capabilities::DEVICE).unwrap();
            assert_eq!(names(&got.ignored), ["of_next_week"], "{dialect}: {value}");
        }
    }
}

/// Returns the JSON files of a folder.
fn files(folder: &Path) -> Vec<(PathBuf, Value)> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|err| panic!("{}: {err}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let json = serde_json::from_str(&text).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
        (path, json)
    };
    paths.filter(|path| path.extension().is_some_and(|kind| kind == "json")).map(read).collect()
}

/// Checks that a request that was sent to a path is taken.
fn taken(file: &Path, path: &str, body: &Value) {
    let path = path.split('?').next().unwrap();
    let can = Capabilities::DEVICE;
    let json = body.to_string().into_bytes();
    let refused = match path {
        "/v1/messages/count_tokens" => anthropic::read_count(&json, &can).err(),
        "/v1/messages" => anthropic::read_messages(&json, &can).err(),
        "/v1/responses" => responses::read_responses(&json, &can).err(),
        "/v1/chat/completions" => stream::read_chat(&json, &can).err(),
        "/api/chat" => ollama::read_chat(&json, &can).err(),
        other => panic!("{}: no path `{other}`", file.display()),
    };
    assert!(refused.is_none(), "{} {path}: {}", file.display(), refused.unwrap());
}

#[test]
fn what_agents_sent_is_taken() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/agents");
    let kept = files(&folder);
    assert!(kept.len() >= 11, "{} agents", kept.len());
    for (file, requests) in kept {
        for request in requests.as_array().unwrap() {
            taken(&file, request["path"].as_str().unwrap(), &request["body"]);
        }
    }
    let Some(folder) = std::env::var_os("BATON_AGENTS") else {
        return println!("skipped: BATON_AGENTS has no folder of requests");
    };
    for (file, mut seen) in files(Path::new(&folder)) {
        if seen["body"]["tools"].is_string() {
            seen["body"]["tools"] = json!([]);
        }
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let path = match name.split('-').next().unwrap() {
            "claude" => "/v1/messages",
            "codex" => "/v1/responses",
            _ => "/v1/chat/completions",
        };
        taken(&file, path, &seen["body"]);
    }
}

#[test]
fn cases_of_public_trackers_are_taken() {
    let Some(folder) = std::env::var_os("BATON_CASES") else {
        return println!("skipped: BATON_CASES has no folder of requests");
    };
    for (file, case) in files(Path::new(&folder)) {
        let path = case["path"].as_str().unwrap_or_default();
        if path.starts_with("/v1/") || path.starts_with("/api/") {
            taken(&file, path, &case["body"]);
        }
    }
}
