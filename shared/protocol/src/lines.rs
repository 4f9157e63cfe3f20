//! Cuts a stream of bytes into pieces of whole lines, for a parser of server-sent events.
//!
//! Lines end with `\n` or `\r\n`; a `\r` alone does not end a line here. Never: holds more than one line of
//! the largest size.

/// Most lines that the parser gets at once; it gets whole lines only. At the end of each line it moves
/// everything that it holds, and it reads an incomplete line again whenever more of it comes.
const LINES_AT_ONCE: usize = 64;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A stream, or a line of it, is longer than allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more than {max} bytes in a stream, or in a line of it")]
pub struct TooLarge {
    /// The limit in bytes.
    pub max: u64,
}

/// The state between two chunks of a stream.
#[derive(Debug)]
pub struct Lines {
    stream_bytes_max: u64,
    line_bytes_max: u64,
    total: u64,
    begun: bool,
    /// The start of a line whose end has not come yet.
    held: Vec<u8>,
}

impl Lines {
    /// Begins a stream with these limits, in bytes.
    pub fn new(stream_bytes_max: u64, line_bytes_max: u64) -> Self {
        Self { stream_bytes_max, line_bytes_max, total: 0, begun: false, held: Vec::new() }
    }

    /// Returns the pieces for the parser; a `chunk` of `None` is the end of the stream.
    pub fn pieces(&mut self, chunk: Option<&[u8]>) -> Vec<Result<Vec<u8>, TooLarge>> {
        let Some(chunk) = chunk else {
            let rest = std::mem::take(&mut self.held);
            return self.cut(rest).into_iter().map(Ok).collect();
        };
        self.total += chunk.len() as u64;
        if self.total > self.stream_bytes_max {
            return vec![Err(TooLarge { max: self.stream_bytes_max })];
        }
        let (ended, open) = chunk.split_at(chunk.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1));
        let mut lines = Vec::new();
        if !ended.is_empty() {
            lines = std::mem::take(&mut self.held);
            lines.extend_from_slice(ended);
        }
        self.held.extend_from_slice(open);
        let too_long = |line: &[u8]| line.len() as u64 > self.line_bytes_max;
        if too_long(&self.held) || lines.split(|&b| b == b'\n').any(too_long) {
            return vec![Err(TooLarge { max: self.line_bytes_max })];
        }
        self.cut(lines).into_iter().map(Ok).collect()
    }

    fn cut(&mut self, mut lines: Vec<u8>) -> Vec<Vec<u8>> {
        if !self.begun && !lines.is_empty() {
            self.begun = true;
            // The parser counts the byte order mark of three bytes as one byte. So it must never see one: an
            // empty line replaces it.
            let mark = if lines.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
            lines.splice(..mark, *b"\n");
        }
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        for (at, line) in lines.split_inclusive(|&b| b == b'\n').enumerate() {
            match pieces.last_mut() {
                Some(piece) if !at.is_multiple_of(LINES_AT_ONCE) => piece.extend_from_slice(line),
                _ => pieces.push(line.to_vec()),
            }
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parser_gets_whole_lines_and_few_at_once() {
        let stream = format!("{}data: a\r\ndata: b\n", "\n".repeat(10_000));
        let mut lines = Lines::new(1 << 20, 1 << 16);
        let mut pieces = Vec::new();
        for chunk in stream.as_bytes().chunks(777) {
            pieces.extend(lines.pieces(Some(chunk)));
        }
        pieces.extend(lines.pieces(None));
        let pieces: Vec<Vec<u8>> = pieces.into_iter().map(Result::unwrap).collect();
        assert!(pieces.iter().all(|piece| piece.ends_with(b"\n")), "whole lines");
        let most = pieces.iter().map(|piece| piece.iter().filter(|&&b| b == b'\n').count()).max();
        assert_eq!(most, Some(LINES_AT_ONCE));
        assert_eq!(pieces.concat(), [b"\n", stream.as_bytes()].concat());
    }

    #[test]
    fn streams_and_lines_have_limits() {
        let mut lines = Lines::new(1 << 20, 10);
        assert_eq!(lines.pieces(Some(b"data: 1234\n")), [Ok(b"\ndata: 1234\n".to_vec())]);
        assert_eq!(lines.pieces(Some(b"data: 12345")), [Err(TooLarge { max: 10 })]);
        let mut lines = Lines::new(20, 10);
        assert_eq!(lines.pieces(Some(&[b'\n'; 21])), [Err(TooLarge { max: 20 })]);
    }
}
