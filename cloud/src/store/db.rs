//! One interface to both databases: statements, values and rows.
//!
//! Why not sqlx's `Any`: it needs a driver registered at run time, and hides options that the two pools need
//! (WAL, busy timeout, `BEGIN IMMEDIATE`, acquire timeout, LISTEN). This store has only four kinds of values.
//! So every statement is written once, with `$1` for its values (SQLite accepts that too), and its values are
//! bound here. Always: a statement ends within [`STATEMENT_MAX`], whatever the database does. Both databases
//! store the same texts: PostgreSQL cannot store NUL, so each is bound as U+FFFD (settings with NUL are
//! refused before).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgPool, PgRow, Postgres};
use sqlx::sqlite::{Sqlite, SqlitePool, SqliteRow};
use sqlx::{Executor, Row as _, Transaction};

use super::{StoreError, now_ms};

/// The longest that one statement may take.
pub(super) const STATEMENT_MAX: Duration = Duration::from_secs(10);

/// One statement, described in words, in SQL that both databases accept.
#[derive(Debug)]
pub(super) struct Statement {
    /// What it does, for messages.
    pub(super) doing: &'static str,
    pub(super) sql: &'static str,
}

/// A value for a statement. A null has a type too, because PostgreSQL needs one.
#[derive(Debug, Clone)]
pub(super) enum Arg<'a> {
    Int(Option<i64>),
    Real(Option<f64>),
    Text(Option<&'a str>),
    Owned(String),
    Bytes(&'a [u8]),
}

impl From<i64> for Arg<'_> {
    fn from(value: i64) -> Self {
        Arg::Int(Some(value))
    }
}

impl From<u32> for Arg<'_> {
    fn from(value: u32) -> Self {
        Arg::Int(Some(value.into()))
    }
}

impl From<bool> for Arg<'_> {
    fn from(value: bool) -> Self {
        Arg::Int(Some(value.into()))
    }
}

/// Counts stay far below 2^63. A larger one is written as the largest possible.
impl From<u64> for Arg<'_> {
    fn from(value: u64) -> Self {
        Arg::Int(Some(i64::try_from(value).unwrap_or(i64::MAX)))
    }
}

impl From<f64> for Arg<'_> {
    fn from(value: f64) -> Self {
        Arg::Real(Some(value))
    }
}

impl<'a> From<&'a str> for Arg<'a> {
    fn from(value: &'a str) -> Self {
        Arg::Text(Some(value))
    }
}

impl<'a> From<&'a String> for Arg<'a> {
    fn from(value: &'a String) -> Self {
        Arg::Text(Some(value))
    }
}

impl From<String> for Arg<'_> {
    fn from(value: String) -> Self {
        Arg::Owned(value)
    }
}

impl<'a> From<&'a [u8; 32]> for Arg<'a> {
    fn from(value: &'a [u8; 32]) -> Self {
        Arg::Bytes(value)
    }
}

impl From<Option<i64>> for Arg<'_> {
    fn from(value: Option<i64>) -> Self {
        Arg::Int(value)
    }
}

impl From<Option<u32>> for Arg<'_> {
    fn from(value: Option<u32>) -> Self {
        Arg::Int(value.map(i64::from))
    }
}

impl From<Option<f64>> for Arg<'_> {
    fn from(value: Option<f64>) -> Self {
        Arg::Real(value)
    }
}

impl<'a> From<Option<&'a str>> for Arg<'a> {
    fn from(value: Option<&'a str>) -> Self {
        Arg::Text(value)
    }
}

/// The values of one statement.
macro_rules! args {
    ($($value:expr),* $(,)?) => { &[$($crate::store::db::Arg::from($value)),*] };
}
pub(super) use args;

/// A query with its values bound, for either database.
macro_rules! bound {
    ($statement:expr, $args:expr) => {{
        let mut query = sqlx::query($statement.sql);
        for arg in $args {
            query = match arg {
                Arg::Int(value) => query.bind(*value),
                Arg::Real(value) => query.bind(*value),
                Arg::Text(Some(text)) if text.contains('\0') => query.bind(text.replace('\0', "\u{fffd}")),
                Arg::Text(value) => query.bind(*value),
                Arg::Owned(text) => query.bind(text.replace('\0', "\u{fffd}")),
                Arg::Bytes(value) => query.bind(*value),
            };
        }
        query
    }};
}

/// Connections to one database, and whether it accepts changes.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    pub(super) db: Db,
    writes: Arc<Writes>,
}

/// Connections to one database.
#[derive(Debug, Clone)]
pub(super) enum Db {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

/// A transaction, rolled back if it is dropped.
pub(super) struct Tx {
    db: DbTx,
    /// Records how each write ends; `None` if the transaction only reads.
    writes: Option<Arc<Writes>>,
}

enum DbTx {
    Sqlite(Transaction<'static, Sqlite>),
    Postgres(Transaction<'static, Postgres>),
}

/// Since when the database accepts no change, in milliseconds since 1970; 0 if it accepts changes.
#[derive(Debug, Default)]
struct Writes(AtomicI64);

impl Writes {
    /// Records the result of an operation that ends with a commit.
    fn note<T>(&self, done: Result<T, StoreError>) -> Result<T, StoreError> {
        if done.is_ok() {
            self.0.store(0, Ordering::Relaxed);
        }
        self.note_failure(done)
    }

    /// Records the result of a part of a transaction. Only a failure of the storage says anything: a write
    /// that succeeds is not committed yet.
    fn note_failure<T>(&self, done: Result<T, StoreError>) -> Result<T, StoreError> {
        if done.as_ref().is_err_and(StoreError::is_not_writable) {
            let _ = self.0.compare_exchange(0, now_ms(), Ordering::Relaxed, Ordering::Relaxed);
        }
        done
    }
}

/// One row of a result.
pub(super) struct Row {
    doing: &'static str,
    row: DbRow,
}

enum DbRow {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

impl Pool {
    pub(super) fn new(db: Db) -> Pool {
        Pool { db, writes: Arc::default() }
    }

    /// Returns since when the database accepts no change, in milliseconds since 1970. `None` if it accepts
    /// changes, as far as is known.
    pub(super) fn not_writable_since_ms(&self) -> Option<i64> {
        let since = self.writes.0.load(Ordering::Relaxed);
        (since != 0).then_some(since)
    }

    /// Returns every row of a query.
    pub(super) async fn rows(&self, statement: &Statement, args: &[Arg<'_>]) -> Result<Vec<Row>, StoreError> {
        let rows = async {
            Ok(match &self.db {
                Db::Sqlite(pool) => wrap_sqlite(statement, bound!(statement, args).fetch_all(pool).await?),
                Db::Postgres(pool) => wrap_pg(statement, bound!(statement, args).fetch_all(pool).await?),
            })
        };
        in_time(statement.doing, rows).await
    }

    /// Returns the first row of a query, if there is one.
    pub(super) async fn row(
        &self,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> Result<Option<Row>, StoreError> {
        Ok(self.rows(statement, args).await?.into_iter().next())
    }

    /// Runs a statement. Returns how many rows it changed.
    pub(super) async fn execute(&self, statement: &Statement, args: &[Arg<'_>]) -> Result<u64, StoreError> {
        let done = async {
            Ok(match &self.db {
                Db::Sqlite(pool) => bound!(statement, args).execute(pool).await?.rows_affected(),
                Db::Postgres(pool) => bound!(statement, args).execute(pool).await?.rows_affected(),
            })
        };
        let done = in_time(statement.doing, done).await;
        // A statement that changed no row has written nothing.
        if matches!(done, Ok(0)) { done } else { self.writes.note(done) }
    }

    /// Begins a transaction that will write. SQLite takes its one write lock at once, so that two writers
    /// wait for each other instead of failing half way.
    pub(super) async fn begin_write(&self) -> Result<Tx, StoreError> {
        let begun = async {
            Ok(match &self.db {
                Db::Sqlite(pool) => DbTx::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await?),
                Db::Postgres(pool) => DbTx::Postgres(pool.begin().await?),
            })
        };
        let begun = self.writes.note_failure(in_time("begin a change", begun).await);
        Ok(Tx { db: begun?, writes: Some(self.writes.clone()) })
    }

    /// Begins a transaction that reads one state of the database.
    pub(super) async fn begin_read(&self) -> Result<Tx, StoreError> {
        let begun = async {
            Ok(match &self.db {
                Db::Sqlite(pool) => DbTx::Sqlite(pool.begin().await?),
                Db::Postgres(pool) => {
                    DbTx::Postgres(pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?)
                }
            })
        };
        Ok(Tx { db: in_time("begin to read", begun).await?, writes: None })
    }

    /// Lets the database parse a statement and look up its tables and columns, without running it.
    pub(super) async fn prepare(&self, statement: &Statement) -> Result<(), StoreError> {
        let prepared = async {
            match &self.db {
                Db::Sqlite(pool) => {
                    drop(pool.acquire().await?.prepare(sqlx::SqlSafeStr::into_sql_str(statement.sql)).await?)
                }
                Db::Postgres(pool) => {
                    drop(pool.acquire().await?.prepare(sqlx::SqlSafeStr::into_sql_str(statement.sql)).await?)
                }
            }
            Ok(())
        };
        in_time(statement.doing, prepared).await
    }

    pub(super) async fn close(&self) {
        match &self.db {
            Db::Sqlite(pool) => pool.close().await,
            Db::Postgres(pool) => pool.close().await,
        }
    }
}

impl Tx {
    /// Returns every row of a query.
    pub(super) async fn rows(
        &mut self,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let rows = async {
            Ok(match &mut self.db {
                DbTx::Sqlite(tx) => {
                    wrap_sqlite(statement, bound!(statement, args).fetch_all(&mut **tx).await?)
                }
                DbTx::Postgres(tx) => wrap_pg(statement, bound!(statement, args).fetch_all(&mut **tx).await?),
            })
        };
        let rows = in_time(statement.doing, rows).await;
        self.part(rows)
    }

    /// Returns the first row of a query, if there is one.
    pub(super) async fn row(
        &mut self,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> Result<Option<Row>, StoreError> {
        Ok(self.rows(statement, args).await?.into_iter().next())
    }

    /// Runs a statement. Returns how many rows it changed.
    pub(super) async fn execute(
        &mut self,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> Result<u64, StoreError> {
        let done = async {
            Ok(match &mut self.db {
                DbTx::Sqlite(tx) => bound!(statement, args).execute(&mut **tx).await?.rows_affected(),
                DbTx::Postgres(tx) => bound!(statement, args).execute(&mut **tx).await?.rows_affected(),
            })
        };
        let done = in_time(statement.doing, done).await;
        self.part(done)
    }

    /// Records the result of a part of this transaction.
    fn part<T>(&self, done: Result<T, StoreError>) -> Result<T, StoreError> {
        match &self.writes {
            Some(writes) => writes.note_failure(done),
            None => done,
        }
    }

    /// Commits the transaction.
    pub(super) async fn commit(self) -> Result<(), StoreError> {
        let done = async {
            match self.db {
                DbTx::Sqlite(tx) => tx.commit().await,
                DbTx::Postgres(tx) => tx.commit().await,
            }
        };
        let done = in_time("commit a change", done).await;
        match self.writes {
            Some(writes) => writes.note(done),
            None => done,
        }
    }
}

fn wrap_sqlite(statement: &Statement, rows: Vec<SqliteRow>) -> Vec<Row> {
    rows.into_iter().map(|row| Row { doing: statement.doing, row: DbRow::Sqlite(row) }).collect()
}

fn wrap_pg(statement: &Statement, rows: Vec<PgRow>) -> Vec<Row> {
    rows.into_iter().map(|row| Row { doing: statement.doing, row: DbRow::Postgres(row) }).collect()
}

/// Waits for the database for at most [`STATEMENT_MAX`].
async fn in_time<T>(
    doing: &'static str,
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(STATEMENT_MAX, work).await {
        Ok(done) => done.map_err(|err| StoreError::Query { doing, err }),
        Err(_) => Err(StoreError::Query { doing, err: sqlx::Error::PoolTimedOut }),
    }
}

macro_rules! getter {
    ($(#[$doc:meta])* $name:ident: $kind:ty) => {
        $(#[$doc])*
        pub(super) fn $name(&self, column: &'static str) -> Result<$kind, StoreError> {
            let value = match &self.row {
                DbRow::Sqlite(row) => row.try_get(column),
                DbRow::Postgres(row) => row.try_get(column),
            };
            value.map_err(|err| StoreError::Query { doing: self.doing, err })
        }
    };
}

impl Row {
    getter!(int: i64);
    getter!(opt_int: Option<i64>);
    getter!(real: f64);
    getter!(opt_real: Option<f64>);
    getter!(raw_text: String);
    getter!(opt_text: Option<String>);
    getter!(bytes: Vec<u8>);

    /// Returns a text. Replaces NUL as binding does: SQLite can hold it, and an earlier version of this
    /// program accepted it in settings.
    pub(super) fn text(&self, column: &'static str) -> Result<String, StoreError> {
        let text = self.raw_text(column)?;
        Ok(if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text })
    }

    /// Returns a whole number that was written from a `u64`.
    pub(super) fn count(&self, column: &'static str) -> Result<u64, StoreError> {
        let value = self.int(column)?;
        u64::try_from(value).map_err(|_| self.bad(column, value.to_string()))
    }

    /// Returns a whole number of 32 bits.
    pub(super) fn small(&self, column: &'static str) -> Result<u32, StoreError> {
        let value = self.int(column)?;
        u32::try_from(value).map_err(|_| self.bad(column, value.to_string()))
    }

    /// Returns a whole number of 32 bits, or `None` for null.
    pub(super) fn opt_small(&self, column: &'static str) -> Result<Option<u32>, StoreError> {
        let small = |value: i64| u32::try_from(value).map_err(|_| self.bad(column, value.to_string()));
        self.opt_int(column)?.map(small).transpose()
    }

    /// Returns a flag: false for 0, true for any other number.
    pub(super) fn flag(&self, column: &'static str) -> Result<bool, StoreError> {
        Ok(self.int(column)? != 0)
    }

    /// Returns a hash of 32 bytes.
    pub(super) fn hash(&self, column: &'static str) -> Result<[u8; 32], StoreError> {
        let bytes = self.bytes(column)?;
        let len = bytes.len();
        bytes.try_into().map_err(|_| self.bad(column, format!("{len} bytes")))
    }

    /// Parses a text.
    pub(super) fn parsed<T: std::str::FromStr>(&self, column: &'static str) -> Result<T, StoreError> {
        let text = self.text(column)?;
        text.parse().map_err(|_| self.bad(column, text))
    }

    /// Returns the error for a value that no version of this program writes.
    pub(super) fn bad(&self, column: &'static str, value: String) -> StoreError {
        StoreError::Row { doing: self.doing, column, value }
    }
}
