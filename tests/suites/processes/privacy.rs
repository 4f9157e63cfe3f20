//! Private values in conversations of several turns: none is sent, by `baton chat` or by `baton serve`. What
//! is not private leaves as it is.

use std::process::Stdio;

use baton_e2e::{
    http::client,
    process::{AgentProcess, cpu_program, models_folder},
    proxy::{Cut, Proxy},
};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, process::Command};

use super::{cloud, readable};

/// The user's messages in order; only the first has the words that show which values are private.
const TURNS: [&str; 4] = [
    "My phone: 5550143. Password: Zebra7crossing. Mail jo.quill@example.com, passport number X1234567.",
    "Was it 5550143 or 555-0143? And zebra7crossing?",
    "JO.QUILL@EXAMPLE.COM, jo.quill [at] example.com; X1234567.",
    "Compare \"５５５０１４３\" with Zebra7\u{200b}crossing once more.",
];
/// Texts that must not be in anything that was sent.
const PRIVATE: [&str; 7] = ["5550143", "555-0143", "ebra7", "quill", "QUILL", "X1234567", "５５５０１４３"];

fn check_nothing_private(proxy: &Proxy, turns: usize) {
    let sent = readable(&proxy.count().sent());
    let asked = sent.matches("POST /v1/assist").count();
    assert!(asked >= turns, "{asked} of {turns} turns were sent: the check below would be empty");
    assert!(sent.contains("[PHONE_1]") && sent.contains("[PASSWORD_1]"), "the bodies can be read");
    for private in PRIVATE {
        assert!(!sent.contains(private), "`{private}` left the device");
    }
}

/// Makes a command of `baton` with a cloud at `url`.
fn baton(command: &str, url: &str, folder: &std::path::Path) -> Command {
    let mut baton = Command::from(cpu_program("baton").expect("the program is built"));
    // The cloud writes the whole answer, because a faster device would not wait until the request was sent.
    baton.arg(command).args(["--mode", "cloud", "--cloud", url, "--yes"]);
    baton.arg("--model").arg(models_folder().join("demo-device.gguf")).arg("--config-dir").arg(folder);
    baton
}

#[tokio::test]
async fn a_chat_sends_no_private_value_in_any_turn() {
    let (cloud, folder) = (cloud().await, tempfile::tempdir().expect("make a folder"));
    let proxy = Proxy::start(cloud.address(), Cut::Never).await.expect("a proxy");
    let mut command = baton("chat", &proxy.url(), folder.path());
    command.args(["--instant", "--max-tokens", "8"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut chat = command.kill_on_drop(true).spawn().expect("baton chat starts");
    let mut stdin = chat.stdin.take().expect("it has an input");
    stdin.write_all(format!("{}\n", TURNS.join("\n")).as_bytes()).await.expect("it reads");
    drop(stdin);
    let out = chat.wait_with_output().await.expect("it ends at the end of its input");
    assert!(out.status.success(), "{}", out.status);
    check_nothing_private(&proxy, TURNS.len());
}

/// Questions without anything private, each with the text that must be sent.
const PUBLIC: [&str; 6] = [
    "What is the Monte Carlo method?",
    "How do I use Emscripten with Rust?",
    "Which of Kubernetes, Nomad and Mesos is oldest?",
    "Ports: 4000 4040 4200 4222 are open, since version 2.10.33.14.",
    "Wie funktioniert die Fourier-Transformation?",
    "什么是蒙特卡洛方法？",
];

#[tokio::test]
async fn a_chat_sends_ordinary_questions_as_they_are_and_tells_what_it_replaced() {
    let cloud = cloud().await;
    let folder = tempfile::tempdir().expect("make a folder");
    let proxy = Proxy::start(cloud.address(), Cut::Never).await.expect("a proxy");
    let mut command = baton("chat", &proxy.url(), folder.path());
    command.env_remove("BATON_NO_NAMES");
    command.args(["--instant", "--max-tokens", "4"]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut chat = command.kill_on_drop(true).spawn().expect("baton chat starts");
    let mut stdin = chat.stdin.take().expect("it has an input");
    let private = "Dear Ms. Maria Keller, call Voltix GmbH: phone 5550143.";
    let turns = [PUBLIC.as_slice(), &[private]].concat().join("\n");
    stdin.write_all(format!("{turns}\n").as_bytes()).await.expect("it reads");
    drop(stdin);
    let out = chat.wait_with_output().await.expect("it ends at the end of its input");
    assert!(out.status.success(), "{}", out.status);
    let sent = readable(&proxy.count().sent());
    for question in PUBLIC {
        assert!(sent.contains(question), "`{question}` was changed: {sent}");
    }
    assert!(sent.contains("Dear Ms. [PERSON_1], call [ORG_1]: phone [PHONE_1]."), "{sent}");
    let told = String::from_utf8_lossy(&out.stderr);
    let want = "replaced: Maria Keller, Voltix GmbH, 1 phone (--no-names sends names)";
    assert_eq!(told.matches("replaced: ").count(), 1, "{told}");
    assert!(told.contains(want), "{told}");
    // What is kept of it names nobody.
    for file in ["conversations.db", "conversations.db-wal"] {
        let Ok(bytes) = std::fs::read(folder.path().join(file)) else { continue };
        let kept = String::from_utf8_lossy(&bytes);
        assert!(!kept.contains("replaced: Maria"), "the note of a record has a name");
    }
}

#[tokio::test]
async fn tools_whose_names_are_found_as_private_words_are_sent() {
    let cloud = cloud().await;
    let folder = tempfile::tempdir().expect("make a folder");
    let proxy = Proxy::start(cloud.address(), Cut::Never).await.expect("a proxy");
    let mut command = baton("serve", &proxy.url(), folder.path());
    command.env_remove("BATON_NO_NAMES");
    let agent = AgentProcess::start(command.args(["--listen", "127.0.0.1:0"])).await.expect("it listens");
    let tool = |name: &str| {
        let fields = json!({ "type": "object", "properties": { "Keller": { "type": "string" } } });
        json!({ "type": "function", "function": { "name": name, "description": "A tool.", "parameters": fields } })
    };
    let text =
        "Dear Grep, my neighbour Glob said: ask Edit. Password: read. Mail Ms. Keller of Ms. Rosenberg.";
    let tools = ["Read", "Grep", "Glob", "Edit"].map(tool);
    let body = json!({
        "messages": [{ "role": "user", "content": text }], "max_tokens": 4, "tools": tools,
    });
    let answer = client().post(format!("{}/v1/chat/completions", agent.url())).json(&body).send().await;
    assert_eq!(answer.expect("an answer").status().as_u16(), 200);
    let sent = readable(&proxy.count().sent());
    let want =
        "Dear Grep, my neighbour Glob said: ask Edit. Password: read. Mail Ms. Keller of Ms. [PERSON_1].";
    assert!(sent.contains(want), "{sent}");
}

#[tokio::test]
async fn applications_of_baton_serve_send_no_private_value_in_any_turn() {
    let (cloud, folder) = (cloud().await, tempfile::tempdir().expect("make a folder"));
    let proxy = Proxy::start(cloud.address(), Cut::Never).await.expect("a proxy");
    let mut command = baton("serve", &proxy.url(), folder.path());
    let agent = AgentProcess::start(command.args(["--listen", "127.0.0.1:0"])).await.expect("it listens");
    let client = client();
    let mut last: Option<String> = None;
    for turn in TURNS {
        // An application that keeps only its last answer, in which the device has restored the values.
        let mut messages: Vec<Value> = Vec::new();
        if let Some(last) = &last {
            messages.push(json!({ "role": "assistant", "content": format!("You said: {last}") }));
        }
        messages.push(json!({ "role": "user", "content": turn }));
        let body = json!({ "messages": messages, "max_tokens": 8, "stop": ["5550143", "call 5550143 now"] });
        let answer = client.post(format!("{}/v1/chat/completions", agent.url())).json(&body).send().await;
        assert_eq!(answer.expect("an answer").status().as_u16(), 200);
        last = Some(turn.to_owned());
    }
    check_nothing_private(&proxy, TURNS.len());
    drop(agent);
    check_records(folder.path()).await;
}

/// Checks that the records of answers say what was sent, and hold nothing private.
async fn check_records(folder: &std::path::Path) {
    let trace = async |more: &[&str]| {
        let mut trace = Command::from(cpu_program("baton").expect("the program is built"));
        let out = trace.arg("trace").args(more).arg("--config-dir").arg(folder).output().await;
        let out = out.expect("it starts");
        assert!(out.status.success(), "{more:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("it prints text")
    };
    let listed: Value = serde_json::from_str(&trace(&["list", "--json"]).await).expect("it prints JSON");
    let answers = listed["answers"].as_array().expect("a list");
    assert_eq!(answers.len(), TURNS.len());
    assert!(answers.iter().all(|answer| answer["asked_by"] == "baton serve" && answer["was_sent"] == true));
    let first = answers.last().expect("there is one")["id"].to_string();
    let sent = trace(&["sent", &first]).await;
    assert!(sent.contains("[PHONE_1] stands for a value that stayed here"), "{sent}");
    assert!(sent.contains("--- user") && sent.contains("Password: [PASSWORD_1]"), "{sent}");
    assert!(trace(&["show"]).await.contains("written by the cloud"));
    for file in ["conversations.db", "conversations.db-wal"] {
        let Ok(bytes) = std::fs::read(folder.join(file)) else { continue };
        let text = String::from_utf8_lossy(&bytes);
        for private in PRIVATE {
            assert!(!text.contains(private), "`{private}` is in {file}");
        }
    }
    assert!(trace(&["rm", "--all"]).await.contains(&format!("{} records", TURNS.len())));
    assert!(trace(&[]).await.contains("no answer was recorded yet"));
}
