//! What somebody with the database's password could do: for tests that break what this program never breaks.

use sqlx::{AssertSqlSafe, Executor};

use super::db::Db;
use super::{Database, StoreError};

/// Runs SQL as it is, on a connection of its own and without any check. Several statements are divided by `;`.
///
/// # Errors
/// [`StoreError::Open`] where the database does not open, [`StoreError::Query`] where it refuses.
pub async fn execute(database: &Database, sql: &str) -> Result<(), StoreError> {
    let pool = super::connect(database).await?;
    let sql = AssertSqlSafe(sql.to_owned());
    let done = match &pool.db {
        Db::Sqlite(pool) => pool.execute(sql).await.map(drop),
        Db::Postgres(pool) => pool.execute(sql).await.map(drop),
    };
    pool.close().await;
    done.map_err(|err| StoreError::Query { doing: "run SQL by hand", err })
}
