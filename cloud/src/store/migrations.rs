//! Migrations, compiled in: the same steps for both databases.

use std::time::Duration;

use sqlx::SqlSafeStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

use super::StoreError;
use super::db::{Db, Pool};

/// How often another program's migration of the same SQLite file is waited for.
const TRIES: u32 = 20;
const TRY_AGAIN: Duration = Duration::from_millis(100);

macro_rules! migrations {
    ($($version:literal $name:literal $file:literal;)*) => {
        const SQLITE: &[(i64, &str, &str)] =
            &[$(($version, $name, include_str!(concat!("../../../migrations/sqlite/", $file)))),*];
        const POSTGRES: &[(i64, &str, &str)] =
            &[$(($version, $name, include_str!(concat!("../../../migrations/postgres/", $file)))),*];
    };
}

migrations! {
    1 "scenes" "0001_scenes.sql";
    2 "seed scenes" "0002_seed_scenes.sql";
    3 "scene refine mode" "0003_scene_refine_mode.sql";
    4 "scene tolerance" "0004_scene_tolerance.sql";
    5 "coefficients" "0005_coefficients.sql";
    6 "scene states" "0006_scene_states.sql";
    7 "access" "0007_access.sql";
    8 "usage" "0008_usage.sql";
    9 "scene model" "0009_scene_model.sql";
    10 "reserved tokens" "0010_reserved_tokens.sql";
    11 "known devices" "0011_known_devices.sql";
    12 "scene assist max" "0012_scene_assist_max.sql";
}

/// Brings the schema up to date. PostgreSQL: one program at a time, by an advisory lock; a schema that is newer than this
/// program is used as it is (migrations only add), so that replicas can be replaced one by one. SQLite: each step is a
/// transaction; where another program was faster, what it did is looked at again.
pub(super) async fn run(pool: &Pool) -> Result<(), StoreError> {
    match &pool.db {
        Db::Postgres(pool) => {
            let mut migrator = migrator(POSTGRES);
            migrator.set_ignore_missing(true);
            migrator.run(pool).await.map_err(StoreError::Migrate)
        }
        Db::Sqlite(pool) => {
            let migrator = migrator(SQLITE);
            let mut tried = 1;
            loop {
                match migrator.run(pool).await {
                    Err(
                        sqlx::migrate::MigrateError::Execute(_)
                        | sqlx::migrate::MigrateError::ExecuteMigration(..),
                    ) if tried < TRIES => {
                        tried += 1;
                        tokio::time::sleep(TRY_AGAIN).await;
                    }
                    done => return done.map_err(StoreError::Migrate),
                }
            }
        }
    }
}

fn migrator(steps: &[(i64, &'static str, &'static str)]) -> Migrator {
    let migrations = steps.iter().map(|&(version, name, sql)| {
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    });
    Migrator::with_migrations(migrations.collect())
}
