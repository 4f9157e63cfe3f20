//! The suites, which make the cases.
//!
//! Generated suites depend only on their seed; suites on a user's data depend only on the files.

use std::path::PathBuf;

pub mod badcases;
pub mod facts;
pub mod longbench;
pub mod ruler;
pub mod synonyms;
pub mod xquad;

/// The system text of the project's own suites, with which the demo models were trained.
pub const SYSTEM: &str = "You answer from the document.";
/// The system text of texts that are not the project's own documents.
pub(crate) const BRIEF_SYSTEM: &str = "Answer the question with words of the text, as briefly as possible.";
/// The separator between a text and a question about it.
pub const QUESTION_PREFIX: &str = "\n\nQuestion: ";

/// Why cases cannot be made from a user's data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuiteError {
    /// A file or folder cannot be read.
    #[error("read `{path}`")]
    Read {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        err: std::io::Error,
    },
    /// The data does not have the suite's format.
    #[error("{suite} data: {message}")]
    Data {
        /// The suite.
        suite: &'static str,
        /// What is wrong.
        message: String,
    },
}
