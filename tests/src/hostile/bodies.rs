//! Request bodies that cost more than their length suggests, and the peak memory of a process.
//!
//! Each kind can be made at any length, so that a test may use the longest that a service allows. A parser
//! cannot refuse any of them at its first byte. What always holds: the same kind and length give the same
//! bytes.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use flate2::{Compression, write::GzEncoder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A guard against hangs.
const HANG: Duration = Duration::from_secs(120);

/// One way to make a request expensive.
#[derive(Debug, Clone, Copy)]
pub struct Bulk {
    /// Its name, for messages.
    pub name: &'static str,
    /// The path to which it is sent.
    pub path: &'static str,
    /// Two parts before the repeated one, the repeated part, and the part after it. In the repeated part `~`
    /// stands for three letters that differ each time.
    body: [&'static [u8]; 4],
}

const ASSIST: &str = "/v1/assist";
const CHAT: &str = "/v1/chat/completions";
const SEGMENTS: &[u8] =
    br#"{"protocol":1,"request_id":"00000000-0000-4000-8000-000000000000","scene":"doc-qa",
"model":"default","assist_tokens":1,"segments":["#;
const MESSAGES: &[u8] = br#"{"model":"default","max_tokens":1,"messages":["#;
const QUESTION: &[u8] =
    br#"{"model":"default","max_tokens":1,"messages":[{"role":"user","content":"Why?"}],"#;
const SCHEMA: &[u8] = br#"{"model":"default","max_tokens":1,"messages":[{"role":"user","content":"Why?"}],
"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object","properties":{"#;

/// Makes a kind with a repeated text in an assist request.
const fn text(name: &'static str, unit: &'static [u8]) -> Bulk {
    let open = br#"{"role":"user","refine":true,"text":""#;
    Bulk { name, path: ASSIST, body: [SEGMENTS, open, unit, br#""},{"role":"user","text":"Why?"}]}"#] }
}

const fn assist(name: &'static str, body: [&'static [u8]; 4]) -> Bulk {
    Bulk { name, path: ASSIST, body }
}

const fn chat(name: &'static str, body: [&'static [u8]; 4]) -> Bulk {
    Bulk { name, path: CHAT, body }
}

/// All kinds.
pub const BULKS: [Bulk; 27] = [
    text("one word", b"harbour~"),
    text("letters that merge", b"aaaaaaaaa~"),
    text("tiny sentences", b"~. a. b. c. d. "),
    text("line ends", br"\n\n\n\n\n\n\n\n\n~\n"),
    text("blanks", b"                              ~"),
    text("Chinese without a stop", "港口保存着所有船只的名单港口保存着~".as_bytes()),
    text("emoji", "😀🚢👩‍👩‍👧‍👦~".as_bytes()),
    text("escapes", br"\u0068\u0061\u0072\u0062~"),
    text("rare characters", "\u{85}ꙮ𒀀~".as_bytes()),
    text("bytes that are no text", b"\xff\xc0~"),
    assist("a field of the wrong type", [b"{", br#""protocol":""#, b"harbour~", br#""}"#]),
    assist("an unknown field", [b"{", b"\"", b"harbour~", br#"":1}"#]),
    assist(
        "segments",
        [SEGMENTS, b"", br#"{"role":"user","text":"~"},"#, br#"{"role":"user","text":"Why?"}]}"#],
    ),
    chat("a long chat", [MESSAGES, br#"{"role":"user","content":""#, b"harbour ~", br#""}]}"#]),
    chat(
        "messages",
        [MESSAGES, b"", br#"{"role":"user","content":"~"},"#, br#"{"role":"user","content":"Why?"}]}"#],
    ),
    chat(
        "parts of a message",
        [
            MESSAGES,
            br#"{"role":"user","content":["#,
            br#"{"type":"text","text":"~"},"#,
            br#"{"type":"text","text":"Why?"}]}]}"#,
        ],
    ),
    chat("empty lists", [QUESTION, br#""metadata":["#, b"[],", br#"["a"]]}"#]),
    chat("lists in lists", [QUESTION, br#""metadata":"#, b"[", b"1"]),
    chat(
        "tools",
        [
            QUESTION,
            br#""tools":["#,
            br#"{"type":"function","function":{"name":"~","parameters":{"type":"object"}}},"#,
            br#"{"type":"function","function":{"name":"last"}}]}"#,
        ],
    ),
    chat(
        "a tool with a long description",
        [
            QUESTION,
            br#""tools":[{"type":"function","function":{"name":"last","description":""#,
            b"<|end|> harbour ~",
            br#""}}]}"#,
        ],
    ),
    chat(
        "earlier calls",
        [
            MESSAGES,
            br#"{"role":"user","content":"Why?"},{"role":"assistant","tool_calls":["#,
            br#"{"id":"~","function":{"name":"f","arguments":"{}"}},"#,
            br#"{"id":"c","function":{"name":"f","arguments":"{}"}}]}]}"#,
        ],
    ),
    chat(
        "a schema of many properties",
        [SCHEMA, b"", br#""p~":{"type":"string"},"#, br#""last":{"type":"string"}}}}}}"#],
    ),
    chat(
        "a schema with a long pattern",
        [SCHEMA, br#""a":{"type":"string","pattern":""#, b"(~|x*y+){1,9}", br#""}}}}}}"#],
    ),
    chat(
        "a schema of alternatives",
        [
            SCHEMA,
            br#""a":{"anyOf":["#,
            br#"{"type":"object","properties":{"~":{"type":"string","pattern":".*~.*"}}},"#,
            br#"{"type":"array","minItems":900,"items":{"type":"string","maxLength":9000}}]}}}}}}"#,
        ],
    ),
    chat("a schema of words", [SCHEMA, br#""a":{"enum":["#, br#""~~~","#, br#""last"]}}}}}}"#]),
    chat("stop strings", [QUESTION, br#""stop":["#, br#""~","#, br#""end"]}"#]),
    chat("places of messages", [QUESTION, br#""baton":{"scene":"doc-qa","refine":["#, b"0,", b"0]}}"]),
];

impl Bulk {
    /// Makes a body of at most `bytes`, and nearly that long.
    #[must_use]
    pub fn body(&self, bytes: usize) -> Vec<u8> {
        let [before, open, unit, after] = self.body;
        let mut body = [before, open].concat();
        let mut letters = 1_u64;
        let room = bytes.saturating_sub(after.len());
        while body.len() + unit.len() + 2 <= room {
            for &byte in unit {
                if byte == b'~' {
                    // Letters that do not compress and are the same in every run (Knuth's MMIX generator).
                    letters = letters
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let three = (letters >> 33) % 17_576;
                    body.extend([three / 676, three / 26 % 26, three % 26].map(|at| b'a' + at as u8));
                } else {
                    body.push(byte);
                }
            }
        }
        body.extend_from_slice(after);
        body
    }
}

/// Compresses a body as clients do.
#[must_use]
pub fn packed(body: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(body).expect("writing to memory cannot fail");
    gzip.finish().expect("writing to memory cannot fail")
}

/// A reply, read to its end.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Its status; 0 if the server closed without a reply, as it does when it refuses the rest of a body.
    pub status: u16,
    /// Head and body as received; for a chunked body with the marks between the chunks.
    pub text: String,
}

/// Sends a body and reads the reply to its end.
///
/// # Errors
/// Fails if the server cannot be reached, or its answer is not an HTTP reply.
pub async fn reply(server: SocketAddr, path: &str, body: &[u8], gzip: bool) -> anyhow::Result<Reply> {
    let mut stream = TcpStream::connect(server).await.context("connect")?;
    let encoding = if gzip { "content-encoding: gzip\r\n" } else { "" };
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n{encoding}\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.context("send the head")?;
    // A server may refuse before it has read everything. Its reply counts, not the failed write.
    let _ = stream.write_all(body).await;
    let mut read = Vec::new();
    // A refused upload ends with a connection reset after the reply.
    let _ =
        tokio::time::timeout(HANG, stream.read_to_end(&mut read)).await.context("the reply does not end")?;
    let text = String::from_utf8_lossy(&read).into_owned();
    if text.is_empty() {
        return Ok(Reply { status: 0, text });
    }
    let status = text.get(9..12).and_then(|status| status.parse().ok());
    let status = status.with_context(|| format!("no reply, but {text:?}"))?;
    Ok(Reply { status, text })
}

/// The peak memory of a process.
#[derive(Debug)]
pub struct PeakMemory {
    folder: PathBuf,
    before: u64,
}

impl PeakMemory {
    /// Measures the process `pid`; growth counts from its memory now.
    ///
    /// # Errors
    /// Fails if the system does not report memory; only Linux does.
    pub fn of(pid: u32) -> anyhow::Result<PeakMemory> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let mut memory = PeakMemory { folder, before: 0 };
        memory.forget()?;
        Ok(memory)
    }

    /// Resets the peak; growth counts from here.
    ///
    /// # Errors
    /// Fails if the process is gone.
    pub fn forget(&mut self) -> anyhow::Result<()> {
        let path = self.folder.join("clear_refs");
        std::fs::write(&path, "5").with_context(|| format!("write {}", path.display()))?;
        self.before = self.field("VmRSS:")?;
        Ok(())
    }

    /// Returns by how many bytes the peak since [`Self::forget`] is above the memory at that time.
    ///
    /// # Errors
    /// Fails if the process is gone.
    pub fn growth(&self) -> anyhow::Result<u64> {
        Ok(self.field("VmHWM:")?.saturating_sub(self.before))
    }

    fn field(&self, name: &str) -> anyhow::Result<u64> {
        let path = self.folder.join("status");
        let status = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib: Option<u64> = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        Ok(kib.with_context(|| format!("{} names no {name}", path.display()))? * 1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_the_length_it_is_asked_for() {
        for bulk in BULKS {
            let body = bulk.body(10_000);
            assert!((9_000..=10_000).contains(&body.len()), "{}: {}", bulk.name, body.len());
            assert_eq!(body, bulk.body(10_000));
            assert!(packed(&body).len() < body.len());
        }
    }
}
