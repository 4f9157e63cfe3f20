//! Texts of documents: plain text and Markdown as they are; HTML, PDF and DOCX by libraries.
//!
//! What a document is, its first bytes say, and for texts also its name. Libraries that read formats from
//! outside may fail in any way on a broken file. They run in a child process ([`process`]) that has nothing
//! but its pipes, little memory and little time ([`confined`]). However it ends, that is an error here.
//! Always: line ends are `\n`, so that the same text gets the same answer on every system.

pub mod confined;
mod docx;
mod formats;
mod html;
mod lines;
mod process;

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

use self::formats::extract;
pub use self::lines::{NotText, plain_text};

/// Longest document file, in bytes.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// Longest text of a document, in bytes.
pub const TEXT_BYTES_MAX: usize = 4 << 20;
/// Most bytes of a text file: each line end of Windows becomes one byte, and a byte order mark goes.
const PLAIN_BYTES_MAX: usize = 2 * TEXT_BYTES_MAX + 3;
/// What begins a PDF file, within so many bytes.
const PDF: &[u8] = b"%PDF-";
const HEAD_BYTES: usize = 1024;
/// What begins a zip archive.
const ZIP: &[u8] = b"PK\x03\x04";

/// What a document is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text as it is.
    Text,
    /// A web page.
    Html,
    /// Portable Document Format.
    Pdf,
    /// A document of Word, or another zip archive.
    Docx,
}

/// Why a document has no text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// It is no text, and of no format that is read.
    #[error(transparent)]
    NotText(#[from] NotText),
    /// Its bytes do not come.
    #[error("its bytes cannot be read")]
    Input(#[source] io::Error),
    /// The file is too long.
    #[error("it has more than {FILE_BYTES_MAX} bytes")]
    FileTooLong,
    /// The library that reads the format refuses it.
    #[error("the {kind} cannot be read: {reason}")]
    Format {
        /// The format's name.
        kind: &'static str,
        /// Why.
        reason: String,
    },
    /// It is well-formed, and holds no text.
    #[error("it is empty: the {kind} holds no text{hint}")]
    NoText {
        /// The format's name.
        kind: &'static str,
        /// What may help.
        hint: &'static str,
    },
    /// Its text is too long.
    #[error("its text has more than {max} bytes")]
    TooLong {
        /// The most bytes.
        max: usize,
    },
    /// It unpacks to more than the child's memory.
    #[error(
        "the {kind} needs more than {max_mib} MiB of memory to be read: it unpacks to too much; save its text, or less of it, as a file"
    )]
    TooLarge {
        /// The format's name.
        kind: &'static str,
        /// The child's memory in MiB.
        max_mib: u64,
    },
    /// It is not read in time.
    #[error(
        "the {kind} takes more than {max_s} s of computing to be read; save its text, or less of it, as a file"
    )]
    TooSlow {
        /// The format's name.
        kind: &'static str,
        /// The time in seconds.
        max_s: u64,
    },
    /// It nests deeper than the child's stack.
    #[error(
        "the {kind} cannot be read: it nests too deeply, or in itself; save its text as a file from a program that opens it"
    )]
    TooDeep {
        /// The format's name.
        kind: &'static str,
    },
    /// The child process ended in another way.
    #[error(
        "the {kind} cannot be read: the process that read it has failed ({status}); the file may be broken: save its text as a file from a program that opens it"
    )]
    Crashed {
        /// The format's name.
        kind: &'static str,
        /// How it ended.
        status: String,
    },
    /// There is no child process.
    #[error("start the process that reads the {kind}")]
    NoProcess {
        /// The format's name.
        kind: &'static str,
        /// The system's error.
        #[source]
        err: io::Error,
    },
}

impl Kind {
    const ALL: [Self; 4] = [Self::Text, Self::Html, Self::Pdf, Self::Docx];

    /// Returns what a document is: by its first bytes, else by its name or its media type.
    pub fn of(bytes: &[u8], name: &str, media_type: Option<&str>) -> Self {
        let head = &bytes[..bytes.len().min(HEAD_BYTES)];
        if head.windows(PDF.len()).any(|window| window == PDF) {
            return Self::Pdf;
        }
        if head.starts_with(ZIP) {
            return Self::Docx;
        }
        let head = String::from_utf8_lossy(head)
            .trim_start_matches(['\u{feff}', ' ', '\n', '\r', '\t'])
            .to_lowercase();
        let name = name.to_lowercase();
        let named = [".html", ".htm", ".xhtml"].iter().any(|end| name.ends_with(end));
        let typed = media_type.is_some_and(|kind| kind.starts_with("text/html") || kind.contains("xhtml"));
        let begins = head.starts_with("<!doctype html") || head.starts_with("<html");
        if named || typed || begins { Self::Html } else { Self::Text }
    }

    /// Returns the format's name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "file",
            Self::Html => "HTML page",
            Self::Pdf => "PDF",
            Self::Docx => "DOCX",
        }
    }
}

/// Reads a document to its end; returns what it is, and its text. Its format is found by its first bytes, its
/// name and its media type. If the result is dropped early, so is the process that reads it.
///
/// # Errors
/// [`Unreadable`] if it has no text, or too much of it.
pub async fn read(
    mut document: impl AsyncRead + Unpin,
    name: &str,
    media_type: Option<&str>,
) -> Result<(Kind, String), Unreadable> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    let begin = (&mut document).take(HEAD_BYTES as u64).read_to_end(&mut head).await;
    begin.map_err(Unreadable::Input)?;
    let kind = Kind::of(&head, name, media_type);
    let text = match kind {
        Kind::Text => plain(head, document).await?,
        Kind::Html | Kind::Pdf | Kind::Docx => process::text(kind, (&head[..]).chain(document)).await?,
    };
    if text.len() > TEXT_BYTES_MAX {
        return Err(Unreadable::TooLong { max: TEXT_BYTES_MAX });
    }
    if text.trim().is_empty() {
        let hint = match kind {
            Kind::Pdf => "; if it holds pictures of pages, make a text of them first (OCR)",
            Kind::Text | Kind::Html | Kind::Docx => "",
        };
        return Err(Unreadable::NoText { kind: kind.name(), hint });
    }
    Ok((kind, text))
}

async fn plain(mut bytes: Vec<u8>, document: impl AsyncRead + Unpin) -> Result<String, Unreadable> {
    let rest = document.take((PLAIN_BYTES_MAX + 1 - bytes.len()) as u64).read_to_end(&mut bytes).await;
    rest.map_err(Unreadable::Input)?;
    let is_cut = bytes.len() > PLAIN_BYTES_MAX;
    match plain_text(bytes) {
        // The last letter may be cut.
        Ok(_) | Err(NotText::NotUtf8 { at: TEXT_BYTES_MAX.. }) if is_cut => {
            Err(Unreadable::TooLong { max: TEXT_BYTES_MAX })
        }
        text => Ok(text?),
    }
}

#[cfg(test)]
mod tests;
