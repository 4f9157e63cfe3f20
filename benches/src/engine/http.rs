//! An HTTP client for POST requests whose answer is an event stream; each event is reported when it arrives.
//!
//! It supports loopback, one connection per request, and HTTP/1.1. It uses blocking reads and no async
//! runtime, so that it takes little CPU time from the measured programs.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// Maximum time without data: a hang guard, not a measurement.
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// Posts `body` and passes each event's JSON to `heard` when it arrives; `[DONE]` ends the stream.
pub(crate) fn events(address: &str, path: &str, body: &Value, mut heard: impl FnMut(Value)) -> Result<()> {
    let connection = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
    connection.set_nodelay(true).context("send without delay")?;
    connection.set_read_timeout(Some(SILENCE_MAX)).context("limit the silence")?;
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    (&connection).write_all(head.as_bytes()).context("send the request")?;
    (&connection).write_all(body.as_bytes()).context("send the request")?;
    let mut answer = BufReader::new(connection);
    let chunked = read_head(&mut answer)?;
    let mut lines = Lines { answer, chunked, left: 0, line: Vec::new() };
    while let Some(line) = lines.next()? {
        let Some(data) = line.strip_prefix("data:") else { continue };
        match data.trim() {
            "[DONE]" => break,
            data => heard(serde_json::from_str(data).with_context(|| format!("read the event `{data}`"))?),
        }
    }
    Ok(())
}

/// Reads status and headers; returns whether the body is chunked.
fn read_head(answer: &mut impl BufRead) -> Result<bool> {
    let mut line = String::new();
    answer.read_line(&mut line).context("read the status")?;
    let status = line.trim_end().to_owned();
    let mut chunked = false;
    loop {
        line.clear();
        if answer.read_line(&mut line).context("read the headers")? == 0 || line.trim_end().is_empty() {
            break;
        }
        chunked |= line.trim_end().eq_ignore_ascii_case("transfer-encoding: chunked");
    }
    if status.split(' ').nth(1) != Some("200") {
        let mut message = String::new();
        // The message is only used in the error below, and may be cut.
        let _ = answer.take(2000).read_to_string(&mut message);
        bail!("the server answered `{status}`: {message}");
    }
    Ok(chunked)
}

/// Reader of the lines of a body, chunked or not.
struct Lines<R> {
    answer: R,
    chunked: bool,
    /// Bytes left in the current chunk.
    left: usize,
    line: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    /// Returns the next line, or `None` at the end of the body.
    fn next(&mut self) -> Result<Option<String>> {
        loop {
            if self.chunked && self.left == 0 && !self.next_chunk()? {
                return Ok(None);
            }
            let present = self.answer.fill_buf().context("read the answer")?;
            if present.is_empty() {
                return Ok(None);
            }
            let most = if self.chunked { present.len().min(self.left) } else { present.len() };
            let end = present[..most].iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(most, |end| end + 1);
            self.line.extend_from_slice(&present[..taken]);
            self.answer.consume(taken);
            self.left = self.left.saturating_sub(taken);
            if end.is_some() {
                let line =
                    String::from_utf8(std::mem::take(&mut self.line)).context("read a line as UTF-8")?;
                return Ok(Some(line.trim_end().to_owned()));
            }
        }
    }

    /// Reads the size of the next chunk; returns false at the last one.
    fn next_chunk(&mut self) -> Result<bool> {
        let mut size = String::new();
        while size.trim().is_empty() {
            size.clear();
            if self.answer.read_line(&mut size).context("read the size of a chunk")? == 0 {
                return Ok(false);
            }
        }
        let digits = size.trim().split(';').next().unwrap_or_default();
        self.left = usize::from_str_radix(digits, 16)
            .with_context(|| format!("read the size of a chunk in `{}`", size.trim()))?;
        Ok(self.left > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(chunked: bool, body: &str) -> Vec<String> {
        let mut lines = Lines { answer: body.as_bytes(), chunked, left: 0, line: Vec::new() };
        std::iter::from_fn(|| lines.next().unwrap()).collect()
    }

    #[test]
    fn lines_cross_chunks() {
        let body = "7\r\ndata: a\r\n4\r\nb\n\nd\r\n3;x=y\r\nata\r\n2\r\n!\n\r\n0\r\n\r\n";
        assert_eq!(all(true, body), ["data: ab", "", "data!"]);
        assert_eq!(all(false, "data: 1\n\ndata: 2\n"), ["data: 1", "", "data: 2"]);
    }

    #[test]
    fn refusals_carry_the_message() {
        let mut answer = "HTTP/1.1 429 Too Many Requests\r\nA: b\r\n\r\nfull".as_bytes();
        let message = read_head(&mut answer).unwrap_err().to_string();
        assert_eq!(message, "the server answered `HTTP/1.1 429 Too Many Requests`: full");
        let mut answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".as_bytes();
        assert!(read_head(&mut answer).unwrap());
    }
}
