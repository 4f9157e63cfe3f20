//! The suites: where cases come from.

pub mod facts;

/// The system text of the project's own suites, which the demo models know.
pub const SYSTEM: &str = "You answer from the document.";
/// What stands between a text and a question about it.
pub const QUESTION_PREFIX: &str = "\n\nQuestion: ";
