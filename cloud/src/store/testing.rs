//! For tests: makes databases of older programs, and runs SQL that bypasses every check.

use sqlx::{AssertSqlSafe, Executor};

use super::db::Db;
use super::{Database, StoreError, migrations};

/// Runs SQL without any check, on a connection of its own. Several statements are separated by `;`.
///
/// # Errors
/// [`StoreError::Open`] if the database cannot be opened, [`StoreError::Query`] if it refuses the SQL.
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

/// Makes a database as an older program left it, with the migrations up to `last`.
///
/// # Errors
/// [`StoreError::Open`] if the database cannot be opened, [`StoreError::Migrate`] if a step fails.
pub async fn migrate_to(database: &Database, last: i64) -> Result<(), StoreError> {
    let pool = super::connect(database).await?;
    let done = migrations::run_to(&pool, last).await;
    pool.close().await;
    done
}
