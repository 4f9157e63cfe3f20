//! Tests of the real program while its database is stopped and started. Requests are answered meanwhile, and
//! everything works again afterwards.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use baton_cloud::access::Scopes;
use baton_cloud::learn::traffic::{DAY_MS, MINUTE_MS};
use baton_cloud::scene::SceneSettings;
use baton_cloud::store::{Database, Expected, NewKey, Store, now_ms};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::postgres::{Postgres, programs};
use crate::world::ann;

const HANG: Duration = Duration::from_secs(120);

/// The program, killed when it is dropped.
pub(crate) struct Program {
    child: Child,
    pub address: String,
}

impl Program {
    fn start(database: &str) -> Program {
        Program::start_with(database, "error", Stdio::inherit())
    }

    /// Starts the program with this log level and this target of the log.
    pub(crate) fn start_with(database: &str, level: &str, log: Stdio) -> Program {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo-cloud.gguf");
        let mut child = Command::new(env!("CARGO_BIN_EXE_baton-cloud"))
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--threads", "1", "--database", database])
            .arg("--model")
            .arg(model)
            .env_remove("BATON_API_KEY")
            .env_remove("BATON_AUTH")
            .env("BATON_GPU", "off")
            .env("RUST_LOG", level)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let hello: Value = serde_json::from_str(&line).unwrap();
        let address = hello["listening"].as_str().unwrap().trim_start_matches("http://").to_owned();
        Program { child, address }
    }

    pub(crate) fn stop(mut self) {
        let told = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(told.success());
        assert!(self.child.wait().unwrap().success(), "a clean end");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends one request. Returns the status and body of the reply.
pub(crate) async fn send(address: &str, method: &str, path: &str, key: &str, body: &str) -> (u16, String) {
    let talk = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    };
    tokio::time::timeout(HANG, talk).await.expect("a reply")
}

pub(crate) async fn get(address: &str, path: &str) -> (u16, String) {
    send(address, "GET", path, "none", "").await
}

pub(crate) fn question() -> String {
    let segments = json!([
        { "role": "system", "text": "You answer from the document." },
        { "role": "user", "text": "The cat is red. The dog is blue. The bird is green.", "refine": true },
        { "role": "user", "text": "\n\nQuestion: What colour is the dog?" },
    ]);
    let request = json!({ "protocol": 1, "request_id": uuid::Uuid::new_v4(), "scene": "doc-qa",
        "model": "default", "segments": segments, "assist_tokens": 4 });
    request.to_string()
}

/// Clients that each ask one question after another.
struct Load {
    stop: Arc<AtomicBool>,
    good: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<Vec<String>>>,
}

impl Load {
    fn start(address: &str, clients: usize) -> Load {
        let (stop, good) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let client = |_| {
            let (stop, good, address) = (stop.clone(), good.clone(), address.to_owned());
            tokio::spawn(async move {
                let mut failed = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let (status, body) = send(&address, "POST", "/v1/assist", "none", &question()).await;
                    if status == 200 && body.contains("event: end") {
                        good.fetch_add(1, Ordering::Relaxed);
                    } else {
                        failed.push(format!("{status}: {body}"));
                    }
                }
                failed
            })
        };
        let tasks = (0..clients).map(client).collect();
        Load { stop, good, tasks }
    }

    /// Waits for this many more answers.
    async fn answers(&self, more: u64) {
        let want = self.good.load(Ordering::Relaxed) + more;
        until("answers", async || self.good.load(Ordering::Relaxed) >= want).await;
    }

    /// Stops the clients. Returns the number of good answers; fails if any answer failed.
    async fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            assert_eq!(task.await.unwrap(), Vec::<String>::new(), "0 failed answers");
        }
        self.good.load(Ordering::Relaxed)
    }
}

pub(crate) async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(HANG, wait).await.unwrap_or_else(|_| panic!("{what} within {} s", HANG.as_secs()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_go_on_while_the_database_is_stopped_and_changes_arrive_when_it_is_back() {
    if let Err(reason) = programs() {
        println!("skipped: store: PostgreSQL stopped and started: {reason:#}");
        return;
    }
    let mut server = Postgres::start().unwrap();
    let database: Database = server.url().parse().unwrap();
    Store::open(&database).await.unwrap().close().await;
    let program = Program::start(&server.url());
    let address = program.address.clone();
    let load = Load::start(&address, 3);
    load.answers(3).await;
    assert_eq!(get(&address, "/healthz").await, (200, "{\"status\":\"ok\"}".to_owned()));

    server.stop().unwrap();
    until("degraded", async || {
        let (status, body) = get(&address, "/healthz").await;
        assert_eq!(status, 200, "it lives: {body}");
        body.contains("\"degraded\"") && body.contains("\"database\":\"away\"")
    })
    .await;
    load.answers(6).await;
    assert_eq!(get(&address, "/readyz").await.0, 200, "the last good settings are enough to answer");
    assert_eq!(get(&address, "/v1/scenes/doc-qa").await.0, 200);

    server.start_again().unwrap();
    until("recovery", async || get(&address, "/healthz").await.1 == "{\"status\":\"ok\"}").await;
    load.answers(3).await;
    let store = Store::open(&database).await.unwrap();
    let settings = SceneSettings { xi: 0.2, ..store.scene("doc-qa").await.unwrap().settings };
    store.set_scene("doc-qa", &settings, "after the outage", Expected::Any, &ann()).await.unwrap();
    until("the change", async || get(&address, "/v1/scenes/doc-qa").await.1.contains("\"version\":2")).await;
    load.answers(3).await;
    let good = load.end().await;

    // The counts of all answers are written, also those of the outage.
    let today = now_ms() - now_ms().rem_euclid(DAY_MS);
    until("usage", async || {
        let used = store.usage_of_day(today).await.unwrap();
        used.first().is_some_and(|used| used.tenant == "default" && used.requests >= good)
    })
    .await;
    until("telemetry", async || {
        let rows = store.traffic(MINUTE_MS, today - DAY_MS, today + 2 * DAY_MS).await.unwrap();
        rows.iter().filter(|row| row.key.scene == "doc-qa").map(|row| row.sums.requests).sum::<u64>() >= good
    })
    .await;

    // As soon as there is a key, requests without one are refused.
    let new =
        NewKey { tenant: "default".into(), label: String::new(), scopes: Scopes::device(), expires_ms: None };
    let (key, secret) = store.create_key(&new, &ann()).await.unwrap();
    until("the key", async || get(&address, "/v1/scenes").await.0 == 401).await;
    assert_eq!(send(&address, "GET", "/v1/scenes", secret.reveal(), "").await.0, 200);
    let (status, body) = send(&address, "GET", "/v1/stats", secret.reveal(), "").await;
    assert_eq!(status, 403, "{body}");
    assert!(body.contains("lacks the scope `stats`"), "{body}");
    store.revoke_key(&key.id, Expected::Any, &ann()).await.unwrap();
    until("the revocation", async || send(&address, "GET", "/v1/scenes", secret.reveal(), "").await.0 == 401)
        .await;
    store.close().await;
    program.stop();
}
