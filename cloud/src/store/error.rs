//! The errors of the store.

use baton_edge::tls::TlsError;
use baton_registry::rollout::ChangeError;

use crate::access::AccessError;
use crate::experiment::plan::PlanError;
use crate::scene::SceneError;

/// An error of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The address is neither of SQLite nor of PostgreSQL.
    #[error(
        "database `{0}` is not supported: pass a file, `sqlite://FILE`, `:memory:` or `postgres://USER@HOST/NAME`"
    )]
    Address(String),
    /// The address of a PostgreSQL server has an error.
    #[error("address `{address}` of a PostgreSQL database")]
    PostgresAddress {
        /// The address without a password.
        address: String,
        /// What is wrong.
        #[source]
        err: sqlx::Error,
    },
    /// The driver would protect less than this `sslmode` promises.
    #[error("sslmode={mode} {why}")]
    SslMode {
        /// The mode.
        mode: &'static str,
        /// Why it is refused, and what to pass.
        why: &'static str,
    },
    /// The authorities that may sign the server's certificate cannot be read.
    #[error("read sslrootcert")]
    RootCert(#[source] TlsError),
    /// The server does not speak TLS, or its certificate is not trusted.
    #[error("no TLS connection to database `{address}` as its sslmode asks")]
    Tls {
        /// Its address without a password.
        address: String,
        /// Why.
        #[source]
        err: sqlx::Error,
    },
    /// The path of a SQLite file names a folder.
    #[error("database `{0}` is a folder: name a file")]
    Folder(String),
    /// The database cannot be opened.
    #[error("open database `{address}`")]
    Open {
        /// Its file, or its address without a password.
        address: String,
        /// Why.
        #[source]
        err: sqlx::Error,
    },
    /// A migration failed, or a newer program made the schema.
    #[error("migrate the database")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    /// A statement failed.
    #[error("{doing}")]
    Query {
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        #[source]
        err: sqlx::Error,
    },
    /// There is no such record.
    #[error("{what} `{id}` does not exist")]
    Unknown {
        /// The kind of record.
        what: &'static str,
        /// Its name.
        id: String,
    },
    /// Somebody else changed the record meanwhile, or it exists already.
    #[error("{what} `{id}` is at version {current}, expected {expected}")]
    Conflict {
        /// The kind of record.
        what: &'static str,
        /// Its name.
        id: String,
        /// The version that the change is based on; 0 if it expects that there is none.
        expected: u64,
        /// The current version; 0 if there is none.
        current: u64,
    },
    /// The record is in a state that does not allow the change.
    #[error("{what} `{id}` {why}")]
    State {
        /// The kind of record.
        what: &'static str,
        /// Its name.
        id: String,
        /// Why not.
        why: &'static str,
    },
    /// The change of a rollout makes no sense now.
    #[error(transparent)]
    Rollout(#[from] ChangeError),
    /// A scene's setting is out of its bounds.
    #[error(transparent)]
    Scene(#[from] SceneError),
    /// A setting of another record is out of its bounds.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The plan of an experiment is not valid.
    #[error(transparent)]
    Experiment(#[from] PlanError),
    /// A row holds a value that no version of this program writes.
    #[error("{doing}: column `{column}` holds {value}")]
    Row {
        /// What was read.
        doing: &'static str,
        /// The column.
        column: &'static str,
        /// What it holds.
        value: String,
    },
}

impl StoreError {
    /// Returns the error for a connection that cannot be opened.
    pub(super) fn opening(address: String, err: sqlx::Error) -> StoreError {
        if is_tls(&err) { StoreError::Tls { address, err } } else { StoreError::Open { address, err } }
    }

    /// Returns whether the database is unavailable: a later try may succeed, and the request is not wrong.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        match self {
            StoreError::Open { err, .. } | StoreError::Tls { err, .. } | StoreError::Query { err, .. } => {
                match err {
                    // Includes an expired certificate: once it is renewed, the server is available again.
                    sqlx::Error::Io(_)
                    | sqlx::Error::Tls(_)
                    | sqlx::Error::PoolTimedOut
                    | sqlx::Error::PoolClosed
                    | sqlx::Error::WorkerCrashed
                    | sqlx::Error::Protocol(_) => true,
                    // PostgreSQL: connection exceptions, and errors of a server that starts or stops.
                    sqlx::Error::Database(err) => err.code().is_some_and(|code| match sqlite_code(&code) {
                        Some(code) => code == SQLITE_BUSY || SQLITE_NOT_WRITABLE.contains(&code),
                        None => {
                            code.starts_with("08")
                                || code.starts_with("57P")
                                || code == "53300"
                                || POSTGRES_NOT_WRITABLE.contains(&&*code)
                        }
                    }),
                    _ => false,
                }
            }
            _ => false,
        }
    }

    /// Returns whether the database can be read but not written: its disk is full or fails, or it is a
    /// read-only replica.
    #[must_use]
    pub fn is_not_writable(&self) -> bool {
        let StoreError::Query { err: sqlx::Error::Database(err), .. } = self else { return false };
        err.code().is_some_and(|code| match sqlite_code(&code) {
            Some(code) => SQLITE_NOT_WRITABLE.contains(&code),
            None => POSTGRES_NOT_WRITABLE.contains(&&*code),
        })
    }
}

const SQLITE_BUSY: u32 = 5;
/// SQLITE_READONLY, SQLITE_IOERR, SQLITE_FULL.
const SQLITE_NOT_WRITABLE: [u32; 3] = [8, 10, 13];
/// disk_full, io_error, read_only_sql_transaction.
const POSTGRES_NOT_WRITABLE: [&str; 3] = ["53100", "58030", "25006"];

/// Returns the primary code of a SQLite error; `None` if the code is one of PostgreSQL, which has five
/// characters. The driver gives SQLite's extended code in decimal.
fn sqlite_code(code: &str) -> Option<u32> {
    let extended: u32 = code.parse().ok().filter(|_| code.len() < 5)?;
    Some(extended & 0xff)
}

/// Returns whether TLS failed. The driver reports a failed handshake as an I/O error that wraps the error of
/// rustls.
fn is_tls(err: &sqlx::Error) -> bool {
    match err {
        sqlx::Error::Tls(_) => true,
        sqlx::Error::Io(err) => err.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()),
        _ => false,
    }
}
