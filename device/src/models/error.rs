//! Why a model cannot be pulled: each error names its cause and what helps.

use super::size;
use super::store::StoreError;
use std::io;
use std::path::PathBuf;

/// Why a model was not pulled. What was downloaded stays for the next try, unless the error says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An address, token or package is not well-formed.
    #[error("{0}")]
    Invalid(String),
    /// The client cannot be set up.
    #[error("set up the http client")]
    Client(#[source] reqwest::Error),
    /// There is no connection to a server.
    #[error(
        "{host} is not reached ({reason}): check the network, or a proxy's address in HTTPS_PROXY; the same command \
         goes on from where it was"
    )]
    Offline {
        /// The server.
        host: String,
        /// Why.
        reason: String,
    },
    /// The connection was cut again and again.
    #[error(
        "`{file}` came to {got} of its bytes, then {host} sent nothing more ({reason}): the same command goes on from there"
    )]
    Cut {
        /// The file.
        file: String,
        /// Bytes that are there.
        got: u64,
        /// The server.
        host: String,
        /// Why.
        reason: String,
    },
    /// The hub has no such repository, or does not show it.
    #[error(
        "{host} has no model repository `{repo}`, or shows it only to those who may see it: check the name; for a \
         private one set {}",
        super::TOKEN_ENV
    )]
    NoRepository {
        /// The hub.
        host: String,
        /// `OWNER/REPO`.
        repo: String,
    },
    /// The repository has no such revision.
    #[error("`{repo}` has no revision `{revision}`: leave --revision out for the newest")]
    NoRevision {
        /// `OWNER/REPO`.
        repo: String,
        /// The branch, tag or commit.
        revision: String,
    },
    /// The repository's owner gives it only to those who accept terms.
    #[error("`{repo}` is gated: {fix}")]
    Gated {
        /// `OWNER/REPO`.
        repo: String,
        /// What the user can do.
        fix: String,
    },
    /// The hub refuses the token.
    #[error("{host} refuses the token of {}: make a new one, or unset it", super::TOKEN_ENV)]
    Token {
        /// The hub.
        host: String,
    },
    /// The index has no such package, version or wheel.
    #[error("{host} has no {what}")]
    NoPackage {
        /// The index.
        host: String,
        /// What is not there, and what is.
        what: String,
    },
    /// No model of a repository or wheel fits what was asked for, or several do.
    #[error("{0}")]
    Choice(String),
    /// A server answered with an error, or with what is not understood.
    #[error("{host}: {what}")]
    Reply {
        /// The server.
        host: String,
        /// What it answered.
        what: String,
    },
    /// The bytes are not those that were promised. They were removed.
    #[error(
        "`{file}` has not the bytes that were promised (SHA-256 {found}, want {want}), and was removed: pull it again; \
         if that fails too, the server's file is damaged"
    )]
    Checksum {
        /// The file.
        file: String,
        /// The digest that was promised.
        want: String,
        /// The digest of what came.
        found: String,
    },
    /// The disk is too small.
    #[error("{} are needed in `{}`, {} are free: remove something, or name another folder by --models-dir", size(*needed), folder.display(), size(*free))]
    Space {
        /// Bytes that are still needed.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// The folder.
        folder: PathBuf,
    },
    /// The memory is too small for the model.
    #[error(
        "this model takes {} of memory, and this machine can give {}: it would read its weights from the disk for every \
         token", size(*needed), size(*available)
    )]
    Memory {
        /// Bytes that the model takes.
        needed: u64,
        /// Bytes that the system can give.
        available: u64,
    },
    /// The engine cannot run the model.
    #[error("this program cannot run the model: {0}")]
    Unsupported(String),
    /// The file holds no model.
    #[error("`{file}` holds no model: {reason}")]
    NoModel {
        /// The file.
        file: String,
        /// Why.
        reason: String,
    },
    /// Another model has the name.
    #[error(
        "a model `{name}` is there already, from {source_there}: choose another name by --name, or remove it by `baton model rm {name}`"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// Where the other one came from.
        source_there: String,
    },
    /// The manifest of a version is not what a trusted key has signed.
    #[error("the manifest of {model} is refused: {reason}")]
    Manifest {
        /// The version.
        model: String,
        /// Why.
        reason: String,
    },
    /// A file cannot be read or written.
    #[error("{what} `{}`", path.display())]
    File {
        /// What was done with it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        err: io::Error,
    },
    /// The user stopped it.
    #[error("stopped: the same command goes on from where it was")]
    Stopped,
}

impl PullError {
    /// Returns a name of the kind of error for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Store(_) => "store",
            Self::Invalid(_) => "invalid",
            Self::Client(_) => "client",
            Self::Offline { .. } => "offline",
            Self::Cut { .. } => "cut",
            Self::NoRepository { .. } => "no_repository",
            Self::NoRevision { .. } => "no_revision",
            Self::Gated { .. } => "gated",
            Self::Token { .. } => "token",
            Self::NoPackage { .. } => "no_package",
            Self::Choice(_) => "choice",
            Self::Reply { .. } => "reply",
            Self::Checksum { .. } => "checksum",
            Self::Space { .. } => "space",
            Self::Memory { .. } => "memory",
            Self::Unsupported(_) => "unsupported",
            Self::NoModel { .. } => "no_model",
            Self::NameTaken { .. } => "name_taken",
            Self::Manifest { .. } => "manifest",
            Self::File { .. } => "file",
            Self::Stopped => "stopped",
        }
    }

    /// Makes the error of a file.
    pub(super) fn file(what: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |err| Self::File { what, path, err }
    }
}
