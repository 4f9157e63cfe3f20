//! Texts of documents: plain text and Markdown as they are; HTML, PDF and DOCX by libraries.
//!
//! What a document is, its bytes say, and for texts also its name. Libraries that read formats from outside
//! may fail in any way on a broken file. They run on a thread of their own, and a panic there is an error
//! here. Always: line ends are `\n`, so that the same text gets the same answer on every system.

mod docx;
mod lines;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Builder;

pub use self::lines::{NotText, plain_text};

/// Longest document file, in bytes.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// Longest text of a document, in bytes.
pub const TEXT_BYTES_MAX: usize = 4 << 20;
/// Stack of the thread that reads: formats nest as deep as a broken file says.
const STACK_BYTES: usize = 256 << 20;
/// Columns of a text made from HTML: lines are not wrapped, because a wrapped sentence is two lines.
const COLUMNS: usize = 100_000;
/// What begins a PDF file, within so many bytes.
const PDF: &[u8] = b"%PDF-";
const PDF_WITHIN: usize = 1024;

/// What a document is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text as it is.
    Text,
    /// A web page.
    Html,
    /// Portable Document Format.
    Pdf,
    /// A document of Word.
    Docx,
}

/// Why a document has no text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// It is no text, and of no format that is read.
    #[error(transparent)]
    NotText(#[from] NotText),
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
}

impl Kind {
    /// Returns what a document is: by its bytes, else by its name or its media type.
    pub fn of(bytes: &[u8], name: &str, media_type: Option<&str>) -> Self {
        let head = &bytes[..bytes.len().min(PDF_WITHIN)];
        if head.windows(PDF.len()).any(|window| window == PDF) {
            return Self::Pdf;
        }
        if docx::is_docx(bytes) {
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

/// Returns the text of a document.
///
/// # Errors
/// [`Unreadable`] if it has none, or too much of it.
pub fn text_of(kind: Kind, bytes: Vec<u8>) -> Result<String, Unreadable> {
    let text = match kind {
        Kind::Text => plain_text(bytes)?,
        Kind::Html | Kind::Pdf | Kind::Docx => apart(kind, bytes)?,
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
    Ok(text)
}

/// Reads a format on a thread of its own.
fn apart(kind: Kind, bytes: Vec<u8>) -> Result<String, Unreadable> {
    let refused = |reason: String| Unreadable::Format { kind: kind.name(), reason };
    let read = move || match kind {
        Kind::Html => html(&bytes),
        Kind::Docx => docx::text(&bytes),
        Kind::Pdf => pdf(&bytes),
        Kind::Text => Ok(String::from_utf8_lossy(&bytes).into_owned()),
    };
    // What it leaves behind is dropped with the thread.
    let read = move || catch_unwind(AssertUnwindSafe(read));
    let thread = Builder::new().name("documents".into()).stack_size(STACK_BYTES).spawn(read);
    let thread = thread.map_err(|err| refused(format!("no thread for it: {err}")))?;
    match thread.join() {
        Ok(Ok(text)) => text.map_err(refused),
        Ok(Err(_)) | Err(_) => {
            Err(refused("the library that reads it has failed; the file may be broken".to_owned()))
        }
    }
}

fn html(bytes: &[u8]) -> Result<String, String> {
    let config = html2text::config::plain_no_decorate().no_table_borders().allow_width_overflow();
    let text = config.string_from_read(bytes, COLUMNS).map_err(|err| err.to_string())?;
    Ok(lines::tidied(&text))
}

fn pdf(bytes: &[u8]) -> Result<String, String> {
    let text = pdf_extract::extract_text_from_mem(bytes).map_err(|err| err.to_string())?;
    Ok(lines::unwrapped(&lines::tidied(&text)))
}

#[cfg(test)]
mod tests;
