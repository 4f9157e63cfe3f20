//! Tests requests: every number must be in its range, and every refusal must name its field.

use serde_json::{Value, json};

use super::*;
use crate::tools::ToolChoice;

fn request() -> Value {
    json!({
        "protocol": 1, "request_id": "67e55044-10b1-426f-9247-bb680e5fe0c8", "scene": "doc-qa", "scene_version": 7,
        "model": "default", "tokenizer_sha256": "0".repeat(64),
        "segments": [{"role": "system", "text": "You answer from the document.", "refine": false},
                     {"role": "user", "text": "…the document…", "refine": true},
                     {"role": "user", "text": "Question: …", "refine": false}],
        "continue_from": null,
        "device": {"class": "phone", "model": "demo-device@3", "prefill_ms_per_token": 2.4,
                   "prefill_ms_per_token2": 0.0001, "decode_ms": 41.0, "network": "wifi"},
        "sampling": {"temperature": 0, "seed": 7}, "refine": {"ratio": null, "mode": null},
        "assist_tokens": null, "resume": false
    })
}

fn parse(value: &Value) -> Result<AssistRequest, RequestError> {
    AssistRequest::parse(value.to_string().as_bytes())
}

/// Sets the field at `pointer` (adds it if it is missing) and expects a refusal that names `field`.
#[track_caller]
fn refuses(pointer: &str, value: Value, field: &str) {
    let mut json = request();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    json.pointer_mut(parent).unwrap()[key] = value.clone();
    let error = parse(&json).expect_err(&format!("{pointer} = {value}"));
    assert_eq!(error.field(), field, "{error}");
    assert!(error.to_string().contains(field), "{error}");
    assert_eq!(error.to_body().error.param.as_deref(), Some(field));
}

#[test]
fn text_that_is_no_json_names_no_field() {
    for (bad, field) in [("", "."), ("{", "."), ("{bad", "."), ("[]", "."), ("nul", "."), ("{} x", ".")] {
        let error = AssistRequest::parse(bad.as_bytes()).expect_err(bad);
        assert_eq!(error.field(), field, "{bad}: {error}");
        assert!(error.to_string().starts_with("not the JSON that is wanted: "), "{bad}: {error}");
        assert_eq!(error.to_body().error.param, None, "{bad}");
    }
    let cut = r#"{"protocol": 1, "segments": [{"role": "user", "text": "a"#;
    let error = AssistRequest::parse(cut.as_bytes()).expect_err("cut off");
    assert!(!error.to_string().contains('?') && !error.field().contains('?'), "{error}");
}

#[test]
fn the_example_of_the_protocol_reads_and_writes_back() {
    let parsed = parse(&request()).unwrap();
    assert_eq!(parsed.segments[1], Segment::refinable(Role::User, "…the document…"));
    assert_eq!(parsed.sampling.seed, 7);
    assert_eq!(parsed.sampling.repetition_penalty, 1.0);
    let written = serde_json::to_vec(&parsed).unwrap();
    assert_eq!(AssistRequest::parse(&written).unwrap(), parsed);
}

#[test]
fn what_may_be_left_out_has_defaults() {
    let mut json = request();
    for field in [
        "scene_version",
        "tokenizer_sha256",
        "continue_from",
        "device",
        "sampling",
        "refine",
        "assist_tokens",
        "resume",
    ] {
        json.as_object_mut().unwrap().remove(field);
    }
    let parsed = parse(&json).unwrap();
    assert_eq!((parsed.device, parsed.resume, parsed.refine), (None, false, RefineOptions::default()));
    json.as_object_mut().unwrap().remove("segments");
    assert!(parse(&json).unwrap_err().to_string().contains("segments"));
}

#[test]
fn unknown_fields_are_refused_by_name() {
    refuses("/colour", json!(1), "colour");
    refuses("/device/colour", json!(1), "device.colour");
    refuses("/segments/1/colour", json!(1), "segments[1].colour");
    refuses("/sampling/colour", json!(1), "sampling.colour");
    refuses("/refine/colour", json!(1), "refine.colour");
}

#[test]
fn numbers_out_of_range_are_refused_by_name() {
    refuses("/protocol", json!(2), "protocol");
    refuses("/protocol", json!(-1), "protocol");
    for (pointer, field, too_big) in [
        ("/device/prefill_ms_per_token", "device.prefill_ms_per_token", 10_000.5),
        ("/device/prefill_ms_per_token2", "device.prefill_ms_per_token2", 10.5),
        ("/device/decode_ms", "device.decode_ms", 60_001.0),
        ("/device/network_ms", "device.network_ms", 60_001.0),
        ("/sampling/temperature", "sampling.temperature", 10.5),
        ("/sampling/top_p", "sampling.top_p", 1.01),
        ("/sampling/min_p", "sampling.min_p", 1.01),
        ("/sampling/repetition_penalty", "sampling.repetition_penalty", 10.5),
        ("/refine/ratio", "refine.ratio", 1.01),
    ] {
        for value in [json!(-1), json!(too_big), json!(1e300), json!("1"), json!([1]), json!({})] {
            refuses(pointer, value, field);
        }
    }
    for (pointer, field) in [
        ("/assist_tokens", "assist_tokens"),
        ("/sampling/top_k", "sampling.top_k"),
        ("/scene_version", "scene_version"),
    ] {
        for value in [json!(-1), json!(1e300), json!(0.5), json!("1"), json!(4_294_967_296_u64)] {
            refuses(pointer, value, field);
        }
    }
    refuses("/assist_tokens", json!(0), "assist_tokens");
    refuses("/assist_tokens", json!(65_537), "assist_tokens");
    refuses("/refine/ratio", json!(0), "refine.ratio");
    refuses("/sampling/top_k", json!(0), "sampling.top_k");
    refuses("/sampling/seed", json!(-1), "sampling.seed");
}

#[test]
fn what_is_no_json_number_is_refused() {
    let text = request().to_string();
    for value in ["1e400", "NaN", "Infinity", "-1e400", "0x10", "--1"] {
        let bad = text.replacen("\"temperature\":0", &format!("\"temperature\":{value}"), 1);
        assert_ne!(bad, text);
        assert!(AssistRequest::parse(bad.as_bytes()).is_err(), "{value}");
    }
}

#[test]
fn texts_have_their_form_and_length() {
    refuses("/scene", json!(""), "scene");
    refuses("/scene", json!("x".repeat(129)), "scene");
    refuses("/model", json!("a\nb"), "model");
    refuses("/request_id", json!("seven"), "request_id");
    refuses("/tokenizer_sha256", json!("ABC"), "tokenizer_sha256");
    refuses("/segments", json!([]), "segments");
    refuses("/segments/0/role", json!("boss"), "segments[0].role");
    refuses("/segments", json!([{"role": "user", "text": ""}]), "segments");
    refuses("/sampling/stop", json!([""]), "sampling.stop[0]");
    refuses("/sampling/stop", json!(["x".repeat(1_025)]), "sampling.stop[0]");
    refuses("/sampling/stop", json!(vec!["x"; 17]), "sampling.stop");
    let many = vec![json!({"role": "user", "text": "x"}); 1025];
    refuses("/segments", json!(many), "segments");
}

#[test]
fn a_request_longer_than_the_limit_is_refused() {
    let mut request = parse(&request()).unwrap();
    request.continue_from = Some("x".repeat(limits::TEXT_BYTES_MAX));
    assert_eq!(request.check().unwrap_err().field(), "continue_from");
    request.continue_from = None;
    request.segments[1].text = "x".repeat(limits::TEXT_BYTES_MAX + 1);
    assert_eq!(request.check().unwrap_err().field(), "segments");
}

#[test]
fn no_bytes_make_it_panic() {
    let text = request().to_string();
    for cut in 0..text.len() {
        if text.is_char_boundary(cut) {
            assert!(AssistRequest::parse(&text.as_bytes()[..cut]).is_err(), "cut at {cut}");
        }
    }
    assert!(AssistRequest::parse(format!("{text} x").as_bytes()).is_err());
    assert!(AssistRequest::parse(&[b'['; 100_000]).is_err());
    assert!(AssistRequest::parse(b"\xff\xfe").is_err());
}

#[test]
fn a_device_may_name_its_class_alone() {
    let mut json = request();
    json["device"] = json!({"class": "phone", "model": "m"});
    let device = parse(&json).unwrap().device.unwrap();
    assert_eq!((device.prefill_ms_per_token, device.decode_ms, device.network_ms), (None, None, None));
    json["device"]["network_ms"] = json!(31.5);
    let parsed = parse(&json).unwrap();
    assert_eq!(parsed.device.as_ref().unwrap().network_ms, Some(31.5));
    assert_eq!(AssistRequest::parse(&serde_json::to_vec(&parsed).unwrap()).unwrap(), parsed);
}

#[test]
fn what_is_refused_is_not_repeated_at_length() {
    let long = "x".repeat(1 << 20);
    for json in [
        format!(r#"{{"protocol":"{long}"}}"#),
        format!(r#"{{"{long}":1}}"#),
        format!(r#"{{"segments":[{{"role":"{long}"}}]}}"#),
    ] {
        let err = AssistRequest::parse(json.as_bytes()).unwrap_err();
        assert!(err.to_string().len() < 2000, "{} bytes", err.to_string().len());
    }
    let many = format!(r#"{{"protocol":1,"segments":[{}]}}"#, r#"{},"#.repeat(crate::MARKS_MAX));
    let err = AssistRequest::parse(many.as_bytes()).unwrap_err();
    assert!(matches!(err, RequestError::Shape(_)), "{err}");
}

/// The request of a turn with tools, as a device writes it.
fn with_tools() -> Value {
    let mut json = request();
    json["segments"] = json!([
        { "role": "user", "text": "Sun?" },
        { "role": "assistant", "text": "", "calls": [{ "id": "c1", "name": "sun", "arguments": "{\"city\":\"Ulm\"}" }] },
        { "role": "tool", "text": "rain", "call_id": "c1" },
    ]);
    json["tools"] = json!({ "functions": [{ "name": "sun", "description": "of a city", "parameters": { "type": "object" },
        "strict": true }], "choice": { "named": "sun" }, "parallel": false });
    json
}

#[test]
fn tools_calls_and_forms_are_read_and_written_back() {
    let mut json = with_tools();
    let parsed = parse(&json).unwrap();
    assert_eq!(parsed.segments[1].calls[0].name, "sun");
    assert_eq!(parsed.segments[2].call_id.as_deref(), Some("c1"));
    assert_eq!(parsed.tools.as_ref().unwrap().choice, ToolChoice::Named("sun".into()));
    let written = serde_json::to_value(&parsed).unwrap();
    assert_eq!((&written["tools"], written.get("format")), (&json["tools"], None));
    assert_eq!(parse(&written).unwrap(), parsed);
    for format in [json!("json_object"), json!({ "json_schema": { "type": "object" } })] {
        json["format"] = format.clone();
        assert_eq!(serde_json::to_value(parse(&json).unwrap()).unwrap()["format"], format);
    }
    let plain = serde_json::to_string(&parse(&request()).unwrap()).unwrap();
    for field in ["tools", "format", "calls", "call_id"] {
        assert!(
            !plain.contains(&format!("\"{field}\"")),
            "clouds that do not know `{field}` take plain turns"
        );
    }
}

#[test]
fn tools_out_of_bounds_are_refused_by_name() {
    #[track_caller]
    fn refuses(pointer: &str, value: Value, field: &str) {
        let mut json = with_tools();
        *json.pointer_mut(pointer).unwrap() = value;
        let error = parse(&json).expect_err(pointer);
        assert_eq!(error.field(), field, "{error}");
    }
    let tool = |name: &str| json!({ "name": name, "parameters": {} });
    let many: Vec<Value> = (0..=limits::TOOLS_MAX).map(|at| tool(&format!("t{at}"))).collect();
    let call = json!({ "id": "c", "name": "sun", "arguments": "" });
    refuses("/tools/functions", json!([]), "tools.functions");
    refuses("/tools/functions", json!(many), "tools.functions");
    refuses("/tools/functions", json!([tool("sun"), tool("sun")]), "tools.functions[1].name");
    refuses("/tools/functions/0/name", json!("a b"), "tools.functions[0].name");
    refuses(
        "/tools/functions/0/name",
        json!("n".repeat(limits::TOOL_NAME_BYTES_MAX + 1)),
        "tools.functions[0].name",
    );
    refuses("/tools/functions/0/parameters", json!("{}"), "tools.functions[0].parameters");
    refuses("/tools/choice", json!({ "named": "rain" }), "tools.choice");
    refuses("/segments/1/calls", json!(vec![&call; limits::TOOLS_MAX + 1]), "segments[1].calls");
    refuses("/segments/1/calls/0/id", json!(""), "segments[1].calls[0].id");
    refuses("/segments/1/role", json!("user"), "segments[1].calls");
    refuses("/segments/2/role", json!("user"), "segments[2].call_id");
    refuses("/segments/2/call_id", json!("x".repeat(129)), "segments[2].call_id");
}
