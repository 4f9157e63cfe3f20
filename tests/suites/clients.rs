//! The clients that people use, at locked versions, against the real program: openai-python, LiteLLM, openai-node, the
//! Vercel AI SDK, and schemathesis over the OpenAPI documents.
//!
//! The scripts stand in `tests/clients`; what they need is installed once for each version of the lock files, under the
//! target folder. Where Python, Node or their registries are missing, the suite says so and is skipped.

use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use baton_e2e::process::{CloudProcess, models_folder, program};

const KEY: &str = "key-of-the-clients-suite";
/// OpenAPI documents that a service may have.
const DOCUMENTS: &[&str] = &["/openapi.json", "/admin/api/v1/openapi.json"];

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// A service whose tokens come slowly enough to be cancelled, with an administrator, so that its admin API answers.
/// The folder holds its database.
async fn service() -> (CloudProcess, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("make a folder");
    let database = folder.path().join("cloud.db");
    let made = Command::new(program("baton-cloud").expect("the service is built"))
        .args(["bootstrap", "ann", "--json", "--database"])
        .arg(&database)
        .output()
        .expect("baton-cloud runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut options =
        ["--api-key", KEY, "--emulate-decode-ms", "3", "--database"].map(OsString::from).to_vec();
    options.push(database.into_os_string());
    let model = models_folder().join("demo-cloud.gguf");
    let service = CloudProcess::start(&model, &options).await.expect("the service starts");
    (service, folder)
}

/// Where things are installed for this content of `lock`, and whether they are there already.
fn installed(kind: &str, lock: &Path) -> (PathBuf, bool) {
    let program = std::env::current_exe().expect("the test knows its own path");
    let target = program.ancestors().nth(3).expect("a test lies three folders below the target folder");
    let mut hasher = DefaultHasher::new();
    std::fs::read(lock).expect("the lock file is in the checkout").hash(&mut hasher);
    let folder = target.join("clients").join(format!("{kind}-{:016x}", hasher.finish()));
    let ready = folder.join("ready").is_file();
    (folder, ready)
}

/// Runs a program; what it said where it failed.
fn run(program: impl AsRef<OsStr>, words: &[&OsStr], folder: &Path) -> Result<Output, String> {
    let name = program.as_ref().to_string_lossy().into_owned();
    let output = Command::new(program).args(words).current_dir(folder).output();
    let output = output.map_err(|err| format!("no {name}: {err}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it says nothing").to_owned();
    Err(format!("{name} ended with {}: {last}", output.status))
}

fn words<'a>(words: &[&'a str]) -> Vec<&'a OsStr> {
    words.iter().map(|&word| OsStr::new(word)).collect()
}

/// Python with the locked packages: the folder of its programs.
fn python() -> Result<PathBuf, String> {
    let lock = scripts().join("python/requirements.txt");
    let (folder, ready) = installed("python", &lock);
    let programs = folder.join("bin");
    if !ready {
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).map_err(|err| err.to_string())?;
        run("python3", &[OsStr::new("-m"), OsStr::new("venv"), folder.as_os_str()], &scripts())?;
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r"];
        let install = [words(&install), vec![lock.as_os_str()]].concat();
        run(programs.join("python"), &install, &scripts())?;
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
        run("npm", &words(&["ci", "--ignore-scripts", "--no-audit", "--no-fund"]), &folder)?;
        std::fs::write(folder.join("ready"), "").map_err(|err| err.to_string())?;
    }
    Ok(folder)
}

/// Whether the service has something at `path`.
fn is_there(address: &str, path: &str) -> bool {
    let mut stream = TcpStream::connect(address).expect("the service listens");
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("the service reads");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("the service answers");
    reply.starts_with("HTTP/1.1 200")
}

fn skipped(why: &str) {
    println!("skipped: clients: {why}");
}

/// Every case has its line, and every line says ok.
#[track_caller]
fn check_cases(output: &Output, cases_min: usize) {
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> =
        text.lines().filter(|line| line.starts_with("ok ") || line.starts_with("not ok ")).collect();
    let bad: Vec<&&str> = lines.iter().filter(|line| line.starts_with("not ")).collect();
    lines.iter().for_each(|line| println!("{line}"));
    assert!(bad.is_empty(), "{bad:#?}");
    assert!(lines.len() >= cases_min && output.status.success(), "{} cases: {text}\n{said}", lines.len());
}

#[tokio::test]
async fn python_clients() {
    let programs = match python() {
        Ok(programs) => programs,
        Err(why) => return skipped(&why),
    };
    let (service, _folder) = service().await;
    let output = Command::new(programs.join("python"))
        .arg(scripts().join("python/cases.py"))
        .args([format!("http://{}", service.address()), KEY.to_owned()])
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        .output()
        .expect("python runs");
    check_cases(&output, 18);
}

#[tokio::test]
async fn node_clients() {
    let folder = match node() {
        Ok(folder) => folder,
        Err(why) => return skipped(&why),
    };
    let (service, _folder) = service().await;
    let output = Command::new("node")
        .arg(folder.join("cases.mjs"))
        .args([format!("http://{}", service.address()), KEY.to_owned()])
        .output()
        .expect("node runs");
    check_cases(&output, 14);
}

#[tokio::test]
async fn openapi_documents_are_true() {
    let programs = match python() {
        Ok(programs) => programs,
        Err(why) => return skipped(&why),
    };
    let (service, _folder) = service().await;
    let base = format!("http://{}", service.address());
    let mut checked = 0;
    for path in DOCUMENTS {
        let url = format!("{base}{path}");
        if !is_there(service.address(), path) {
            println!("skipped: clients: this service has no document at {path}");
            continue;
        }
        checked += 1;
        let output = Command::new(programs.join("st"))
            .args(["run", &url, "--url", &base])
            .args(["--header", &format!("Authorization: Bearer {KEY}")])
            .args(["--checks", "not_a_server_error,status_code_conformance,content_type_conformance"])
            .args(["--checks", "response_schema_conformance"])
            .args(["--phases", "examples,coverage,fuzzing", "--max-examples", "25", "--seed", "7"])
            .args([
                "--request-timeout",
                "30",
                "--suppress-health-check",
                "all",
                "--workers",
                "2",
                "--no-color",
            ])
            .current_dir(&programs)
            .output()
            .expect("schemathesis runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{path}:\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
        println!("ok schemathesis {path}");
    }
    assert!(checked > 0, "no document at all");
}
