//! What the database cannot do.

use baton_edge::tls::TlsError;

use crate::access::AccessError;
use crate::scene::SceneError;

/// What the database cannot do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The address names something else than SQLite or PostgreSQL.
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
    /// An `sslmode` would not protect as its name says.
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
    /// The server does not speak TLS, or its certificate is not to be trusted.
    #[error("no TLS connection to database `{address}` as its sslmode asks")]
    Tls {
        /// Its address without a password.
        address: String,
        /// Why.
        #[source]
        err: sqlx::Error,
    },
    /// The path of a SQLite file is a folder's.
    #[error("database `{0}` is a folder: name a file")]
    Folder(String),
    /// It does not open.
    #[error("open database `{address}`")]
    Open {
        /// Its file, or its address without a password.
        address: String,
        /// Why.
        #[source]
        err: sqlx::Error,
    },
    /// A migration fails, or the schema was made by a newer program.
    #[error("migrate the database")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    /// A statement fails.
    #[error("{doing}")]
    Query {
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        #[source]
        err: sqlx::Error,
    },
    /// There is no such thing.
    #[error("{what} `{id}` does not exist")]
    Unknown {
        /// What kind of thing.
        what: &'static str,
        /// Its name.
        id: String,
    },
    /// Somebody else changed it meanwhile, or it is there already.
    #[error("{what} `{id}` is at version {current}, expected {expected}")]
    Conflict {
        /// What kind of thing.
        what: &'static str,
        /// Its name.
        id: String,
        /// The version that the change was based on; 0: that there is none.
        expected: u64,
        /// The version there is; 0: there is none.
        current: u64,
    },
    /// The thing is not in a state for this.
    #[error("{what} `{id}` {why}")]
    State {
        /// What kind of thing.
        what: &'static str,
        /// Its name.
        id: String,
        /// Why not.
        why: &'static str,
    },
    /// A scene's setting is out of its bounds.
    #[error(transparent)]
    Scene(#[from] SceneError),
    /// A setting of something else is out of its bounds.
    #[error(transparent)]
    Access(#[from] AccessError),
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
    /// What it means that a connection cannot be made.
    pub(super) fn opening(address: String, err: sqlx::Error) -> StoreError {
        if is_tls(&err) { StoreError::Tls { address, err } } else { StoreError::Open { address, err } }
    }

    /// Whether the database did not answer: trying again later may help, and nothing is wrong with the request.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        match self {
            StoreError::Open { err, .. } | StoreError::Tls { err, .. } | StoreError::Query { err, .. } => {
                match err {
                    // Also a certificate that has run out: with a new one, the server is back.
                    sqlx::Error::Io(_)
                    | sqlx::Error::Tls(_)
                    | sqlx::Error::PoolTimedOut
                    | sqlx::Error::PoolClosed
                    | sqlx::Error::WorkerCrashed
                    | sqlx::Error::Protocol(_) => true,
                    // PostgreSQL: connection exceptions, and what a server that starts or stops says.
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

    /// Whether the database reads but cannot write: its disk is full or fails, or it only follows another one.
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

/// The primary code of a SQLite error, of which the driver gives the extended one in decimal; none: it is one of the five
/// characters of PostgreSQL's.
fn sqlite_code(code: &str) -> Option<u32> {
    let extended: u32 = code.parse().ok().filter(|_| code.len() < 5)?;
    Some(extended & 0xff)
}

/// Whether TLS is what failed: the driver reports a refused handshake as an I/O error that holds rustls' own.
fn is_tls(err: &sqlx::Error) -> bool {
    match err {
        sqlx::Error::Tls(_) => true,
        sqlx::Error::Io(err) => err.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()),
        _ => false,
    }
}
