//! Turns with tools and forms through `baton serve` and `baton-cloud`: the cloud begins a call, the device
//! ends it.

use baton_e2e::{
    demo::emulation::PHONE,
    http::client,
    process::{AgentProcess, cpu_program, models_folder},
    proxy::{Cut, Proxy},
};
use serde_json::{Value, json};
use tokio::process::Command;

use super::{cloud, readable};

/// A text that is longer than what the cloud writes.
const TEXT: &str = "The harbour master keeps a long list of ships, of their owners, of the goods that they carry, of the \
    towns that they come from, and of the days on which they leave again for the open sea, in good and bad weather.";
/// A value that must not leave the device.
const PRIVATE: &str = "jo.quill@example.com";

/// The schema of an object whose only value is one of two long texts.
fn schema() -> Value {
    json!({ "type": "object", "properties": { "text": { "type": "string", "enum": [TEXT, format!("No: {TEXT}")] } },
        "required": ["text"], "additionalProperties": false })
}

#[track_caller]
fn check_text(json: &Value) {
    let object: Value = serde_json::from_str(json.as_str().expect("a text")).expect("JSON");
    let text = object["text"].as_str().expect("the field");
    assert!(text == TEXT || text == format!("No: {TEXT}"), "{text}");
}

/// Asks an agent on an emulated phone for an answer, which both sides must have written.
async fn ask(agent: &AgentProcess, extra: &Value) -> Value {
    let long = "The ships lie in the harbour of the town. ".repeat(40);
    let said = json!([{ "role": "system", "content": "You help." }, { "role": "user", "content": long },
        { "role": "assistant", "content": null, "tool_calls": [{ "id": "c1", "type": "function",
            "function": { "name": "note", "arguments": format!("{{\"text\": \"{PRIVATE}\"}}") } }] },
        { "role": "tool", "tool_call_id": "c1", "content": format!("Noted for {PRIVATE}.") },
        { "role": "user", "content": "Note it once more." }]);
    let mut body = json!({ "messages": said, "max_tokens": 200, "temperature": 0 });
    body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    let reply = client().post(format!("{}/v1/chat/completions", agent.url())).json(&body).send().await;
    let reply: Value = reply.expect("a reply").json().await.expect("JSON");
    let source = &reply["baton"]["source"];
    assert_eq!(source["writer"], "relay", "{reply}");
    assert!(
        source["cloud_tokens"].as_u64() > Some(0) && source["device_tokens"].as_u64() > Some(0),
        "{reply}"
    );
    reply["choices"][0].clone()
}

#[tokio::test]
async fn a_call_and_a_form_are_begun_by_the_cloud_and_ended_by_the_device() {
    let (cloud, folder) = (cloud().await, tempfile::tempdir().expect("make a folder"));
    let proxy = Proxy::start(cloud.address(), Cut::Never).await.expect("a proxy");
    let mut command = Command::from(cpu_program("baton").expect("the program is built"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--cloud", &proxy.url(), "--yes"]);
    command.args(["--mode", "relay"]).arg("--model").arg(models_folder().join("demo-device.gguf"));
    command.arg("--config-dir").arg(folder.path()).args(PHONE.options());
    let agent = AgentProcess::start(&mut command).await.expect("it listens");
    let function = json!({ "name": "note", "description": format!("Notes a text for {PRIVATE}."), "parameters": schema() });
    let tools = json!({ "tool_choice": "required", "tools": [{ "type": "function", "function": function }] });
    let choice = ask(&agent, &tools).await;
    assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "note", "{choice}");
    check_text(&call["arguments"]);
    let format = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema() } });
    check_text(&ask(&agent, &json!({ "response_format": format })).await["message"]["content"]);
    let sent = readable(&proxy.count().sent());
    assert!(sent.contains("\"functions\":[{\"name\":\"note\"") && sent.contains("\"json_schema\""), "{sent}");
    assert!(sent.contains("[EMAIL_1]") && !sent.contains("quill"), "{sent}");
}
