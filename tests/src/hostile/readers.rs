//! An agent that is given documents, and the child processes in which it reads them; on Linux only.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use baton_device::documents::confined::COMMAND;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::Instant;

use super::HANG;
use super::bodies::{Reply, reply};
use super::documents::Document;
use crate::process::{AgentProcess, models_folder, without_gpu};

/// Time between two looks at the child processes.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A running `baton serve` with the demo model and no cloud.
#[derive(Debug)]
pub struct Agent {
    /// The process.
    pub process: AgentProcess,
    server: SocketAddr,
    _folder: TempDir,
}

impl Agent {
    /// Starts this program.
    ///
    /// # Errors
    /// Fails if it does not start.
    pub async fn start(program: &Path) -> anyhow::Result<Agent> {
        let folder = tempfile::tempdir().context("make a folder")?;
        let mut command = std::process::Command::new(program);
        without_gpu(&mut command);
        let mut command = Command::from(command);
        command.args(["serve", "--listen", "127.0.0.1:0", "--no-cloud"]);
        command.arg("--model").arg(models_folder().join("demo-device.gguf"));
        command.arg("--config-dir").arg(folder.path()).arg("--models-dir").arg(folder.path().join("models"));
        let process = AgentProcess::start(&mut command).await?;
        let server = process.url().trim_start_matches("http://").trim_end_matches('/').parse();
        Ok(Agent { server: server.context("read the agent's address")?, process, _folder: folder })
    }

    /// Returns the address on which it listens.
    #[must_use]
    pub fn server(&self) -> SocketAddr {
        self.server
    }

    /// Has it read a document.
    ///
    /// # Errors
    /// Fails if there is no reply.
    pub async fn read(&self, document: &Document) -> anyhow::Result<Reply> {
        reply(self.server, "/document", request(document).as_bytes(), false).await
    }

    /// Begins to have a document read; the result is the client's connection.
    ///
    /// # Errors
    /// Fails if the request cannot be sent.
    pub async fn begin(&self, document: &Document) -> anyhow::Result<TcpStream> {
        let body = request(document);
        let head = format!(
            "POST /document HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(self.server).await.context("connect")?;
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.context("send a document")?;
        Ok(stream)
    }

    /// Waits until so many of its children read; returns their ids.
    ///
    /// # Errors
    /// Fails if that does not come.
    pub async fn children(&self, count: usize) -> anyhow::Result<Vec<u32>> {
        children_when(self.process.pid()?, count).await
    }
}

/// Asks a server for a short answer and reads it to its end.
///
/// # Errors
/// Fails if there is none.
pub async fn ask(server: SocketAddr) -> anyhow::Result<()> {
    let message = json!({ "role": "user", "content": "What is a river?" });
    let question = json!({ "max_tokens": 16, "messages": [message] }).to_string();
    let answer = reply(server, "/v1/chat/completions", question.as_bytes(), false).await?;
    ensure!(answer.status == 200, "no answer: {}", answer.text);
    Ok(())
}

/// Returns the body of a request for the text of a document, as the agent's page sends it.
fn request(document: &Document) -> String {
    json!({ "name": document.name, "data": STANDARD.encode(&document.bytes) }).to_string()
}

/// Waits until so many children of a program read a document; returns their ids.
///
/// # Errors
/// Fails if that does not come.
pub async fn children_when(parent: u32, count: usize) -> anyhow::Result<Vec<u32>> {
    let begun = Instant::now();
    loop {
        let found = children(parent);
        if found.len() == count {
            return Ok(found);
        }
        if begun.elapsed() > HANG {
            bail!("{} children read, not {count}", found.len());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Returns the ids of the running children of a program that read a document.
fn children(parent: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{parent}/task")) else { return Vec::new() };
    let lists = threads.flatten().map(|thread| std::fs::read_to_string(thread.path().join("children")));
    let lists: Vec<String> = lists.flatten().collect();
    let all = lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|id| id.parse().ok());
    all.filter(|&id| reads(id)).collect()
}

/// Whether a process is one that reads a document. A child has the memory and the command line of its parent
/// until it runs its own program; one that has ended has neither.
#[must_use]
pub fn reads(process: u32) -> bool {
    let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    line.split(|&byte| byte == 0).nth(1) == Some(COMMAND.as_bytes())
}

/// Looks at the memory of a program's children until it is ended.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<BTreeMap<u32, u64>>,
}

impl Watch {
    /// Begins to look at the children of this process.
    #[must_use]
    pub fn begin(parent: u32) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let look = move || {
            let mut peaks = BTreeMap::new();
            while !stopped.load(Ordering::Relaxed) {
                for child in children(parent) {
                    let peak: &mut u64 = peaks.entry(child).or_default();
                    *peak = peak_bytes(child).unwrap_or_default().max(*peak);
                }
                std::thread::sleep(LOOK_EVERY);
            }
            peaks
        };
        Watch { stop, thread: std::thread::spawn(look) }
    }

    /// Returns how many children were seen, and the peak memory of the largest in bytes.
    ///
    /// # Errors
    /// Fails if the watching thread has failed.
    pub fn end(self) -> anyhow::Result<(usize, u64)> {
        self.stop.store(true, Ordering::Relaxed);
        let peaks = self.thread.join().ok().context("the watching thread has failed")?;
        Ok((peaks.len(), peaks.into_values().max().unwrap_or_default()))
    }
}

fn peak_bytes(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib * 1024)
}
