//! The table of fields, which is replayed against the real programs too (`tests/suites/apis/fields.json`):
//! what becomes of each field in each dialect.

use serde_json::{Map, Value};

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
fn said<'a>(want: &'a Map<String, Value>) -> Vec<&'a str> {
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
        let row = serde_json::json!({ "in": dialect });
        for value in ["1", "\"a\"", "[1, {}]", "{\"a\": {\"b\": []}}", "true"] {
            let send = format!("{{\"of_next_week\": {value}}}");
            let send = serde_json::from_str(&send).unwrap();
            let got = read(&table, &row, &send, &Capabilities::DEVICE).unwrap();
            assert_eq!(names(&got.ignored), ["of_next_week"], "{dialect}: {value}");
        }
    }
}
