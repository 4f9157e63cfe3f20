//! Checks the bytes of a request's head for two lengths of one body.
//!
//! RFC 9112 section 6.3: a message with both Content-Length and Transfer-Encoding may be an attempt at
//! request smuggling. In such a message hyper follows Transfer-Encoding and removes the other field. Then no
//! route can see it, but this scan can. Never: decides what a request means, or keeps more of a line than a
//! field's name.

/// The longest field name that is looked for, with its colon.
const NAME_BYTES: usize = b"transfer-encoding:".len();

/// The scan of one head, in pieces as they arrive.
#[derive(Debug, Default)]
pub(super) struct HeadScan {
    /// The beginning of the current line, in lower case.
    line: Vec<u8>,
    /// Bytes of the current line, without its end.
    line_bytes: usize,
    length: bool,
    encoding: bool,
    done: bool,
}

impl HeadScan {
    /// Reads more bytes. Returns true if the head ends in them and gives both lengths. Bytes after the head
    /// are ignored until [`Self::restart`].
    pub(super) fn conflicts(&mut self, bytes: &[u8]) -> bool {
        for &byte in bytes {
            if self.done {
                return false;
            }
            match byte {
                b'\r' => (),
                b'\n' => self.end_line(),
                _ => {
                    if self.line.len() < NAME_BYTES {
                        self.line.push(byte.to_ascii_lowercase());
                    }
                    self.line_bytes += 1;
                }
            }
            if self.done && self.length && self.encoding {
                return true;
            }
        }
        false
    }

    /// Starts a new head.
    pub(super) fn restart(&mut self) {
        *self = HeadScan::default();
    }

    fn end_line(&mut self) {
        self.length |= self.line.starts_with(b"content-length:");
        self.encoding |= self.line.starts_with(b"transfer-encoding:");
        self.done = self.line_bytes == 0;
        self.line.clear();
        self.line_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::HeadScan;

    #[track_caller]
    fn check(head: &str, want: bool) {
        assert_eq!(HeadScan::default().conflicts(head.as_bytes()), want, "{head:?}");
        let mut scan = HeadScan::default();
        let by_bytes = head.as_bytes().chunks(1).any(|byte| scan.conflicts(byte));
        assert_eq!(by_bytes, want, "{head:?} byte by byte");
    }

    #[test]
    fn two_lengths_are_found_in_any_order() {
        let head = |fields: &str| format!("POST / HTTP/1.1\r\nhost: x\r\n{fields}\r\n");
        check(&head("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"), true);
        check(&head("transfer-encoding: chunked\r\nCONTENT-LENGTH: 3\r\n"), true);
        check(&head("content-length: 3\r\ncontent-length: 4\r\n"), false);
        check(&head("x-content-length: 3\r\ntransfer-encoding: chunked\r\n"), false);
        check(&head("transfer-encoding: chunked\r\n\r\ncontent-length: 3\r\n"), false);
        check("POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n", false);
    }

    #[test]
    fn each_head_is_looked_at_alone() {
        let mut scan = HeadScan::default();
        assert!(!scan.conflicts(b"GET / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"));
        scan.restart();
        assert!(!scan.conflicts(b"GET / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"));
    }
}
