//! Tests of the command line on both databases: first admin, users, keys, tenants, drafts, experiments,
//! audit.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use baton_cloud::access::key::hash_secret;
use baton_cloud::learn::traffic::{DAY_MS, MINUTE_MS, RequestFigures, Traffic, TrafficKey};
use baton_cloud::store::{UsageDelta, now_ms};
use serde_json::{Value, json};

use crate::logins::log_in;
use crate::world::{TestDatabase, on_each};

fn program(db: &TestDatabase, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton-cloud"));
    command
        .args(words)
        .args(["--database", &db.address])
        .env_remove("BATON_DATABASE")
        .env("RUST_LOG", "warn");
    command
}

fn run(db: &TestDatabase, words: &[&str]) -> Output {
    program(db, words).output().unwrap()
}

#[track_caller]
fn json_of(db: &TestDatabase, words: &[&str]) -> Value {
    let output = run(db, &[words, &["--json"]].concat());
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn text_of(db: &TestDatabase, words: &[&str]) -> String {
    let output = run(db, words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(db: &TestDatabase, words: &[&str], want: &str) {
    let output = run(db, words);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && err.contains(want), "{words:?}: want `{want}`: {err}");
    assert!(!err.contains("panicked"), "{err}");
}

#[test]
fn the_schema_is_migrated_and_checked() {
    on_each(|db| async move {
        let first = json_of(&db, &["migrate"]);
        assert_eq!((&first["migrated"], json_of(&db, &["migrate"])), (&json!(true), first.clone()));
        assert!(first["statements"].as_u64().unwrap() > 50);
    });
}

#[test]
fn the_first_admin_and_further_users() {
    on_each(|db| async move {
        let admin = json_of(&db, &["bootstrap", "ann"]);
        assert_eq!(admin["role"], "admin");
        let password = admin["password"].as_str().unwrap();
        let store = db.open().await;
        assert!(log_in(&store, "ann", password, "a").await.is_ok(), "the printed password is hers");
        refused(&db, &["bootstrap", "eve"], "an admin exists: make further users by");

        // A password from standard input is not printed again.
        let mut child = program(&db, &["users", "add", "ben", "--role", "editor", "--password-file", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"correct horse battery\nsecond line\n").unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text == "user `ben` (editor)\n", "{text}");
        assert!(log_in(&store, "ben", "correct horse battery", "a").await.is_ok());
        refused(&db, &["users", "add", "ben"], "user `ben` exists: change it by `users set`");
        let unchanged = run(&db, &["users", "set", "ben"]);
        assert_eq!(unchanged.status.code(), Some(2), "nothing is named");
        refused(&db, &["users", "add", "a/b"], "must be 1 to 64 letters");
        refused(&db, &["users", "add", "eve", "--role", "root"], "unknown role `root`");
        refused(&db, &["users", "set", "ann", "--disabled", "true"], "is the last admin");
        let changed = json_of(&db, &["users", "set", "ben", "--new-password"]);
        assert!(log_in(&store, "ben", changed["password"].as_str().unwrap(), "a").await.is_ok());
        assert_eq!(json_of(&db, &["users", "set", "ben", "--role", "viewer"])[0]["role"], "viewer");
        let names: Vec<Value> = json_of(&db, &["users", "list"])
            .as_array()
            .unwrap()
            .iter()
            .map(|user| user["name"].clone())
            .collect();
        assert_eq!(names, ["ann", "ben"]);
    });
}

#[test]
fn a_database_that_cannot_be_opened_says_why() {
    let said = |database: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_baton-cloud"));
        let out =
            command.args(["migrate", "--database", database]).env("RUST_LOG", "error").output().unwrap();
        assert!(!out.status.success(), "{database}");
        String::from_utf8(out.stderr).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    assert_eq!(said(path), format!("error: database `{path}` is a folder: name a file\n"));
    // A port that was just released, so nothing listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let refused = said(&format!("postgres://baton@127.0.0.1:{port}/baton?sslmode=disable"));
    assert!(refused.contains("refused") && !refused.contains("pool timed out"), "{refused}");
    assert_eq!(refused.matches("open database").count(), 1, "{refused}");
}

#[test]
fn keys_are_shown_once() {
    on_each(|db| async move {
        text_of(&db, &["tenants", "set", "acme", "--weight", "30", "--tokens-per-day", "1000"]);
        let made =
            json_of(&db, &["keys", "create", "--tenant", "acme", "--scopes", "assist,chat", "--days", "2"]);
        let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
        let kept = db.open().await.key(id).await.unwrap();
        assert_eq!(kept.hash, hash_secret(key));
        let lasts_ms = kept.expires_ms.unwrap() - kept.created_ms;
        assert!((2 * 86_400_000 - 60_000..=2 * 86_400_000).contains(&lasts_ms), "two days: {lasts_ms}");
        let listed = text_of(&db, &["keys", "list"]);
        assert!(listed.contains(id) && !listed.contains(key), "{listed}");
        assert!(!json_of(&db, &["keys", "list", "--tenant", "acme"]).to_string().contains(&key[17..]));
        assert_eq!(json_of(&db, &["keys", "list", "--tenant", "other"]), json!([]));
        let new = json_of(&db, &["keys", "rotate", id, "--grace", "15m"]);
        assert_eq!(new["rotated_from"], id);
        assert!(json_of(&db, &["keys", "revoke", id])["revoked_ms"].is_i64());
        refused(&db, &["keys", "revoke", id], "is revoked already");
        refused(&db, &["keys", "revoke", "nothing"], "key `nothing` does not exist");
        refused(&db, &["keys", "create", "--scopes", "root"], "unknown scope `root`");
        refused(&db, &["keys", "create", "--tenant", "nobody"], "tenant `nobody` does not exist");
        refused(&db, &["keys", "rotate", id, "--grace", "soon"], "is no span of time");
        let help = text_of(&db, &["keys", "--help"]);
        assert!(help.contains("baton-cloud keys rotate") && help.contains("shown once"), "{help}");
    });
}

#[test]
fn tenants_keep_what_is_not_named() {
    on_each(|db| async move {
        let set =
            json_of(&db, &["tenants", "set", "acme", "--requests-per-minute", "60", "--concurrency", "4"]);
        assert_eq!((&set[0]["weight"], &set[0]["revision"]), (&json!(10), &json!(1)));
        let set = json_of(&db, &["tenants", "set", "acme", "--weight", "20", "--concurrency", "none"]);
        let tenant = &set[0];
        assert_eq!(
            (
                &tenant["requests_per_minute"],
                &tenant["concurrency_max"],
                &tenant["weight"],
                &tenant["revision"]
            ),
            (&json!(60), &Value::Null, &json!(20), &json!(2))
        );
        let heavy = &["tenants", "set", "acme", "--weight", "0"];
        refused(&db, heavy, "field `weight` is 0, must be 1 to 1000");
        assert_eq!(run(&db, heavy).status.code(), Some(2));
        refused(&db, &["tenants", "set", "acme", "--weight", "-1"], "it must be a whole number, 0 or more");
        refused(&db, &["tenants", "set", "acme"], "nothing to change: name an option");
        assert_eq!(run(&db, &["tenants", "set", "acme"]).status.code(), Some(2));
        refused(&db, &["tenants", "set", "acme", "--concurrency", "few"], "whole number, or `none`");
        assert_eq!(json_of(&db, &["tenants", "list"]).as_array().unwrap().len(), 2);
        assert!(text_of(&db, &["tenants", "list"]).contains("requests today"));
    });
}

#[test]
fn drafts_are_compared_published_and_rolled_back() {
    on_each(|db| async move {
        let draft = json_of(&db, &["scenes", "draft", "doc-qa", "--xi", "0.2", "--tau-ms", "80"]);
        assert_eq!((&draft["draft_version"], &draft["published_version"]), (&json!(2), &json!(1)));
        let more = json_of(&db, &["scenes", "draft", "doc-qa", "--xi", "0.15", "--if-version", "2"]);
        assert_eq!((&more["version"]["xi"], &more["version"]["tau_ms"]), (&json!(0.15), &json!(80.0)));
        refused(&db, &["scenes", "draft", "doc-qa", "--if-version", "2"], "is at version 3, expected 2");
        assert_eq!(json_of(&db, &["scenes", "show", "doc-qa"])["version"], 1, "in force");
        let diff = json_of(&db, &["scenes", "diff", "doc-qa"]);
        assert_eq!((&diff["from"], &diff["to"]), (&json!(1), &json!(3)));
        assert_eq!(diff["changes"]["xi"], json!({ "from": 0.25, "to": 0.15 }));
        assert!(text_of(&db, &["scenes", "diff", "doc-qa"]).contains("tau_ms           100.0 -> 80.0"));
        refused(&db, &["scenes", "publish", "doc-qa", "--if-revision", "1"], "is at version 3, expected 1");
        let head = json_of(&db, &["scenes", "publish", "doc-qa", "--note", "tighter", "--if-revision", "3"]);
        assert_eq!(head["published_version"], 3);
        refused(&db, &["scenes", "publish", "doc-qa"], "scene `doc-qa` has no draft");
        refused(&db, &["scenes", "discard", "doc-qa"], "scene `doc-qa` has no draft");
        let back = json_of(&db, &["scenes", "rollback", "doc-qa", "--to", "1"]);
        assert_eq!((&back["published_version"], &back["version"]["based_on"]), (&json!(4), &json!(1)));
        assert_eq!(json_of(&db, &["scenes", "show", "doc-qa"])["xi"], json!(0.25));
        refused(
            &db,
            &["scenes", "rollback", "doc-qa", "--to", "9"],
            "scene version `doc-qa/9` does not exist",
        );
        let history = text_of(&db, &["scenes", "history", "doc-qa"]);
        assert!(history.contains("superseded") && history.contains("tighter"), "{history}");
    });
}

#[test]
fn an_experiment_runs_from_the_command_line() {
    on_each(|db| async move {
        let create = ["experiments", "create", "shorter", "--scene", "doc-qa", "--arm", "control 1"];
        refused(&db, &create, "field `arms` has 1 arms, must have 2 to 8");
        let with = |arm| [&create[..], &["--arm", arm, "--guard", "failures 0.02"]].concat();
        refused(&db, &with("short"), "write NAME WEIGHT");
        refused(&db, &with("short 1 colour=red"), "overrides `colour`");
        let draft = json_of(&db, &with("short 1 assist_tokens=8"));
        assert_eq!((&draft[0]["state"], &draft[0]["revision"]), (&json!("draft"), &json!(1)));
        refused(&db, &["experiments", "start", "shorter", "--if-revision", "7"], "at revision 1");
        let started = json_of(&db, &["experiments", "start", "shorter", "--if-revision", "1"]);
        assert_eq!(started[0]["state"], "running");
        refused(&db, &with("short 1 assist_tokens=9"), "its plan cannot change");
        let shown = text_of(&db, &["experiments", "show", "shorter"]);
        for part in ["running", "short 1 assist_tokens=8", "there are too few", "too little data of ttft_ms"]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let report = &json_of(&db, &["experiments", "show", "shorter"])["report"];
        assert_eq!(report["sample_ratio"]["result"], "too_few");
        refused(&db, &["experiments", "promote", "shorter", "--arm", "control"], "could be promoted");
        let done = json_of(&db, &["experiments", "promote", "shorter", "--arm", "short", "--note", "faster"]);
        assert_eq!((&done[0]["state"], &done[0]["promoted"]), (&json!("promoted"), &json!("short")));
        assert_eq!(json_of(&db, &["scenes", "show", "doc-qa"])["assist_tokens"], 8);
        refused(&db, &["experiments", "stop", "shorter"], "is not running");
        assert!(text_of(&db, &["experiments", "list"]).contains("promoted"));
    });
}

#[test]
fn the_audit_log_is_listed_and_checked() {
    on_each(|db| async move {
        text_of(&db, &["scenes", "set", "doc-qa", "--xi", "0.2"]);
        text_of(&db, &["tenants", "set", "acme"]);
        let rows = json_of(&db, &["audit", "list"]);
        let actions: Vec<&str> =
            rows.as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap()).collect();
        assert_eq!(actions, ["tenant.set", "scene.set"]);
        assert_eq!(json_of(&db, &["audit", "list", "--target", "scene/doc-qa"]).as_array().unwrap().len(), 1);
        let whole = json_of(&db, &["audit", "verify"]);
        assert_eq!((&whole["whole"], &whole["rows"]), (&json!(true), &json!(2)));
        let end = whole["end"].as_str().unwrap();
        assert!(text_of(&db, &["audit", "verify", "--noted", end]).contains("is whole: 2 rows"));
        refused(&db, &["audit", "verify", "--noted", "2:x"], "is no end of an audit log");
        let other = format!("2:{}", "0".repeat(64));
        refused(&db, &["audit", "verify", "--noted", &other], "is not the one whose end was noted");
        let sql = "UPDATE audit_log SET actor = 'user:eve' WHERE seq = 1";
        db.tamper("audit_log_is_immutable", "audit_log", sql).await;
        refused(&db, &["audit", "verify"], "the audit log is broken at row 1: the row was altered");
    });
}

#[test]
fn what_was_used_is_listed_for_people_and_programs() {
    on_each(|db| async move {
        let store = db.open().await;
        let now = now_ms();
        let day_ms = now - now.rem_euclid(DAY_MS);
        let used = |tenant: &str, tokens| UsageDelta {
            tenant: tenant.into(),
            minute_ms: now,
            requests: 3,
            day_ms,
            day_requests: 3,
            tokens,
            running: 0,
            reserved: 0,
        };
        store.exchange_usage("one", &[used("acme", 70), used("other", 900)], now).await.unwrap();
        let mut traffic = Traffic::default();
        let key = TrafficKey { scene: "doc-qa".into(), class: "phone".into(), ..TrafficKey::default() };
        let figures = RequestFigures { prompt_tokens: 50, slot_ms: 2500, ..RequestFigures::default() };
        traffic.record(now - MINUTE_MS, key, &figures);
        store.keep_traffic("one", &traffic.unwritten()).await.unwrap();
        // Two days, because midnight may come meanwhile.
        let text = text_of(&db, &["usage", "--days", "2"]);
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!((lines.len(), lines[0].as_str()), (5, "day (UTC) tenant requests tokens"), "{text}");
        assert!(lines[3..] == ["all other 3 900", "all acme 3 70"], "{text}");
        let one = json_of(&db, &["usage", "--days", "2", "--tenant", "acme"]);
        assert_eq!(one["tenants"], json!([{ "tenant": "acme", "requests": 3, "tokens": 70 }]));
        let history = json_of(&db, &["history", "--since", "30m", "--by", "class"]);
        assert_eq!(
            (&history["groups"][0]["name"], &history["total"]["slot_seconds"]),
            (&json!("phone"), &json!(2.5))
        );
        let text = text_of(&db, &["history"]);
        assert!(text.contains("(UTC)") && text.contains("\n(all) ") && text.contains("\ndoc-qa "), "{text}");
        assert_eq!(json_of(&db, &["history", "--scene", "none"])["total"]["requests"], 0);
        refused(&db, &["history", "--since", "soon"], "it must be a number of minutes, hours or days");
        refused(&db, &["history", "--since", "91d"], "it must be 1 minute to 90 days");
        refused(&db, &["history", "--by", "tenant"], "it must be scene, class or network");
        refused(&db, &["usage", "--days", "91"], "91");
    });
}
