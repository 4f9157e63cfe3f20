//! A recording cloud: it stores every byte that it receives and repeats each placeholder in its answer. So
//! the device restores the values, and its application sends them again as history. It uses the real protocol
//! over real HTTP.

use std::io::Read as _;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail};
use baton_protocol::AssistRequest;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Maximum length of a request in bytes; a conversation of the bench has far fewer.
const REQUEST_BYTES_MAX: usize = 4 << 20;

/// A listening recorder.
#[derive(Debug)]
pub(super) struct Recorder {
    url: String,
    seen: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Recorder {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("bind the recorder")?;
        let url = format!("http://{}", listener.local_addr().context("read the recorder's address")?);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let log = Arc::clone(&log);
                tokio::spawn(async move {
                    if let Err(err) = serve(socket, &log).await {
                        eprintln!("recorder: {err:#}");
                    }
                });
            }
        });
        Ok(Self { url, seen, task })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the requests since the last call: head and decompressed body of each, and its strings without
    /// JSON escapes.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn serve(mut socket: TcpStream, log: &Mutex<Vec<String>>) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
        if socket.read_buf(&mut bytes).await.context("read a head")? == 0 || bytes.len() > REQUEST_BYTES_MAX {
            return Ok(());
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let header = |name: &str| {
        head.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.trim())
    };
    let length: usize =
        header("content-length").map_or(Ok(0), str::parse).context("a length that is no number")?;
    if length > REQUEST_BYTES_MAX {
        bail!("a request of {length} bytes");
    }
    while bytes.len() < head_end + length {
        if socket.read_buf(&mut bytes).await.context("read a body")? == 0 {
            bail!("a body ended early");
        }
    }
    let mut body = bytes[head_end..head_end + length].to_vec();
    if header("content-encoding") == Some("gzip") {
        let mut inflated = Vec::new();
        flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut inflated).context("inflate a body")?;
        body = inflated;
    }
    let response = if head.starts_with("POST ") {
        let request = AssistRequest::parse(&body).context("a request of another form")?;
        // JSON escapes would hide a value from a search in the bytes.
        let value: serde_json::Value = serde_json::from_slice(&body).context("a body that is no JSON")?;
        keep(log, format!("{head}\n{}\n{}", String::from_utf8_lossy(&body), plain(&value)));
        answer(&request)
    } else {
        keep(log, head.clone());
        "HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned()
    };
    socket.write_all(response.as_bytes()).await.context("answer")?;
    socket.shutdown().await.context("close")
}

fn keep(log: &Mutex<Vec<String>>, text: String) {
    log.lock().unwrap_or_else(PoisonError::into_inner).push(text);
}

/// Returns every string of a JSON value, one per line.
fn plain(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => format!("{text}\n"),
        serde_json::Value::Array(items) => items.iter().map(plain).collect(),
        serde_json::Value::Object(fields) => {
            fields.iter().map(|(name, value)| format!("{name}\n{}", plain(value))).collect()
        }
        _ => String::new(),
    }
}

/// Makes an answer stream that contains every placeholder of the prompt, in pieces that split the
/// placeholders.
fn answer(request: &AssistRequest) -> String {
    let mut named: Vec<&str> = Vec::new();
    for segment in &request.segments {
        for part in segment.text.split('[').skip(1) {
            let name = part.split(']').next().unwrap_or_default();
            let is_placeholder = name.split_once('_').is_some_and(|(kind, number)| {
                kind.bytes().all(|b| b.is_ascii_uppercase()) && number.bytes().all(|b| b.is_ascii_digit())
            });
            if is_placeholder && !named.contains(&name) {
                named.push(name);
            }
        }
    }
    let mut pieces = vec!["You said".to_owned()];
    for name in named {
        let (kind, number) = name.split_at(name.len() / 2);
        pieces.extend([" [".to_owned(), kind.to_owned(), format!("{number}]"), ",".to_owned()]);
    }
    pieces.push(" that is all.".to_owned());
    let mut body =
        String::from("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n");
    let count = pieces.len();
    for (index, text) in pieces.into_iter().enumerate() {
        let event = if index == 0 {
            let first = json!({
                "protocol": baton_protocol::PROTOCOL_VERSION, "scene_version": 1, "index": 0, "id": 1, "text": text,
                "assist_tokens": count, "assist_bound_by": "tau", "tau_ms": 100,
            });
            format!("event: first\ndata: {first}\n\n")
        } else {
            format!("event: token\ndata: {}\n\n", json!({ "index": index, "id": 1, "text": text }))
        };
        body.push_str(&event);
    }
    body.push_str(&format!(
        "event: end\ndata: {}\n\n",
        json!({ "reason": "stop", "usage": { "completion_tokens": count } })
    ));
    body
}
