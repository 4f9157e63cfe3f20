//! A server of files on the loopback, to the byte: it stops in the middle of a body, cuts it, or answers like
//! an old server. It plays the hub, its store behind a redirect, and the package index.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

/// Bytes that are written at once.
const PIECE: usize = 64 << 10;

/// What an address answers.
#[derive(Debug, Clone)]
pub(crate) enum Page {
    /// A text with its content type.
    Text(&'static str, String),
    /// A file.
    File(Served),
    /// Another address.
    Redirect(String),
    /// A page for those with this token; others get 401 and this error code.
    Private(&'static str, &'static str, Box<Page>),
    /// A status and an error code.
    Refusal(u16, &'static str),
}

/// A file that is served.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) bytes: Arc<Vec<u8>>,
    pub(crate) etag: Option<String>,
    /// Whether parts of it can be asked for.
    pub(crate) ranges: bool,
}

impl Served {
    pub(crate) fn new(bytes: &Arc<Vec<u8>>) -> Self {
        Self { bytes: Arc::clone(bytes), etag: Some("\"1\"".to_owned()), ranges: true }
    }
}

/// Where bodies of files end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// At their end.
    None,
    /// Before this byte of the file, until the limit changes.
    Hold(u64),
    /// The same, for files whose address contains the text.
    HoldIn(&'static str, u64),
    /// After so many bytes: then the connection is closed.
    Cut(u64),
}

/// A request for a file, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) path: String,
    /// The first byte that was asked for, if a range was.
    pub(crate) from: Option<u64>,
    pub(crate) if_range: Option<String>,
    pub(crate) token: Option<String>,
}

#[derive(Debug)]
struct Shared {
    pages: Mutex<BTreeMap<String, Page>>,
    asked: Mutex<Vec<Asked>>,
    limit: watch::Sender<Limit>,
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen on the loopback");
        let address = listener.local_addr().expect("a listener has an address");
        let limit = watch::Sender::new(Limit::None);
        let shared = Arc::new(Shared { pages: Mutex::default(), asked: Mutex::default(), limit });
        let served = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&served);
                // A client may be killed at any byte, so a failed write is no failure of a test.
                tokio::spawn(async move { answer(stream, &shared).await });
            }
        });
        Self { address, shared, task }
    }

    /// Returns the server's address.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns its address by another name: for a client, another origin.
    pub(crate) fn other_url(&self) -> String {
        format!("http://localhost:{}", self.address.port())
    }

    pub(crate) fn serve(&self, path: &str, page: Page) {
        self.shared.pages.lock().expect("pages").insert(path.to_owned(), page);
    }

    pub(crate) fn limit(&self, limit: Limit) {
        self.shared.limit.send_replace(limit);
    }

    /// Returns the requests for files so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().expect("requests").clone()
    }
}

/// A request's path and headers.
struct Request {
    path: String,
    headers: BTreeMap<String, String>,
}

impl Request {
    async fn read(stream: &mut TcpStream) -> Option<Self> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).ok()?;
        let mut lines = head.lines();
        let path = lines.next()?.split(' ').nth(1)?;
        let path = path.split('?').next()?.to_owned();
        let pair = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        Some(Self { path, headers: lines.filter_map(pair).collect() })
    }

    fn header(&self, name: &str) -> Option<String> {
        self.headers.get(name).cloned()
    }

    fn from(&self) -> Option<u64> {
        self.headers.get("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

async fn answer(mut stream: TcpStream, shared: &Shared) -> Option<()> {
    let request = Request::read(&mut stream).await?;
    let found = shared.pages.lock().expect("pages").get(&request.path).cloned();
    let token = request.header("authorization");
    let mut page = found.unwrap_or(Page::Refusal(404, "EntryNotFound"));
    while let Page::Private(wanted, code, behind) = page {
        let has = token.as_deref() == Some(&format!("Bearer {wanted}"));
        page = if has { *behind } else { Page::Refusal(401, code) };
    }
    match page {
        Page::Text(kind, text) => {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}", text.len());
            write(&mut stream, &head, text.as_bytes()).await
        }
        Page::Redirect(to) => write(&mut stream, &format!("HTTP/1.1 302 Found\r\nlocation: {to}"), b"").await,
        Page::Refusal(status, code) => {
            let head = format!("HTTP/1.1 {status} Refused\r\nx-error-code: {code}\r\ncontent-length: 0");
            write(&mut stream, &head, b"").await
        }
        Page::File(file) => {
            let asked = Asked {
                path: request.path.clone(),
                from: request.from(),
                if_range: request.header("if-range"),
                token,
            };
            shared.asked.lock().expect("requests").push(asked);
            send(stream, &file, &request, shared.limit.subscribe()).await
        }
        Page::Private(..) => unreachable!("the loop above leaves no such page"),
    }
}

async fn write(stream: &mut TcpStream, head: &str, body: &[u8]) -> Option<()> {
    stream.write_all(format!("{head}\r\nconnection: close\r\n\r\n").as_bytes()).await.ok()?;
    stream.write_all(body).await.ok()?;
    stream.shutdown().await.ok()
}

async fn send(
    mut stream: TcpStream,
    file: &Served,
    request: &Request,
    mut limit: watch::Receiver<Limit>,
) -> Option<()> {
    let len = file.bytes.len() as u64;
    let same = request.header("if-range").is_none_or(|tag| Some(tag) == file.etag);
    let from = request.from().filter(|from| file.ranges && same && *from < len).unwrap_or(0);
    let mut head = if from > 0 {
        format!("HTTP/1.1 206 Partial Content\r\ncontent-range: bytes {from}-{}/{len}", len - 1)
    } else {
        "HTTP/1.1 200 OK".to_owned()
    };
    if let Some(etag) = &file.etag {
        head = format!("{head}\r\netag: {etag}");
    }
    head = format!("{head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", len - from);
    stream.write_all(head.as_bytes()).await.ok()?;
    let mut at = from;
    while at < len {
        let now = *limit.borrow_and_update();
        let until = match now {
            Limit::None => len,
            Limit::HoldIn(text, _) if !request.path.contains(text) => len,
            Limit::Hold(hold) | Limit::HoldIn(_, hold) => hold.clamp(from, len),
            Limit::Cut(after) => (from + after).min(len),
        };
        if at < until {
            let end = until.min(at + PIECE as u64);
            stream.write_all(&file.bytes[at as usize..end as usize]).await.ok()?;
            at = end;
        } else if matches!(now, Limit::Cut(_)) {
            return stream.shutdown().await.ok();
        } else {
            limit.changed().await.ok()?;
        }
    }
    stream.shutdown().await.ok()
}
