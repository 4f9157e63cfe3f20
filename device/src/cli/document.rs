//! Reads the document of a question: a text file or standard input.
//!
//! Line ends become `\n`, so that the same text gets the same answer on every system.

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Longest document, in bytes.
pub(super) const DOCUMENT_BYTES_MAX: u64 = 4 << 20;

/// Why a document cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum DocumentError {
    #[error("read {}", Named(path))]
    Read {
        path: PathBuf,
        #[source]
        err: io::Error,
    },
    #[error("{} has more than {max} bytes", Named(path))]
    TooLarge { path: PathBuf, max: u64 },
    #[error("{} is not a text file: byte {at} is zero", Named(path))]
    Binary { path: PathBuf, at: usize },
    #[error("{} is not UTF-8 text: bad byte at {at}", Named(path))]
    NotUtf8 { path: PathBuf, at: usize },
    #[error("{} is empty", Named(path))]
    Empty { path: PathBuf },
}

/// The name of a source in messages.
struct Named<'a>(&'a Path);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == Path::new("-") {
            f.write_str("standard input")
        } else {
            write!(f, "`{}`", self.0.display())
        }
    }
}

/// Reads the text of a file; `-` is standard input.
pub(super) fn read(path: &Path) -> Result<String, DocumentError> {
    let fail = |err| DocumentError::Read { path: path.to_owned(), err };
    let mut bytes = Vec::new();
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(fail)?)
    };
    source.take(DOCUMENT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(fail)?;
    check(path, bytes)
}

fn check(path: &Path, bytes: Vec<u8>) -> Result<String, DocumentError> {
    if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
        return Err(DocumentError::TooLarge { path: path.to_owned(), max: DOCUMENT_BYTES_MAX });
    }
    let text = check_text(path, bytes)?;
    if text.trim().is_empty() {
        return Err(DocumentError::Empty { path: path.to_owned() });
    }
    Ok(text)
}

/// Decodes bytes as text with `\n` at the end of each line, without a byte order mark.
pub(super) fn check_text(path: &Path, bytes: Vec<u8>) -> Result<String, DocumentError> {
    if let Some(at) = bytes.iter().position(|&b| b == 0) {
        return Err(DocumentError::Binary { path: path.to_owned(), at });
    }
    let text = String::from_utf8(bytes).map_err(|err| DocumentError::NotUtf8 {
        path: path.to_owned(),
        at: err.utf8_error().valid_up_to(),
    })?;
    let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
    Ok(if text.contains('\r') { text.replace("\r\n", "\n").replace('\r', "\n") } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(bytes: &[u8], want: &str) {
        let err = check(Path::new("d"), bytes.to_vec()).unwrap_err().to_string();
        assert!(err.contains(want), "{err}");
    }

    #[test]
    fn only_text_is_taken() {
        assert_eq!(check(Path::new("d"), b"\xef\xbb\xbfhi".to_vec()).unwrap(), "hi");
        refused(b"GGUF\0\0", "byte 4 is zero");
        refused(b"ab\xff", "bad byte at 2");
        refused(b" \n", "empty");
        refused(&vec![b'a'; DOCUMENT_BYTES_MAX as usize + 1], "more than");
        assert!(read(Path::new("/nonexistent/x")).unwrap_err().to_string().contains("read"));
    }

    #[test]
    fn every_systems_line_ends_are_the_same_text() {
        for text in ["one\n\ntwo\n", "one\r\n\r\ntwo\r\n", "one\r\rtwo\r", "\u{feff}one\r\n\ntwo\r"] {
            assert_eq!(check(Path::new("d"), text.as_bytes().to_vec()).unwrap(), "one\n\ntwo\n", "{text:?}");
        }
    }
}
