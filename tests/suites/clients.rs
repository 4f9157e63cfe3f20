//! The clients that people use, at locked versions, against the real program: openai-python, LiteLLM, openai-node, the
//! Vercel AI SDK, and schemathesis over the OpenAPI documents, over the admin API as somebody who has logged in.
//!
//! The scripts stand in `tests/clients`; what they need is installed once for each version of the lock files, under the
//! target folder, and what everything said stays in `clients/words` there. Where Python, Node or their registries are
//! missing, the suite says so and is skipped. Always: what hangs is ended, and named.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use baton_cloud::access::{Actor, Scopes, TenantSettings};
use baton_cloud::store::{Database, Expected, NewKey, Store};
use baton_e2e::admin::AdminSession;
use baton_e2e::child::{self, Ended, last_line};
use baton_e2e::process::{CloudProcess, models_folder};
use reqwest::Method;
use serde_json::Value;

const KEY: &str = "key-of-the-clients-suite";
const PASSWORD: &str = "correct horse battery";
/// Hang guards: of an installation, of a script of cases, of schemathesis over one document.
const INSTALL_LIMIT: Duration = Duration::from_secs(300);
const CASES_LIMIT: Duration = Duration::from_secs(300);
const SCHEMATHESIS_LIMIT: Duration = Duration::from_secs(900);

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// Where things of this suite are kept: `clients` in the target folder.
fn folder() -> PathBuf {
    let program = std::env::current_exe().expect("the test knows its own path");
    program.ancestors().nth(3).expect("a test lies three folders below the target folder").join("clients")
}

/// A service over a database of its own, and keys that do not allow everything.
struct World {
    cloud: CloudProcess,
    /// Allows no chat.
    no_chat: String,
    /// Each allows one request in a minute.
    once: [String; 2],
    _folder: tempfile::TempDir,
}

impl World {
    /// A service whose tokens come slowly enough to be cancelled, with an administrator.
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

/// Runs a program, not for ever.
fn run(command: &mut Command, name: &str, limit: Duration) -> Result<Ended, String> {
    child::run(command, name, limit, &folder().join("words")).map_err(|err| format!("{err:#}"))
}

/// One step of an installation; what it said where it failed.
fn install(command: &mut Command, name: &str) -> Result<(), String> {
    let ended = run(command, name, INSTALL_LIMIT)?;
    if ended.status.success() {
        return Ok(());
    }
    let said = last_line(&ended.stderr).unwrap_or_else(|| "it says nothing".to_owned());
    Err(format!("{name} ended with {}: {said}", ended.status))
}

/// Where things are installed for this content of `lock`, and whether they are there already.
fn installed(kind: &str, lock: &Path) -> (PathBuf, bool) {
    let mut hasher = DefaultHasher::new();
    std::fs::read(lock).expect("the lock file is in the checkout").hash(&mut hasher);
    let folder = folder().join(format!("{kind}-{:016x}", hasher.finish()));
    let ready = folder.join("ready").is_file();
    (folder, ready)
}

/// Python with the locked packages: the folder of its programs.
fn python() -> Result<PathBuf, String> {
    let lock = scripts().join("python/requirements.txt");
    let (folder, ready) = installed("python", &lock);
    let programs = folder.join("bin");
    if !ready {
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).map_err(|err| err.to_string())?;
        install(Command::new("python3").args(["-m", "venv"]).arg(&folder), "python-venv")?;
        let mut pip = Command::new(programs.join("python"));
        pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "-r"]).arg(&lock);
        install(&mut pip, "pip-install")?;
        std::fs::write(folder.join("ready"), "").map_err(|err| err.to_string())?;
    }
    Ok(programs)
}

/// A folder with the script and the locked packages beside it.
fn node() -> Result<PathBuf, String> {
    let (folder, ready) = installed("node", &scripts().join("node/package-lock.json"));
    std::fs::create_dir_all(&folder).map_err(|err| err.to_string())?;
    for file in ["package.json", "package-lock.json", "cases.mjs"] {
        std::fs::copy(scripts().join("node").join(file), folder.join(file)).map_err(|err| err.to_string())?;
    }
    if !ready {
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&folder);
        install(&mut npm, "npm-ci")?;
        std::fs::write(folder.join("ready"), "").map_err(|err| err.to_string())?;
    }
    Ok(folder)
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

/// Every case has its line, and every line says ok.
#[track_caller]
fn check_cases(ended: &Ended, cases_min: usize) {
    let Ended { status, stdout, stderr } = ended;
    let is_case = |line: &&str| line.starts_with("ok ") || line.starts_with("not ok ");
    let lines: Vec<&str> = stdout.lines().filter(is_case).collect();
    let bad: Vec<&&str> = lines.iter().filter(|line| line.starts_with("not ")).collect();
    lines.iter().for_each(|line| println!("{line}"));
    assert!(bad.is_empty(), "{bad:#?}");
    assert!(lines.len() >= cases_min && status.success(), "{} cases: {stdout}\n{stderr}", lines.len());
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

/// Each client reads a stream in whose middle the service is told to stop, and does not get to its end in time: it must
/// raise an error, not take what it has for the whole answer.
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

/// Runs schemathesis over a document of a service; its whole words where it finds something.
fn schemathesis(programs: &Path, world: &World, document: &str, name: &str, more: &[&str]) {
    let base = world.url();
    let mut command = Command::new(programs.join("st"));
    command
        .args(["run", &format!("{base}{document}"), "--url", &base])
        .args(["--checks", "not_a_server_error,status_code_conformance,content_type_conformance"])
        .args(["--checks", "response_schema_conformance"])
        // One worker: CPython 3.11 keeps the depth of its parser for all threads and fails if two parse (gh-106905).
        .args(["--max-examples", "25", "--seed", "7", "--request-timeout", "30", "--workers", "1"])
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
    // What is new must say so; then it is made, and not refused for want of a precondition.
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
