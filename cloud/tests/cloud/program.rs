//! The program itself: its commands, its first line, its end.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use baton_engine::synthetic::SyntheticModel;
use baton_kernels_cpu::Format;
use serde_json::{Value, json};

pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton-cloud"));
    command.env_remove("BATON_API_KEY").env_remove("BATON_DATABASE").env("RUST_LOG", "warn");
    command
}

fn scenes(database: &Path, words: &[&str]) -> Output {
    program().arg("scenes").args(words).arg("--database").arg(database).output().unwrap()
}

#[track_caller]
fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
pub fn refused(output: &Output, want: &str) {
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && err.contains(want), "want `{want}`: {err}");
    assert!(!err.contains("panicked"), "{err}");
}

#[test]
fn scenes_are_listed_shown_and_set() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("cloud.db");
    let list = json_of(&scenes(&database, &["list", "--json"]));
    let ids: Vec<&str> = list.as_array().unwrap().iter().map(|scene| scene["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["chat", "doc-qa", "doc-qa-full"]);
    let changes =
        ["set", "doc-qa", "--ratio", "0.4", "--xi", "0.2", "--assist-tokens", "24", "--tau-ms", "80"];
    let set = json_of(&scenes(
        &database,
        &[&changes[..], &["--corrector", "device", "--mode", "gemfilter", "--json"]].concat(),
    ));
    assert_eq!(
        (&set["version"], &set["assist_tokens"], &set["corrector"], &set["mode"]),
        (&json!(2), &json!(24), &json!("device"), &json!("gemfilter"))
    );
    assert_eq!(json_of(&scenes(&database, &["show", "doc-qa", "--json"])), set);
    let auto = ["set", "doc-qa", "--ratio", "auto", "--assist-tokens", "auto", "--if-version", "2", "--json"];
    let auto = json_of(&scenes(&database, &auto));
    assert_eq!(
        (&auto["version"], &auto["ratio"], &auto["assist_tokens"]),
        (&json!(3), &Value::Null, &Value::Null)
    );
    let new = json_of(&scenes(&database, &["set", "mine", "--system", "You are brief.", "--json"]));
    assert_eq!((&new["version"], &new["system"]), (&json!(1), &json!("You are brief.")));
    let shown = scenes(&database, &["show", "mine"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("You are brief."));
    assert_eq!(String::from_utf8_lossy(&scenes(&database, &["list"]).stdout).lines().count(), 5);
}

#[test]
fn settings_out_of_bounds_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("cloud.db");
    let set = |words: &[&str]| scenes(&database, &[&["set", "doc-qa"][..], words].concat());
    refused(&set(&["--ratio", "0.1"]), "ratio 0.1 must be at least xi 0.25");
    refused(&set(&["--ratio", "1.5"]), "field `ratio` is 1.5, must be 0.01 to 1");
    refused(&set(&["--xi", "NaN"]), "field `xi` is NaN");
    refused(&set(&["--assist-tokens", "0"]), "field `assist_tokens` is 0, must be 1 to 65536");
    refused(&set(&["--assist-tokens", "2"]), "assist tokens 2 must be at least the floor 4");
    refused(&set(&["--tau-ms", "0"]), "field `tau_ms` is 0, must be 1 to 60000");
    refused(&set(&["--corrector", "both"]), "must be `cloud` or `device`");
    refused(&set(&["--mode", "best"]), "unknown refiner mode `best`");
    refused(
        &set(&["--mode", "perplexity"]),
        "mode `perplexity` needs the log-probability of every prompt token",
    );
    refused(&set(&["--if-version", "7", "--tau-ms", "50"]), "scene `doc-qa` is at version 1, expected 7");
    refused(&scenes(&database, &["show", "nothing"]), "scene `nothing` does not exist");
    assert_eq!(json_of(&scenes(&database, &["show", "doc-qa", "--json"]))["version"], 1);
}

#[test]
fn serve_says_what_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let serve = |words: &[&str]| {
        let words = [&["serve", "--database", ":memory:"][..], words].concat();
        program().current_dir(folder.path()).args(words).output().unwrap()
    };
    refused(&serve(&["--model", "missing.gguf"]), "open model `missing.gguf`");
    std::fs::write(folder.path().join("bad.gguf"), "GGUF but not really").unwrap();
    refused(&serve(&["--model", "bad.gguf"]), "open model `bad.gguf`");
    refused(&serve(&["--model", "bad.gguf", "--listen", "0.0.0.0:0"]), "without a key");
}

#[test]
fn serve_prints_its_address_and_ends_when_told() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.gguf");
    std::fs::write(&model, SyntheticModel::small("llama", Format::F32, 3).to_gguf().unwrap()).unwrap();
    for form in [&["--json"][..], &[]] {
        let mut child = program()
            .args(["serve", "--database", ":memory:", "--listen", "127.0.0.1:0", "--threads", "1", "--model"])
            .arg(&model)
            .args(form)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = if form.is_empty() {
            line.trim().strip_prefix("listening on http://").unwrap().to_owned()
        } else {
            let hello: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(hello["model"], "tiny");
            hello["listening"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned()
        };
        assert!(std::net::TcpStream::connect(&address).is_ok(), "{address}");
        let told = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        assert!(told.success());
        assert!(child.wait().unwrap().success(), "a clean end");
    }
}
