//! What is said if an answer is cut at a limit, and if a cloud has no room.

use std::process::Stdio;

use baton_e2e::demo::emulation::{PHONE, Speed};
use baton_e2e::process::{AgentProcess, CloudProcess, cpu_program, models_folder};
use serde_json::{Value, json};
use tokio::process::Command;

/// A machine that takes minutes for a prompt.
const NEVER_READS: Speed = Speed { prefill_base_ms: 0.0, prefill_ms_per_token: 300.0, decode_ms: 20.0 };

#[test]
fn an_answer_that_was_cut_says_so_and_how_to_get_more() {
    let folder = tempfile::tempdir().expect("make a folder");
    let document = folder.path().join("doc.txt");
    std::fs::write(&document, "The gate is red.\n\nThe key is blue.\n").expect("write");
    let ask = |more: &[&str]| {
        let mut command = cpu_program("baton").expect("the program is built");
        command.arg("ask").arg(&document).args(["Which colour is the key?", "--no-cloud", "--instant"]);
        command.arg("--model").arg(models_folder().join("demo-device.gguf"));
        command.arg("--config-dir").arg(folder.path()).args(more).stdin(Stdio::null());
        let out = command.output().expect("the program starts");
        assert!(out.status.success(), "{out:?}");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&out.stdout), text(&out.stderr))
    };
    let (_, said) = ask(&["--max-tokens", "3"]);
    let words =
        "note: the answer was cut at 3 tokens, the most that it may have; for more, pass --max-tokens 12";
    assert!(said.contains(words), "{said}");
    let (report, said) = ask(&["--max-tokens", "3", "--json"]);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!((&report["ending"], &report["notes"][0]["code"]), (&json!("length"), &json!("cut_at_limit")));
    assert!(said.contains(words), "{said}");
    let (report, said) = ask(&["--max-tokens", "400", "--json"]);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!((&report["ending"], &report["notes"]), (&json!("stop"), &json!([])), "{said}");
    assert!(!said.contains("cut at"), "{said}");
}

#[tokio::test]
async fn a_cloud_without_room_is_told_with_its_reason_and_time() {
    let mut options = NEVER_READS.options();
    options.extend(["--slots=1", "--queue=0"].map(Into::into));
    let cloud = CloudProcess::start(&models_folder().join("demo-cloud.gguf"), &options).await;
    let cloud = cloud.expect("the cloud starts");
    let url = format!("http://{}", cloud.address());
    let client = baton_e2e::http::client();
    // It takes the only slot, and no request may wait.
    let body = json!({
        "protocol": 1, "request_id": uuid::Uuid::new_v4(), "scene": "doc-qa-full", "model": "default",
        "segments": [{ "role": "user", "text": "ships ".repeat(400), "refine": false }], "assist_tokens": 2,
    });
    let blocker = client.post(format!("{url}/v1/assist")).json(&body).send().await.expect("it is taken");
    let folder = tempfile::tempdir().expect("make a folder");
    let mut serve = Command::from(cpu_program("baton").expect("the program is built"));
    serve.args(["serve", "--listen", "127.0.0.1:0", "--mode", "relay", "--yes", "--cloud", &url]);
    serve.args(PHONE.options()).arg("--model").arg(models_folder().join("demo-device.gguf"));
    serve.arg("--config-dir").arg(folder.path());
    let agent = AgentProcess::start(&mut serve).await.expect("the agent starts");
    // The second one is not sent, because the cloud asked not to be called yet.
    for turn in 0..2 {
        let question = json!({ "messages": [{ "role": "user", "content": "Hello?" }], "max_tokens": 4 });
        let url = format!("{}/v1/chat/completions", agent.url());
        let sent = client.post(url).json(&question).send().await.expect("a reply");
        let reply: Value = sent.json().await.expect("JSON");
        let note = &reply["baton"]["notes"][0];
        assert_eq!(note["code"], "cloud_overloaded", "{turn}: {reply}");
        let words = note["message"].as_str().expect("words");
        assert!(words.starts_with("the cloud takes no request now: "), "{turn}: {words}");
        assert!(
            words.contains(" requests wait, with ") && words.contains("; try again in "),
            "{turn}: {words}"
        );
        assert!(!words.contains("status"), "{turn}: {words}");
    }
    drop(blocker);
}
