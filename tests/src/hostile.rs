//! Hostile clients, and a well-behaved neighbour, for the suite `hostile` and the bench of the same name.
//!
//! Every attack uses raw sockets with its own loopback addresses, so that limits by address hit the attack
//! and not the neighbour. What always holds: an attack ends when the server cuts it off, and reports how long
//! that took.

pub mod bodies;
pub mod cancel;
pub mod documents;
pub mod logins;
pub mod quota;
pub mod readers;
pub mod streams;
pub mod tenants;

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, bail};
use flate2::{Compression, write::GzEncoder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

/// A guard against hangs.
const HANG: Duration = Duration::from_secs(120);
/// Time between two bytes of a slow sender.
const TRICKLE: Duration = Duration::from_secs(1);
/// Size of the receive buffer of a client that never reads.
const SMALL_BUFFER: u32 = 4096;

/// One way to misuse a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attack {
    /// Connects and sends nothing.
    Idle,
    /// Sends one byte of a request head each second.
    SlowHead,
    /// Sends a head, then one byte of the body each second.
    SlowBody,
    /// Sends requests without end and never reads a reply.
    NeverReads,
    /// Sends two lengths for one body.
    TwoLengths,
    /// Sends a chunked body that never ends.
    EndlessBody,
    /// Sends a small gzip body that inflates to a very large one.
    GzipBomb,
}

impl Attack {
    /// All attacks.
    pub const ALL: [Attack; 7] = [
        Attack::Idle,
        Attack::SlowHead,
        Attack::SlowBody,
        Attack::NeverReads,
        Attack::TwoLengths,
        Attack::EndlessBody,
        Attack::GzipBomb,
    ];

    /// Returns the status that the server may answer before it closes; `None` if it closes without an answer.
    #[must_use]
    pub fn status(self) -> Option<&'static str> {
        match self {
            Attack::Idle | Attack::SlowHead | Attack::NeverReads => None,
            Attack::SlowBody => Some("408"),
            Attack::TwoLengths => Some("400"),
            Attack::EndlessBody | Attack::GzipBomb => Some("413"),
        }
    }

    /// Attacks `server` from the loopback address `127.0.0.host` until it is cut off.
    ///
    /// # Errors
    /// Fails if it was not cut off, or got an answer that it should not get.
    pub async fn run(self, server: SocketAddr, host: u8) -> anyhow::Result<Cut> {
        let begun = Instant::now();
        let stream = connect(server, host, self).await.with_context(|| format!("{self:?}: connect"))?;
        let reply = tokio::time::timeout(HANG, self.play(stream))
            .await
            .with_context(|| format!("{self:?} was not cut off within {} s", HANG.as_secs()))?;
        let cut = Cut { after: begun.elapsed() };
        match (self.status(), reply.split(' ').nth(1)) {
            (_, None) => Ok(cut),
            (Some(want), Some(have)) if want == have => Ok(cut),
            // Its requests are answered as far as the replies fit.
            (None, Some("200")) if self == Attack::NeverReads => Ok(cut),
            (_, Some(have)) => bail!("{self:?} was answered with {have}: {reply}"),
        }
    }

    /// Runs the attack until the connection ends; returns the server's reply.
    async fn play(self, stream: TcpStream) -> String {
        let (mut reader, mut writer) = stream.into_split();
        let sending = async {
            match self {
                Attack::Idle => std::future::pending().await,
                Attack::SlowHead => {
                    trickle(&mut writer, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ").await
                }
                Attack::SlowBody => trickle(&mut writer, &head("content-length: 100000\r\n")).await,
                Attack::NeverReads => {
                    repeat(&mut writer, b"GET /v1/scenes HTTP/1.1\r\nhost: localhost\r\n\r\n").await
                }
                Attack::TwoLengths => {
                    let fields = head("transfer-encoding: chunked\r\ncontent-length: 3\r\n");
                    let _ = writer.write_all(&fields).await;
                    std::future::pending().await
                }
                Attack::EndlessBody => {
                    let _ = writer.write_all(&head("transfer-encoding: chunked\r\n")).await;
                    repeat(&mut writer, format!("4000\r\n{}\r\n", " ".repeat(0x4000)).as_bytes()).await;
                }
                Attack::GzipBomb => {
                    let bomb = bomb();
                    let fields = format!("content-encoding: gzip\r\ncontent-length: {}\r\n", bomb.len());
                    let _ = writer.write_all(&[head(&fields).as_slice(), bomb].concat()).await;
                    std::future::pending().await
                }
            }
        };
        if self == Attack::NeverReads {
            // It ends when it cannot send any more.
            sending.await;
            return String::new();
        }
        let mut reply = Vec::new();
        tokio::select! {
            _ = reader.read_to_end(&mut reply) => (),
            () = async { sending.await; std::future::pending().await } => (),
        }
        String::from_utf8_lossy(&reply).into_owned()
    }
}

/// The end of an attack.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// How long the attack lasted.
    pub after: Duration,
}

/// Returns a gzip body that inflates a thousandfold, to 30 MiB of blanks.
fn bomb() -> &'static [u8] {
    static BOMB: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&vec![b' '; BOMB_BYTES]).expect("writing to memory cannot fail");
        packed.finish().expect("writing to memory cannot fail")
    });
    &BOMB
}

/// Inflated size of the gzip body.
const BOMB_BYTES: usize = 30 << 20;

fn head(fields: &str) -> Vec<u8> {
    format!("POST /v1/assist HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n").into_bytes()
}

async fn connect(server: SocketAddr, host: u8, attack: Attack) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    // On systems other than Linux, only 127.0.0.1 works without setup.
    if cfg!(target_os = "linux") {
        socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, host)), 0))?;
    }
    if attack == Attack::NeverReads {
        socket.set_recv_buffer_size(SMALL_BUFFER)?;
    }
    socket.connect(server).await
}

/// Sends the beginning, then one byte a second, until the connection fails.
async fn trickle(writer: &mut (impl AsyncWriteExt + Unpin), begin: &[u8]) {
    let mut sent = writer.write_all(begin).await;
    while sent.is_ok() {
        tokio::time::sleep(TRICKLE).await;
        sent = writer.write_all(b"x").await;
    }
}

/// Sends the same bytes again and again until the connection fails.
async fn repeat(writer: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8]) {
    while writer.write_all(bytes).await.is_ok() {}
}

/// The result of one well-behaved request.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    /// Time to the first token.
    pub ttft: Duration,
}

/// Asks for a short answer to a letter of this many sentences (about 9 tokens each), and waits for its end.
/// `turn` makes the prompts differ.
///
/// # Errors
/// Fails if the answer is not whole.
pub async fn neighbour(server: SocketAddr, turn: usize, sentences: usize) -> anyhow::Result<Served> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(server).await.context("connect")?;
    let text = format!("Letter {turn}. {}", "The harbour keeps a list of all ships. ".repeat(sentences));
    let body = serde_json::json!({
        "protocol": 1, "request_id": uuid::Uuid::new_v4(), "scene": "doc-qa-full", "model": "default",
        "segments": [{ "role": "user", "text": text, "refine": false }], "assist_tokens": 2,
    })
    .to_string();
    let head = format!(
        "POST /v1/assist HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.context("send the request")?;
    let (mut reply, mut ttft) = (Vec::new(), None);
    let reading = async {
        while stream.read_buf(&mut reply).await.context("read the reply")? > 0 {
            if ttft.is_none() && contains(&reply, b"event: first") {
                ttft = Some(begun.elapsed());
            }
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(HANG, reading).await.context("the reply does not end")??;
    match ttft {
        Some(ttft) if contains(&reply, b"event: end") => Ok(Served { ttft }),
        _ => bail!("not a whole answer: {}", String::from_utf8_lossy(&reply)),
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
