//! Clients that people use, at locked versions, against the real program: openai-python, LiteLLM, openai-node
//! and the Vercel AI SDK. Also schemathesis over the OpenAPI documents; for the admin API it runs as a
//! logged-in user.
//!
//! The scripts are in `tests/clients`. Their packages are installed once for each version of the lock files,
//! under the target folder; all output stays in `clients/words` there. If Python, Node or their registries
//! are missing, the suite says so and is skipped. What always holds: a client that hangs is ended and named.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use baton_cloud::access::{Actor, Scopes, TenantSettings};
use baton_cloud::store::{Database, Expected, NewKey, Store};
use baton_e2e::admin::AdminSession;
use baton_e2e::child::Ended;
use baton_e2e::clients::{CASES_LIMIT, cases, node, python, run, scripts};
use baton_e2e::process::{CloudProcess, models_folder};
use reqwest::Method;
use serde_json::Value;

const KEY: &str = "key-of-the-clients-suite";
const PASSWORD: &str = "correct horse battery";
/// Guards schemathesis over one document against hangs.
const SCHEMATHESIS_LIMIT: Duration = Duration::from_secs(900);

/// A service over its own database, and keys that do not allow everything.
struct World {
    cloud: CloudProcess,
    /// A key that does not allow chats.
    no_chat: String,
    /// Keys that each allow one request in a minute.
    once: [String; 2],
    _folder: tempfile::TempDir,
}

impl World {
    /// Starts a service whose tokens come slowly enough to be cancelled, with an administrator.
    async fn start() -> World {
        World::with(&["--emulate-decode-ms", "3"]).await
    }

    async fn with(options: &[&str]) -> World {
        let folder = tempfile::tempdir().expect("make a folder");
        let path = folder.path().join("cloud.db");
        let store = Store::open(&Database::File(path.clone())).await.expect("a database");
        store.bootstrap("ann", PASSWORD, &Actor::cli()).await.expect("an administrator");
        let key = async |tenant: &str, scopes| {
            let new = NewKey { tenant: tenant.to_owned(), label: String::new(), scopes, expires_ms: None };
            store.create_key(&new, &Actor::cli()).await.expect("a key").1.reveal().to_owned()
        };
        let no_chat = key("default", Scopes::device()).await;
        let slow = TenantSettings { requests_per_minute: Some(1), ..TenantSettings::default() };
        for tenant in ["once-a", "once-b"] {
            store.set_tenant(tenant, &slow, Expected::Absent, &Actor::cli()).await.expect("a tenant");
        }
        let once = [key("once-a", Scopes::ALL).await, key("once-b", Scopes::ALL).await];
        store.close().await;
        let words = [&["--api-key", KEY][..], options].concat().into_iter().map(Into::into);
        let (model, path) = (models_folder().join("demo-cloud.gguf"), path.display().to_string());
        let cloud = CloudProcess::start_on(&model, &path, &words.collect::<Vec<_>>()).await;
        World { cloud: cloud.expect("the service starts"), no_chat, once, _folder: folder }
    }

    fn url(&self) -> String {
        format!("http://{}", self.cloud.address())
    }

    /// Runs a script of cases, with the service and its keys.
    fn cases(&self, mut command: Command, name: &str, more: &[&str]) -> Ended {
        command.args([&self.url(), KEY]).args(more);
        command.env("BATON_NO_CHAT_KEY", &self.no_chat).env("BATON_ONCE_KEYS", self.once.join(","));
        run(&mut command, name, CASES_LIMIT).unwrap_or_else(|why| panic!("{why}"))
    }
}

fn python_cases(programs: &Path) -> Command {
    let mut command = Command::new(programs.join("python"));
    command.arg(scripts().join("python/cases.py")).env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
    command
}

fn node_cases(folder: &Path) -> Command {
    let mut command = Command::new("node");
    command.arg(folder.join("cases.mjs"));
    command
}

fn skipped(why: &str) {
    println!("skipped: clients: {why}");
}

/// Checks that every case has its line, and every line says ok.
#[track_caller]
fn check_cases(ended: &Ended, cases_min: usize) {
    let lines = cases(ended, cases_min).unwrap_or_else(|why| panic!("{why}"));
    lines.iter().for_each(|line| println!("{line}"));
}

#[tokio::test]
async fn python_clients() {
    let programs = match python() {
        Ok(programs) => programs,
        Err(why) => return skipped(&why),
    };
    let world = World::start().await;
    check_cases(&world.cases(python_cases(&programs), "python", &[]), 20);
}

#[tokio::test]
async fn node_clients() {
    let folder = match node() {
        Ok(folder) => folder,
        Err(why) => return skipped(&why),
    };
    let world = World::start().await;
    check_cases(&world.cases(node_cases(&folder), "node", &[]), 16);
}

/// Each client reads a stream while the service is told to stop, so that the stream does not end in time. The
/// client must raise an error, and not take the part for the whole answer.
#[tokio::test]
async fn a_stream_that_is_cut_is_an_error_for_every_client() {
    for client in ["openai_python", "litellm", "openai_node", "ai_sdk"] {
        let command = if client == "openai_python" || client == "litellm" {
            python().map(|programs| python_cases(&programs))
        } else {
            node().map(|folder| node_cases(&folder))
        };
        let command = match command {
            Ok(command) => command,
            Err(why) => {
                skipped(&why);
                continue;
            }
        };
        let world = World::with(&["--emulate-decode-ms", "30", "--drain-timeout", "0.2"]).await;
        let pid = world.cloud.pid().expect("the service runs").to_string();
        let ended = world.cases(command, &format!("cut-{client}"), &["interrupted", &pid, client]);
        check_cases(&ended, 1);
    }
}

/// Examples that schemathesis makes for each operation: fewer if all suites run, because it uses one core.
fn examples() -> &'static str {
    let all = std::env::var_os("BATON_TEST_ALL").is_some_and(|value| !value.is_empty());
    if all { "25" } else { "8" }
}

/// Runs schemathesis over a document of a service; shows its whole output if it finds something.
fn schemathesis(programs: &Path, world: &World, document: &str, name: &str, more: &[&str]) {
    let base = world.url();
    let mut command = Command::new(programs.join("st"));
    command
        .args(["run", &format!("{base}{document}"), "--url", &base])
        .args(["--checks", "not_a_server_error,status_code_conformance,content_type_conformance"])
        .args(["--checks", "response_schema_conformance"])
        // One worker: CPython 3.11 has one parser depth for all threads, and fails if two threads parse
        // (gh-106905).
        .args(["--max-examples", examples(), "--seed", "7", "--request-timeout", "30", "--workers", "1"])
        .args(["--suppress-health-check", "all", "--no-color"])
        .args(more)
        .current_dir(programs);
    let ended = run(&mut command, name, SCHEMATHESIS_LIMIT).unwrap_or_else(|why| panic!("{why}"));
    assert!(ended.status.success(), "{document} ({name}):\n{}\n{}", ended.stdout, ended.stderr);
    println!("ok schemathesis {document} ({name})");
}

#[tokio::test]
async fn the_document_of_the_public_api_is_true() {
    let programs = match python() {
        Ok(programs) => programs,
        Err(why) => return skipped(&why),
    };
    let world = World::start().await;
    let key = format!("Authorization: Bearer {KEY}");
    let more = ["--header", &key, "--phases", "examples,coverage,fuzzing"];
    schemathesis(&programs, &world, "/openapi.json", "public", &more);
}

#[tokio::test]
async fn the_document_of_the_admin_api_is_true_behind_the_guard() {
    let programs = match python() {
        Ok(programs) => programs,
        Err(why) => return skipped(&why),
    };
    let world = World::start().await;
    let document = "/admin/api/v1/openapi.json";
    schemathesis(&programs, &world, document, "admin-stranger", &["--phases", "examples,coverage,fuzzing"]);

    let session = AdminSession::log_in(world.cloud.address(), "ann", PASSWORD).await.expect("log in");
    let (cookie, csrf) = (format!("Cookie: {}", session.cookie), format!("x-csrf-token: {}", session.csrf));
    // Logging out would end the session for everything that follows.
    let known = ["--header", &cookie, "--header", &csrf, "--exclude-operation-id", "log_out"];
    let all = [&known[..], &["--phases", "examples,coverage,fuzzing"]].concat();
    schemathesis(&programs, &world, document, "admin", &all);
    // A new object must be marked as new; then it is created, and not refused for a missing precondition.
    let new = ["--header", "If-None-Match: *", "--include-method", "PUT", "--phases", "fuzzing"];
    schemathesis(&programs, &world, document, "admin-new", &[&known[..], &new].concat());

    let audit = session.request(Method::GET, "/audit?limit=500").send().await.expect("ask");
    assert_eq!(audit.status(), 200, "the session is good to the end");
    let audit: Value = audit.json().await.expect("JSON");
    let rows = audit["rows"].as_array().expect("rows");
    let actions: Vec<&str> = rows
        .iter()
        .filter(|row| row["actor"].as_str().is_some_and(|actor| actor.ends_with("ann")))
        .filter_map(|row| row["action"].as_str())
        .collect();
    println!("ok {} changes were made behind the guard", actions.len());
    for action in ["tenant.set", "class.set"] {
        assert!(actions.contains(&action), "no handler got as far as `{action}`: {audit}");
    }
}
