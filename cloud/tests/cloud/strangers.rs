//! Tests the program as strangers reach it: pages of other sites, people who guess passwords, readers that
//! disconnect.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::program::{program, refused};
use crate::running::{Running, model};

/// Returns the status of a request with these headers, and the reply.
fn send(address: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let reply = Running::send(address, &format!("{head}\r\n{body}"));
    let status = reply.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {reply}")), reply)
}

fn chat() -> String {
    json!({ "model": "default", "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 2 })
        .to_string()
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn an_open_service_is_closed_to_pages_of_other_sites() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let running = Running::start(&["--model", model.to_str().unwrap(), "--allow-host", "baton.example"]);
    let address = running.address.clone();
    let ask = |headers: &[(&str, &str)]| send(&address, "POST", "/v1/chat/completions", headers, &chat()).0;
    let own = format!("http://{address}");
    assert_eq!(ask(&[("host", &address), JSON]), 200, "a program");
    assert_eq!(ask(&[("host", &address)]), 200, "a program that says nothing of its body");
    assert_eq!(ask(&[("host", &address), JSON, ("origin", &own)]), 200, "its own page");
    assert_eq!(ask(&[("host", "baton.example"), JSON, ("origin", "https://baton.example")]), 200);
    // Another page on this machine, another site, a form, DNS rebinding.
    for other in ["http://localhost:1", "https://evil.example", "null"] {
        assert_eq!(ask(&[("host", &address), JSON, ("origin", other)]), 403, "{other}");
    }
    assert_eq!(ask(&[("host", &address), ("content-type", "text/plain"), ("origin", &own)]), 415);
    assert_eq!(ask(&[("host", &address), ("content-type", "application/x-www-form-urlencoded")]), 415);
    assert_eq!(ask(&[("host", "evil.example"), JSON, ("origin", "http://evil.example")]), 403);
    for path in
        ["/v1/models", "/v1/scenes", "/v1/stats", "/openapi.json", "/admin/login", "/admin/api/v1/session"]
    {
        let (status, reply) = send(&address, "GET", path, &[("host", "evil.example:8300")], "");
        assert!(status == 403 && reply.contains("--allow-host"), "{path}: {reply}");
    }
    assert_eq!(send(&address, "GET", "/healthz", &[("host", "10-1-2-3.pod.cluster.local")], "").0, 200);
    assert_eq!(send(&address, "GET", "/readyz", &[("host", "anything")], "").0, 200);
}

#[test]
fn a_service_with_keys_is_reached_by_any_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let running = Running::start(&["--model", model.to_str().unwrap(), "--api-key", "secret"]);
    let key = ("authorization", "Bearer secret");
    let ask =
        |headers: &[(&str, &str)]| send(&running.address, "POST", "/v1/chat/completions", headers, &chat()).0;
    assert_eq!(ask(&[("host", "baton.cluster.local"), JSON, key]), 200);
    assert_eq!(ask(&[("host", "evil.example"), JSON, ("origin", "http://evil.example")]), 401);
    assert_eq!(ask(&[("host", "baton.cluster.local"), ("content-type", "text/plain"), key]), 415);
    let wrong =
        program().args(["serve", "--allow-host", "http://baton.example", "--model"]).arg(&model).output();
    refused(&wrong.unwrap(), "host `http://baton.example` is not a name");
    let wrong = program().args(["serve", "--trusted-proxy", "ten", "--model"]).arg(&model).output();
    refused(&wrong.unwrap(), "proxy `ten` is not a network");
}

fn cloud(database: &Path, words: &[&str]) -> Output {
    program().args(words).arg("--database").arg(database).output().unwrap()
}

#[test]
fn failed_log_ins_are_logged_counted_and_named_by_their_true_address() {
    let folder = tempfile::tempdir().unwrap();
    let (model, database) = (model(folder.path()), folder.path().join("cloud.db"));
    let made = cloud(&database, &["bootstrap", "ann", "--json"]);
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    let right = made["password"].as_str().unwrap();
    let mut running = Running::start(&[
        "--model",
        model.to_str().unwrap(),
        "--database",
        database.to_str().unwrap(),
        "--trusted-proxy",
        "127.0.0.0/8",
        "--metrics-listen",
        "127.0.0.1:0",
        "--log-format",
        "json",
    ]);
    let log_in = |name: &str, password: &str, from: &str| {
        let body = json!({ "name": name, "password": password }).to_string();
        let headers = [("host", "localhost"), JSON, ("x-forwarded-for", from), ("x-request-id", "edge-4711")];
        send(&running.address, "POST", "/admin/api/v1/session", &headers, &body)
    };
    assert_eq!(log_in("ann", "my-wrong-password", "203.0.113.7").0, 401);
    assert_eq!(log_in("my-typed-password", "ann", "203.0.113.8").0, 401);
    let (status, reply) = log_in("ann", right, "203.0.113.9");
    assert!(status == 200 && reply.contains("x-request-id: edge-4711"), "{reply}");
    let cookies =
        ["set-cookie: baton_session=", "set-cookie: baton_device="].map(|cookie| reply.find(cookie));
    assert!(cookies.is_sorted() && cookies[0].is_some(), "both, the session's first: {reply}");
    // What the client itself wrote does not count, only the address that our proxy has appended.
    for _ in 0..4 {
        assert_eq!(log_in("ann", "my-wrong-password", "6.6.6.6, 203.0.113.7").0, 401);
    }
    let (status, reply) = log_in("ann", right, "9.9.9.9, 203.0.113.7");
    assert!(status == 429 && reply.contains("retry-after: "), "{reply}");
    assert_eq!(log_in("ann", right, "203.0.113.70").0, 200, "elsewhere");

    let metrics = running.metrics.clone().expect("metrics have an address");
    let figures = send(&metrics, "GET", "/metrics", &[("host", "localhost")], "").1;
    for line in [
        "baton_admin_logins_total{outcome=\"wrong\"} 6",
        "baton_admin_logins_total{outcome=\"begun\"} 2",
        "baton_admin_logins_total{outcome=\"limited\"} 1",
        "baton_database_writable 1",
    ] {
        assert!(figures.lines().any(|found| found == line), "no `{line}` in {figures}");
    }
    let first = running.logs("console log-in failed");
    let first: Value = serde_json::from_str(&first).unwrap();
    let field = |name: &str| first["fields"][name].as_str().unwrap_or_default().to_owned();
    assert_eq!(
        (field("user"), field("address"), field("request")),
        ("ann".into(), "203.0.113.7".into(), "edge-4711".into())
    );
    let second = running.logs("console log-in failed");
    assert!(second.contains("203.0.113.8") && !second.contains("my-typed-password"), "{second}");
    assert!(!second.contains("wrong-password"), "{second}");
    let audit = cloud(&database, &["audit", "list", "--json"]);
    let audit = String::from_utf8(audit.stdout).unwrap();
    assert_eq!(audit.matches("session.refused").count(), 6, "{audit}");
    assert!(!audit.contains("my-typed-password") && audit.contains("203.0.113.8"), "{audit}");
}

#[test]
fn a_reader_that_goes_away_ends_the_program_without_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("cloud.db");
    for words in [
        &["scenes", "list"][..],
        &["keys", "list", "--json"],
        &["scenes", "table"],
        &["migrate"],
        &["audit", "list"],
    ] {
        let mut child = program()
            .args(words)
            .arg("--database")
            .arg(&database)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), err.as_ref()), (Some(141), ""), "{words:?}");
    }
}

#[test]
fn errors_name_each_thing_once() {
    let missing = program().args(["serve", "--model", "/no/such/model.gguf"]).output().unwrap();
    let err = String::from_utf8_lossy(&missing.stderr);
    let line = err.lines().last().unwrap_or_default();
    assert!(line.starts_with("error: ") && line.matches("/no/such/model.gguf").count() == 1, "{err}");
    assert_eq!(missing.status.code(), Some(1));
}

/// A password typed at a terminal, which util-linux's `script` provides.
#[test]
fn a_password_is_not_shown_while_it_is_typed() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("cloud.db");
    let line = format!(
        "{} bootstrap ann --password-file - --database {}",
        env!("CARGO_BIN_EXE_baton-cloud"),
        database.display()
    );
    let type_in = |lines: [&str; 2]| {
        let mut child = match Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
        {
            Ok(child) => child,
            Err(err) => {
                println!("skipped: cloud: a password at a terminal: no `script` of util-linux: {err}");
                return None;
            }
        };
        let (mut keyboard, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut shown = Vec::new();
        for (asked, line) in lines.into_iter().enumerate() {
            // Like a person, it types only after the question is shown.
            while String::from_utf8_lossy(&shown).matches("(it is not shown):").count() <= asked {
                let mut some = [0; 256];
                let count = screen.read(&mut some).unwrap();
                assert!(count > 0, "it ends early: {}", String::from_utf8_lossy(&shown));
                shown.extend_from_slice(&some[..count]);
            }
            writeln!(keyboard, "{line}").unwrap();
        }
        screen.read_to_end(&mut shown).unwrap();
        Some((child.wait().unwrap().success(), String::from_utf8_lossy(&shown).into_owned()))
    };
    let Some((done, shown)) = type_in(["correct horse battery", "another horse battery"]) else { return };
    assert!(!done && shown.contains("the two passwords differ"), "{shown}");
    let (done, shown) = type_in(["correct horse battery"; 2]).unwrap();
    assert!(done && shown.contains("user `ann` (admin)"), "{shown}");
    assert!(!shown.contains("horse"), "{shown}");
}
