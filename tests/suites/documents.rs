//! Documents of every kind given to the real agent: what breaks a reader is an error, and ends nothing else.
//!
//! The agent reads formats from outside in child processes. Always: each document ends in its text or in an
//! error that names it, the agent lives and answers its other clients, and no child outlives its reader.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use baton_e2e::hostile::bodies::{PeakMemory, Reply};
use baton_e2e::hostile::documents::{Document, breaking, docx, endless, mutated, paragraphs, text_pdf};
use baton_e2e::hostile::readers::{Agent, Watch, ask, children_when, reads};
use baton_e2e::process::{cpu_program, program};
use serde_json::{Value, json};
use tokio::process::Command;

/// A guard against hangs.
const HANG: Duration = Duration::from_secs(120);
/// Most memory of a child, and what reading documents may add to the agent.
const CHILD_BYTES_MAX: u64 = 256 << 20;
const AGENT_BYTES_MAX: u64 = 64 << 20;
/// Number of documents that are broken at random; more if the suite is named.
const MUTATED: u64 = 120;
const MUTATED_NAMED: u64 = 2000;

async fn started() -> Agent {
    Agent::start(&program("baton").expect("it is built")).await.expect("the agent starts")
}

/// Makes the command of a question about a file.
fn asking(folder: &Path, document: &Document) -> Command {
    let path = folder.join(&document.name);
    std::fs::write(&path, &document.bytes).expect("write it");
    let mut ask = Command::from(cpu_program("baton").expect("it is built"));
    ask.arg("ask").arg(path).args(["What?", "--no-cloud", "--config-dir"]).arg(folder);
    ask
}

/// Returns the JSON behind a reply's head.
fn body(reply: &Reply) -> Value {
    let body = reply.text.split_once("\r\n\r\n").expect("a head").1;
    serde_json::from_str(body).unwrap_or_else(|err| panic!("{err}: {}", reply.text))
}

/// Checks that a document is refused for its own sake, by its name.
#[track_caller]
fn check_refused(document: &Document, reply: &Reply) -> String {
    let told = body(reply);
    let message = told["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert_eq!(reply.status, 400, "{}: {message}", document.name);
    assert!(message.contains(&document.name), "{message}");
    assert_eq!(
        (&told["error"]["param"], &told["error"]["code"]),
        (&json!("data"), &json!("invalid_request"))
    );
    message
}

#[tokio::test]
async fn what_breaks_a_reader_is_an_error_and_neighbours_are_answered() {
    let mut agent = started().await;
    ask(agent.server()).await.expect("an answer");
    let sound = Document::new("rivers.pdf", text_pdf(&["Rivers are long and deep."]));
    assert_eq!(agent.read(&sound).await.expect("a reply").status, 200);
    let mut memory = PeakMemory::of(pid(&agent)).expect("its memory");
    let watch = Watch::begin(pid(&agent));
    let stop = Arc::new(AtomicBool::new(false));
    let server = agent.server();
    let stopped = stop.clone();
    let neighbour = tokio::spawn(async move {
        let mut served = 0;
        while !stopped.load(Ordering::Relaxed) {
            ask(server).await.expect("an answer");
            served += 1;
        }
        served
    });
    for (document, want) in breaking() {
        memory.forget().expect("the agent runs");
        let message = check_refused(&document, &agent.read(&document).await.expect("a reply"));
        println!("{}: {message}", document.name);
        assert!(message.contains(want), "{}: {message}", document.name);
        let growth = memory.growth().expect("the agent runs");
        assert!(growth <= AGENT_BYTES_MAX, "{}: the agent grew by {growth} bytes", document.name);
    }
    stop.store(true, Ordering::Relaxed);
    assert!(neighbour.await.expect("every answer came") > 0);
    let (seen, peak) = watch.end().expect("it watched");
    println!("{seen} children, of at most {:.1} MiB", peak as f64 / f64::from(1 << 20));
    assert!(peak <= CHILD_BYTES_MAX, "a child had {peak} bytes");
    let text = body(&agent.read(&sound).await.expect("a reply"))["text"].to_string();
    assert!(text.contains("long and deep"), "{text}");
    agent.children(0).await.expect("as many");
    assert_eq!(agent.process.ended().expect("its status"), None);
}

#[tokio::test]
async fn a_child_ends_with_its_client() {
    let agent = started().await;
    // The first is older, so it would be the first to end by itself.
    let first = agent.begin(&endless()).await.expect("it is sent");
    let one = agent.children(1).await.expect("as many");
    let second = agent.begin(&endless()).await.expect("it is sent");
    agent.children(2).await.expect("as many");
    // A third one waits for its turn, and leaves.
    drop(agent.begin(&endless()).await.expect("it is sent"));
    drop(second);
    assert_eq!(agent.children(1).await.expect("as many"), one);
    // What waits comes next, and the agent answers meanwhile.
    let third = agent.begin(&endless()).await.expect("it is sent");
    agent.children(2).await.expect("as many");
    ask(agent.server()).await.expect("an answer");
    drop((first, third));
    agent.children(0).await.expect("as many");
    let sound = Document::new("rivers.pdf", text_pdf(&["Rivers are long and deep."]));
    assert_eq!(agent.read(&sound).await.expect("a reply").status, 200);
}

#[tokio::test]
async fn a_document_without_end_is_given_up_and_named() {
    let agent = started().await;
    let message = check_refused(&endless(), &agent.read(&endless()).await.expect("a reply"));
    assert!(message.contains("more than 9 s of computing"), "{message}");
    agent.children(0).await.expect("as many");
}

#[tokio::test]
async fn a_child_ends_with_its_program() {
    let folder = tempfile::tempdir().expect("make a folder");
    for signal in ["INT", "TERM", "KILL"] {
        let mut ask = asking(folder.path(), &endless());
        let mut ask = ask.stdout(Stdio::null()).kill_on_drop(true).spawn().expect("it starts");
        let pid = ask.id().expect("it runs");
        let child = children_when(pid, 1).await.expect("it reads")[0];
        let sent = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().await;
        assert!(sent.expect("run kill").success());
        let status = ask.wait().await.expect("it ends");
        assert!(!status.success(), "{signal}");
        let begun = Instant::now();
        while reads(child) {
            assert!(begun.elapsed() < HANG, "the child runs on after {signal}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        println!("{signal}: the child ended {:.0} ms later", begun.elapsed().as_secs_f64() * 1e3);
    }
}

#[tokio::test]
async fn ask_names_the_file_that_breaks_a_reader() {
    let folder = tempfile::tempdir().expect("make a folder");
    for (document, want) in breaking().into_iter().take(2) {
        let ended = asking(folder.path(), &document).output().await.expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert!(said.contains(&document.name) && said.contains(want), "{said}");
    }
}

#[tokio::test]
async fn a_program_that_was_removed_still_reads() {
    let folder = tempfile::tempdir().expect("make a folder");
    let own = folder.path().join("baton");
    std::fs::copy(program("baton").expect("it is built"), &own).expect("copy the program");
    let agent = Agent::start(&own).await.expect("the agent starts");
    std::fs::remove_file(&own).expect("remove the program");
    for document in sound() {
        let text = body(&agent.read(&document).await.expect("a reply"))["text"].to_string();
        assert!(text.contains("long and deep"), "{}: {text}", document.name);
    }
}

fn pid(agent: &Agent) -> u32 {
    agent.process.pid().expect("it runs")
}

fn sound() -> [Document; 3] {
    [
        Document::new("rivers.pdf", text_pdf(&["Rivers are long and deep."])),
        Document::new("rivers.docx", docx(paragraphs(&["Rivers are long and deep."]).as_bytes())),
        Document::new("rivers.html", b"<p>Rivers are <b>long</b> and deep.".to_vec()),
    ]
}

/// Has every document read; returns how many have a text, and how many have none. Checks the memory of the
/// children, and that the agent lives.
async fn read_all(agent: &mut Agent, documents: impl Iterator<Item = Document>) -> (usize, usize) {
    let watch = Watch::begin(pid(agent));
    let (mut texts, mut refused) = (0, 0);
    for document in documents {
        let told = agent.read(&document).await.expect("a reply");
        match told.status {
            200 => texts += 1,
            _ => {
                check_refused(&document, &told);
                refused += 1;
            }
        }
    }
    let (seen, peak) = watch.end().expect("it watched");
    println!("{seen} children seen, of at most {:.1} MiB", peak as f64 / f64::from(1 << 20));
    assert!(peak <= CHILD_BYTES_MAX, "a child had {peak} bytes");
    agent.children(0).await.expect("as many");
    assert_eq!(agent.process.ended().expect("its status"), None);
    (texts, refused)
}

#[tokio::test]
async fn documents_broken_at_random_end_nothing() {
    let named = std::env::var_os("BATON_TEST_ALL").is_some_and(|value| !value.is_empty());
    let count = if named { MUTATED_NAMED } else { MUTATED };
    let mut agent = started().await;
    let (texts, refused) = read_all(&mut agent, (0..count).map(mutated)).await;
    println!("{count} documents: {texts} have a text, {refused} are refused");
    assert!(texts > 0 && refused > 0);
}

#[tokio::test]
async fn documents_of_a_folder_end_in_their_text_or_an_error() {
    let Some(folder) = std::env::var_os("BATON_CASES") else {
        println!("skipped: BATON_CASES names no folder of documents");
        return;
    };
    let mut agent = started().await;
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| {
        path.extension().is_some_and(|end| ["pdf", "docx", "html"].iter().any(|own| end == *own))
    });
    paths.sort();
    let documents = paths.into_iter().map(|path| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        Document::new(name, std::fs::read(&path).expect("read it"))
    });
    let (texts, refused) = read_all(&mut agent, documents).await;
    println!("{texts} have a text, {refused} are refused");
    assert!(texts > 0);
}
