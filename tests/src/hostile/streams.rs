//! Two tenants of one service, and readers that disconnect: what one tenant can learn about the other, and
//! what is left behind.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;
use uuid::Uuid;

/// A guard against hangs.
const HANG: Duration = Duration::from_secs(120);

/// Makes a form letter with a code near its beginning; `turn` makes the letters differ.
#[must_use]
pub fn form(turn: usize, code: u32) -> Value {
    let rest = "The harbour keeps a list of all ships. ".repeat(40);
    let text = format!("Form {turn}. The code of the safe is {code:05}. {rest}");
    json!({
        "protocol": 1, "request_id": Uuid::new_v4(), "scene": "doc-qa-full", "model": "default",
        "segments": [{ "role": "user", "text": text, "refine": false }], "assist_tokens": 1,
    })
}

/// What a caller learns from its answer.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Time to the first token.
    pub ttft: Duration,
    /// Prompt tokens that came from the cache, as the service reported.
    pub cached_tokens: u64,
}

/// Asks with this key and reads the answer to its end.
///
/// # Errors
/// Fails if the answer is not whole.
pub async fn look(server: SocketAddr, key: &str, question: &Value) -> anyhow::Result<Seen> {
    let begun = Instant::now();
    let mut stream = send(server, "POST /v1/assist", Some(key), &question.to_string()).await?;
    let begin = read_until(&mut stream, "event: first").await?;
    let ttft = begun.elapsed();
    let reply = begin + &rest(&mut stream).await?;
    let told = reply.split("cached_prefix_tokens\":").nth(1).and_then(|told| told.split([',', '}']).next());
    let cached_tokens = told.and_then(|told| told.parse().ok()).context("the end has no cached tokens")?;
    Ok(Seen { ttft, cached_tokens })
}

/// Asks for the longest answer allowed, to be kept for a reader that resumes, and disconnects at the first
/// token; returns the request's id. The sampling is so flat that the answer hardly ever ends by itself.
///
/// # Errors
/// Fails if the first token does not come.
pub async fn abandon(server: SocketAddr, seed: u64) -> anyhow::Result<Uuid> {
    let id = Uuid::new_v4();
    let question = json!({
        "protocol": 1, "request_id": id, "scene": "doc-qa-full", "model": "default", "resume": true,
        "segments": [{ "role": "user", "text": format!("Letter {seed}. Tell me all."), "refine": false }],
        "assist_tokens": 65_536, "sampling": { "temperature": 10, "seed": seed },
    });
    let mut stream = send(server, "POST /v1/assist", None, &question.to_string()).await?;
    read_until(&mut stream, "event: first").await?;
    Ok(id)
}

/// Asks about a long letter, to be kept for a reader that resumes, and gives the question up while the
/// service computes its prompt.
///
/// # Errors
/// Fails if the question is not taken, or its end is refused.
pub async fn give_up(server: SocketAddr, seed: u64, sentences: usize) -> anyhow::Result<()> {
    let id = Uuid::new_v4();
    let text =
        format!("Letter {seed} of long ago. {}", "The harbour keeps a list of all ships. ".repeat(sentences));
    let question = json!({
        "protocol": 1, "request_id": id, "scene": "doc-qa-full", "model": "default", "resume": true,
        "segments": [{ "role": "user", "text": text, "refine": false }], "assist_tokens": 512,
    });
    let asked = send(server, "POST /v1/assist", None, &question.to_string()).await?;
    figures_when(server, |figures| figures["slots_used"].as_u64() > Some(0)).await?;
    drop(asked);
    let mut ended = send(server, &format!("DELETE /v1/assist/{id}"), None, "").await?;
    let reply = rest(&mut ended).await?;
    ensure!(reply.starts_with("HTTP/1.1 204"), "the end is refused: {reply}");
    Ok(())
}

/// Returns the service's statistics.
///
/// # Errors
/// Fails if there is no reply.
pub async fn figures(server: SocketAddr) -> anyhow::Result<Value> {
    let mut stream = send(server, "GET /v1/stats", None, "").await?;
    let reply = rest(&mut stream).await?;
    let body = reply.split("\r\n\r\n").nth(1).context("the reply has no body")?;
    serde_json::from_str(body).with_context(|| format!("read `{body}`"))
}

/// Waits until `so` is true for the statistics.
///
/// # Errors
/// Fails if that does not happen in time.
pub async fn figures_when(server: SocketAddr, so: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
    let begun = Instant::now();
    loop {
        let now = figures(server).await?;
        if so(&now) {
            return Ok(now);
        }
        if begun.elapsed() > HANG {
            bail!("the figures stay {now}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Sends a request, and returns the connection with its reply unread.
pub(super) async fn send(
    server: SocketAddr,
    route: &str,
    key: Option<&str>,
    body: &str,
) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(server).await.context("connect")?;
    let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    let head = format!(
        "{route} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n{key}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.context("send the request")?;
    Ok(stream)
}

/// Reads until `text` has come; returns what was read.
async fn read_until(stream: &mut TcpStream, text: &str) -> anyhow::Result<String> {
    let mut read = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&read).contains(text) {
            if stream.read_buf(&mut read).await.context("read the reply")? == 0 {
                bail!("the reply ends without `{text}`: {}", String::from_utf8_lossy(&read));
            }
        }
        Ok(())
    };
    tokio::time::timeout(HANG, reading).await.context("the reply does not go on")??;
    Ok(String::from_utf8_lossy(&read).into_owned())
}

pub(super) async fn rest(stream: &mut TcpStream) -> anyhow::Result<String> {
    let mut read = Vec::new();
    let reading = stream.read_to_end(&mut read);
    tokio::time::timeout(HANG, reading).await.context("the reply does not end")?.context("read the reply")?;
    Ok(String::from_utf8_lossy(&read).into_owned())
}
