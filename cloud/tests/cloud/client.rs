//! A server on a free port of the loopback interface, and a small HTTP client that shows every byte.

use std::net::SocketAddr;
use std::time::Duration;

use baton_cloud::api::{self, Access, ApiLimits};
use baton_cloud::service::{CloudService, ServiceOptions, start};
use baton_edge::{HttpLimits, Phase};
use baton_protocol::AssistEvent;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::world::{options, scenes, setup};

/// Guards against hangs; no test depends on it otherwise.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// A running server; its thread and tasks end with it.
pub(crate) struct Server {
    pub address: SocketAddr,
    pub service: CloudService,
    pub phase: watch::Sender<Phase>,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start() -> Server {
        Server::with(options(), None, HttpLimits::default(), ApiLimits::default()).await
    }

    pub(crate) async fn with(
        options: ServiceOptions,
        key: Option<&str>,
        http_limits: HttpLimits,
        api_limits: ApiLimits,
    ) -> Server {
        Server::with_access(options, Access::with_static_key(key), http_limits, api_limits).await
    }

    pub(crate) async fn with_access(
        options: ServiceOptions,
        access: Access,
        http_limits: HttpLimits,
        api_limits: ApiLimits,
    ) -> Server {
        let (service, worker) = CloudService::new(setup(), scenes(), options).unwrap();
        start(worker).unwrap();
        Server::over(service, access, http_limits, api_limits).await
    }

    /// Serves over a service whose hosts run.
    pub(crate) async fn over(
        service: CloudService,
        access: Access,
        http_limits: HttpLimits,
        api_limits: ApiLimits,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // No progress frames unless a test asks for them, so that a slow machine does not change replies.
        let told = api_limits.progress_every != ApiLimits::default().progress_every;
        let progress_every = if told { api_limits.progress_every } else { HANG };
        let api_limits = ApiLimits { progress_every, ..api_limits };
        let app = api::router(service.clone(), access, None, api_limits);
        let (phase, phases) = watch::channel(Phase::Serving);
        let ending = service.clone();
        let server = baton_edge::Server::plain(listener, app, http_limits);
        let task = tokio::spawn(baton_edge::serve(server, phases, move || ending.stop()));
        Server { address, service, phase, task }
    }

    /// Does what the first signal does.
    pub(crate) fn drain(&self) {
        self.service.drain();
        self.phase.send_if_modified(|phase| {
            let before = std::mem::replace(phase, (*phase).max(Phase::Draining));
            before != *phase
        });
    }

    /// Asks the server to stop and waits until it has.
    pub(crate) async fn stop(mut self) {
        self.drain();
        tokio::time::timeout(HANG, &mut self.task).await.expect("the server stops").unwrap();
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], b"").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes()).await
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        self.open(method, path, headers, body).await.read_all().await
    }

    /// Sends a request, and returns the reply unread.
    pub(crate) async fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Open {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: cloud\r\nconnection: close\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        stream.write_all(head.as_bytes()).await.unwrap();
        // A server may refuse before it has read everything. Its reply counts, not the failure to send the
        // rest.
        let _ = stream.write_all(body).await;
        Open { stream, bytes: Vec::new() }
    }

    /// Waits until no slot is in use and no request waits.
    pub(crate) async fn idle(&self) {
        let idle = async {
            while self.service.stats().running + self.service.stats().waiting > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(HANG, idle).await.expect("the slot is freed");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.service.stop();
    }
}

/// A reply that is still arriving.
pub(crate) struct Open {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Open {
    /// Reads until `text` has arrived.
    pub(crate) async fn until(&mut self, text: &str) {
        let read = async {
            while !self.text().contains(text) {
                let count = self.stream.read_buf(&mut self.bytes).await.unwrap();
                assert!(count > 0, "the reply ends without `{text}`: {}", self.text());
            }
        };
        tokio::time::timeout(HANG, read).await.expect("a reply");
    }

    /// Returns what has arrived so far, as it is on the wire.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// Returns the status and the bytes of the body, which is not chunked.
    pub(crate) async fn read_bytes(mut self) -> (u16, Vec<u8>) {
        let read = self.stream.read_to_end(&mut self.bytes);
        let _ = tokio::time::timeout(HANG, read).await.expect("a reply");
        let head = self.bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
        (Reply::parse(&self.bytes).status, self.bytes.split_off(head + 4))
    }

    pub(crate) async fn read_all(mut self) -> Reply {
        let read = self.stream.read_to_end(&mut self.bytes);
        // A refused upload ends with a reset after the reply.
        let _ = tokio::time::timeout(HANG, read).await.expect("a reply");
        Reply::parse(&self.bytes)
    }
}

/// A whole reply.
#[derive(Debug)]
pub(crate) struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    /// Parts of the body as they were sent: each chunk, or the whole.
    pub chunks: Vec<String>,
}

impl Reply {
    fn parse(bytes: &[u8]) -> Reply {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let chunks = if chunked { chunks(bytes) } else { vec![body.to_owned()] };
        Reply { status, headers, chunks }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn body(&self) -> String {
        self.chunks.concat()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body()).unwrap_or_else(|err| panic!("{err}: {self:?}"))
    }

    /// Returns the assist events of the body.
    #[track_caller]
    pub(crate) fn events(&self) -> Vec<AssistEvent> {
        frames(&self.body())
            .iter()
            .map(|frame| {
                let field =
                    |name: &str| frame.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
                let event = AssistEvent::parse(field("event: "), field("data: ")).unwrap();
                let id = event.index().map(|index| index.to_string()).unwrap_or_default();
                assert_eq!(field("id: "), id, "{frame}");
                event
            })
            .collect()
    }

    /// Returns the JSON of every `data:` line; `[DONE]` must be the last and is left out.
    #[track_caller]
    pub(crate) fn chat_chunks(&self) -> Vec<Value> {
        let body = self.body();
        let mut data: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{body}");
        data.into_iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Returns the frames of an event stream, without comments.
pub(crate) fn frames(body: &str) -> Vec<String> {
    body.split("\n\n")
        .filter(|frame| !frame.is_empty() && !frame.starts_with(':'))
        .map(str::to_owned)
        .collect()
}

fn chunks(bytes: &[u8]) -> Vec<String> {
    let start = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let mut rest = &bytes[start..];
    let mut chunks = Vec::new();
    while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
        let len = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if len == 0 {
            break;
        }
        let Some(data) = rest.get(line + 2..line + 2 + len) else { break };
        chunks.push(String::from_utf8_lossy(data).into_owned());
        rest = rest.get(line + 4 + len..).unwrap_or_default();
    }
    chunks
}
