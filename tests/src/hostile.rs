//! Clients that mean harm, and a neighbour who does not: for the suite `hostile` and the bench of the same name.
//!
//! Every attack is over raw sockets of its own addresses of the loopback network, so that limits by address meet them and
//! not the neighbour. Always: an attack ends when the server has cut it off, and says how long that took.

pub mod bodies;
pub mod logins;
pub mod quota;
pub mod streams;

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
/// Between two bytes of a slow sender.
const TRICKLE: Duration = Duration::from_secs(1);
/// What a reader that never reads offers the server to send into.
const SMALL_BUFFER: u32 = 4096;

/// One way to misuse a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attack {
    /// Connects and says nothing.
    Idle,
    /// One byte of a head a second.
    SlowHead,
    /// A head, then one byte of the body a second.
    SlowBody,
    /// Asks again and again and never reads a reply.
    NeverReads,
    /// Two lengths for one body.
    TwoLengths,
    /// A body that never ends, in chunks.
    EndlessBody,
    /// A small gzip body that inflates to very much.
    GzipBomb,
}

impl Attack {
    /// All of them.
    pub const ALL: [Attack; 7] = [
        Attack::Idle,
        Attack::SlowHead,
        Attack::SlowBody,
        Attack::NeverReads,
        Attack::TwoLengths,
        Attack::EndlessBody,
        Attack::GzipBomb,
    ];

    /// The status that the server may answer before it closes; none: it closes without a word.
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
    /// It was not cut off, or answered with what it should not.
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
            // What it asked for is answered, as far as it fits.
            (None, Some("200")) if self == Attack::NeverReads => Ok(cut),
            (_, Some(have)) => bail!("{self:?} was answered with {have}: {reply}"),
        }
    }

    /// Does its worst until the connection ends; gives what the server said.
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
            // Its end is that it cannot send any more.
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
    /// How long it lasted.
    pub after: Duration,
}

/// A gzip body that inflates a thousandfold, to 30 MiB of blanks.
fn bomb() -> &'static [u8] {
    static BOMB: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&vec![b' '; BOMB_BYTES]).expect("writing to memory cannot fail");
        packed.finish().expect("writing to memory cannot fail")
    });
    &BOMB
}

/// What a bomb inflates to.
const BOMB_BYTES: usize = 30 << 20;

fn head(fields: &str) -> Vec<u8> {
    format!("POST /v1/assist HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n").into_bytes()
}

async fn connect(server: SocketAddr, host: u8, attack: Attack) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    // Elsewhere than on Linux only 127.0.0.1 is there unasked.
    if cfg!(target_os = "linux") {
        socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, host)), 0))?;
    }
    if attack == Attack::NeverReads {
        socket.set_recv_buffer_size(SMALL_BUFFER)?;
    }
    socket.connect(server).await
}

/// Sends the beginning, then one byte a second, until nobody takes it.
async fn trickle(writer: &mut (impl AsyncWriteExt + Unpin), begin: &[u8]) {
    let mut sent = writer.write_all(begin).await;
    while sent.is_ok() {
        tokio::time::sleep(TRICKLE).await;
        sent = writer.write_all(b"x").await;
    }
}

/// Sends the same again and again until nobody takes it.
async fn repeat(writer: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8]) {
    while writer.write_all(bytes).await.is_ok() {}
}

/// One request of somebody who behaves.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    /// Until the first token was here.
    pub ttft: Duration,
}

/// Asks for a short answer to a letter of so many sentences (some 9 tokens each) and waits for its end; `turn` makes
/// prompts differ.
///
/// # Errors
/// Whatever keeps the answer from being whole.
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
