//! Reads lines of standard input, from a terminal or a pipe.
//!
//! A thread reads, so that the program never waits for input: Ctrl-C works at a prompt, and the thread is
//! abandoned at the end. Memory is bounded.

use std::io::Read as _;

use tokio::sync::mpsc;

use crate::cli::document::{DocumentError, line_text};
use crate::documents::TEXT_BYTES_MAX;

/// Most bytes read at once; then the most pieces that may wait.
const PIECE_BYTES: usize = 16 << 10;
const PIECES_MAX: usize = 4;

/// Cuts bytes into lines. Pure.
#[derive(Debug, Default)]
struct LineBuffer {
    bytes: Vec<u8>,
    /// Number of leading bytes that hold no newline.
    searched: usize,
    /// The current line is too long; the rest of it is dropped.
    skipping: bool,
}

impl LineBuffer {
    fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    /// Returns the next whole line, without its end.
    fn next(&mut self) -> Option<Result<String, DocumentError>> {
        loop {
            let newline = self.bytes[self.searched..].iter().position(|&byte| byte == b'\n');
            let Some(end) = newline.map(|at| self.searched + at) else {
                self.searched = self.bytes.len();
                if self.bytes.len() <= TEXT_BYTES_MAX {
                    return None;
                }
                self.clear();
                // The error is returned once, however long the line is.
                if std::mem::replace(&mut self.skipping, true) {
                    return None;
                }
                return Some(Err(DocumentError::TooLarge { path: "-".into(), max: TEXT_BYTES_MAX as u64 }));
            };
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            self.searched = 0;
            if !std::mem::take(&mut self.skipping) {
                return Some(text(line));
            }
        }
    }

    /// Returns the text after the last newline, at the end of input.
    fn rest(&mut self) -> Option<Result<String, DocumentError>> {
        if self.bytes.is_empty() || std::mem::take(&mut self.skipping) {
            return None;
        }
        self.searched = 0;
        Some(text(std::mem::take(&mut self.bytes)))
    }

    /// Drops the incomplete line.
    fn clear(&mut self) {
        self.bytes.clear();
        self.searched = 0;
    }
}

/// Decodes a line and removes its end.
fn text(line: Vec<u8>) -> Result<String, DocumentError> {
    line_text(line).map(|text| text.trim_end_matches('\n').to_owned())
}

/// Checks a line that a person typed, as one of a pipe is checked.
pub(super) fn checked(line: String) -> Result<String, DocumentError> {
    if line.len() > TEXT_BYTES_MAX {
        return Err(DocumentError::TooLarge { path: "-".into(), max: TEXT_BYTES_MAX as u64 });
    }
    text(line.into_bytes())
}

/// Lines of standard input.
#[derive(Debug)]
pub(super) struct Lines {
    pieces: mpsc::Receiver<std::io::Result<Vec<u8>>>,
    buffer: LineBuffer,
}

impl Lines {
    /// Starts to read.
    pub(super) fn start() -> std::io::Result<Self> {
        let (sender, pieces) = mpsc::channel(PIECES_MAX);
        std::thread::Builder::new().name("stdin".into()).spawn(move || {
            let mut piece = vec![0; PIECE_BYTES];
            loop {
                let read = std::io::stdin().lock().read(&mut piece);
                let sent = match read {
                    Ok(0) => return,
                    Ok(n) => sender.blocking_send(Ok(piece[..n].to_vec())),
                    Err(err) if err.kind() == std::io::ErrorKind::Interrupted => continue,
                    Err(err) => sender.blocking_send(Err(err)),
                };
                if sent.is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { pieces, buffer: LineBuffer::default() })
    }

    /// Returns the next line without its end; `None` at the end of input.
    pub(super) async fn next(&mut self) -> Option<Result<String, DocumentError>> {
        loop {
            if let Some(line) = self.buffer.next() {
                return Some(line);
            }
            match self.pieces.recv().await {
                Some(Ok(piece)) => self.buffer.push(&piece),
                Some(Err(err)) => return Some(Err(DocumentError::Read { path: "-".into(), err })),
                None => return self.buffer.rest(),
            }
        }
    }

    /// Drops what was read of the incomplete line.
    pub(super) fn drop_line(&mut self) {
        self.buffer.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_terminal::chain;

    #[track_caller]
    fn check(pieces: &[&[u8]], want: &[&str]) {
        let mut buffer = LineBuffer::default();
        let mut lines = Vec::new();
        for piece in pieces {
            buffer.push(piece);
            lines.extend(std::iter::from_fn(|| buffer.next()));
        }
        lines.extend(buffer.rest());
        let said: Vec<String> = lines
            .into_iter()
            .map(|line| line.unwrap_or_else(|err| format!("error: {}", chain(&err))))
            .collect();
        assert_eq!(said, want);
    }

    #[test]
    fn lines_come_whole_however_they_were_cut() {
        check(&[b"one\ntwo\r\n\nthree"], &["one", "two", "", "three"]);
        check(&[b"o", b"ne", b"\nt", b"wo\r", b"\n"], &["one", "two"]);
        check(&["é\n".as_bytes().split_at(1).0, "é\n".as_bytes().split_at(1).1], &["é"]);
        check(&[], &[]);
        check(
            &[b"a\xff\nb\0\nc"],
            &[
                "error: read standard input: it is not UTF-8 text: bad byte at 1",
                "error: read standard input: it is no text, PDF, DOCX or HTML: byte 1 is zero",
                "c",
            ],
        );
    }

    #[test]
    fn a_line_without_end_is_refused_once_and_not_kept() {
        let piece = vec![b'a'; TEXT_BYTES_MAX / 2 + 1];
        check(
            &[&piece, &piece, &piece, &piece, b"a\nnext\n"],
            &["error: standard input has more than 4194304 bytes", "next"],
        );
    }

    #[test]
    fn an_interrupted_line_is_dropped() {
        let mut buffer = LineBuffer::default();
        buffer.push(b"one\nhalf of a li");
        assert_eq!(buffer.next().unwrap().unwrap(), "one");
        assert!(buffer.next().is_none());
        buffer.clear();
        buffer.push(b"two\n");
        assert_eq!(buffer.next().unwrap().unwrap(), "two");
    }
}
