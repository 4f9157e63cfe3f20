//! `baton doctor` on set-ups that are right, and on each of several that are not.

use std::path::Path;
use std::process::Command;

use baton_e2e::process::{CloudProcess, cpu_program, models_folder};
use serde_json::Value;

/// Runs it in a folder for settings; returns its exit status and its report.
fn doctor(folder: &Path, more: &[&str]) -> (Option<i32>, Value) {
    let mut command: Command = cpu_program("baton").expect("the program is built");
    command.args(["doctor", "--json", "--url", "http://127.0.0.1:9", "--config-dir"]).arg(folder);
    let out = command.arg("--models-dir").arg(folder.join("models")).args(more).output().expect("it starts");
    let report = serde_json::from_slice(&out.stdout);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    (out.status.code(), report.unwrap_or_else(|err| panic!("{err}: {said}")))
}

/// Returns the state of a check, and the words about it.
fn state<'a>(report: &'a Value, check: &str) -> (&'a str, String) {
    let checks = report["checks"].as_array().expect("a list of checks");
    let found = checks.iter().find(|found| found["check"] == check);
    let found = found.unwrap_or_else(|| panic!("no check of {check}: {report}"));
    (found["state"].as_str().expect("a word"), format!("{} {}", found["message"], found["fix"]))
}

fn demo_model() -> String {
    models_folder().join("demo-device.gguf").display().to_string()
}

#[tokio::test]
async fn a_set_up_that_is_right_passes() {
    let folder = tempfile::tempdir().expect("make a folder");
    let cloud = CloudProcess::start(&models_folder().join("demo-cloud.gguf"), &[]).await.expect("it starts");
    let url = format!("http://{}", cloud.address());
    let (status, report) = doctor(folder.path(), &["--model", &demo_model(), "--cloud", &url, "--yes"]);
    assert_eq!((status, &report["ok"]), (Some(0), &Value::Bool(true)), "{report}");
    for check in ["records", "disk", "processor", "memory", "model", "cloud", "serve"] {
        let (state, words) = state(&report, check);
        assert!(state == "ok" || check == "disk" || check == "memory", "{check}: {state} {words}");
    }
    assert!(state(&report, "cloud").1.contains("answers in"), "{report}");
    // Nobody allowed this cloud, so it is not asked.
    let (status, report) = doctor(folder.path(), &["--model", &demo_model(), "--cloud", &url]);
    assert_eq!((status, state(&report, "cloud").0), (Some(0), "unknown"), "{report}");
}

#[tokio::test]
async fn what_is_wrong_fails_by_its_name_and_says_what_to_do() {
    let folder = tempfile::tempdir().expect("make a folder");
    let model = demo_model();
    let key = ["--api-key".into(), "right".into()];
    let cloud = CloudProcess::start(&models_folder().join("demo-cloud.gguf"), &key).await.expect("it starts");
    let url = format!("http://{}", cloud.address());
    let broken = folder.path().join("broken.gguf");
    std::fs::write(&broken, b"GGUF, and no model").expect("write a file");
    let broken = broken.display().to_string();
    for (more, check, words) in [
        (&["--model", "no-such-model"][..], "model", "baton model pull"),
        (&["--model", &broken], "model", "pull it again"),
        (&["--model", &model, "--cloud", "127.0.0.1:1", "--yes"], "cloud", "check the address"),
        (
            &["--model", &model, "--cloud", &url, "--yes", "--cloud-key", "wrong"],
            "cloud",
            "check --cloud-key",
        ),
        (&["--model", &model, "--gpu", "cuda:9"], "gpu", "--gpu auto"),
    ] {
        let (status, report) = doctor(folder.path(), more);
        let (state, said) = state(&report, check);
        assert_eq!((status, state), (Some(1), "failed"), "{more:?}: {report}");
        assert!(said.contains(words), "{more:?}: {said}");
        assert_eq!(report["ok"], false);
    }
    // A file that is no database.
    std::fs::write(folder.path().join("conversations.db"), "no database at all ".repeat(400)).expect("write");
    let (status, report) = doctor(folder.path(), &["--model", &model]);
    assert_eq!((status, state(&report, "records").0), (Some(1), "failed"), "{report}");
}

#[tokio::test]
async fn keys_come_from_commands_and_are_encrypted_with_a_passphrase() {
    let folder = tempfile::tempdir().expect("make a folder");
    let model = demo_model();
    let key = ["--api-key".into(), "right".into()];
    let cloud = CloudProcess::start(&models_folder().join("demo-cloud.gguf"), &key).await.expect("it starts");
    let url = format!("http://{}", cloud.address());
    let asks = |command: &str, cloud_key: &str| {
        let line = ["--model", &model, "--cloud", &url, "--yes", "--cloud-key-command", cloud_key];
        doctor(folder.path(), &[&line[..], &["--passphrase-command", command]].concat())
    };
    let baton = |line: &[&str]| {
        let mut command: Command = cpu_program("baton").expect("the program is built");
        command
            .args(line)
            .arg("--config-dir")
            .arg(folder.path())
            .arg("--passphrase-command")
            .arg("echo horse");
        let out = command.output().expect("it starts");
        let said =
            format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        (out.status.success(), said)
    };
    let document = folder.path().join("document.txt");
    std::fs::write(&document, "The lamp is green.").expect("write a file");
    let document = document.display().to_string();
    let line =
        ["ask", &document, "Which?", "--model", &model, "--max-tokens", "2", "--prefix-memory", "10MB"];
    let (done, said) = baton(&line);
    assert!(done, "{said}");

    let (status, report) = asks("echo horse", "echo right");
    assert_eq!((status, state(&report, "cloud").0), (Some(0), "ok"), "{report}");
    assert!(state(&report, "keys").1.contains("prefix.key is encrypted"), "{report}");
    for (command, words) in [("echo house", "does not open"), ("exit 7", "exit 7")] {
        let (status, report) = asks(command, "echo right");
        assert_eq!((status, state(&report, "keys").0), (Some(1), "failed"), "{report}");
        assert!(state(&report, "keys").1.contains(words), "{report}");
    }
    let (status, report) = asks("echo horse", "exit 9");
    assert_eq!((status, state(&report, "cloud").0), (Some(1), "failed"), "{report}");
    assert!(state(&report, "cloud").1.contains("exit 9"), "{report}");

    let keys = ["prefix.key", "receipts.key"];
    let each = |state: &str| keys.map(|key| format!("{key}: {state}\n")).concat();
    assert_eq!(baton(&["passphrase"]), (true, each("encrypted")));
    let plain = each("a plain file that only this user can read");
    assert_eq!(baton(&["passphrase", "--remove"]), (true, plain));
    for key in keys {
        assert_eq!(std::fs::metadata(folder.path().join(key)).expect("there is a key").len(), 32, "{key}");
    }
}
