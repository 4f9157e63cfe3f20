//! The database: the only module of this program that holds SQL.
//!
//! Scenes are kept as immutable versions, and medians of what devices and networks cost, the newest only. Migrations are compiled in and applied at start.
//! Never: changes or deletes a version of a scene; stores a prompt or an answer.
//! Always: whatever is read is checked again, so that a row edited by hand cannot bring settings out of bounds.

mod coefficients;
mod scenes;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use sqlx::SqlSafeStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};

use crate::scene::SceneError;

/// Connections of a file database; readers run beside one writer.
const CONNECTIONS_MAX: u32 = 4;
/// How long a writer waits for another program's write.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

const MIGRATIONS: [(i64, &str, &str); 5] = [
    (1, "scenes", include_str!("../../migrations/sqlite/0001_scenes.sql")),
    (2, "seed scenes", include_str!("../../migrations/sqlite/0002_seed_scenes.sql")),
    (3, "scene refine mode", include_str!("../../migrations/sqlite/0003_scene_refine_mode.sql")),
    (4, "scene tolerance", include_str!("../../migrations/sqlite/0004_scene_tolerance.sql")),
    (5, "coefficients", include_str!("../../migrations/sqlite/0005_coefficients.sql")),
];

/// Where the database is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Database {
    /// In this process only, gone at its end.
    Memory,
    /// A SQLite file, made if it is missing.
    File(PathBuf),
}

/// An open database with all migrations applied.
#[derive(Debug, Clone)]
pub struct Store {
    pool: SqlitePool,
}

/// What the database cannot do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The address names something else than SQLite.
    #[error("database `{0}` is not supported: pass a file, `sqlite://FILE` or `:memory:`")]
    Address(String),
    /// It does not open.
    #[error("open database `{path}`")]
    Open {
        /// Its file.
        path: String,
        /// Why.
        #[source]
        err: sqlx::Error,
    },
    /// A migration fails, or the file was made by a newer program.
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
    /// There is no such scene.
    #[error("scene `{0}` does not exist")]
    UnknownScene(String),
    /// Somebody else made a version meanwhile.
    #[error("scene `{id}` is at version {current}, expected {expected}")]
    VersionConflict {
        /// The scene.
        id: String,
        /// The version the change was based on.
        expected: u32,
        /// The version there is.
        current: u32,
    },
    /// A setting is out of its bounds.
    #[error(transparent)]
    Scene(#[from] SceneError),
    /// A row holds a value that no version of this program writes.
    #[error("scene `{id}` version {version}: column `{column}` holds {value}")]
    Row {
        /// The scene.
        id: String,
        /// Its version.
        version: i64,
        /// The column.
        column: &'static str,
        /// What it holds.
        value: String,
    },
}

impl FromStr for Database {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Database, StoreError> {
        let path = match text.split_once("://") {
            Some(("sqlite", path)) => path,
            Some(_) => return Err(StoreError::Address(text.to_owned())),
            None => text.strip_prefix("sqlite:").unwrap_or(text),
        };
        match path {
            "" => Err(StoreError::Address(text.to_owned())),
            ":memory:" => Ok(Database::Memory),
            path => Ok(Database::File(PathBuf::from(path))),
        }
    }
}

impl Store {
    /// Opens the database and brings it to the newest schema.
    ///
    /// # Errors
    /// [`StoreError::Open`] where the file cannot be opened or made, [`StoreError::Migrate`] where it was made by a
    /// newer program or one of its migrations was changed.
    pub async fn open(database: &Database) -> Result<Store, StoreError> {
        let (path, options, pool) = match database {
            Database::Memory => {
                // One connection that is never closed: each connection would have a memory of its own.
                let pool = SqlitePoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
                (Path::new(":memory:"), SqliteConnectOptions::new().in_memory(true), pool)
            }
            Database::File(path) => {
                let options = SqliteConnectOptions::new()
                    .filename(path)
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .busy_timeout(BUSY_TIMEOUT);
                (path.as_path(), options, SqlitePoolOptions::new().max_connections(CONNECTIONS_MAX))
            }
        };
        let pool = pool
            .connect_with(options)
            .await
            .map_err(|err| StoreError::Open { path: path.display().to_string(), err })?;
        migrator().run(&pool).await.map_err(StoreError::Migrate)?;
        Ok(Store { pool })
    }

    /// Closes every connection.
    pub async fn close(self) {
        self.pool.close().await;
    }
}

fn migrator() -> Migrator {
    let migrations = MIGRATIONS.iter().map(|&(version, description, sql)| {
        Migration::new(version, description.into(), MigrationType::Simple, sql.into_sql_str(), false)
    });
    Migrator::with_migrations(migrations.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let check = |text: &str, want: Option<Database>| assert_eq!(text.parse().ok(), want, "{text}");
        check(":memory:", Some(Database::Memory));
        check("sqlite::memory:", Some(Database::Memory));
        check("sqlite://:memory:", Some(Database::Memory));
        check("./a.db", Some(Database::File("./a.db".into())));
        check("sqlite://./a.db", Some(Database::File("./a.db".into())));
        check("sqlite:///var/a.db", Some(Database::File("/var/a.db".into())));
        check("postgres://host/db", None);
        check("", None);
        check("sqlite://", None);
    }

    #[tokio::test]
    async fn the_database_itself_refuses_to_change_a_version() {
        let store = Store::open(&Database::Memory).await.unwrap();
        for (sql, want) in [
            ("UPDATE scene_versions SET xi = 0.5 WHERE id = 'chat'", "never changes"),
            ("DELETE FROM scene_versions", "never deleted"),
            (
                "INSERT INTO scene_versions (id, version, system, question_prefix, xi, assist_floor, tau_ms, \
                 corrector, refine) VALUES ('x', 1, '', '', 2.0, 1, 100.0, 'cloud', 1)",
                "CHECK constraint failed",
            ),
        ] {
            let err = sqlx::query(sql).execute(&store.pool).await.unwrap_err().to_string();
            assert!(err.contains(want), "{sql}: {err}");
        }
        assert_eq!(store.scenes().await.unwrap().len(), 3);
    }
}
