//! Two databases behind one way to ask: statements, values and rows.
//!
//! Why not sqlx's `Any`: it needs a driver registered at run time, and gives up what the two pools must be set to
//! (WAL, busy timeout, `BEGIN IMMEDIATE`, acquire timeout, LISTEN). Three kinds of values are all that this store has;
//! so every statement is written once, with `$1` for its values (which SQLite takes too), and bound here.
//! Always: a statement ends within [`STATEMENT_MAX`], whatever the database does.

use std::time::Duration;

use sqlx::postgres::{PgPool, PgRow, Postgres};
use sqlx::sqlite::{Sqlite, SqlitePool, SqliteRow};
use sqlx::{Executor, Row as _, Transaction};

use super::StoreError;

/// The longest that one statement may take.
pub(super) const STATEMENT_MAX: Duration = Duration::from_secs(10);

/// One statement, in words and in SQL that both databases take.
#[derive(Debug)]
pub(super) struct Statement {
    /// What it does, for messages.
    pub(super) doing: &'static str,
    pub(super) sql: &'static str,
}

/// A value for a statement. Typed also where it is null, as PostgreSQL wants it.
#[derive(Debug, Clone)]
pub(super) enum Arg<'a> {
    Int(Option<i64>),
    Real(Option<f64>),
    Text(Option<&'a str>),
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

/// Counts that this program makes stay far below 2^63; one that does not is kept as the largest.
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
                Arg::Text(value) => query.bind(*value),
                Arg::Bytes(value) => query.bind(*value),
            };
        }
        query
    }};
}

/// Connections to one database.
#[derive(Debug, Clone)]
pub(super) enum Pool {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

/// A transaction; undone where it is dropped.
pub(super) enum Tx {
    Sqlite(Transaction<'static, Sqlite>),
    Postgres(Transaction<'static, Postgres>),
}

/// One row of an answer.
pub(super) struct Row {
    doing: &'static str,
    row: DbRow,
}

enum DbRow {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

impl Pool {
    /// Every row of a query.
    pub(super) async fn rows(&self, statement: &Statement, args: &[Arg<'_>]) -> Result<Vec<Row>, StoreError> {
        let rows = async {
            Ok(match self {
                Pool::Sqlite(pool) => wrap_sqlite(statement, bound!(statement, args).fetch_all(pool).await?),
                Pool::Postgres(pool) => wrap_pg(statement, bound!(statement, args).fetch_all(pool).await?),
            })
        };
        in_time(statement.doing, rows).await
    }

    /// The one row of a query, if there is one.
    pub(super) async fn row(
        &self,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> Result<Option<Row>, StoreError> {
        Ok(self.rows(statement, args).await?.into_iter().next())
    }

    /// Runs a statement; how many rows it changed.
    pub(super) async fn execute(&self, statement: &Statement, args: &[Arg<'_>]) -> Result<u64, StoreError> {
        let done = async {
            Ok(match self {
                Pool::Sqlite(pool) => bound!(statement, args).execute(pool).await?.rows_affected(),
                Pool::Postgres(pool) => bound!(statement, args).execute(pool).await?.rows_affected(),
            })
        };
        in_time(statement.doing, done).await
    }

    /// A transaction that will write. SQLite takes its one write lock at once, so that two writers wait for each
    /// other instead of failing half way.
    pub(super) async fn begin_write(&self) -> Result<Tx, StoreError> {
        let begun = async {
            Ok(match self {
                Pool::Sqlite(pool) => Tx::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await?),
                Pool::Postgres(pool) => Tx::Postgres(pool.begin().await?),
            })
        };
        in_time("begin a change", begun).await
    }

    /// A transaction that sees one state of the database throughout.
    pub(super) async fn begin_read(&self) -> Result<Tx, StoreError> {
        let begun = async {
            Ok(match self {
                Pool::Sqlite(pool) => Tx::Sqlite(pool.begin().await?),
                Pool::Postgres(pool) => {
                    Tx::Postgres(pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?)
                }
            })
        };
        in_time("begin to read", begun).await
    }

    /// Has the database parse a statement and look its tables and columns up, without running it.
    pub(super) async fn prepare(&self, statement: &Statement) -> Result<(), StoreError> {
        let prepared = async {
            match self {
                Pool::Sqlite(pool) => {
                    drop(pool.acquire().await?.prepare(sqlx::SqlSafeStr::into_sql_str(statement.sql)).await?)
                }
                Pool::Postgres(pool) => {
                    drop(pool.acquire().await?.prepare(sqlx::SqlSafeStr::into_sql_str(statement.sql)).await?)
                }
            }
            Ok(())
        };
        in_time(statement.doing, prepared).await
    }

    pub(super) async fn close(&self) {
        match self {
            Pool::Sqlite(pool) => pool.close().await,
            Pool::Postgres(pool) => pool.close().await,
        }
    }
}

impl Tx {
    /// Every row of a query.
    pub(super) async fn rows(
        &mut self,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let rows = async {
            Ok(match self {
                Tx::Sqlite(tx) => wrap_sqlite(statement, bound!(statement, args).fetch_all(&mut **tx).await?),
                Tx::Postgres(tx) => wrap_pg(statement, bound!(statement, args).fetch_all(&mut **tx).await?),
            })
        };
        in_time(statement.doing, rows).await
    }

    /// The one row of a query, if there is one.
    pub(super) async fn row(
        &mut self,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> Result<Option<Row>, StoreError> {
        Ok(self.rows(statement, args).await?.into_iter().next())
    }

    /// Runs a statement; how many rows it changed.
    pub(super) async fn execute(
        &mut self,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> Result<u64, StoreError> {
        let done = async {
            Ok(match self {
                Tx::Sqlite(tx) => bound!(statement, args).execute(&mut **tx).await?.rows_affected(),
                Tx::Postgres(tx) => bound!(statement, args).execute(&mut **tx).await?.rows_affected(),
            })
        };
        in_time(statement.doing, done).await
    }

    /// Makes the changes last.
    pub(super) async fn commit(self) -> Result<(), StoreError> {
        let done = async {
            match self {
                Tx::Sqlite(tx) => tx.commit().await,
                Tx::Postgres(tx) => tx.commit().await,
            }
        };
        in_time("commit a change", done).await
    }
}

fn wrap_sqlite(statement: &Statement, rows: Vec<SqliteRow>) -> Vec<Row> {
    rows.into_iter().map(|row| Row { doing: statement.doing, row: DbRow::Sqlite(row) }).collect()
}

fn wrap_pg(statement: &Statement, rows: Vec<PgRow>) -> Vec<Row> {
    rows.into_iter().map(|row| Row { doing: statement.doing, row: DbRow::Postgres(row) }).collect()
}

/// Waits for the database, not forever.
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
    getter!(text: String);
    getter!(opt_text: Option<String>);
    getter!(bytes: Vec<u8>);

    /// A whole number that this program wrote from a `u64`.
    pub(super) fn count(&self, column: &'static str) -> Result<u64, StoreError> {
        let value = self.int(column)?;
        u64::try_from(value).map_err(|_| self.bad(column, value.to_string()))
    }

    /// A whole number of 32 bits.
    pub(super) fn small(&self, column: &'static str) -> Result<u32, StoreError> {
        let value = self.int(column)?;
        u32::try_from(value).map_err(|_| self.bad(column, value.to_string()))
    }

    /// A whole number of 32 bits, or null.
    pub(super) fn opt_small(&self, column: &'static str) -> Result<Option<u32>, StoreError> {
        let small = |value: i64| u32::try_from(value).map_err(|_| self.bad(column, value.to_string()));
        self.opt_int(column)?.map(small).transpose()
    }

    /// 0 or 1.
    pub(super) fn flag(&self, column: &'static str) -> Result<bool, StoreError> {
        Ok(self.int(column)? != 0)
    }

    /// A hash of 32 bytes.
    pub(super) fn hash(&self, column: &'static str) -> Result<[u8; 32], StoreError> {
        let bytes = self.bytes(column)?;
        let len = bytes.len();
        bytes.try_into().map_err(|_| self.bad(column, format!("{len} bytes")))
    }

    /// A text that must mean something.
    pub(super) fn parsed<T: std::str::FromStr>(&self, column: &'static str) -> Result<T, StoreError> {
        let text = self.text(column)?;
        text.parse().map_err(|_| self.bad(column, text))
    }

    /// The error for a value that no version of this program writes.
    pub(super) fn bad(&self, column: &'static str, value: String) -> StoreError {
        StoreError::Row { doing: self.doing, column, value }
    }
}
