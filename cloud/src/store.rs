//! The database: SQLite (the default, in a file) or PostgreSQL. The only module of this program that holds
//! SQL.
//!
//! Stores scenes as immutable versions, device classes, tenants, API keys, users, sessions, the audit log,
//! and sums of usage. Migrations are compiled in and applied at start. One type serves both databases (see
//! [`db`]), and every statement is written once, in [`sql`].
//!
//! Never: changes or deletes a version of a scene or a row of the audit log. Never stores a prompt or an
//! answer, nor a key, a password or a session's token (only their hashes).
//!
//! Always: a change, its audit row and the new generation number are one transaction. Everything that is read
//! is checked again, so that a row edited by hand cannot bring settings out of bounds.

mod address;
mod audit;
mod change;
mod classes;
mod coefficients;
mod db;
mod error;
mod experiments;
mod history;
mod keys;
mod logins;
mod migrations;
mod models;
mod scenes;
mod sessions;
mod snapshot;
mod sql;
mod targets;
pub mod testing;
mod usage;
mod users;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use sqlx::Connection;
use sqlx::pool::PoolConnectionMetadata;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions};

use self::db::{Db, Pool};

pub use self::address::{Database, PostgresUrl};
pub use self::audit::{AuditCheck, AuditEnd, AuditFault, AuditQuery, AuditRow, ChainCheck, page_is_whole};
pub use self::change::Expected;
pub use self::classes::tenant_json;
pub use self::error::StoreError;
pub use self::experiments::{BucketRow, FeedbackName};
pub use self::history::{TenantDay, UsageHistory};
pub use self::keys::{NewKey, key_json};
pub use self::logins::{DEVICE_MAX_MS, LOGIN_CODE_MS, LoginAttempt};
pub use self::scenes::{Publication, SceneHead, SceneHistory, SceneState, SceneVersion, VersionState};
pub use self::sessions::{LoginError, NewSession, SESSION_IDLE_MS, SESSION_MAX_MS, Session};
pub use self::snapshot::{POLL_POSTGRES, POLL_SQLITE, Snapshot, StoreHealth, Watch};
pub use self::targets::DeviceReport;
pub use self::usage::{DayUsage, SharedUsage, UsageDelta};
pub use self::users::{UserChange, user_json};

/// Connections to a SQLite file. Readers run beside one writer.
const SQLITE_CONNECTIONS_MAX: u32 = 4;
/// Connections to a PostgreSQL server. One of them listens for notifications.
const POSTGRES_CONNECTIONS_MAX: u32 = 8;
/// How long a writer waits for another program's write.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How often to try to open a file that another program opens for the first time.
const OPEN_TRIES: u32 = 10;
const OPEN_AGAIN: Duration = Duration::from_millis(50);
/// How long a statement waits for a connection to a server.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);

/// An open database with all migrations applied.
#[derive(Debug, Clone)]
pub struct Store {
    pool: Pool,
    shared: Arc<snapshot::Shared>,
    logins: Arc<logins::Logins>,
}

impl Store {
    /// Opens the database and brings it to the newest schema. Several programs may do so at the same time.
    ///
    /// # Errors
    /// [`StoreError::Folder`] if the path is a folder. [`StoreError::Open`] if the file cannot be opened or
    /// made, or the server does not answer. [`StoreError::Tls`] or [`StoreError::RootCert`] if the connection
    /// cannot be protected as the address asks. [`StoreError::Migrate`] if a newer program made the SQLite
    /// file, or if an applied migration was changed.
    pub async fn open(database: &Database) -> Result<Store, StoreError> {
        let pool = connect(database).await?;
        migrations::run(&pool).await?;
        Ok(Store { pool, shared: snapshot::shared(), logins: Arc::default() })
    }

    /// Prepares every statement of this program, to check that each fits the schema. Returns their number.
    ///
    /// # Errors
    /// [`StoreError::Query`] for the first statement that does not fit.
    pub async fn check_statements(&self) -> Result<usize, StoreError> {
        for statement in sql::ALL {
            self.pool.prepare(statement).await?;
        }
        Ok(sql::ALL.len())
    }

    /// Closes every connection.
    pub async fn close(self) {
        self.pool.close().await;
    }
}

async fn connect(database: &Database) -> Result<Pool, StoreError> {
    let failed = |err| StoreError::opening(database.shown(), err);
    let db = match database {
        Database::Memory => {
            // One connection that is never closed, because each connection has its own database in memory.
            let options = SqliteConnectOptions::new().in_memory(true);
            let pool = SqlitePoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
            Db::Sqlite(pool.connect_with(options).await.map_err(failed)?)
        }
        Database::File(path) => {
            if path.is_dir() {
                return Err(StoreError::Folder(database.shown()));
            }
            make_private(path).map_err(|err| failed(err.into()))?;
            let options = SqliteConnectOptions::new()
                .filename(path)
                .journal_mode(SqliteJournalMode::Wal)
                .busy_timeout(BUSY_TIMEOUT);
            let pool = || {
                SqlitePoolOptions::new()
                    .max_connections(SQLITE_CONNECTIONS_MAX)
                    .after_release(outside_changes)
            };
            let mut tried = 1;
            loop {
                match pool().connect_with(options.clone()).await {
                    // Another program creates or removes the WAL files at this moment.
                    Err(sqlx::Error::Database(err))
                        if tried < OPEN_TRIES
                            && matches!(err.code().as_deref(), Some("14" | "5" | "261")) =>
                    {
                        tried += 1;
                        tokio::time::sleep(OPEN_AGAIN).await;
                    }
                    opened => break Db::Sqlite(opened.map_err(failed)?),
                }
            }
        }
        Database::Postgres(url) => {
            let options = url.connect_options()?.application_name("baton-cloud");
            Db::Postgres(connect_server(options).await.map_err(failed)?)
        }
    };
    Ok(Pool::new(db))
}

/// Connects to a server. If it refuses connections, it may be starting, so it has [`ACQUIRE_TIMEOUT`] to come
/// up.
async fn connect_server(options: PgConnectOptions) -> Result<PgPool, sqlx::Error> {
    let refused = first_contact(&options).await?;
    if let Some(err) = &refused {
        let seconds = ACQUIRE_TIMEOUT.as_secs();
        tracing::warn!(err = err as &dyn std::error::Error, seconds, "the database is not up: trying again");
    }
    let pool =
        PgPoolOptions::new().max_connections(POSTGRES_CONNECTIONS_MAX).acquire_timeout(ACQUIRE_TIMEOUT);
    match (pool.connect_with(options).await, refused) {
        // The pool's error says only that the time is over; the first error says why.
        (Err(sqlx::Error::PoolTimedOut), Some(err)) => Err(err),
        (opened, _) => opened,
    }
}

/// Connects once, without a pool. Returns the error if the server may be starting.
async fn first_contact(options: &PgConnectOptions) -> Result<Option<sqlx::Error>, sqlx::Error> {
    match tokio::time::timeout(ACQUIRE_TIMEOUT, PgConnection::connect_with(options)).await {
        Ok(Ok(connection)) => {
            // The server has answered, so an error while closing does not matter.
            let _ = connection.close().await;
            Ok(None)
        }
        Ok(Err(err)) if is_starting(&err) => Ok(Some(err)),
        Ok(Err(err)) => Err(err),
        Err(_) => {
            let why = format!("no answer within {} s", ACQUIRE_TIMEOUT.as_secs());
            Err(std::io::Error::new(std::io::ErrorKind::TimedOut, why).into())
        }
    }
}

/// Checks if the error is one of a server that is starting or full.
fn is_starting(err: &sqlx::Error) -> bool {
    match err {
        sqlx::Error::Io(err) => err.kind() == std::io::ErrorKind::ConnectionRefused,
        // too_many_connections, and cannot_connect_now.
        sqlx::Error::Database(err) => matches!(err.code().as_deref(), Some("53300" | "57P03")),
        _ => false,
    }
}

/// Checks that a connection is in no transaction when it returns to its pool. If it is in one, the pool
/// closes it.
///
/// SQLite rolls a transaction back by itself if its disk is full. The driver then fails to roll it back
/// again, keeps believing that it is open, and refuses to begin the next one.
fn outside_changes(
    connection: &mut SqliteConnection,
    _: PoolConnectionMetadata,
) -> BoxFuture<'_, Result<bool, sqlx::Error>> {
    Box::pin(async move {
        // The ping is queued behind the rollback of a dropped transaction.
        connection.ping().await?;
        Ok(!connection.is_in_transaction())
    })
}

/// Makes the database file if it is missing. Only this user can read it, because it holds hashes of passwords
/// and keys. SQLite gives the files beside it the same permissions.
fn make_private(path: &Path) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => warn_if_public(path),
        made => made.map(drop),
    }
}

/// Warns if every user of this machine can read the file. The permissions are the operator's choice, so they
/// stay.
fn warn_if_public(path: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(path)?.permissions().mode() & 0o777;
        if mode & 0o004 != 0 {
            let path = path.display();
            tracing::warn!(%path, mode = format!("{mode:o}"), "every user of this machine can read the database: chmod 600");
        }
    }
    Ok(())
}

/// Returns the time, in milliseconds since 1970 (UTC).
#[must_use]
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
