//! What the libraries make of a document's bytes, in the process that calls.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Kind, docx, html, lines};

/// Returns the text of a document, in this process: only for documents that are trusted, or in a process that
/// is confined.
///
/// # Errors
/// Why the library that reads the format refuses it.
pub(super) fn extract(kind: Kind, bytes: Vec<u8>) -> Result<String, String> {
    let read = move || match kind {
        Kind::Html => html::text(&bytes),
        Kind::Docx => docx::text(&bytes),
        Kind::Pdf => pdf(&bytes),
        Kind::Text => super::plain_text(bytes).map_err(|err| err.to_string()),
    };
    let failed = "the library that reads it has failed; the file may be broken";
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(failed.to_owned()))
}

fn pdf(bytes: &[u8]) -> Result<String, String> {
    let text = pdf_extract::extract_text_from_mem(bytes).map_err(|err| err.to_string())?;
    Ok(lines::unwrapped(&lines::tidied(&text)))
}
