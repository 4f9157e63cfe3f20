//! The suites: where cases come from.
//!
//! Generated suites are a function of their seed; those of a user's data are a function of the files.

use std::path::PathBuf;

pub mod badcases;
pub mod facts;
pub mod longbench;
pub mod ruler;
pub mod xquad;

/// The system text of the project's own suites, which the demo models know.
pub const SYSTEM: &str = "You answer from the document.";
/// What stands between a text and a question about it.
pub const QUESTION_PREFIX: &str = "\n\nQuestion: ";

/// Why a user's data gives no cases.
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
    /// Not the suite's format.
    #[error("{suite} data: {message}")]
    Data {
        /// The suite.
        suite: &'static str,
        /// What is wrong.
        message: String,
    },
}
